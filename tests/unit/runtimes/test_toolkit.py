"""The container toolkit's config.toml: what --set means, and that nothing else of the file changes."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.errors import Refused, UsageError
from gpunode.runtimes.toolkit import KEYS, Machine, configure, default, departures, settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MACHINE = Machine()
USUAL = default(MACHINE)


def made(text: str, *words: str) -> str:
    return configure(text.encode(), settings(words), MACHINE).decode()


def test_the_defaults_are_sound_toml_and_set_every_key_that_has_one() -> None:
    document = tomllib.loads(USUAL)
    for key in KEYS:
        node = document
        for part in key.path[:-1]:
            node = node.get(part, {})
        expected = list(key.default) if isinstance(key.default, tuple) else key.default
        assert node.get(key.path[-1]) == expected


def test_the_rows_stand_in_the_order_in_which_nvidia_ctk_writes_them() -> None:
    paths = [key.path for key in KEYS]
    assert paths == sorted(paths, key=lambda path: (path[:-1], path[-1]))
    assert len(set(paths)) == len(paths)


def test_suse_and_ubuntu_have_defaults_of_their_own() -> None:
    assert tomllib.loads(default(Machine(suse=True)))["nvidia-container-cli"]["user"] == "root:video"
    assert 'ldconfig = "@/sbin/ldconfig.real"' in default(Machine(real_ldconfig=True))


def test_a_missing_file_is_made_with_the_defaults_an_empty_one_is_not() -> None:
    words = settings(["nvidia-container-runtime.mode=cdi"])
    assert configure(None, words, MACHINE).decode() == USUAL.replace('mode = "auto"', 'mode = "cdi"')
    empty = tomllib.loads(configure(b"", words, MACHINE).decode())
    assert empty == {"nvidia-container-cli": {}, "nvidia-container-runtime": {"mode": "cdi"}}
    assert configure(None, (), MACHINE).decode() == USUAL


@pytest.mark.parametrize("text", ["", "\n\n", "# mine\n", "\ufeff", "x = 1e3 # \u00fc\r\n"])
def test_without_a_setting_not_a_byte_changes(text: str) -> None:
    assert configure(text.encode(), (), MACHINE) == text.encode()
    assert configure(text.encode(), settings(["features.disable-cuda-compat-lib-hook=nil"]), MACHINE) == text.encode()


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("disable-require", True),
        ("disable-require=true", True),
        ("disable-require=1", True),
        ("disable-require=F", False),
        ("features.disable-imex-channel-creation", True),
        ("features.disable-imex-channel-creation=false", False),
        ("features.disable-imex-channel-creation=nil", None),
        ("swarm-resource=", ""),
        ("swarm-resource=true", "true"),
        ("swarm-resource=a=b", "a=b"),
        ("supported-driver-capabilities=compute,utility", "compute,utility"),
        ("nvidia-container-cli.environment=A=b", ["A=b"]),
        ("nvidia-container-cli.environment=", []),
        ("nvidia-container-runtime.runtimes=crun:runc", ["crun", "runc"]),
        ("nvidia-container-runtime.mode=jit-cdi", "jit-cdi"),
    ],
)
def test_what_set_says(word: str, value: object) -> None:
    (setting,) = settings([word])
    assert setting.value == value
    assert type(setting.value) is type(value)


def test_one_set_may_hold_several_as_nvidia_ctk_cuts_it_at_commas() -> None:
    found = settings(["disable-require,nvidia-container-cli.no-cgroups=false"])
    assert [(one.key.name, one.value) for one in found] == [
        ("disable-require", True),
        ("nvidia-container-cli.no-cgroups", False),
    ]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("nope=1", "no such key"),
        ("mode=cdi", "did you mean nvidia-container-runtime.mode?"),
        ("nvidia-container-cli.no-cgroup", "did you mean nvidia-container-cli.no-cgroups?"),
        ("nvidia-container-cli.nope=1", "nvidia-container-cli.no-cgroups"),
        ("nvidia-container-cli=1", "names a table"),
        ("", "no such key"),
        ("swarm-resource", "no value"),
        ("disable-require=maybe", "cannot be 'maybe'"),
        ("disable-require=nil", "cannot be 'nil'"),
        ("disable-require=", "cannot be ''"),
        ("nvidia-container-runtime.mode=cid", "jit-cdi"),
        ("nvidia-container-runtime.modes.legacy.cuda-compat-mode=on", "disabled"),
        ("nvidia-container-runtime.runtimes=a,b", "nvidia-container-runtime.runtimes=a:b"),
    ],
)
def test_what_set_cannot_say(word: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        settings([word])
    assert said in f"{refused.value.what} {refused.value.why} {refused.value.hint}"
    assert refused.value.hint


def test_the_last_one_counts() -> None:
    assert made("", "disable-require=true", "disable-require=false") == made("", "disable-require=false")


@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        # Below the comment that shows the usual value, in its indentation and with its line's end.
        ("#disable-require = false\nx = 1\n", "disable-require",
         "#disable-require = false\ndisable-require = true\nx = 1\n"),
        ("[a]\r\n[nvidia-container-cli]\r\n\t# root = 'x'\r\n", "nvidia-container-cli.root=/r",
         "[a]\r\n[nvidia-container-cli]\r\n\t# root = 'x'\r\n\troot = \"/r\"\r\n"),
        ("#disable-require = false", "disable-require", "#disable-require = false\ndisable-require = true"),
        # A line in a string is no comment, nor is one in another table.
        ('a = """\n#disable-require = false\n"""\n', "disable-require",
         'a = """\n#disable-require = false\n"""\ndisable-require = true\n'),
        ("[site]\n#disable-require = false\n", "disable-require",
         "disable-require = true\n\n[site]\n#disable-require = false\n"),
        # The value alone changes; of another type, too, and though Python takes 1 for true.
        ("disable-require = false # why\n", "disable-require", "disable-require = true # why\n"),
        ("disable-require = 1 # why\n", "disable-require", "disable-require = true # why\n"),
        ("nvidia-container-cli = {root = '/x'}\n", "nvidia-container-cli.root=/y",
         "nvidia-container-cli = {root = '/y'}\n"),
        # nil takes out.
        ("x = 1\n\n[features]\ndisable-imex-channel-creation = true\n", "features.disable-imex-channel-creation=nil",
         "x = 1\n"),
        ("[features]\n", "features.disable-imex-channel-creation=nil", "[features]\n"),
        ("features.disable-imex-channel-creation = true\nx = 1\n", "features.disable-imex-channel-creation=nil",
         "x = 1\n"),
    ],
)  # fmt: skip
def test_where_it_is_written(text: str, word: str, expected: str) -> None:
    assert made(text, word) == expected
    assert made(expected, word) == expected


@pytest.mark.parametrize(
    ("text", "word", "said"),
    [
        ("a = [\n", "disable-require", "config.toml"),
        ("x = 1\nnvidia-container-cli = 3\n", "nvidia-container-cli.root=/x", "config.toml:2: nvidia-container-cli"),
        ("", "nvidia-container-cli.ldconfig=/sbin/ldconfig", "prevent every GPU container from starting"),
        (
            "nvidia-container-cli.ldconfig = '/x'\nfeatures.allow-ldconfig-from-container = true\n",
            "features.allow-ldconfig-from-container=false",
            "prevent every GPU container from starting",
        ),
    ],
)
def test_what_is_refused(text: str, word: str, said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        made(text, word)
    assert refused.value.hint
    assert refused.value.why


def test_a_container_s_own_ldconfig_may_be_set_with_its_feature() -> None:
    words = ["features.allow-ldconfig-from-container", "nvidia-container-cli.ldconfig=/sbin/ldconfig"]
    assert tomllib.loads(made("", *words))["nvidia-container-cli"]["ldconfig"] == "/sbin/ldconfig"


def test_a_foreign_fault_stops_nobody_else() -> None:
    assert made("nvidia-container-cli.ldconfig = '/x'\n", "disable-require").endswith("disable-require = true\n")


comments = st.sampled_from(["# site", "#disable-require = false", "#root = '/x' # why", "\t# ü"])
statements = st.sampled_from(
    ['x = "#no"', "list = [ # one\n 1,\n]", "disable-require = true # sec", 'y = """\n# in\n"""']
)
headers = st.sampled_from(
    ["[nvidia-container-cli]", "[ features ] # f", "['nvidia-container-runtime'.modes.cdi]", "[[site]]"]
)
words = st.sampled_from(
    [
        "disable-require=false",
        "nvidia-container-cli.root=/y",
        "nvidia-container-cli.no-cgroups",
        "nvidia-container-runtime.modes.cdi.spec-dirs=/a:/b",
        "features.disable-imex-channel-creation",
    ]
)


@given(st.lists(comments | statements | headers, max_size=8), st.lists(words, min_size=1, max_size=3), st.booleans())
def test_comments_stay_what_is_asked_is_there_and_twice_is_once(lines: list[str], asked: list[str], crlf: bool) -> None:
    text = "\n".join((*lines, "")).replace("\n", "\r\n" if crlf else "\n")
    try:
        before = tomllib.loads(text)
    except ValueError:
        return
    try:
        after = made(text, *asked)
    except Refused:  # tomlkit would move the second of them
        assert text.count("[[site]]") > 1
        return
    assert made(after, *asked) == after
    found = tomllib.loads(after)
    for setting in settings(asked):
        node = found
        for part in setting.key.path[:-1]:
            node = node[part]
        last = [one for one in settings(asked) if one.key == setting.key][-1]
        assert node[setting.key.path[-1]] == last.value
    for line in text.split("\n"):
        assert line.partition("#")[2].strip() in after
    assert {key: value for key, value in before.items() if key in {"x", "y", "list", "site"}} == {
        key: value for key, value in found.items() if key in {"x", "y", "list", "site"}
    }


def test_what_departs_from_the_toolkits_own_settings_is_listed() -> None:
    assert departures(USUAL.encode()) == ()
    assert departures(b"") == ()
    said = made("", "nvidia-container-cli.no-cgroups=true", "nvidia-container-runtime.log-level=debug")
    assert departures(said.encode()) == ("nvidia-container-cli.no-cgroups = true",)
    with pytest.raises(Refused, match="not valid TOML"):
        departures(b"[", "/config.toml")
