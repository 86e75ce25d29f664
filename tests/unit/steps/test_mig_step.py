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
from gpunode.facts.probes import MIG_UNIT, MIG_WANTS
from gpunode.facts.project import PLAN, project_changes
from gpunode.outcome import Blocked, Planned
from gpunode.recipe import Mps, Recipe
from gpunode.recipe.toml import parse
from gpunode.steps.mig import MIG
from tests.unit.steps.machines import H100, T4, gpu, planned, refusal, unit, with_driver

OFF = MigLayout(enabled=False)
FILE = "/etc/mig.yaml"
# NVIDIA MIG User Guide and mig-parted's example for the DGX Station: one GPU that has no MIG beside others that do.
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


def shown(index: int = 0, layout: MigLayout | None = OFF, **more: object) -> MigGpu:
    pending = layout is not None and layout.enabled
    return replace(MigGpu(index, uuid(index), f"0000:0{index + 1}:00.0", layout, pending), **more)  # type: ignore[arg-type]


def devices(*models: str) -> tuple[PciDevice, ...]:
    return tuple(gpu(model, address=f"0000:0{index + 1}:00.0") for index, model in enumerate(models))


def node(*gpus: MigGpu, models: tuple[str, ...] = (), files: dict[str, bytes] | None = None, **more: Any) -> Facts:
    """A machine whose driver runs, with H100s unless ``models`` says otherwise."""
    present = gpus or (shown(),)
    facts = with_driver(gpus=devices(*(models or (H100,) * len(present))), mig=present, files=files, **more)
    systemd = {"/etc/systemd/system": "units", "/etc/systemd/system/multi-user.target.d": "units", "/etc": "etc"}
    return replace(facts, folders={**facts.folders, **systemd})


def asks(layout: str = "all-1g.10gb", file: str = "", more: str = "") -> Recipe:
    text = f'[driver]\nversion = "none"\n[mig]\nlayout = "{layout}"\nfile = "{file}"\n{more}'
    return parse(text, "test.toml", load=lambda name: "")


def layout(*places: tuple[str, int, int]) -> MigLayout:
    made = tuple(MigInstance(profile, start, size, (profile[0],)) for profile, start, size in places)
    return MigLayout(enabled=True, instances=made)


BALANCED = layout(("2g.20gb", 0, 2), ("1g.10gb", 2, 1), ("1g.10gb", 3, 1), ("3g.40gb", 4, 4))


def test_each_gpu_changes_and_a_unit_makes_the_layout_again_at_each_boot() -> None:
    facts = node(shown(), shown(1))
    outcome = planned(MIG.plan(asks("all-balanced"), facts))
    unit_file, wants, *changes = outcome.changes
    assert isinstance(unit_file, FileChange)
    assert isinstance(wants, FileChange)
    assert (unit_file.path, wants.path) == (MIG_UNIT, MIG_WANTS)
    assert unit_file.triggers == wants.triggers == {Trigger("daemon-reload")}
    assert changes == [MigChange(uuid(index), OFF, BALANCED) for index in (0, 1)]
    assert planned(MIG.plan(asks("all-balanced"), project_changes(facts, outcome.changes))).changes == ()


def test_the_unit_s_commands_name_gpu_profile_and_place() -> None:
    change = planned(MIG.plan(asks("all-balanced"), node())).changes[0]
    assert isinstance(change, FileChange)
    text = change.after.content.decode()  # type: ignore[union-attr]
    assert f"/usr/bin/nvidia-smi -i {uuid(0)} -mig 1 && " in text
    assert f"nvidia-smi mig -i {uuid(0)} -cgi 2g.20gb:0,1g.10gb:2,1g.10gb:3,3g.40gb:4 -C; }} || failed=1;" in text
    assert "Before=containerd.service docker.service crio.service kubelet.service" in text
    assert "exit $$failed" in text


def test_instances_that_are_there_stay_wherever_they_are() -> None:
    elsewhere = layout(("3g.40gb", 0, 4), ("1g.10gb", 4, 1), ("1g.10gb", 5, 1), ("2g.20gb", 6, 2))
    outcome = planned(MIG.plan(asks("all-balanced"), node(shown(layout=elsewhere))))
    assert [change for change in outcome.changes if isinstance(change, MigChange)] == []
    change = outcome.changes[0]
    assert isinstance(change, FileChange)
    assert b"-cgi 3g.40gb:0,1g.10gb:4" in change.after.content  # type: ignore[union-attr]


def test_another_number_of_compute_instances_is_another_layout() -> None:
    split = MigLayout(enabled=True, instances=(MigInstance("7g.80gb", 0, 8, ("3", "4")),))
    outcome = planned(MIG.plan(asks("all-7g.80gb"), node(shown(layout=split))))
    assert [change.before for change in outcome.changes if isinstance(change, MigChange)] == [split]


def test_switched_off_the_unit_goes_too() -> None:
    first = planned(MIG.plan(asks(), node())).changes
    divided = project_changes(node(), first)
    outcome = planned(MIG.plan(asks("all-disabled"), divided))
    *files, change = outcome.changes
    gone = [(one.path, one.after) for one in files if isinstance(one, FileChange)]
    assert gone == [(MIG_UNIT, None), (MIG_WANTS, None)]
    assert isinstance(change, MigChange)
    assert change.after == OFF


def test_a_file_of_mig_parted_is_followed_gpu_by_gpu() -> None:
    before = layout(("7g.80gb", 0, 8))
    facts = node(shown(), shown(1, before), shown(2, None), models=(H100, H100, T4), files={FILE: CONFIG})
    changes = planned(MIG.plan(asks("mine", FILE), facts)).changes
    mine = layout(("4g.40gb", 0, 4), ("1g.10gb", 4, 1), ("1g.10gb", 5, 1))
    assert changes[2:] == (MigChange(uuid(0), OFF, mine), MigChange(uuid(1), before, OFF))


def test_what_containers_list_gpus_from_is_written_anew() -> None:
    facts = node(units={"nvidia-persistenced.service": unit(), "nvidia-cdi-refresh.service": unit()})
    changes = planned(MIG.plan(asks(), facts)).changes
    assert isinstance(changes[-1], MigChange)
    assert changes[-1].triggers == {Trigger("cdi", "if-possible")}


@pytest.mark.parametrize(
    ("recipe", "facts", "what"),
    [
        (asks(), node(shown(layout=None), models=(T4,)), "cannot have the MIG layout all-1g.10gb"),
        (asks(), node(models=(T4,), loaded_driver=None), "T4 (Turing) cannot have the MIG layout all-1g.10gb"),
        (asks(), node(models=("3fff",)), "cannot have the MIG layout all-1g.10gb"),
        (asks("all-1g.5gb"), node(), "has no MIG profile 1g.5gb"),
        (asks("mine"), node(), "knows no MIG layout mine"),
        (asks("other", FILE), node(files={FILE: CONFIG}), f"{FILE} has no layout other"),
        (asks("mine", FILE), node(), f"{FILE} does not exist"),
        (asks("", FILE), node(files={FILE: CONFIG}), "names a file and no layout"),
        (
            asks("mine", FILE),
            node(files={FILE: CONFIG.replace(b'"1g.10gb": 2, "4g.40gb": 1', b'"3g.40gb": 1, "2g.20gb": 3')}),
            "does not fit on",
        ),
        (replace(asks(), mps=Mps(enabled=True)), node(), "[mps] and MIG exclude each other"),
        (asks(more='[kubernetes]\nstack = "gpu-operator"'), node(), "the GPU Operator would both set MIG layouts"),
        (
            asks(more='[kubernetes]\nstack = "device-plugin"\n[kubernetes.mig]\nlayout = "all-2g.20gb"'),
            node(),
            "names two MIG layouts: all-1g.10gb in [mig] and all-2g.20gb in [kubernetes]",
        ),
        (
            asks(),
            node(units={"nvidia-persistenced.service": unit()}) ,
            "",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_the_reason(recipe: Recipe, facts: Facts, what: str) -> None:
    if not what:
        manager = {**facts.units, "nvidia-mig-manager.service": Known(unit(), "units")}
        facts, what = replace(facts, units=manager), "nvidia-mig-manager.service is enabled"
    found = refusal(MIG.plan(recipe, facts))
    assert what in found.what
    assert found.why
    assert found.hint


@pytest.mark.parametrize("model", ["20b3", "2330", "3fff"])
def test_a_gpu_that_may_have_mig_waits_for_its_driver_to_say_so(model: str) -> None:
    assert planned(MIG.plan(asks(), node(models=(model,), loaded_driver=None))).later


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (node(loaded_driver=None), "set once the driver is loaded"),
        (replace(node(), loaded_driver=Known(LoadedDriver("580.95.05", True), PLAN)), "set once the driver is loaded"),
        (node(platform=Platform("image")), "set by the first `gpunode setup` on the booted node"),
        (replace(node(), mig=Unknown("it hangs", "nvml")), "not checked: NVML does not say"),
    ],
)
def test_what_cannot_be_looked_at_yet_comes_later(facts: Facts, reason: str) -> None:
    outcome = planned(MIG.plan(asks(), facts))
    assert outcome.changes == ()
    assert outcome.later
    assert reason in outcome.reason


def test_a_mode_that_waits_for_a_reset_waits_and_other_gpus_do_not() -> None:
    late = shown(pending=True)
    both = planned(MIG.plan(asks(), node(late, shown(1))))
    assert [change.gpu for change in both.changes if isinstance(change, MigChange)] == [uuid(1)]
    after = MIG.plan(asks(), project_changes(node(late, shown(1)), both.changes))
    assert isinstance(after, Blocked)
    assert after.for_ == "reboot"
    assert uuid(0) in after.reason
    done = node(shown(layout=MigLayout(enabled=True)), shown(1))
    assert len([c for c in planned(MIG.plan(asks(), done)).changes if isinstance(c, MigChange)]) == 2


def test_the_cluster_s_layout_is_the_node_s_where_the_device_plugin_offers_it() -> None:
    text = """[driver]
version = "none"
[kubernetes]
stack = "{}"
[kubernetes.mig]
strategy = "mixed"
layout = "all-balanced"
[kubernetes.configs.big]
gpus = "H100"
strategy = "single"
layout = "all-7g.80gb"
"""
    of = {stack: parse(text.format(stack), "t.toml", load=lambda _: "") for stack in ("device-plugin", "gpu-operator")}
    assert planned(MIG.plan(of["device-plugin"], node())).changes[-1] == MigChange(
        uuid(0), OFF, layout(("7g.80gb", 0, 8))
    )
    left = planned(MIG.plan(of["gpu-operator"], node()))
    assert left == Planned((), "the GPU Operator's MIG manager sets the layout", later=True)
    assert MIG.plan(Recipe("x"), node()) == Planned((), "not requested", asked=False)


@given(st.data())
def test_whatever_is_placed_does_not_overlap_and_what_fits_alone_is_placed(data: st.DataObject) -> None:
    device = data.draw(st.sampled_from([H100, "20b0", "20b7", "2335", "2bb5"]))
    most = mig.profiles(device)
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


def test_every_balanced_layout_fits() -> None:
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
def test_a_file_that_mig_parted_would_not_take_is_an_error_with_line_and_key(
    change: tuple[bytes, bytes], line: int, what: str
) -> None:
    data = CONFIG.replace(*change, 1)
    with pytest.raises(MigFileError) as raised:
        MIG.plan(asks("mine", FILE), node(files={FILE: data}))
    assert what in raised.value.what
    assert raised.value.what.startswith(f"{FILE}:{line}: ")


def test_the_change_s_inverse_is_the_way_back() -> None:
    change = MigChange(uuid(0), OFF, BALANCED, frozenset({Trigger("cdi")}))
    back = change.inverse()
    assert back == MigChange(uuid(0), BALANCED, OFF, frozenset({Trigger("cdi")}))
    assert back is not None
    assert back.inverse() == change
