"""What a session at one shell shows in the end: of a question that was asked again, the later answer holds.

People paste the fault, what they did about it, and that it works now. What was typed later at the same shell was seen
later; of things that were pasted each for itself, nobody knows that. A success ends the failures of the same thing and
of nothing else: the same command, the driver that nvidia-smi reaches, the unit that is active, the packages' lock.
A module that was loaded by hand, or a register that was set, is an experiment: it shows what was wrong, and the node
is as before at its next start.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from typing import Final, TypeAlias

from gpunode.facts import slips, topics
from gpunode.facts.mends import PACKAGERS, Part, is_edit, mended_by, parts
from gpunode.facts.patterns import Pattern
from gpunode.facts.readings import has_fewer, stands_for
from gpunode.facts.sources import (
    STILL_FAILS,
    Command,
    Kind,
    Source,
    changes_state,
    commands,
    program,
    recognise,
    unit_name,
)


@dataclass(frozen=True)
class Step:
    """One command of a session.

    Attributes:
        source: the command, as a piece of evidence is named.
        said: what it answered.
        prompt: that it was typed at; None where it was pasted for itself.
        machine: that answered; empty where nobody says which.
    """

    source: str
    said: str
    prompt: str | None = None
    machine: str = ""

    @cached_property
    def seen(self) -> Source:
        """What it is."""
        return recognise(self.source)

    @cached_property
    def commands(self) -> tuple[Command, ...]:
        """The commands of the line."""
        return commands(self.source)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The words of its one command; empty where it has several, or changes what the program finds."""
        is_one = len(self.commands) == 1 and not _ASSIGNED.match(self.source)
        return self.commands[0].words if is_one else ()


_ASSIGNED: Final = Pattern(r"(?:sudo |env )*[A-Z_]{2,60}=")
# What a success is a success of, and what a failure is one of.
Thing: TypeAlias = tuple[str, ...]
# Nobody types more before they paste it.
_MOST_STEPS: Final = 400


def settled(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps without the answers that a later one of the same shell has overtaken."""
    if not 1 < sum(step.prompt is not None for step in steps) <= _MOST_STEPS:
        yield from steps
        return
    steps = tuple(_as_found(steps))
    shells = _shells(steps)
    answers = [_answer(step, is_last=step is steps[-1]) for step in steps]
    changed = [_changed(step) for step in steps]
    trials = [0, *accumulate(int(_is_trial(step)) for step in steps)]
    for at, answer in enumerate(answers):
        left: _Answer | None = answer
        mended = len(steps) if _recurs(at, steps, answers, changed) else _mended_at(at, answer.step, changed)
        for later in range(at + 1, len(steps)):
            is_changed = later > mended
            is_trial = trials[later + 1] > trials[at + 1] and not is_changed
            if left is not None and shells[at] and shells[at] == shells[later] and not is_trial:
                left = _after(left, answers[later], is_changed=is_changed)
        if left is not None:
            yield left.step


def _as_found(steps: Sequence[Step]) -> Iterator[Step]:
    """Without what shows the module only since it was loaded by hand, and nothing else was done."""
    is_mended = is_repaired = False
    for step in steps:
        is_fine = step.seen.kind in _OF_MODULE and not STILL_FAILS.search(step.said)
        if step.prompt is not None and is_mended and not is_repaired and is_fine:
            continue
        is_repaired = is_repaired or "node" in _changed(step)
        is_mended = is_mended or (_loads_driver(step) and not step.said.strip())
        yield step


# They would be otherwise without the module; what nvidia-smi -q tells of a GPU, and what a container gets, would not.
_OF_MODULE: Final[frozenset[Kind]] = frozenset({"lsmod", "nvidia-smi", "listing"})


def _loads_driver(step: Step) -> bool:
    return step.seen.kind == "modprobe" and changes_state(step.seen) and step.seen.subject == "nvidia"


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a step tells.

    Attributes:
        question: what was asked.
        fails: whether it is a complaint.
        proven: what it shows to work.
        concerned: what a success must be of, so that the complaint is over.
    """

    step: Step
    question: Thing
    fails: bool
    proven: frozenset[Thing]
    concerned: frozenset[Thing]


def _answer(step: Step, *, is_last: bool) -> _Answer:
    asked = {question} if (question := _question(step)) else set()
    is_complaint = _fails(step)
    works = step.prompt is not None and not is_complaint and _works(step, is_last=is_last)
    return _Answer(
        step,
        question,
        is_complaint,
        frozenset(asked | _proven(step)) if works else frozenset(),
        frozenset(asked | _concerned(step)) if is_complaint else frozenset(),
    )


def _after(answer: _Answer, later: _Answer, *, is_changed: bool) -> _Answer | None:
    """What the answer still shows after the later one; None where that is nothing.

    What fails once and works the next time, though nobody did anything, may fail again: such a failure stays.
    """
    step = answer.step
    if step.seen.kind == "lspci" == later.step.seen.kind and not later.step.seen.is_mixed:
        return _without_told_again(answer, later, is_changed=is_changed)
    is_same = bool(answer.question) and answer.question == later.question
    is_same = is_same or topics.asks_again(later.step.seen, step.seen, step.said)
    if is_same and step.seen.kind in _VALUES:
        return answer if _REFUSED.search(later.step.said) else None
    if _is_replaced(answer, later, is_same=is_same, is_changed=is_changed):
        return None
    if step.seen.kind == "unit-log" and ("unit", step.seen.subject) in later.proven:
        left = _since_start(step)
        return None if left is None else replace(answer, step=left)
    return None if _is_ended(answer, later, is_same=is_same, is_changed=is_changed) else answer


def _is_replaced(answer: _Answer, later: _Answer, *, is_same: bool, is_changed: bool) -> bool:
    """Whether the later answer stands in the place of the earlier one, whether or not either complains."""
    step = answer.step
    if slips.is_corrected(step.words, step.said, later.step.words, later.step.said):
        return True
    reading = (step.seen, step.said, later.step.said)
    if is_same and (has_fewer(*reading) or (is_changed and stands_for(*reading))):
        return True
    is_runtimes = is_same and is_changed and step.seen.kind == "container-run" and answer.fails and later.fails
    if is_runtimes and not _FORBIDDEN.search(later.step.said):
        return True  # what the runtime was told since then, it says something else of
    return is_changed and ("module", "nvidia") in later.proven and step.seen.subject in _OF_LOADED


def _is_ended(answer: _Answer, later: _Answer, *, is_same: bool, is_changed: bool) -> bool:
    """Whether what the answer complains of works by the later one, or fails for another reason."""
    said = answer.step.said
    if _FORBIDDEN.search(said) and _is_roots(later.step) and not _is_roots(answer.step):
        return False
    if _OF_HARDWARE.search(said) and answer.step.seen.kind in _PROGRAMS:
        return False
    if is_same and is_changed and _fails_otherwise(answer, later):
        return True
    ended = later.proven & answer.concerned
    is_over = bool(ended) if is_changed else bool(ended & _by_themselves(answer))
    return is_over and _gpus(said) <= _gpus(later.step.said)


def _fails_otherwise(answer: _Answer, later: _Answer) -> bool:
    """Whether the node itself refuses for another reason now: what the earlier said of it was before the mend.

    A program that fails otherwise may only fail earlier.
    """
    if not (answer.fails and later.fails) or answer.step.seen.kind not in _OF_NODE or _gpus(answer.step.said):
        return False
    return not _FORBIDDEN.search(later.step.said) and not _is_alike(answer.step.said, later.step.said)


_OF_NODE: Final[frozenset[Kind]] = frozenset({"modprobe", "nvidia-smi", "dkms-output", "unit-action", "package-output"})


def _without_told_again(answer: _Answer, later: _Answer, *, is_changed: bool) -> _Answer | None:
    """What an answer of lspci shows besides what the later one tells anew; None where that is nothing."""
    said = answer.step.said
    left = topics.without_told_again(said, (later.step.said,), is_changed=is_changed)
    if left == said:
        return answer
    return replace(answer, step=replace(answer.step, said=left)) if left.strip() else None


# A program that runs again shows nothing of memory or links that failed.
_OF_HARDWARE: Final = Pattern(r"\bECC\b|[Nn][Vv][Ll]ink|\bXid\b|fallen off|is lost|uncorrectable")
_PROGRAMS: Final[frozenset[Kind]] = frozenset({"application", "container-run", "text"})


def _by_themselves(answer: _Answer) -> frozenset[Thing]:
    """Of what the complaint is about, what passes without anybody's doing: a lock is let go, a unit is up."""
    asked = {answer.question} if ("lock",) in answer.concerned or answer.step.seen.kind == "unit-status" else set()
    return frozenset(thing for thing in answer.concerned if thing[0] in {"lock", "unit"} or thing in asked)


# What root may do shows nothing of what its user may not.
_FORBIDDEN: Final = Pattern(r"[Pp]ermission|not permitted|[Dd]enied|must be root|EACCES|EPERM")


def _is_roots(step: Step) -> bool:
    return step.source.startswith("sudo ") or bool(step.prompt and _ROOTS_PROMPT.search(step.prompt))


_ROOTS_PROMPT: Final = Pattern(r"\broot@|#\s*$")


_BUS: Final = Pattern(r"\b(?:(?P<domain>[0-9a-f]{4,8}):)?(?P<slot>[0-9a-f]{2}:[0-9a-f]{2})\.[0-7]\b", re.IGNORECASE)


def _gpus(said: str) -> frozenset[tuple[int, str]]:
    """The addresses that an answer names: of a GPU that a complaint names, the success must tell too."""
    return frozenset((int(match["domain"] or "0", 16), match["slot"].lower()) for match in _BUS.finditer(said))


# What has one value at a time. GPUs that are missing later, and what a log has, are there beside the earlier.
_VALUES: Final[tuple[Kind, ...]] = (
    *("file", "unit-status", "unit-show", "unit-file", "lsmod", "dkms-status", "packages", "package-policy", "mokutil"),
    *(
        "modinfo",
        "initramfs",
        "ldconfig",
        "listing",
        "which",
        "docker-info",
        "containerd-config",
        "uname",
        "nvidia-ctk",
    ),
)
_LOGS: Final[frozenset[Kind]] = frozenset({"kernel-log", "journal", "unit-log", "kubernetes-log", "audit", "make-log"})
_REFUSED: Final = Pattern(r"[Pp]ermission denied|not permitted|command not found|[Aa]ccess denied|must be root")
# Of the loaded module; nvidia-smi shows its version, too.
_OF_LOADED: Final = frozenset({"/proc/driver/nvidia/version", "/sys/module/nvidia/version"})


def _question(step: Step) -> Thing:
    """What was asked: the same in the ways in which people repeat themselves."""
    seen = step.seen
    if step.prompt is None or not step.commands or seen.kind in _LOGS:
        return ()
    if seen.kind == "file" and not (seen.only or seen.is_part or seen.is_mixed):
        return ("file", seen.where, seen.subject)
    if _ASSIGNED.match(step.source):
        return (seen.where, step.source)
    lines = [_normal(words) for command in step.commands for words in (command.words, *command.filters) if words]
    return (seen.where, *(word for words in lines for word in (*words, "|")))


_SAME: Final = {"apt-get": "apt", "aptitude": "apt", "yum": "dnf"}
# They change nothing of what a container is given, or of what is installed.
_IDLE: Final = frozenset({"--rm", "-it", "-ti", "-t", "-d", "--interactive", "--tty", "--detach", "-y", "--yes"})
_ENGINES: Final = frozenset({"docker", "podman", "nerdctl", "ctr"})


def _normal(words: tuple[str, ...]) -> tuple[str, ...]:
    is_free = words[0] in _ENGINES | PACKAGERS
    rest = [word for word in words[1:] if not (is_free and word in _IDLE)]
    if words[0] in _ENGINES and "nvidia-smi" in rest:
        rest = rest[: rest.index("nvidia-smi") + 1]
    return (_SAME.get(words[0], words[0]), *rest)


def _fails(step: Step) -> bool:
    """Whether the answer is a complaint."""
    kind = step.seen.kind
    if kind == "unit-status":
        return bool(_DOWN.search(step.said))
    if kind == "package-output":
        return bool(_NOT_PACKED.search(step.said))
    return bool(_FAILS.search(step.said))


_DOWN: Final = Pattern(
    r"^[ \t]*(?:failed|inactive|activating|deactivating)\s*$|Active: (?:failed|inactive|activating)", re.MULTILINE
)
_UP: Final = Pattern(r"^[ \t]*active\s*$|Active: active \((?:running|exited)\)", re.MULTILINE)
_PACKED: Final = Pattern(
    r"^(?:Setting up |Unpacking |Reading package lists\.{3} Done|Hit:|Get:|Fetched |Complete!|Installed:|Upgraded:"
    r"|Metadata cache created)|All packages are up to date",
    re.MULTILINE,
)
_NOT_PACKED: Final = Pattern(
    r"^[ \t]*(?:E:|W: (?:GPG|Some|An error)|Err:|Error|ERROR|dpkg: (?:error|dependency)|Problem|Bad return)"
    r"|[Ff]ailed|Errors were|unmet|NO_PUBKEY|[Cc]ould ?n.t|[Cc]ould not|not signed|Aborted|exit status [1-9]"
    r"|[Cc]onflict|nothing provides|No match|\bAbort",
    re.MULTILINE,
)
_FAILS: Final = Pattern(
    r"\b(?:error|fail(?:ed|s|ure)?|fatal|couldn.t|cannot|can.t|could not|unable(?! to find image)|no devices|no such"
    r"|denied|refused|is lost|mismatch|invalid|unresolvable|unsupported|aborted|core dumped|timed? ?out|traceback"
    r"|not (?:found|loaded|supported|permitted|available|initialized|ready)|killed|unknown|insufficient|unhealthy"
    r"|rejected|exception)(?!\w)|[a-z]Error\b|ERR!",
    re.IGNORECASE,
)


def _works(step: Step, *, is_last: bool) -> bool:
    """Whether the command did what it was asked for; of a silent one, whether the shell asked for another after it."""
    kind, said = step.seen.kind, step.said.strip()
    if kind == "unit-status":
        return bool(_UP.search(said))
    if kind == "package-output":
        return bool(_PACKED.search(said))
    if kind == "nvidia-smi":
        return bool(_GPU.search(said))
    if kind in _PROGRAMS and (_ON_CPU.search(said) or (said == "0" and _COUNTS.search(step.source))):
        return False
    return bool(re.search(r"\w", said)) if said else not is_last


# A program that does without a GPU has shown nothing of it: "device cpu", "Using device: cpu", jax's [CpuDevice(id=0)],
# TensorFlow's [], torch.cuda.is_available() that prints False, llama.cpp that offloads no layer.
_ON_CPU: Final = Pattern(
    r"\A(?:False|\[\]|cpu)\Z|\bdevice(?:[ _]type)?\b[ '\"]{0,3}(?:is|[:=])?[ '\"]{0,3}cpu\b|CpuDevice\(|TFRT_CPU"
    r"|\b(?:using|use|on) (?:the )?cpu\b(?= ?(?:$|[.,;:!)(]|instead|only))|\bcpu[- ]only\b|\bcpu (?:mode|backend)\b"
    r"|\b(?:is_available\(?\)?|(?:cuda|gpus?) (?:is )?(?:available|found))(?: ?[:=] ?| )(?:False|None|0|\[\])\s*$"
    r"|\bcuda ?[:=] ?False\b|offloaded 0/|GPU will not be used"
    r"|\bno (?:usable )?gpus?(?: (?:was |were )?(?:found|detected|available))?[.!]?\s*$",
    re.IGNORECASE | re.MULTILINE,
)
_COUNTS: Final = Pattern(r"count|list_physical|\blen\(")
_GPU: Final = Pattern(r"^\|\s+\d{1,3}\s+\S[^|]{2,60}\|\s*[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:|^GPU \d+: \S", re.MULTILINE)


def _proven(step: Step) -> set[Thing]:
    """What a success shows to work besides itself."""
    found: set[Thing] = set()
    seen, words = step.seen, step.words
    if _reaches_driver(step):
        found |= {("driver", words[0]), ("module", "nvidia")}
    if seen.kind == "unit-status" and not seen.is_mixed and seen.subject:
        found.add(("unit", seen.subject))
    if seen.kind == "container-run" and program(words) == "docker" and "run" in words[1:3] and step.said.strip():
        found.add(("unit", unit_name("docker")))
    if seen.kind == "package-output" and {"install", "upgrade", "-i", "remove"} & set(words):
        found.add(("lock",))
    return found


def _concerned(step: Step) -> set[Thing]:
    """What else a success may be of, so that this complaint is over."""
    found: set[Thing] = set()
    seen, words = step.seen, step.words
    if _reaches_driver(step):
        found.add(("driver", words[0]))
    if seen.kind == "modprobe" and seen.subject == "nvidia":
        found.add(("module", "nvidia"))
    if seen.kind in {"unit-status", "unit-action"} and not seen.is_mixed and seen.subject:
        found.add(("unit", seen.subject))
    if seen.kind == "package-output" and words and _LOCKED.search(step.said):
        found.add(("lock",))
    return found


def _reaches_driver(step: Step) -> bool:
    """Whether it is the node's own nvidia-smi, asked for all GPUs."""
    words = step.words
    is_own = program(words) == "nvidia-smi" and step.seen.where == "host"
    return is_own and words[1:] in {(), ("-L",), ("--list-gpus",)} and not step.commands[0].filters


_LOCKED: Final = Pattern(r"Could not get lock |Unable to acquire the dpkg frontend lock|is locked by another process")
_NO_START: Final = Pattern(
    r"failed to start daemon|unable to configure the Docker daemon|\bFailed to start\b|code=exited, status=[1-9]"
    r"|Failed with result|Start request repeated too quickly|Main process exited"
)


def _since_start(step: Step) -> Step | None:
    """The log of a unit that is active now, without what it has of the starts that failed."""
    lines = step.said.split("\n")
    failed = [number for number, line in enumerate(lines) if _NO_START.search(line)]
    if not failed or {"-r", "--reverse"} & set(step.seen.words):
        return step
    kept = ["" if number <= failed[-1] else line for number, line in enumerate(lines)]
    return replace(step, said="\n".join(kept)) if any(map(str.strip, kept)) else None


# --- what was done ------------------------------------------------------------------------------------------------

_TRIALS: Final = frozenset(
    {"modprobe", "insmod", "rmmod", "setpci", "setenforce", "export", "unset", "ulimit", "module"}
)


def _mended_at(at: int, step: Step, changed: Sequence[frozenset[Part]]) -> int:
    """The first step after it that can have mended what it complains of; the number of steps where none can."""
    concerned = mended_by(step.seen, step.said)
    return next((later for later in range(at + 1, len(changed)) if changed[later] & concerned), len(changed))


def _recurs(at: int, steps: Sequence[Step], answers: Sequence[_Answer], changed: Sequence[frozenset[Part]]) -> bool:
    """Whether the fault came back after the very mend that is done once more: it will come back again."""
    now = answers[at]
    if not (now.question and now.fails):
        return False
    same = [number for number, other in enumerate(answers) if other.question == now.question]
    works = [number for number in same if answers[number].proven]
    cured = next((number for number in reversed(works) if number < at), -1)
    again = next((number for number in works if number > at), -1)
    before = (number for number in same if number < cured and answers[number].fails)
    failed = next((number for number in before if _is_alike(steps[number].said, steps[at].said)), -1)
    if failed < 0 or again < 0:
        return False
    concerned = mended_by(now.step.seen, now.step.said)

    def done(first: int, last: int) -> list[Command]:
        mends = (steps[number] for number in range(first, last) if changed[number] & concerned)
        return [command for step in mends for command in step.commands]

    known, anew = {command.words for command in done(failed, cured)}, done(at, again)
    return bool(anew) and all(command.words in known and not is_edit(command) for command in anew)


def _is_alike(one: str, other: str) -> bool:
    """Whether two complaints have a line in common, but for its numbers."""
    return bool(_complaints(one) & _complaints(other))


def _complaints(said: str) -> set[str]:
    return {_NUMBER.sub("0", line.strip()) for line in said.split("\n") if _FAILS.search(line)}


_NUMBER: Final = Pattern(r"\d{1,20}")


def _changed(step: Step) -> frozenset[Part]:
    """What of the stack the command changed in a way that stays, as far as its answer tells."""
    if step.prompt is None or _SSH.match(step.source) or _fails(step):
        return frozenset()
    return frozenset(part for command in step.commands for part in parts(command, step.prompt))


def _is_trial(step: Step) -> bool:
    """Whether the command changed the node until its next start, or the shell."""
    if step.prompt is None:
        return False
    if _EXPORTED.match(step.source) or (step.seen.kind == "unit-action" and "start" in step.seen.words[1:3]):
        return True
    return any(program(command.words) in _TRIALS for command in step.commands)


_EXPORTED: Final = Pattern(r"(?:export|unset|ulimit|source|module) |conda (?:de)?activate")


# --- which shell --------------------------------------------------------------------------------------------------

_HOST: Final = Pattern(r"[@㉿](?P<host>[\w.-]+)|^(?:\([\w.-]+\)\s*)?(?P<first>[A-Za-z][\w.-]*)(?=[:#$%]| [~/])")
# Into another machine or a container, and out of it.
_INTO: Final = Pattern(
    r"(?:sudo )?(?:ssh(?: -\w(?: ?[^-\s]\S{0,100})?)* \S+$|(?:docker|podman|kubectl|nerdctl|oc) [^\n]{0,300}"
    r"\b(?:exec|run)\b[^\n]{0,300} (?:/bin/)?(?:ba|z|a)?sh$|chroot |(?:sudo )?su\b|sudo -[is]\b)"
)
_OUT: Final = Pattern(r"(?:exit|logout)$")
# One command of another machine.
_SSH: Final = Pattern(r"(?:sudo )?(?:pdsh|clush|ssh|ansible)\b")


def _shells(steps: Sequence[Step]) -> list[str]:
    """In which shell each was typed, by the prompt and by how many were entered; empty for what was pasted for itself.

    What is asked of another machine by one command is as if it were pasted for itself.
    """
    found, depth = [], 0
    for step in steps:
        match = _HOST.search(step.prompt or "")
        host = next(filter(None, match.groups()), "") if match else ""
        is_here = step.prompt is not None and not _SSH.match(step.source)
        found.append(f"{host} {depth} {step.machine}" if is_here else "")
        is_left = is_cut_off(step.said) or _OUT.match(step.source)
        depth += bool(_INTO.match(step.source)) - (bool(is_left) and depth > 0)
    return found


def is_cut_off(said: str) -> bool:
    """Whether ssh says that the shell on the other machine has ended."""
    return bool(_CUT_OFF.search(said))


_CUT_OFF: Final = Pattern(
    r"^Connection to \S{1,100} closed|^(?:client_loop|packet_write_wait): [^\n]{0,120}(?:Broken pipe|Connection reset)",
    re.MULTILINE,
)
