"""Paths that dpkg is told not to unpack: a driver whose source, headers or firmware never arrive is refused before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.facts.model import Facts, Known
from gpunode.outcome import Refusal
from gpunode.packages.deb.obstacles import refuse_excluded_files
from gpunode.steps.driver import DRIVER_STEP
from gpunode.steps.kernel import HEADERS_STEP, MODULE_BUILD_STEP
from tests.unit.steps.machines import GTX_1080, KERNEL, gpu, machine, planned, recipe, refusal, with_driver

SOURCE = {"/usr/src/nvidia-*": "it is needed"}
SITE = "/etc/dpkg/dpkg.cfg.d/site"
MAIN = "/etc/dpkg/dpkg.cfg"


def refuse(**texts: str) -> Refusal | None:
    """Return the refusal of files below /etc/dpkg with these contents, ``site`` and ``main``, or of another name."""
    paths = {"site": SITE, "main": MAIN}
    files = {paths.get(name, f"/etc/dpkg/dpkg.cfg.d/{name}"): text.encode() for name, text in texts.items()}
    return refuse_excluded_files(machine(files=files), SOURCE)


def test_line_is_named_with_the_exception_that_mends_it() -> None:
    no = refuse(site="# minimal image\nforce-unsafe-io\npath-exclude=/usr/src/*\n")
    assert no is not None
    assert no.what == "dpkg leaves /usr/src/nvidia-* out of every package on this node"
    assert no.why == f"{SITE}:3 has path-exclude=/usr/src/*; it is needed"
    assert "echo 'path-include=/usr/src/nvidia-*' | sudo tee -a /etc/dpkg/dpkg.cfg" in no.hint.splitlines()


@pytest.mark.parametrize(
    ("texts", "is_refused"),
    [
        ({"site": "path-exclude=/usr/share/doc/*\npath-exclude /usr/share/man/*\n"}, False),
        ({"site": "path-exclude /usr/src/*"}, True),
        ({"site": "path-exclude='/usr/src*'"}, True),
        ({"site": 'path-exclude = "/usr/*"'}, True),
        ({"site": "#path-exclude=/usr/src/*"}, False),
        ({"site": "path-exclude=/usr/src/linux-*"}, False),
        # The last one that fits decides, and the main file comes after the folder.
        ({"site": "path-exclude=/usr/src/*\npath-include=/usr/src/nvidia-*\n"}, False),
        ({"site": "path-include=/usr/src/*\npath-exclude=/usr/src/*\n"}, True),
        ({"main": "path-include=/usr/src/*", "zz": "path-exclude=/usr/src/*"}, False),
        ({"main": "path-exclude=/usr/src/*", "zz": "path-include=/usr/src/*"}, True),
        ({"a": "path-include=/usr/src/*", "B": "path-exclude=/usr/src/*"}, False),
        # dpkg passes over such a name.
        ({"site.conf": "path-exclude=/usr/src/*"}, False),
    ],
)
def test_filters_are_read_as_dpkg_reads_them(texts: dict[str, str], is_refused: bool) -> None:
    assert (refuse(**texts) is not None) == is_refused


def test_driver_and_headers_are_refused_before_anything_is_installed() -> None:
    node = machine(files={SITE: b"path-exclude=/usr/src/*\n"})
    assert f"{SITE}:1" in refusal(DRIVER_STEP.plan(recipe(), node)).why
    assert f"{SITE}:1" in refusal(HEADERS_STEP.plan(recipe(), node)).why


def test_firmware_is_needed_by_open_modules_alone() -> None:
    files = {SITE: b"path-exclude=/lib/firmware/*\n"}
    assert "firmware" in refusal(DRIVER_STEP.plan(recipe(), machine(files=files))).why
    old = machine(gpus=(gpu(GTX_1080),), files=files)
    assert not isinstance(DRIVER_STEP.plan(recipe(), old), Refusal)


def test_headers_that_somebody_deleted_are_refused_with_all_their_packages() -> None:
    names = (f"linux-headers-{KERNEL}", "linux-headers-6.1.0-37-common", "linux-headers-amd64")
    no = refusal(HEADERS_STEP.plan(recipe(), machine(packages=dict.fromkeys(names, "6.1.140-1"), headers=frozenset())))
    assert no.what == f"linux-headers-{KERNEL} is installed, but the headers are not there"
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
    assert no.hint.splitlines()[0] == anew
