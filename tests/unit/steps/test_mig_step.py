"""MIG: what is planned for the GPUs of a node, what is refused, and what waits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.catalog import mig
from gpunode.change import FileChange, MigChange, MigInstance, MigLayout, Trigger
from gpunode.errors import MigFileError
from gpunode.facts.model import Facts, Known, LoadedDriver, MigGpu, PciDevice, Platform, Unknown
from gpunode.facts.probes import MIG_BOOT_DROP_IN_FILE, MIG_UNIT_FILE
from gpunode.facts.project import PLAN_PROBE_KEY, project_changes
from gpunode.outcome import Blocked, Planned
from gpunode.recipe import Recipe
from gpunode.recipe.toml import parse
from gpunode.steps.mig import MIG_STEP
from tests.unit.steps.machines import H100, T4, gpu, planned, refusal, unit, with_driver

OFF = MigLayout(enabled=False)
FILE = "/etc/mig.yaml"
# NVIDIA MIG User Guide and mig-parted's example for the DGX Station: one GPU without MIG among others with it.
CONFIG = b"""\
version: v1
mig-configs:
  mine:
    - device-filter: "0x233010DE"
      devices: [0]
      mig-enabled: true
      mig-devices: {"1g.10gb": 2, "4g.40gb": 1}
    - device-filter: ["0x233010DE"]
      devices: [1]
      mig-enabled: false
"""


def uuid(index: int) -> str:
    return f"GPU-00000000-0000-0000-0000-00000000000{index}"


def mig_gpu(index: int = 0, layout: MigLayout | None = OFF, **more: object) -> MigGpu:
    pending = layout is not None and layout.enabled
    return replace(MigGpu(index, uuid(index), f"0000:0{index + 1}:00.0", layout, pending), **more)  # type: ignore[arg-type]


def devices(*models: str) -> tuple[PciDevice, ...]:
    return tuple(gpu(model, address=f"0000:0{index + 1}:00.0") for index, model in enumerate(models))


def node(*gpus: MigGpu, models: tuple[str, ...] = (), files: dict[str, bytes] | None = None, **more: Any) -> Facts:
    """Return a machine whose driver runs, with H100s unless ``models`` says otherwise."""
    present = gpus or (mig_gpu(),)
    facts = with_driver(gpus=devices(*(models or (H100,) * len(present))), mig=present, files=files, **more)
    systemd = {"/etc/systemd/system": "units", "/etc/systemd/system/multi-user.target.d": "units", "/etc": "etc"}
    return replace(facts, folders={**facts.folders, **systemd})


def mig_recipe(layout: str = "all-1g.10gb", file: str = "", more: str = "") -> Recipe:
    text = f'[driver]\nversion = "none"\n[mig]\nlayout = "{layout}"\nfile = "{file}"\n{more}'
    return parse(text, "test.toml", load=lambda name: "")


def layout(*places: tuple[str, int, int]) -> MigLayout:
    made = tuple(MigInstance(profile, start, size, (profile[0],)) for profile, start, size in places)
    return MigLayout(enabled=True, instances=made)


BALANCED = layout(("2g.20gb", 0, 2), ("1g.10gb", 2, 1), ("1g.10gb", 3, 1), ("3g.40gb", 4, 4))


def test_mig_changes_each_gpu_and_writes_a_boot_unit() -> None:
    facts = node(mig_gpu(), mig_gpu(1))
    outcome = planned(MIG_STEP.plan(mig_recipe("all-balanced"), facts))
    unit_file, wants, *changes = outcome.changes
    assert isinstance(unit_file, FileChange)
    assert isinstance(wants, FileChange)
    assert (unit_file.path, wants.path) == (MIG_UNIT_FILE, MIG_BOOT_DROP_IN_FILE)
    assert unit_file.triggers == wants.triggers == {Trigger("daemon-reload")}
    assert changes == [MigChange(uuid(index), OFF, BALANCED) for index in (0, 1)]
    assert planned(MIG_STEP.plan(mig_recipe("all-balanced"), project_changes(facts, outcome.changes))).changes == ()


def test_mig_unit_commands_name_gpu_profile_and_placement() -> None:
    change = planned(MIG_STEP.plan(mig_recipe("all-balanced"), node())).changes[0]
    assert isinstance(change, FileChange)
    text = change.after.content.decode()  # type: ignore[union-attr]
    assert f"/usr/bin/nvidia-smi -i {uuid(0)} -mig 1 && " in text
    assert f"nvidia-smi mig -i {uuid(0)} -cgi 2g.20gb:0,1g.10gb:2,1g.10gb:3,3g.40gb:4 -C; }} || failed=1;" in text
    assert "Before=containerd.service docker.service crio.service kubelet.service" in text
    assert "exit $$failed" in text


def test_existing_mig_instances_keep_their_placement() -> None:
    elsewhere = layout(("3g.40gb", 0, 4), ("1g.10gb", 4, 1), ("1g.10gb", 5, 1), ("2g.20gb", 6, 2))
    outcome = planned(MIG_STEP.plan(mig_recipe("all-balanced"), node(mig_gpu(layout=elsewhere))))
    assert [change for change in outcome.changes if isinstance(change, MigChange)] == []
    change = outcome.changes[0]
    assert isinstance(change, FileChange)
    assert b"-cgi 3g.40gb:0,1g.10gb:4" in change.after.content  # type: ignore[union-attr]


def test_other_number_of_compute_instances_is_another_layout() -> None:
    split = MigLayout(enabled=True, instances=(MigInstance("7g.80gb", 0, 8, ("3", "4")),))
    outcome = planned(MIG_STEP.plan(mig_recipe("all-7g.80gb"), node(mig_gpu(layout=split))))
    assert [change.before for change in outcome.changes if isinstance(change, MigChange)] == [split]


@pytest.mark.parametrize(("models", "says"), [((T4,), "leave [mig] out"), ((T4, H100), "device-filter for the others")])
def test_refused_layout_names_what_helps_on_this_node(models: tuple[str, ...], says: str) -> None:
    """A mig-parted file has no layout for a node without MIG-capable GPUs."""
    assert says in refusal(MIG_STEP.plan(mig_recipe(), node(models=models, loaded_driver=None))).hint


def test_disabling_mig_removes_the_unit() -> None:
    first = planned(MIG_STEP.plan(mig_recipe(), node())).changes
    divided = project_changes(node(), first)
    outcome = planned(MIG_STEP.plan(mig_recipe("all-disabled"), divided))
    *files, change = outcome.changes
    gone = [(one.path, one.after) for one in files if isinstance(one, FileChange)]
    assert gone == [(MIG_UNIT_FILE, None), (MIG_BOOT_DROP_IN_FILE, None)]
    assert isinstance(change, MigChange)
    assert change.after == OFF


def test_mig_parted_file_is_applied_per_gpu() -> None:
    before = layout(("7g.80gb", 0, 8))
    facts = node(mig_gpu(), mig_gpu(1, before), mig_gpu(2, None), models=(H100, H100, T4), files={FILE: CONFIG})
    changes = planned(MIG_STEP.plan(mig_recipe("mine", FILE), facts)).changes
    mine = layout(("4g.40gb", 0, 4), ("1g.10gb", 4, 1), ("1g.10gb", 5, 1))
    assert changes[2:] == (MigChange(uuid(0), OFF, mine), MigChange(uuid(1), before, OFF))


def test_mig_change_refreshes_the_cdi_specification() -> None:
    facts = node(units={"nvidia-persistenced.service": unit(), "nvidia-cdi-refresh.service": unit()})
    changes = planned(MIG_STEP.plan(mig_recipe(), facts)).changes
    assert isinstance(changes[-1], MigChange)
    assert changes[-1].triggers == {Trigger("cdi", "if-possible")}


@pytest.mark.parametrize(
    ("recipe", "facts", "what"),
    [
        (mig_recipe(), node(mig_gpu(layout=None), models=(T4,)), "cannot have the MIG layout all-1g.10gb"),
        (mig_recipe(), node(models=(T4,), loaded_driver=None), "T4 (Turing) cannot have the MIG layout all-1g.10gb"),
        (mig_recipe(), node(models=("3fff",)), "cannot have the MIG layout all-1g.10gb"),
        (mig_recipe("all-1g.5gb"), node(), "has no MIG profile 1g.5gb"),
        (mig_recipe("mine"), node(), "knows no MIG layout mine"),
        (mig_recipe("other", FILE), node(files={FILE: CONFIG}), f"{FILE} has no layout other"),
        (mig_recipe("mine", FILE), node(), f"{FILE} does not exist"),
        (mig_recipe("", FILE), node(files={FILE: CONFIG}), "names a file and no layout"),
        (mig_recipe(more="[mps]\nenabled = true"), node(), "[mps] and MIG exclude each other"),
        (
            mig_recipe("mine", FILE),
            node(files={FILE: CONFIG.replace(b'"1g.10gb": 2, "4g.40gb": 1', b'"3g.40gb": 1, "2g.20gb": 3')}),
            "does not fit on",
        ),
        (
            mig_recipe(more='[kubernetes]\nstack = "gpu-operator"'),
            node(),
            "the GPU Operator would both set MIG layouts",
        ),
        (
            mig_recipe(more='[kubernetes]\nstack = "device-plugin"\n[kubernetes.mig]\nlayout = "all-2g.20gb"'),
            node(),
            "names two MIG layouts: all-1g.10gb in [mig] and all-2g.20gb in [kubernetes]",
        ),
        (
            mig_recipe(),
            node(units={"nvidia-persistenced.service": unit()}) ,
            "",
        ),
    ],
)  # fmt: skip
def test_impossible_mig_request_is_refused_with_the_reason(recipe: Recipe, facts: Facts, what: str) -> None:
    if not what:
        manager = {**facts.units, "nvidia-mig-manager.service": Known(unit(), "units")}
        facts, what = replace(facts, units=manager), "nvidia-mig-manager.service is enabled"
    found = refusal(MIG_STEP.plan(recipe, facts))
    assert what in found.what
    assert found.why
    assert found.hint


@pytest.mark.parametrize("model", ["20b3", "2330", "3fff"])
def test_mig_waits_for_the_driver_to_report_support(model: str) -> None:
    assert planned(MIG_STEP.plan(mig_recipe(), node(models=(model,), loaded_driver=None))).is_deferred


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (node(loaded_driver=None), "set once the driver is loaded"),
        (
            replace(node(), loaded_driver=Known(LoadedDriver("580.95.05", True), PLAN_PROBE_KEY)),
            "set once the driver is loaded",
        ),
        (node(platform=Platform("image")), "set by the first `gpunode setup` on the booted node"),
        (replace(node(), mig=Unknown("it hangs", "nvml")), "not checked: NVML did not report"),
    ],
)
def test_mig_without_a_running_driver_is_planned_later(facts: Facts, reason: str) -> None:
    outcome = planned(MIG_STEP.plan(mig_recipe(), facts))
    assert outcome.changes == ()
    assert outcome.is_deferred
    assert reason in outcome.reason


def test_pending_mig_mode_blocks_only_its_gpu() -> None:
    late = mig_gpu(pending=True)
    both = planned(MIG_STEP.plan(mig_recipe(), node(late, mig_gpu(1))))
    assert [change.gpu for change in both.changes if isinstance(change, MigChange)] == [uuid(1)]
    after = MIG_STEP.plan(mig_recipe(), project_changes(node(late, mig_gpu(1)), both.changes))
    assert isinstance(after, Blocked)
    assert after.waits_for == "reboot"
    assert uuid(0) in after.reason
    done = node(mig_gpu(layout=MigLayout(enabled=True)), mig_gpu(1))
    assert len([c for c in planned(MIG_STEP.plan(mig_recipe(), done)).changes if isinstance(c, MigChange)]) == 2


def test_cluster_mig_layout_applies_with_the_device_plugin_stack() -> None:
    text = """[driver]
version = "none"
[kubernetes]
stack = "{}"
[kubernetes.mig]
strategy = "mixed"
layout = "all-balanced"
[kubernetes.configs.big]
model = "H100"
strategy = "single"
layout = "all-7g.80gb"
"""
    of = {stack: parse(text.format(stack), "t.toml", load=lambda _: "") for stack in ("device-plugin", "gpu-operator")}
    assert planned(MIG_STEP.plan(of["device-plugin"], node())).changes[-1] == MigChange(
        uuid(0), OFF, layout(("7g.80gb", 0, 8))
    )
    left = planned(MIG_STEP.plan(of["gpu-operator"], node()))
    assert left == Planned((), "the GPU Operator's MIG manager sets the layout", is_deferred=True)
    assert MIG_STEP.plan(Recipe("x"), node()) == Planned((), "not requested", is_requested=False)


@given(st.data())
def test_mig_placement_has_no_overlap_and_uses_all_capacity(data: st.DataObject) -> None:
    device = data.draw(st.sampled_from([H100, "20b0", "20b7", "2335", "2bb5"]))
    most = mig.max_instances_by_profile(device)
    wanted = data.draw(st.dictionaries(st.sampled_from(sorted(most)), st.integers(1, 7), max_size=3))
    places = mig.place_instances(device, wanted)
    for profile, count in most.items():
        assert mig.place_instances(device, {profile: count}) is not None
        assert mig.place_instances(device, {profile: count + 1}) is None
    if places is not None:
        taken = [start + offset for _, start, size in places for offset in range(size)]
        assert len(taken) == len(set(taken))
        assert sorted(profile for profile, _, _ in places) == sorted(
            p for p, count in wanted.items() for _ in range(count)
        )


def test_every_balanced_mig_layout_can_be_placed() -> None:
    for device in (H100, "20b0", "20b2", "20b7", "2335", "2901", "2bb5"):
        assert mig.place_instances(device, mig.balanced_layout(device)) is not None


@pytest.mark.parametrize(
    ("change", "line", "what"),
    [
        ((b"version: v1", b"version: v2"), 1, "version is 'v2'"),
        ((b"version: v1\n", b""), 1, "the file lacks version"),
        ((b"mig-configs:", b"mig-config:"), 2, "no key mig-config"),
        ((b"      devices: [0]\n", b""), 4, "lacks devices"),
        ((b"devices: [0]", b"devices: some"), 5, "devices is 'some'"),
        ((b"devices: [0]", b"devices: [-1]"), 5, "is not a number"),
        ((b"devices: [0]", b"devcies: [0]"), 5, "no key devcies"),
        ((b"mig-enabled: true", b"mig-enabled: yes"), 6, "is not a truth value"),
        ((b"mig-enabled: true", b"mig-enabled: false"), 7, "mig-enabled is false"),
        ((b'      mig-devices: {"1g.10gb": 2, "4g.40gb": 1}\n', b""), 4, "lacks mig-devices"),
        ((b'"1g.10gb": 2', b'"1c.2g.20gb": 2'), 7, "one compute instance in each GPU instance"),
        ((b'"1g.10gb": 2', b'"1g": 2'), 7, "is not a MIG profile"),
        ((b'"1g.10gb": 2', b'"4g.40gb": 2'), 7, "has 4g.40gb twice"),
        ((b'"1g.10gb": 2', b'"1g.10gb": two'), 7, "is not a number"),
        ((b"0x233010DE", b"0x2330"), 4, "holds '0x2330'"),
        ((b"  mine:", b"  mine: {"), 4, "not YAML"),
    ],
)
def test_invalid_mig_parted_file_is_reported_with_line_and_key(
    change: tuple[bytes, bytes], line: int, what: str
) -> None:
    data = CONFIG.replace(*change, 1)
    with pytest.raises(MigFileError) as raised:
        MIG_STEP.plan(mig_recipe("mine", FILE), node(files={FILE: data}))
    assert what in raised.value.what
    assert raised.value.what.startswith(f"{FILE}:{line}: ")


def test_inverse_of_a_mig_change_restores_the_former_layout() -> None:
    change = MigChange(uuid(0), OFF, BALANCED, frozenset({Trigger("cdi")}))
    back = change.inverse()
    assert back == MigChange(uuid(0), BALANCED, OFF, frozenset({Trigger("cdi")}))
    assert back is not None
    assert back.inverse() == change
