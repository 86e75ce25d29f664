"""gpunode ctk on an image, in its own process: what it writes, records, prints and undoes."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tests.conformance.hostile.image import Done, gpunode

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gpunode ctk does, where it writes")

CONFIG = "etc/containerd/config.toml"
DROP_IN = "etc/containerd/conf.d/99-nvidia.toml"
TEXT = """# by hand
version = 2

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2" # ours
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
    SystemdCgroup = true
"""


@pytest.fixture
def image(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / CONFIG).parent.mkdir(parents=True)
    (root / CONFIG).write_text(TEXT)
    (root / CONFIG).chmod(0o640)
    program = root / "usr/bin/nvidia-container-runtime"
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    return root


def ctk(image: Path, verb: str, *options: str) -> Done:
    return gpunode("ctk", "runtime", verb, "--runtime=containerd", "--root", str(image), *options)


def files(image: Path) -> dict[str, bytes]:
    return {str(path.relative_to(image)): path.read_bytes() for path in (image / "etc").rglob("*") if path.is_file()}


def test_configure_is_undone_by_rollback_and_unconfigure(image: Path) -> None:
    """Undo by the journal and by name; the folder that was created is removed, too."""
    before = files(image)
    for back in (("rollback", "--yes", "--root", str(image)), ()):
        done = ctk(image, "configure", "--mode=drop-in", "--set-as-default=true")
        assert done.exit_code == 0, done.said
        assert set(files(image)) == {CONFIG, DROP_IN}
        assert stat.S_IMODE((image / DROP_IN).stat().st_mode) == 0o640
        undone = gpunode(*back) if back else ctk(image, "unconfigure")
        assert undone.exit_code == 0, undone.said
        assert files(image) == before
        assert not (image / DROP_IN).parent.exists()
    runs = json.loads(gpunode("log", "--json", "--root", str(image)).out)["result"]["runs"]
    assert [run["verb"] for run in runs] == ["configure", "rollback", "configure", "unconfigure"]


def test_rollback_without_a_run_undoes_only_the_newest(image: Path) -> None:
    """A script that runs it twice undoes one run; the second answer names the command for an older run."""
    place, before = ("--root", str(image)), files(image)
    assert ctk(image, "configure").exit_code == 0
    configured = files(image)
    docker = ("--runtime=docker", *place)
    assert gpunode("ctk", "runtime", "configure", *docker).exit_code == 0
    assert gpunode("rollback", "--yes", *place).exit_code == 0
    assert files(image) == configured
    for options in ((), ("--packages",)):
        again = gpunode("rollback", "--yes", *options, *place)
        assert again.exit_code == 0, again.said
        assert files(image) == configured
        assert "– run 2 (configure: /etc/docker/daemon.json) is already undone: run 3 undid it" in again.out
        assert " ".join(("next: sudo gpunode rollback 1", *options, *place)) in again.out
        assert "✓" not in again.out
    answer = json.loads(gpunode("rollback", "--yes", "--json", *place).out)
    assert (answer["changed"], answer["result"]["next_run"][:6]) == (False, "000001")
    assert f"rollback asks before it changes {image}" in gpunode("rollback", "1", *place).err
    assert gpunode("rollback", "1", "--yes", *place).exit_code == 0
    assert files(image) == before
    assert "no other run is left" in gpunode("rollback", "--yes", *place).out


def test_conflict_names_a_command_that_keeps_the_edit(image: Path) -> None:
    daemon, place = image / "etc/docker/daemon.json", ("--root", str(image))
    assert gpunode("ctk", "runtime", "configure", "--runtime=docker", *place).exit_code == 0
    daemon.write_text(daemon.read_text().replace("{", '{"debug": true,', 1))
    conflict = gpunode("rollback", "--yes", *place)
    assert conflict.exit_code == 5
    (keep,) = (line.strip() for line in conflict.err.splitlines() if "unconfigure" in line)
    assert gpunode(*keep.split()[2:]).exit_code == 0, keep
    assert json.loads(daemon.read_text()) == {"debug": True}


def test_second_configure_writes_and_records_nothing(image: Path) -> None:
    assert ctk(image, "configure").exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in (*image.glob("etc/**/*"), *image.glob("var/lib/**/*"))}
    again = ctk(image, "configure")
    assert (again.exit_code, again.out) == (
        0,
        "✓ nothing to do: containerd is configured as requested (/etc/containerd/config.toml)\n",
    )
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_dry_run_prints_both_files_and_writes_nothing(image: Path) -> None:
    before = files(image)
    done = ctk(image, "configure", "--dry-run", "--mode=drop-in")
    drop_in, _, top_level = done.out.partition("\n# by hand")
    assert "runtimes.nvidia" in drop_in
    assert top_level.startswith('\nversion = 2\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    assert "+++ /etc/containerd/conf.d/99-nvidia.toml" in done.err
    assert files(image) == before
    assert not (image / "var").exists()


@pytest.mark.parametrize(
    ("options", "exit_code"),
    [
        (("--drop-in-config=99-nvidia.toml",), 2),
        (("--config-source=bogus",), 2),
        (("--config-mode=oci-hook", "--oci-hook-path=/usr/share/containers/oci/hooks.d/nvidia.json"), 2),
        (("--nvidia-runtime-path=bin/nvidia-container-runtime",), 3),
        (("--config=/etc",), 3),
        (("--config-source=command",), 3),
    ],
)
def test_refused_command_changes_nothing(image: Path, options: tuple[str, ...], exit_code: int) -> None:
    before = files(image)
    refused = ctk(image, "configure", *options)
    assert refused.exit_code == exit_code, refused.said
    assert "next: " in refused.err
    assert files(image) == before


def test_remove_undoes_configure(image: Path) -> None:
    before = files(image)
    (image / "var/lib/dpkg").mkdir(parents=True)
    status = "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1.21.22\n"
    (image / "var/lib/dpkg/status").write_text(status)
    assert ctk(image, "configure", "--mode=drop-in").exit_code == 0
    removed = gpunode("remove", "--yes", "--root", str(image))
    assert removed.exit_code == 0, removed.said
    assert files(image) == before
