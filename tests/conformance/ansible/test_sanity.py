"""ansible-test sanity, of the oldest ansible-core and the newest: it makes an environment for each of its tools."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conformance.ansible.conftest import Ansible

# What ansible-test would download from a server of Ansible's: each environment gets the pip that Python brings.
GET_PIP = """\
import subprocess, sys
subprocess.check_call([sys.executable, "-m", "ensurepip"])
words = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
subprocess.check_call([sys.executable, "-m", "pip", "install", "--upgrade", *words])
"""
VERSIONS = ("23_1_2", "24_0", "24_3_1", "25_0_1", "25_2", "26_0")


@pytest.mark.long
def test_ansible_test_sanity_passes(ansible: Ansible, tmp_path: Path) -> None:
    cache = tmp_path / "home" / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True)
    for version in VERSIONS:
        (cache / f"get_pip_{version}.py").write_text(GET_PIP)
    place = ansible.collections / "ansible_collections" / "gpunode" / "node"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    done = ansible.run(
        "ansible-test", "sanity", "--python", python, "--requirements", "--color", "no",
        cwd=place, env={"HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
