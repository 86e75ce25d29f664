"""rollback --packages and remove are setup's inverse: the node is as before, byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.e2e.chroot.scenario import (
    COMMENTED,
    CONFIG,
    DIRECTORIES,
    NONINTERACTIVE,
    Lab,
    add_toolkit_repository,
    as_machine,
    ask,
    install_old_driver,
    setup,
)
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.debs import Package, build_all
from tests.e2e.lab.distro import UBUNTUS, Ubuntu, become
from tests.e2e.lab.pci import GTX_1080, T4
from tests.e2e.lab.snapshot import snapshot

pytestmark = pytest.mark.e2e

Make = Callable[[Bases, Lab], AbstractContextManager[Chroot]]
# dkms reads it after the module's own.
FAILING_BUILD = 'MAKE[0]="{ echo build >> /root/lab-builds; false; }"\n'


@contextmanager
def bare_node(bases: Bases, lab: Lab) -> Iterator[Chroot]:
    """Yield a node without anything that setup needs: no headers, no runtime, no repository."""
    with lab.node(bases.plain, [T4]) as node:
        as_machine(node)
        lab.recipe(node, DIRECTORIES[bases.plain.codename])
        yield node


@contextmanager
def used_node(bases: Bases, lab: Lab) -> Iterator[Chroot]:
    """Yield a node with another driver, an older toolkit from NVIDIA's own list, and a manual configuration."""
    with lab.node(bases.runtime, [GTX_1080]) as node:
        as_machine(node)
        node.write(CONFIG, COMMENTED, 0o640)
        node.run("chown", "daemon:adm", CONFIG)
        install_old_driver(node)
        add_toolkit_repository(node, lab.repositories)
        lab.recipe(node, DIRECTORIES[bases.runtime.codename])
        yield node


@contextmanager
def node_with_docker(bases: Bases, lab: Lab) -> Iterator[Chroot]:
    """Yield a node with docker, without daemon.json and its folder."""
    with lab.node(bases.runtime, [T4]) as node:
        as_machine(node)
        lab.recipe(node, DIRECTORIES[bases.runtime.codename], "docker")
        yield node


def set_up(node: Chroot) -> None:
    """Assert that setup applied its changes; verify reports that no dockerd runs in a chroot."""
    done = setup(node)
    assert done.exit_code in {0, 7}, done.error


@pytest.mark.parametrize(
    ("make", "codename"),
    [
        pytest.param(bare_node, "bookworm", marks=pytest.mark.long),
        (used_node, "trixie"),
        pytest.param(bare_node, "trixie", marks=pytest.mark.long),
        pytest.param(used_node, "bookworm", marks=pytest.mark.long),
        pytest.param(node_with_docker, "bookworm", marks=pytest.mark.long),
        pytest.param(node_with_docker, "trixie", marks=pytest.mark.long),
    ],
)
def test_whole_rollback_restores_the_node(make: Make, codename: str, bases: dict[str, Bases], chroots: Lab) -> None:
    with make(bases[codename], chroots) as node:
        before = snapshot(node)
        set_up(node)
        after = snapshot(node)

        back = ask(node, "rollback", "--packages", "--yes")

        # The module that setup loaded stays in the kernel until a reboot.
        assert back.exit_code == 10, back.error
        assert before.differences(snapshot(node)) == ""

        again = ask(node, "rollback", "--packages", "--yes", str(back.result["run"]))

        assert again.exit_code in {0, 10}, again.error
        assert after.differences(snapshot(node)) == ""


@pytest.mark.parametrize("verb", ["rollback", pytest.param("remove", marks=pytest.mark.long)])
def test_driver_that_did_not_build_goes_without_another_build(verb: str, bases: dict[str, Bases], chroots: Lab) -> None:
    """dpkg leaves the driver's packages unpacked; configuring them first would build, and fail, again."""
    with bare_node(bases["bookworm"], chroots) as node:
        before = snapshot(node)
        node.write("/etc/dkms/nvidia.conf", FAILING_BUILD)
        failed = setup(node)
        assert failed.exit_code == 6, failed.error
        assert "half-configured" in node.run("dpkg-query", "-W", "-f", "${db:Status-Status}\n").stdout
        node.path("/root/lab-builds").unlink()

        back = ask(node, verb, *(["--packages"] if verb == "rollback" else []), "--yes")

        assert back.exit_code == 0, back.error
        assert not node.path("/root/lab-builds").exists()
        assert node.run("dpkg", "--audit").stdout == ""
        node.path("/etc/dkms/nvidia.conf").unlink()
        assert before.differences(snapshot(node)) == ""


@pytest.mark.parametrize("verb", ["rollback", pytest.param("remove", marks=pytest.mark.long)])
def test_kernel_that_the_driver_does_not_know_blocks_no_undo(verb: str, bases: dict[str, Bases], chroots: Lab) -> None:
    """The kernel's scripts make dkms build the module; only without it can the kernel's package be configured."""
    with chroots.node(bases["bookworm"].runtime, [T4]) as node:
        as_machine(node)
        chroots.recipe(node, DIRECTORIES["bookworm"])
        set_up(node)
        fails_with_driver = {"postinst": "#!/bin/sh\n! dkms status | grep -q nvidia\n"}
        kernel = Package("linux-headers-6.1.0-99-lab", "6.1.99-1", scripts=fails_with_driver)
        build_all([kernel], node.path("/root"))
        node.run("sh", "-ec", f"! dpkg -i /root/{kernel.file_name}")

        back = ask(node, verb, *(["--packages"] if verb == "rollback" else []), "--yes")

        assert back.exit_code == 10, back.error
        assert node.run("dpkg", "--audit").stdout == ""
        assert "linux-headers-6.1.0-99-lab" in node.installed()
        assert "nvidia-kernel-open-dkms" not in node.installed()


def test_run_is_undone_only_after_runs_that_depend_on_it(bases: dict[str, Bases], chroots: Lab) -> None:
    """The toolkit stays while a later run's docker names it; a partly undone run does not hide an older one."""
    with chroots.node(bases["bookworm"].runtime, [T4]) as node:
        as_machine(node)
        chroots.recipe(node, DIRECTORIES["bookworm"])
        before = snapshot(node)
        set_up(node)
        chroots.recipe(node, DIRECTORIES["bookworm"], "docker")
        set_up(node)
        both = snapshot(node)

        refused = ask(node, "rollback", "1", "--packages", "--yes")

        assert refused.exit_code == 5, refused.error
        assert "/etc/docker/daemon.json, of run 2, needs" in refused.error
        assert refused.error.endswith("gpunode rollback 2")
        assert both.differences(snapshot(node)) == ""

        assert ask(node, "rollback", "--yes").exit_code == 0
        again = ask(node, "rollback", "--packages", "--yes")
        assert (again.exit_code, again.envelope["changed"]) == (0, False)
        assert again.result["next_run"].startswith("000001-")
        back = ask(node, "rollback", "1", "--packages", "--yes")
        assert back.exit_code == 10, back.error
        assert before.differences(snapshot(node)) == ""


@pytest.mark.long
@pytest.mark.parametrize("recipe", ["bare-metal", "k8s-containerd", "kind"])
def test_whole_rollback_works_for_the_other_recipes(recipe: str, bases: dict[str, Bases], chroots: Lab) -> None:
    with chroots.node(bases["bookworm"].runtime, [T4]) as node:
        as_machine(node)
        chroots.recipe(node, DIRECTORIES["bookworm"], recipe)
        before = snapshot(node)
        set_up(node)

        back = ask(node, "rollback", "--packages", "--yes")

        assert back.exit_code == 10, back.error
        assert before.differences(snapshot(node)) == ""


@pytest.mark.long
@pytest.mark.parametrize("ubuntu", UBUNTUS, ids=lambda ubuntu: ubuntu.codename)
def test_whole_rollback_works_for_ubuntu_package_names(ubuntu: Ubuntu, bases: dict[str, Bases], chroots: Lab) -> None:
    with chroots.node(ubuntu.base(bases["bookworm"].plain), [GTX_1080]) as node:
        become(node, ubuntu)
        as_machine(node)
        chroots.recipe(node, ubuntu.directory)
        before = snapshot(node)
        set_up(node)

        back = ask(node, "rollback", "--packages", "--yes")

        assert back.exit_code == 10, back.error
        assert before.differences(snapshot(node)) == ""


@pytest.mark.parametrize("codename", ["bookworm", pytest.param("trixie", marks=pytest.mark.long)])
def test_remove_restores_the_node_without_gpunode(
    codename: str, bases: dict[str, Bases], chroots: Lab, tmp_path: Path
) -> None:
    with bare_node(bases[codename], chroots) as node:
        before = snapshot(node)
        set_up(node)
        # Years later: a user has edited the file, and other packages now need those that were installed.
        config = node.path(CONFIG)
        config.write_text("# ours\n" + config.read_text())
        set_up(node)
        _install_what_needs(node, "runc", folder=tmp_path)

        removed = ask(node, "remove", "--yes")

        assert removed.exit_code == 10, removed.error
        notes = removed.envelope["notes"]
        assert any("runc stays: lab-needs-runc needs it now" in note for note in notes), notes
        left = [line.split(":")[0] for line in before.differences(snapshot(node)).splitlines()]
        assert {"package lab-needs-runc", "package runc"} <= set(left)
        assert not [name for name in left if not name.startswith("package ") or "nvidia" in name or "cuda" in name], (
            left
        )

        again = ask(node, "remove", "--yes")

        assert again.exit_code == 0, again.error
        assert not again.envelope["changed"]


@pytest.mark.long
def test_edits_that_a_later_setup_overwrote_stay_gone(bases: dict[str, Bases], chroots: Lab) -> None:
    """A later setup overwrites them as drift; another edit of the same file stays."""
    with chroots.node(bases["bookworm"].runtime, [T4]) as node:
        as_machine(node)
        node.write(CONFIG, COMMENTED, 0o640)
        node.run("chown", "daemon:adm", CONFIG)
        chroots.recipe(node, "debian12")
        before = snapshot(node)
        set_up(node)
        pins, blacklist = "/etc/apt/preferences.d/gpunode-nvidia", "/etc/modprobe.d/gpunode-nouveau.conf"
        node.write(pins, node.read(pins).replace("Pin-Priority: 100", "Pin-Priority: 90"))
        node.write(blacklist, node.read(blacklist) + "options nvidia NVreg_EnableGpuFirmware=0\n")
        edited = node.read(CONFIG).replace("pause:3.9", "pause:4.0").replace("/usr/bin/nvidia-", "/usr/sbin/nvidia-")
        node.path(CONFIG).write_text(edited)
        set_up(node)

        removed = ask(node, "remove", "--yes")

        assert removed.exit_code == 10, removed.envelope
        node.path(CONFIG).write_text(node.read(CONFIG).replace("pause:4.0", "pause:3.9"))
        assert before.differences(snapshot(node)) == ""


@pytest.mark.long
def test_rollback_without_a_lost_version_claims_no_former_node(bases: dict[str, Bases], chroots: Lab) -> None:
    with bare_node(bases["bookworm"], chroots) as node:
        assert setup(node, "--driver", "580").exit_code == 0
        assert setup(node, "--driver", "595").exit_code == 10
        newer = chroots.repositories.variant("debian12", chroots.folder / "only-newer", without="*_580*")
        node.server.mount(chroots.repositories.cuda_path("debian12"), newer)
        node.run("sh", "-ec", "apt-get update && apt-get clean")

        refused = node.gpunode("rollback", "--packages", "--yes")
        done = node.gpunode("rollback", "--packages", "--yes", "--allow-loss")

        assert refused.returncode == 3
        assert refused.stderr.count("cannot get version 580.178.04-1 back") == 1
        assert done.returncode == 0, done.stderr
        result = " ".join(done.stdout.rpartition("✓ the node is as before run")[2].split())
        assert "except as noted below" in result
        assert "libcuda1" in result
        assert "nvidia-smi cannot get version 580.178.04-1 back: no archive" in result


@pytest.mark.long
def test_remove_keeps_a_driver_that_came_as_a_dependency_automatic(
    bases: dict[str, Bases], chroots: Lab, tmp_path: Path
) -> None:
    """Setup marks the driver of a metapackage as manual, so that autoremove keeps it; remove takes that back."""
    with bare_node(bases["bookworm"], chroots) as node:
        keyring = f"{chroots.repositories.cuda}/debian12/x86_64/cuda-keyring_1.1-1_all.deb"
        node.run("/usr/lib/apt/apt-helper", "download-file", keyring, "/tmp/cuda-keyring.deb")
        node.run("dpkg", "-i", "/tmp/cuda-keyring.deb")
        node.run("apt-get", "update")
        node.run("apt-get", "-y", "install", "nvidia-driver-pinning-580", env=NONINTERACTIVE)
        _install_what_needs(node, "nvidia-driver-cuda", "nvidia-kernel-open-dkms", folder=tmp_path)
        before = snapshot(node)
        set_up(node)
        manual = node.run("apt-mark", "showmanual").stdout.split()
        assert "nvidia-driver-cuda" in manual

        removed = ask(node, "remove", "--yes")

        assert removed.exit_code in {0, 10}, removed.error
        assert before.differences(snapshot(node)) == ""


@pytest.mark.long
def test_remove_keeps_the_files_of_a_keyring_package_installed_since(bases: dict[str, Bases], chroots: Lab) -> None:
    """NVIDIA's cuda-keyring has the list and the keyring under the names that gpunode gives them."""
    with bare_node(bases["bookworm"], chroots) as node:
        set_up(node)
        keyring = f"{chroots.repositories.cuda}/debian12/x86_64/cuda-keyring_1.1-1_all.deb"
        node.run("/usr/lib/apt/apt-helper", "download-file", keyring, "/tmp/cuda-keyring.deb")
        node.run("dpkg", "-i", "--force-confnew", "/tmp/cuda-keyring.deb")

        removed = ask(node, "remove", "--yes")

        assert removed.exit_code in {0, 10}, removed.error
        assert node.run("dpkg", "--verify", "cuda-keyring").stdout == ""
        node.run("apt-get", "update")


@pytest.mark.long
def test_apt_works_after_a_removal_that_keeps_our_source_list(bases: dict[str, Bases], chroots: Lab) -> None:
    """The administrator's list for the same archive names another keyring; apt refuses the combination."""
    own, ours = "/etc/apt/sources.list.d/cuda.list", "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
    with used_node(bases["bookworm"], chroots) as node:
        keyring = "/etc/apt/keyrings/nvidia-cuda.gpg"
        node.run("mkdir", "-p", "/etc/apt/keyrings")
        chroots.repositories.keys.cuda.write_keyring(node.path(keyring))
        node.write(own, f"deb [signed-by={keyring}] {chroots.repositories.cuda}/debian12/x86_64/ /\n")
        node.run("apt-get", "update")
        set_up(node)

        removed = ask(node, "remove", "--yes")

        assert removed.exit_code in {7, 10}, removed.envelope
        node.run("apt-get", "update")
        node.run("apt-get", "check")
        there = [path for path in (own, ours) if node.path(path).exists()]
        assert len(there) == 1, there
        if there == [ours]:
            said = "\n".join([*removed.envelope["notes"], *(row["why"] for row in removed.envelope["errors"])])
            assert own in said, removed.envelope


def _install_what_needs(node: Chroot, *names: str, folder: Path) -> None:
    """Install a package of the user's own that depends on ``names``, which are installed as automatic."""
    wanted = Package(f"lab-needs-{names[0]}", "1", depends=names, architecture="all")
    build_all([wanted], folder)
    node.path("/root/needs.deb").write_bytes((folder / wanted.file_name).read_bytes())
    node.run("apt-get", "-y", "install", "/root/needs.deb", env=NONINTERACTIVE)


@pytest.mark.long
def test_remove_leaves_a_package_of_others_that_cannot_be_configured(bases: dict[str, Bases], chroots: Lab) -> None:
    """apt removes packages, then configures all others that are not configured, and fails."""
    with chroots.node(bases["bookworm"].runtime, [T4]) as node:
        as_machine(node)
        chroots.recipe(node, DIRECTORIES["bookworm"])
        set_up(node)
        broken = Package("lab-broken", "1", scripts={"postinst": "#!/bin/sh\necho no licence server\nexit 7\n"})
        build_all([broken], node.path("/root"))
        node.run("sh", "-ec", f"! dpkg -i /root/{broken.file_name}")

        gone = ask(node, "remove", "--yes")

        assert gone.exit_code == 10, gone.error
        assert any("lab-broken cannot be configured" in note for note in gone.envelope["notes"])
        assert not [name for name in node.installed() if "nvidia" in name]
        states = node.run("dpkg-query", "-W", "-f", "${Package} ${db:Status-Status}\n").stdout
        assert "lab-broken half-configured" in states
        assert "config-files" not in states


@pytest.mark.long
def test_remove_fails_if_it_leaves_a_package_of_others_unconfigured(bases: dict[str, Bases], chroots: Lab) -> None:
    """The builder of the initramfs on a full disk is such a package: its trigger fails once the driver is gone."""
    with chroots.node(bases["bookworm"].runtime, [T4]) as node:
        as_machine(node)
        chroots.recipe(node, DIRECTORIES["bookworm"])
        set_up(node)
        postinst = '#!/bin/sh\n[ "$1" != triggered ] || { echo no room; exit 7; }\n'
        others = Package("lab-others", "1", scripts={"postinst": postinst, "triggers": "interest-noawait /usr/bin\n"})
        build_all([others], node.path("/root"))
        node.run("dpkg", "-i", f"/root/{others.file_name}")

        gone = ask(node, "remove", "--yes")

        assert gone.exit_code == 6
        assert "package lab-others could not be set up" in gone.error


@pytest.mark.long
@pytest.mark.parametrize("state", ["unpacked", "half-installed"])
def test_broken_package_that_stops_apt_is_named_with_a_way_out(
    state: str, bases: dict[str, Bases], chroots: Lab
) -> None:
    with chroots.node(bases["bookworm"].runtime, [T4]) as node:
        as_machine(node)
        chroots.recipe(node, DIRECTORIES["bookworm"])
        set_up(node)
        broken = Package("lab-broken", "1", depends=("lab-missing",))
        build_all([broken], node.path("/root"))
        node.run("dpkg", "--unpack", f"/root/{broken.file_name}")
        if state == "half-installed":
            status = node.read("/var/lib/dpkg/status")
            node.write(
                "/var/lib/dpkg/status", status.replace("install ok unpacked", "install reinstreq half-installed")
            )

        stopped = ask(node, "remove", "--yes")

        assert stopped.exit_code == 6
        way_out = next(line for line in stopped.error.splitlines() if "--force-remove-reinstreq" in line)
        assert way_out.split()[0] == "sudo"
        node.run(*way_out.split()[1:])
        assert ask(node, "remove", "--yes").exit_code == 10
