"""apt and dpkg in trouble: runs whose package changes fail, and how a later run continues."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator

import pytest

from tests.e2e.chroot.scenario import RECIPE, Lab, as_machine, ask, called, install_old_driver, setup, setup_ok
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.debs import Package, build_all, publish
from tests.e2e.lab.pci import T4
from tests.e2e.lab.repositories import TOOLKIT, TOOLKIT_PATH

pytestmark = pytest.mark.e2e

# Holds apt's and dpkg's locks as a running apt does, and reports when it has them.
HOLD = """\
import fcntl, sys, time
held = [open(f"/var/lib/dpkg/{name}", "w") for name in ("lock-frontend", "lock")]
for file in held:
    fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""
BREAK_OLD_MODULE = """\
dkms remove "$(dkms status -m nvidia-current | sed 's/[,:].*//')" --all
cd /tmp
apt-get download -q nvidia-kernel-dkms
dpkg --unpack nvidia-kernel-dkms*.deb
rm nvidia-kernel-dkms*.deb
! dpkg --configure -a
"""
KILLED_ONCE = """\
#!/bin/sh
echo "$DEBIAN_FRONTEND $NEEDRESTART_SUSPEND" > /root/frontend
[ -e /var/lib/killed-once ] && exit 0
touch /var/lib/killed-once
kill -9 $PPID
"""


@pytest.fixture
def node(bases: dict[str, Bases], chroots: Lab) -> Iterator[Chroot]:
    with chroots.node(bases["bookworm"].runtime, [T4]) as made:
        as_machine(made)
        chroots.recipe(made, "debian12")
        yield made


@pytest.mark.long
def test_node_without_a_package_index_gets_one(bases: dict[str, Bases], chroots: Lab) -> None:
    """Cloud images come without package lists, and the headers are the distribution's."""
    with chroots.node(bases["bookworm"].plain, [T4]) as node:
        as_machine(node)
        chroots.recipe(node, "debian12", "bare-metal")

        setup_ok(node)

        assert f"linux-headers-{node.kernel}" in node.installed()
        assert "linux-headers-amd64" in node.installed()


def test_old_driver_that_does_not_build_is_replaced(node: Chroot) -> None:
    """dpkg cannot configure its package, and need not, since it is removed; the same with an unsupported kernel."""
    install_old_driver(node)
    node.write("/etc/dkms/nvidia-current.conf", "MAKE[0]=false\n")
    node.run("sh", "-ec", BREAK_OLD_MODULE)
    assert "half-configured" in node.run("dpkg-query", "-W", "-f", "${db:Status-Status}\n", "nvidia-kernel-dkms").stdout

    setup_ok(node)

    assert node.run("dpkg", "--audit").stdout == ""
    assert node.installed()["nvidia-kernel-open-dkms"] == "595.91.07-1"
    assert ask(node, "plan", RECIPE, "--check").exit_code == 0


def test_kernel_that_the_old_driver_does_not_know_blocks_no_setup(node: Chroot) -> None:
    """The driver's package is configured; the new kernel's is not, since its scripts make dkms build the old module."""
    install_old_driver(node)
    fails_while_old = {"postinst": "#!/bin/sh\n! dkms status | grep -q nvidia-current\n"}
    kernel = Package("linux-headers-6.1.0-99-lab", "6.1.99-1", scripts=fails_while_old)
    build_all([kernel], node.path("/root"))
    node.run("sh", "-ec", f"! dpkg -i /root/{kernel.file_name}")

    setup_ok(node)

    assert node.run("dpkg", "--audit").stdout == ""
    assert node.installed()["nvidia-kernel-open-dkms"] == "595.91.07-1"


def test_unplanned_removal_stops_the_run(node: Chroot, chroots: Lab) -> None:
    hostile = Package("nvidia-modprobe", "595.91.07-1", conflicts=("docker.io",))
    folder = chroots.repositories.variant(
        "debian12", chroots.folder / "hostile-removal", added=[hostile], without="nvidia-modprobe_595*"
    )
    node.server.mount(chroots.repositories.cuda_path("debian12"), folder)
    before = node.fingerprint("/var/lib/dpkg", "/etc/modprobe.d", "/etc/containerd", "/boot")

    refused = setup(node)

    assert refused.exit_code == 3
    assert "docker.io" in refused.error
    assert node.fingerprint("/var/lib/dpkg", "/etc/modprobe.d", "/etc/containerd", "/boot") == before
    assert called(node).count("apt-get", "install") == 0


def test_repository_lost_during_the_run_fails_it_and_the_next_finishes(node: Chroot, chroots: Lab) -> None:
    path = chroots.repositories.cuda_path("debian12")
    node.server.gone(f"{path}/nvidia-kernel", f"{path}/./nvidia-kernel")
    packages = node.installed()

    failed = setup(node)

    assert failed.exit_code == 6
    assert "404" in failed.error
    assert "later" in failed.error or "again" in failed.error, "what to do"
    assert node.installed() == packages

    node.server.restore()
    done = setup_ok(node)

    assert done.envelope["changed"] is True
    assert node.installed()["nvidia-kernel-open-dkms"] == "595.91.07-1"


def test_interrupted_dpkg_is_repaired_first(node: Chroot) -> None:
    package = Package("lab-killer", "1", scripts={"postinst": KILLED_ONCE})
    build_all([package], node.path("/root"))
    assert node.finish("/usr/bin/dpkg", "-i", f"/root/{package.file_name}").returncode != 0
    assert "lab-killer" not in node.installed()

    done = setup_ok(node)

    kinds = [change["kind"] for change in done.changes]
    assert kinds.index("command") < kinds.index("package")
    assert "lab-killer" in node.installed()
    assert node.read("/root/frontend") == "noninteractive 1\n"


@pytest.mark.long
def test_program_lost_with_a_version_that_no_archive_has_is_told(node: Chroot, chroots: Lab) -> None:
    """apt says that it cannot reinstall such a package, and still reports success."""
    chroots.recipe(node, "debian12", more='[toolkit]\nversion = "1.19.1"\n')
    setup_ok(node)
    chroots.recipe(node, "debian12")
    newest = chroots.folder / "newest-toolkit"
    shutil.copytree(chroots.repositories.root / TOOLKIT_PATH.lstrip("/"), newest)
    for path in newest.rglob("*_1.19.1-1_*.deb"):
        path.unlink()
    publish(next(newest.rglob("*_1.20.1-1_*.deb")).parent, TOOLKIT, chroots.repositories.keys.toolkit)
    node.server.mount(TOOLKIT_PATH, newest)
    node.run("apt-get", "-q", "update")
    lost = node.path("/usr/bin/nvidia-ctk")
    lost.unlink()
    before = node.installed()

    shown = node.gpunode("plan", RECIPE).stdout
    noted = ask(node, "plan", RECIPE).envelope["notes"]
    refused = setup(node)

    assert "Version '1.19.1-1' for 'nvidia-container-toolkit' was not found" in shown
    assert any("Version '1.19.1-1' for 'nvidia-container-toolkit' was not found" in note for note in noted)
    assert refused.exit_code == 6
    assert "no package was changed" in refused.error
    assert "add --upgrade" in refused.error
    assert (node.installed(), lost.exists()) == (before, False)
    setup_ok(node, "--upgrade")
    assert lost.exists()
    assert node.installed()["nvidia-container-toolkit"] == "1.20.1-1"
    assert ask(node, "plan", RECIPE, "--check").exit_code == 0


@pytest.mark.long
def test_program_that_comes_back_leaves_its_packages_on_hold(node: Chroot) -> None:
    setup_ok(node)
    packages = ["nvidia-container-toolkit", "nvidia-container-toolkit-base"]
    node.run("apt-mark", "hold", *packages)
    node.path("/usr/bin/nvidia-ctk").unlink()

    setup_ok(node)

    assert node.path("/usr/bin/nvidia-ctk").exists()
    assert node.run("apt-mark", "showhold").stdout.split() == packages
    newest = ask(node, "rollback", "--list").result["runs"][-1]
    assert newest["other_subjects"] == []


@pytest.mark.long
def test_upgrade_tells_that_no_archive_has_the_lost_program(node: Chroot, chroots: Lab) -> None:
    """The version is newer than those in the archives; apt reports success, as above."""
    setup_ok(node)
    older = chroots.folder / "older-toolkit"
    shutil.copytree(chroots.repositories.root / TOOLKIT_PATH.lstrip("/"), older)
    for path in older.rglob("*_1.20.1-1_*.deb"):
        path.unlink()
    publish(next(older.rglob("*_1.19.1-1_*.deb")).parent, TOOLKIT, chroots.repositories.keys.toolkit)
    node.server.mount(TOOLKIT_PATH, older)
    node.run("apt-get", "-q", "update")
    node.path("/usr/bin/nvidia-ctk").unlink()

    plain = setup(node)
    shown = node.gpunode("plan", RECIPE, "--upgrade").stdout
    refused = setup(node, "--upgrade")

    assert plain.exit_code == 6
    assert "no source has nvidia-container-toolkit 1.20.1-1, but 1.19.1-1: add one that has it" in plain.error
    assert "--upgrade" not in plain.error

    told = "no source has nvidia-container-toolkit 1.20.1-1, which is installed, or a newer version"
    assert told in shown
    assert refused.exit_code == 6
    assert "no package was changed" in refused.error
    assert told in refused.error
    assert "--upgrade" not in refused.error


@pytest.mark.long
def test_unconfigurable_package_is_reinstalled(node: Chroot) -> None:
    """It was killed while unpacking, and `dpkg --configure -a` was tried: only dpkg's status still records it."""
    setup_ok(node)
    package, lost = "nvidia-container-toolkit-base", node.path("/usr/bin/nvidia-cdi-hook")
    lost.unlink()
    status = node.read("/var/lib/dpkg/status")
    stanza = next(one for one in status.split("\n\n") if one.startswith(f"Package: {package}\n"))
    half = stanza.replace("install ok installed", "hold reinstreq half-installed")
    node.write("/var/lib/dpkg/status", status.replace(stanza, half))
    node.finish("dpkg", "--configure", "-a")
    assert package not in node.installed()

    pending = ask(node, "plan", "--check", RECIPE)
    assert pending.exit_code == 4
    assert "sources" in {step["stage"] for step in pending.result["steps"] if step["changes"]}
    advice = ask(node, "doctor").envelope["findings"][0]
    assert advice["cause"] == "dpkg-unconfigured-packages"
    assert f"sudo apt-get install --reinstall {package}" in [one for fix in advice["remedy"] for one in fix["commands"]]

    setup_ok(node)

    assert lost.exists()
    assert node.run("dpkg-query", "-W", "-f", "${Status}", package).stdout == "hold ok installed"
    assert ask(node, "plan", "--check", RECIPE).exit_code == 0


@pytest.mark.long
def test_work_left_by_a_failed_run_is_pending(node: Chroot) -> None:
    hook = "/etc/initramfs-tools/hooks/lab"
    node.write(hook, "#!/bin/sh\nexit 1\n", 0o755)
    failed = setup(node)
    assert failed.exit_code == 6
    assert "initramfs" in failed.error
    node.path(hook).unlink()

    pending = ask(node, "plan", "--check", RECIPE)
    assert pending.exit_code == 4
    assert "initramfs" in {one["kind"] for one in pending.result["pending_triggers"]}
    assert "initramfs" in ask(node, "status").result["status"]["pending"]
    (check,) = (one for one in ask(node, "verify", RECIPE).result["checks"] if one["id"] == "configuration")
    assert check["status"] == "failed"
    assert "initramfs" in check["detail"]

    setup_ok(node)
    assert ask(node, "plan", "--check", RECIPE).exit_code == 0


@pytest.mark.long
def test_repair_keeps_the_users_conffile_without_a_question(node: Chroot) -> None:
    old, new = (Package("lab-conf", version, files={"/etc/lab.conf": f"{version}\n"}) for version in "12")
    build_all([old, new], node.path("/root"))
    node.run("dpkg", "-i", f"/root/{old.file_name}")
    node.write("/etc/lab.conf", "ours\n")
    node.run("dpkg", "--unpack", f"/root/{new.file_name}")

    setup_ok(node)

    assert node.installed()["lab-conf"] == "2"
    assert node.read("/etc/lab.conf") == "ours\n"


@pytest.mark.long
def test_unpacked_package_gets_its_missing_dependency(node: Chroot) -> None:
    """A power cut between two packages leaves such a package; dpkg alone cannot configure it."""
    needed, needing = Package("lab-needed", "1"), Package("lab-needing", "1", depends=("lab-needed",))
    build_all([needed, needing], node.path("/root"))
    node.write("/etc/apt/sources.list.d/lab-local.list", "deb [trusted=yes] file:/root/local ./\n")
    node.path("/root/local").mkdir()
    node.path(f"/root/{needed.file_name}").rename(node.path(f"/root/local/{needed.file_name}"))
    index = "Package: lab-needed\nVersion: 1\nArchitecture: {arch}\nFilename: ./{file}\nSize: {size}\nSHA256: {hash}\n"
    content = node.path(f"/root/local/{needed.file_name}").read_bytes()
    arch = needed.file_name.rpartition("_")[2].removesuffix(".deb")
    index = index.format(arch=arch, file=needed.file_name, size=len(content), hash=hashlib.sha256(content).hexdigest())
    node.write("/root/local/Packages", index)
    node.run("apt-get", "update")
    node.run("dpkg", "--unpack", f"/root/{needing.file_name}")

    setup_ok(node)

    assert {"lab-needed", "lab-needing"} <= set(node.installed())


# In short runs test_locks.py covers this.
@pytest.mark.long
def test_held_lock_is_reported_with_its_holder(node: Chroot) -> None:
    node.write("/root/hold.py", HOLD)
    holder = node.start("python3", "/root/hold.py", log="/root/hold.log")
    while "held" not in node.read("/root/hold.log"):
        assert holder.poll() is None, node.read("/root/hold.log")

    busy = setup(node, "--lock-timeout", "1")

    assert busy.exit_code == 12
    assert "python3 /root/hold.py" in busy.error
    assert "/var/lib/dpkg/lock-frontend" in busy.error
    assert node.run("pgrep", "-f", "hold.py").stdout.split()[0] in busy.error

    node.run("pkill", "-f", "hold.py")
    setup_ok(node)
