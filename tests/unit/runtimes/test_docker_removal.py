"""daemon.json without NVIDIA's handler: as it was, or with later edits, and always accepted by dockerd."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.errors import Refused
from gpunode.runtimes import ConfigEdit, DesiredConfig, Edit, apply_edits
from gpunode.runtimes.docker import configure
from tests.unit.runtimes.test_docker_editing import all_desired, read
from tests.unit.runtimes.test_docker_editing import files as documents
from tests.unit.runtimes.unconfigured import unconfigure

CONFIG = "/etc/docker/daemon.json"
BINARY = "/usr/bin/nvidia-container-runtime"
NVIDIA = {"args": [], "path": BINARY}
EVERYTHING = DesiredConfig(default=True, enable_cdi=True)


def configured_file(before: bytes | None, desired: DesiredConfig) -> bytes:
    """Return the file as configuring leaves it."""
    files = {} if before is None else {CONFIG: before}
    return apply_edits(files, configure(files, desired))[CONFIG]


def undone(now: bytes, *, before: bytes | None, after: bytes, desired: DesiredConfig = EVERYTHING) -> ConfigEdit:
    return unconfigure("docker", {CONFIG: now}, desired, [Edit(CONFIG, before, after)])


def file_after_undo(now: bytes, edited: ConfigEdit) -> bytes | None:
    return apply_edits({CONFIG: now}, edited).get(CONFIG)


@given(st.none() | documents(), all_desired)
def test_untouched_file_is_restored_byte_for_byte(before: bytes | None, desired: DesiredConfig) -> None:
    files = {} if before is None else {CONFIG: before}
    after = apply_edits(files, configure(files, desired)).get(CONFIG)
    if after is not None and after != before:
        assert file_after_undo(after, undone(after, before=before, after=after, desired=desired)) == before


@given(documents(), all_desired, st.booleans())
def test_later_keys_are_kept_and_ours_restored(before: bytes, desired: DesiredConfig, exact: bool) -> None:
    desired = replace(desired, exact=exact)
    after = configured_file(before, desired)
    if after == before:
        return
    # A user adds a key, so the bytes are no longer gpunode's.
    now = after.rstrip().removesuffix(b"}").rstrip() + (b"," if read(after) else b"") + b' "written-since": [1]}\n'

    out = file_after_undo(now, undone(now, before=before, after=after, desired=desired))

    assert out is not None
    found, expected = read(out), {**read(before), "written-since": ["1"]}
    former = read(before).get("default-runtime")
    if former not in {None, "runc", *(read(before).get("runtimes") or {})}:
        for document in (found, expected):  # dockerd did not start with it before either
            document.pop("default-runtime", None)
    assert found == expected


def program(document: dict[str, Any]) -> str:
    """Return the path of the program that the handler runs."""
    found: str = ((document.get("runtimes") or {}).get("nvidia") or {}).get("path", "")
    return found


@given(documents(), all_desired)
def test_unrecorded_handler_and_default_are_removed_and_the_rest_kept(data: bytes, desired: DesiredConfig) -> None:
    before = read(data)
    if "nvidia" in (before.get("runtimes") or {}) and not program(before):
        with pytest.raises(Refused, match="was not added by configure"):
            unconfigure("docker", {CONFIG: data}, desired, ())
        return
    desired = replace(desired, binary=program(before) or desired.binary)
    out = file_after_undo(data, unconfigure("docker", {CONFIG: data}, desired, ()))
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
def test_unrecorded_unconfigure_reverts_configure(data: bytes, desired: DesiredConfig) -> None:
    document = read(data)
    if "nvidia" in (document.get("runtimes") or {}) or document.get("default-runtime") or desired.enable_cdi:
        return
    after = configured_file(data, desired)
    out = file_after_undo(after, unconfigure("docker", {CONFIG: after}, desired, ()))
    assert out is not None
    if document and document.get("runtimes", ...) not in ({}, None):
        assert out == data
    else:
        expected = {key: value for key, value in document.items() if key != "runtimes"}
        assert read(out) == expected


def test_file_that_gpunode_made_is_removed_unless_others_use_it() -> None:
    after = configured_file(None, EVERYTHING)
    assert undone(after, before=None, after=after).edits[0].after is None
    now = after.replace(b'"cdi": true', b'"cdi":  true')
    assert file_after_undo(now, undone(now, before=None, after=after)) is None
    now = after.replace(b"{\n", b'{\n    "log-driver": "local",\n', 1)
    assert file_after_undo(now, undone(now, before=None, after=after)) == b'{\n    "log-driver": "local"\n}\n'


def test_other_bytes_stay_unchanged() -> None:
    before = (
        b'{\r\n\t"bip" : "10.0.0.1/24",\r\n\t"default-runtime" : "kata",\r\n\t"runtimes" : {"kata": {"path":"/k"}}}'
    )
    after = configured_file(before, EVERYTHING)
    now = after.replace(b'"10.0.0.1/24"', b'"10.9.0.1/24"')
    assert file_after_undo(now, undone(now, before=before, after=after)) == before.replace(b"10.0", b"10.9")


def test_former_entry_is_restored_as_written() -> None:
    before = b'{"runtimes": {"nvidia": {"path": "/old",  "runtimeArgs": [ "--x" ], "n": 1e3}}, "debug": false}'
    after = configured_file(before, EVERYTHING)
    now = after.replace(b"false", b"true")
    assert file_after_undo(now, undone(now, before=before, after=after)) == before.replace(b"false", b"true")


@pytest.mark.parametrize(
    ("now", "expected", "note"),
    [
        # An entry with a user's addition is still gpunode's; without a path dockerd would not start.
        ({"runtimes": {"nvidia": {**NVIDIA, "runtimeArgs": ["--x"]}}}, {}, "are removed with"),
        ({"runtimes": {"nvidia": {"path": "/mine"}}, "default-runtime": "nvidia"},
         {"runtimes": {"nvidia": {"path": "/mine"}}}, "is kept"),
        ({"runtimes": {"nvidia": NVIDIA, "x": {"path": "/x"}}, "default-runtime": "x"},
         {"runtimes": {"x": {"path": "/x"}}, "default-runtime": "x"}, ""),
        ({"runtimes": {"x": {"path": "/x"}}}, {"runtimes": {"x": {"path": "/x"}}}, ""),
        ({"features": {"cdi": False}, "runtimes": {"nvidia": NVIDIA}}, {"features": {"cdi": False}},
         "keeps nvidia until its next restart"),
        ({"features": {"cdi": True, "buildkit": True}}, {"features": {"buildkit": True}}, ""),
        ({"features": None, "runtimes": None, "x": 1}, {"features": None, "runtimes": None, "x": 1}, ""),
        ({}, None, ""),
    ],
)  # fmt: skip
def test_values_changed_since_are_kept(now: dict[str, Any], expected: dict[str, Any] | None, note: str) -> None:
    data = json.dumps({**now, "own": 1} if expected is not None else now).encode()
    edited = undone(data, before=None, after=configured_file(None, EVERYTHING))
    out = file_after_undo(data, edited)
    assert (json.loads(out) if out and expected is not None else None) == (
        None if expected is None else {**expected, "own": 1}
    )
    assert note in " ".join(edited.notes)
    assert bool(edited.notes) is bool(note)


@pytest.mark.parametrize("default", ["true", "[]", '{"a": 1}'])
def test_default_that_is_no_name_stays_when_the_handler_goes(default: str) -> None:
    files = {CONFIG: f'{{"default-runtime": {default}}}'.encode()}
    edited = configure(files, DesiredConfig())
    removed = unconfigure("docker", apply_edits(files, edited), DesiredConfig(), edited.edits)
    assert apply_edits(apply_edits(files, edited), removed) == files


def test_default_that_no_longer_exists_is_not_restored() -> None:
    # Made the default by hand, after a run that only added it.
    after = configured_file(b"{}", DesiredConfig())
    now = after.replace(b"{\n", b'{\n "default-runtime": "nvidia",\n', 1)
    edited = undone(now, before=b"{}", after=after)
    assert json.loads(file_after_undo(now, edited) or b"") == {}
    assert "the default runtime nvidia no longer exists" in edited.notes[0]
    # The former default is gone meanwhile.
    before = b'{"default-runtime": "kata", "runtimes": {"kata": {"path": "/k"}}}'
    after = configured_file(before, EVERYTHING)
    now = json.dumps({**json.loads(after), "runtimes": {"nvidia": NVIDIA}}).encode()
    edited = undone(now, before=before, after=after)
    assert json.loads(file_after_undo(now, edited) or b"") == {"runtimes": {}}
    assert "the default runtime kata no longer exists" in edited.notes[0]
    # Shims need no entry.
    before = b'{"default-runtime": "io.containerd.kata.v2"}'
    after = configured_file(before, EVERYTHING)
    now = after.replace(b"{", b'{"own": 1, ', 1)
    assert (
        json.loads(file_after_undo(now, undone(now, before=before, after=after)) or b"")["default-runtime"]
        in before.decode()
    )


def test_only_the_named_handler_is_removed_and_an_unknown_one_removes_none() -> None:
    other = DesiredConfig(handler="nvidia-cdi", binary="/usr/bin/nvidia-container-runtime.cdi")
    after = configured_file(configured_file(b"{}\n", DesiredConfig()), other)
    edited = undone(after, before=b"{}\n", after=after, desired=other)
    assert json.loads(file_after_undo(after, edited) or b"") == {"runtimes": {"nvidia": NVIDIA}}
    assert undone(after, before=b"{}\n", after=after, desired=DesiredConfig(handler="third")).edits == ()


def test_unrecorded_settings_and_flags_are_noted() -> None:
    data = json.dumps({"runtimes": {"nvidia": NVIDIA}, "default-runtime": "nvidia", "features": {"cdi": True}}).encode()
    edited = unconfigure("docker", {CONFIG: data}, DesiredConfig(), ())
    assert json.loads(file_after_undo(data, edited) or b"") == {"features": {"cdi": True}}
    assert len(edited.notes) == 2
    assert "no record of" in edited.how
    unit = b"[Service]\nExecStart=/usr/bin/dockerd --add-runtime=nvidia=/usr/bin/nvidia-container-runtime\n"
    flags = unconfigure("docker", {CONFIG: b"{}", "/lib/systemd/system/docker.service": unit}, DesiredConfig(), ())
    assert flags.edits == ()
    assert "command line" in flags.notes[0]


def test_missing_file_is_left_and_an_unparsable_one_refused() -> None:
    assert unconfigure("docker", {}, DesiredConfig(), [Edit(CONFIG, b"{}", b"{ }")]).edits == ()
    with pytest.raises(Refused, match="not valid JSON"):
        undone(b'{"a": 1,}', before=b"{}", after=configured_file(b"{}", DesiredConfig()))
    assert undone(b"{}", before=b"{}", after=configured_file(b"{}", DesiredConfig())).edits == ()
