"""Evidence in less usual places: rotated logs, locks, other kernels' images, LD_LIBRARY_PATH, containers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.comparison import compare
from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.diagnoses.views import fabric, modules, packages, system
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture
from gpunode.workflow.doctor import Examination, diagnose_evidence
from tests.scenarios.healthy.captures import Said, evidence, held, listed
from tests.scenarios.healthy.nodes import HEALTHY


def ask(name: str, changes: Mapping[str, Said]) -> Examination:
    """Return doctor's answer for a healthy node after ``changes``."""
    return diagnose_evidence(evidence({**HEALTHY[name](), **changes}))


def causes(examined: Examination) -> list[str]:
    return [one.cause for one in examined.diagnosis.roots]


def pieces(*found: tuple[str, str]) -> Snapshot:
    return take_snapshot(pasted.collect_pieces(found))


# --- LD_LIBRARY_PATH -----------------------------------------------------------------------------------------------

STUBS = "/usr/local/cuda-12.4/lib64/stubs"
PROFILE = "/etc/profile.d/cuda.sh"
SMI = (
    "| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |\n"
    "|   0  NVIDIA A100-SXM4-40GB          On  |   00000000:07:00.0 Off |                    0 |\n"
)


def test_libcuda_of_another_driver_explains_error_803() -> None:
    found = diagnose(
        pieces(
            ("nvidia-smi", SMI),
            ("ldd ./a.out", "\tlibcuda.so.1 => /opt/old/lib/libcuda.so.1 (0x00007f)\n"),
            (
                "ls -l /opt/old/lib/libcuda.so.1",
                "lrwxrwxrwx 1 root root 20 Jan  1 00:00 /opt/old/lib/libcuda.so.1 -> libcuda.so.470.57.02\n",
            ),
            ("./a.out", "CUDA error: unsupported display driver / cuda driver combination (803)\n"),
        )
    )
    assert [one.cause for one in found.roots] == ["library-path-shadows-libcuda"]


def test_hanging_nvidia_smi_matters_only_if_nvml_hangs_too() -> None:
    node = evidence(HEALTHY["debian-12-docker"]())
    silent = {key: replace(node[key], outcome="timeout", data=b"") for key in ("smi", "smi-query", "smi-topology")}
    assert not diagnose_evidence({**node, **silent}).diagnosis.open_questions
    hanging = diagnose_evidence({**node, **silent, "nvml": replace(node["nvml"], outcome="timeout", data=b"")})
    assert "gsp-rpc-timeout" in {one.cause for one in hanging.diagnosis.suspects}
    assert hanging.verdict == "unknown"


def test_cuda_path_without_a_driver_library_is_no_fault() -> None:
    cuda = "/usr/local/cuda/lib64"
    node = {
        "profile-d": held({PROFILE: f"export LD_LIBRARY_PATH={cuda}\n#export LD_LIBRARY_PATH={STUBS}\n"}),
    }
    assert causes(ask("debian-12-docker", node)) == []


# --- logs and locks of packages ------------------------------------------------------------------------------------

APT = (
    "Start-Date: 2026-10-02  06:11:02\nCommandline: /usr/bin/unattended-upgrade\n"
    "Upgrade: {}\nEnd-Date: 2026-10-02  06:12:00\n"
)


def test_rotated_log_is_older_than_its_successor() -> None:
    old = APT.format("libnvidia-compute-550:amd64 (550.54.14-0ubuntu1, 550.90.07-0ubuntu1)")
    new = APT.format("libnvidia-compute-550:amd64 (550.90.07-0ubuntu1, 550.120-0ubuntu1)")
    seen = pieces(("/var/log/apt/history.log", new), ("zcat /var/log/apt/history.log.1.gz", old))
    assert [one.driver for one in packages.logged_driver_upgrades(seen)] == ["550.90.07", "550.120"]
    assert all(one.is_automatic for one in packages.logged_driver_upgrades(seen))


def test_rotated_logs_are_read_where_the_current_one_is_empty() -> None:
    log = APT.format("nvidia-kernel-dkms:amd64 (535.183.01-1, 535.216.01-1)")
    keys = {"apt-logs": listed("/var/log/apt/history.log.1.gz", "/var/log/apt/history.log.2.gz")}
    silent = {**HEALTHY["debian-12-docker"](), **keys, "file:/var/log/apt/history.log": "\n"}
    asked = evidence({**silent, "file:/var/log/apt/history.log.1.gz": log})
    assert asked["file:/var/log/apt/history.log.1.gz"].text == log
    talks = evidence({**silent, "file:/var/log/apt/history.log": log})
    assert "file:/var/log/apt/history.log.1.gz" not in talks


def test_dnf_version_locks_are_read() -> None:
    # dnf versionlock add, as python3-dnf-plugin-versionlock 4 writes it.
    dnf = (
        "\n# Added lock on Sat Nov 21 23:19:10 2026\nnvidia-driver-3:560.35.03-1.el9.*\n"
        "!kmod-nvidia-open-dkms-3:570.1-1.el9.*\n"
    )
    seen = pieces(("/etc/dnf/plugins/versionlock.list", dnf))
    assert set(packages.held_packages(seen)) == {"nvidia-driver", "kmod-nvidia-open-dkms"}


def test_keyring_with_a_custom_name_is_checked() -> None:
    """Created manually below /etc/apt/keyrings, as in many guides for NVIDIA's archives."""
    own = "/etc/apt/keyrings/nvidia.gpg"
    entry = f"deb [signed-by={own}] https://nvidia.github.io/libnvidia-container/stable/deb/amd64 /\n"
    node = {**HEALTHY["debian-12-docker"](), "apt-sources-d": held({"/etc/apt/sources.list.d/own.list": entry})}
    found = diagnose_evidence(evidence(node))
    assert causes(found) == ["apt-toolkit-key-missing"]
    assert own in {one.source for one in found.diagnosis.findings[0].citations}
    there = {**node, f"file:{own}": "of a form that nobody reads here\n"}
    assert causes(diagnose_evidence(evidence(there))) == []


def test_dnf_log_lists_package_upgrades() -> None:
    log = (
        "2026-11-21T23:19:08+0000 INFO --- logging initialized ---\n"
        "2026-11-21T23:19:08+0000 SUBDEBUG Upgrade: nvidia-driver-3:560.35.03-1.el9.x86_64\n"
        "2026-11-21T23:19:08+0000 SUBDEBUG Upgraded: nvidia-driver-3:550.54.15-1.el9.x86_64\n"
    )
    seen = pieces(("tail -c 1048576 /var/log/dnf.rpm.log", log))
    assert [(one.name, one.driver) for one in packages.logged_driver_upgrades(seen)] == [("nvidia-driver", "560.35.03")]


# --- the fabric manager --------------------------------------------------------------------------------------------


def test_fabric_manager_version_is_read_from_its_own_output() -> None:
    seen = pieces(
        ("nv-fabricmanager --version", "Fabric Manager version is : 535.161.08\n"),
        ("cat /proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5\n"),
    )
    assert ["535.161.08" in one.line or "550.54.15" in one.line for one in fabric.version_mismatch(seen)] == [
        True,
        True,
    ]


ENDS = ("124.06", "86.15")


def test_imex_version_is_read_from_its_log() -> None:
    """The log is as NVIDIA's guides for its DRA driver print it."""
    log = (
        "IMEX Log initializing at: 3/27/2025 15:47:10.092\n"
        "[Mar 27 2025 15:47:10] [INFO] [tid 39] IMEX version 570.124.06 is running with the following configuration"
        " options\n"
    )
    good, bad = (pieces(("tail -c 1048576 /var/log/nvidia-imex.log", log.replace("124.06", end))) for end in ENDS)
    found = compare(good, bad, diagnose(bad)).differences
    assert [(one.name, one.good, one.bad) for one in found] == [("IMEX", "570.124.06", "570.86.15")]


def test_only_the_last_start_in_a_log_counts() -> None:
    old = "[Mar 02 2026 10:00:00] [ERROR] [tid 7] {} 525.85.12 don't match with driver version 535.161.08.\n".format(
        "fabric manager NVIDIA GPU driver interface version"
    )
    started = "Fabric Manager Log initializing at: 3/2/2026 11:00:00.000\n[Mar 02 2026 11:00:00] [INFO] Connected\n"
    assert fabric.version_mismatch(pieces(("/var/log/fabricmanager.log", old)))
    assert not fabric.version_mismatch(pieces(("/var/log/fabricmanager.log", old + started)))


# --- images --------------------------------------------------------------------------------------------------------


def test_initramfs_of_another_kernel_is_no_evidence() -> None:
    row = "-rw-r--r--   1 root  root  90 Nov 21 23:15 usr/lib/modules/6.1.0-{0}-amd64/updates/dkms/nvidia.ko\n"
    seen = pieces(
        ("uname -r", "6.1.0-18-amd64\n"),
        ("lsinitrd /boot/initramfs-6.1.0-22-amd64.img", row.format(22)),
    )
    assert modules.nvidia_in_initramfs_lines(seen) == ()
    own = pieces(("uname -r", "6.1.0-18-amd64\n"), ("lsinitrd /boot/initramfs-6.1.0-18-amd64.img", row.format(18)))
    assert modules.nvidia_in_initramfs_lines(own)


# --- containers as docker has them ---------------------------------------------------------------------------------


def inspect_line(error: str, **host: object) -> str:
    """Return a line of docker 26's answer to the probe of a container with GPUs."""
    container = {
        "Name": "/trainer",
        "Created": "2026-11-16T06:20:00.306732184Z",
        "State": {"Status": "created", "ExitCode": 128, "StartedAt": "0001-01-01T00:00:00Z", "Error": error},
        "HostConfig": {"Runtime": "runc", "Privileged": False, "Devices": [], **host},
        "Config": {"Image": "cuda", "Env": ["NVIDIA_VISIBLE_DEVICES=all", None]},
    }
    return json.dumps(container) + "\n"


REQUEST = [{"Driver": "", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": {}}]


def test_container_runtime_error_is_read_from_docker_inspect() -> None:
    error = 'could not select device driver "" with capabilities: [[gpu]]'
    node = {
        "docker-containers": "df199bdda2c3 cuda Created\n",
        "docker-inspect": inspect_line(error, DeviceRequests=REQUEST),
    }
    found = ask("debian-12-docker", node)
    assert found.verdict != "healthy"
    cited = [line for one in found.diagnosis.findings for line in one.citations if line.source == "docker inspect"]
    assert cited, causes(found)


def test_running_container_is_no_fault() -> None:
    fine = inspect_line("", DeviceRequests=REQUEST).replace("created", "running").replace("128", "0")
    node = {"docker-containers": "df199bdda2c3 cuda Up 2 hours\n", "docker-inspect": fine}
    assert causes(ask("debian-12-docker", node)) == []


# --- what systemd said is quoted as it said it ---------------------------------------------------------------------


def test_unit_state_is_cited_with_its_line() -> None:
    units = "Id=a.service\nActiveState=active\n\nId=docker.service\nLoadState=loaded\nActiveState=failed\n"
    node = take_snapshot(
        {"units": Capture("systemctl show -p Id,LoadState,ActiveState a docker b", "ok", units.encode())}
    )
    shown = system.unit_line(node, "docker.service", "ActiveState")
    assert (shown.line, shown.line_number, shown.key) == ("ActiveState=failed", 6, "units")
    assert system.unit_line(node, "b.service", "ActiveState").line == "(its ActiveState)"


# --- a slot's own lanes --------------------------------------------------------------------------------------------


def lspci(lanes: int) -> Snapshot:
    """Return an A100 that runs at eight of its sixteen lanes, in a slot with ``lanes`` lanes."""
    shown = (
        "40:01.0 PCI bridge [0604]: Intel Corporation Device [8086:347a] (prog-if 00 [Normal decode])\n"
        "\tBus: primary=40, secondary=41, subordinate=41, sec-latency=0\n"
        f"\tLnkCap:\tPort #1, Speed 16GT/s, Width x{lanes}, ASPM not supported\n\tLnkSta:\tSpeed 16GT/s, Width x8\n\n"
        "41:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 PCIe 40GB] [10de:20f1] (rev a1)\n"
        "\tLnkCap:\tPort #0, Speed 16GT/s, Width x16, ASPM not supported\n"
        "\tLnkSta:\tSpeed 16GT/s, Width x8 (downgraded)\n"
    )
    return pieces(("lspci -nnvvv", shown))


def test_slot_with_fewer_lanes_is_no_link_fault() -> None:
    assert all(one.severity == "info" for one in diagnose(lspci(8)).findings)
    (found,) = diagnose(lspci(16)).findings
    assert (found.cause, found.confidence) == ("pcie-link-degraded", "certain")
    assert [line.line_number for line in found.citations] == [8, 4]


# --- one GPU's fault hides nothing of another's --------------------------------------------------------------------


def test_recovery_action_of_one_gpu_stands_beside_another_fault() -> None:
    query = (
        "==============NVSMI LOG==============\n\nDriver Version                            : 570.54.15\n\n"
        "GPU 00000000:01:00.0\n    GPU Recovery Action                   : Reset\n"
        "GPU 00000000:41:00.0\n    GPU Recovery Action                   : None\n"
    )
    log = "[ 100.0] NVRM: Xid (PCI:0000:{}:00): 13, pid=1234, name=a.out, Graphics SM Warp Exception on (GPC 0)\n"
    found = {one.cause: one for one in diagnose(pieces(("nvidia-smi -q", query), ("dmesg", log.format(41)))).findings}
    assert found["xid-154-recovery-action"].gpus == ("0000:01:00.0",)
    same = {one.cause for one in diagnose(pieces(("nvidia-smi -q", query), ("dmesg", log.format("01")))).findings}
    assert "xid-154-recovery-action" not in same, "its own log tells what it is"


def test_python_warning_location_is_no_section_heading() -> None:
    text = (
        '$ python -c "import torch; print(torch.cuda.is_available())"\n'
        "/home/u/venv/lib/python3.12/site-packages/torch/cuda/__init__.py:235: UserWarning: \n"
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.\n"
    )
    (capture,) = pasted.parse_text_report(text).values()
    assert "UserWarning" in capture.text
