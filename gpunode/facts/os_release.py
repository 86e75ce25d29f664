"""os-release(5)."""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.facts.model import Distro
from gpunode.facts.patterns import Pattern

# The first that is there counts.
PATHS = ("/etc/os-release", "/usr/lib/os-release")
_LINE = Pattern(r"^\s*([A-Za-z_][A-Za-z0-9_]*)=(.*)$")
_PART = Pattern(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([^\s\"'\\]+)|\\(.)")
_ESCAPE = Pattern(r"\\([\"$`\\])")


def parse_variables(text: str) -> Mapping[str, str]:
    """Parse the variables, unquoted as by a shell; other lines are skipped."""
    pairs = (match.groups() for line in text.split("\n") if (match := _LINE.match(line)))
    return {key: _unquote(value.strip()) for key, value in pairs}


def _unquote(value: str) -> str:
    out: list[str] = []
    at = 0
    while match := _PART.match(value, at):
        double, single, bare, escaped = match.groups()
        out.append(_ESCAPE.sub(r"\1", double) if double is not None else single or bare or escaped or "")
        at = match.end()
    return "".join(out)


def parse_distro(text: str) -> Distro:
    """Return the distribution that ``text`` names.

    Raises:
        ValueError: if it names none.
    """
    return make_distro(parse_variables(text))


def make_distro(values: Mapping[str, str]) -> Distro:
    """Return the distribution that the variables ``values`` name.

    Raises:
        ValueError: if they name none.
    """
    if not values.get("ID") and not values.get("NAME"):
        raise ValueError("neither ID nor NAME is set")
    return Distro(
        id=(values.get("ID") or "linux").lower(),
        version_id=values.get("VERSION_ID", ""),
        codename=values.get("VERSION_CODENAME", ""),
        name=values.get("PRETTY_NAME") or values.get("NAME") or "Linux",
        like=tuple(values.get("ID_LIKE", "").split()),
    )
