"""The folders that programs are told to look for libraries in before the loader's own, as files and shells set them."""

from __future__ import annotations

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
# At the beginning of its line, behind the file's name where grep writes it: what is indented may never be run.
_EXPORT: Final = Pattern(
    r"^(?:/[^\s:]+:(?:\d+:)?)?(?:export|(?:declare|typeset)\s+-x)\s+LD_(?:LIBRARY_PATH|PRELOAD)=\S+;?\s*(?:#.*)?$"
)


def is_shell_program(path: str) -> bool:
    """Whether a shell runs the file at ``path``: its lines may be conditional, and not every program sees them."""
    return bool(_SHELL.search(path))


def of_shell_line(line: str) -> Iterator[str]:
    """The paths that a line of a shell's program sets, where it does so on no condition."""
    yield from of_variable(line) if _EXPORT.match(line) else ()


def of_conf(line: str) -> Iterator[str]:
    """The folder in a line of the loader's own configuration."""
    if match := _CONF.match(line):
        yield match["folder"]


def is_standard(folder: str) -> bool:
    """Whether a driver has its libraries in ``folder``, or the loader looks there anyhow."""
    return bool(_STANDARD.match(folder))
