"""The kubelet of a node: which container runtime's socket it uses, and under which cgroup driver it runs pods.

Source: kubernetes.io, "Configuring each kubelet in your cluster using kubeadm" and "Kubelet Configuration (v1beta1)";
k3s@v1.35 pkg/agent/config, whose crictl.yaml names the socket chosen at the last start; canonical/microk8s
microk8s-resources/default-args/kubelet; k0s@v1.35 pkg/component/worker/containerd.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from string import Template
from typing import Final

from gpunode.facts import units
from gpunode.facts.model import CgroupDriver, Fact, Facts, Known, Kubelet, KubeletKind, Unknown, known
from gpunode.facts.patterns import Pattern

_CONFIG: Final = "/var/lib/kubelet/config.yaml"
_CONFIGS: Final = (
    _CONFIG,
    "/etc/kubernetes/kubelet/config.json",
    "/etc/kubernetes/kubelet-config.yaml",
    "/home/kubernetes/kubelet-config.yaml",  # GKE
)
_ENVIRONMENTS: Final = (
    "/var/lib/kubelet/kubeadm-flags.env",
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
    "/etc/eks/kubelet/environment",
    "/etc/kubernetes/kubelet.env",  # kubespray
)
_KUBELET: Final = "kubelet.service"
# /lib is /usr/lib on every distribution here.
_SYSTEMD: Final = {
    "kubelet-unit-etc": "/etc/systemd/system",
    "kubelet-unit-run": "/run/systemd/system",
    "kubelet-unit-local": "/usr/local/lib/systemd/system",
    "kubelet-unit-lib": "/lib/systemd/system",
}
_CRICTL: Final = "/var/lib/rancher/{}/agent/etc/crictl.yaml"
_RANCHER: Final = "/etc/rancher/{}/config.yaml"
# The environment in which k3s's installer has its unit run; read for K3S_NODE_NAME.
_K3S_ENVIRONMENTS: Final = {unit: f"/etc/systemd/system/{unit}.env" for unit in ("k3s.service", "k3s-agent.service")}
_MICROK8S: Final = "/var/snap/microk8s/current/args/kubelet"
_K0S: Final = "/etc/k0s/containerd.toml"
COMMAND: Final = "kubelet-command"
FILES: Final = (
    *_CONFIGS,
    *_ENVIRONMENTS,
    *(f"{folder}/{_KUBELET}" for folder in _SYSTEMD.values()),
    *(place.format(product) for product in ("k3s", "rke2") for place in (_CRICTL, _RANCHER)),
    *(f"/etc/systemd/system/{unit}" for unit in ("k3s.service", "k3s-agent.service")),
    *_K3S_ENVIRONMENTS.values(),
    _MICROK8S,
    _K0S,
)
# Folders read whole, by probe key.
FOLDERS: Final = {
    **{key: f"{folder}/{_KUBELET}.d" for key, folder in _SYSTEMD.items()},
    **{f"{product}-config-d": f"{_RANCHER.format(product)}.d" for product in ("k3s", "rke2")},
}
UNITS: Final[Mapping[KubeletKind, tuple[str, ...]]] = {
    "kubelet": (_KUBELET,),
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
# Of k3s and RKE2.
_KUBELET_ARGUMENTS = Pattern(r"""(?m)^["']?kubelet-arg(\+?)["']?[ \t]*:(.*(?:\n(?:[ \t#-].*)?)*)""")
_POLICY = Pattern(r"(?m)^[^#\n]*\bcpu-manager-policy=(\w+)")
_NODE_NAME = Pattern(r"(?m)^[ \t]*K3S_NODE_NAME=(.*?)[ \t]*$")
# What a kubelet does that is told nothing; kubeadm tells it systemd (1.22 and later).
_DEFAULT_DRIVER: Final[CgroupDriver] = "cgroupfs"
_CPU_MANAGER: Final = "cpu-manager-policy"
_FLAGS: Final = frozenset(
    {
        *("config", "container-runtime", "container-runtime-endpoint", "cgroup-driver"),
        *("hostname-override", "node-name", "node-labels", _CPU_MANAGER),
    }
)


class _Unreadable(ValueError):
    """What must be known was not looked at, or may not be read."""

    def __init__(self, fact: Unknown) -> None:
        super().__init__(fact.reason)
        self.fact = fact


def fact(facts: Facts, running: Sequence[str] = (), *, image: bool = False) -> Fact[Kubelet | None]:
    """The kubelet that runs here, else the one that is set up here; None where there is none.

    Unknown where several claim the node, or where what decides it cannot be read.

    Args:
        facts: units and files.
        running: the command line of the kubelet that runs by itself; empty where it was not looked at.
        image: whether the node is a mounted root.
    """
    ranks = {kind: _rank(facts, kind) for kind in UNITS}
    best = max(ranks.values())
    if not best:
        return _none(facts)
    kinds = [kind for kind, rank in ranks.items() if rank == best]
    if len(kinds) > 1:
        names = " and ".join(_unit(facts, kind) or f"{kind} ({_MARKS[kind]})" for kind in kinds)
        return Unknown(f"{names} are both {_RANK_WORDS[best]} here", "units")
    try:
        if kinds == ["kubelet"]:
            return _own(facts, running or _command(facts, image=image))
        return _READERS[kinds[0]](facts, kinds[0])
    except _Unreadable as unreadable:
        return unreadable.fact
    except ValueError as error:
        return Unknown(f"not understood: {error}"[:500], "kubelet")


_RANK_WORDS: Final = {3: "running", 2: "enabled", 1: "set up"}


def _rank(facts: Facts, kind: KubeletKind) -> int:
    """How much of a product is here: 3 it runs, 2 it starts at boot, 1 its unit or its files are here."""
    here = [unit.value for name in UNITS[kind] if isinstance(unit := facts.unit(name), Known) and unit.value.exists]
    if any(unit.state.active for unit in here):
        return 3
    if any(unit.state.enabled for unit in here):
        return 2
    return 1 if here or (kind in _MARKS and known(facts.file(_MARKS[kind]), None) is not None) else 0


def _none(facts: Facts) -> Fact[Kubelet | None]:
    """Nothing was found: there is no kubelet, unless nobody could look."""
    looks = (*(facts.unit(names[0]) for names in UNITS.values()), *(facts.file(mark) for mark in _MARKS.values()))
    unknown = next((look for look in looks if isinstance(look, Unknown)), None)
    return unknown or Known(None, "units")


def has_started(facts: Facts, kind: KubeletKind) -> bool:
    """Return whether the kubelet has run here: kubeadm, k3s and RKE2 write a file for it when the node joins."""
    state = known(facts.file(_CONFIG if kind == "kubelet" else _MARKS[kind]), None)
    return state is not None


def _unit(facts: Facts, kind: KubeletKind) -> str:
    """The product's unit that runs, else the one that is here; empty where only its files are."""
    found = {name: unit.value for name in UNITS[kind] if isinstance(unit := facts.unit(name), Known)}
    there = [name for name, unit in found.items() if unit.exists]
    return next((name for name in there if found[name].state.active), there[0] if there else "")


def _content(facts: Facts, path: str) -> bytes | None:
    """What the file holds; None where it is not there."""
    found = facts.file(path)
    if isinstance(found, Unknown):
        raise _Unreadable(found)
    return found.value.content if found.value else None


def _text(facts: Facts, path: str) -> str | None:
    """The file's text; None where it is not there."""
    content = _content(facts, path)
    return None if content is None else content.decode("utf-8", "replace")


def _flat(facts: Facts, path: str, *keys: str) -> Mapping[str, str | None]:
    """Return the texts under the top-level ``keys`` of a file; nothing if the file does not exist."""
    text = _text(facts, path) or ""
    try:
        return read_texts(text, keys)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def read_texts(text: str, keys: Iterable[str]) -> Mapping[str, str | None]:
    """Return the texts under the top-level ``keys`` of a YAML or JSON document: None for a null, absent if it has none.

    Raises:
        ValueError: the document cannot be read, or holds something else under one of them.
    """
    from gpunode import yaml  # loaded on use: most nodes have no kubelet

    document = yaml.load(text)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ValueError("it is not a mapping")
    found = {key: document[key] for key in keys if key in document}
    for key, value in found.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{key} is {value!r}, not a text"[:200])
    return found


def _own(facts: Facts, words: Sequence[str]) -> Fact[Kubelet | None]:
    """A kubelet of its own: the flags among the words that start it win over its configuration."""
    kind: KubeletKind = "kubelet"
    flags = flags_of(words)
    path = flags.get("config", "")
    config = _config(facts, path, needed=not {"container-runtime-endpoint", "cgroup-driver"} <= flags.keys())
    endpoint = flags.get("container-runtime-endpoint") or config.get("containerRuntimeEndpoint")
    if flags.get("container-runtime") == "docker":
        endpoint = "/run/dockershim.sock"
    driver = flags.get("cgroup-driver") or config.get("cgroupDriver")
    return Known(
        Kubelet(
            kind,
            _unit(facts, kind),
            socket(endpoint or _SOCKETS[kind]),
            _driver(driver) or _DEFAULT_DRIVER,
            node_name=flags.get("hostname-override", ""),
            static_cpus=(flags.get(_CPU_MANAGER) or config.get("cpuManagerPolicy")) == "static",
            labels=flags.get("node-labels", ""),
        ),
        f"file:{path}" if path else "units",
    )


def _config(facts: Facts, path: str, *, needed: bool) -> Mapping[str, str | None]:
    """What the kubelet's file says; nothing without one, and where an unreadable one is not ``needed``."""
    try:
        return _flat(facts, path, "containerRuntimeEndpoint", "cgroupDriver", "cpuManagerPolicy") if path else {}
    except ValueError:
        if needed:
            raise
        return {}


def _command(facts: Facts, *, image: bool) -> tuple[str, ...]:
    """The words that start kubelet.service, as systemd puts them together.

    Raises:
        _Unreadable: part of it was not looked at, or its files do not say.
    """
    # What stands in an image's /run is gone when it boots.
    folders = tuple(folder for folder in _SYSTEMD.values() if not (image and folder.startswith("/run/")))
    files: dict[str, bytes] = {}
    asked: set[str] = set()
    while new := [place for place in units.reads(files, _KUBELET, folders) if place not in asked]:
        asked.update(new)
        for path in (path for place in new for path in _matches(facts, place)):
            content = _content(facts, path)
            files.update({} if content is None else {path: content})
    command = units.command(files, _KUBELET, folders)
    if command is None:
        raise _Unreadable(Unknown("no unit file in the usual places says how it is started", f"file:{folders[0]}"))
    return command.argv


def _matches(facts: Facts, place: str) -> Sequence[str]:
    """The files that a path or a pattern names."""
    if not set(place) & set("*?["):
        return (place,)
    folder = place.rpartition("/")[0]
    if folder not in facts.folders:
        raise _Unreadable(Unknown("not captured", f"file:{folder}"))
    return [path for path in facts.files if path.rpartition("/")[0] == folder and fnmatchcase(path, place)]


def _rancher(facts: Facts, kind: KubeletKind) -> Fact[Kubelet | None]:
    """k3s and RKE2: they note the socket at every start; their cgroup driver follows from what they find then."""
    config, crictl = _RANCHER.format(kind), _CRICTL.format(kind)
    # The last that has a key counts; former captures lack the folder.
    files = [config, *(sorted(_matches(facts, f"{config}.d/*.yaml")) if f"{config}.d" in facts.folders else ())]
    told: dict[str, str | None] = {}
    for path in files:
        told |= _flat(facts, path, "data-dir", "container-runtime-endpoint", "node-name")
    data = told.get("data-dir") or f"/var/lib/rancher/{kind}"
    noted = _flat(facts, crictl, "runtime-endpoint") if data == f"/var/lib/rancher/{kind}" else {}
    endpoint = noted.get("runtime-endpoint") or told.get("container-runtime-endpoint") or _SOCKETS[kind]
    probe = f"file:{crictl if noted else config}"
    unit = _unit(facts, kind)
    words = _words_of_unit(facts, unit)
    name = flags_of(words).get("node-name") or told.get("node-name") or _name_in_environment(facts, unit)
    static = _cpu_manager([_text(facts, path) or "" for path in files], words) == "static"
    return Known(Kubelet(kind, unit, socket(endpoint), None, data.rstrip("/"), name, static_cpus=static), probe)


def _words_of_unit(facts: Facts, unit: str) -> Sequence[str]:
    """The command in the unit file that k3s's installer wrote; none where nobody looked. k3s hides it in /proc."""
    state = known(facts.file(f"/etc/systemd/system/{unit}"), None)
    if state is None or state.content is None:
        return ()
    place = f"/etc/systemd/system/{unit}"
    command = units.command({place: state.content}, unit, ("/etc/systemd/system",))
    return command.argv if command else ()


def _name_in_environment(facts: Facts, unit: str) -> str:
    """K3S_NODE_NAME, which k3s takes where neither a flag nor its configuration names the node."""
    place = _K3S_ENVIRONMENTS.get(unit)
    state = known(facts.file(place), None) if place else None
    text = state.content.decode("utf-8", "replace") if state and state.content else ""
    found = _NODE_NAME.findall(text)
    return str(found[-1]).strip("\"'") if found else ""


def _cpu_manager(texts: Sequence[str], words: Sequence[str]) -> str:
    """The policy among the kubelet's arguments in files and command; ``kubelet-arg+`` adds to those of files before."""
    found: list[str] = []
    for text in texts:
        for adds, block in _KUBELET_ARGUMENTS.findall(text):
            found = [*(found if adds else ()), *_POLICY.findall(block)]
    return next(reversed([*found, *_POLICY.findall("\n".join(words))]), "")


def _microk8s(facts: Facts, kind: KubeletKind) -> Fact[Kubelet | None]:
    """microk8s: one flag a line, with the snap's variables."""
    words = shlex.split(_text(facts, _MICROK8S) or "", comments=True)
    flags = flags_of(Template(word).safe_substitute(_SNAP) for word in words)
    endpoint = flags.get("container-runtime-endpoint") or _SOCKETS[kind]
    driver = _driver(flags.get("cgroup-driver")) or (None if "config" in flags else _DEFAULT_DRIVER)
    told = Kubelet(
        kind,
        _unit(facts, kind),
        socket(endpoint),
        driver,
        node_name=flags.get("hostname-override", ""),
        static_cpus=flags.get(_CPU_MANAGER) == "static",
    )
    return Known(told, f"file:{_MICROK8S}")


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
    for word, following in zip(given, (*given[1:], ""), strict=False):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in _FLAGS:
            found[name] = value if equals else following
    return found
