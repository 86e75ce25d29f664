"""A kind cluster on a workstation: its workers, which are docker containers, get the machine's GPUs. Pure.

kind has no option for GPUs (kubernetes-sigs/kind issue 3164). A mount requests a worker's GPUs from docker's NVIDIA
runtime; that runtime is then registered in the worker's own containerd. Sources: NVIDIA/nvkind README.md and
pkg/nvkind/node.go; NVIDIA/nvidia-container-toolkit pull request 927 for what toolkit 1.19 and later mask themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from gpunode.builtin import shipped_recipe_names
from gpunode.catalog.repositories import TOOLKIT_REPOSITORY
from gpunode.command import command
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.errors import Refused
from gpunode.kubernetes.model import KIND_CONFIG_FILE_NAME, ClusterNode, KindCluster
from gpunode.recipe import Recipe
from gpunode.recipe.kubernetes import KindClusterSettings

_CONTAINER_DEVICES_FOLDER: Final = "/var/run/nvidia-container-devices"


def make_workers(kind: KindClusterSettings, nodes: Sequence[ClusterNode]) -> tuple[ClusterNode, ...]:
    """Return the cluster's workers, which share the machine's GPUs in order.

    If ``nodes`` are nodes of a kind cluster, they are the workers.

    Raises:
        Refused: the GPUs are on several machines, or there are fewer than workers.
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
            name=_worker_name(kind, number),
            gpus=tuple(host.gpus[gpu] for gpu in _worker_gpus(kind, len(host.gpus), number)),
            provider="kind",
        )
        for number in range(kind.workers)
    )


def _worker_name(kind: KindClusterSettings, number: int) -> str:
    """Return kind's name of a worker; the first has no number."""
    return f"{kind.name}-worker{number + 1 if number else ''}"


def _worker_gpus(kind: KindClusterSettings, count: int, number: int) -> range:
    """Return the indices of a worker's GPUs."""
    return range(count * number // kind.workers, count * (number + 1) // kind.workers)


def make_cluster(recipe: Recipe, kind: KindClusterSettings, count: int) -> KindCluster:
    """Return the cluster on a machine with ``count`` GPUs."""
    nodes: list[dict[str, Any]] = [{"role": "control-plane"}]
    for number in range(kind.workers):
        gpus = ["all"] if kind.workers == 1 else [str(gpu) for gpu in _worker_gpus(kind, count, number)]
        mounts = [{"hostPath": "/dev/null", "containerPath": f"{_CONTAINER_DEVICES_FOLDER}/{gpu}"} for gpu in gpus]
        nodes.append({"role": "worker", "extraMounts": mounts})
    config = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": nodes}
    return KindCluster(kind.name, config, _make_script(recipe, kind, count))


def _make_script(recipe: Recipe, kind: KindClusterSettings, count: int) -> str:
    """Return a repeatable script that creates the cluster and registers the NVIDIA runtime in its workers."""
    make = command("kind", "create", "cluster", "--name", kind.name, "--config", KIND_CONFIG_FILE_NAME)
    # The newest toolkit package, or all four in the recipe's version.
    version, packages = recipe.toolkit.version, [str(TOOLKIT_PACKAGES[0])]
    if version not in {"auto", "none"}:
        packages = [f"{name}={version if '-' in version else f'{version}-1'}" for name in TOOLKIT_PACKAGES]
    install = command("apt-get", "install", "--yes", "--no-install-recommends", *packages)
    configure = "nvidia-ctk runtime configure --runtime=containerd --config-source=file"
    configure += " --cdi.enabled" if recipe.runtime.cdi else ""
    # The name of a file of one's own may have characters that the shell expands.
    name = recipe.name if recipe.name in shipped_recipe_names() else "RECIPE.toml"
    parts = [
        _CHECK_DOCKER_SCRIPT.replace("@RECIPE@", name),
        _PREPARE_WORKER_SCRIPT.format(
            list=TOOLKIT_REPOSITORY.list_file, key=TOOLKIT_REPOSITORY.keyring, install=install, configure=configure
        ),
    ]
    parts += [_HIDE_OTHER_GPUS_SCRIPT] if kind.workers > 1 else []
    # grep takes every character that the name may contain (letters, digits, -) literally.
    steps = [f"kind get clusters | grep -qx {kind.name} || {make}"]
    for number in range(kind.workers):
        steps.append(command("prepare", _worker_name(kind, number)))
        if others := [str(gpu) for gpu in range(count) if gpu not in _worker_gpus(kind, count, number)]:
            steps.append(command("hide", _worker_name(kind, number), *others))
    return "\n".join((*parts, *steps, ""))


_CHECK_DOCKER_SCRIPT: Final = """\
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
    fail "docker's default runtime is not nvidia: set this machine up first (sudo gpunode setup @RECIPE@)"
"""
# The worker's packages come from the repository that gpunode set up on the machine, checked with the same key.
_PREPARE_WORKER_SCRIPT: Final = """\
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
_HIDE_OTHER_GPUS_SCRIPT: Final = """\
# A worker is privileged, so it has the device files of all GPUs: this removes those of the other workers' GPUs. The
# driver would create them again, but ModifyDeviceFiles prevents that; container toolkit 1.19 and later set it.
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
