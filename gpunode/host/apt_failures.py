"""Classify failures of apt and dpkg by their output, and make the error. Pure."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

from gpunode.command import command
from gpunode.errors import Busy, ChangeFailed, GpunodeError
from gpunode.host.process import SIGNAL_EXIT_STATUS_BASE
from gpunode.packages.deb.transactions import failed_fetches, messages, refusal

AptFailureKind: TypeAlias = Literal[
    "interrupted",
    "disk",
    "read-only",
    "dkms",
    "script",
    "lock",
    "hook",
    "temporary",
    "clock",
    "signature",
    "release-changed",
    "release-date",
    "mid-sync",
    "stale-index",
    "denied",
    "missing",
    "certificate",
    "refused",
    "network",
    "held",
    "unmet",
    "killed",
    "other",
]

_DISK_FULL = re.compile(r"No space left on device|You don't have enough free space|Disk quota exceeded", re.IGNORECASE)
# Of apt's download, and of dpkg itself: scripts of packages print this for settings that a container may not change.
_READ_ONLY = re.compile(
    r"- (open|SetupAPTPartialDirectory) \(30: Read-only file system\)"
    r"|^dpkg: error.*(\n .*)?: Read-only file system$",
    re.MULTILINE,
)
_DPKG_FAILED = re.compile(r"^(E: Sub-process \S*dpkg returned an error code|dpkg: error)", re.MULTILINE)
_DKMS_BUILD_FAILED = re.compile(
    r"Bad return status for module build|Consult /\S+/make\.log|^Error! .*dkms", re.MULTILINE
)
# Kernel packages make DKMS build every registered module.
_KERNEL_PACKAGE_PREFIXES = ("linux-headers-", "linux-image-")
_OTHER_MODULE_MAKE_LOG = re.compile(r"/(?P<module>(?!nvidia)[\w][\w.+-]*)/(?P<version>\w[\w.+~-]*)/build/make\.log\Z")
# Printed by dkms 3.2 (Debian 13); dkms of Debian 12 skips a broken module.
_DKMS_SOURCE_BROKEN = re.compile(r"^Error! ([a-z][\w+-]*/\d[\w.+~-]*) is broken!$", re.MULTILINE)

# The first match in apt's own messages wins: one failure makes apt print several, the cause before its effects.
_SIGNS: tuple[tuple[AptFailureKind, tuple[str, ...]], ...] = (
    ("interrupted", ("dpkg was interrupted",)),
    ("disk", (_DISK_FULL.pattern,)),
    ("read-only", (_READ_ONLY.pattern,)),
    (
        "lock",
        ("Could not get lock", r"Unable to (acquire the dpkg frontend lock|lock (the administration )?directory)"),
    ),
    # Commands of DPkg::Pre-Invoke, Pre-Install-Pkgs, Post-Invoke and APT::Update's own: apt.conf(5).
    ("hook", ("Problem executing scripts", "Failure running script")),
    ("network", ("does the network require authentication",)),
    # With the last of these, apt also reports a bad certificate.
    (
        "temporary",
        ("Couldn't create temporary file", "Unable to mkstemp", r"Splitting up \S+ into data and signature failed"),
    ),
    ("clock", (r"Release file for .* is not valid yet", "Not live until", "not yet valid certificate")),
    (
        "signature",
        (
            r"NO_PUBKEY|(EXP|REV)KEYSIG|KEYEXPIRED|BADSIG|EXPSIG",
            r"signatures? (couldn't be verified|were invalid)",
            r"signature verification|/sqv returned an error|cannot be authenticated",
        ),
    ),
    ("release-changed", (r"changed its '[^']+' value from",)),
    ("release-date", (r"Release file for .* is expired",)),
    (
        "mid-sync",
        (
            r"Hash Sum mismatch|has unexpected size|Mirror sync in progress|Size mismatch",
            r"Failed to fetch \S+/(Packages|Sources|Translation-\S+|Components-\S+)(\.\w+)? +404\b",
        ),
    ),
    ("stale-index", (r"Failed to fetch \S+\.deb +(404|410|File not found)\b",)),
    ("denied", (r"\b(401 +Unauthorized|403 +Forbidden|407 +\w+)",)),
    ("missing", (r"(does not have|no longer has) a Release file|Failed to fetch \S+ +(404|410|File not found)\b",)),
    ("certificate", (r"certificate verif",)),
    ("refused", (r"\(111: Connection refused\)",)),
    ("network", (r"Failed to fetch|Temporary failure resolving|Could not (resolve|connect|handshake)",)),
    # apt also prints this for a repository whose InRelease it could not fetch for one of the reasons above.
    ("signature", (r"is (not|no longer) signed\.|provides only weak security information",)),
    ("held", ("Held packages were changed",)),
    (
        "unmet",
        (
            r"unmet dependencies|Unable to (locate package|correct problems|satisfy)|was not found",
            r"has no installation candidate|Essential packages were removed|Packages were downgraded",
        ),
    ),
    # apt-pkg/contrib/fileutl.cc, ExecWait, and apt-pkg/deb/dpkgpm.cc (apt 2.6.2).
    ("killed", (r"Sub-process \S+ (exited unexpectedly|received (signal|a segmentation fault))",)),
)


def classify_failure(stdout: str, stderr: str, exit_status: int = 100) -> AptFailureKind:
    """Return the cause of a failed run of apt or dpkg; ``exit_status`` is 128 + N if signal N killed it."""
    everything = f"{stdout}\n{stderr}"
    if _DPKG_FAILED.search(everything):
        # Ignore what maintainer scripts print: a "connection refused" there is no failed download.
        return _classify_dpkg(everything)
    messages_text = "\n".join(messages(everything, "EW"))
    if "unmet dependencies" in stdout:
        messages_text += "\nunmet dependencies"
    found = (kind for kind, signs in _SIGNS if any(re.search(sign, messages_text, re.IGNORECASE) for sign in signs))
    return next(found, "killed" if exit_status > SIGNAL_EXIT_STATUS_BASE else "other")


def _classify_dpkg(output: str) -> AptFailureKind:
    if _DISK_FULL.search(output):
        return "disk"
    if _READ_ONLY.search(output):
        return "read-only"
    if "dpkg: error: dpkg frontend lock" in output or "dpkg: error: dpkg database lock" in output:
        return "lock"
    return "dkms" if _DKMS_BUILD_FAILED.search(output) else "script"


def find_failed_packages(output: str) -> tuple[str, ...]:
    """Return the packages that dpkg could not process, the first to fail first."""
    named = re.findall(r"^dpkg: error processing (?:package|archive) (\S+)", output, re.MULTILINE)
    # apt numbers the links to archives that it makes for dpkg: /tmp/apt-dpkg-install-6ZWML7/17-NAME_VERSION_amd64.deb
    archive = re.compile(r"(?:.*/apt-dpkg-install-\w+/\d+-|.*/)([^_/]+)_[^/]*\.deb\Z")
    return tuple(dict.fromkeys(archive.sub(r"\1", name) for name in named))


def find_build_log(output: str) -> str:
    """Return the path of the make.log that DKMS names; empty if it names none."""
    match = re.search(r"(/\S+/make\.log)", output)
    return match[1] if match else ""


def find_build_error(log: str) -> str:
    """Return the first error line of a make.log; empty if there is none."""
    pattern = re.compile(
        r"\b(error|fatal error|ERROR)\b\s*:|^make.*\*\*\*|No such file or directory|undefined (reference|!)"
    )
    return next((line.strip() for line in log.splitlines() if pattern.search(line)), "")


_MAX_QUOTED_LINES = 12
_DPKG_PACKAGE_LINE_STARTS = (
    "Setting up ",
    "Unpacking ",
    "Preparing to unpack ",
    "Removing ",
    "Purging configuration files ",
)


def quote_failure(output: str) -> str:
    """Return the output about the first failed package, at most ``_MAX_QUOTED_LINES`` lines."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    end = next((number for number, line in enumerate(lines) if line.startswith("dpkg: error processing ")), -1) + 2
    if end == 1:
        return "\n".join(lines[-_MAX_QUOTED_LINES:])
    begin = next((number for number in reversed(range(end)) if lines[number].startswith(_DPKG_PACKAGE_LINE_STARTS)), 0)
    return "\n".join(lines[max(begin, end - _MAX_QUOTED_LINES) : end])


def explain_failure(
    action: str, stdout: str, stderr: str, *, make_log: str = "", exit_status: int = 100
) -> GpunodeError:
    """Make the error for a failed run of apt.

    ``action`` follows "could not"; ``make_log`` is the content of the file that ``find_build_log`` names.
    """
    everything = f"{stdout}\n{stderr}"
    kind = classify_failure(stdout, stderr, exit_status)
    what = f"could not {action}: {FAILURE_TEXTS[kind]}"
    match kind:
        case "script" | "dkms":
            return _package_error(action, everything, make_log)
        case "unmet" | "held":
            return ChangeFailed(what, why=refusal(stdout, stderr), hint=_HINT_BY_FAILURE_KIND[kind])
        case "lock":
            return Busy(what, why=_quote_apt(everything), hint=_HINT_BY_FAILURE_KIND[kind])
        case "mid-sync":
            named = ", ".join(failed_fetches(everything)[:3])
            return ChangeFailed(
                f"{what} ({named})" if named else what, why=_quote_apt(everything), hint=_HINT_BY_FAILURE_KIND[kind]
            )
        case "killed" if exit_status > SIGNAL_EXIT_STATUS_BASE:
            why = f"signal {exit_status - SIGNAL_EXIT_STATUS_BASE} ended apt; its last lines:\n{_quote_apt(everything)}"
            return ChangeFailed(what, why=why, hint=_HINT_BY_FAILURE_KIND[kind])
        case _:
            return ChangeFailed(what, why=_quote_apt(everything), hint=_HINT_BY_FAILURE_KIND[kind])


def _quote_apt(output: str) -> str:
    """Return apt's error messages, without the hashes listed below them."""
    errors = messages(output, "E") + [warning for warning in messages(output, "W") if re.search(r"rror|ailed", warning)]
    own = [line for line in output.splitlines() if line.startswith((" ", "dpkg: error"))]
    errors += [line.strip() for line in own if _DISK_FULL.search(line) or line.endswith(": Read-only file system")]
    lines = [message.splitlines()[0] for message in errors] or output.strip().splitlines()[-5:]
    return "\n".join(list(dict.fromkeys(lines))[:8])


def _package_error(action: str, output: str, make_log: str) -> ChangeFailed:
    package = next(iter(find_failed_packages(output)), "")
    named = f"package {package}" if package else "a package"
    if log := find_build_log(output):
        error = find_build_error(make_log)
        if (other := _OTHER_MODULE_MAKE_LOG.search(log)) and package.startswith(_KERNEL_PACKAGE_PREFIXES):
            remove = command("dkms", "remove", "-m", other["module"], "-v", other["version"], "--all")
            return ChangeFailed(
                f"could not {action}: {named} stays unconfigured, because DKMS cannot build {other['module']} "
                f"{other['version']}, another module of this node",
                why=error or quote_failure(output),
                hint=f"read the build log, then fix that module, or remove it or its package:\n  less {log}\n"
                f"  {remove}\n{_DPKG_REPAIR_ADVICE}",
            )
        return ChangeFailed(
            f"could not {action}: the kernel module of {named} does not build",
            why=error or quote_failure(output),
            hint="read the build log, then repair or choose another driver branch:\n  less "
            f"{log}\n{_DPKG_REPAIR_ADVICE}",
        )
    if broken := _DKMS_SOURCE_BROKEN.search(output):
        forget = command("rm", "-r", f"/var/lib/dkms/{broken[1]}")
        return ChangeFailed(
            f"could not {action}: DKMS cannot remove the module of {named}, because its source has been deleted",
            why=quote_failure(output),
            hint=f"remove what DKMS keeps of that module:\n  {forget}\n{_DPKG_REPAIR_ADVICE}",
        )
    return ChangeFailed(
        f"could not {action}: {named} could not be set up or removed",
        why=quote_failure(output),
        hint=f"dpkg or a maintainer script printed the lines above; once their cause is fixed:\n{_DPKG_REPAIR_ADVICE}",
    )


_DPKG_REPAIR_ADVICE = "  sudo dpkg --configure -a\nthen run the same command again"

FAILURE_TEXTS: dict[AptFailureKind, str] = {
    "interrupted": "an earlier run of dpkg was interrupted",
    "disk": "the disk is full",
    "read-only": "a file system is mounted read-only",
    "dkms": "a kernel module does not build",
    "script": "a package could not be set up or removed",
    "lock": "another program is using apt or dpkg",
    "hook": "a command that apt's configuration has it run failed",
    "temporary": "apt could not write a temporary file",
    "clock": "this node's clock is behind the dates of a repository",
    "signature": "a repository's signature cannot be verified",
    "release-changed": "a repository has changed its origin, suite or label",
    "release-date": "a repository's index is out of date, or this node's clock is wrong",
    "mid-sync": "a repository is in mid-sync, its index and its files do not match",
    "stale-index": "files listed in the package index are gone",
    "denied": "a repository or proxy refuses access",
    "missing": "there is nothing at that address",
    "certificate": "a server's certificate is not trusted",
    "refused": "a server refuses the connection",
    "network": "a server cannot be reached",
    "held": "a package on hold would be changed",
    "unmet": "apt finds no solution",
    "killed": "apt, or a program that it started, was killed or crashed",
    "other": "apt failed",
}

_ARCHIVE_UNREACHABLE_HINT = (
    "check the network, the DNS and the proxy, which apt reads from its configuration or from the environment "
    "(http_proxy, https_proxy), then run the same command again:\n"
    "  apt-config dump | grep -i proxy\n  env | grep -i _proxy\n"
    "without access to NVIDIA's servers, name mirrors of them in the recipe: [repositories], keys cuda and toolkit"
)

_HINT_BY_FAILURE_KIND: dict[AptFailureKind, str] = {
    "interrupted": f"finish what it began:\n{_DPKG_REPAIR_ADVICE}",
    "disk": "make room, then run the same command again:\n  df -h / /var /boot /tmp\n  sudo apt-get clean",
    "read-only": (
        "mount it writable, then run the same command again; after a disk error the kernel remounts the file "
        "system read-only:\n  findmnt -O ro\n  journalctl -k | grep -i -e 'remounting' -e 'i/o error' | tail"
    ),
    "dkms": _DPKG_REPAIR_ADVICE,
    "script": _DPKG_REPAIR_ADVICE,
    "lock": "wait until it has finished, then run the same command again",
    "hook": (
        "fix or remove that command, then run the same command again, which continues from here:\n"
        "  grep -rnE 'Invoke|Pre-Install-Pkgs' /etc/apt"
    ),
    "temporary": (
        "its folder, /tmp unless TMPDIR names another, needs free space and mode 1777; then run the same command "
        "again:\n  df -h /tmp\n  ls -ld /tmp"
    ),
    "clock": "set the clock, then run the same command again:\n  timedatectl",
    "signature": (
        "compare this node's clock with the true time (timedatectl); then check the key that the list file names in "
        "Signed-By against the one that the repository publishes; gpunode never turns verification off"
    ),
    "release-changed": (
        "read what changed, and accept it if it is intended:\n  sudo apt-get update --allow-releaseinfo-change\n"
        "then run the same command again"
    ),
    "release-date": "compare the clock with the dates above, then run the same command again:\n  timedatectl",
    "mid-sync": "this is the repository's fault; wait half an hour, then run the same command again",
    "stale-index": "the index was refreshed and still lists them: the repository is broken or in mid-sync; try later",
    "denied": (
        "check the proxy (Acquire::http::Proxy) and the credentials (/etc/apt/auth.conf.d), then run the same command "
        "again; apt takes the proxy from its configuration, or from the environment (http_proxy, https_proxy):\n"
        "  apt-config dump | grep -i proxy\n  env | grep -i _proxy"
    ),
    "missing": "check the address in the list file or the recipe's [repositories]",
    "certificate": (
        "a clock that is wrong makes every certificate invalid (timedatectl); if a proxy opens encrypted connections, "
        "give apt its CA (Acquire::https::CaInfo in /etc/apt/apt.conf.d); then run the same command again; "
        "Acquire::https::Verify-Peer does not turn the check off for what gpunode adds:\n"
        "  apt-config dump | grep -i -e cainfo -e verify"
    ),
    "refused": _ARCHIVE_UNREACHABLE_HINT,
    "network": _ARCHIVE_UNREACHABLE_HINT,
    "held": "release the hold if the package may be changed, then run the same command again:\n  apt-mark showhold",
    "unmet": (
        "nothing was changed; list the available versions and the holds:\n  apt-cache policy PACKAGE\n"
        "  apt-mark showhold"
    ),
    "killed": (
        "check whether it crashed, or the kernel killed it for lack of memory; then run the same command again, which "
        "finishes what was begun:\n  journalctl -k | grep -i -e 'out of memory' -e segfault | tail"
    ),
    "other": "read apt's messages above; gpunode's log has the whole output",
}
