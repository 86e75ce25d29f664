"""What was rendered for a cluster, as a person reads it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpunode.cli.screen.text import BLANK, Line, Span, line, span
from gpunode.command import command
from gpunode.kubernetes.model import NodeEdit, Rendered


def rendered_lines(found: Rendered, out: str, removed: Sequence[str]) -> Iterator[Line]:
    """The nodes, the objects and releases with their reasons, what to know, and how to apply them."""
    for edit in found.nodes:
        yield line(span("  Node ", "dim"), span(edit.node, "bold"), span(f"  {edit.why}"), hang=4)
        yield line(span(f"    {_asked(found, edit)}", "dim"), hang=6)
    yield BLANK
    for one in found.objects:
        place = f"{one.namespace}/{one.name}" if one.namespace else one.name
        yield line(span("  + ", "add"), span(f"{one.kind} {place}"), span(f"  {one.why}", "dim"), hang=6)
    for release in found.releases:
        name = f"Helm release {release.namespace}/{release.name} {release.version}"
        yield line(span("  + ", "add"), span(name), span(f"  {release.why}", "dim"), hang=6)
    for path in removed:
        yield line(
            span("  - ", "remove"), span(f"{path}  from a former render; what it made is still in the cluster"), hang=6
        )
    yield BLANK
    for note in found.notes:
        yield line(Span("! ", "warn"), span(note), hang=2)
    yield line(Span("✓ ", "good"), span(f"written to {out}; nothing was sent to a cluster"), hang=2)
    script = out if out.startswith("/") else f"./{out}"
    yield line(span("next: ", "dim"), span(command(f"{script.rstrip('/')}/apply.sh"), "command"), hang=6)


def _asked(found: Rendered, edit: NodeEdit) -> str:
    """The node's labels and taint, and what it will offer."""
    labels = ", ".join(f"{key}={value}" for key, value in edit.labels.items())
    offer = found.expected.get(edit.node) or {}
    parts = [f"labels {labels}"] if labels else []
    parts += [f"taint {edit.taint}"] if edit.taint else []
    parts += ["offers " + ", ".join(f"{count} × {name}" for name, count in offer.items())] if offer else []
    return "; ".join(parts) or "nothing is changed on the Node itself"
