"""Building the kernel module: headers, compiler, tools, DKMS's own tree, and whether the driver knows the kernel.

A log lists the first failure and then everything that follows from it: a compiler other than the kernel's also fails on
every conftest function. So a cause is only searched for where no earlier one is found.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode import distros
from gpunode.diagnoses import consequences, symptoms
from gpunode.diagnoses.commands import Command, Shell, command, is_release_name, join_commands, surround_word
from gpunode.diagnoses.commands import kernel_release_word as of_kernel
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import (
    can_run_setup,
    change_driver,
    install,
    manual_step,
    reboot_node,
    run_step,
    setup_step,
)
from gpunode.diagnoses.signs import all_of, any_of, command_run, custom_sign, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot, cite_fact, find_first, lines_with
from gpunode.diagnoses.views import driver, modules, packages, system
from gpunode.diagnoses.views.system import PackageManager
from gpunode.facts.items import (
    COMMAND_NOT_FOUND_WORDS,
    PACKAGE_NOT_FOUND_AFTER_NAME,
    PACKAGE_NOT_FOUND_BEFORE_NAME,
    EvidenceItem,
)
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

_BUILD_LOG_KINDS: Final = frozenset(
    {
        *("make-log", "dkms-output", "dkms-status", "package-output", "installer-log", "unit-log", "unit-status"),
        *("journal", "text", "application", "kubernetes-log", "package-history", "modprobe", "unit-action"),
    }
)
_KINDS_WITH_BUILD_LOGS_ONLY: Final = frozenset({"dkms-output", "dkms-status", "installer-log"})
# Strings that show that a log is about building a kernel module.
_MODULE_BUILD_WORDS: Final = Pattern(
    r"(?i)dkms|akmod|make\.log|make(?:\[\d+\])?: \*\*\*|nvidia-installer|kernel module|modpost|kernel headers|CONFTEST"
    r"|Kbuild|compile modules for|kernel sources|-headers-|kernel-devel|kernel source|CC \[M\]|version check failed"
    r"|development tool|libc header|Failed CC version check"
)
_MAKE_LOG_HEADER: Final = Pattern(r"(?m)^DKMS (?:\([^)]*\) )?make\.log for (?P<module>\S+)")
_DKMS_MODULE_NAME: Final = Pattern(r"(?m)/var/lib/dkms/(?P<tree>[^/\s]+)/|^(?P<row>[\w.+-]+)/[\w.+~-]+, \d")
_KERNEL_RELEASE: Final = r"(?P<kernel>\d+\.\d+[^\s/'\",;:()]*[^\s/'\",;:().])"
_TARGET_KERNEL_PATTERNS: Final = tuple(
    Pattern(before + _KERNEL_RELEASE)
    for before in (
        *(r"kernel headers for kernel ", r"make\.log for \S+ for kernel ", r"module build on kernel: "),
        r"(?:[Mm]odule build|autoinstall|Building(?: module| initial module)?|development files) for (?:kernel )?",
        *(r"Missing ", r"-for-", r"/usr/src/(?:linux-headers-|kernels/|linux-)", r"/lib/modules/"),
        *(r"(?:linux|proxmox|pve)-headers-", r" -k "),
    )
)


_DRIVER_VERSION: Final = Pattern(r"(?:nvidia[\w-]*|NVIDIA-Linux-\w+)[/-](?P<version>\d{2,3}\.\d+(?:\.\d+)?)")


def build_logs(snapshot: Snapshot) -> tuple[EvidenceItem, ...]:
    """Return the logs of builds that still matter."""
    return tuple(item for item in snapshot.items if _is_build_log(item) and not _is_log_outdated(snapshot, item))


def build_target_kernel(snapshot: Snapshot) -> str:
    """Return the kernel that the module was built for, else the running one; empty if unknown."""
    return next(filter(None, map(target_kernel_of_log, snapshot.view(build_logs))), "") or snapshot.view(
        system.running_kernel
    )


def built_driver_version(snapshot: Snapshot) -> str:
    """Return the version of the driver that was built; empty if unknown."""
    texts = (text for item in snapshot.view(build_logs) for text in (item.written, item.text))
    return next((match["version"] for text in texts if (match := _DRIVER_VERSION.search(text))), "")


@dataclass(frozen=True, slots=True)
class _BuildLogSign:
    """A sign: a pattern in a build log."""

    pattern: Pattern

    def __call__(self, snapshot: Snapshot) -> tuple[Citation, ...]:
        found = (line for item in snapshot.view(build_logs) for line in lines_with(item, self.pattern))
        return tuple(line for line in found if not _names_other_module(snapshot, line))


def build_log_line(pattern: str) -> _BuildLogSign:
    """Return a sign for a line of a build log that matches ``pattern``."""
    return _BuildLogSign(Pattern(pattern, re.MULTILINE))


def _names_other_module(snapshot: Snapshot, line: Citation) -> bool:
    """Return whether this line or the next names another vendor's module; DKMS continues after such a failure."""
    item = next(item for item in snapshot.view(build_logs) if item.key == line.key and item.written == line.source)
    at = (line.line_number or 1) - 1
    named = re.search(r"/dkms/(?P<tree>[^/\s]+)/|Error! (?P<row>[\w.+-]+)/\S+:", "\n".join(item.lines[at : at + 2]))
    return named is not None and not (named["tree"] or named["row"]).startswith("nvidia")


def _is_build_log(item: EvidenceItem) -> bool:
    """Return whether the item is about building a kernel module, and not only another vendor's."""
    if item.kind not in _BUILD_LOG_KINDS or item.is_package_record or not item.was_answered:
        return False
    if item.kind == "make-log":
        header = _MAKE_LOG_HEADER.search(item.text[:2000])
        return header is None or header["module"].startswith("nvidia")
    if item.kind not in _KINDS_WITH_BUILD_LOGS_ONLY and find_first(item, _MODULE_BUILD_WORDS) is None:
        return False
    # DKMS names no module if headers are missing or its tree is damaged.
    return (
        "nvidia" in item.written.lower()
        or "nvidia" in item.lowered
        or not _DKMS_MODULE_NAME.search(item.text[:200_000])
    )


def _is_log_outdated(snapshot: Snapshot, item: EvidenceItem) -> bool:
    """Return whether the log is outdated: its kernel is gone, or the driver works on it."""
    running, wanted = snapshot.view(system.running_kernel), target_kernel_of_log(item)
    kernels = snapshot.facts.kernels
    if wanted and isinstance(kernels, Known) and wanted not in {*kernels.value.installed, running}:
        return True
    return driver.works(snapshot) and bool(running) and (wanted or running) == running


def target_kernel_of_log(item: EvidenceItem) -> str:
    """Return the kernel that a build was for; empty if the log does not name it."""
    for pattern in _TARGET_KERNEL_PATTERNS:
        if match := pattern.search(item.text) or pattern.search(item.written):
            return match["kernel"].partition(".failed")[0].removesuffix("-common")
    return ""


# Tools that a module build needs; a compiler's name may include its target and its version.
_BUILD_TOOL_NAME: Final = (
    r"(?:(?:x86_64|aarch64)-linux-gnu-)?(?:gcc|g\+\+|cc|c\+\+|clang|gmake|make|ld(?:\.bfd|\.lld)?|as|ar|objcopy|strip|"
    r"flex|bison|bc|perl|python3|cpp|pahole)(?:-\d+(?:\.\d+)?)?"
)
# Shells in other languages print the same message translated.
_TOOL_NOT_FOUND: Final = rf"(?:{COMMAND_NOT_FOUND_WORDS}|not found|No such file or directory)"
_COMPILER_ERROR_WORD: Final = (
    r"(?:error|erreur|schwerwiegender Fehler|Fehler|致命错误|错误|錯誤|エラー|ошибка|errore|erro|fout|błąd)"
)
# The kernel's own build writes these headers, which every package of headers contains.
_GENERATED_HEADER_NOT_FOUND: Final = (
    rf"{_COMPILER_ERROR_WORD}\s?[:：]\s?(?:include/)?generated/"
    r"(?:autoconf|utsrelease|bounds|asm-offsets|timeconst|compile)\.h\s?[:：]"
)

_KERNEL_HEADERS_MISSING: Final = unless(
    build_log_line(
        r"[Kk]ernel headers (?:for (?:kernel )?\S+ )?(?:cannot be|(?:are|is|were|was) not) (?:found|installed)"
        r"|Missing \S+ kernel headers|(?:build|autoinstall) for [^\n]{0,60} was skipped since"
        r"|development files for kernel \S+ or (?:the appropriate|source tree)|needed to compile modules for"
        r"|(?:[Cc]ould not|[Uu]nable to) (?:find|determine) the (?:location of the )?kernel (?:source|header)"
        r"|(?:[Cc]ould not|[Uu]nable to) find kernel (?:headers|sources?)\b|Kernel sources not found"
        r"|kernel (?:source|header) (?:path|file|tree) '[^'\n]*' (?:is invalid|does not exist)"
        r"|/lib/modules/[^\s/]+/(?:build|source)(?:/\S*)?['’]?: No such file or directory|has no devel package"
        r"|Kernel configuration is invalid|scripts/(?:mod/modpost|basic/fixdep)['’]?: (?:not found|No such file)"
        rf"|{PACKAGE_NOT_FOUND_BEFORE_NAME} ['‘\"]?(?:linux|proxmox|pve)-headers-"
        rf"|(?:linux|proxmox|pve)-headers-\S+ {PACKAGE_NOT_FOUND_AFTER_NAME}|Could not resolve Linux kernel version"
        r"|Unable to find a match: kernel-(?:devel|headers)"
        rf"|{_GENERATED_HEADER_NOT_FOUND}"
    ),
    predicate(lambda snapshot: has_headers(snapshot, build_target_kernel(snapshot)), "the headers are there"),
)
_DKMS_TREE_BROKEN: Final = build_log_line(
    r"Could not locate dkms\.conf file|nvidia\S*/\S+ is broken!|File:\s+\S*nvidia\S*dkms\.conf\S* does not exist"
    r"|Missing the module source directory or the symbolic link pointing to it|Could not find module source directory"
    r"|DKMS tree already contains: ?nvidia|module/version combo: ?nvidia\S* is not located in the DKMS tree"
    r"|^[ \t]*nvidia[\w.-]*(?:/|, )\s*[^,:\s]+(?:, [^:\n]+)?: broken"
)
# A disk that was full once but has room now blocks no build.
_NO_SPACE: Final = unless(
    build_log_line(r"No space left on device|will not function properly without some free space"),
    predicate(system.has_disk_space, "there is room on the disk"),
)
_NO_TOOL: Final = build_log_line(
    rf"(?:^|[\s:/'\"‘`]){_BUILD_TOOL_NAME}['’]?: {_TOOL_NOT_FOUND}"
    rf"|Unable to find the development tool [`'‘]{_BUILD_TOOL_NAME}"
    r"|cannot execute ['‘`](?:cc1plus|cc1|as|ld)['’]|please install (?:libelf|libssl|openssl)-dev"
    r"|fatal error: (?:libelf\.h|gelf\.h|openssl/\S+\.h|stdio\.h): No such file"
    r"|C compiler cannot create executables|no acceptable C compiler found|have libc header files installed"
)
_COMPILER_MISMATCH: Final = build_log_line(
    r"(?<!Warning: )Compiler version check failed|CC version check failed|Failed CC version check"
    r"|cc_version_check failed|gcc-version-check failed|incompatible gcc/plugin versions"
    r"|error: unrecogni[sz]ed command[- ]line option|error: Compiler lacks |error: unknown argument: '-"
    r"|nicht erkannte Kommandozeilenoption|option de la ligne de commande .{0,40}non reconnue|无法识别的命令行选项"
    r"|plugin needed to handle lto object|bytecode stream in file .{0,120}generated with LTO version"
)
# A header that is not there: the kernel dropped it, or its headers are incomplete.
_HEADER_NOT_FOUND: Final = rf"{_COMPILER_ERROR_WORD}\s?[:：]\s?[\w./-]+\.h\s?[:：]"
_HEADER_MISSING: Final = build_log_line(rf"(?<!\.mod)\.(?:c|h|cpp):\d+(?::\d+)?: (?:fatal )?{_HEADER_NOT_FOUND}")
# Kbuild itself writes .mod.c, so its scripts and the kernel's headers are of different builds.
_KBUILD_DIFFERS_FROM_HEADERS: Final = build_log_line(
    rf"\.mod\.c:\d+(?::\d+)?: (?:fatal )?{_COMPILER_ERROR_WORD}\s?[:：]"
)
_KERNEL_API_MISMATCH: Final = build_log_line(
    r"GPL-incompatible module \S+ uses GPL-only symbol|modpost: [\"']?\w+[\"']? \[[^\]\n]+\] undefined!"
    rf"|(?<!\.mod)\.(?:c|h|cpp):\d+(?::\d+)?: (?:fatal )?(?!{_HEADER_NOT_FOUND}){_COMPILER_ERROR_WORD}\s?[:：]"
    r"|BUILD_EXCLUSIVE directive which does not match this kernel|ld\.lld: error: undefined symbol"
    r"|kernel you are installing for is a (?:PREEMPT_RT|Xen|Dom0)"
    r"|error: .{0,200}(?:too (?:many|few) arguments to function|implicit declaration of|has no member named)"
)
_NON_API_BUILD_FAILURES: Final = (_KERNEL_HEADERS_MISSING, _DKMS_TREE_BROKEN, _NO_SPACE, _NO_TOOL, _COMPILER_MISMATCH)
_ANY_BUILD_FAILURE: Final = any_of(
    *_NON_API_BUILD_FAILURES, _KERNEL_API_MISMATCH, _HEADER_MISSING, _KBUILD_DIFFERS_FROM_HEADERS
)


def _missing_headers(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the evidence of missing headers for the running kernel if its module is not built."""
    running, builds = snapshot.view(system.running_kernel), snapshot.view(modules.driver_dkms_rows)
    is_source = builds or packages.matching_packages(snapshot, *_DRIVER_SOURCE_PACKAGES)
    is_due = running and is_source and modules.is_built_for(snapshot, running) is False
    if is_due and has_headers(snapshot, running) is False:
        yield cite_fact("/lib/modules/*/build", f"no headers of {running}", snapshot.facts.headers.probe)
        yield from (row.citation for row in builds)


_HEADERS_NOT_LISTED: Final = Pattern(
    r"cannot access ['‘]?/usr/src/(?:linux-headers-|kernels/)(?P<release>\d[\w.+~-]*)['’]?: No such file"
)


def _unlisted_headers(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the listing that shows no headers, unless it looked for another kernel's or others are there."""
    running = snapshot.view(system.running_kernel)
    for line in snapshot.matching_lines(_HEADERS_NOT_LISTED, "listing", "text"):
        match = _HEADERS_NOT_LISTED.search(line.line)
        release = match["release"] if match else ""
        if release and running in {"", release} and not has_headers(snapshot, release):
            yield line


def _say_what_is_wrong_with_headers(snapshot: Snapshot) -> str:
    """Return that the headers do not fit kbuild; empty if they are missing."""
    fits = not snapshot.view(_KBUILD_DIFFERS_FROM_HEADERS)
    return "" if fits else "the kernel's headers and kbuild's scripts are not of the same build, so no module is built"


_DRIVER_SOURCE_PACKAGES: Final = ("nvidia*-dkms*", "nvidia-kernel-source*", "dkms-*", "akmod-nvidia*")
_SOURCE_LINK: Final = Pattern(
    r"(?m)^(?P<entry>/var/lib/dkms/nvidia[\w-]*/\d[^\s/]*)/source -> (?P<target>\S+)|\ssource -> (?P<bare>/usr/src/\S+)"
)
_DRIVER_SOURCE_FOLDER: Final = Pattern(r"(?m)^/usr/src/nvidia[^\s/]*")
_DKMS_ENTRY: Final = Pattern(r"(?m)^/var/lib/dkms/nvidia(?:-[a-z]+)*/\d[\w.+~-]*$")


def _missing_sources(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the entries of DKMS's tree whose source is missing from a listing of /usr/src."""
    text = "\n".join(item.text for item in snapshot.items_of("listing"))
    there = set(_DRIVER_SOURCE_FOLDER.findall(text))
    if there or any(item.written == "/usr/src/*" for item in snapshot.items_of("listing")):
        links = {
            match["entry"] or match["bare"]: match["target"] or match["bare"] for match in _SOURCE_LINK.finditer(text)
        }
        for entry in dict.fromkeys((*_DKMS_ENTRY.findall(text), *links)):
            if links.get(entry, "").rstrip("/") not in there:
                yield cite_fact(entry, f"its source is not there; /usr/src has {', '.join(sorted(there)) or 'none'}")


_DKMS_SOURCE_MISSING: Final = custom_sign(_missing_sources)
_NOT_BUILT_FOR_RUNNING_KERNEL: Final = predicate(
    lambda snapshot: not modules.is_built_for(snapshot, snapshot.view(system.running_kernel)), "no module was built"
)


_KERNEL_HEADERS_PATH: Final = Pattern(
    r"/lib/modules/(?P<kernel>[^/\s]+)/build/?$|/usr/src/(?:linux-headers-|kernels/)(?P<tree>[^/\s]+)/?$"
)


def has_headers(snapshot: Snapshot, kernel: str) -> bool | None:
    """Return whether the headers of ``kernel`` are installed; None if unknown."""
    known = snapshot.facts.headers
    if isinstance(known, Known):
        return kernel in known.value
    for item in snapshot.items_of("listing", "file", "which"):
        match = _KERNEL_HEADERS_PATH.search(item.subject)
        if match and (match["kernel"] or match["tree"]) in {kernel, "$(uname -r)"}:
            if item.outcome == "absent" or "broken symbolic link" in item.text:
                return False
            # "ls -d" prints the folder's own name if it exists.
            if "Makefile" in item.text or item.subject in item.lines:
                return True
    rpm = snapshot.view(packages.listed_packages).get("kernel-devel")
    if rpm is not None:
        return rpm.version == kernel.removesuffix(".x86_64").removesuffix(".aarch64")
    return packages.is_installed(snapshot, f"linux-headers-{kernel}")


def headers_packages(snapshot: Snapshot, kernel: str) -> tuple[str, ...]:
    """Return the packages with the headers of ``kernel``, or of the running one if unknown."""
    manager = snapshot.view(system.package_manager)
    if manager == "apt":
        family = distros.DEBIAN if kernel.endswith("-pve") else distros.UBUNTU
        return (str(family.headers_package(kernel)) if is_release_name(kernel) else of_kernel("", "linux-headers-"),)
    if manager == "dnf":
        release, _, variant = kernel.partition("+")
        stem = "-".join(filter(None, ("kernel-uek" if "uek" in kernel else "kernel", variant, "devel")))
        return (of_kernel(release, f"{stem}-"),)
    flavour = kernel.rpartition("-")[2] if is_release_name(kernel) else ""
    if manager == "zypper":
        return (f"kernel-{flavour or 'default'}-devel",)
    return (f"linux-{flavour}-headers" if flavour in {"lts", "zen", "hardened", "rt"} else "linux-headers",)


def build_module(snapshot: Snapshot, kernel: str, prefix: tuple[str, ...] = ()) -> Fix:
    """Return the step that builds the module for ``kernel``, and loads it if that kernel is running."""
    name = of_kernel(kernel)
    akmods = bool(packages.matching_packages(snapshot, "akmod-nvidia*")) or any(
        "akmod" in item.text for item in snapshot.items
    )
    by_akmods, by_dkms = ("akmods", "--force", "--kernels", name), (*prefix, "dkms", "autoinstall", "-k", name)
    build_it = command("sudo", *(by_akmods if akmods else by_dkms))
    runs = not kernel or kernel == (snapshot.view(system.running_kernel) or kernel)
    return run_step(
        "rebuild", f"build the module for {kernel or 'the running kernel'}", build_it, *_LOAD_MODULE_COMMANDS[:runs]
    )


_LOAD_MODULE_COMMANDS: Final = (Shell("sudo modprobe nvidia"),)


def rebuild_commands(snapshot: Snapshot) -> Iterator[Command]:
    """Return the commands that rebuild an installed module, which autoinstall would skip."""
    kernel = snapshot.view(system.running_kernel)
    if packages.matching_packages(snapshot, "akmod-nvidia*"):
        yield command("sudo", "akmods", "--force", "--rebuild", "--kernels", of_kernel(kernel))
        return
    for verb in ("build", "install"):
        yield command("sudo", "dkms", verb, "--force", _FIRST_DKMS_MODULE_NAME, "-k", of_kernel(kernel))


# "nvidia/580.95.05, 6.1.0-40-amd64, x86_64: installed", or with a comma before the version; nvidia-fs is no driver.
_FIRST_DKMS_MODULE_NAME: Final = Shell(
    "\"$(dkms status | sed -nE 's;^(nvidia(-current|-open|-srv)*)[/, ]+([^,: ]+).*;\\1/\\3;p' | head -n 1)\""
)


# 6.1.0-13-amd64, 6.8.0-90-generic: the archive has a metapackage for the newest kernel of each flavour.
_KERNEL_FLAVOR: Final = Pattern(r"^\d[\w.+~]*-[\d.]+-(?P<flavour>[a-z][a-z0-9-]{1,30})$")
_HEADERS_NOT_IN_REPOSITORY: Final = message_line(
    rf"{PACKAGE_NOT_FOUND_BEFORE_NAME} ['‘\"]?linux-headers-\d|linux-headers-\d\S* {PACKAGE_NOT_FOUND_AFTER_NAME}"
)


def _install_headers(snapshot: Snapshot) -> Iterable[Fix]:
    kernel = build_target_kernel(snapshot)
    if snapshot.view(_HEADERS_NOT_IN_REPOSITORY):
        flavour = match["flavour"] if (match := _KERNEL_FLAVOR.search(kernel)) else ""
        names = (f"linux-image-{flavour}", f"linux-headers-{flavour}") if flavour else ()
        yield install(
            snapshot, f"the archive no longer has the headers of {kernel}: install its newest kernel with them", *names
        )
        yield reboot_node("reboot into the new kernel")
        return
    yield install(
        snapshot, f"install the headers of {kernel or 'the running kernel'}", *headers_packages(snapshot, kernel)
    )
    yield build_module(snapshot, kernel)
    if can_run_setup(snapshot):
        text = "install headers together with later kernels: gpunode finds the right meta package"
        yield setup_step(snapshot, "install", text, "headers", when="no meta package for headers is installed yet")
    text, when = "upgrade the kernel together with its headers, then reboot", "the archive no longer has those headers"
    yield manual_step("install", text, when)


# /proc/version names the compiler of the kernel.
_KERNEL_GCC_NAME: Final = Shell("gcc-$(sed -n 's/.*gcc[^0-9]*\\([0-9]*\\)[. ].*/\\1/p' /proc/version)")


def _install_compiler(snapshot: Snapshot) -> Iterable[Fix]:
    kernel = build_target_kernel(snapshot)
    if snapshot.view(system.package_manager) == "apt":
        yield install(snapshot, "install the compiler that the kernel was built with", _KERNEL_GCC_NAME)
        yield build_module(
            snapshot, kernel, ("env", surround_word("CC=/usr/bin/", _KERNEL_GCC_NAME), "IGNORE_CC_MISMATCH=1")
        )
    else:
        text = "install the compiler that the kernel was built with, or a kernel that today's compiler built"
        yield install(snapshot, text, "gcc")
        yield build_module(snapshot, kernel)
    text = "install clang, llvm and lld, and build with LLVM=1"
    yield manual_step("rebuild", text, "/proc/version names clang")


# Everything a build needs.
_TOOLCHAIN_PACKAGES: Final[dict[PackageManager, tuple[str, ...]]] = {
    "apt": ("build-essential", "libelf-dev"),
    "dnf": ("gcc", "gcc-c++", "make", "elfutils-libelf-devel"),
    "zypper": ("gcc", "gcc-c++", "make", "libelf-devel"),
    "pacman": ("base-devel",),
}


def _install_tools(snapshot: Snapshot) -> Iterable[Fix]:
    manager = snapshot.view(system.package_manager)
    if manager == "apt" and snapshot.view(symptoms.PACKAGES_BROKEN):
        # Where a dependency is gone, apt-get installs no other package before it is back.
        text = "install the missing dependencies"
        yield run_step("install", text, Shell("sudo apt-get --fix-broken install"))
    yield install(snapshot, "install the build tools", *_TOOLCHAIN_PACKAGES[manager])
    yield build_module(snapshot, build_target_kernel(snapshot))


# The last releases of branch 470 and its elders know no later kernel; only distributions patch them.
_LAST_LEGACY_BRANCH: Final = 470
_FIRST_KERNEL_AFTER_LEGACY: Final = (6, 10)
_BUILD_FAILED: Final = build_log_line(r"[Bb]ad (?:return|exit) status")


def _legacy_driver_failures(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the failed builds of a driver that is older than the kernel; empty if it is not."""
    branch = built_driver_version(snapshot).partition(".")[0]
    kernel = tuple(map(int, re.findall(r"\d{1,9}", build_target_kernel(snapshot))[:2]))
    is_older = branch.isdecimal() and int(branch) <= _LAST_LEGACY_BRANCH and kernel >= _FIRST_KERNEL_AFTER_LEGACY
    return snapshot.view(_BUILD_FAILED) if is_older else ()


def _change_to_buildable_driver(snapshot: Snapshot) -> Iterable[Fix]:
    kernel = build_target_kernel(snapshot) or "this kernel"
    text = f"install a release of the driver that supports {kernel} and still drives this GPU"
    yield from change_driver(snapshot, text, installed_version=built_driver_version(snapshot))
    others = sorted({module.kernel for module in snapshot.view(modules.modules_on_disk)} - {kernel})
    which = f"boot {others[-1]}, for which a module is built" if others else "boot the kernel that was used before"
    yield reboot_node(f"{which}, until there is one", when="there is no such release")


_DKMS_LEFTOVER: Final = Pattern(
    r"(?m)(?:/var/lib/dkms/|Error! |/usr/src/|already contains: ?|^)(?P<module>nvidia(?:-[a-z]+)*)(?:[/-]|, )"
    r"(?P<version>\d[\w.+~]*\w)"
)


def _clean_dkms_tree(snapshot: Snapshot) -> Iterable[Fix]:
    cited = (*snapshot.view(_DKMS_TREE_BROKEN), *snapshot.view(_DKMS_SOURCE_MISSING))
    around = (f"{line.text}\n{snapshot.text_of(line)}" for line in cited)
    match = next(filter(None, map(_DKMS_LEFTOVER.search, around)), None)
    if match:
        place = f"/var/lib/dkms/{match['module']}/{match['version']}"
        # The folder also holds other modules' links and saved originals, and the entry may have been repaired since.
        sound = command("sudo", "test", "-e", f"{place}/source/dkms.conf")
        text = f"remove the rest of {match['module']} {match['version']} from DKMS's tree, if its source is gone"
        yield run_step("remove", text, join_commands(sound, Shell("||"), command("sudo", "rm", "-r", place)))
        # Without the entry, autoinstall knows nothing of a source that is still there.
        source = f"/usr/src/{match['module']}-{match['version']}"
        add = command("sudo", "dkms", "add", "-m", match["module"], "-v", match["version"])
        is_there = any(source in _DRIVER_SOURCE_FOLDER.findall(item.text) for item in snapshot.items_of("listing"))
        yield run_step(
            "rebuild",
            "add the source to DKMS again",
            join_commands(sound, Shell("||"), add),
            when="" if is_there else f"{source}/dkms.conf exists",
        )
    else:
        find = Shell("find /var/lib/dkms -mindepth 3 -maxdepth 3 -name source -xtype l")
        yield run_step("inspect", "find the version in DKMS's tree whose source link is broken", find)
        yield manual_step("remove", "remove the folder of exactly that version")
    yield build_module(snapshot, snapshot.view(system.running_kernel))


def _free_space(snapshot: Snapshot) -> Iterable[Fix]:
    text = "free some space: delete downloaded packages, then check what fills the disk (inodes too)"
    clean = _CLEAN_PACKAGE_CACHE_COMMANDS[snapshot.view(system.package_manager)]
    see = (Shell("df -h /boot /usr /var /tmp"), Shell("df -i /usr /var /tmp"), Shell("sudo du -xhd1 /boot /usr /var"))
    yield run_step("remove", text, clean, *see)
    yield build_module(snapshot, build_target_kernel(snapshot))


_CLEAN_PACKAGE_CACHE_COMMANDS: Final[dict[PackageManager, Command]] = {
    "apt": Shell("sudo apt-get clean"),
    "dnf": Shell("sudo dnf clean packages"),
    "zypper": Shell("sudo zypper clean"),
    "pacman": Shell("sudo pacman -Sc"),
}

# akmods uses this name for the log of a failed build.
_AKMODS_FAILED_LOG: Final = message_line(r"(?<![\d.])\d{3}\.\d\S*-for-\d+\.\S*\.failed\.log\b", "listing", "text")
_BUILD_FAILURE_SYMPTOMS: Final = (
    *(_ANY_BUILD_FAILURE, symptoms.BUILD_FAILED, _AKMODS_FAILED_LOG),
    symptoms.NO_DRIVER,
    symptoms.NO_MODULE,
)

_rule = partial(
    Rule,
    layer="driver",
    explains=consequences.NOT_BUILT,
    latent=symptoms.DRIVER_WORKS,
    symptoms=_BUILD_FAILURE_SYMPTOMS,
)

RULES: Final = (
    _rule(
        cause="kernel-headers-missing",
        layer="kernel",
        share=4,
        decisive=any_of(_KERNEL_HEADERS_MISSING, unless(custom_sign(_missing_headers), symptoms.MODULE_LOADED)),
        context=unless(any_of(command_run(r"\buname\b"), symptoms.KERNEL_UPGRADED), symptoms.DRIVER_WORKS),
        look_at=(Shell("ls -d /lib/modules/$(uname -r)/build"),),
        remedy=_install_headers,
        typical=any_of(
            _KBUILD_DIFFERS_FROM_HEADERS,
            unless(custom_sign(_unlisted_headers), symptoms.DRIVER_WORKS, symptoms.MODULE_LOADED),
        ),
        summary=_say_what_is_wrong_with_headers,
    ),
    _rule(
        cause="dkms-build-compiler-mismatch",
        share=2,
        decisive=unless(_COMPILER_MISMATCH, _KERNEL_HEADERS_MISSING, _NO_SPACE, _NO_TOOL),
        typical=unless(
            build_log_line(r"compiler differs from the one used to build the kernel|\bexport IGNORE_CC_MISMATCH="),
            *_NON_API_BUILD_FAILURES[:-1],
            _KERNEL_API_MISMATCH,
        ),
        look_at=(Shell("cat /proc/version"), Shell("gcc --version")),
        remedy=_install_compiler,
    ),
    _rule(
        cause="dkms-build-kernel-api",
        share=3,
        decisive=unless(_KERNEL_API_MISMATCH, *_NON_API_BUILD_FAILURES, _KBUILD_DIFFERS_FROM_HEADERS),
        typical=unless(
            any_of(_HEADER_MISSING, custom_sign(_legacy_driver_failures)),
            *_NON_API_BUILD_FAILURES,
            _KBUILD_DIFFERS_FROM_HEADERS,
        ),
        context=_BUILD_FAILED,
        look_at=(Shell("grep -m5 error: /var/lib/dkms/nvidia/*/build/make.log"),),
        remedy=_change_to_buildable_driver,
    ),
    _rule(
        cause="dkms-build-toolchain-missing",
        decisive=unless(_NO_TOOL, _KERNEL_HEADERS_MISSING, _NO_SPACE),
        look_at=(Shell("tail -n 30 /var/lib/dkms/nvidia/*/build/make.log"),),
        remedy=_install_tools,
    ),
    _rule(
        cause="dkms-tree-corrupt",
        decisive=_DKMS_TREE_BROKEN,
        typical=unless(all_of(_DKMS_SOURCE_MISSING, _NOT_BUILT_FOR_RUNNING_KERNEL), symptoms.MODULE_LOADED),
        context=command_run(r"/var/lib/dkms\b"),
        look_at=(Shell("dkms status"), Shell("ls /var/lib/dkms/nvidia*")),
        remedy=_clean_dkms_tree,
    ),
    _rule(
        cause="dkms-build-no-space",
        decisive=all_of(_NO_SPACE, predicate(system.is_disk_full, "a disk is full")),
        typical=_NO_SPACE,
        look_at=(Shell("df -h / /boot /tmp"),),
        remedy=_free_space,
    ),
)
