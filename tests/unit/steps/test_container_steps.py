"""The container toolkit, the runtime, and the runtime's configuration."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

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
from gpunode.facts.model import Facts, Known, Platform, Unknown, known
from gpunode.facts.project import project_changes
from gpunode.outcome import Planned
from gpunode.recipe import Recipe, RuntimeSettings, Toolkit
from gpunode.runtimes import DesiredConfig, runtime
from gpunode.steps.runtime import RUNTIME_CONFIG, RUNTIME_INSTALL
from gpunode.steps.table import STEPS, find_needed_steps
from gpunode.steps.toolkit import TOOLKIT
from tests.unit.steps.machines import CONTAINERD, DAEMON_JSON, files, machine, names, planned, recipe, refusal, unit

FOUR = (
    "libnvidia-container-tools",
    "libnvidia-container1",
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
)
DOCKER = {"docker.io": "20.10.24"}


def four(version: str, **other: str) -> dict[str, str | PackageState]:
    return {name: other.get(name.replace("-", "_"), version) for name in FOUR}


def wanted(version: str) -> Recipe:
    return replace(recipe("docker"), toolkit=Toolkit(version))


def asked(outcome: Planned) -> dict[str, object]:
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


def test_keys_without_effect_are_noted_whether_or_not_a_file_changes() -> None:
    """containerd 1.6 takes the CRI table of the last file alone, so nvidia-ctk's drop-in hides the site's own keys."""
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
    edited = planned(RUNTIME_CONFIG.plan(recipe("containerd"), wrong))
    assert files(edited.changes)
    for outcome in (edited, planned(RUNTIME_CONFIG.plan(recipe("containerd"), right))):
        (note,) = outcome.notes
        assert "so these of /etc/containerd/config.toml have no effect: sandbox_image" in note
        assert outcome.change_notes == ()
    assert planned(RUNTIME_CONFIG.plan(recipe("containerd"), right)).changes == ()


# -- toolkit -----------------------------------------------------------------------------------------------------------


def test_a_bare_machine_gets_the_newest_of_all_four() -> None:
    assert asked(planned(TOOLKIT.plan(recipe("docker"), machine()))) == dict.fromkeys(FOUR, KnownAfter(why="toolkit"))


def test_a_hold_on_the_toolkit_is_noted_where_the_recipe_leaves_the_version_open() -> None:
    packages = four("1.18.1-1") | {"libnvidia-container1": PackageState("1.18.1-1", held=True)}
    (note,) = planned(TOOLKIT.plan(recipe("docker"), machine(packages=packages))).notes
    assert note == "libnvidia-container1 is held at 1.18.1-1, so upgrades leave that version"
    assert planned(TOOLKIT.plan(wanted("1.18.1"), machine(packages=packages))).notes == ()


def test_four_of_one_version_are_not_upgraded_unasked() -> None:
    node = machine(packages=four("1.17.8-1"))
    assert planned(TOOLKIT.plan(recipe("docker"), node)).changes == ()
    assert set(asked(planned(TOOLKIT.plan(replace(recipe("docker"), upgrade=True), node)))) == set(FOUR)


def test_a_missing_one_comes_in_the_version_of_the_others_not_the_newest() -> None:
    packages = four("1.17.8-1")
    del packages["libnvidia-container1"]
    outcome = planned(TOOLKIT.plan(recipe("docker"), machine(packages=packages)))
    assert asked(outcome) == {"libnvidia-container1": PackageState("1.17.8-1")}


def test_mixed_versions_are_brought_to_one() -> None:
    node = machine(packages=four("1.17.8-1", libnvidia_container1="1.16.2-1"))
    assert set(asked(planned(TOOLKIT.plan(recipe("docker"), node)))) == set(FOUR)


@pytest.mark.parametrize("said", ["1.18.1", "1.18.1-1"])
def test_a_version_pins_all_four_also_downwards_and_is_then_satisfied(said: str) -> None:
    node = machine(packages=four("1.20.1-1"))
    assert asked(planned(TOOLKIT.plan(wanted(said), node))) == dict.fromkeys(FOUR, PackageState("1.18.1-1"))
    there = machine(packages=four("1.18.1-1"))
    assert planned(TOOLKIT.plan(wanted(said), there)).changes == ()
    assert planned(TOOLKIT.plan(replace(wanted(said), upgrade=True), there)).changes == ()


def test_a_longer_version_is_another_one() -> None:
    assert set(asked(planned(TOOLKIT.plan(wanted("1.18.1-1"), machine(packages=four("1.18.1-10")))))) == set(FOUR)


def test_what_a_removed_toolkit_left_behind_is_no_toolkit() -> None:
    residue = machine(packages=dict.fromkeys(FOUR, PackageState("1.17.8-1", config_files_only=True)))
    assert set(asked(planned(TOOLKIT.plan(recipe("docker"), residue)))) == set(FOUR)


def test_a_held_toolkit_is_refused_only_where_it_is_in_the_way() -> None:
    held = dict.fromkeys(FOUR, PackageState("1.17.8-1", held=True))
    assert planned(TOOLKIT.plan(recipe("docker"), machine(packages=held))).changes == ()
    assert "apt-mark unhold" in refusal(TOOLKIT.plan(wanted("1.18.1"), machine(packages=held))).hint


@pytest.mark.parametrize("no", [recipe("none"), wanted("none")])
def test_a_toolkit_that_nobody_wants_is_left_alone(no: Recipe) -> None:
    assert planned(TOOLKIT.plan(no, machine())).changes == ()


# -- runtime -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("runtime", "package"), [("containerd", "containerd.io"), ("docker", "docker-ce")])
def test_a_runtime_of_its_makers_own_packages_is_not_replaced(runtime: str, package: str) -> None:
    node = machine(packages={package: "5:28.5.2"})
    assert planned(RUNTIME_INSTALL.plan(recipe(runtime), node)).changes == ()


def test_a_runtime_without_a_package_is_not_replaced() -> None:
    by_hand = machine(units={"containerd.service": unit()})
    assert planned(RUNTIME_INSTALL.plan(recipe("containerd"), by_hand)).changes == ()
    masked = machine(units={"containerd.service": unit(active=False, enabled=False, masked=True)})
    assert names(planned(RUNTIME_INSTALL.plan(recipe("containerd"), masked)).changes) == ["containerd"]


def test_a_missing_runtime_comes_from_the_distribution_unless_the_recipe_says_never() -> None:
    residue = machine(packages={"docker.io": PackageState("20.10.24", config_files_only=True)})
    assert names(planned(RUNTIME_INSTALL.plan(recipe("docker"), residue)).changes) == ["docker.io"]
    never = Recipe("test", runtime=RuntimeSettings("docker", install="never"))
    assert refusal(RUNTIME_INSTALL.plan(never, machine())).exit_code == 3


# -- configuration -----------------------------------------------------------------------------------------------------


def docker(text: bytes | None = None, *, active: bool = True) -> Facts:
    held = {} if text is None else {DAEMON_JSON: text}
    return machine(packages=DOCKER, files=held, units={"docker.service": unit(active=active)})


def owed(changes: tuple[Change, ...]) -> set[Trigger]:
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
def test_a_file_that_cannot_be_read_is_refused_by_name_before_anything_is_done(
    runtime: str, path: str, text: bytes
) -> None:
    no = refusal(RUNTIME_CONFIG.plan(recipe(runtime), machine(packages=DOCKER, files={path: text})))
    assert path in no.what
    assert no.exit_code == 3


def test_a_file_that_may_not_be_read_is_not_guessed_at() -> None:
    node = docker()
    node = replace(node, files={**node.files, DAEMON_JSON: Unknown("is not readable", f"file:{DAEMON_JSON}")})
    with pytest.raises(Undetermined, match=r"daemon\.json") as caught:
        RUNTIME_CONFIG.plan(recipe("docker"), node)
    assert caught.value.exit_code == 13


def test_dockerd_reads_a_runtime_and_a_default_again_without_a_restart() -> None:
    for chosen in (RuntimeSettings("docker"), RuntimeSettings("docker", default=True)):
        outcome = planned(RUNTIME_CONFIG.plan(Recipe("test", runtime=chosen), docker()))
        assert owed(outcome.changes) == {Trigger("reload", "docker.service")}
        assert outcome.disrupts == ""


def test_a_feature_of_dockerd_takes_a_restart_which_stops_containers() -> None:
    cdi = Recipe("test", runtime=RuntimeSettings("docker", cdi=True))
    outcome = planned(RUNTIME_CONFIG.plan(cdi, docker()))
    assert owed(outcome.changes) == {Trigger("restart", "docker.service")}
    assert outcome.disrupts == "docker containers"
    alive = planned(RUNTIME_CONFIG.plan(cdi, docker(b'{"live-restore": true}')))
    assert owed(alive.changes) == {Trigger("restart", "docker.service")}
    assert alive.disrupts == ""


def test_a_feature_that_is_on_already_takes_none() -> None:
    cdi = Recipe("test", runtime=RuntimeSettings("docker", cdi=True))
    outcome = planned(RUNTIME_CONFIG.plan(cdi, docker(b'{"features": {"cdi": true}}')))
    assert owed(outcome.changes) == {Trigger("reload", "docker.service")}
    assert outcome.disrupts == ""


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
def test_a_default_that_the_recipe_forbids_is_taken_off_and_one_that_it_does_not_speak_of_is_said(name: str) -> None:
    path, content = _BY_HAND[name]
    packages = DOCKER if name == "docker" else {"containerd": "1.6.20"}
    node = machine(packages=packages, files={path: content}, units={f"{name}.service": unit()})
    silent = planned(RUNTIME_CONFIG.plan(recipe(name), node))
    assert silent.changes == ()
    assert any("nvidia is the default runtime" in note for note in silent.notes)
    explicit = Recipe("test", runtime=RuntimeSettings(name, default=False))
    outcome = planned(RUNTIME_CONFIG.plan(explicit, node))
    after = project_changes(node, outcome.changes)
    row, state = runtime(name), known(after.file(path), None)
    assert state is not None
    assert row.inspect({path: state.content}, DesiredConfig()).default == "runc"
    assert outcome.disrupts == ""
    assert outcome.expectation is not None
    assert outcome.expectation.default == "runc"
    assert files(planned(RUNTIME_CONFIG.plan(explicit, after)).changes) == {}
    assert files(planned(RUNTIME_CONFIG.plan(recipe(name), after)).changes) == {}


def test_a_default_that_cannot_be_taken_off_is_refused() -> None:
    text = b'[crio.runtime]\ndefault_runtime = "nvidia"\n[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/x"\n'
    node = machine(packages={"cri-o": "1.30"}, files={"/etc/crio/crio.conf": text})
    no = refusal(RUNTIME_CONFIG.plan(Recipe("test", runtime=RuntimeSettings("crio", default=False)), node))
    assert "runtime.default = false" in no.what


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
def test_a_file_that_others_may_write_is_closed_to_them(
    name: str, open_to_others: FileState, mended: FileState
) -> None:
    path, content = _BY_HAND[name]
    packages = DOCKER if name == "docker" else {"containerd": "1.6.20"}
    before = replace(open_to_others, content=content)
    node = machine(packages=packages, files={path: before}, units={f"{name}.service": unit()})
    outcome = planned(RUNTIME_CONFIG.plan(recipe(name), node))
    (change,) = files(outcome.changes).values()
    assert change.after == replace(mended, content=content)
    assert path in outcome.reason
    assert "root relies on" in outcome.reason
    assert files(planned(RUNTIME_CONFIG.plan(recipe(name), project_changes(node, outcome.changes))).changes) == {}
    # One that is edited besides is closed by the same change.
    wanted = Recipe("test", runtime=RuntimeSettings(name, default=False))
    (both,) = files(planned(RUNTIME_CONFIG.plan(wanted, node)).changes).values()
    assert isinstance(both.after, FileState)
    assert replace(both.after, content=content) == change.after


def test_a_file_in_a_place_that_others_may_write_to_is_said_and_left() -> None:
    path, content = _BY_HAND["docker"]
    node = replace(docker(content), exposed={path: "/home/alice belongs to uid 1000"})
    outcome = planned(RUNTIME_CONFIG.plan(recipe("docker"), node))
    assert outcome.changes == ()
    assert any(path in note and "/home/alice" in note for note in outcome.notes)


def test_a_default_is_made_only_when_it_is_asked_for_and_never_unmade() -> None:
    plain = files(planned(RUNTIME_CONFIG.plan(recipe("docker"), docker())).changes)[DAEMON_JSON].after
    assert isinstance(plain, FileState)
    assert "default-runtime" not in json.loads(plain.content)
    nvidia = {"args": [], "path": "/usr/bin/nvidia-container-runtime"}
    mine = json.dumps({"default-runtime": "nvidia", "runtimes": {"nvidia": nvidia}}).encode()
    assert planned(RUNTIME_CONFIG.plan(recipe("docker"), docker(mine))).changes == ()


def test_mode_and_owner_of_the_file_stay() -> None:
    node = machine(packages=DOCKER, files={DAEMON_JSON: FileState(b"{}", 0o600, 0, 999)})
    after = files(planned(RUNTIME_CONFIG.plan(recipe("docker"), node)).changes)[DAEMON_JSON].after
    assert isinstance(after, FileState)
    assert (after.mode, after.uid, after.gid) == (0o600, 0, 999)


def test_containerd_restarts_and_stops_nothing() -> None:
    node = machine(packages={"containerd": "1.6.20"}, files={CONTAINERD: b"version = 2\n"})
    outcome = planned(RUNTIME_CONFIG.plan(recipe("containerd"), node))
    assert owed(outcome.changes) == {Trigger("restart", "containerd.service")}
    assert outcome.disrupts == ""
    assert outcome.expectation is not None


def test_a_runtime_that_does_not_run_is_started() -> None:
    outcome = planned(RUNTIME_CONFIG.plan(recipe("docker"), docker(active=False)))
    (change,) = [change for change in outcome.changes if isinstance(change, ServiceChange)]
    assert change.after.active
    assert not [
        change
        for change in planned(RUNTIME_CONFIG.plan(recipe("docker"), docker())).changes
        if isinstance(change, ServiceChange)
    ]


def test_nothing_is_started_in_an_image_where_nothing_can_run() -> None:
    """Else the image is never as the plan wants it."""
    for enabled, expected in ((True, 0), (False, 1)):
        image = machine(
            packages=DOCKER,
            platform=Platform("image"),
            units={"docker.service": unit(active=False, enabled=enabled)},
        )
        outcome = planned(RUNTIME_CONFIG.plan(recipe("docker"), image))
        services = [change for change in outcome.changes if isinstance(change, ServiceChange)]
        assert len(services) == expected
        assert not any(change.after.active for change in services)


DOCKER_UNIT = "/lib/systemd/system/docker.service"
DOCKER_DEFAULTS = "/etc/default/docker"


def docker_node(flags: str, **more: bytes) -> Facts:
    """A node whose dockerd is started with ``flags``."""
    unit_file = b"[Service]\nEnvironmentFile=-/etc/default/docker\nExecStart=/usr/sbin/dockerd $DOCKER_OPTS\n"
    found = {DOCKER_UNIT: unit_file, DOCKER_DEFAULTS: f'DOCKER_OPTS="{flags}"\n'.encode(), **more}
    return machine(packages=DOCKER, files=found, units={"docker.service": unit(started_at=100.0)})


def looked_for(path: str, node: Facts) -> Facts:
    """``node``, on which nothing was found at ``path``."""
    return replace(node, files={**node.files, path: Known(None, f"file:{path}")})


def test_what_dockers_command_line_says_is_a_conflict_in_the_plan() -> None:
    wants_default = replace(recipe("docker"), runtime=RuntimeSettings("docker", default=True))
    refused = refusal(RUNTIME_CONFIG.plan(wants_default, docker_node("--default-runtime=runc")))
    assert "default-runtime cannot be set here" in refused.what
    assert files(planned(RUNTIME_CONFIG.plan(wants_default, docker_node("--default-runtime=nvidia"))).changes)


def test_a_docker_that_cannot_start_with_its_file_is_not_started_and_said() -> None:
    stopped = {"docker.service": unit(active=False)}
    for flags, starts in (("--default-runtime=runc", False), ("", True)):
        registered = json.dumps({"default-runtime": "nvidia", "runtimes": {"nvidia": _ENTRY}}).encode()
        node = docker_node(flags, **{DAEMON_JSON: registered})
        node = replace(node, units={**node.units, **{name: Known(one, "units") for name, one in stopped.items()}})
        outcome = planned(RUNTIME_CONFIG.plan(recipe("docker"), node))
        assert any(isinstance(change, ServiceChange) for change in outcome.changes) is starts
        assert any("dockerd will not start with" in note for note in outcome.notes) is not bool(starts)


@pytest.mark.parametrize("probe", ["units", "unit-wants"])
def test_where_no_systemd_runs_nothing_is_started_and_that_is_said(probe: str) -> None:
    """Systemd's folders tell which units there are; a start that was planned could never be seen to be done."""
    node = machine(packages=DOCKER)
    node = replace(node, units={"docker.service": Known(unit(active=False), probe)})
    outcome = planned(RUNTIME_CONFIG.plan(recipe("docker"), node))
    assert any(isinstance(change, ServiceChange) for change in outcome.changes) is (probe == "units")
    said = any("no systemd runs here, so gpunode cannot start docker" in note for note in outcome.change_notes)
    assert said is (probe == "unit-wants")
    assert planned(RUNTIME_CONFIG.plan(recipe("docker"), project_changes(node, outcome.changes))).changes == ()


def test_the_file_that_docker_is_told_to_read_is_planned() -> None:
    node = looked_for("/srv/docker.json", docker_node("--config-file=/srv/docker.json"))
    outcome = planned(RUNTIME_CONFIG.plan(recipe("docker"), node))
    assert list(files(outcome.changes)) == ["/srv/docker.json"]
    assert outcome.expectation is not None
    assert outcome.expectation.path == "/srv/docker.json"


@pytest.mark.parametrize(("flags", "stops"), [("", "docker containers"), ("--live-restore", "")])
def test_a_restart_stops_containers_unless_they_are_kept(flags: str, stops: str) -> None:
    wants_cdi = replace(recipe("docker"), runtime=RuntimeSettings("docker", cdi=True))
    outcome = planned(RUNTIME_CONFIG.plan(wants_cdi, docker_node(flags)))
    assert outcome.disrupts == stops
    assert [t.kind for change in outcome.changes for t in getattr(change, "triggers", ())] == ["restart"]


def test_docker_that_is_a_snap_gets_no_second_one_beside_it() -> None:
    command = b"[Service]\nExecStart=/usr/bin/snap run docker.dockerd\n"
    snap = {"/etc/systemd/system/snap.docker.dockerd.service": command}
    node = looked_for("/var/snap/docker/current/config/daemon.json", machine(files=snap))
    installed = planned(RUNTIME_INSTALL.plan(recipe("docker"), node))
    assert (installed.changes, installed.reason) == ((), "the docker snap includes its own docker")
    refused = refusal(RUNTIME_CONFIG.plan(recipe("docker"), node))
    assert "docker is a snap here" in refused.what
    # Beside the engine it is another one.
    both = docker_node("", **snap)
    assert list(files(planned(RUNTIME_CONFIG.plan(recipe("docker"), both)).changes)) == [DAEMON_JSON]


def test_a_younger_unit_file_is_nothing_that_docker_can_read_again() -> None:
    node = docker_node("")
    change = planned(RUNTIME_CONFIG.plan(recipe("docker"), node)).changes[0]
    assert isinstance(change, FileChange)
    assert isinstance(change.after, FileState)
    done = replace(node, files={**node.files, change.path: Known(change.after, "x")})
    younger = replace(done, changed_at={DOCKER_UNIT: 200.0, DOCKER_DEFAULTS: 200.0})
    assert files(planned(RUNTIME_CONFIG.plan(recipe("docker"), younger)).changes) == {}
    younger = replace(done, changed_at={change.path: 200.0})
    assert list(files(planned(RUNTIME_CONFIG.plan(recipe("docker"), younger)).changes)) == [change.path]


def test_a_masked_runtime_is_said_and_left_masked() -> None:
    node = machine(packages=DOCKER, units={"docker.service": unit(active=False, enabled=False, masked=True)})
    outcome = planned(RUNTIME_CONFIG.plan(recipe("docker"), node))
    assert not [change for change in outcome.changes if isinstance(change, ServiceChange)]
    assert "masked" in outcome.notes[0]


def test_a_switched_off_cri_plugin_is_said() -> None:
    text = b'version = 2\ndisabled_plugins = ["cri"]\n'
    node = machine(packages={"containerd.io": "1.7.24-1"}, files={CONTAINERD: text})
    assert any("CRI" in note for note in planned(RUNTIME_CONFIG.plan(recipe("containerd"), node)).notes)


@pytest.mark.parametrize("runtime", ["containerd", "docker"])
def test_twice_is_once(runtime: str) -> None:
    node = machine(packages={**DOCKER, "containerd": "1.6.20"})
    change = planned(RUNTIME_CONFIG.plan(recipe(runtime), node)).changes[0]
    assert isinstance(change, FileChange)
    assert isinstance(change.after, FileState)
    after = replace(node, files={**node.files, change.path: Known(change.after, "x")})
    assert files(planned(RUNTIME_CONFIG.plan(recipe(runtime), after)).changes) == {}


def test_a_docker_that_ctk_configured_is_as_setup_wants_it() -> None:
    """nvidia-ctk writes the bare name, which dockerd looks up where the package puts it."""
    bare = b'{"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime", "runtimeArgs": ["--x"]}}}\n'
    node = machine(files={DAEMON_JSON: bare}, packages={"docker.io": "26.1-1"}, units={"docker.service": unit()})
    outcome = RUNTIME_CONFIG.plan(recipe("docker"), node)
    assert isinstance(outcome, Planned)
    assert outcome.changes == ()


def test_a_step_needs_only_steps_before_it() -> None:
    """What is beneath is made first, and taken away last; a name that no step has would guard nothing."""
    ids = [step.id for step in STEPS]
    for step in STEPS:
        assert set(step.needs) <= set(ids[: ids.index(step.id)]), step.id
    assert find_needed_steps("runtime-config") == {
        "toolkit",
        "toolkit-repository",
        "driver",
        "cuda-repository",
        "runtime-install",
    }
    assert find_needed_steps("a step of another version") == set()
