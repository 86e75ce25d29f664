"""Removal of configure's additions, for all files, modes and later edits; the CRI plugin always still loads."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpunode.facts.evidence import decode_matches
from gpunode.host.globs import read_glob
from gpunode.runtimes import ConfigEdit, DesiredConfig, Edit, Files, apply_edits, containerd, containerd_editing
from gpunode.runtimes.containerd_files import list_read_paths, load_config_files
from gpunode.runtimes.documents import parse_toml
from gpunode.runtimes.model import EditMode
from tests.unit.runtimes.unconfigured import unconfigure

CONFIG, DROP_IN = containerd.CONFIG, containerd.CONTAINERD_DROP_IN
CRI = 'plugins."io.containerd.grpc.v1.cri"'
RUNC = f'version = 2\n[{CRI}.containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'.encode()
KATA = f'version = 2\n[{CRI}.containerd.runtimes.kata]\n  runtime_type = "io.containerd.kata.v2"\n'.encode()
WISHES = [
    DesiredConfig(mode=mode, version=version, default=default, exact=True)
    for mode in ("auto", "drop-in", "in-place")
    for version in (None, (1, 7), (2, 1, 9))
    for default in (False, True)
]


def configure(files: Files, desired: DesiredConfig) -> tuple[Files, tuple[Edit, ...]]:
    edited = containerd.configure(files, desired)
    return apply_edits(files, edited), edited.edits


def unconfigure_containerd(files: Files, desired: DesiredConfig, former: tuple[Edit, ...]) -> tuple[Files, ConfigEdit]:
    edited = unconfigure("containerd", files, desired, former)
    return apply_edits(files, edited), edited


@pytest.mark.parametrize("desired", WISHES, ids=lambda desired: f"{desired.mode}-{desired.version}-{desired.default}")
@pytest.mark.parametrize(
    "data", [None, b"", b"# mine\n", RUNC, KATA], ids=["missing", "empty", "comment", "runc", "kata"]
)
def test_unedited_files_are_restored_byte_for_byte(data: bytes | None, desired: DesiredConfig) -> None:
    files = {} if data is None else {CONFIG: data}
    after, former = configure(files, desired)
    assert unconfigure_containerd(after, desired, former)[0] == files


@pytest.mark.parametrize("desired", WISHES, ids=lambda desired: f"{desired.mode}-{desired.version}-{desired.default}")
def test_later_edits_are_kept(desired: DesiredConfig) -> None:
    after, former = configure({CONFIG: RUNC}, desired)
    mine = b'\n[debug] # mine\n  level = "warn"\n'
    back, _ = unconfigure_containerd({**after, CONFIG: after[CONFIG] + mine}, desired, former)
    assert back == {CONFIG: RUNC + mine}


def test_edited_entry_is_removed_with_a_note() -> None:
    after, former = configure({CONFIG: RUNC}, DesiredConfig(exact=True))
    edited = after[CONFIG] + b"    NoNewKeyring = true\n"
    back, how = unconfigure_containerd({CONFIG: edited}, DesiredConfig(exact=True), former)
    assert back[CONFIG].rstrip() == RUNC.rstrip()
    assert any("NoNewKeyring" in note for note in how.notes)


def test_unrecorded_handler_is_removed_by_name_with_a_note() -> None:
    desired = DesiredConfig(default=True, exact=True)
    after, _ = configure({CONFIG: RUNC}, desired)
    back, how = unconfigure_containerd(after, desired, ())
    assert parse_toml(back[CONFIG].decode()) == parse_toml(RUNC.decode())
    assert any("default" in note and "not on record" in note for note in how.notes)


def test_drop_in_with_nothing_else_is_deleted() -> None:
    desired = DesiredConfig(mode="drop-in", exact=True)
    after, _ = configure({CONFIG: RUNC}, desired)
    back, how = unconfigure_containerd(after, desired, ())
    assert set(back) == {CONFIG}
    assert any("still imports" in note for note in how.notes)


def test_remaining_runtimes_keep_a_default() -> None:
    """Without a runc table besides kata's, containerd 1.7 does not load the CRI plugin."""
    nvidia = RUNC.replace(b"runtimes.runc", b"runtimes.nvidia").split(b"\n", 1)[1]
    nvidia += f"[{CRI}.containerd.runtimes.nvidia.options]\nBinaryName = '/usr/bin/nvidia-container-runtime'\n".encode()
    default = f"version = 2\n[{CRI}.containerd]\n  default_runtime_name = 'nvidia'\n".encode()
    files = {CONFIG: KATA.replace(b"version = 2\n", default) + nvidia}
    back, how = unconfigure_containerd(files, DesiredConfig(version=(1, 7)), ())
    found = containerd.inspect(back)
    assert set(found.handlers) == {"kata", "runc"}
    assert found.default is None
    assert any("runc has an entry now" in note for note in how.notes)


def test_default_set_by_others_is_removed_with_its_handler() -> None:
    after, former = configure({CONFIG: RUNC}, DesiredConfig(exact=True))
    default = f"version = 2\n[{CRI}.containerd]\n  default_runtime_name = 'nvidia'\n".encode()
    edited = after[CONFIG].replace(b"version = 2\n", default)
    back, how = unconfigure_containerd({CONFIG: edited}, DesiredConfig(exact=True), former)
    assert containerd.inspect(back).default is None
    assert any("the default runtime nvidia no longer exists" in note for note in how.notes)


def test_drop_in_of_another_schema_is_rewritten() -> None:
    """It makes containerd 2 ignore the root file's settings, or not start (aicr issue 1688)."""
    stray = b'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]\n  runtime_type = "x"\n'
    after, _ = configure({CONFIG: RUNC, DROP_IN: stray}, DesiredConfig(mode="drop-in", exact=True))
    assert parse_toml(after[DROP_IN].decode())["version"] == 2
    assert set(parse_toml(after[DROP_IN].decode())["plugins"]) == {"io.containerd.grpc.v1.cri"}


def test_drop_in_of_an_incompatible_schema_does_not_count() -> None:
    """containerd 2.1.9 ignores a schema 2 drop-in of a schema 3 root file."""
    cri = "plugins.'io.containerd.cri.v1.runtime'"
    root = f"version = 3\nimports = ['conf.d/*.toml']\n[{cri}.containerd.runtimes.runc]\nruntime_type = 'x'\n".encode()
    stale = RUNC.replace(b"runtimes.runc", b"runtimes.nvidia")
    files = {CONFIG: root, "/etc/containerd/conf.d/50-other.toml": stale}
    assert "nvidia" not in containerd.inspect(files, DesiredConfig(version=(2, 1))).handlers
    edited = containerd.configure(files, DesiredConfig(version=(2, 1)))
    assert [edit.path for edit in edited.edits] == [DROP_IN]
    assert any("50-other.toml has schema 2" in note for note in edited.notes)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("/c/*.toml", {"/c/a.toml", "/c/z.toml", "/c/.h.toml"}),
        ("/c/[^a]*.toml", {"/c/z.toml", "/c/.h.toml"}),
        ("/c/[a-c]*.toml", {"/c/a.toml"}),
        ("/c/[!a]*.toml", {"/c/a.toml", "/c/!.toml"}),
        ("/c/[!]*.toml", {"/c/!.toml"}),
        (r"/c/\[*.toml", {"/c/[.toml"}),
        (r"/c/[\]\\\[]*.toml", {"/c/[.toml", "/c/].toml", "/c/\\.toml"}),
        (r"/c/[a\-c]*.toml", {"/c/a.toml", "/c/-.toml"}),
        ("/c/?*.toml", {"/c/a.toml", "/c/z.toml", "/c/.h.toml"}),
        ("/*/x/*.toml", {"/c/x/a.toml"}),
    ],
)
def test_import_patterns_match_like_go(pattern: str, names: set[str], tmp_path: Path) -> None:
    """By the files' names, and on a disk, where a shell's star finds no hidden file."""
    marks = r"![]\-" if any(mark in pattern for mark in r"!\-") else ""
    named = (f"/c/{mark}.toml" for mark in marks)
    there = ("/c/a.toml", "/c/z.toml", "/c/.h.toml", "/c/x/a.toml", "/c/a.conf", *named)
    root = f"version = 2\nimports = ['{pattern}']\n".encode()
    files = {CONFIG: root, **dict.fromkeys(there, b"version = 2\n")}
    assert {file.path for file in load_config_files(files, DesiredConfig())} - {CONFIG} == names
    for path in there:
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).touch()
    places = list_read_paths({CONFIG: root}, DesiredConfig())
    found = (read_glob(one, 0, contents=False, root=str(tmp_path)) for one in places)
    assert names <= {match.path for one in found for match in decode_matches(one.data)}


def test_staged_nested_imports_are_read_once_with_new_content() -> None:
    nested = b"version = 2\nimports = ['/c/b.toml']\n"
    files = {CONFIG: b"version = 2\nimports = ['/c/a.toml']\n", "/c/a.toml": nested, "/c/b.toml": RUNC}
    staged = containerd_editing.staged_imports(files, DesiredConfig(), ["/c/b.toml"])
    assert staged == {"/c/a.toml": b"version = 2\n", "/c/b.toml": RUNC}
    root = containerd_editing.staged_root(files, DesiredConfig(), {"/c/a.toml": "/t/1", "/c/b.toml": "/t/2"})
    assert parse_toml(root.decode())["imports"] == ["/t/1", "/t/2"]


PARKED = b'version = 2\n[debug]\n  level = "trace"\n'


def test_unimported_file_stays_unimported_unless_the_folder_is() -> None:
    files = {CONFIG: RUNC, "/etc/containerd/conf.d/old.toml": PARKED}
    auto = containerd.configure(files, DesiredConfig(version=(2, 1)))
    assert parse_toml(apply_edits(files, auto)[CONFIG].decode())["imports"] == [DROP_IN]
    asked = containerd.configure(files, DesiredConfig(mode="drop-in", exact=True))
    assert parse_toml(apply_edits(files, asked)[CONFIG].decode())["imports"] == ["/etc/containerd/conf.d/*.toml"]
    assert any("old.toml" in note for note in asked.notes)


@pytest.mark.parametrize("default", [False, True])
def test_options_of_a_vm_runtime_are_not_inherited(default: bool) -> None:
    kata = KATA.replace(b"version = 2\n", f'version = 2\n[{CRI}.containerd]\ndefault_runtime_name = "kata"\n'.encode())
    files = {CONFIG: kata + RUNC.split(b"\n", 1)[1] + b"  privileged_without_host_devices = true\n"}
    after, _ = configure(files, DesiredConfig(default=default, exact=True, version=(1, 7)))
    entry = parse_toml(after[CONFIG].decode())["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"][
        "nvidia"
    ]
    assert entry["runtime_type"] == "io.containerd.runc.v2"
    assert entry["privileged_without_host_devices"] is True


def test_entry_of_another_shim_does_not_run_the_nvidia_binary() -> None:
    entry = KATA.replace(b"runtimes.kata", b"runtimes.nvidia")
    entry += f'[{CRI}.containerd.runtimes.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'.encode()
    assert containerd.inspect({CONFIG: entry}).handlers == {"nvidia": ""}


def test_settings_hidden_by_a_drop_in_are_noted() -> None:
    """containerd 2.1 merges a drop-in, but in 1.7 it replaces the whole table."""
    root = RUNC + f'[{CRI}.registry]\nconfig_path = "/etc/certs"\n'.encode()
    after, _ = configure({CONFIG: root}, DesiredConfig(version=(2, 1)))
    older = containerd.configure(after, DesiredConfig(version=(1, 7)))
    assert any("registry" in note and "no effect" in note for note in older.notes)


def test_implicit_import_of_conf_d_is_made_explicit() -> None:
    """containerd 2.2 reads conf.d if the root file has no imports; our import must not change that."""
    files = {CONFIG: RUNC, "/etc/containerd/conf.d/old.toml": PARKED}
    desired = DesiredConfig(version=(2, 2, 1))
    after, former = configure(files, desired)
    assert parse_toml(after[CONFIG].decode())["imports"] == ["/etc/containerd/conf.d/*.toml"]
    assert containerd.inspect(after, desired).handlers["nvidia"] == "/usr/bin/nvidia-container-runtime"
    assert containerd.configure(after, desired).edits == ()
    assert unconfigure_containerd(after, desired, former)[0] == files


def test_import_needed_by_others_is_kept_with_a_note() -> None:
    desired = DesiredConfig(version=(2, 1))
    after, former = configure({CONFIG: RUNC}, desired)
    since = {**after, "/etc/containerd/conf.d/50-mine.toml": PARKED}
    back, how = unconfigure_containerd(since, desired, former)
    assert "/etc/containerd/conf.d/50-mine.toml" in [file.path for file in load_config_files(back, desired)]
    assert DROP_IN not in back
    assert any("50-mine.toml would not be read" in note for note in how.notes)


@pytest.mark.parametrize("mode", ["auto", "in-place", "drop-in"])
def test_containerd_2_edits_schema_2_under_the_plugin_name_in_use(mode: EditMode) -> None:
    """A common mistake after the upgrade: if the new name exists, 2.1.9 reads nothing under the old one."""
    new = "plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes"
    files = {CONFIG: f"version = 2\n[{new}.runc]\nruntime_type = 'io.containerd.runc.v2'\n".encode()}
    desired = DesiredConfig(mode=mode, version=(2, 1, 9), exact=True)
    after, former = configure(files, desired)
    assert all(b"io.containerd.grpc.v1.cri" not in content for content in after.values())
    assert containerd.inspect(after, desired).handlers["nvidia"] == "/usr/bin/nvidia-container-runtime"
    assert unconfigure_containerd(after, desired, former)[0] == files
    older = containerd.configure(files, DesiredConfig(mode="in-place", version=(1, 7), exact=True))
    assert b"io.containerd.grpc.v1.cri" in (older.edits[0].after or b"")
