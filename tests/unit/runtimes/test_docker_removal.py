"""daemon.json without NVIDIA's handler: as it was, or as others have made it since, and one that dockerd takes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.errors import Refused
from gpunode.runtimes import ConfigEdit, DesiredConfig, Edit, after_edits
from gpunode.runtimes.docker import configure
from tests.unit.runtimes.test_docker_editing import all_desired, read
from tests.unit.runtimes.test_docker_editing import files as documents
from tests.unit.runtimes.unconfigured import unconfigure

CONFIG = "/etc/docker/daemon.json"
BINARY = "/usr/bin/nvidia-container-runtime"
NVIDIA = {"args": [], "path": BINARY}
EVERYTHING = DesiredConfig(default=True, cdi=True)


def made(before: bytes | None, desired: DesiredConfig) -> bytes:
    """The file as configuring leaves it."""
    files = {} if before is None else {CONFIG: before}
    return after_edits(files, configure(files, desired))[CONFIG]


def undone(now: bytes, *, before: bytes | None, after: bytes, desired: DesiredConfig = EVERYTHING) -> ConfigEdit:
    return unconfigure("docker", {CONFIG: now}, desired, [Edit(CONFIG, before, after)])


def left(now: bytes, edited: ConfigEdit) -> bytes | None:
    return after_edits({CONFIG: now}, edited).get(CONFIG)


@given(st.none() | documents(), all_desired)
def test_what_nobody_touched_comes_back_byte_for_byte(before: bytes | None, desired: DesiredConfig) -> None:
    files = {} if before is None else {CONFIG: before}
    after = after_edits(files, configure(files, desired)).get(CONFIG)
    if after is not None and after != before:
        assert left(after, undone(after, before=before, after=after, desired=desired)) == before


@given(documents(), all_desired, st.booleans())
def test_beside_what_others_wrote_the_keys_are_as_they_were(before: bytes, desired: DesiredConfig, exact: bool) -> None:
    desired = replace(desired, exact=exact)
    after = made(before, desired)
    if after == before:
        return
    # Somebody adds a key, so that the bytes are gpunode's no more.
    now = after.rstrip().removesuffix(b"}").rstrip() + (b"," if read(after) else b"") + b' "written-since": [1]}\n'

    out = left(now, undone(now, before=before, after=after, desired=desired))

    assert out is not None
    found, expected = read(out), {**read(before), "written-since": ["1"]}
    former = read(before).get("default-runtime")
    if former not in {None, "runc", *(read(before).get("runtimes") or {})}:
        for document in (found, expected):  # dockerd did not start with it before either
            document.pop("default-runtime", None)
    assert found == expected


def program(document: dict[str, Any]) -> str:
    """What the handler runs."""
    found: str = ((document.get("runtimes") or {}).get("nvidia") or {}).get("path", "")
    return found


@given(documents(), all_desired)
def test_without_a_record_handler_and_default_are_gone_and_all_else_is_there(
    data: bytes, desired: DesiredConfig
) -> None:
    before = read(data)
    if "nvidia" in (before.get("runtimes") or {}) and not program(before):
        with pytest.raises(Refused, match="was not added by configure"):
            unconfigure("docker", {CONFIG: data}, desired, ())
        return
    desired = replace(desired, binary=program(before) or desired.binary)
    out = left(data, unconfigure("docker", {CONFIG: data}, desired, ()))
    assert out is not None
    after = read(out)
    assert "nvidia" not in (after.get("runtimes") or {})
    assert after.get("default-runtime") != "nvidia"
    kept = {key: value for key, value in before.items() if key not in {"runtimes", "default-runtime"}}
    assert {key: after[key] for key in after if key in kept} == kept
    others = {name: entry for name, entry in (before.get("runtimes") or {}).items() if name != "nvidia"}
    assert (after.get("runtimes") or {}) == others
    assert unconfigure("docker", {CONFIG: out}, desired, ()).edits == ()


@given(documents(), all_desired)
def test_without_a_record_what_was_configured_into_a_file_is_what_goes(data: bytes, desired: DesiredConfig) -> None:
    document = read(data)
    if "nvidia" in (document.get("runtimes") or {}) or document.get("default-runtime") or desired.cdi:
        return
    after = made(data, desired)
    out = left(after, unconfigure("docker", {CONFIG: after}, desired, ()))
    assert out is not None
    if document and document.get("runtimes", ...) not in ({}, None):
        assert out == data
    else:
        expected = {key: value for key, value in document.items() if key != "runtimes"}
        assert read(out) == expected


def test_a_file_that_gpunode_made_goes_again_and_stays_when_somebody_else_uses_it() -> None:
    after = made(None, EVERYTHING)
    assert undone(after, before=None, after=after).edits[0].after is None
    now = after.replace(b'"cdi": true', b'"cdi":  true')
    assert left(now, undone(now, before=None, after=after)) is None
    now = after.replace(b"{\n", b'{\n    "log-driver": "local",\n', 1)
    assert left(now, undone(now, before=None, after=after)) == b'{\n    "log-driver": "local"\n}\n'


def test_every_other_byte_stays() -> None:
    before = (
        b'{\r\n\t"bip" : "10.0.0.1/24",\r\n\t"default-runtime" : "kata",\r\n\t"runtimes" : {"kata": {"path":"/k"}}}'
    )
    after = made(before, EVERYTHING)
    now = after.replace(b'"10.0.0.1/24"', b'"10.9.0.1/24"')
    assert left(now, undone(now, before=before, after=after)) == before.replace(b"10.0", b"10.9")


def test_the_former_entry_comes_back_as_it_was_written() -> None:
    before = b'{"runtimes": {"nvidia": {"path": "/old",  "runtimeArgs": [ "--x" ], "n": 1e3}}, "debug": false}'
    after = made(before, EVERYTHING)
    now = after.replace(b"false", b"true")
    assert left(now, undone(now, before=before, after=after)) == before.replace(b"false", b"true")


@pytest.mark.parametrize(
    ("now", "expected", "note"),
    [
        # An entry that somebody added to is still gpunode's; without a path dockerd would not start.
        ({"runtimes": {"nvidia": {**NVIDIA, "runtimeArgs": ["--x"]}}}, {}, "is removed with"),
        ({"runtimes": {"nvidia": {"path": "/mine"}}, "default-runtime": "nvidia"},
         {"runtimes": {"nvidia": {"path": "/mine"}}}, "stays"),
        ({"runtimes": {"nvidia": NVIDIA, "x": {"path": "/x"}}, "default-runtime": "x"},
         {"runtimes": {"x": {"path": "/x"}}, "default-runtime": "x"}, ""),
        ({"runtimes": {"x": {"path": "/x"}}}, {"runtimes": {"x": {"path": "/x"}}}, ""),
        ({"features": {"cdi": False}, "runtimes": {"nvidia": NVIDIA}}, {"features": {"cdi": False}}, ""),
        ({"features": {"cdi": True, "buildkit": True}}, {"features": {"buildkit": True}}, ""),
        ({"features": None, "runtimes": None, "x": 1}, {"features": None, "runtimes": None, "x": 1}, ""),
        ({}, None, ""),
    ],
)  # fmt: skip
def test_what_somebody_wrote_since_stays(now: dict[str, Any], expected: dict[str, Any] | None, note: str) -> None:
    data = json.dumps({**now, "own": 1} if expected is not None else now).encode()
    edited = undone(data, before=None, after=made(None, EVERYTHING))
    out = left(data, edited)
    assert (json.loads(out) if out and expected is not None else None) == (
        None if expected is None else {**expected, "own": 1}
    )
    assert note in " ".join(edited.notes)
    assert bool(edited.notes) is bool(note)


def test_no_default_is_left_that_is_not_there() -> None:
    # Made the default by hand, after a run that only added it.
    after = made(b"{}", DesiredConfig())
    now = after.replace(b"{\n", b'{\n "default-runtime": "nvidia",\n', 1)
    edited = undone(now, before=b"{}", after=after)
    assert json.loads(left(now, edited) or b"") == {}
    assert "the default runtime nvidia no longer exists" in edited.notes[0]
    # The former default is gone meanwhile.
    before = b'{"default-runtime": "kata", "runtimes": {"kata": {"path": "/k"}}}'
    after = made(before, EVERYTHING)
    now = json.dumps({**json.loads(after), "runtimes": {"nvidia": NVIDIA}}).encode()
    edited = undone(now, before=before, after=after)
    assert json.loads(left(now, edited) or b"") == {"runtimes": {}}
    assert "the default runtime kata no longer exists" in edited.notes[0]
    # Shims need no entry.
    before = b'{"default-runtime": "io.containerd.kata.v2"}'
    after = made(before, EVERYTHING)
    now = after.replace(b"{", b'{"own": 1, ', 1)
    assert json.loads(left(now, undone(now, before=before, after=after)) or b"")["default-runtime"] in before.decode()


def test_one_handler_of_two_goes_alone_and_one_that_was_never_added_takes_none_along() -> None:
    other = DesiredConfig(handler="nvidia-cdi", binary="/usr/bin/nvidia-container-runtime.cdi")
    after = made(made(b"{}\n", DesiredConfig()), other)
    edited = undone(after, before=b"{}\n", after=after, desired=other)
    assert json.loads(left(after, edited) or b"") == {"runtimes": {"nvidia": NVIDIA}}
    assert undone(after, before=b"{}\n", after=after, desired=DesiredConfig(handler="third")).edits == ()


def test_what_is_not_on_record_is_said() -> None:
    data = json.dumps({"runtimes": {"nvidia": NVIDIA}, "default-runtime": "nvidia", "features": {"cdi": True}}).encode()
    edited = unconfigure("docker", {CONFIG: data}, DesiredConfig(), ())
    assert json.loads(left(data, edited) or b"") == {"features": {"cdi": True}}
    assert len(edited.notes) == 2
    assert "no record of" in edited.how
    unit = b"[Service]\nExecStart=/usr/bin/dockerd --add-runtime=nvidia=/usr/bin/nvidia-container-runtime\n"
    flags = unconfigure("docker", {CONFIG: b"{}", "/lib/systemd/system/docker.service": unit}, DesiredConfig(), ())
    assert flags.edits == ()
    assert "command line" in flags.notes[0]


def test_nothing_is_done_where_there_is_no_file_and_nothing_readable_is_guessed_at() -> None:
    assert unconfigure("docker", {}, DesiredConfig(), [Edit(CONFIG, b"{}", b"{ }")]).edits == ()
    with pytest.raises(Refused, match="not valid JSON"):
        undone(b'{"a": 1,}', before=b"{}", after=made(b"{}", DesiredConfig()))
    assert undone(b"{}", before=b"{}", after=made(b"{}", DesiredConfig())).edits == ()
