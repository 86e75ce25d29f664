"""The container runtimes, with the facts about each that do not depend on its configuration. Pure.

A new runtime only needs a row here and a module ``gpunode/runtimes/<id>.py`` with its rules. No other code compares a
runtime's id with a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Final, Literal, TypeAlias

from gpunode.fast_dataclass import dataclass

# The program that validates a candidate configuration, as host/runtime.py runs it. "none": setup says so.
ConfigValidatorKind: TypeAlias = Literal["containerd config dump", "dockerd --validate", "crio config", "none"]
# The program that reports the runtime's present handlers. "files": only its files do.
LiveConfigSource: TypeAlias = Literal["containerd config dump", "docker info", "crio status", "podman info", "files"]
# The program that starts a container for `verify --container`. "kubelet": only a kubelet can.
ContainerClientKind: TypeAlias = Literal["ctr run", "docker run", "podman run", "kubelet"]
# How containers get GPUs as CDI devices. "switch": the configuration enables that; "always": it cannot be disabled;
# "only": likewise, and there is no handler to register.
CdiSupport: TypeAlias = Literal["switch", "always", "only"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRuntime:
    """A container runtime, as its own packages install it.

    Attributes:
        id: its name in recipes, and the name of the recipe that configures only it.
        program: its daemon's program, or its own; ``--version`` prints its version.
        config: its main configuration file; empty if no file of its own registers handlers.
        drop_in: the path of a drop-in; empty if the runtime reads none.
        other_config_paths: paths and patterns of the other files that it reads; empty if its module's
            ``list_read_paths`` returns them.
        unit: its systemd unit; empty if nothing runs between two containers.
        packages: the packages that provide it, the distribution's first.
        client: its client's program, which asks the daemon; empty if ``program`` does.
        client_packages: the package with that program, by distribution and version, where the daemon's package only
            recommends it.
        data_lost_by_purge: patterns of its users' containers, images and volumes that a purge of the distribution's
            package deletes; empty if a purge leaves them.
        package_source_hint: where to get these if no distribution has them; else empty.
        config_packages: those of ``packages`` that ship the configuration file, so that it exists after their
            installation.
        reloads: whether its daemon rereads some settings on SIGHUP; its module's ``applies_on_reload`` says which.
        stopped_by_restart: what a restart of its unit stops, unless its module's ``keeps_containers`` says otherwise;
            empty if nothing stops.
        runs_pods: whether a kubelet can use it; docker through cri-dockerd.
        has_cri_plugin: whether kubelets use a plugin of it that its configuration can disable.
        cgroup_by_handler: whether each handler configures its cgroup driver.
    """

    id: str
    program: str
    unit: str = ""
    config: str = ""
    drop_in: str = ""
    other_config_paths: tuple[str, ...] = ()
    socket: str = ""
    packages: tuple[str, ...]
    client: str = ""
    client_packages: Mapping[tuple[str, str], str] = field(default_factory=dict)
    config_packages: frozenset[str] = frozenset()
    data_lost_by_purge: tuple[str, ...] = ()
    package_source_hint: str = ""
    reloads: bool = False
    stopped_by_restart: str = ""
    runs_pods: bool = True
    has_cri_plugin: bool = False
    cgroup_by_handler: bool = False
    cdi_support: CdiSupport = "switch"
    config_validator: ConfigValidatorKind
    live_config_source: LiveConfigSource
    container_client: ContainerClientKind


# nvidia-ctk 1.18.0 to 1.19.0 wrote its drop-in here, where CRI-O does not look (nvidia-container-toolkit PR 1829).
UNREAD_FOLDER: Final = "/etc/crio/conf.d"
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
            has_cri_plugin=True,
            cgroup_by_handler=True,
            config_validator="containerd config dump",
            live_config_source="containerd config dump",
            container_client="ctr run",
        ),
        ContainerRuntime(
            id="docker",
            program="dockerd",
            unit="docker.service",
            config="/etc/docker/daemon.json",
            socket="/run/docker.sock",
            packages=("docker.io", "docker-ce"),
            client="docker",
            client_packages={("debian", "13"): "docker-cli"},  # its package list; Debian 12's docker.io has the program
            # docker.io.postrm runs nuke-graph-directory.sh (Debian 12 and 13). With userns-remap, the data are in
            # a folder such as 100000.100000.
            data_lost_by_purge=tuple(
                f"/var/lib/docker{folder}/{data}"
                for folder in ("", "/[0-9]*.[0-9]*")
                for data in ("containers/*", "image/*/imagedb/content/sha256/*", "volumes/*/_data")
            ),
            reloads=True,
            stopped_by_restart="docker containers",
            config_validator="dockerd --validate",
            live_config_source="docker info",
            container_client="docker run",
        ),
        ContainerRuntime(
            id="crio",
            program="crio",
            unit="crio.service",
            config="/etc/crio/crio.conf",
            drop_in="/etc/crio/crio.conf.d/99-nvidia.toml",
            other_config_paths=(
                *(f"/etc/crio/crio.conf.d/{pattern}" for pattern in ("*", ".*", "*/*")),
                f"{UNREAD_FOLDER}/*",
            ),
            socket="/run/crio/crio.sock",
            packages=("cri-o",),
            package_source_hint="the CRI-O project's own repository, see https://github.com/cri-o/packaging",
            cdi_support="always",
            config_validator="crio config",
            live_config_source="crio status",
            container_client="kubelet",
        ),
        ContainerRuntime(
            id="podman",
            program="podman",
            # In the order in which podman reads them; the last one wins.
            other_config_paths=(
                "/usr/share/containers/containers.conf",
                "/usr/share/containers/containers.conf.d/*.conf",
                "/etc/containers/containers.conf",
                "/etc/containers/containers.conf.d/*.conf",
            ),
            packages=("podman",),
            runs_pods=False,
            cdi_support="only",
            config_validator="none",
            live_config_source="podman info",
            container_client="podman run",
        ),
    )
}


def explain_missing_client(row: ContainerRuntime, *, has_daemon: bool) -> str:
    """Return the reason that nothing answers for the runtime: it is not installed, or only its client is missing."""
    if not row.client or not has_daemon:
        return f"{row.id} is not installed"
    packages = " or ".join(row.client_packages.values())
    return f"{row.client}, the program that asks its daemon, is not installed (package {packages})"


def takes_only_cdi(name: str) -> bool:
    """Return whether containers of the runtime ``name`` only get GPUs as CDI devices; False for the name "none"."""
    row = CONTAINER_RUNTIMES.get(name)
    return row is not None and row.cdi_support == "only"
