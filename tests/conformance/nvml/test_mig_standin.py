"""MIG layouts set by the real child program through the real pynvml and a stand-in for libnvidia-ml.so.1."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.catalog import mig
from gpunode.change import MigChange, MigInstance, MigLayout
from gpunode.errors import ChangeFailed, Conflict
from gpunode.facts.model import MigGpu
from gpunode.facts.nvml import list_mig_gpus, read_nvml_answer
from gpunode.host.local import LocalHost
from gpunode.host.nvml import make_probe
from tests.fakes.compile import library
from tests.fakes.mig import reboot
from tests.fakes.runners import EnvRunner

H100 = "2330"
UUID = "GPU-00000000-0000-0000-0000-000000000000"
OFF = MigLayout(enabled=False)
EMPTY = MigLayout(enabled=True)


def layout(**counts: int) -> MigLayout:
    """Return the layout with the given number of instances of each profile of an H100 80GB, as in ``_1g_10gb=7``."""
    wanted = {name.strip("_").replace("_", ".").replace(".me", "+me"): count for name, count in counts.items()}
    places = mig.place_instances(H100, wanted)
    assert places is not None
    return MigLayout(enabled=True, instances=tuple(MigInstance(one, at, size, (one[0],)) for one, at, size in places))


SEVEN = layout(_1g_10gb=7)
BALANCED = layout(_1g_10gb=2, _2g_20gb=1, _3g_40gb=1)


def host(state: Path, gpus: int = 1, **environment: str) -> LocalHost:
    made = LocalHost()
    folder = str(library("nvml/nvml.c", "libnvidia-ml.so.1"))
    made.runner = EnvRunner(LD_LIBRARY_PATH=folder, FAKE_NVML_MIG=str(state), FAKE_NVML_GPUS=str(gpus), **environment)
    return made


def read_gpus(node: LocalHost) -> tuple[MigGpu, ...]:
    return list_mig_gpus(read_nvml_answer(node.run_probe(make_probe(60))))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "mig"


def test_mig_change_and_its_inverse_touch_only_their_gpu(state: Path) -> None:
    node = host(state, 2)
    assert [gpu.layout for gpu in read_gpus(node)] == [OFF, OFF]
    change = MigChange(UUID, OFF, BALANCED)
    node.apply([change])
    assert [(gpu.layout, gpu.pending) for gpu in read_gpus(node)] == [(BALANCED, True), (OFF, False)]
    node.apply([change])  # already so: an interrupted run continues
    again = MigChange(UUID, BALANCED, SEVEN)
    node.apply([again])
    assert read_gpus(node)[0].layout == SEVEN
    for one in (again, change):
        back = one.inverse()
        assert back is not None
        node.apply([back])
    assert [gpu.layout for gpu in read_gpus(node)] == [OFF, OFF]


@pytest.mark.parametrize(
    "wanted",
    [
        EMPTY,
        layout(_4g_40gb=1, _3g_40gb=1),
        layout(_3g_40gb=2),
        layout(_7g_80gb=1),
        layout(_1g_20gb=4),
        layout(_1g_10gb_me=1, _1g_10gb=6),
        layout(_2g_20gb=3, _1g_20gb=1),
        MigLayout(
            enabled=True, instances=(MigInstance("3g.40gb", 4, 4, ("1", "2")), MigInstance("1g.10gb", 6 - 6, 1, ()))
        ),
    ],
    ids=str,
)
def test_mig_layout_is_created_with_its_placement(state: Path, wanted: MigLayout) -> None:
    node = host(state)
    node.apply([MigChange(UUID, OFF, wanted)])
    found = read_gpus(node)[0].layout
    assert found is not None
    assert sorted(found.instances, key=str) == sorted(wanted.instances, key=str)


def test_pending_mig_mode_is_completed_after_the_reset(state: Path) -> None:
    late = host(state, FAKE_NVML_MIG_LATE="1")
    late.apply([MigChange(UUID, OFF, SEVEN)])
    assert [(gpu.layout, gpu.pending) for gpu in read_gpus(late)] == [(OFF, True)]
    reboot(state)
    node = host(state)
    assert [(gpu.layout, gpu.pending) for gpu in read_gpus(node)] == [(EMPTY, True)]
    node.apply([MigChange(UUID, EMPTY, SEVEN)])
    assert read_gpus(node)[0].layout == SEVEN


def test_pending_mig_mode_is_withdrawn(state: Path) -> None:
    late = host(state, FAKE_NVML_MIG_LATE="1")
    late.apply([MigChange(UUID, OFF, SEVEN)])
    late.apply([MigChange(UUID, OFF, OFF)])
    assert [(gpu.layout, gpu.pending) for gpu in read_gpus(late)] == [(OFF, False)]


def test_gpu_in_use_keeps_its_layout_and_lists_clients(state: Path) -> None:
    host(state, 2).apply([MigChange(UUID, OFF, SEVEN)])
    used = host(state, 2, FAKE_NVML_CLIENTS="0:4711,0:4712,1:5")
    assert [gpu.clients for gpu in read_gpus(used)] == [(4711, 4712), (5,)]
    with pytest.raises(ChangeFailed) as raised:
        used.apply([MigChange(UUID, SEVEN, BALANCED)])
    assert "the GPU is in use (to remove its MIG instances)" in raised.value.why
    assert read_gpus(used)[0].layout == SEVEN


@pytest.mark.parametrize(
    ("function", "doing"),
    [
        ("nvmlDeviceCreateGpuInstanceWithPlacement", "make the instance"),
        ("nvmlGpuInstanceCreateComputeInstance", "make the instance"),
        ("nvmlDeviceSetMigMode", "switch MIG off"),
    ],
)
def test_failed_mig_change_reports_whether_it_was_put_back(state: Path, function: str, doing: str) -> None:
    host(state).apply([MigChange(UUID, OFF, SEVEN)])
    broken = host(state, FAKE_NVML_FAULTS=f"{function}=999")
    with pytest.raises(ChangeFailed) as raised:
        broken.apply([MigChange(UUID, SEVEN, BALANCED if "Create" in function else OFF)])
    assert doing in raised.value.why
    # Creating instances fails again, too. If the mode was never switched, the former instances are back.
    assert ("restored: 7 × 1g.10gb" in raised.value.why) is (function == "nvmlDeviceSetMigMode")


def test_mig_layout_changed_meanwhile_is_a_conflict(state: Path) -> None:
    node = host(state)
    node.apply([MigChange(UUID, OFF, SEVEN)])
    with pytest.raises(Conflict):
        node.apply([MigChange(UUID, OFF, BALANCED)])
    assert read_gpus(node)[0].layout == SEVEN


def test_hanging_mig_call_is_stopped_and_reported(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpunode.host.mig.TIMEOUT_S", 2.0)
    with pytest.raises(ChangeFailed) as raised:
        host(state, FAKE_NVML_FAULTS="nvmlDeviceSetMigMode=hang").apply([MigChange(UUID, OFF, SEVEN)])
    assert "did not return within 2 s" in raised.value.why


def test_order_of_mig_instances_does_not_matter(state: Path) -> None:
    node = host(state)
    turned = replace(BALANCED, instances=tuple(reversed(BALANCED.instances)))
    node.apply([MigChange(UUID, OFF, turned)])
    assert read_gpus(node)[0].layout == BALANCED
