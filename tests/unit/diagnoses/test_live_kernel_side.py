"""The same causes in the probes of a live node, without a user's words."""

from __future__ import annotations

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts.evidence import Capture, Evidence, GlobMatch, encode_matches
from gpunode.facts.examination import DOCTOR_PROBES
from gpunode.facts.probes import PROBES

RUNNING = "6.1.0-37-amd64"
SOURCES = {probe.key: probe.source for probe in (*PROBES, *DOCTOR_PROBES)}
DRIVER = """Package: nvidia-kernel-open-dkms
Status: install ok installed
Architecture: amd64
Version: 580.95.05-1

Package: linux-image-amd64
Status: install ok installed
Architecture: amd64
Version: 6.1.140-1

"""
BUS = """Slot:\t0000:01:00.0
Class:\t3D controller [0302]
Vendor:\tNVIDIA Corporation [10de]
Device:\tAD102GL [L40S] [26b9]
"""


def glob(*paths: str) -> bytes:
    return encode_matches(iter([GlobMatch(path) for path in paths]))


def symlink_of(path: str, target: str) -> bytes:
    return encode_matches(iter([GlobMatch(path, target)]))


def node(**changes: bytes | str | None) -> Evidence:
    """Return a node with a DKMS driver that lacks only a loaded module; None means absent."""
    tree = f"/var/lib/dkms/nvidia/580.95.05/{RUNNING}/x86_64"
    data: dict[str, bytes | str | None] = {
        "kernel-release": f"{RUNNING}\n",
        "boot-id": "5d3c5c1e-8a3c-4a0e-9f6b-0a2d8a6f5b11\n",
        "boot-images": glob(f"/boot/vmlinuz-{RUNNING}"),
        "kernel-builds": symlink_of(f"/lib/modules/{RUNNING}/build", f"/usr/src/linux-headers-{RUNNING}"),
        "kernel-sources": glob(f"/usr/src/linux-headers-{RUNNING}", "/usr/src/nvidia-580.95.05"),
        "modules-dkms": glob(f"/lib/modules/{RUNNING}/updates/dkms/nvidia.ko"),
        "modules-prebuilt": b"",
        "modules-video": b"",
        "modules-updates": b"",
        "modules-extra": b"",
        "module-trees": glob(f"/lib/modules/{RUNNING}"),
        "module-indexes": glob(f"/lib/modules/{RUNNING}/modules.dep", f"/lib/modules/{RUNNING}/modules.dep.bin"),
        "dkms-installed": symlink_of(f"/var/lib/dkms/nvidia/kernel-{RUNNING}-x86_64", f"580.95.05/{RUNNING}/x86_64"),
        "dkms-tree": glob("/var/lib/dkms/nvidia/580.95.05", tree.rpartition("/")[0]),
        "dkms-sources": symlink_of("/var/lib/dkms/nvidia/580.95.05/source", "/usr/src/nvidia-580.95.05"),
        "dkms-status": f"nvidia/580.95.05, {RUNNING}, x86_64: installed\n",
        "dpkg-status": DRIVER,
        "lspci": BUS,
        "modules": "ext4 1024000 2 - Live 0x0000000000000000\n",
        "nvidia-version": None,
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }
    return {key: capture(key, value) for key, value in data.items()}


def capture(key: str, value: bytes | str | None) -> Capture:
    if value is None:
        return Capture(SOURCES[key], "absent", error="No such file or directory")
    return Capture(SOURCES[key], "ok", value.encode() if isinstance(value, str) else value)


def roots(evidence: Evidence) -> list[str]:
    return [finding.cause for finding in diagnose(take_snapshot(evidence)).roots]


NOT_BUILT: dict[str, bytes | str | None] = {
    "modules_dkms": b"",
    "dkms_installed": b"",
    "dkms_status": "nvidia/580.95.05: added\n",
}


def test_built_but_unloaded_module_is_found() -> None:
    assert roots(node()) == ["driver-module-not-loaded"]


def test_loaded_module_is_no_fault() -> None:
    version = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (root@host)\n"
    loaded = "nvidia 14000000 0 - Live 0x0000000000000000\n"
    nodes = glob("/dev/nvidia0", "/dev/nvidiactl")
    assert roots(node(modules=loaded, nvidia_version=version, dev_nvidia=nodes)) == []


def test_missing_headers_are_found() -> None:
    found = roots(node(**NOT_BUILT, kernel_builds=b"", kernel_sources=glob("/usr/src/nvidia-580.95.05")))
    assert found == ["kernel-headers-missing"]


def test_dangling_link_to_headers_is_found() -> None:
    assert roots(node(**NOT_BUILT, kernel_sources=glob("/usr/src/nvidia-580.95.05"))) == ["kernel-headers-missing"]


def test_dkms_entry_without_source_is_found() -> None:
    sources = glob(f"/usr/src/linux-headers-{RUNNING}")
    assert roots(node(**NOT_BUILT, kernel_sources=sources)) == ["dkms-tree-corrupt"]


def test_missing_module_index_is_found() -> None:
    assert roots(node(module_indexes=glob(f"/lib/modules/{RUNNING}/modules.order"))) == ["depmod-index-missing"]


def test_module_for_the_previous_kernel_is_found() -> None:
    before = "6.1.0-35-amd64"
    found = roots(
        node(
            modules_dkms=glob(f"/lib/modules/{before}/updates/dkms/nvidia.ko"),
            dkms_installed=symlink_of(f"/var/lib/dkms/nvidia/kernel-{before}-x86_64", f"580.95.05/{before}/x86_64"),
            dkms_status=f"nvidia/580.95.05, {before}, x86_64: installed\n",
        )
    )
    assert found == ["module-built-for-other-kernel"]


def test_unsigned_module_under_secure_boot_is_found() -> None:
    evidence = dict(node())
    evidence["secure-boot"] = capture("secure-boot", "SecureBoot enabled\n")
    info = f"filename: /lib/modules/{RUNNING}/updates/dkms/nvidia.ko\nversion: 580.95.05\nvermagic: {RUNNING} SMP\n"
    evidence["modinfo:nvidia"] = capture("modinfo:nvidia", info)
    assert roots(evidence) == ["secure-boot-module-unsigned"]
