from __future__ import annotations

import pytest

from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.views.topology import Topology, find_topology
from gpunode.page.tables import render_topology
from tests.unit.page import nodes

LIST = """\
0000:03:00.0 VGA compatible controller [0300]: NVIDIA Corporation AD102 [GeForce RTX 4090] [10de:2684] (rev a1)
0000:04:00.0 VGA compatible controller [0300]: NVIDIA Corporation AD102 [GeForce RTX 4090] [10de:2684] (rev a1)
0001:41:00.0 VGA compatible controller [0300]: NVIDIA Corporation AD102 [GeForce RTX 4090] [10de:2684] (rev a1)
"""


def topology_of(*pieces: tuple[str, str]) -> Topology:
    return find_topology(take_snapshot(nodes.evidence(*pieces)))


def test_topology_is_read_from_lspci() -> None:
    seen = find_topology(take_snapshot(nodes.large()))
    assert [gpu.index for gpu in seen.gpus] == list(range(8))
    narrow = next(gpu for gpu in seen.gpus if gpu.link.is_narrow)
    assert (narrow.address, narrow.numa, narrow.name) == ("0000:61:00.0", 0, "H100 80GB HBM3")
    assert (narrow.link.width, narrow.link.max_width, narrow.link.speed, narrow.link.max_speed) == (8, 16, 2.5, 32)
    assert {device.sort for device in seen.devices} == {"gpu", "nvswitch", "nic"}


def test_gpu_pairs_and_nvlinks_are_read_from_nvidia_smi() -> None:
    seen = find_topology(take_snapshot(nodes.large()))
    assert seen.matrix["GPU0", "GPU7"] == "NV18"
    assert seen.nics["NIC3"] == "mlx5_3"
    assert seen.nvlinks[2][5] == ""
    assert seen.nvlinks[2][6] == "26.562 GB/s"


def test_sysfs_completes_lspci_without_root() -> None:
    seen = topology_of(
        ("lspci -nn", LIST),
        ("cat /sys/bus/pci/devices/0000:03:00.0/numa_node", "1\n"),
        ("cat /sys/bus/pci/devices/0000:04:00.0/numa_node", "-1\n"),
        ("cat /sys/bus/pci/devices/0000:03:00.0/current_link_width", "4\n"),
        ("cat /sys/bus/pci/devices/0000:03:00.0/max_link_width", "16\n"),
        ("cat /sys/bus/pci/devices/0000:03:00.0/current_link_speed", "16.0 GT/s PCIe\n"),
        ("cat /sys/bus/pci/devices/0000:04:00.0/current_link_width", "255\n"),
    )
    first, second, _ = seen.gpus
    assert (first.numa, first.link.width, first.link.speed, first.link.is_narrow) == (1, 4, 16.0, True)
    assert (second.numa, second.link.width) == (None, 0)


def test_gpu_numbers_need_as_many_answers_as_gpus() -> None:
    two = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0-7\nGPU1\tSYS\t X \t8-15\n"
    assert [gpu.index for gpu in topology_of(("lspci -nn", LIST), ("nvidia-smi topo -m", two)).gpus] == [
        None,
        None,
        None,
    ]


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[4m\tGPU0\tmlx4_0\tCPU Affinity\x1b[0m\nGPU0\t X \tPHB\t0-9\nmlx4_0\tPHB\t X \n",
        "        GPU0    NIC0    CPU Affinity  NUMA Affinity\nGPU0     X      PHB     0-9     0\nNIC0    PHB    X\n",
    ],
)
def test_every_form_of_the_topology_matrix_is_parsed(text: str) -> None:
    seen = topology_of(("nvidia-smi topo -m", text))
    assert len(seen.matrix) == 4
    assert seen.names[0] == "GPU0"


def table_of(*pieces: tuple[str, str]) -> str:
    return render_topology(take_snapshot(nodes.evidence(*pieces))) or ""


def test_no_table_is_shown_without_evidence() -> None:
    assert not table_of(("uname -r", "6.1.0-31-amd64"))


def test_gpus_of_the_matrix_are_listed_without_lspci() -> None:
    shown = table_of(("nvidia-smi topo -m", "\tGPU0\tGPU1\nGPU0\t X \tNV4\nGPU1\tNV4\t X \n"))
    assert '<th scope="row">GPU 1</th>' in shown
    assert '<td class="nv">NV4</td>' in shown


def test_faulty_gpu_is_marked_without_colour() -> None:
    shown = render_topology(take_snapshot(nodes.large()), {"0000:9d:00.0"}) or ""
    assert shown.count("✗ GPU") == 1


def test_device_table_shows_narrow_links_and_inactive_nvlinks() -> None:
    shown = render_topology(take_snapshot(nodes.large())) or ""
    assert '<td class="narrow">×8 of 16 · 2.5 of 32 GT/s</td>' in shown
    assert '<td class="narrow">17 of 18 active</td>' in shown
    assert shown.count("NVSwitch</th>") == 4


def test_devices_beyond_the_limit_are_not_listed() -> None:
    many = "\n".join(f"{n:02x}:00.0 Ethernet controller [0200]: Intel X [8086:1563]" for n in range(250))
    assert table_of(("lspci -nn", many)).count("network</th>") == 64


def test_nvidia_smi_table_adds_gpus_missing_in_lspci() -> None:
    table = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |
|=========================================+========================+======================|
|   0  NVIDIA GeForce RTX 4090        Off |   00000000:04:00.0 Off |                  Off |
| 30%   34C    P8             22W /  450W |      12MiB /  24564MiB |      0%      Default |
|   1  NVIDIA GeForce RTX 4090        Off |   00000001:41:00.0 Off |                  Off |
+-----------------------------------------------------------------------------------------+
"""
    first = LIST.splitlines()[0]
    seen = topology_of(("lspci -nn", first), ("nvidia-smi", table))
    assert [(gpu.address, gpu.index, gpu.name) for gpu in seen.gpus] == [
        ("0000:03:00.0", None, "GeForce RTX 4090"),
        ("0000:04:00.0", 0, "GeForce RTX 4090"),
        ("0001:41:00.0", 1, "GeForce RTX 4090"),
    ]
