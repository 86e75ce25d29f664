"""What a diagnosis is made of: what is there to see, what was concluded from it, and what is to be done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gpunode.diagnoses.commands import Command

if TYPE_CHECKING:
    from gpunode.diagnoses.snapshot import Snapshot

Layer: TypeAlias = Literal[
    "hardware",
    "power-thermal",
    "pci",
    "kernel",
    "package",
    "driver",
    "nvlink",
    "userspace",
    "toolkit",
    "config",
    "runtime",
    "cdi",
    "kubernetes",
]
# The parts of a node that stand on one another, the lowest first.
StackLayer: TypeAlias = Literal[
    "pci",
    "gpu",
    "kernel",
    "packages",
    "driver",
    "fabric",
    "libraries",
    "toolkit",
    "runtime",
    "programs",
    "kubernetes",
]
STACK: Final[tuple[StackLayer, ...]] = (
    *("pci", "gpu", "kernel", "packages", "driver", "fabric", "libraries"),
    *("toolkit", "runtime", "programs", "kubernetes"),
)
_IN_STACK: Final[Mapping[Layer, StackLayer]] = {
    "hardware": "gpu",
    "power-thermal": "gpu",
    "pci": "pci",
    "kernel": "kernel",
    "package": "packages",
    "driver": "driver",
    "nvlink": "fabric",
    "userspace": "libraries",
    "toolkit": "toolkit",
    "cdi": "toolkit",
    "config": "runtime",
    "runtime": "runtime",
    "kubernetes": "kubernetes",
}
# error: something does not work. warning: it works, and will not for long, or not as it could. info: not a fault.
Severity: TypeAlias = Literal["error", "warning", "info"]
# certain: what was seen leaves no other cause. likely: another is possible, and none was seen.
Confidence: TypeAlias = Literal["certain", "likely"]
Disruption: TypeAlias = Literal[
    "none", "restart-container", "restart-service", "reset-gpu", "reboot", "power-cycle", "RMA"
]
DISRUPTIONS: Final[tuple[Disruption, ...]] = (
    *("none", "restart-container", "restart-service", "reset-gpu", "reboot", "power-cycle", "RMA"),
)  # fmt: skip
FixKind: TypeAlias = Literal[
    "install",  # packages, added or brought to a version
    "remove",  # packages, files or drivers, taken away
    "configure",  # a file or setting edited, a configuration generated
    "rebuild",  # a module, an initramfs, an index, a specification made anew
    "load",  # a kernel module loaded or reloaded
    "restart",  # a daemon, a container or a pod
    "reset",  # of a GPU or its fabric
    "reboot",  # or a cold power cycle
    "drain",  # work moved away first
    "firmware",  # a setting or update of BIOS, VBIOS, hypervisor
    "hardware",  # a hand at the machine: seat, cable, slot, cooling
    "replace",  # RMA
    "application",  # the program that asks
    "inspect",  # look at the named thing, which decides what comes next
    "wait",
]


@dataclass(frozen=True, slots=True)
class Citation:
    """A line that proves something, or in parentheses what the evidence comes to without one line that says so.

    Attributes:
        source: where it stands, as it was written there.
        line: the line, whole; of one that is very long the part that proves it.
        number: counted from 1 within that piece of evidence; None where the words are gpunode's own.
        key: of the evidence; not shown.
    """

    source: str
    line: str
    number: int | None = None
    key: str = ""

    @property
    def words(self) -> str:
        """Source and line: of what has no line, a file that is there or a command that was run, the one names it."""
        return f"{self.source}\n{self.line}"


@dataclass(frozen=True, slots=True)
class Fix:
    """One thing to be done.

    Attributes:
        text: in words, an imperative sentence without a full stop.
        commands: as they are typed on the node, as root where they say sudo; none where a person's hand is needed.
        when: the condition under which it is done; empty where it always is.
    """

    kind: FixKind
    text: str
    commands: tuple[Command, ...] = ()
    when: str = ""


@dataclass(frozen=True, slots=True)
class Proof:
    """What a rule says when its cause is there.

    Attributes:
        summary: one sentence, with the names and versions of this node.
        gpu: PCI address, else UUID or the index that somebody asked by, where one GPU is concerned; empty where
            nothing tells which.
        at: seconds on the evidence's own clock, where the time is known: of two faults the earlier may be the root.
        remedy: where it hangs on what was found; empty takes the rule's.
        disruption: where it hangs on what was found; None takes the rule's.
    """

    summary: str
    citations: tuple[Citation, ...] = ()
    confidence: Confidence = "certain"
    gpu: str = ""
    at: float | None = None
    remedy: tuple[Fix, ...] = ()
    disruption: Disruption | None = None
    severity: Severity | None = None


@dataclass(frozen=True, slots=True)
class Doubt:
    """What could not be told, and no cause is suspected of.

    Attributes:
        question: one sentence.
        look_at: the command or file that would tell.
    """

    question: str
    look_at: tuple[Command, ...]
    citations: tuple[Citation, ...] = ()


Check: TypeAlias = "Callable[[Snapshot], Iterable[Proof]]"
Remedy: TypeAlias = "Callable[[Snapshot], Iterable[Fix]]"
# The lines in which something stands that speaks for a cause or against it; see ``signs``.
Sign: TypeAlias = "Callable[[Snapshot], tuple[Citation, ...]]"


def never(_: Snapshot) -> tuple[Citation, ...]:
    """A sign that is never seen."""
    return ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One cause: how it is found, what it breaks, what is to be done.

    A cause is declared by its signs, or found by a function where numbers, versions or times have to be weighed.
    ``decisive`` and a symptom make it certain. ``decisive`` alone makes it likely, since of all that a node has
    somebody chose to show this; so does what is ``typical``. A symptom alone makes it a suspect.

    Attributes:
        cause: its id.
        title: what is wrong, a few words.
        story: what happens, why, and how it looks from above; paragraphs of plain text.
        sources: addresses of the public texts that the facts come from.
        explains: causes that are this one's consequences when both are found.
        layer: what sort of thing is wrong.
        in_stack: where in the stack it shows, where that is not where its layer lies.
        check: the function, of a cause that is not declared; where it finds nothing, the signs are looked for.
        decisive: what no other cause shows.
        typical: what this cause shows far more often than any other.
        symptoms: what several causes show; none where ``decisive`` needs none to be certain.
        against: what rules the cause out.
        context: what goes with the cause, and makes it a likelier suspect; of itself it shows no fault.
        rivals: causes that show the same; while one of them is found as well, none is certain.
        may_be_normal: whether a healthy node may show it, too; where gpunode itself looked, it then needs a symptom.
        later: what shows that the node works until its next boot or upgrade: then it is a warning.
        look_at: what shows whether it is this.
        share: of the reports that people write, how many in a hundred are of it, roughly; it orders suspects alone.
        summary: one sentence about this node; empty takes the title.
    """

    cause: str
    layer: Layer
    disruption: Disruption
    title: str
    story: str
    sources: tuple[str, ...]
    remedy: Remedy
    severity: Severity = "error"
    check: Check | None = None
    explains: frozenset[str] = frozenset()
    decisive: Sign = never
    typical: Sign = never
    symptoms: tuple[Sign, ...] = ()
    against: tuple[Sign, ...] = ()
    context: Sign = never
    rivals: frozenset[str] = frozenset()
    may_be_normal: bool = False
    later: Sign = never
    look_at: tuple[Command, ...] = ()
    share: float = 0.5
    summary: str | Callable[[Snapshot], str] = ""
    in_stack: StackLayer | None = None

    @property
    def stack_layer(self) -> StackLayer:
        """Where in the stack it lies."""
        return self.in_stack or _IN_STACK[self.layer]


@dataclass(frozen=True, slots=True)
class Family:
    """The rules of one file, with the name under which the documentation has them."""

    id: str
    title: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """When a fault began on a GPU.

    Attributes:
        gpu: PCI address; empty where it is not told.
        at: seconds on ``clock``.
        clock: times of equal clocks compare, no others do; empty for a clock of which nothing is known.
    """

    gpu: str
    at: float
    clock: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause that was found.

    Attributes:
        ruled_out: of a root, other causes of the same symptoms, each with what speaks against it.
        explained_by: the cause whose consequence this is; empty for a root.
        gpus: those concerned, where it concerns some only and anything tells which: as ``Proof.gpu``.
        at: seconds, when it began first.
        events: when it began on each GPU, where the time is known.
        is_past: whether a boot before the running one showed it, and this one does not.
        heard_from: who says so, where the node was looked at and only a container's word proves it; else empty.
    """

    cause: str
    title: str
    layer: Layer
    stack_layer: StackLayer
    severity: Severity
    confidence: Confidence
    summary: str
    citations: tuple[Citation, ...]
    remedy: tuple[Fix, ...]
    disruption: Disruption
    sources: tuple[str, ...]
    ruled_out: tuple[str, ...] = ()
    explained_by: str = ""
    gpus: tuple[str, ...] = ()
    at: float | None = None
    events: tuple[Event, ...] = ()
    is_past: bool = False
    heard_from: str = ""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A cause that what was seen fits, and that nothing seen decides.

    Attributes:
        citations: the symptoms.
        look_at: what would decide.
    """

    cause: str
    title: str
    citations: tuple[Citation, ...]
    look_at: tuple[Command, ...]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What was found, the root cause first, and what could not be told.

    Attributes:
        suspects: the likeliest causes of what no finding explains, the likeliest first.
        bugs: tracebacks of rules that failed by a bug of their own; each is a doubt, too.
    """

    findings: tuple[Finding, ...]
    unknown: tuple[Doubt, ...]
    bugs: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] = ()

    @property
    def roots(self) -> tuple[Finding, ...]:
        """The findings that nothing else explains."""
        return tuple(finding for finding in self.findings if not finding.explained_by)

    def below(self, root: Finding) -> tuple[Finding, ...]:
        """The consequences of that root."""
        return tuple(finding for finding in self.findings if finding.explained_by == root.cause)

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong, as far as could be seen."""
        return all(finding.severity == "info" for finding in self.findings)
