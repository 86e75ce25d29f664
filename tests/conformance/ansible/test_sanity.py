"""ansible-test sanity with the oldest and the newest ansible-core; it creates an environment for each of its tools."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conformance.ansible.conftest import Ansible

# ansible-test would download pip from Ansible's server: each environment uses Python's bundled pip instead.
GET_PIP = """\
import subprocess, sys
subprocess.check_call([sys.executable, "-m", "ensurepip"])
words = [word for word in sys.argv[1:] if word not in ("--no-setuptools", "--no-wheel")]
subprocess.check_call([sys.executable, "-m", "pip", "install", "--upgrade", *words])
"""


@pytest.mark.long
def test_ansible_test_sanity_passes(ansible: Ansible, tmp_path: Path) -> None:
    cache = tmp_path / "home" / ".ansible" / "test" / "cache"
    cache.mkdir(parents=True)
    [requirements] = ansible.bin.parent.glob("lib/python*/site-packages/ansible_test/_internal/python_requirements.py")
    versions = re.findall(r"""\bpip=['"]([0-9.]+)['"]""", requirements.read_text())
    assert versions, "ansible-test says elsewhere now which pip it downloads"
    for version in versions:
        (cache / f"get_pip_{version.replace('.', '_')}.py").write_text(GET_PIP)
    place = ansible.collections / "ansible_collections" / "gpunode" / "node"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    done = ansible.run(
        "ansible-test", "sanity", "--python", python, "--requirements", "--color", "no",
        cwd=place, env={"HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
