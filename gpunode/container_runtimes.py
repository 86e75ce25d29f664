"""The container runtimes, and what is true of each whatever its configuration says. Pure.

A row here, and a module ``gpunode/runtimes/<id>.py`` with the runtime's rules, are all that a new runtime needs. No
other code compares a runtime's id with a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

# What reads a candidate before it is used, as host/runtime.py knows it. "none": nothing does, which setup says.
ConfigValidator: TypeAlias = Literal["containerd config dump", "dockerd --validate", "crio config", "none"]
# What tells which handlers the runtime has now. "files": only its files do.
LiveConfigSource: TypeAlias = Literal["containerd config dump", "docker info", "crio status", "podman info", "files"]
# What starts a container for `verify --container`. "kubelet": only a kubelet does.
ContainerClient: TypeAlias = Literal["ctr run", "docker run", "podman run", "kubelet"]
# How containers get GPUs as CDI devices. "switch": where its configuration switches that on; "always": it cannot be
# switched off; "only": and there is no handler to register.
CdiSupport: TypeAlias = Literal["switch", "always", "only"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRuntime:
    """A container runtime, as its own packages install it.

    Attributes:
        id: its name in recipes, and of the recipe that configures it alone.
        program: of its daemon, or itself; ``--version`` tells its version.
        config: its main configuration file; empty where no file of its own registers a handler.
        drop_in: where a drop-in goes; empty where the runtime reads none.
        unit: of systemd; empty where nothing runs between two containers.
        packages: the packages that provide it, the distribution's first.
        external_source: where these come from when no distribution has them; empty when they do.
        config_packages: those of them that bring the configuration file themselves, so that it is not missing after
            their installation.
        reloads: whether its daemon reads some settings again on SIGHUP; its module's ``takes_on_reload`` says which.
        stopped: what a restart of its unit stops, unless its module's ``keeps_containers`` says otherwise; empty where
            nothing stops.
        runs_pods: whether a kubelet can use it.
        has_cri_plugin: whether the part that a kubelet uses is a plugin that its configuration can disable.
        cgroup_by_handler: whether each handler says which cgroup driver it uses.
    """

    id: str
    program: str
    unit: str
    config: str
    drop_in: str
    socket: str
    packages: tuple[str, ...]
    config_packages: frozenset[str]
    external_source: str
    reloads: bool
    stopped: str
    runs_pods: bool
    has_cri_plugin: bool
    cgroup_by_handler: bool
    cdi: CdiSupport
    parser: ConfigValidator
    source: LiveConfigSource
    client: ContainerClient


CONTAINER_RUNTIMES: Final[Mapping[str, ContainerRuntime]] = {
    row.id: row
    for row in (
        ContainerRuntime(
            id="containerd",
            program="containerd",
            unit="containerd.service",
            config="/etc/containerd/config.toml",
            drop_in="/etc/containerd/conf.d/99-nvidia.toml",
            socket="/run/containerd/containerd.sock",
            packages=("containerd", "containerd.io"),
            config_packages=frozenset({"containerd", "containerd.io"}),
            external_source="",
            reloads=False,
            stopped="",
            runs_pods=True,
            has_cri_plugin=True,
            cgroup_by_handler=True,
            cdi="switch",
            parser="containerd config dump",
            source="containerd config dump",
            client="ctr run",
        ),
        ContainerRuntime(
            id="docker",
            program="dockerd",
            unit="docker.service",
            config="/etc/docker/daemon.json",
            drop_in="",
            socket="/run/docker.sock",
            packages=("docker.io", "docker-ce"),
            config_packages=frozenset(),
            external_source="",
            reloads=True,
            stopped="docker containers",
            runs_pods=True,  # through cri-dockerd
            has_cri_plugin=False,
            cgroup_by_handler=False,
            cdi="switch",
            parser="dockerd --validate",
            source="docker info",
            client="docker run",
        ),
        ContainerRuntime(
            id="crio",
            program="crio",
            unit="crio.service",
            config="/etc/crio/crio.conf",
            drop_in="/etc/crio/crio.conf.d/99-nvidia.toml",
            socket="/run/crio/crio.sock",
            packages=("cri-o",),
            config_packages=frozenset(),
            external_source="the CRI-O project's own repository, see https://github.com/cri-o/packaging",
            reloads=False,
            stopped="",
            runs_pods=True,
            has_cri_plugin=False,
            cgroup_by_handler=False,
            cdi="always",
            parser="crio config",
            source="crio status",
            client="kubelet",
        ),
        ContainerRuntime(
            id="podman",
            program="podman",
            unit="",
            config="",
            drop_in="",
            socket="",
            packages=("podman",),
            config_packages=frozenset(),
            external_source="",
            reloads=False,
            stopped="",
            runs_pods=False,
            has_cri_plugin=False,
            cgroup_by_handler=False,
            cdi="only",
            parser="none",
            source="podman info",
            client="podman run",
        ),
    )
}


def takes_only_cdi(name: str) -> bool:
    """Return whether containers of the runtime ``name`` get GPUs as CDI devices alone; False of the name "none"."""
    row = CONTAINER_RUNTIMES.get(name)
    return row is not None and row.cdi == "only"
