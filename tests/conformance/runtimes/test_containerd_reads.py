"""Our output as containerd reads it: stored output of `containerd config dump`, and the real one if installed."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.errors import Refused
from gpunode.runtimes import DesiredConfig, containerd, satisfies
from gpunode.runtimes.containerd_files import CRI_PLUGIN_BY_SCHEMA, FIRST_VERSION_BY_SCHEMA
from gpunode.runtimes.documents import Document
from tests.needs import lacking, program
from tests.unit.runtimes.one_file import configure, inspect

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
DUMPS = sorted((HERE / "dumps").glob("*.toml"))
CONTAINERD = program("containerd")
WISHES = {
    "plain": DesiredConfig(),
    "default": DesiredConfig(default=True, enable_cdi=True),
    "systemd": DesiredConfig(systemd_cgroup=True),
}
INPUTS = sorted((HERE / "vectors").glob("*ctd*/input.toml"))


@pytest.mark.parametrize("file", DUMPS, ids=lambda file: file.stem)
def test_stored_dumps_are_parsed(file: Path) -> None:
    """Each is a dump of Debian's packaged file, configured with WISHES["systemd"] for an unknown version."""
    found = containerd.parse_config_dump(file.read_bytes())
    assert found.handlers == {"nvidia": "/usr/bin/nvidia-container-runtime", "runc": ""}
    assert found.default == "runc"
    assert found.systemd_cgroup == {"nvidia": True, "runc": True}
    assert not found.cri_disabled
    assert found.schema == (3 if file.stem.startswith("2.") else 2)
    # 1.6 has no CDI; 1.7 disables it by default, 2.1 enables it.
    assert found.cdi is {"1.6": None, "1.7": False, "2.1": True}[file.stem[:3]]


def test_unparsable_dump_is_refused() -> None:
    with pytest.raises(Refused, match="containerd config dump"):
        containerd.parse_config_dump(b"containerd: invalid configuration\n")


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
def test_real_containerd_reads_the_desired_configuration(file: Path, name: str, tmp_path: Path) -> None:
    desired = replace(WISHES[name], version=_version())
    try:
        out = configure(file.read_bytes(), desired)
    except Refused:
        pytest.skip("refused")
    before = _dump(file.read_bytes(), tmp_path)
    # 1.6 accepts a schema 3 file and ignores it; 1.7 and the TOML reader of both refuse some.
    if before.returncode or (
        inspect(file.read_bytes()).schema == 3 and containerd.parse_config_dump(before.stdout).schema == 2
    ):
        pytest.skip("this containerd does not read the file as it was")
    dump = _dump(out, tmp_path)
    assert dump.returncode == 0, dump.stderr.decode()
    found = containerd.parse_config_dump(dump.stdout)
    if found.cri_disabled:
        pytest.skip("the CRI plugin is switched off, and the dump tells nothing of it")
    assert found.handlers.get("nvidia") == desired.binary
    # "default" is the former unnamed default, which stays if no other default is requested.
    assert found.default in {*found.handlers, *(() if desired.default else ("default",))}
    assert not desired.default or found.default == "nvidia"
    if desired.systemd_cgroup:
        assert satisfies(found, desired)


def _entries(schema: int, *names: str, default: str = "") -> str:
    """Return a file whose runtimes use systemd's cgroup driver or not, as ``_ENTRY`` says."""
    cri = f'plugins."{CRI_PLUGIN_BY_SCHEMA[schema]}".containerd'
    head = f"version = {schema}\n[{cri}]\n" + (f'default_runtime_name = "{default}"\n' if default else "")
    return head + "".join(_ENTRY[name].replace("CRI", cri) for name in names)


_ENTRY = {
    "runc": '[CRI.runtimes.runc]\nruntime_type = "io.containerd.runc.v2"\n',
    # As on nodes of EKS (awslabs/amazon-eks-ami, nodeadm).
    "nvidia": '[CRI.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\nbase_runtime_spec = "/etc/spec.json"\n'
    '[CRI.runtimes.nvidia.options]\nBinaryName = "/usr/bin/nvidia-container-runtime"\nSystemdCgroup = true\n',
    "stale": '[CRI.runtimes.nvidia]\nruntime_type = "io.containerd.runc.v2"\nbase_runtime_spec = "/etc/spec.json"\n'
    '[CRI.runtimes.nvidia.options]\nBinaryName = "/opt/nvidia-container-runtime"\nSystemdCgroup = true\n',
    "nameless": '[CRI.default_runtime]\nruntime_type = "io.containerd.runc.v2"\n'
    "[CRI.default_runtime.options]\nSystemdCgroup = true\n",
}
EXISTING = {
    "eks": (("runc", "nvidia"), "nvidia"),
    "runc-is-default": (("runc", "nvidia"), ""),
    "no-runc": (("nvidia",), "nvidia"),
    "stale": (("runc", "stale"), "nvidia"),
    "none": ((), ""),
    "nameless": (("nameless",), ""),
}


def _parsed_dump(folder: Path, path: Path) -> Document:
    """Return the CRI plugin's containerd table as the real containerd has it."""
    command = [str(CONTAINERD), "--config", str(path), "config", "dump"]
    dumped = subprocess.run(command, capture_output=True, check=False, timeout=60, cwd=folder)
    assert dumped.returncode == 0, dumped.stderr.decode()
    plugins = tomllib.loads(dumped.stdout.decode())["plugins"]
    found: Document = next(plugins[name] for name in reversed(CRI_PLUGIN_BY_SCHEMA.values()) if name in plugins)[
        "containerd"
    ]
    return found


@pytest.mark.skipif(CONTAINERD is None, reason=lacking("containerd"))
@pytest.mark.parametrize("exact", [False, True], ids=["setup", "ctk"])
@pytest.mark.parametrize("schema", [2, 3])
@pytest.mark.parametrize("name", EXISTING)
def test_existing_entry_runtimes_and_default_are_kept(name: str, schema: int, exact: bool, tmp_path: Path) -> None:
    """Configure without a default, with it, and without it again: in place below containerd 2.1, else in a drop-in."""
    if _version() < FIRST_VERSION_BY_SCHEMA[schema]:
        pytest.skip("this containerd does not read the schema")
    names, default = EXISTING[name]
    root, drop_in = tmp_path / "config.toml", tmp_path / "conf.d" / "99-nvidia.toml"
    drop_in.parent.mkdir()
    root.write_text(_entries(schema, *names, default=default))
    first = _parsed_dump(tmp_path, root)
    is_under_systemd = _version() < (2,) and name == "nameless"
    for is_default in (False, True, False):
        desired = DesiredConfig(
            version=_version(), exact=exact, default=is_default, config=str(root), drop_in=str(drop_in)
        )
        before = _parsed_dump(tmp_path, root)
        files = {str(path): path.read_bytes() for path in (root, drop_in) if path.exists()}
        for edit in containerd.configure(files, desired).edits:
            Path(edit.path).write_bytes(edit.after or b"")
        after = _parsed_dump(tmp_path, root)
        assert after["runtimes"].keys() == {*first["runtimes"], "nvidia"}
        assert after["default_runtime_name"] == ("nvidia" if is_default else before["default_runtime_name"])
        entry = first["runtimes"].get("nvidia", {})
        options = {**entry.get("options", {}), "BinaryName": desired.binary}
        found = after["runtimes"]["nvidia"]
        assert {**found, **entry, "options": {**found["options"], **options}} == found
        assert found["options"].get("SystemdCgroup", False) is (is_under_systemd or bool(entry))


@pytest.mark.skipif(CONTAINERD is None, reason=lacking("containerd"))
@pytest.mark.parametrize("schema", [3, 4])
def test_unsupported_schema_is_refused_as_containerd_does(schema: int, tmp_path: Path) -> None:
    if _version() >= FIRST_VERSION_BY_SCHEMA[schema]:
        pytest.skip("this containerd reads the schema")
    text = _entries(schema, "runc", "nvidia").encode()
    dumped = _dump(text, tmp_path)
    # 1.6 accepts the file, but takes no runtime from it.
    assert dumped.returncode or "nvidia" not in containerd.parse_config_dump(dumped.stdout).handlers
    with pytest.raises(Refused, match=f"version = {schema} is a configuration schema that containerd"):
        configure(text, DesiredConfig(version=_version()))
