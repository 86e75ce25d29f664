"""NVIDIA's modules: whether they are in the running kernel, and whether those on disk are the ones that it needs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import build, chains, remedies, secureboot, symptoms
from gpunode.diagnoses.addresses import DRIVER_README
from gpunode.diagnoses.commands import Command, Shell, command, edited, edited_where, joined, output
from gpunode.diagnoses.commands import kernel as of_kernel
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict
from gpunode.diagnoses.remedies import (
    install,
    reboot,
    rebuild_initramfs,
    rebuilt_initramfs,
    run,
    setup_step,
    takes_gpunode,
    without_kernel_argument,
)
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import driver, initramfs, kernel, modules, next_boot, packages, pci, system
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

# cuFile says the like of nvidia-fs.
_SAYS_NOT_LOADED: Final = Pattern(
    r"(?<!-fs )(?<!-fs\.ko )[Dd]river [Nn]ot [Ll]oaded|NVML_ERROR_DRIVER_NOT_LOADED"
    r"|couldn.t communicate with the NVIDIA driver"
    r"|(?:nvidia|NVIDIA) (?:kernel )?(?:module|driver) (?:is not|isn't|was not|not) loaded"
    r"|[Nn]o NVIDIA (?:kernel )?driver (?:is )?loaded|[Ff]ailed to load the NVIDIA kernel module"
    r"|Found no NVIDIA driver on your system"
)
_BLACKLISTED: Final = Pattern(
    r"^[ \t]*(?:blacklist\s+nvidia|install\s+nvidia\s+\S*/(?:false|true)|alias\s+nvidia\s+off)\s*$",
    re.MULTILINE,
)
# What modprobe makes of "alias nvidia off".
_OFF: Final = Pattern(r"could not insert 'off'|module by name='off'")
_BLACKLISTED_AT_BOOT: Final = Pattern(r"(?:modprobe|module|rd\.driver)[._]blacklist=\S*\bnvidia\b")


def _is_elsewhere(snapshot: Snapshot) -> bool:
    """Whether this machine has no NVIDIA module of its own to be loaded: WSL, or no GPU."""
    return system.has_driver_from_elsewhere(snapshot) or pci.has_gpu(snapshot) is False


def _absence(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Where it is seen that the module is not loaded."""
    if snapshot.of("lsmod"):
        return modules.lsmod_line(snapshot, "nvidia")
    known = snapshot.facts.modules
    if isinstance(known, Known):
        return (stated("/proc/modules", "nvidia is not among them", known.probe),)
    file = snapshot.file("/proc/driver/nvidia/version")
    return (cite(file),) if file is not None else ()


def _not_loaded(snapshot: Snapshot) -> Iterator[Verdict]:
    """The module is not there; what keeps it away is said by other rules, if anything shows it."""
    state = driver.is_loaded(snapshot)
    if state or _is_elsewhere(snapshot) or snapshot.view(secureboot.REFUSED):
        return
    said = snapshot.said(_SAYS_NOT_LOADED)
    is_built = modules.built_for(snapshot, snapshot.view(system.running_kernel))
    blacklist = tuple(_blacklist(snapshot))
    if unsupported := snapshot.said(modules.UNSUPPORTED):
        summary = "SUSE's modprobe loads only modules that SUSE supports, and NVIDIA's is none of them"
        yield Proof(summary, (*unsupported, *_absence(snapshot), *said), remedy=_UNSUPPORTED_TOO, disruption="none")
        return
    if state is None and not (said and (is_built or blacklist)):
        if said:
            look_at = (
                Shell("lsmod | grep nvidia"),
                Shell("dkms status"),
                Shell("sudo modprobe nvidia"),
                Shell("sudo dmesg | grep -iE 'nvrm|nvidia'"),
            )
            yield Doubt("Is NVIDIA's kernel module loaded, and if not, why?", look_at, said)
        return
    if not said and not is_built and not driver.packaged(snapshot):
        return
    summary = f"NVIDIA's kernel module is {'installed and ' if is_built else ''}not loaded"
    cited = (*_absence(snapshot), *said, *blacklist)
    if blacklist:
        yield Proof(f"{summary}: it is blacklisted", cited, remedy=tuple(_allow(snapshot)))
    elif state is None and (signed := _is_signed_here(snapshot)):
        question = "the module is there and signed with a key of this machine's own: does the kernel take it?"
        signature = (Shell("sudo modprobe nvidia"), Shell("mokutil --sb-state"))
        yield Doubt(question, signature, (*cited, *signed), ("secure-boot-key-not-enrolled",))
    else:
        yield Proof(summary, cited, "certain" if said and state is False else "likely")


# The file is the one that the message names; in /etc it stands before the one of the system's own.
_UNSUPPORTED_TOO: Final = (
    run(
        "configure",
        "have modules loaded that SUSE does not support, and load NVIDIA's",
        Shell("echo 'allow_unsupported_modules 1' | sudo tee /etc/modprobe.d/10-unsupported-modules.conf"),
        Shell("sudo modprobe nvidia"),
    ),
)
_OWN_KEY: Final = Pattern(r"DKMS module signing key|Secure Boot Module Signature key")
_SECURE_BOOT: Final = Pattern(r"Secure ?Boot|lockdown|Key was rejected|Loading of ", re.IGNORECASE)


def _is_signed_here(snapshot: Snapshot) -> tuple[Citation, ...]:
    """That the machine signed the module itself, where nothing tells whether the kernel asks for signatures."""
    signed = (info for info in snapshot.view(modules.driver_info) if _OWN_KEY.search(info.signer))
    return () if snapshot.says(_SECURE_BOOT) else tuple(info.citation for info in signed)


def _blacklist(snapshot: Snapshot) -> Iterator[Citation]:
    yield from snapshot.said(_OFF)
    for item in (*snapshot.files("*modprobe.d/*"), *snapshot.of("listing", "text")):
        yield from lines_with(item, _BLACKLISTED)
    for item in snapshot.items:
        if "cmdline" in item.written or item.kind == "kernel-log":
            yield from lines_with(item, _BLACKLISTED_AT_BOOT)


def _at_boot(snapshot: Snapshot) -> str:
    """The kernel's argument that keeps this module alone away; empty where there is none."""
    match = snapshot.match(_ALONE_AT_BOOT)
    return match[0] if match else ""


_ALONE_AT_BOOT: Final = Pattern(r"(?:modprobe\.|module_|rd\.driver\.)blacklist=nvidia(?=[ \t\"'\n]|$)")


def _allow(snapshot: Snapshot) -> Iterator[Fix]:
    files = [item.subject for item in snapshot.files("*modprobe.d/*") if _BLACKLISTED.search(item.text)]
    entry = "^[[:space:]]*(blacklist|install|alias)[[:space:]]+nvidia([[:space:]]|$)"
    taken_out = edited(f"/{entry}/d", *files) or (
        edited_where(entry, f"/{entry}/d", "/etc/modprobe.d", "/lib/modprobe.d"),
    )
    text = "take the entries that keep nvidia away out of modprobe's configuration"
    yield run("configure", text, *taken_out)
    if at_boot := _at_boot(snapshot):
        text = "take the argument that keeps nvidia away off the kernel's command line, from the next boot on"
        yield run("configure", text, *without_kernel_argument(snapshot, at_boot))
    yield run("load", "load the module", Shell("sudo modprobe nvidia"))
    yield rebuild_initramfs(snapshot)


def _load(snapshot: Snapshot) -> Iterable[Fix]:
    yield run("load", "load the module; what it says when it fails is the cause", Shell("sudo modprobe nvidia"))
    yield run(
        "inspect", "read what the kernel said of it", Shell("sudo dmesg | grep -iE 'nvrm|nvidia|nouveau' | tail -n 40")
    )
    if takes_gpunode(snapshot):
        text = "have gpunode find what is missing and load it"
        yield setup_step(snapshot, "load", text, "module-build", "module-load", when="modprobe does not find it")


# A module that stands on disk, and not as the running kernel needs it.

_OTHER_KERNEL: Final = Pattern(
    r"\bnvidia(?:_current|_drm|_modeset|_uvm)?: (?:version magic '[^'\n]*' should be|disagrees about version of symbol)"
    r"|\bnvidia: Unknown symbol \w+ \(err"
)
_FORMAT: Final = Pattern(
    r"(?:insert(?: module)?|kernel module) ['‘]?\S*nvidia\S*:? ?(?:Exec format error|Invalid module format)"
)


def _other_kernel(snapshot: Snapshot) -> Iterator[Verdict]:
    """The module was built, for another kernel than the one that runs, or than the one that boots next."""
    if system.has_driver_from_elsewhere(snapshot):
        return
    if driver.is_loaded(snapshot):
        yield from _next_boot(snapshot)
        return
    running = modules.kernel_of_search(snapshot)
    said = (*(message.citation for message in kernel.said(snapshot, _OTHER_KERNEL)), *snapshot.said(_FORMAT))
    if said:
        match = snapshot.match(modules.MAGIC)
        pair = (
            f" for {match['built']}, and {match['runs']} runs" if match else " for another kernel than the running one"
        )
        yield Proof(f"the NVIDIA module on disk was built{pair}", said)
        return
    others = tuple(one for one in snapshot.view(modules.on_disk) if one.kernel != running)
    if elsewhere := _built_elsewhere(snapshot, running):
        built = ", ".join(sorted({info.kernel for info in elsewhere}))
        cited = (*modules.not_found(snapshot), *(info.citation for info in elsewhere))
        yield Proof(f"the NVIDIA module was built for {built}, and not for the running kernel {running}", cited)
        return
    if not others and (absent := modules.not_found(snapshot)) and _is_gone(snapshot, running):
        if installed := [one for one in driver.packaged(snapshot) if one.is_installed]:
            summary = f"the modules of the running kernel {running} are gone, as after an upgrade of the kernel"
            yield Proof(summary, (*absent, *(one.citation for one in installed[:3])), "likely")
        return
    if running and others and modules.built_for(snapshot, running) is False:
        names = ", ".join(sorted({one.kernel for one in others}))
        absent = modules.not_found(snapshot)
        runs = (cite(item, 1) for item in snapshot.of("uname") if running in item.text)
        cited = (*absent, *(one.citation for one in others), *runs)
        is_sure = bool(absent) or isinstance(snapshot.facts.module_files, Known)
        summary = f"the NVIDIA module was built for {names}, and not for the running kernel {running}"
        yield Proof(summary, cited, "certain" if is_sure else "likely")


def _next_boot(snapshot: Snapshot) -> Iterator[Verdict]:
    """All is well until the next boot: a newer kernel waits without the module that the running one has."""
    newest = snapshot.view(next_boot.newer_kernel)
    if not newest or not next_boot.lacks_module(snapshot, newest):
        return
    running = snapshot.view(system.running_kernel)
    built = tuple(one.citation for one in snapshot.view(modules.on_disk) if one.kernel == running)
    if not built:
        return
    headers = build.headers_present(snapshot, newest)
    why = ", whose headers are not installed" if headers is False else ""
    yield Proof(
        f"the next boot will have no driver where it takes the newest kernel here, {newest}{why}: "
        f"NVIDIA's module is built for {running}, and not for that",
        (*next_boot.image_of(snapshot, newest), *built),
        "likely",
        ruled_out=("the driver does not work now: it is loaded",),
        remedy=tuple(_build_for_next(snapshot, newest, has_headers=headers is True)),
        severity="warning",
    )


def _build_for_next(snapshot: Snapshot, newest: str, *, has_headers: bool) -> Iterator[Fix]:
    if prebuilt := packages.matching(snapshot, "linux-modules-nvidia-*"):
        stem = re.sub(r"-\d+\.\d+\.\d+-\d+-\w.*$", "", prebuilt[0].name)
        yield install(snapshot, f"install the prebuilt modules for {newest}", of_kernel(newest, f"{stem}-"))
    elif takes_gpunode(snapshot):
        text = f"install the headers of {newest} and build the module for it, before the next boot"
        yield setup_step(snapshot, "rebuild", text, "headers", "module-build")
    else:
        if not has_headers:
            yield install(snapshot, f"install the headers of {newest}", *build.headers_packages(snapshot, newest))
        yield build.build_again(snapshot, newest)


def _built_elsewhere(snapshot: Snapshot, running: str) -> tuple[modules.Modinfo, ...]:
    """The modules that were looked at, where each was built for another kernel than the running one."""
    infos = tuple(info for info in snapshot.view(modules.driver_info) if info.kernel)
    if not running or any(info.kernel == running for info in infos):
        return ()
    return infos if modules.not_found(snapshot) or not modules.built_for(snapshot, running) else ()


def _build_for_this(snapshot: Snapshot) -> Iterable[Fix]:
    running = modules.kernel_of_search(snapshot)
    if _is_gone(snapshot, running):
        yield reboot("reboot into the kernel that is installed: the running one was replaced, its modules are gone")
    elif prebuilt := packages.matching(snapshot, "linux-modules-nvidia-*"):
        stem = re.sub(r"-\d+\.\d+\.\d+-\d+-\w.*$", "", prebuilt[0].name)
        yield install(snapshot, f"install the prebuilt modules for {running}", of_kernel(running, f"{stem}-"))
        yield run("load", "load the module", Shell("sudo modprobe nvidia"))
    elif snapshot.view(modules.driver_builds) or packages.matching(snapshot, "*dkms*", "akmod-nvidia*"):
        if not build.headers_present(snapshot, running):
            text = f"install the headers of {running or 'the running kernel'}"
            yield install(snapshot, text, *build.headers_packages(snapshot, running))
        yield build.build_again(snapshot, running)
    else:
        text = "install the driver as a package, which is built anew for every kernel, in place of what is there"
        yield remedies.driver(snapshot, text)
        yield run("rebuild", "or run NVIDIA's installer again, with --dkms", when="the driver is to stay a .run one")


def _is_gone(snapshot: Snapshot, running: str) -> bool:
    """Whether the folder of the running kernel's modules is no longer there, as after an upgrade without a reboot."""
    for item in snapshot.of("listing"):
        if item.written == "/lib/modules/*":
            return bool(running) and f"/lib/modules/{running}" not in item.lines
        if item.source.words[:1] != ("ls",) or item.source.only:
            continue
        path = item.subject.rstrip("/")
        if path in {"/lib/modules", "/usr/lib/modules"} and item.outcome == "ok" and running:
            return running not in item.text
        if running and path.endswith((f"/modules/{running}", "/modules/$(uname -r)")) and item.outcome == "absent":
            return True
    return False


_INDEX: Final = Pattern(
    r"could not open builtin file|could not (?:open|load|search|find) (?:index|module dependenc|modules\.\w+)"
    r"|/modules\.(?:dep|alias|symbols|builtin|softdep)(?:\.bin|\.modinfo)?['’]?[:,]? ?(?:No such file|is empty)"
    r"|Could not (?:load|open) (?:dependency file|\S*modules\.dep|moddep)|can't open '?modules\.dep"
    r"|lookup_builtin_file\(\)"
)
_INCOMPLETE: Final = Pattern(r"could not open modules\.(?:order|builtin)")
_EMPTY: Final = Pattern(r"^-[rwx-]{9}\S*\s+\d+\s+\S+\s+\S+\s+0\s.*\bmodules\.\w+(?:\.bin)?$")


def _no_index(snapshot: Snapshot) -> Iterator[Verdict]:
    """The indexes lack the module: modprobe reads them, and never searches folders."""
    if driver.is_loaded(snapshot):
        return
    running = modules.kernel_of_search(snapshot)
    said = snapshot.said(_INDEX)
    empty = tuple(
        cite(item, number)
        for item in snapshot.of("listing", "text")
        for number, line in enumerate(item.lines, 1)
        if _EMPTY.match(line)
    )
    lists = snapshot.of("listing", "file")
    empty += tuple(cite(item) for item in lists if item.outcome == "absent" and "/modules.dep" in item.written)
    absent = modules.not_found(snapshot)
    files = tuple(one for one in snapshot.view(modules.on_disk) if one.place and one.kernel == running)
    # Debian's own driver calls its module otherwise, and modprobe finds that by an alias which modinfo does not read.
    files = tuple(one for one in files if _RENAMED.search(one.citation.words) is None)
    gone = _lacks_index(snapshot, running) if files else ()
    if said or empty or gone:
        summary = f"the module indexes of {running or 'this kernel'} are missing or empty, so modprobe finds nothing"
        yield Proof(summary, (*said, *empty, *gone, *absent, *snapshot.said(_INCOMPLETE)))
    elif absent and files and running:
        summary = f"the module stands below /lib/modules/{running}, and modprobe does not find it: its index is older"
        cited = (*absent, *(one.citation for one in files))
        yield Proof(summary, cited, ruled_out=("the module was not built: it was",))


_RENAMED: Final = Pattern(r"/nvidia-(?:current|tesla|legacy)[\w-]*\.ko")
_UBUNTUS: Final = Pattern(r"-(?:generic|lowlatency|aws|azure|gcp|oracle|kvm|nvidia)\S*$")


def _lacks_index(snapshot: Snapshot, kernel: str) -> tuple[Citation, ...]:
    """The listing of all indexes, where it has none of ``kernel``."""
    wanted = (f"/lib/modules/{kernel}/modules.dep", f"/lib/modules/{kernel}/modules.dep.bin")
    listings = (item for item in snapshot.of("listing") if item.written == "/lib/modules/*/modules.*")
    return tuple(cite(item) for item in listings if not any(path in item.lines for path in wanted))


def _flavour(kernel: str) -> str:
    """Of SUSE's kernels."""
    return last if (last := kernel.rpartition("-")[2]).isalpha() else "default"


def _index(snapshot: Snapshot) -> Iterable[Fix]:
    running = modules.kernel_of_search(snapshot)
    if snapshot.said(_INCOMPLETE) or any(_EMPTY.match(line) for item in snapshot.of("listing") for line in item.lines):
        text = f"install the whole modules folder of {running or 'the running kernel'} again"
        manager = snapshot.view(system.package_manager)
        brings = "linux-modules-" if _UBUNTUS.search(running) else "linux-image-"
        # Of Oracle's, Amazon's and Proxmox' kernels the package has another name: the system's own lists tell.
        owned = joined(command("rpm", "-qa", "kernel*"), Shell("|"), command("grep", "-F", of_kernel(running)))
        owner = joined(command("dpkg-query", "-S", of_kernel(running, "/lib/modules/")), Shell("| cut -d: -f1"))
        words: dict[system.PackageManager, tuple[str | Shell, ...]] = {
            "apt": (
                *("apt-get", "install", "--reinstall"),
                output(owner) if running.endswith("-pve") else of_kernel(running, brings),
            ),
            "dnf": ("dnf", "reinstall", output(owned)),
            "zypper": ("zypper", "install", "--force", f"kernel-{_flavour(running)}"),
            "pacman": ("pacman", "-S", "linux"),
        }
        yield run("install", text, command("sudo", *words[manager]))
    yield run("rebuild", "write the indexes anew", command("sudo", "depmod", "-a", of_kernel(running)))
    yield run("load", "load the module", Shell("sudo modprobe nvidia"))


_API: Final = Pattern(r"API mismatch|Driver/library version mismatch|nvidia-modeset: Version mismatch")


def _duplicates(snapshot: Snapshot) -> Iterator[Verdict]:
    """Two copies of the module for one kernel: depmod picks one by the folder, not by the version."""
    running = modules.kernel_of_search(snapshot)
    for name in dict.fromkeys((running, *(one.kernel for one in snapshot.view(modules.on_disk)))):
        copies = [one for one in _copies(snapshot) if one.kernel == name and one.place and name]
        refused = _refused_link(snapshot, name)
        # weak-updates holds links to modules of kernels with the same interface: no copies, as long as they fit.
        places = {one.place: one for one in copies if "weak-updates" not in one.place or refused}
        if len(places) < 2 or (running and name != running):
            continue
        if mark := (*_disagreement(snapshot, tuple(places.values())), *refused):
            where = " and in ".join(sorted(places))
            which = "the running kernel" if name == modules.RUNNING else f"kernel {name}"
            summary = f"NVIDIA's module stands in {where} for {which}, and the wrong one is loaded"
            yield Proof(summary, (*(one.citation for one in places.values()), *mark))
        return


def _refused_link(snapshot: Snapshot, name: str) -> tuple[Citation, ...]:
    """What shows that modprobe takes a link to another kernel's module, which the kernel refuses."""
    refused = (*(message.citation for message in kernel.said(snapshot, _OTHER_KERNEL)), *snapshot.said(_FORMAT))
    taken = (info for info in snapshot.view(modules.driver_info) if f"/{name}/weak-updates/" in info.filename)
    chosen = next((info.citation for info in taken), None)
    return (chosen, *refused) if chosen is not None and refused else ()


def _copies(snapshot: Snapshot) -> Iterator[modules.OnDisk]:
    """The files, and DKMS's own where only its table tells of it and another one is loaded from elsewhere."""
    found = snapshot.view(modules.on_disk)
    yield from found
    for row in snapshot.view(modules.driver_builds):
        stray = [one for one in found if one.kernel == row.kernel and one.place.startswith("kernel/drivers/video")]
        if row.state == "installed" and stray and not any("dkms" in one.place for one in found):
            yield modules.OnDisk(row.kernel, "updates/dkms", row.version, row.citation)


def _disagreement(snapshot: Snapshot, copies: tuple[modules.OnDisk, ...]) -> Iterator[Citation]:
    """What shows that the copies are not the same: versions that differ, or libraries that the loaded one refuses."""
    yield from snapshot.said(_API)
    here, there = driver.loaded(snapshot), driver.on_disk(snapshot)
    if here and there and here.version != there.version:
        yield here.citation
        yield there.citation
    versions = {one.version for one in copies if one.version}
    infos = {info.version for info in snapshot.view(modules.driver_info) if info.version}
    if len(versions) > 1 or len(infos) > 1:
        yield from (one.citation for one in copies)
    if len(built := modules.sources(snapshot)) > 1:
        yield from (citation for _, citation in built)
    for row in snapshot.view(modules.driver_builds):
        if "diff" in row.remark.lower() or (infos and row.version not in infos and row.state == "installed"):
            yield row.citation


# Where NVIDIA's installer puts its modules when it is not told another place; packages and DKMS have their own.
_INSTALLERS: Final = "kernel/drivers/video"
_PARTS: Final = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm", "nvidia-peermem")


_OWNER: Final[dict[system.PackageManager, Command]] = {
    "apt": Shell("dpkg -S"),
    "dnf": Shell("rpm -qf"),
    "zypper": Shell("rpm -qf"),
    "pacman": Shell("pacman -Qo"),
}


def _keep_one(snapshot: Snapshot) -> Iterable[Fix]:
    release = of_kernel(modules.kernel_of_search(snapshot))
    asks = _OWNER[snapshot.view(system.package_manager)]
    text = "remove the files that NVIDIA's installer left, which no package owns and DKMS does not replace"
    files = (of_kernel(release, "/lib/modules/", f"/{_INSTALLERS}/{name}.ko") for name in _PARTS)
    # /lib is /usr/lib on most systems, and dpkg knows a file by one of the two names.
    name = Shell('"*$f"') if asks.startswith("dpkg") else Shell('"$f"')
    # Where the package manager is another one than it seems, nobody has said that nobody owns it.
    is_another = joined(Shell('; do [ ! -e "$f" ] || ! command -v'), command(asks.split()[0]))
    owned = joined(Shell("||"), asks, name, Shell('|| sudo rm -v "$f"; done'))
    yield run("remove", text, joined(Shell("for f in"), command(*files), is_another, owned))
    text = "see which package owns each copy that is left; the package whose driver is not wanted is to be removed"
    find = command("find", of_kernel(release, "/lib/modules/"), "-name", "nvidia*.ko*", "-exec")
    yield run("inspect", text, joined(find, asks, Shell("{} +")))
    yield run("rebuild", "write the indexes anew", command("sudo", "depmod", "-a", release))
    yield rebuild_initramfs(snapshot)
    yield reboot()


def _stale_initramfs(snapshot: Snapshot) -> Iterator[Verdict]:
    """The kernel loaded another version than the one on disk, and the initramfs holds a module of its own."""
    image = initramfs.brings(snapshot)
    here, there = driver.loaded(snapshot), driver.on_disk(snapshot) or driver.library(snapshot)
    if image and here and there and here.version != there.version:
        summary = (
            f"the initramfs brings NVIDIA's module in version {here.version}, and {there.version} is installed: "
            "it was not made anew when the driver was"
        )
        yield Proof(summary, (here.citation, there.citation, *image), "likely")


_MODPROBE: Final = "https://man7.org/linux/man-pages/man8/modprobe.8.html"

FAMILY: Final = Family(
    "modules",
    "NVIDIA's kernel modules on disk and in the kernel",
    (
        Rule(
            cause="driver-module-not-loaded",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="none",
            title="NVIDIA's kernel module is not loaded",
            share=4,
            symptoms=(
                symptoms.NO_DRIVER,
                symptoms.NO_MODULE,
            ),
            look_at=(
                Shell("lsmod | grep nvidia"),
                Shell("sudo modprobe nvidia"),
            ),
            story=(
                "The libraries and programs of the driver are there, and the module that they talk to is not in the "
                "kernel. Programs say that the driver is not loaded or that they cannot communicate with it, and so "
                "do containers, whose libraries come from the node. Most often something keeps the module away: it "
                "was not built for this kernel, its signature was refused, another driver has the GPU. Where none of "
                "that is found, loading it by hand shows what the kernel says."
            ),
            sources=("https://github.com/NVIDIA/nvidia-docker/issues/1629", f"{DRIVER_README}commonproblems.html"),
            check=_not_loaded,
            remedy=_load,
            explains=chains.NOT_INITIALISED,
        ),
        Rule(
            cause="module-built-for-other-kernel",
            layer="kernel",
            storey="driver",
            severity="error",
            disruption="none",
            title="the module was built for another kernel",
            share=4,
            symptoms=(
                symptoms.NO_DRIVER,
                symptoms.NO_MODULE,
            ),
            look_at=(
                Shell("uname -r"),
                Shell("dkms status"),
            ),
            story=(
                "A kernel module fits one kernel. After a kernel upgrade the node boots into a new one, and NVIDIA's "
                "module is there for the old one only: DKMS did not build it, the prebuilt package for the new kernel "
                "is missing, or NVIDIA's installer had been run without DKMS. modprobe finds no module, or the kernel "
                "refuses it for its version magic. Before that boot it is a warning: the driver works, and the newest "
                "installed kernel of the same flavour has no module."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-docker/issues/365",
                "https://github.com/negativo17/nvidia-driver/issues/97",
                f"{DRIVER_README}installdriver.html",
            ),
            check=_other_kernel,
            remedy=_build_for_this,
            explains=chains.NOT_ACCEPTED,
        ),
        Rule(
            cause="depmod-index-missing",
            layer="kernel",
            storey="kernel",
            severity="error",
            disruption="none",
            title="the kernel's module index does not know the module",
            symptoms=(
                symptoms.NO_MODULE,
                symptoms.NO_DRIVER,
            ),
            look_at=(Shell("ls -l /lib/modules/$(uname -r)/modules.dep"),),
            story=(
                "modprobe does not search folders: it reads indexes that depmod writes below /lib/modules. Where they "
                "are missing, empty or older than the module (a kernel copied without its whole folder, an "
                "interrupted upgrade, a module put there by hand), modprobe says that there is no module although the "
                "file is in place."
            ),
            sources=(
                "https://man7.org/linux/man-pages/man8/depmod.8.html",
                _MODPROBE,
                "https://github.com/NVIDIA/nvidia-installer/issues/22",
            ),
            check=_no_index,
            remedy=_index,
            explains=chains.NOT_ACCEPTED,
        ),
        Rule(
            cause="duplicate-module-files",
            layer="kernel",
            storey="driver",
            severity="error",
            disruption="reboot",
            title="the module stands on disk twice, in different versions",
            symptoms=(
                symptoms.MISMATCH,
                symptoms.NO_DRIVER,
            ),
            look_at=(Shell("find /lib/modules/$(uname -r) -name 'nvidia*.ko*'"),),
            story=(
                "Two ways of installing leave two files: DKMS in updates/dkms, NVIDIA's installer in "
                "kernel/drivers/video, prebuilt packages elsewhere. depmod takes the one whose folder comes first, "
                "whatever its version, so an upgrade of the other changes nothing: the old module is loaded at every "
                "boot and refuses the new libraries, also after a reboot. One of the copies has to go."
            ),
            sources=("https://man7.org/linux/man-pages/man5/depmod.d.5.html", f"{DRIVER_README}installdriver.html"),
            check=_duplicates,
            remedy=_keep_one,
            explains=(chains.MISMATCHES - {"driver-library-mismatch-mixed-installs"})
            | chains.LIBRARY_MISMATCH
            | {"module-built-for-other-kernel"},
        ),
        Rule(
            cause="initramfs-stale-module",
            layer="kernel",
            storey="kernel",
            severity="error",
            disruption="reboot",
            title="the initramfs loads an older module",
            symptoms=(
                symptoms.MISMATCH,
                symptoms.NO_DRIVER,
            ),
            look_at=(
                Shell("lsinitramfs /boot/initrd.img-$(uname -r) | grep nvidia"),
                Shell("cat /proc/driver/nvidia/version"),
            ),
            story=(
                "Where the initramfs holds NVIDIA's module, for an early console or through a distribution's hook, it "
                "is loaded from there, before the root filesystem with its newer copy is mounted. An initramfs that "
                "was not made anew after an upgrade brings the old version at every boot, and the new libraries do "
                "not fit it. A reboot alone does not help."
            ),
            sources=(
                "https://github.com/xxmyjk/xxmyjk.github.io/issues/12",
                "https://manpages.debian.org/stable/initramfs-tools-core/update-initramfs.8.en.html",
            ),
            check=_stale_initramfs,
            remedy=rebuilt_initramfs,
            explains=chains.MISMATCHES | chains.LIBRARY_MISMATCH,
        ),
    ),
)
