"""Files that load before gpunode's edit also load after it, with NVIDIA's runtime: every vector in real daemons.

containerd 1.6, 1.7 and 2 and dockerd 20.10, 26 and 28 of Debian's suites. Verdicts come from ``containerd config dump``
and ``dockerd --validate`` and, once started, from CRI's Status and docker's /info. The core has each vector in its own
mode, and some in ``--mode auto``, with the oldest and newest daemons; the whole has all in both modes.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.conformance.runtimes.golden import Vector, vectors
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.code import PROJECT
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.runtimes import SUITES
from tests.e2e.runtimes.matrix import AUTO, OWN, THEIRS, Cell

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

pytestmark = pytest.mark.e2e

EXTENTS: Final = [
    *(pytest.param((suite, "core"), id=suite, marks=pytest.mark.long if suite == "trixie" else ()) for suite in SUITES),
    *(pytest.param((suite, "whole"), id=f"{suite}-whole", marks=pytest.mark.long) for suite in SUITES),
]
VECTORS: Final = {vector.folder.name: vector for vector in vectors()}
# Programs that dockerd checks before it starts, and gpunode before it makes one the default runtime.
BINARIES: Final = sorted({"/usr/bin/my-runtime"}.union(*(vector.programs for vector in VECTORS.values())))
CRI: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")


@dataclass(frozen=True, slots=True)
class Told:
    """The answers of a suite's daemons of one kind.

    Attributes:
        version: the daemon's three numbers.
    """

    version: str
    cells: tuple[Cell, ...]

    def of(self, *modes: str) -> Iterator[tuple[Vector, Cell]]:
        """Return the cells of these modes."""
        return ((VECTORS[cell.vector], cell) for cell in self.cells if cell.mode in modes)

    def in_scope(self) -> Iterator[tuple[Vector, Cell]]:
        """Yield the cells to judge: the daemon accepted the files before, and gpunode should not refuse them."""
        for vector, cell in self.of(OWN, AUTO):
            is_refused = vector.is_refused if cell.mode == OWN else vector.verdict == "refuse"
            if loads(cell, "before") and not is_refused and not self._is_of_later_schema(vector):
                yield vector, cell

    def answered(self) -> Iterator[tuple[Vector, Cell]]:
        """Yield the vectors with an answer; a missing answer is reported once."""
        return ((vector, cell) for vector, cell in self.in_scope() if cell.code == 0 and loads(cell, "after"))

    def _is_of_later_schema(self, vector: Vector) -> bool:
        """True for a file of schema 3, which containerd 1.6 accepts and ignores."""
        return self.version.startswith("1.6.") and b"version = 3" in vector.files.get(vector.paths[0], b"")


@pytest.fixture(scope="module", params=EXTENTS)
def containerd(request: pytest.FixtureRequest, make_node: Callable[[str], Chroot]) -> Told:
    """Return the answers of a suite's containerd."""
    return tell(make_node, "containerd", *request.param)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((suite, "core"), id=suite, marks=() if suite == "bookworm" else pytest.mark.long)
        for suite in SUITES
    ],
)
def docker(request: pytest.FixtureRequest, make_node: Callable[[str], Chroot]) -> Told:
    """Return the answers of a suite's dockerd; a mode makes no difference to it."""
    return tell(make_node, "docker", *request.param)


def tell(make_node: Callable[[str], Chroot], runtime: str, suite: str, extent: str) -> Told:
    with make_node(suite) as node:
        for binary in BINARIES:
            node.write(binary, '#!/bin/sh\nexec runc "$@"\n', 0o755)
        command = [sys.executable, "-m", "tests.e2e.runtimes.matrix", os.fspath(node.merged), runtime, extent]
        done = node.sandbox.finish(*command, env={**os.environ, "PYTHONPATH": os.fspath(PROJECT)}, timeout=1200)
        assert done.returncode == 0, done.stderr
        told = node.run("dockerd" if runtime == "docker" else runtime, "--version").stdout
        left = marks(node)
    assert leftovers(left) == []
    version = re.search(r"\d+\.\d+\.\d+", told)
    assert version
    return Told(version[0], tuple(map(Cell.of, done.stdout.splitlines())))


def test_containerd_loads_what_it_loaded_before(containerd: Told) -> None:
    assert list_unanswered(containerd) == []


def test_containerd_has_the_requested_runtime_and_default(containerd: Told) -> None:
    cells = [(vector, cell) for vector, cell in containerd.answered() if not cri(cell.after.read.dump).is_disabled]
    assert len(cells) > 60
    assert [f"{name(cell)}: {wrong}" for vector, cell in cells for wrong in unlike_asked(vector, cell)] == []


def test_other_containerd_settings_do_not_change(containerd: Told) -> None:
    changed = ((cell, others_changed(vector, cell)) for vector, cell in containerd.answered())
    assert [f"{name(cell)}: {keys}" for cell, keys in changed if keys] == []


def test_cri_plugin_starts_where_it_did_and_has_the_runtime(containerd: Told) -> None:
    cells = [(vector, cell) for vector, cell in containerd.answered() if cell.before.started.ok]
    assert len(cells) > 60
    dead = [f"{name(cell)}: {cell.after.started.said}" for _, cell in cells if not cell.after.started.ok]
    assert dead == []
    assert [f"{name(cell)}: {wrong}" for vector, cell in cells for wrong in started_unlike_asked(vector, cell)] == []


def test_nvidia_ctk_result_stops_the_cri_plugin(containerd: Told) -> None:
    """This proves that these tests detect such a failure."""
    cells = list(containerd.of(THEIRS))
    assert len(cells) == 8
    for vector, cell in cells:
        assert cell.before.started.ok
        assert cell.after.read.ok
        assert cell.after.started.ok is (containerd.version not in vector.told["cri_plugin_fails_to_load_on"])


def test_containerd_accepts_the_files_it_accepted_when_recorded(containerd: Told) -> None:
    differing = []
    for vector, cell in containerd.of(OWN):
        recorded = (vector.told["containerd_effective"]["before"] or {}).get(containerd.version)
        if recorded is not None and recorded["loads"] != cell.before.read.ok:
            differing.append(f"{name(cell)}: {cell.before.read.said}")
    assert differing == []


def test_dockerd_loads_what_it_did_and_has_the_runtime(docker: Told) -> None:
    assert list_unanswered(docker) == []
    cells = list(docker.answered())
    assert len(cells) > 15
    dead = [f"{name(cell)}: {cell.after.started.said}" for _, cell in cells if not cell.after.started.ok]
    assert dead == []
    assert [f"{name(cell)}: {wrong}" for vector, cell in cells for wrong in started_unlike_asked(vector, cell)] == []


def test_dockerd_accepts_the_files_it_accepted_when_recorded(docker: Told) -> None:
    if docker.version != "28.5.2":
        pytest.skip("recorded for dockerd 28.5.2 alone")
    for vector, cell in docker.of(OWN):
        recorded = vector.told["dockerd_28_5_2_validate"]["before"]
        assert recorded is None or recorded["ok"] == cell.before.read.ok, vector.folder.name


def name(cell: Cell) -> str:
    return f"{cell.vector} {cell.mode}"


def loads(cell: Cell, when: str) -> bool:
    """True if the daemon accepts the files; a daemon without a parser command is started instead."""
    state = cell.before if when == "before" else cell.after
    return state.started.ok if state.read.ok is None else state.read.ok


def list_unanswered(told: Told) -> list[str]:
    cells = list(told.in_scope())
    assert len(cells) > 15
    refused = [f"{name(cell)}: {cell.code} {cell.said[-600:]}" for _, cell in cells if cell.code]
    broken = [(cell, cell.after) for _, cell in cells if cell.code == 0 and not loads(cell, "after")]
    return refused + [f"{name(cell)}: {after.read.said or after.started.said}" for cell, after in broken]


@dataclass(frozen=True, slots=True)
class Cri:
    """The CRI plugin in a dump."""

    table: Mapping[str, Any]
    is_disabled: bool

    @property
    def containerd(self) -> Mapping[str, Any]:
        return self.table.get("containerd") or {}

    @property
    def runtimes(self) -> Mapping[str, Any]:
        return self.containerd.get("runtimes") or {}

    @property
    def default(self) -> str:
        return str(self.containerd.get("default_runtime_name") or "runc")


def cri(dump: str) -> Cri:
    document = tomllib.loads(dump)
    found: Mapping[str, Any] = next((document["plugins"][key] for key in CRI if key in document["plugins"]), {})
    disabled = {"cri", *CRI} & set(document.get("disabled_plugins") or ())
    return Cri(found, bool(disabled))


def flags(vector: Vector) -> Mapping[str, str]:
    return dict(word.partition("=")[::2] for word in vector.told["argv"])


def handler(vector: Vector) -> str:
    return flags(vector).get("--nvidia-runtime-name", "nvidia")


def binary(vector: Vector) -> str:
    default = "nvidia-container-runtime" if vector.runtime == "docker" else "/usr/bin/nvidia-container-runtime"
    return flags(vector).get("--nvidia-runtime-path", flags(vector).get("--runtime-path", default))


def is_default(vector: Vector) -> bool:
    return not {"--set-as-default", "--nvidia-set-as-default"}.isdisjoint(flags(vector))


def unlike_asked(vector: Vector, cell: Cell) -> Iterator[str]:
    """Yield the differences of the dump from the vector's request."""
    before, after = cri(cell.before.read.dump), cri(cell.after.read.dump)
    entry = after.runtimes.get(handler(vector), {})
    found = entry.get("runtime_type", ""), (entry.get("options") or {}).get("BinaryName")
    if not found[0].startswith("io.containerd.") or found[1] != binary(vector):
        yield f"the runtime is {found}"
    if after.default != default_of(vector, before.default):
        yield f"the default is {after.default}, it was {before.default}"
    if lost := before.runtimes.keys() - after.runtimes.keys():
        yield f"these runtimes are lost: {', '.join(sorted(lost))}"
    if after.default not in after.runtimes:
        yield f"there is no runtime {after.default}, the default"


def started_unlike_asked(vector: Vector, cell: Cell) -> Iterator[str]:
    """Yield the differences of the started daemon from the vector's request."""
    before, after = cell.before.started, cell.after.started
    if after.binaries.get(handler(vector)) != binary(vector):
        yield f"the runtime is {after.binaries.get(handler(vector))}"
    # A daemon that did not start has no answer, as with a missing runtime.
    if before.ok and after.default != default_of(vector, before.default):
        yield f"the default is {after.default}, it was {before.default}"


def default_of(vector: Vector, former: str) -> str:
    """Return the expected default: the requested one, or the former."""
    return handler(vector) if is_default(vector) else former


# This keeps containerd 1 from having another default; it is removed if one is requested.
_OVERRULING: Final = (".default_runtime.", ".systemd_cgroup.")


def others_changed(vector: Vector, cell: Cell) -> list[str]:
    """Return the keys of the effective configuration that differ although no change was requested."""
    former, now = (_others(vector, state.read.dump) for state in (cell.before, cell.after))
    return sorted(key for key in former.keys() | now.keys() if former.get(key) != now.get(key))


def _others(vector: Vector, dump: str) -> dict[str, Any]:
    document = tomllib.loads(dump)
    found = dict(_leaves({key: value for key, value in document.items() if key not in {"imports", "version"}}))
    runtimes = (f".runtimes.{name}." for name in (handler(vector), "runc"))
    ours = (*runtimes, ".default_runtime_name.", ".enable_cdi.", *(_OVERRULING if is_default(vector) else ()))
    return {key: value for key, value in found.items() if not any(part in f"{key}." for part in ours)}


def _leaves(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
