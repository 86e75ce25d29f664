"""Headers and module source whose packages are installed and whose files are not there."""

from __future__ import annotations

from dataclasses import replace

from gpunode.facts.model import Facts, Known
from gpunode.steps.kernel import HEADERS_STEP, MODULE_BUILD_STEP
from tests.unit.steps.machines import KERNEL, machine, planned, recipe, refusal, with_driver

EXCLUDED = "or a path-exclude in /etc/dpkg/dpkg.cfg.d excludes it"


def test_headers_that_somebody_deleted_are_refused_with_all_their_packages() -> None:
    names = (f"linux-headers-{KERNEL}", "linux-headers-6.1.0-37-common", "linux-headers-amd64")
    no = refusal(HEADERS_STEP.plan(recipe(), machine(packages=dict.fromkeys(names, "6.1.140-1"), headers=frozenset())))
    assert no.what == f"linux-headers-{KERNEL} is installed, but the headers are missing"
    assert EXCLUDED in no.why
    reinstall = no.hint.splitlines()[0]
    assert reinstall == (f"sudo apt-get install --reinstall {names[0]}=6.1.140-1 {names[1]}=6.1.140-1")


def node_with_modules(*leftovers: str, built: bool = True) -> Facts:
    """Return a node with the packages of driver 595, and what is left below /usr/src."""
    node = with_driver("595.91.07", leftovers=Known(frozenset(leftovers), "dkms-tree"))
    return node if built else replace(node, module_files=Known((), "modules-dkms"))


def test_source_of_the_modules_that_somebody_deleted() -> None:
    """A note while the built modules are there; where one is missing nothing can build it."""
    assert planned(MODULE_BUILD_STEP.plan(recipe(), node_with_modules("/usr/src/nvidia-595.91.07"))).notes == ()
    (note,) = planned(MODULE_BUILD_STEP.plan(recipe(), node_with_modules("/usr/src/nvidia-595.80"))).notes
    anew = "sudo apt-get install --reinstall nvidia-kernel-open-dkms=595.91.07-1"
    assert f"`{anew}`" in note
    no = refusal(MODULE_BUILD_STEP.plan(recipe(), node_with_modules(built=False)))
    assert EXCLUDED in no.why
    assert no.hint.splitlines()[0] == anew
