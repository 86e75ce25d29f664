"""Package repositories: missing, revoked or weak keys, and archives with two entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final, Literal, TypeAlias

from gpunode.catalog.releases import release
from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.commands import Shell, command, edit_files, join_commands
from gpunode.diagnoses.consequences import NO_TOOLKIT, NOTHING_INSTALLABLE
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import can_run_setup, manual_step, run_step, setup_step
from gpunode.diagnoses.signs import all_of, any_of, custom_sign, message_line, unless
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact
from gpunode.diagnoses.views.system import find_distro, package_manager
from gpunode.facts.items import EvidenceItem
from gpunode.facts.model import Known, PackageSource
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass
from gpunode.packages.deb import sources as source_lists

RepositoryOwner: TypeAlias = Literal["cuda", "toolkit", "other"]

_URL_PATTERN_BY_OWNER: Final[tuple[tuple[RepositoryOwner, Pattern], ...]] = (
    ("cuda", Pattern(r"developer\.download\.nvidia\.(?:com|cn)/compute/(?:cuda|machine-learning)")),
    ("toolkit", Pattern(r"nvidia\.github\.io/(?:libnvidia-container|nvidia-docker|nvidia-container-runtime)")),
    # A mirror keeps the path.
    ("cuda", Pattern(r"/compute/cuda/repos/")),
    ("toolkit", Pattern(r"/libnvidia-container/stable/")),
)


def repository_owner_of(text: str) -> RepositoryOwner:
    """Return the owner of the repository in ``text``, a URL or a message that contains one."""
    return next((owner for owner, pattern in _URL_PATTERN_BY_OWNER if pattern.search(text)), "other")


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """An entry of APT's source lists, with its line."""

    source: PackageSource
    citation: Citation


_GREPPED_SOURCE_ENTRY: Final = Pattern(
    r"^(?P<file>(?:/etc/apt/)?[\w./-]*\.(?:list|sources))(?::\d+)?:\s*(?P<entry>deb(?:-src)?\s.*)$"
)


def source_entries(snapshot: Snapshot) -> tuple[SourceEntry, ...]:
    """Return the entries of APT's source lists, from the files or from grep output."""
    # The output of grep -r is both an item of its own and a part of each file.
    entries: dict[PackageSource, SourceEntry] = {}
    for source_entry in _find_source_entries(snapshot):
        entries.setdefault(replace(source_entry.source, line=0), source_entry)
    return tuple(entries.values())


def _find_source_entries(snapshot: Snapshot) -> Iterator[SourceEntry]:
    if isinstance(snapshot.facts.sources, Known):
        for one in snapshot.facts.sources.value:
            file = snapshot.file(one.file)
            if file is not None:
                yield SourceEntry(one, cite(file, one.line))
        return
    for item in snapshot.items:
        if item.outcome != "ok":
            continue
        if item.kind == "file" and source_lists.is_source_list(item.subject):
            yield from _parse_entries(item, item.subject, item.text)
        elif item.kind in {"listing", "file", "text"}:
            for number, line in enumerate(item.lines, 1):
                if match := _GREPPED_SOURCE_ENTRY.match(line):
                    yield from _parse_entries(item, match["file"], match["entry"], number)


def _parse_entries(item: EvidenceItem, path: str, text: str, number: int | None = None) -> Iterator[SourceEntry]:
    try:
        found = source_lists.parse(path, text)
    except ValueError:
        return
    for source in found:
        yield SourceEntry(source, cite(item, number or source.line))


def conflicting_entries(snapshot: Snapshot) -> tuple[tuple[SourceEntry, ...], ...]:
    """Return entries for the same archive with different keys, by archive; apt then reads no list at all."""
    archives: dict[tuple[str, str], list[SourceEntry]] = {}
    for entry in snapshot.view(source_entries):
        if entry.source.enabled:
            archives.setdefault((entry.source.uri.rstrip("/"), entry.source.suite), []).append(entry)
    return tuple(tuple(same) for same in archives.values() if len({entry.source.signed_by for entry in same}) > 1)


def entries_without_key(snapshot: Snapshot, owner: RepositoryOwner) -> Iterator[Citation]:
    """Yield the enabled entries whose keyring does not exist."""
    for entry in snapshot.view(source_entries) if isinstance(snapshot.facts.sources, Known) else ():
        one = entry.source
        keyring = snapshot.facts.file(one.signed_by)
        is_meant = one.enabled and not one.is_unsigned and repository_owner_of(one.uri) == owner
        if is_meant and isinstance(keyring, Known) and keyring.value is None:
            yield from (cite_fact(one.signed_by, "it is not there", keyring.probe), entry.citation)


_KEY_REFUSED: Final = (
    r"(?:NO_PUBKEY|(?:EXPKEY|REVKEY|BAD|EXP)SIG|KEYEXPIRED|Missing key|[Ss]igning key|NOKEY|GPG check FAILED"
    r"|is (?:not|no longer) signed|[Ss]ignatures? (?:couldn't|could not|verification)"
    r"|Public key for \S+ is not installed|are already installed but)"
)
# apt names the archive in the same line or before it, with no other archive in between.
_KEY_REFUSED_LATER_TEXT: Final = rf"(?:(?!https?:)[^\n]){{0,300}}{_KEY_REFUSED}"
_CUDA_KEY_REFUSED: Final = message_line(
    rf"(?i)(?:nvidia\.(?:com|cn)/compute/(?:cuda|machine-learning)|/compute/cuda/repos/|\bcuda-(?:rhel|fedora|sles|open"
    rf"suse|amzn)|['\"]cuda[\w.-]*['\"]){_KEY_REFUSED_LATER_TEXT}|Public key for (?:cuda|nvidia"
    r"|libnv)\S+\.rpm is not installed"
    # The keys of NVIDIA's repositories, the first of which was withdrawn in April 2022.
    rf"|{_KEY_REFUSED}.{{0,80}}(?:7FA2AF80|3BF863CC|8793F200|60DF8A40|D42D0685|CDF6BA43|1940C73E|73CD9B30|3A8B5622)"
)
_TOOLKIT_KEY_REFUSED: Final = message_line(
    rf"(?i)(?:nvidia\.github\.io/|\blibnvidia-container\b|\bnvidia-(?:docker|container-(?:toolkit|runtime))\b){_KEY_REFUSED_LATER_TEXT}"
    rf"|{_KEY_REFUSED}.{{0,80}}(?:DDCAE044F796ECB0|6ED91CA3AC1160CD)"
)
# The key is right, but sqv, which apt uses since Debian 13, rejects SHA-1 bindings from February 2026 on.
_CUDA_KEY_USES_SHA1: Final = all_of(
    message_line(r"SHA-?1 is not considered secure"),
    message_line(r"[Ss]igning key on \S*A4B469963BF863CC is not bound"),
)
# apt read NVIDIA's archive, so that a refused key is another vendor's.
_CUDA_REPOSITORY_READ: Final = unless(
    message_line(r"^(?:Hit|Get|OK):\d+ https?://\S+/compute/cuda/repos/"), _CUDA_KEY_REFUSED
)
_SIGNATURE_POLICY_WARNING: Final = unless(
    message_line(r"Policy will reject signature within a year"), message_line(r"^(?:Err:|E: )[^\n]*nvidia\.(?:com|cn)")
)
# The next update will refuse the repository; installed packages still work.
_CUDA_KEYRING_MISSING: Final = custom_sign(lambda snapshot: entries_without_key(snapshot, "cuda"))
_TOOLKIT_KEYRING_MISSING: Final = custom_sign(lambda snapshot: entries_without_key(snapshot, "toolkit"))
_RELEASES_WITH_OLD_KEY: Final = {"ubuntu1604", "ubuntu1804", "ubuntu2004", "debian10", "debian11", "wsl-ubuntu"}
_CUDA_REPOSITORY_PATH: Final = Pattern(r"/cuda/repos/(?P<dir>\w+)/(?P<arch>\w+)")


def _renew_cuda_key(snapshot: Snapshot) -> Iterable[Fix]:
    manager = snapshot.view(package_manager)
    if manager != "apt":
        yield run_step("remove", "remove the old key of cudatools", _REMOVE_RETIRED_KEY_COMMAND)
        text = "download the repository's description again; it names the new key"
        yield run_step("configure", text, _REFRESH_COMMAND_BY_IS_ZYPPER[manager == "zypper"])
        return
    found, known = snapshot.match(_CUDA_REPOSITORY_PATH), find_distro(snapshot)
    has = release(known) if known else None
    may_have_old = not snapshot.view(_CUDA_KEYRING_MISSING) and (known is None or (has is not None and has.has_apt_key))
    withdrawn = run_step("remove", "remove the key that NVIDIA withdrew", Shell("sudo apt-key del 7fa2af80"))
    if may_have_old and found and found["dir"] in _RELEASES_WITH_OLD_KEY:
        yield withdrawn
    if can_run_setup(snapshot):
        yield setup_step(snapshot, "configure", "set the repository up again, with its key checked", "cuda-repository")
    elif found:
        package = "cuda-keyring_1.1-1_all.deb"
        url = f"https://developer.download.nvidia.com/compute/cuda/repos/{found['dir']}/{found['arch']}/{package}"
        fetch, put = command("curl", "-fsSLO", url), command("sudo", "dpkg", "-i", package)
        yield run_step(
            "install", "install NVIDIA's package with the current key", fetch, put, Shell("sudo apt-get update")
        )
    if may_have_old and not found:
        yield replace(withdrawn, when="`apt-key list` shows 7FA2 AF80")


def _use_release_folder(snapshot: Snapshot) -> Iterable[Fix]:
    known = find_distro(snapshot)
    has = release(known) if known else None
    if has is not None and has.repository and can_run_setup(snapshot):
        text = f"take the folder of this release, {has.repository}, with its own key"
        yield setup_step(snapshot, "configure", text, "cuda-repository")
    else:
        find = Shell("grep -rn compute/cuda/repos /etc/apt/sources.list /etc/apt/sources.list.d")
        yield run_step("inspect", "see which release's folder is used here", find)
        yield manual_step(
            "configure", "replace it by the folder of this release, and install the keyring of that folder"
        )
    text = "build the image from the release that the folder is for"
    yield manual_step("configure", text, when="an image has to use an older release's folder")


_REMOVE_RETIRED_KEY_COMMAND: Final = Shell(
    "rpm -qa gpg-pubkey --qf '%{NAME}-%{VERSION}-%{RELEASE} %{SUMMARY}\\n' | awk '/cudatools/ {print $1}' | "
    "xargs -r sudo rpm -e"
)
# By whether the package manager is zypper.
_REFRESH_COMMAND_BY_IS_ZYPPER: Final = {
    True: Shell("sudo zypper --gpg-auto-import-keys refresh"),
    False: Shell("sudo dnf makecache"),
}
_TOOLKIT_REPO_FILE: Final = "nvidia-container-toolkit.repo"


def _renew_toolkit_key(snapshot: Snapshot) -> Iterable[Fix]:
    if (manager := snapshot.view(package_manager)) != "apt":
        folder = "/etc/zypp/repos.d" if manager == "zypper" else "/etc/yum.repos.d"
        curl = command("curl", "-fsSL", f"https://nvidia.github.io/libnvidia-container/stable/rpm/{_TOOLKIT_REPO_FILE}")
        fetch = join_commands(
            curl, Shell("|"), command("sudo", "tee", f"{folder}/{_TOOLKIT_REPO_FILE}"), Shell(">/dev/null")
        )
        text = "download the repository's description again; it names the key"
        yield run_step("configure", text, fetch, _REFRESH_COMMAND_BY_IS_ZYPPER[manager == "zypper"])
    elif can_run_setup(snapshot):
        yield setup_step(
            snapshot, "configure", "set the repository up again, with its key checked", "toolkit-repository"
        )
    else:
        text = "download the key, then write the entry that names it"
        yield run_step("configure", text, *remedies.ADD_TOOLKIT_ARCHIVE_COMMANDS)


_CONFLICTING_OPTION_MESSAGE: Final = r"Conflicting values set for option (?:Signed-By|Trusted) regarding source"
_OLD_SOURCE_LIST_SEEN: Final = message_line(
    r"(?:nvidia-docker|libnvidia-container|nvidia-container-runtime|/cuda)\.list$|archive_uri-", "listing", "text"
)
_NEW_SOURCE_LIST_SEEN: Final = message_line(
    r"(?:nvidia-container-toolkit|/cuda-[a-z]+\d+-\w+)\.(?:list|sources)$", "listing", "text"
)
_CONFLICTING_ENTRIES: Final = custom_sign(
    lambda snapshot: (entry.citation for same in snapshot.view(conflicting_entries) for entry in same)
)
_CONFLICTING_ENTRY_URL: Final = Pattern(rf"{_CONFLICTING_OPTION_MESSAGE} (?P<url>\S+)")


def _duplicate_archive(snapshot: Snapshot) -> str:
    """Return the archive with two entries, preferably an archive run by NVIDIA; empty if unknown."""
    lines = (_CONFLICTING_ENTRY_URL.search(line.line) for line in snapshot.matching_lines(_CONFLICTING_ENTRY_URL))
    urls = [match["url"] for match in (*lines, snapshot.match(_CONFLICTING_ENTRY_URL)) if match]
    urls += [same[0].source.uri for same in snapshot.view(conflicting_entries)]
    return next((url for url in urls if repository_owner_of(url) != "other"), urls[0] if urls else "")


def _keep_one_entry(snapshot: Snapshot) -> Iterable[Fix]:
    url = _duplicate_archive(snapshot)
    owner, match = repository_owner_of(url), _ARCHIVE_ADDRESS.match(url)
    archive = match["archive"] if match else ""
    plain = archive.replace(".", r"\.")
    comment = rf"\|{plain}|s/^[[:space:]]*deb/#&/"
    if files := _surplus_files(snapshot) if archive else ():
        # Other archives in a deb822 file stay enabled (sources.list(5), Enabled).
        paragraph = rf"\|^[Uu][Rr][Ii][Ss]:.*{plain}|i Enabled: no"
        edits = (edit for file in files for edit in edit_files(comment if file.endswith(".list") else paragraph, file))
        yield run_step("remove", "remove the duplicate entry", *edits)
    elif owner == "other" or not archive:
        find = command("grep", "-rF", "--", archive or "Signed-By", *_APT_SOURCE_PATHS)
        yield run_step("inspect", "find the entries that name it", find)
        yield manual_step("remove", "remove all of its entries but one")
    else:
        keep = {"toolkit": r"/nvidia-container-toolkit\.list$", "cuda": r"/cuda-[a-z]+[0-9]+-[a-z0-9_]+\.list$"}[owner]
        find = command("grep", "-rlsF", "--include=*.list", "--", archive, *_APT_SOURCE_PATHS)
        edit = join_commands(Shell(r"| xargs -r -d '\n'"), command("sudo", "sed", "-i.bak", "-E", comment))
        others = join_commands(find, Shell("|"), command("grep", "-vE", keep), edit)
        yield run_step("remove", "comment out the other entries that name it", others)
    if owner != "other" and can_run_setup(snapshot):
        yield setup_step(snapshot, "configure", "write the one entry", f"{owner}-repository")
    else:
        yield run_step("inspect", "check that apt reads its lists again", Shell("sudo apt-get update"))


_APT_SOURCE_PATHS: Final = ("/etc/apt/sources.list", "/etc/apt/sources.list.d")
# Host and first folders; lists spell the rest in several ways.
_ARCHIVE_ADDRESS: Final = Pattern(r"https?://(?P<archive>[a-z0-9][a-z0-9.-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*){0,2})")
_CURRENT_LIST_FILE: Final = Pattern(r"/(?:nvidia-container-toolkit|cuda-[a-z]+\d+-\w+)\.(?:list|sources)$")


def _surplus_files(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the surplus files: those that NVIDIA's current instructions do not write."""
    for same in snapshot.view(conflicting_entries):
        files = dict.fromkeys(entry.source.file for entry in same)
        if surplus := tuple(file for file in files if not _CURRENT_LIST_FILE.search(file)):
            return surplus if len(surplus) < len(files) else ()
    return ()


_rule = partial(Rule, layer="packages")

RULES: Final = (
    _rule(
        cause="apt-nvidia-key-rotated",
        share=2.5,
        decisive=any_of(_CUDA_KEY_REFUSED, _CUDA_KEYRING_MISSING),
        symptoms=(symptoms.REPOSITORY_REFUSED, symptoms.PACKAGES_BROKEN, _CUDA_KEY_REFUSED, _CUDA_KEYRING_MISSING),
        latent=symptoms.DRIVER_WORKS,
        against=(_CUDA_KEY_USES_SHA1, _CUDA_REPOSITORY_READ),
        look_at=(Shell("sudo apt-get update"),),
        remedy=_renew_cuda_key,
        explains=NOTHING_INSTALLABLE,
    ),
    _rule(
        cause="apt-nvidia-key-sha1",
        decisive=_CUDA_KEY_USES_SHA1,
        against=(_CUDA_REPOSITORY_READ,),
        latent=any_of(_SIGNATURE_POLICY_WARNING, symptoms.DRIVER_WORKS),
        summary=lambda node: (
            f"apt {'will soon refuse' if node.view(_SIGNATURE_POLICY_WARNING) else 'refuses'} this folder of NVIDIA's: "
            "its key, "
            "the right one, is bound by SHA-1; the release's own folder has another key"
        ),
        look_at=(Shell("grep -rn compute/cuda/repos /etc/apt/sources.list.d"), Shell("cat /etc/os-release")),
        remedy=_use_release_folder,
        explains=NOTHING_INSTALLABLE,
    ),
    _rule(
        cause="apt-toolkit-key-missing",
        decisive=any_of(_TOOLKIT_KEY_REFUSED, _TOOLKIT_KEYRING_MISSING),
        symptoms=(symptoms.REPOSITORY_REFUSED, _TOOLKIT_KEY_REFUSED, _TOOLKIT_KEYRING_MISSING),
        latent=all_of(_TOOLKIT_KEYRING_MISSING, symptoms.DRIVER_WORKS),
        look_at=(Shell("sudo apt-get update"),),
        remedy=_renew_toolkit_key,
        explains=NO_TOOLKIT | {"toolkit-not-installed"},
    ),
    _rule(
        cause="apt-signed-by-conflict",
        share=1.5,
        decisive=any_of(message_line(_CONFLICTING_OPTION_MESSAGE), _CONFLICTING_ENTRIES),
        typical=all_of(_OLD_SOURCE_LIST_SEEN, _NEW_SOURCE_LIST_SEEN),
        symptoms=(symptoms.REPOSITORY_REFUSED, _CONFLICTING_ENTRIES),
        summary=lambda node: f"two source entries name {_duplicate_archive(node) or 'an archive'} with different keys",
        look_at=(Shell("grep -rn nvidia /etc/apt/sources.list.d"),),
        remedy=_keep_one_entry,
        explains=NOTHING_INSTALLABLE | NO_TOOLKIT | {"toolkit-not-installed"},
    ),
)
