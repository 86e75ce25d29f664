"""APT's configuration files, apt.conf(5), and the options that they set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

APT_CONF_FOLDER: Final = "/etc/apt/apt.conf.d"
APT_CONF_FILE: Final = "/etc/apt/apt.conf"
# apt ignores other names in its configuration folder.
_APT_CONF_FILE_NAME = Pattern(r"[A-Za-z0-9_-]{1,255}(\.conf)?|[A-Za-z0-9_.-]{1,255}\.conf")
_APT_CONF_TOKEN = Pattern(r"//[^\n]*|#[^\n]*|/\*(?:[^*]|\*(?!/))*(?:\*/)?|\"[^\"\n]*\"|[{};\n]|[^\s{};\"]+")
_TRUE_WORDS = frozenset({"yes", "true", "with", "on", "enable", "1"})
_FALSE_WORDS = frozenset({"no", "false", "without", "off", "disable", "0"})
_OPTIONS_RELAXING_IF_ON = frozenset(
    {
        "apt::get::allowunauthenticated",
        "acquire::allowinsecurerepositories",
        "acquire::allowweakrepositories",
        "acquire::allowdowngradetoinsecurerepositories",
    }
)
# Also for one host: Acquire::https::HOST::Verify-Peer; http's options hold for https, too.
_OPTIONS_RELAXING_IF_OFF = Pattern(
    r"acquire::(?:check-valid-until|check-date|https?::(?:[^:\s]+::)?verify-(?:peer|host))"
)
# dpkg(1), --force-things.
_RELAXING_DPKG_OPTIONS = frozenset({"--force-bad-verify", "--force-all"})


@dataclass(frozen=True, slots=True)
class Option:
    """An option as it is set; ``name`` in lower case, its scopes joined by ``::``."""

    file: str
    line: int
    name: str
    value: str


def is_apt_conf_file(path: str) -> bool:
    """Return whether apt reads ``path`` as configuration."""
    folder, _, name = path.rpartition("/")
    return path == APT_CONF_FILE or (folder == APT_CONF_FOLDER and _APT_CONF_FILE_NAME.fullmatch(name) is not None)


def relaxes_archive_checks(name: str, value: str) -> bool:
    """Return whether this option makes apt check archives less than by default."""
    word = value.lower()
    if name == "dpkg::options":
        return word in _RELAXING_DPKG_OPTIONS
    return (
        word in _TRUE_WORDS
        if name in _OPTIONS_RELAXING_IF_ON
        else word in _FALSE_WORDS and _OPTIONS_RELAXING_IF_OFF.fullmatch(name) is not None
    )


def is_always_overridden(name: str) -> bool:
    """Return whether gpunode's runs of apt always override the option, and not only for gpunode's own archives."""
    return _OPTIONS_RELAXING_IF_OFF.fullmatch(name) is None


def parse(file: str, text: str) -> tuple[Option, ...]:
    """Return the options that ``text``, the content of ``file``, sets; malformed parts are skipped."""
    return tuple(_options(file, text))


def _options(file: str, text: str) -> Iterator[Option]:
    scopes: list[str] = []
    words: list[str] = []
    line = 1
    for part in (match[0] for match in _APT_CONF_TOKEN.finditer(text)):
        line += part.count("\n")
        if part == "{":
            scopes.append("".join(words[:1]))
            words = []
        elif part in {";", "}"}:
            # An item of a list has no name of its own.
            own = words[:1] if len(words) > 1 else []
            name = "::".join(filter(None, (*scopes, *own))).lower().rstrip(":")
            if words and name:
                yield Option(file, line, name, words[-1] if not own else words[1])
            words = []
            if part == "}" and scopes:
                scopes.pop()
        elif not part.isspace() and not part.startswith(("//", "#", "/*")):
            words.append(part.strip('"'))
