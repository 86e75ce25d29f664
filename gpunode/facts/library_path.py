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


def of_conf(line: str) -> Iterator[str]:
    """The folder in a line of the loader's own configuration."""
    if match := _CONF.match(line):
        yield match["folder"]


def is_standard(folder: str) -> bool:
    """Whether a driver has its libraries in ``folder``, or the loader looks there anyhow."""
    return bool(_STANDARD.match(folder))
