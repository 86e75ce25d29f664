"""Nodes for the laws: generated facts of machines as found in the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from hypothesis import strategies as st

from gpunode.change import FileState, PackageState, ServiceState
from gpunode.facts.model import (
    Distro,
    Facts,
    Kernels,
    Known,
    LoadedDriver,
    ModuleFile,
    PciDevice,
    Platform,
    Unit,
)
from gpunode.package_id import PackageId
from gpunode.packages.deb.dependencies import InstalledRelations
from gpunode.packages.deb.status import DpkgEntry
from gpunode.recipe import Driver, GpuDirect, Recipe, RuntimeSettings, Toolkit
from tests.ids import by_id

DISTROS = (
    Distro("debian", "12", "bookworm", "Debian GNU/Linux 12 (bookworm)"),
    Distro("debian", "13", "trixie", "Debian GNU/Linux 13 (trixie)"),
    Distro("ubuntu", "22.04", "jammy", "Ubuntu 22.04.5 LTS", ("debian",)),
    Distro("ubuntu", "24.04", "noble", "Ubuntu 24.04.3 LTS", ("debian",)),
)
# A GTX 1080, a T4, an H100, a B200, and a GPU that no table lists; the last two have no driver in common.
GPUS = (
    *[("1b80",), ("1eb8",), ("1eb8", "1eb8"), ("1b80", "1eb8")],
    *[("2330",), ("2330", "2330", "2330"), ("1eb8", "2330"), ("2901",), ("2330", "2901"), ("3fff",)],
    ("1b80", "2901"),
)
# Usually none: other values are refused on nodes whose GPUs or kernel modules do not support them.
GPUDIRECT = (
    *[GpuDirect()] * 4,
    GpuDirect(rdma="dma-buf"),
    GpuDirect(rdma="peermem"),
    GpuDirect(gds=True),
    GpuDirect(rdma="dma-buf", gdrcopy=True),
)
CONTAINERD = "/etc/containerd/config.toml"
DAEMON_JSON = "/etc/docker/daemon.json"
KERNEL = "6.1.0-99-amd64"

CONTAINERD_FILES = (
    None,
    b"",
    b"# keep me\nversion = 2\n",
    b'version = 2\n\n# the mirror\n[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/certs.d"\n',
    (
        b'version = 2\r\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\r\n'
        b'  runtime_type = "io.containerd.runc.v2" # crlf\r\n'
    ),
    (
        b"version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\ndefault_runtime_name = 'runc'\n"
        b"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
    ),
)
CRIO_CONF = "/etc/crio/crio.conf"
CRIO_DROP_IN = "/etc/crio/crio.conf.d/50-site.conf"
CRIO_FILES = (
    None,
    b"# nothing yet\n",
    b'[crio.runtime]\ndefault_runtime = "runc" # here\n[crio.runtime.runtimes.runc]\nmonitor_path = "/m"\n',
    b'[crio.runtime.runtimes.nvidia]\r\nruntime_path = "/usr/bin/nvidia-container-runtime"\r\n',
)
CDI_SPEC = "/var/run/cdi/nvidia.yaml"
CDI_SPECS = (
    None,
    b"not understood: [1\n",
    (
        b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits:\n    mounts:\n"
        b"    - hostPath: /lib/libcuda.so.580.95.05\n"
    ),
    (
        b"cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: all\n  containerEdits:\n    mounts:\n"
        b"    - hostPath: /lib/libcuda.so.470.256.02\n"
    ),
)
DAEMON_JSON_FILES = (
    None,
    b"{}",
    b'{\n  "features": {"containerd-snapshotter": true},\n  "log-opts": {"max-size": "10m"}\n}\n',
    b'{"default-runtime":"crun","runtimes":{"crun":{"path":"/usr/bin/crun"}}}',
)


# Dependencies of packages: an installed package, in one version or any; a missing one; one that does not exist.
_RELATIONS = (
    "libcuda1 (= 580.95.05-1)",
    "libnvidia-ptxjitcompiler1 (= 580.95.05-1), linux-image-amd64 (>= 6)",
    "dkms | nothing, nvidia-modprobe (>= 590)",
    "libcuda1:any, nvidia-kernel-support",
)


def _dependencies(packages: Mapping[str, PackageState], relations: Mapping[str, str]) -> InstalledRelations:
    rows = ((PackageId.of(name), state) for name, state in packages.items())
    return InstalledRelations(
        tuple(
            DpkgEntry(
                package.name,
                "install",
                False,
                "config-files" if state.config_files_only else "installed",
                package.arch or "amd64",
                state.version,
                depends=relations.get(str(package), ""),
            )
            for package, state in rows
        )
    )


_DRIVER_VERSIONS: Final = st.sampled_from(
    ("470.256.02-1", "535.261.03-1", "580.65.06-1", "580.95.05-1", "580.95.05-1ubuntu1", "595.91.07-1")
)
_DRIVER_PACKAGES: Final = st.sampled_from(
    (
        *("nvidia-driver-cuda", "nvidia-kernel-dkms", "nvidia-kernel-open-dkms", "nvidia-tesla-470-driver"),
        *("libcuda1", "libcuda1:i386", "nvidia-opencl-common", "nvidia-settings", "nvidia-modprobe"),
    )
)
_BASE_PACKAGES: Final = {
    "linux-image-amd64": PackageState("6.1.99-1"),
    "dpkg": PackageState("1.21.22"),
    "cri-o": PackageState("1.34.1-1.1"),  # gpunode has nowhere to get it from
}
# Strategies are made once: Hypothesis validates each new one, which takes longer than to draw from it.
_PACKAGE_SETS: Final = st.tuples(
    st.dictionaries(
        _DRIVER_PACKAGES,
        st.builds(PackageState, _DRIVER_VERSIONS, auto=st.booleans(), config_files_only=st.booleans()),
    ),
    st.dictionaries(
        st.sampled_from(("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container1")),
        st.builds(PackageState, st.sampled_from(("1.19.1-1", "1.20.1-1"))),
    ),
    st.dictionaries(
        st.sampled_from(("containerd", "docker.io", "podman")), st.builds(PackageState, st.just("4.3.1~ds1-1+b1"))
    ),
    st.dictionaries(
        st.sampled_from(("mlnx-ofed-kernel-dkms", "nvidia-fs-dkms", "gdrdrv-dkms", "libgdrapi")),
        st.builds(PackageState, st.just("24.10.1-1"), auto=st.booleans()),
    ),
)
# The place of a package among a node's sorted ones, and what it depends on.
_RELATIONS_BY_PLACE: Final = st.dictionaries(st.integers(0, 40), st.sampled_from(_RELATIONS), max_size=4)


def _file(contents: tuple[bytes | None, ...]) -> st.SearchStrategy[FileState | None]:
    present = st.sampled_from([content for content in contents if content is not None])
    states = st.builds(FileState, present, st.sampled_from((0o644, 0o600)), st.sampled_from((0, 1000)))
    return st.none() | states


_GPUS: Final = st.sampled_from(GPUS)
_LOADED_DRIVERS: Final = st.sampled_from(
    (
        None,
        LoadedDriver("470.256.02", False),
        LoadedDriver("580.95.05", False),
        LoadedDriver("580.95.05", open_module=True),
    )
)
_FILES: Final = {
    CONTAINERD: (f"file:{CONTAINERD}", _file(CONTAINERD_FILES)),
    DAEMON_JSON: (f"file:{DAEMON_JSON}", _file(DAEMON_JSON_FILES)),
    CRIO_CONF: (f"file:{CRIO_CONF}", _file(CRIO_FILES)),
    CRIO_DROP_IN: ("files:/etc/crio/crio.conf.d/*", _file(CRIO_FILES)),
    CDI_SPEC: ("cdi-run", _file(CDI_SPECS)),
}


def _unit(*, exists: bool) -> Unit:
    return Unit(ServiceState(enabled=exists, active=exists), exists=exists)


@st.composite
def facts(draw: st.DrawFn) -> Facts:
    """Return a node that gpunode supports, in any state of its software."""
    gpus = draw(_GPUS)
    packages = dict(_BASE_PACKAGES)
    for part in draw(_PACKAGE_SETS):
        packages |= part
    names = sorted(packages)
    relations = {names[place % len(names)]: relation for place, relation in draw(_RELATIONS_BY_PLACE).items()}
    loaded = draw(_LOADED_DRIVERS)
    has_headers = draw(st.booleans())
    built = (ModuleFile(KERNEL, f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko", "580.95.05", dkms=True),)
    return Facts(
        distro=Known(draw(st.sampled_from(DISTROS)), "os-release"),
        architecture=Known("amd64", "dpkg-status"),
        platform=Known(Platform(draw(st.sampled_from(("bare-metal", "vm")))), "virt"),
        kernels=Known(Kernels(KERNEL, (KERNEL,)), "boot-images"),
        boot_id=Known("b0a1", "boot-id"),
        devices=Known(
            tuple(PciDevice(f"0000:{n:02x}:00.0", "10de", gpu, "0302") for n, gpu in enumerate(gpus)), "lspci"
        ),
        packages=Known(by_id(packages), "dpkg-status"),
        dependencies=Known(_dependencies(packages, relations), "dpkg-status"),
        packages_interrupted=Known(draw(st.booleans()), "dpkg-updates"),
        sources=Known((), "apt-sources"),
        headers=Known(frozenset({KERNEL} if has_headers else ()), "kernel-builds"),
        module_files=Known(built if draw(st.booleans()) else (), "modules-dkms"),
        modules=Known(frozenset(draw(st.sampled_from(((), ("nouveau",))))), "modules"),
        loaded_driver=Known(loaded, "nvidia-version"),
        device_nodes=Known(frozenset(), "dev-nvidia"),
        units={
            "containerd.service": Known(_unit(exists="containerd" in packages), "units"),
            "docker.service": Known(_unit(exists="docker.io" in packages), "units"),
            "crio.service": Known(_unit(exists=True), "units"),
            "nvidia-cdi-refresh.service": Known(
                replace(_unit(exists=draw(st.booleans())), failed=draw(st.booleans())), "units"
            ),
            "nvidia-persistenced.service": Known(_unit(exists=draw(st.booleans())), "units"),
        },
        files={
            **{path: Known(draw(content), probe) for path, (probe, content) in _FILES.items()},
            **{
                path: Known(None, f"file:{path}")
                for path in (
                    "/usr/share/keyrings/cuda-archive-keyring.gpg",
                    "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg",
                )
            },
        },
        folders={
            "/etc/apt/sources.list.d": "apt-sources-d",
            "/etc/apt/preferences.d": "apt-preferences-d",
            "/etc/modprobe.d": "modprobe-d",
            "/etc/modules-load.d": "modules-to-load",
            "/etc/cdi": "cdi-etc",
            "/var/run/cdi": "cdi-run",
        },
    )


_RECIPES: Final = st.builds(
    Recipe,
    st.just("law"),
    driver=st.builds(
        Driver,
        version=st.sampled_from(("auto", "lts", "580", "none")),
        scope=st.sampled_from(("compute", "media", "full")),
        persistence=st.booleans(),
    ),
    toolkit=st.builds(Toolkit, st.sampled_from(("auto", "1.20.1"))),
    runtime=st.builds(
        RuntimeSettings,
        name=st.sampled_from(("containerd", "docker", "crio", "podman", "none")),
        set_as_default=st.booleans(),
        cgroup_driver=st.sampled_from(("auto", "systemd")),
        cdi=st.booleans(),
    ),
    gpudirect=st.sampled_from(GPUDIRECT),
)


def recipes() -> st.SearchStrategy[Recipe]:
    """Return recipes that fit every supported node."""
    return _RECIPES
