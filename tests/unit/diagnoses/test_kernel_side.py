"""Drivers, kernels and modules: other wordings of each cause, its look-alikes, and non-faults."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

FAILED = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
WORKS = "| NVIDIA-SMI 550.90.07    Driver Version: 550.90.07    CUDA Version: 12.4     |"
REJECTED = ("modprobe nvidia", "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service")


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    rows = [{"source": source, "text": text} for source, text in pieces]
    return diagnose(take_snapshot(pasted.parse_json_report(json.dumps(rows), "a report")))


def roots(*pieces: tuple[str, str]) -> list[str]:
    return [finding.cause for finding in diagnose_pieces(*pieces).roots]


def certain(*pieces: tuple[str, str]) -> list[str]:
    return [finding.cause for finding in diagnose_pieces(*pieces).roots if finding.confidence == "certain"]


BUILDS = {
    "pve headers": (
        (
            "apt install nvidia-kernel-dkms",
            (
                "Module build for kernel 6.8.12-4-pve was skipped since the\n"
                "kernel headers for this kernel do not seem to be installed."
            ),
        ),
        "kernel-headers-missing",
    ),
    "build folder absent": (
        (
            "ls /lib/modules/5.15.0-91-generic/build",
            "ls: cannot access '/lib/modules/5.15.0-91-generic/build': No such file or directory",
        ),
        "kernel-headers-missing",
    ),
    "akmods": (
        (
            "akmods --force",
            (
                "Could not find files needed to compile modules for 6.9.7-200.fc40.x86_64\n"
                "Are the development files for kernel 6.9.7-200.fc40.x86_64 or the appropriate "
                "kernel-devel package installed?"
            ),
        ),
        "kernel-headers-missing",
    ),
    "no archive has the headers": (
        ("apt-get install linux-headers-$(uname -r)", "E: Unable to locate package linux-headers-5.4.0-1029-gcp"),
        "kernel-headers-missing",
    ),
    "GPL-only": (
        ("make.log", "FATAL: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'rcu_read_unlock_strict'"),
        "dkms-build-kernel-api",
    ),
    "stdarg.h is gone": (
        (
            "make.log",
            (
                "/var/lib/dkms/nvidia/390.144/build/common/inc/nv-linux.h:17:10: fatal error: stdarg.h: "
                "No such file or directory"
            ),
        ),
        "dkms-build-kernel-api",
    ),
    "not for this kernel": (
        (
            "dkms install nvidia/535.54.03",
            (
                "Error! The /var/lib/dkms/nvidia/535.54.03/6.12.1/x86_64/dkms.conf for module "
                "nvidia includes a BUILD_EXCLUSIVE directive which does not match this kernel/arch/config."
            ),
        ),
        "dkms-build-kernel-api",
    ),
    "undefined symbol": (
        ("make.log", 'ERROR: modpost: "pfn_valid" [/var/lib/dkms/nvidia/550.54.14/build/nvidia.ko] undefined!'),
        "dkms-build-kernel-api",
    ),
    "clang kernel": (
        (
            "make.log",
            (
                "DKMS (dkms-3.2.1) make.log for nvidia/560.35.03 for kernel 6.12.1-2-cachyos (x86_64)\n"
                "gcc: error: unrecognized command-line option ‘-mretpoline-external-thunk’; did you mean x?"
            ),
        ),
        "dkms-build-compiler-mismatch",
    ),
    "versioned compiler absent": (
        (
            "make.log",
            "DKMS make.log for nvidia-550.54.14 for kernel 6.5.0-26-generic (x86_64)\n/bin/sh: 1: gcc-12: not found",
        ),
        "dkms-build-toolchain-missing",
    ),
    "make absent": (
        (
            "/var/log/nvidia-installer.log",
            (
                "ERROR: Unable to find the development tool `make` in your path; please make sure "
                "that you have the package 'make' installed."
            ),
        ),
        "dkms-build-toolchain-missing",
    ),
    "g++'s backend absent": (
        ("make.log", "gcc: fatal error: cannot execute ‘cc1plus’: execvp: No such file or directory"),
        "dkms-build-toolchain-missing",
    ),
    "libelf": (
        (
            "make.log",
            (
                'Makefile:1074: *** "Cannot generate ORC metadata for CONFIG_UNWINDER_ORC=y, please install '
                'libelf-dev, libelf-devel or elfutils-libelf-devel".  Stop.'
            ),
        ),
        "dkms-build-toolchain-missing",
    ),
    "added twice": (
        (
            "dkms add nvidia/460.32.03",
            (
                "Error! DKMS tree already contains: nvidia-460.32.03\n"
                "You cannot add the same module/version combo more than once."
            ),
        ),
        "dkms-tree-corrupt",
    ),
}


@pytest.mark.parametrize("name", BUILDS)
def test_build_failure_has_its_cause(name: str) -> None:
    piece, cause = BUILDS[name]
    beside = (
        ("dkms status", "nvidia/535.129.03: added"),
        ("uname -r", "5.15.0-91-generic"),
    )
    assert roots(piece, *(beside if "folder" in name else ())) == [cause]


def test_failed_build_without_its_log_is_a_suspect() -> None:
    found = diagnose_pieces(
        (
            "apt-get install nvidia-driver-510",
            (
                "Error! Bad return status for module build on kernel: 6.0.10 (x86_64)\n"
                "Consult /var/lib/dkms/nvidia/510.85.02/build/make.log for more information."
            ),
        )
    )
    assert not found.roots
    assert found.suspects[0].cause == "dkms-build-kernel-api"
    assert "/build/make.log" in found.suspects[0].look_at[0]


def test_list_of_possible_causes_proves_none() -> None:
    said = (
        "ERROR: Unable to load the kernel module 'nvidia.ko'.  This happens most frequently when this kernel module "
        "was built against the wrong or improperly configured kernel sources, with a version of gcc that differs from "
        "the one used to build the target kernel, or if another driver, such as nouveau, is present"
    )
    assert not diagnose_pieces(("nvidia-installer.log", said)).roots


def test_broken_dkms_tree_of_another_vendor_is_no_fault() -> None:
    table = (
        "Error! Could not locate dkms.conf file.\n"
        "File: /var/lib/dkms/system76/1.0.18~1743109511~24.04~8b1da53/source/dkms.conf does not exist.\n"
        "nvidia/570.172.08, 6.12.10-76061203-generic, x86_64: installed\n"
        "nvidia/570.172.08, 6.16.3-76061603-generic, x86_64: installed"
    )
    assert not diagnose_pieces(("sudo dkms status", table)).roots


def test_old_build_log_is_no_fault_while_the_driver_works() -> None:
    log = (
        "make.log",
        "DKMS make.log for nvidia-550.90.07 for kernel 6.8.0-45-generic (x86_64)\n/bin/sh: 1: cc: not found",
    )
    assert not diagnose_pieces(log, ("uname -r", "6.8.0-45-generic"), ("nvidia-smi", WORKS)).roots


def test_failed_build_for_the_next_kernel_is_a_warning() -> None:
    log = (
        "make.log",
        "DKMS make.log for nvidia-550.90.07 for kernel 6.11.0-9-generic (x86_64)\n/bin/sh: 1: cc: not found",
    )
    found = diagnose_pieces(log, ("uname -r", "6.8.0-45-generic"), ("nvidia-smi", WORKS)).roots
    assert [(finding.cause, finding.severity) for finding in found] == [("dkms-build-toolchain-missing", "warning")]


def test_kernel_lockdown_suggests_an_unsigned_module() -> None:
    found = diagnose_pieces(
        ("modprobe nvidia", "modprobe: ERROR: could not insert 'nvidia': Operation not permitted"),
        ("dmesg", "Lockdown: modprobe: unsigned module loading is restricted; see man kernel_lockdown.7"),
    )
    assert [(one.cause, one.confidence) for one in found.roots] == [("secure-boot-module-unsigned", "likely")]


@pytest.mark.parametrize(
    "pieces",
    [
        [("modprobe r8126", "modprobe: ERROR: could not insert 'r8126': Key was rejected by service")],
        [
            ("modprobe vboxdrv", "modprobe: ERROR: could not insert 'vboxdrv': Key was rejected by service"),
            ("dmesg", "Loading of module with unavailable key is rejected"),
        ],
        [
            ("dmesg", "nvidia: module verification failed: signature and/or required key missing - tainting kernel"),
            ("mokutil --sb-state", "SecureBoot disabled"),
        ],
        [("mokutil --sb-state", "SecureBoot enabled"), ("nvidia-smi", WORKS)],
    ],
)
def test_other_or_accepted_modules_are_no_secure_boot_fault(pieces: list[tuple[str, str]]) -> None:
    assert not [cause for cause in roots(*pieces) if cause.startswith("secure-boot")]


@pytest.mark.parametrize(
    "pieces",
    [
        [("lsmod | grep nouveau", "nouveau              2306048  4"), ("nvidia-smi", FAILED)],
        [
            (
                "lshw -C display",
                "  *-display\n       product: TU104 [GeForce RTX 2080]\n       configuration: driver=nouveau",
            )
        ],
        [
            ("modprobe nvidia", "modprobe: ERROR: could not insert 'nvidia': No such device"),
            ("lsmod | grep nouveau", "nouveau              2306048  4"),
            (
                "lspci | grep -i nvidia",
                "01:00.0 VGA compatible controller: NVIDIA Corporation GP104 [GeForce GTX 1080]",
            ),
        ],
        [("inxi -G", "Graphics: Device-1: NVIDIA GM204 [GeForce GTX 970] driver: nouveau v: kernel")],
    ],
)
def test_nouveau_is_found_without_lspci(pieces: list[tuple[str, str]]) -> None:
    assert roots(*pieces) == ["nouveau-bound"]


@pytest.mark.parametrize(
    "pieces",
    [
        [("nvidia-smi", WORKS), ("lsmod | grep nouveau", "nouveau              2306048  0")],
        [
            (
                "lspci -k",
                (
                    "01:00.0 VGA compatible controller: NVIDIA Corporation GP104 [GeForce GTX 1080]\n"
                    "\tKernel driver in use: nvidia\n\tKernel modules: nouveau, nvidia_drm, nvidia"
                ),
            ),
            ("lsmod | grep nouveau", "nouveau              2306048  0"),
        ],
        [("cat /etc/modprobe.d/blacklist-nouveau.conf", "blacklist nouveau\noptions nouveau modeset=0")],
    ],
)
def test_nouveau_without_a_gpu_is_no_fault(pieces: list[tuple[str, str]]) -> None:
    assert not [cause for cause in roots(*pieces) if "nouveau" in cause]


@pytest.mark.parametrize(
    ("pieces", "cause"),
    [
        (
            [("python", "RuntimeError: Found no NVIDIA driver on your system."), ("lsmod | grep nvidia", "")],
            "driver-module-not-loaded",
        ),
        (
            [("nerdctl run --gpus all", "nvml error: driver not loaded"), ("lsmod | grep -i nvidia", "")],
            "driver-module-not-loaded",
        ),
        ([("dmesg", "nvidia: disagrees about version of symbol module_layout")], "module-built-for-other-kernel"),
        (
            [
                ("dkms status", "nvidia, 470.57.02, 5.4.0-80-generic, x86_64: installed"),
                ("uname -r", "5.4.0-81-generic"),
            ],
            "module-built-for-other-kernel",
        ),
        (
            [
                (
                    "modprobe nvidia",
                    "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.8.0-45-generic",
                ),
                ("find /lib/modules -name 'nvidia.ko*'", "/lib/modules/6.8.0-45-generic/updates/dkms/nvidia.ko.zst"),
            ],
            "depmod-index-missing",
        ),
        (
            [
                (
                    "modinfo nvidia",
                    (
                        "filename:       /lib/modules/5.4.0-150-generic/kernel/drivers/video/nvidia.ko\n"
                        "version:        460.91.03"
                    ),
                ),
                ("uname -r", "5.4.0-150-generic"),
                ("dkms status", "nvidia/470.182.03, 5.4.0-150-generic, x86_64: installed"),
            ],
            "duplicate-module-files",
        ),
    ],
)
def test_module_fault_has_its_cause(pieces: list[tuple[str, str]], cause: str) -> None:
    assert roots(*pieces) == [cause]


def test_failing_nvidia_smi_alone_is_a_suspect() -> None:
    found = diagnose_pieces(("nvidia-smi", FAILED))
    assert not found.roots
    assert "driver-module-not-loaded" in [one.cause for one in found.suspects]


def test_module_for_an_older_kernel_beside_the_current_is_no_fault() -> None:
    table = (
        "nvidia/550.90.07, 6.8.0-44-generic, x86_64: installed\nnvidia/550.90.07, 6.8.0-45-generic, x86_64: installed"
    )
    assert not diagnose_pieces(("dkms status", table), ("uname -r", "6.8.0-45-generic"), ("nvidia-smi", WORKS)).roots


def test_duplicate_module_is_no_fault_while_the_driver_works() -> None:
    listing = (
        "/lib/modules/5.4.0-150-generic/kernel/drivers/video/nvidia.ko\n"
        "/lib/modules/5.4.0-150-generic/updates/dkms/nvidia.ko"
    )
    found = ("find /lib/modules -name nvidia.ko", listing)
    assert not diagnose_pieces(found, ("uname -r", "5.4.0-150-generic"), ("nvidia-smi", WORKS)).roots


@pytest.mark.parametrize(
    ("pieces", "cause"),
    [
        (
            [
                (
                    "docker run --gpus all",
                    ("nvidia-container-cli: mount error: stat failed: /dev/nvidia-uvm: no such file or directory"),
                )
            ],
            "nvidia-uvm-not-loaded",
        ),
        (
            [
                ("python", "CUDA error: unknown error"),
                (
                    "lsmod",
                    (
                        "Module                  Size  Used by\n"
                        "nvidia_drm             73728  0\nnvidia              40816640  1 nvidia_drm"
                    ),
                ),
            ],
            "nvidia-uvm-not-loaded",
        ),
        (
            [("ollama serve", "CUDA error 999: unknown error"), ("lsmod | grep nvidia_uvm", "nvidia_uvm  4710400  0")],
            "nvidia-uvm-wedged",
        ),
        (
            [
                ("nvidia-smi", "Failed to initialize NVML: Insufficient Permissions"),
                ("cat /proc/driver/nvidia/params", "ModifyDeviceFiles: 1\nDeviceFileGID: 44\nDeviceFileMode: 432"),
            ],
            "device-node-permissions",
        ),
        (
            [
                ("cat /etc/modprobe.d/nvidia.conf", "options nvidia NVreg_DeviceFileMode=660"),
                ("nvidia-smi -L", "Failed"),
            ],
            "device-node-permissions",
        ),
    ],
)
def test_device_file_fault_has_its_cause(pieces: list[tuple[str, str]], cause: str) -> None:
    assert roots(*pieces) == [cause]


def test_device_files_that_only_root_may_open_get_another_mode() -> None:
    """No group has a right there, so joining one would not help."""
    piece = ("cat /etc/modprobe.d/nvidia.conf", "options nvidia NVreg_DeviceFileMode=0600")
    (found,) = diagnose_pieces(("nvidia-smi", "Failed to initialize NVML: Insufficient Permissions"), piece).roots
    steps = str(found)
    assert found.cause == "device-node-permissions"
    assert "NVreg_DeviceFileMode=0666" in steps
    assert "usermod" not in steps


@pytest.mark.parametrize(
    "pieces",
    [
        [("lsmod | grep nvidia", "nvidia_drm  73728  0\nnvidia  40816640  1 nvidia_drm"), ("nvidia-smi", WORKS)],
        [("cat /etc/modprobe.d/nvidia.conf", "options nvidia NVreg_DeviceFileMode=0660 NVreg_DeviceFileGID=44")],
        [("cat /proc/driver/nvidia/params", "DeviceFileMode: 438")],
        [("ls -l /dev/nvidia0", "crw-rw---- 1 root video 195, 0 Jun 25 11:05 /dev/nvidia0"), ("nvidia-smi", WORKS)],
    ],
)
def test_acceptable_device_files_are_no_fault(pieces: list[tuple[str, str]]) -> None:
    assert not diagnose_pieces(*pieces).roots


def test_cuda_802_on_an_nvswitch_board_is_no_kernel_matter() -> None:
    said = ("python", "CUDA error 802: system not yet initialized")
    assert "cuda-init-802-kaslr-or-hmm" not in roots(
        said, ("nvidia-smi -L", "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)")
    )
    assert roots(said, ("nvidia-smi -L", "GPU 0: NVIDIA L40S (UUID: GPU-0)")) == ["cuda-init-802-kaslr-or-hmm"]


@pytest.mark.parametrize(
    ("gpu", "module", "cause"),
    [
        ("10de:1b80", "version: 595.58.03\nlicense: NVIDIA", "gpu-legacy-unsupported-by-branch"),
        ("10de:1b80", "version: 580.95.05\nlicense: Dual MIT/GPL", "open-module-on-pre-turing"),
        ("10de:2b85", "version: 550.144.03\nlicense: Dual MIT/GPL", "gpu-too-new-for-driver"),
        ("10de:2b85", "version: 580.95.05\nlicense: NVIDIA", "proprietary-module-on-blackwell"),
        ("10de:2342", "version: 570.133.20\nlicense: NVIDIA", "proprietary-module-on-blackwell"),
        ("10de:1b80", "version: 580.95.05\nlicense: NVIDIA", ""),
        ("10de:2684", "version: 580.95.05\nlicense: NVIDIA", ""),
        ("10de:2b85", "version: 580.95.05\nlicense: Dual MIT/GPL", ""),
        ("10de:1eb8", "version: 595.58.03\nlicense: Dual MIT/GPL", ""),
    ],
)
def test_unsupported_gpu_is_found_before_the_kernel_reports_it(gpu: str, module: str, cause: str) -> None:
    bus = f"01:00.0 VGA compatible controller [0300]: NVIDIA Corporation Device [{gpu}] (rev a1)"
    found = diagnose_pieces(("lspci -nn", bus), ("modinfo nvidia", module)).roots
    assert [finding.cause for finding in found] == ([cause] if cause else [])
    assert all(finding.confidence == "likely" for finding in found)


@pytest.mark.parametrize(
    ("gpu", "loaded", "package"),
    [
        ("10de:1b80", "Open Kernel Module for x86_64  580.95.05", "nvidia-kernel-dkms"),
        ("10de:2b85", "x86_64 Kernel Module  580.95.05", "nvidia-kernel-open-dkms"),
    ],
)
def test_right_modules_that_are_installed_already_wait_for_a_reboot(gpu: str, loaded: str, package: str) -> None:
    """A setup has replaced them, and a second setup would find nothing to do."""
    pieces = (
        ("lspci -nn", f"01:00.0 VGA compatible controller [0300]: NVIDIA Corporation Device [{gpu}] (rev a1)"),
        ("cat /proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX {loaded}  Release Build  (builder)"),
        ("nvidia-smi", "No devices were found"),
    )
    (before,) = diagnose_pieces(*pieces).roots
    assert len(before.remedy) > 1
    (after,) = diagnose_pieces(*pieces, ("dpkg -l", f"ii  {package}  580.95.05-1  amd64  NVIDIA")).roots
    assert [step.kind for step in after.remedy] == ["reboot"]


def test_working_gpu_overrides_the_support_table() -> None:
    bus = "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation Device [10de:2b85] (rev a1)"
    assert not diagnose_pieces(
        ("lspci -nn", bus), ("modinfo nvidia", "version: 550.90.07"), ("nvidia-smi", WORKS)
    ).roots


def test_installer_without_a_supported_gpu_is_explained_by_the_bus() -> None:
    said = "WARNING: You do not appear to have an NVIDIA GPU supported by the 410.48 NVIDIA Linux graphics driver"
    log = ("/var/log/nvidia-installer.log", said)
    assert not certain(log)
    newer = "65:00.0 3D controller [0302]: NVIDIA Corporation Device [10de:20b5] (rev a1)"
    assert roots(log, ("lspci -nn", newer)) == ["gpu-too-new-for-driver"]
    older = "65:00.0 3D controller [0302]: NVIDIA Corporation GF100GL [Tesla C2050] [10de:06d1] (rev a3)"
    assert roots(log, ("lspci -nn", older)) == ["gpu-legacy-unsupported-by-branch"]
