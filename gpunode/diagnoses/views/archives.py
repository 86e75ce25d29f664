"""APT's and rpm's archives: whose key was refused, which source stands twice, where a package's version comes from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from gpunode.catalog import tables
from gpunode.catalog.openpgp import fingerprints
from gpunode.catalog.repositories import CUDA_BASE, TOOLKIT, TOOLKIT_BASE
from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot, cite, finds, stated
from gpunode.diagnoses.views.packages import Package
from gpunode.facts.items import Item
from gpunode.facts.model import Known, PackageSource
from gpunode.facts.patterns import Pattern
from gpunode.packages.deb import sources as source_lists

Owner: TypeAlias = Literal["cuda", "toolkit", "other"]

_URL: Final = Pattern(r"https?://[^\s'\"]+")
_HOSTS: Final[tuple[tuple[Owner, Pattern], ...]] = (
    ("cuda", Pattern(r"developer\.download\.nvidia\.(?:com|cn)/compute/(?:cuda|machine-learning)")),
    ("toolkit", Pattern(r"nvidia\.github\.io/(?:libnvidia-container|nvidia-docker|nvidia-container-runtime)")),
    ("cuda", Pattern(r"/compute/cuda/repos/")),  # a mirror keeps the path
    ("cuda", Pattern(r"\bcuda-(?:rhel|fedora|sles|opensuse|amzn)[\w.-]*|['\"]cuda[\w.-]*['\"]")),
    ("toolkit", Pattern(r"\blibnvidia-container\b|\bnvidia-(?:docker|container-toolkit|container-runtime)\b")),
)
_TOOLKIT_KEYS: Final = ("DDCAE044F796ECB0", "6ED91CA3AC1160CD")
# Retired 2022-04-27; beside it the keys of the rpm repositories, which no table of apt repositories has.
RETIRED_KEY: Final = "F60F4B3D7FA2AF80"
_RPM_KEYS: Final = ("D42D0685", "CDF6BA43", "1940C73E", "73CD9B30", "3A8B5622")
_REFUSED: Final = Pattern(
    r"(?:NO_PUBKEY|EXPKEYSIG|REVKEYSIG|BADSIG|KEYEXPIRED|EXPSIG|Missing key|Signing key on|NOKEY, key ID)\s+"
    r"(?P<key>[0-9A-Fa-f]{8}(?: ?[0-9A-Fa-f]{8}){0,4})\b"
    r"|The repository '(?P<unsigned>[^']{8,200})' is (?:not|no longer) signed"
)
_RPM_REFUSED: Final = Pattern(
    r"Public key for (?P<package>\S+\.rpm) is not installed"
    r"|The GPG keys listed for the (?P<repository>.{3,80}?) repository are already installed but"
    r"|(?:repomd\.xml )?GPG signature verification error"
    r"|Signature verification failed for file '[^']{1,80}' from repository '(?P<zypper>[^']{1,80})'"
)
_WEAK: Final = Pattern(r"SHA1 is not considered secure|is not bound:|Policy rejected non-revocation signature")
_NEAR: Final = 6


@dataclass(frozen=True, slots=True)
class RefusedKey:
    """A repository that was refused for its signature.

    Attributes:
        owner: whose repository it is.
        key: the id that was asked for, upper case; empty where the message names none.
        url: of the repository; empty where it is not named.
        is_weak: whether the key is there and its own signature is too weak for this release's policy.
    """

    owner: Owner
    key: str
    url: str
    is_weak: bool
    citation: Citation


def refused_keys(snapshot: Snapshot) -> tuple[RefusedKey, ...]:
    """The signatures that apt, dnf or zypper would not accept."""
    return tuple(one for item in snapshot.items if _speaks(item) for one in _refused(item))


def _speaks(item: Item) -> bool:
    return (
        item.is_seen and not item.is_register and item.kind not in {"file", "packages", "lspci", "lsmod", "kernel-log"}
    )


def _refused(item: Item) -> Iterator[RefusedKey]:
    for match in (*finds(item, _REFUSED), *finds(item, _RPM_REFUSED)):
        number = item.text.count("\n", 0, match.start())
        key = (match.groupdict().get("key") or "").upper().replace(" ", "")
        near = _near(item.lines, number)
        owner = _by_key(key) or _by_text(near)
        url = next((found[0].rstrip("/.,") for found in _URL.finditer(near)), "")
        yield RefusedKey(owner, key, url, bool(_WEAK.search(near)), cite(item, number + 1))


def _near(lines: tuple[str, ...], number: int) -> str:
    """The line with the address of its repository: apt names that in the line, or in the last that begins a message."""
    line = lines[number]
    if any(pattern.search(line) for _, pattern in _HOSTS) or _URL.search(line):
        return line
    for before in range(number - 1, max(-1, number - _NEAR), -1):
        if _URL.search(lines[before]):
            return f"{lines[before]} {line}"
    return " ".join(lines[max(0, number - 2) : number + 3])


def _by_key(key: str) -> Owner | None:
    if not key:
        return None
    cuda = [row["fingerprint"] for row in tables.rows("cuda_repositories.csv")]
    if any(known.endswith(key[-16:]) for known in (*cuda, RETIRED_KEY)) or key[-8:] in _RPM_KEYS:
        return "cuda"
    return "toolkit" if any(known.endswith(key[-16:]) for known in _TOOLKIT_KEYS) else None


def _by_text(text: str) -> Owner:
    return next((owner for owner, pattern in _HOSTS if pattern.search(text)), "other")


def owner_of(text: str) -> Owner:
    """Whose repository ``text``, an address or a message with one, speaks of."""
    return _by_text(text)


@dataclass(frozen=True, slots=True)
class Listed:
    """An entry of APT's source lists, with the line that it stands in."""

    source: PackageSource
    citation: Citation


_GREPPED: Final = Pattern(
    r"^(?P<file>(?:/etc/apt/)?[\w./-]*\.(?:list|sources))(?::\d+)?:\s*(?P<entry>deb(?:-src)?\s.*)$"
)


def sources(snapshot: Snapshot) -> tuple[Listed, ...]:
    """The entries of APT's source lists, from the files or from what somebody grepped out of them."""
    # What grep -r shows is both its own answer and a part of each file.
    found: dict[PackageSource, Listed] = {}
    for one in _sources(snapshot):
        found.setdefault(replace(one.source, line=0), one)
    return tuple(found.values())


def _sources(snapshot: Snapshot) -> Iterator[Listed]:
    if isinstance(snapshot.facts.sources, Known):
        for one in snapshot.facts.sources.value:
            file = snapshot.file(one.file)
            place = cite(file, one.line) if file else stated(one.file, _written(one), snapshot.facts.sources.probe)
            yield Listed(one, place)
        return
    for item in snapshot.items:
        if item.outcome != "ok":
            continue
        if item.kind == "file" and source_lists.is_source_list(item.subject):
            yield from _parsed(item, item.subject, item.text)
        elif item.kind in {"listing", "file", "text"}:
            for number, line in enumerate(item.lines, 1):
                if match := _GREPPED.match(line):
                    yield from _parsed(item, match["file"], match["entry"], number)


def _written(one: PackageSource) -> str:
    signed = f"signed-by={one.signed_by} " if one.signed_by else ""
    return f"deb [{signed.strip()}] {one.uri} {one.suite}" if signed else f"deb {one.uri} {one.suite}"


def _parsed(item: Item, path: str, text: str, number: int | None = None) -> Iterator[Listed]:
    try:
        found = source_lists.parse(path, text)
    except ValueError:
        return
    for one in found:
        yield Listed(one, cite(item, number or one.line))


def conflicts(snapshot: Snapshot) -> tuple[tuple[Listed, ...], ...]:
    """The entries that name one archive and different keys, archive by archive: apt then reads no list at all."""
    archives: dict[tuple[str, str], list[Listed]] = {}
    for one in snapshot.view(sources):
        if one.source.enabled:
            archives.setdefault((one.source.uri.rstrip("/"), one.source.suite), []).append(one)
    return tuple(tuple(same) for same in archives.values() if len({one.source.signed_by for one in same}) > 1)


@dataclass(frozen=True, slots=True)
class Unkeyed:
    """An entry of NVIDIA's whose signature the next update cannot check.

    Attributes:
        why: what the keyring lacks.
    """

    entry: Listed
    owner: Owner
    why: str


def unkeyed(snapshot: Snapshot) -> tuple[Unkeyed, ...]:
    """The enabled entries whose keyring is not there or holds another key than the one that signs the repository."""
    return tuple(_unkeyed(snapshot))


def _unkeyed(snapshot: Snapshot) -> Iterator[Unkeyed]:
    for entry in snapshot.view(sources) if isinstance(snapshot.facts.sources, Known) else ():
        one, owner = entry.source, owner_of(entry.source.uri)
        if owner == "other" or not one.enabled or one.is_unsigned or not one.signed_by.startswith("/"):
            continue
        keyring = snapshot.facts.file(one.signed_by)
        if not isinstance(keyring, Known):
            continue
        if keyring.value is None:
            yield Unkeyed(entry, owner, f"{one.signed_by} is not there")
        elif (wanted := _signer(one.uri)) and (held := _held(keyring.value.content)) and wanted not in held:
            yield Unkeyed(entry, owner, f"{one.signed_by} does not hold the key {wanted[-16:]}")


def _signer(uri: str) -> str:
    """The fingerprint of the key that signs one of NVIDIA's own repositories; empty for a mirror, which may differ."""
    if uri.startswith(f"{TOOLKIT_BASE}/"):
        return TOOLKIT.fingerprint
    rows = tables.rows("cuda_repositories.csv") if uri.startswith(f"{CUDA_BASE}/") else ()
    return next((row["fingerprint"] for row in rows if f"/{row['dir']}/{row['arch']}" in uri), "")


def _held(keyring: bytes) -> tuple[str, ...]:
    """The fingerprints of the keys in a keyring; none where it is of a form that is not read here."""
    try:
        return fingerprints(keyring)
    except ValueError:
        return ()


Packager: TypeAlias = Literal[
    "Ubuntu", "NVIDIA", "a PPA", "System76", "Debian", "RPM Fusion", "ELRepo", "negativo17", ""
]
_REVISIONS: Final[tuple[tuple[Packager, Pattern], ...]] = (
    ("a PPA", Pattern(r"-\d\w*~(?:gpu|ppa|lambda)|~0?[a-z]+ppa|ppa\d")),
    ("System76", Pattern(r"-\d*pop\d")),
    ("Ubuntu", Pattern(r"-\d+ubuntu0\.\d|-\d+ubuntu\d+\.\d|-0ubuntu[2-9]|\+\d+$")),
    ("NVIDIA", Pattern(r"-\d+ubuntu1$")),
    ("Debian", Pattern(r"-\d+(?:~bpo|~deb|\+deb)|-\d+\.\d+$")),
    ("ELRepo", Pattern(r"\.elrepo$")),
)
_REPOSITORIES: Final[tuple[tuple[Packager, str], ...]] = (
    ("NVIDIA", "cuda"),
    ("RPM Fusion", "rpmfusion"),
    ("ELRepo", "elrepo"),
    ("negativo17", "fedora-nvidia"),
    ("negativo17", "epel-nvidia"),
)


def packager(package: Package) -> Packager:
    """Who packaged this version, by its repository or by how its revision is written; empty where neither tells."""
    if package.origin:
        return next((name for name, word in _REPOSITORIES if word in package.origin), "")
    return packager_of(package.version)


def packager_of(version: str) -> Packager:
    """Who writes revisions this way (``-0ubuntu0.22.04.2`` Ubuntu, ``-0ubuntu1`` NVIDIA); empty for a plain ``-1``."""
    return next((name for name, pattern in _REVISIONS if pattern.search(version)), "")
