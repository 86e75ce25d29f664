"""The kubelet of a node: its product, container runtime socket and cgroup driver.

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

from gpunode.facts import systemd
from gpunode.facts.model import (
    CgroupDriver,
    Fact,
    Facts,
    Known,
    Kubelet,
    KubeletKind,
    MisreadKubelet,
    Unknown,
    value_or,
)
from gpunode.facts.patterns import Pattern

_KUBEADM_CONFIG_FILE: Final = "/var/lib/kubelet/config.yaml"
_KUBELET_CONFIG_FILES: Final = (
    _KUBEADM_CONFIG_FILE,
    "/etc/kubernetes/kubelet/config.json",
    "/etc/kubernetes/kubelet-config.yaml",
    "/home/kubernetes/kubelet-config.yaml",  # GKE
)
_KUBELET_ENVIRONMENT_FILES: Final = (
    "/var/lib/kubelet/kubeadm-flags.env",
    "/etc/default/kubelet",
    "/etc/sysconfig/kubelet",
    "/etc/eks/kubelet/environment",
    "/etc/kubernetes/kubelet.env",  # kubespray
)
_KUBELET_UNIT: Final = "kubelet.service"
# /lib is /usr/lib on every distribution here.
_UNIT_FOLDERS: Final = {
    "kubelet-unit-etc": "/etc/systemd/system",
    "kubelet-unit-run": "/run/systemd/system",
    "kubelet-unit-local": "/usr/local/lib/systemd/system",
    "kubelet-unit-lib": "/lib/systemd/system",
}
_RANCHER_CRICTL_YAML: Final = "/var/lib/rancher/{}/agent/etc/crictl.yaml"
_RANCHER_CONFIG_FILE: Final = "/etc/rancher/{}/config.yaml"
# The environment files of the units of k3s's installer; read for K3S_NODE_NAME.
_K3S_ENVIRONMENTS: Final = {unit: f"/etc/systemd/system/{unit}.env" for unit in ("k3s.service", "k3s-agent.service")}
_MICROK8S_KUBELET_ARGS_FILE: Final = "/var/snap/microk8s/current/args/kubelet"
_K0S_CONFIG_FILE: Final = "/etc/k0s/containerd.toml"
KUBELET_COMMAND_PROBE_KEY: Final = "kubelet-command"
FILES: Final = (
    *_KUBELET_CONFIG_FILES,
    *_KUBELET_ENVIRONMENT_FILES,
    *(f"{folder}/{_KUBELET_UNIT}" for folder in _UNIT_FOLDERS.values()),
    *(place.format(product) for product in ("k3s", "rke2") for place in (_RANCHER_CRICTL_YAML, _RANCHER_CONFIG_FILE)),
    *(f"/etc/systemd/system/{unit}" for unit in ("k3s.service", "k3s-agent.service")),
    *_K3S_ENVIRONMENTS.values(),
    _MICROK8S_KUBELET_ARGS_FILE,
    _K0S_CONFIG_FILE,
)
# Folders of which every file is read, by probe key.
FOLDERS: Final = {
    **{key: f"{folder}/{_KUBELET_UNIT}.d" for key, folder in _UNIT_FOLDERS.items()},
    **{f"{product}-config-d": f"{_RANCHER_CONFIG_FILE.format(product)}.d" for product in ("k3s", "rke2")},
}
UNITS: Final[Mapping[KubeletKind, tuple[str, ...]]] = {
    "kubelet": (_KUBELET_UNIT,),
    "k3s": ("k3s.service", "k3s-agent.service"),
    "rke2": ("rke2-server.service", "rke2-agent.service"),
    "microk8s": ("snap.microk8s.daemon-kubelite.service",),
    "k0s": ("k0sworker.service", "k0scontroller.service"),
}
# Files that exist only where the product runs or has run.
_PRODUCT_MARKS: Final[Mapping[KubeletKind, str]] = {
    "k3s": _RANCHER_CRICTL_YAML.format("k3s"),
    "rke2": _RANCHER_CRICTL_YAML.format("rke2"),
    "microk8s": _MICROK8S_KUBELET_ARGS_FILE,
    "k0s": _K0S_CONFIG_FILE,
}
_RUNTIME_SOCKETS: Final[Mapping[KubeletKind, str]] = {
    "kubelet": "/run/containerd/containerd.sock",
    "k3s": "/run/k3s/containerd/containerd.sock",
    "rke2": "/run/k3s/containerd/containerd.sock",
    "microk8s": "/var/snap/microk8s/common/run/containerd.sock",
    "k0s": "/run/k0s/containerd.sock",
}
_SNAP_VARIABLES: Final = {"SNAP_DATA": "/var/snap/microk8s/current", "SNAP_COMMON": "/var/snap/microk8s/common"}
_CGROUP_DRIVERS: Final[Mapping[str, CgroupDriver]] = {"systemd": "systemd", "cgroupfs": "cgroupfs"}
# For k3s and RKE2.
_KUBELET_ARGUMENTS = Pattern(r"""(?m)^["']?kubelet-arg(\+?)["']?[ \t]*:(.*(?:\n(?:[ \t#-].*)?)*)""")
_CPU_MANAGER_POLICY_ARGUMENT = Pattern(r"(?m)^[^#\n]*\bcpu-manager-policy=(\w+)")
_K3S_NODE_NAME_ASSIGNMENT = Pattern(r"(?m)^[ \t]*K3S_NODE_NAME=(.*?)[ \t]*$")
# The default of a kubelet without that option; kubeadm sets systemd (1.22 and later).
_DEFAULT_CGROUP_DRIVER: Final[CgroupDriver] = "cgroupfs"
_CPU_MANAGER_POLICY_FLAG: Final = "cpu-manager-policy"
_PARSED_KUBELET_FLAGS: Final = frozenset(
    {
        *("config", "container-runtime", "container-runtime-endpoint", "cgroup-driver"),
        *("hostname-override", "node-name", "node-labels", _CPU_MANAGER_POLICY_FLAG),
    }
)


class _Unreadable(ValueError):
    """A needed file was not probed or cannot be read."""

    def __init__(self, fact: Unknown) -> None:
        super().__init__(fact.reason)
        self.fact = fact


def find_kubelet(facts: Facts, running: Sequence[str] = (), *, image: bool = False) -> Fact[Kubelet | None]:
    """Find the running kubelet, else the one that is set up; None if there is none.

    Unknown if several products claim the node, or if a deciding file cannot be read.

    ``running`` is the command line of the running standalone kubelet; empty if it was not probed.
    """
    ranks = {kind: _presence_rank(facts, kind) for kind in UNITS}
    best = max(ranks.values())
    if not best:
        return _report_no_kubelet(facts)
    kinds = [kind for kind, rank in ranks.items() if rank == best]
    if len(kinds) > 1:
        names = " and ".join(_choose_unit(facts, kind) or f"{kind} ({_PRODUCT_MARKS[kind]})" for kind in kinds)
        return Unknown(f"{names} are both {_WORD_BY_RANK[best]} here", "units")
    try:
        if kinds == ["kubelet"]:
            return _read_standalone(facts, running or _find_start_command(facts, image=image))
        return _READER_BY_PRODUCT[kinds[0]](facts, kinds[0])
    except _Unreadable as unreadable:
        return unreadable.fact
    except ValueError as error:
        problem = str(error)[:500]
        return MisreadKubelet(f"not understood: {problem}", "kubelet", kinds[0], problem)


_WORD_BY_RANK: Final = {3: "running", 2: "enabled", 1: "set up"}


def _presence_rank(facts: Facts, kind: KubeletKind) -> int:
    """Rank a product's presence: 3 running, 2 enabled at boot, 1 its unit or files exist."""
    here = [unit.value for name in UNITS[kind] if isinstance(unit := facts.unit(name), Known) and unit.value.exists]
    if any(unit.state.active for unit in here):
        return 3
    if any(unit.state.enabled for unit in here):
        return 2
    return 1 if here or (kind in _PRODUCT_MARKS and value_or(facts.file(_PRODUCT_MARKS[kind]), None) is not None) else 0


def _report_no_kubelet(facts: Facts) -> Fact[Kubelet | None]:
    """Report that there is no kubelet, or Unknown if a place could not be read."""
    looks = (
        *(facts.unit(names[0]) for names in UNITS.values()),
        *(facts.file(mark) for mark in _PRODUCT_MARKS.values()),
    )
    unknown = next((look for look in looks if isinstance(look, Unknown)), None)
    return unknown or Known(None, "units")


def has_joined_cluster(facts: Facts, kind: KubeletKind) -> bool:
    """Return whether the kubelet has run here: kubeadm, k3s and RKE2 write a file for it when the node joins."""
    state = value_or(facts.file(_KUBEADM_CONFIG_FILE if kind == "kubelet" else _PRODUCT_MARKS[kind]), None)
    return state is not None


def _choose_unit(facts: Facts, kind: KubeletKind) -> str:
    """Return the product's running unit, else an existing one; empty if there are only files."""
    existing_units = {name: unit.value for name in UNITS[kind] if isinstance(unit := facts.unit(name), Known)}
    existing = [name for name, unit in existing_units.items() if unit.exists]
    return next((name for name in existing if existing_units[name].state.active), existing[0] if existing else "")


def _read_content(facts: Facts, path: str) -> bytes | None:
    """Return the file's content; None if it does not exist."""
    state = facts.file(path)
    if isinstance(state, Unknown):
        raise _Unreadable(state)
    return state.value.content if state.value else None


def _read_text(facts: Facts, path: str) -> str | None:
    """Return the file's text; None if it does not exist."""
    content = _read_content(facts, path)
    return None if content is None else content.decode("utf-8", "replace")


def _read_keys(facts: Facts, path: str, *keys: str) -> Mapping[str, str | None]:
    """Return the texts under the top-level ``keys`` of a file; nothing if the file does not exist."""
    text = _read_text(facts, path) or ""
    try:
        return read_top_level_texts(text, keys)
    except ValueError as error:
        from gpunode.yaml import YamlError  # as below

        if isinstance(error, YamlError) and error.line:
            raise ValueError(f"{path}:{error.line}: {error.reason}") from error
        raise ValueError(f"{path}: {error}") from error


def read_top_level_texts(text: str, keys: Iterable[str]) -> Mapping[str, str | None]:
    """Return the texts under the top-level ``keys`` of a YAML or JSON document: None for a null, absent if it has none.

    Raises:
        ValueError: if the document cannot be parsed, or a value is no text.
    """
    from gpunode import yaml  # loaded on use: most nodes have no kubelet

    document = yaml.load(text)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ValueError("it is not a mapping")
    values = {key: document[key] for key in keys if key in document}
    for key, value in values.items():
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{key} is {value!r}, not a text"[:200])
    return values


def _read_standalone(facts: Facts, words: Sequence[str]) -> Fact[Kubelet | None]:
    """Read a standalone kubelet, whose flags win over its configuration."""
    kind: KubeletKind = "kubelet"
    flags = parse_flags(words)
    path = flags.get("config", "")
    config: Mapping[str, str | None] = {}
    try:
        config = _read_keys(facts, path, "containerRuntimeEndpoint", "cgroupDriver", "cpuManagerPolicy") if path else {}
    except ValueError:
        if not {"container-runtime-endpoint", "cgroup-driver"} <= flags.keys():
            raise
    endpoint = flags.get("container-runtime-endpoint") or config.get("containerRuntimeEndpoint")
    if flags.get("container-runtime") == "docker":
        endpoint = "/run/dockershim.sock"
    driver = flags.get("cgroup-driver") or config.get("cgroupDriver")
    return Known(
        Kubelet(
            kind,
            _choose_unit(facts, kind),
            socket_path(endpoint or _RUNTIME_SOCKETS[kind]),
            _parse_cgroup_driver(driver) or _DEFAULT_CGROUP_DRIVER,
            node_name=flags.get("hostname-override", ""),
            static_cpus=(flags.get(_CPU_MANAGER_POLICY_FLAG) or config.get("cpuManagerPolicy")) == "static",
            labels=flags.get("node-labels", ""),
        ),
        f"file:{path}" if path else "units",
    )


def _find_start_command(facts: Facts, *, image: bool) -> tuple[str, ...]:
    """Return the command line of kubelet.service, as systemd assembles it."""
    # The content of an image's /run is gone when it boots.
    folders = tuple(folder for folder in _UNIT_FOLDERS.values() if not (image and folder.startswith("/run/")))
    files: dict[str, bytes] = {}
    seen: set[str] = set()
    while new := [place for place in systemd.unit_source_patterns(files, _KUBELET_UNIT, folders) if place not in seen]:
        seen.update(new)
        for path in (path for place in new for path in _match_files(facts, place)):
            content = _read_content(facts, path)
            files.update({} if content is None else {path: content})
    command = systemd.find_start_command(files, _KUBELET_UNIT, folders)
    if command is None:
        raise _Unreadable(Unknown("no unit file in the usual places says how it is started", f"file:{folders[0]}"))
    return command.argv


def _match_files(facts: Facts, pattern: str) -> Sequence[str]:
    """Return the files that match a path or pattern."""
    if not set(pattern) & set("*?["):
        return (pattern,)
    folder = pattern.rpartition("/")[0]
    if folder not in facts.folders:
        raise _Unreadable(Unknown("not captured", f"file:{folder}"))
    return [path for path in facts.files if path.rpartition("/")[0] == folder and fnmatchcase(path, pattern)]


def _read_rancher(facts: Facts, kind: KubeletKind) -> Fact[Kubelet | None]:
    """Read k3s or RKE2, which record the socket at every start and choose their cgroup driver then."""
    config, crictl = _RANCHER_CONFIG_FILE.format(kind), _RANCHER_CRICTL_YAML.format(kind)
    # The last file that has a key wins; older captures lack the folder.
    files = [config, *(sorted(_match_files(facts, f"{config}.d/*.yaml")) if f"{config}.d" in facts.folders else ())]
    settings: dict[str, str | None] = {}
    for path in files:
        settings |= _read_keys(facts, path, "data-dir", "container-runtime-endpoint", "node-name")
    data = settings.get("data-dir") or f"/var/lib/rancher/{kind}"
    noted = _read_keys(facts, crictl, "runtime-endpoint") if data == f"/var/lib/rancher/{kind}" else {}
    endpoint = noted.get("runtime-endpoint") or settings.get("container-runtime-endpoint") or _RUNTIME_SOCKETS[kind]
    probe = f"file:{crictl if noted else config}"
    unit = _choose_unit(facts, kind)
    words = _k3s_unit_command(facts, unit)
    name = parse_flags(words).get("node-name") or settings.get("node-name") or _node_name_in_environment(facts, unit)
    static = _find_cpu_policy([_read_text(facts, path) or "" for path in files], words) == "static"
    return Known(Kubelet(kind, unit, socket_path(endpoint), None, data.rstrip("/"), name, static_cpus=static), probe)


def _k3s_unit_command(facts: Facts, unit: str) -> Sequence[str]:
    """Return the command in the unit file of k3s's installer; empty if not probed. k3s hides it in /proc."""
    unit_file = f"/etc/systemd/system/{unit}"
    state = value_or(facts.file(unit_file), None)
    command = systemd.find_start_command({unit_file: state.content}, unit, ("/etc/systemd/system",)) if state else None
    return command.argv if command else ()


def _node_name_in_environment(facts: Facts, unit: str) -> str:
    """Return K3S_NODE_NAME, which k3s uses if neither a flag nor its configuration names the node."""
    names = _K3S_NODE_NAME_ASSIGNMENT.findall(facts.text(_K3S_ENVIRONMENTS.get(unit, "")))
    return str(names[-1]).strip("\"'") if names else ""


def _find_cpu_policy(texts: Sequence[str], words: Sequence[str]) -> str:
    """Return the CPU policy in the kubelet's arguments; ``kubelet-arg+`` adds to those of earlier files."""
    policies: list[str] = []
    for text in texts:
        for adds, block in _KUBELET_ARGUMENTS.findall(text):
            policies = [*(policies if adds else ()), *_CPU_MANAGER_POLICY_ARGUMENT.findall(block)]
    return next(reversed([*policies, *_CPU_MANAGER_POLICY_ARGUMENT.findall("\n".join(words))]), "")


def _read_microk8s(facts: Facts, kind: KubeletKind) -> Fact[Kubelet | None]:
    """Read microk8s: one flag per line, with the snap's variables."""
    words = shlex.split(_read_text(facts, _MICROK8S_KUBELET_ARGS_FILE) or "", comments=True)
    flags = parse_flags(Template(word).safe_substitute(_SNAP_VARIABLES) for word in words)
    endpoint = flags.get("container-runtime-endpoint") or _RUNTIME_SOCKETS[kind]
    driver = _parse_cgroup_driver(flags.get("cgroup-driver")) or (None if "config" in flags else _DEFAULT_CGROUP_DRIVER)
    default = Kubelet(
        kind,
        _choose_unit(facts, kind),
        socket_path(endpoint),
        driver,
        node_name=flags.get("hostname-override", ""),
        static_cpus=flags.get(_CPU_MANAGER_POLICY_FLAG) == "static",
    )
    return Known(default, f"file:{_MICROK8S_KUBELET_ARGS_FILE}")


def _read_k0s(facts: Facts, kind: KubeletKind) -> Fact[Kubelet | None]:
    """Read k0s, which writes containerd's configuration only if it runs containerd itself (no --cri-socket)."""
    if _read_text(facts, _K0S_CONFIG_FILE) is None:
        why = "k0s has not started yet, or uses another runtime (--cri-socket)"
        reason = f"{_K0S_CONFIG_FILE} does not exist: {why}"
        return Unknown(reason, f"file:{_K0S_CONFIG_FILE}")
    return Known(Kubelet(kind, _choose_unit(facts, kind), _RUNTIME_SOCKETS[kind], None), f"file:{_K0S_CONFIG_FILE}")


_READER_BY_PRODUCT: Final[Mapping[KubeletKind, Callable[[Facts, KubeletKind], Fact[Kubelet | None]]]] = {
    "k3s": _read_rancher,
    "rke2": _read_rancher,
    "microk8s": _read_microk8s,
    "k0s": _read_k0s,
}


def _parse_cgroup_driver(word: str | None) -> CgroupDriver | None:
    if word and word not in _CGROUP_DRIVERS:
        raise ValueError(f"{word!r} is not a cgroup driver of the kubelet")
    return _CGROUP_DRIVERS[word] if word else None


def socket_path(endpoint: str) -> str:
    """Return the path of ``endpoint``, /var/run written as /run; an endpoint that is no Unix socket is kept."""
    path = endpoint.removeprefix("unix://")
    return "/run/" + path.removeprefix("/var/run/") if path.startswith("/var/run/") else path


def parse_flags(words: Iterable[str]) -> Mapping[str, str]:
    """Return the flags that gpunode needs; the last of a repeated flag wins."""
    arguments = list(words)
    flags: dict[str, str] = {}
    for word, following in zip(arguments, (*arguments[1:], ""), strict=False):
        name, equals, value = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in _PARSED_KUBELET_FLAGS:
            flags[name] = value if equals else following
    return flags
