"""What keeps anybody from telling which packages there are, and what finishes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.model import Known, Unknown
from gpunode.workflow.repair import unfinished
from tests.unit.steps.machines import machine
from tests.unit.workflow.nodes import Node

WHOLE = "Package: dpkg\nStatus: install ok installed\nArchitecture: amd64\nVersion: 1\n"
HALF = f"{WHOLE}\nPackage: lab\nStatus: install reinstreq half-installed\nArchitecture: amd64\n"


class WithStatus(Node):
    status = ""

    def look(self, probe: Probe, /) -> Capture:
        return Capture(probe.source, "ok", self.status.encode())


@pytest.mark.parametrize(
    ("status", "interrupted", "why"),
    [
        (WHOLE, False, ""),
        (WHOLE, True, "an earlier run of dpkg was interrupted"),
        (HALF, False, "an earlier run of dpkg was interrupted; lab is half installed"),
    ],
)
def test_dpkgs_own_status_decides(status: str, interrupted: bool, why: str) -> None:
    facts = replace(machine(), dpkg_interrupted=Known(interrupted, "test"))
    host = WithStatus(facts)
    host.status = status
    found = unfinished(facts, host)
    assert (found.why if found else "") == why


def test_where_the_packages_are_not_known_nothing_is_finished() -> None:
    facts = replace(machine(), packages=Unknown("no dpkg", "test"))
    assert unfinished(facts, WithStatus(facts)) is None
