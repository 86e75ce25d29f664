"""The desired configuration of a container runtime, the present one, and whether they agree."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Final, Literal, TypeAlias

from gpunode.container_runtimes import CONTAINER_RUNTIMES, ContainerRuntime
from gpunode.errors import Refused
from gpunode.fast_dataclass import dataclass
from gpunode.runtimes.documents import ConfigLayer

DOCKER_CONFIG = CONTAINER_RUNTIMES["docker"].config
CRIO_CONFIG = CONTAINER_RUNTIMES["crio"].config
CRIO_DROP_IN = CONTAINER_RUNTIMES["crio"].drop_in
CRIO_FOLDER = CRIO_DROP_IN.rpartition("/")[0]
# The handlers of the runc shim: pods run under the cgroup driver that their options name.
RUNC_FAMILY = ("runc", "crun")
# The name under which containerd's CRI plugin lists a nameless default runtime (``default_runtime``).
NAMELESS_DEFAULT_NAME = "default"

EditMode: TypeAlias = Literal["auto", "in-place", "drop-in"]
# Every existing file among the paths and patterns that ``Runtime.list_read_paths`` returned.
Files: TypeAlias = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class DesiredConfig:
    """The NVIDIA handler that a node should have.

    Attributes:
        handler: the name by which containers request it.
        binary: the program that it runs.
        default: True makes it the default runtime; False leaves the default as it is.
        demote_default: True makes runc the default if the handler is; False leaves the default as it is.
        systemd_cgroup: True puts it, and runc, under systemd's cgroup driver; False leaves what is there. containerd
            only: dockerd takes its driver from the host.
        enable_cdi: True enables the runtime's own CDI support; False leaves it as it is.
        version: the daemon's, as numbers; None if unknown, which counts as containerd 1.
        mode: ``in-place`` edits the effective file, ``drop-in`` only changes its imports; ``auto`` decides.
        config: the root file; empty for the runtime's own.
        drop_in: where a drop-in goes; empty for the runtime's own place.
        enable_cri: True removes containerd's CRI plugin from the list of disabled plugins; False leaves the list.
        exact: True follows nvidia-ctk where the daemon is unknown, and refreshes a drop-in that copies the root file's
            settings; False edits only what does not work yet.
        others: the content of the drop-in that is not gpunode's; the rest is rebuilt. None means all of it.
        source: the output of the runtime's ``config dump``, to inherit options from; None for the files themselves.
    """

    handler: str = "nvidia"
    binary: str = "/usr/bin/nvidia-container-runtime"
    default: bool = False
    demote_default: bool = False
    systemd_cgroup: bool = False
    enable_cdi: bool = False
    version: tuple[int, ...] | None = None
    mode: EditMode = "auto"
    config: str = ""
    drop_in: str = ""
    enable_cri: bool = False
    exact: bool = False
    source: bytes | None = None
    others: bytes | None = None

    def reaches(self, version: tuple[int, ...]) -> bool:
        """Return whether the daemon is known to be of ``version`` or later."""
        return self.version is not None and self.version >= version


@dataclass(frozen=True, slots=True)
class Edit:
    """A file of a runtime's configuration, before and after; None if it does not exist.

    Attributes:
        ownership_template: the file whose mode and owner a new file gets, since it may contain that file's secrets;
            empty for none.
    """

    path: str
    before: bytes | None
    after: bytes | None
    ownership_template: str = ""


@dataclass(frozen=True, slots=True)
class ConfigEdit:
    """The edits that give a runtime's files the requested configuration.

    Attributes:
        edits: the files that change, in the order of writing: a drop-in before the file that imports it.
        how: which files are edited and why, as a sentence.
        notes: what else the user should know; each is a warning.
        restart_reason: why the runtime's unit must be restarted although no file changes; empty if it need not be.
    """

    edits: tuple[Edit, ...]
    how: str = ""
    notes: tuple[str, ...] = ()
    restart_reason: str = ""


@dataclass(frozen=True, slots=True)
class ObservedConfig:
    """A runtime's configuration, without the daemon's defaults.

    Attributes:
        handlers: each handler with the binary that it runs; empty if it uses its shim's default, or lacks the type
            without which it can run nothing.
        default: the default runtime's name; None if the text names none.
        cri_disabled: whether containerd's CRI plugin is disabled, so that no kubelet can use it.
        cdi: None if the text does not say.
        systemd_cgroup: SystemdCgroup of the handlers that set it; containerd's nameless default is
            ``NAMELESS_DEFAULT_NAME``.
        schema: containerd's configuration schema; None for docker.
        is_startable: whether the daemon starts with it; dockerd does not if its command line sets the same keys.
        has_default_cdi: whether ``cdi`` is False as in containerd 1.7's ``config default``, so that nobody chose it.
        cdi_folders: where it looks for CDI specifications; empty for the standard folders.
    """

    handlers: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None
    cri_disabled: bool = False
    cdi: bool | None = None
    systemd_cgroup: Mapping[str, bool] = field(default_factory=dict)
    schema: int | None = None
    is_startable: bool = True
    has_default_cdi: bool = False
    cdi_folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Removal:
    """The removal of a handler from a runtime's files.

    Attributes:
        files: the present files.
        former: the files before gpunode, as far as that is on record.
        files_after: the files without the handler.
        notes: what the user should know.
    """

    files: Files
    former: Files
    files_after: Files
    notes: tuple[str, ...] = ()

    def with_file(self, path: str, content: bytes | None) -> Removal:
        """Return the removal with the given content of one file; None for no file."""
        others = {other_path: data for other_path, data in self.files_after.items() if other_path != path}
        return replace(self, files_after=others if content is None else {**others, path: content})

    def with_notes(self, *notes: str) -> Removal:
        """Return the removal with more notes."""
        return replace(self, notes=(*self.notes, *notes))


ListReadPaths: TypeAlias = Callable[[Files, DesiredConfig], tuple[str, ...]]
Configure: TypeAlias = Callable[[Files, DesiredConfig], ConfigEdit]
Layers: TypeAlias = Callable[[Files, DesiredConfig], tuple[ConfigLayer, ...]]
CompleteRemoval: TypeAlias = Callable[[Removal, DesiredConfig], Removal]
Inspect: TypeAlias = Callable[[Files, DesiredConfig], ObservedConfig]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime(ContainerRuntime):
    """A container runtime as it is installed here, with its rules.

    ``configure``, ``layers``, ``complete_removal`` and ``inspect`` raise Refused if a file cannot be read, does not
    have the shape that its program expects, or cannot be edited safely.

    Attributes:
        list_read_paths: returns the paths and patterns of the files that it reads, as far as the given files tell;
            called again until nothing new comes.
        adapt_to_node: returns the runtime for a node with these files: another file may count, or another unit run it.
        configure: returns the edits that lead to the desired configuration; none if nothing has to be done.
        layers: returns the files in which handlers are registered, in the order in which it reads them.
        complete_removal: completes the removal of a handler, so that the runtime starts with what is left.
        inspect: returns the configuration in the files, merged as the runtime merges them.
        applies_on_reload: whether a running daemon applies this change on SIGHUP; called if it ``reloads``.
        keeps_containers: whether its containers survive its restart; called if ``stopped`` says that some do not.
        product: the product that ships this runtime without a package of its own; see ``runtimes.installations``.
        settings_files: files that configure it, other than ``config`` and ``drop_in``.
        generated_files: the files that the product regenerates at every start of its unit.
        watches_files: whether the product notices changed files by itself, so that nothing need be restarted.
    """

    list_read_paths: ListReadPaths
    adapt_to_node: Callable[[Runtime, Files, DesiredConfig], Runtime]
    configure: Configure
    layers: Layers
    complete_removal: CompleteRemoval
    inspect: Inspect
    applies_on_reload: Callable[[Files, Files, DesiredConfig], bool]
    keeps_containers: Callable[[Files, DesiredConfig], bool]
    product: str = ""
    settings_files: frozenset[str] = frozenset()
    generated_files: frozenset[str] = frozenset()
    watches_files: bool = False

    @property
    def own_files(self) -> frozenset[str]:
        """The files that configure it; some of the others that it reads tell how it is started."""
        return frozenset({self.config, self.drop_in, *self.settings_files} - {"", *self.generated_files})


def list_folders(value: object) -> tuple[str, ...]:
    """Return the folders that a key lists; none if its value is not a list."""
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def apply_edits(files: Files, edited: ConfigEdit) -> Files:
    """Return the files after the edits."""
    after = {**files, **{edit.path: edit.after for edit in edited.edits}}
    return {path: content for path, content in after.items() if content is not None}


TOOLKIT_PROGRAM_NAME: Final = "nvidia-container-runtime"
INSTALLED_TOOLKIT_PROGRAM: Final = f"/usr/bin/{TOOLKIT_PROGRAM_NAME}"


def require_absolute_binary(desired: DesiredConfig, why: str, where: str = "") -> DesiredConfig:
    """Return ``desired`` with NVIDIA's runtime by its installed path instead of its bare name.

    Raises:
        Refused: its binary is another relative path; ``why`` says why that does not work.
    """
    if desired.binary == TOOLKIT_PROGRAM_NAME:
        return replace(desired, binary=INSTALLED_TOOLKIT_PROGRAM)
    if not desired.binary.startswith("/"):
        raise Refused(
            f"{where}the runtime binary {desired.binary!r} is not an absolute path",
            why=why,
            hint=f"give its full path, such as {INSTALLED_TOOLKIT_PROGRAM}",
        )
    return desired


def runs_binary(binary: str | None, desired: DesiredConfig) -> bool:
    """Return whether a handler with this ``binary`` runs the desired one.

    dockerd looks up the bare name in its PATH, where the package installs it.
    """
    return binary == desired.binary or {binary, desired.binary} == {TOOLKIT_PROGRAM_NAME, INSTALLED_TOOLKIT_PROGRAM}


def satisfies(observed: ObservedConfig, desired: DesiredConfig) -> bool:
    """Return whether there is nothing to do; as cheap as ``inspect``."""
    return (
        observed.handlers.get(desired.handler) == desired.binary
        and (not desired.default or observed.default == desired.handler)
        and not (desired.demote_default and observed.default == desired.handler)
        and (not desired.enable_cdi or observed.cdi is True)
        and (observed.schema is None or _cri_is_sound(observed, desired))
    )


def _cri_is_sound(observed: ObservedConfig, desired: DesiredConfig) -> bool:
    """Return whether the CRI plugin loads, and its handlers are under the right cgroup driver."""
    default = desired.handler if desired.default else observed.default or "runc"
    if not observed.cri_disabled and needs_runc(default, observed.handlers, observed.schema or 2, desired):
        return False
    cgroup = observed.systemd_cgroup
    if desired.systemd_cgroup:
        return all(cgroup.get(name, False) for name in cgroup_handlers(desired, observed.handlers))
    return cgroup.get(desired.handler, False) or not is_under_systemd(observed.default or "runc", cgroup)


def is_under_systemd(default: str, cgroup: Mapping[str, bool]) -> bool:
    """Return whether pods of the default runtime are under systemd's driver, which NVIDIA's handler must join.

    A default outside the runc family tells nothing: a VM has no such driver, and NVIDIA's own is the handler.
    """
    return default in {*RUNC_FAMILY, NAMELESS_DEFAULT_NAME} and cgroup.get(default, False)


def needs_runc(default: str, handlers: Mapping[str, object], schema: int, desired: DesiredConfig) -> bool:
    """Return whether the file must have a runc table and lacks one.

    containerd 1 uses the file's handlers instead of its built-in ones, so without a runc table the default runtime is
    undefined, and the CRI plugin does not load. containerd 2 merges both, but its built-in runc is under cgroupfs.

    Source: nvidia-container-toolkit@1.20.0's output in containerd 1.6.20, 1.7.24 and 2.1.9.
    """
    if default != "runc" or "runc" in handlers:
        return False
    return desired.systemd_cgroup or not keeps_builtin_handlers(schema, desired)


def keeps_builtin_handlers(schema: int, desired: DesiredConfig) -> bool:
    """Return whether containerd has its built-in handlers in addition to those of its files."""
    return schema > 2 or desired.reaches((2,))


def cgroup_handlers(desired: DesiredConfig, handlers: Mapping[str, object]) -> tuple[str, ...]:
    """Return the handlers that ``systemd_cgroup`` affects: the desired one, and the present ones of the runc family."""
    return (desired.handler, *(name for name in RUNC_FAMILY if name in handlers and name != desired.handler))


# CDI devices for pods: which runtimes read them, and where setup enables that. CRI-O always reads them.
# Source: containerd pkg/cri/config (1.6.20 has no ``enable_cdi``; 1.7.0 to 1.7.27: off by default) and
# internal/cri/config (2.0.0: on by default).

Version: TypeAlias = "tuple[int, ...] | None"
_HAS_CDI, _CDI_ON_BY_DEFAULT = (1, 7), (2,)
# Only containerd 2 reads this schema.
_SCHEMA_OF_CONTAINERD_2: Final = 3


def reads_cdi(runtime: Runtime, observed: ObservedConfig, version: Version) -> bool:
    """Return whether pods of the runtime get the CDI devices that the kubelet names.

    Args:
        runtime: the runtime as it is installed.
        observed: the configuration in its files.
        version: the daemon's; None if unknown, and then only signs of containerd 2 count.
    """
    if not runtime.has_cri_plugin:
        return runtime.cdi_support == "always"
    is_default = _is_on_by_default(observed, version)
    return is_default if observed.cdi is None else observed.cdi and (is_default or (version or ()) >= _HAS_CDI)


def should_enable_cdi(runtime: Runtime, observed: ObservedConfig, version: Version) -> bool:
    """Return whether setup has to, and may, write ``enable_cdi = true`` so that pods get CDI devices.

    ``enable_cdi = false`` written by a person is respected. In schema 2 beside ``cdi_spec_dirs`` it is the default from
    containerd 1.7's ``config default``, which is how most people create their file.
    """
    if not runtime.has_cri_plugin or reads_cdi(runtime, observed, version):
        return False
    has_cdi = _is_on_by_default(observed, version) or (version or ()) >= _HAS_CDI
    return has_cdi and (observed.cdi is None or observed.has_default_cdi)


def explain_no_cdi(runtime: Runtime, observed: ObservedConfig, version: Version) -> str:
    """Return a clause that says why pods get no CDI devices, for a runtime that does not read them."""
    shown = f"{runtime.id} {'.'.join(map(str, version))}" if version else runtime.id
    if runtime.has_cri_plugin and version and version < _HAS_CDI:
        return f"{shown} has no CDI for pods, 1.7 is the first that has"
    if runtime.has_cri_plugin and observed.cdi is False:
        return f"{runtime.config} has enable_cdi = false, which somebody chose"
    if runtime.has_cri_plugin and not version:
        return f"no package shows the version of {shown}, so its CDI support is unknown"
    return f"{shown} does not read the kubelet's CDI devices"


def _is_on_by_default(observed: ObservedConfig, version: Version) -> bool:
    return (version or ()) >= _CDI_ON_BY_DEFAULT or (observed.schema or 0) >= _SCHEMA_OF_CONTAINERD_2
