"""A report of a cause merged with a report of one of its consequences: exactly one root, and the right one.

The pairs follow the rules' ``explains``; for each, two reports are chosen that may come from one machine.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import pytest

from gpunode.diagnoses import diagnose, rules_by_cause
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.views import driver, kernel, modules, recovery
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture
from gpunode.facts.patterns import Pattern
from tests.fakes.examples import sample
from tests.scenarios.healthy.captures import evidence
from tests.scenarios.healthy.nodes import HEALTHY
from tests.scenarios.reports import Report, faults, faults_in, reports, roots, some_reports

_ADDRESS = re.compile(
    r"(?:(?:PCI:|\()(?P<one>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})|\b(?:0000)?(?P<two>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2})\.(?:0\b|\{0)"
    r"|^(?P<three>[0-9a-f]{2}:[0-9a-f]{2})\.0\b)",
    re.IGNORECASE | re.MULTILINE,
)
_MODEL = re.compile(r"10de:([0-9a-f]{4})", re.IGNORECASE)
_DRIVER = re.compile(r"(?<![\d.])\d{3}\.\d{2,3}(?:\.\d{2})?(?![\d.])")
_KERNEL = re.compile(r"(?<![\d.])\d\.\d{1,2}\.\d{1,3}-[\w.+-]*\w")
# Faults that require a working driver: a node without one shows others.
_OF_A_WORKING_DRIVER = {
    *("nvidia-uvm-wedged", "nvidia-uvm-not-loaded", "persistenced-start-race", "gpudirect-rdma-disabled"),
}
_WITHOUT_DRIVER = {rule.cause for rule in rules_by_cause().values() if "driver-module-not-loaded" in rule.explains} | {
    "driver-module-not-loaded"
}
# Pairs of causes whose reports cannot come from one machine, although no address, version or time contradicts it.
_TWO_MACHINES = {
    ("no-gpu-present", "no-device-nodes-driver-not-initialised"): "the consequence's report names a GPU that is there",
    ("xid-154-recovery-action", "*"): "it is a cause only where no other Xid is in the log",
    ("gpu-firmware-boot-failed", "no-device-nodes-driver-not-initialised"): "two models of GPU",
    ("initramfs-stale-module", "nvidia-uvm-not-loaded"): "two models of GPU",
    ("mixed-repo-packages", "package-file-conflict"): "two distributions",
    ("runfile-leftover", "driver-library-mismatch-unattended-upgrade"): "the .run driver is of packages that are gone",
    ("duplicate-module-files", "module-built-for-other-kernel"): "the one that is refused is one of the two",
    ("runfile-leftover", "duplicate-module-files"): "the .run driver is of packages that are gone",
    ("duplicate-module-files", "nvidia-fs-not-loaded"): "one has the driver loaded, the other has not",
    ("*", "container-driver-mismatch"): "an image with libraries of its own is a fault of its own",
    ("driver-not-installed", "cdi-spec-stale"): "the specification's tool lists a driver",
    ("driver-not-installed", "nouveau-bound"): "an installer is at work",
    ("driver-not-installed", "fabric-manager-not-installed"): "a driver answers CUDA in the one",
    ("toolkit-not-installed", "docker-not-restarted"): "a restart helped, so the toolkit was there",
    ("k3s-runtime-config-overwritten", "device-plugin-library-not-found"): "two distributions of Kubernetes",
    ("runfile-leftover", "driver-library-mismatch-mixed-installs"): "the .run driver is of packages that are gone",
    ("mig-mode-pending-reset", "mig-enabled-no-instances"): "MIG waits for a reset in one, and is on in the other",
    ("gpu-stuck-d3cold", "device-node-permissions"): "one lends its GPU to guests, the other uses it",
}
# Reports that cannot be paired with any other.
_ALONE = {
    "unseen/driver-not-installed": "a machine of a kind that has a GPU, where others have none",
    "unseen/k3s-runtime-config-overwritten-1": "its containerd has no runtime nvidia, others have",
    "modules/container-without-driver-module": "its driver is built and whole, which it is in no other",
    "containerd/rke2-toolkit-told-the-generated-file": "its containerd has no runtime nvidia, others have",
    "devices/cured-by-an-option-in-a-session": "a GeForce, where the others have boards with NVSwitches",
    "unseen/cuda-init-802-kaslr-or-hmm-2": "cards of workstations, where the others have boards with NVSwitches",
    "devices/lstat-of-uvm-fails": "its GPU is too old for the drivers of all others",
    "plugin/runtime-handler-k3s-no-class": "k3s brings a containerd of its own along, which nothing switches off",
    "memory/remap-pending-csv": "one of many GPUs is ill, and it is another one than in the other reports",
    "packages/held-on-purpose": "its packages are of the branch that it holds, those of others are not",
    "unseen/vm-passthrough-mmio-config": "it is a hypervisor that lends its GPU to a guest, and the guest",
    "unseen/driver-library-mismatch-partial-upgrade-1": "lists its packages, and has nothing for containers among them",
    "versions/partial-ubuntu-user-side-only": "lists its packages, and has nothing for containers among them",
    "unseen/driver-library-mismatch-partial-upgrade-2": "lists its packages, and has nothing for containers among them",
    "support/rtx-5090-proprietary-predicted": "lists its packages, and has nothing for containers among them",
}


@dataclass(frozen=True, slots=True)
class _Machine:
    """The facts of a report about its machine."""

    gpus: frozenset[str]
    models: frozenset[str]
    drivers: frozenset[str]
    kernels: frozenset[str]
    works: bool
    is_loaded: bool
    begins: float | None
    ends_work: bool
    is_at_work: bool
    is_past: bool


# Faults that end all work of a GPU: if the GPU is shown working, they are over.
_ENDS_WORK = re.compile(r"\): (?:46|62|79|119|120|143)\b|fallen off the bus|RmInitAdapter failed")


# The log of an earlier boot.
_EARLIER = re.compile(r"-b ?-\d|--boot[= ]-\d")


@cache
def _machine(report: Report) -> _Machine:
    text = "\n".join(f"{piece['source']}\n{piece['text']}" for piece in report.evidence)
    seen = take_snapshot(pasted.collect_pieces(tuple((piece["source"], piece["text"]) for piece in report.evidence)))
    stamps = [message.at for message in kernel.matching_messages(seen, Pattern("")) if message.at is not None]
    works = driver.works(seen)
    addresses = (next(filter(None, match.groups())).lower() for match in _ADDRESS.finditer(text))
    return _Machine(
        frozenset(address if len(address) > 5 else f"0000:{address}" for address in addresses),
        frozenset(model.lower() for model in _MODEL.findall(text)),
        frozenset(_DRIVER.findall(text)),
        frozenset(_KERNEL.findall(text)),
        works,
        works or bool(driver.loaded_version(seen)) or bool(modules.is_module_loaded(seen, "nvidia")),
        min(stamps, default=None),
        bool(_ENDS_WORK.search(text)),
        bool(seen.view(recovery.ever_working_gpus)),
        bool(_EARLIER.search(text)),
    )


def _may_be_one(root: Report, consequence: Report) -> bool:
    """Return whether both may come from one machine at one time, the root first."""
    one, two = _machine(root), _machine(consequence)
    shown = ((one.gpus, two.gpus), (one.models, two.models), (one.drivers, two.drivers), (one.kernels, two.kernels))
    if any(a and b and not a & b for a, b in shown) or (two.works and not one.works):
        return False
    if one.is_past or two.is_past:
        return False
    if root.cause in _WITHOUT_DRIVER and (two.is_loaded or consequence.cause in _OF_A_WORKING_DRIVER):
        return False
    if one.begins is not None and two.begins is not None and two.begins < one.begins:
        return False
    return not (one.ends_work and two.is_at_work)


def _kinds() -> Iterator[tuple[str, str, int]]:
    """Yield a cause, one of its consequences, and the index of this consequence among the cause's."""
    for cause, rule in rules_by_cause().items():
        for place, other in enumerate(sorted(rule.explains)):
            if not {(cause, other), (cause, "*"), ("*", other)} & set(_TWO_MACHINES):
                yield cause, other, place


@cache
def _by_cause() -> Mapping[str, Sequence[Report]]:
    found = defaultdict(list)
    for report in reports():
        if report.name not in _ALONE:
            found[report.cause].append(report)
    return found


def _pairs(kinds: Iterable[tuple[str, str, int]]) -> Iterator[tuple[Report, Report]]:
    """Yield for each kind a pair of reports that may come from one machine, if there is one."""
    for cause, other, place in kinds:
        every = [p for p in product(_by_cause().get(cause, ()), _by_cause().get(other, ())) if _may_be_one(*p)]
        if every:
            yield every[place * 7 % len(every)]


KINDS = tuple(_kinds())
PAIRS = tuple(_pairs(sample(KINDS, "merged", str, 90)))


@pytest.mark.long
def test_most_pairs_of_cause_and_consequence_are_tried() -> None:
    assert len(tuple(_pairs(KINDS))) >= 1000


@pytest.mark.parametrize(("root", "consequence"), PAIRS, ids=[f"{one.name}-{two.name}" for one, two in PAIRS])
def test_cause_is_the_only_root_of_merged_reports(root: Report, consequence: Report) -> None:
    assert roots([*root.evidence, *consequence.evidence]) == (root.cause,)


# Evidence beside the fault: settings and logs that are unrelated to GPUs.
_AROUND = ("unit-files-lib", "file:/etc/environment", "file:/etc/default/grub", "modules-load-d", "file:/etc/modules",
           "locks", "reloads", "log:containerd", "log:kubelet")  # fmt: skip
_LOGS = ("reloads", "log:containerd", "log:kubelet")
_NOISE = """pcieport 0000:30:01.0: PME: Signaling with IRQ 122
pcieport 0000:30:01.0: AER: enabled with IRQ 122
pcieport 0000:30:01.0: pciehp: Slot #9 AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug+ Surprise+ Interlock- NoCompl+
EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.
docker0: port 1(veth1a2b3c4) entered blocking state
perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate to 79750
"""


@pytest.mark.parametrize("report", some_reports("well around it"), ids=lambda report: report.name)
def test_evidence_of_a_healthy_node_changes_nothing(report: Report) -> None:
    rows = tuple((piece["source"], piece["text"]) for piece in (*report.evidence, {"source": "dmesg", "text": _NOISE}))
    assert faults(diagnose(take_snapshot({**_around(), **pasted.collect_pieces(rows)}))) == faults_in(report)


@cache
def _around() -> dict[str, Capture]:
    seen = evidence(HEALTHY["kubeadm-with-device-plugin"]())
    found = {key: seen[key] for key in _AROUND}
    for key in _LOGS:
        kept = (line for line in seen[key].text.splitlines(keepends=True) if "evice plugin" not in line)
        found[key] = replace(seen[key], data="".join(kept).encode())
    return found
