"""The folders that programs are told to look for libraries in before the loader's own, as files and shells set them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.facts.patterns import Pattern

# A shell's export, a unit's Environment=, pam's /etc/environment, env, Python's os.environ, docker inspect.
_VARIABLE: Final = Pattern(r"\b(?:LD_LIBRARY_PATH|LD_PRELOAD)(?:['\"]\])?\s*[=:]\s*['\"]?(?P<value>[^\s'\",;]+)")
# ld.so.conf(5): a folder a line.
_CONF: Final = Pattern(r"^[ \t]*(?P<folder>/\S+)\s*$")
# A comment; behind the name of the file, where grep -r writes it.
_COMMENT: Final = Pattern(r"^(?:/[^\s:]+:(?:\d+:)?)?[ \t]*[#;]")
_STANDARD: Final = Pattern(
    r"^(?:/usr)?/lib(?:32|64)?(?:/(?:x86_64|aarch64|i386|powerpc64le)-linux-gnu)?(?:/nvidia(?:[-/][\w.-]+)?)?/?$"
    r"|^/usr/lib/wsl/|^/run/(?:nvidia|opengl-driver)|^/usr/local/nvidia/|^/opt/nvidia/|^/nix/store/|^/home/kubernetes/bin/nvidia"
    r"|^/usr/lib64-nvidia/?$"  # Colab's
)


def of_variable(line: str) -> Iterator[str]:
    """The absolute paths in LD_LIBRARY_PATH or LD_PRELOAD, where ``line`` sets one of them."""
    if "LD_" in line and not _COMMENT.match(line):
        for match in _VARIABLE.finditer(line):
            yield from (path for path in match["value"].split(":") if path.startswith("/"))


# What a shell runs for whoever logs in; other programs are run, and set what they set for themselves.
_SHELL: Final = Pattern(
    r"/\.?(?:profile|bash\.bashrc|bashrc|bash_profile|bash_login|zshrc|zshenv|zprofile)$|\.(?:sh|bash|zsh)$"
)
# The whole line is one, at its beginning: what is indented stands in something.
_ASSIGNED: Final = Pattern(
    r"^(?P<export>(?:export|declare\s+-x|typeset\s+-x)\s+)?(?:LD_LIBRARY_PATH|LD_PRELOAD)="
    r"(?P<value>(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|\"'()<>])*)[ \t]*(?:;[ \t]*(?P<exported>export[ \t]+\w+[ \t]*)?)?$"
)
_EXPORTS: Final = Pattern(
    r"^(?:export|declare\s+-x|typeset\s+-x)\s[^\n#=]*\bLD_(?:LIBRARY_PATH|PRELOAD)\b", re.MULTILINE
)
_REMARK: Final = Pattern(r"(?:^|[ \t])#[^\n]*$")
_UNSET: Final = Pattern(r"\bunset\b[^\n]{0,200}\bLD_(?:LIBRARY_PATH|PRELOAD)\b")
_LEAVES: Final = Pattern(r"\b(?:return|exit|exec)\b")
_OPENS: Final = Pattern(
    r"(?:^|[;&|]|\b(?:then|do|else)\b)[ \t]*(?:if|case|for|while|until|select)\b"
    r"|(?:^|[\s)])[{(](?=\s|$)|^[ \t]*\((?=\w)"
)
_CLOSES: Final = Pattern(r"(?:^|[;&|])[ \t]*(?:fi|esac|done)\b|(?:^|[;&|\s])[})](?=[\s;&|]|$)")
_HERE: Final = Pattern(r"(?<!<)<<-?[ \t]*[\\'\"]?(?P<word>\w+)")


def is_shell_program(path: str) -> bool:
    """Whether a shell runs the file at ``path``: its lines may be conditional, and not every program sees them."""
    return bool(_SHELL.search(path))


def of_shell_line(line: str) -> tuple[str, ...]:
    """The paths that ``line`` sets for all that follows, where it is an export and nothing else."""
    match = _ASSIGNED.match(_REMARK.sub("", line))
    return tuple(of_variable(match[0])) if match and (match["export"] or match["exported"]) else ()


def of_shell_program(text: str) -> tuple[tuple[int, str], ...]:
    """The paths that a shell's program sets for all, with the numbers of the lines that do.

    What stands in a condition, a function or a here-document may never be run, and what comes after a ``return`` or an
    ``exit`` neither: none of it counts.
    """
    found: list[tuple[int, str]] = []
    depth, here, goes_on = 0, "", False
    is_exported = bool(_EXPORTS.search(text))
    for number, written in enumerate(text.splitlines(), 1):
        if here:
            here = "" if written.strip() == here else here
            continue
        line = _REMARK.sub("", written)
        match = _ASSIGNED.match(line) if not depth and not goes_on else None
        if match:
            found = found if "LD_" in match["value"] else []
            if match["export"] or match["exported"] or is_exported:
                found.extend((number, path) for path in of_variable(line))
        elif _UNSET.search(line):
            found = []
        elif _LEAVES.search(line) and not depth:
            break
        depth = max(0, depth + len(_OPENS.findall(line)) - len(_CLOSES.findall(line)))
        start = _HERE.search(line)
        here, goes_on = start["word"] if start else "", line.endswith("\\")
    return tuple(found)


def of_conf(line: str) -> Iterator[str]:
    """The folder in a line of the loader's own configuration."""
    if match := _CONF.match(line):
        yield match["folder"]


def is_standard(folder: str) -> bool:
    """Whether a driver has its libraries in ``folder``, or the loader looks there anyhow."""
    return bool(_STANDARD.match(folder))
