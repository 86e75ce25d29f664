"""Packages and repositories: keys, sources, locks, half-done work, dependencies, files of two owners, a .run beside."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import remedies
from gpunode.diagnoses.addresses import DRIVER_GUIDE, TOOLKIT_GUIDE
from gpunode.diagnoses.chains import MISMATCHES, NO_DRIVER, NO_TOOLKIT
from gpunode.diagnoses.commands import command, edited
from gpunode.diagnoses.model import Citation, Family, Fix, Proof, Rule, Severity, Verdict, only
from gpunode.diagnoses.remedies import by_hand, reboot, rebuild_initramfs, run, setup_step, takes_gpunode, uninstall
from gpunode.diagnoses.snapshot import Snapshot, cite, finds, stated
from gpunode.diagnoses.views import archives, driver, packages
from gpunode.diagnoses.views.archives import Listed, Owner, RefusedKey
from gpunode.diagnoses.views.history import is_drivers
from gpunode.diagnoses.views.system import distro, package_manager
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

# --- keys ---------------------------------------------------------------------------------------------------------

_CUDA_DIR: Final = Pattern(r"/cuda/repos/(?P<dir>\w+)/(?P<arch>\w+)")
# apt-key went away with Debian 13 and Ubuntu 24.10.
_SIGNED_WITH_IT: Final = {"ubuntu1604", "ubuntu1804", "ubuntu2004", "debian10", "debian11", "wsl-ubuntu"}
_WITHOUT_APT_KEY: Final = {"debian": 13.0, "ubuntu": 24.10}


def _refused(snapshot: Snapshot, owner: Owner) -> tuple[RefusedKey, ...]:
    return tuple(one for one in snapshot.view(archives.refused_keys) if one.owner == owner)


def _cuda_key(snapshot: Snapshot) -> Iterator[Verdict]:
    if not (refused := _refused(snapshot, "cuda")):
        yield from _predicted(snapshot, "cuda")
        return
    key = next((one.key for one in refused if one.key), "")
    named = f" ({key})" if key else ""
    if any(one.is_weak for one in refused):
        what = f"NVIDIA's CUDA repository is signed by a key{named} that this release's policy takes for too weak"
    elif archives.RETIRED_KEY.endswith(key[-16:]) and key:
        what = f"NVIDIA's CUDA repository is still checked against the key{named} that NVIDIA withdrew in April 2022"
    else:
        what = f"NVIDIA's CUDA repository is signed by a key{named} that this node does not have"
    other = "the container toolkit's repository: its key is DDCAE044F796ECB0"
    yield Proof(what, tuple(one.citation for one in refused), ruled_out=(other,))


def _predicted(snapshot: Snapshot, owner: Owner) -> Iterator[Verdict]:
    """The next update is going to refuse the repository: nothing fails yet that is installed."""
    whose = "NVIDIA's CUDA repository" if owner == "cuda" else "the container toolkit's repository"
    for one in snapshot.view(archives.unkeyed):
        if one.owner == owner:
            severity: Severity = "warning" if driver.works(snapshot) else "error"
            yield Proof(f"apt cannot check {whose}: {one.why}", (one.entry.citation,), severity=severity)
            return


def _renew_cuda_key(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(archives.unkeyed) and not _refused(snapshot, "cuda") and takes_gpunode(snapshot):
        yield setup_step(snapshot, "configure", "set the repository up anew, its key checked", "cuda-repository")
        return
    if snapshot.view(package_manager) == "apt":
        yield from _drop_retired_key(snapshot)
        refused = (match for one in _refused(snapshot, "cuda") if (match := _CUDA_DIR.search(one.url)))
        if match := next(refused, None):
            package = "cuda-keyring_1.1-1_all.deb"
            url = f"https://developer.download.nvidia.com/compute/cuda/repos/{match['dir']}/{match['arch']}/{package}"
            fetch, put = command("curl", "-fsSLO", url), command("sudo", "dpkg", "-i", package)
            yield run("install", "install NVIDIA's package with the current key", fetch, put, "sudo apt-get update")
        if takes_gpunode(snapshot):
            text = "or let gpunode set the repository up, its key checked"
            yield setup_step(snapshot, "configure", text, "cuda-repository")
        return
    keys = "rpm -qa gpg-pubkey --qf '%{NAME}-%{VERSION}-%{RELEASE} %{SUMMARY}\\n' | awk '/cudatools/ {print $1}'"
    yield run("remove", "remove the old key of cudatools", f"{keys} | xargs -r sudo rpm -e")
    manager = "zypper --gpg-auto-import-keys refresh" if snapshot.view(package_manager) == "zypper" else "dnf makecache"
    yield run("configure", "fetch the repository's description again; it names the new key", f"sudo {manager}")


def _drop_retired_key(snapshot: Snapshot) -> Iterator[Fix]:
    known = distro(snapshot)
    gone = _WITHOUT_APT_KEY.get(known.id) if known else None
    folders = [match["dir"] for one in _refused(snapshot, "cuda") if (match := _CUDA_DIR.search(one.url))]
    is_old = not folders or any(folder in _SIGNED_WITH_IT for folder in folders)
    if is_old and (gone is None or not known or _number(known.version_id) < gone):
        yield run("remove", "remove the key that NVIDIA withdrew", "sudo apt-key del 7fa2af80")


def _number(version: str) -> float:
    match = re.match(r"\d+(?:\.\d+)?", version)
    return float(match[0]) if match else 0.0


def _toolkit_key(snapshot: Snapshot) -> Iterator[Verdict]:
    if refused := _refused(snapshot, "toolkit"):
        what = (
            "the container toolkit's repository is signed by a key that the keyring of its source entry does not hold"
        )
        other = "the CUDA repository: its keys are A4B469963BF863CC and newer ones"
        yield Proof(what, tuple(one.citation for one in refused), ruled_out=(other,))
    else:
        yield from _predicted(snapshot, "toolkit")


_TOOLKIT_URL: Final = "https://nvidia.github.io/libnvidia-container"


def _renew_toolkit_key(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(package_manager) != "apt":
        repository = f"{_TOOLKIT_URL}/stable/rpm/nvidia-container-toolkit.repo"
        is_zypper = snapshot.view(package_manager) == "zypper"
        place = f"/etc/{'zypp' if is_zypper else 'yum'}/repos.d/nvidia-container-toolkit.repo".replace("yum/", "yum.")
        fetch = f"{command('curl', '-fsSL', repository)} | {command('sudo', 'tee', place)} >/dev/null"
        again = "sudo zypper --gpg-auto-import-keys refresh" if is_zypper else "sudo dnf makecache"
        yield run("configure", "fetch the repository's description again; it names the key", fetch, again)
        return
    by_person = remedies.TOOLKIT_ARCHIVE
    if takes_gpunode(snapshot):
        text = "set the repository up anew, its key checked"
        yield setup_step(snapshot, "configure", text, "toolkit-repository")
        yield run("configure", "or by hand: the key, then the entry that names it", *by_person)
    else:
        yield run("configure", "fetch the key, then write the entry that names it", *by_person)


# --- one archive, two keys ----------------------------------------------------------------------------------------

_CONFLICT: Final = Pattern(
    r"Conflicting values set for option (?:Signed-By|Trusted) regarding source (?P<url>\S+)(?P<rest>.*)"
)
# The list files of packages and instructions that today's have replaced.
_OLD_LISTS: Final = Pattern(
    r"/(?:nvidia-docker|libnvidia-container|nvidia-container-runtime|cuda)\.list$|/archive_uri-"
)
# Those of today's.
_CURRENT_LISTS: Final = Pattern(r"/(?:nvidia-container-toolkit|cuda-[a-z]+\d+-\w+)\.(?:list|sources)$")
_LIST_NAME: Final = Pattern(r"/etc/apt/(?:sources\.list\.d/[\w.-]+\.(?:list|sources)|sources\.list)")


def _signed_by(snapshot: Snapshot) -> Iterator[Verdict]:
    predicted = tuple(one for one in snapshot.view(archives.conflicts))
    entries = tuple(one.citation for same in predicted for one in same)
    if said := snapshot.said(_CONFLICT):
        url = _conflict(snapshot) or "one archive"
        yield Proof(
            f"two source entries name {url} with different keys, so apt reads no list at all", (*said, *entries)
        )
    elif entries:
        one = predicted[0][0].source
        files = ", ".join(dict.fromkeys(entry.source.file for entry in predicted[0]))
        yield Proof(f"{files} name {one.uri} with different Signed-By, so apt will read no list at all", entries)


def _conflict(snapshot: Snapshot) -> str:
    """The archive that apt complains of, one of NVIDIA's before others; empty where it does not."""
    found = [match["url"] for item in snapshot.items if item.is_seen for match in finds(item, _CONFLICT)]
    wrapped = snapshot.match(_CONFLICT)
    every = [*found, *([wrapped["url"]] if wrapped else [])]
    return next((url for url in every if archives.owner_of(url) != "other"), every[0] if every else "")


def _keep_one_entry(snapshot: Snapshot) -> Iterable[Fix]:
    url = _conflict(snapshot) or next((s[0].source.uri for s in snapshot.view(archives.conflicts)), "")
    owner = archives.owner_of(url)
    surplus = _surplus(snapshot)
    archive = _archive(url)
    if surplus:
        edits = (edit for file in surplus for edit in _without(archive, file))
        yield run("remove", "take the entry that is too many away", *edits)
    elif owner == "other" or not archive:
        find = command("grep", "-rF", "--", archive or "Signed-By", "/etc/apt/sources.list", "/etc/apt/sources.list.d")
        yield run("inspect", "see what names it", find)
        yield by_hand("remove", "remove all entries for it but one")
    else:
        keep = {"toolkit": "/nvidia-container-toolkit\\.list$", "cuda": "/cuda-[a-z]+[0-9]+-[a-z0-9_]+\\.list$"}
        find = command("grep", "-rlsF", "--include=*.list", "--", archive, *_LISTS)
        edit = command("sudo", "sed", "-i.bak", "-E", _commented(archive))
        others = f"{find} | {command('grep', '-vE', keep[owner])} | xargs -r -d '\\n' {edit}"
        yield run("remove", "comment the other entries that name it out", others)
    step = {"toolkit": "toolkit-repository", "cuda": "cuda-repository"}.get(owner)
    if step and takes_gpunode(snapshot):
        yield setup_step(snapshot, "configure", "write the one entry that is needed", step)
    else:
        yield run("inspect", "see that apt reads its lists again", "sudo apt-get update")


_LISTS: Final = ("/etc/apt/sources.list", "/etc/apt/sources.list.d")
_ARCHIVE: Final = Pattern(r"https?://(?P<archive>[a-z0-9][a-z0-9.-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*){0,2})")


def _archive(url: str) -> str:
    """Host and first folders of an archive: what follows is written in several ways in lists."""
    match = _ARCHIVE.match(url)
    return match["archive"] if match else ""


def _without(archive: str, file: str) -> tuple[str, ...]:
    """The command that takes an archive out of a file of apt's: its lines of a list, its paragraph of a newer file."""
    if not archive:
        return ()
    # /etc/apt/sources.list as well
    return edited(_commented(archive) if file.endswith(".list") else _switched_off(archive), file)


def _switched_off(archive: str) -> str:
    """The expression of sed for the paragraph alone: other archives of the file stay (sources.list(5), Enabled)."""
    plain = archive.replace(".", r"\.")
    return f"\\|^[Uu][Rr][Ii][Ss]:.*{plain}|i Enabled: no"


def _commented(archive: str) -> str:
    plain = archive.replace(".", r"\.")
    return f"\\|{plain}|s/^[[:space:]]*deb/#&/"


def _surplus(snapshot: Snapshot) -> tuple[str, ...]:
    """The files with entries to be dropped: where some name a key, those that name none, else those of old names.

    Of entries that are known, none but theirs: what else stands in the folder is nobody's surplus.
    """
    for same in snapshot.view(archives.conflicts):
        bare = [entry for entry in same if not entry.source.signed_by]
        old = [entry for entry in same if _OLD_LISTS.search(entry.source.file)]
        other = [entry for entry in same if not _CURRENT_LISTS.search(entry.source.file)]
        for surplus in (bare, old, other):
            if 0 < len(surplus) < len(same):
                return _files(surplus, [entry for entry in same if entry not in surplus])
        return ()
    # Without the entries, a grep for the archive's host has named the files.
    greps = (item for item in snapshot.of("listing") if item.source.words[:1] and "grep" in item.source.words[0])
    named = tuple(dict.fromkeys(file for item in greps for file in _LIST_NAME.findall(item.text)))
    surplus_named = tuple(file for file in named if _OLD_LISTS.search(file))
    return surplus_named if len(surplus_named) < len(named) else ()


def _files(surplus: Iterable[Listed], kept: Iterable[Listed]) -> tuple[str, ...]:
    """The files of what is too many; where an entry that stays is in the same file, a person must choose the line."""
    staying = {entry.source.file for entry in kept}
    return tuple(dict.fromkeys(entry.source.file for entry in surplus if entry.source.file not in staying))


# --- another program at work --------------------------------------------------------------------------------------

_LOCKED: Final = Pattern(
    r"Could not get lock /\S+(?!.{0,40}Permission denied)|Unable to acquire the dpkg (?:frontend|database) lock"
    r"|dpkg (?:frontend|database) lock (?:was|is) locked by another process|Waiting for cache lock"
    r"|Unable to lock (?:the administration )?directory|Failed to lock apt for exclusive operation"
    r"|Existing lock /var/run/yum\.pid|Another app is currently holding the yum lock"
    r"|Waiting for process with pid \d+ to finish|System management is locked by the application with pid \d+"
    r"|unable to lock database|another process is using the (?:dpkg|package) (?:database|manager)"
)
_DENIED: Final = Pattern(r"are you root\?|13: Permission denied|requires root|superuser privilege")
_HOLDER: Final = Pattern(
    r"held by process (?P<pid>\d+)(?: \((?P<name>[^)]+)\))?"
    r"|(?:with|as) pid[: ]+(?P<other>\d+)(?: \((?P<program>[^)]+)\))?"
)


def _lock(snapshot: Snapshot) -> Iterator[Verdict]:
    said = snapshot.said(_LOCKED)
    if not said:
        yield from _held_now(snapshot)
    if not said or all(_DENIED.search(_text_of(snapshot, one)) for one in said):
        return
    holder = snapshot.match(_HOLDER)
    who = ""
    if holder:
        name = holder["name"] or holder["program"]
        pid = holder["pid"] or holder["other"]
        who = f": {name} (process {pid})" if name else f": process {pid}"
    yield Proof(f"another program is at work on the package database{who}; its lock passes when it has finished", said)


_LISTED_LOCK: Final = Pattern(r"^[ \t]*(?P<name>\S+)\s+(?P<pid>\d+)\s+/var/lib/(?:dpkg|rpm)/(?:lock|\.rpm\.lock)\S*")


def _held_now(snapshot: Snapshot) -> Iterator[Verdict]:
    """A program holds the lock right now: nobody was refused yet, and it passes, so that is no fault of the node."""
    for item in snapshot.items:
        if not item.written.startswith("lslocks ") or item.outcome != "ok":
            continue
        for number, line in enumerate(item.lines, 1):
            if match := _LISTED_LOCK.match(line):
                who = f"{match['name']} (process {match['pid']})"
                summary = f"{who} is at work on the package database; what needs the lock has to wait for it"
                yield Proof(summary, (cite(item, number),), severity="info")
                return


def _text_of(snapshot: Snapshot, citation: Citation) -> str:
    return next((item.text for item in snapshot.items if item.key == citation.key), "")


def _wait(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(package_manager) != "apt":
        yield by_hand("wait", "wait until the other program has finished, then run the command again")
        return
    text = "wait until it has finished; apt does that by itself when it is told how long"
    yield run("wait", text, "sudo apt-get -o DPkg::Lock::Timeout=600 check")
    text = "where nodes are set up at their first boot, let the automatic upgrade end before"
    yield run("wait", text, "sudo systemctl start --wait apt-daily-upgrade.service", when="it is the first boot")


# --- half-done work -----------------------------------------------------------------------------------------------

_INTERRUPTED: Final = Pattern(r"dpkg was interrupted, you must manually run|dpkg --configure -a")
_NOT_FULLY: Final = Pattern(r"^[ \t]*[1-9]\d* not fully installed or removed", re.MULTILINE)
_LEFT: Final = Pattern(
    r"dependency problems - leaving unconfigured|Errors were encountered while processing:"
    r"|dpkg: error processing package (?P<package>\S+) \(--configure\)"
    r"|Sub-process \S*dpkg returned an error code|%(?:post|pre)\w*\(?\S*\)? scriptlet failed"
)
_OVERWRITE: Final = Pattern(
    r"trying to overwrite (?:shared )?['‘\"“](?P<file>[^'’\"”]+)['’\"”], "
    r"which is (?:also in package (?P<owner>\S+)(?: (?P<theirs>\d\S*))?|different)"
    r"|file (?P<rpm>/\S+) (?:from install of (?P<new>\S+) )?conflicts (?:with file from package (?P<old>\S+)|between)"
    r"|dpkg-divert: (?:error: )?[`'‘\"].{5,200}clashes with"
    r"|\(--unpack\): .{0,60}?['‘«„\"](?P<unpacked>/(?:usr|lib|etc|opt)/[^'’»“\"]+)['’»“\"]"
    r"|: (?P<arch>/\S+) exists in filesystem(?: \(owned by (?P<by>\S+)\))?"
)
_DKMS: Final = Pattern(r"\bnvidia[\w-]{0,60}dkms|Bad return status for module build|make\.log")


def _unconfigured(snapshot: Snapshot) -> Iterator[Verdict]:
    half = [one for one in snapshot.view(packages.packages).values() if one.is_half_done]
    said = (*snapshot.said(_NOT_FULLY), *snapshot.said(_INTERRUPTED))
    stopped = snapshot.facts.dpkg_interrupted
    noted = isinstance(stopped, Known) and stopped.value
    if half or said or noted:
        names = ", ".join(sorted(one.name for one in half)[:4])
        what = (
            f"dpkg unpacked {names} and did not configure {_them(half)}"
            if half
            else "dpkg left packages half installed"
        )
        cited = (*(one.citation for one in half), *said)
        yield Proof(what, cited or (stated("/var/lib/dpkg/updates", "notes of an interrupted run"),))
    elif left := _left(snapshot):
        what = f"{left[0]}'s own script failed, and its package is left half installed"
        yield Proof(what, snapshot.said(_LEFT), "likely")


def _left(snapshot: Snapshot) -> tuple[str, ...]:
    """The driver's packages that the package manager says it could not finish."""
    said = snapshot.of("package-output", "text", "package-history", "application")
    told = (item for item in said if not item.is_register)
    named = (match["one"] or match["two"] for item in told for match in _FAILED.finditer(item.text))
    return tuple(dict.fromkeys(name for name in named if is_drivers(name)))


_FAILED: Final = Pattern(
    r"error processing package (?P<one>[a-z0-9][\w.+-]*)"
    r"|^(?:Errors were encountered while processing:)?\s(?P<two>[a-z0-9][\w.+-]*)(?::\w+)?\s*$",
    re.MULTILINE,
)


def _them(names: list[packages.Package]) -> str:
    return "it" if len(names) == 1 else "them"


def _finish(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.says(_DKMS, "package-output", "text", "dkms-output") or any(
        _DKMS.search(one.name) for one in snapshot.view(packages.packages).values() if one.is_half_done
    ):
        log = "sudo sh -c 'tail -n 60 /var/lib/dkms/nvidia*/*/build/make.log'"
        yield run("inspect", "read why the module did not build; that is to be repaired first", log)
    else:
        yield run("inspect", "see which packages they are and what each still needs", "sudo dpkg --audit")
    finish = ("sudo dpkg --configure -a", "sudo apt-get -f install")
    yield run("install", "finish what dpkg began", *finish)


# --- dependencies that cannot be met ------------------------------------------------------------------------------

_BROKEN: Final = Pattern(
    r"held broken packages|Unmet dependencies|unmet dependencies|requested an impossible situation"
    r"|Depends: \S+ .{0,80}but .{1,60}(?:is to be installed|is installed|not going to be installed|not installable)"
    r"|Held packages were changed|conflicting requests|cannot install (?:both|the best)|nothing provides \S*nvidia"
    r"|filtered out by modular filtering|Problem: .{0,80}nvidia|Conflicts: \S*nvidia\S*"
    r"|package \S*nvidia\S* (?:from \S+ )?conflicts with|Processing Conflict: "
)
_DRIVERS: Final = Pattern(r"nvidia|cuda|libcuda", re.IGNORECASE)
_WANTS: Final = Pattern(
    r"(?:(?<![\w.+-])(?P<by>[\w.+-]+)(?::\w+)?\s*: )?(?:Pre)?Depends: (?P<name>[a-z0-9][\w.+-]*)(?::\w+)? "
    r"\((?P<op>[<>=]{1,2}) (?P<wanted>[^)]{1,200})\) but (?P<offered>\d\S*) is (?:to be )?installed"
)
_VERSIONS: Final = Pattern(r"\b\d{3}\.\d{2,3}(?:\.\d{2})?-[\w.~+]+")
_HELD_SAID: Final = Pattern(r"Held packages were changed|following held packages will be changed")
# A driver built for a release that has a newer C library than this one.
_FOREIGN: Final = Pattern(
    r"Depends: (?:libc6|libssl\d\S*|libstdc\+\+6|libgcc-s1) \(>= [^)]+\) "
    r"but (?:\S+ is to be installed|it is not installable)"
)
_RPM_OTHER: Final = Pattern(
    r"package (?P<one>\S*nvidia\S*) (?:from \S+ )?(?:conflicts with|obsoletes) \S+ provided by "
    r"(?P<other>\S*nvidia\S*)"
)
_RPM_BOTH: Final = Pattern(r"cannot install both (?P<one>\S*nvidia\S*) (?:from \S+ )?and (?P<other>\S*nvidia\S*)")


def _dependencies(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """What keeps the package manager from its work: a hold, versions of two packagers, or the branch that is there."""
    said = snapshot.said(_BROKEN)
    concerned = any(_DRIVERS.search(_text_of(snapshot, one)) for one in said)
    holds = {name: place for name, place in packages.holds(snapshot).items() if is_drivers(name)}
    mixed = _mixed(snapshot)
    if not said or not concerned:
        if between := _between_packagers(snapshot):
            yield "mixed-repo-packages", Proof(_mixed_summary(snapshot), between)
            return
        if mixed and not _mismatched(snapshot):
            # It works as long as nothing is upgraded.
            severity: Severity = "warning" if driver.works(snapshot) else "error"
            yield "mixed-repo-packages", Proof(_mixed_summary(snapshot), mixed, severity=severity)
        return
    if between := _between_packagers(snapshot):
        yield "mixed-repo-packages", Proof(_mixed_summary(snapshot), (*between, *said))
        return
    if snapshot.says(_OVERWRITE) or any(one.is_half_done for one in snapshot.view(packages.packages).values()):
        return  # apt complains of what dpkg left behind
    if holds:
        names = ", ".join(sorted(holds))
        what = (
            f"{names} {'is' if len(holds) == 1 else 'are'} on hold, so the driver's packages cannot come to one version"
        )
        yield "held-or-broken-packages", Proof(what, (*holds.values(), *said), ruled_out=("a conflict of branches",))
    elif not driver.strayed(snapshot):  # else what stands in the way is there, and no repository offers it
        yield _offered(snapshot, said, mixed)


def _offered(snapshot: Snapshot, said: tuple[Citation, ...], mixed: tuple[Citation, ...]) -> tuple[str, Verdict]:
    """Which repository's packages do not fit those that are installed."""
    if lines := (_differing(snapshot) or mixed):
        return "mixed-repo-packages", Proof(_mixed_summary(snapshot), (*lines, *said))
    if foreign := snapshot.said(_FOREIGN):
        what = "the driver's packages come from a repository for another release than this one, with a newer C library"
        return "mixed-repo-packages", Proof(what, (*foreign, *said))
    old = _other_branch(snapshot)
    what = "the packages asked for cannot stand beside those that are installed"
    if old:
        branch = old[0].upstream.split(".")[0]
        what = f"the packages of branch {branch} are installed and keep another branch's from coming"
    none = _shows_no_holds(snapshot)
    ruled_out = ("a hold: apt-mark shows none",) if none else ()
    certain = bool(old) or none or snapshot.says(_HELD_SAID)
    cited = (*said, *(one.citation for one in old))
    return "held-or-broken-packages", Proof(what, cited, "certain" if certain else "likely", ruled_out)


def _shows_no_holds(snapshot: Snapshot) -> bool:
    asked = [item for item in snapshot.of("packages") if "showhold" in item.source.words]
    return bool(asked) and not packages.holds(snapshot)


def _differing(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines in which one package of a branch is wanted in another version of it than the one that is chosen."""
    return tuple(
        cite(item, item.number_at(match.start()))
        for item in snapshot.of("package-output", "text", "application", "journal")
        for match in _WANTS.finditer(item.text)
        if is_drivers(match["name"]) and _upstream(match["wanted"]) != _upstream(match["offered"])
    ) or (*snapshot.said(_RPM_BOTH), *_two_packagers(snapshot), *_two_origins(snapshot))


def _two_packagers(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines in which rpm packages conflict that RPM Fusion calls otherwise than NVIDIA and negativo17."""
    match = snapshot.match(_RPM_OTHER)
    fusion = [bool(_FUSION.match(match[name])) for name in ("one", "other")] if match else []
    return snapshot.said(_RPM_OTHER) if len(set(fusion)) == 2 else ()


def _two_origins(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The installed driver packages of rpm repositories that each call them their own way, whatever their versions."""
    installed = (one for one in snapshot.view(packages.packages).values() if one.is_installed and one.origin)
    ours = (one for one in installed if is_drivers(one.name) and _BRANCH.match(one.upstream))
    found = [one for one in ours if archives.packager(one)]
    return tuple(one.citation for one in found) if len({archives.packager(one) for one in found}) > 1 else ()


_BRANCH: Final = Pattern(r"\d{3}\.\d")
_FUSION: Final = Pattern(r"xorg-x11-drv-nvidia|akmod-nvidia")


def _upstream(version: str) -> str:
    return version.split(":")[-1].split("-")[0].split("~")[0]


def _mixed(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The installed driver packages, where two packagers' stand side by side in different versions."""
    found = [one for one in driver.packaged(snapshot) if one.is_installed and archives.packager(one)]
    packagers = {archives.packager(one) for one in found}
    versions = {(one.upstream.split(".")[0], one.upstream) for one in found}
    of_one_branch = len({branch for branch, _ in versions}) < len(versions)
    return tuple(one.citation for one in found) if len(packagers) > 1 and of_one_branch else ()


_UNPACKED: Final = Pattern(r"[/ ](?P<name>[a-z][\w.+-]*)_(?P<version>[\w.+~%:-]+)_(?:amd64|arm64|all)\.deb")


def _between_packagers(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines of dpkg's in which two packagers' packages of one version have a file in common."""
    match = snapshot.match(_OVERWRITE)
    owner, version = (match["owner"] or "", match["theirs"] or "") if match else ("", "")
    unpacked = snapshot.match(_UNPACKED)
    if not version or unpacked is None or not is_drivers(owner) or not is_drivers(unpacked["name"]):
        return ()
    both = {archives.packager_of(version), archives.packager_of(unpacked["version"])} - {""}
    installed = (one for one in snapshot.view(packages.packages).values() if one.is_installed)
    listed = {archives.packager(one) for one in installed if is_drivers(one.name)}
    if not both <= listed:
        return ()  # one package that is new, not two sets that are there
    is_one = _upstream(version) == _upstream(unpacked["version"].replace("%3a", ":"))
    return (*snapshot.said(_UNPACKED), *snapshot.said(_OVERWRITE)) if len(both) == 2 and is_one else ()


def _mixed_summary(snapshot: Snapshot) -> str:
    installed = [one.version for one in driver.packaged(snapshot)]
    named = [version for item in snapshot.of("package-output", "text") for version in _VERSIONS.findall(item.text)]
    by = dict.fromkeys(name for name in map(archives.packager_of, (*installed, *named)) if name)
    who = " and ".join(by) if len(by) > 1 else "two repositories"
    return f"packages of one driver come from {who} in different versions, and neither set is complete"


def _mismatched(snapshot: Snapshot) -> bool:
    return any(state == "mismatch" for state, _ in snapshot.view(driver.smi))


def _other_branch(snapshot: Snapshot) -> tuple[packages.Package, ...]:
    """The installed driver packages, where none of them is among the names that were asked for."""
    asked = " ".join(item.text for item in snapshot.of("package-output", "text"))
    found = [one for one in driver.packaged(snapshot) if one.is_installed]
    return tuple(one for one in found if one.name not in asked)


def _release(snapshot: Snapshot) -> Iterable[Fix]:
    holds = sorted(name for name in packages.holds(snapshot) if is_drivers(name))
    if holds:
        yield remedies.unhold(snapshot, "release the hold, if it may be changed", *holds)
        if snapshot.view(package_manager) == "apt":
            yield run("install", "bring what depends on each other to one version", "sudo apt-get -f install")
    elif old := _other_branch(snapshot):
        yield uninstall(snapshot, "remove the other branch's packages, whole", *sorted(one.name for one in old))
    elif takes_gpunode(snapshot):
        # One transaction: the node has a driver all the time.
        text = "remove the packages of other branches and install the one that fits; gpunode names each before it does"
        yield setup_step(snapshot, "remove", text)
        return
    elif snapshot.view(package_manager) == "apt":
        yield run("remove", "let apt take away what stands in the way; it names it first", "sudo apt-get -f install")
    else:
        text = "let the package manager replace what is installed; it names each package before it does"
        yield remedies.one_version(snapshot, "remove", text)
    yield remedies.driver(snapshot, "then install the branch that is wanted")


def _one_origin(snapshot: Snapshot) -> Iterable[Fix]:
    yield remedies.one_archive(snapshot)
    yield remedies.driver(snapshot, "bring every package of the driver to its version")


# --- one file, two packages ---------------------------------------------------------------------------------------


def _file_conflict(snapshot: Snapshot) -> Iterator[Verdict]:
    said = snapshot.said(_OVERWRITE)
    match = snapshot.match(_OVERWRITE)
    if not said or match is None or not _DRIVERS.search(" ".join(_text_of(snapshot, one) for one in said)):
        return
    file = match["file"] or match["rpm"] or match["arch"] or match["unpacked"] or "a file"
    owner = match["owner"] or match["old"] or match["by"]
    yield Proof(f"two packages bring {file}{f'; {owner} has it already' if owner else ''}", said)


def _overwrite(snapshot: Snapshot) -> Iterable[Fix]:
    match = snapshot.match(_OVERWRITE)
    owner = (match["owner"] or match["old"] or match["by"] or "") if match else ""
    if snapshot.view(package_manager) == "apt":
        force = "sudo apt-get -o Dpkg::Options::=--force-overwrite -f install"
        yield run("install", "finish the installation, the newer package's file in place", force)
        if owner and is_drivers(owner):
            yield uninstall(snapshot, "then remove the branch that is not wanted", owner)
    elif owner:
        yield uninstall(snapshot, "remove the package that has the file", owner)
    else:
        text = "take both packages from one repository: switch the other one off, or exclude the driver in it"
        yield by_hand("configure", text)


# --- a .run beside packages ---------------------------------------------------------------------------------------

_UNINSTALLER: Final = Pattern(r"/usr/(?:local/)?bin/nvidia-uninstall")
_UNOWNED: Final = Pattern(
    r"no path found matching pattern (?P<file>/\S*lib(?:nvidia|cuda|GLX_nvidia|EGL_nvidia)\S*)"
    r"|file (?P<rpm>/\S*lib(?:nvidia|cuda)\S*) is not owned by any package"
    r"|No package owns (?P<arch>/\S*lib(?:nvidia|cuda)\S*)"
)
_PURGE: Final = Pattern(
    r"Preparing to unpack \S*nvidia"
    r"|\b(?:apt|apt-get|dnf|yum|zypper)\b.{0,40}\b(?:install|remove|purge)\b.{0,60}(?:nvidia|cuda)"
)
_TOLD: Final = Pattern(r"driver installation has been altered since it was|nvidia-installer-cleanup")


def _leftover(snapshot: Snapshot) -> Iterator[Verdict]:
    told = snapshot.said(_TOLD)
    trace = (*_run_trace(snapshot), *told)
    unowned = snapshot.said(_UNOWNED, "package-owner", "package-output", "text")
    if driver.works(snapshot) or not (trace or unowned):
        return
    packaged = [one for one in driver.packaged(snapshot) if one.is_installed]
    beside = (*(one.citation for one in packaged[:3]), *snapshot.said(_PURGE, "text", "package-output"))
    if not (trace and (unowned or beside)) and not (unowned and packaged):
        return
    if not packaged and _mismatched(snapshot):
        return  # no packaged driver is shadowed: two that were installed by hand are
    what = "NVIDIA's .run installer left a driver here"
    what += f" beside the packages of {packaged[0].upstream}" if packaged else " whose libraries belong to no package"
    yield Proof(what, (*trace, *unowned, *beside), "certain" if packaged and trace else "likely")


def _run_trace(snapshot: Snapshot) -> tuple[Citation, ...]:
    known = snapshot.facts.run_installer
    if isinstance(known, Known):
        return (stated("/usr/bin/nvidia-uninstall", "it is there", known.probe),) if known.value else ()
    seen = snapshot.of("listing", "which", "file", "installer-log")
    found = (item for item in seen if item.outcome == "ok" and item.where == "host" and "nvidia-uninstall" in item.text)
    return tuple(
        cite(item, number)
        for item in found
        for number, line in enumerate(item.lines, 1)
        if _UNINSTALLER.search(line) and "No such file" not in line and "cannot access" not in line
    )


# dpkg tells "ii " of what is installed; the container toolkit is no part of the driver.
_ALL_AGAIN: Final = (
    "sudo apt-get install --reinstall $(dpkg-query -W -f '${db:Status-Abbrev}${binary:Package}\\n' '*nvidia*' "
    "'libcuda*' | sed -n '/container/d; s/^ii *//p')"
)


def _take_run_away(snapshot: Snapshot) -> Iterable[Fix]:
    yield run("remove", "take the .run installation away with its own uninstaller", "sudo nvidia-uninstall --silent")
    if there := [one.name for one in driver.packaged(snapshot) if one.is_installed]:
        yield remedies.reinstall(snapshot, "put back the packages' files that it had replaced", *there)
    elif snapshot.view(package_manager) == "apt" and snapshot.says(_PURGE):
        # The package manager holds them to be whole, so nothing but this brings their files back.
        text = "put back the files of every installed package of the driver, which it had replaced"
        yield run("install", text, _ALL_AGAIN)
    else:
        yield remedies.driver(snapshot, "install the driver as packages")
    yield run("rebuild", "let the loader find the libraries that are left", "sudo ldconfig")
    yield rebuild_initramfs(snapshot)
    yield reboot()


_CUDA_BLOG: Final = "https://developer.nvidia.com/blog/updating-the-cuda-linux-gpg-repository-key/"
_TOOLKIT_TROUBLE: Final = (
    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html"
)
_DPKG: Final = "https://manpages.debian.org/stable/dpkg/dpkg.1.en.html"
_UNUSABLE: Final = NO_DRIVER | {"driver-not-installed", "driver-userspace-incomplete"}

FAMILY: Final = Family(
    "packages",
    "packages and repositories",
    (
        Rule(
            cause="apt-nvidia-key-rotated",
            layer="package",
            storey="packages",
            severity="error",
            disruption="none",
            title="the CUDA repository's key is not the one that this node trusts",
            story=(
                "NVIDIA signs each of its CUDA repositories with one key. In April 2022 the old one (7fa2af80) was "
                "withdrawn, and every newer distribution release has got its own since. A node that still has the old "
                "key, or none, refuses the repository's index: apt names the key after NO_PUBKEY, dnf and zypper speak "
                "of a public key that is not installed or not correct. Drivers and CUDA then stay as they are, and a "
                "fresh installation ends here."
            ),
            sources=(_CUDA_BLOG, DRIVER_GUIDE),
            check=_cuda_key,
            remedy=_renew_cuda_key,
            explains=_UNUSABLE,
        ),
        Rule(
            cause="apt-toolkit-key-missing",
            layer="package",
            storey="packages",
            severity="error",
            disruption="none",
            title="the container toolkit's repository key is missing",
            story=(
                "The container toolkit's repository at nvidia.github.io is signed by the key DDCAE044F796ECB0. The "
                "source entry names no keyring, or one that does not hold this key, as after instructions of the time "
                "of apt-key. apt then refuses the repository with NO_PUBKEY, and the toolkit is not found or not "
                "brought up to date."
            ),
            sources=(TOOLKIT_GUIDE,),
            check=_toolkit_key,
            remedy=_renew_toolkit_key,
            explains=NO_TOOLKIT | {"toolkit-not-installed"},
        ),
        Rule(
            cause="apt-signed-by-conflict",
            layer="package",
            storey="packages",
            severity="error",
            disruption="none",
            title="two source entries name one repository with different keys",
            story=(
                "apt takes an archive that two entries name for one archive, and their options have to agree. An old "
                "list file, such as nvidia-docker.list, without signed-by beside today's with it, makes apt stop "
                "before it has read any list: nothing can be installed or updated, from whatever repository, until one "
                "of the two entries is gone."
            ),
            sources=(_TOOLKIT_TROUBLE, "https://manpages.debian.org/stable/apt/sources.list.5.en.html"),
            check=_signed_by,
            remedy=_keep_one_entry,
            explains=_UNUSABLE | NO_TOOLKIT | {"toolkit-not-installed"},
        ),
        Rule(
            cause="dpkg-lock-held",
            layer="package",
            storey="packages",
            severity="error",
            disruption="none",
            title="another program is using the package database",
            story=(
                "Only one program at a time may change the package database. On a fresh cloud node that is "
                "unattended-upgrades or cloud-init, minutes after the first boot, and a provisioning that starts then "
                "fails with «Could not get lock». The lock passes by itself. To delete its file while the other "
                "program works can destroy the database."
            ),
            sources=("https://wiki.debian.org/UnattendedUpgrades", _DPKG),
            check=_lock,
            remedy=_wait,
        ),
        Rule(
            cause="dpkg-unconfigured-packages",
            layer="package",
            storey="packages",
            severity="error",
            disruption="none",
            title="packages are half installed",
            story=(
                "dpkg unpacks packages first and configures them after. A script that fails in between, for a driver "
                "mostly the build of its module, or an interruption, leaves them and everything that needs them "
                "unconfigured; the list shows iU, iF or iH. Every later run of apt begins by failing at the same place "
                "until the reason is gone."
            ),
            sources=(_DPKG,),
            check=_unconfigured,
            remedy=_finish,
            explains=MISMATCHES | _UNUSABLE | {"held-or-broken-packages"},
        ),
        Rule(
            cause="held-or-broken-packages",
            layer="package",
            storey="packages",
            severity="error",
            disruption="none",
            title="installed or held packages keep the driver from changing",
            story=(
                "A hold keeps a package at its version, and the packages of one driver branch conflict with another's. "
                "Asked for something that needs both, apt says «you have held broken packages», also where apt-mark "
                "shows no hold at all. Either the hold is released, or the old branch is removed in the step that "
                "brings the new one."
            ),
            sources=("https://github.com/NVIDIA/ansible-role-nvidia-driver/pull/33", DRIVER_GUIDE),
            check=only("held-or-broken-packages", _dependencies),
            remedy=_release,
            explains=frozenset({"driver-library-mismatch-partial-upgrade"}),
        ),
        Rule(
            cause="mixed-repo-packages",
            layer="package",
            storey="packages",
            severity="error",
            disruption="none",
            title="the driver's packages come from two repositories",
            story=(
                "Distributions and NVIDIA package the same driver under the same names, with other version suffixes "
                "and dependencies: -0ubuntu0.22.04.2 is Ubuntu's, -0ubuntu1 NVIDIA's. With both repositories enabled "
                "and no preference, apt chooses the highest version package by package, and the parts want each other "
                "in versions that are not to be had together."
            ),
            sources=(
                "https://github.com/aws-samples/aws-deep-learning-ami-ubuntu-dcv-desktop/issues/18",
                DRIVER_GUIDE,
            ),
            check=only("mixed-repo-packages", _dependencies),
            remedy=_one_origin,
            explains=MISMATCHES | {"held-or-broken-packages", "dpkg-unconfigured-packages", "package-file-conflict"},
        ),
        Rule(
            cause="package-file-conflict",
            layer="package",
            storey="packages",
            severity="error",
            disruption="none",
            title="two packages bring the same file",
            story=(
                "A file belongs to one package. Where packages of two driver branches, or of two packagers, are "
                "installed side by side without declaring a conflict, the second is unpacked up to the first file that "
                "another owns, and there dpkg or rpm stops: «trying to overwrite …, which is also in package …». What "
                "depends on it stays half installed."
            ),
            sources=("https://github.com/pop-os/shop/issues/121", _DPKG),
            check=_file_conflict,
            remedy=_overwrite,
            explains=frozenset({"dpkg-unconfigured-packages", "held-or-broken-packages"}) | MISMATCHES,
        ),
        Rule(
            cause="runfile-leftover",
            layer="package",
            storey="driver",
            severity="error",
            disruption="reboot",
            title="a driver of NVIDIA's .run installer is left beside the packages",
            story=(
                "The .run installer writes libraries and modules over the system's own, asks no package manager, and "
                "leaves /usr/bin/nvidia-uninstall. Packages that come later know nothing of them: the loader finds the "
                "old libraries first, the kernel an old module, and the versions differ. Only the installer's own "
                "uninstaller knows what it put where."
            ),
            sources=("https://github.com/SyneRBI/SIRF-SuperBuild/issues/273", DRIVER_GUIDE),
            check=_leftover,
            remedy=_take_run_away,
            explains=MISMATCHES | NO_DRIVER | {"duplicate-module-files"},
        ),
    ),
)
