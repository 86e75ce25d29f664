"""Package databases that cannot be read, and the command that finishes the work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.facts.model import Known
from gpunode.packages.deb import status as dpkg
from gpunode.packages.deb.repair import REPAIR_COMMAND
from gpunode.recipe import Recipe
from gpunode.steps.packages import REPAIR
from gpunode.workflow.repair import find_repair
from tests.unit.steps.machines import machine, planned

WHOLE = "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
STATES = ("not-installed", "config-files", "installed", "half-installed", "unpacked", "half-configured")


@pytest.mark.parametrize("flag", ["ok", "reinstreq"])
@pytest.mark.parametrize("state", STATES)
def test_setup_and_rollback_agree_on_unfinished_dpkg_states(state: str, flag: str) -> None:
    status = f"{WHOLE}\nPackage: lab\nStatus: install {flag} {state}\nArchitecture: amd64\n"
    facts = replace(machine(), packages_interrupted=Known(dpkg.was_interrupted(dpkg.entries(status), ()), "test"))
    is_unfinished = state in {"half-installed", "unpacked", "half-configured"}
    assert find_repair(facts) == (REPAIR_COMMAND if is_unfinished else None)
    assert planned(REPAIR.plan(Recipe("test"), facts)).changes == ((REPAIR_COMMAND,) if is_unfinished else ())
