"""Evidence for the page: a large node with switches and NVLinks, and one with malicious evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Diagnosis, Finding, Fix, OpenQuestion
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.stack import LayerState
from gpunode.facts import pasted
from gpunode.facts.evidence import Evidence
from gpunode.facts.patterns import Pattern
from gpunode.workflow.doctor import Examination

_GPUS = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")
_NARROW = "2.5GT/s (downgraded), Width x8 (downgraded)"
_XIDS = """\
[  812.104311] NVRM: Xid (PCI:0000:52:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked
[ 4021.883010] NVRM: Xid (PCI:0000:9d:00): 13, pid=30114, name=python3, Graphics SM Warp Exception on (GPC 1, TPC 2)
[ 4021.883904] NVRM: Xid (PCI:0000:9d:00): 43, pid=30114, name=python3, Ch 00000008
[ 7233.100284] NVRM: GPU at PCI:0000:9d:00: GPU-5e2f0c11-7c63-4a9f-9d31-0f5a2f7f6a10
[ 7233.100291] NVRM: Xid (PCI:0000:9d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
[ 7233.100301] NVRM: GPU 0000:9d:00.0: GPU has fallen off the bus.
[ 7233.412007] NVRM: Xid (PCI:0000:9d:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot)
[ 7240.000112] NVRM: Xid (PCI:0000:c3:00): 45, pid=30118, name=python3, Ch 00000010
[ 7240.000913] NVRM: Xid (PCI:0000:c3:00): 45, pid=30118, name=python3, Ch 00000011
[ 7240.001402] NVRM: Xid (PCI:0000:c3:00): 45, pid=30118, name=python3, Ch 00000012
"""


def _lspci() -> Iterator[str]:
    for numa, buses in enumerate((_GPUS[:4], _GPUS[4:])):
        for bus in buses:
            root, switch, nic = (f"{int(bus, 16) - step:02x}" for step in (6, 5, 1))
            gpu, other = bus, nic
            yield from (
                f"0000:{root}:01.0 PCI bridge [0604]: Intel Corporation Device [8086:352a] (rev 30) (prog-if 00)",
                f"\tBus: primary={root}, secondary={switch}, subordinate={gpu}, sec-latency=0",
                f"0000:{switch}:00.0 PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (rev b0)",
                f"\tBus: primary={switch}, secondary={other}, subordinate={other}, sec-latency=0",
                f"0000:{switch}:01.0 PCI bridge [0604]: Broadcom / LSI PEX890xx PCIe Gen 5 Switch [1000:c030] (rev b0)",
                f"\tBus: primary={switch}, secondary={gpu}, subordinate={gpu}, sec-latency=0",
                f"0000:{other}:00.0 Infiniband controller [0207]: Mellanox MT2910 Family [ConnectX-7] [15b3:1021]",
                f"\tNUMA node: {numa}",
                "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported",
                "\t\tLnkSta:\tSpeed 32GT/s, Width x16",
                "\tKernel driver in use: mlx5_core",
                f"0000:{gpu}:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 SXM5 80GB] [10de:2330] (rev a1)",
                f"\tNUMA node: {numa}",
                "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM not supported",
                f"\t\tLnkSta:\tSpeed {_NARROW if bus == '61' else '32GT/s, Width x16'}",
                "\tKernel driver in use: nvidia",
                "\tKernel modules: nouveau, nvidia_drm, nvidia",
            )
    for bus in ("05", "06", "07", "08"):
        yield f"0000:{bus}:00.0 Bridge [0680]: NVIDIA Corporation GH100 [H100 NVSwitch] [10de:22a3] (rev a1)"
        yield "\tNUMA node: 0"


def _topology() -> Iterator[str]:
    names = [*(f"GPU{number}" for number in range(8)), *(f"NIC{number}" for number in range(8))]
    yield "\t".join(["", *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    for one in names:
        cells = [_cell(one, other) for other in names]
        tail = ["0-55,112-167" if int(one[3:]) < 4 else "56-111,168-223", str(int(one[3:]) // 4), "N/A"]
        yield "\t".join([one, *cells, *(tail if one.startswith("GPU") else [])])
    yield from ("", "Legend:", "", "  X    = Self", "", "NIC Legend:", "")
    for number in range(8):
        yield f"  NIC{number}: mlx5_{number}"


def _cell(one: str, other: str) -> str:
    if one == other:
        return " X "
    if one[:3] == other[:3] == "GPU":
        return "NV18"
    return "PIX" if one[3:] == other[3:] else "NODE" if int(one[3:]) // 4 == int(other[3:]) // 4 else "SYS"


def _nvlinks() -> Iterator[str]:
    for gpu in range(8):
        yield f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-00000000000{gpu})"
        for link in range(18):
            yield f"\t Link {link}: {'<inactive>' if (gpu, link) == (2, 5) else '26.562 GB/s'}"


def _kernel_log() -> Iterator[str]:
    quiet = (
        f"[{second:5d}.000000] systemd[1]: Started session {second} of user train." for second in range(600, 8000, 40)
    )
    yield from sorted((*quiet, *_XIDS.splitlines()), key=lambda line: float(line[1:].partition("]")[0]))


def evidence(*pieces: tuple[str, str]) -> Evidence:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return pasted.parse_json_report(json.dumps(rows), "a report")


def large() -> Evidence:
    """Return eight GPUs: one fell off the bus; there are also a narrow link and an inactive NVLink."""
    return evidence(
        ("hostname", "gpu-17"),
        ("uname -r", "5.15.0-119-generic"),
        ("lspci -nnDvvv", "\n".join(_lspci())),
        ("nvidia-smi topo -m", "\n".join(_topology())),
        ("nvidia-smi nvlink -s", "\n".join(_nvlinks())),
        ("dmesg", "\n".join(_kernel_log())),
    )


HOSTILE = (
    "</pre></mark><script>alert(1)</script><img src=x onerror=alert(1)><svg onload=alert(1)>"
    "\x1b[31mred\x1b[0m \x1b]8;;http://evil.example/\x07link \x00NUL \u202egnp.exe \u2066isolate \ufeff \u200b"
    " ]]> <!-- --> {{7*7}} javascript:alert(1) \"'><a href=javascript:alert(1)>"
)


def hostile() -> Evidence:
    """Return evidence in which every text, even a name, is malicious, with a password and a token."""
    return evidence(
        ("hostname", HOSTILE),
        (
            f"dmesg {HOSTILE}",
            f"[ 1.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1, name={HOSTILE}, GPU has fallen off the bus.",
        ),
        (
            "lspci -nnk",
            f"01:00.0 3D controller [0302]: NVIDIA {HOSTILE} [10de:2330]\n\tKernel driver in use: nouveau\n",
        ),
        ("lsmod", "Module                  Size  Used by\nnouveau              2400256  4\n"),
        ("cat /etc/docker/daemon.json", '{"http-proxy": "http://bob:hunter2@proxy:3128", "token": "tok-5ecret-value"}'),
        (
            "systemctl cat docker",
            "[Service]\nEnvironment=HTTP_PROXY=http://bob:hunter2@proxy:3128\nEnvironment=API_TOKEN=tok-5ecret-value\n",
        ),
    )


def examined() -> Examination:
    """Return the large node with fixed findings, so that pages stay the same when rules are reworded."""
    seen = take_snapshot(large())
    lost = Finding(
        cause="sample-lost",
        title="a GPU fell off the bus",
        layer="gpu",
        severity="error",
        confidence="likely",
        summary="GPU 4 at 0000:9d:00.0 stopped answering on the PCI bus 7233 s after boot",
        citations=(
            *seen.matching_lines(Pattern(r"9d:00\): 79")),
            *seen.matching_lines(Pattern(r"9d:00\): 154")),
            *seen.matching_lines(Pattern(r"0000:9d:00\.0 3D"), "lspci"),
        ),
        ruled_out=(
            "an error of the program: it would end with Xid 13 or 43 and leave the GPU on the bus",
            "a lost riser: its neighbour on the same switch answers (`nvidia-smi topo -m`)",
        ),
        remedy=(
            Fix("drain", "move the work away from this node first", (Shell("kubectl drain gpu-17"),)),
            Fix("reboot", "power the node off and on", (Shell("sudo systemctl poweroff"),)),
            Fix("hardware", "look at cable, seat and cooling of the board", when="it comes back"),
        ),
        disruption="power-cycle",
        sources=("https://docs.nvidia.com/deploy/xid-errors/",),
        gpus=("0000:9d:00.0",),
        at=7233.1,
    )
    stopped = Finding(
        cause="sample-stopped",
        title="programs on other GPUs were stopped",
        layer="driver",
        severity="error",
        confidence="certain",
        summary="python3 (30118) lost its channels on 0000:c3:00.0 when its peer went",
        citations=seen.matching_lines(Pattern(r"c3:00\): 45")),
        ruled_out=(),
        remedy=(),
        disruption="none",
        sources=(),
        explained_by="sample-lost",
        gpus=("0000:c3:00.0",),
    )
    narrow = Finding(
        cause="sample-narrow",
        title="a PCIe link runs with fewer lanes",
        layer="pci",
        severity="warning",
        confidence="certain",
        summary="the link of 0000:61:00.0 has 8 of 16 lanes",
        citations=seen.matching_lines(Pattern(r"Width x8 "), "lspci"),
        ruled_out=("an idle link: it lowers its speed, never its width",),
        remedy=(Fix("hardware", "reseat the board", when="it persists after a cold start"),),
        disruption="power-cycle",
        sources=(),
        gpus=("0000:61:00.0",),
    )
    doubt = OpenQuestion(
        "whether the NVLink that is down on GPU 2 was ever up",
        (Shell("nvidia-smi nvlink -e"),),
        seen.matching_lines(Pattern(r"<inactive>")),
    )
    return Examination(
        seen, Diagnosis((lost, narrow, stopped), (doubt,)), _layers(), False, ("dmesg", "/etc/nvidia/gridd.conf")
    )


def healthy() -> Examination:
    """Return the large node without faults."""
    layers = tuple(replace(layer, state="works", findings=()) for layer in _layers()[:-1])
    absent = LayerState("kubernetes", "Kubernetes", "absent", "no kubelet")
    return Examination(take_snapshot(large()), Diagnosis((), ()), (*layers, absent), True)


def untold() -> Examination:
    """Return an examination with too little evidence for a diagnosis."""
    doubt = OpenQuestion(
        "why the module does not load: its own message was not seen",
        (Shell("sudo dmesg | grep -i nvrm"),),
    )
    layers = tuple(replace(layer, state="unknown", summary="", findings=()) for layer in _layers())
    return Examination(take_snapshot(evidence(("nvidia-smi", "x"))), Diagnosis((), (doubt,)), layers, False, ("dmesg",))


def _layers() -> tuple[LayerState, ...]:
    return (
        LayerState("pci", "PCI bus", "warning", "8 × H100 80GB HBM3", ("sample-narrow",)),
        LayerState("gpu", "GPU", "broken", "7 answer", ("sample-lost",)),
        LayerState("kernel", "kernel", "no-fault", "Ubuntu 22.04.5 LTS, 5.15.0-119-generic"),
        LayerState("driver", "driver", "affected", "550.90.07 loaded, open modules", ("sample-stopped",)),
        LayerState("fabric", "NVLink", "no-fault", "4 NVSwitches"),
        LayerState("libraries", "libraries", "works", "550.90.07, CUDA 12.4"),
        LayerState("toolkit", "toolkit, CDI", "no-fault", "toolkit 1.17.8-1"),
        LayerState("runtime", "container runtime", "no-fault", "containerd"),
        LayerState("kubernetes", "Kubernetes", "unknown", ""),
    )
