"""What Go itself makes of the templates for k3s and RKE2, and what the real containerd reads in that."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpunode.runtimes import DesiredConfig
from gpunode.runtimes.gotemplate import configure_template, unconfigure_template
from gpunode.toml import loads
from tests.needs import lacking, program

HERE = Path(__file__).parent / "gotemplate"
PLUGINS = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
OPERATORS = "/usr/local/nvidia/toolkit/nvidia-container-runtime"
BASE = '{{ template "base" . }}\n'


@pytest.fixture(scope="module")
def render(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if reason := lacking("go"):
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("go")
    command = [str(program("go")), "build", "-o", str(folder / "render"), str(HERE / "render.go")]
    subprocess.run(command, check=True, timeout=300, env={"HOME": str(folder), "PATH": "/usr/bin:/bin"})
    return folder / "render"


def rendered(render: Path, folder: Path, template: bytes, schema: int, **given: Any) -> dict[str, Any]:
    """The runtimes of the rendered file; the real containerd has read it, where there is one."""
    (folder / "template").write_bytes(template)
    command = [str(render), str(HERE / f"base-v{schema}.tmpl"), str(folder / "template"), json.dumps(given)]
    out = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    (folder / "config.toml").write_bytes(out)
    if containerd := shutil.which("containerd"):
        command = [containerd, "--config", str(folder / "config.toml"), "config", "dump"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    runtimes: dict[str, Any] = loads(out.decode())["plugins"][PLUGINS[schema]]["containerd"]["runtimes"]
    return runtimes


@pytest.mark.parametrize("schema", [2, 3])
@pytest.mark.parametrize("template", [None, BASE.encode(), b"# ours\r\n" + BASE.encode() + b"[debug]\r\n"])
def test_the_handler_is_there_once_whether_k3s_finds_it_or_not(
    render: Path, tmp_path: Path, template: bytes | None, schema: int
) -> None:
    ours = configure_template(template, DesiredConfig(), schema, "the template")
    alone = rendered(render, tmp_path, ours, schema, SystemdCgroup=True)
    assert alone["nvidia"]["options"] == {"BinaryName": "/usr/bin/nvidia-container-runtime", "SystemdCgroup": True}
    others = rendered(render, tmp_path, ours, schema, ExtraRuntimes={"crun": {"BinaryName": "/usr/bin/crun"}})
    assert set(others) == {"runc", "crun", "nvidia"}
    found = rendered(render, tmp_path, ours, schema, ExtraRuntimes={"nvidia": {"BinaryName": OPERATORS}})
    assert found["nvidia"]["options"]["BinaryName"] == OPERATORS
    without = unconfigure_template(ours, "the template")
    assert without == template
