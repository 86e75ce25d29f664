"""View the node's container runtime: which one it is, and the effective configuration of dockerd and containerd."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final, Literal, TypeAlias

from gpunode.container_runtimes import CONTAINER_RUNTIMES
from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact, find_first
from gpunode.errors import Refused
from gpunode.facts import patterns
from gpunode.facts.items import EvidenceItem
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

# The ids of gpunode's own table of runtimes.
Engine: TypeAlias = Literal["docker", "containerd", "crio", "podman"]

# Messages of the daemon take precedence over those of its callers; kubectl only shows that there are pods.
_ENGINE_PATTERNS: Final[tuple[tuple[Engine, Pattern], ...]] = (
    ("crio", Pattern(r"(?i)\bcri-o\b|\bcrio\b|/etc/crio/")),
    (
        "docker",
        Pattern(r"Error response from daemon|\bdockerd\b|/etc/docker/|\bdocker(?:: Error| (?:run|info|compose|ps)\b)"),
    ),
    ("podman", Pattern(r"\bpodman\b")),
    ("containerd", Pattern(r"\bcontainerd\b|\bnerdctl\b|\bk3s\b|\brke2\b|\bkubelet\b|\bkubectl\b")),
    ("docker", Pattern(r"\bdocker\b")),
)


def container_engine(snapshot: Snapshot) -> Engine:
    """Return the runtime that gives containers their GPUs; docker, the most common one, if none is named."""
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known) and kubelet.value is not None:
        return "crio" if "crio" in kubelet.value.socket else "containerd"
    # gpunode's own probes name every engine's files, and so do descriptions of packages.
    is_examined = is_examined_by_gpunode(snapshot)
    engines: tuple[Engine, ...] = ("docker", "containerd", "crio") if is_examined else ()
    for engine in engines:
        if any("nvidia-container-runtime" in item.text for item in snapshot.files(CONTAINER_RUNTIMES[engine].config)):
            return engine
    items = [item for item in snapshot.items if item.was_answered and not (is_examined and not _is_answer(item))]
    for found, pattern in _ENGINE_PATTERNS:
        if any(pattern.search(item.text) or (not is_examined and pattern.search(item.written)) for item in items):
            return found
    return "docker"


def _is_answer(item: EvidenceItem) -> bool:
    return item.outcome == "ok" and not (item.is_package_record or item.kind in _SOURCE_KINDS_WITHOUT_PRODUCT)


DOCKER_UNIT: Final = "docker.service"
_DOCKER_CONFIG: Final = CONTAINER_RUNTIMES["docker"].config
_CONTAINERD_CONFIG: Final = CONTAINER_RUNTIMES["containerd"].config
# Marks for omissions in a paste, and line numbers.
_PASTED_EXCERPT: Final = Pattern(r"(?m)\.{3}|…|<[^<>\n]{1,80}>|^[ \t]*\d{1,4}[ \t]*[|:{}\t \"\]]")


def docker_config_faults(snapshot: Snapshot) -> Iterator[tuple[str, Citation]]:
    """Yield the files that dockerd cannot read, with the reason; pasted ones only if complete."""
    for item in snapshot.files("*daemon.json"):
        is_part = item.source.pattern or item.source.is_part or _PASTED_EXCERPT.search(item.text)
        if item.where != "host" or item.outcome != "ok" or (is_part and not is_examined_by_gpunode(snapshot)):
            continue
        path = item.subject if "/" in item.subject else _DOCKER_CONFIG
        if item.subject not in item.written and _begins_with_json(item.text):
            continue
        from gpunode.runtimes import docker  # loaded here because most reports contain no such file

        try:
            docker.parse_daemon_json(item.text.encode("utf-8", "surrogatepass"), path)
        except Refused as refused:
            yield f"{refused.what}: {refused.why.split('. ')[0]}" if refused.why else refused.what, cite(item, 1)


def _begins_with_json(text: str) -> bool:
    """Return whether the text begins with a complete document; other output may follow in a paste without names."""
    text = text.lstrip()
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return False
    return not text[end:].lstrip().startswith(("{", "}", "]", ",", '"'))


_DOCKER_VERSION: Final = Pattern(
    r"(?m)(?:Docker version|Server Version:|^[ \t]*Version:)\s+(?P<version>\d{1,6}(?:\.\d{1,6})+)"
)


def docker_version(snapshot: Snapshot) -> tuple[int, ...]:
    """Return docker's version; empty if unknown."""
    shown = snapshot.items_of("docker-version", "docker-info", "container-run", "text")
    match = next((match for item in shown if (match := find_first(item, _DOCKER_VERSION))), None)
    return patterns.parse_version(match["version"]) if match else ()


ContainerdProduct: TypeAlias = Literal["containerd", "k3s", "rke2", "microk8s", "k0s"]

_PRODUCT_PATTERNS: Final[tuple[tuple[ContainerdProduct, Pattern], ...]] = (
    # RKE2's containerd also has its socket in /run/k3s.
    ("rke2", Pattern(r"/var/lib/rancher/rke2|[+-]rke2r?\d|\brke2-(?:server|agent)\b|/etc/rancher/rke2")),
    (
        "k3s",
        Pattern(r"/rancher/k3s|[+-]k3s\d|\bk3s\.service\b|ctl [\w -]{0,30}\bk3s\b|\bk3s-(?:agent|server)\b|/run/k3s/"),
    ),
    ("microk8s", Pattern(r"/var/snap/microk8s|\bmicrok8s\b")),
    ("k0s", Pattern(r"/(?:etc|lib)/k0s/|\bk0s(?:worker|controller)\b|[+-]k0s")),
)
# Probes query systemd for the units of every product; the answers are among the facts.
_SOURCE_KINDS_WITHOUT_PRODUCT: Final = frozenset({"packages", "kernel-log", "nvml", "unit-show"})


def containerd_product(snapshot: Snapshot) -> ContainerdProduct:
    """Return the product whose containerd the kubelet uses."""
    return snapshot.view(_find_product)[0]


def product_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the evidence of that product."""
    return snapshot.view(_find_product)[1]


def _find_product(snapshot: Snapshot) -> tuple[ContainerdProduct, tuple[Citation, ...]]:
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known) and kubelet.value is not None:
        kind = kubelet.value.kind
        return "containerd" if kind == "kubelet" else kind, (cite_fact("the kubelet", f"of {kind}", kubelet.probe),)
    items = [
        item
        for item in snapshot.items
        if not (item.kind in _SOURCE_KINDS_WITHOUT_PRODUCT or item.outcome == "absent" or item.is_package_record)
    ]
    sources = "\n".join(item.written for item in items)
    for name, pattern in _PRODUCT_PATTERNS:
        is_in_source = pattern.search(sources) is not None
        with_words = {id(item) for item in snapshot.items_with_words(pattern)}
        for item in items:
            if is_in_source and item.text.strip() and pattern.search(item.written):
                return name, (cite(item),)
            if id(item) in with_words and (match := find_first(item, pattern)):
                return name, (cite(item, item.line_number_at(match.start())),)
    return "containerd", ()


_CONTAINERD_CONFIG_LINE: Final = Pattern(r"(?m)^[ \t]*(?:\[\s*plugins\b|[\w-]+\s*=|\{)|\"runtimes\"")
_MAIN_CONFIG_FILES: Final[Mapping[ContainerdProduct, str]] = {
    "containerd": _CONTAINERD_CONFIG,
    "k3s": "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "rke2": "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "microk8s": "/var/snap/microk8s/current/args/containerd.toml",
}


def containerd_config_items(snapshot: Snapshot) -> tuple[EvidenceItem, ...]:
    """Return the configuration printed by the daemon, else the files that it reads."""
    return tuple(item for item in snapshot.items_of("containerd-config") if find_first(item, _CONTAINERD_CONFIG_LINE))[
        :1
    ] or _config_files(snapshot)


def _config_files(snapshot: Snapshot) -> tuple[EvidenceItem, ...]:
    path = _MAIN_CONFIG_FILES.get(containerd_product(snapshot), _CONTAINERD_CONFIG)
    shown = (item for item in snapshot.items_of("file", "listing") if item.where == "host" and item.outcome == "ok")
    items = {item.subject: item for item in shown if item.text.strip()}
    if (root := items.get(path)) is None:
        return ()
    folder = path.rpartition("/")[0]
    others = (items[one] for one in sorted(items) if one != path and one.startswith(folder) and one.endswith(".toml"))
    return (root, *(others if "imports" in root.text else ()))


def complete_containerd_config(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the configuration if it is complete, so that a handler missing in it does not exist."""
    shown = snapshot.view(containerd_config_items)
    is_whole = any(("runtimes" in item.text or "version" in item.text) and not item.source.pattern for item in shown)
    return (cite(shown[0], 1),) if is_whole and not shown[0].source.is_part else ()
