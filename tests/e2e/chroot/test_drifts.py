"""Every drift of the table, made on a real node: the next plan finds and names it, the next setup repairs it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.drifts import DRIFTS, NEW_KERNEL, Drift
from tests.e2e.chroot.scenario import (
    COMMENTED,
    CONFIG,
    DIRECTORIES,
    NONINTERACTIVE,
    RECIPE,
    Lab,
    as_machine,
    ask,
    give_kernel_modules,
    setup_ok,
)
from tests.e2e.lab import driver
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.debs import Package, Release, build_all, publish
from tests.e2e.lab.keys import Key
from tests.e2e.lab.pci import GTX_1080

pytestmark = pytest.mark.e2e

LOCK = "/root/fleet.lock"
OTHER_MODULE = "nvidia-dkms-470"
COMPATIBILITY = Package("cuda-compat-13-1", "590.44.01-1", files={"/usr/local/cuda-13.1/compat/libcuda.so.1": ""})
MORE = '[toolkit]\nversion = "1.19.1"\n[runtime]\nset_as_default = true\n'


@pytest.fixture(scope="module", params=["bookworm", pytest.param("trixie", marks=pytest.mark.long)])
def node(request: pytest.FixtureRequest, bases: dict[str, Bases], chroots: Lab) -> Iterator[Chroot]:
    codename = str(request.param)
    with chroots.node(bases[codename].runtime, [GTX_1080]) as made:
        as_machine(made)
        made.write(CONFIG, COMMENTED)
        chroots.recipe(made, DIRECTORIES[codename], more=MORE)
        setup_ok(made)
        give_kernel_modules(made)
        assert ask(made, "plan", RECIPE, "--lock", LOCK).exit_code == 0
        setup_ok(made, "--lock", LOCK)
        folder = made.path("/root/drift")
        folder.mkdir()
        (folder / "config.toml").write_text(COMMENTED)
        chroots.repositories.keys.stranger.write_keyring(folder / "stranger.gpg")
        made.write(
            "/root/drift/preferences/other", "Package: /nvidia|cuda|nvcuvid/\nPin: version 595.*\nPin-Priority: 1001\n"
        )
        build_all([Package("lab-drift", "1"), Package("libcuda1", "580.65.06-1"), COMPATIBILITY], folder)
        made_there = driver.make_driver("470.256.02", chroots.folder / f"drift-native-{codename}")
        other = replace(made_there, revision="0ubuntu1")
        build_all([driver.module_package(other, OTHER_MODULE, licence="NVIDIA", needs=("dkms",))], folder)
        _offer_headers(made, chroots.repositories.keys.stranger)
        yield made


def _offer_headers(node: Chroot, key: Key) -> None:
    """Add an archive with headers of a kernel that is not installed yet: this kernel's under another name."""
    folder = node.path("/root/kernel")
    folder.mkdir()
    headers = f"/usr/src/linux-headers-{node.kernel}"
    build_all(
        [Package(f"linux-headers-{NEW_KERNEL}", "1", links={f"/lib/modules/{NEW_KERNEL}/build": headers})], folder
    )
    publish(folder, Release("kernel", "kernel"), key)
    node.write("/etc/apt/sources.list.d/kernel.list", "deb [trusted=yes] file:/root/kernel ./\n")
    node.run("apt-get", "-q", "update", env=NONINTERACTIVE)


@pytest.mark.parametrize(
    "drift",
    [pytest.param(one, id=one.id, marks=() if one.core else pytest.mark.long) for one in DRIFTS if not one.booted],
)
def test_drift_is_found_named_and_healed(node: Chroot, drift: Drift) -> None:
    if drift.id == "driver-of-another-system" and node.base.codename == "trixie":
        pytest.skip("the keys of NVIDIA's repositories for Debian 13 and Ubuntu 22.04 differ")
    there, marked = {*node.installed()}, automatic(node)
    shell = drift.shell.replace("debian12", DIRECTORIES[node.base.codename])
    node.run("sh", "-c", shell, env=NONINTERACTIVE)

    found = ask(node, "plan", RECIPE, "--check", "--lock", LOCK)

    if drift.answer == "healed":
        assert found.exit_code == 4, found.envelope
        steps = {step["id"]: step["changes"] for step in found.result["steps"]}
        assert steps[drift.step], (drift.step, steps)
    elif drift.answer == "refused":
        assert found.exit_code == 3, found.envelope
        assert drift.named in found.error
    else:
        others = [("setup", RECIPE, "--yes", "--lock", LOCK), ("verify", RECIPE), ("status",)]
        for answer in (found, *(ask(node, *words) for words in others)):
            said = answer.envelope["notes"]
            assert [note for note in said if drift.named in note], (answer.envelope["command"], said)
    if drift.answer != "healed":
        node.run("sh", "-c", drift.undo)
    setup_ok(node, "--lock", LOCK)
    assert ask(node, "plan", RECIPE, "--check", "--lock", LOCK).exit_code == 0
    assert [name for name in automatic(node) if name in there] == marked
    if drift.answer == "healed" and drift.undo:
        node.run("sh", "-c", drift.undo)


def test_package_with_the_same_module_is_purged_but_not_cuda_compat(node: Chroot) -> None:
    """Both were installed from files: a package that no archive has is purged only with consent."""
    if node.base.codename == "trixie":
        pytest.skip("dkms of Debian 13 installs no module over a newer one of the same name")
    folder = node.path("/usr/local/cuda-13.1/compat")
    node.run("sh", "-c", "dpkg -i /root/drift/cuda-compat-13-1_*.deb", env=NONINTERACTIVE)
    assert ask(node, "plan", RECIPE, "--check", "--lock", LOCK).exit_code == 0
    node.run("sh", "-c", f"dpkg -i /root/drift/{OTHER_MODULE}_*.deb", env=NONINTERACTIVE)
    assert "nvidia/470.256.02" in node.run("dkms", "status").stdout
    before = node.installed()

    for command in (("plan", RECIPE), ("setup", RECIPE, "--yes")):
        refused = ask(node, *command, "--lock", LOCK)
        assert refused.exit_code == 3, refused.envelope
        assert f"{OTHER_MODULE} 470.256.02-0ubuntu1" in refused.error
        assert "--allow-loss" in refused.error
    assert node.installed() == before

    allowed = ask(node, "plan", RECIPE, "--lock", LOCK, "--allow-loss")
    assert [note for note in allowed.envelope["notes"] if "no archive has nvidia-dkms-470" in note]
    done = setup_ok(node, "--lock", LOCK, "--allow-loss")
    gone = {row["subject"]: row["reason"] for row in done.changes if row["action"] == "purge"}
    assert gone == {OTHER_MODULE: "same-module"}
    status = node.run("dkms", "status").stdout
    assert "nvidia/470.256.02" not in status
    assert f"nvidia/580.178.04, {node.kernel}" in status
    assert (folder / "libcuda.so.1").exists()
    node.run("dpkg", "--purge", "cuda-compat-13-1")


def test_lost_record_is_reported_by_every_command(node: Chroot) -> None:
    node.run("mv", "/var/lib/gpunode", "/root/record")
    try:
        for command in (("plan", RECIPE), ("verify", RECIPE), ("status",)):
            said = ask(node, *command).envelope["notes"]
            assert [note for note in said if "/etc/modprobe.d/gpunode-nouveau.conf" in note], (command, said)
        assert ask(node, "rollback", "--yes").exit_code == 2
        before = node.installed()

        removed = ask(node, "remove", "--yes")

        assert removed.exit_code == 7, removed.envelope
        assert "/etc/apt/preferences.d/gpunode-nvidia" in removed.error
        assert node.installed() == before
    finally:
        node.run("sh", "-c", "rm -rf /var/lib/gpunode; mv /root/record /var/lib/gpunode")
    assert ask(node, "plan", RECIPE, "--check", "--lock", LOCK).exit_code == 0


def test_verify_names_modified_files_and_how_to_restore_them(node: Chroot) -> None:
    """Also libcuda.so.1 alone, which nvidia-smi and NVML do not need; setup does not check single files."""
    library = node.run("sh", "-c", "ls /usr/lib/x86_64-linux-gnu/libcuda.so.5*").stdout.strip()
    wrapper = "/usr/bin/nvidia-container-runtime"
    assert "package-files" in [row["id"] for row in ask(node, "verify", RECIPE).result["checks"]]
    node.run("sh", "-c", f"rm {library}; ldconfig; echo 'exec runc' > {wrapper}")

    found = ask(node, "verify", RECIPE)

    assert found.exit_code == 7
    failed = {row["id"]: row for row in found.result["checks"] if row["status"] == "failed"}
    assert set(failed) == {"libcuda", "package-files"}
    assert "libcuda.so.1: cannot open shared object" in failed["libcuda"]["detail"]
    assert library in failed["package-files"]["detail"]
    assert wrapper in failed["package-files"]["detail"]
    (command,) = [line for line in failed["package-files"]["hint"].splitlines() if line.startswith("sudo ")]
    node.run("sh", "-c", command.removeprefix("sudo ").replace("apt-get", "apt-get -y"), env=NONINTERACTIVE)
    assert not [row for row in ask(node, "verify", RECIPE).result["checks"] if row["status"] == "failed"]
    assert ask(node, "plan", RECIPE, "--check", "--lock", LOCK).exit_code == 0


def automatic(node: Chroot) -> list[str]:
    """Return the packages that autoremove may take once nothing needs them."""
    return node.run("apt-mark", "showauto").stdout.split()
