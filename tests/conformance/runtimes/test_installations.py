"""Files of products that were not run here, written from their documentation, before and after gpunode's changes.

Each folder of ``installations`` holds asked.json, the files before and the files after; see SOURCE.md.
"""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpunode.change import FileState
from gpunode.errors import Refused
from gpunode.facts.derive import derive
from gpunode.facts.model import Fact, Known, Kubelet
from gpunode.runtimes import (
    DesiredConfig,
    Files,
    Runtime,
    apply_edits,
    containerd,
    find_runtime,
)
from gpunode.runtimes.containerd_files import is_pattern, match_pattern
from gpunode.runtimes.file_states import States, contents_of_states, gather_states
from gpunode.runtimes.installations import resolve_runtime
from tests.needs import lacking, program
from tests.unit.runtimes.unconfigured import unconfigure

OTHERS = {"nvidia-container-runtime"}  # microk8s'
FOLDER = Path(__file__).parent / "installations"
CASES = sorted(folder.name for folder in FOLDER.iterdir())


def read_case(case: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / case / "asked.json").read_text())
    return found


def tree(case: str, name: str) -> Files:
    root = FOLDER / case / name
    return {f"/{path.relative_to(root)}": path.read_bytes() for path in root.rglob("*") if path.is_file()}


def row_and_files(case: str) -> tuple[Runtime, Files]:
    """Return the row for the case's kubelet, and the files that this row reads."""
    present = tree(case, "before")
    known: dict[str, Fact[FileState | None]] = {
        path: Known(FileState(data), f"file:{path}") for path, data in present.items()
    }
    kubelet = Kubelet(**{"cgroup_driver": None, **read_case(case)["kubelet"]})
    facts = replace(derive({}), kubelet=Known(kubelet, "units"), files=known)
    row = resolve_runtime(find_runtime("containerd"), facts).runtime

    def find(place: str) -> States:
        paths = match_pattern(place, present) if is_pattern(place) else [place]
        return {path: FileState(present[path]) for path in paths if path in present}

    return row, contents_of_states(gather_states(row, desired_config(case), find))


def desired_config(case: str) -> DesiredConfig:
    return DesiredConfig(**read_case(case)["desired"])


@pytest.mark.parametrize("case", [case for case in CASES if "refused" not in read_case(case)])
def test_installation_is_configured_and_restored(case: str) -> None:
    row, files = row_and_files(case)
    assert files == tree(case, "before"), "the row reads every file"
    edited = row.configure(files, desired_config(case))
    after = apply_edits(files, edited)
    assert after == tree(case, "after")
    assert (edited.restart_reason, list(edited.notes)) == (
        read_case(case).get("restart", ""),
        read_case(case).get("notes", []),
    )
    assert not row.generated_files & {edit.path for edit in edited.edits}
    assert row.configure(after, replace(desired_config(case), exact=False)).edits == (), "a second time changes nothing"
    assert apply_edits(after, unconfigure(row, after, desired_config(case), edited.edits)) == files
    by_name = unconfigure(row, after, desired_config(case), ())
    assert not row.generated_files & {edit.path for edit in by_name.edits}
    left = apply_edits(after, by_name)
    assert row.inspect({**left, **dict.fromkeys(row.generated_files, b"")}, desired_config(case)).handlers.keys() <= {
        "runc",
        *OTHERS,
    }


@pytest.mark.parametrize("case", [case for case in CASES if "refused" in read_case(case)])
def test_installation_is_refused_with_its_reason(case: str) -> None:
    row, files = row_and_files(case)
    with pytest.raises(Refused) as refused:
        row.configure(files, desired_config(case))
    assert read_case(case)["refused"] in f"{refused.value.what} {refused.value.why}"
    assert refused.value.hint


CONTAINERD = program("containerd")
FILLED_IN = {"SNAPSHOTTER": "overlayfs", "RUNTIME": "runc", "RUNTIME_TYPE": "io.containerd.runc.v2", "SNAP_DATA": "/x"}
WITH_DROP_INS = [case for case in CASES if case.startswith(("k3s-drop-in", "rke2-drop-in", "k0s-schema-3"))]


def version() -> tuple[int, ...]:
    said = subprocess.run([str(CONTAINERD), "--version"], capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.search(r"\sv?(\d+)\.(\d+)\.", said)
    assert found, said
    return int(found[1]), int(found[2])


@pytest.mark.skipif(CONTAINERD is None, reason=lacking("containerd"))
@pytest.mark.parametrize("case", [case for case in (*WITH_DROP_INS, "microk8s") if "refused" not in read_case(case)])
def test_real_containerd_reads_the_configured_installation(case: str, tmp_path: Path) -> None:
    if case in WITH_DROP_INS and version() < (2, 1):
        pytest.skip("containerd merges drop-ins from 2.1 on")
    row, files = row_and_files(case)
    after = apply_edits(files, row.configure(files, desired_config(case)))
    for path, content in after.items():
        text = re.sub(r"\$\{(\w+)\}", lambda name: FILLED_IN[name[1]], content.decode())
        here = re.sub(r'"(/var/lib/rancher/|/etc/k0s/)', lambda place: f'"{tmp_path}{place[1]}', text)
        (tmp_path / path[1:]).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path[1:]).write_text(here)
    command = [str(CONTAINERD), "--config", f"{tmp_path}{row.config}", "config", "dump"]
    found = containerd.parse_config_dump(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert found.handlers["nvidia"] == "/usr/bin/nvidia-container-runtime"
    assert found.default == ("nvidia" if desired_config(case).default else "runc")
    assert found.systemd_cgroup.get("nvidia", False) == found.systemd_cgroup.get("runc", False)
