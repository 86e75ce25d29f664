"""Building the kernel module: headers, compiler, tools, DKMS's own tree, and whether the driver knows the kernel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode import distros
from gpunode.diagnoses import chains, symptoms
from gpunode.diagnoses.addresses import DRIVER_GUIDE, DRIVER_README, OPEN_MODULES
from gpunode.diagnoses.commands import Command, Shell, beside, command, is_name, is_package, is_release, joined
from gpunode.diagnoses.commands import kernel as of_kernel
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Severity, Verdict, only
from gpunode.diagnoses.remedies import by_hand, install, newer_driver, reboot, run, setup_step, takes_gpunode
from gpunode.diagnoses.snapshot import Snapshot, cite, stated
from gpunode.diagnoses.views import build, driver, modules, packages, pci, system
from gpunode.diagnoses.views.build import Failure
from gpunode.diagnoses.views.system import PackageManager
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

_CAUSES: Final[dict[build.Reason, str]] = {
    "headers": "kernel-headers-missing",
    "tree": "dkms-tree-corrupt",
    "space": "dkms-build-no-space",
    "toolchain": "dkms-build-toolchain-missing",
    "compiler": "dkms-build-compiler-mismatch",
    "compiler-differs": "dkms-build-compiler-mismatch",
    "api": "dkms-build-kernel-api",
}


def _decide(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Why the module could not be built, by the log that tells most; else by headers that are known to be absent."""
    failure = snapshot.view(_failure)
    if failure is None:
        yield from _without_headers(snapshot)
        yield from _without_source(snapshot)
    elif failure.reason == "unsaid":
        if (proofs := tuple(_without_headers(snapshot))) or driver.works(snapshot):
            yield from proofs
        else:
            yield from _unsaid(failure)
    elif failure.reason != "compiler-differs" or build.has_failed(snapshot):
        yield _CAUSES[failure.reason], _proof(snapshot, failure)


def _failure(snapshot: Snapshot) -> Failure | None:
    """The failed build that tells most, of those that still matter."""
    return build.decisive(one for one in snapshot.view(build.failures) if not _is_past(snapshot, one))


def _is_past(snapshot: Snapshot, failure: Failure) -> bool:
    """Whether the log tells of another day: what it lacked is there, what it was to build is, or its kernel is gone."""
    running = snapshot.view(system.running_kernel)
    kernel = failure.kernel or running
    kernels = snapshot.facts.kernels
    if failure.kernel and isinstance(kernels, Known) and failure.kernel not in {*kernels.value.installed, running}:
        return True
    if failure.reason == "headers" and headers_present(snapshot, kernel):
        return True
    if driver.works(snapshot) and bool(kernel) and kernel == running:
        return True
    built = (one for one in snapshot.view(modules.on_disk) if one.kernel == failure.kernel and one.version)
    return bool(failure.release) and any(one.version == failure.release for one in built)


def _proof(snapshot: Snapshot, failure: Failure) -> Proof:
    # A disk that was full then may have room by now; nobody looked.
    weak = failure.reason == "compiler-differs" or (failure.reason == "space" and not system.is_full(snapshot))
    name = _kernel(snapshot)
    said = _SUMMARIES[failure.reason].format(
        kernel=f" for kernel {name}" if name else "",
        fits=f"kernel {name}" if name else "the kernel",
        tool=failure.tool or "a tool",
        release=f"driver {failure.release}" if failure.release else "the installed driver",
    )
    return Proof(
        said,
        failure.citations,
        confidence="likely" if weak else "certain",
        severity=_severity(snapshot),
    )


def _severity(snapshot: Snapshot) -> Severity | None:
    """A driver that works all the same is without a module only for another kernel: trouble comes with the reboot."""
    return "warning" if driver.works(snapshot) else None


_SUMMARIES: Final[dict[build.Reason, str]] = {
    "headers": "the kernel headers{kernel} are not installed, so the module was not built for it",
    "tree": "DKMS's own tree is damaged, so it stops before it builds anything",
    "space": "the disk was full while the module was built{kernel}",
    "toolchain": "{tool} is not installed, so the module could not be built{kernel}",
    "compiler": "the compiler is not the one that the kernel was built with, so the module was not built{kernel}",
    "compiler-differs": "the compiler differs from the one that built the kernel, and the build{kernel} failed",
    "api": "the source of {release} does not fit {fits}: it uses what that kernel changed or keeps back",
}


def _unsaid(failure: Failure) -> Iterator[tuple[str, Verdict]]:
    release = failure.release if is_release(failure.release) else "*"
    log = command("find", "/var/lib/dkms", "-path", f"*/nvidia*/{release}/build/make.log", "-exec", "cat", "{}", "+")
    question = f"Why could the module not be built{' for ' + failure.kernel if failure.kernel else ''}?"
    yield (
        "dkms-build-kernel-api",
        Doubt(question, (log,), failure.citations, tuple(dict.fromkeys(_CAUSES.values()))),
    )


def _without_headers(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Headers that are known not to be there, of the running kernel, for which DKMS was to build and has not."""
    running = snapshot.view(system.running_kernel)
    if not running or not _is_built_here(snapshot) or headers_present(snapshot, running) is not False:
        return
    if modules.built_for(snapshot, running) is not False or modules.loaded(snapshot, "nvidia"):
        return
    summary = f"the kernel headers for the running kernel {running} are not installed, so DKMS did not build for it"
    yield "kernel-headers-missing", Proof(summary, tuple(_headers_cited(snapshot, running)))


def _without_source(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """DKMS's tree with an entry of the driver whose source is gone, on a node whose module was not built."""
    running, sources = snapshot.view(system.running_kernel), _listed(snapshot, "/usr/src/*")
    if not sources or not running or modules.loaded(snapshot, "nvidia") or modules.built_for(snapshot, running):
        return
    links = dict(line.split(" -> ") for line in _listed(snapshot, "/var/lib/dkms/*/*/source") if " -> " in line)
    for entry in _listed(snapshot, "/var/lib/dkms/*/*"):
        if not _ENTRY.fullmatch(entry):
            continue
        target = links.get(f"{entry}/source", "").rstrip("/")
        if target not in sources:
            what = "lost the link to its source" if _source_of(entry) in sources else "is of a driver without source"
            summary = f"{entry} {what}, so DKMS stops at it"
            place = stated(f"{entry}/source", f"it leads to {target or 'nothing'}")
            yield "dkms-tree-corrupt", Proof(summary, (place,), "likely")


def _source_of(entry: str) -> str:
    """Where the source of an entry of DKMS's tree lies."""
    module, version = entry.split("/")[-2:]
    return f"/usr/src/{module}-{version}"


_ENTRY: Final = Pattern(r"/var/lib/dkms/nvidia(?:-[a-z]+)*/\d[\w.+~-]*")


def _listed(snapshot: Snapshot, pattern: str) -> frozenset[str]:
    """What a probe's listing of ``pattern`` shows, line by line."""
    return frozenset(line for item in snapshot.of("listing") if item.written == pattern for line in item.lines)


def _is_built_here(snapshot: Snapshot) -> bool:
    """Whether the driver came as source: by DKMS or akmods, not built before."""
    return bool(snapshot.view(modules.driver_builds)) or bool(
        packages.matching(snapshot, "nvidia*-dkms*", "nvidia-kernel-source*", "dkms-nvidia*", "akmod-nvidia*")
    )


def _headers_cited(snapshot: Snapshot, kernel: str) -> Iterator[Citation]:
    known = snapshot.facts.headers
    if isinstance(known, Known):
        have = ", ".join(sorted(known.value)) or "none"
        yield stated("/lib/modules/*/build", f"kernels with headers: {have}", known.probe)
    for item in snapshot.of("listing", "file", "packages"):
        if "headers" in item.written or "/build" in item.subject:
            yield cite(item)
    yield from (row.citation for row in snapshot.view(modules.driver_builds))
    yield from (cite(item, 1) for item in snapshot.of("uname") if kernel in item.text)


_BUILD: Final = Pattern(r"/lib/modules/(?:(?P<kernel>\d[^/\s]*)|\$\(uname -r\)|`uname -r`)/build/?$")
_TREE: Final = Pattern(r"/usr/src/(?:linux-headers-|kernels/)(?:(?P<kernel>\d[^/\s]*)|\$\(uname -r\)|`uname -r`)/?$")


def headers_present(snapshot: Snapshot, kernel: str) -> bool | None:
    """Whether the headers of ``kernel`` are installed; None where nothing tells."""
    known = snapshot.facts.headers
    if isinstance(known, Known):
        return kernel in known.value
    for item in snapshot.of("listing", "file", "which"):
        match = _BUILD.search(item.subject) or _TREE.search(item.subject)
        if match and (match["kernel"] or kernel) == kernel:
            if item.outcome == "absent" or "broken symbolic link" in item.text:
                return False
            # "ls -d" prints the folder's own name where it is there.
            if "Makefile" in item.text or (item.outcome == "ok" and item.subject in item.lines):
                return True
    if (listed := _among_sources(snapshot, kernel)) is not None:
        return listed
    bare = kernel.removesuffix(".x86_64").removesuffix(".aarch64")
    rpm = snapshot.view(packages.packages).get("kernel-devel")
    if rpm is not None:
        return rpm.version == bare
    return packages.installed(snapshot, f"linux-headers-{kernel}")


_SOURCES: Final = Pattern(r"/usr/src/?")
_HEADERS_OF: Final = Pattern(r"(?<![\w.-])linux-headers-(?P<kernel>\d[\w.+~-]*)")


def _among_sources(snapshot: Snapshot, kernel: str) -> bool | None:
    """Whether a whole listing of /usr/src has Debian's headers of ``kernel`` among those of others; else None."""
    for item in snapshot.of("listing"):
        is_whole = item.where == "host" and item.outcome == "ok" and not (item.source.is_part or item.source.only)
        if is_whole and _SOURCES.fullmatch(item.subject):
            named = {match["kernel"] for match in _HEADERS_OF.finditer(item.text)}
            return kernel in named if named else None
    return None


def headers_packages(snapshot: Snapshot, kernel: str) -> tuple[str, ...]:
    """The packages that bring the headers of ``kernel``; the shell finds its name where it is not known."""
    manager = snapshot.view(system.package_manager)
    if manager == "apt":
        family = distros.DEBIAN if kernel.endswith("-pve") else distros.UBUNTU
        return (str(family.headers(kernel)) if is_release(kernel) else of_kernel("", "linux-headers-"),)
    if manager == "dnf":
        release, _, variant = kernel.partition("+")
        # ELRepo has two kernels under one kind of release, and another variant has a package of another name.
        if ".elrepo" in kernel or variant not in _VARIANTS:
            return ()
        stem = "kernel-uek" if "uek" in kernel else "kernel-rt" if _OLD_RT.search(kernel) else "kernel"
        return (of_kernel(release, "-".join(filter(None, (stem, variant, "devel"))) + "-"),)
    if manager == "zypper":
        flavour = kernel.rpartition("-")[2] if is_release(kernel) else ""
        return (f"kernel-{flavour or 'default'}-devel",)
    flavour = next((word for word in ("lts", "zen", "hardened", "rt") if f"-{word}" in kernel), "")
    return (f"linux-{flavour}-headers" if flavour else "linux-headers",)


_VARIANTS: Final = frozenset({"", "64k", "64k-debug", "debug", "rt", "rt-debug"})
# RHEL 8's kernel-rt has its own numbers: 4.18.0-553.rt7.342.el8_10.x86_64.
_OLD_RT: Final = Pattern(r"\.rt\d")


def build_again(snapshot: Snapshot, kernel: str, prefix: tuple[str, ...] = ()) -> Fix:
    """Has the module built for ``kernel`` by what builds it here, and loaded where that kernel runs."""
    name = of_kernel(kernel)
    akmods = bool(packages.matching(snapshot, "akmod-nvidia*")) or any("akmod" in item.text for item in snapshot.items)
    by_akmods, by_dkms = ("akmods", "--force", "--kernels", name), (*prefix, "dkms", "autoinstall", "-k", name)
    build_it = command("sudo", *(by_akmods if akmods else by_dkms))
    runs = not kernel or kernel == (snapshot.view(system.running_kernel) or kernel)
    return run("rebuild", f"build the module for {kernel or 'the running kernel'}", build_it, *_load(runs=runs))


def built_anew(snapshot: Snapshot) -> Iterator[Command]:
    """The commands that build a module that is there; autoinstall passes over what is installed."""
    infos = [info for info in snapshot.view(modules.driver_info) if "/dkms/" in info.filename and info.version]
    kernel = snapshot.view(system.running_kernel) or next((info.kernel for info in infos), "")
    rows = [row for row in snapshot.view(modules.driver_builds) if row.kernel in {"", kernel}]
    # Debian's DKMS module has the name of its file, nvidia-current.
    built = [(info.filename.rpartition("/")[2].partition(".ko")[0], info.version) for info in infos]
    named = [(row.module, row.version) for row in rows] or built
    tree = next((f"{module}/{version}" for module, version in named if is_name(module) and is_release(version)), "")
    if not tree and packages.matching(snapshot, "akmod-nvidia*"):
        yield command("sudo", "akmods", "--force", "--rebuild", "--kernels", of_kernel(kernel))
        return
    for verb in ("build", "install"):
        yield command("sudo", "dkms", verb, "--force", tree or _FIRST_TREE, "-k", of_kernel(kernel))


# "nvidia/580.95.05, 6.1.0-40-amd64, x86_64: installed", or with a comma before the version; nvidia-fs is no driver.
_FIRST_TREE: Final = Shell(
    "\"$(dkms status | sed -nE 's;^(nvidia(-current|-open|-srv)*)[/, ]+([^,: ]+).*;\\1/\\3;p' | head -n 1)\""
)


def _load(*, runs: bool) -> tuple[Command, ...]:
    return (Shell("sudo modprobe nvidia"),) if runs else ()


def _kernel(snapshot: Snapshot) -> str:
    """The kernel that lacks the module."""
    failure = snapshot.view(_failure)
    return (failure.kernel if failure else "") or snapshot.view(system.running_kernel)


def _get_headers(snapshot: Snapshot) -> Iterable[Fix]:
    kernel = _kernel(snapshot)
    yield install(
        snapshot, f"install the headers of {kernel or 'the running kernel'}", *headers_packages(snapshot, kernel)
    )
    yield build_again(snapshot, kernel)
    if takes_gpunode(snapshot):
        text = "have the headers of later kernels installed with them: gpunode finds the right meta package"
        yield setup_step(snapshot, "install", text, "headers", when="no package brings those of later kernels yet")
    if meta := _upgrade_kernel(snapshot):
        yield meta


def _upgrade_kernel(snapshot: Snapshot) -> Fix | None:
    """Where the archive no longer has the headers of an old kernel, a newer kernel is the way to headers."""
    stem = "kernel-uek" if "uek" in _kernel(snapshot) else "kernel"
    commands: dict[PackageManager, Command] = {
        "apt": Shell("sudo apt-get dist-upgrade"),
        "dnf": command("sudo", "dnf", "upgrade", stem, f"{stem}-devel"),
        "zypper": Shell("sudo zypper update kernel-default kernel-default-devel"),
        "pacman": Shell("sudo pacman -Syu"),
    }
    when = "the archive no longer has the headers of this kernel"
    manager = snapshot.view(system.package_manager)
    return run("install", "upgrade the kernel together with its headers, then reboot", commands[manager], when=when)


_BUILT_BY: Final = Pattern(r"kernel was built by:?\s+(?P<by>[^\n]{1,160})|compile the kernel:\s*(?P<old>[^\n]{1,160})")
_LINUX: Final = Pattern(r"Linux version \S+ [^\n]{0,80}\((?P<by>[^\n]{0,160})")
_VERSION: Final = Pattern(r"(?P<name>gcc|clang)\b[^\n]{0,200}?(?:-|version |\) |\s)(?P<major>\d{1,2})(?:\.\d|\b)")
_FLAGS: Final = (
    (Pattern(r"-ftrivial-auto-var-init|-fzero-call-used-regs|-mharden-sls"), "gcc-12"),
    (Pattern(r"-fmin-function-alignment"), "gcc-14"),
    (Pattern(r"-mretpoline|-fsplit-lto-unit|-mstack-alignment|-Qunused-arguments|-enable-trivial"), "clang"),
)


def compiler_wanted(snapshot: Snapshot) -> str:
    """The compiler that the kernel was built with, as a package calls it (``gcc-12``); empty where nothing tells."""
    texts = [item.text for item in snapshot.items if item.kind in {"make-log", "installer-log", "text", "dkms-output"}]
    for text in texts:
        following = re.search(r"compile the kernel:\s*\n\s*\n?(?P<by>[^\n]{1,160})", text)
        match = _BUILT_BY.search(text)
        said = (match["by"] or "") if match else ""
        if found := _VERSION.search(said or (following["by"] if following else "")):
            return _package(found)
    for text in (*texts, *(item.text for item in snapshot.files("/proc/version"))):
        if (match := _LINUX.search(text)) and (found := _VERSION.search(match["by"])):
            return _package(found)
    return next((name for pattern, name in _FLAGS if any(pattern.search(text) for text in texts)), "")


def _package(match: re.Match[str]) -> str:
    return "clang" if match["name"] == "clang" else f"gcc-{match['major']}"


_LLVM: Final = ("env", "LLVM=1")
_KERNELS_GCC: Final = Shell("gcc-$(sed -n 's/.*gcc[^0-9]*\\([0-9]*\\)[. ].*/\\1/p' /proc/version)")


def _get_compiler(snapshot: Snapshot) -> Iterable[Fix]:
    wanted, kernel = compiler_wanted(snapshot), _kernel(snapshot)
    if snapshot.view(system.package_manager) == "apt":
        name = wanted if is_package(wanted) else _KERNELS_GCC
        yield install(snapshot, "install the compiler that the kernel was built with", name)
        with_it = ("env", beside("CC=/usr/bin/", name), "IGNORE_CC_MISMATCH=1")
        yield build_again(snapshot, kernel, _LLVM if wanted == "clang" else with_it)
    else:
        text = "install the compiler that the kernel was built with, or a kernel that today's compiler built"
        yield install(snapshot, text, *(("clang", "llvm", "lld") if wanted == "clang" else ("gcc",)))
        yield build_again(snapshot, kernel, _LLVM if wanted == "clang" else ())


# What brings each program, by package manager: apt, dnf, zypper, pacman.
_TOOL_PACKAGES: Final[dict[str, tuple[str, str, str, str]]] = {
    "g++": ("g++", "gcc-c++", "gcc-c++", "gcc"),
    "c++": ("g++", "gcc-c++", "gcc-c++", "gcc"),
    "cc1plus": ("g++", "gcc-c++", "gcc-c++", "gcc"),
    "gcc": ("gcc", "gcc", "gcc", "gcc"),
    "cc": ("gcc", "gcc", "gcc", "gcc"),
    "cpp": ("gcc", "gcc", "gcc", "gcc"),
    "clang": ("clang", "clang", "clang", "clang"),
    "make": ("make", "make", "make", "make"),
    "gmake": ("make", "make", "make", "make"),
    **dict.fromkeys(("ld", "as", "ar", "objcopy", "strip"), ("binutils",) * 4),
    "ld.lld": ("lld", "lld", "lld", "lld"),
    "pahole": ("dwarves", "dwarves", "dwarves", "pahole"),
    **{name: (name,) * 4 for name in ("flex", "bison", "bc", "perl", "python3")},
    **dict.fromkeys(("libelf", "gelf"), ("libelf-dev", "elfutils-libelf-devel", "libelf-devel", "libelf")),
    **dict.fromkeys(("libssl", "openssl"), ("libssl-dev", "openssl-devel", "libopenssl-devel", "openssl")),
    "stdio": ("libc6-dev", "glibc-devel", "glibc-devel", "glibc"),
}
_MANAGERS: Final[tuple[PackageManager, ...]] = ("apt", "dnf", "zypper", "pacman")
_ALL_TOOLS: Final = (("build-essential",), ("gcc", "make"), ("gcc", "make"), ("base-devel",))


def tool_packages(tool: str, manager: PackageManager) -> tuple[str, ...]:
    """The packages that bring ``tool``; with an unknown one, those that bring all that a build needs."""
    column = _MANAGERS.index(manager)
    plain = tool.rpartition("-linux-gnu-")[2]
    stem, _, version = plain.partition("-")
    if stem in {"gcc", "g++", "clang"} and version and manager == "apt":
        return (f"{stem}-{version}",)
    found = _TOOL_PACKAGES.get(plain) or _TOOL_PACKAGES.get(stem)
    return (found[column],) if found else _ALL_TOOLS[column]


def _get_tools(snapshot: Snapshot) -> Iterable[Fix]:
    failure = snapshot.view(_failure)
    tool = failure.tool if failure else ""
    names = tool_packages(tool, snapshot.view(system.package_manager))
    yield install(snapshot, f"install {tool or 'what a build needs'}", *names)
    yield build_again(snapshot, _kernel(snapshot))


def _get_driver(snapshot: Snapshot) -> Iterable[Fix]:
    kernel = _kernel(snapshot) or "this kernel"
    last = min((m.last_branch for gpu in snapshot.view(pci.gpus) if (m := gpu.model) and m.last_branch), default=None)
    limit = f"; {last} is the last branch that drives this GPU" if last else ""
    text = f"install a release of the driver that supports {kernel}{limit}"
    failure = snapshot.view(_failure)
    yield from newer_driver(snapshot, text, here=failure.release if failure else "")
    others = sorted({one.kernel for one in snapshot.view(modules.on_disk)} - {kernel})
    which = f"boot {others[-1]}, for which a module is built" if others else "boot the kernel that was used before"
    yield reboot(f"{which}, until there is one", when="no such release is there")


_LEFTOVER: Final = Pattern(
    r"/var/lib/dkms/(?P<module>nvidia[\w-]*)/(?P<version>[\w.+~-]+)"
    r"|Error! (?P<m2>nvidia[\w-]*)/(?P<v2>[\w.+~-]+): Missing"
    r"|/usr/src/(?P<m3>nvidia(?:-[a-z]+)*)-(?P<v3>\d[\w.+~]*)"
    r"|already contains: ?(?P<m4>nvidia[\w-]*?)[-/](?P<v4>\d[\w.+~]*\w)"
    r"|^(?P<m5>nvidia[\w-]*)(?:/|, )\s*(?P<v5>[\w.+~-]+)[^\n]*: broken",
    re.MULTILINE,
)


def _clear_tree(snapshot: Snapshot) -> Iterable[Fix]:
    found = _leftover(snapshot)
    if found and _TREES_MODULE.fullmatch(found[0]) and is_release(found[1]):
        place = f"/var/lib/dkms/{found[0]}/{found[1]}"
        # Other modules' links and saved originals stand beside it, and what DKMS named may have been repaired since.
        sound = command("sudo", "test", "-e", f"{place}/source/dkms.conf")
        gone = joined(sound, Shell("||"), command("sudo", "rm", "-r", place))
        text = f"remove what is left of {found[0]} {found[1]} from DKMS's tree, if its source is not there"
        if _source_of(place) in _listed(snapshot, "/usr/src/*"):
            again = command("sudo", "dkms", "add", "-m", found[0], "-v", found[1])
            yield run("remove", f"{text}, and register the source that is there anew", gone, again)
        else:
            yield run("remove", text, gone)
    else:
        find = Shell("find /var/lib/dkms -mindepth 3 -maxdepth 3 -name source -xtype l")
        yield run("inspect", "find the version in DKMS's tree whose link to its source leads nowhere", find)
        yield by_hand("remove", "remove the folder of that version, by its whole name and no other")
    yield build_again(snapshot, snapshot.view(system.running_kernel))


_TREES_MODULE: Final = Pattern(r"nvidia(?:-[a-z0-9]+)*")


def _leftover(snapshot: Snapshot) -> tuple[str, str] | None:
    failure = snapshot.view(_failure)
    texts = [citation.line for citation in failure.citations] if failure else []
    texts.extend(proof.citations[0].source for _, proof in _without_source(snapshot) if isinstance(proof, Proof))
    texts.extend(item.text for item in snapshot.of("dkms-status", "dkms-output", "package-output", "text"))
    for text in texts:
        if match := _LEFTOVER.search(text):
            words = [word for word in match.groups() if word]
            return words[0], words[1].rstrip(".")
    return None


def _free_space(snapshot: Snapshot) -> Iterable[Fix]:
    text = "free some space: take out the packages that were downloaded, then see what fills the disk"
    yield run("remove", text, *_SPACE[snapshot.view(system.package_manager)])
    yield run(
        "inspect",
        "see that there is room, and inodes too",
        Shell("df -h /boot /usr /var /tmp"),
        Shell("df -i /usr /var /tmp"),
    )
    yield build_again(snapshot, _kernel(snapshot))


# Each names what it takes before it does.
_SPACE: Final[dict[PackageManager, tuple[Command, ...]]] = {
    "apt": (Shell("sudo apt-get clean"), Shell("sudo du -xhd1 /boot /usr /var")),
    "dnf": (Shell("sudo dnf clean packages"), Shell("sudo dnf remove --oldinstallonly")),
    "zypper": (Shell("sudo zypper clean"), Shell("sudo zypper purge-kernels")),
    "pacman": (Shell("sudo pacman -Sc"),),
}
_DKMS: Final = "https://github.com/dkms-project/dkms"

FAMILY: Final = Family(
    "build",
    "building the kernel module",
    (
        Rule(
            cause="kernel-headers-missing",
            layer="kernel",
            storey="kernel",
            severity="error",
            disruption="none",
            title="the kernel's headers are not installed",
            share=4,
            symptoms=(
                symptoms.BUILD_FAILED,
                symptoms.NO_DRIVER,
                symptoms.NO_MODULE,
            ),
            look_at=(Shell("ls -d /lib/modules/$(uname -r)/build"),),
            story=(
                "A module built from source needs the headers of exactly the kernel that it is for. When the kernel "
                "is upgraded and its headers are not, DKMS or akmods skips the build, mostly without an error, and "
                "the node boots into a kernel for which there is no NVIDIA module. From above, a driver that worked "
                "yesterday is gone after a reboot: nvidia-smi cannot reach it, and dkms status knows older kernels "
                "only. The meta package for headers, beside the kernel's own, keeps this from coming back."
            ),
            sources=(DRIVER_GUIDE, _DKMS, "https://github.com/GoogleCloudPlatform/compute-gpu-installation/issues/25"),
            check=only("kernel-headers-missing", _decide),
            remedy=_get_headers,
            explains=chains.NOT_BUILT,
        ),
        Rule(
            cause="dkms-build-compiler-mismatch",
            layer="kernel",
            storey="driver",
            severity="error",
            disruption="none",
            title="the compiler is not the one that built the kernel",
            share=1.5,
            symptoms=(
                symptoms.BUILD_FAILED,
                symptoms.NO_DRIVER,
                symptoms.NO_MODULE,
            ),
            look_at=(
                Shell("cat /proc/version"),
                Shell("gcc --version"),
            ),
            story=(
                "A kernel module has to be compiled the way the kernel was: NVIDIA's build compares the two "
                "compilers, and a kernel built by a newer one, or by clang, passes options that the node's gcc does "
                "not know. The build stops before it compiles anything, so there is no module for this kernel. It is "
                "met with kernels from elsewhere (mainline, HWE, xanmod, a rescue system) and after the default gcc "
                "was changed. The compiler named in /proc/version has to be installed and used."
            ),
            sources=(
                f"{DRIVER_README}installdriver.html",
                "https://github.com/clearlinux/distribution/issues/1970",
                "https://github.com/linux-surface/linux-surface/issues/705",
            ),
            check=only("dkms-build-compiler-mismatch", _decide),
            remedy=_get_compiler,
            explains=chains.NOT_BUILT,
        ),
        Rule(
            cause="dkms-build-kernel-api",
            layer="kernel",
            storey="driver",
            severity="error",
            disruption="none",
            title="the driver's source does not fit this kernel",
            share=3,
            symptoms=(
                symptoms.BUILD_FAILED,
                symptoms.NO_DRIVER,
                symptoms.NO_MODULE,
            ),
            look_at=(Shell("grep -m5 error: /var/lib/dkms/nvidia/*/build/make.log"),),
            story=(
                "The kernel has no stable interface for modules: a new one renames functions, changes their arguments "
                "or keeps symbols for modules under the GPL. A release of the driver that is older than the kernel "
                "does not know that and does not compile or link; make.log shows errors in NVIDIA's own files. Only a "
                "release that supports the kernel helps, or an older kernel until there is one. A GPU whose last "
                "branch gets no more releases stays with older kernels."
            ),
            sources=(
                "https://github.com/xanmod/linux/issues/411",
                f"{OPEN_MODULES}/issues/746",
                f"{OPEN_MODULES}/issues/840",
                "https://github.com/negativo17/nvidia-driver/issues/174",
            ),
            check=only("dkms-build-kernel-api", _decide),
            remedy=_get_driver,
            explains=chains.NOT_BUILT,
        ),
        Rule(
            cause="dkms-build-toolchain-missing",
            layer="kernel",
            storey="driver",
            severity="error",
            disruption="none",
            title="a build tool is not installed",
            share=1,
            symptoms=(
                symptoms.BUILD_FAILED,
                symptoms.NO_DRIVER,
            ),
            look_at=(Shell("tail -n 30 /var/lib/dkms/nvidia/*/build/make.log"),),
            story=(
                "The module is compiled on the node, which takes make, gcc, a linker and, for the open modules, g++. "
                "A minimal image or a node that was cleaned up lacks one of them, and the build ends with 'command "
                "not found' (make's error 127). Package scripts often go on regardless, so the installation looks "
                "successful until the module is wanted."
            ),
            sources=(f"{OPEN_MODULES}/issues/805", DRIVER_GUIDE),
            check=only("dkms-build-toolchain-missing", _decide),
            remedy=_get_tools,
            explains=chains.NOT_BUILT,
        ),
        Rule(
            cause="dkms-tree-corrupt",
            layer="kernel",
            storey="driver",
            severity="error",
            disruption="none",
            title="DKMS's tree is damaged",
            share=0.5,
            symptoms=(
                symptoms.BUILD_FAILED,
                symptoms.PACKAGES_BROKEN,
            ),
            look_at=(
                Shell("dkms status"),
                Shell("ls /var/lib/dkms/nvidia*"),
            ),
            story=(
                "DKMS keeps a folder for each module and version in /var/lib/dkms, with a link to its source. Where a "
                "driver was removed by hand, or a package lost its source, the link leads nowhere, and DKMS stops at "
                "it: with older versions every call fails, for every module. New kernels then get no NVIDIA module. "
                "The leftover folder has to go; the driver that is wanted is then built as usual."
            ),
            sources=(
                "https://github.com/negativo17/nvidia-driver/issues/56",
                "https://github.com/linux-surface/linux-surface/issues/112",
                _DKMS,
            ),
            check=only("dkms-tree-corrupt", _decide),
            remedy=_clear_tree,
            explains=chains.NOT_BUILT,
        ),
        Rule(
            cause="dkms-build-no-space",
            layer="kernel",
            storey="driver",
            severity="error",
            disruption="none",
            title="the disk was full during the build",
            symptoms=(
                symptoms.BUILD_FAILED,
                symptoms.PACKAGES_BROKEN,
            ),
            look_at=(Shell("df -h / /boot /tmp"),),
            story=(
                "A build of NVIDIA's modules needs some hundred megabytes below /var/lib/dkms, and the initramfs made "
                "after it needs room in /boot. On a full disk the compiler or the copying stops, and what is left is "
                "no module or half of one. The log says so in one line among many errors that follow from it."
            ),
            sources=(_DKMS, DRIVER_GUIDE),
            check=only("dkms-build-no-space", _decide),
            remedy=_free_space,
            explains=chains.NOT_BUILT,
        ),
    ),
)
