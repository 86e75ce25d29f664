"""The CDI specification: written if needed, and rewritten if the driver or layout changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.change import Deferred, FileChange, PackageState, ServiceChange, ServiceState, Trigger
from gpunode.facts.layout import GpuLayout
from gpunode.facts.model import Facts, Known, LoadedDriver, Platform, Unknown
from gpunode.facts.project import PLAN_PROBE_KEY, project_changes
from gpunode.outcome import Planned
from gpunode.package_id import PackageId
from gpunode.recipe import Recipe, RuntimeSettings
from gpunode.steps.cdi import CDI_STEP
from tests.unit.steps.machines import CDI_ENVIRONMENT, machine, planned, recipe, unit, with_driver

RUN, ETC = "/var/run/cdi/nvidia.yaml", "/etc/cdi/nvidia.yaml"
PODMAN = recipe("podman", version="none")
CONTAINERD = recipe("containerd", version="none")
UUID = "GPU-8dd1f2b0-8c58-4a40-b7b0-7bd7f4c2a111"
ONE = GpuLayout(frozenset({0}), frozenset({UUID}))
REFRESH = {"nvidia-cdi-refresh.service": unit()}
FAILED = {"nvidia-cdi-refresh.service": unit(active=False, failed=True)}


def spec(driver: str = "580.95.05", gpus: tuple[int, ...] = (0,), caps: tuple[int, ...] = (), uuid: str = "") -> bytes:
    """Return a specification as nvidia-ctk writes it."""
    nodes = [f"/dev/nvidia{n}" for n in gpus] + [f"/dev/nvidia-caps/nvidia-cap{n}" for n in caps]
    edits = "\n".join(f"        - path: {node}" for node in nodes)
    names = ["all", '"0"', *([uuid] if uuid else [])]
    devices = "\n".join(f"    - name: {name}\n      containerEdits:\n        deviceNodes:\n{edits}" for name in names)
    return (
        f"---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n{devices}\ncontainerEdits:\n"
        f"    mounts:\n        - hostPath: /lib/x86_64-linux-gnu/libcuda.so.{driver}\n"
    ).encode()


def node(
    files: dict[str, bytes] | None = None, layout: GpuLayout | None = ONE, podman: str = "4.9.3+ds1-1", **more: object
) -> Facts:
    """Return a machine with driver 580.95.05 loaded, and podman."""
    facts = with_driver(files=files, layout=Known(layout, "nvidia-gpus"), packages={"podman": podman})
    return replace(facts, units={**facts.units, **{n: Known(u, "units") for n, u in more.pop("units", {}).items()}})  # type: ignore[attr-defined]


def plan(facts: Facts, of: Recipe = PODMAN) -> Planned:
    return planned(CDI_STEP.plan(of, facts))


def test_missing_cdi_specification_is_planned_with_its_trigger() -> None:
    outcome = plan(node())
    (change,) = outcome.changes
    assert isinstance(change, FileChange)
    assert (change.path, change.before) == (RUN, None)
    assert isinstance(change.after, Deferred)
    assert change.triggers == {Trigger("cdi")}
    assert "no specification yet" in outcome.reason
    assert plan(project_changes(node(), outcome.changes)).changes == ()


def test_current_cdi_specification_is_left_alone() -> None:
    outcome = plan(node({RUN: spec(uuid=UUID)}))
    assert outcome.changes == ()
    assert outcome.notes == ()
    assert outcome.reason == f"{RUN} for driver 580.95.05 offers all, 0, {UUID}"


@pytest.mark.parametrize(
    ("written", "layout", "why"),
    [
        (spec("535.104.05"), ONE, "is for driver 535.104.05, but 580.95.05 is loaded"),
        (
            spec(),
            GpuLayout(frozenset({0, 1}), frozenset()),
            "names /dev/nvidia0, but the driver has /dev/nvidia0, /dev/nv",
        ),
        (spec(gpus=(0, 1)), ONE, "names /dev/nvidia0, /dev/nvidia1, but the driver has /dev/nvidia0"),
        (
            spec(),
            GpuLayout(frozenset({0}), frozenset(), frozenset({12, 13})),
            "not have the MIG instances of the driver",
        ),
        (spec(caps=(12, 13)), ONE, "not have the MIG instances of the driver"),
        (
            spec(uuid=UUID.replace("8dd1", "0000")),
            ONE,
            "names GPU-0000f2b0-8c58-4a40-b7b0-7bd7f4c2a111, which is missing",
        ),
        (b"kind: [nvidia.com/gpu]\n", ONE, "no specification yet"),
    ],
)
def test_outdated_cdi_specification_is_regenerated(written: bytes, layout: GpuLayout, why: str) -> None:
    outcome = plan(node({RUN: written}, layout))
    assert why in outcome.reason
    assert len(outcome.changes) == 1


def test_version_that_only_begins_like_the_loaded_one_is_another() -> None:
    facts = replace(node({RUN: spec("580.126")}), loaded_driver=Known(LoadedDriver("580.12", True), ""))
    assert "for driver 580.126, but 580.12 is loaded" in plan(facts).reason


@pytest.mark.parametrize(
    ("written", "layout"),
    [
        (spec(caps=(12, 13)), GpuLayout(frozenset({0}), frozenset(), frozenset({12, 13}))),
        (spec(uuid=UUID), GpuLayout(frozenset({0}), frozenset())),  # no program has woken the GPU yet
        (spec("535.104.05"), None),
    ],
)
def test_cdi_specification_with_unknown_facts_is_left_alone(written: bytes, layout: GpuLayout | None) -> None:
    facts = node({RUN: written}, layout)
    if layout is None:
        facts = replace(facts, layout=Unknown("denied", "nvidia-gpus"), loaded_driver=Known(LoadedDriver("", True), ""))
    assert plan(facts).changes == ()


def test_outdated_cdi_file_in_etc_is_noted_or_overridden() -> None:
    (note,) = plan(node({ETC: spec("535.104.05", uuid=UUID), RUN: spec()})).notes
    assert f"{ETC} is for driver 535.104.05, and {RUN} overrides it; only it still offers {UUID}" in note
    outcome = plan(node({ETC: spec("535.104.05")}))
    assert [change.path for change in outcome.changes if isinstance(change, FileChange)] == [RUN]


def test_devices_in_two_cdi_files_are_noted_and_not_added_to() -> None:
    outcome = plan(node({RUN: spec(), "/var/run/cdi/other.yaml": spec()}))
    assert outcome.changes == ()
    assert any("both offer nvidia.com/gpu=all, so no container gets it" in note for note in outcome.notes)


def test_no_cdi_file_is_added_beside_an_unparsable_one() -> None:
    outcome = plan(node({"/var/run/cdi/hand.yaml": b"{kind: nvidia.com/gpu}\n"}))
    assert outcome.changes == ()
    assert any("hand.yaml cannot be parsed" in note for note in outcome.notes)
    assert plan(node({"/etc/cdi/hand.yaml": b"{kind: nvidia.com/gpu}\n"})).changes


@pytest.mark.parametrize(
    ("loaded", "why"),
    [(Known(None, "nvidia-version"), "once the driver is loaded"), (Unknown("x", "y"), "once the driver is loaded")],
)
def test_cdi_specification_is_not_written_without_a_driver(
    loaded: Known[LoadedDriver | None] | Unknown, why: str
) -> None:
    outcome = plan(replace(node(), loaded_driver=loaded))
    assert (outcome.changes, why in outcome.reason) == ((), True)


def test_cdi_specification_waits_for_the_reboot_into_a_new_driver() -> None:
    outcome = plan(replace(node(), loaded_driver=Known(LoadedDriver("535.104.05", False), "")), recipe("podman"))
    assert outcome.changes == ()
    assert "after the reboot" in outcome.reason


def test_driver_loaded_by_this_run_counts_for_cdi() -> None:
    assert plan(replace(node(), loaded_driver=Unknown("known after the module is loaded", PLAN_PROBE_KEY))).changes


def test_cdi_specification_is_not_written_in_an_image() -> None:
    assert plan(replace(node(), platform=Known(Platform("image"), "image"))).changes == ()


def test_unrequested_cdi_is_only_refreshed_if_possible() -> None:
    assert plan(node(), CONTAINERD).reason.startswith("CDI is not requested, and the toolkit has no unit")
    assert plan(node(units=REFRESH), CONTAINERD).changes == ()
    for facts in (node(units=FAILED), node({RUN: spec("535.104.05")}, units=REFRESH)):
        (change,) = plan(facts, CONTAINERD).changes
        assert isinstance(change, FileChange)
        assert change.triggers == {Trigger("cdi", "if-possible")}
    masked = {"nvidia-cdi-refresh.service": unit(active=False, masked=True)}
    assert plan(node({RUN: spec("535.104.05")}, units=masked), CONTAINERD).changes == ()


@pytest.mark.parametrize(
    "runtime", [RuntimeSettings("crio"), RuntimeSettings("docker", cdi=True), RuntimeSettings("containerd", cdi=True)]
)
def test_cdi_is_implied_where_the_runtime_uses_it(runtime: RuntimeSettings) -> None:
    assert plan(node(), Recipe("test", runtime=runtime)).changes


def test_refresh_units_of_a_toolkit_to_be_installed_count() -> None:
    stale = {RUN: spec("535.104.05")}
    for version, wanted in (("1.20.1-1", True), ("1.17.8-1", False), ("known after the index is read", True)):
        facts = node(stale)
        to_come = {PackageId("nvidia-container-toolkit-base"): PackageState(version)}
        assert bool(plan(replace(facts, packages=Known({**to_come}, PLAN_PROBE_KEY)), CONTAINERD).changes) is wanted


def test_cdi_file_is_written_to_the_path_of_the_refresh_unit() -> None:
    elsewhere = b"# ours\nNVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/etc/cdi/gpus.yaml\n"
    (change,) = plan(node({CDI_ENVIRONMENT: elsewhere})).changes
    assert isinstance(change, FileChange)
    assert change.path == "/etc/cdi/gpus.yaml"
    assert plan(node({CDI_ENVIRONMENT: elsewhere, "/etc/cdi/gpus.yaml": spec()})).changes == ()


def test_podman_that_does_not_search_the_cdi_folder_is_noted() -> None:
    outcome = plan(node(podman="5.5.1-1"))
    assert outcome.changes == ()
    assert any("cdi_spec_dirs" in note and "only in /etc/cdi:" in note for note in outcome.notes)
    told = {"/etc/containers/containers.conf": b'[engine]\ncdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]\n'}
    assert plan(node(told, podman="5.5.1-1")).changes


@pytest.mark.parametrize(
    ("name", "file", "text", "key"),
    [
        ("docker", "/etc/docker/daemon.json", b'{"cdi-spec-dirs": ["/opt/cdi"]}', '"cdi-spec-dirs": ["/opt/cdi", '),
        (
            "crio",
            "/etc/crio/crio.conf",
            b'[crio.runtime]\ncdi_spec_dirs = ["/opt/cdi"]\n',
            'cdi_spec_dirs = ["/opt/cdi", ',
        ),
        (
            "containerd",
            "/etc/containerd/config.toml",
            b'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\ncdi_spec_dirs = ["/opt/cdi"]\n',
            'cdi_spec_dirs = ["/opt/cdi", ',
        ),
    ],
)
def test_runtime_that_looks_elsewhere_has_no_specification(name: str, file: str, text: bytes, key: str) -> None:
    """A specification in the standard folder is useless for a runtime that does not read it."""
    of = replace(recipe(name, version="none"), runtime=RuntimeSettings(name, cdi=True))
    assert "offers all" in plan(node({RUN: spec(uuid=UUID)}), of).reason
    outcome = plan(node({RUN: spec(uuid=UUID), file: text}), of)
    assert outcome.changes == ()
    (note,) = outcome.notes
    assert f"{name} looks only in /opt/cdi: name both folders" in note
    assert key in note


@pytest.mark.parametrize("folders", ['["/etc/cdi/", "/var/run/cdi/"]', '["/run/cdi"]'])
def test_standard_folder_is_known_however_it_is_written(folders: str) -> None:
    of = replace(recipe("docker", version="none"), runtime=RuntimeSettings("docker", cdi=True))
    daemon = {"/etc/docker/daemon.json": f'{{"cdi-spec-dirs": {folders}}}'.encode()}
    assert plan(node(daemon), of).changes
    outcome = plan(node({RUN: spec(uuid=UUID), **daemon}), of)
    assert (outcome.changes, outcome.notes) == ((), ())


def test_outdated_cdi_file_without_a_refresh_unit_is_noted() -> None:
    """The recipe does not request CDI and the toolkit has no unit: docker and podman still read the old file."""
    outcome = plan(node({ETC: spec("535.104.05")}), CONTAINERD)
    assert outcome.changes == ()
    (note,) = outcome.notes
    assert f"{ETC} is for driver 535.104.05, but 580.95.05 is loaded, and nothing on this node writes it again" in note
    assert plan(node({ETC: spec()}), CONTAINERD).notes == ()
    assert plan(node(), CONTAINERD).notes == ()


def test_machine_without_cdi_is_left_alone() -> None:
    assert plan(machine(), recipe()).changes == ()


def test_cdi_refresh_units_are_enabled_unless_masked() -> None:
    off = unit(active=False, enabled=False)
    units = {"nvidia-cdi-refresh.service": off, "nvidia-cdi-refresh.path": off}
    facts = node({RUN: spec()}, units=units)
    outcome = plan(facts)
    assert outcome.changes == (
        ServiceChange("nvidia-cdi-refresh.service", off.state, ServiceState(enabled=True, active=False)),
        ServiceChange("nvidia-cdi-refresh.path", off.state, ServiceState(enabled=True, active=True)),
    )
    assert plan(project_changes(facts, outcome.changes)).changes == ()
    assert plan(facts, CONTAINERD).changes == ()
    masked = {name: replace(one, masked=True) for name, one in units.items()}
    assert plan(node({RUN: spec()}, units=masked)).changes == ()
