"""The Go templates from which k3s and RKE2 make containerd's configuration at every start; edited as text.

A template is no TOML, so NVIDIA's tables are appended to it between two marks, and taken out again between them. k3s
registers what it finds on its PATH by itself, and a table that stands in a file twice stops containerd (k3s-io/docs
issue 566): so the appended tables are rendered only where k3s has found no runtime of that name.

Source: docs.k3s.io, "Configuring containerd"; k3s pkg/agent/templates, whose data have ExtraRuntimes and SystemdCgroup.
"""

from __future__ import annotations

import re
from typing import Final

from gpunode.errors import Refused
from gpunode.runtimes.model import DesiredConfig
from gpunode.runtimes.text import decode, encode

_BASE: Final = '{{ template "base" . }}'
_MADE: Final = "{{/* gpunode: made this file */}}" + _BASE
_BEGIN: Final = "{{/* gpunode: begin */}}"
_END: Final = "{{/* gpunode: end */}}"
_OURS: Final = re.compile(re.escape(_BEGIN) + r".*?" + re.escape(_END) + r"(?:\r?\n)?", re.DOTALL)
# A template that renders what k3s finds by itself, and so may name our handler already.
_FINDS: Final = re.compile(r"""\{\{-?\s*template\s+["`]base["`]|\.ExtraRuntimes\b""")
_TABLE: Final = re.compile(r"""\.runtimes\."([^"]+)"\]""")
_PLAIN: Final = re.compile(r"[\w./+-]+")
_PLUGINS: Final = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}


def is_template(data: bytes) -> bool:
    """Whether there is anything in it for Go's templates to do; else it is TOML."""
    return b"{{" in data


def renders_found(data: bytes) -> bool:
    """Whether the template renders the runtimes that k3s finds by itself."""
    return _FINDS.search(data.decode("utf-8", "replace")) is not None


def configure_template(data: bytes | None, desired: DesiredConfig, schema: int, path: str) -> bytes:
    """The template, rendering the handler as desired; a missing one is made of k3s's own and our tables.

    Raises:
        Refused: it names the handler itself, holds another one of gpunode's, or cannot say what was asked for.
    """
    text = decode(data, path) if data is not None else _MADE + "\n"
    newline = "\r\n" if "\r\n" in text else "\n"
    others, former = _OURS.sub("", text), _OURS.search(text)
    if former is not None and not _names(former[0], desired.handler):
        name = _TABLE.search(former[0])
        raise Refused(
            f"{path} already has another runtime between gpunode's marks",
            why="the template has room for one, so this runtime would replace it",
            hint="remove it first: gpunode ctk runtime unconfigure --runtime containerd --nvidia-runtime-name "
            + (name[1] if name else "NAME"),
        )
    if _names(others, desired.handler):
        raise Refused(
            f"{path} already defines the runtime {desired.handler}",
            why="it is a Go template, so its tables cannot be edited, and a second table of that name stops containerd",
            hint=f"edit the table in {path}, or remove it and run the command again",
        )
    if not is_about(text, desired.handler):
        raise Refused(
            f"gpunode's tables in {path} are for another runtime than {desired.handler}",
            why="it has room for one, and a default that names the removed one would keep containerd from starting",
            hint="remove it first: gpunode ctk runtime unconfigure --runtime containerd --nvidia-runtime-name=…",
        )
    ours = _tables(desired, _PLUGINS[schema], path, is_found=_FINDS.search(others) is not None).replace("\n", newline)
    if former is None:
        return encode(text + ours, data)
    return encode(text[: former.start()] + ours + text[former.end() :], data)


def is_about(text: str, handler: str) -> bool:
    """Whether gpunode's tables in the text, if there are any, are those of ``handler``."""
    found = _OURS.search(text)
    return found is None or _names(found[0], handler)


def holds(data: bytes, handler: str) -> bool:
    """Whether ``configure_template`` has put the handler into the template."""
    found = _OURS.search(data.decode("utf-8", "replace"))
    return found is not None and _names(found[0], handler)


def unconfigure_template(data: bytes, path: str) -> bytes | None:
    """The template without what ``configure_template`` appended; None where that made the file."""
    rest = _OURS.sub("", decode(data, path))
    return None if rest.rstrip() == _MADE else encode(rest, data)


def _tables(desired: DesiredConfig, plugin: str, path: str, *, is_found: bool) -> str:
    for word in (desired.handler, desired.binary):
        if not _PLAIN.fullmatch(word):
            raise Refused(
                f"{word!r} cannot be written into {path}",
                why="it is a Go template, in which some characters have a special meaning",
                hint="use letters, digits and ./+-_ in the runtime's name and path",
            )
    here = f'[plugins."{plugin}".containerd.runtimes."{desired.handler}"'
    tables = (
        f'{here}]\n  runtime_type = "io.containerd.runc.v2"\n'
        f'{here}.options]\n  BinaryName = "{desired.binary}"\n  SystemdCgroup = {{{{ .SystemdCgroup }}}}\n'
    )
    if is_found:
        # Of a missing key `index` gives the empty value, whose truth as a struct is "true"; its field's is not.
        tables = f'{{{{ if not (index .ExtraRuntimes "{desired.handler}").BinaryName }}}}\n{tables}{{{{ end }}}}\n'
    return f"{_BEGIN}\n# NVIDIA's runtime, made by gpunode\n{tables}{_END}\n"


def _names(text: str, handler: str) -> bool:
    """Whether the text has a table of the handler's own, in TOML and outside of comments."""
    table = re.compile(rf"""runtimes\s*\.\s*(["']?){re.escape(handler)}\1\s*[.\]]""")
    return any(table.search(line.partition("#")[0]) for line in text.splitlines())
