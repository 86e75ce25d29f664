"""``k8s render``: from a recipe and captures to files on disk or standard output."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import load_recipe, unknown_value_error, view_node
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.printer import standard_output
from gpunode.cli.screen.text import BLANK_LINE, Line, Span, line, span, warning_line
from gpunode.command import command
from gpunode.errors import Conflict, UsageError
from gpunode.fast_dataclass import dataclass
from gpunode.host import output as output_files
from gpunode.host.capture import CAPTURE_INDEX_NAME
from gpunode.kubernetes.model import HEADER, KIND_CONFIG_FILE_NAME, ClusterNode, RenderedCluster, UserPodNeeds
from gpunode.kubernetes.render import GITOPS_FORMS, RENDER_FORMS, render_cluster
from gpunode.kubernetes.render_formats import OUTPUT_FOLDERS, RENDERED_PATHS, has_header, make_files, may_leave_objects
from gpunode.kubernetes.user_pod import format_user_pod
from gpunode.workflow.cluster_node import derive_cluster_node, derive_node_name

_CAPTURE_SUFFIXES: Final = (".tar.gz", ".tgz", ".json")


def render_recipe(
    name_or_path: str, captures: Sequence[str], output_folder: str, output_format: str, output: OutputOptions
) -> None:
    """Render the recipe for the nodes."""
    if output_format not in RENDER_FORMS:
        raise unknown_value_error("--format", output_format, RENDER_FORMS)
    recipe = load_recipe(name_or_path)
    rendered = render_cluster(recipe, list(load_cluster_nodes(captures)), output_format)
    files = make_files(rendered, output_format)
    written = _write_folder(Path(output_folder), files) if output_folder else RenderOutcome()
    if not output.json and not output_folder:
        own = [
            text for pod in rendered.user_pods for text in (f"Your pod {pod.why}:", *format_user_pod(pod).splitlines())
        ]
        notes = "".join(f"# {note}\n" for note in (*rendered.notes, *own))
        for_kubectl = (path for path in files if path.endswith(".yaml") and path != KIND_CONFIG_FILE_NAME)
        yaml = (f"# file: {path}\n{files[path]}" for path in for_kubectl)
        standard_output().print_raw(notes + "---\n".join(yaml))
    elif output_folder:
        output.open_report_screen().put(
            *rendered_lines(rendered, output_folder, written.removed, is_for_git=output_format in GITOPS_FORMS)
        )
    result = {
        "format": output_format,
        "files": files,
        "output": output_folder,
        "removed": written.removed,
        "notes": rendered.notes,
        "expected_resources": rendered.expected,
        "example_pods": rendered.user_pods,
    }
    output.emit(Envelope("k8s render", changed=written.changed, result=result))


@dataclass(frozen=True, slots=True)
class RenderOutcome:
    """The result of a render: whether files changed, and the obsolete files that were removed."""

    changed: bool = False
    removed: tuple[str, ...] = ()


def load_cluster_nodes(captures: Sequence[str]) -> Iterator[ClusterNode]:
    """Yield the nodes of these captures; without captures, this machine."""
    if not captures:
        view = view_node("", "/", "")
        yield derive_cluster_node(view.facts, derive_node_name(view.facts, view.evidence, os.uname().nodename))
        return
    for place in captures:
        name, equals, capture = place.partition("=")
        if equals and not Path(place).exists():
            yield derive_cluster_node(view_node(capture, "/", "").facts, name)
            continue
        for one in _list_captures(place):
            view, file = view_node(one, "/", ""), Path(one).name
            stem = next((file.removesuffix(suffix) for suffix in _CAPTURE_SUFFIXES if file.endswith(suffix)), file)
            yield derive_cluster_node(view.facts, derive_node_name(view.facts, view.evidence, stem))


def _list_captures(place: str) -> Iterator[str]:
    """Yield ``place`` if it is a capture, else the captures in that folder."""
    folder = Path(place)
    if not folder.is_dir() or (folder / CAPTURE_INDEX_NAME).exists():
        yield place
        return
    captures = sorted(
        str(path)
        for path in folder.iterdir()
        if path.name.endswith(_CAPTURE_SUFFIXES) or (path / CAPTURE_INDEX_NAME).exists()
    )
    if not captures:
        raise UsageError(
            f"--node {place}: there is no capture in this folder",
            why=f"a capture is a file that ends in {', '.join(_CAPTURE_SUFFIXES)}, or a folder that holds "
            f"{CAPTURE_INDEX_NAME}",
            hint="name a capture that `sudo gpunode capture node.tar.gz` made on a GPU node",
        )
    yield from captures


def _write_folder(folder: Path, rendered_files: Mapping[str, str]) -> RenderOutcome:
    """Write the files into ``folder``, and remove those of former renders.

    Raises:
        Conflict: a link, or a file that gpunode did not render, is in the way; nothing was written.
        UsageError: the folder cannot be written.
    """
    try:
        _refuse_foreign_files(folder, rendered_files)
        inside = (folder / inner for inner in ("", *OUTPUT_FOLDERS) if _is_own_folder(folder, inner))
        paths = [str(place.relative_to(folder)) for within in inside for place in within.iterdir()]
        present = {path: text for path in paths if (text := _read_rendered_file(folder, path)) is not None}
        differing = {path: text for path, text in rendered_files.items() if present.get(path) != text}
        for path, text in differing.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            output_files.write_output(folder / path, text.encode(), 0o755 if path.endswith(".sh") else 0o644)
        former = sorted(present.keys() - rendered_files.keys())
        # Somebody may have edited such a file since.
        removed = tuple(path for path in former if _read_rendered_file(folder, path) is not None)
        for path in removed:
            output_files.remove_output(folder / path)
    except OSError as error:
        hint = "name a folder that you may write with --output"
        where = error.filename or folder
        raise UsageError(f"{where} cannot be written", why=error.strerror or str(error), hint=hint) from error
    return RenderOutcome(bool(differing or removed), removed)


def _refuse_foreign_files(folder: Path, rendered_files: Mapping[str, str]) -> None:
    for inner in sorted({path.rpartition("/")[0] for path in rendered_files}):
        if os.path.lexists(folder / inner) and not _is_own_folder(folder, inner):
            raise _blocked_path_error(
                folder / inner, "this must be a folder, not a link: gpunode writes only below --output"
            )
    for path in rendered_files:
        if os.path.lexists(folder / path) and _read_rendered_file(folder, path) is None:
            raise _blocked_path_error(folder / path, f"it lacks the line {HEADER!r}, or is not a plain file")


def _is_own_folder(folder: Path, inner: str) -> bool:
    """Return whether ``inner`` is a folder below ``folder`` and, unless it is ``folder`` itself, no link."""
    return (folder / inner).is_dir() and not (inner and (folder / inner).is_symlink())


def _read_rendered_file(folder: Path, path: str) -> str | None:
    """Return the content of ``path``; None unless it is a plain file, and no link, that gpunode rendered."""
    whole_path = folder / path
    # Nothing else in the folder is read: it may be larger than the memory, or unreadable.
    if RENDERED_PATHS.fullmatch(path) is None or not whole_path.is_file() or whole_path.is_symlink():
        return None
    text = whole_path.read_bytes().decode("utf-8", "replace")
    return text if has_header(text) else None


def _blocked_path_error(place: Path, why: str) -> Conflict:
    hint = "move it away, or name another folder with --output"
    return Conflict(f"{place} is in the way: gpunode did not create it", why=why, hint=hint)


def user_pod_reason_lines(rendered: RenderedCluster) -> Iterator[Line]:
    """Yield, for each example of a user's own pod, the GPUs that it is for."""
    for own in rendered.user_pods:
        yield line(span("your pod ", "dim"), span(own.why), hang=9)


def user_pod_lines(pods: Sequence[UserPodNeeds], example: str) -> Iterator[Line]:
    """Yield the lines to copy into the user's own pod for a GPU; none if they are unknown.

    ``example`` says where a complete pod is.
    """
    for own in pods:
        head = f"in your own pod ({example}):" if own is pods[0] else "or:"
        yield line(span(head, "dim"), hang=2)
        yield from (line(span(f"  {text}"), hang=4) for text in format_user_pod(own).splitlines())


def rendered_lines(
    rendered: RenderedCluster, output_folder: str, removed: Sequence[str], *, is_for_git: bool
) -> Iterator[Line]:
    """Yield the nodes, the objects and releases with their reasons, the notes, and how to apply them."""
    for edit in rendered.nodes:
        yield line(span("  Node ", "dim"), span(edit.node, "bold"), span(f"  {edit.why}"), hang=4)
        labels = ", ".join(f"{key}={value}" for key, value in edit.labels.items())
        offer = ", ".join(f"{count} × {name}" for name, count in (rendered.expected.get(edit.node) or {}).items())
        parts = [f"labels {labels}"] if labels else []
        parts += [f"taint {edit.taint}"] if edit.taint else []
        parts += [f"offers {offer}"] if offer else []
        yield line(span(f"    {'; '.join(parts) or 'the Node itself is not changed'}", "dim"), hang=6)
    yield BLANK_LINE
    for one in rendered.objects:
        full_name = f"{one.namespace}/{one.name}" if one.namespace else one.name
        yield line(span("  + ", "add"), span(f"{one.kind} {full_name}"), span(f"  {one.why}", "dim"), hang=6)
    for release in rendered.releases:
        name = f"Helm release {release.namespace}/{release.name} {release.version}"
        yield line(span("  + ", "add"), span(name), span(f"  {release.why}", "dim"), hang=6)
    for path in removed:
        left = "; if it was applied, its objects are still in the cluster" if may_leave_objects(path, rendered) else ""
        yield line(span("  - ", "remove"), span(f"{path}  from an earlier render{left}"), hang=6)
    yield BLANK_LINE
    for note in rendered.notes:
        yield warning_line(note)
    yield from user_pod_reason_lines(rendered)
    yield from user_pod_lines(rendered.user_pods, f"{output_folder.rstrip('/')}/test-pod.yaml is a complete example")
    yield line(Span("✓ ", "good"), span(f"written to {output_folder}; nothing was sent to a cluster"), hang=2)
    if is_for_git:
        yield line(
            span(f"{output_folder.rstrip('/')}/README.md says how to hand it over; or apply it yourself:"), hang=2
        )
    script = output_folder if output_folder.startswith("/") else f"./{output_folder}"
    yield line(span("next: ", "dim"), span(command(f"{script.rstrip('/')}/apply.sh"), "command"), hang=6)
