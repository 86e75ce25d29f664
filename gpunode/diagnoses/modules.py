"""NVIDIA's modules: whether they are loaded, and whether those on disk fit the running kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.catalog.cuda import parse_version
from gpunode.diagnoses import build, consequences, remedies, secureboot, symptoms
from gpunode.diagnoses.commands import Command, Shell, command, edit_matching_files, join_commands
from gpunode.diagnoses.commands import kernel_release_word as of_kernel
from gpunode.diagnoses.model import Citation, Fix, Proof, Rule
from gpunode.diagnoses.remedies import (
    can_run_setup,
    install,
    manual_step,
    reboot_node,
    rebuild_initramfs,
    rebuild_initramfs_and_reboot,
    remove_kernel_argument,
    run_step,
    setup_step,
)
from gpunode.diagnoses.signs import (
    all_of,
    any_line,
    any_of,
    command_run,
    custom_sign,
    file_line,
    kernel_line,
    message_line,
    predicate,
    unless,
)
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact
from gpunode.diagnoses.views import driver, modules, packages, pci, system
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

# The machine signed the module itself; the kernel may refuse its key.
_MODULE_SIGNED_BY_MACHINE: Final = message_line(
    r"signer:\s.*(?:DKMS module signing key|Secure Boot Module Signature key)", "modinfo"
)
_MODULE_NOT_NEEDED: Final = predicate(
    lambda node: system.has_external_driver(node) or pci.has_gpu(node) is False,
    "this machine has no NVIDIA module of its own to load",
)
_MODULE_BUILT: Final = predicate(
    lambda snapshot: modules.is_built_for(snapshot, snapshot.view(system.running_kernel)), "a module is built"
)
_NOT_FOUND: Final = custom_sign(modules.not_found_lines)
_KERNEL_ARGUMENT_BLACKLIST: Final = Pattern(r"(?:modprobe\.|module_|rd\.driver\.)blacklist=nvidia(?=[ \t\"'\n]|$)")
_BLACKLIST_ENTRY: Final = (
    r"^[ \t]*(?:blacklist\s+nvidia|install\s+nvidia\s+\S*/(?:false|true)|alias\s+nvidia\s+off)\s*$"
)
_NVIDIA_BLACKLISTED: Final = any_of(
    # modprobe's error for "alias nvidia off".
    message_line(r"could not insert 'off'|module by name='off'"),
    file_line("*modprobe.d/*", _BLACKLIST_ENTRY),
    message_line(_BLACKLIST_ENTRY, "listing", "text"),
    any_line(r"(?:modprobe|module|rd\.driver)[._]blacklist=\S*\bnvidia\b"),
)
# cuFile prints a similar message about nvidia-fs.
_MODULE_NOT_LOADED: Final = message_line(
    r"(?<!-fs )(?<!-fs\.ko )[Dd]river [Nn]ot [Ll]oaded|NVML_ERROR_DRIVER_NOT_LOADED"
    r"|(?:nvidia|NVIDIA) (?:kernel )?(?:module|driver) (?:is not|isn't|was not|not) loaded"
)


def _load_module(snapshot: Snapshot) -> Iterable[Fix]:
    load = Shell("sudo modprobe nvidia")
    if snapshot.view(_NVIDIA_BLACKLISTED):
        yield from _unblock_module(snapshot)
        return
    yield run_step("load", "load the module; if that fails, its message names the cause", load)
    said = Shell("sudo dmesg | grep -iE 'nvrm|nvidia|nouveau' | tail -n 40")
    yield run_step("inspect", "read the kernel's messages about it", said)
    if can_run_setup(snapshot):
        text = "let gpunode find what is missing and load it"
        yield setup_step(snapshot, "load", text, "module-build", "module-load", when="modprobe does not find it")


def _unblock_module(snapshot: Snapshot) -> Iterator[Fix]:
    entry = "^[[:space:]]*(blacklist|install|alias)[[:space:]]+nvidia([[:space:]]|$)"
    taken_out = edit_matching_files(entry, f"/{entry}/d", "/etc/modprobe.d", "/lib/modprobe.d")
    yield run_step("configure", "remove the entries that block nvidia from modprobe's configuration", taken_out)
    if at_boot := snapshot.match(_KERNEL_ARGUMENT_BLACKLIST):
        text = "remove the argument that blocks nvidia from the kernel's command line; takes effect at the next boot"
        yield run_step("configure", text, *remove_kernel_argument(snapshot, at_boot[0]))
    yield run_step("load", "load the module", Shell("sudo modprobe nvidia"))
    yield rebuild_initramfs(snapshot)


# A module on disk that the running kernel cannot use.

_MODULE_INCOMPATIBLE: Final = any_of(
    kernel_line(
        r"\bnvidia(?:_current|_drm|_modeset|_uvm)?: (?:version magic '[^'\n]*' should be"
        # Symbols of other modules are missing while those modules are not loaded.
        r"|disagrees about version of symbol)|\bnvidia: Unknown symbol (?!(?:ipmi|i2c|drm)_)\w+ \(err"
    ),
    message_line(
        r"(?:insert(?: module)?|kernel module) ['‘]?\S*nvidia\S*:? ?(?:Exec format error|Invalid module format)"
    ),
)


def _modules_of_other_kernels(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the modules for other kernels if the running kernel has none."""
    running = modules.running_or_searched_kernel(snapshot)
    infos = tuple(info for info in snapshot.view(modules.driver_modinfo) if info.kernel)
    has_own = any(info.kernel == running for info in infos)
    if has_own or modules.is_built_for(snapshot, running) or not (running or snapshot.view(_NOT_FOUND)):
        return ()
    others = tuple(module.citation for module in snapshot.view(modules.modules_on_disk) if module.kernel != running)
    if infos or others:
        return (*(info.citation for info in infos), *others)
    gone = _is_kernel_gone(snapshot, running) and bool(snapshot.view(_NOT_FOUND))
    return tuple(one.citation for one in driver.driver_packages(snapshot)[:3] if one.is_installed) if gone else ()


_ONLY_OTHER_KERNELS: Final = unless(custom_sign(_modules_of_other_kernels), symptoms.MODULE_LOADED)


def _summarize_kernels(snapshot: Snapshot) -> str:
    running = modules.running_or_searched_kernel(snapshot)
    built = {info.kernel for info in snapshot.view(modules.driver_modinfo)}
    built |= {module.kernel for module in snapshot.view(modules.modules_on_disk)}
    names = ", ".join(sorted(filter(None, built - {running}))) or "another kernel"
    return f"the NVIDIA module was built for {names}, not for the running kernel {running}".rstrip()


_VERSION_NUMBERS: Final = Pattern(r"[\d._-]+")


def _find_missing_at_next_boot(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield the proof that a newer kernel boots next, without NVIDIA's module."""
    known, files = snapshot.facts.kernels, snapshot.facts.module_files
    if not (isinstance(known, Known) and isinstance(files, Known) and known.value.running and known.value.installed):
        return
    running, newest = known.value.running, known.value.installed[-1]
    is_successor = running != newest and _VERSION_NUMBERS.sub("", running) == _VERSION_NUMBERS.sub("", newest)
    built = {module_file.kernel for module_file in files.value}
    if is_successor and driver.is_loaded(snapshot) and running in built and newest not in built:
        what = f"the next boot will have no driver: NVIDIA's module is built for {running}, but {newest} is newer"
        lines = (cite_fact(f"/boot/vmlinuz-{newest}", "it is there", known.probe), *snapshot.view(_MODULE_BUILT))
        remedy = (_build_before_boot(snapshot, newest),)
        yield Proof(what, lines, "likely", remedy=remedy, severity="warning")


def _build_before_boot(snapshot: Snapshot, kernel: str) -> Fix:
    if can_run_setup(snapshot):
        text = f"install the headers of {kernel} and build the module for it, before the next boot"
        return setup_step(snapshot, "rebuild", text, "headers", "module-build")
    return build.build_module(snapshot, kernel)


def _build_for_running_kernel(snapshot: Snapshot) -> Iterable[Fix]:
    kernel = modules.running_or_searched_kernel(snapshot)
    if _is_kernel_gone(snapshot, kernel):
        yield reboot_node("reboot into the installed kernel: the running one was replaced and its modules are gone")
    elif prebuilt := packages.matching_packages(snapshot, "linux-modules-nvidia-*"):
        stem = re.sub(r"-\d+\.\d+\.\d+-\d+-\w.*$", "", prebuilt[0].name)
        yield install(snapshot, "install the prebuilt modules for this kernel", of_kernel(kernel, f"{stem}-"))
        yield run_step("load", "load the module", Shell("sudo modprobe nvidia"))
    elif bool(packages.matching_packages(snapshot, "*dkms*", "akmod-nvidia*")) or bool(
        snapshot.view(modules.driver_dkms_rows)
    ):
        if not build.has_headers(snapshot, kernel):
            text = f"install the headers of {kernel or 'the running kernel'}"
            yield install(snapshot, text, *build.headers_packages(snapshot, kernel))
        yield build.build_module(snapshot, kernel)
    else:
        text = "replace the driver with a package that is rebuilt for every kernel"
        yield remedies.install_driver(snapshot, text)
        yield run_step(
            "rebuild",
            "or run NVIDIA's installer again, with --dkms",
            when=("the driver must remain a .run installation"),
        )


def _is_kernel_gone(snapshot: Snapshot, running: str) -> bool:
    """Return whether the running kernel's modules were removed, as by an upgrade without a reboot."""
    folders = {f"/lib/modules/{running}", "/lib/modules/$(uname -r)"}
    return bool(running) and any(
        (item.written == "/lib/modules/*" and f"/lib/modules/{running}" not in item.lines)
        or (item.subject.rstrip("/") == "/lib/modules" and item.source.words[0] == "ls" and running not in item.text)
        or (item.subject.rstrip("/") in folders and item.outcome == "absent")
        for item in snapshot.items_of("listing")
    )


# modprobe reads the indexes and never searches folders.
_KERNEL_FOLDER_INCOMPLETE: Final = message_line(r"could not open modules\.(?:order|builtin)")
_MODULE_INDEX_EMPTY: Final = message_line(
    r"^-[rwx-]{9}\S*\s+\d+\s+\S+\s+\S+\s+0\s.*\bmodules\.\w+(?:\.bin)?$", "listing", "text"
)
_MODULE_INDEX_BROKEN: Final = message_line(
    r"could not open builtin file|could not (?:open|load|search|find) (?:index|module dependenc|modules\.\w+)"
    r"|/modules\.(?:dep|alias|symbols|builtin|softdep)(?:\.bin|\.modinfo)?['’]?[:,]? ?(?:No such file|is empty)"
    r"|Could not (?:load|open) (?:dependency file|\S*modules\.dep|moddep)|can't open '?modules\.dep"
    r"|lookup_builtin_file\(\)"
)


def _running_kernel_module_files(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the module files of the running kernel."""
    running = modules.running_or_searched_kernel(snapshot)
    files = (module for module in snapshot.view(modules.modules_on_disk) if module.place and module.kernel == running)
    # Debian's package renames its module, and modprobe finds it by an alias that modinfo does not read.
    return (file.citation for file in files if not _DEBIAN_MODULE_PATH.search(file.citation.text))


_DEBIAN_MODULE_PATH: Final = Pattern(r"/nvidia-(?:current|tesla|legacy)[\w-]*\.ko")


def _missing_index_lines(snapshot: Snapshot) -> Iterator[Citation]:
    running = modules.running_or_searched_kernel(snapshot)
    for item in snapshot.items_of("listing", "file"):
        if item.outcome == "absent" and "/modules.dep" in item.written:
            yield cite(item)
        if item.written == "/lib/modules/*/modules.*" and snapshot.view(_RUNNING_KERNEL_MODULE_FILES):
            wanted = {f"/lib/modules/{running}/modules.dep", f"/lib/modules/{running}/modules.dep.bin"}
            yield from () if wanted.intersection(item.lines) else (cite(item),)


_RUNNING_KERNEL_MODULE_FILES: Final = custom_sign(_running_kernel_module_files)


def _rebuild_index(snapshot: Snapshot) -> Iterable[Fix]:
    running = modules.running_or_searched_kernel(snapshot)
    if snapshot.view(_KERNEL_FOLDER_INCOMPLETE) or snapshot.view(_MODULE_INDEX_EMPTY):
        yield manual_step("install", "reinstall the package of this kernel: its module folder is incomplete")
    yield run_step("rebuild", "rebuild the indexes", command("sudo", "depmod", "-a", of_kernel(running)))
    yield run_step("load", "load the module", Shell("sudo modprobe nvidia"))


# Two copies of the module for one kernel: depmod picks by folder, not by version.


def _module_copies(snapshot: Snapshot) -> dict[str, modules.InstalledModule]:
    """Return by folder the files of the main module for one kernel, the running one if known."""
    on_disk = snapshot.view(modules.modules_on_disk)
    kernels = (modules.running_or_searched_kernel(snapshot),) if modules.running_or_searched_kernel(snapshot) else ()
    for name in kernels or tuple(dict.fromkeys(module.kernel for module in on_disk)):
        places = {module.place: module for module in on_disk if module.kernel == name and module.place}
        built = (
            row for row in snapshot.view(modules.driver_dkms_rows) if row.kernel == name and row.state == "installed"
        )
        if row := next(built, None) if any(_RUNFILE_FOLDER in place for place in places) else None:
            places.setdefault("updates/dkms", modules.InstalledModule(name, "updates/dkms", row.citation))
        # weak-updates links to modules of kernels with the same interface; those that fit are no copies.
        if not snapshot.view(_MODULE_INCOMPATIBLE):
            places = {place: one for place, one in places.items() if "weak-updates" not in place}
        if len(places) > 1:
            return places
    return {}


# Default folder of NVIDIA's installer; packages and DKMS use other folders.
_RUNFILE_FOLDER: Final = "kernel/drivers/video"
_MODULE_NAMES: Final = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm", "nvidia-peermem")


def _version_difference_lines(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the loaded module and the one on disk if their versions differ."""
    here, there = driver.loaded_version(snapshot), driver.on_disk_version(snapshot)
    if here and there and here.version != there.version:
        yield from (here.citation, there.citation)


_SEVERAL_COPIES: Final = custom_sign(lambda snapshot: (one.citation for one in snapshot.view(_module_copies).values()))
_LOADED_VERSION_DIFFERS: Final = custom_sign(_version_difference_lines)
_MODULE_MISMATCH: Final = Pattern(
    r"Version mismatch: nvidia\.ko\((?P<nvidia>[\d.]{3,20})\) nvidia-\w+\.ko\((?P<other>[\d.]{3,20})\)"
)


def _older_module_lines(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the messages of a module older than the loaded nvidia.ko; a newer one is an upgrade before its reboot."""
    for line in snapshot.matching_lines(_MODULE_MISMATCH):
        match = _MODULE_MISMATCH.search(line.line)
        if match and parse_version(match["other"]) < parse_version(match["nvidia"]):
            yield line


# The driver's modules of one kernel come from one build, so the older one is from another place.
_OLDER_MODULE_LOADED: Final = unless(custom_sign(_older_module_lines), _LOADED_VERSION_DIFFERS)
_MODULES_OF_TWO_VERSIONS: Final = any_of(_LOADED_VERSION_DIFFERS, _MODULE_INCOMPATIBLE, _OLDER_MODULE_LOADED)


def _summarize_copies(snapshot: Snapshot) -> str:
    places = " and in ".join(sorted(snapshot.view(_module_copies)))
    return f"NVIDIA's module exists in {places}, and the wrong copy is loaded" if places else ""


_FILE_OWNER_COMMANDS: Final[dict[system.PackageManager, Command]] = {
    "apt": Shell("dpkg -S"),
    "dnf": Shell("rpm -qf"),
    "zypper": Shell("rpm -qf"),
    "pacman": Shell("pacman -Qo"),
}


def _keep_one_copy(snapshot: Snapshot) -> Iterable[Fix]:
    release = of_kernel(modules.running_or_searched_kernel(snapshot))
    asks = _FILE_OWNER_COMMANDS[snapshot.view(system.package_manager)]
    text = "remove the files left by NVIDIA's installer, which no package owns and DKMS does not replace"
    files = (of_kernel(release, "/lib/modules/", f"/{_RUNFILE_FOLDER}/{name}.ko") for name in _MODULE_NAMES)
    # /lib is /usr/lib on most systems, and dpkg knows a file by one of the two names. If the package manager's tool is
    # missing, nothing shows that a file has no owner.
    name = Shell('"*$f"') if asks.startswith("dpkg") else Shell('"$f"')
    is_another = join_commands(Shell('; do [ ! -e "$f" ] || ! command -v'), command(asks.split()[0]))
    owned = join_commands(Shell("||"), asks, name, Shell('|| sudo rm -v "$f"; done'))
    yield run_step("remove", text, join_commands(Shell("for f in"), command(*files), is_another, owned))
    text = "find the package that owns each remaining copy, and remove the package of the unwanted driver"
    find = command("find", of_kernel(release, "/lib/modules/"), "-name", "nvidia*.ko*", "-exec")
    yield run_step("inspect", text, join_commands(find, asks, Shell("{} +")))
    yield run_step("rebuild", "rebuild the indexes", command("sudo", "depmod", "-a", release))
    yield rebuild_initramfs(snapshot)
    yield reboot_node()


_IN_INITRAMFS: Final = custom_sign(modules.nvidia_in_initramfs_lines)
# systemd-boot starts a copy on the EFI system partition; and a load before switch_root came from the image.
_INITRAMFS_MAY_BE_STALE: Final = any_of(
    message_line(r"/(?:efi|EFI|esp)/\S*(?:initrd|initramfs)", "listing", "text"),
    command_run(r"switching root|switch_root"),
)


_rule = partial(Rule, layer="kernel")

RULES: Final = (
    Rule(
        cause="driver-module-not-loaded",
        layer="driver",
        share=4,
        decisive=any_of(
            all_of(custom_sign(driver.not_loaded_lines), any_of(symptoms.NO_DRIVER, _MODULE_BUILT)),
            unless(_NVIDIA_BLACKLISTED, kernel_line(r"loading NVIDIA UNIX")),
        ),
        typical=unless(
            any_of(_MODULE_NOT_LOADED, all_of(symptoms.NO_DRIVER, _MODULE_BUILT)),
            unless(_MODULE_SIGNED_BY_MACHINE, secureboot.SECURE_BOOT_OFF),
        ),
        symptoms=(symptoms.NO_DRIVER, symptoms.NO_MODULE, symptoms.HOOK_FAILED, _MODULE_NOT_LOADED),
        context=any_of(custom_sign(driver.not_loaded_lines), _MODULE_BUILT),
        against=(symptoms.DRIVER_WORKS, symptoms.MODULE_LOADED, _MODULE_NOT_NEEDED, secureboot.SIGNATURE_REFUSED),
        summary=lambda snapshot: (
            f"NVIDIA's kernel module is not loaded{': it is blacklisted' if snapshot.view(_NVIDIA_BLACKLISTED) else ''}"
        ),
        look_at=(Shell("lsmod | grep nvidia"), Shell("sudo modprobe nvidia")),
        remedy=_load_module,
        explains=consequences.DRIVER_NOT_INITIALIZED,
    ),
    _rule(
        cause="module-built-for-other-kernel",
        layer="driver",
        share=4,
        check=_find_missing_at_next_boot,
        decisive=any_of(unless(_MODULE_INCOMPATIBLE, symptoms.MODULE_LOADED), all_of(_NOT_FOUND, _ONLY_OTHER_KERNELS)),
        # On the node itself the modules of every kernel are listed.
        typical=any_of(_ONLY_OTHER_KERNELS, unless(all_of(_NOT_FOUND, symptoms.NO_DRIVER), symptoms.DRIVER_NOT_LOADED)),
        symptoms=(symptoms.NO_MODULE, symptoms.NO_DRIVER, _MODULE_INCOMPATIBLE),
        context=unless(symptoms.KERNEL_UPGRADED, symptoms.DRIVER_WORKS),
        against=(_MODULE_NOT_NEEDED,),
        summary=_summarize_kernels,
        look_at=(Shell("uname -r"), Shell("dkms status")),
        remedy=_build_for_running_kernel,
        explains=consequences.MODULE_NOT_ACCEPTED,
    ),
    _rule(
        cause="depmod-index-missing",
        decisive=any_of(
            _MODULE_INDEX_BROKEN,
            _MODULE_INDEX_EMPTY,
            custom_sign(_missing_index_lines),
            all_of(_NOT_FOUND, _RUNNING_KERNEL_MODULE_FILES),
        ),
        symptoms=(symptoms.NO_MODULE, symptoms.NO_DRIVER, _MODULE_INDEX_BROKEN),
        against=(symptoms.DRIVER_WORKS, symptoms.MODULE_LOADED),
        look_at=(Shell("ls -l /lib/modules/$(uname -r)/modules.dep"),),
        remedy=_rebuild_index,
        explains=consequences.MODULE_NOT_ACCEPTED,
    ),
    _rule(
        cause="duplicate-module-files",
        layer="driver",
        disruption="reboot",
        decisive=all_of(_SEVERAL_COPIES, any_of(_MODULES_OF_TWO_VERSIONS, symptoms.DRIVER_MISMATCH)),
        typical=any_of(unless(_SEVERAL_COPIES, symptoms.DRIVER_WORKS), _OLDER_MODULE_LOADED),
        symptoms=(symptoms.DRIVER_MISMATCH, symptoms.NO_DRIVER, _MODULES_OF_TWO_VERSIONS),
        context=_SEVERAL_COPIES,
        may_be_normal=True,
        summary=_summarize_copies,
        look_at=(Shell("find /lib/modules/$(uname -r) -name 'nvidia*.ko*'"),),
        remedy=_keep_one_copy,
        explains=(consequences.DRIVER_LIBRARY_MISMATCH_CAUSES - {"driver-library-mismatch-mixed-installs"})
        | consequences.LIBRARY_MISMATCH
        | {"module-built-for-other-kernel"},
    ),
    _rule(
        cause="initramfs-stale-module",
        disruption="reboot",
        typical=any_of(
            _IN_INITRAMFS, all_of(_INITRAMFS_MAY_BE_STALE, any_of(symptoms.DRIVER_MISMATCH, _LOADED_VERSION_DIFFERS))
        ),
        symptoms=(symptoms.DRIVER_MISMATCH, _LOADED_VERSION_DIFFERS),
        may_be_normal=True,
        against=(symptoms.DRIVER_WORKS,),
        look_at=(
            Shell("lsinitramfs /boot/initrd.img-$(uname -r) | grep nvidia"),
            Shell("cat /proc/driver/nvidia/version"),
        ),
        remedy=rebuild_initramfs_and_reboot,
        explains=consequences.DRIVER_LIBRARY_MISMATCH_CAUSES | consequences.LIBRARY_MISMATCH,
    ),
)
