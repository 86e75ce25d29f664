"""Whether the evidence was taken inside a container: its libraries, packages and device files are not the node's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.model import Citation, Doubt
from gpunode.diagnoses.snapshot import Snapshot, cite, stated
from gpunode.diagnoses.views import nested, system
from gpunode.facts.items import Item
from gpunode.facts.model import Known

Engine: TypeAlias = Literal["docker", "podman", "kubernetes", "lxc", ""]

# What an engine leaves in the container's root.
_MARKS: Final[tuple[tuple[str, Engine], ...]] = (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"))
_BY_VIRT: Final[dict[str, Engine]] = {"docker": "docker", "podman": "podman", "lxc": "lxc", "lxc-libvirt": "lxc"}
_GIVEN: Final[dict[Engine, str]] = {
    "docker": "`docker run --gpus all`",
    "podman": "`podman run --device nvidia.com/gpu=all`",
    "kubernetes": "`nvidia.com/gpu: 1` under the limits of its pod",
    "lxc": "the device files /dev/nvidia* in its configuration",
    "": "`--gpus all` (docker, nerdctl), `--device nvidia.com/gpu=all` (podman) or a limit of nvidia.com/gpu (a pod)",
}


@dataclass(frozen=True, slots=True)
class Container:
    """What holds the container in which somebody looked; the engine is empty where nothing names it."""

    engine: Engine
    citation: Citation


def container(snapshot: Snapshot) -> Container | None:
    """The container in which the evidence was taken; None where it is the node's own, or nothing tells."""
    return snapshot.view(_container)


def without_gpu(snapshot: Snapshot, *cited: Citation) -> Doubt | None:
    """What a missing library or device file comes to where the evidence is a container's; None where it is not."""
    held = container(snapshot)
    if held is None:
        return None
    return Doubt(
        f"this was seen inside a container, which has no GPU: was it started with {_GIVEN[held.engine]}?",
        (Shell("nvidia-smi  # on the host itself"),),
        (held.citation, *cited),
        ("toolkit-not-installed", "nvidia-runtime-not-registered", "driver-userspace-incomplete"),
    )


def _container(snapshot: Snapshot) -> Container | None:
    # A node that is a container, as those of kind are, is one all the same.
    if snapshot.view(nested.is_nested) or system.is_wsl(snapshot):
        return None
    found = list(_signs(snapshot))
    return next((one for one in found if one.engine), found[0] if found else None)


def _signs(snapshot: Snapshot) -> Iterator[Container]:
    platform = snapshot.facts.platform
    if isinstance(platform, Known) and platform.value.kind == "container":
        by = platform.value.detail
        yield Container(_BY_VIRT.get(by, ""), stated("systemd-detect-virt", by or "a container", platform.probe))
    for item in snapshot.items:
        if item.where == "host" and item.outcome == "ok":
            yield from _of(item)


def _of(item: Item) -> Iterator[Container]:
    for path, engine in _MARKS:
        # A probe that looked for it and found nothing is no mark.
        named = bool(item.text.strip()) and (item.subject == path or path in item.source.words)
        if named and item.kind in {"listing", "file"}:
            yield Container(engine, cite(item, 1))
    if item.kind == "virtualization" and (engine := _BY_VIRT.get(item.text.strip(), "")):
        yield Container(engine, cite(item, 1))
