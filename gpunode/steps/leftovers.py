"""Notes on leftovers of .run installers, old packages and old guides, and what each breaks.

None of these stops the package manager. Files of a .run driver do: the driver is uninstalled on request, files without
their uninstaller are refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Final

from gpunode.catalog.conflicts import upstream_version
from gpunode.catalog.cuda import parse_version
from gpunode.change import CommandChange, PackageChange, Trigger
from gpunode.command import command
from gpunode.facts.depmod import read_depmod_order
from gpunode.facts.model import Facts, Kernels, Known, ModuleFile, require, value_or
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import LD_SO_CONFIG_FILE, LD_SO_CONFIG_FOLDER
from gpunode.facts.project import PLAN_PROBE_KEY, UNINSTALL_RUN_DRIVER
from gpunode.outcome import Planned, Refusal, StepOutcome
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.steps.selection import WantedDriver

_NVCC_PATH: Final = Pattern(r"/usr/local/cuda-(?P<release>\d+\.\d+)/bin/nvcc")
# Up to CUDA 10.0 and from 10.1 on.
_TOOLKIT_UNINSTALLER_PATH: Final = Pattern(
    r"/usr/local/cuda-[\d.]+/bin/(?:uninstall_cuda_[\d.]+(?:\.pl)?|cuda-uninstaller)"
)
# Only builds and sources of the driver: nvidia-fs and similar modules have versions of another form.
_DKMS_SOURCE_FOLDER: Final = Pattern(r"/usr/src/nvidia-(?:[a-z-]+-)?(?P<version>\d{3}\.\d+(?:\.\d+)?)")
_DKMS_TREE_FOLDER: Final = Pattern(r"/var/lib/dkms/(?P<module>nvidia[a-z-]*)/(?P<version>\d{3}\.\d+(?:\.\d+)?)")
_STRAY_MODULE_FOLDER: Final = Pattern(r"/lib/modules/[^/]+/(?:updates|extra)/")
# The packages with the compiler, by release from 9.0 on.
_COMPILER_PACKAGES: Final = ("cuda-nvcc-", "cuda-compiler-", "cuda-core-")
# In ld.so's configuration: the linker's stubs, CUDA's compatibility package, a driver folder of old packages.
_STUBS_FOLDER: Final = Pattern(r".*/stubs")
_COMPAT_FOLDER: Final = Pattern(r".*/cuda[^/]*/compat")
_OLD_DRIVER_LIBRARY_FOLDER: Final = Pattern(r"(?:/usr/lib(?:32|64)?|/usr/local|/opt)/nvidia(?:-\d+)?(?:/lib(?:64)?)?")
_DOCKER_WRAPPER_PACKAGE: Final = PackageId("nvidia-docker2")
# NVIDIA withdrew it in April 2022 (https://developer.nvidia.com/blog/updating-the-cuda-linux-gpg-repository-key/).
_WITHDRAWN_KEY_ID: Final = "7FA2AF80"


def find_leftovers(facts: Facts) -> Iterator[str]:
    """Yield a note for each leftover of the node."""
    yield from _note_toolkits(facts)
    yield from _note_dkms(facts)
    yield from _note_shadowing_folders(facts)
    yield from _note_docker_wrapper(facts)
    yield from _note_withdrawn_key(facts)


def note_run_driver(facts: Facts) -> Iterator[str]:
    """Yield a note on a .run driver. Setup refuses such a node, so no step has this note."""
    if value_or(facts.run_installer, default=False):
        yield (
            "NVIDIA's .run installer has installed a driver: it belongs to no package, so no upgrade reaches it; setup "
            "replaces it with packages if you add --remove-runfile-driver; otherwise it refuses"
        )


def _note_toolkits(facts: Facts) -> Iterator[str]:
    for release, removal in find_run_toolkits(facts).items():
        yield (
            f"CUDA toolkit {release} in /usr/local/cuda-{release} belongs to no package: no upgrade reaches it, and a "
            f"package of release {release} would overwrite its files; {removal}"
        )


def find_run_toolkits(facts: Facts) -> dict[str, str]:
    """Return the toolkits that belong to no package, by release (``12.6``), with the command that removes each."""
    if _is_package_change_interrupted(facts):
        return {}  # a package's own files may be there already
    installed = value_or(facts.packages, {})
    paths = value_or(facts.leftovers, frozenset[str]())
    owners = {package.name for package, state in installed.items() if not state.config_files_only}
    removals = {}
    for path in sorted(paths):
        if not (match := _NVCC_PATH.fullmatch(path)):
            continue
        release = match["release"]
        if owners & {f"{prefix}{release.replace('.', '-')}" for prefix in _COMPILER_PACKAGES}:
            continue
        folder = f"/usr/local/cuda-{release}"
        uninstallers = sorted(
            path for path in paths if _TOOLKIT_UNINSTALLER_PATH.fullmatch(path) and path.startswith(f"{folder}/")
        )
        removals[release] = (
            f"`{command('sudo', uninstallers[0])}` removes it"
            if uninstallers
            else f"it has no uninstaller: remove {' and '.join((folder, *_list_loader_lines(facts, folder)))} by hand"
        )
    return removals


def _list_loader_lines(facts: Facts, folder: str) -> Iterator[str]:
    """Yield the lines of ld.so's configuration that lead into ``folder``."""
    for path, number, line in _list_loader_folders(facts, LD_SO_CONFIG_FILE):
        if line.startswith(f"{folder}/"):
            yield f"line {number} of {path}"


def _note_dkms(facts: Facts) -> Iterator[str]:
    packaged = {
        upstream_version(state.version)
        for state in value_or(facts.packages, {}).values()
        if not state.config_files_only
    }
    paths = value_or(facts.leftovers, frozenset[str]())
    trees = {match["version"]: match["module"] for path in paths if (match := _DKMS_TREE_FOLDER.fullmatch(path))}
    sources = {match["version"]: path for path in sorted(paths) if (match := _DKMS_SOURCE_FOLDER.fullmatch(path))}
    for version in sorted({*trees, *sources} - packaged):
        source = sources.get(version, "")
        tree = f"/var/lib/dkms/{trees[version]}/{version}" if version in trees else ""
        listed = [path for path in (source, tree) if path]
        remove = [command("sudo", "rm", "-r", source or tree)]
        if source and tree:
            remove.insert(0, command("sudo", "dkms", "remove", "-m", trees[version], "-v", version, "--all"))
        builds = "DKMS builds it again for every new kernel, in place of the installed driver's modules"
        does = "its source is gone, so DKMS can neither build nor remove it" if not source else builds
        yield (
            f"{' and '.join(listed)} {'are' if listed[1:] else 'is'} of driver {version}, which no package installed: "
            f"{does if tree else 'DKMS could build it again'}; `{' && '.join(remove)}` removes it"
        )


def _note_shadowing_folders(facts: Facts) -> Iterator[str]:
    """Yield a note for each line of ld.so's configuration whose folder shadows the driver's libraries."""
    for path, number, folder in _list_loader_folders(facts, LD_SO_CONFIG_FILE):
        if path.endswith("-linux-gnu.conf"):
            return  # the system's own folders: the first one with a library wins
        if breaks := _explain_shadowing(folder):
            yield f"line {number} of {path} has ld.so look in {folder}: {breaks}; remove the line, then run ldconfig"


def _list_loader_folders(facts: Facts, path: str) -> Iterator[tuple[str, int, str]]:
    """Yield the lines of a file and of those that it includes, in the order in which ldconfig reads them."""
    state = value_or(facts.file(path), None)
    # A file that was not read is assumed to be the distribution's default.
    text = state.content.decode("utf-8", "replace") if state else "include" if path == LD_SO_CONFIG_FILE else ""
    for number, line in enumerate(text.splitlines(), 1):
        folder = line.split("#")[0].strip()
        if not folder.startswith("include"):
            yield path, number, folder.rstrip("/")
        elif path == LD_SO_CONFIG_FILE:
            for other in sorted(file for file in facts.files if file.startswith(f"{LD_SO_CONFIG_FOLDER}/")):
                yield from _list_loader_folders(facts, other) if other.endswith(".conf") else ()


def _explain_shadowing(folder: str) -> str:
    """Return what breaks if ld.so looks in ``folder`` first; empty for a folder without the driver's libraries."""
    if _STUBS_FOLDER.fullmatch(folder):
        return (
            "the libcuda.so and libnvidia-ml.so there are for linkers alone, and every program that loads one fails "
            "with a stub library error"
        )
    if _COMPAT_FOLDER.fullmatch(folder):
        return (
            "every program gets libcuda.so of CUDA's compatibility package in place of the driver's, and with a newer "
            "driver it ends in error 803 (system has unsupported display driver / cuda driver combination)"
        )
    if _OLD_DRIVER_LIBRARY_FOLDER.fullmatch(folder):
        return "libraries of another driver there are loaded before the installed ones, which ends in a mismatch"
    return ""


def _note_docker_wrapper(facts: Facts) -> Iterator[str]:
    state = value_or(facts.packages, {}).get(_DOCKER_WRAPPER_PACKAGE)
    if state is not None:
        is_residue = state.config_files_only
        purge = deb.purge_command((str(_DOCKER_WRAPPER_PACKAGE),))
        yield (
            f"{_DOCKER_WRAPPER_PACKAGE} {state.version} "
            f"{'has left /etc/docker/daemon.json behind' if is_residue else 'is retired'}: the container toolkit "
            f"replaces it, but `{purge}` would also delete /etc/docker/daemon.json: copy that file first"
        )


def _note_withdrawn_key(facts: Facts) -> Iterator[str]:
    path = deb.COMMON_KEYRING
    if (state := value_or(facts.file(path), None)) is None or not state.content:
        return
    from gpunode.catalog.openpgp import list_key_fingerprints

    try:
        keys = list_key_fingerprints(state.content)
    except ValueError:
        return  # the package manager itself reports what it cannot read there
    if any(key.endswith(_WITHDRAWN_KEY_ID) for key in keys):
        yield (
            f"{path} has NVIDIA's key {_WITHDRAWN_KEY_ID}, which NVIDIA withdrew in 2022. {deb.MANAGER} "
            f"accepts it for every archive: `sudo gpg --no-default-keyring --keyring {path} --delete-keys "
            f"{_WITHDRAWN_KEY_ID}` removes it"
        )


# The uninstaller does not rebuild it, and it may contain the old module or the file against nouveau.
_INITRAMFS_TRIGGERS: Final = frozenset({Trigger("initramfs")})
_UNINSTALLER_REMAINS_NOTE: Final = (
    "the uninstaller restores files that the .run installer had replaced, and leaves /var/log/nvidia-installer.log, "
    "/usr/share/nvidia and, if somebody edited it, its file against nouveau"
)
_RUN_DRIVER_REMOVAL_NOTES: Final = (
    _UNINSTALLER_REMAINS_NOTE,
    "no rollback restores the .run driver: to install it again, keep its installer",
)


def plan_run_driver_uninstall(facts: Facts) -> StepOutcome:
    """Plan the uninstallation of a .run driver, in a stage before the packages.

    Otherwise Debian's nvidia-installer-cleanup would find it in the transaction, and fails there without a terminal.
    """
    if not value_or(facts.run_installer, default=False):
        return Planned((), "NVIDIA's .run installer has installed no driver")
    if facts.is_image:
        return Refusal(
            what="a driver of NVIDIA's .run installer is in this image, and its uninstaller is not run there",
            why="it unloads kernel modules, which would be those of this machine",
            hint="boot the image and run the same command there without --root",
        )
    change = CommandChange(
        UNINSTALL_RUN_DRIVER, "two drivers in the same folders do not work", triggers=_INITRAMFS_TRIGGERS
    )
    reason = "NVIDIA's .run installer has installed a driver; its own uninstaller knows its files"
    return Planned((change,), reason, change_notes=_RUN_DRIVER_REMOVAL_NOTES)


_DRIVER_LIBRARY_PATH: Final = Pattern(r"/lib(?:cuda|nvidia-ml)\.so\.(?P<version>\d{3}\.\d+(?:\.\d+)?)\Z")
_LOCAL_FOLDER: Final = "/usr/local/"
# The installer puts modules here without DKMS; no package does.
_INSTALLER_MODULE_FOLDER: Final = "/kernel/drivers/video/"
_COMPAT_PACKAGE_PREFIX: Final = "cuda-compat-"
# The machine's name in the names of NVIDIA's installers.
_MACHINE_BY_ARCHITECTURE: Final = {"amd64": "x86_64", "arm64": "aarch64"}


def find_runfile_leftovers_refusal(facts: Facts) -> Refusal | None:
    """Return the refusal of a node with files of a .run driver whose uninstaller is gone; None if there are none.

    Files that packages contain, too, would be overwritten, and no rollback has their bytes. A library is identified by
    the version in its name: a package has its own version.

    While a change of packages is interrupted this is unknown: a package system unpacks the new files before it removes
    the old ones, and records the new version after that. Setup checks again after the repair. Packages that are only
    not configured are unpacked and recorded.
    """
    if _is_package_change_interrupted(facts):
        return None
    versions = _installed_upstream_versions(facts)
    library_versions = {
        path: match["version"] for path in _unpackaged_libraries(facts) if (match := _DRIVER_LIBRARY_PATH.search(path))
    }
    foreign = {
        path: version
        for path, version in library_versions.items()
        if version not in versions and not path.startswith(_LOCAL_FOLDER)
    }
    if not foreign:
        return None
    modules = [
        file.path
        for file in value_or(facts.module_files, ())
        if _INSTALLER_MODULE_FOLDER in file.path and not file.dkms
    ]
    version = max(foreign.values(), key=parse_version)
    machine = _MACHINE_BY_ARCHITECTURE.get(value_or(facts.architecture, ""), "x86_64")
    uninstall = command("sudo", "sh", f"NVIDIA-Linux-{machine}-{version}.run", "--uninstall")
    return Refusal(
        what=f"files of driver {version} are installed that belong to no package, and their uninstaller is missing",
        why=f"{', '.join((*sorted(foreign), *modules))}: NVIDIA's .run installer leaves such files; packages would "
        "overwrite some of them, and no rollback could restore them",
        hint=f"download the installer of that version again and have it remove its driver: `{uninstall}`; or move "
        "the files away yourself; then run the same command again",
    )


def local_library_notes(facts: Facts) -> Iterator[str]:
    """Yield a note for the driver libraries in /usr/local/lib, which ld.so prefers to those of packages.

    Source: /etc/ld.so.conf.d of Debian and Ubuntu, read by name: libc.conf has /usr/local/lib, and comes before the
    file with the system's own folders.
    """
    if paths := [path for path in _unpackaged_libraries(facts) if path.startswith(_LOCAL_FOLDER)]:
        belong = "belongs" if len(paths) == 1 else "belong"
        yield (
            f"{', '.join(paths)} {belong} to no package, and programs load libraries in /usr/local/lib before the "
            "driver's own: remove it, then run ldconfig"
        )


def _unpackaged_libraries(facts: Facts) -> list[str]:
    fact = facts.driver_libraries
    return sorted(fact.value) if isinstance(fact, Known) else []


def _is_package_change_interrupted(facts: Facts) -> bool:
    """Return whether a change of packages was interrupted, even if its repair is planned."""
    fact = facts.packages_interrupted
    return (value_or(fact, default=True) and not facts.unconfigured) or fact.probe == PLAN_PROBE_KEY


def _installed_upstream_versions(facts: Facts) -> frozenset[str]:
    """Return the upstream versions of all installed packages: a driver's may have any name (nvidia-linux-grid-550).

    CUDA's compatibility libraries are in a folder of their own, so their version says nothing about other files.
    """
    installed = require(facts.packages, "which packages are installed").items()
    return frozenset(
        upstream_version(state.version)
        for package, state in installed
        if not state.config_files_only and not package.name.startswith(_COMPAT_PACKAGE_PREFIX)
    )


def lost_headers_refusal(lost: Sequence[PackageId], facts: Facts) -> Refusal:
    """Return the refusal of the ``lost`` packages of headers, whose files are gone: DKMS would build nothing."""
    # linux-headers-6.1.0-37-amd64 needs linux-headers-6.1.0-37-common, which is below /usr/src, too.
    stems = tuple(package.name.rpartition("-")[0] for package in lost)
    packages = sorted(value_or(facts.packages, {}).items())
    reinstall = deb.reinstall_command({package: state for package, state in packages if package.name.startswith(stems)})
    return Refusal(
        what=f"{', '.join(map(str, lost))} {'are' if lost[1:] else 'is'} installed, but the headers are missing",
        why="/lib/modules/KERNEL/build is a dangling link: the package's folder below /usr/src was deleted, or "
        f"{deb.EXCLUSION} excludes it (then remove that first)",
        hint=f"sudo {reinstall}\nthen run the same command again",
    )


_LOST_SOURCE_PHRASE: Final = "the driver's source in /usr/src, which its package put there for DKMS, has been deleted"


def note_lost_module_source(driver: WantedDriver, facts: Facts) -> str:
    """Return a note on built modules whose source is gone."""
    anew = _reinstall_modules_hint(driver, facts)
    return f"{_LOST_SOURCE_PHRASE}, so later kernels come without a driver: `sudo {anew}` restores it"


def lost_module_source_refusal(driver: WantedDriver, kernels: Sequence[str], facts: Facts) -> Refusal:
    """Return the refusal of ``kernels`` for which nothing can build modules."""
    return Refusal(
        what=f"there is no kernel module for {' and '.join(kernels)}, and nothing to build it from",
        why=f"{_LOST_SOURCE_PHRASE}, or {deb.EXCLUSION} excludes it (then remove that first)",
        hint=f"sudo {_reinstall_modules_hint(driver, facts)}\nthen run the same command again",
    )


# Source: `dkms remove` exits with 4 there in dkms 3.2.2, and with 0 in dkms 3.0.10.
_FIRST_DKMS_THAT_NEEDS_THE_SOURCE: Final = "3.2"


def find_unremovable_modules_refusal(changes: Iterable[PackageChange], facts: Facts) -> Refusal | None:
    """Return the refusal to remove a driver's modules whose source is gone: their package's own script would fail."""
    dkms, leftover_paths = value_or(facts.packages, {}).get(PackageId("dkms")), value_or(facts.leftovers, frozenset())
    if dkms is None or deb.is_older(dkms.version, _FIRST_DKMS_THAT_NEEDS_THE_SOURCE):
        return None
    for change in changes:
        is_going = change.exists_before and not change.exists_after
        if change.before is None or not is_going or not deb.builds_driver(change.id):
            continue
        version = upstream_version(change.before.version)
        trees = [path for path in leftover_paths if path.startswith("/var/lib/dkms/") and path.endswith(f"/{version}")]
        if trees and not any(path.startswith("/usr/src/") and path.endswith(f"-{version}") for path in leftover_paths):
            return Refusal(
                what=f"{change.id} cannot be removed: the source of its modules is gone from /usr/src",
                why=f"it has DKMS remove its modules, and dkms {dkms.version} fails for modules without their source",
                hint=f"sudo {deb.reinstall_command({change.id: change.before})}\nthen run the same command again; if "
                "no archive has that version, have DKMS forget it (its modules then stay in /lib/modules):\n"
                f"{command('sudo', 'rm', '-r', *sorted(trees))}",
            )
    return None


def _reinstall_modules_hint(driver: WantedDriver, facts: Facts) -> str:
    package = PackageId(driver.family.dkms_package(driver.chosen))
    return deb.reinstall_command({package: require(facts.packages, "which packages are installed")[package]})


def list_stray_modules(facts: Facts) -> tuple[ModuleFile, ...]:
    """Return the modules in places that neither Debian's packages nor its DKMS use (updates/dkms is DKMS')."""
    return tuple(
        file for file in value_or(facts.module_files, ()) if _STRAY_MODULE_FOLDER.match(file.path) and not file.dkms
    )


def find_hand_placed_modules_refusal(driver: WantedDriver, facts: Facts) -> Refusal | None:
    """Return the refusal of modules that a kernel could load in place of the driver's own.

    Otherwise this would show only at the end: DKMS builds its own beside them.
    """
    kernels = value_or(facts.kernels, Kernels(None, ())).wanted
    shadowing = [module for module in _find_shadowing_modules(driver, facts) if module.kernel in kernels]
    if not shadowing:
        return None
    paths = [module_file.path for module_file in shadowing]
    them, they, belong, were = ("them", "they", "belong", "were") if paths[1:] else ("it", "it", "belongs", "was")
    return Refusal(
        what=f"a kernel may load {', '.join(paths)} in place of the driver's own module",
        why=f"{they} {belong} to no package and {were} not built by DKMS; depmod may prefer {them} to the driver's, "
        "so the running driver would not match the installed libraries",
        hint="\n".join(
            (
                f"move {them}, and other files of that driver beside {them}, out of /lib/modules:",
                *chain.from_iterable(
                    _move_away_commands(folder)
                    for folder in sorted({module_file.path.rpartition("/")[0] for module_file in shadowing})
                ),
                "then run the same command again",
            )
        ),
    )


def _move_away_commands(folder: str) -> Iterator[str]:
    """Yield the commands that move the driver's modules out of ``folder`` (/lib/modules/KERNEL/updates)."""
    _, _, _, kernel, subfolder = folder.split("/", 4)
    target = f"/root/modules-{kernel}-{subfolder.replace('/', '-')}"
    yield command("sudo", "mkdir", "-p", target)
    yield command(
        "sudo", "find", folder, "-maxdepth", "1", "-name", "nvidia*.ko*", "-exec", "mv", "-t", target, "{}", "+"
    )
    yield command("sudo", "depmod", kernel)


def _find_shadowing_modules(driver: WantedDriver, facts: Facts) -> tuple[ModuleFile, ...]:
    """Return the stray modules that depmod may prefer to the driver's own."""
    driver_subfolder = "kernel" if driver.modules else "updates/dkms"
    is_debians = driver.chosen.source == "distro" and not driver.modules
    order = read_depmod_order(facts)

    def is_shadowing(stray: ModuleFile) -> bool:
        folder, _, name = stray.path.rpartition("/")
        module = name.partition(".")[0]
        subfolder = folder.removeprefix(f"/lib/modules/{stray.kernel}/")
        # Debian's own are called nvidia-current, which modprobe is configured to load for nvidia.
        if module.startswith("nvidia-current") != is_debians:
            return False
        return not order.is_first(driver_subfolder, subfolder, module.replace("-", "_"), stray.kernel)

    return tuple(filter(is_shadowing, list_stray_modules(facts)))


def note_stray_modules(driver: WantedDriver, facts: Facts) -> Iterator[str]:
    """Yield a note for stray modules; ``find_hand_placed_modules_refusal`` is about those that the next boot loads."""
    shadowing = _find_shadowing_modules(driver, facts)
    for is_first, does in (
        (True, "the kernel may load such a module in place of the driver's own"),
        (False, "depmod prefers the driver's own module, so a kernel loads such a module only if that one is missing"),
    ):
        paths = [module.path for module in list_stray_modules(facts) if (module in shadowing) == is_first]
        if paths:
            kernels = sorted({path.split("/")[3] for path in paths})
            renew = " && ".join(command("sudo", "depmod", kernel) for kernel in kernels)
            yield (
                f"{', '.join(paths)}: neither a package nor DKMS installed {'them' if paths[1:] else 'it'}; "
                f"{does}; remove it, then run `{renew}`"
            )
