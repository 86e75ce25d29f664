"""A driver in the file layout of NVIDIA's .run installer: refused, and with the option uninstalled first."""

from __future__ import annotations

from typing import Final

import pytest

from tests.e2e.chroot.scenario import Lab, as_machine, ask, setup, setup_ok
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.pci import GTX_1080

pytestmark = [pytest.mark.e2e, pytest.mark.long]

VERSION: Final = "535.54.03"
LIBRARIES: Final = "/usr/lib/x86_64-linux-gnu"
BLACKLIST: Final = "/etc/modprobe.d/nvidia-installer-disable-nouveau.conf"
FILES: Final = (
    f"{LIBRARIES}/libcuda.so.{VERSION}",
    f"{LIBRARIES}/libnvidia-ml.so.{VERSION}",
    f"{LIBRARIES}/libnvidia-ptxjitcompiler.so.{VERSION}",
    "/usr/bin/nvidia-smi",
    "/usr/bin/nvidia-persistenced",
    "/usr/bin/nvidia-modprobe",
)
# Somebody has edited it, so the uninstaller leaves it, and a package overwrites it.
EDITED: Final = "/usr/bin/nvidia-smi"
LINKS: Final = {f"{LIBRARIES}/{name}.so.1": f"{name}.so.{VERSION}" for name in ("libcuda", "libnvidia-ml")}
LOG: Final = "/var/log/nvidia-installer.log"
# Removes what its list names and then itself; its exit status says nothing.
UNINSTALLER: Final = """\
#!/bin/sh
[ "$*" = "--uninstall --silent" ] || exit 2
while read -r path; do [ "$path" = /usr/bin/nvidia-smi ] || rm -f "$path"; done < /var/lib/nvidia/log
rm -rf /var/lib/nvidia /usr/bin/nvidia-installer /usr/bin/nvidia-uninstall
exit 1
"""


def install_run_driver(node: Chroot, uninstaller: str = UNINSTALLER, *, has_link: bool = True) -> None:
    """Write the files as NVIDIA's installer does: without DKMS, and with its list and its uninstaller."""
    module = f"/lib/modules/{node.kernel}/kernel/drivers/video/nvidia.ko"
    for path in (*FILES, module):
        node.write(path, f"{path} of {VERSION}\n", mode=0o755 if path.startswith("/usr/bin") else 0o644)
    for path, target in LINKS.items():
        node.path(path).symlink_to(target)
    node.write(BLACKLIST, "blacklist nouveau\noptions nouveau modeset=0\n")
    node.write("/var/lib/nvidia/log", "".join(f"{path}\n" for path in (*FILES, *LINKS, BLACKLIST, module)))
    node.write(LOG, "nvidia-installer log file\n")
    node.write("/usr/bin/nvidia-installer", uninstaller, mode=0o755)
    if has_link:
        node.path("/usr/bin/nvidia-uninstall").symlink_to("nvidia-installer")


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
        assert node.read(EDITED) == f"{EDITED} of {VERSION}\n"

        done = setup_ok(node, "--remove-runfile-driver")

        kinds = [change["kind"] for change in done.changes]
        assert kinds.index("command") < kinds.index("package")
        assert not [path for path in FILES if VERSION in path and node.path(path).exists()]
        assert node.path(LOG).exists()
        assert node.run("dpkg", "-S", EDITED).stdout.startswith("nvidia-")
        assert VERSION not in node.read(EDITED)
        assert setup_ok(node).envelope["changed"] is False

        undone = ask(node, "rollback", "--packages", "--yes")
        assert ".run installer" in f"{undone.error}{undone.envelope}"
        assert node.read(EDITED) == f"{EDITED} of {VERSION}\n"
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
