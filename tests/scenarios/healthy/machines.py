"""Machines with a working driver, by distribution: packages, modules, logs and files in the format of each system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.scenarios.healthy import boards
from tests.scenarios.healthy.boards import Board
from tests.scenarios.healthy.captures import PROBES, Node, Said, failed, held, journal, listed

BOOTED: Final = "Mon 2026-11-16 06:12:31.204511 UTC"


@dataclass(frozen=True)
class System:
    """A distribution with an installed driver.

    Attributes:
        packages: dpkg's packages by name, as ``version`` or ``version state``.
        rpms: the output of ``rpm -qa``, on rpm systems.
        module: the folder of the modules below /lib/modules/<kernel>/, and the main module's file name.
        dkms: name of the module in DKMS; empty if DKMS does not build it.
        libraries: the folder of the driver's libraries.
    """

    os_release: str
    kernel: str
    driver: str
    cuda: str
    is_open: bool
    packages: Mapping[str, str] = field(default_factory=dict)
    rpms: Sequence[str] = ()
    module: tuple[str, str] = ("updates/dkms", "nvidia.ko")
    dkms: str = "nvidia"
    libraries: str = "/usr/lib/x86_64-linux-gnu"
    sources: Mapping[str, str] = field(default_factory=dict)
    arch: str = "amd64"


def _release(name: str, version: str, number: str, pretty: str, like: str = "", code: str = "") -> str:
    rows = {"PRETTY_NAME": pretty, "NAME": pretty.split()[0], "VERSION_ID": number, "VERSION": version}
    words = "".join(f'{key}="{value}"\n' for key, value in rows.items())
    return (
        words
        + f"ID={name}\n"
        + (f'ID_LIKE="{like}"\n' if like else "")
        + (f"VERSION_CODENAME={code}\n" if code else "")
    )


_BASE: Final = {"dpkg": "1.21.22", "apt": "2.6.1", "libc6": "2.36-9+deb12u13", "systemd": "252.39-1~deb12u1"}
_CUDA: Final = "https://developer.download.nvidia.com/compute/cuda/repos"
_KEYRING: Final = "/usr/share/keyrings/cuda-archive-keyring.gpg"


def debian_12() -> System:
    """Return Debian 12 with NVIDIA's own repository and the open modules."""
    version, kernel = "580.95.05-1", "6.1.0-41-amd64"
    return System(
        _release("debian", "12 (bookworm)", "12", "Debian GNU/Linux 12 (bookworm)", code="bookworm"),
        kernel, "580.95.05", "13.0", True,
        {
            **_BASE, f"linux-image-{kernel}": "6.1.158-1", "linux-image-amd64": "6.1.158-1",
            f"linux-headers-{kernel}": "6.1.158-1", "linux-headers-amd64": "6.1.158-1", "dkms": "3.0.10-8+deb12u1",
            **dict.fromkeys((
                "nvidia-open", "nvidia-driver", "nvidia-driver-bin", "nvidia-driver-cuda", "nvidia-driver-libs",
                "nvidia-kernel-open-dkms", "nvidia-kernel-common", "nvidia-kernel-support", "nvidia-persistenced",
                "nvidia-smi", "libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "libnvidia-cfg1",
                "firmware-nvidia-gsp", "nvidia-modprobe",
            ), version),
            "cuda-keyring": "1.1-1", "nvidia-driver-pinning-580": "580-1",
        },
        sources={"/etc/apt/sources.list.d/cuda-debian12-x86_64.list":
                 f"deb [signed-by={_KEYRING}] {_CUDA}/debian12/x86_64/ /\n"},
    )  # fmt: skip


def debian_12_own() -> System:
    """Return Debian 12 with the driver from its non-free section."""
    version, kernel = "535.261.03-1~deb12u1", "6.1.0-41-amd64"
    return System(
        _release("debian", "12 (bookworm)", "12", "Debian GNU/Linux 12 (bookworm)", code="bookworm"),
        kernel, "535.261.03", "12.2", False,
        {
            **_BASE, f"linux-image-{kernel}": "6.1.158-1", "linux-image-amd64": "6.1.158-1",
            f"linux-headers-{kernel}": "6.1.158-1", "linux-headers-amd64": "6.1.158-1", "dkms": "3.0.10-8+deb12u1",
            **dict.fromkeys((
                "nvidia-driver", "nvidia-driver-bin", "nvidia-driver-libs", "nvidia-kernel-dkms", "nvidia-alternative",
                "nvidia-kernel-support", "nvidia-smi", "libcuda1", "libnvidia-ml1", "nvidia-legacy-check",
                "libnvidia-ptxjitcompiler1", "libnvidia-cfg1", "firmware-nvidia-gsp", "xserver-xorg-video-nvidia",
            ), version),
            "nvidia-persistenced": "525.85.05-1", "nvidia-kernel-common": "20220217+3~deb12u1",
            "nvidia-modprobe": "535.161.07-1~deb12u1", "glx-alternative-nvidia": "1.2.2",
            "nvidia-installer-cleanup": "20220217+3~deb12u1",
        },
        module=("updates/dkms", "nvidia-current.ko"), dkms="nvidia-current",
    )  # fmt: skip


def debian_13() -> System:
    """Return Debian 13 with NVIDIA's own repository."""
    base = debian_12()
    kernel = "6.12.57+deb13-amd64"
    packages = {name: v for name, v in base.packages.items() if not name.startswith(("linux-", "libc6", "dpkg", "apt"))}
    return System(
        _release("debian", "13 (trixie)", "13", "Debian GNU/Linux 13 (trixie)", code="trixie"),
        kernel, base.driver, base.cuda, True,
        {
            **packages, "dpkg": "1.22.21", "apt": "3.0.3", "libc6": "2.41-12", "systemd": "257.9-1~deb13u1",
            **dict.fromkeys((f"linux-image-{kernel}", "linux-image-amd64", f"linux-headers-{kernel}",
                             "linux-headers-amd64"), "6.12.57-1"),
            "dkms": "3.2.2-1~deb13u1",
        },
        module=("updates/dkms", "nvidia.ko.xz"),
        sources={"/etc/apt/sources.list.d/cuda-debian13-x86_64.list":
                 f"deb [signed-by={_KEYRING}] {_CUDA}/debian13/x86_64/ /\n"},
    )  # fmt: skip


def ubuntu_22() -> System:
    """Return Ubuntu 22.04 with modules built and signed by Canonical."""
    kernel, version = "5.15.0-161-generic", "535.274.02-0ubuntu0.22.04.1"
    branch = "535-server"
    return System(
        _release("ubuntu", "22.04.5 LTS (Jammy Jellyfish)", "22.04", "Ubuntu 22.04.5 LTS", "debian", "jammy"),
        kernel, "535.274.02", "12.2", False,
        {
            "dpkg": "1.21.1ubuntu2.6", "apt": "2.4.14", "libc6": "2.35-0ubuntu3.11", "systemd": "249.11-0ubuntu3.17",
            f"linux-image-{kernel}": "5.15.0-161.171", f"linux-modules-{kernel}": "5.15.0-161.171",
            "linux-image-generic": "5.15.0.161.156", f"linux-headers-{kernel}": "5.15.0-161.171",
            f"linux-modules-nvidia-{branch}-{kernel}": "5.15.0-161.171", "unattended-upgrades": "2.8ubuntu1",
            f"linux-modules-nvidia-{branch}-generic": "5.15.0-161.171",
            f"linux-objects-nvidia-{branch}-{kernel}": "5.15.0-161.171",
            **dict.fromkeys((
                f"nvidia-driver-{branch}", f"libnvidia-compute-{branch}", f"libnvidia-cfg1-{branch}",
                f"nvidia-utils-{branch}", f"nvidia-compute-utils-{branch}", f"nvidia-kernel-common-{branch}",
                f"nvidia-firmware-{branch}-535.274.02",
            ), version),
        },
        module=(f"kernel/nvidia-{branch}", "nvidia.ko"), dkms="",
    )  # fmt: skip


def ubuntu_24() -> System:
    """Return Ubuntu 24.04 with DKMS and the archive's open modules."""
    kernel, version = "6.8.0-88-generic", "580.95.05-0ubuntu0.24.04.2"
    branch = "580"
    return System(
        _release("ubuntu", "24.04.3 LTS (Noble Numbat)", "24.04", "Ubuntu 24.04.3 LTS", "debian", "noble"),
        kernel, "580.95.05", "13.0", True,
        {
            "dpkg": "1.22.6ubuntu6.5", "apt": "2.8.3", "libc6": "2.39-0ubuntu8.6", "systemd": "255.4-1ubuntu8.11",
            f"linux-image-{kernel}": "6.8.0-88.89", f"linux-modules-{kernel}": "6.8.0-88.89", "dkms": "3.0.11-1ubuntu13",
            "linux-image-generic": "6.8.0-88.89", f"linux-headers-{kernel}": "6.8.0-88.89",
            "linux-headers-generic": "6.8.0-88.89", "unattended-upgrades": "2.9.1+nmu4ubuntu1",
            **dict.fromkeys((
                f"nvidia-driver-{branch}-open", f"nvidia-dkms-{branch}-open", f"nvidia-kernel-source-{branch}-open",
                f"libnvidia-compute-{branch}", f"libnvidia-cfg1-{branch}", f"nvidia-utils-{branch}",
                f"nvidia-compute-utils-{branch}", f"nvidia-kernel-common-{branch}",
                f"nvidia-firmware-{branch}-580.95.05", f"libnvidia-gl-{branch}",
            ), version),
        },
        module=("updates/dkms", "nvidia.ko.zst"),
    )  # fmt: skip


def rocky_9() -> System:
    """Return Rocky Linux 9 with NVIDIA's repository and DKMS."""
    kernel, version = "5.14.0-570.58.1.el9_6.x86_64", "580.95.05-1.el9.x86_64"
    names = ("nvidia-driver", "nvidia-driver-cuda", "nvidia-driver-cuda-libs", "nvidia-driver-libs",
             "nvidia-persistenced", "nvidia-modprobe", "libnvidia-ml", "libnvidia-cfg", "nvidia-kmod-common",
             "kmod-nvidia-open-dkms", "nvidia-open")  # fmt: skip
    kernels = ("kernel", "kernel-core", "kernel-modules", "kernel-modules-core", "kernel-devel", "kernel-headers")
    return System(
        _release("rocky", "9.6 (Blue Onyx)", "9.6", "Rocky Linux 9.6 (Blue Onyx)", "rhel centos fedora"),
        kernel, "580.95.05", "13.0", True,
        rpms=(
            *(f"{name}-{version}" for name in names),
            *(f"{name}-5.14.0-570.58.1.el9_6.x86_64" for name in kernels),
            "container-selinux-2.235.0-2.el9_6.noarch",
        ),
        module=("extra", "nvidia.ko.xz"), libraries="/usr/lib64",
    )  # fmt: skip


def rhel_9() -> System:
    """Return RHEL 9 with precompiled modules."""
    base = rocky_9()
    return System(
        _release("rhel", "9.6 (Plow)", "9.6", "Red Hat Enterprise Linux 9.6 (Plow)", "fedora"),
        base.kernel, base.driver, base.cuda, True,
        rpms=(*(row for row in base.rpms if "dkms" not in row),
              "kmod-nvidia-open-580.95.05-5.14.0-570.58.1-580.95.05-3.el9_6.x86_64"),
        module=("extra/drivers/video/nvidia", "nvidia.ko"), dkms="", libraries="/usr/lib64",
    )  # fmt: skip


def machine(system: System, gpus: Sequence[Board], log: Sequence[str] = (), *, virt: str = "none") -> dict[str, Said]:
    """Return the evidence of a machine with this system and these GPUs; ``log`` adds lines to the kernel log."""
    return {
        **_system(system, virt),
        **_packages(system),
        **_module_files(system),
        **_driver(system, gpus),
        **_bus(gpus),
        **_smi(system, gpus),
        "kernel-journal": kernel_log(system, gpus, log),
        "units": units("nvidia-persistenced.service"),
        "reloads": journal(
            ("systemd[1]: Reached target multi-user.target - Multi-User System.",
             "systemd[1]: Startup finished in 9.104s (firmware) + 4.411s (loader) + 21.032s = 34.547s.")),
        "log:nvidia-persistenced": journal((
            "systemd[1]: Starting nvidia-persistenced.service - NVIDIA Persistence Daemon...",
            "nvidia-persistenced[655]: Verbose syslog connection opened",
            "nvidia-persistenced[655]: Started (655)",
            *(f"nvidia-persistenced[655]: device {gpu.bus} - registered\n"
              f"nvidia-persistenced[655]: device {gpu.bus} - persistence mode enabled.".split("\n")[0] for gpu in gpus),
            "systemd[1]: Started nvidia-persistenced.service - NVIDIA Persistence Daemon.",
        )),
    }  # fmt: skip


def units(*running: str, failing: str = "") -> str:
    """Return ``systemctl show`` of every queried unit: ``running`` units since boot, the others as not found."""
    asked = [word for word in PROBES["units"].argv if word.endswith((".service", ".path"))]
    blocks = []
    for number, unit in enumerate((*asked, *(unit for unit in running if unit not in asked))):
        if unit in running:
            rows = (f"MainPID={650 + number}", f"ExecMainStartTimestamp={BOOTED}", f"Id={unit}", f"Names={unit}",
                    "LoadState=loaded", "ActiveState=active", "SubState=running", "UnitFileState=enabled",
                    f"StateChangeTimestamp={BOOTED}")  # fmt: skip
        else:
            rows = ("MainPID=0", "ExecMainStartTimestamp=", f"Id={unit}", f"Names={unit}", "LoadState=not-found",
                    "ActiveState=inactive", "SubState=dead", "UnitFileState=", "StateChangeTimestamp=")  # fmt: skip
        blocks.append("\n".join(rows))
    return "\n\n".join(blocks) + "\n"


def _system(system: System, virt: str) -> Node:
    kernel = system.kernel
    is_rpm = bool(system.rpms)
    build = f"/usr/src/kernels/{kernel}" if is_rpm else f"/usr/src/linux-headers-{kernel}"
    grub = 'GRUB_DEFAULT=0\nGRUB_TIMEOUT=5\nGRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n'
    return {
        "os-release": system.os_release,
        "os-release-vendor": system.os_release,
        "kernel-release": kernel + "\n",
        "boot-id": "5d3c5c1e-8a3c-4a0e-9f6b-0a2d8a6f5b11\n",
        "boot-images": listed(f"/boot/vmlinuz-{kernel}"),
        "kernel-builds": listed(f"/lib/modules/{kernel}/build -> {build}"),
        "kernel-sources": listed(*(() if is_rpm else (build, f"/usr/src/nvidia-{system.driver}"))),
        "virt": failed("none\n") if virt == "none" else virt + "\n",
        "modprobe-d": held({
            "/etc/modprobe.d/blacklist-nouveau.conf": "blacklist nouveau\noptions nouveau modeset=0\n",
            "/etc/modprobe.d/mdadm.conf": "options md_mod start_ro=1\n",
        }),
        "file:/proc/cmdline": f"BOOT_IMAGE=/boot/vmlinuz-{kernel} root=UUID=11111111-2222-4333-8444-555555555555 ro quiet\n",
        "file:/proc/version": f"Linux version {kernel} (builder@host) (gcc (GCC) 12.2.0, GNU ld 2.40) #1 SMP PREEMPT_DYNAMIC\n",
        "file:/etc/default/grub": grub,
        "file:/etc/environment": 'PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"\n',
        "file:/etc/modules": "# /etc/modules: kernel modules to load at boot time.\n",
        "file:/sys/kernel/security/lockdown": "[none] integrity confidentiality\n",
        "file:/sys/module/module/parameters/sig_enforce": "N\n",
        "file:/sys/class/dmi/id/bios_version": "2.4a\n",
        "file:/sys/class/dmi/id/product_name": "SYS-420GP-TNR\n",
        "file:/sys/class/dmi/id/sys_vendor": "Supermicro\n",
        "ld-so-conf-d": held({"/etc/ld.so.conf.d/x86_64-linux-gnu.conf": "/usr/local/lib/x86_64-linux-gnu\n/lib/x86_64-linux-gnu\n"}),
        "modules-load-d": held({"/etc/modules-load.d/modules.conf": ""}),
        "secure-boot": "SecureBoot disabled\n",
        "enrolled-keys": failed("", 1, "MokListRT is empty\n"),
        "cgroup-version": "cgroup2fs\n",
        "locks": "cron 812 /run/crond.pid\n",
        "module-trees": listed(f"/lib/modules/{kernel}"),
        "module-indexes": listed(*(f"/lib/modules/{kernel}/modules.{one}" for one in
                                   ("alias", "builtin", "dep", "dep.bin", "order", "softdep", "symbols"))),
        "firmware": listed("/lib/firmware/nvidia/ad102/gsp", "/lib/firmware/nvidia/gp104/gr",
                           f"/lib/firmware/nvidia/{system.driver}/gsp_ga10x.bin",
                           f"/lib/firmware/nvidia/{system.driver}/gsp_tu10x.bin"),
        "node-name": "gpu-node-17\n",
        "selinux-denials": failed("", 1, "<no matches>\n") if is_rpm else failed("", 127, ""),
        **({"file:/etc/selinux/config": "SELINUX=enforcing\nSELINUXTYPE=targeted\n"} if is_rpm else {}),
        "unit-files-lib": listed("/lib/systemd/system/nvidia-persistenced.service"),
        "unit-wants": listed("/etc/systemd/system/multi-user.target.wants/nvidia-persistenced.service"
                             " -> /lib/systemd/system/nvidia-persistenced.service"),
    }  # fmt: skip


def dpkg_status(packages: Mapping[str, str], arch: str = "amd64") -> str:
    """Return dpkg's status file; a version may be followed by a state."""
    rows = []
    for name, said in sorted(packages.items()):
        version, _, state = said.partition(" ")
        rows.append(
            f"Package: {name}\nStatus: {state or 'install ok installed'}\nArchitecture: {arch}\nVersion: {version}\n"
        )
    return "\n".join(rows)


def _packages(system: System) -> Node:
    if system.rpms:
        return {
            "rpm-database": listed("/var/lib/rpm/rpmdb.sqlite", "/var/lib/rpm/rpmdb.sqlite-shm"),
            "rpms": "".join(f"{row}\n" for row in system.rpms),
        }
    own = system.os_release.partition("\nID=")[2].partition("\n")[0]
    mirror = {"debian": "http://mirror.example/debian", "ubuntu": "http://mirror.example/ubuntu"}[own]
    suite = system.os_release.rpartition("CODENAME=")[2].strip()
    sections = "main contrib non-free non-free-firmware" if own == "debian" else "main restricted universe multiverse"
    return {
        "dpkg-status": dpkg_status(system.packages, system.arch),
        "apt-extended-states": "",
        "apt-sources": f"deb {mirror} {suite} {sections}\ndeb {mirror} {suite}-updates {sections}\n",
        "apt-sources-d": held(system.sources),
        f"file:{_KEYRING}": "a public key",
        **dict.fromkeys((f"file:{_KEYRING}",) if any(_KEYRING in s for s in system.sources.values()) else (), "a key"),
        "apt-check": "Reading package lists...\nBuilding dependency tree...\nReading state information...\n",
        "file:/var/log/apt/history.log": HISTORY.replace("VERSION", system.packages.get("libcuda1", system.driver)),
        "file:/var/log/dpkg.log": "2026-10-19 08:01:11 startup packages configure\n",
    }


# The driver was installed weeks ago, before the last boot; last night unattended-upgrades only did other things.
HISTORY: Final = """
Start-Date: 2026-10-19  08:00:02
Commandline: apt-get install --yes nvidia-open
Requested-By: admin (1000)
Install: nvidia-open:amd64 (VERSION), nvidia-kernel-open-dkms:amd64 (VERSION, automatic)
Upgrade: libcuda1:amd64 (575.57.08-1, VERSION), libnvidia-ml1:amd64 (575.57.08-1, VERSION)
End-Date: 2026-10-19  08:03:40

Start-Date: 2026-11-15  06:21:11
Commandline: /usr/bin/unattended-upgrade
Upgrade: tzdata:amd64 (2025a-0+deb12u1, 2025b-0+deb12u1), openssl:amd64 (3.0.15-1, 3.0.17-1)
End-Date: 2026-11-15  06:21:19
"""


def _module_files(system: System) -> Node:
    kernel, driver = system.kernel, system.driver
    folder, main = system.module
    stem, _, end = main.partition(".")
    paths = [
        f"/lib/modules/{kernel}/{folder}/{stem}{part}.{end}" for part in ("", "-drm", "-modeset", "-peermem", "-uvm")
    ]
    keys = {"updates/dkms": "modules-dkms", "kernel": "modules-prebuilt", "extra": "modules-extra"}
    key = next((key for place, key in keys.items() if folder == place or folder.startswith(f"{place}/nvidia-")), "")
    licence = "Dual MIT/GPL" if system.is_open else "NVIDIA"
    known = "" if system.dkms else "signer:         Canonical Ltd. Kernel Module Signing\nsig_hashalgo:   sha512\n"

    def info(name: str, path: str) -> str:
        return (
            f"filename:       {path}\nalias:          char-major-195-*\nversion:        {driver}\n"
            f"supported:      external\nlicense:        {licence}\nfirmware:       nvidia/{driver}/gsp_tu10x.bin\n"
            f"firmware:       nvidia/{driver}/gsp_ga10x.bin\nsrcversion:     3F7A1A4EAAB8D3D9C2B0E44\n"
            f"alias:          pci:v000010DEd*sv*sd*bc03sc02i00*\ndepends:        drm\nretpoline:      Y\n"
            f"name:           {name}\nvermagic:       {kernel} SMP preempt mod_unload modversions \n{known}"
            "parm:           NVreg_ResmanDebugLevel:int\nparm:           NVreg_DeviceFileMode:int\n"
        )

    said: dict[str, Said] = {
        "modinfo:nvidia": info("nvidia", paths[0]),
        "modinfo:nvidia_uvm": info("nvidia_uvm", paths[4]),
        "modinfo:nvidia_peermem": info("nvidia_peermem", paths[3]),
        "modinfo:nvidia_fs": failed("", 1, "modinfo: ERROR: Module nvidia_fs not found.\n"),
    }
    if key:
        said[key] = listed(*paths)
    if system.dkms:
        tree = f"/var/lib/dkms/{system.dkms}"
        machine = "x86_64" if system.arch == "amd64" else "aarch64"
        said |= {
            "dkms-installed": listed(f"{tree}/kernel-{kernel}-{machine} -> {driver}/{kernel}/{machine}"),
            "dkms-tree": listed(f"{tree}/{driver}", f"{tree}/kernel-{kernel}-{machine} -> {driver}/{kernel}/{machine}"),
            "dkms-sources": listed(f"{tree}/{driver}/source -> /usr/src/{system.dkms}-{driver}"),
            "dkms-status": f"{system.dkms}/{driver}, {kernel}, {machine}: installed\n",
            "file:/etc/dkms/framework.conf": "## This configuration file modifies the behavior of DKMS\n",
        }
    return said


def _driver(system: System, gpus: Sequence[Board]) -> Node:
    driver, folder = system.driver, system.libraries
    kind = f"Open Kernel Module for x86_64  {driver}  Release Build  (dvs-builder@U22-I3-AM19-17-3)" if system.is_open \
        else f"x86_64 Kernel Module  {driver}"  # fmt: skip
    flags = "(OE)" if system.is_open else "(POE)"
    names = ("libcuda.so.1", "libnvidia-cfg.so.1", "libnvidia-ml.so.1", "libnvidia-nvvm.so.4",
             "libnvidia-opencl.so.1", "libnvidia-ptxjitcompiler.so.1")  # fmt: skip
    files = [f"{folder}/{name.rpartition('.')[0]}.{driver}" for name in names]
    links = [f"{folder}/{name} -> {name.rpartition('.')[0]}.{driver}" for name in names]
    libraries = [row for row in (*links, *files) if "libnvidia" in row.partition(" ")[0]]
    cuda = [row for row in (*links, *files) if "libcuda" in row.partition(" ")[0]]
    cached = "".join(f"\t{name} (libc6,x86-64) => {folder}/{name}\n" for name in names)
    nodes = [f"/dev/nvidia{number}" for number in range(len(gpus))]
    more = ("/dev/nvidia-caps", "/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl")
    rows = [f"crw-rw-rw- 1 root root 195, {number:5} Nov 16 06:12 nvidia{number}" for number in range(len(gpus))]
    rows += ["crw-rw-rw- 1 root root 195,   254 Nov 16 06:12 nvidia-modeset", "crw-rw-rw- 1 root root 511,     0 Nov 16 06:12 nvidia-uvm",
             "crw-rw-rw- 1 root root 511,     1 Nov 16 06:12 nvidia-uvm-tools", "crw-rw-rw- 1 root root 195,   255 Nov 16 06:12 nvidiactl",
             "drwxr-xr-x 2 root root          80 Nov 16 06:12 nvidia-caps"]  # fmt: skip
    plain = ["crw-r--r-- 1 root root  10,   235 Nov 16 06:12 autofs", "crw-rw-rw- 1 root root   1,     3 Nov 16 06:12 null",
             "brw-rw---- 1 root disk 259,     0 Nov 16 06:12 nvme0n1"]  # fmt: skip
    return {
        "modules": f"nvidia_uvm 2060288 0 - Live 0x0000000000000000 {flags}\n"
        f"nvidia_drm 139264 0 - Live 0x0000000000000000 {flags}\n"
        f"nvidia_modeset 1814528 1 nvidia_drm, Live 0x0000000000000000 {flags}\n"
        f"nvidia 12144640 {3 + len(gpus)} nvidia_uvm,nvidia_modeset, Live 0x0000000000000000 {flags}\n"
        "overlay 217088 9 - Live 0x0000000000000000\nbr_netfilter 36864 0 - Live 0x0000000000000000\n"
        "ext4 1146880 2 - Live 0x0000000000000000\n",
        "nvidia-version": f"NVRM version: NVIDIA UNIX {kind}  Tue Sep 23 09:55:41 UTC 2025\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14+deb12u1)\n",
        "file:/sys/module/nvidia/version": driver + "\n",
        "nvidia-gpus": held({f"/proc/driver/nvidia/gpus/{gpu.bus}/information": boards.information(gpu, number, driver)
                             for number, gpu in enumerate(gpus)}),
        "file:/proc/driver/nvidia/params": "ResmanDebugLevel: 4294967295\nRmLogonRC: 1\nModifyDeviceFiles: 1\nDeviceFileUID: 0\n"
        "DeviceFileGID: 0\nDeviceFileMode: 438\nInitializeSystemMemoryAllocations: 1\nUsePageAttributeTable: 4294967295\n"
        "EnableMSI: 1\nEnablePCIeGen3: 0\nMemoryPoolSize: 0\nIgnoreMMIOCheck: 0\nEnableGpuFirmware: 18\n"
        "DynamicPowerManagement: 3\nPreserveVideoMemoryAllocations: 0\nRegistryDwords: \"\"\nRmMsg: \"\"\n",
        "file:/proc/devices": "Character devices:\n  1 mem\n  4 tty\n 10 misc\n195 nvidia\n195 nvidia-modeset\n195 nvidiactl\n"
        "226 drm\n237 nvidia-nvlink\n238 nvidia-caps\n511 nvidia-uvm\n\nBlock devices:\n  8 sd\n259 blkext\n",
        "nvidia-parameters": held({"/sys/module/nvidia_drm/parameters/modeset": "Y\n",
                                   "/sys/module/nvidia_drm/parameters/fbdev": "Y\n",
                                   "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N\n"}),
        "dev-nvidia": listed(*nodes, *more),
        "dev-nvidia-caps": listed("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap2"),
        "devices": "total 0\n" + "\n".join([*plain, *rows]) + "\n",
        "device-capabilities": "total 0\ncr-------- 1 root root 238, 1 Nov 16 06:12 nvidia-cap1\n"
        "cr--r--r-- 1 root root 238, 2 Nov 16 06:12 nvidia-cap2\n",
        "character-devices": "total 0\nlrwxrwxrwx 1 root root 6 Nov 16 06:12 1:3 -> ../null\n" + "".join(
            f"lrwxrwxrwx 1 root root 10 Nov 16 06:12 195:{number} -> ../nvidia{number}\n" for number in range(len(gpus)))
        + "lrwxrwxrwx 1 root root 12 Nov 16 06:12 195:255 -> ../nvidiactl\n"
        "lrwxrwxrwx 1 root root 13 Nov 16 06:12 511:0 -> ../nvidia-uvm\n",
        "libraries": f"{212 + len(names)} libs found in cache `/etc/ld.so.cache'\n{cached}"
        "\tlibc.so.6 (libc6,x86-64, OS ABI: Linux 3.2.0) => /lib/x86_64-linux-gnu/libc.so.6\n",
        ("driver-libraries-64" if folder == "/usr/lib64" else "driver-libraries"): listed(*libraries),
        **({} if folder == "/usr/lib64" else {"cuda-libraries": listed(*cuda)}),
    }  # fmt: skip


def _bus(gpus: Sequence[Board]) -> Node:
    places = [f"/sys/bus/pci/devices/{gpu.bus}" for gpu in gpus]
    slots = list(zip(places, gpus, strict=True))
    return {
        "lspci": boards.numeric(gpus),
        "lspci-verbose": boards.verbose(gpus),
        "pci-modalias": held({
            f"{place}/modalias": f"pci:v000010DEd0000{gpu.device.upper()}sv000010DEsd00001851bc03sc02i00\n" for place, gpu in slots
        }),
        "pci-driver": listed(*(f"{place}/driver -> ../../../../bus/pci/drivers/nvidia" for place in places)),
        "numa-nodes": held({f"{place}/numa_node": "0\n" for place in places}),
        "link-speeds": held({f"{place}/current_link_speed": boards.link_speed(gpu.link_now) for place, gpu in slots}),
        "link-widths": held({f"{place}/current_link_width": f"{gpu.width}\n" for place, gpu in slots}),
        "link-speeds-max": held({f"{place}/max_link_speed": boards.link_speed(gpu.link) for place, gpu in slots}),
        "link-widths-max": held({f"{place}/max_link_width": f"{gpu.width}\n" for place, gpu in slots}),
    }  # fmt: skip


def _smi(system: System, gpus: Sequence[Board]) -> Node:
    names = "\t".join(f"GPU{number}" for number in range(len(gpus)))
    rows = "".join(
        f"GPU{one}\t" + "\t".join(" X " if one == two else "SYS" for two in range(len(gpus))) + "\t0-31\t0\t\tN/A\n"
        for one in range(len(gpus))
    )
    return {
        "nvml": boards.answered(gpus, system.driver, system.cuda),
        "smi": boards.table(gpus, system.driver, system.cuda),
        "smi-query": boards.query(gpus, system.driver, system.cuda),
        "smi-nvlink": "",
        "smi-topology": f"\t{names}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n{rows}\nLegend:\n\n  X    = Self\n"
        "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)\n",
        "smi-mig": failed("No MIG-enabled devices found.\n", 6),
    }


def kernel_log(system: System, gpus: Sequence[Board], more: Sequence[str] = ()) -> str:
    """Return the kernel log of a normal boot: its alarming lines are harmless."""
    ports = [gpu.port for gpu in gpus if gpu.port]
    kind = f"Open Kernel Module for x86_64  {system.driver}  Release Build  (dvs-builder@U22-I3-AM19-17-3)" \
        if system.is_open else f"x86_64 Kernel Module  {system.driver}"  # fmt: skip
    lines = [
        f"Linux version {system.kernel} (builder@host) (gcc 12.2.0, GNU ld 2.40) #1 SMP PREEMPT_DYNAMIC",
        f"Command line: BOOT_IMAGE=/boot/vmlinuz-{system.kernel} root=UUID=11111111-2222-4333-8444-555555555555 ro quiet",
        "BIOS-provided physical RAM map:",
        "ACPI: Early table checksum verification disabled",
        "secureboot: Secure boot disabled",
        "DMAR: Host address width 46",
        "iommu: Default domain type: Translated",
        "ACPI BIOS Warning (bug): Optional FADT field Pm2ControlBlock has valid Length but zero Address",
        "pci_bus 0000:00: root bus resource [mem 0x20e000000000-0x20efffffffff window]",
        *(f"pci {gpu.bus}: [10de:{gpu.device}] type 00 class 0x030200 PCIe Endpoint" for gpu in gpus),
        *(f"pci {gpu.bus}: BAR 1 [mem 0x20e000000000-0x20efffffffff 64bit pref]" for gpu in gpus),
        *(f"pci {gpu.bus}: PME# supported from D0 D3hot" for gpu in gpus),
        *(f"pci {gpu.bus}: 31.504 Gb/s available PCIe bandwidth, limited by 2.5 GT/s PCIe x16 link at {port} "
          "(capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)" for gpu, port in zip(gpus, ports, strict=False)),
        *(f"pcieport {port}: PME: Signaling with IRQ 122" for port in ports),
        *(f"pcieport {port}: AER: enabled with IRQ 122" for port in ports),
        *(f"pcieport {port}: pciehp: Slot #9 AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug+ Surprise+ Interlock- NoCompl+"
          for port in ports),
        "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode. Quota mode: none.",
        "audit: type=1400 audit(1794895951.104:5): apparmor=\"STATUS\" operation=\"profile_load\" profile=\"unconfined\" "
        "name=\"nvidia_modprobe\" pid=701 comm=\"apparmor_parser\"",
        "nvidia: loading out-of-tree module taints kernel.",
        *(() if system.is_open else ("nvidia: module license 'NVIDIA' taints kernel.",)),
        "Disabling lock debugging due to kernel taint",
        *(("nvidia: module verification failed: signature and/or required key missing - tainting kernel",)
          if system.dkms else ()),
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 237",
        *(f"nvidia {gpu.bus}: enabling device (0140 -> 0142)" for gpu in gpus),
        *(f"nvidia {gpu.bus}: vgaarb: VGA decodes changed: olddecodes=io+mem,decodes=none:owns=none" for gpu in gpus),
        f"NVRM: loading NVIDIA UNIX {kind}  Tue Sep 23 09:55:41 UTC 2025",
        f"nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  {system.driver}  Tue Sep 23 09:42:01 UTC 2025",
        *(f"[drm] [nvidia-drm] [GPU ID 0x{int(gpu.bus[5:7], 16):06x}00] Loading driver" for gpu in gpus),
        *(f"[drm] Initialized nvidia-drm 0.0.0 20160202 for {gpu.bus} on minor {at}" for at, gpu in enumerate(gpus)),
        *(f"nvidia {gpu.bus}: [drm] Cannot find any crtc or sizes" for gpu in gpus),
        "nvidia_uvm: module uses symbols nvUvmInterfaceDisableAccessCntr from proprietary module nvidia, inheriting taint.",
        "nvidia-uvm: Loaded the UVM driver, major device number 511.",
        "Bridge firewalling registered",
        "docker0: port 1(veth1a2b3c4) entered blocking state",
        "docker0: port 1(veth1a2b3c4) entered disabled state",
        "veth1a2b3c4: entered promiscuous mode",
        "perf: interrupt took too long (2503 > 2500), lowering kernel.perf_event_max_sample_rate to 79750",
        *more,
    ]  # fmt: skip
    return journal(tuple(f"kernel: {line}" for line in lines))
