"""Commands for a cluster select objects by their properties, and are complete shell commands."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from gpunode.diagnoses import cluster
from gpunode.diagnoses.model import Fix

FIXES = (
    cluster.restart_plugin(),
    cluster.delete_refused_pods("delete them"),
    cluster.show_plugin_logs("read them"),
    cluster.set_runtime_class("ask for it"),
)


@pytest.mark.usefixtures("allow_subprocess")
@pytest.mark.parametrize("fix", FIXES, ids=lambda fix: fix.text)
def test_every_command_parses_in_bash(fix: Fix) -> None:
    for command in fix.commands:
        if shell := shutil.which("bash"):
            subprocess.run([shell, "-n", "-c", command], check=True)


def test_daemon_set_commands_have_the_syntax_of_kubectl() -> None:
    (restart,) = cluster.restart_plugin().commands
    assert 'rollout restart daemonset "$name"; done' in restart
    make, patch = cluster.set_runtime_class("").commands
    assert make.endswith("kubectl apply -f -")
    assert 'patch daemonset "$name" -p ' in patch
