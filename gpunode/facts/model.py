"""The typed facts of a node. Each is known, from a named probe, or unknown, for a stated reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import date
from typing import Final, Generic, Literal, Protocol, TypeAlias, TypeVar

from gpunode.change import FileChange, FileState, MigLayout, PackageState, ServiceState, Trigger, UnknownContent
from gpunode.command import command
from gpunode.errors import Undetermined
from gpunode.facts.evidence import NOT_CAPTURED_REASON
from gpunode.facts.layout import GpuLayout
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Known(Generic[T]):
    """A value and the key of its probe."""

    value: T
    probe: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """A missing value: the probe was not run, failed, or its output was not understood.

    Attributes:
        install: the command that installs the program whose absence is the reason; empty for other reasons.
    """

    reason: str
    probe: str
    install: str = field(default="", compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class PromisedFile(Unknown):
    """A planned file whose bytes do not exist yet: ``file_matches`` compares the promise instead."""

    after: UnknownContent


Fact: TypeAlias = Known[T] | Unknown


_PARSE_ERROR_REASON = Pattern(r"not understood: (?:(?P<path>/[^:\s]+)(?::(?P<line>\d+))?)?")
NOT_INSTALLED_ENDING = " is not installed"
# The packages of the programs that facts come from, the same on Debian and Ubuntu.
PACKAGE_OF_PROGRAM: Final = {"systemd-detect-virt": "systemd", "lspci": "pciutils", "systemctl": "systemd"}


def require(fact: Known[T] | Unknown, what: str) -> T:
    """Return the value of ``fact``, on which a decision depends.

    Raises:
        Undetermined: if it is unknown.
    """
    if isinstance(fact, Unknown):
        probe = fact.probe.removeprefix("file:")
        is_whole = fact.reason.startswith((probe, *PACKAGE_OF_PROGRAM))
        raise Undetermined(
            f"cannot tell {what}", why=fact.reason if is_whole else f"{probe}: {fact.reason}", hint=_advise(fact)
        )
    return fact.value


def _advise(fact: Unknown) -> str:
    place = fact.probe.removeprefix("file:")
    if fact.reason == NOT_CAPTURED_REASON:
        return "an older gpunode did not look there: take the capture again with `gpunode capture FILE`"
    if fact.install:
        return f"install it, then run the same command again:\nsudo {fact.install}"
    if match := _PARSE_ERROR_REASON.match(fact.reason):
        where = f"line {match['line']} of {match['path']}" if match["line"] else match["path"] or f"what {place} shows"
        return f"correct {where}, then run the same command again"
    if place == "image":
        return "name the GPUs of the machine that will boot it: add --gpu IDS, such as --gpu 10de:1b80"
    if "Permission denied" in fact.reason:
        return "run the command as root; if it reads a capture, first take that again as root"
    if place != fact.probe:
        look = command("ls", "-ld", place)
        return f"look at it with `{look}`; what belongs there is a file that root can read, or nothing"
    return f"make {place} readable (run as root, install the tool it names), then run the command again"


def value_or(fact: Known[T] | Unknown, default: T) -> T:
    """Return the value of ``fact``, or ``default`` if it is unknown and that does no harm."""
    return default if isinstance(fact, Unknown) else fact.value


def file_matches(fact: Known[FileState | None] | Unknown, after: FileState | UnknownContent | None) -> bool:
    """Return True if the file matches ``after``, now or by an earlier planned change.

    A known file never matches an unsettled ``after``: the planner of the key compares fingerprints instead.
    """
    if isinstance(fact, PromisedFile):
        return fact.after == after
    return isinstance(fact, Known) and fact.value == after


def plan_file(
    facts: Facts, path: str, after: FileState | None, triggers: frozenset[Trigger] = frozenset()
) -> tuple[FileChange, ...]:
    """Return the change that sets the file to ``after``; none if it matches already. Raises Undetermined."""
    present = require(facts.file(path), f"what {path} holds")
    return () if present == after else (FileChange(path, present, after, triggers),)


@dataclass(frozen=True, slots=True)
class Distro:
    """The distribution, in the terms of os-release(5)."""

    id: str
    version_id: str
    codename: str
    name: str
    like: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of the node.

    Attributes:
        running: ``uname -r``; None in an image, where another system's kernel runs.
        installed: every kernel with an image in /boot, in version order, the next to boot last.
    """

    running: str | None
    installed: tuple[str, ...]

    @property
    def wanted(self) -> tuple[str, ...]:
        """The kernels that must have a driver module: the running one and the next to boot."""
        next_boot = self.installed[-1:]
        return tuple(dict.fromkeys((*((self.running,) if self.running else ()), *next_boot)))


PlatformKind: TypeAlias = Literal["bare-metal", "vm", "container", "wsl2", "jetson", "image"]


@dataclass(frozen=True, slots=True)
class Platform:
    """The kind of machine, and the evidence for it (``kvm``, ``lxc``, ``/dev/dxg``)."""

    kind: PlatformKind
    detail: str = ""

    @property
    def can_install_kernel_driver(self) -> bool:
        """True if a kernel driver can be installed from here."""
        return self.kind in {"bare-metal", "vm", "image"}


@dataclass(frozen=True, slots=True)
class PciDevice:
    """A function on the PCI bus; every number is lower-case hex of fixed width, without ``0x``.

    Attributes:
        class_code: four digits, class and subclass (``0302``).
        subsystem: vendor and device of the board maker; None when the device has none.
        driver: the kernel driver bound to it; None when it has none.
    """

    address: str
    vendor: str
    device: str
    class_code: str
    subsystem: tuple[str, str] | None = None
    driver: str | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class LoadedDriver:
    """The NVIDIA kernel module in the running kernel, from /proc/driver/nvidia/version."""

    version: str
    open_module: bool


@dataclass(frozen=True, slots=True)
class ModuleFile:
    """A built NVIDIA kernel module on disk.

    Attributes:
        version: that of the driver; empty if the path does not contain it.
        dkms: whether DKMS built it here; otherwise a package installed it.
    """

    kernel: str
    path: str
    version: str = ""
    dkms: bool = False


EMBEDDED_KEY_PLACEHOLDER: Final = "(embedded key)"
"""The ``signed_by`` of a source whose entry contains the key itself."""


@dataclass(frozen=True, slots=True)
class PackageSource:
    """An archive of an entry in the package repository lists.

    Attributes:
        line: its line in ``file``, from 1.
        signed_by: the keyring's path; empty when the entry names none.
        relaxed: the options that weaken the default checks, such as ``trusted=yes``.
        architectures: those that it is read for; empty for all of the system's.
    """

    file: str
    line: int
    uri: str
    suite: str
    components: tuple[str, ...] = ()
    signed_by: str = ""
    enabled: bool = True
    source_package: bool = False
    relaxed: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()

    @property
    def is_unsigned(self) -> bool:
        """True if its packages are accepted without any signature."""
        return any(option.startswith(("trusted=", "allow-insecure=")) for option in self.relaxed)


@dataclass(frozen=True, slots=True)
class Unit:
    """A systemd unit.

    Attributes:
        started_at: seconds since the epoch when its main process started; None when it does not run.
        changed_at: when its state last changed, as it does at a start and at a reload; None if unknown.
        failed: whether it should run but failed: for good, or until systemd restarts it; it is not active then.
        starting: whether it counts as active but is still starting, and may yet fail.
    """

    state: ServiceState
    exists: bool = True
    started_at: float | None = None
    masked: bool = False
    changed_at: float | None = None
    failed: bool = False
    starting: bool = False


@dataclass(frozen=True, slots=True)
class DkmsBuild:
    """A module that DKMS considers installed for a kernel, even if the file is missing."""

    module: str
    version: str


KubeletKind: TypeAlias = Literal["kubelet", "k3s", "rke2", "microk8s", "k0s"]
CgroupDriver: TypeAlias = Literal["systemd", "cgroupfs"]
# The products that build the host of a Kubernetes node instead of its owner.
KubernetesProvider: TypeAlias = Literal["kind", "eks", "bottlerocket", "aks", "gke", "openshift"]


@dataclass(frozen=True, slots=True)
class Kubelet:
    """The kubelet of the node.

    Attributes:
        kind: the product that ships it; ``kubelet`` for a standalone one, as kubeadm sets it up.
        unit: the systemd unit that runs it; empty if only its files were found.
        socket: the path of the container runtime's socket.
        cgroup_driver: the one with which it runs pods; None if it chooses that when it starts.
        data: the folder in which k3s and RKE2 keep what they generate; empty for the others.
        node_name: the Node name that it was given; empty if it uses the host's name.
        static_cpus: whether its CPU manager's policy is static.
        labels: those with which it registers its Node (``a=b,c=d``).
    """

    kind: KubeletKind
    unit: str
    socket: str
    cgroup_driver: CgroupDriver | None = None
    data: str = ""
    node_name: str = ""
    static_cpus: bool = False
    labels: str = ""


@dataclass(frozen=True, slots=True)
class MisreadKubelet(Unknown):
    """The kubelet of a product whose files cannot be parsed.

    Attributes:
        kind: the product that ships it.
        problem: the file, the line, and what is wrong there.
    """

    kind: KubeletKind
    problem: str


@dataclass(frozen=True, slots=True)
class MigGpu:
    """A GPU's MIG state, as NVML reports it.

    Attributes:
        index: NVML's, which is the order of the PCI bus.
        address: of the PCI bus, as sysfs writes it.
        layout: None for a GPU without MIG.
        pending: whether MIG is on after the next reset of the GPU.
        clients: the PIDs of the processes that use it.
    """

    index: int
    uuid: str
    address: str
    layout: MigLayout | None
    pending: bool = False
    clients: tuple[int, ...] = ()


MOK_TIMEOUT_S: Final = 10
"""The default time for which MokManager waits at the console."""


@dataclass(frozen=True, slots=True)
class ModuleSignature:
    """The signature of a module file, as modinfo shows it: the signer's name and the serial number of its certificate.

    Both are empty, ``""`` and 0, where the module has no signature.
    """

    signer: str
    serial: int


@dataclass(frozen=True, slots=True)
class ModuleKey:
    """The key with which DKMS signs the modules that it builds.

    Attributes:
        key: the path of the private key, or the URI of one in hardware (``pkcs11:…``).
        certificate: the path of its certificate.
        has_key: whether the private key is there, and not empty. Its content is never read.
        der: the certificate; empty if there is none.
        is_der: whether the file is in DER, as mokutil and shim need it.
        enrolled: whether the firmware, or shim's own list, has the certificate.
        queued: whether the next boot asks at the console to enrol it.
        timeout_s: how long that boot waits for somebody at the console; -1 without a limit.
        signatures: of the modules that DKMS has built, by kernel.
        is_made: whether a plan makes the key; its certificate is known only after that.
        is_half_named: whether a run ended before it renamed the certificate that it had made to its final name.
    """

    key: str
    certificate: str
    has_key: bool
    der: bytes = b""
    is_der: bool = True
    enrolled: bool = False
    queued: bool = False
    timeout_s: int = MOK_TIMEOUT_S
    signatures: Mapping[str, ModuleSignature] = field(default_factory=dict)
    is_made: bool = False
    is_half_named: bool = False


@dataclass(frozen=True, slots=True)
class MissingDependency:
    """A dependency of an installed package that no installed package meets.

    Attributes:
        package: the one to install.
        version: the only one that meets it; empty if others do, too.
        needed_by: the installed package that depends on it.
        relation: as the package database writes it (``libcuda1 (= 580.178.04-1)``).
    """

    package: PackageId
    version: str
    needed_by: PackageId
    relation: str


class Dependencies(Protocol):
    """Dependencies of the installed packages, from the package database."""

    def missing(
        self, packages: Mapping[PackageId, PackageState], roots: Iterable[PackageId], /
    ) -> tuple[MissingDependency, ...] | None:
        """Return the unmet dependencies of ``roots`` and of the packages that they need, directly or not.

        None if no root is installed in a version whose dependencies are known.
        """
        ...

    def satisfying_packages(
        self, packages: Mapping[PackageId, PackageState], dependents: Iterable[PackageId], /
    ) -> Mapping[PackageId, tuple[frozenset[PackageId], ...]]:
        """Return the installed packages that meet each dependency of each of the ``dependents``."""
        ...


Files: TypeAlias = Mapping[str, Known[FileState | None] | Unknown]


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything on which steps may base decisions.

    Attributes:
        packages: the installed packages, and removed packages that left configuration files. Several installed versions
            are separate packages, see ``PackageId``.
        headers: kernels with a build tree under /lib/modules.
        toolkit_program: whether the program exists that runtimes are configured to run.
        lost_programs: the toolkit's programs that its packages installed and that no longer exist.
        replaced_programs: the toolkit's programs replaced by a small file that no package installed, such as a wrapper;
            verify compares larger files.
        run_installer: whether NVIDIA's .run installer has installed a driver here, outside of all packages.
        dkms: the driver that DKMS reports as installed, by kernel.
        layout: the GPUs and MIG instances of the loaded driver; None if none is loaded.
        modules: names of the loaded kernel modules, as lsmod prints them.
        architecture: in Debian's terms (``amd64``).
        files: every file that gpunode writes or reads as configuration; a missing one is Known(None). See ``file``.
        folders: the completely read folders, each with its probe: a file there that ``files`` lacks does not exist.
        folder_modes: the permission bits of folders that the package manager reads as a user other than root.
        changed_at: when a file was last written or restored, seconds since the epoch; only if known.
        modified_at: when files below /etc/modprobe.d and initramfs images were last written, in seconds (mtime).
        exposed: the files that users other than root could replace, and why.
        units: the systemd units that steps use.
        dependencies: what the installed packages depend on.
        packages_interrupted: whether a change of packages was interrupted.
        unconfigured: the packages that are unpacked but not configured, if nothing worse is unfinished.
        selected_for_removal: the installed packages that are marked for removal, but were not removed.
        mig: how the GPUs are partitioned, from NVML; None if it was not queried, as only some recipes need it.
        observed_on: the date of the evidence, in UTC, by the node's own clock.
        kubelet: the kubelet that runs here, else the kubelet that is set up here; Known(None) if there is none.
        rootless_docker: whether a user runs a dockerd without root.
        driver_libraries: the paths of every libcuda and libnvidia-ml where programs look for them.
        leftovers: the paths of CUDA compilers and uninstallers in /usr/local, and of the driver's sources and DKMS
            builds. They come from packages, or from installers that no package database knows.
        secure_boot: whether the firmware makes the kernel load only signed modules.
        module_key: the key that signs the modules that DKMS builds; None if Secure Boot is off: not probed then.
        switch_bridges: the PCI addresses of the ConnectX bridges to NVSwitches that are not on the bus; None if not
            probed, as no GPU here is on such a board.
        provider: who builds this Kubernetes node; Known(None) if its owner does.
    """

    distro: Fact[Distro]
    architecture: Fact[str]
    platform: Fact[Platform]
    kernels: Fact[Kernels]
    boot_id: Fact[str]
    devices: Fact[tuple[PciDevice, ...]]
    packages: Fact[Mapping[PackageId, PackageState]]
    packages_interrupted: Fact[bool]
    sources: Fact[tuple[PackageSource, ...]]
    headers: Fact[frozenset[str]]
    module_files: Fact[tuple[ModuleFile, ...]]
    modules: Fact[frozenset[str]]
    loaded_driver: Fact[LoadedDriver | None]
    device_nodes: Fact[frozenset[str]]
    units: Mapping[str, Fact[Unit]] = field(default_factory=dict)
    files: Files = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    changed_at: Mapping[str, float] = field(default_factory=dict)
    modified_at: Mapping[str, float] = field(default_factory=dict)
    folder_modes: Mapping[str, int] = field(default_factory=dict)
    exposed: Mapping[str, str] = field(default_factory=dict)
    toolkit_program: Fact[bool] = Unknown("not captured", "toolkit-program")
    lost_programs: Fact[tuple[str, ...]] = Unknown("not captured", "toolkit-programs")
    replaced_programs: Fact[tuple[str, ...]] = Unknown("not captured", "toolkit-programs")
    run_installer: Fact[bool] = Unknown("not captured", "run-installer")
    dkms: Fact[Mapping[str, DkmsBuild]] = Unknown("not captured", "dkms-installed")
    layout: Fact[GpuLayout | None] = Unknown("not captured", "nvidia-gpus")
    kubelet: Fact[Kubelet | None] = Unknown("not captured", "kubelet")
    rootless_docker: Fact[bool] = Unknown("not captured", "docker-rootless")
    driver_libraries: Fact[frozenset[str]] = Unknown("not captured", "cuda-libraries")
    leftovers: Fact[frozenset[str]] = Unknown("not captured", "dkms-tree")
    secure_boot: Fact[bool] = Unknown("not captured", "secure-boot-variable")
    provider: Fact[KubernetesProvider | None] = Unknown("not captured", "provider-kind")
    mig: Fact[tuple[MigGpu, ...]] | None = None
    module_key: Fact[ModuleKey] | None = None
    switch_bridges: Fact[tuple[str, ...]] | None = None
    observed_on: Fact[date] = Unknown("not captured", "clock")
    dependencies: Fact[Dependencies] = Unknown("not captured", "dependencies")
    unconfigured: frozenset[PackageId] = frozenset()
    selected_for_removal: frozenset[PackageId] = frozenset()

    @property
    def is_image(self) -> bool:
        """True for a mounted root, where neither its kernel nor its services run."""
        return isinstance(self.platform, Known) and self.platform.value.kind == "image"

    def file(self, path: str) -> Known[FileState | None] | Unknown:
        """Return the state of the file at ``path``; unknown if it was not probed."""
        if path in self.files:
            return self.files[path]
        folder = path.rpartition("/")[0]
        if folder in self.folders:
            return Known(None, self.folders[folder])
        return Unknown("not captured", f"file:{path}")

    def text(self, path: str) -> str:
        """Return the text of the file at ``path``; empty if it is absent, or unknown."""
        state = value_or(self.file(path), None)
        return state.content.decode("utf-8", "replace") if state else ""

    def can_start(self, name: str) -> bool:
        """Return whether systemd runs here and knows the unit ``name``, or a plan installs it."""
        fact = self.unit(name)
        return isinstance(fact, Known) and fact.probe != "unit-wants"

    def unit(self, name: str) -> Known[Unit] | Unknown:
        """Return the state of the unit ``name``; unknown if it was not probed."""
        return self.units.get(name, Unknown("not captured", "units"))
