"""docker's daemon.json: nothing is lost, nothing is done twice, and unreadable files are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.errors import Refused
from gpunode.runtimes import DesiredConfig, ObservedConfig, jsontext, satisfies
from tests.unit.runtimes.docker_file import configure, inspect

BINARY = "/usr/bin/nvidia-container-runtime"
ENTRY = {"args": [], "path": BINARY}
OURS = frozenset({"runtimes", "features", "default-runtime"})

all_desired = st.builds(DesiredConfig, default=st.booleans(), enable_cdi=st.booleans(), systemd_cgroup=st.booleans())
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
runtimes = st.dictionaries(
    st.sampled_from(["nvidia", "kata", "runsc", "ü"]),
    st.sampled_from([ENTRY, {"path": "/opt/old", "runtimeArgs": ["--x"]}, {"runtimeType": "io.containerd.runsc.v1"}]),
)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    document: dict[str, Any] = draw(st.dictionaries(st.text(max_size=6), values, max_size=3))
    text_or_empty: dict[str, st.SearchStrategy[Any]] = {
        "runtimes": st.none() | runtimes,
        "features": st.none() | st.dictionaries(st.sampled_from(["cdi", "buildkit"]), st.booleans()),
        "default-runtime": st.sampled_from(["runc", "nvidia", "kata"]),
    }
    for key, value in text_or_empty.items():
        document.pop(key, None)
        if draw(st.booleans()):
            document[key] = draw(value)
    text = json.dumps(
        document,
        indent=draw(st.sampled_from([None, 0, 2, 4, "\t"])),
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([None, (",", ":"), (" , ", " : ")])),
    )
    around = st.sampled_from(["", "\n", "  \n\n"])
    text = draw(around) + text + draw(around)
    text = text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))
    return draw(st.sampled_from([b"", "\ufeff".encode()])) + text.encode("utf-8", "surrogatepass")


def read(data: bytes) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(data.decode().removeprefix("\ufeff"), parse_float=str, parse_int=str)
    return document


@given(files(), all_desired)
def test_desired_settings_are_present_and_the_rest_is_unchanged(data: bytes, desired: DesiredConfig) -> None:
    before, out = read(data), configure(data, desired)
    after = read(out)
    assert satisfies(inspect(out), desired)
    assert [key for key in after if key in before] == list(before)
    assert {key: after[key] for key in after if key not in OURS} == {
        key: before[key] for key in before if key not in OURS
    }
    for key, ours in (("runtimes", "nvidia"), ("features", "cdi")):
        former, now = (dict(document.get(key) or {}) for document in (before, after))
        former.pop(ours, None)
        now.pop(ours, None)
        assert now == former
    if not desired.default:
        assert after.get("default-runtime") == before.get("default-runtime")


@given(files(), all_desired)
def test_configure_is_idempotent_and_a_satisfied_file_unchanged(data: bytes, desired: DesiredConfig) -> None:
    out = configure(data, desired)
    assert configure(out, desired) == out
    assert satisfies(inspect(data), desired) == (out == data)


@given(files())
def test_bytes_around_the_added_members_stay(data: bytes) -> None:
    document = read(data)
    if not document or document.get("runtimes", {}) is None or document.get("runtimes"):
        return
    out = configure(data, DesiredConfig())
    if "runtimes" in document:
        head, tail = data.split(b"{}", 1) if data.count(b"{}") == 1 else (b"", b"")
    else:
        tail = data[data.rindex(b"}") :].strip()
        head = data[: data.rindex(b"}")].rstrip()
    assert out.startswith(head)
    assert out.rstrip().endswith(tail.rstrip())


@given(
    st.binary(max_size=40) | st.text(max_size=40).map(str.encode) | values.map(json.dumps).map(str.encode), all_desired
)
def test_any_input_is_configured_or_refused(data: bytes, desired: DesiredConfig) -> None:
    try:
        out = configure(data, desired)
    except Refused as error:
        refused = error
    else:
        assert satisfies(inspect(out), desired)
        return
    assert refused.hint
    assert "/etc/docker/daemon.json" in refused.what


@pytest.mark.parametrize("data", [None, b"", b" \r\n\t", b"{}\n"])
def test_empty_file_becomes_a_new_one(data: bytes | None) -> None:
    assert configure(data, DesiredConfig(default=True)).decode() == (
        '{\n    "runtimes": {\n        "nvidia": {\n            "args": [],\n'
        f'            "path": "{BINARY}"\n        }}\n    }},\n    "default-runtime": "nvidia"\n}}\n'
    )
    assert data is None or data == b"{}\n" or inspect(data) == ObservedConfig()


def test_new_members_are_formatted_like_their_neighbours() -> None:
    tabs = b'{\r\n\t"debug": true\r\n}'
    assert configure(tabs, DesiredConfig()) == (
        b'{\r\n\t"debug": true,\r\n\t"runtimes": {\r\n\t\t"nvidia": {\r\n\t\t\t"args": [],\r\n\t\t\t"path": "'
        + BINARY.encode()
        + b'"\r\n\t\t}\r\n\t}\r\n}'
    )
    compact = b'{"debug":true,"runtimes":{"kata":{"path":"/k"}}}\n'
    ours = f',"nvidia":{{"args":[],"path":"{BINARY}"}}'.encode()
    assert configure(compact, DesiredConfig()) == compact.replace(b'"/k"}', b'"/k"}' + ours)


def test_numbers_keep_their_spelling() -> None:
    data = b'{"a": 9007199254740993, "b": 1e21, "c": 0.10, "d": -0}'
    assert configure(data, DesiredConfig()).startswith(data[:-1])
    huge = b'{"n": ' + b"9" * 10_000 + b"}"
    assert b"9" * 10_000 in configure(huge, DesiredConfig())


def test_entry_with_the_right_path_keeps_its_arguments() -> None:
    data = f'{{"runtimes": {{"nvidia": {{"path": "{BINARY}", "runtimeArgs": ["--debug"]}}}}}}'.encode()
    assert configure(data, DesiredConfig()) == data
    assert b'"runtimeArgs": ["--debug"]' in configure(data, DesiredConfig(default=True))


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b'{\n  "a": 1,\n}\n', ":2:9: not valid JSON"),
        (b'// no\n{"a": 1}', ":1:1: not valid JSON"),
        (b'{"a": 1}\n{"b": 2}', ":2:1: not valid JSON"),
        (b'{\n  "a": 1,\n  "b": {"x": 1, "x": 2}\n}', ':3:17: the key "x" appears twice'),
        (b'{"a": 1, "\\u0061": 2}', ':1:10: the key "a" appears twice'),
        (b'{"a": NaN}', ":1:7: not valid JSON"),
        (b'{"a": NaN, "b": NaN}', ":1:7: not valid JSON"),
        (b'{"a": "x\ty"}', ":1:9: not valid JSON"),
        (b"\x0c", ":1:1: not valid JSON"),
        (b"X", ":1:1: not valid JSON"),
        (b"[]", ":1:1: the file is not an object"),
        (b"null", ":1:1: the file is not an object"),
        (b'{\n "runtimes": []}', ":2:14: runtimes is not an object"),
        (b'{"features": true}', ":1:14: features is not an object"),
        (b'{"a": "\xff"}', ":1:8: not UTF-8"),
        (b"\n[]", ":2:1: the file is not an object"),
        (b'{"a":' + b"[" * 100_000, ":1:1: not valid JSON"),
        (b'{"a":' * 2_000 + b"1" + b"}" * 2_000, ":1:1: not valid JSON"),
    ],
)
@pytest.mark.parametrize("use", [inspect, partial(configure, desired=DesiredConfig())])
def test_refusals_say_where(data: bytes, place: str, use: Callable[[bytes], object]) -> None:
    with pytest.raises(Refused) as refused:
        use(data)
    assert f"/etc/docker/daemon.json{place}" in refused.value.what
    assert refused.value.why
    assert "/etc/docker/daemon.json" in refused.value.hint


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b'{"runtimes": "\\u00fc"}', 'it is "\\u00fc"'),
        (b'{"runtimes": [1,\n   2]}', "it is [1, 2]"),
        (b'{"runtimes": "' + b"x" * 500 + b'"}', 'it is "' + "x" * 193),
        (b"[1]", "it is [1]"),
        (b'{"a": NaN}', "NaN is not JSON. "),
        (b'{"a" 1}', "Expecting ':' delimiter. "),
        (b'{"a": "x', "Unterminated string. "),
        (b'{"a": "\x01"}', "Invalid control character. "),
        (b'{"a": 1,}', "trailing comma before a closing bracket. "),
        (b"// no\n{}", "Expecting value. JSON has no comments and no trailing commas"),
        (b'{"a":' + b"[" * 100_000, "nested too deeply, more than 200 times. "),
    ],
)
def test_refusals_say_why_and_quote_the_input(data: bytes, why: str) -> None:
    with pytest.raises(Refused) as refused:
        inspect(data)
    assert refused.value.why.startswith(why)
    assert len(refused.value.why) <= 200


def test_duplicate_key_is_refused() -> None:
    with pytest.raises(Refused, match='the key "a" appears twice') as refused:
        inspect(b'{"a": 1, "a": 2}')
    assert "cannot tell which" in refused.value.why


def test_values_that_dockerd_rejects_are_ignored() -> None:
    assert inspect(b'{"default-runtime": true, "features": {"cdi": "yes"}}') == ObservedConfig()
    assert inspect(b'{"default-runtime": "", "features": {"cdi": null}}') == ObservedConfig()


@pytest.mark.parametrize("version", [None, (20, 10, 24), (22, 9), (23,), (28, 5, 2)])
@pytest.mark.parametrize(
    "text", ["{}", '{"runtimes": {"nvidia": {"args": [], "path": "/usr/bin/nvidia-container-runtime"}}}']
)
def test_byte_order_mark_is_refused_for_old_docker(text: str, version: tuple[int, ...] | None) -> None:
    data, desired = f"\ufeff{text}".encode(), DesiredConfig(version=version)
    if version is None or version >= (23,):
        configure(data, desired)
        return
    with pytest.raises(Refused, match="byte order mark"):
        configure(data, desired)


def test_disabled_cdi_is_enabled_on_request() -> None:
    data = b'{"features": {"buildkit": true, "cdi": false}}'
    assert configure(data, DesiredConfig()).startswith(data[:-1])
    assert b'{"buildkit": true, "cdi": true}' in configure(data, DesiredConfig(enable_cdi=True))


def test_runtime_without_a_path_is_listed() -> None:
    data = b'{"runtimes": {"a": {"runtimeType": "io.x.v1"}, "b": null, "c": {"path": true}, "d": {"path": "/d"}}}'
    assert inspect(data).handlers == {"a": "", "b": "", "c": "", "d": "/d"}


def test_cgroup_driver_is_left_to_dockerd() -> None:
    assert satisfies(inspect(configure(None, DesiredConfig(systemd_cgroup=True))), DesiredConfig(systemd_cgroup=True))


def test_half_of_a_surrogate_pair_stays_an_escape() -> None:
    text = jsontext.put_member('{"a": "ü"}', ("b",), ["ü", "\ud800"])
    assert text == '{"a": "ü", "b": ["ü", "\\ud800"]}'
