"""The Debian archive that the machine's own apt uses."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.lab.commands import LabError, finish, run


class NoArchive(LabError):
    """No Debian archive is available; not a fault of the lab."""


@dataclass(frozen=True, slots=True)
class Source:
    """An address with the suites and components requested from it."""

    uri: str
    suites: tuple[str, ...]
    components: tuple[str, ...]


def debian_archive(etc: Path = Path("/etc")) -> str:
    """Return the address of Debian's main archive.

    Raises:
        NoArchive: apt has none, as on a machine that is not Debian.
    """
    codename = _os_release(etc).get("VERSION_CODENAME", "")
    for source in sources(etc / "apt"):
        if codename and codename in source.suites and "main" in source.components:
            return _resolved(source.uri)
    wanted = f"suite {codename or '(none named)'} and component main"
    raise NoArchive(f"apt of this machine has no Debian archive with {wanted}")


def demand_archive(address: str, codename: str) -> None:
    """Require that the archive at ``address`` answers, through apt's own downloader and its proxy.

    Raises:
        NoArchive: it does not.
    """
    with tempfile.TemporaryDirectory(prefix="gpunode-lab-") as folder:
        url = f"{address.rstrip('/')}/dists/{codename}/InRelease"
        argv = ["/usr/lib/apt/apt-helper", "download-file", url, f"{folder}/InRelease"]
        result = finish(argv, timeout=60)
    if result.returncode:
        raise NoArchive(f"{url} cannot be fetched: {result.stderr.strip()}")


def sources(apt: Path) -> Iterator[Source]:
    """Yield all package sources that ``apt`` (``/etc/apt``) configures, in both formats."""
    for path in [apt / "sources.list", *sorted(apt.glob("sources.list.d/*"))]:
        if path.suffix == ".list" and path.is_file():
            yield from _one_line(path.read_text())
        elif path.suffix == ".sources":
            yield from _deb822(path.read_text())


def transport_options() -> list[str]:
    """Return the machine's proxy, certificate and timeout settings, for apt's ``-o``."""
    lines = run(["apt-config", "dump"]).stdout.splitlines()
    wanted = [line.rstrip(";") for line in lines if line.startswith(("Acquire::http", "Acquire::https"))]
    return [line.replace(" ", "=", 1).replace('"', "") for line in wanted if not line.endswith('""')]


def _one_line(text: str) -> Iterator[Source]:
    for line in text.splitlines():
        words = line.partition("#")[0].replace("[", " [").replace("]", "] ").split()
        if not words or words[0] != "deb":
            continue
        while len(words) > 1 and words[1].startswith("["):
            closing = next(number for number, word in enumerate(words) if word.endswith("]"))
            del words[1 : closing + 1]
        yield Source(words[1], tuple(words[2:3]), tuple(words[3:]))


def _deb822(text: str) -> Iterator[Source]:
    for stanza in text.split("\n\n"):
        fields = _fields(stanza)
        if "deb" not in fields.get("types", "").split() or fields.get("enabled", "yes").strip() == "no":
            continue
        suites, components = (tuple(fields.get(name, "").split()) for name in ("suites", "components"))
        yield from (Source(uri, suites, components) for uri in fields.get("uris", "").split())


def _fields(stanza: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    name = ""
    for line in stanza.splitlines():
        if line.startswith("#"):
            continue
        if line[:1].isspace():
            fields[name] = f"{fields.get(name, '')} {line.strip()}"
        elif ":" in line:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            fields[name] = value.strip()
    return fields


def _resolved(uri: str) -> str:
    """Return ``uri``, or the first address in the list that a ``mirror+file:`` names, as on cloud images."""
    if not uri.startswith("mirror+file:"):
        return uri
    lines = Path("/" + uri.removeprefix("mirror+file:").lstrip("/")).read_text().splitlines()
    return next(line.split()[0] for line in lines if line.strip() and not line.startswith("#"))


def _os_release(etc: Path) -> Mapping[str, str]:
    lines = (line.partition("=") for line in (etc / "os-release").read_text().splitlines())
    return {name: value.strip('"') for name, _, value in lines}
