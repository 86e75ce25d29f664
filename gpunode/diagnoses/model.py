"""Define the parts of a diagnosis: evidence, rules, findings and remedies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from gpunode.diagnoses.cause_texts import CauseText, find_text
from gpunode.diagnoses.commands import Command, Shell, command, join_commands, lacks_gpu_address
from gpunode.fast_dataclass import dataclass

if TYPE_CHECKING:
    from gpunode.diagnoses.snapshot import Snapshot

# The layers of a node, each built on the ones before it.
StackLayer: TypeAlias = Literal[
    "pci", "gpu", "kernel", "packages", "driver", "fabric", "libraries", "toolkit", "runtime", "programs", "kubernetes"
]
STACK_LAYERS: Final[tuple[StackLayer, ...]] = (
    *("pci", "gpu", "kernel", "packages", "driver", "fabric", "libraries"),
    *("toolkit", "runtime", "programs", "kubernetes"),
)
# error: something does not work. warning: it works, but degraded or not for long. info: not a fault.
Severity: TypeAlias = Literal["error", "warning", "info"]
# certain: the evidence leaves no other cause. likely: another cause is possible, but nothing points to one.
Confidence: TypeAlias = Literal["certain", "likely"]
FindingBasis: TypeAlias = Literal["signs", "ranking"]
Disruption: TypeAlias = Literal[
    "none", "restart-container", "restart-service", "reset-gpu", "reboot", "power-cycle", "RMA"
]
DISRUPTIONS: Final[tuple[Disruption, ...]] = (
    *("none", "restart-container", "restart-service", "reset-gpu", "reboot", "power-cycle", "RMA"),
)  # fmt: skip
FixKind: TypeAlias = Literal[
    "install",  # packages: added or changed to another version
    "remove",  # packages, files or drivers removed
    "configure",  # a file or setting edited, or a configuration generated
    "rebuild",  # a module, initramfs, index or specification generated again
    "load",  # a kernel module loaded or reloaded
    "restart",  # a daemon, a container or a pod
    "reset",  # a GPU or its fabric
    "reboot",  # or a cold power cycle
    "drain",  # work moved to other nodes first
    "firmware",  # a setting or update of BIOS, VBIOS, hypervisor
    "hardware",  # work on the machine: seating, cables, slots, cooling
    "replace",  # RMA
    "application",  # the failing program
    "inspect",  # look at the named evidence, which decides the next step
    "wait",
]


@dataclass(frozen=True, slots=True)
class Citation:
    """A line of the evidence, or in parentheses a conclusion that no single line shows.

    Attributes:
        source: the file or command, as the evidence names it.
        line: the whole line, or the relevant part of a very long one.
        line_number: counted from 1 within the source; None for text by gpunode itself.
        key: identifies the evidence; not shown.
    """

    source: str
    line: str
    line_number: int | None = None
    key: str = ""

    @property
    def text(self) -> str:
        """The source and the line; the same file or command may be cited without a line."""
        return f"{self.source}\n{self.line}"


@dataclass(frozen=True, slots=True)
class Fix:
    """A step of a remedy.

    Attributes:
        text: an imperative sentence without a full stop.
        commands: to type on the node; empty if the step is manual.
        when: the condition under which the step applies; empty if it always does.
    """

    kind: FixKind
    text: str
    commands: tuple[Command, ...] = ()
    when: str = ""


MAX_NEXT_STEP_LENGTH: Final = 100
_COMMAND_SEPARATORS: Final = (";", "&&", "||", "\n")
# These steps remove something or stop work, so a likely cause, or a pasted one, is confirmed before them.
_DISRUPTIVE_KINDS: Final[frozenset[FixKind]] = frozenset({"remove", "reset", "reboot", "drain", "replace", "hardware"})


@dataclass(frozen=True, slots=True)
class NextStep:
    """A command or a described step: the same on the screen, in JSON, on the page and in a fleet.

    Attributes:
        text: the step as a sentence.
        command: one command, with the making of its folder, of at most ``MAX_NEXT_STEP_LENGTH`` characters; None if the
            step is manual.
    """

    text: str
    command: Command | None

    @property
    def label(self) -> str:
        """The command, or the text of the step."""
        return self.command or self.text


# Works without the driver.
_LIST_GPUS_COMMAND: Final = command("lspci", "-D", "-d", "10de:")


def is_single_command(typed: str) -> bool:
    """Return whether ``typed`` is one short command, or one pipe of them."""
    return 0 < len(typed) <= MAX_NEXT_STEP_LENGTH and not any(one in typed for one in _COMMAND_SEPARATORS)


def choose_next_step(
    cause: str, title: str, remedy: Sequence[Fix], look_at: Sequence[Command], basis: FindingBasis = "signs"
) -> NextStep:
    """Return the first step of the remedy, as a command if it is a short one.

    The commands in ``look_at`` come first if only the ranking supports the cause, or if the step removes something or
    is done by hand. Before a step for a GPU whose address is unknown, they find it.
    """
    first = next(iter(remedy), None)
    look = next((one for one in look_at if is_single_command(one)), None)
    if first is None:
        return NextStep(title, look or command("gpunode", "doctor", cause))
    if lacks_gpu(remedy):
        return NextStep(f"find the GPU: {title}", look or _LIST_GPUS_COMMAND)
    done = _unconditional_command(first)
    if look is not None and (done is None or starts_with_disruption(remedy) or basis == "ranking"):
        return NextStep(f"make sure of it: {title}", look)
    return NextStep(first.text, done)


def lacks_gpu(remedy: Sequence[Fix]) -> bool:
    """Return whether the first step needs the address of a GPU that is not known."""
    return any(lacks_gpu_address(typed) for fix in remedy[:1] for typed in fix.commands)


def starts_with_disruption(remedy: Sequence[Fix]) -> bool:
    """Return whether the first step removes something or stops work."""
    return any(fix.kind in _DISRUPTIVE_KINDS for fix in remedy[:1])


def _unconditional_command(fix: Fix) -> Command | None:
    """Return the first command of the step, if it is a single short command without a condition.

    To make a folder does nothing yet, so it is joined with the command that needs the folder.
    """
    fitting = fix.commands[:1] if not fix.when else ()
    if any(one.startswith(("mkdir -p ", "sudo mkdir -p ")) for one in fitting) and len(fix.commands) > 1:
        both = join_commands(fix.commands[0], Shell("&&"), fix.commands[1])
        return both if len(both) <= MAX_NEXT_STEP_LENGTH else None
    return next((one for one in fitting if is_single_command(one)), None)


@dataclass(frozen=True, slots=True)
class Proof:
    """A match of a rule: its cause is present on this node.

    Attributes:
        summary: one sentence, with the names and versions of this node.
        gpu: PCI address, else UUID or index, if one GPU is affected; empty if unknown.
        at: onset in seconds, on the clock of the log; the earlier of two faults may be the root.
        remedy: overrides the rule's remedy unless empty.
        disruption: overrides the rule's disruption unless None.
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
class OpenQuestion:
    """A question that the evidence leaves open, without a suspected cause.

    Attributes:
        question: one sentence.
        look_at: the commands that would answer it.
    """

    question: str
    look_at: tuple[Command, ...]
    citations: tuple[Citation, ...] = ()


ProofReader: TypeAlias = "Callable[[Snapshot], Iterable[Proof]]"
Remedy: TypeAlias = "Callable[[Snapshot], Iterable[Fix]]"
# Returns the lines that speak for or against a cause; see ``signs``.
Sign: TypeAlias = "Callable[[Snapshot], tuple[Citation, ...]]"


def match_nothing(_: Snapshot) -> tuple[Citation, ...]:
    """Return no lines: a sign that never matches."""
    return ()


@dataclass(frozen=True, slots=True)
class Rule:
    """A cause: how to detect it, what it breaks and how to fix it.

    A cause is declared by its signs, or found by a function that weighs numbers, versions or times. ``decisive`` with a
    symptom makes it certain. ``decisive`` alone, or ``typical``, makes it likely. A symptom alone makes it a suspect.

    Attributes:
        cause: its id, also that of its section in ``causes/FAMILY.md``.
        explains: causes that are consequences of this one if both are found.
        layer: the layer of the node that shows the fault.
        disruption: the least interruption by the remedy; a law compares it with the remedy's commands.
        check: a function that detects the cause; the signs are tried if it finds nothing.
        decisive: evidence that no other cause shows.
        typical: evidence that this cause shows far more often than any other.
        symptoms: evidence shared with other causes; empty if ``decisive`` is certain by itself.
        against: evidence that rules the cause out.
        context: evidence that makes the cause a likelier suspect without showing a fault.
        rivals: causes with the same evidence; none is certain while another of them is found.
        may_be_normal: a healthy node may show it too, so a full examination must find a symptom as well.
        latent: evidence that the node works until its next boot or upgrade; the severity is then a warning.
        look_at: commands that would confirm the cause.
        share: rough percentage of public reports with this cause, by default for 0.6 to 1.2; it only orders suspects.
        summary: one sentence about this node; if None or empty, the title is used.
    """

    cause: str
    layer: StackLayer
    remedy: Remedy
    disruption: Disruption = "none"
    severity: Severity = "error"
    check: ProofReader | None = None
    explains: frozenset[str] = frozenset()
    decisive: Sign = match_nothing
    typical: Sign = match_nothing
    symptoms: tuple[Sign, ...] = ()
    against: tuple[Sign, ...] = ()
    context: Sign = match_nothing
    rivals: frozenset[str] = frozenset()
    may_be_normal: bool = False
    latent: Sign = match_nothing
    look_at: tuple[Command, ...] = ()
    share: float = 0.6
    summary: Callable[[Snapshot], str] | None = None

    @property
    def text(self) -> CauseText:
        """The title, story and sources for readers."""
        return find_text(self.cause)

    @property
    def title(self) -> str:
        """A few words on what is wrong."""
        return self.text.title


@dataclass(frozen=True, slots=True)
class RuleFamily:
    """The rules of one module; ``id`` is the name of the module and of its page of texts."""

    id: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class FaultOnset:
    """The time at which a fault began on a GPU.

    Attributes:
        gpu: PCI address; empty if unknown.
        at: seconds on ``clock``.
        clock: times compare only on the same clock; empty if unknown.
    """

    gpu: str
    at: float
    clock: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A detected cause.

    Attributes:
        ruled_out: for a root cause, the other causes of its symptoms with the evidence against each.
        explained_by: the cause whose consequence this is; empty for a root cause.
        gpus: the affected GPUs, named as in ``Proof.gpu``; empty if all or unknown.
        at: earliest onset in seconds.
        onsets: the known onsets on individual GPUs.
        is_past: only an earlier boot showed it.
        container_log: on an examined node, the container log that is the only source of the finding; else empty.
        basis: signs of the cause, or the ranking of suspects.
        look_at: the commands to run before the remedy. For a likely cause, those that would decide and whose output is
            not there yet. For a certain one, those that find the GPU if the remedy needs it, or the one that examines
            the node if the evidence is a text from elsewhere and the remedy starts with a disruption.
    """

    cause: str
    title: str
    layer: StackLayer
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
    onsets: tuple[FaultOnset, ...] = ()
    is_past: bool = False
    container_log: str = ""
    basis: FindingBasis = "signs"
    look_at: tuple[Command, ...] = ()

    @property
    def next_step(self) -> NextStep:
        """The first step, or the check that comes before it."""
        return choose_next_step(self.cause, self.title, self.remedy, self.look_at, self.basis)


@dataclass(frozen=True, slots=True)
class Suspect:
    """A cause that fits the evidence but is not proven by it.

    Attributes:
        citations: the symptoms.
        look_at: commands that would decide and whose output is not there yet.
    """

    cause: str
    title: str
    citations: tuple[Citation, ...]
    look_at: tuple[Command, ...]

    @property
    def next_step(self) -> NextStep:
        """The command that would decide; if all were run, the command that explains the cause and its remedy."""
        fitting = next((one for one in self.look_at if is_single_command(one)), None)
        return NextStep(self.title, fitting or command("gpunode", "doctor", self.cause))


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The findings, root cause first, and the open questions.

    Attributes:
        suspects: the most likely causes of unexplained symptoms, most likely first.
        bugs: tracebacks of rules that crashed; each is an open question as well.
        unexplained: failures that no finding explains, each with its likeliest cause.
        shared_steps: the steps with which the remedies of all leading suspects begin.
    """

    findings: tuple[Finding, ...]
    open_questions: tuple[OpenQuestion, ...]
    bugs: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    unexplained: tuple[Suspect, ...] = ()
    shared_steps: tuple[Fix, ...] = ()

    @property
    def next_step(self) -> NextStep | None:
        """The next step for the first root, else for the suspects; None if there is neither."""
        faults = [root for root in self.roots if root.severity != "info"]
        if faults:
            return faults[0].next_step
        if not self.suspects:
            return None
        first = self.suspects[0]
        # What would point to the suspect may be known to be no fault.
        known = next((root for root in self.roots if first.citations and {*first.citations} <= {*root.citations}), None)
        if known:
            return known.next_step
        shared = self.shared_steps
        if not shared or (starts_with_disruption(shared) and not first.look_at):
            return first.next_step
        return choose_next_step(first.cause, first.title, shared, first.look_at)

    @property
    def roots(self) -> tuple[Finding, ...]:
        """The findings that no other finding explains."""
        return tuple(finding for finding in self.findings if not finding.explained_by)

    def consequences_of(self, root: Finding) -> tuple[Finding, ...]:
        """Return the findings that ``root`` explains."""
        return tuple(finding for finding in self.findings if finding.explained_by == root.cause)

    @property
    def is_healthy(self) -> bool:
        """True if no finding is a fault."""
        return all(finding.severity == "info" for finding in self.findings)
