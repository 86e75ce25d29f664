"""Causes that look alike: one symptom, and for each of its causes the evidence that distinguishes it.

With the symptom alone, nothing is certain; with the deciding evidence, exactly that cause is.
"""

from __future__ import annotations

import pytest

from tests.scenarios.reports import Piece, diagnosis, faults

Rows = tuple[tuple[str, str], ...]

_NOT_STARTED = ("dmesg", "[   12.1] NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:894)")
_BLACKWELL = (
    "lspci -nn -d 10de:",
    "01:00.0 VGA compatible controller [0300]: NVIDIA Corporation GB202 [10de:2b85] (rev a1)",
)
_HOPPER = (
    "lspci -nn -d 10de:",
    "01:00.0 3D controller [0302]: NVIDIA Corporation GH100 [H100 PCIe] [10de:2331] (rev a1)",
)
_UNKNOWN = ("docker exec train nvidia-smi", "Failed to initialize NVML: Unknown Error")
_WORKS = ("nvidia-smi", "| NVIDIA-SMI 550.163.01   Driver Version: 550.163.01   CUDA Version: 12.4 |")
_NO_LIBRARY = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
_UNRESOLVABLE = ("podman run --rm --device nvidia.com/gpu=all ubuntu nvidia-smi",
                 "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all")  # fmt: skip
_802 = (
    "python train.py",
    "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
)
_SWITCHES = ("lspci -nn -d 10de:", "\n".join([
    "05:00.0 Bridge [0680]: NVIDIA Corporation GA100 [A100 NVSwitch] [10de:1af1] (rev a1)",
    "07:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)",
]))  # fmt: skip
_PENDING = ("kubectl describe pod train-0", "Status: Pending\nEvents:\n  Warning  FailedScheduling  12s  default-scheduler  "
            "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.")  # fmt: skip
_PEERMEM = ("modprobe nvidia-peermem", "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument")
_MISMATCH = ("nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.163")
_OLD_MODULE = (
    "cat /proc/driver/nvidia/version",
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.144.03  Mon Dec 30 2024",
)


def _node(capacity: str, allocatable: str, *more: str) -> tuple[str, str]:
    return "kubectl describe node gpu1", (
        f"Name: gpu1\nTaints: <none>\nCapacity:\n  cpu: 64\n{capacity}Allocatable:\n  cpu: 64\n{allocatable}"
        + "".join(more)
    )


# The symptom and its causes, each with the deciding evidence and, if one cause has two remedies, the step. The empty
# cause means another fault, which must not be claimed.
LOOK_ALIKES: dict[str, tuple[Rows, dict[str, Rows]]] = {
    "0x22:0x56": ((_NOT_STARTED,), {
        "bar-above-4g-disabled": (_HOPPER, ("lspci -vv -s 01:00.0", "01:00.0 3D controller: NVIDIA Corporation GH100\n"
            "\tRegion 0: Memory at fb000000 (64-bit, prefetchable) [size=16M]\n\tRegion 2: Memory at <unassigned> (64-bit, prefetchable)\n"
            "\tKernel driver in use: nvidia"),),
        "proprietary-module-on-blackwell": (_BLACKWELL, ("modinfo nvidia", "filename: /lib/modules/6.8.0-88-generic/updates/dkms/nvidia.ko\n"
            "version: 580.95.05\nlicense: NVIDIA")),
        "gpu-stuck-d3cold": (_HOPPER, ("journalctl -k", "[   11.9] nvidia 0000:01:00.0: Unable to change power state from D3cold to D0, "
            "device inaccessible"),),
    }),
    "Unknown Error": ((_UNKNOWN,), {
        "cgroup-daemon-reload-loses-gpu": (_WORKS, ("journalctl _PID=1", "Nov 16 06:25:01 gpu1 systemd[1]: Reloading.")),
        "gpu-fallen-off-bus": (("dmesg", "[ 9000.1] NVRM: Xid (PCI:0000:01:00): 79, pid=1204, name=python, GPU has fallen off the bus."),),
        "vgpu-unlicensed": (("systemd-detect-virt", "kvm"), ("nvidia-smi -q", "GPU 00000000:02:00.0\n    Product Name : NVIDIA A40-8Q\n"
            "    vGPU Software Licensed Product\n        License Status : Unlicensed (Restricted)")),
    }),
    "libnvidia-ml.so.1 not found": ((), {
        "driver-not-installed": (("docker run --gpus all x", f"nvidia-container-cli: initialization error: load library failed: {_NO_LIBRARY}"),
            ("which nvidia-smi", ""), ("lsmod | grep nvidia", ""), ("dpkg -l '*nvidia-driver*'", "dpkg-query: no packages found matching *nvidia-driver*")),
        "nvidia-runtime-not-default-no-runtimeclass": (_WORKS, ("kubectl logs nvidia-device-plugin-daemonset-x -n kube-system",
            f"Failed to initialize NVML: could not load NVML library.\n{_NO_LIBRARY}\nIf this is a GPU node, did you configure the NVIDIA Container Toolkit?"),
            ("containerd config dump", 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\n  default_runtime_name = "runc"\n'
             '[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n  BinaryName = "/usr/bin/nvidia-container-runtime"')),
        "docker-from-snap-or-desktop-vm": (_WORKS, ("docker run --gpus all x", f"nvidia-container-cli: initialization error: load library failed: {_NO_LIBRARY}"),
            ("docker info", " Context: desktop-linux\n Operating System: Docker Desktop\n Kernel Version: 6.10.14-linuxkit")),
    }),
    "unresolvable CDI devices": ((_UNRESOLVABLE,), {
        "cdi-spec-missing": (_WORKS, ("nvidia-ctk cdi list", 'INFO[0000] Found 0 CDI devices'), ("ls /etc/cdi /var/run/cdi", "")),
        "driver-module-not-loaded": (("lsmod | grep nvidia", ""), ("nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
            ("modinfo nvidia", "filename: /lib/modules/6.8.0-88-generic/updates/dkms/nvidia.ko\nversion: 580.95.05\nvermagic: 6.8.0-88-generic SMP"),
            ("uname -r", "6.8.0-88-generic")),
        "cdi-spec-dir-not-read": (_WORKS, ("ls -l /etc/cdi /var/run/cdi", "ls: cannot access '/etc/cdi': No such file or directory\n/var/run/cdi:\n"
            "total 12\n-rw-r--r-- 1 root root 11520 Nov 16 06:12 nvidia.json"), ("podman version", "Client:       Podman Engine\nVersion:      5.5.1")),
        "cdi-spec-version-unsupported": (_WORKS, ("podman version", "Version: 4.2.0"), ("cat /etc/cdi/nvidia.yaml",
            "cdiVersion: 0.7.0\nkind: nvidia.com/gpu\ndevices:\n  - name: all\n    containerEdits:\n      deviceNodes:\n"
            "        - path: /dev/nvidia0\n          hostPath: /dev/nvidia0"),),
    }),
    "802": ((_802,), {
        "fabric-manager-not-installed": (_SWITCHES, ("systemctl status nvidia-fabricmanager", "Unit nvidia-fabricmanager.service could not be found.")),
        "fabric-manager-version-mismatch": (_SWITCHES, ("journalctl -u nvidia-fabricmanager", "fabric manager NVIDIA GPU driver interface version "
            "550.144.03 don't match with driver version 550.163.01. Please update with matching NVIDIA driver package."),),
        "cuda-init-802-kaslr-or-hmm": (_HOPPER, _WORKS, ("uname -r", "6.2.0-26-generic"), ("lsmod | grep nvidia_uvm", "nvidia_uvm 1527808 0"),
            ("cat /proc/cmdline", "BOOT_IMAGE=/boot/vmlinuz-6.2.0-26-generic root=/dev/sda1 ro")),
    }),
    "Insufficient nvidia.com/gpu": ((_PENDING,), {
        "pod-missing-gpu-toleration": (("kubectl get node gpu1 -o yaml", "spec:\n  taints:\n  - effect: NoSchedule\n    key: nvidia.com/gpu\n    value: present\n"
            'status:\n  allocatable:\n    nvidia.com/gpu: "4"\n  capacity:\n    nvidia.com/gpu: "4"'),
            ("kubectl get events", "Warning FailedScheduling pod/train-0 0/1 nodes are available: 1 node(s) had untolerated taint {nvidia.com/gpu: present}.")),
        "device-plugin-marked-unhealthy": (_node("  nvidia.com/gpu: 4\n", "  nvidia.com/gpu: 3\n"), ("kubectl logs -n kube-system nvidia-device-plugin-x",
            "'nvidia.com/gpu' device marked unhealthy: GPU-aaaa")),
        "gpus-all-allocated": (_node("  nvidia.com/gpu: 4\n", "  nvidia.com/gpu: 4\n", "Allocated resources:\n  Resource  Requests  Limits\n"
            "  nvidia.com/gpu  4  4\n"),),
        "nvidia-runtime-not-default-no-runtimeclass": (_node("", ""), ("kubectl logs nvidia-device-plugin-daemonset-x -n kube-system",
            "Incompatible strategy detected auto\nIf this is a GPU node, did you configure the NVIDIA Container Toolkit?\n"
            f"No devices found. Waiting indefinitely.\n{_NO_LIBRARY}"), ("containerd config dump", 'version = 2\n[plugins."io.containerd.grpc.v1.cri".containerd]\n'
            '  default_runtime_name = "runc"\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]\n  BinaryName = "/usr/bin/nvidia-container-runtime"'),
            _WORKS),
    }),
    "NO_PUBKEY": ((), {
        "apt-nvidia-key-rotated": (("apt update", "W: GPG error: https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64 InRelease: "
            "The following signatures couldn't be verified because the public key is not available: NO_PUBKEY A4B469963BF863CC"),),
        "apt-toolkit-key-missing": (("apt update", "W: GPG error: https://nvidia.github.io/libnvidia-container/stable/deb/amd64 InRelease: "
            "The following signatures couldn't be verified because the public key is not available: NO_PUBKEY DDCAE044F796ECB0"),),
        "": (("apt update", "W: GPG error: https://download.docker.com/linux/ubuntu jammy InRelease: "
            "The following signatures couldn't be verified because the public key is not available: NO_PUBKEY 7EA0A9C3F273FCD8"),),
    }),
    "peermem: Invalid argument": ((_PEERMEM,), {
        "peermem-load-failed: install the driver's modules again": (("dmesg", "nvidia_peermem: disagrees about version of symbol ib_register_peer_memory_client\n"
            "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err -22)"),),
        "peermem-load-failed: install MLNX_OFED": (("dmesg", "nvidia_peermem: Unknown symbol ib_register_peer_memory_client (err 0)"), ("ofed_info -s", "ofed_info: command not found")),
    }),
    "version mismatch": ((_MISMATCH,), {
        "driver-library-mismatch-reboot-pending": (_OLD_MODULE, ("modinfo -F version nvidia", "550.163.01")),
        "driver-library-mismatch-unattended-upgrade": (_OLD_MODULE, ("/var/log/apt/history.log", "Start-Date: 2026-11-15  06:21:11\nCommandline: /usr/bin/unattended-upgrade\n"
            "Upgrade: libnvidia-compute-550:amd64 (550.144.03-0ubuntu1, 550.163.01-0ubuntu1), nvidia-dkms-550:amd64 (550.144.03-0ubuntu1, 550.163.01-0ubuntu1)\n"
            "End-Date: 2026-11-15  06:24:00"), ("modinfo -F version nvidia", "550.163.01")),
        "driver-library-mismatch-partial-upgrade": (_OLD_MODULE, ("modinfo -F version nvidia", "550.144.03"),
            ("dpkg -l | grep nvidia", "ii  libnvidia-compute-550  550.163.01-0ubuntu1  amd64  x\nhi  nvidia-dkms-550  550.144.03-0ubuntu1  amd64  x")),
        "driver-library-mismatch-mixed-installs": (("dpkg -l | grep nvidia", "ii  libnvidia-compute-550:amd64  550.163.01-0ubuntu1  amd64  x\n"
            "ii  nvidia-dkms-535  535.261.03-0ubuntu1  amd64  x\nii  nvidia-driver-535  535.261.03-0ubuntu1  amd64  x"),),
        "initramfs-stale-module": (_OLD_MODULE, ("modinfo -F version nvidia", "550.163.01"), ("uptime", "up 2 min"),
            ("lsinitramfs /boot/initrd.img-6.8.0-88-generic | grep nvidia.ko", "usr/lib/modules/6.8.0-88-generic/updates/dkms/nvidia.ko"),
            ("last reboot", "reboot   system boot  6.8.0-88-generic  Mon Nov 16 06:12   still running")),
    }),
    "version mismatch in a container": ((("docker exec web nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 560.35"),), {
        "container-driver-mismatch": (_WORKS,),
    }),
    "a driver that refuses its GPU": ((("dmesg", "NVRM: The NVIDIA GPU 0000:05:00.0 (PCI ID: 10de:26b9)\nNVRM: installed in this system is not supported by the\n"
            "NVRM: NVIDIA 570.86.15 driver release.\nNVRM: The NVIDIA probe routine failed for 1 device(s)."),), {
        "gpu-too-new-for-driver: install a driver for this vGPU": (("lspci -nnv -s 05:00.0", "05:00.0 VGA compatible controller [0300]: NVIDIA Corporation AD102GL [L40S] [10de:26b9] (rev a1)\n"
            "\tSubsystem: NVIDIA Corporation Device [10de:1890]\n\tPhysical Slot: 0-5\n\tKernel modules: nvidia_drm, nvidia"),),
        "": (("lspci -nn -s 05:00.0", "05:00.0 VGA compatible controller [0300]: NVIDIA Corporation AD102GL [L40S] [10de:26b9] (rev a1)"),),
    }),
    "a GPU that nvidia-smi does not show": ((("nvidia-smi -L", "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-2f7c0b7e-9a1d-3d55-8c0e-6b4f1a2d9e07)"),), {
        "gpu-missing-from-inventory": (("lspci -v -d 10de:", "09:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n\tPhysical Slot: 0-8\n"
            "0a:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n\tPhysical Slot: 0-9"),),
        "bar-above-4g-disabled": (("lspci -v -d 10de:", "09:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n\tPhysical Slot: 0-8\n"
            "0a:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)\n\tPhysical Slot: 0-9\n\tMemory at <ignored> (64-bit, prefetchable) [disabled]"),),
    }),
    "HAMi ends a program": ((), {
        "hami-memory-limit": (("kubectl logs train", "[HAMI-core ERROR (pid:1 thread=140160828682240 allocator.c:53)]: Device 0 OOM 3189768192 / 3145728000"),),
        "": (("kubectl logs train", "[HAMI-core ERROR (pid:1 thread=140160828682240 allocator.c:53)]: Device 0 OOM 18446744073707737660 / 24146608128\n"
            'Error: DriverError(CUDA_ERROR_UNKNOWN, "<Failure when calling cuGetErrorString()>")'), _WORKS),
    }),
    "a plugin without NVML": ((("kubectl logs nvidia-device-plugin-daemonset-8cxvz", "Loading NVML\nFailed to initialize NVML: could not load NVML library.\n"
            "If this is a GPU node, did you set the docker default runtime to `nvidia`?"),), {
        "": (("kubectl logs nvidia-device-plugin-daemonset-m2l6p", "Starting to serve on /var/lib/kubelet/device-plugins/nvidia.sock\nRegistered device plugin with Kubelet"),),
    }),
    "vfio-pci owns the GPU": ((("lspci -nnk -s 3b:00", "3b:00.0 VGA compatible controller [0300]: NVIDIA Corporation GP102 [GeForce GTX 1080 Ti] [10de:1b06] (rev a1)\n"
            "\tKernel driver in use: vfio-pci\n\tKernel modules: nouveau"),), {
        "vfio-bound": (("nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),),
        "": (("kubectl get kubevirt -o yaml", "    permittedHostDevices:\n      pciHostDevices:\n      - pciVendorSelector: 10de:10ef"),),
    }),
    "a sharing configuration without effect": ((("values.yaml", "config:\n  map:\n    default: |-\n      version: v1\n      sharing:\n        timeSlicing:\n          resources:\n"
            "          - name: nvidia.com/gpu\n            replicas: 4"),), {
        "": (("helm upgrade -i nvdp nvdp/nvidia-device-plugin", 'Error: parse error at (nvidia-device-plugin/templates/daemonset-device-plugin.yml:52): undefined variable "$hasServiceAccount"'),
             ("kubectl get nodes -o yaml | grep nvidia.com/gpu", '    nvidia.com/gpu: "1"')),
    }),
    "a person's words with one line": ((), {
        "toolkit-not-installed": (("post", 'I put CUDA 12.2 on my desktop, nvidia-smi shows my card.\n\ndocker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n'),),
        "": (("post", 'Today I ran apt-get install -y nvidia-container-toolkit.\n\ndocker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].\n'),),
        "nvidia-runtime-not-registered": (("post", "My compose file (it has runtime: nvidia) says unknown runtime, and docker info has\n\n Runtimes: io.containerd.runc.v2 runc\n Default Runtime: runc\n"),),
        "no-gpu-present": (("post", "nvidia-modprobe IS installed. I tried the module by hand:\n\nmodprobe: ERROR: could not insert 'nvidia_375': No such device\n"),),
        "driver-library-mismatch-reboot-pending": (("post", "The driver role installed new packages. A few tasks later one step dies:\n\nFailed to initialize NVML: Driver/library version mismatch\n"),),
        "framework-cpu-only": (("python dalle.py", "WARNING:absl:No GPU/TPU found, falling back to CPU. (Set TF_CPP_MIN_LOG_LEVEL=0 and rerun for more info.)"),),
    }),
}  # fmt: skip
CASES = [
    pytest.param(symptom, cause, decides, id=f"{name}-{cause or 'another'}")
    for name, (symptom, causes) in LOOK_ALIKES.items()
    for cause, decides in causes.items()
]


def _pieces(rows: Rows) -> list[Piece]:
    return [{"source": source, "text": text} for source, text in rows]


@pytest.mark.parametrize(("symptom", "cause", "decides"), CASES)
def test_deciding_evidence_gives_the_cause(symptom: Rows, cause: str, decides: Rows) -> None:
    found = diagnosis(_pieces((*symptom, *decides)))
    cause, _, to_do = cause.partition(": ")
    shown = [one.cause for one in found.roots if one.severity != "info" or one.cause == cause]
    assert shown == ([cause] if cause else []), (faults(found), found.open_questions)
    if to_do:
        assert found.findings[0].remedy[0].text.startswith(to_do)


@pytest.mark.parametrize("name", [name for name, (symptom, _) in LOOK_ALIKES.items() if symptom])
def test_symptom_alone_gives_nothing_certain(name: str) -> None:
    found = diagnosis(_pieces(LOOK_ALIKES[name][0]))
    assert [one.cause for one in found.findings if one.confidence == "certain"] == []
