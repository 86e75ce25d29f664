"""Kernels, their headers and their order."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable

from gpunode.facts.evidence import Found
from gpunode.facts.patterns import Pattern

_PARTS = Pattern(r"(\D*)(\d*)")
# What grub-mkconfig passes over, too (grub_file_is_not_garbage), and Ubuntu's second copies of signed images.
_GARBAGE = Pattern(r"\.(?:dpkg-\w+|rpm\w+|ucf-\w+|old|bak|signed|unsigned|save|hmac)\Z|~\Z")


def version_key(version: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    """The key that sorts ``version`` as Debian's packages are sorted; epochs are not looked at.

    Source: deb-version(7).
    """
    return tuple((_letters(letters), int(digits[:18] or "0")) for letters, digits in _PARTS.findall(version))


def _letters(text: str) -> tuple[int, ...]:
    # The 0 at the end stands for the end of the part: after a tilde, before anything else.
    return (*(-1 if c == "~" else ord(c) if c.isalpha() else ord(c) + 0x110000 for c in text), 0)


def installed(images: Iterable[Found]) -> tuple[str, ...]:
    """The versions of the kernel ``images`` in /boot, the newest last."""
    names = (found.path.partition("/vmlinuz-")[2] for found in images)
    return tuple(sorted({name for name in names if name and not _GARBAGE.search(name)}, key=version_key))


def with_headers(builds: Iterable[Found], sources: Iterable[Found]) -> frozenset[str]:
    """The kernels whose build tree is there: a link into /usr/src outlives the package that it points to."""
    trees = {found.path for found in sources}
    return frozenset(found.path.split("/")[3] for found in builds if _leads_somewhere(found, trees))


def _leads_somewhere(build: Found, trees: set[str]) -> bool:
    if build.link is None:
        return True
    target = posixpath.normpath(posixpath.join(posixpath.dirname(build.path), build.link))
    return target in trees if target.startswith("/usr/src/") else True
