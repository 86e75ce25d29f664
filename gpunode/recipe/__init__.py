"""The wanted state of a node, as TOML can say it. Pure.

The dataclasses alone define which keys exist, what each may hold and what it means: the parser, the JSON schema for
editors, the reference page and the comments of a rendered recipe are derived from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from gpunode.container_runtimes import CONTAINER_RUNTIMES
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId

if TYPE_CHECKING:
    from gpunode.recipe.kubernetes import Kubernetes

RECIPE_SCHEMA_VERSION = 1
MAX_RECIPE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class KeySpec:
    """The meaning of a key and, if its type does not tell, its allowed values.

    Attributes:
        pattern: what the complete text must match; empty for any text.
        allowed: the same in words.
        minimum: the smallest number.
        name_pattern: for a table, what each of its keys must match; empty for any text.
        names: the same in words: what such a key is, then what it may be.
    """

    doc: str
    pattern: str = ""
    allowed: tuple[str, ...] = ()
    minimum: int = 1
    name_pattern: str = ""
    names: tuple[str, ...] = ()


if TYPE_CHECKING:
    RuntimeName: TypeAlias = str
else:
    _RUNTIME_NAMES = (*CONTAINER_RUNTIMES, "none")
    RuntimeName = Literal[_RUNTIME_NAMES]
KernelModuleType: TypeAlias = Literal["auto", "open", "proprietary"]
DriverSource: TypeAlias = Literal["nvidia", "distro"]
DriverScope: TypeAlias = Literal["compute", "media", "full"]
RuntimeInstallMode: TypeAlias = Literal["if-missing", "never"]
CgroupDriver: TypeAlias = Literal["auto", "systemd"]
RdmaMode: TypeAlias = Literal["none", "dma-buf", "peermem"]

_BRANCH_OR_VERSION = r"[0-9]{3}(\.[0-9]{2,3}){0,3}"
_DRIVER_VERSION_IN_WORDS = ("a branch such as 580", "a version such as 580.178.04")
# An address ends up in lists of repositories and in displayed commands, so allow letters, digits and characters that
# no shell interprets. Without user and password, which would be visible in a world-readable file and in the process
# list.
_ADDRESS_CHARACTER = r"[A-Za-z0-9._~:/%+,=@-]"
_repository_url_spec = partial(
    KeySpec,
    pattern=rf"|(https?://[A-Za-z0-9._~:%-]+(/{_ADDRESS_CHARACTER}*)?|file:/{_ADDRESS_CHARACTER}+)",
    allowed=(
        (
            "an http://, https:// or file:/ address of letters, digits and ._~:/%+,=@- (user and password belong in "
            "/etc/apt/auth.conf.d)"
        ),
        '"" for NVIDIA\'s own',
    ),
)
_key_fingerprints = partial(
    KeySpec,
    pattern=r"|[0-9A-F]{40}( [0-9A-F]{40})*",
    allowed=("40 upper-case hex digits; several keys with a blank between them", '"" for NVIDIA\'s own key'),
)
_key_file = partial(
    KeySpec,
    pattern=r"|[A-Za-z0-9][A-Za-z0-9._-]*",
    allowed=("a file name of letters, digits and ._-", '"" for the name that NVIDIA uses'),
)


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver."""

    version: Annotated[
        str,
        KeySpec(
            "which driver; none leaves it alone",
            rf"auto|production|lts|none|{_BRANCH_OR_VERSION}",
            ("auto", "production", "lts", "none", *_DRIVER_VERSION_IN_WORDS),
        ),
    ] = "auto"
    kernel_module_type: Annotated[KernelModuleType, KeySpec("the kernel module; auto takes what the GPUs need")] = (
        "auto"
    )
    scope: Annotated[
        DriverScope,
        KeySpec("compute has no display libraries; media adds video encoding and decoding; full adds a display"),
    ] = "compute"
    persistence: Annotated[
        bool, KeySpec("true has nvidia-persistenced keep the GPUs initialised; false leaves the daemon as it is")
    ] = True
    source: Annotated[
        DriverSource,
        KeySpec(
            "whose packages: those of NVIDIA's repository, or the distribution's own (distro); never a mix of both"
        ),
    ] = "nvidia"


@dataclass(frozen=True, slots=True)
class Repositories:
    """The origin of the packages; empty means NVIDIA's own address."""

    cuda: Annotated[
        str,
        _repository_url_spec(
            "base of a mirror of the CUDA repositories, above the distribution's folder (https://…/compute/cuda/repos)"
        ),
    ] = ""
    toolkit: Annotated[
        str, _repository_url_spec("base of a mirror of the container toolkit's repository, above stable/deb and gpgkey")
    ] = ""
    cuda_key_fingerprint: Annotated[
        str, _key_fingerprints("every key in the key file of the CUDA repository, if it is not NVIDIA's present one")
    ] = ""
    cuda_key_file: Annotated[str, _key_file("name of the key file beside the CUDA repository's index")] = ""
    toolkit_key_fingerprint: Annotated[
        str,
        _key_fingerprints("every key in the key file of the toolkit's repository, if it is not NVIDIA's present one"),
    ] = ""
    toolkit_key_file: Annotated[str, _key_file("name of the key file at the base of the toolkit's repository")] = ""


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The NVIDIA container toolkit."""

    version: Annotated[
        str,
        KeySpec(
            "auto takes the newest, a version pins all four packages, none leaves the toolkit alone",
            r"auto|none|[0-9]+\.[0-9]+\.[0-9]+([~-][0-9A-Za-z.~-]+)?",
            ("auto", "none", "a version such as 1.18.1-1"),
        ),
    ] = "auto"
    volume_mounts: Annotated[
        bool | None,
        KeySpec(
            "whether a container gets GPUs by mounts below /var/run/nvidia-container-devices, as kind nodes do; if "
            "left out, it is not changed"
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class CudaToolkit:
    """The CUDA toolkit: compiler and libraries on the host, in a folder for each release.

    Containers bring their own and need none of it.
    """

    version: Annotated[
        str,
        KeySpec(
            "the release, or none; auto takes the newest that the driver supports and that compiles for every GPU",
            r"auto|none|[0-9]{1,2}\.[0-9]",
            ("auto", "none", "a release such as 12.9"),
        ),
    ] = "none"
    parts: Annotated[
        tuple[str, ...],
        KeySpec("only these parts; empty for the whole toolkit", "nvcc|cudart|cublas", ("nvcc", "cudart", "cublas")),
    ] = ()


@dataclass(frozen=True, slots=True)
class RuntimeSettings:
    """The container runtime and how NVIDIA's handler is registered in it."""

    name: Annotated[
        RuntimeName, KeySpec("the container runtime to configure; podman uses CDI, the others the NVIDIA runtime")
    ] = "none"
    install: Annotated[RuntimeInstallMode, KeySpec("whether a missing runtime is installed from the distribution")] = (
        "if-missing"
    )
    set_as_default: Annotated[
        bool | None, KeySpec("whether nvidia is the default runtime (podman has none); if left out, it is unchanged")
    ] = None
    cgroup_driver: Annotated[
        CgroupDriver,
        KeySpec("auto keeps what the runtime has; systemd makes runc and nvidia of containerd and CRI-O use systemd's"),
    ] = "auto"
    cdi: Annotated[
        bool | None,
        KeySpec(
            "whether the runtime's own CDI support is enabled; if left out: only where pods get their GPUs by CDI "
            "(stack device-plugin or gpu-operator, containerd 1.7 and later)"
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class GpuDirect:
    """GPUDirect: network cards, disks and programs reach GPU memory without a copy in the host's memory."""

    rdma: Annotated[
        RdmaMode,
        KeySpec(
            "how network cards reach GPU memory; dma-buf needs the open kernel modules and no package, peermem is the "
            "older way and needs MLNX_OFED or DOCA-OFED"
        ),
    ] = "none"
    gds: Annotated[bool, KeySpec("whether GPUDirect Storage's kernel module, nvidia-fs, is installed and loaded")] = (
        False
    )
    gdrcopy: Annotated[
        bool, KeySpec("whether GDRCopy's kernel module and library are installed, the module loaded")
    ] = False


@dataclass(frozen=True, slots=True)
class MigSettings:
    """The MIG layout of this node's GPUs, whatever stack offers them."""

    layout: Annotated[
        str,
        KeySpec(
            "the layout that setup gives the GPUs (all-1g.10gb, all-balanced, all-disabled), or one of file; "
            "empty leaves them as they are",
            r"|[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?",
            ("a name as in mig-parted's configuration", '"" for none'),
        ),
    ] = ""
    file: Annotated[
        str,
        KeySpec(
            "a configuration file of mig-parted (version v1) on this node, which holds layout",
            r"|/[A-Za-z0-9._/-]+",
            ("an absolute path of letters, digits and ._/-", '"" for none'),
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class Mps:
    """CUDA's Multi-Process Service, for programs that share a GPU outside of Kubernetes."""

    enabled: Annotated[bool, KeySpec("whether the MPS control daemon runs, also after a reboot")] = False
    exclusive: Annotated[
        bool, KeySpec("whether only the MPS server may use the GPUs (compute mode EXCLUSIVE_PROCESS)")
    ] = True


@dataclass(frozen=True, slots=True)
class Expect:
    """The expected hardware; keys that are left out are not checked."""

    gpus: Annotated[int | None, KeySpec("how many GPUs")] = None
    model: Annotated[str, KeySpec("what every GPU's name contains (H100)")] = ""
    driver: Annotated[
        str, KeySpec("the branch or version of the loaded driver", f"|{_BRANCH_OR_VERSION}", _DRIVER_VERSION_IN_WORDS)
    ] = ""
    min_memory_mib: Annotated[int | None, KeySpec("the least memory of every GPU, in MiB")] = None
    ecc: Annotated[bool | None, KeySpec("whether ECC is on")] = None


@dataclass(frozen=True, slots=True)
class VersionLock:
    """Exact package versions, as in a lock file.

    Attributes:
        file: the file that it was read from.
        recipe: the name of the recipe that it was written for; only for people.
        distribution: os-release's ID; versions differ between distributions and their releases.
        release: os-release's VERSION_ID.
        packages: the version of each package.
    """

    file: str
    recipe: str
    distribution: str
    release: str
    architecture: str
    packages: Mapping[PackageId, str]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The wanted state of a node.

    Attributes:
        name: the name of its file, without the extension.
        kubernetes: None if the recipe has no such table.
        upgrade: whether a satisfied driver and toolkit are upgraded to the newest of their branch. Only set on the
            command line, never by a file, so that re-runs do not drift.
        lock: the versions that packages must have; also only set on the command line.
        remove_runfile_driver: whether to run the uninstaller of a .run driver; also only set on the command line.
    """

    name: str
    description: Annotated[str, KeySpec("what the recipe is for, in one line")] = ""
    skip: Annotated[
        tuple[str, ...],
        KeySpec("ids of steps to leave out, for what you set up yourself", "[a-z-]+", ("ids of steps",)),
    ] = ()
    driver: Driver = field(default_factory=Driver)
    repositories: Repositories = field(default_factory=Repositories)
    toolkit: Toolkit = field(default_factory=Toolkit)
    cuda: CudaToolkit = field(default_factory=CudaToolkit)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)
    gpudirect: GpuDirect = field(default_factory=GpuDirect)
    expect: Expect = field(default_factory=Expect)
    mig: MigSettings = field(default_factory=MigSettings)
    mps: Mps = field(default_factory=Mps)
    kubernetes: Kubernetes | None = None
    upgrade: bool = False
    lock: VersionLock | None = None
    remove_runfile_driver: bool = False
