"""Lists of package sources as they are before a setup, and the results of a setup and its undo."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations

from hypothesis import strategies as st

from gpunode.catalog.repositories import cuda_repository
from gpunode.change import Change, FileChange, FileState
from gpunode.facts.model import Facts, PackageSource, value_or
from gpunode.facts.project import project_changes
from gpunode.outcome import Planned
from gpunode.packages import deb
from gpunode.steps.packages import plan_driver_repository
from gpunode.workflow.undo import KeptItem, UndoStep, drop_source_conflicts
from tests.unit.steps.machines import CUDA_KEYRING, CUDA_LIST, DEBIAN, machine, recipe

ROW = cuda_repository(DEBIAN, "amd64", "", "")
assert ROW is not None
URI = ROW.uri.rstrip("/")
OTHER_KEY = "/etc/apt/keyrings/nvidia-cuda.gpg"
PATHS = tuple(f"/etc/apt/sources.list.d/{name}" for name in ("cuda.list", "nvidia.sources", "zz-cuda.list"))
# One archive to apt, except for the last two, which gpunode nevertheless treats as the same.
SPELLINGS = (
    (URI, "/"),
    (f"{URI}/", "/"),
    (URI.replace("https:", "http:"), "/"),
    (URI.rpartition("/")[0], f"{URI.rpartition('/')[2]}/"),
    (URI.replace("x86_64", "./x86_64"), "/"),
    (URI.replace("https://", "https://").replace("com/", "com:443/", 1), "/"),
)
DEBIANS = "deb http://archive.example/debian bookworm main\n"


@dataclass(frozen=True, slots=True)
class Undone:
    """A node after a setup was partly undone.

    Attributes:
        before: the node before the setup; ``set_up`` is the node after it, ``after`` the node after the undo.
        undoing: the changes that the undo was meant to reverse.
        kept: the changes that it left in place.
    """

    before: Facts
    set_up: Facts
    after: Facts
    undoing: tuple[FileChange, ...]
    kept: tuple[KeptItem, ...]


@st.composite
def entries(draw: st.DrawFn, path: str) -> str:
    """Return a list that names NVIDIA's archive, in one of apt's two styles."""
    uri, suite = draw(st.sampled_from(SPELLINGS))
    key = draw(st.sampled_from(("", OTHER_KEY, CUDA_KEYRING)))
    kind = draw(st.sampled_from(("deb", "deb", "deb-src")))
    trusted = draw(st.sampled_from(("", "", "yes")))
    if path.endswith(".sources"):
        options = (f"Signed-By: {key}\n" if key else "") + (f"Trusted: {trusted}\n" if trusted else "")
        return f"Types: {kind}\nURIs: {uri}\nSuites: {suite}\n{options}"
    words = [*([f"signed-by={key}"] if key else []), *([f"trusted={trusted}"] if trusted else [])]
    options = f"[{' '.join(words)}] " if words else ""
    return f"{kind} {options}{uri} {suite}\n"


@st.composite
def undone(draw: st.DrawFn) -> Undone:
    """Set up the driver's repository and undo it; gpunode's own list stays, as it does with a driver, or is removed."""
    lists = {path: draw(entries(path)).encode() for path in PATHS if draw(st.booleans())}
    keyring = {CUDA_KEYRING: b"another key"} if draw(st.booleans()) else {}
    before = machine(files={"/etc/apt/sources.list": DEBIANS.encode(), **lists, **keyring})
    outcome = plan_driver_repository(recipe(), before)
    changes = outcome.changes if isinstance(outcome, Planned) else ()
    set_up = project_changes(before, _realized(changes))
    back = FileChange.of_kind(change.inverse() for change in reversed(_realized(changes)))
    stays = draw(st.booleans())
    undoing = tuple(change for change in back if not (stays and change.after is None))
    own = [KeptItem(change.path, "stays with the driver") for change in back if change not in undoing]
    parts = [UndoStep("sources", "remove", change) for change in undoing]
    remaining, kept = drop_source_conflicts(parts, own, set_up, _backup_of)
    return Undone(before, set_up, project_changes(set_up, [part.change for part in remaining]), undoing, kept)


def _realized(changes: Iterable[Change]) -> list[FileChange]:
    """Return the file changes, with their keys fetched."""
    files = (change for change in changes if isinstance(change, FileChange))
    return [
        change
        if isinstance(change.after, FileState | None)
        else FileChange(change.path, change.before, FileState(b"NVIDIA's key"), change.triggers)
        for change in files
    ]


def _backup_of(content: bytes) -> str:
    return f"/var/lib/gpunode/objects/{len(content)}"


def contradictions(facts: Facts) -> list[tuple[PackageSource, PackageSource]]:
    """Return the entries that would keep apt from reading any list."""
    entries: tuple[PackageSource, ...] = value_or(facts.sources, ())
    pairs = combinations(entries, 2)
    return [(one, other) for one, other in pairs if deb.have_contradicting_checks(one, other, "amd64")]


def lists_of(facts: Facts) -> Mapping[str, bytes]:
    """Return the existing lists, by path."""
    paths = ("/etc/apt/sources.list", CUDA_LIST, *PATHS)
    states = ((path, value_or(facts.file(path), None)) for path in paths)
    return {path: state.content for path, state in states if state is not None}
