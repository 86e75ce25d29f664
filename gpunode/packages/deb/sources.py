"""APT's source lists, sources.list(5): the one-line style and deb822."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

from gpunode.facts.model import EMBEDDED_KEY_PLACEHOLDER, Facts, PackageSource
from gpunode.facts.patterns import Pattern

_ARCHIVE_TYPES = ("deb", "deb-src")
_SOURCE_LINE_WORD = Pattern(r"(?:\[[^\]]{0,2000}\]|\"[^\"]*\"|[^\s\[\"])+")
# A number sign inside brackets is part of a word: apt, pkgSourceList::ReadFileListDist.
_TEXT_BEFORE_COMMENT = Pattern(r"(?:\[[^\]]{0,2000}\]|[^#\[])*")
_URI = Pattern(r"[A-Za-z][A-Za-z0-9+.-]{0,40}:\S")
_FALSE_WORDS = frozenset({"no", "false", "without", "off", "disable", "0"})
# Options that weaken apt's checks, if they are on and if they are off. Source: sources.list(5).
_OPTIONS_RELAXING_IF_ON = ("trusted", "allow-insecure", "allow-weak", "allow-downgrade-to-insecure")
_OPTIONS_RELAXING_IF_OFF = ("check-valid-until", "check-date")
_SOURCE_LIST_FILE_NAME = Pattern(r"[A-Za-z0-9_.-]{1,255}\.(?:list|sources)")


def is_source_list(path: str) -> bool:
    """Return whether apt reads ``path`` as a list of sources; it ignores any other name in sources.list.d."""
    folder, _, name = path.rpartition("/")
    return path == "/etc/apt/sources.list" or (
        folder == "/etc/apt/sources.list.d" and _SOURCE_LIST_FILE_NAME.fullmatch(name) is not None
    )


def explain_closed_keyring_folder(folder: str, facts: Facts) -> str:
    """Explain that apt's own user cannot enter a folder of keyrings; empty if it can."""
    mode = facts.folder_modes.get(folder, 0o755)
    if mode & 0o001:
        return ""
    return (
        f"apt's own user cannot enter {folder} (mode {mode:04o}), so apt trusts no source that is signed by a key in it"
    )


def parse(path: str, text: str) -> tuple[PackageSource, ...]:
    """Return the archives that ``text``, the content of ``path``, names; disabled archives are marked.

    Raises:
        ValueError: if an entry is malformed; apt would not read it either.
    """
    return tuple(_parse_deb822(path, text) if path.endswith(".sources") else _parse_one_line_style(path, text))


def _parse_one_line_style(path: str, text: str) -> Iterator[PackageSource]:
    for number, line in enumerate(text.split("\n"), 1):
        words = _split_source_line(line)
        if words:
            yield _make_source_entry(path, number, words, enabled=True)
        elif line.lstrip().startswith("#"):
            yield from _parse_commented_entry(path, number, line.lstrip().lstrip("#"))


def _split_source_line(line: str) -> list[str]:
    # An unclosed bracket ends the readable part; so every other is closed, and the search is linear.
    closed, bracket, rest = line.rpartition("]")
    bare = _TEXT_BEFORE_COMMENT.match(closed + bracket + rest.partition("[")[0])
    return [word.replace('"', "") for word in _SOURCE_LINE_WORD.findall(bare[0] if bare else "")]


def _parse_commented_entry(path: str, number: int, line: str) -> Iterator[PackageSource]:
    """Yield the entry that a comment disables; a comment that is prose or no valid entry is skipped."""
    words = _split_source_line(line)
    if words:
        with suppress(ValueError):
            yield _make_source_entry(path, number, words, enabled=False)


def _make_source_entry(path: str, number: int, words: list[str], *, enabled: bool) -> PackageSource:
    kind, rest = words[0], words[1:]
    options: Mapping[str, str] = {}
    if rest and rest[0].startswith("["):
        options, rest = _parse_bracketed_options(rest[0]), rest[1:]
    if kind not in _ARCHIVE_TYPES or len(rest) < 2 or not _URI.match(rest[0]):
        raise ValueError(f"{path}:{number}: not an entry that apt reads")
    uri, suite, components = rest[0], rest[1], tuple(rest[2:])
    if suite.endswith("/") == bool(components):
        raise ValueError(f"{path}:{number}: a suite has components, a path that ends in / has none")
    signed_by, only = options.get("signed-by", ""), tuple(filter(None, options.get("arch", "").split(",")))
    is_source = kind == "deb-src"
    return PackageSource(
        path, number, uri, suite, components, signed_by, enabled, is_source, _relaxing_options(options), only
    )


def _parse_bracketed_options(word: str) -> Mapping[str, str]:
    pairs = (option.partition("=") for option in word.strip("[]").split())
    return {key.rstrip("+-").lower(): value for key, _, value in pairs}


def _relaxing_options(options: Mapping[str, str]) -> tuple[str, ...]:
    """Return the options that weaken apt's default checks."""
    values = {key: value.lower() for key, value in options.items() if value}
    on = (key for key in _OPTIONS_RELAXING_IF_ON if values.get(key, "no") not in _FALSE_WORDS)
    off = (key for key in _OPTIONS_RELAXING_IF_OFF if values.get(key) in _FALSE_WORDS)
    return tuple(f"{key}={values[key]}" for key in (*on, *off))


def _parse_deb822(path: str, text: str) -> Iterator[PackageSource]:
    lines = text.split("\n")
    start = 0
    for number in range(len(lines) + 1):
        if number == len(lines) or not lines[number].strip():
            yield from _parse_deb822_paragraph(path, start, lines[start:number])
            start = number + 1


def _parse_deb822_paragraph(path: str, start: int, lines: list[str]) -> Iterator[PackageSource]:
    fields, first = _parse_deb822_fields(path, start, lines)
    if not fields:
        return
    types, uris, suites = (fields.get(key, "").split() for key in ("types", "uris", "suites"))
    components = tuple(fields.get("components", "").split())
    if not types or not set(types) <= set(_ARCHIVE_TYPES) or not uris or not suites or not all(map(_URI.match, uris)):
        raise ValueError(f"{path}:{first}: not an entry that apt reads")
    if any(suite.endswith("/") == bool(components) for suite in suites):
        raise ValueError(f"{path}:{first}: a suite has components, a path that ends in / has none")
    signer, enabled = fields.get("signed-by", ""), fields.get("enabled", "").lower() not in _FALSE_WORDS
    signed_by = EMBEDDED_KEY_PLACEHOLDER if "-----BEGIN PGP" in signer else " ".join(signer.split())
    relaxed, only = _relaxing_options(fields), tuple(fields.get("architectures", "").split())
    for kind in types:
        for uri in uris:
            for suite in suites:
                is_source = kind == "deb-src"
                yield PackageSource(path, first, uri, suite, components, signed_by, enabled, is_source, relaxed, only)


def _parse_deb822_fields(path: str, start: int, lines: list[str]) -> tuple[Mapping[str, str], int]:
    """Return the fields of a paragraph by lower-case name, and the line of the first."""
    fields: dict[str, list[str]] = {}
    values: list[str] | None = None
    first = 0
    for number, line in enumerate(lines, start + 1):
        if line.startswith("#"):
            continue
        first = first or number
        if line[:1] in {" ", "\t"} and values is not None:
            values.append(line.strip())
            continue
        key, colon, value = line.partition(":")
        if not colon:
            raise ValueError(f"{path}:{number}: not a field: {line[:80]!r}")
        values = fields.setdefault(key.strip().lower(), [])
        values.append(value.strip())
    return {key: "\n".join(parts).strip() for key, parts in fields.items()}, first
