"""The container toolkit, the runtime, and the runtime's configuration."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpunode import toml
from gpunode.change import (
    Change,
    FileChange,
    FileState,
    KnownAfter,
    PackageChange,
    PackageState,
    ServiceChange,
    Trigger,
)
from gpunode.errors import Undetermined
from gpunode.facts.model import Distro, Facts, Known, Platform, Unknown, value_or
from gpunode.facts.project import project_changes
from gpunode.outcome import Planned
from gpunode.recipe import Recipe, RuntimeSettings, Toolkit
from gpunode.runtimes import DesiredConfig, find_runtime
from gpunode.runtimes.model import CRIO_DROP_IN
from gpunode.steps.runtime import RUNTIME_CONFIG_STEP, RUNTIME_INSTALL_STEP
from gpunode.steps.table import STEPS, find_needed_step_ids
from gpunode.steps.toolkit import TOOLKIT_STEP
from tests.unit.steps.machines import CONTAINERD, DAEMON_JSON, files, machine, names, planned, recipe, refusal, unit

FOUR = (
    "libnvidia-container-tools",
    "libnvidia-container1",
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
)
DOCKER = {"docker.io": "20.10.24"}
TRIXIE = Known(Distro("debian", "13", "trixie", "Debian GNU/Linux 13 (trixie)"), "os-release")


def toolkit_packages(version: str, **other: str) -> dict[str, str | PackageState]:
    return {name: other.get(name.replace("-", "_"), version) for name in FOUR}


def recipe_of(version: str) -> Recipe:
    return replace(recipe("docker"), toolkit=Toolkit(version))


def requested_packages(outcome: Planned) -> dict[str, object]:
    return {str(change.id): change.after for change in outcome.changes if isinstance(change, PackageChange)}


DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
PAUSE = b"""version = 2
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "registry.local/pause:3.9"
"""
NVIDIA_CTKS = b"""version = 2
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


def test_keys_hidden_by_a_drop_in_are_noted_with_or_without_a_change() -> None:
    """containerd 1.6 uses only the last file's CRI table, so nvidia-ctk's drop-in hides the site's own keys."""
    right = machine(
        packages={"containerd": "1.6.20~ds1-1+b1"},
        files={CONTAINERD: PAUSE, DROP_IN: NVIDIA_CTKS},
        units={"containerd.service": unit()},
    )
    wrong = machine(
        packages={"containerd": "1.6.20~ds1-1+b1"},
        files={CONTAINERD: PAUSE, DROP_IN: NVIDIA_CTKS.replace(b"/usr/bin/", b"/opt/")},
        units={"containerd.service": unit()},
    )
    edited = planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), wrong))
    assert files(edited.changes)
    for outcome in (edited, planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), right))):
        (note,) = outcome.notes
        assert "so these of /etc/containerd/config.toml have no effect: sandbox_image" in note
        assert outcome.change_notes == ()
    assert planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), right)).changes == ()


# -- toolkit -----------------------------------------------------------------------------------------------------------


def test_bare_machine_gets_the_newest_toolkit_packages() -> None:
    assert requested_packages(planned(TOOLKIT_STEP.plan(recipe("docker"), machine()))) == dict.fromkeys(
        FOUR, KnownAfter(why="toolkit")
    )


def test_toolkit_hold_is_noted_where_the_version_is_open() -> None:
    packages = toolkit_packages("1.18.1-1") | {"libnvidia-container1": PackageState("1.18.1-1", held=True)}
    (note,) = planned(TOOLKIT_STEP.plan(recipe("docker"), machine(packages=packages))).notes
    assert note == "libnvidia-container1 is held at 1.18.1-1, so upgrades leave that version"
    assert planned(TOOLKIT_STEP.plan(recipe_of("1.18.1"), machine(packages=packages))).notes == ()


def test_toolkit_of_a_dropped_runtime_is_noted_with_its_removal() -> None:
    """First the runtime's entry: a default runtime whose program is gone would stop every container."""
    daemon = b'{"runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime"}}}\n'
    node = machine(packages=toolkit_packages("1.18.1-1"), files={DAEMON_JSON: daemon})
    (note,) = planned(TOOLKIT_STEP.plan(recipe("none"), node)).notes
    edit = "sudo gpunode ctk runtime unconfigure --runtime=docker --nvidia-runtime-name=nvidia"
    four = "nvidia-container-toolkit nvidia-container-toolkit-base libnvidia-container-tools libnvidia-container1"
    assert note.endswith(f"to remove it: `{edit}`, then `sudo apt-get purge {four}`")
    dependencies = {name: PackageState("1.18.1-1", auto=True) for name in FOUR}
    for packages in ({}, dependencies):
        assert planned(TOOLKIT_STEP.plan(recipe("none"), machine(packages=packages))).notes == ()


def test_consistent_toolkit_is_upgraded_only_on_request() -> None:
    node = machine(packages=toolkit_packages("1.17.8-1"))
    assert planned(TOOLKIT_STEP.plan(recipe("docker"), node)).changes == ()
    assert set(requested_packages(planned(TOOLKIT_STEP.plan(replace(recipe("docker"), upgrade=True), node)))) == set(
        FOUR
    )


def test_missing_toolkit_package_gets_the_version_of_the_others() -> None:
    packages = toolkit_packages("1.17.8-1")
    del packages["libnvidia-container1"]
    outcome = planned(TOOLKIT_STEP.plan(recipe("docker"), machine(packages=packages)))
    assert requested_packages(outcome) == {"libnvidia-container1": PackageState("1.17.8-1")}


def test_toolkit_older_than_its_fourth_package_is_replaced_as_a_whole() -> None:
    old = toolkit_packages("1.10.0-1")
    del old["nvidia-container-toolkit-base"]
    outcome = planned(TOOLKIT_STEP.plan(recipe("docker"), machine(packages=old)))
    assert requested_packages(outcome) == dict.fromkeys(FOUR, KnownAfter(why="toolkit"))


def test_mixed_toolkit_versions_are_unified() -> None:
    node = machine(packages=toolkit_packages("1.17.8-1", libnvidia_container1="1.16.2-1"))
    assert set(requested_packages(planned(TOOLKIT_STEP.plan(recipe("docker"), node)))) == set(FOUR)


@pytest.mark.parametrize("said", ["1.18.1", "1.18.1-1"])
def test_toolkit_version_pins_all_packages_even_downwards(said: str) -> None:
    node = machine(packages=toolkit_packages("1.20.1-1"))
    assert requested_packages(planned(TOOLKIT_STEP.plan(recipe_of(said), node))) == dict.fromkeys(
        FOUR, PackageState("1.18.1-1")
    )
    there = machine(packages=toolkit_packages("1.18.1-1"))
    assert planned(TOOLKIT_STEP.plan(recipe_of(said), there)).changes == ()
    assert planned(TOOLKIT_STEP.plan(replace(recipe_of(said), upgrade=True), there)).changes == ()


def test_longer_toolkit_version_is_a_different_one() -> None:
    assert set(
        requested_packages(
            planned(TOOLKIT_STEP.plan(recipe_of("1.18.1-1"), machine(packages=toolkit_packages("1.18.1-10"))))
        )
    ) == set(FOUR)


def test_residue_of_a_removed_toolkit_does_not_count() -> None:
    residue = machine(packages=dict.fromkeys(FOUR, PackageState("1.17.8-1", config_files_only=True)))
    assert set(requested_packages(planned(TOOLKIT_STEP.plan(recipe("docker"), residue)))) == set(FOUR)


def test_held_toolkit_is_refused_only_if_its_version_must_change() -> None:
    held = dict.fromkeys(FOUR, PackageState("1.17.8-1", held=True))
    assert planned(TOOLKIT_STEP.plan(recipe("docker"), machine(packages=held))).changes == ()
    assert "apt-mark unhold" in refusal(TOOLKIT_STEP.plan(recipe_of("1.18.1"), machine(packages=held))).hint


@pytest.mark.parametrize("no", [recipe("none"), recipe_of("none")])
def test_unrequested_toolkit_is_left_alone(no: Recipe) -> None:
    assert planned(TOOLKIT_STEP.plan(no, machine())).changes == ()


# -- runtime -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("runtime", "package"), [("containerd", "containerd.io"), ("docker", "docker-ce")])
def test_runtime_from_vendor_packages_is_not_replaced(runtime: str, package: str) -> None:
    node = machine(packages={package: "5:28.5.2"})
    assert planned(RUNTIME_INSTALL_STEP.plan(recipe(runtime), node)).changes == ()


def test_runtime_without_a_package_is_not_replaced() -> None:
    by_hand = machine(units={"containerd.service": unit()})
    assert planned(RUNTIME_INSTALL_STEP.plan(recipe("containerd"), by_hand)).changes == ()
    masked = machine(units={"containerd.service": unit(active=False, enabled=False, masked=True)})
    assert names(planned(RUNTIME_INSTALL_STEP.plan(recipe("containerd"), masked)).changes) == ["containerd"]


def test_missing_runtime_is_installed_from_the_distribution_if_allowed() -> None:
    residue = machine(packages={"docker.io": PackageState("20.10.24", config_files_only=True)})
    assert names(planned(RUNTIME_INSTALL_STEP.plan(recipe("docker"), residue)).changes) == ["docker.io"]
    never = Recipe("test", runtime=RuntimeSettings("docker", install="never"))
    assert refusal(RUNTIME_INSTALL_STEP.plan(never, machine())).hint


def test_docker_of_debian_13_is_installed_with_its_client() -> None:
    """docker.io only recommends docker-cli there, and setup installs no recommended packages."""
    bare = machine(distro=TRIXIE)
    assert names(planned(RUNTIME_INSTALL_STEP.plan(recipe("docker"), bare)).changes) == ["docker.io", "docker-cli"]
    left_out = machine(distro=TRIXIE, packages={"docker.io": "26.1.5"})
    assert planned(RUNTIME_INSTALL_STEP.plan(recipe("docker"), left_out)).changes == ()
    there = machine(distro=TRIXIE, packages={"docker-cli": "26.1.5"})
    assert names(planned(RUNTIME_INSTALL_STEP.plan(recipe("docker"), there)).changes) == ["docker.io"]


# -- configuration -----------------------------------------------------------------------------------------------------


def docker(text: bytes | None = None, *, active: bool = True) -> Facts:
    held = {} if text is None else {DAEMON_JSON: text}
    return machine(packages=DOCKER, files=held, units={"docker.service": unit(active=active)})


def triggers_of(changes: tuple[Change, ...]) -> set[Trigger]:
    return {trigger for change in changes if isinstance(change, FileChange) for trigger in change.triggers}


@pytest.mark.parametrize(
    ("runtime", "path", "text"),
    [
        ("docker", DAEMON_JSON, b'{"runtimes": {},}'),
        ("docker", DAEMON_JSON, b"[]"),
        ("docker", DAEMON_JSON, b"\xff\xfe{}"),
        ("containerd", CONTAINERD, b"version = 2\nversion = 2\n"),
        ("containerd", CONTAINERD, b"version = 9\n"),
    ],
)
def test_unparsable_runtime_config_is_refused_by_name(runtime: str, path: str, text: bytes) -> None:
    no = refusal(RUNTIME_CONFIG_STEP.plan(recipe(runtime), machine(packages=DOCKER, files={path: text})))
    assert path in no.what


def test_unreadable_runtime_config_is_undetermined() -> None:
    node = docker()
    node = replace(node, files={**node.files, DAEMON_JSON: Unknown("is not readable", f"file:{DAEMON_JSON}")})
    with pytest.raises(Undetermined, match=r"daemon\.json") as caught:
        RUNTIME_CONFIG_STEP.plan(recipe("docker"), node)
    assert caught.value.exit_code == 13


def test_docker_runtime_and_default_need_only_a_reload() -> None:
    for chosen in (RuntimeSettings("docker"), RuntimeSettings("docker", set_as_default=True)):
        outcome = planned(RUNTIME_CONFIG_STEP.plan(Recipe("test", runtime=chosen), docker()))
        assert triggers_of(outcome.changes) == {Trigger("reload", "docker.service")}
        assert outcome.stopped_workloads == ""


def test_docker_feature_needs_a_restart_which_stops_containers() -> None:
    cdi = Recipe("test", runtime=RuntimeSettings("docker", cdi=True))
    outcome = planned(RUNTIME_CONFIG_STEP.plan(cdi, docker()))
    assert triggers_of(outcome.changes) == {Trigger("restart", "docker.service")}
    assert outcome.stopped_workloads == "docker containers"
    alive = planned(RUNTIME_CONFIG_STEP.plan(cdi, docker(b'{"live-restore": true}')))
    assert triggers_of(alive.changes) == {Trigger("restart", "docker.service")}
    assert alive.stopped_workloads == ""


def test_docker_feature_already_enabled_needs_no_restart() -> None:
    cdi = Recipe("test", runtime=RuntimeSettings("docker", cdi=True))
    outcome = planned(RUNTIME_CONFIG_STEP.plan(cdi, docker(b'{"features": {"cdi": true}}')))
    assert triggers_of(outcome.changes) == {Trigger("reload", "docker.service")}
    assert outcome.stopped_workloads == ""


_ENTRY = {"args": [], "path": "/usr/bin/nvidia-container-runtime"}
_BY_HAND = {
    "docker": (DAEMON_JSON, json.dumps({"default-runtime": "nvidia", "runtimes": {"nvidia": _ENTRY}}).encode()),
    "containerd": (
        CONTAINERD,
        b"""version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "nvidia"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "/usr/bin/nvidia-container-runtime"
""",
    ),
}


@pytest.mark.parametrize("name", _BY_HAND)
def test_forbidden_default_runtime_is_removed_and_unmentioned_noted(name: str) -> None:
    path, content = _BY_HAND[name]
    packages = DOCKER if name == "docker" else {"containerd": "1.6.20"}
    node = machine(packages=packages, files={path: content}, units={f"{name}.service": unit()})
    silent = planned(RUNTIME_CONFIG_STEP.plan(recipe(name), node))
    assert silent.changes == ()
    assert any("nvidia is the default runtime" in note for note in silent.notes)
    explicit = Recipe("test", runtime=RuntimeSettings(name, set_as_default=False))
    outcome = planned(RUNTIME_CONFIG_STEP.plan(explicit, node))
    after = project_changes(node, outcome.changes)
    row, state = find_runtime(name), value_or(after.file(path), None)
    assert state is not None
    assert row.inspect({path: state.content}, DesiredConfig()).default == "runc"
    assert outcome.stopped_workloads == ""
    assert outcome.expectation is not None
    assert outcome.expectation.default == "runc"
    assert files(planned(RUNTIME_CONFIG_STEP.plan(explicit, after)).changes) == {}
    assert files(planned(RUNTIME_CONFIG_STEP.plan(recipe(name), after)).changes) == {}


def test_default_runtime_of_crios_drop_in_is_removed() -> None:
    text = b'[crio.runtime]\ndefault_runtime = "crun"\n[crio.runtime.runtimes.crun]\nruntime_path = "/usr/bin/crun"\n'
    node = machine(packages={"cri-o": "1.30"}, files={"/etc/crio/crio.conf": text})
    explicit = Recipe("test", runtime=RuntimeSettings("crio", set_as_default=False))

    def configure(wanted: Recipe, facts: Facts) -> tuple[dict[str, Any], Facts]:
        outcome = planned(RUNTIME_CONFIG_STEP.plan(wanted, facts))
        after = files(outcome.changes)[CRIO_DROP_IN].after
        assert isinstance(after, FileState)
        return toml.loads(after.content.decode()), project_changes(facts, outcome.changes)

    default, with_default = configure(Recipe("test", runtime=RuntimeSettings("crio", set_as_default=True)), node)
    assert default["crio"]["runtime"]["default_runtime"] == "nvidia"
    removed, without = configure(explicit, with_default)
    assert removed == configure(recipe("crio"), node)[0]
    assert planned(RUNTIME_CONFIG_STEP.plan(explicit, without)).changes == ()


def test_default_runtime_that_cannot_be_removed_is_refused() -> None:
    text = b'[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/x"\n'
    node = machine(packages={"cri-o": "1.30"}, files={"/etc/crio/crio.conf": text})
    no = refusal(RUNTIME_CONFIG_STEP.plan(Recipe("test", runtime=RuntimeSettings("crio", set_as_default=False)), node))
    assert "runtime.set_as_default = false" in no.what


@pytest.mark.parametrize(
    ("open_to_others", "mended"),
    [
        (FileState(b"", 0o666), FileState(b"", 0o644)),
        (FileState(b"", 0o644, uid=65534), FileState(b"", 0o644)),
        (FileState(b"", 0o660, gid=999), FileState(b"", 0o640, gid=999)),
    ],
    ids=["for all", "nobody's", "a group's"],
)
@pytest.mark.parametrize("name", _BY_HAND)
def test_world_writable_runtime_config_is_restricted(name: str, open_to_others: FileState, mended: FileState) -> None:
    path, content = _BY_HAND[name]
    packages = DOCKER if name == "docker" else {"containerd": "1.6.20"}
    before = replace(open_to_others, content=content)
    node = machine(packages=packages, files={path: before}, units={f"{name}.service": unit()})
    outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe(name), node))
    (change,) = files(outcome.changes).values()
    assert change.after == replace(mended, content=content)
    assert triggers_of(outcome.changes) == set(), "no daemon reads a file's mode"
    assert path in outcome.reason
    assert "root relies on" in outcome.reason
    assert files(planned(RUNTIME_CONFIG_STEP.plan(recipe(name), project_changes(node, outcome.changes))).changes) == {}
    # A file that is edited anyway gets its permissions in the same change.
    wanted = Recipe("test", runtime=RuntimeSettings(name, set_as_default=False))
    (both,) = files(planned(RUNTIME_CONFIG_STEP.plan(wanted, node)).changes).values()
    assert isinstance(both.after, FileState)
    assert replace(both.after, content=content) == change.after


def test_runtime_config_in_an_exposed_folder_is_noted_and_left() -> None:
    path, content = _BY_HAND["docker"]
    node = replace(docker(content), exposed={path: "/home/alice belongs to uid 1000"})
    outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), node))
    assert outcome.changes == ()
    assert any(path in note and "/home/alice" in note for note in outcome.notes)


def test_default_runtime_is_set_on_request_and_never_removed() -> None:
    plain = files(planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), docker())).changes)[DAEMON_JSON].after
    assert isinstance(plain, FileState)
    assert "default-runtime" not in json.loads(plain.content)
    nvidia = {"args": [], "path": "/usr/bin/nvidia-container-runtime"}
    mine = json.dumps({"default-runtime": "nvidia", "runtimes": {"nvidia": nvidia}}).encode()
    assert planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), docker(mine))).changes == ()


def test_runtime_config_keeps_mode_and_owner() -> None:
    node = machine(packages=DOCKER, files={DAEMON_JSON: FileState(b"{}", 0o600, 0, 999)})
    after = files(planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), node)).changes)[DAEMON_JSON].after
    assert isinstance(after, FileState)
    assert (after.mode, after.uid, after.gid) == (0o600, 0, 999)


def test_containerd_is_restarted_without_disruption() -> None:
    node = machine(packages={"containerd": "1.6.20"}, files={CONTAINERD: b"version = 2\n"})
    outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), node))
    assert triggers_of(outcome.changes) == {Trigger("restart", "containerd.service")}
    assert outcome.stopped_workloads == ""
    assert outcome.expectation is not None


def test_stopped_runtime_is_started() -> None:
    outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), docker(active=False)))
    (change,) = [change for change in outcome.changes if isinstance(change, ServiceChange)]
    assert change.after.active
    assert not [
        change
        for change in planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), docker())).changes
        if isinstance(change, ServiceChange)
    ]


def test_runtime_is_enabled_but_not_started_in_an_image() -> None:
    """Otherwise the image would never reach the planned state."""
    for enabled, expected in ((True, 0), (False, 1)):
        image = machine(
            packages=DOCKER,
            platform=Platform("image"),
            units={"docker.service": unit(active=False, enabled=enabled)},
        )
        outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), image))
        services = [change for change in outcome.changes if isinstance(change, ServiceChange)]
        assert len(services) == expected
        assert not any(change.after.active for change in services)


DOCKER_UNIT = "/lib/systemd/system/docker.service"
DOCKER_DEFAULTS = "/etc/default/docker"


def docker_node(flags: str, **more: bytes) -> Facts:
    """Return a node whose dockerd is started with ``flags``."""
    unit_file = b"[Service]\nEnvironmentFile=-/etc/default/docker\nExecStart=/usr/sbin/dockerd $DOCKER_OPTS\n"
    found = {DOCKER_UNIT: unit_file, DOCKER_DEFAULTS: f'DOCKER_OPTS="{flags}"\n'.encode(), **more}
    return machine(packages=DOCKER, files=found, units={"docker.service": unit(started_at=100.0)})


def without_file(path: str, node: Facts) -> Facts:
    """Return ``node`` without a file at ``path``."""
    return replace(node, files={**node.files, path: Known(None, f"file:{path}")})


def test_conflict_with_a_dockerd_flag_is_refused() -> None:
    wants_default = replace(recipe("docker"), runtime=RuntimeSettings("docker", set_as_default=True))
    refused = refusal(RUNTIME_CONFIG_STEP.plan(wants_default, docker_node("--default-runtime=runc")))
    assert "default-runtime cannot be set here" in refused.what
    assert files(planned(RUNTIME_CONFIG_STEP.plan(wants_default, docker_node("--default-runtime=nvidia"))).changes)


def test_docker_that_cannot_start_with_its_config_is_not_started() -> None:
    stopped = {"docker.service": unit(active=False)}
    for flags, starts in (("--default-runtime=runc", False), ("", True)):
        registered = json.dumps({"default-runtime": "nvidia", "runtimes": {"nvidia": _ENTRY}}).encode()
        node = docker_node(flags, **{DAEMON_JSON: registered})
        node = replace(node, units={**node.units, **{name: Known(one, "units") for name, one in stopped.items()}})
        outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), node))
        assert any(isinstance(change, ServiceChange) for change in outcome.changes) is starts
        assert any("dockerd will not start with" in note for note in outcome.notes) is not bool(starts)


@pytest.mark.parametrize("probe", ["units", "unit-wants"])
def test_runtime_is_not_started_without_systemd_and_a_note_says_so(probe: str) -> None:
    """systemd's folders show which units exist, but a planned start could never be verified."""
    node = machine(packages=DOCKER)
    node = replace(node, units={"docker.service": Known(unit(active=False), probe)})
    outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), node))
    assert any(isinstance(change, ServiceChange) for change in outcome.changes) is (probe == "units")
    said = any("no systemd runs here, so gpunode cannot start docker" in note for note in outcome.change_notes)
    assert said is (probe == "unit-wants")
    assert planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), project_changes(node, outcome.changes))).changes == ()


def test_config_file_given_to_dockerd_is_edited() -> None:
    node = without_file("/srv/docker.json", docker_node("--config-file=/srv/docker.json"))
    outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), node))
    assert list(files(outcome.changes)) == ["/srv/docker.json"]
    assert outcome.expectation is not None
    assert outcome.expectation.path == "/srv/docker.json"


@pytest.mark.parametrize(("flags", "stops"), [("", "docker containers"), ("--live-restore", "")])
def test_docker_restart_is_disruptive_unless_live_restore_is_set(flags: str, stops: str) -> None:
    wants_cdi = replace(recipe("docker"), runtime=RuntimeSettings("docker", cdi=True))
    outcome = planned(RUNTIME_CONFIG_STEP.plan(wants_cdi, docker_node(flags)))
    assert outcome.stopped_workloads == stops
    assert [t.kind for change in outcome.changes for t in getattr(change, "triggers", ())] == ["restart"]


def test_docker_snap_is_refused_and_no_second_docker_installed() -> None:
    command = b"[Service]\nExecStart=/usr/bin/snap run docker.dockerd\n"
    snap = {"/etc/systemd/system/snap.docker.dockerd.service": command}
    node = without_file("/var/snap/docker/current/config/daemon.json", machine(files=snap))
    installed = planned(RUNTIME_INSTALL_STEP.plan(recipe("docker"), node))
    assert (installed.changes, installed.reason) == ((), "the docker snap includes its own docker")
    refused = refusal(RUNTIME_CONFIG_STEP.plan(recipe("docker"), node))
    assert "docker is a snap here" in refused.what
    # With the engine installed, the daemon is another one.
    both = docker_node("", **snap)
    assert list(files(planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), both)).changes)) == [DAEMON_JSON]


def test_newer_docker_unit_file_causes_no_reload() -> None:
    node = docker_node("")
    change = planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), node)).changes[0]
    assert isinstance(change, FileChange)
    assert isinstance(change.after, FileState)
    done = replace(node, files={**node.files, change.path: Known(change.after, "x")})
    younger = replace(done, changed_at={DOCKER_UNIT: 200.0, DOCKER_DEFAULTS: 200.0})
    assert files(planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), younger)).changes) == {}
    younger = replace(done, changed_at={change.path: 200.0})
    assert list(files(planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), younger)).changes)) == [change.path]


def test_masked_runtime_is_noted_and_left_masked() -> None:
    node = machine(packages=DOCKER, units={"docker.service": unit(active=False, enabled=False, masked=True)})
    outcome = planned(RUNTIME_CONFIG_STEP.plan(recipe("docker"), node))
    assert not [change for change in outcome.changes if isinstance(change, ServiceChange)]
    assert "masked" in outcome.notes[0]


def test_disabled_cri_plugin_is_noted() -> None:
    text = b'version = 2\ndisabled_plugins = ["cri"]\n'
    node = machine(packages={"containerd.io": "1.7.24-1"}, files={CONTAINERD: text})
    assert any("CRI" in note for note in planned(RUNTIME_CONFIG_STEP.plan(recipe("containerd"), node)).notes)


@pytest.mark.parametrize("runtime", ["containerd", "docker"])
def test_runtime_config_is_idempotent(runtime: str) -> None:
    node = machine(packages={**DOCKER, "containerd": "1.6.20"})
    change = planned(RUNTIME_CONFIG_STEP.plan(recipe(runtime), node)).changes[0]
    assert isinstance(change, FileChange)
    assert isinstance(change.after, FileState)
    after = replace(node, files={**node.files, change.path: Known(change.after, "x")})
    assert files(planned(RUNTIME_CONFIG_STEP.plan(recipe(runtime), after)).changes) == {}


def test_docker_configured_by_nvidia_ctk_needs_no_change() -> None:
    """nvidia-ctk writes the bare name, which dockerd finds where the package installs it."""
    bare = b'{"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime", "runtimeArgs": ["--x"]}}}\n'
    node = machine(files={DAEMON_JSON: bare}, packages={"docker.io": "26.1-1"}, units={"docker.service": unit()})
    outcome = RUNTIME_CONFIG_STEP.plan(recipe("docker"), node)
    assert isinstance(outcome, Planned)
    assert outcome.changes == ()


def test_step_needs_only_earlier_steps() -> None:
    """Dependencies are applied first and undone last; the name of a missing step would have no effect."""
    ids = [step.id for step in STEPS]
    for step in STEPS:
        assert set(step.needs) <= set(ids[: ids.index(step.id)]), step.id
    assert find_needed_step_ids("runtime-config") == {
        "toolkit",
        "toolkit-repository",
        "driver",
        "cuda-repository",
        "runtime-install",
    }
    assert find_needed_step_ids("a step of another version") == set()
