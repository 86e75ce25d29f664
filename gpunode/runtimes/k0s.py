"""k0s: it generates containerd's configuration at every start, and watches a folder of drop-ins.

Up to its releases with containerd 1.7 k0s merges drop-ins of schema 2 into its defaults itself; later ones have
containerd import them, and take schema 3 alone. Either way a drop-in says no more than what it adds, in the schema of
the generated file. A file without k0s' mark in its first line is the administrator's own, edited as any other.

Source: docs.k0sproject.io, "Runtime"; k0s pkg/component/worker/containerd (component.go, configurer.go) of 1.30 and
1.36; k0s issue 6547 (a drop-in that says more than it adds takes the node down).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpunode.errors import Refused
from gpunode.runtimes import containerd, containerd_files
from gpunode.runtimes.containerd_files import first_merging_version, imports_matching, parse_config
from gpunode.runtimes.model import ConfigEdit, DesiredConfig, Files, ObservedConfig

K0S_CONFIG_FILE: Final = "/etc/k0s/containerd.toml"
K0S_DROP_IN_FOLDER: Final = "/etc/k0s/containerd.d"
DROP_IN: Final = f"{K0S_DROP_IN_FOLDER}/99-nvidia.toml"
_MANAGED_BY_K0S_LINE: Final = "# k0s_managed=true"


def is_managed_by_k0s(data: bytes | None) -> bool:
    """Return whether k0s makes the file: its first line says so (blank before 1.30), or it is not there."""
    lines = (data or b"").decode("utf-8", "replace").lstrip("\r\n").splitlines()
    return data is None or lines[:1] == [_MANAGED_BY_K0S_LINE]


def reads(files: Files, desired: DesiredConfig) -> tuple[str, ...]:
    """The generated file, what it imports, and the drop-ins."""
    return tuple(
        dict.fromkeys((*containerd_files.reads(files, locate(files, desired)), f"{K0S_DROP_IN_FOLDER}/*.toml"))
    )


def inspect(files: Files, desired: DesiredConfig) -> ObservedConfig:
    """Return what containerd reads once k0s has noticed the drop-ins."""
    return containerd.inspect(_with_drop_ins(files), locate(files, desired))


def configure(files: Files, desired: DesiredConfig) -> ConfigEdit:
    """The edits that register the handler; none if it is registered already.

    Raises:
        Refused: a file cannot be read, or the request is impossible there.
    """
    if not is_managed_by_k0s(files.get(K0S_CONFIG_FILE)):
        edited = containerd.configure(files, locate(files, desired))
        return replace(edited, how=f"{edited.how}; {K0S_CONFIG_FILE} lacks the mark of k0s, so k0s leaves it alone")
    if K0S_CONFIG_FILE not in files:
        raise Refused(
            f"{K0S_CONFIG_FILE} does not exist yet",
            why="k0s creates it at its first start, and its schema is not known until then",
            hint="start k0s once, then run the command again",
        )
    if desired.mode == "in-place":
        raise _lost_edit_error("gpunode does not edit it in place")
    if desired.drop_in not in {"", DROP_IN}:
        raise Refused(
            f"k0s does not read {desired.drop_in}",
            why=f"it looks for drop-ins in {K0S_DROP_IN_FOLDER}",
            hint=f"leave --drop-in-config out: gpunode writes {DROP_IN}",
        )
    edited = _with_actual_before(files, containerd.configure(_with_drop_ins(files), locate(files, desired)))
    if any(edit.path == K0S_CONFIG_FILE for edit in edited.edits):
        raise _lost_edit_error("this change requires an edit of it")
    return replace(edited, how="as a drop-in, which k0s detects by itself; it regenerates the rest at every start")


def _lost_edit_error(what: str) -> Refused:
    return Refused(
        f"{K0S_CONFIG_FILE}: {what}",
        why="k0s regenerates it at every start, so the edit would be lost",
        hint=f"leave --mode out, and put other settings into a file in {K0S_DROP_IN_FOLDER}",
    )


def locate(files: Files, desired: DesiredConfig) -> DesiredConfig:
    """Return ``desired`` for the generated file and the drop-in that k0s reads."""
    if not is_managed_by_k0s(files.get(K0S_CONFIG_FILE)):
        return replace(desired, config=K0S_CONFIG_FILE, version=None)
    # Whoever merges the drop-ins, k0s or containerd 2, does so key by key.
    version = first_merging_version(parse_config(files.get(K0S_CONFIG_FILE), K0S_CONFIG_FILE).schema)
    return replace(desired, config=K0S_CONFIG_FILE, drop_in=DROP_IN, mode="auto", version=version)


def _with_drop_ins(files: Files) -> Files:
    """The files that count, as if the generated one imported the drop-ins where k0s merges them itself.

    Our drop-in of another schema is from before an upgrade of k0s, and not read any more.
    """
    data = files.get(K0S_CONFIG_FILE)
    if data is None or not is_managed_by_k0s(data):
        return files
    root = parse_config(data, K0S_CONFIG_FILE)
    if DROP_IN in files and parse_config(files[DROP_IN], DROP_IN).schema != root.schema:
        files = {path: content for path, content in files.items() if path != DROP_IN}
    if any(imports_matching(root, DROP_IN)):
        return files
    return {**files, K0S_CONFIG_FILE: f'version = {root.schema}\nimports = ["{K0S_DROP_IN_FOLDER}/*.toml"]\n'.encode()}


def _with_actual_before(files: Files, edited: ConfigEdit) -> ConfigEdit:
    """``edited``, of files as they are: the drop-in is replaced where it was left out."""
    edits = (replace(edit, before=files.get(edit.path)) for edit in edited.edits)
    return replace(edited, edits=tuple(edits))
