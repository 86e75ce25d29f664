"""Packages, runtimes and the toolkit in the probes of a live node, before any error message."""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.diagnoses.containerd import _KUBELET_USES_CONTAINERD
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.workflow.doctor import Examination, diagnose_evidence
from tests.scenarios.healthy.captures import Said, evidence, failed, held, listed
from tests.scenarios.healthy.nodes import HEALTHY

KEYRING = "/usr/share/keyrings/cuda-archive-keyring.gpg"
TOOLKIT_CONFIG = "file:/etc/nvidia-container-runtime/config.toml"


def ask(name: str, changes: Mapping[str, Said | None]) -> Examination:
    """Return doctor's answer for a healthy node after ``changes``; None removes an item."""
    node = {**HEALTHY[name](), **{key: said for key, said in changes.items() if said is not None}}
    gone = {key for key, said in changes.items() if said is None}
    return diagnose_evidence(evidence({key: said for key, said in node.items() if key not in gone}))


def causes(examined: Examination) -> list[str]:
    return [one.cause for one in examined.diagnosis.roots]


def commands(examined: Examination) -> list[str]:
    return [command for fix in examined.diagnosis.findings[0].remedy for command in fix.commands]


def test_missing_keyring_is_found_before_apt_fails() -> None:
    found = ask("debian-12-docker", {f"file:{KEYRING}": None})
    assert causes(found) == ["apt-nvidia-key-rotated"]
    assert found.diagnosis.findings[0].severity == "warning", "the driver works until something is upgraded"
    assert commands(found) == ["sudo gpunode setup --only cuda-repository"]


def test_node_that_gpunode_has_set_up_is_asked_to_name_its_recipe() -> None:
    """With a mirror, a setup without the recipe would look for the packages at NVIDIA's address."""
    pins = {"/etc/apt/preferences.d/gpunode-nvidia": "Package: nvidia-*\nPin: release *\nPin-Priority: 1001\n"}
    for preferences, is_asked in ((pins, True), ({}, False)):
        found = ask("debian-12-docker", {f"file:{KEYRING}": None, "apt-preferences-d": held(preferences)})
        (text,) = [fix.text for fix in found.diagnosis.findings[0].remedy if fix.commands]
        assert ("`sudo gpunode log` says which" in text) is is_asked


def test_unit_names_in_an_error_are_no_sign_of_k3s() -> None:
    said = failed("Running in chroot, ignoring command 'show'\n")
    assert "k3s-runtime-config-overwritten" not in causes(ask("debian-13-containerd", {"units": said}))


def test_toolkit_driver_root_without_a_driver_is_found() -> None:
    config = '[nvidia-container-cli]\nroot = "/run/nvidia/driver"\nldconfig = "@/sbin/ldconfig"\n'
    wrong = {TOOLKIT_CONFIG: config}
    assert causes(ask("debian-12-docker", wrong)) == ["toolkit-wrong-driver-root"]
    assert causes(ask("debian-12-docker", {**wrong, "driver-containers": listed("/run/nvidia/driver")})) == []


def test_ubuntu_ldconfig_path_on_debian_is_found() -> None:
    config = '[nvidia-container-cli]\nldconfig = "@/sbin/ldconfig.real"\n'
    here: dict[str, Said | None] = {TOOLKIT_CONFIG: config, "ldconfigs": listed("/sbin/ldconfig")}
    assert causes(ask("debian-12-docker", here)) == ["ldconfig-path-wrong"]
    both = {**here, "ldconfigs": listed("/sbin/ldconfig", "/sbin/ldconfig.real")}
    assert causes(ask("debian-12-docker", both)) == []


def test_only_the_offending_ld_so_conf_line_is_removed() -> None:
    stubs = "/usr/local/cuda-12.4/lib64/stubs"
    conf = {
        "/etc/ld.so.conf.d/000-cuda.conf": f"{stubs}\n",
        "/etc/ld.so.conf.d/libc.conf": "# libc default configuration\n/usr/local/lib\n",
    }
    cache = f"\tlibcuda.so.1 (libc6,x86-64) => {stubs}/libcuda.so.1\n"
    cache += "\tlibcuda.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcuda.so.1\n"
    found = ask("debian-12-docker", {"ld-so-conf-d": held(conf), "libraries": cache})
    assert causes(found) == ["library-path-shadows-libcuda"]
    assert any("000-cuda.conf" in command for command in commands(found))
    assert not any("libc.conf" in command or "*.conf" in command for command in commands(found))


def test_held_dpkg_lock_is_information() -> None:
    found = ask("debian-12-docker", {"locks": "apt-get          4242 /var/lib/dpkg/lock-frontend\n"})
    assert causes(found) == ["dpkg-lock-held"]
    assert found.verdict == "healthy"


def test_vfio_reservation_beside_other_gpus_is_healthy() -> None:
    reserved = held({"/etc/modprobe.d/vfio.conf": "options vfio-pci ids=10de:26b9\n"})
    found = ask("one-gpu-lent-to-a-guest", {"modprobe-d": reserved})
    assert causes(found) == ["vfio-bound"]
    assert found.verdict == "healthy"
    assert not any("vfio" in command for command in commands(found))


def test_file_ignored_by_modprobe_has_no_effect() -> None:
    wrong = "options nvidia NVreg_DeviceFileMode=666\n"
    assert causes(ask("debian-12-docker", {"modprobe-d": held({"/etc/modprobe.d/site.conf": wrong})})) == [
        "device-node-permissions"
    ]
    assert causes(ask("debian-12-docker", {"modprobe-d": held({"/etc/modprobe.d/site.conf.bak": wrong})})) == []


def test_unread_answer_about_pods_proves_no_kubelet() -> None:
    """This represents a docker-ce host, whose containerd.io disables the CRI plugin."""
    asked: dict[str, Said | None] = {
        "units": failed("Running in chroot, ignoring command 'show'\n"),
        "docker-version": None,
        "docker-info": None,
    }
    node = {**HEALTHY["debian-12-docker"](), **asked}
    snapshot = take_snapshot(evidence({key: said for key, said in node.items() if said is not None}))
    assert not [*snapshot.view(_KUBELET_USES_CONTAINERD)]
