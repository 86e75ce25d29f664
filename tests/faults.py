"""Faults that the tests cause on real nodes of the lab, and the cause that doctor must name for each: data.

The node is a Debian 12 with a GTX 1080, set up by gpunode: containerd and driver 580, or what ``node`` says.
``docs/reference/faults.md`` shows this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Start: TypeAlias = Literal["containerd", "kubernetes", "fresh", "turing", "docker"]
# remedy: the commands that doctor prints repair it. hand: some steps are manual. no: doctor only diagnoses it.
Mended: TypeAlias = Literal["remedy", "hand", "no"]


@dataclass(frozen=True, slots=True)
class Fault:
    """A way in which a node fails.

    Attributes:
        what: its description in the documentation.
        shell: causes it; ``/root/faults`` holds the files that it needs.
        cause: the only root cause that doctor may name.
        node: the node to break; ``turing`` has the disk of a node with a T4 and the open module.
        hand: carries out the steps without commands.
        when: the remedy's conditions that hold here.
        gpus: the lab's cards in it; empty for the node's own.
        kernel: the running kernel, if not the node's own.
        core: whether the short test runs include it.
    """

    id: str
    what: str
    shell: str
    cause: str
    node: Start = "containerd"
    mended: Mended = "remedy"
    hand: str = ""
    when: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ("GTX_1080",)
    kernel: str = ""
    booted: bool = False
    core: bool = False


_CONFIG: Final = "/etc/containerd/config.toml"
_TOOLKIT: Final = "/etc/nvidia-container-runtime/config.toml"
_TOOLKIT_LIST: Final = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
_DKMS: Final = '-m nvidia -v 580.178.04 -k "$(uname -r)"'
_KERNEL: Final = '"/lib/modules/$(uname -r)"'
_UNBUILT: Final = f"modprobe -r nvidia; dkms unbuild {_DKMS}"
_NOUVEAU: Final = f"{_KERNEL}/kernel/drivers/gpu/drm/nouveau"
_SET_DOCKER: Final = (
    'set_docker() { python3 -c \'import json, sys; path = "/etc/docker/daemon.json"; '
    'whole = json.load(open(path)); name, _, value = sys.argv[1].partition("="); whole[name] = [value]; '
    'json.dump(whole, open(path, "w"))\' "$1"; }; set_docker '
)
_JSON: Final = "python3 -c \"import json; path = '/etc/docker/daemon.json'; whole = json.load(open(path)); "
_SECURE_BOOT: Final = (
    'printf \'#!/bin/sh\\n[ "$1" = --sb-state ] && echo "SecureBoot enabled"\\n[ "$1" = --list-enrolled ] && '
    'echo "Subject: CN=Debian Secure Boot CA"\\n\' > /usr/local/bin/mokutil; chmod +x /usr/local/bin/mokutil; '
    "touch /lab-secure-boot"
)
FAULTS: Final = (
    Fault("no-driver", "a fresh node on which no driver was ever installed", ":", "driver-not-installed",
          node="fresh"),
    Fault("module-unloaded", "the kernel module is unloaded", "modprobe -r nvidia", "driver-module-not-loaded"),
    Fault("module-blacklisted", "somebody blacklisted the module", "modprobe -r nvidia; "
          "echo 'blacklist nvidia' > /etc/modprobe.d/site.conf", "driver-module-not-loaded"),
    Fault("headers-missing", "the kernel headers are gone, and DKMS failed to build",
          f'{_UNBUILT}; dpkg --purge --force-depends "linux-headers-$(uname -r)"; ! dkms install {_DKMS}',
          "kernel-headers-missing"),
    Fault("symbol-gone", "the module's source uses a function that this kernel lacks",
          f"{_UNBUILT}; sed -i 's/^static int __init.*/extern int lab_gone(int);\\n&/; "
          "0,/return 0;/s//return pde_data_of_old();/' /usr/src/nvidia-580.178.04/nvidia.c; "
          f"! dkms install {_DKMS}", "dkms-build-kernel-api", mended="no"),
    Fault("compiler-missing", "the compiler is gone, and DKMS failed to build",
          f"{_UNBUILT}; dpkg --purge --force-depends gcc gcc-12; ! dkms install {_DKMS}",
          "dkms-build-toolchain-missing"),
    Fault("dkms-tree", "DKMS's tree has lost the link to the source",
          f"{_UNBUILT}; rm /var/lib/dkms/nvidia/580.178.04/source; dkms autoinstall", "dkms-tree-corrupt",
          core=True),
    Fault("index-empty", "the kernel's module index is empty",
          f"modprobe -r nvidia; cd {_KERNEL}; for name in modules.dep modules.dep.bin modules.alias modules.alias.bin; "
          "do : > $name; done", "depmod-index-missing"),
    Fault("index-stale", "the module was copied into place without running depmod",
          f"modprobe -r nvidia; cd {_KERNEL}; mv updates /root/updates; depmod; mv /root/updates updates",
          "depmod-index-missing"),
    Fault("module-twice", "a copy of an older module is where depmod prefers it",
          f"modprobe -r nvidia; mkdir -p {_KERNEL}/kernel/drivers/video; "
          f"cp /root/faults/nvidia-570.86.15.ko {_KERNEL}/kernel/drivers/video/nvidia.ko; "
          "mkdir -p /etc/depmod.d; echo 'search built-in updates' > /etc/depmod.d/site.conf; depmod; modprobe nvidia",
          "duplicate-module-files"),
    Fault("other-kernel", "a new kernel was booted for which the module was not built",
          'mkdir -p /lib/modules/6.1.0-99-amd64 && touch /boot/vmlinuz-6.1.0-99-amd64; '
          'cp -a /lib/modules/6.1.0-*/build /lib/modules/6.1.0-99-amd64/; '
          'touch /lib/modules/6.1.0-99-amd64/modules.order /lib/modules/6.1.0-99-amd64/modules.builtin; depmod',
          "module-built-for-other-kernel", kernel="6.1.0-99-amd64"),
    Fault("nouveau", "nouveau took the GPU at boot because it was not blacklisted",
          f"mkdir -p {_NOUVEAU}; cp /root/faults/other.ko {_NOUVEAU}/nouveau.ko; depmod; "
          "rm /etc/modprobe.d/*nouveau*; lab-boot", "nouveau-bound"),
    Fault("nouveau-initramfs", "nouveau is blacklisted, but the initramfs is older than the blacklist",
          f"mkdir -p {_NOUVEAU}; cp /root/faults/other.ko {_NOUVEAU}/nouveau.ko; depmod; mkdir /root/aside; "
          "mv /etc/modprobe.d/*nouveau* /root/aside; echo nouveau >> /etc/initramfs-tools/modules; "
          "update-initramfs -u; mv /root/aside/* /etc/modprobe.d; lab-boot", "nouveau-in-initramfs"),
    Fault("vfio", "the GPU is reserved for a virtual machine",
          "echo 'options vfio-pci ids=10de:1b80' > /etc/modprobe.d/vfio.conf; lab-boot", "vfio-bound"),
    Fault("no-gpu", "the GPU is not on the bus", ":", "no-gpu-present", mended="no", gpus=()),
    Fault("legacy-gpu", "the driver's branch no longer supports the GPU",
          "dpkg --purge --force-all nvidia-kernel-dkms; apt-get -y -o Dir::Etc::PreferencesParts=/root/faults/595 "
          "--allow-downgrades install nvidia-driver-cuda nvidia-kernel-dkms; lab-boot",
          "gpu-legacy-unsupported-by-branch"),
    Fault("open-on-pascal", "the disk of a node with a newer GPU and the open module",
          "lab-boot", "open-module-on-pre-turing", node="turing"),
    Fault("old-driver-new-gpu", "the distribution's old driver on a GPU that it does not support",
          'lab-nonfree; apt-get -y install nvidia-driver "linux-headers-$(uname -r)"; lab-boot',
          "gpu-too-new-for-driver", node="fresh", gpus=("H100",)),
    Fault("closed-on-blackwell", "the proprietary module on a GPU that takes the open one only",
          "lab-boot", "proprietary-module-on-blackwell", gpus=("RTX_PRO_6000",)),
    Fault("upgraded-not-rebooted", "the driver was upgraded under the loaded module",
          "sed -i s/580.178.04/580.65.06/ /proc/driver/nvidia/version /sys/module/nvidia/version",
          "driver-library-mismatch-reboot-pending", core=True),
    Fault("no-userspace", "the driver's libraries and programs were removed",
          "dpkg --purge --force-depends nvidia-smi libnvidia-ml1 libcuda1 nvidia-driver-cuda",
          "driver-userspace-incomplete"),
    Fault("no-toolkit", "the container toolkit was removed, but the runtimes still name it",
          "dpkg --purge --force-depends nvidia-container-toolkit nvidia-container-toolkit-base "
          "libnvidia-container-tools libnvidia-container1", "toolkit-not-installed", core=True),
    Fault("half-configured", "dpkg was stopped between unpacking and configuring the driver",
          "cd /root; apt-get download nvidia-driver-cuda; dpkg --unpack nvidia-driver-cuda_*.deb; rm *.deb",
          "dpkg-unconfigured-packages", core=True),
    Fault("strayed", "libcuda has another version than the driver, whose nvidia-smi works",
          "dpkg -i --force-depends --force-downgrade /root/faults/libcuda1_*.deb",
          "driver-library-mismatch-partial-upgrade"),
    Fault("held", "a library is held at another version than the rest of the driver",
          "dpkg -i --force-depends --force-downgrade /root/faults/libcuda1_*.deb; apt-mark hold libcuda1",
          "held-or-broken-packages"),
    Fault("signed-by", "two lists name one repository with different keys",
          f"sed 's,signed-by=[^]]*,signed-by=/root/faults/stranger.gpg,' {_TOOLKIT_LIST} > "
          "/etc/apt/sources.list.d/copied.list", "apt-signed-by-conflict"),
    Fault("signed-by-deb822", "a paragraph of a site's sources file names an archive with a different key",
          f"url=$(sed -n 's,^deb [^]]*] *\\([^ ]*\\) .*,\\1,p' {_TOOLKIT_LIST}); "
          "lab-nonfree; cd /etc/apt/sources.list.d; set -- $(cat nonfree.list); rm nonfree.list; "
          "printf 'Types: deb\\nURIs: %s\\nSuites: /\\nSigned-By: %s\\n\\n' \"$3\" /usr/share/keyrings/lab.gpg "
          '"$url" /root/faults/stranger.gpg > site.sources', "apt-signed-by-conflict"),
    Fault("toolkit-key", "the toolkit's keyring is gone", "rm /usr/share/keyrings/nvidia-container-toolkit-keyring.gpg",
          "apt-toolkit-key-missing"),
    Fault("cuda-key", "the CUDA repository's keyring is gone", "rm /usr/share/keyrings/cuda-archive-keyring.gpg",
          "apt-nvidia-key-rotated"),
    Fault("dpkg-lock", "another program holds dpkg's lock", "lab-hold-lock", "dpkg-lock-held"),
    Fault("run-leftover", "NVIDIA's .run installer wrote its driver over the packages",
          "modprobe -r nvidia; rm /lib/modules/$(uname -r)/updates/dkms/nvidia.ko*; depmod; "
          "printf '#!/bin/sh\\nrm -f /usr/bin/nvidia-installer\\n' > /usr/bin/nvidia-installer; "
          "chmod +x /usr/bin/nvidia-installer", "runfile-leftover"),
    Fault("device-modes", "the device files' mode was written as a decimal number",
          "echo 'options nvidia NVreg_DeviceFileMode=666' > /etc/modprobe.d/site.conf; chmod 1232 /dev/nvidia0 "
          "/dev/nvidiactl", "device-node-permissions"),
    Fault("daemon-json", "docker's file ends with a comma",
          "mkdir -p /etc/docker; echo '{\"live-restore\": true,}' > /etc/docker/daemon.json", "daemon-json-invalid",
          mended="hand", hand="echo '{\"live-restore\": true}' > /etc/docker/daemon.json", core=True),
    Fault("cri-disabled", "containerd's CRI plugin is disabled, but a kubelet uses it",
          f"sed -i '1a disabled_plugins = [\"io.containerd.grpc.v1.cri\"]' {_CONFIG}; systemctl restart containerd",
          "containerd-cri-disabled", node="kubernetes", booted=True),
    Fault("handler-gone", "containerd has lost NVIDIA's runtime, but a kubelet uses it",
          f"printf 'version = 2\\n' > {_CONFIG}; systemctl restart containerd",
          "containerd-nvidia-runtime-missing", node="kubernetes", booted=True),
    Fault("cgroup-driver", "kubelet and containerd use different cgroup drivers",
          f"sed -i 's/SystemdCgroup = true/SystemdCgroup = false/' {_CONFIG}; systemctl restart containerd",
          "cgroup-driver-mismatch", node="kubernetes", booted=True),
    Fault("cdi-stale", "the CDI specification is for an older driver",
          "mkdir -p /etc/cdi; nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml; "
          "sed -i s/580.178.04/570.86.15/ /etc/cdi/nvidia.yaml", "cdi-spec-stale"),
    Fault("toolkit-root", "the toolkit looks for the driver in a folder that does not exist",
          f"sed -i 's,^\\[nvidia-container-cli\\],&\\nroot = \"/run/nvidia/driver\",' {_TOOLKIT}",
          "toolkit-wrong-driver-root"),
    Fault("toolkit-ldconfig", "the toolkit's configuration came from Ubuntu",
          f"sed -i 's,@/sbin/ldconfig,@/sbin/ldconfig.real,' {_TOOLKIT}", "ldconfig-path-wrong"),
    Fault("crio-dead", "an old toolkit's drop-in is in a folder that CRI-O never reads",
          "mkdir -p /etc/crio/conf.d /etc/crio/crio.conf.d; printf '[crio.runtime.runtimes.nvidia]\\nruntime_path = "
          "\"/usr/bin/nvidia-container-runtime\"\\n' > /etc/crio/conf.d/99-nvidia.toml; printf '[crio]\\n' > "
          "/etc/crio/crio.conf", "crio-dropin-dead"),
    Fault("shadowed-libcuda", "a stub of libcuda comes before the driver's in the loader's path",
          "mkdir -p /usr/local/cuda-12.4/lib64/stubs; cp /root/faults/libcuda.so.1 /usr/local/cuda-12.4/lib64/stubs; "
          "echo /usr/local/cuda-12.4/lib64/stubs > /etc/ld.so.conf.d/000-cuda.conf; ldconfig",
          "library-path-shadows-libcuda"),
    Fault("secure-boot-key", "Secure Boot is on, and the machine's firmware does not know the key of DKMS",
          f"modprobe -r nvidia; {_SECURE_BOOT}; ! modprobe nvidia", "secure-boot-key-not-enrolled", mended="no"),
    Fault("secure-boot-unsigned", "Secure Boot is on, and the module is not signed",
          f"modprobe -r nvidia; strip --strip-debug {_KERNEL}/updates/dkms/nvidia.ko; depmod; {_SECURE_BOOT}; "
          "! modprobe nvidia", "secure-boot-module-unsigned", mended="no"),
    Fault("xid-79", "the GPU has fallen off the bus (kernel log)",
          "echo '[ 7012.331904] NVRM: Xid (PCI:0000:01:00): 79, pid=2211, name=python3, GPU has fallen off the bus.' > "
          "/run/lab-dmesg", "gpu-fallen-off-bus", mended="no"),
    Fault("xid-119", "the GSP stopped answering (kernel log)",
          "printf '%s\\n' '[  931.114001] NVRM: Xid (PCI:0000:01:00): 119, pid=1844, name=nvidia-smi, Timeout after 6s "
          "of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20800a4c 0x4).' > "
          "/run/lab-dmesg", "gsp-rpc-timeout", mended="no"),
    Fault("docker-file-invalid", "docker does not start: its file ends with a comma",
          "echo '{\"live-restore\": true,}' > /etc/docker/daemon.json; ! systemctl restart docker",
          "daemon-json-invalid", node="docker", mended="hand",
          hand="echo '{\"live-restore\": true}' > /etc/docker/daemon.json", booted=True),
    Fault("docker-directives", "docker does not start: hosts stand in its file and on its command line",
          f"{_SET_DOCKER}hosts=unix:///var/run/docker.sock; ! systemctl restart docker", "docker-directive-conflict",
          node="docker", mended="hand", hand=f"{_JSON}whole.pop('hosts'); json.dump(whole, open(path, 'w'))\"",
          booted=True),
    Fault("docker-not-restarted", "docker was started before its file had NVIDIA's runtime",
          "cd /etc/docker; mv daemon.json aside; systemctl restart docker; sleep 1; cat aside > daemon.json; rm aside",
          "docker-not-restarted", node="docker", booted=True),
    Fault("docker-default", "docker's default runtime is nvidia, but its file does not define it",
          "echo '{\"default-runtime\": \"nvidia\"}' > /etc/docker/daemon.json; ! systemctl restart docker",
          "nvidia-runtime-not-registered", node="docker", booted=True),
    Fault("persistenced", "nvidia-persistenced was started before the driver was loaded, and stayed down",
          "systemctl stop nvidia-persistenced; modprobe -r nvidia; systemctl start nvidia-persistenced || :; sleep 2; "
          "systemctl stop nvidia-persistenced; systemctl start nvidia-persistenced || :; modprobe nvidia",
          "persistenced-start-race", booted=True),
    Fault("upgraded-live", "the driver was upgraded while its module was loaded and in use",
          "sed -i s/580.178.04/580.65.06/ /proc/driver/nvidia/version /sys/module/nvidia/version; touch /run/lab-busy",
          "driver-library-mismatch-reboot-pending", node="docker", when=("the old module cannot be unloaded",),
          booted=True),
    Fault("unloaded-live", "the kernel module is unloaded while the container daemons run",
          "systemctl stop nvidia-persistenced; modprobe -r nvidia", "driver-module-not-loaded", node="docker",
          booted=True),
)  # fmt: skip
