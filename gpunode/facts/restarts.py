"""Where a session goes over a restart of its machine: what was seen before is of an earlier boot.

People paste the fault, the ``reboot``, and what they saw then. The kernel's log before it is of a boot that is over;
which modules were loaded, what nvidia-smi said and which driver had a device is of that boot, too, and no more than a
memory once the same was asked again. What stands on a disk, in a package or in a GPU's own memory outlives it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from gpunode.facts import topics
from gpunode.facts.patterns import Pattern
from gpunode.facts.sessions import Step, is_cut_off
from gpunode.facts.sources import Command, Kind, program, recognise_all

# As ``boots`` reads it.
_BEFORE: Final = "(before the reboot)"
_DONE: Final = "(carried out)"
# Nobody types more before they paste it.
_MOST_STEPS: Final = 400


def told(steps: Sequence[Step]) -> Iterator[Step]:
    """The steps; what was seen before a restart of the same machine is called so, or left out if it was asked again."""
    machines = _machines(steps) if 1 < len(steps) <= _MOST_STEPS else []
    restarts = dict(_restarts(steps, machines))
    seen_after = {
        at: after
        for at, name in restarts.items()
        if name and (after := tuple(_typed_at(name, steps[at + 1 :], machines[at + 1 :])))
    }
    for number, step in enumerate(steps):
        own = machines[number] if machines else ""
        first = next((at for at in seen_after if at > number and restarts[at] == own), None)
        if number in seen_after:
            is_last_change = not any(later.seen.kind == "package-output" for later in seen_after[number])
            yield replace(step, source=f"{step.source} {_DONE}") if is_last_change else step
        elif first is not None:
            yield from _of_before(step, seen_after[first])
        else:
            yield step


def is_done(written: str) -> bool:
    """Whether a source is the command of a restart, after which its machine was seen and nothing was installed."""
    return written.endswith(f" {_DONE}")


def is_restart(typed: str) -> bool:
    """Whether a line is nothing but the command that restarts the machine at which it is typed."""
    return bool(_PLAIN.fullmatch(typed.strip()))


_PLAIN: Final = Pattern(r"(?:sudo )?(?:reboot|poweroff|shutdown (?:-[rhP] )?now|init [06])(?: -f| now)?")


def _typed_at(name: str, steps: Sequence[Step], machines: Sequence[str]) -> Iterator[Step]:
    """What was asked of the machine."""
    for step, machine in zip(steps, machines, strict=True):
        if machine == name and not _OUT.match(step.source):
            yield step


def _of_before(step: Step, after: Sequence[Step]) -> Iterator[Step]:
    """What the step tells of the boot before, and of what outlives it."""
    seen = step.seen
    if _is_kernels(step):
        yield from _of_log(step, after)
    elif seen.is_mixed:
        every = recognise_all(step.source, step.said)
        yield _marked(step) if any(topics.of_boot(one, step.said) for one in every) else step
    elif seen.kind == "lspci":
        yield from _of_bus(step, after)
    elif _misses_gpus(step, after) or not (about := topics.of_boot(seen, step.said)):
        yield step
    elif not about <= {topic for later in after for topic in topics.told(later.seen, later.said)}:
        yield _marked(step)


def _marked(step: Step) -> Step:
    return replace(step, source=f"{step.source} {_BEFORE}")


_OF_KERNEL: Final = Pattern(r"\bkernel(?:\[\d+\])?: |\bNVRM: ")
_LOGS: Final[frozenset[Kind]] = frozenset({"journal", "text"})


def _is_kernels(step: Step) -> bool:
    """Whether it is the kernel's log; what a service wrote of its settings holds over boots."""
    kinds = {one.kind for one in recognise_all(step.source, step.said)}
    return "kernel-log" in kinds or bool(kinds & _LOGS and _OF_KERNEL.search(step.said))


# What the driver says whenever it cannot start a GPU: which one, and by which of its own codes.
_NO_START: Final = Pattern(r"GPU [0-9a-f:.]{7,16}: RmInitAdapter failed! \(0x\w{1,4}:0x\w{1,4}")
_XID: Final = Pattern(r"\bXid\b")
# A row, page or channel of memory that could not be replaced: the GPU itself keeps that, over every boot.
_KEPT: Final = Pattern(r"\bXid \([^)\n]{1,40}\): (?:64|161),")
_NONE_FAILED: Final = Pattern(r"Remapping Failure Occurred\s*:\s*No\b")


def _of_log(step: Step, after: Sequence[Step]) -> Iterator[Step]:
    """The log as that of an earlier boot; the start of a GPU that failed, and fails now in the same way, is no past."""
    if _KEPT.search(step.said) and not any(_NONE_FAILED.search(later.said) for later in after):
        yield replace(step, said="\n".join(line if _KEPT.search(line) else "" for line in step.said.split("\n")))
    failed = _failed_starts(step.said)
    lasts = bool(failed) and any(failed & _failed_starts(later.said) for later in after)
    if not lasts or _XID.search(step.said):
        yield _marked(step)
    if lasts:
        said = "\n".join("" if _XID.search(line) else line for line in step.said.split("\n"))
        yield replace(step, said=said)


@lru_cache(maxsize=512)
def _failed_starts(said: str) -> frozenset[str]:
    return frozenset(match[0] for match in _NO_START.finditer(said))


def _of_bus(step: Step, after: Sequence[Step]) -> Iterator[Step]:
    """The devices, which a restart leaves; their drivers as those of before, where nobody has asked again."""
    left = topics.without_told_again(step.said, (later.said for later in after if later.seen.kind == "lspci"))
    kept = topics.without_owners(left)
    again = any(topics.DRIVER in topics.told(later.seen, later.said) for later in after)
    if kept != left and not again:
        yield replace(_marked(step), said=left)
    if kept.strip() or not step.said.strip():
        yield replace(step, said=kept)


_ROW: Final = Pattern(r"\b[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.0\b|\(UUID: [^)\n]{8,60}\)")


def _misses_gpus(step: Step, after: Sequence[Step]) -> bool:
    """Whether nvidia-smi has shown a GPU before that it no longer shows beside others: that one is missing."""
    if step.seen.kind != "nvidia-smi" or not (before := _shown(step.said)):
        return False
    now = [shown for later in after if later.seen.kind == "nvidia-smi" and (shown := _shown(later.said))]
    return bool(now) and not any(before <= shown for shown in now) and any(before & shown for shown in now)


@lru_cache(maxsize=512)
def _shown(said: str) -> frozenset[str]:
    return frozenset(match[0].lower() for match in _ROW.finditer(said))


# --- what restarts a machine --------------------------------------------------------------------------------------

_VERBS: Final = frozenset({"reboot", "poweroff", "halt", "kexec"})
# It refused, or asked for what nobody gave it; a notice that could not be sent to others stops no restart.
_STAYS: Final = Pattern(
    r"[Ii]nteractive authentication required|[Pp]ermission denied|[Aa]ccess denied|must be (?:root|superuser)"
    r"|not permitted|not found|Call to \w+ failed|inhibited|password is required|incorrect password|not in the sudoers"
    r"|[Ii]nvalid|not supported|Failed to (?:talk|connect|open|start|reboot|power)|has not been booted|Unable to"
    # Whoever was asked, or molly-guard, took it back; systemd has others' leave to ask for.
    r"|\^C|won't reboot|[Aa]borting|retry operation|inhibitors|Need to be root|returned an error code"
)
# What came before it in the same line has failed, so that it was not reached.
_NOT_REACHED: Final = Pattern(r"^(?:Abort\.|E: |make: \*\*\*)|\b(?:[Ee]rror|[Ff]ailed|[Ff]ailure)\b", re.MULTILINE)
# The words that name what is done to another machine, from its console or its host.
_CONSOLES: Final = {
    "ipmitool": frozenset({"cycle", "reset", "off", "on"}),
    "racadm": frozenset({"powercycle", "hardreset", "powerdown", "powerup"}),
    "aws": frozenset({"reboot-instances", "stop-instances", "start-instances"}),
    "gcloud": frozenset({"reset", "stop", "start"}),
    "az": frozenset({"restart", "deallocate", "start", "stop"}),
    "openstack": frozenset({"reboot", "stop", "start"}),
    "virsh": frozenset({"reboot", "reset", "destroy", "start", "shutdown"}),
    "qm": frozenset({"reboot", "reset", "stop", "start", "shutdown"}),
    "wsl": frozenset({"--shutdown", "--terminate", "-t"}),
}
# What each of these must say besides: power, a server, an instance.
_OF: Final = {"ipmitool": "power", "gcloud": "instances", "az": "vm", "openstack": "server"}


def _restarts(steps: Sequence[Step], machines: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Where a machine was started anew, and which."""
    for number, (step, name) in enumerate(zip(steps, machines, strict=False)):
        if step.prompt is None or _STAYS.search(step.said):
            continue
        for command in step.commands:
            if command.is_optional and _NOT_REACHED.search(step.said):
                continue
            if _restarts_itself(command):
                yield number, name
            elif program(command.words) in _CONSOLES and _is_switched(command.words):
                yield number, _named(command.words, name, machines)


def _restarts_itself(command: Command) -> bool:
    words = _handed(command.words)
    name, rest = program(words), set(words[1:])
    if name in {"reboot", "poweroff", "halt"}:
        return not rest & {"-w", "--wtmp-only", "--help"}
    if name == "shutdown":
        when = [word for word in words[1:] if not word.startswith("-")][:1]
        return not rest & {"-c", "-k", "--help"} and when in ([], ["now"], ["+0"], ["0"])
    if name == "systemctl":
        return next((word for word in words[1:] if not word.startswith("-")), "") in _VERBS
    if name in {"init", "telinit"}:
        return bool(rest & {"0", "6"})
    if name == "echo":
        return command.is_quiet and rest <= {"b", "o"}
    return name == "kexec" and bool(rest & {"-e", "--exec"})


def _handed(words: tuple[str, ...]) -> tuple[str, ...]:
    """The command itself, where ssh hands it over to another machine."""
    rest = _ssh(" ".join(words))[1]
    return rest[1:] if rest[:1] == ("sudo",) else rest or words


def _is_switched(words: Sequence[str]) -> bool:
    name = program(words)
    return bool(_CONSOLES[name] & set(words[1:])) and (name not in _OF or _OF[name] in words)


def _named(words: Sequence[str], typed_at: str, machines: Sequence[str]) -> str:
    """The machine that the words name; where they name none of the session, the only other one that it has."""
    others = dict.fromkeys(name for name in machines if name and name != typed_at)
    for name in others:
        if any(word == name or word.startswith((f"{name}-", f"{name}.")) for word in words[1:]):
            return name
    if program(words) == "ipmitool" and "-H" not in words:
        return typed_at
    return next(iter(others)) if len(others) == 1 else ""


# --- which machine ------------------------------------------------------------------------------------------------

_HOST: Final = Pattern(r"[@㉿](?P<host>[\w.-]+)|^(?:\([\w.-]+\)\s*)?(?P<first>[A-Za-z][\w.-]*)(?=[:#$%]| [~/])")
_OUT: Final = Pattern(r"(?:exit|logout)$")
_INSIDE: Final = Pattern(
    r"(?:sudo )?(?:(?:docker|podman|kubectl|nerdctl|oc) [^\n]{0,300}\b(?:exec|run)\b[^\n]{0,300} "
    r"(?:/bin/)?(?:ba|z|a)?sh$|chroot |su\b|-[is]\b)"
)


def _machines(steps: Sequence[Step]) -> list[str]:
    """At which machine each was typed: by the prompt's host, else by how many were gone on to; empty if unknown."""
    found = list[str]()
    entered = list[bool]()  # the shells that were gone into, and whether each is of another machine
    is_down = False
    for step in steps:
        host, rest = _ssh(step.source)
        match = _HOST.search(step.prompt or "")
        own = next(filter(None, match.groups()), "") if match else f"# {sum(entered)}"
        found.append("" if step.prompt is None else (host if host and rest else own))
        if host and not rest:
            entered = [*_left(entered), True] if is_down else [*entered, True]
        elif _INSIDE.match(step.source):
            entered.append(False)
        elif is_cut_off(step.said):
            entered = _left(entered)
        elif _OUT.match(step.source):
            entered = entered[:-1]
        restarts = any(map(_restarts_itself, step.commands))
        is_down = restarts and not is_cut_off(step.said)
    return found


def _left(entered: list[bool]) -> list[bool]:
    """The shells that are left once the machine that was gone on to last is gone."""
    last = max((at for at, is_machine in enumerate(entered) if is_machine), default=None)
    return entered if last is None else entered[:last]


_WITH_VALUE: Final = frozenset("plioFJLRDbcEeImOQSWwB")


def _ssh(source: str) -> tuple[str, tuple[str, ...]]:
    """The machine that ssh goes on to, and the command that it hands over; empty where it is another program."""
    words = source.removeprefix("sudo ").split()
    if not words or words[0] != "ssh":
        return "", ()
    at = 1
    while at < len(words) and words[at].startswith("-"):
        at += 2 if len(words[at]) == 2 and words[at][1] in _WITH_VALUE else 1
    return (words[at].rpartition("@")[2], tuple(words[at + 1 :])) if at < len(words) else ("", ())
