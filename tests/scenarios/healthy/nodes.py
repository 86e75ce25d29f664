"""Healthy nodes, although some of their evidence looks suspicious."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from tests.scenarios.healthy import boards, containers, machines
from tests.scenarios.healthy.boards import Board
from tests.scenarios.healthy.captures import Node, failed, held, journal, listed
from tests.scenarios.healthy.machines import System, dpkg_status, machine, units

_ONE: Final = "0000:31:00.0"


def _l40s(count: int = 1) -> list[Board]:
    places = ("31", "4b", "65", "ca", "17", "98", "b1", "e3")
    return [Board(f"0000:{at}:00.0", port=f"0000:{int(at, 16) - 1:02x}:01.0") for at in sorted(places[:count])]


def _with_docker(system: System, gpus: list[Board], *log: str) -> Node:
    return {**machine(system, gpus, log), **containers.toolkit(system, gpus), **containers.docker()}


def debian_12_docker() -> Node:
    return _with_docker(machines.debian_12(), _l40s())


def debian_12_own_driver() -> Node:
    return _with_docker(machines.debian_12_own(), [boards.gtx_1080(_ONE)])


def debian_13_podman_cdi() -> Node:
    system, gpus = machines.debian_13(), _l40s(2)
    return {
        **machine(system, gpus), **containers.toolkit(system, gpus), **containers.podman(),
        **containers.cdi(system, gpus, "/etc/cdi"),
    }  # fmt: skip


def debian_13_cdi_refresh() -> Node:
    system, gpus = machines.debian_13(), _l40s(2)
    return {
        **machine(system, gpus), **containers.toolkit(system, gpus), **containers.docker(), **containers.cdi(system, gpus),
        "units": units("nvidia-persistenced.service", "docker.service", "containerd.service", "nvidia-cdi-refresh.path"),
        "log:nvidia-cdi-refresh": journal(("nvidia-ctk[951]: time=\"2026-11-16T06:12:42Z\" level=info msg=\"Generated CDI spec with version 0.5.0\"",)),
    }  # fmt: skip


def debian_13_containerd() -> Node:
    system, gpus = machines.debian_13(), _l40s()
    return {**machine(system, gpus), **containers.toolkit(system, gpus), **containers.containerd(version=3)}


def ubuntu_22_docker_prebuilt_modules() -> Node:
    return _with_docker(machines.ubuntu_22(), [boards.a100(_ONE)])


def ubuntu_22_secure_boot_by_canonical() -> Node:
    lockdown = (
        "secureboot: Secure boot enabled",
        "Kernel is locked down from EFI Secure Boot mode; see man kernel_lockdown.7",
    )
    return {
        **_with_docker(machines.ubuntu_22(), _l40s(), *lockdown),
        "secure-boot": "SecureBoot enabled\n",
        "file:/sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
    }


def ubuntu_24_containerd() -> Node:
    system, gpus = machines.ubuntu_24(), _l40s(4)
    return {**machine(system, gpus), **containers.toolkit(system, gpus), **containers.containerd()}


def ubuntu_24_secure_boot_with_enrolled_key() -> Node:
    signed = "signer:         gpu-node-17 Secure Boot Module Signature key\nsig_key:        1C:5D:7A:9B:33:21:0F\nsig_hashalgo:   sha512\n"
    base = _with_docker(machines.ubuntu_24(), _l40s(), "secureboot: Secure boot enabled",
                        "integrity: Loaded X.509 cert 'gpu-node-17 Secure Boot Module Signature key: 7f3b'")  # fmt: skip
    info = base["modinfo:nvidia"]
    assert isinstance(info, str)
    return {
        **base,
        "secure-boot": "SecureBoot enabled\n",
        "file:/sys/kernel/security/lockdown": "none [integrity] confidentiality\n",
        "modinfo:nvidia": info + signed,
        "enrolled-keys": "[key 1]\nSHA1 Fingerprint: 76:a0:92:06:58:00:bf:37:69:01\nCertificate:\n        Subject: CN=Canonical Ltd. Master\n\n"
        "[key 2]\nSHA1 Fingerprint: 1c:5d:7a:9b:33:21:0f\nCertificate:\n        Issuer: CN=gpu-node-17 Secure Boot Module Signature key\n"
        "        Subject: CN=gpu-node-17 Secure Boot Module Signature key\n",
    }  # fmt: skip


def rocky_9_podman() -> Node:
    system, gpus = machines.rocky_9(), _l40s()
    return {
        **machine(system, gpus), **containers.toolkit(system, gpus), **containers.podman(),
        **containers.cdi(system, gpus, "/etc/cdi"),
    }  # fmt: skip


def rocky_9_docker() -> Node:
    return _with_docker(machines.rocky_9(), _l40s(2))


def rhel_9_crio() -> Node:
    system, gpus = machines.rhel_9(), _l40s()
    return {**machine(system, gpus), **containers.toolkit(system, gpus), **containers.crio()}


def k3s() -> Node:
    system, gpus = machines.ubuntu_24(), _l40s()
    return {**machine(system, gpus), **containers.toolkit(system, gpus), **containers.k3s(system)}


def kubeadm_with_device_plugin() -> Node:
    system, gpus = machines.ubuntu_24(), _l40s(4)
    return {**machine(system, gpus), **containers.toolkit(system, gpus), **containers.kubeadm(4, free=2)}


def kubeadm_fully_allocated() -> Node:
    system, gpus = machines.debian_12(), _l40s(4)
    return {**machine(system, gpus), **containers.toolkit(system, gpus), **containers.kubeadm(4, free=0)}


def kubeadm_with_mig() -> Node:
    with_docker = {
        "docker-info",
        "docker-version",
        "docker-unit",
        "docker-binaries",
        "log:docker",
        "file:/etc/docker/daemon.json",
    }
    kept = {key: said for key, said in mig_in_use().items() if key not in with_docker}
    return {**kept, **containers.kubeadm(2, free=1, resource="nvidia.com/mig-3g.40gb")}


def mig_in_use() -> Node:
    system = machines.debian_12()
    devices = "\n".join(
        f"    MIG Device\n        Index                                          : {at}\n        GPU Instance ID                                : {at + 1}\n"
        "        Compute Instance ID                            : 0" for at in range(2)
    )  # fmt: skip
    gpus = [replace(boards.a100(_ONE, "Enabled"), extra=devices)]
    caps = "DeviceFileMinor: {}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
    place = "/proc/driver/nvidia/capabilities/gpu0/mig"
    return {
        **machine(system, gpus), **containers.toolkit(system, gpus), **containers.docker(),
        "smi-mig": containers.mig_instances(),
        "nvidia-gpu-instances": held({f"{place}/gi{at}/access": caps.format(9 * at + 3) for at in (1, 2)}),
        "nvidia-compute-instances": held({f"{place}/gi{at}/ci0/access": caps.format(9 * at + 4) for at in (1, 2)}),
        "dev-nvidia-caps": listed(*(f"/dev/nvidia-caps/nvidia-cap{at}" for at in (1, 2, 12, 13, 21, 22))),
        "device-capabilities": "total 0\n" + "".join(
            f"cr--r--r-- 1 root root 238, {at} Nov 16 06:12 nvidia-cap{at}\n" for at in (1, 2, 12, 13, 21, 22)),
    }  # fmt: skip


def vgpu_guest_licensed() -> Node:
    system = replace(machines.ubuntu_22(), driver="550.163.01", cuda="12.4", is_open=False, dkms="nvidia",
                     module=("updates/dkms", "nvidia.ko"), packages={
        **{name: version for name, version in machines.ubuntu_22().packages.items() if "nvidia" not in name},
        "nvidia-linux-grid-550": "550.163.01", "dkms": "2.8.7-2ubuntu2.2"})  # fmt: skip
    gpus = [boards.vgpu("0000:02:00.0")]
    return {
        **machine(system, gpus, virt="vmware"), **containers.toolkit(system, gpus), **containers.docker(),
        "units": units("nvidia-persistenced.service", "docker.service", "containerd.service", "nvidia-gridd.service"),
        "file:/etc/nvidia/gridd.conf": "# FeatureType: 4 => NVIDIA Virtual Compute Server\nFeatureType=4\n",
        "log:nvidia-gridd": journal((
            "nvidia-gridd[702]: Started (702)",
            "nvidia-gridd[702]: vGPU Software package (0)",
            "nvidia-gridd[702]: Ignore service provider and node-locked licensing",
            "nvidia-gridd[702]: NLS initialized",
            "nvidia-gridd[702]: Acquiring license. (Info: api.cls.licensing.nvidia.com; NVIDIA Virtual Compute Server)",
            "nvidia-gridd[702]: License acquired successfully. (Info: api.cls.licensing.nvidia.com, NVIDIA Virtual Compute Server; "
            "Expiry: 2026-12-1 9:18:24 GMT)",
        )),
    }  # fmt: skip


def hgx_with_fabric_manager() -> Node:
    system = machines.ubuntu_22()
    version = "535.274.02"
    system = replace(system, packages={**system.packages, "nvidia-fabricmanager-535": f"{version}-0ubuntu0.22.04.1"})
    gpus = [boards.h100_sxm(f"0000:{at}:00.0") for at in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")]
    gpus = [replace(gpu, port=f"0000:{int(gpu.bus[5:7], 16) - 1:02x}:01.0") for gpu in gpus]
    switches = [f"0000:0{at}:00.0" for at in range(5, 9)]
    records = "\n".join(
        f"Slot:\t{at}\nClass:\tBridge [0680]\nVendor:\tNVIDIA Corporation [10de]\nDevice:\tGH100 [H100 NVSwitch] [22a3]\n"
        "SVendor:\tNVIDIA Corporation [10de]\nSDevice:\tDevice [1796]\nRev:\ta1\nDriver:\tnvidia-nvswitch\nModule:\tnouveau\n"
        "Module:\tnvidia_drm\nModule:\tnvidia\n" for at in switches
    )  # fmt: skip
    shown = "\n".join(
        f"{at} Bridge [0680]: NVIDIA Corporation GH100 [H100 NVSwitch] [10de:22a3] (rev a1)\n"
        "\tRegion 0: Memory at 90000000 (64-bit, non-prefetchable) [size=32M]\n\t\tLnkCap:\tPort #0, Speed 16GT/s, Width x2, ASPM not supported\n"
        "\t\tLnkSta:\tSpeed 16GT/s, Width x2\n\tKernel driver in use: nvidia-nvswitch\n" for at in switches
    )  # fmt: skip
    links = "".join(
        f"GPU {at}: NVIDIA H100 80GB HBM3 (UUID: {gpu.uuid})\n"
        + "".join(f"\t Link {link}: 26.562 GB/s\n" for link in range(18))
        for at, gpu in enumerate(gpus)
    )
    log = [f"nvidia-nvswitch{at}: open (major=235)" for at in range(4)]
    return {
        **_with_docker(system, gpus, *log),
        "lspci": boards.numeric(gpus, records),
        "lspci-verbose": boards.verbose(gpus, shown),
        "smi-nvlink": links,
        "units": units("nvidia-persistenced.service", "docker.service", "containerd.service", "nvidia-fabricmanager.service"),
        "log:nvidia-fabricmanager": journal((
            "systemd[1]: Starting nvidia-fabricmanager.service - NVIDIA fabric manager service...",
            "nv-fabricmanager[1103]: Connected to 1 node.",
            "nv-fabricmanager[1103]: Successfully configured all the available NVSwitches to route GPU NVLink traffic. "
            "NVLink Peer-to-Peer support will be enabled once the GPUs are successfully registered with the NVLink fabric.",
            "systemd[1]: Started nvidia-fabricmanager.service - NVIDIA fabric manager service.",
        )),
        "dev-nvidia": listed(*(f"/dev/nvidia{at}" for at in range(8)), "/dev/nvidia-caps", "/dev/nvidia-modeset", "/dev/nvidia-nvswitchctl",
                             *(f"/dev/nvidia-nvswitch{at}" for at in range(4)), "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"),
    }  # fmt: skip


def eight_pcie_boards_without_fabric_manager() -> Node:
    return _with_docker(machines.ubuntu_24(), _l40s(8))


def gh200() -> Node:
    base = machines.ubuntu_22()
    system = replace(
        base, kernel="6.8.0-1041-nvidia-64k", driver="580.95.05", cuda="13.0", is_open=True, arch="arm64",
        libraries="/usr/lib/aarch64-linux-gnu", module=("updates/dkms", "nvidia.ko"), dkms="nvidia",
        packages={
            **{name: version for name, version in base.packages.items() if "nvidia" not in name and "linux" not in name},
            "linux-image-6.8.0-1041-nvidia-64k": "6.8.0-1041.44", "linux-headers-6.8.0-1041-nvidia-64k": "6.8.0-1041.44",
            **dict.fromkeys(("nvidia-driver-580-open", "nvidia-dkms-580-open", "nvidia-kernel-source-580-open",
                             "libnvidia-compute-580", "nvidia-utils-580", "nvidia-compute-utils-580",
                             "nvidia-kernel-common-580", "nvidia-firmware-580-580.95.05"), "580.95.05-0ubuntu0.22.04.2"),
        },
    )  # fmt: skip
    return {
        **_with_docker(system, [boards.gh200("0009:01:00.0")]),
        "file:/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz-6.8.0-1041-nvidia-64k root=/dev/nvme0n1p2 ro init_on_alloc=0 iommu.passthrough=1\n",
    }  # fmt: skip


def wsl2() -> Node:
    system = machines.ubuntu_24()
    own = {name: version for name, version in system.packages.items() if "nvidia" not in name and "linux" not in name}
    gpus = [
        replace(
            Board("0000:01:00.0", "2684", "NVIDIA GeForce RTX 4090", brand="GeForce", memory_mib=24564), has_ecc=False
        )
    ]
    base = {**machine(system, gpus)}
    kept = (
        "os-release",
        "os-release-vendor",
        "boot-id",
        "nvml",
        "smi",
        "smi-query",
        "apt-sources",
        "cgroup-version",
        "apt-check",
    )
    return {
        **{key: base[key] for key in kept},
        "kernel-release": "6.6.87.2-microsoft-standard-WSL2\n",
        "virt": "wsl\n",
        "dev-dxg": listed("/dev/dxg"),
        "dpkg-status": dpkg_status({**own, "nvidia-container-toolkit": "1.18.0-1", "nvidia-container-toolkit-base": "1.18.0-1",
                                    "libnvidia-container-tools": "1.18.0-1", "libnvidia-container1": "1.18.0-1"}),
        "modules": "xt_conntrack 12288 1 - Live 0x0000000000000000\nbridge 323584 0 - Live 0x0000000000000000\n",
        "lspci": "Slot:\t5582:00:00.0\nClass:\tSystem peripheral [0880]\nVendor:\tRed Hat, Inc. [1af4]\nDevice:\tVirtio file system [105a]\n\n"
        "Slot:\t7c5b:00:00.0\nClass:\t3D controller [0302]\nVendor:\tMicrosoft Corporation [1414]\nDevice:\tBasic Render Driver [008e]\nDriver:\tdxgkrnl\n",
        "wsl-libraries": listed(*(f"/usr/lib/wsl/lib/{one}" for one in ("libcuda.so", "libcuda.so.1", "libd3d12.so", "libdxcore.so",
                                                                        "libnvidia-ml.so.1", "nvidia-smi"))),
        "libraries": "3 libs found in cache `/etc/ld.so.cache'\n\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/wsl/lib/libnvidia-ml.so.1\n"
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/wsl/lib/libcuda.so.1\n\tlibdxcore.so (libc6,x86-64) => /usr/lib/wsl/lib/libdxcore.so\n",
        "ld-so-conf-d": held({"/etc/ld.so.conf.d/ld.wsl.conf": "# This file was automatically generated by WSL.\n/usr/lib/wsl/lib\n"}),
        "kernel-journal": journal((
            "kernel: Linux version 6.6.87.2-microsoft-standard-WSL2 (root@439a258ad544) (gcc 11.2.0) #1 SMP PREEMPT_DYNAMIC",
            "kernel: hv_pci 5e3a: PCI VMBus probing: Using version 0x10004",
            "kernel: misc dxg: dxgk: dxgglobal_init_global_channel",
            "kernel: misc dxg: dxgk: dxgkio_is_feature_enabled: Ioctl failed: -22",
            "kernel: misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -22",
            "kernel: misc dxg: dxgk: dxgkio_query_adapter_info: Ioctl failed: -2",
        )),
        "units": units("docker.service", "containerd.service"),
        **{key: said for key, said in containers.docker().items() if key != "units"},
        "toolkit-version": "cli-version: 1.18.0\nlib-version: 1.18.0\n",
        "toolkit-list": "/dev/dxg\n/usr/lib/wsl/lib/libnvidia-ml.so.1\n/usr/lib/wsl/lib/libcuda.so.1\n/usr/lib/wsl/lib/libdxcore.so\n",
    }  # fmt: skip


def laptop_that_lets_its_gpu_sleep() -> Node:
    system = machines.ubuntu_24()
    gpus = [boards.laptop("0000:01:00.0")]
    base = machine(
        system, gpus, ("ACPI: \\_SB_.PCI0.PEG0.PEGP: D3cold supported", "nvidia 0000:01:00.0: Enabling HDA controller")
    )
    modprobe = {"/etc/modprobe.d/nvidia-power.conf": 'options nvidia NVreg_DynamicPowerManagement=0x02\n',
                "/etc/modprobe.d/nvidia-graphics-drivers-kms.conf": "options nvidia_drm modeset=1\n",
                "/etc/modprobe.d/blacklist-nouveau.conf": "blacklist nouveau\n"}  # fmt: skip
    return {**base, "modprobe-d": held(modprobe), "units": units("nvidia-suspend.service", "nvidia-resume.service")}


def driver_upgraded_and_rebooted() -> Node:
    history = machines.HISTORY.replace("VERSION", "580.95.05-1") + """
Start-Date: 2026-11-02  06:20:01
Commandline: /usr/bin/unattended-upgrade
Upgrade: libcuda1:amd64 (580.82.07-1, 580.95.05-1), libnvidia-ml1:amd64 (580.82.07-1, 580.95.05-1), nvidia-kernel-open-dkms:amd64 (580.82.07-1, 580.95.05-1)
End-Date: 2026-11-02  06:24:40
"""  # fmt: skip
    return {**debian_12_docker(), "file:/var/log/apt/history.log": history}


def corrected_aer_line() -> Node:
    return _with_docker(
        machines.debian_12(), _l40s(),
        "pcieport 0000:30:01.0: AER: Correctable error message received from 0000:31:00.0",
        "nvidia 0000:31:00.0: PCIe Bus Error: severity=Correctable, type=Data Link Layer, (Transmitter ID)",
        "nvidia 0000:31:00.0:   device [10de:26b9] error status/mask=00001000/00006000",
        "nvidia 0000:31:00.0:    [12] Timeout",
    )  # fmt: skip


def power_cap_at_the_usual_limit() -> Node:
    gpus = [replace(gpu, state="P0", link_now=4, throttle=("SW Power Cap",)) for gpu in _l40s(2)]
    return _with_docker(machines.debian_12(), gpus)


def removed_packages_with_their_settings_left() -> Node:
    system = machines.debian_12()
    left = "535.216.03-1~deb12u1 deinstall ok config-files"
    packages = {**system.packages, "nvidia-kernel-dkms": left, "nvidia-alternative": left, "nvidia-legacy-check": left}
    base = _with_docker(system, _l40s())
    toolkit = dict.fromkeys(("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools",
                             "libnvidia-container1"), "1.18.0-1")  # fmt: skip
    return {**base, "dpkg-status": dpkg_status({**packages, **toolkit})}


def driver_held_and_pinned() -> Node:
    system = machines.debian_12()
    packages = {name: f"{version} hold ok installed" if "nvidia" in name or "libcuda" in name else version
                for name, version in system.packages.items()}  # fmt: skip
    pin = "Package: *nvidia* libcuda1\nPin: version 580.95.05-1\nPin-Priority: 1001\n"
    return {
        **machine(replace(system, packages=packages), _l40s()),
        "apt-preferences-d": held({"/etc/apt/preferences.d/nvidia": pin}),
    }


def docker_with_nvidia_as_default() -> Node:
    system, gpus = machines.ubuntu_24(), _l40s()
    return {**machine(system, gpus), **containers.toolkit(system, gpus), **containers.docker(default="nvidia")}


def docker_with_cgroupfs() -> Node:
    system, gpus = machines.ubuntu_24(), _l40s()
    return {**machine(system, gpus), **containers.toolkit(system, gpus), **containers.docker(driver="cgroupfs")}


def docker_with_other_settings() -> Node:
    system, gpus = machines.debian_12(), _l40s()
    more = {"log-driver": "json-file", "log-opts": {"max-size": "50m"}, "data-root": "/data/docker", "features": {"cdi": True},
            "registry-mirrors": ["https://mirror.example.org"], "insecure-registries": ["10.0.0.5:5000"]}  # fmt: skip
    return {**machine(system, gpus), **containers.toolkit(system, gpus), **containers.docker(more=more)}


def guest_with_a_passed_through_gpu() -> Node:
    gpus = [replace(boards.a100("0000:06:00.0"), virtualization="Pass-Through", port="")]
    base = _with_docker(machines.ubuntu_22(), gpus)
    return {**base, "virt": "kvm\n", "file:/sys/class/dmi/id/sys_vendor": "QEMU\n",
            "file:/sys/class/dmi/id/product_name": "Standard PC (Q35 + ICH9, 2009)\n"}  # fmt: skip


def newer_kernel_waits_with_its_module() -> Node:
    system = machines.debian_12()
    base = dict(_with_docker(system, _l40s()))
    new, old, driver = "6.1.0-42-amd64", system.kernel, system.driver
    names = ("nvidia.ko", "nvidia-drm.ko", "nvidia-modeset.ko", "nvidia-peermem.ko", "nvidia-uvm.ko")
    return {
        **base,
        "boot-images": listed(f"/boot/vmlinuz-{old}", f"/boot/vmlinuz-{new}"),
        "kernel-builds": listed(*(f"/lib/modules/{one}/build -> /usr/src/linux-headers-{one}" for one in (old, new))),
        "kernel-sources": listed(*(f"/usr/src/linux-headers-{one}" for one in (old, new)), f"/usr/src/nvidia-{driver}"),
        "modules-dkms": listed(*(f"/lib/modules/{one}/updates/dkms/{name}" for one in (old, new) for name in names)),
        "module-trees": listed(*(f"/lib/modules/{one}" for one in (old, new))),
        "module-indexes": listed(*(f"/lib/modules/{one}/modules.{what}" for one in (old, new) for what in ("dep", "dep.bin", "alias"))),
        "dkms-installed": listed(*(f"/var/lib/dkms/nvidia/kernel-{one}-x86_64 -> {driver}/{one}/x86_64" for one in (old, new))),
        "dkms-status": "".join(f"nvidia/{driver}, {one}, x86_64: installed\n" for one in (old, new)),
    }  # fmt: skip


def older_kernel_without_a_module() -> Node:
    system = machines.debian_12()
    base = dict(_with_docker(system, _l40s()))
    old = "6.1.0-37-amd64"
    return {
        **base,
        "boot-images": listed(f"/boot/vmlinuz-{old}", f"/boot/vmlinuz-{system.kernel}"),
        "module-trees": listed(f"/lib/modules/{old}", f"/lib/modules/{system.kernel}"),
    }


def turing_on_open_modules() -> Node:
    t4 = Board(
        _ONE, "1eb8", "Tesla T4", "TU104GL [Tesla T4]", "Turing", memory_mib=15360, watts=70, link=3, capability="7.5"
    )
    return _with_docker(machines.ubuntu_24(), [t4])


def pascal_on_proprietary_modules() -> Node:
    system = machines.debian_12()
    packages = {
        name.replace("-open", ""): version for name, version in system.packages.items() if name != "nvidia-open"
    }
    return _with_docker(replace(system, is_open=False, packages=packages), [boards.gtx_1080(_ONE)])


def desktop_with_programs_on_its_gpu() -> Node:
    base = dict(_with_docker(machines.ubuntu_24(), [replace(boards.laptop("0000:01:00.0"), persistence="Enabled")]))
    table = base["smi"]
    assert isinstance(table, str)
    row = "|    0   N/A  N/A            1604      G   /usr/lib/xorg/Xorg                       92MiB |"
    return {
        **base,
        "smi": table.replace(
            "|  No running processes found                                                             |", row
        ),
    }


def rdma_with_peermem() -> Node:
    base = dict(_with_docker(machines.ubuntu_22(), [boards.a100(_ONE)]))
    modules = base["modules"]
    assert isinstance(modules, str)
    loaded = (
        "nvidia_peermem 16384 0 - Live 0x0000000000000000 (POE)\nmlx5_ib 475136 0 - Live 0x0000000000000000 (OE)\n"
        "ib_uverbs 184320 2 mlx5_ib, Live 0x0000000000000000 (OE)\n"
        "ib_core 475136 3 nvidia_peermem,mlx5_ib,ib_uverbs, Live 0x0000000000000000 (OE)\n"
        "mlx_compat 20480 4 - Live 0x0000000000000000 (OE)\n"
    )
    return {
        **base,
        "modules": loaded + modules,
        "infiniband": "CA 'mlx5_0'\n\tCA type: MT4129\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n"
        "\t\tRate: 400\n\t\tLink layer: InfiniBand\n",
        "ofed": "MLNX_OFED_LINUX-24.10-3.2.5.0:\n",
        "file:/sys/kernel/mm/memory_peers/nv_mem/version": "535.274.02\n",
    }


def iommu_switched_on() -> Node:
    base = _with_docker(
        machines.debian_12(), _l40s(2), "DMAR: IOMMU enabled", "DMAR: Intel(R) Virtualization Technology for Directed I/O",
        "iommu: Default domain type: Passthrough (set via kernel command line)", "pci 0000:31:00.0: Adding to iommu group 41",
    )  # fmt: skip
    line = "BOOT_IMAGE=/boot/vmlinuz-6.1.0-41-amd64 root=/dev/md0 ro quiet intel_iommu=on iommu=pt\n"
    return {**base, "file:/proc/cmdline": line, "iommu": listed("/sys/class/iommu/dmar0", "/sys/class/iommu/dmar1")}


def one_gpu_lent_to_a_guest() -> Node:
    system, gpus = machines.debian_12(), _l40s(2)
    mine, lent = gpus[:1], gpus[1:]
    base = dict(_with_docker(system, mine, f"vfio-pci {lent[0].bus}: enabling device (0140 -> 0142)"))
    return {
        **base,
        "lspci": boards.numeric(mine, boards.numeric(lent, bound="vfio-pci").partition("\n\n")[2]),
        "lspci-verbose": boards.verbose(mine, boards.verbose(lent).replace("in use: nvidia\n", "in use: vfio-pci\n")),
        "modprobe-d": held({"/etc/modprobe.d/vfio.conf": "softdep nvidia pre: vfio-pci\n"}),
    }


def messages_that_nvrm_prints_at_every_boot() -> Node:
    return _with_docker(
        machines.ubuntu_24(), _l40s(),
        "NVRM: GPU 0000:31:00.0: Switching to NVIDIA driver. Persistence mode is on",
        "nvidia-gpu 0000:31:00.3: i2c timeout error e0000000",
        "ucsi_ccg 0-0008: i2c_transfer failed -110",
        "resource: resource sanity check: requesting [mem 0x00000000000c0000-0x00000000000fffff], which spans more than PCI Bus 0000:00",
        "caller os_map_kernel_space+0x8d/0xa0 [nvidia] mapping multiple BARs",
        "nvidia 0000:31:00.0: Direct firmware load for nvidia/580.95.05/gsp_ga10x.bin succeeded",
        "snd_hda_intel 0000:31:00.1: Disabling MSI",
        "ACPI Warning: \\_SB.PC00.PEG1.PEGP._DSM: Argument #4 type mismatch - Found [Buffer], ACPI requires [Package]",
        "pcieport 0000:00:1c.0: Intel SPT PCH root port ACS workaround enabled",
        "nvidia-uvm: Unloaded the UVM driver.",
        "nvidia-uvm: Loaded the UVM driver, major device number 511.",
    )  # fmt: skip


HEALTHY: Final[Mapping[str, Callable[[], Node]]] = {
    make.__name__.replace("_", "-"): make
    for make in (
        debian_12_docker, debian_12_own_driver, debian_13_podman_cdi, debian_13_cdi_refresh, debian_13_containerd,
        ubuntu_22_docker_prebuilt_modules, ubuntu_22_secure_boot_by_canonical, ubuntu_24_containerd,
        ubuntu_24_secure_boot_with_enrolled_key, rocky_9_podman, rocky_9_docker, rhel_9_crio, k3s,
        kubeadm_with_device_plugin, kubeadm_fully_allocated, kubeadm_with_mig, mig_in_use, vgpu_guest_licensed,
        hgx_with_fabric_manager, eight_pcie_boards_without_fabric_manager, gh200, wsl2, laptop_that_lets_its_gpu_sleep,
        driver_upgraded_and_rebooted, corrected_aer_line, power_cap_at_the_usual_limit,
        removed_packages_with_their_settings_left, driver_held_and_pinned, docker_with_nvidia_as_default,
        docker_with_cgroupfs, docker_with_other_settings, guest_with_a_passed_through_gpu,
        newer_kernel_waits_with_its_module, older_kernel_without_a_module, turing_on_open_modules,
        pascal_on_proprietary_modules, desktop_with_programs_on_its_gpu, rdma_with_peermem, iommu_switched_on,
        one_gpu_lent_to_a_guest, messages_that_nvrm_prints_at_every_boot,
    )
}  # fmt: skip


def without_a_gpu() -> Node:
    """Return a machine without a GPU and without any GPU software."""
    system = machines.debian_12()
    bare = {name: version for name, version in system.packages.items() if "nvidia" not in name and "cuda" not in name}
    base = machine(replace(system, packages=bare, sources={}), [])
    gone = ("nvidia", "smi", "dkms", "modinfo", "dev-nvidia", "driver-", "cuda-", "modules-", "device-cap", "file:/sys/module/nvidia", "firmware",
            "log:nvidia", "nvml", "file:/proc/driver")  # fmt: skip
    kept = {key: said for key, said in base.items() if not key.startswith(gone)}
    return {
        **kept,
        "modprobe-d": held({"/etc/modprobe.d/mdadm.conf": "options md_mod start_ro=1\n"}),
        "modules": "ext4 1146880 2 - Live 0x0000000000000000\n",
        "libraries": "211 libs found in cache `/etc/ld.so.cache'\n\tlibc.so.6 (libc6,x86-64) => /lib/x86_64-linux-gnu/libc.so.6\n",
        "devices": "total 0\ncrw-rw-rw- 1 root root   1,     3 Nov 16 06:12 null\n",
        "character-devices": "total 0\nlrwxrwxrwx 1 root root 7 Nov 16 06:12 1:3 -> ../null\n",
        "file:/proc/devices": "Character devices:\n  1 mem\n 10 misc\n\nBlock devices:\n  8 sd\n",
        "kernel-journal": journal(("kernel: Linux version 6.1.0-41-amd64 (builder@host) (gcc 12.2.0) #1 SMP PREEMPT_DYNAMIC",
                                   "kernel: EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.")),
        "file:/var/log/apt/history.log": "",
        "units": units(),
        "modinfo:nvidia": failed("", 1, "modinfo: ERROR: Module nvidia not found.\n"),
        "modinfo:nvidia_uvm": failed("", 1, "modinfo: ERROR: Module nvidia_uvm not found.\n"),
        "unit-files-lib": listed("/lib/systemd/system/ssh.service"),
        "unit-wants": listed("/etc/systemd/system/multi-user.target.wants/ssh.service -> /lib/systemd/system/ssh.service"),
    }  # fmt: skip
