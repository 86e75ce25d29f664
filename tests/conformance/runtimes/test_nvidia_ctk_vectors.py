"""The vectors on the runtimes' rows, without a node, a process or root.

For the command line, see test_vectors.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from typing import Any

import pytest

from gpunode.change import FileState
from gpunode.errors import Refused
from gpunode.runtimes import RUNTIMES, DesiredConfig, apply_edits, find_runtime, satisfies
from gpunode.runtimes.containerd import CONFIG
from gpunode.runtimes.file_states import contents_of_states, gather_states
from gpunode.runtimes.model import Edit, Files
from tests.conformance.runtimes.golden import Vector, comments, judge, parsed, vectors
from tests.unit.runtimes.one_file import configure as configure_containerd
from tests.unit.runtimes.one_file import inspect as inspect_containerd
from tests.unit.runtimes.unconfigured import unconfigure

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# These test the command line's message or a program's answer.
OF_THE_COMMAND_LINE = frozenset({37, 44, 45, 46, 61, 105, 131})
ROWS = frozenset(row.id for row in RUNTIMES)
VECTORS = [
    vector
    for vector in vectors()
    if vector.runtime in ROWS and vector.stdout is None and vector.number not in OF_THE_COMMAND_LINE
]
CONTAINERD = [vector for vector in VECTORS if vector.runtime == "containerd" and vector.read("input") is not None]
# No edit makes these usable.
BROKEN = {40: "not valid TOML", 41: "version is not a whole number", 54: "runc is not a table",
          59: "not valid TOML", 82: "not valid TOML"}  # fmt: skip
EDITED = [vector for vector in CONTAINERD if vector.number not in BROKEN]


def name(vector: Vector) -> str:
    return vector.folder.name


def _desired_config(vector: Vector) -> DesiredConfig:
    """Return the desired configuration that the vector's command line expresses."""
    flags: Mapping[str, str] = dict(word.partition("=")[::2] for word in vector.told["argv"])
    drop_in = flags.get("--drop-in-config")
    return DesiredConfig(
        handler=flags.get("--nvidia-runtime-name", "nvidia"),
        binary=flags.get("--nvidia-runtime-path", flags.get("--runtime-path", "nvidia-container-runtime")),
        default=not {"--set-as-default", "--nvidia-set-as-default"}.isdisjoint(flags),
        enable_cdi=not {"--cdi.enabled", "--cdi.enable", "--enable-cdi"}.isdisjoint(flags),
        mode="in-place" if drop_in == "" else vector.told["mode"],
        config=flags.get("--config", ""),
        drop_in=drop_in or "",
        exact=True,
    )


def _read_by_runtime(files: Files, vector: Vector, desired: DesiredConfig) -> Files:
    """Return the files among ``files`` that the runtime reads."""
    states = gather_states(
        find_runtime(vector.runtime),
        desired,
        lambda place: {path: FileState(data) for path, data in files.items() if fnmatchcase(path, place)},
    )
    return contents_of_states(states)


def _configure(files: Files, vector: Vector, desired: DesiredConfig) -> Files:
    edited = find_runtime(vector.runtime).configure(_read_by_runtime(files, vector, desired), desired)
    return {**{path: data for path, data in files.items() if path not in {one.path for one in edited.edits}},
            **apply_edits({}, edited)}  # fmt: skip


@pytest.mark.parametrize("vector", [vector for vector in VECTORS if vector.is_refused], ids=name)
def test_vector_is_refused(vector: Vector) -> None:
    with pytest.raises(Refused) as refused:
        _configure(vector.files, vector, _desired_config(vector))
    assert refused.value.hint
    assert all(words in refused.value.hint for words in vector.ours[1:])


@pytest.mark.parametrize("vector", [vector for vector in VECTORS if not vector.is_refused], ids=name)
def test_vector_is_answered(vector: Vector) -> None:
    desired, row = _desired_config(vector), find_runtime(vector.runtime)
    after = _configure(vector.files, vector, desired)
    judge(vector, after)
    assert _configure(after, vector, desired) == after
    found = row.inspect(_read_by_runtime(after, vector, desired), desired)
    # In schema 1 nvidia-ctk's own answer does not work: CDI at a place that containerd does not read, and an unnamed
    # default runtime that overrides the named one.
    assert found.schema == 1 or satisfies(found, replace(desired, binary=found.handlers[desired.handler]))
    for path, data in vector.files.items():
        if not path.endswith(".json"):
            assert [one for one in comments(data.decode()) if one not in comments(after[path].decode())] == []


# In schema 1 a version that configure wrote stays if the file was edited since.
KEEPS_VERSION = frozenset({75, 76})
# These had our entry or default before; other tests cover that.
HAD_OURS = frozenset({119, 132})


@pytest.mark.parametrize(
    "vector", [one for one in VECTORS if not one.is_refused and one.number not in HAD_OURS | KEEPS_VERSION], ids=name
)
def test_edit_since_is_kept_by_unconfigure(vector: Vector) -> None:
    desired, row, path = _desired_config(vector), find_runtime(vector.runtime), vector.paths[0]
    after = _configure(vector.files, vector, desired)
    former = [
        Edit(one, vector.files.get(one), after.get(one))
        for one in {*vector.files, *after}
        if vector.files.get(one) != after.get(one)
    ]
    theirs = {**after, path: _edit_by_hand(path, after[path])} if path in after else after
    back = unconfigure(row, _read_by_runtime(theirs, vector, desired), desired, former)
    left = {**theirs, **{edit.path: edit.after for edit in back.edits}}
    meant: dict[str, bytes | None] = {**vector.files}
    if path in after:
        meant[path] = _edit_by_hand(path, vector.files.get(path, b""))
    for one in {*left, *meant}:
        if one.endswith(".json"):
            assert parsed(one, left[one] or b"") == parsed(one, meant[one] or b"")
        else:
            assert left.get(one) == meant.get(one), one


def _edit_by_hand(path: str, data: bytes) -> bytes:
    """Return the file with a later edit by the user."""
    if path.endswith(".json"):
        return json.dumps({**(json.loads(data) if data.strip() else {}), "x-theirs": [1, 2.5]}, indent=2).encode()
    newline = b"\r\n" if b"\r\n" in data else b"\n"
    end = newline if data and not data.endswith(b"\n") else b""
    return data + end + newline.join([b"# theirs", b"[theirs]", b"x = 1 # why", b""])


@pytest.mark.parametrize("version", [None, (1, 7, 24), (2, 1)], ids=["unknown", "1.7", "2.1"])
@pytest.mark.parametrize(
    "vector", [one for one in VECTORS if one.runtime == "containerd" and one.number not in BROKEN], ids=name
)
def test_cri_plugin_keeps_a_valid_default_runtime(vector: Vector, version: tuple[int, ...] | None) -> None:
    """nvidia-ctk's answer to 063 and 079 leaves containerd 1.6 and 1.7 without a CRI plugin."""
    document = tomllib.loads((vector.read("input") or b"").decode())
    if version == (2, 1) and document and "version" not in document:
        pytest.skip("containerd 2 does not use a file of schema 1")
    if version == (1, 7, 24) and document.get("version", 2) > 2:
        pytest.skip("containerd 1 cannot read the file")
    for desired in (DesiredConfig(version=version), DesiredConfig(version=version, systemd_cgroup=True)):
        found = inspect_containerd(configure_containerd(vector.read("input"), desired))
        built_in = {"runc"} if version and version >= (2,) and not desired.systemd_cgroup else set()
        # A schema 3 file belongs to containerd 2, whatever is known about the daemon.
        built_in |= {"runc"} if found.schema == 3 and not desired.systemd_cgroup else set()
        # The former unnamed default runtime.
        built_in |= {"default"} if found.schema == 1 else set()
        assert found.cri_disabled or (found.default or "runc") in {*found.handlers, *built_in}


def _outside_our_keys(document: dict[str, Any]) -> dict[str, Any]:
    """Return ``document`` without the keys that configuring may change."""
    plugins = {name: dict(table) for name, table in document.get("plugins", {}).items()}
    for name in ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"):
        cri = plugins.pop(name, {})
        containerd = dict(cri.pop("containerd", {}))
        runtimes = dict(containerd.pop("runtimes", {}))
        containerd.pop("default_runtime_name", None)
        # The former unnamed default would override the named one, and only with it is the other key allowed.
        if containerd.pop("default_runtime", None):
            cri.pop("systemd_cgroup", None)
        cri.pop("enable_cdi", None)
        runtimes.pop("nvidia", None)
        if not {"snapshotter", "SystemdCgroup"} & {
            *runtimes.get("runc", {}),
            *runtimes.get("runc", {}).get("options", {}),
        }:
            runtimes.pop("runc", None)  # a table that we may have added
        plugins[name] = {"cri": cri, "containerd": containerd, "runtimes": runtimes}
    rest = {key: value for key, value in document.items() if key not in {"plugins", "version"}}
    return {**rest, "plugins": plugins}


@pytest.mark.parametrize("vector", [one for one in CONTAINERD if one.number in BROKEN], ids=name)
def test_unusable_input_is_refused(vector: Vector) -> None:
    with pytest.raises(Refused, match=BROKEN[vector.number]) as refused:
        configure_containerd(vector.read("input"), DesiredConfig())
    assert refused.value.hint
    assert CONFIG in refused.value.what


@pytest.mark.parametrize(
    "desired", [DesiredConfig(), DesiredConfig(default=True, enable_cdi=True)], ids=["plain", "default-cdi"]
)
@pytest.mark.parametrize("vector", EDITED, ids=name)
def test_every_input_is_configured_in_place(vector: Vector, desired: DesiredConfig) -> None:
    data = vector.read("input") or b""
    out = configure_containerd(data, desired)
    assert configure_containerd(out, desired) == out
    assert satisfies(inspect_containerd(out), desired)
    before, after = (tomllib.loads(text.decode()) for text in (data, out))
    assert _outside_our_keys(after) == _outside_our_keys(before)
    assert after["version"] == before.get("version", 1 if before else 2)


# Lines that may go or change when a handler is added and made the default.
OURS = (b"default_runtime_name", b"enable_cdi")
# A stale nvidia entry is replaced, as is an unnamed default runtime; a one-line document changes in that line.
STALE = frozenset({12, 13, 18, 23, 26, 34, 69, 76, 77})


@pytest.mark.parametrize("vector", [one for one in EDITED if one.number not in STALE], ids=name)
def test_other_lines_do_not_change(vector: Vector) -> None:
    former = (vector.read("input") or b"").splitlines(keepends=True)
    new = configure_containerd(b"".join(former), DesiredConfig(default=True, enable_cdi=True)).splitlines(keepends=True)
    edits = SequenceMatcher(None, former, new, autojunk=False).get_opcodes()
    lost = [line for kind, start, end, _, _ in edits if kind in {"replace", "delete"} for line in former[start:end]]
    assert all(any(key in line for key in OURS) for line in lost), lost


def test_runtime_table_is_complete() -> None:
    assert [row.id for row in RUNTIMES] == ["containerd", "docker", "crio", "podman"]
    for row in RUNTIMES:
        assert row.config.startswith("/etc/") is bool(row.unit)  # podman registers no handler
        assert row.config_packages <= set(row.packages)
