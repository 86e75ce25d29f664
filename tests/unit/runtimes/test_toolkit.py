"""The container toolkit's config.toml: the meaning of --set; nothing else in the file changes."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.errors import Refused, UsageError
from gpunode.runtimes.toolkit import (
    TOOLKIT_KEYS,
    ToolkitHost,
    configure,
    non_default_settings,
    parse_set_options,
    render_default_config,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MACHINE = ToolkitHost()
USUAL = render_default_config(MACHINE)


def edit_text(text: str, *words: str) -> str:
    return configure(text.encode(), parse_set_options(words), MACHINE).decode()


def test_defaults_are_valid_toml_with_every_default_key() -> None:
    document = tomllib.loads(USUAL)
    for key in TOOLKIT_KEYS:
        node = document
        for part in key.path[:-1]:
            node = node.get(part, {})
        expected = list(key.default) if isinstance(key.default, tuple) else key.default
        assert node.get(key.path[-1]) == expected


def test_keys_are_in_the_order_of_nvidia_ctk() -> None:
    paths = [key.path for key in TOOLKIT_KEYS]
    assert paths == sorted(paths, key=lambda path: (path[:-1], path[-1]))
    assert len(set(paths)) == len(paths)


def test_suse_and_ubuntu_have_their_own_defaults() -> None:
    assert tomllib.loads(render_default_config(ToolkitHost(suse=True)))["nvidia-container-cli"]["user"] == "root:video"
    assert 'ldconfig = "@/sbin/ldconfig.real"' in render_default_config(ToolkitHost(real_ldconfig=True))


def test_missing_file_gets_the_defaults_and_an_empty_one_does_not() -> None:
    words = parse_set_options(["nvidia-container-runtime.mode=cdi"])
    assert configure(None, words, MACHINE).decode() == USUAL.replace('mode = "auto"', 'mode = "cdi"')
    empty = tomllib.loads(configure(b"", words, MACHINE).decode())
    assert empty == {"nvidia-container-cli": {}, "nvidia-container-runtime": {"mode": "cdi"}}
    assert configure(None, (), MACHINE).decode() == USUAL


@pytest.mark.parametrize("text", ["", "\n\n", "# mine\n", "\ufeff", "x = 1e3 # \u00fc\r\n"])
def test_file_is_unchanged_without_a_setting(text: str) -> None:
    assert configure(text.encode(), (), MACHINE) == text.encode()
    assert (
        configure(text.encode(), parse_set_options(["features.disable-cuda-compat-lib-hook=nil"]), MACHINE)
        == text.encode()
    )


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
def test_set_value_is_parsed_with_its_type(word: str, value: object) -> None:
    (setting,) = parse_set_options([word])
    assert setting.value == value
    assert type(setting.value) is type(value)


def test_one_set_option_may_hold_several_settings() -> None:
    found = parse_set_options(["disable-require,nvidia-container-cli.no-cgroups=false"])
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
def test_invalid_set_option_is_refused(word: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse_set_options([word])
    assert said in f"{refused.value.what} {refused.value.why} {refused.value.hint}"
    assert refused.value.hint


def test_last_setting_wins() -> None:
    assert edit_text("", "disable-require=true", "disable-require=false") == edit_text("", "disable-require=false")


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
        # Only the value changes, even to another type, although in Python 1 equals true.
        ("disable-require = false # why\n", "disable-require", "disable-require = true # why\n"),
        ("disable-require = 1 # why\n", "disable-require", "disable-require = true # why\n"),
        ("nvidia-container-cli = {root = '/x'}\n", "nvidia-container-cli.root=/y",
         "nvidia-container-cli = {root = '/y'}\n"),
        # nil removes the key.
        ("x = 1\n\n[features]\ndisable-imex-channel-creation = true\n", "features.disable-imex-channel-creation=nil",
         "x = 1\n"),
        ("[features]\n", "features.disable-imex-channel-creation=nil", "[features]\n"),
        ("features.disable-imex-channel-creation = true\nx = 1\n", "features.disable-imex-channel-creation=nil",
         "x = 1\n"),
    ],
)  # fmt: skip
def test_setting_is_written_in_its_section(text: str, word: str, expected: str) -> None:
    assert edit_text(text, word) == expected
    assert edit_text(expected, word) == expected


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
def test_impossible_setting_is_refused(text: str, word: str, said: str) -> None:
    with pytest.raises(Refused, match=said) as refused:
        edit_text(text, word)
    assert refused.value.hint
    assert refused.value.why


def test_container_ldconfig_may_be_set_with_its_feature() -> None:
    words = ["features.allow-ldconfig-from-container", "nvidia-container-cli.ldconfig=/sbin/ldconfig"]
    assert tomllib.loads(edit_text("", *words))["nvidia-container-cli"]["ldconfig"] == "/sbin/ldconfig"


def test_existing_invalid_setting_does_not_block_others() -> None:
    assert edit_text("nvidia-container-cli.ldconfig = '/x'\n", "disable-require").endswith("disable-require = true\n")


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
def test_configure_keeps_comments_and_is_idempotent(lines: list[str], asked: list[str], crlf: bool) -> None:
    text = "\n".join((*lines, "")).replace("\n", "\r\n" if crlf else "\n")
    try:
        before = tomllib.loads(text)
    except ValueError:
        return
    try:
        after = edit_text(text, *asked)
    except Refused:  # tomlkit would move the second of them
        assert text.count("[[site]]") > 1
        return
    assert edit_text(after, *asked) == after
    found = tomllib.loads(after)
    for setting in parse_set_options(asked):
        node = found
        for part in setting.key.path[:-1]:
            node = node[part]
        last = [one for one in parse_set_options(asked) if one.key == setting.key][-1]
        assert node[setting.key.path[-1]] == last.value
    for line in text.split("\n"):
        assert line.partition("#")[2].strip() in after
    assert {key: value for key, value in before.items() if key in {"x", "y", "list", "site"}} == {
        key: value for key, value in found.items() if key in {"x", "y", "list", "site"}
    }


def test_settings_that_differ_from_the_defaults_are_listed() -> None:
    assert non_default_settings(USUAL.encode()) == ()
    assert non_default_settings(b"") == ()
    said = edit_text("", "nvidia-container-cli.no-cgroups=true", "nvidia-container-runtime.log-level=debug")
    assert non_default_settings(said.encode()) == ("nvidia-container-cli.no-cgroups = true",)
    assert non_default_settings(b"swarm-resource = 2026-01-01\n") == ('swarm-resource = "2026-01-01"',)
    with pytest.raises(Refused, match="not valid TOML"):
        non_default_settings(b"[")
