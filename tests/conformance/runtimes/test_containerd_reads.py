"""Our output as containerd reads it: stored output of `containerd config dump`, and the real one where there is one."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.errors import Refused
from gpunode.runtimes import DesiredConfig, containerd, satisfies
from tests.needs import lacking, program
from tests.unit.runtimes.one_file import configure, inspect

HERE = Path(__file__).parent
DUMPS = sorted((HERE / "dumps").glob("*.toml"))
CONTAINERD = program("containerd")
WISHES = {
    "plain": DesiredConfig(),
    "default": DesiredConfig(default=True, cdi=True),
    "systemd": DesiredConfig(systemd_cgroup=True),
}
INPUTS = sorted((HERE / "vectors").glob("*ctd*/input.toml"))


@pytest.mark.parametrize("file", DUMPS, ids=lambda file: file.stem)
def test_stored_dumps(file: Path) -> None:
    """Each is the dump of Debian's packaged file, configured with WISHES["systemd"] for an unknown version."""
    found = containerd.dump(file.read_bytes())
    assert found.handlers == {"nvidia": "/usr/bin/nvidia-container-runtime", "runc": ""}
    assert found.default == "runc"
    assert found.systemd_cgroup == {"nvidia": True, "runc": True}
    assert not found.cri_disabled
    assert found.schema == (3 if file.stem.startswith("2.") else 2)
    # 1.6 knows no CDI, 1.7 has it off, 2.1 on.
    assert found.cdi is {"1.6": None, "1.7": False, "2.1": True}[file.stem[:3]]


def test_what_is_no_dump_is_refused() -> None:
    with pytest.raises(Refused, match="containerd config dump"):
        containerd.dump(b"containerd: invalid configuration\n")


def _version() -> tuple[int, ...]:
    told = subprocess.run([str(CONTAINERD), "--version"], capture_output=True, check=True, timeout=60, text=True).stdout
    found = re.search(r"\sv?(\d+(?:\.\d+)+)", told)
    assert found
    return tuple(int(number) for number in found[1].split("."))


def _dump(config: bytes, folder: Path) -> subprocess.CompletedProcess[bytes]:
    candidate = folder / "config.toml"
    # Imports name files of other hosts.
    candidate.write_bytes(b"".join(line for line in config.splitlines(keepends=True) if b"imports" not in line[:7]))
    command = [str(CONTAINERD), "--config", str(candidate), "config", "dump"]
    return subprocess.run(command, capture_output=True, check=False, timeout=60)


@pytest.mark.skipif(CONTAINERD is None, reason=lacking("containerd"))
@pytest.mark.parametrize("name", WISHES)
@pytest.mark.parametrize("file", INPUTS, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_the_real_containerd_reads_what_was_meant(file: Path, name: str, tmp_path: Path) -> None:
    desired = replace(WISHES[name], version=_version())
    try:
        out = configure(file.read_bytes(), desired)
    except Refused:
        pytest.skip("refused")
    before = _dump(file.read_bytes(), tmp_path)
    # 1.6 takes a schema 3 file and uses nothing of it; 1.7 and the TOML reader of both refuse some.
    if before.returncode or (inspect(file.read_bytes()).schema == 3 and containerd.dump(before.stdout).schema == 2):
        pytest.skip("this containerd does not read the file as it was")
    dump = _dump(out, tmp_path)
    assert dump.returncode == 0, dump.stderr.decode()
    found = containerd.dump(dump.stdout)
    if found.cri_disabled:
        pytest.skip("the CRI plugin is switched off, and the dump tells nothing of it")
    assert found.handlers.get("nvidia") == desired.binary
    # "default" is the nameless one of old, which stays where no other default is asked for.
    assert found.default in {*found.handlers, *(() if desired.default else ("default",))}
    assert not desired.default or found.default == "nvidia"
    if desired.systemd_cgroup:
        assert satisfies(found, desired)
