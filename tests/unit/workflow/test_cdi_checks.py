"""verify's check of CDI: what podman and CRI-O find when a container requests a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.check import Check
from gpunode.facts.evidence import Capture, GlobMatch, Probe, encode_matches
from gpunode.facts.layout import GpuLayout
from gpunode.facts.model import Facts, Known, Unit
from gpunode.host.rehearsal import RehearsalHost
from gpunode.recipe import Recipe, RuntimeSettings
from gpunode.workflow.extra_checks import cdi_checks
from tests.unit.steps.machines import machine, recipe, unit, with_driver

SPEC = "/var/run/cdi/nvidia.yaml"
LIBRARY = "/lib/x86_64-linux-gnu/libcuda.so.580.95.05"
THERE = ("/dev/nvidia0", LIBRARY, "/usr/bin/nvidia-cdi-hook")
WRITTEN = f"""\
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
    - name: all
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
containerEdits:
    hooks:
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
    mounts:
        - hostPath: {LIBRARY}
""".encode()
UNITS = {"nvidia-cdi-refresh.service": unit(active=False), "nvidia-cdi-refresh.path": unit()}
PODMAN = recipe("podman")


class Node(RehearsalHost):
    """A node that has some files, and podman."""

    def __init__(self, there: tuple[str, ...] = THERE, podman: str = "podman version 4.9.3") -> None:
        super().__init__({}, {})
        self.there, self.podman = there, podman

    def run_probe(self, probe: Probe, /) -> Capture:
        if probe.argv:
            outcome = Capture(probe.source, "absent") if not self.podman else None
            return outcome or Capture(probe.source, "ok", f"{self.podman}\n".encode())
        return Capture(probe.source, "ok", encode_matches(GlobMatch(path) for path in self.there if path == probe.glob))


def node(written: bytes | None = WRITTEN, units: dict[str, Unit] | None = None) -> Facts:
    facts = with_driver(
        files={} if written is None else {SPEC: written},
        layout=Known(GpuLayout(frozenset({0})), "nvidia-gpus"),
        packages={"podman": "4.9.3-1"},
    )
    more = {name: Known(one, "units") for name, one in (UNITS if units is None else units).items()}
    return replace(facts, units={**facts.units, **more})


def checks(facts: Facts, host: Node | None = None, of: Recipe = PODMAN) -> dict[str, Check]:
    return {check.id: check for check in cdi_checks(of, facts, host or Node())}


def test_complete_cdi_specification_passes() -> None:
    found = checks(node())
    assert [check.status for check in found.values()] == ["passed", "passed"]
    assert "libcuda" not in found["cdi"].detail
    assert f"{SPEC} for driver 580.95.05 offers all" in found["cdi"].detail


def test_cdi_is_not_checked_unless_the_recipe_asks_for_it() -> None:
    assert checks(node(), of=recipe("containerd")) == {}
    assert checks(node(), of=Recipe("test", runtime=RuntimeSettings("docker", cdi=True)))["cdi"].status == "passed"


def test_missing_or_outdated_cdi_specification_fails() -> None:
    assert "no specification yet" in checks(node(None))["cdi"].detail
    stale = checks(node(WRITTEN.replace(b"580.95.05", b"535.104.05")))["cdi"]
    assert (stale.status, stale.hint) == ("failed", "sudo gpunode setup")
    assert "535.104.05, but 580.95.05 is loaded" in stale.detail


@pytest.mark.parametrize("gone", THERE)
def test_cdi_specification_that_names_missing_files_fails(gone: str) -> None:
    found = checks(node(), Node(tuple(path for path in THERE if path != gone)))["cdi"]
    assert found.status == "failed"
    assert found.detail == f"{SPEC} names missing files: {gone}"


@pytest.mark.parametrize(
    ("podman", "version", "what"),
    [
        ("podman version 3.4.4", b"0.5.0", "does not support CDI devices"),
        ("podman version 4.9.3", b"0.7.0", f"cannot read {SPEC}: it has CDI version 0.7.0"),
        ("", b"0.5.0", "podman is not installed"),
    ],
)
def test_cdi_version_that_podman_cannot_read_fails(podman: str, version: bytes, what: str) -> None:
    found = checks(node(WRITTEN.replace(b"0.5.0", version)), Node(podman=podman))["cdi"]
    assert found.status == "failed"
    assert what in found.detail
    crio = checks(node(WRITTEN.replace(b"0.5.0", version)), Node(podman=podman), recipe("crio"))["cdi"]
    assert crio.status == "passed"


def test_cdi_check_is_not_run_without_a_driver() -> None:
    (found,) = checks(machine(packages={"podman": "4.9.3-1"})).values()
    assert (found.id, found.status) == ("cdi", "skipped")


@pytest.mark.parametrize(
    ("units", "status", "detail"),
    [
        ({}, "skipped", "is missing; toolkit 1.18 and later have it"),
        ({**UNITS, "nvidia-cdi-refresh.service": unit(active=False, failed=True)}, "failed", "service has failed"),
        ({**UNITS, "nvidia-cdi-refresh.path": unit(enabled=False)}, "failed", "path is not enabled"),
    ],
)
def test_cdi_refresh_units_must_be_enabled_and_not_failed(units: dict[str, Unit], status: str, detail: str) -> None:
    found = checks(node(units=units))["cdi-refresh"]
    assert found.status == status
    assert detail in found.detail
