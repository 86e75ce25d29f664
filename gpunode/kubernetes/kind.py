"""A kind cluster on a workstation: its workers, which are containers of docker, get the machine's GPUs. Pure.

kind has no option for GPUs (kubernetes-sigs/kind issue 3164). A worker gets them by a mount, which docker's NVIDIA
runtime takes for a request; then the worker's own containerd is given the runtime. Sources: NVIDIA/nvkind README.md and
pkg/nvkind/node.go; NVIDIA/nvidia-container-toolkit pull request 927 for what toolkit 1.19 and later mask themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from gpunode.catalog.repositories import TOOLKIT
from gpunode.command import command
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.errors import Refused
from gpunode.kubernetes.model import KIND_CONFIG, ClusterNode, KindCluster
from gpunode.recipe import Recipe
from gpunode.recipe.kubernetes import Kind

_DEVICES: Final = "/var/run/nvidia-container-devices"


def workers(kind: Kind, nodes: Sequence[ClusterNode]) -> tuple[ClusterNode, ...]:
    """The cluster's workers, among whom the machine's GPUs are shared out in their order.

    They are ``nodes`` themselves where these are nodes of a kind cluster.

    Raises:
        Refused: the GPUs are of several machines, or fewer than the workers.
    """
    if all(node.provider == "kind" for node in nodes):
        return tuple(nodes)
    if len(nodes) > 1:
        raise Refused(
            "a kind cluster is on one machine",
            why="captures of several were named: " + ", ".join(node.name for node in nodes),
            hint="name one capture with --node, or none for this machine",
        )
    if kind.workers > len(nodes[0].gpus):
        raise Refused(
            f"{nodes[0].name} has fewer GPUs than the {kind.workers} workers of the kind cluster",
            why=f"it has {len(nodes[0].gpus)}; kind gives a worker whole GPUs",
            hint=f"set workers in [kubernetes.kind] to {len(nodes[0].gpus)} or less",
        )
    host = nodes[0]
    return tuple(
        replace(
            host,
            name=_name(kind, number),
            gpus=tuple(host.gpus[gpu] for gpu in _gpus(kind, len(host.gpus), number)),
            provider="kind",
        )
        for number in range(kind.workers)
    )


def _name(kind: Kind, number: int) -> str:
    """As kind calls its workers: the first has no number."""
    return f"{kind.name}-worker{number + 1 if number else ''}"


def _gpus(kind: Kind, count: int, number: int) -> range:
    """The indices of a worker's GPUs."""
    return range(count * number // kind.workers, count * (number + 1) // kind.workers)


def cluster(recipe: Recipe, kind: Kind, count: int) -> KindCluster:
    """The files from which the cluster is made, on a machine with so many GPUs."""
    nodes: list[dict[str, Any]] = [{"role": "control-plane"}]
    for number in range(kind.workers):
        wanted = ["all"] if kind.workers == 1 else [str(gpu) for gpu in _gpus(kind, count, number)]
        mounts = [{"hostPath": "/dev/null", "containerPath": f"{_DEVICES}/{one}"} for one in wanted]
        nodes.append({"role": "worker", "extraMounts": mounts})
    config = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes}
    return KindCluster(kind.name, config, _script(recipe, kind, count))


def _script(recipe: Recipe, kind: Kind, count: int) -> str:
    """Commands that make the cluster and give its workers' containerd the NVIDIA runtime; they can be run again."""
    make = command("kind", "create", "cluster", "--name", kind.name, "--config", KIND_CONFIG)
    install = command(*_INSTALL, *_packages(recipe))
    configure = command(*_CONFIGURE, *(["--cdi.enabled"] if recipe.runtime.cdi else []))
    parts = [
        _CHECKS,
        _PREPARE.format(list=TOOLKIT.list_file, key=TOOLKIT.keyring, install=install, configure=configure),
    ]
    parts += [_HIDE] if kind.workers > 1 else []
    # To grep a letter, a digit and - of the name are themselves.
    steps = [f"kind get clusters | grep -qx {kind.name} || {make}"]
    for number in range(kind.workers):
        steps.append(command("prepare", _name(kind, number)))
        if others := [str(gpu) for gpu in range(count) if gpu not in _gpus(kind, count, number)]:
            steps.append(command("hide", _name(kind, number), *others))
    return "\n".join((*parts, *steps, ""))


def _packages(recipe: Recipe) -> Sequence[str]:
    """The toolkit in the workers: the newest, or all four packages in the version that the recipe names."""
    version = recipe.toolkit.version
    if version in {"auto", "none"}:
        return [str(TOOLKIT_PACKAGES[0])]
    return [f"{name}={version if '-' in version else f'{version}-1'}" for name in TOOLKIT_PACKAGES]


_INSTALL: Final = ("apt-get", "install", "--yes", "--no-install-recommends")
_CONFIGURE: Final = ("nvidia-ctk", "runtime", "configure", "--runtime=containerd", "--config-source=file")
_CHECKS: Final = """\
# Makes the kind cluster, and gives its workers' containerd the NVIDIA runtime. Run it again after docker was restarted.
set -eu
cd "$(dirname "$0")"
export KIND_EXPERIMENTAL_PROVIDER=docker

fail() {
    echo "kind.sh: $1" >&2
    exit 1
}

docker info >/dev/null || fail "docker does not answer: does it run, and may you use it (group docker)?"
if docker info --format '{{.SecurityOptions}}' | grep -q name=rootless; then
    fail "this docker is rootless, which gives no GPU to kind's nodes; use the system's: docker context use default"
fi
[ "$(docker info --format '{{.DefaultRuntime}}')" = nvidia ] ||
    fail "docker's default runtime is not nvidia: set this machine up with the same recipe first (sudo gpunode setup)"
"""
# The worker's packages come from the repository, and are checked with the key, that gpunode set up on the machine.
_PREPARE: Final = """\
# Checks that the worker sees GPUs, and registers the runtime "nvidia" in its containerd.
prepare() {{
    docker exec "$1" nvidia-smi -L || fail "$1 sees no GPU: was the cluster made otherwise than by this script?"
    for file in {list} \\
        {key}; do
        docker cp "$file" "$1:$file"
    done
    docker exec "$1" apt-get update
    docker exec --env DEBIAN_FRONTEND=noninteractive "$1" \\
        {install}
    docker exec "$1" {configure}
    docker exec "$1" systemctl restart containerd
}}
"""
_HIDE: Final = """\
# A worker is privileged, so it has the device files of all GPUs: here those of the other workers' GPUs go. The driver
# would make them anew, were it not for ModifyDeviceFiles, which container toolkit 1.19 and later set in the worker.
hide() {
    worker=$1
    shift
    docker exec "$worker" grep -q '^ModifyDeviceFiles: 0' /proc/driver/nvidia/params ||
        fail "$worker would see all GPUs: this machine's container toolkit is older than 1.19"
    docker exec "$worker" sh -c '
        for gpu; do
            while umount "/dev/nvidia$gpu" 2>/dev/null; do :; done
            rm -f "/dev/nvidia$gpu"
        done' hide "$@"
}
"""
