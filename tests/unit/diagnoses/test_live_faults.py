"""Faults of the live table by what the probes of such a node answer: gpunode runs no nvidia-smi there.

``tests/faults.py`` makes them for real, mostly in the long run only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.views.runtimes import container_engine
from tests.scenarios.healthy.captures import Said, evidence, failed, held, journal, listed
from tests.scenarios.healthy.nodes import HEALTHY

NODE = "debian-13-containerd"
# What follow_ups asks a loaded driver only, and what a module leaves in /proc, /sys and /dev.
_OF_LOADED_MODULE = (
    *("smi", "nvml", "toolkit-list", "nvidia-version", "dev-nvidia", "file:/sys/module/nvidia"),
    "file:/proc/driver/nvidia",
)


def unloaded(**changes: Said) -> dict[str, Said]:
    """Return a node whose driver is installed and not loaded."""
    there = {key: said for key, said in HEALTHY[NODE]().items() if not key.startswith(_OF_LOADED_MODULE)}
    there["modules"] = "ext4 1146880 2 - Live 0x0000000000000000\n"
    there["kernel-journal"] = ""
    return {**there, **{key.replace("_", "-"): said for key, said in changes.items()}}


def diagnosis(node: Mapping[str, Said]) -> Diagnosis:
    return diagnose(take_snapshot(evidence(node)))


def causes(node: Mapping[str, Said]) -> list[str]:
    return [finding.cause for finding in diagnosis(node).roots]


def lspci(driver: str) -> dict[str, Said]:
    said = str(HEALTHY[NODE]()["lspci"])
    return {"lspci": said.replace("Driver:\tnvidia\n", f"Driver:\t{driver}\n" if driver else "")}


def test_gpu_that_vfio_owns_is_named_before_the_unloaded_module() -> None:
    reserved = held({"/etc/modprobe.d/vfio.conf": "options vfio-pci ids=10de:26b9\n"})
    (found,) = diagnosis(unloaded(**lspci("vfio-pci"), modprobe_d=reserved, pci_driver=())).roots
    assert found.cause == "vfio-bound"
    # No kernel argument reserves it, so the boot loader stays as it is.
    assert not [command for fix in found.remedy for command in fix.commands if "grub" in command.split("|")[-1]]


def test_installed_driver_without_a_gpu_is_a_finding() -> None:
    bus = "\n\n".join(device for device in str(HEALTHY[NODE]()["lspci"]).split("\n\n") if "[10de]" not in device)
    gone = ("lspci-verbose", "pci-", "numa-nodes", "link-", "nvidia-gpus")
    node = {key: value for key, value in unloaded(lspci=bus).items() if not key.startswith(gone)}
    assert causes(node) == ["no-gpu-present"]


def test_unbuilt_module_is_not_said_to_be_for_another_kernel() -> None:
    node = unloaded(**lspci(""), modules_dkms=(), dkms_installed=(), pci_driver=())
    node["dkms-status"] = "nvidia/580.95.05: added\n"
    node["modinfo:nvidia"] = failed("", 1, "modinfo: ERROR: Module nvidia not found.\n")
    assert "module-built-for-other-kernel" not in [finding.cause for finding in diagnosis(node).findings]


def test_removed_toolkit_is_missed_although_the_log_shows_its_installation() -> None:
    there = HEALTHY[NODE]()
    paragraphs = str(there["dpkg-status"]).split("\n\n")
    kept = (one for one in paragraphs if not re.match("Package: (?:lib)?nvidia-container", one))
    node = {key: said for key, said in there.items() if not key.startswith(("toolkit-", "cdi-list"))}
    node["dpkg-status"] = "\n\n".join(kept)
    node["file:/var/log/apt/history.log"] = "\nInstall: nvidia-container-toolkit:amd64 (1.18.0-1)\n"
    (found,) = diagnosis(node).roots
    assert found.cause == "toolkit-not-installed"
    # The runtime that names NVIDIA's, and not one whose files gpunode looked for in vain.
    assert "--runtime=containerd" in found.remedy[1].commands[0]


def test_engine_is_the_one_that_answers_and_not_one_that_gpunode_asked_for() -> None:
    assert container_engine(take_snapshot(evidence(HEALTHY["debian-12-docker"]()))) == "docker"
    assert container_engine(take_snapshot(evidence(HEALTHY[NODE]()))) == "containerd"
    assert container_engine(take_snapshot(evidence(HEALTHY["rhel-9-crio"]()))) == "crio"


def test_source_that_dkms_lost_is_added_again_before_the_build() -> None:
    node = unloaded(**lspci(""), modules_dkms=(), dkms_installed=(), dkms_sources=(), pci_driver=())
    node |= {"dkms-status": "", "dkms-tree": listed("/var/lib/dkms/nvidia/580.95.05")}
    node["modinfo:nvidia"] = failed("", 1, "modinfo: ERROR: Module nvidia not found.\n")
    (found,) = diagnosis(node).roots
    assert found.cause == "dkms-tree-corrupt"
    commands = [command for fix in found.remedy if not fix.when for command in fix.commands]
    added = next(at for at, command in enumerate(commands) if "sudo dkms add -m nvidia -v 580.95.05" in command)
    assert "rm -r" in commands[added - 1]
    assert "autoinstall" in commands[added + 1]


def test_refusal_in_the_log_of_a_docker_that_runs_again_is_no_fault() -> None:
    said = "unable to configure the Docker daemon with file /etc/docker/daemon.json: invalid character '}'"
    node = HEALTHY["debian-12-docker"]()
    log = journal((f"dockerd[196]: {said}", "systemd[1]: docker.service: Failed with result 'exit-code'."))
    assert causes({**node, "log:docker": log}) == []
    stopped = re.sub("(?s)(Id=docker.service.*?)ActiveState=active", "\\1ActiveState=failed", str(node["units"]))
    unasked = {key: said for key, said in node.items() if key not in {"docker-version", "docker-info"}}
    assert causes({**unasked, "log:docker": log, "units": stopped}) == ["daemon-json-invalid"]


def test_disabled_cri_plugin_is_named_where_a_kubelet_uses_containerd() -> None:
    node = HEALTHY["kubeadm-with-device-plugin"]()
    disabled = {
        key: said.replace("disabled_plugins = []", 'disabled_plugins = ["io.containerd.grpc.v1.cri"]')
        for key, said in node.items()
        if isinstance(said, str) and key.endswith(("containerd/config.toml", "containerd-dump"))
    }
    assert {**node, **disabled} != node
    assert causes({**node, **disabled}) == ["containerd-cri-disabled"]


def test_missing_key_of_a_mirror_of_the_toolkit_is_found() -> None:
    keyring = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
    entry = f"deb [signed-by={keyring}] https://mirror.example/libnvidia-container/stable/deb/amd64 /\n"
    node = {**HEALTHY[NODE](), "apt-sources-d": held({"/etc/apt/sources.list.d/nvidia-container-toolkit.list": entry})}
    assert causes(node) == ["apt-toolkit-key-missing"]
