"""A driver in the file layout of NVIDIA's .run installer: refused, and with the option uninstalled first."""

from __future__ import annotations

from typing import Final

import pytest

from tests.e2e.chroot.scenario import Lab, as_machine, ask, setup, setup_ok
from tests.e2e.chroot.states import RUN_FILES, RUN_LOG, RUN_VERSION, install_run_driver
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.pci import GTX_1080

pytestmark = [pytest.mark.e2e, pytest.mark.long]

# It was edited, so the uninstaller keeps it, and a package overwrites it.
EDITED: Final = "/usr/bin/nvidia-smi"


def test_run_driver_is_refused_or_uninstalled_first(bases: dict[str, Bases], chroots: Lab) -> None:
    with chroots.node(bases["bookworm"].plain, [GTX_1080]) as node:
        as_machine(node)
        chroots.recipe(node, "debian12", "bare-metal")
        install_run_driver(node)
        packages = node.installed()

        refused = setup(node)

        assert refused.exit_code == 3
        assert "--remove-runfile-driver" in refused.error
        assert node.installed() == packages
        assert node.read(EDITED) == f"{EDITED} of {RUN_VERSION}\n"

        done = setup_ok(node, "--remove-runfile-driver")

        kinds = [change["kind"] for change in done.changes]
        assert kinds.index("command") < kinds.index("package")
        assert not [path for path in RUN_FILES if RUN_VERSION in path and node.path(path).exists()]
        assert node.path(RUN_LOG).exists()
        assert node.run("dpkg", "-S", EDITED).stdout.startswith("nvidia-")
        assert RUN_VERSION not in node.read(EDITED)
        assert setup_ok(node).envelope["changed"] is False

        undone = ask(node, "rollback", "--packages", "--yes")
        assert ".run installer" in f"{undone.error}{undone.envelope}"
        assert node.read(EDITED) == f"{EDITED} of {RUN_VERSION}\n"
        assert "/usr/bin/nvidia-smi" not in node.run("sh", "-c", "cat /var/lib/dpkg/info/*.list").stdout


def test_failed_uninstaller_stops_before_any_package(bases: dict[str, Bases], chroots: Lab) -> None:
    with chroots.node(bases["bookworm"].plain, [GTX_1080]) as node:
        as_machine(node)
        chroots.recipe(node, "debian12", "bare-metal")
        install_run_driver(node, "#!/bin/sh\necho 'ERROR: the log is not readable' >&2\nexit 0\n", has_link=False)
        packages = node.installed()

        failed = setup(node, "--remove-runfile-driver")

        assert failed.exit_code == 6
        assert "nvidia-installer --uninstall --silent failed" in failed.error
        assert node.installed() == packages
