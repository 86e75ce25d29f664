"""Planned edits, found by reading the node; none is written yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import FileChange, FileState
from gpunode.errors import Refused
from gpunode.journal.footprint import FileTrail, NetChange
from gpunode.journal.store import Store
from gpunode.runtimes import DesiredConfig, apply_edits, find_runtime
from gpunode.workflow import ctk_plan
from tests.unit.steps.machines import CONTAINERD, DAEMON_JSON
from tests.unit.workflow.editing import (
    DOCKER,
    DROP_IN,
    IN_DROP_IN,
    IN_PLACE,
    PLAIN,
    RELOAD_DOCKER,
    RESTART_DOCKER,
    Machine,
    configured,
    plan_of,
    target_of,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


@pytest.mark.parametrize(("mode", "of_drop_in"), [(0o600, 0o600), (0o664, 0o644), (0o666, 0o644)])
def test_edited_file_keeps_its_mode_and_new_drop_in_belongs_to_root(store: Store, mode: int, of_drop_in: int) -> None:
    host = Machine({CONTAINERD: FileState(PLAIN, mode, 3, 4)})
    configured(host, store)
    main, drop_in = host.files[CONTAINERD], host.files[DROP_IN]
    assert main is not None
    assert (main.mode, main.uid, main.gid) == (mode, 3, 4)
    assert drop_in is not None
    assert (drop_in.mode, drop_in.uid, drop_in.gid) == (of_drop_in, 0, 4)


def trail_of(*changes: FileChange) -> FileTrail:
    return tuple(NetChange("runtime", "runtime-config", change, folders=change.folders) for change in changes)


def test_rootless_drop_in_belongs_to_the_user(store: Store) -> None:
    theirs, drop_in = "/home/ada/.config/containerd/config.toml", "/home/ada/.config/containerd/nvidia.toml"
    host = Machine({theirs: FileState(PLAIN, 0o600, 3, 4)})
    configured(host, store, replace(IN_DROP_IN, config=theirs, drop_in=drop_in))
    state = host.files[drop_in]
    assert state is not None
    assert (state.mode, state.uid, state.gid) == (0o600, 3, 4)


def test_unconfigure_undoes_two_runs_through_the_edit_between_them() -> None:
    """Byte for byte from the last of them; otherwise the edit in between would be lost."""
    other = replace(IN_PLACE, handler="nvidia-cdi", binary="/usr/bin/nvidia-container-runtime.cdi")
    first = written(PLAIN, IN_PLACE)
    between = first + b"# theirs, in between\n"
    last = written(between, other)
    a, b, c, d = (FileState(text) for text in (PLAIN, first, between, last))
    trail = trail_of(FileChange(CONTAINERD, a, b), FileChange(CONTAINERD, c, d))
    for desired, left in ((other, between), (IN_PLACE, written(PLAIN + b"# theirs, in between\n", other))):
        host = Machine({CONTAINERD: last})
        plan = ctk_plan.plan_unconfigure_edit(host, target_of(host, desired), {CONTAINERD: trail})
        assert [(change.before, change.after) for change in plan.files] == [(d, FileState(left))]


def written(content: bytes, desired: DesiredConfig) -> bytes:
    """Return containerd's file as configured."""
    files = {CONTAINERD: content}
    return apply_edits(files, find_runtime("containerd").configure(files, desired))[CONTAINERD]


def test_lost_backup_is_no_former_state() -> None:
    """The entry is removed by its name; the state before it is unknown."""
    host = Machine({CONTAINERD: written(PLAIN, replace(IN_PLACE, default=True))})
    (change,) = ctk_plan.plan_unconfigure_edit(host, target_of(host, IN_PLACE), {CONTAINERD: ()}).files
    assert isinstance(change.after, FileState)
    assert set(find_runtime("containerd").inspect({CONTAINERD: change.after.content}, IN_PLACE).handlers) == {"runc"}


def test_folder_made_for_a_drop_in_is_removed_with_it() -> None:
    state = FileState(b"version = 2\n")
    span = FileChange(DROP_IN, None, state, folders=("/etc/containerd/conf.d",))
    host = Machine({CONTAINERD: PLAIN, DROP_IN: state})
    trails = {DROP_IN: trail_of(span)}
    (change,) = ctk_plan.plan_unconfigure_edit(host, target_of(host), trails).files
    assert change.folders == ("/etc/containerd/conf.d",)


def test_docker_reloads_for_a_runtime_and_restarts_for_a_feature(store: Store) -> None:
    host = Machine({DAEMON_JSON: b"{}\n"})
    assert plan_of(host, DOCKER, "docker").trigger == RELOAD_DOCKER
    assert plan_of(host, DOCKER, "docker").planned.stopped_workloads == ""
    feature = plan_of(host, replace(DOCKER, enable_cdi=True), "docker")
    assert (feature.trigger, feature.planned.stopped_workloads) == (RESTART_DOCKER, "docker containers")


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("containerd github.com/containerd/containerd v1.7.24 88bf19b2105c8b17560993bee28a01ddc2f97182\n", (1, 7, 24)),
        ("containerd github.com/containerd/containerd/v2 2.1.9~ds1 \n", (2, 1, 9)),
        ("containerd containerd.io 1.7.25 bcc810d6b9066471b0b6fa75f557a15a1cbf31bb\n", (1, 7, 25)),
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1\n", (1, 6, 20)),
        ("", None),
    ],
)
def test_runtime_version_is_parsed_from_the_program_output(printed: str, version: tuple[int, ...] | None) -> None:
    host = Machine({}, {"containerd --version": printed})
    assert ctk_plan.find_target(host, find_runtime("containerd"), DesiredConfig()).desired.version == version


def test_docker_version_is_only_asked_for_where_cdi_needs_it() -> None:
    host = Machine({}, {"dockerd --version": "Docker version 28.5.2+dfsg4, build 3ef3c07c\n"})
    assert ctk_plan.find_target(host, find_runtime("docker"), DesiredConfig(enable_cdi=True)).desired.version == (
        28,
        5,
        2,
    )
    assert ctk_plan.find_target(host, find_runtime("docker"), DesiredConfig()).desired.version is None


def test_first_available_config_dump_is_used() -> None:
    dumps = (("crio", "status", "config"), ("crio-status", "config"))
    host = Machine({}, {"crio-status config": "[crio]\n"})
    assert ctk_plan.find_target(host, find_runtime("containerd"), DesiredConfig(), dumps).desired.source == b"[crio]\n"


def test_failed_config_dump_is_reported_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Machine({})
    with pytest.raises(Refused, match="containerd config dump"):
        ctk_plan.find_target(host, find_runtime("containerd"), DesiredConfig(), (("containerd", "config", "dump"),))


def test_preview_shows_the_drop_in_before_the_main_file(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    plan = plan_of(host)
    configured(host, store)
    assert ctk_plan.preview_contents(plan) == (host.contents[DROP_IN], host.contents[CONTAINERD])
    assert ctk_plan.preview_contents(plan_of(host)) == (host.contents[CONTAINERD],)


CRICTL = "/var/lib/rancher/k3s/agent/etc/crictl.yaml"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"


def test_containerd_of_the_kubelet_is_chosen() -> None:
    host = Machine({CONTAINERD: PLAIN, CRICTL: b"runtime-endpoint: unix:///run/k3s/containerd/containerd.sock\n"})
    where = ctk_plan.find_target(host, find_runtime("containerd"), IN_PLACE, image=True)
    assert (where.runtime.product, where.runtime.config) == ("k3s", K3S)
    named = ctk_plan.find_target(host, find_runtime("containerd"), replace(IN_PLACE, config=CONTAINERD), image=True)
    assert named.runtime.product == ""
    assert ctk_plan.find_target(host, find_runtime("docker"), DOCKER, image=True).runtime is find_runtime("docker")


def test_damaged_file_of_k3s_does_not_lead_to_another_containerd() -> None:
    host = Machine({CONTAINERD: PLAIN, CRICTL: b"runtime-endpoint: [unix\n"})
    with pytest.raises(Refused, match="cannot tell which containerd") as caught:
        ctk_plan.find_target(host, find_runtime("containerd"), IN_PLACE, image=True)
    assert caught.value.why.startswith(f"{CRICTL}:")


KUBELET = {
    "/lib/systemd/system/kubelet.service": b"[Service]\nExecStart=/usr/bin/kubelet --cgroup-driver=systemd\n",
    "/var/lib/kubelet/config.yaml": b"cgroupDriver: systemd\n",
}


@pytest.mark.parametrize(("text", "systemd"), [(b"version = 2\n", True), (PLAIN, False)])
def test_kubelet_node_gets_cri_plugin_and_cgroup_driver(text: bytes, systemd: bool) -> None:
    host = Machine({CONTAINERD: text, **KUBELET})
    desired = ctk_plan.find_target(host, find_runtime("containerd"), IN_PLACE, image=True).desired
    assert (desired.enable_cri, desired.systemd_cgroup) == (True, systemd)
    bare = ctk_plan.find_target(Machine({CONTAINERD: text}), find_runtime("containerd"), IN_PLACE, image=True).desired
    assert (bare.enable_cri, bare.systemd_cgroup) == (False, False)
