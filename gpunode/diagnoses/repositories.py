"""Package repositories: keys that are missing, withdrawn or too weak, and archives that two entries name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.catalog.releases import release
from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.addresses import DRIVER_GUIDE, TOOLKIT_GUIDE
from gpunode.diagnoses.chains import NO_PACKAGES, NO_TOOLKIT
from gpunode.diagnoses.commands import Command, Shell, command, edited, joined
from gpunode.diagnoses.model import Check, Citation, Family, Fix, Proof, Rule, Severity, Sign
from gpunode.diagnoses.remedies import by_hand, run, setup_step, takes_gpunode
from gpunode.diagnoses.signs import any_of, fact, holds
from gpunode.diagnoses.snapshot import Snapshot, cite, finds
from gpunode.diagnoses.views import archives, driver, modules
from gpunode.diagnoses.views.archives import Listed, Owner, RefusedKey
from gpunode.diagnoses.views.system import distro, package_manager
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

_CUDA_DIR: Final = Pattern(r"/cuda/repos/(?P<dir>\w+)/(?P<arch>\w+)")
_SIGNED_WITH_IT: Final = {"ubuntu1604", "ubuntu1804", "ubuntu2004", "debian10", "debian11", "wsl-ubuntu"}


def _refused(snapshot: Snapshot, owner: Owner) -> tuple[RefusedKey, ...]:
    return tuple(one for one in snapshot.view(archives.refused_keys) if one.owner == owner)


def _key_refused(owner: Owner) -> Sign:
    return fact(lambda snapshot: (one.citation for one in _refused(snapshot, owner)))


def _which_cuda_key(snapshot: Snapshot) -> str:
    refused = _refused(snapshot, "cuda")
    key = next((one.key for one in refused if one.key), "")
    named = f" ({key})" if key else ""
    if any(one.is_weak for one in refused):
        return f"NVIDIA's CUDA repository is signed by a key{named} that this release's policy takes for too weak"
    if key and archives.RETIRED_KEY.endswith(key[-16:]):
        return f"NVIDIA's CUDA repository is still checked against the key{named} that NVIDIA withdrew in April 2022"
    return f"NVIDIA's CUDA repository is signed by a key{named} that this node does not have"


# A driver came to the node and does not run: what keeps newer ones from coming is another matter.
_HAS_ONE: Final = holds(
    lambda snapshot: driver.fails(snapshot) and bool(snapshot.view(modules.driver_builds)), "a driver is built here"
)


def _predicted(owner: Owner) -> Check:
    """The next update is going to refuse the repository: nothing fails yet that is installed."""

    def check(snapshot: Snapshot) -> Iterator[Proof]:
        whose = "NVIDIA's CUDA repository" if owner == "cuda" else "the container toolkit's repository"
        found = (one for one in snapshot.view(archives.unkeyed) if one.owner == owner)
        if (one := next(found, None)) and not _refused(snapshot, owner):
            severity: Severity = "warning" if driver.works(snapshot) else "error"
            yield Proof(f"apt cannot check {whose}: {one.why}", (one.entry.citation,), severity=severity)

    return check


def _renew_cuda_key(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(package_manager) != "apt":
        yield run("remove", "remove the old key of cudatools", _RETIRED_RPM_KEY)
        text = "fetch the repository's description again; it names the new key"
        yield run("configure", text, _READ_ANEW[snapshot.view(package_manager) == "zypper"])
        return
    refused = [match for one in _refused(snapshot, "cuda") if (match := _CUDA_DIR.search(one.url))]
    if refused or not snapshot.view(archives.unkeyed):
        yield from _drop_retired_key(snapshot, [match["dir"] for match in refused])
    for match in refused[:1]:
        package = "cuda-keyring_1.1-1_all.deb"
        url = f"https://developer.download.nvidia.com/compute/cuda/repos/{match['dir']}/{match['arch']}/{package}"
        fetch, put = command("curl", "-fsSLO", url), command("sudo", "dpkg", "-i", package)
        yield run("install", "install NVIDIA's package with the current key", fetch, put, Shell("sudo apt-get update"))
    if takes_gpunode(snapshot):
        text = f"{'or ' if refused else ''}let gpunode set the repository up, its key checked"
        yield setup_step(snapshot, "configure", text, "cuda-repository")


_RETIRED_RPM_KEY: Final = Shell(
    "rpm -qa gpg-pubkey --qf '%{NAME}-%{VERSION}-%{RELEASE} %{SUMMARY}\\n' | awk '/cudatools/ {print $1}' | "
    "xargs -r sudo rpm -e"
)
# By zypper, or not.
_READ_ANEW: Final = {
    True: Shell("sudo zypper --gpg-auto-import-keys refresh"),
    False: Shell("sudo dnf makecache"),
}


def _drop_retired_key(snapshot: Snapshot, folders: list[str]) -> Iterator[Fix]:
    known = distro(snapshot)
    has = release(known) if known else None
    is_old = not folders or not _SIGNED_WITH_IT.isdisjoint(folders)
    if is_old and (known is None or (has is not None and has.has_apt_key)):
        yield run("remove", "remove the key that NVIDIA withdrew", Shell("sudo apt-key del 7fa2af80"))


_TOOLKIT_URL: Final = "https://nvidia.github.io/libnvidia-container"


def _renew_toolkit_key(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(package_manager) != "apt":
        repository = f"{_TOOLKIT_URL}/stable/rpm/nvidia-container-toolkit.repo"
        is_zypper = snapshot.view(package_manager) == "zypper"
        folder = "/etc/zypp/repos.d" if is_zypper else "/etc/yum.repos.d"
        tee = command("sudo", "tee", f"{folder}/nvidia-container-toolkit.repo")
        curl = command("curl", "-fsSL", repository)
        fetch = joined(curl, Shell("|"), tee, Shell(">/dev/null"))
        text = "fetch the repository's description again; it names the key"
        yield run("configure", text, fetch, _READ_ANEW[is_zypper])
        return
    by_person = remedies.TOOLKIT_ARCHIVE
    if takes_gpunode(snapshot):
        text = "set the repository up anew, its key checked"
        yield setup_step(snapshot, "configure", text, "toolkit-repository")
        yield run("configure", "or by hand: the key, then the entry that names it", *by_person)
    else:
        yield run("configure", "fetch the key, then write the entry that names it", *by_person)


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


def _clashing(snapshot: Snapshot) -> Iterator[Citation]:
    return (one.citation for same in snapshot.view(archives.conflicts) for one in same)


def _named_twice(snapshot: Snapshot) -> Iterator[Citation]:
    """A search for the archive's host that named both a list file of old instructions and today's."""
    for item in _searches(snapshot):
        named = _LIST_NAME.findall(item.text)
        if any(map(_OLD_LISTS.search, named)) and any(map(_CURRENT_LISTS.search, named)):
            yield cite(item)


def _searches(snapshot: Snapshot) -> Iterator[Item]:
    return (item for item in snapshot.of("listing") if item.source.words[:1] and "grep" in item.source.words[0])


def _which_archive(snapshot: Snapshot) -> str:
    same = next(iter(snapshot.view(archives.conflicts)), ())
    if same and not snapshot.says(_CONFLICT):
        files = ", ".join(dict.fromkeys(entry.source.file for entry in same))
        return f"{files} name {same[0].source.uri} with different Signed-By, so apt will read no list at all"
    return f"two source entries name {_conflict(snapshot) or 'one archive'} with different keys, so apt reads no list"


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
        others = joined(find, Shell("|"), command("grep", "-vE", keep[owner]), Shell(r"| xargs -r -d '\n'"), edit)
        yield run("remove", "comment the other entries that name it out", others)
    step = {"toolkit": "toolkit-repository", "cuda": "cuda-repository"}.get(owner)
    if step and takes_gpunode(snapshot):
        yield setup_step(snapshot, "configure", "write the one entry that is needed", step)
    else:
        yield run("inspect", "see that apt reads its lists again", Shell("sudo apt-get update"))


_LISTS: Final = ("/etc/apt/sources.list", "/etc/apt/sources.list.d")
_ARCHIVE: Final = Pattern(r"https?://(?P<archive>[a-z0-9][a-z0-9.-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*){0,2})")


def _archive(url: str) -> str:
    """Host and first folders of an archive: what follows is written in several ways in lists."""
    match = _ARCHIVE.match(url)
    return match["archive"] if match else ""


def _without(archive: str, file: str) -> tuple[Command, ...]:
    """The command that takes an archive out of a file of apt's: its lines of a list, its paragraph of a newer file."""
    if not archive:
        return ()
    plain = archive.replace(".", r"\.")
    # Other archives of a newer file stay (sources.list(5), Enabled).
    paragraph = f"\\|^[Uu][Rr][Ii][Ss]:.*{plain}|i Enabled: no"
    return edited(_commented(archive) if file.endswith(".list") else paragraph, file)


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
    named = tuple(dict.fromkeys(file for item in _searches(snapshot) for file in _LIST_NAME.findall(item.text)))
    surplus_named = tuple(file for file in named if _OLD_LISTS.search(file))
    return surplus_named if len(surplus_named) < len(named) else ()


def _files(surplus: Iterable[Listed], kept: Iterable[Listed]) -> tuple[str, ...]:
    """The files of what is too many; where an entry that stays is in the same file, a person must choose the line."""
    staying = {entry.source.file for entry in kept}
    return tuple(dict.fromkeys(entry.source.file for entry in surplus if entry.source.file not in staying))


_CUDA_BLOG: Final = "https://developer.nvidia.com/blog/updating-the-cuda-linux-gpg-repository-key/"
_TOOLKIT_TROUBLE: Final = (
    "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html"
)

FAMILY: Final = Family(
    "repositories",
    "package repositories",
    (
        Rule(
            cause="apt-nvidia-key-rotated",
            layer="package",
            storey="packages",
            disruption="none",
            title="the CUDA repository's key is not the one that this node trusts",
            share=2.5,
            check=_predicted("cuda"),
            decisive=_key_refused("cuda"),
            symptoms=(symptoms.REPOSITORY_REFUSED, symptoms.PACKAGES_BROKEN, _key_refused("cuda")),
            later=_HAS_ONE,
            summary=_which_cuda_key,
            look_at=(Shell("sudo apt-get update"),),
            story=(
                "NVIDIA signs each of its CUDA repositories with one key. In April 2022 the old one (7fa2af80) was "
                "withdrawn, and every newer distribution release has got its own since. A node that still has the old "
                "key, or none, refuses the repository's index: apt names the key after NO_PUBKEY, dnf and zypper speak "
                "of a public key that is not installed or not correct. Drivers and CUDA then stay as they are, and a "
                "fresh installation ends here."
            ),
            sources=(_CUDA_BLOG, DRIVER_GUIDE),
            remedy=_renew_cuda_key,
            explains=NO_PACKAGES,
        ),
        Rule(
            cause="apt-toolkit-key-missing",
            layer="package",
            storey="packages",
            disruption="none",
            title="the container toolkit's repository key is missing",
            share=1,
            check=_predicted("toolkit"),
            decisive=_key_refused("toolkit"),
            symptoms=(symptoms.REPOSITORY_REFUSED, _key_refused("toolkit")),
            summary=(
                "the container toolkit's repository is signed by a key that its source entry's keyring does not hold"
            ),
            look_at=(Shell("sudo apt-get update"),),
            story=(
                "The container toolkit's repository at nvidia.github.io is signed by the key DDCAE044F796ECB0. The "
                "source entry names no keyring, or one that does not hold this key, as after instructions of the time "
                "of apt-key. apt then refuses the repository with NO_PUBKEY, and the toolkit is not found or not "
                "brought up to date."
            ),
            sources=(TOOLKIT_GUIDE,),
            remedy=_renew_toolkit_key,
            explains=NO_TOOLKIT | {"toolkit-not-installed"},
        ),
        Rule(
            cause="apt-signed-by-conflict",
            layer="package",
            storey="packages",
            disruption="none",
            title="two source entries name one repository with different keys",
            share=1.5,
            decisive=any_of(fact(lambda snapshot: snapshot.said(_CONFLICT)), fact(_clashing)),
            typical=fact(_named_twice),
            symptoms=(symptoms.REPOSITORY_REFUSED, fact(_clashing)),
            summary=_which_archive,
            look_at=(Shell("grep -rn nvidia /etc/apt/sources.list.d"),),
            story=(
                "apt takes an archive that two entries name for one archive, and their options have to agree. An old "
                "list file, such as nvidia-docker.list, without signed-by beside today's with it, makes apt stop "
                "before it has read any list: nothing can be installed or updated, from whatever repository, until one "
                "of the two entries is gone."
            ),
            sources=(_TOOLKIT_TROUBLE, "https://manpages.debian.org/stable/apt/sources.list.5.en.html"),
            remedy=_keep_one_entry,
            explains=NO_PACKAGES | NO_TOOLKIT | {"toolkit-not-installed"},
        ),
    ),
)
