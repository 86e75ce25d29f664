"""The kubelet of a node: which container runtime's socket it uses, and under which cgroup driver it runs pods.

Source: kubernetes.io, "Configuring each kubelet in your cluster using kubeadm" and "Kubelet Configuration (v1beta1)";
systemd.exec(5) and systemd.service(5); k3s@v1.35 pkg/agent/config, whose crictl.yaml names the socket chosen at the
last start; canonical/microk8s microk8s-resources/default-args/kubelet; k0s@v1.35 pkg/component/worker/containerd.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from gpunode.facts.model import CgroupDriver, Fact, Facts, Known, Kubelet, KubeletKind, Unknown, known

_CONFIG: Final = "/var/lib/kubelet/config.yaml"
_CONFIGS: Final = (_CONFIG, "/etc/kubernetes/kubelet/config.json", "/etc/kubernetes/kubelet-config.yaml")
_ENVIRONMENTS: Final = (
    "/var/lib/kubelet/kubeadm-flags.env",
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
    "/etc/eks/kubelet/environment",
    "/etc/kubernetes/kubelet.env",  # kubespray
)
_FRAGMENTS: Final = ("/etc/systemd/system/kubelet.service", "/lib/systemd/system/kubelet.service")
_CRICTL: Final = "/var/lib/rancher/{}/agent/etc/crictl.yaml"
_RANCHER: Final = "/etc/rancher/{}/config.yaml"
_MICROK8S: Final = "/var/snap/microk8s/current/args/kubelet"
_K0S: Final = "/etc/k0s/containerd.toml"
COMMAND: Final = "kubelet-command"
FILES: Final = (
    *_CONFIGS,
    *_ENVIRONMENTS,
    *_FRAGMENTS,
    *(place.format(product) for product in ("k3s", "rke2") for place in (_CRICTL, _RANCHER)),
    _MICROK8S,
    _K0S,
)
# Folders read whole, by probe key; of two files with one name the last folder's counts.
FOLDERS: Final = {
    "kubelet-unit-lib": "/lib/systemd/system/kubelet.service.d",
    "kubelet-unit-etc": "/etc/systemd/system/kubelet.service.d",
}
UNITS: Final[Mapping[KubeletKind, tuple[str, ...]]] = {
    "kubelet": ("kubelet.service",),
    "k3s": ("k3s.service", "k3s-agent.service"),
    "rke2": ("rke2-server.service", "rke2-agent.service"),
    "microk8s": ("snap.microk8s.daemon-kubelite.service",),
    "k0s": ("k0sworker.service", "k0scontroller.service"),
}
# What only a product that runs here, or ran here, leaves behind.
_MARKS: Final[Mapping[KubeletKind, str]] = {
    "k3s": _CRICTL.format("k3s"),
    "rke2": _CRICTL.format("rke2"),
    "microk8s": _MICROK8S,
    "k0s": _K0S,
}
_SOCKETS: Final[Mapping[KubeletKind, str]] = {
    "kubelet": "/run/containerd/containerd.sock",
    "k3s": "/run/k3s/containerd/containerd.sock",
    "rke2": "/run/k3s/containerd/containerd.sock",
    "microk8s": "/var/snap/microk8s/common/run/containerd.sock",
    "k0s": "/run/k0s/containerd.sock",
}
_SNAP: Final = {"SNAP_DATA": "/var/snap/microk8s/current", "SNAP_COMMON": "/var/snap/microk8s/common"}
_DRIVERS: Final[Mapping[str, CgroupDriver]] = {"systemd": "systemd", "cgroupfs": "cgroupfs"}
# What a kubelet does that is told nothing; kubeadm tells it systemd (1.22 and later).
_DEFAULT_DRIVER: Final[CgroupDriver] = "cgroupfs"
_FLAGS: Final = frozenset({"config", "container-runtime", "container-runtime-endpoint", "cgroup-driver"})


class _Unreadable(ValueError):
    """What must be known was not looked at, or may not be read."""

    def __init__(self, fact: Unknown) -> None:
        super().__init__(fact.reason)
        self.fact = fact


def fact(facts: Facts, running: Sequence[str] = ()) -> Fact[Kubelet | None]:
    """The kubelet that runs here, else the one that is set up here; None where there is none.

    Unknown where several claim the node, or where what decides it cannot be read.

    Args:
        facts: units and files.
        running: the command line of the kubelet that runs by itself; empty where it was not looked at.
    """
    ranks = {kind: _rank(facts, kind) for kind in UNITS}
    best = max(ranks.values())
    if not best:
        return _none(facts)
    kinds = [kind for kind, rank in ranks.items() if rank == best]
    if len(kinds) > 1:
        names = " and ".join(_named(facts, kind) for kind in kinds)
        return Unknown(f"{names} are both {_RANK_WORDS[best]} here", "units")
    try:
        return _own(facts, running) if kinds == ["kubelet"] else _READERS[kinds[0]](facts, kinds[0])
    except _Unreadable as unreadable:
        return unreadable.fact
    except ValueError as error:
        return Unknown(f"not understood: {error}"[:500], "kubelet")


_RANK_WORDS: Final = {3: "running", 2: "enabled", 1: "set up"}


def _rank(facts: Facts, kind: KubeletKind) -> int:
    """How much of a product is here: 3 it runs, 2 it starts at boot, 1 its unit or its files are here."""
    units = [unit.value for name in UNITS[kind] if isinstance(unit := facts.unit(name), Known) and unit.value.exists]
    if any(unit.state.active for unit in units):
        return 3
    if any(unit.state.enabled for unit in units):
        return 2
    return 1 if units or (kind in _MARKS and known(facts.file(_MARKS[kind]), None) is not None) else 0


def _none(facts: Facts) -> Fact[Kubelet | None]:
    """Nothing was found: there is no kubelet, unless nobody could look."""
    looks = (*(facts.unit(names[0]) for names in UNITS.values()), *(facts.file(mark) for mark in _MARKS.values()))
    unknown = next((look for look in looks if isinstance(look, Unknown)), None)
    return unknown or Known(None, "units")


def _unit(facts: Facts, kind: KubeletKind) -> str:
    """The product's unit that runs, else the one that is here; empty where only its files are."""
    found = {name: unit.value for name in UNITS[kind] if isinstance(unit := facts.unit(name), Known)}
    there = [name for name, unit in found.items() if unit.exists]
    return next((name for name in there if found[name].state.active), there[0] if there else "")


def _named(facts: Facts, kind: KubeletKind) -> str:
    return _unit(facts, kind) or f"{kind} ({_MARKS[kind]})"


def _text(facts: Facts, path: str) -> str | None:
    """The file's text; None where it is not there."""
    found = facts.file(path)
    if isinstance(found, Unknown):
        raise _Unreadable(found)
    return found.value.content.decode("utf-8", "replace") if found.value else None


def _flat(facts: Facts, path: str, *keys: str) -> Mapping[str, str | None]:
    """What the file says under ``keys``; nothing where it is not there."""
    text = _text(facts, path) or ""
    try:
        return flat(text, keys)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _own(facts: Facts, running: Sequence[str]) -> Fact[Kubelet | None]:
    """A kubelet of its own: the flags that it was started with, else those of its unit, win over its configuration."""
    kind: KubeletKind = "kubelet"
    words = running or _command(facts)
    flags = flags_of(words)
    path = flags.get("config", "")
    config: Mapping[str, str | None] = {}
    if path and not {"container-runtime-endpoint", "cgroup-driver"} <= flags.keys():
        config = _flat(facts, path, "containerRuntimeEndpoint", "cgroupDriver")
    endpoint = flags.get("container-runtime-endpoint") or config.get("containerRuntimeEndpoint")
    if flags.get("container-runtime") == "docker":
        endpoint = "/run/dockershim.sock"
    driver = flags.get("cgroup-driver") or config.get("cgroupDriver")
    return Known(
        Kubelet(kind, _unit(facts, kind), socket(endpoint or _SOCKETS[kind]), _driver(driver) or _DEFAULT_DRIVER),
        f"file:{path}" if path else "units",
    )


def _command(facts: Facts) -> Sequence[str]:
    """The words that start kubelet.service, as systemd puts them together.

    Raises:
        _Unreadable: part of it was not looked at.
    """
    texts = [text for path in _FRAGMENTS if (text := _text(facts, path)) is not None][:1]
    if not texts:
        raise _Unreadable(Unknown("its unit file is in none of the usual places", f"file:{_FRAGMENTS[0]}"))
    dropins: dict[str, str] = {}
    for folder in FOLDERS.values():
        if folder not in facts.folders:
            raise _Unreadable(Unknown("not captured", f"file:{folder}"))
        dropins |= {path.rpartition("/")[2]: path for path in facts.files if path.rpartition("/")[0] == folder}
    texts += [_text(facts, dropins[name]) or "" for name in sorted(dropins) if name.endswith(".conf")]
    return command(texts, lambda path: _text(facts, path) or "")


def _rancher(facts: Facts, kind: KubeletKind) -> Fact[Kubelet | None]:
    """k3s and RKE2: they note the socket at every start; their cgroup driver follows from what they find then."""
    config, crictl = _RANCHER.format(kind), _CRICTL.format(kind)
    told = _flat(facts, config, "data-dir", "container-runtime-endpoint")
    data = told.get("data-dir") or f"/var/lib/rancher/{kind}"
    noted = _flat(facts, crictl, "runtime-endpoint") if data == f"/var/lib/rancher/{kind}" else {}
    endpoint = noted.get("runtime-endpoint") or told.get("container-runtime-endpoint") or _SOCKETS[kind]
    probe = f"file:{crictl if noted else config}"
    return Known(Kubelet(kind, _unit(facts, kind), socket(endpoint), None, data.rstrip("/")), probe)


def _microk8s(facts: Facts, kind: KubeletKind) -> Fact[Kubelet | None]:
    """microk8s: one flag a line, with the snap's variables."""
    words = shlex.split(_text(facts, _MICROK8S) or "", comments=True)
    flags = flags_of(_substituted(word, _SNAP) for word in words)
    endpoint = flags.get("container-runtime-endpoint") or _SOCKETS[kind]
    driver = _driver(flags.get("cgroup-driver")) or (None if "config" in flags else _DEFAULT_DRIVER)
    return Known(Kubelet(kind, _unit(facts, kind), socket(endpoint), driver), f"file:{_MICROK8S}")


def _k0s(facts: Facts, kind: KubeletKind) -> Fact[Kubelet | None]:
    """k0s: it writes containerd's configuration only where it runs containerd itself (no --cri-socket)."""
    if _text(facts, _K0S) is None:
        reason = f"{_K0S} is not there: k0s has not started yet, or was told to use another runtime (--cri-socket)"
        return Unknown(reason, f"file:{_K0S}")
    return Known(Kubelet(kind, _unit(facts, kind), _SOCKETS[kind], None), f"file:{_K0S}")


_READERS: Final[Mapping[KubeletKind, Callable[[Facts, KubeletKind], Fact[Kubelet | None]]]] = {
    "k3s": _rancher,
    "rke2": _rancher,
    "microk8s": _microk8s,
    "k0s": _k0s,
}


def _driver(word: str | None) -> CgroupDriver | None:
    if word and word not in _DRIVERS:
        raise ValueError(f"{word!r} is no cgroup driver of the kubelet")
    return _DRIVERS[word] if word else None


def socket(endpoint: str) -> str:
    """The path that ``endpoint`` names, below /run where it says /var/run; what is no Unix socket stays as it is."""
    path = endpoint.removeprefix("unix://")
    return "/run/" + path.removeprefix("/var/run/") if path.startswith("/var/run/") else path


def flags_of(words: Iterable[str]) -> Mapping[str, str]:
    """The flags that matter here; of one that is given twice the last counts."""
    given = list(words)
    found: dict[str, str] = {}
    for word, following in zip(given, (*given[1:], ""), strict=True):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in _FLAGS:
            found[name] = value if equals else following
    return found


# Units and their environment.

_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


def command(units: Sequence[str], environment: Callable[[str], str]) -> tuple[str, ...]:
    """The words that a unit starts, its drop-ins read in order and every variable put in.

    Args:
        units: the texts, the unit's own first.
        environment: the text of an environment file; empty where there is none.

    Raises:
        ValueError: a line cannot be split into words.
    """
    assigned: dict[str, str] = {}
    files: list[str] = []
    start: list[str] = []
    for key, value in (line for unit in units for line in _settings(unit)):
        if key == "ExecStart":
            start = shlex.split(value)
        elif key == "Environment":
            assigned = {**assigned, **_assignments(shlex.split(value))} if value else {}
        elif key == "EnvironmentFile":
            files = [*files, value.removeprefix("-")] if value else []
    for path in files:
        assigned |= _environment(environment(path))
    return tuple(word for one in start for word in _expanded(one, assigned))


def _settings(unit: str) -> Iterable[tuple[str, str]]:
    for line in re.sub(r"\\\n", " ", unit).splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith(("#", ";")):
            yield key.strip(), value.strip()


def _environment(text: str) -> dict[str, str]:
    """Of an environment file; a value in quotes loses them, quotes within a value stay."""
    lines = (line.strip() for line in re.sub(r"\\\n", "", text).splitlines())
    return _assignments(re.sub(r"""\A(\w+=)(["'])(.*)\2\Z""", r"\1\3", line) for line in lines)


def _assignments(words: Iterable[str]) -> dict[str, str]:
    return {match[1]: match[2] for word in words if (match := _ASSIGNMENT.fullmatch(word))}


def _expanded(word: str, assigned: Mapping[str, str]) -> Iterable[str]:
    """``$NAME`` as a word of its own becomes as many words as its value has; elsewhere it is part of one word."""
    if (alone := re.fullmatch(r"\$(\w+)", word)) is not None:
        return shlex.split(assigned.get(alone[1], ""))
    return (_substituted(word, assigned),)


def _substituted(word: str, variables: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: variables.get(found[1] or found[2], ""), word)


# Flat YAML.

_KEY = re.compile(r"""(["']?)([\w.-]+)\1[ \t]*:(?:[ \t]+(.*))?""")
_SCALAR = re.compile(r"""(?:"([^"\\]*)"|'([^']*)'|([\w/.][^\s"'#]*))(?:[ \t]+\#.*)?""")


def flat(text: str, keys: Iterable[str]) -> Mapping[str, str | None]:
    """The strings under the top-level ``keys`` of a YAML or JSON document: None for a null, absent where it lacks one.

    Only what cannot be mistaken is read: plain and quoted scalars of one line, in a mapping that starts in column 1.

    Raises:
        ValueError: it is laid out in another way.
    """
    if text.lstrip().startswith("{"):
        return _flat_json(text, keys)
    wanted = frozenset(keys)
    found: dict[str, str | None] = {}
    for key, value in _top_level(text):
        if key in found:
            raise ValueError(f"{key} stands there twice")
        if key in wanted:
            found[key] = _scalar(key, value)
    return found


def _flat_json(text: str, keys: Iterable[str]) -> Mapping[str, str | None]:
    document: Any = json.loads(text)
    found = {key: document[key] for key in keys if key in document}
    for key, value in found.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{key} is {value!r}, not a string"[:200])
    return found


def _top_level(text: str) -> Iterable[tuple[str, str]]:
    """The keys in column 1 with the rest of their lines: in a block mapping only they and list items stand there."""
    is_begun = False
    for line in text.splitlines():
        bare = line.rstrip()
        is_marker = bare.startswith(("---", "%"))
        if not bare or bare.lstrip().startswith("#") or (is_marker and not is_begun):
            continue
        if bare == "...":
            return
        if bare[0] in " \t-" and is_begun and not is_marker:
            continue
        match = _KEY.fullmatch(bare)
        if match is None:
            raise ValueError(f"not a mapping that starts in the first column: {bare[:80]!r}")
        is_begun = True
        yield match[2], (match[3] or "").strip()


def _scalar(key: str, value: str) -> str | None:
    if value.partition("#")[0].strip() in {"", "~", "null"}:
        return None
    match = _SCALAR.fullmatch(value)
    if match is None:
        raise ValueError(f"{key} is not a plain or quoted word: {value[:80]!r}")
    return next(group for group in match.groups() if group is not None)
