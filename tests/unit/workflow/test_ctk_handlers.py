"""Of several handlers only the named one is removed; an unrecorded one is not ours because of its name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import FileState
from gpunode.errors import Refused
from gpunode.journal.store import Store
from gpunode.runtimes import DesiredConfig, find_runtime
from gpunode.runtimes.documents import parse_toml
from gpunode.runtimes.model import EditMode
from tests.unit.workflow.editing import PLAIN, Machine, configured, made, plan_of, unconfigured

CRIO = b'[crio.runtime]\ndefault_runtime = "crun"\n\n[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n'
FIRST = {
    "containerd": {"/etc/containerd/config.toml": PLAIN},
    "docker": {"/etc/docker/daemon.json": b'{\n  "debug": true\n}\n'},
    "crio": {"/etc/crio/crio.conf": CRIO},
}
MODES: tuple[EditMode, ...] = ("auto", "in-place")
SECOND = replace(DesiredConfig(exact=True), handler="nvidia-cdi", binary="/usr/bin/nvidia-container-runtime.cdi")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def handlers(host: Machine, name: str) -> set[str]:
    return {
        one
        for one in find_runtime(name).inspect(dict(host.contents), DesiredConfig()).handlers
        if one.startswith("nvidia")
    }


def edit_by_hand(host: Machine) -> None:
    """Write a user's own lines into every file."""
    for path, content in dict(host.contents).items():
        mine = content.replace(b"{", b'{ "mine": 1,', 1) if path.endswith(".json") else content + b"# mine\n"
        host.files[path] = FileState(mine)


@pytest.mark.parametrize("gone", ["nvidia", "nvidia-cdi"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FIRST)
def test_unconfigure_removes_only_the_named_handler(name: str, mode: EditMode, gone: str, store: Store) -> None:
    host = Machine(dict(FIRST[name]))
    all_desired = [replace(desired, mode=mode) for desired in (DesiredConfig(exact=True, default=True), SECOND)]
    for desired in all_desired:
        configured(host, store, desired, name)
    named = next(desired for desired in all_desired if desired.handler == gone)
    (other,) = [desired for desired in all_desired if desired is not named]
    unconfigured(host, store, named, name)
    assert handlers(host, name) == {other.handler}
    unconfigured(host, store, other, name)
    if name == "docker":
        assert json.loads(host.contents["/etc/docker/daemon.json"]) == {"debug": True}
    else:
        assert handlers(host, name) == set()


@pytest.mark.parametrize("name", FIRST)
def test_unconfigure_of_an_unknown_handler_changes_nothing(name: str, store: Store) -> None:
    host = Machine(dict(FIRST[name]))
    configured(host, store, DesiredConfig(exact=True), name)
    before = dict(host.contents)
    unconfigured(host, store, DesiredConfig(handler="other"), name)
    assert dict(host.contents) == before


def test_unconfigure_refuses_a_handler_that_runs_no_nvidia_binary(store: Store) -> None:
    host = Machine({"/etc/containerd/config.toml": PLAIN})
    with pytest.raises(Refused, match="was not added by configure") as refused:
        unconfigured(host, store, DesiredConfig(handler="runc"), "containerd")
    assert "--nvidia-runtime-path" in refused.value.hint
    assert dict(host.contents) == {"/etc/containerd/config.toml": PLAIN}


def test_handler_also_written_by_others_is_noted_and_removed_next_time(store: Store) -> None:
    host = Machine({"/etc/containerd/config.toml": PLAIN})
    configured(host, store, DesiredConfig(exact=True, mode="drop-in"), "containerd")
    drop_in = dict(host.contents)["/etc/containerd/conf.d/99-nvidia.toml"]
    merged = drop_in.replace(b"version = 2\n", b'version = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n', 1)
    host.files["/etc/containerd/config.toml"] = FileState(merged)
    plan = unconfigured(host, store, DesiredConfig(mode="drop-in"), "containerd")
    assert any("still has a runtime nvidia" in note for note in plan.planned.all_notes)
    unconfigured(host, store, DesiredConfig(mode="drop-in"), "containerd")
    assert handlers(host, "containerd") == set()


@pytest.mark.parametrize("name", FIRST)
def test_entry_with_a_changed_program_is_kept_and_named(name: str, store: Store) -> None:
    desired = DesiredConfig(exact=True, default=True, mode="in-place")
    host = Machine(dict(FIRST[name]))
    configured(host, store, desired, name)
    for path, content in dict(host.contents).items():
        host.files[path] = FileState(content.replace(desired.binary.encode(), b"/opt/mine/runtime"))
    plan = unconfigured(host, store, desired, name)
    found = find_runtime(name).inspect(dict(host.contents), DesiredConfig())
    assert found.handlers["nvidia"] == "/opt/mine/runtime"
    assert found.default in {None, "runc", "crun"}
    assert any("nvidia is kept: its program was changed since" in note for note in plan.planned.all_notes)
    assert plan.planned.reason == "gpunode's changes to nvidia are undone"
    with pytest.raises(Refused, match="was not added by configure"):
        unconfigured(host, store, desired, name)


def test_entry_with_another_program_of_nvidia_is_removed_next_time(store: Store) -> None:
    """Debian's file has no runc entry: gpunode's goes with the last handler, and stays beside an edited one."""
    debian = b'version = 2\n\n[plugins."io.containerd.grpc.v1.cri".cni]\n  bin_dir = "/usr/lib/cni"\n'
    host = Machine({"/etc/containerd/config.toml": debian})
    configured(host, store, DesiredConfig(), "containerd")
    now = dict(host.contents)["/etc/containerd/config.toml"]
    host.files["/etc/containerd/config.toml"] = FileState(now.replace(b"container-runtime", b"container-runtime.cdi"))
    first = unconfigured(host, store, DesiredConfig(), "containerd")
    assert any("nvidia is kept" in note for note in first.planned.all_notes)
    assert any("run the same command again to remove it" in note for note in first.planned.all_notes)
    second = unconfigured(host, store, DesiredConfig(), "containerd")
    assert dict(host.contents) == {"/etc/containerd/config.toml": debian}
    assert not any("is kept" in note for note in second.planned.all_notes)


@pytest.mark.parametrize("name", FIRST)
def test_keys_that_go_with_an_entry_are_told(name: str, store: Store) -> None:
    desired = DesiredConfig(exact=True, mode="in-place")
    host = Machine(dict(FIRST[name]))
    configured(host, store, desired, name)
    for path, content in dict(host.contents).items():
        lines = content.splitlines(keepends=True)
        at = next(number for number, line in enumerate(lines) if desired.binary.encode() in line)
        mine = b'"mine": 1,\n' if path.endswith(".json") else b"mine = 1\n"
        host.files[path] = FileState(b"".join([*lines[:at], mine, *lines[at:]]))
    plan = unconfigured(host, store, desired, name)
    assert handlers(host, name) == set()
    assert any("are removed with them" in note and "mine" in note for note in plan.planned.all_notes)


def test_second_unconfigure_keeps_a_foreign_default_runtime(store: Store) -> None:
    path, first = "/etc/docker/daemon.json", b'{"default-runtime": "kata", "runtimes": {"kata": {"path": "/k"}}}\n'
    host = Machine({path: first})
    configured(host, store, DesiredConfig(exact=True, default=True), "docker")
    edit_by_hand(host)
    unconfigured(host, store, DesiredConfig(), "docker")
    host.files[path] = FileState(host.contents[path].replace(b'"mine": 1', b'"mine": 2'))
    unconfigured(host, store, DesiredConfig(), "docker")
    assert json.loads(host.contents[path]) == {"mine": 2, **json.loads(first)}


@pytest.mark.parametrize("name", FIRST)
def test_unconfigure_does_not_restore_a_handler_removed_before(name: str, store: Store) -> None:
    host = Machine(dict(FIRST[name]))
    configured(host, store, DesiredConfig(exact=True, default=True), name)
    edit_by_hand(host)
    unconfigured(host, store, DesiredConfig(), name)
    before = dict(host.contents)
    unconfigured(host, store, DesiredConfig(handler="other"), name)
    assert dict(host.contents) == before


def test_import_stays_while_another_handler_needs_it(store: Store) -> None:
    host = Machine(dict(FIRST["containerd"]))
    all_desired = [replace(desired, mode="drop-in") for desired in (DesiredConfig(exact=True), SECOND)]
    for desired in all_desired:
        configured(host, store, desired, "containerd")
    unconfigured(host, store, all_desired[1], "containerd")
    assert handlers(host, "containerd") == {"nvidia"}
    unconfigured(host, store, all_desired[0], "containerd")
    assert dict(host.contents) == FIRST["containerd"]


@pytest.mark.parametrize("name", FIRST)
def test_default_runtime_without_a_handler_is_not_restored(name: str, store: Store) -> None:
    host = Machine(dict(FIRST[name]))
    first, second = DesiredConfig(exact=True, default=True), replace(SECOND, default=True)
    configured(host, store, first, name)
    edit_by_hand(host)
    configured(host, store, second, name)
    unconfigured(host, store, first, name)
    unconfigured(host, store, second, name)
    found = find_runtime(name).inspect(dict(host.contents), DesiredConfig())
    assert found.default in {None, "runc", "crun"}


CRI = 'plugins."io.containerd.grpc.v1.cri"'
SOMEBODY_ELSES = {
    "containerd": {
        "/etc/containerd/config.toml": (
            f'version = 2\n[{CRI}.containerd]\ndefault_runtime_name = "nvidia"\n'
            f'[{CRI}.containerd.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n'
            f'[{CRI}.containerd.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\n'
            f'[{CRI}.containerd.runtimes.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\n'
        ).encode()
    },
    "docker": {
        "/etc/docker/daemon.json": b'{"default-runtime":"nvidia",'
        b'"runtimes":{"nvidia":{"path":"nvidia-container-runtime"}}}'
    },
    "crio": {
        "/etc/crio/crio.conf": b'[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\n'
        b'runtime_path="/usr/bin/nvidia-container-runtime"\n'
    },
}


@pytest.mark.parametrize("name", SOMEBODY_ELSES)
def test_removed_foreign_lines_are_not_put_back(name: str, store: Store) -> None:
    """Neither by a repeated unconfigure, which a play may run every night, nor by a removal."""
    host = Machine(dict(SOMEBODY_ELSES[name]))
    for _ in range(3):
        unconfigured(host, store, DesiredConfig(), name)
        assert handlers(host, name) == set()
        assert store.footprint().files == {}
    configured(host, store, DesiredConfig(exact=True, mode="in-place"), name)
    unconfigured(host, store, DesiredConfig(), name)
    assert handlers(host, name) == set()
    assert store.footprint().files == {}


def test_own_drop_in_follows_its_root_file_and_keeps_foreign_lines(store: Store) -> None:
    """nvidia-ctk recreates it at every run, and scripts rely on that."""
    root, drop_in = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
    desired = DesiredConfig(exact=True, mode="drop-in")
    secret = f'[{CRI}.registry.configs."r.io".auth]\npassword = "{{}}"\n'
    host = Machine({root: PLAIN + secret.format("old").encode()})
    made(host, store, plan_of(host, desired, store=store))
    host.files[drop_in] = FileState(host.contents[drop_in] + f'[{CRI}.cni]\nbin_dir = "/mine"\n'.encode())
    rotated = host.contents[root].replace(b'"old"', b'"new"')
    host.files[root] = FileState(rotated)
    made(host, store, plan_of(host, desired, store=store))
    found = parse_toml(host.contents[drop_in].decode())["plugins"]["io.containerd.grpc.v1.cri"]
    assert found["registry"]["configs"]["r.io"]["auth"]["password"] == "new"
    assert found["cni"] == {"bin_dir": "/mine"}
    assert plan_of(host, desired, store=store).files == ()


@pytest.mark.parametrize("version", [(1, 7, 24), (2, 1, 9)], ids=["in-place", "drop-in"])
@pytest.mark.parametrize("name", FIRST)
def test_later_configure_with_fewer_options_removes_nothing(name: str, version: tuple[int, ...], store: Store) -> None:
    """The default, CDI and the cgroup driver stay: the guides' plain command changes nothing."""
    host = Machine(dict(FIRST[name]))
    desired = DesiredConfig(default=True, enable_cdi=True, systemd_cgroup=True, version=version)
    configured(host, store, desired, name)
    assert plan_of(host, DesiredConfig(exact=True, version=version), name, store=store).files == ()


def test_refreshed_drop_in_keeps_what_gpunode_set_in_it(store: Store) -> None:
    host = Machine({"/etc/containerd/config.toml": PLAIN})
    desired = DesiredConfig(exact=True, mode="drop-in", version=(2, 1, 9))
    configured(host, store, replace(desired, default=True, enable_cdi=True, systemd_cgroup=True), "containerd")
    assert plan_of(host, desired, store=store).files == ()


@pytest.mark.parametrize("version", [(1, 7), (2, 1, 9)], ids=["in-place", "drop-in"])
@pytest.mark.parametrize("binary", ["/usr/bin/nvidia-container-runtime", "/opt/nvidia-container-runtime"])
def test_unconfigure_of_the_default_restores_a_foreign_entry(
    binary: str, version: tuple[int, ...], store: Store
) -> None:
    """The drop-in repeats the entry: a rehearsal, which runs no containerd, reads only the drop-in."""
    text = SOMEBODY_ELSES["containerd"]["/etc/containerd/config.toml"].decode()
    text = text.replace('default_runtime_name = "nvidia"\n', "").replace("/usr/bin/nvidia-container-runtime", binary)
    root = {"/etc/containerd/config.toml": text.encode()}
    host = Machine(dict(root))
    desired = DesiredConfig(exact=True, version=version)
    configured(host, store, replace(desired, default=True), "containerd")
    unconfigured(host, store, desired, "containerd")
    assert dict(host.contents) == root
