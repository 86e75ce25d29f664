"""GPUDirect's packages are installed with the driver, DKMS builds their modules, and everything is undone."""

from __future__ import annotations

from typing import Final

import pytest

from tests.e2e.chroot.scenario import RECIPE, Lab, as_machine, ask, called, setup, setup_ok
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.debs import Package
from tests.e2e.lab.pci import T4
from tests.e2e.lab.snapshot import snapshot

pytestmark = pytest.mark.e2e

WANTED: Final = "[gpudirect]\ngds = true\ngdrcopy = true\n"
SOURCE: Final = '#include <linux/module.h>\nMODULE_LICENSE("Dual MIT/GPL");\nMODULE_DESCRIPTION("stand-in");\n'
CONF: Final = """\
PACKAGE_NAME="@MODULE@"
PACKAGE_VERSION="@VERSION@"
BUILT_MODULE_NAME[0]="@MODULE@"
DEST_MODULE_LOCATION[0]="/updates/dkms"
AUTOINSTALL="yes"
MAKE[0]="make -C /lib/modules/$kernelver/build M=$dkms_tree/@MODULE@/@VERSION@/build modules"
"""
POSTINST: Final = """\
#!/bin/sh
set -e
[ "$1" != configure ] || /usr/lib/dkms/common.postinst @MODULE@ @VERSION@ "" "" "$2"
"""
PRERM: Final = """\
#!/bin/sh
set -e
[ -z "$(dkms status -m @MODULE@ -v @VERSION@)" ] || dkms remove -m @MODULE@ -v @VERSION@ --all
"""


def dkms_package(name: str, module: str, version: str) -> Package:
    """Return a package whose module dkms really builds, with the only relation of NVIDIA's: dkms."""

    def of(text: str) -> str:
        return text.replace("@MODULE@", module).replace("@VERSION@", version)

    sources = {"dkms.conf": of(CONF), "Makefile": f"obj-m := {module}.o\n", f"{module}.c": SOURCE}
    return Package(
        name,
        f"{version}-1",
        depends=("dkms",),
        files={f"/usr/src/{module}-{version}/{path}": text for path, text in sources.items()},
        scripts={"postinst": of(POSTINST), "prerm": of(PRERM)},
    )


STORAGE: Final = dkms_package("nvidia-fs-dkms", "nvidia-fs", "2.29.4")
GDRCOPY: Final = (dkms_package("gdrdrv-dkms", "gdrdrv", "2.6"), Package("libgdrapi", "2.6-1"))


@pytest.mark.long
def test_gpudirect_is_set_up_in_one_transaction_and_undone(bases: dict[str, Bases], chroots: Lab) -> None:
    folder = chroots.repositories.variant("debian12", chroots.folder / "gpudirect", added=[STORAGE, *GDRCOPY])
    with chroots.node(bases["bookworm"].plain, [T4]) as node:
        as_machine(node)
        node.server.mount(chroots.repositories.cuda_path("debian12"), folder)
        recipe = chroots.recipe(node, "debian12", "rdma", WANTED)
        # A chroot has no kernel of its own that could load them.
        node.write(recipe, f'skip = ["gpudirect-modules"]\n{node.read(recipe)}')
        before = snapshot(node)
        called(node)

        setup_ok(node)

        assert called(node).count("apt-get", "install") == 1
        assert {"nvidia-fs-dkms", "gdrdrv-dkms", "libgdrapi", "nvidia-kernel-open-dkms"} <= node.installed().keys()
        built = {
            path.name.partition(".")[0] for path in node.path(f"/lib/modules/{node.kernel}/updates/dkms").iterdir()
        }
        assert built == {"nvidia", "nvidia-fs", "gdrdrv"}
        assert setup_ok(node).envelope["changed"] is False

        assert ask(node, "rollback", "--packages", "--yes").exit_code == 10
        assert before.differences(snapshot(node)) == ""


def test_packages_without_a_source_stop_the_run_before_any_change(bases: dict[str, Bases], chroots: Lab) -> None:
    with chroots.node(bases["bookworm"].runtime, [T4]) as node:
        as_machine(node)
        chroots.recipe(node, "debian12", "rdma", WANTED)
        packages = node.installed()
        assert "Unable to locate package gdrdrv-dkms" in node.gpunode("plan", RECIPE).stdout
        called(node)

        refused = setup(node)

        assert refused.exit_code == 6
        assert "no package was changed" in refused.error
        assert "no source has nvidia-fs-dkms: it is in NVIDIA's CUDA repository" in refused.error
        assert "compute/redist/gdrcopy/" in refused.error
        assert called(node).count("apt-get", "install") == 0
        assert node.installed() == packages
