"""Kernel steps of the driver: headers, the module built and loaded, and rivals kept out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from gpunode.catalog.conflicts import upstream_version
from gpunode.catalog.driver import DriverChoice
from gpunode.change import CommandChange, FileState, KnownAfter, ModuleChange, PackageChange, PackageState, Trigger
from gpunode.command import command
from gpunode.distros.family import Family
from gpunode.facts.kernels import modprobe_directives, module_load_lines
from gpunode.facts.model import Facts, Kernels, Known, LoadedDriver, Unknown, plan_file, require, value_or
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import GRUB_DEFAULTS_FILE, GRUB_DEFAULTS_FOLDER, KERNEL_ARGUMENTS_FILE
from gpunode.facts.project import PLAN_PROBE_KEY
from gpunode.outcome import Blocked, Planned, Refusal, Step, StepOutcome
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.recipe import Recipe
from gpunode.steps.installed_driver import (
    PreexistingDriver,
    explain_manual_marks,
    family_of,
    is_at_version,
    is_version_of,
    plan_manual_marks,
    preexisting_driver,
    version_prefix,
    wants_driver,
)
from gpunode.steps.secure_boot import AWAITS_ENROLMENT_REASON, driver_awaits_enrolment, lacks_enrolment
from gpunode.steps.selection import WantedDriver, installed_driver_version, wanted_driver


def header_packages(family: Family, facts: Facts) -> tuple[PackageId, ...]:
    """Return the header packages of the kernels that must have a driver, and the one for later kernels."""
    kernels = value_or(facts.kernels, Kernels(None, ()))
    headers = [family.headers_package(kernel) for kernel in kernels.wanted]
    return (*headers, *map(PackageId, family.find_header_metapackages(kernels, value_or(facts.packages, {}))))


def plan_headers(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the headers of every kernel that must have the driver, for DKMS, and of kernels from later upgrades."""
    if not wants_driver(recipe, facts):
        return Planned((), "this driver is not managed by gpunode")
    if (preexisting := preexisting_driver(recipe, facts)) and preexisting.prebuilt:
        return Planned((), "the driver's modules come prebuilt in packages")
    if not preexisting and driver_awaits_enrolment(recipe, facts):
        return Planned((), AWAITS_ENROLMENT_REASON, is_deferred=True)
    family = family_of(facts)
    if isinstance(family, Refusal):
        return family
    kernels = require(facts.kernels, "which kernels are installed")
    if not kernels.wanted:
        return Refusal(
            what="no kernel is installed in this image",
            why="/boot holds no vmlinuz, so there is nothing to build the driver for",
            hint="install the kernel package of the image first (linux-image-amd64, linux-image-generic)",
        )
    if not preexisting and family.has_signed_modules(recipe.driver.source):
        return Planned((), "not needed: the driver's modules come prebuilt in packages", is_requested=False)
    packages = require(facts.packages, "which packages are installed")
    built_for = require(facts.headers, "which kernels have headers")
    metas = tuple(map(PackageId, family.find_header_metapackages(kernels, packages)))
    versions = {meta: _find_backports_version(meta, packages) for meta in metas}
    wanted = dict.fromkeys(
        (*(family.headers_package(kernel) for kernel in kernels.wanted if kernel not in built_for), *metas)
    )
    missing = [package for package in wanted if not is_at_version(packages.get(package), versions.get(package, ""))]
    lost = [package for package in wanted if package not in {*missing, *metas}]
    if lost:
        from gpunode.steps.leftovers import lost_headers_refusal  # loaded on use

        return lost_headers_refusal(lost, facts)
    listed = " and ".join(kernels.wanted)
    installed = [meta for meta in metas if meta not in missing]
    marked, held = plan_manual_marks(packages, installed), [meta for meta in installed if packages[meta].held]
    notes = tuple(f"{meta} is held, so later kernels come without headers and without a driver" for meta in held)
    if not missing:
        return Planned(marked, explain_manual_marks(marked) if marked else f"headers for {listed} are installed", notes)
    # Headers of a single kernel are marked as automatic, like those that the metapackage installs.
    any_version = KnownAfter(why="headers", auto=bool(metas))
    states = {package: PackageState(of) if of else replace(any_version, auto=False) for package, of in versions.items()}
    changes = tuple(
        PackageChange(package, packages.get(package), states.get(package, any_version)) for package in missing
    )
    new = [str(meta) for meta in metas if meta in missing]
    reason, keep = f"the driver's module is built for {listed}", "keep" if new[1:] else "keeps"
    covers = f"; {' and '.join(new)} {keep} later kernels covered" if new else ""
    return Planned((*changes, *marked), reason + covers, notes)


def _find_backports_version(meta: PackageId, packages: Mapping[PackageId, PackageState]) -> str:
    """Return the version of the kernel's own metapackage if that is from backports; else empty.

    Without a version, the package manager installs the release's package, with headers of other kernels.
    """
    image, present = packages.get(PackageId(meta.name.replace("-headers-", "-image-"))), packages.get(meta)
    stays = present is not None and (present.held or (is_at_version(present, "") and "~bpo" in present.version))
    return image.version if image and "~bpo" in image.version and not stays else ""


HEADERS_STEP = Step("headers", "kernel headers", "packages", plan_headers, serves=(), for_driver=True)


NOUVEAU_BLACKLIST_FILE: Final = "/etc/modprobe.d/gpunode-nouveau.conf"
# nova_core and nova_drm bind GSP GPUs from Linux 6.18 on; a blacklist line for an absent module does nothing.
CONFLICTING_MODULES: Final = frozenset({"nouveau", "nova_core", "nova_drm"})
_DRIVER_MODULES: Final = frozenset({"nvidia", "nvidia_drm", "nvidia_modeset", "nvidia_uvm"})
_NO_OP_PROGRAMS: Final = frozenset({"true", "false", ":"})
# Kernel parameters that keep modules out: kernel-parameters.txt (module_blacklist) and modprobe.d(5).
_BLACKLIST_ARGUMENT_PREFIXES: Final = ("modprobe.blacklist=", "module_blacklist=")
_NOUVEAU_DISPLAY_EFFECT: Final = "makes nouveau take the display when it is loaded"
_GRUB_CMDLINE_LINE: Final = Pattern(r"\s*(?:export\s+)?GRUB_CMDLINE_LINUX\w*=(.*)")


def driver_hazard_notes(facts: Facts) -> tuple[str, ...]:
    """Return a note for each line that keeps modules from being as the driver needs them."""
    loads = (load_line for load_line in module_load_lines(facts) if load_line.words[0] in CONFLICTING_MODULES)
    rivals = (f"{load.file}:{load.line} loads {load.words[0]} by name, which ignores any blacklist" for load in loads)
    removals = (f"{note}: remove it" for note in (*rivals, *_modprobe_directive_notes(facts)))
    return (*removals, *_notes_of_kernel_arguments(facts), *_old_initramfs_notes(facts))


def _modprobe_directive_notes(facts: Facts) -> Iterator[str]:
    for directive in modprobe_directives(facts):
        if directive.file != NOUVEAU_BLACKLIST_FILE and (effect := _describe_directive_harm(directive.words)):
            yield f"{directive.file}:{directive.line} {effect}"


def _describe_directive_harm(words: tuple[str, ...]) -> str:
    """Return how a directive of modprobe harms the NVIDIA driver; empty if it does not."""
    match words:
        case ("blacklist", module) if module in _DRIVER_MODULES:
            return f"keeps {module} from being loaded for its GPU"
        case ("install", module, program, *_) if (
            module in _DRIVER_MODULES and program.rpartition("/")[2] in _NO_OP_PROGRAMS
        ):
            return f"makes modprobe run {program} instead of loading {module}"
        case ("alias", module, "off") if module in _DRIVER_MODULES:
            return f"disables {module}"
        case ("softdep", module, *others) if rivals := sorted(CONFLICTING_MODULES.intersection(others)):
            return f"loads {', '.join(rivals)} along with {module}"
        case ("options", "nouveau", *options) if any(o.startswith("modeset=") and o != "modeset=0" for o in options):
            return _NOUVEAU_DISPLAY_EFFECT
        case _:
            return ""


def _notes_of_kernel_arguments(facts: Facts) -> Iterator[str]:
    """Yield a note for each kernel argument of the next boot, or of this one if the boot loader no longer has it."""
    reported = set()
    settings = sorted(
        path for path in facts.files if path.startswith(f"{GRUB_DEFAULTS_FOLDER}/") and path.endswith(".cfg")
    )
    for path in (GRUB_DEFAULTS_FILE, *settings):
        for number, line in enumerate(facts.text(path).split("\n"), 1):
            match = _GRUB_CMDLINE_LINE.match(line)
            for word in match[1].replace('"', " ").replace("'", " ").split() if match else ():
                if effect := _argument_effect(word):
                    reported.add(word)
                    yield f"{path}:{number} has {word}, which {effect}: remove it, then run update-grub"
    remedy = "remove it from the boot loader's configuration"
    if value_or(facts.file(GRUB_DEFAULTS_FILE), None):
        remedy = f"{GRUB_DEFAULTS_FILE} no longer has it: run update-grub, and reboot"
    for word in dict.fromkeys(facts.text(KERNEL_ARGUMENTS_FILE).split()):
        if word not in reported and (effect := _argument_effect(word)):
            yield f"{KERNEL_ARGUMENTS_FILE}: the kernel was started with {word}, which {effect}: {remedy}"


def _argument_effect(word: str) -> str:
    name, _, value = word.partition("=")
    if name == "nouveau.modeset" and value != "0":
        return _NOUVEAU_DISPLAY_EFFECT
    if word.startswith(_BLACKLIST_ARGUMENT_PREFIXES):
        modules = sorted(_DRIVER_MODULES.intersection(value.replace("-", "_").split(",")))
        return f"keeps {', '.join(modules)} from being loaded" if modules else ""
    return ""


def _old_initramfs_notes(facts: Facts) -> Iterator[str]:
    """Yield a note for each initramfs that will boot and is older than the blacklist."""
    written = facts.modified_at.get(NOUVEAU_BLACKLIST_FILE)
    kernels = facts.kernels.value.wanted if not isinstance(facts.kernels, Unknown) else ()
    for kernel in kernels:
        image = deb.initramfs_image_path(kernel)
        initramfs_time = facts.modified_at.get(image)
        if written is not None and initramfs_time is not None and initramfs_time < written:
            yield (
                f"{image} is older than {NOUVEAU_BLACKLIST_FILE}, so nouveau may take the GPU early in the next boot: "
                f"`{command('sudo', *deb.rebuild_initramfs_command(kernel))}` rebuilds it"
            )


_BLACKLIST_TEXT = b"""# Written by gpunode: these drivers must not bind the GPU that the NVIDIA driver uses.
blacklist nouveau
blacklist nova_core
blacklist nova_drm
options nouveau modeset=0
"""


def plan_blacklist(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the file that keeps nouveau and nova off the card, even in the initramfs."""
    if not wants_driver(recipe, facts):
        return Planned((), "this driver is not managed by gpunode")
    notes = driver_hazard_notes(facts)
    if preexisting := preexisting_driver(recipe, facts):
        return Planned((), preexisting.reason, notes)
    if driver_awaits_enrolment(recipe, facts):
        return Planned((), AWAITS_ENROLMENT_REASON, notes, is_deferred=True)
    changes = plan_file(facts, NOUVEAU_BLACKLIST_FILE, FileState(_BLACKLIST_TEXT), frozenset({Trigger("initramfs")}))
    if not changes:
        return Planned((), "nouveau and nova are blacklisted", notes)
    loaded = sorted(value_or(facts.modules, frozenset()) & CONFLICTING_MODULES)
    now = f" ({', '.join(loaded)} is loaded now)" if loaded else ""
    reason = f"nouveau and nova must not take the GPU before the NVIDIA driver does{now}"
    return Planned(changes, reason, notes)


NOUVEAU_STEP = Step(
    "nouveau",
    "nouveau and nova",
    "packages",
    plan_blacklist,
    serves=("driver",),
    for_driver=True,
    files=(KERNEL_ARGUMENTS_FILE, GRUB_DEFAULTS_FILE),
)


def plan_module_build(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan to have a module of the chosen version on disk for every kernel that must have one.

    The driver's package makes DKMS build them; ``dkms autoinstall`` may exit 0 although it skipped a build, so only the
    files count. If DKMS believes that a missing file exists, it skips the build and must be overruled.
    """
    if preexisting := preexisting_driver(recipe, facts):
        return _plan_preexisting(preexisting, facts)
    driver = wanted_driver(recipe, facts)
    if not isinstance(driver, WantedDriver):
        return driver
    # The libraries are of the installed version, and work with no other module of the branch.
    chosen = replace(driver.chosen, exact=installed_driver_version(facts, driver) or driver.chosen.exact)
    kernels = require(facts.kernels, "which kernels are installed")
    if driver.modules:
        from gpunode.steps.distro_driver import require_prebuilt_modules  # loaded on use

        return require_prebuilt_modules(driver, kernels, facts)
    missing = kernels_without_module(chosen, kernels, facts)
    if facts.module_key is not None:
        from gpunode.steps.enrolment import find_module_signature_refusal  # only where Secure Boot is on

        if refused := find_module_signature_refusal(facts):
            return refused
    has_source = _has_module_source(driver, facts)
    if not has_source:
        from gpunode.steps.leftovers import lost_module_source_refusal, note_lost_module_source  # loaded on use

        if missing:
            return lost_module_source_refusal(driver, missing, facts)
    if not missing:
        is_planned = facts.module_files.probe == PLAN_PROBE_KEY
        by = "the driver's package builds it" if is_planned else "built"
        notes = () if has_source else (note_lost_module_source(driver, facts),)
        return Planned((), f"{by} for {' and '.join(kernels.wanted)}", notes, is_deferred=is_planned)
    changes = tuple(_build_command(kernel, chosen, facts) for kernel in missing)
    return Planned(changes, f"no NVIDIA module of {version_prefix(chosen)}* for {' and '.join(missing)}")


def _has_module_source(driver: WantedDriver, facts: Facts) -> bool:
    """Return whether the source of the installed modules exists; True if that is unknown."""
    state = value_or(facts.packages, {}).get(PackageId(driver.family.dkms_package(driver.chosen)))
    leftover_paths = facts.leftovers
    if (
        state is None
        or state.config_files_only
        or not isinstance(leftover_paths, Known)
        or leftover_paths.probe == PLAN_PROBE_KEY
    ):
        return True
    cut_short = facts.packages_interrupted
    if isinstance(cut_short, Known) and (cut_short.value or cut_short.probe == PLAN_PROBE_KEY):
        return True  # a package that was half gone is reinstalled first
    return any(
        path.startswith("/usr/src/") and path.endswith(f"-{upstream_version(state.version)}")
        for path in leftover_paths.value
    )


def _plan_preexisting(preexisting: PreexistingDriver, facts: Facts) -> Planned:
    """Build nothing for a driver that stays as it is; note a kernel that it lacks."""
    wanted = require(facts.kernels, "which kernels are installed")
    lacking = kernels_without_module(preexisting.chosen, wanted, facts)
    kernel = ", ".join(lacking)
    fix = "install the package with it (linux-modules-nvidia-*)" if preexisting.prebuilt else "dkms autoinstall"
    warning = f"driver {preexisting.version} has no module for kernel {kernel}: {fix} before booting that kernel"
    return Planned((), preexisting.reason, (warning,) if lacking else ())


def _build_command(kernel: str, chosen: DriverChoice, facts: Facts) -> CommandChange:
    believed = value_or(facts.dkms, {}).get(kernel)
    if believed is None or not is_version_of(believed.version, chosen):
        return CommandChange(("dkms", "autoinstall", "-k", kernel), f"no module for kernel {kernel}")
    argv = ("dkms", "install", "--force", "-m", believed.module, "-v", believed.version, "-k", kernel)
    return CommandChange(argv, f"DKMS has built a module for kernel {kernel}, but its file is gone")


def kernels_without_module(chosen: DriverChoice, kernels: Kernels, facts: Facts) -> tuple[str, ...]:
    """Return the wanted kernels for which no module of the chosen driver is on disk."""
    files = require(facts.module_files, "which NVIDIA modules are built")
    # For a prebuilt one only the branch is known; for one without a version, only DKMS tells that it is the driver's.
    of_branch = replace(chosen, exact="")
    fitting = (
        module_file
        for module_file in files
        if not module_file.version or is_version_of(module_file.version, chosen if module_file.dkms else of_branch)
    )
    built = {file.kernel for file in fitting if file.version or file.dkms}
    return tuple(kernel for kernel in kernels.wanted if kernel not in built)


def plan_module_load(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan to load the installed module; wait for a reboot if only that can change the loaded one."""
    if (preexisting := preexisting_driver(recipe, facts)) and preexisting.loaded.version != preexisting.version:
        versions = f"{preexisting.loaded.version}, and the libraries are {preexisting.version}"
        return Blocked("reboot", f"the kernel still runs driver {versions}")
    driver = wanted_driver(recipe, facts)
    if not isinstance(driver, WantedDriver):
        return driver
    if facts.is_image:
        return Planned((), "the kernel of the image loads it at boot", is_deferred=True)
    if isinstance(facts.loaded_driver, Unknown) and facts.loaded_driver.probe == PLAN_PROBE_KEY:
        return Planned((), "this run loads it", is_deferred=True)
    loaded = require(facts.loaded_driver, "whether the NVIDIA driver is loaded")
    if loaded is not None:
        return _compare_loaded(loaded, driver.chosen, installed_driver_version(facts, driver))
    if lacks_enrolment(recipe, facts):  # the recipe leaves the key to somebody else
        return Blocked("console", "the firmware lacks this machine's key, so the kernel would reject the module")
    if rivals := sorted(value_or(facts.modules, frozenset()) & CONFLICTING_MODULES):
        reason = f"{', '.join(rivals)} still drives the GPU; it is blacklisted, so the next boot leaves the card free"
        return Blocked("reboot", reason)
    return Planned((ModuleChange("nvidia", before=False, after=True),), "the module is not loaded")


def _compare_loaded(loaded: LoadedDriver, chosen: DriverChoice, installed: str) -> StepOutcome:
    """Compare the loaded driver with the installed one by version: libraries work only with a module of their own."""
    flavour = "open" if loaded.open_module else "proprietary"
    if is_chosen_driver_loaded(loaded, chosen) and installed in {"", loaded.version}:
        return Planned((), f"driver {loaded.version}, {flavour} modules, is loaded")
    has, wants = ("", "") if flavour == chosen.flavour else (f", {flavour} modules", f", {chosen.flavour} modules")
    wanted = f"{installed or chosen.exact or f'branch {chosen.branch}'}{wants}"
    return Blocked("reboot", f"the kernel still runs driver {loaded.version}{has}; the node needs {wanted}")


def is_chosen_driver_loaded(loaded: LoadedDriver | None, chosen: DriverChoice) -> bool:
    """Return whether the running kernel has the chosen driver, in version and flavour."""
    if loaded is None or not is_version_of(loaded.version, chosen):
        return False
    return loaded.open_module == (chosen.flavour == "open")


MODULE_BUILD_STEP = Step(
    "module-build",
    "kernel module",
    "kernel",
    plan_module_build,
    serves=(),
    needs=("driver", "headers"),
    for_driver=True,
)
MODULE_LOAD_STEP = Step(
    "module-load", "loaded driver", "kernel", plan_module_load, serves=(), needs=("driver",), for_driver=True
)
