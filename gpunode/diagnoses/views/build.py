"""Why a build of NVIDIA's kernel module failed, from whatever tried it: DKMS, akmods, the .run installer, a container.

A log names the first thing that went wrong and then all that follows from it: a compiler that the kernel was not built
with also fails on every function. So each log is asked for the causes in the order in which they come about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, lines_with
from gpunode.diagnoses.views import system
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

Reason: TypeAlias = Literal["headers", "tree", "space", "toolchain", "compiler", "api", "compiler-differs", "unsaid"]

_KERNEL: Final = r"\d+\.\d+[^\s/'\",;:()]*[^\s/'\",;:().]"
_HEADERS: Final = Pattern(
    r"kernel headers for kernel \S+ cannot be found"
    r"|Missing \S+ kernel headers"
    r"|(?:[Mm]odule build for|autoinstall for) (?:the currently running kernel|kernel \S+) was skipped since"
    r"|development files for kernel \S+ or (?:the appropriate|source tree installed)"
    r"|Could not find files needed to compile modules for"
    r"|Unable to find the kernel source tree for the"
    r"|Unable to determine the (?:location of the )?kernel (?:source|header)"
    r"|kernel (?:source|header) (?:path|file|tree) '[^'\n]*' (?:is invalid|does not exist)"
    r"|(?:[Cc]ould not|[Uu]nable to) find (?:the )?kernel (?:headers|sources?)\b|Kernel sources not found"
    r"|kernel headers (?:for \S+ )?(?:are|is|were|was) not (?:found|installed)"
    r"|/lib/modules/[^\s/]+/(?:build|source)(?:/\S*)?['’]?: No such file or directory"
    r"|Kernel configuration is invalid|scripts/(?:mod/modpost|basic/fixdep)['’]?: (?:not found|No such file)"
    r"|Unable to locate package (?:linux|proxmox|pve)-headers-"
    r"|Unable to find a match: kernel-(?:devel|headers)"
    r"|Could not resolve Linux kernel version"
)
_TREE: Final = Pattern(
    r"Could not locate dkms\.conf file"
    r"|File:\s+\S*nvidia\S*dkms\.conf\S* does not exist"
    r"|Missing the module source directory or the symbolic link pointing to it"
    r"|Could not find module source directory"
    r"|DKMS tree already contains: ?nvidia"
    r"|The module/version combo: ?nvidia\S* is not located in the DKMS tree"
    r"|^[ \t]*nvidia[\w.-]*(?:/|, )\s*[^,:\s]+(?:, [^:\n]+)?: broken",
    re.MULTILINE,
)
_SPACE: Final = Pattern(r"No space left on device")
# What a kernel module's build needs; a compiler may carry its target and its version.
_TOOL: Final = (
    r"(?:(?:x86_64|aarch64)-linux-gnu-)?(?:gcc|g\+\+|cc|c\+\+|clang|gmake|make|ld(?:\.bfd|\.lld)?|as|ar|objcopy|strip|"
    r"flex|bison|bc|perl|python3|cpp|pahole)(?:-\d+(?:\.\d+)?)?"
)
# A shell that speaks another language says the same.
_ABSENT: Final = (
    r"(?:command not found|not found|Befehl nicht gefunden|Kommando nicht gefunden|commande introuvable|"
    r"orden no encontrada|未找到命令|コマンドが見つかりません|команда не найдена)"
)
_TOOLCHAIN: Final = Pattern(
    rf"(?:^|[\s:/'\"‘`]){_TOOL}['’]?: {_ABSENT}"
    rf"|(?:^|[\s:/'\"‘`]){_TOOL}['’]?: No such file or directory"
    rf"|Unable to find the development tool [`'‘]{_TOOL}"
    r"|cannot execute ['‘`](?:cc1plus|cc1|as|ld)['’]"
    r"|please install (?:libelf-dev|libelf-devel|libssl-dev|openssl-devel)"
    r"|fatal error: (?:libelf\.h|gelf\.h|openssl/\S+\.h|stdio\.h): No such file"
    r"|C compiler cannot create executables|no acceptable C compiler found",
    re.MULTILINE,
)
_TOOLS: Final = (
    Pattern(r"(cc1plus)|please install (libelf|libssl|openssl)|fatal error: (libelf|gelf|openssl|stdio)"),
    Pattern(rf"(?:^|[\s:/'\"‘`])({_TOOL})['’]?(?::| )"),
    Pattern(rf"[`'‘]({_TOOL})['’]"),
)
_COMPILER: Final = Pattern(
    r"(?<!Warning: )Compiler version check failed|CC version check failed|Failed CC version check"
    r"|cc_version_check failed|gcc-version-check failed|incompatible gcc/plugin versions"
    r"|error: unrecogni[sz]ed command[- ]line option|error: Compiler lacks |error: unknown argument: '-"
    r"|nicht erkannte Kommandozeilenoption|option de la ligne de commande .{0,40}non reconnue|无法识别的命令行选项"
    r"|plugin needed to handle lto object|bytecode stream in file .{0,120}generated with LTO version"
)
_DIFFERS: Final = Pattern(r"the compiler differs from the one used to build the kernel")
_ERROR: Final = (
    r"(?:fatal error|error|erreur|schwerwiegender Fehler|Fehler|致命错误|错误|錯誤|エラー|ошибка|errore|erro|fout|błąd)"
)
_API: Final = Pattern(
    r"GPL-incompatible module \S+ uses GPL-only symbol"
    r"|modpost: [\"']?\w+[\"']? \[[^\]\n]+\] undefined!"
    rf"|\.(?:c|h|cpp):\d+(?::\d+)?: {_ERROR}\s?[:：]"
    r"|BUILD_EXCLUSIVE directive which does not match this kernel"
    r"|kernel you are installing for is a (?:PREEMPT_RT|Xen|Dom0)"
    r"|error: .{0,200}(?:too (?:many|few) arguments to function|implicit declaration of|has no member named)"
    r"|ld\.lld: error: undefined symbol"
)
_UNSAID: Final = Pattern(
    r"Bad return status for module build on kernel|bad exit status: \d"
    r"|kernel module failed to build|Unable to build the NVIDIA kernel module"
    r"|An error occurred while performing the step: \"(?:Building|Checking)"
    r"|Failed to run [`']\S*dkms (?:build|install)|Failed to install the kernel module through DKMS"
    r"|dkms autoinstall on \S+ (?:failed|was skipped) for (?:\S+ )*nvidia"
    r"|Building (?:rpms|kmods?) failed|akmodsbuild failed|modules failed to build|modules did not build"
    r"|make(?:\[\d+\])?: \*\*\* .{0,200}Error \d"
)
_ORDER: Final[tuple[tuple[Reason, Pattern], ...]] = (
    ("headers", _HEADERS),
    ("tree", _TREE),
    ("space", _SPACE),
    ("toolchain", _TOOLCHAIN),
    ("compiler", _COMPILER),
    ("api", _API),
    ("compiler-differs", _DIFFERS),
    ("unsaid", _UNSAID),
)
_LOGS: Final = frozenset(
    {
        *("make-log", "dkms-output", "dkms-status", "package-output", "installer-log", "unit-log", "unit-status"),
        *("journal", "text", "application", "kubernetes-log", "package-history", "modprobe", "unit-action"),
    }
)
_BUILDERS: Final = frozenset({"dkms-output", "dkms-status", "installer-log"})
# What a log says that is about the building of a kernel module at all.
_BUILDS: Final = Pattern(
    r"dkms|akmod|make\.log|make(?:\[\d+\])?: \*\*\*|nvidia-installer|kernel module|modpost|kernel headers|CONFTEST"
    r"|Kbuild|compile modules for|kernel sources|-headers-|kernel-devel|kernel source|CC \[M\]",
    re.IGNORECASE,
)
_TARGETS: Final = tuple(
    Pattern(before + rf"(?P<kernel>{_KERNEL})")
    for before in (
        r"kernel headers for kernel ",
        r"make\.log for \S+ for kernel ",
        r"module build on kernel: ",
        r"(?:[Mm]odule build|autoinstall|Building(?: module| initial module)?|development files) for (?:kernel )?",
        r"Missing ",
        r"-for-",
        r"/usr/src/(?:linux-headers-|kernels/|linux-)",
        r"/lib/modules/",
        r"(?:linux|proxmox|pve)-headers-",
        r" -k ",
    )
)
_RELEASES: Final = (
    Pattern(r"dkms/nvidia[\w-]*/(?P<version>\d{2,3}\.[\d.]*\d)"),
    Pattern(r"make\.log for nvidia[\w-]*?-(?P<version>\d{2,3}\.[\d.]*\d)"),
    Pattern(r"(?:nvidia|NVIDIA-Linux-\w+)[/-](?P<version>\d{3}\.\d+(?:\.\d+)?)"),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """A build of NVIDIA's module that failed, by one log.

    Attributes:
        reason: what went wrong first; ``compiler-differs`` where the log only warns of it and tells nothing else.
        kernel: that it was for; empty where nothing tells.
        release: of the driver; empty where nothing tells.
        tool: the program or file that was missing, where that was the reason.
        detail: the deciding line.
    """

    reason: Reason
    citations: tuple[Citation, ...]
    kernel: str = ""
    release: str = ""
    tool: str = ""

    @property
    def detail(self) -> str:
        """The deciding line, trimmed."""
        return self.citations[0].line.strip()


def failures(snapshot: Snapshot) -> tuple[Failure, ...]:
    """The failed builds, one of each log that tells of one."""
    found = tuple(found for item in snapshot.items if (found := _failure(item)) is not None)
    # A disk that was full once, and is not any more, keeps no build from being done.
    return tuple(one for one in found if one.reason != "space" or not system.has_room(snapshot))


def decisive(found: Iterable[Failure]) -> Failure | None:
    """The failure whose reason comes first; None where there is none."""
    ranks = [reason for reason, _ in _ORDER]
    return min(found, key=lambda one: ranks.index(one.reason), default=None)


def has_failed(snapshot: Snapshot) -> bool:
    """Whether some log says that a build ended with an error, and not only that it might."""
    return any(
        _UNSAID.search(item.text) or _API.search(item.text)
        for item in snapshot.items
        if item.kind in _LOGS and not item.is_register and _is_about(item)
    )


def _failure(item: Item) -> Failure | None:
    if item.kind not in _LOGS or item.is_register or not item.is_seen or not _is_about(item):
        return None
    for reason, pattern in _ORDER:
        if citations := tuple(_deciding(item, pattern, reason)):
            return Failure(reason, citations[:4], target(item), release(item), _tool(reason, citations[0].line))
    return None


def _deciding(item: Item, pattern: Pattern, reason: Reason) -> Iterator[Citation]:
    for citation in lines_with(item, pattern):
        if not (reason == "tree" and _is_foreign(item, citation)):
            yield citation


def _is_foreign(item: Item, citation: Citation) -> bool:
    """Whether the damaged tree is of another module: DKMS goes on without it."""
    around = "\n".join(item.lines[max(0, (citation.number or 1) - 1) :][:2])
    named = re.search(r"/dkms/(?P<module>[^/\s]+)/|Error! (?P<row>[\w.+-]+)/\S+: Missing", around)
    module = (named["module"] or named["row"]) if named else ""
    return bool(module) and not module.startswith("nvidia")


def _is_about(item: Item) -> bool:
    """Whether it tells of a kernel module's build, and not of another vendor's module only."""
    if item.kind == "make-log":
        header = re.search(r"^DKMS (?:\([^)]*\) )?make\.log for (\S+)", item.text[:2000], re.MULTILINE)
        return header is None or header[1].startswith("nvidia")
    return (item.kind in _BUILDERS or any(True for _ in lines_with(item, _BUILDS))) and _names_driver(item)


def _names_driver(item: Item) -> bool:
    """Whether NVIDIA's module is meant; DKMS names no module where headers are missing or its tree is damaged."""
    if "nvidia" in item.text.lower() or "nvidia" in item.written.lower():
        return True
    named = re.findall(r"/var/lib/dkms/([^/\s]+)/|(?:^|\n)([\w.+-]+)/[\w.+~-]+, \d", item.text[:200_000])
    return not named


def target(item: Item) -> str:
    """The kernel that a build was for; empty where the log does not name it."""
    for pattern in _TARGETS:
        if match := pattern.search(item.text) or pattern.search(item.written):
            return match["kernel"].partition(".failed")[0].removesuffix("-common")
    return ""


def release(item: Item) -> str:
    """The driver's version that was built; empty where the log does not name it."""
    for pattern in _RELEASES:
        if match := pattern.search(item.written) or pattern.search(item.text):
            return match["version"]
    return ""


def _tool(reason: Reason, line: str) -> str:
    """The program or library that was missing, as the deciding ``line`` names it."""
    found = (match for pattern in _TOOLS if reason == "toolchain" and (match := pattern.search(line)))
    return next((next(filter(None, match.groups())) for match in found), "")
