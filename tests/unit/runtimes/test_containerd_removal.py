"""What configure added goes again, over files, modes and edits made since; no node is left without its CRI plugin."""

from __future__ import annotations

import pytest

from gpunode.runtimes import ConfigEdit, DesiredConfig, Edit, Files, after_edits, containerd, containerd_editing
from gpunode.runtimes.containerd_files import load, matching, wider
from gpunode.runtimes.model import Mode
from gpunode.runtimes.tomlread import parse
from tests.unit.runtimes.unconfigured import unconfigure

CONFIG, DROP_IN = containerd.CONFIG, containerd.DROP_IN
CRI = 'plugins."io.containerd.grpc.v1.cri"'
RUNC = f'version = 2\n[{CRI}.containerd.runtimes.runc]\n  runtime_type = "io.containerd.runc.v2"\n'.encode()
KATA = f'version = 2\n[{CRI}.containerd.runtimes.kata]\n  runtime_type = "io.containerd.kata.v2"\n'.encode()
WISHES = [
    DesiredConfig(mode=mode, version=version, default=default, exact=True)
    for mode in ("auto", "drop-in", "in-place")
    for version in (None, (1, 7), (2, 1, 9))
    for default in (False, True)
]


def configured(files: Files, desired: DesiredConfig) -> tuple[Files, tuple[Edit, ...]]:
    edited = containerd.configure(files, desired)
    return after_edits(files, edited), edited.edits


def removed(files: Files, desired: DesiredConfig, former: tuple[Edit, ...]) -> tuple[Files, ConfigEdit]:
    edited = unconfigure("containerd", files, desired, former)
    return after_edits(files, edited), edited


@pytest.mark.parametrize("desired", WISHES, ids=lambda desired: f"{desired.mode}-{desired.version}-{desired.default}")
@pytest.mark.parametrize(
    "data", [None, b"", b"# mine\n", RUNC, KATA], ids=["missing", "empty", "comment", "runc", "kata"]
)
def test_what_nobody_edited_comes_back_byte_for_byte(data: bytes | None, desired: DesiredConfig) -> None:
    files = {} if data is None else {CONFIG: data}
    after, former = configured(files, desired)
    assert removed(after, desired, former)[0] == files


@pytest.mark.parametrize("desired", WISHES, ids=lambda desired: f"{desired.mode}-{desired.version}-{desired.default}")
def test_what_was_written_since_stays(desired: DesiredConfig) -> None:
    after, former = configured({CONFIG: RUNC}, desired)
    mine = b'\n[debug] # mine\n  level = "warn"\n'
    back, _ = removed({**after, CONFIG: after[CONFIG] + mine}, desired, former)
    assert back == {CONFIG: RUNC + mine}


def test_an_entry_goes_with_what_was_written_into_it_and_that_is_told() -> None:
    after, former = configured({CONFIG: RUNC}, DesiredConfig(exact=True))
    edited = after[CONFIG] + b"    NoNewKeyring = true\n"
    back, how = removed({CONFIG: edited}, DesiredConfig(exact=True), former)
    assert back[CONFIG].rstrip() == RUNC.rstrip()
    assert any("NoNewKeyring" in note for note in how.notes)


def test_what_nobody_has_on_record_goes_by_its_name_and_that_is_told() -> None:
    desired = DesiredConfig(default=True, exact=True)
    after, _ = configured({CONFIG: RUNC}, desired)
    back, how = removed(after, desired, ())
    assert parse(back[CONFIG].decode()) == parse(RUNC.decode())
    assert any("default" in note and "no record of" in note for note in how.notes)


def test_a_drop_in_of_nvidia_ctk_that_says_nothing_of_its_own_goes_whole() -> None:
    desired = DesiredConfig(mode="drop-in", exact=True)
    after, _ = configured({CONFIG: RUNC}, desired)
    back, how = removed(after, desired, ())
    assert set(back) == {CONFIG}
    assert any("still imports" in note for note in how.notes)


def test_the_runtimes_that_stay_do_not_lose_their_default() -> None:
    """Without a runc table beside kata's, containerd 1.7 does not load the CRI plugin."""
    nvidia = RUNC.replace(b"runtimes.runc", b"runtimes.nvidia").split(b"\n", 1)[1]
    nvidia += f"[{CRI}.containerd.runtimes.nvidia.options]\nBinaryName = '/usr/bin/nvidia-container-runtime'\n".encode()
    default = f"version = 2\n[{CRI}.containerd]\n  default_runtime_name = 'nvidia'\n".encode()
    files = {CONFIG: KATA.replace(b"version = 2\n", default) + nvidia}
    back, how = removed(files, DesiredConfig(version=(1, 7)), ())
    found = containerd.inspect(back)
    assert set(found.handlers) == {"kata", "runc"}
    assert found.default is None
    assert any("runc has an entry now" in note for note in how.notes)


def test_a_default_that_somebody_gave_our_handler_goes_with_it() -> None:
    after, former = configured({CONFIG: RUNC}, DesiredConfig(exact=True))
    default = f"version = 2\n[{CRI}.containerd]\n  default_runtime_name = 'nvidia'\n".encode()
    edited = after[CONFIG].replace(b"version = 2\n", default)
    back, how = removed({CONFIG: edited}, DesiredConfig(exact=True), former)
    assert containerd.inspect(back).default is None
    assert any("the default runtime nvidia no longer exists" in note for note in how.notes)


def test_a_drop_in_of_another_schema_than_the_root_is_made_anew() -> None:
    """containerd 2 stops reading the root's settings by one, or does not start (aicr issue 1688)."""
    stray = b'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]\n  runtime_type = "x"\n'
    after, _ = configured({CONFIG: RUNC, DROP_IN: stray}, DesiredConfig(mode="drop-in", exact=True))
    assert parse(after[DROP_IN].decode())["version"] == 2
    assert set(parse(after[DROP_IN].decode())["plugins"]) == {"io.containerd.grpc.v1.cri"}


def test_a_drop_in_whose_schema_has_other_names_for_everything_does_not_count() -> None:
    """containerd 2.1.9 ignores a schema 2 drop-in of a schema 3 root."""
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
        ("/c/?.toml", {"/c/a.toml", "/c/z.toml"}),
        (r"/c/\*.toml", {"/c/*.toml"}),
        ("/*/x/*.toml", {"/c/x/a.toml"}),
        ("/c/[.toml*", set()),
    ],
)
def test_imports_name_files_as_gos_patterns_do(pattern: str, names: set[str]) -> None:
    there = {"/c/a.toml", "/c/z.toml", "/c/.h.toml", "/c/x/a.toml", "/c/a.conf", *({"/c/*.toml"} & names)}
    assert set(matching(pattern, dict.fromkeys(there, b""))) == names


def test_what_a_pattern_is_looked_up_by_finds_no_less_than_it_names() -> None:
    assert wider("/c/[^a]*.toml") == ("/c/?*.toml", "/c/.?*.toml")
    assert wider("/c/a*.toml") == ("/c/a*.toml",)


def test_a_trial_of_nested_imports_reads_each_file_once_and_as_it_will_be() -> None:
    nested = b"version = 2\nimports = ['/c/b.toml']\n"
    files = {CONFIG: b"version = 2\nimports = ['/c/a.toml']\n", "/c/a.toml": nested, "/c/b.toml": RUNC}
    staged = containerd_editing.staged_imports(files, DesiredConfig(), ["/c/b.toml"])
    assert staged == {"/c/a.toml": b"version = 2\n", "/c/b.toml": RUNC}
    root = containerd_editing.staged_root(files, DesiredConfig(), {"/c/a.toml": "/t/1", "/c/b.toml": "/t/2"})
    assert parse(root.decode())["imports"] == ["/t/1", "/t/2"]


PARKED = b'version = 2\n[debug]\n  level = "trace"\n'


def test_a_file_that_nothing_imported_stays_asleep_unless_the_whole_folder_is_asked_for() -> None:
    files = {CONFIG: RUNC, "/etc/containerd/conf.d/old.toml": PARKED}
    auto = containerd.configure(files, DesiredConfig(version=(2, 1)))
    assert parse(after_edits(files, auto)[CONFIG].decode())["imports"] == [DROP_IN]
    asked = containerd.configure(files, DesiredConfig(mode="drop-in", exact=True))
    assert parse(after_edits(files, asked)[CONFIG].decode())["imports"] == ["/etc/containerd/conf.d/*.toml"]
    assert any("old.toml" in note for note in asked.notes)


@pytest.mark.parametrize("default", [False, True])
def test_the_options_of_a_vm_are_not_inherited(default: bool) -> None:
    kata = KATA.replace(b"version = 2\n", f'version = 2\n[{CRI}.containerd]\ndefault_runtime_name = "kata"\n'.encode())
    files = {CONFIG: kata + RUNC.split(b"\n", 1)[1] + b"  privileged_without_host_devices = true\n"}
    after, _ = configured(files, DesiredConfig(default=default, exact=True, version=(1, 7)))
    entry = parse(after[CONFIG].decode())["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]["nvidia"]
    assert entry["runtime_type"] == "io.containerd.runc.v2"
    assert entry["privileged_without_host_devices"] is True


def test_an_entry_of_another_shim_runs_nothing_of_nvidias() -> None:
    entry = KATA.replace(b"runtimes.kata", b"runtimes.nvidia")
    entry += f'[{CRI}.containerd.runtimes.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'.encode()
    assert containerd.inspect({CONFIG: entry}).handlers == {"nvidia": ""}


def test_what_a_drop_in_keeps_from_counting_is_named() -> None:
    """A drop-in that containerd 2.1 merged takes the place of the whole table in 1.7."""
    root = RUNC + f'[{CRI}.registry]\nconfig_path = "/etc/certs"\n'.encode()
    after, _ = configured({CONFIG: root}, DesiredConfig(version=(2, 1)))
    older = containerd.configure(after, DesiredConfig(version=(1, 7)))
    assert any("registry" in note and "no effect" in note for note in older.notes)


def test_what_containerd_imports_unasked_counts_and_is_written_out() -> None:
    """containerd 2.2 reads conf.d where the root file says nothing of imports; an import of ours must not end that."""
    files = {CONFIG: RUNC, "/etc/containerd/conf.d/old.toml": PARKED}
    desired = DesiredConfig(version=(2, 2, 1))
    after, former = configured(files, desired)
    assert parse(after[CONFIG].decode())["imports"] == ["/etc/containerd/conf.d/*.toml"]
    assert containerd.inspect(after, desired).handlers["nvidia"] == "/usr/bin/nvidia-container-runtime"
    assert containerd.configure(after, desired).edits == ()
    assert removed(after, desired, former)[0] == files


def test_the_import_that_others_have_come_to_need_stays_and_that_is_told() -> None:
    desired = DesiredConfig(version=(2, 1))
    after, former = configured({CONFIG: RUNC}, desired)
    since = {**after, "/etc/containerd/conf.d/50-mine.toml": PARKED}
    back, how = removed(since, desired, former)
    assert "/etc/containerd/conf.d/50-mine.toml" in [file.path for file in load(back, desired)]
    assert DROP_IN not in back
    assert any("50-mine.toml would not be read" in note for note in how.notes)


@pytest.mark.parametrize("mode", ["auto", "in-place", "drop-in"])
def test_of_schema_2_containerd_2_takes_the_newest_name_where_it_stands(mode: Mode) -> None:
    """A common mistake after the upgrade: with the new name there, 2.1.9 reads nothing under the old one."""
    new = "plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes"
    files = {CONFIG: f"version = 2\n[{new}.runc]\nruntime_type = 'io.containerd.runc.v2'\n".encode()}
    desired = DesiredConfig(mode=mode, version=(2, 1, 9), exact=True)
    after, former = configured(files, desired)
    assert all(b"io.containerd.grpc.v1.cri" not in content for content in after.values())
    assert containerd.inspect(after, desired).handlers["nvidia"] == "/usr/bin/nvidia-container-runtime"
    assert removed(after, desired, former)[0] == files
    older = containerd.configure(files, DesiredConfig(mode="in-place", version=(1, 7), exact=True))
    assert b"io.containerd.grpc.v1.cri" in (older.edits[0].after or b"")
