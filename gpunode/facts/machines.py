"""Which machine answered, where whoever pasted says so: by the prompt, by ``ssh HOST``, by the names in a log's lines.

Good and bad nodes are pasted together, and equal ones have equal bus addresses: what one shows to work says nothing of
the other. A name that many machines have says nothing, and neither does a container's; without a name it is the machine
that all the rest is of.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from gpunode.facts import started
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern
from gpunode.facts.sessions import Step
from gpunode.facts.sources import Kind

# A word alone may be the folder, unless it is numbered as machines are.
_HOST: Final = Pattern(
    r"[@㉿](?P<host>[\w.-]+)|^(?:\([\w.-]+\)\s*)?(?P<first>[A-Za-z][\w.-]*(?=:| [~/])|[A-Za-z][A-Za-z-]*\d+(?=[#$%]))"
)
# A shell's own name and version, PowerShell, a drive of Windows; what people write for a name that they hide; the
# names that installers give.
_NO_NAME: Final = Pattern(
    r"(?:(?:ba|z|a|da|k)?sh-[\d.]+|ps|[a-z]|[0-9a-f]{12}|x{2,}|(?:my|some|the|your)?-?(?:host|hostname|node|machine|server|"
    r"nodename|box|pc|computer|system)|localhost|ubuntu|debian|fedora|rocky|linux|kali|archlinux|nixos|desktop|laptop|"
    r"redacted|example|all|none|kernel|user|root)",
    re.IGNORECASE,
)
_IP: Final = Pattern(r"[\d.]+|[\da-f]*:[\da-f:]+")
# Where images put whoever enters a container; on a machine one begins at home, and data has folders of its own.
_IN_IMAGE: Final = Pattern(r"[: ]/(?:(?:\w{1,20}-)?workspace|app|code|src)(?:/[^\s\]]*)?\]?\s?[#$]\s*$")
# How Kubernetes names what a Deployment or a DaemonSet starts.
_POD: Final = Pattern(r"[@㉿][\w.-]+-[bcdf-hj-np-tv-xz2-9]{5}(?=[: ])")
_OPTIONS: Final = r"(?:\s+-(?:[bcDEeFIiJLlmOopQRSWw]\s?\S{1,100}|\w{1,20}))*"
_SSH: Final = Pattern(
    rf"(?:sudo )?ssh{_OPTIONS}\s+(?:[\w.+-]+@)?(?P<host>[\w.-]+)(?P<options>{_OPTIONS})(?P<command>\s+\S[^\n]*)?$"
)
# One command on another machine by a tool of its own.
_ON: Final = Pattern(
    r"(?:sudo )?(?:(?:kubectl|oc|k) (?:[^\n]{0,200} )?debug (?:[^\n]{0,200} )?nodes?/(?P<debugged>[\w.-]+)"
    r"|talosctl [^\n]{0,200}?(?:-n|--nodes)[= ](?P<talos>[\w.:-]+)(?= |$)"
    r"|ansible (?P<inventory>[\w.-]+) -"
    r"|srun (?:[^\n]{0,200} )?(?:-w ?|--nodelist[= ])(?P<slurm>[\w.-]+)(?= )"
    r"|(?:gcloud compute|tsh|vagrant) ssh (?:[\w.+-]+@)?(?P<reached>[\w.-]+) [^\n]*?(?:--command|-c|--)[= ])"
)
# What is run in a pod tells of the node that the pod is on, and of none that is typed at.
_IN_POD: Final = Pattern(r"(?:sudo )?(?:kubectl|oc|k) (?:[^\n]{0,200} )?exec ")
_SHELL: Final = Pattern(r"\b(?:ba|z|a|da)?sh(?: -l)?$")
# What people write above the next machine's commands: a heading, or a sentence with a colon at its end.
_HEADING: Final = Pattern(
    r"(?:^|\n\n)[ \t]*(?P<mark>[#*=-]{1,6}[ \t]*)?(?P<words>[^\n|]{2,100}?)(?P<end>[:*=-]{1,6})?[ \t]*\n?$"
)
_CALLED: Final = Pattern(
    r"\b(?P<adjective>(?:good|bad|broken|healthy|working|faulty|failing|other|second|reference) "
    r"(?:node|host|machine|server|box))\b(?! is\b)"
    r"|\b(?P<host>(?:[a-z]+-)*(?!step|try|test|part|boot|run|case|cuda|python|ubuntu"
    r"|debian|driver|attempt|version|xid|rtx|gtx)[a-z]{3,20}-?\d{1,4})\b"
)

_CONTAINER: Final = Pattern(
    r"(?:sudo )?(?:docker|podman|kubectl|nerdctl|oc|k|crictl|ctr|lxc|incus|enroot|apptainer|singularity) [^\n]{0,300}"
    r"\b(?:exec|run|shell|start|debug)\b|(?:sudo )?chroot "
)
_OUT: Final = Pattern(r"(?:exit|logout)$")
# What was pasted for itself with the prompt at which it was typed.
_TYPED: Final = Pattern(
    r"(?:\[[\w.+-]{1,40}@(?P<bracketed>[\w.-]{1,80})[^\]\n]{0,80}\]\s?|[\w.+-]{1,40}@(?P<host>[\w.-]{1,80})"
    r"(?:[: ][^\s$#]{0,60})? ?)[$#%>]\s+(?P<command>\S[^\n]*)$"
)
ON_HOST: Final = Pattern(
    r"\bon (?:the |our |my )?(?P<host>(?:old|new|other|another|first|second|third|spare|broken|bad|good|healthy) "
    r"(?:node|host|machine|server|box|system)|(?:node|host|server|worker|gpu|machine)-?\d{1,4})\b",
    re.IGNORECASE,
)
_OF_NODE: Final = Pattern(
    r"(?:kubectl|oc|k) [^\n]{0,200}?\b(?:describe|get) (?:node |nodes |node/|no )(?P<node>[\w.-]+)"
)
_STAMP: Final = r"(?:\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,30}|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,6})?)"
_LINE: Final = Pattern(rf"^{_STAMP} (?P<host>[\w.-]{{1,253}})(?= [^\s:\[]{{1,64}}(?:\[\d{{1,10}}\])?: )", re.MULTILINE)
_LOGS: Final[frozenset[Kind]] = frozenset({"kernel-log", "journal", "unit-log", "text", "listing", "application"})
_OF_CLUSTER: Final[frozenset[Kind]] = frozenset(
    {"kubernetes", "kubernetes-node", "kubernetes-pod", "kubernetes-log", "shell-history"}
)
HERE: Final = "the machine typed at"
# Nobody pastes logs of more machines one after another.
_READ: Final = 500


def called(name: str) -> str:
    """The name by which a machine is known here: without its domain, in lower case; empty where it names none."""
    name = name.lower().strip(".-")
    short = name if _IP.fullmatch(name) else name.partition(".")[0]
    return "" if _NO_NAME.fullmatch(short) else short


def named(sessions: Iterable[Sequence[Step]]) -> list[list[Step]]:
    """The steps, each with the machine that answered."""
    told = [_Session(steps).told() for steps in sessions]
    asked = {step.machine for steps in told for step in steps if step.machine}
    return _by_headings([[_by_lines(step, asked) for step in steps] for steps in told])


def _by_headings(sessions: list[list[Step]]) -> list[list[Step]]:
    """The steps, each without a name with that of the heading above it, where headings name several machines."""
    if len({_announced(step) for steps in sessions for step in steps} - {""}) < 2:
        return sessions
    above, found = "", list[list[Step]]()
    for steps in sessions:
        found.append([])
        for step in steps:
            is_of_all = step.seen.kind in _OF_CLUSTER or bool(step.machine) or bool(_host(step))
            found[-1].append(step if is_of_all else replace(step, machine=above))
            above = _announced(step) or above
    return found


def _announced(step: Step) -> str:
    """The machine of which all that follows is, by the last line of what was pasted before it."""
    match = _HEADING.search(step.said[-200:])
    if match is None or not (match["mark"] or match["end"]):
        return ""
    names = [called(name["host"] or name["adjective"].replace(" ", "-")) for name in _CALLED.finditer(match["words"])]
    # Of two, the first is the name, and the other says what it is.
    return next(filter(None, names), "")


def _by_lines(step: Step, asked: set[str]) -> Step:
    """The step with the machine that the lines of its log name, where the question does not say."""
    if step.seen.kind in _OF_CLUSTER:
        match = _OF_NODE.search(step.source)
        node = called(match["node"]) if match else ""
        return replace(step, machine=step.machine if _ON.match(step.source) else node if node in asked else "")
    if step.seen.kind not in _LOGS or step.seen.where == "container":
        return step
    hosts = {called(match["host"]) for match in islice(_LINE.finditer(step.said), _READ)} - {""}
    if len(hosts) != 1:
        return step
    (host,) = hosts
    # Logs of others are read where they are collected.
    return replace(step, machine=host) if not step.machine or host in asked else step


@dataclass(frozen=True)
class _Entered:
    """What somebody went into: a machine by its name, or a container, and from which host."""

    machine: str
    outer: str
    is_container: bool


@dataclass
class _Session:
    """What was typed one after another."""

    steps: Sequence[Step]
    _into: list[_Entered] = field(default_factory=list)
    _aliases: dict[str, str] = field(default_factory=dict)

    def told(self) -> list[Step]:
        """The steps, each with the machine that its prompt or its command names."""
        images = self._images()
        found = [replace(step, machine=self._machine(step, images)) for step in self.steps]
        found = [replace(step, machine=self._aliases.get(step.machine, step.machine)) for step in found]
        if not any(step.machine and step.machine == _asked_at(step.source) for step in found):
            return found
        return [replace(step, machine=HERE) if self._is_here(step) else step for step in found]

    def _is_here(self, step: Step) -> bool:
        """Whether it was typed where others were asked from, at a prompt that has no name."""
        return step.prompt is not None and not step.machine and not _host(step) and step.seen.where == "host"

    def _images(self) -> set[str]:
        """The hosts at which nobody was ever anywhere but where images begin: containers'."""
        prompts = [(_host(step), step.prompt or "") for step in self.steps]
        elsewhere = {host for host, prompt in prompts if not _IN_IMAGE.search(prompt) and not _POD.search(prompt)}
        return {host for host, _ in prompts} - elsewhere

    def _machine(self, step: Step, images: set[str]) -> str:
        if step.prompt is None:
            typed = _TYPED.match(step.source)
            if typed is None:
                return _asked_at(step.source)
            return _asked_at(typed["command"]) or called(typed["bracketed"] or typed["host"])
        host = _host(step)
        while self._into and host and host == self._into[-1].outer:
            self._into.pop()  # the way out was not pasted
        inner = self._into[-1] if self._into else None
        here = host or (inner.machine if inner else "")
        if host in images or (inner and inner.is_container):
            here = ""
        elif inner and host and inner.machine:
            self._aliases.setdefault(inner.machine, host)  # what ssh was given is another name of it
        self._go(step, host)
        if _IN_POD.match(step.source):
            return ""
        return _asked_at(step.source) or here

    def _go(self, step: Step, host: str) -> None:
        ssh = _SSH.match(step.source)
        if ssh and not ssh["command"]:
            self._into.append(_Entered(called(ssh["host"]), host, is_container=False))
        elif _CONTAINER.match(step.source) and (not step.said.strip() or _SHELL.search(step.source)):
            self._into.append(_Entered("", host, is_container=True))
        elif _OUT.match(step.source) and self._into:
            self._into.pop()


def _host(step: Step) -> str:
    match = _HOST.search(step.prompt or "")
    return called(next(filter(None, match.groups()), "")) if match else ""


def _asked_at(source: str) -> str:
    """The machine that the command itself names, or whoever wrote where it was run."""
    if (ssh := _SSH.match(source)) and ssh["command"]:
        return called(ssh["host"])
    if match := _ON.match(source):
        return called(next(filter(None, match.groups()), ""))
    told = ON_HOST.search(source)
    # "on GPU1" is a GPU of the machine.
    return called(told["host"]) if told and not told["host"].startswith("GPU") else ""


# --- of which machine a piece of evidence is ------------------------------------------------------------------------

# What shows a machine's own GPUs, kernel or driver; all else does where it speaks of NVIDIA.
_OF_GPUS: Final[tuple[Kind, ...]] = (
    *("nvidia-smi", "nvidia-smi-q", "nvidia-smi-nvlink", "nvidia-smi-topo", "nvidia-smi-mig", "nvidia-smi-c2c"),
    *("lspci", "lsmod", "modprobe", "modinfo", "dkms-status", "dkms-output", "make-log", "kernel-log"),
    *("nvidia-container-cli", "container-run", "mokutil", "gpudirect"),
)
_OF_NOBODY: Final[frozenset[Kind]] = frozenset({"application", "text", "which", "exit-status", "environment"})
_MANIFEST: Final = Pattern(r"\.(?:ya?ml|json|tf|toml)$")


def nodes(items: Sequence[Item]) -> tuple[str, ...]:
    """The machines with GPUs of their own among several; none where all is of one machine."""
    named = dict.fromkeys(item.machine for item in items if item.machine)
    if len(named) < 2:
        return ()
    with_gpus = {item.machine for item in items if item.machine and _is_of_gpus(item)}
    return tuple(machine for machine in named if machine in with_gpus)


def _is_of_gpus(item: Item) -> bool:
    if item.kind in _OF_GPUS:
        return True
    if item.kind in _OF_CLUSTER | _OF_NOBODY or _MANIFEST.search(item.subject):
        return False
    return "nvidia" in item.written.lower() or "nvidia" in item.lowered


def speaks_of(item: Item, node: str, every: Sequence[str]) -> bool:
    """Whether the item tells of that one of several nodes.

    So does what nobody names a machine for, and what a machine without GPUs shows, which may be their control plane;
    but not when that was started.
    """
    if item.machine in {"", node}:
        return True
    return item.machine not in every and not started.tells_time(item)
