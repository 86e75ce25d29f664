"""Starting states of nodes: how each came about, and how setup must end there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import pytest

from tests.e2e.chroot.scenario import CONFIG, NONINTERACTIVE, Lab, install_old_driver, setup_ok
from tests.e2e.lab import driver, nonfree
from tests.e2e.lab.archive import NoArchive
from tests.e2e.lab.bases import kernel_image
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.code import PROJECT
from tests.e2e.lab.debs import Package, Release, build_all, publish
from tests.e2e.lab.keys import Key
from tests.e2e.lab.pci import A100, A100_NVSWITCH, B200, GB200, GTX_1080, H100, H200, NVIDIA, NVSWITCH, T4, Device
from tests.e2e.lab.tree import NATIVE
from tests.fakes.vpd import make_vpd

System: TypeAlias = Literal["bookworm", "trixie", "jammy", "noble"]
Offer: TypeAlias = Literal["full", "mismatched", "same-branch"]
Prepare: TypeAlias = Callable[[Chroot, Lab], None]
End: TypeAlias = Literal["converged", "applied", "refused", "stopped", "waits"]

VECTORS: Final = PROJECT / "tests/conformance/runtimes/vectors"
DIRECTORIES: Final[Mapping[System, str]] = {
    "bookworm": "debian12",
    "trixie": "debian13",
    "jammy": "ubuntu2204",
    "noble": "ubuntu2404",
}
PASCAL: Final = "580.178.04-1"
TURING: Final = "595.91.07-1"
UBUNTU_PASCAL: Final = f"{PASCAL}ubuntu1"
UBUNTU_TURING: Final = f"{TURING}ubuntu1"
MAXWELL: Final = Device("0000:02:00.0", 0x13C0, subsystem=(NVIDIA, 0x1116))
# A device id that no table lists.
UNKNOWN: Final = Device("0000:01:00.0", 0x7FFE, device_class=0x030200)
H100_NVL: Final = Device("0000:17:00.0", 0x2321, device_class=0x030200, subsystem=(NVIDIA, 0x1839))
B300: Final = Device("0000:17:00.0", 0x3182, device_class=0x030200, subsystem=(NVIDIA, 0x20E6))
BRIDGES: Final = tuple(
    Device(f"0000:{bus}:00.0", 0x1021, 0x15B3, 0x020700, (0x15B3, 0x0041), vpd=make_vpd(is_bridge=is_bridge))
    for bus, is_bridge in (("05", False), ("06", True))
)
# In the range of Blackwell's ids, but in no list.
UNLISTED: Final = Device("0000:17:00.0", 0x297F, device_class=0x030200)


@dataclass(frozen=True, slots=True)
class State:
    """A node before a setup, and the expected result.

    Attributes:
        what: its description in the table of docs/verification.md.
        prepare: brings the node into this state.
        end: as the recipe wants it; the same without what the lab lacks (a GPU that a real driver's libraries find, or
            a running docker); refused before any change; stopped before any package change; or the modules' key queued,
            and nothing else done until a person confirms it at the console.
        says: the text that the refusal, or else the plan, must contain.
        installed: the required versions of packages afterwards; empty for a package that must be absent.
        lost: a pattern of names in the snapshot that no rollback restores; at least one must match.
        offered: the variant of NVIDIA's repository; empty for the ordinary one.
        core: whether the short test runs include it.
    """

    id: str
    what: str
    system: System = "bookworm"
    devices: tuple[Device, ...] = (T4,)
    prepare: tuple[Prepare, ...] = ()
    recipe: str = "bare-metal"
    more: str = ""
    options: tuple[str, ...] = ()
    end: End = "converged"
    says: str = ""
    installed: Mapping[str, str] = field(default_factory=dict)
    lost: str = ""
    offered: Offer | Literal[""] = ""
    core: bool = False


# Other packages of NVIDIA's repositories.

_UNIT: Final = """\
[Unit]
Description=NVIDIA fabric manager service
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""
_NVCC: Final = "#!/bin/sh\necho 'Cuda compilation tools, release @RELEASE@'\n"
_FREE: Final = {"nvlsm": "2025.10.11-1", "infiniband-diags": "44.0-2"}
# Versions of the driver releases, and versions with a different last digit.
_FABRIC: Final[Mapping[Offer, tuple[str, ...]]] = {
    "full": ("580.178.03", "580.178.04", "580.178.05", "595.91.06", "595.91.07", "595.91.08", "620.70.06"),
    "same-branch": (),
    "mismatched": ("580.178.03", "580.178.05", "595.91.06", "595.91.08"),
}
_TOOLKITS: Final = {"12.6": "12.6.3-1", "12.9": "12.9.1-1", "13.1": "13.1.1-1", "13.2": "13.2.0-1"}


def make_fabric(version: str, **scripts: str) -> Iterator[Package]:
    """Return the packages of every fabric; like NVIDIA's, none depends on the driver's version."""
    for name in ("nvidia-fabricmanager", "nvidia-imex"):
        yield Package(name, version, files={f"/lib/systemd/system/{name}.service": _UNIT}, scripts=scripts)
    yield Package("libnvidia-nscq", version)
    yield Package("libnvsdm", version)


def make_toolkit(release: str, version: str) -> Iterator[Package]:
    """Return a toolkit's packages with NVIDIA's names and relations, and the metapackage that depends on a driver."""
    dashed = release.replace(".", "-")
    nvcc = {f"/usr/local/cuda-{release}/bin/nvcc": _NVCC.replace("@RELEASE@", release)}
    yield Package(f"cuda-nvcc-{dashed}", version, files=nvcc)
    yield from (Package(f"{name}-{dashed}", version) for name in ("libcublas", "libcublas-dev", "cuda-cudart-dev"))
    yield Package(f"cuda-toolkit-{dashed}", version, depends=(f"cuda-nvcc-{dashed}", f"libcublas-{dashed}"))
    yield Package(f"cuda-libraries-{dashed}", version, depends=(f"libcublas-{dashed}",))
    yield Package(f"cuda-runtime-{dashed}", version, depends=(f"cuda-libraries-{dashed}", "cuda-drivers (>= 520)"))
    yield Package(f"cuda-demo-suite-{dashed}", version, depends=(f"cuda-runtime-{dashed}",))
    brings = ("cuda-toolkit", "cuda-runtime", "cuda-demo-suite")
    yield Package(f"cuda-{dashed}", version, depends=tuple(f"{name}-{dashed}" for name in brings))


def list_offers(offer: Offer, directory: str, scratch: Path) -> Iterator[Package]:
    """Yield the additional packages in the variant ``offer`` of NVIDIA's repository ``directory``."""
    if offer == "same-branch":  # as Debian's own
        yield from driver.debian_packages(driver.make_driver("535.309.01", scratch))
        return
    revision = "1ubuntu1" if directory.startswith("ubuntu") else "1"
    for version in _FABRIC[offer]:
        yield from make_fabric(f"{version}-{revision}")
    yield from (Package(name, version) for name, version in _FREE.items())
    for release, version in _TOOLKITS.items():
        yield from make_toolkit(release, version)
    yield Package(
        "cuda-compat-13-2", "595.91.07-1", files={"/usr/local/cuda-13.2/compat/libcuda.so.595.91.07": "compat\n"}
    )


# Preparations of a node.


def run_shell(script: str) -> Prepare:
    """Return the preparation by a shell script, as root."""

    def prepare(node: Chroot, lab: Lab) -> None:
        node.run("sh", "-ec", script, env=NONINTERACTIVE)

    return prepare


def write(path: str, text: str, mode: int = 0o644) -> Prepare:
    """Return the preparation that writes a file."""

    def prepare(node: Chroot, lab: Lab) -> None:
        node.write(path, text, mode)

    return prepare


def both(*parts: Prepare) -> Prepare:
    """Return the preparation by ``parts``, in turn."""

    def prepare(node: Chroot, lab: Lab) -> None:
        for part in parts:
            part(node, lab)

    return prepare


def have_old_driver(node: Chroot, lab: Lab) -> None:
    """Install the distribution's old driver, from its own archive."""
    install_old_driver(node)


def add_cuda_archive(
    node: Chroot, lab: Lab, *, keyring: str = "/usr/share/keyrings/nvidia.gpg", path: str = ""
) -> None:
    """Add NVIDIA's repository of this release by a list of the user's own."""
    directory = DIRECTORIES[_system_of(node)]
    _key(lab, directory).write_keyring(node.path(keyring))
    line = f"deb [signed-by={keyring}] {lab.repositories.cuda}/{directory}/x86_64/ /\n"
    node.write(path or "/etc/apt/sources.list.d/nvidia.list", line)
    node.run("apt-get", "update")


def install(*names: str) -> Prepare:
    """Return the preparation that installs packages by apt."""

    def prepare(node: Chroot, lab: Lab) -> None:
        node.run("apt-get", "-y", "install", *names, env=NONINTERACTIVE)

    return prepare


def install_files(*packages: Package) -> Prepare:
    """Return the preparation that installs packages that are in no archive."""

    def prepare(node: Chroot, lab: Lab) -> None:
        folder = node.path("/root/local")
        build_all(packages, folder)
        node.run("sh", "-ec", "dpkg -i /root/local/*.deb", env=NONINTERACTIVE)

    return prepare


def offer_locally(*packages: Package) -> Prepare:
    """Return the preparation that adds an archive of ``packages`` in a folder of the node."""

    def prepare(node: Chroot, lab: Lab) -> None:
        folder = node.path("/srv/offered")
        build_all(packages, folder)
        publish(folder, Release("Site", "Site"), lab.repositories.keys.stranger)
        node.write("/etc/apt/sources.list.d/offered.list", "deb [trusted=yes] file:/srv/offered ./\n")
        node.run("apt-get", "update")

    return prepare


def set_up(*options: str) -> Prepare:
    """Return the preparation by a former setup with the state's recipe."""

    def prepare(node: Chroot, lab: Lab) -> None:
        setup_ok(node, *options)

    return prepare


def _system_of(node: Chroot) -> System:
    text = node.read("/usr/lib/os-release")
    return next(name for name in DIRECTORIES if f"VERSION_CODENAME={name}\n" in text)


def _key(lab: Lab, directory: str) -> Key:
    return lab.repositories.keys.of(directory)


# A driver of NVIDIA's .run installer.

RUN_VERSION: Final = "535.54.03"
LIBRARIES: Final = "/usr/lib/x86_64-linux-gnu"
RUN_BLACKLIST: Final = "/etc/modprobe.d/nvidia-installer-disable-nouveau.conf"
RUN_FILES: Final = (
    *(f"{LIBRARIES}/lib{name}.so.{RUN_VERSION}" for name in ("cuda", "nvidia-ml", "nvidia-ptxjitcompiler")),
    *(f"/usr/bin/nvidia-{name}" for name in ("smi", "persistenced", "modprobe")),
)
RUN_LINKS: Final = {f"{LIBRARIES}/{name}.so.1": f"{name}.so.{RUN_VERSION}" for name in ("libcuda", "libnvidia-ml")}
RUN_LOG: Final = "/var/log/nvidia-installer.log"
# Removes the files in its list and then itself; nvidia-smi was edited, so it stays. Its exit status means nothing.
UNINSTALLER: Final = """\
#!/bin/sh
[ "$*" = "--uninstall --silent" ] || exit 2
while read -r path; do [ "$path" = /usr/bin/nvidia-smi ] || rm -f "$path"; done < /var/lib/nvidia/log
rm -rf /var/lib/nvidia /usr/bin/nvidia-installer /usr/bin/nvidia-uninstall
exit 1
"""


def install_run_driver(node: Chroot, uninstaller: str = UNINSTALLER, *, has_link: bool = True) -> None:
    """Write the files as NVIDIA's installer does: without DKMS, and with its list and its uninstaller."""
    module = f"/lib/modules/{node.kernel}/kernel/drivers/video/nvidia.ko"
    for path in (*RUN_FILES, module):
        node.write(path, f"{path} of {RUN_VERSION}\n", mode=0o755 if path.startswith("/usr/bin") else 0o644)
    for path, target in RUN_LINKS.items():
        node.path(path).symlink_to(target)
    node.write(RUN_BLACKLIST, "blacklist nouveau\noptions nouveau modeset=0\n")
    listed = (*RUN_FILES, *RUN_LINKS, RUN_BLACKLIST, module)
    node.write("/var/lib/nvidia/log", "".join(f"{path}\n" for path in listed))
    node.write(RUN_LOG, "nvidia-installer log file\n")
    node.write("/usr/bin/nvidia-installer", uninstaller, mode=0o755)
    if has_link:
        node.path("/usr/bin/nvidia-uninstall").symlink_to("nvidia-installer")


def have_run_driver(node: Chroot, lab: Lab) -> None:
    """Install a complete driver of the .run installer."""
    install_run_driver(node)


def lose_uninstaller(node: Chroot, lab: Lab) -> None:
    """Remove the .run installer's own programs and lists."""
    node.run("rm", "-r", "/usr/bin/nvidia-installer", "/usr/bin/nvidia-uninstall", "/var/lib/nvidia")


_RUN_TOOLKIT: Final = both(
    write("/usr/local/cuda-12.6/bin/nvcc", _NVCC.replace("@RELEASE@", "12.6"), 0o755),
    write("/usr/local/cuda-12.6/bin/cuda-uninstaller", "#!/bin/sh\nexit 1\n", 0o755),
    write("/usr/local/cuda-12.6/version.json", "{}\n"),
    write("/etc/ld.so.conf.d/cuda-12-6.conf", "/usr/local/cuda-12.6/targets/x86_64-linux/lib\n"),
    run_shell("ln -s cuda-12.6 /usr/local/cuda"),
)

# Secure Boot: the firmware is a folder in place of efivarfs.

_EFIVARS: Final = "/sys/firmware/efi/efivars"
_SHIM: Final = "605dab50-e046-4300-abb6-3dd810dd8b23"
_MOKUTIL: Final = f'#!/bin/sh\nEFIVARFS_PATH={_EFIVARS}/ exec /usr/bin/mokutil "$@"\n'
# As DKMS makes it, but of a size that is quick to generate.
_MAKE_KEY: Final = """\
mkdir -p /var/lib/dkms
openssl req -new -x509 -nodes -days 36500 -subj "/CN=DKMS module signing key" -newkey rsa:2048 \\
  -keyout /var/lib/dkms/mok.key -outform DER -out /var/lib/dkms/mok.pub
chmod 600 /var/lib/dkms/mok.key
"""


def switch_secure_boot(is_on: bool) -> Prepare:
    """Return the preparation of a firmware that booted with Secure Boot on, or off; without keys of its owner."""

    def prepare(node: Chroot, lab: Lab) -> None:
        node.sandbox.mount("-t", "tmpfs", "tmpfs", node.merged / "sys/firmware")
        node.path(_EFIVARS).mkdir(parents=True)
        variable = node.path(f"{_EFIVARS}/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c")
        variable.write_bytes(b"\x06\0\0\0" + bytes([is_on]))
        node.write("/usr/local/bin/mokutil", _MOKUTIL, 0o755)

    return prepare


def enrol_key(node: Chroot, lab: Lab) -> None:
    """Create a key for kernel modules that is already enrolled."""
    node.run("sh", "-ec", _MAKE_KEY)
    certificate = node.path("/var/lib/dkms/mok.pub").read_bytes()
    # EFI_SIGNATURE_LIST of type X509, one signature with its owner. Source: UEFI specification 2.10, 32.4.1.
    size = 16 + len(certificate)
    kind = bytes.fromhex("a159c0a5e494a74a87b5ab155c2bf072")
    header = kind + (28 + size).to_bytes(4, "little") + bytes(4) + size.to_bytes(4, "little") + bytes(16)
    node.path(f"{_EFIVARS}/MokListRT-{_SHIM}").write_bytes(b"\x06\0\0\0" + header + certificate)


def boot_with(arguments: str) -> Prepare:
    """Return the preparation of a kernel that was started with ``arguments``."""

    def prepare(node: Chroot, lab: Lab) -> None:
        node.write("/root/cmdline", f"BOOT_IMAGE=/boot/vmlinuz root=/dev/vda1 ro {arguments}\n")
        node.sandbox.bind(node.merged / "root/cmdline", node.merged / "proc/cmdline")

    return prepare


_PASSWORD: Final = both(write("/root/password", "chosen2026\n", 0o600))
_WITH_PASSWORD: Final = ("--mok-password-file", "/root/password")


# Debian's own driver from its non-free archive: all of it real except the compilation, which takes minutes.

_QUICK_BUILD: Final = """\
#!/bin/sh
# In place of NVIDIA's Makefile: one small module, five times.
set -e
printf 'obj-m := nvidia.o\\nccflags-y := -DLAB_VERSION=\\"%s\\" -DLAB_LICENSE=\\"NVIDIA\\"\\n' "$2" > Kbuild
cp /usr/lib/lab/nvidia.c nvidia.c
make -C "/lib/modules/$1/build" M="$PWD" modules
for name in modeset drm uvm peermem; do cp nvidia.ko "nvidia-$name.ko"; done
"""
_QUICK_CONF: Final = 'MAKE[0]="sh /usr/lib/lab/quick-build $kernelver $PACKAGE_VERSION"\n'


def offer_own_driver(node: Chroot, lab: Lab) -> None:
    """Offer Debian's own driver, and the tools that enrol keys, as fetched from its archive."""
    try:
        debs = nonfree.provide(node.base, nonfree.DRIVER, lab.folder / f"fetch-{node.base.codename}")
    except NoArchive as error:
        pytest.skip(f"no driver of Debian's without its archive: {error}")
    line = nonfree.offer(debs, lab.repositories.root, node.base, lab.repositories.keys.debian)
    node.write("/etc/apt/sources.list.d/own.list", line)
    node.run("apt-get", "update")


def make_build_quick(node: Chroot, lab: Lab) -> None:
    """Make DKMS build a small module in place of Debian's own driver."""
    node.write("/usr/lib/lab/quick-build", _QUICK_BUILD)
    node.write("/usr/lib/lab/nvidia.c", (NATIVE / "nvidia.c").read_text())
    node.write("/etc/dkms/nvidia-current.conf", _QUICK_CONF)


def have_own_driver(node: Chroot, lab: Lab) -> None:
    """Install Debian's own driver as its release notes do."""
    offer_own_driver(node, lab)
    make_build_quick(node, lab)
    node.run("apt-get", "-y", "--no-install-recommends", "install", *OWN_PACKAGES, env=NONINTERACTIVE)


def have_nvidias_535(node: Chroot, lab: Lab) -> None:
    """Install NVIDIA's driver of the branch that Debian packages itself."""
    offer_own_driver(node, lab)
    make_build_quick(node, lab)
    add_cuda_archive(node, lab)
    wanted = ("nvidia-driver-cuda", "nvidia-kernel-dkms")
    node.run("apt-get", "-y", "install", "nvidia-driver-pinning-535", env=NONINTERACTIVE)
    node.run("apt-get", "-y", "install", *wanted, env=NONINTERACTIVE)


OWN_VERSIONS: Final = {"bookworm": "535.309.01-0+deb12u1", "trixie": "550.163.01-2"}
OWN_PACKAGES: Final = ("libcuda1", "nvidia-smi", "nvidia-kernel-dkms", "nvidia-persistenced")


# Once the index is read, plan names the packages to remove exactly.
_SOURCES: Final = tuple(
    word for step in ("cuda-repository", "toolkit-repository", "driver-pin") for word in ("--only", step)
)
_PLAYER: Final = Package("lab-player", "1.0", depends=("xserver-xorg-video-nvidia",))
_UNPACK: Final = "cd /tmp; apt-get download -q libglx-nvidia0 nvidia-vdpau-driver; dpkg --unpack *.deb; rm *.deb"
_BESIDE: Final = ("datacenter-gpu-manager-4-core", "libnccl2", "libcudnn9-cuda-12", "libnvinfer10")
_HWLOC: Final = (Package("libxnvctrl0", "525.85.05-3"), Package("lab-hwloc", "1", depends=("libxnvctrl0",)))
_DOCKER2: Final = Package("nvidia-docker2", "2.13.0-1", files={"/etc/docker/daemon.json": "{}\n"})
_DOCKER2_LIST: Final = (
    "/etc/apt/sources.list.d/nvidia-docker.list",
    "# deb https://nvidia.github.io/nvidia-docker /\n",
)


# Containers, and damaged packages.

_K3S_FOLDER: Final = "/var/lib/rancher/k3s/agent/etc"
_K3S: Final = both(
    write("/usr/local/bin/k3s", "#!/bin/sh\necho 'k3s version v1.33.5+k3s1 (abcdef01)'\n", 0o755),
    write("/etc/systemd/system/k3s.service", "[Service]\nExecStart=/usr/local/bin/k3s server\n"),
    write(f"{_K3S_FOLDER}/crictl.yaml", "runtime-endpoint: unix:///run/k3s/containerd/containerd.sock\n"),
    write(f"{_K3S_FOLDER}/containerd/config.toml", (VECTORS / "019-ctd-k3s-v3/input.toml").read_text()),
)
_OLDER_TOOLKIT: Final = both(
    install_files(Package("libnvidia-container1", "1.18.0-1")),
    run_shell("apt-mark hold libnvidia-container1"),
)
_DCGM: Final = Package("datacenter-gpu-manager-4-core", "4.5.2-1", files={"/usr/bin/dcgmi": "#!/bin/sh\n"})
# The state of a package whose unpacking was killed, and of one whose script fails.
_KILL_UNPACKING: Final = f"""\
apt-get -y install {_DCGM.name}
rm /usr/bin/dcgmi
sed -i '/^Package: {_DCGM.name}$/,/^$/s/^Status: .*/Status: install reinstreq half-installed/' /var/lib/dpkg/status
"""
_FAILING: Final = Package(
    _DCGM.name, _DCGM.version, scripts={"postinst": "#!/bin/sh\necho 'no driver is loaded' >&2\nexit 1\n"}
)
# Preferences files that apt reads before gpunode's, after them, or not at all.
_PREFERENCES: Final = "/etc/apt/preferences.d"
_ALL: Final = "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n"
_PIN_600: Final = f"Package: nsight-compute\nPin: origin *ubuntu.com*\nPin-Priority: -1\n\n{_ALL}"
_PIN_580: Final = "Package: /nvidia|libcuda/\nPin: version 580.*\nPin-Priority: 1002\n"
_PIN_OUT: Final = "Package: libcuda1 nvidia-*\nPin: release l=NVIDIA CUDA\nPin-Priority: -1\n"
_SERVER: Final = "535.288.01-0ubuntu0.24.04.1"


def make_server_driver() -> Iterator[Package]:
    """The data-center driver of Ubuntu's own archive, by names and relations of its source package."""

    def named(name: str, *depends: str, brings: str = "") -> Package:
        exact = tuple(f"{one} (= {_SERVER})" for one in depends)
        virtual = (brings,) if brings else ()
        return Package(name, _SERVER, depends=exact, conflicts=virtual, provides=virtual)

    yield named("nvidia-firmware-535-server-535.288.01")
    yield named(
        "nvidia-kernel-common-535-server", "nvidia-firmware-535-server-535.288.01", brings="nvidia-kernel-common"
    )
    yield named("nvidia-kernel-source-535-server", brings="nvidia-kernel-source")
    yield named("nvidia-dkms-535-server", "nvidia-kernel-common-535-server", brings="nvidia-dkms-kernel")
    yield named("libnvidia-compute-535-server", brings="libnvidia-compute")
    yield named("libnvidia-cfg1-535-server", brings="libnvidia-cfg1")
    yield named("nvidia-utils-535-server", "libnvidia-compute-535-server", brings="nvidia-utils")
    needs = ("nvidia-dkms-535-server", "nvidia-kernel-source-535-server", "libnvidia-cfg1-535-server")
    yield named("nvidia-driver-535-server", *needs, "nvidia-utils-535-server", brings="nvidia-driver-binary")


# Settings of apt, dpkg and DKMS, and packages that the user built.

_APT_SITE: Final = "/etc/apt/apt.conf.d/99site"
_DUMMY: Final = Package("libcuda1", "999-1")
_WRAPPED: Final = """\
dpkg-divert --local --rename --divert /usr/bin/nvidia-smi.real --add /usr/bin/nvidia-smi
dpkg-statoverride --force-statoverride-add --add root root 0700 /usr/bin/nvidia-persistenced
"""


# Old ways to add the same archive, and other leftovers.

_ANSIBLE: Final = """\
# Ansible managed
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "registry.example/pause:3.9"
"""
_BROKEN_MODULE: Final = """\
mkdir -p /usr/src/other-1.0
cat > /usr/src/other-1.0/dkms.conf <<'END'
PACKAGE_NAME="other"
PACKAGE_VERSION="1.0"
BUILT_MODULE_NAME[0]="other"
DEST_MODULE_LOCATION[0]="/updates/dkms"
AUTOINSTALL="yes"
MAKE[0]="false"
END
dkms add -m other -v 1.0
"""
_STALE_DKMS: Final = """\
mkdir -p /usr/src/nvidia-525.60.13 /var/lib/dkms/nvidia/525.60.13
printf 'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="525.60.13"\nBUILT_MODULE_NAME[0]="nvidia"\n' \
  > /usr/src/nvidia-525.60.13/dkms.conf
printf 'DEST_MODULE_LOCATION[0]="/updates/dkms"\nAUTOINSTALL="yes"\n' >> /usr/src/nvidia-525.60.13/dkms.conf
ln -s /usr/src/nvidia-525.60.13 /var/lib/dkms/nvidia/525.60.13/source
"""


def trust_by_apt_key(node: Chroot, lab: Lab) -> None:
    """Add NVIDIA's repository as old guides do: its key is trusted for every archive, its list names none."""
    add_cuda_archive(node, lab, keyring="/etc/apt/trusted.gpg.d/nvidia.gpg")
    listed = node.path("/etc/apt/sources.list.d/nvidia.list")
    listed.write_text(listed.read_text().replace("[signed-by=/etc/apt/trusted.gpg.d/nvidia.gpg] ", ""))
    node.run("apt-get", "update")


def list_in_main_file(node: Chroot, lab: Lab) -> None:
    """Add NVIDIA's repository to apt's main list, among the distribution's lines."""
    add_cuda_archive(node, lab, path="/etc/apt/sources.list")


def embed_key(node: Chroot, lab: Lab) -> None:
    """Add NVIDIA's repository in deb822 form, with an embedded key."""
    directory = DIRECTORIES[_system_of(node)]
    key = "".join(f" {line or '.'}\n" for line in _key(lab, directory).armored.splitlines())
    fields = f"Types: deb\nURIs: {lab.repositories.cuda}/{directory}/x86_64/\nSuites: /\nSigned-By:\n{key}"
    node.write("/etc/apt/sources.list.d/nvidia.sources", fields)
    node.run("apt-get", "update")


def list_other_release(node: Chroot, lab: Lab) -> None:
    """Add NVIDIA's repository for another distribution."""
    keyring = "/usr/share/keyrings/other.gpg"
    _key(lab, "ubuntu2204").write_keyring(node.path(keyring))
    line = f"deb [signed-by={keyring}] {lab.repositories.cuda}/ubuntu2204/x86_64/ /\n"
    node.write("/etc/apt/sources.list.d/other.list", line)


def list_local_mirror(node: Chroot, lab: Lab) -> None:
    """Add an archive of the user's own in a folder."""
    folder = node.path("/srv/local")
    build_all([Package("lab-tool", "1")], folder)
    node.run("sh", "-ec", "cd /srv/local && : > Packages")
    node.write("/etc/apt/sources.list.d/local.list", "deb [trusted=yes] file:/srv/local ./\n")


def fill_boot(node: Chroot, lab: Lab) -> None:
    """Mount a separate /boot with hardly any space left."""
    script = """
mkdir /mnt/room
mount -t tmpfs -o size=16m room /mnt/room
cp -a /boot/. /mnt/room
head -c "$(($(df -k --output=avail /mnt/room | tail -1) - 300))"k /dev/zero > /mnt/room/filler
mount --move /mnt/room /boot
"""
    node.run("sh", "-ec", script)


def add_stray_module(place: str) -> Prepare:
    """Return the preparation that puts a module called nvidia of another driver into ``place`` of the kernel."""

    def prepare(node: Chroot, lab: Lab) -> None:
        node.write("/root/stray/nvidia.c", (NATIVE / "nvidia.c").read_text())
        text = 'obj-m := nvidia.o\nccflags-y := -DLAB_VERSION=\\"470.1\\" -DLAB_LICENSE=\\"NVIDIA\\"\n'
        node.write("/root/stray/Makefile", text)
        folder = f"/lib/modules/{node.kernel}"
        build = f"make -C {folder}/build M=/root/stray modules"
        node.run(
            "sh", "-ec", f"{build}; install -D /root/stray/nvidia.ko {folder}/{place}/nvidia.ko; depmod {node.kernel}"
        )

    return prepare


def mount_tmp_noexec(node: Chroot, lab: Lab) -> None:
    """Mount a /tmp from which no program can run."""
    node.run("mount", "-t", "tmpfs", "-o", "noexec,mode=1777", "tmp", "/tmp")


_NVIDIA_ARCHIVE: Final[tuple[Prepare, ...]] = (add_cuda_archive,)
# The lab's nvidia-kernel-support has a file with the name of a link that update-alternatives made for Debian's: dpkg
# unpacks it next to the link, which is gone when the package is configured, and leaves it there.
_LEFT_BY_DPKG: Final = r"/etc/modprobe\.d/nvidia-blacklists-nouveau\.conf\.dpkg-new"
_OLD: Final[tuple[Prepare, ...]] = (have_old_driver,)
_CUDA: Final = '[cuda]\nversion = "{}"\n'


_MANAGED: Final = ("nvidia-fabricmanager", "libnvidia-nscq")
_EVERY_FABRIC: Final = ("nvidia-fabricmanager", "libnvidia-nscq", "libnvsdm", "nvidia-imex", *_FREE)


def _fabric(version: str, *names: str, free: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the required packages of every fabric: ``names`` at the driver's version, and ``free``."""
    return {**dict.fromkeys(_EVERY_FABRIC, ""), **dict.fromkeys(names, version), **free}


_OPEN: Final = {"nvidia-kernel-open-dkms": TURING, "nvidia-kernel-dkms": ""}
_CLOSED: Final = {"nvidia-kernel-dkms": PASCAL, "nvidia-kernel-open-dkms": ""}
_WITHOUT_META: Final = {**_CLOSED, "cuda-12-6": "", "cuda-drivers": "", "cuda-toolkit-12-6": "12.6.3-1"}
_OPEN_MODULES: Final = '[driver]\nkernel_module_type = "open"\n'
_DISTRO: Final = ("--driver-source", "distro")
_NONE: Final = {"nvidia-kernel-dkms": "", "nvidia-kernel-open-dkms": ""}
_SWITCHED: Final = _fabric(TURING, "nvidia-fabricmanager", "libnvidia-nscq")

STATES: Final = (
    # A fresh machine.
    State("t4", "nothing of NVIDIA's; T4", installed=_OPEN, core=True),
    State("t4-trixie", "nothing of NVIDIA's; T4", "trixie", installed=_OPEN),
    State("pascal", "nothing of NVIDIA's; GTX 1080", devices=(GTX_1080,), installed=_CLOSED),
    State("pascal-trixie", "nothing of NVIDIA's; GTX 1080", "trixie", (GTX_1080,), installed=_CLOSED),
    State("t4-jammy", "nothing of NVIDIA's; T4", "jammy", installed={"nvidia-dkms-open": UBUNTU_TURING}),
    State("t4-noble", "nothing of NVIDIA's; T4", "noble", installed={"nvidia-dkms-open": UBUNTU_TURING}),
    State("pascal-jammy", "nothing of NVIDIA's; GTX 1080", "jammy", (GTX_1080,),
          installed={"nvidia-dkms-580": UBUNTU_PASCAL, "linux-headers-generic": "5.15.0.161"}, core=True),
    State("pascal-noble", "nothing of NVIDIA's; GTX 1080", "noble", (GTX_1080,),
          installed={"nvidia-dkms-580": UBUNTU_PASCAL}),
    State("unknown-gpu", "an unlisted GPU", devices=(UNKNOWN,), says="7ffe",
          installed={"nvidia-kernel-open-dkms": "620.70.06-1"}),
    State("no-gpu", "no NVIDIA GPU", devices=(), end="refused", says="/sys/bus/pci/devices lists 1 ", core=True),
    State("no-common-driver", "B200 and GTX 980", devices=(B200, MAXWELL), end="refused", says="GTX 980",
          core=True),
    # Machines with NVSwitches, with packages on offer that are wrong in the last digit.
    State("hgx-a100", "HGX A100", devices=(A100, A100_NVSWITCH), installed=_SWITCHED, offered="full"),
    State("hgx-h100", "HGX H100", devices=(H100, NVSWITCH), installed=_SWITCHED, offered="full"),
    State("hgx-h200", "HGX H200", "trixie", (H200, NVSWITCH), installed=_SWITCHED, offered="full"),
    State("hgx-b200", "HGX B200", "trixie", (B200,),
          installed=_fabric(TURING, "nvidia-fabricmanager", "libnvsdm", free=_FREE), offered="full"),
    State("hgx-b300", "HGX B300", devices=(B300,),
          installed=_fabric(TURING, "nvidia-fabricmanager", "libnvsdm", free=_FREE), offered="full"),
    State("hgx-bridge", "HGX with an unlisted GPU, recognized by its bridge", devices=(UNLISTED, *BRIDGES),
          installed=_fabric("620.70.06-1", "nvidia-fabricmanager", "libnvsdm", free=_FREE),
          says="ConnectX bridge 0000:06:00.0", offered="full"),
    State("gb200", "GB200 with its switches in other trays", devices=(GB200,),
          installed=_fabric(TURING, "nvidia-imex"), says="nodes_config.cfg", offered="full"),
    State("gb200-noble", "GB200 with its switches in other trays", "noble", (GB200,),
          installed={"nvidia-dkms-open": UBUNTU_TURING, "nvidia-imex": UBUNTU_TURING}, says="nodes_config.cfg",
          offered="full"),
    State("hgx-h100-580", "HGX H100; driver 580 requested", devices=(H100, NVSWITCH), options=("--driver", "580"),
          installed=_fabric(PASCAL, "nvidia-fabricmanager", "libnvidia-nscq"), offered="full"),
    State("hgx-h100-noble", "HGX H100", "noble", (H100, NVSWITCH),
          installed={"nvidia-fabricmanager": UBUNTU_TURING, "libnvidia-nscq": UBUNTU_TURING}, offered="full"),
    State("hgx-a100-jammy", "HGX A100", "jammy", (A100, A100_NVSWITCH), options=("--driver", "580"),
          installed={"nvidia-fabricmanager": UBUNTU_PASCAL, "libnvidia-nscq": UBUNTU_PASCAL}, offered="full"),
    State("hgx-mismatched", "HGX H100; every available fabric manager has another last digit", devices=(H100, NVSWITCH),
          end="stopped", says="in version 595.91.07, that of the driver", offered="mismatched", core=True),
    State("hgx-mismatched-a100", "HGX A100; every available fabric manager has another last digit", "trixie",
          (A100, A100_NVSWITCH), end="stopped", says="in version 595.91.07, that of the driver", offered="mismatched"),
    State("hgx-mismatched-b200", "HGX B200; every available fabric manager has another last digit", devices=(B200,),
          end="stopped", says="in version 595.91.07, that of the driver", offered="mismatched"),
    State("hgx-wrong-manager", "HGX H100; driver 580 with a fabric manager with another last digit",
          devices=(H100, NVSWITCH),
          prepare=(set_up("--driver", "580"), install_files(*(Package(name, "580.178.03-1") for name in _MANAGED))),
          installed=_fabric(PASCAL, "nvidia-fabricmanager", "libnvidia-nscq"), offered="full"),
    State("hgx-old-manager", "HGX H100 with only the fabric manager of branch 535", devices=(H100, NVSWITCH),
          prepare=(install_files(Package("nvidia-fabricmanager-535", "535.54.03-1")),),
          end="refused", says="no archive has nvidia-fabricmanager-535", offered="full"),
    State("nvl-manager", "H100 NVL without switches; a fabric manager is enabled", devices=(H100_NVL,),
          prepare=(install_files(*make_fabric("595.91.07-1")),), installed=_OPEN, offered="full"),
    # CUDA.
    State("cuda-pascal", "CUDA requested; GTX 1080", devices=(GTX_1080,), more=_CUDA.format("auto"),
          installed={"cuda-toolkit-12-9": "12.9.1-1", "cuda-toolkit-13-2": "", "cuda-drivers": ""}, offered="full"),
    State("cuda-t4", "CUDA requested; T4", "trixie", more=_CUDA.format("auto"),
          installed={"cuda-toolkit-13-2": "13.2.0-1", "cuda-drivers": ""}, offered="full"),
    State("cuda-hgx", "CUDA requested; HGX H100", devices=(H100, NVSWITCH), more=_CUDA.format("auto"),
          installed={**_SWITCHED, "cuda-toolkit-13-2": "13.2.0-1"}, offered="full", core=True),
    State("cuda-parts", "nvcc and cuBLAS of CUDA 12.9 requested",
          more=_CUDA.format("12.9") + 'parts = ["nvcc", "cublas"]\n',
          installed={"cuda-nvcc-12-9": "12.9.1-1", "libcublas-12-9": "12.9.1-1", "cuda-toolkit-12-9": ""},
          offered="full"),
    State("cuda-beyond", "CUDA 13.1 requested; GTX 1080", devices=(GTX_1080,), more=_CUDA.format("13.1"),
          end="refused", says="13.1", offered="full", core=True),
    State("cuda-noble", "CUDA requested; T4", "noble", more=_CUDA.format("auto"),
          installed={"cuda-toolkit-13-2": "13.2.0-1", "cuda-drivers": ""}, offered="full"),
    State("cuda-beside", "the user's own CUDA 12.6; 12.9 requested", more=_CUDA.format("12.9"),
          prepare=(add_cuda_archive, install("cuda-toolkit-12-6")),
          installed={"cuda-toolkit-12-6": "12.6.3-1", "cuda-toolkit-12-9": "12.9.1-1"}, offered="full"),
    State("cuda-meta", "cuda-12-6 with driver 620; GTX 1080", devices=(GTX_1080,),
          prepare=(add_cuda_archive, install("cuda-12-6", "nvidia-open")), says="cuda-12-6", installed=_WITHOUT_META,
          offered="full"),
    State("cuda-meta-open", "cuda-12-6 with driver 580; open modules requested",
          prepare=(add_cuda_archive, install("nvidia-driver-pinning-580"), install("cuda-12-6")),
          more=_OPEN_MODULES, says="cuda-12-6",
          installed={**_WITHOUT_META, "nvidia-kernel-dkms": "", "nvidia-kernel-open-dkms": PASCAL}, offered="full"),
    State("cuda-meta-kept", "cuda-12-6 with driver 580; GTX 1080", devices=(GTX_1080,),
          prepare=(add_cuda_archive, install("nvidia-driver-pinning-580"), install("cuda-12-6")),
          installed={**_CLOSED, "cuda-12-6": "12.6.3-1", "cuda-drivers": PASCAL}, offered="full"),
    State("cuda-compat", "cuda-compat of a newer driver", prepare=(add_cuda_archive, install("cuda-compat-13-2")),
          options=("--driver", "580"),
          installed={"cuda-compat-13-2": "595.91.07-1", "nvidia-kernel-open-dkms": PASCAL}, offered="full"),
    # Secure Boot.
    State("sb-off", "Secure Boot off", prepare=(switch_secure_boot(False),), installed=_OPEN),
    State("sb-new-key", "Secure Boot on, no key", prepare=(offer_own_driver, switch_secure_boot(True), _PASSWORD),
          options=_WITH_PASSWORD, end="waits", installed=_NONE),
    State("sb-new-key-trixie", "Secure Boot on, no key", "trixie",
          prepare=(offer_own_driver, switch_secure_boot(True), _PASSWORD), options=_WITH_PASSWORD, end="waits",
          installed=_NONE),
    State("sb-enrolled", "Secure Boot on, a key enrolled", prepare=(switch_secure_boot(True), enrol_key),
          installed=_OPEN),
    State("sb-enrolled-trixie", "Secure Boot on, a key enrolled", "trixie",
          prepare=(switch_secure_boot(True), enrol_key), installed=_OPEN),
    State("sb-no-certificate", "Secure Boot on, incomplete key: no certificate",
          prepare=(switch_secure_boot(True), enrol_key, run_shell("rm /var/lib/dkms/mok.pub")), end="refused",
          says="half of this machine's key for kernel modules is gone"),
    State("sb-no-private-key", "Secure Boot on, incomplete key: an empty private key",
          prepare=(switch_secure_boot(True), enrol_key, run_shell(": > /var/lib/dkms/mok.key")), end="refused",
          says="half of this machine's key for kernel modules is gone"),
    State("signed-only", "Secure Boot off, a kernel that loads only signed modules",
          prepare=(switch_secure_boot(False), boot_with("module.sig_enforce=1")), end="refused",
          says="module.sig_enforce=1"),
    State("sb-own", "Secure Boot on, a key enrolled; Debian's own driver requested", devices=(GTX_1080,),
          prepare=(offer_own_driver, make_build_quick, switch_secure_boot(True), enrol_key), options=_DISTRO,
          end="applied", installed={"nvidia-kernel-dkms": OWN_VERSIONS["bookworm"]}),
    State("sb-own-trixie", "Secure Boot on, a key enrolled; Debian's own driver requested", "trixie", (GTX_1080,),
          prepare=(offer_own_driver, make_build_quick, switch_secure_boot(True), enrol_key), options=_DISTRO,
          end="applied", installed={"nvidia-kernel-dkms": OWN_VERSIONS["trixie"]}),
    State("sb-own-new-key", "Secure Boot on, no key; Debian's own driver requested", devices=(GTX_1080,),
          prepare=(offer_own_driver, switch_secure_boot(True), _PASSWORD), options=(*_DISTRO, *_WITH_PASSWORD),
          end="waits", installed=_NONE),
    # The .run installer.
    State("run", "a .run driver", prepare=(have_run_driver,), end="refused", says="--remove-runfile-driver",
          core=True),
    State("run-removed", "a .run driver, to be removed", devices=(GTX_1080,), prepare=(have_run_driver,),
          options=("--remove-runfile-driver",), installed=_CLOSED,
          lost=r"/etc/modprobe\.d/nvidia-installer.*|/usr/.*|/var/lib/nvidia.*"),
    State("run-remains", "a .run driver without its uninstaller", prepare=(have_run_driver, lose_uninstaller),
          end="refused", says="belong to no package"),
    State("run-noble", "a .run driver", "noble", prepare=(have_run_driver,), end="refused",
          says="--remove-runfile-driver"),
    State("run-toolkit", "a .run toolkit 12.6", prepare=(_RUN_TOOLKIT,), installed=_OPEN, says="/usr/local/cuda-12.6"),
    State("run-toolkit-same", "a .run toolkit 12.9; CUDA 12.9 requested",
          prepare=(write("/usr/local/cuda-12.9/bin/nvcc", "foreign\n", 0o755),), more=_CUDA.format("12.9"),
          end="refused", says="/usr/local/cuda-12.9", offered="full"),
    # Drivers of other packagers.
    State("old", "Debian's driver 470", devices=(GTX_1080,), prepare=_OLD, installed=_CLOSED),
    State("old-trixie", "Debian's driver 470 for data centers", "trixie", (GTX_1080,), prepare=_OLD,
          installed=_CLOSED),
    State("old-needed", "Debian's driver 470; a package needs its X module",
          prepare=(have_old_driver, install_files(_PLAYER), set_up(*_SOURCES)),
          says="needed by lab-player", installed={**_OPEN, "lab-player": "1.0"}, core=True),
    State("old-unpacked", "Debian's driver 470 with two unpacked, unconfigured packages",
          prepare=(have_old_driver, run_shell(_UNPACK)),
          installed=_OPEN, lost="package (libglx-nvidia0|nvidia-vdpau-driver).*"),
    State("old-hgx", "Debian's driver 470; HGX A100", devices=(A100, A100_NVSWITCH), prepare=_OLD, installed=_SWITCHED,
          offered="full"),
    State("old-cuda", "Debian's driver 470; CUDA requested", devices=(GTX_1080,), prepare=_OLD,
          more=_CUDA.format("auto"), installed={**_CLOSED, "cuda-toolkit-12-9": "12.9.1-1"}, offered="full"),
    State("held", "driver 580 held; 595 requested",
          prepare=(set_up("--driver", "580"), run_shell("apt-mark hold nvidia-kernel-open-dkms libcuda1")),
          options=("--driver", "595"), end="refused", says="apt-mark unhold"),
    State("held-kernel", "held kernel packages",
          prepare=(run_shell("apt-mark hold linux-image-amd64 linux-headers-amd64"),), installed=_OPEN),
    State("other-branch", "driver 580; 595 requested", prepare=(set_up("--driver", "580"),),
          options=("--driver", "595"), installed=_OPEN),
    State("too-new", "driver 620; GTX 1080", devices=(GTX_1080,), prepare=(add_cuda_archive, install("nvidia-open")),
          installed=_CLOSED),
    State("pinned-other", "nvidia-driver-pinning-595; GTX 1080", devices=(GTX_1080,),
          prepare=(add_cuda_archive, install("nvidia-driver-pinning-595")), end="refused",
          says="nvidia-driver-pinning-595"),
    State("lost-library", "a driver without its libcuda1",
          prepare=(set_up(), run_shell("dpkg --purge --force-depends libcuda1")),
          installed={**_OPEN, "libcuda1": TURING},
          lost="package libcuda1"),
    State("dcgm", "DCGM, NCCL and cuDNN with driver 470", devices=(GTX_1080,),
          prepare=(have_old_driver, install_files(*(Package(name, "4.5.2-1") for name in _BESIDE))),
          installed={**_CLOSED, **dict.fromkeys(_BESIDE, "4.5.2-1")}),
    State("xnvctrl", "libxnvctrl0 of an X program",
          prepare=(install_files(*_HWLOC),),
          installed={**_OPEN, "lab-hwloc": "1"}),
    State("server", "Ubuntu's driver 535 for data centers", "noble",
          prepare=(offer_locally(*make_server_driver()), install("nvidia-driver-535-server")),
          installed={"nvidia-dkms-open": UBUNTU_TURING, "nvidia-driver-535-server": "", "nvidia-dkms-535-server": ""}),
    State("held-headers", "kernel headers held and not installed",
          prepare=(run_shell("apt-get -y purge 'linux-headers-*'; apt-mark hold linux-headers-$(uname -r)"),),
          end="stopped", says="apt-mark unhold linux-headers-"),
    State("held-dkms", "DKMS held and not installed",
          prepare=(run_shell("apt-get -y purge dkms; apt-mark hold dkms"),), end="stopped",
          says="apt-mark unhold dkms"),
    State("recommends", "apt configured to install recommended packages",
          prepare=(write(_APT_SITE, 'APT::Install-Recommends "true";\n'),), recipe="containerd",
          installed=_OPEN),
    State("dcgm-killed", "DCGM, dpkg killed while unpacking it",
          prepare=(offer_locally(_DCGM), run_shell(_KILL_UNPACKING)), installed={**_OPEN, _DCGM.name: _DCGM.version},
          lost=f"package {_DCGM.name}.*"),
    State("dcgm-lost", "DCGM, dpkg killed while unpacking it; in no archive",
          prepare=(offer_locally(_DCGM), run_shell(_KILL_UNPACKING),
                   run_shell("rm /etc/apt/sources.list.d/offered.list; apt-get update; apt-get clean")),
          end="stopped", says=_DCGM.name),
    State("dcgm-fails", "DCGM with a failing maintainer script",
          prepare=(offer_locally(_FAILING), run_shell(f"apt-get -y install {_FAILING.name} || true")), end="stopped",
          says=_FAILING.name),
    # Settings of apt, dpkg and DKMS.
    State("apt-downloads", "apt configured to download only",
          prepare=(write(_APT_SITE, 'APT::Get::Download-Only "true";\n'),), installed=_OPEN),
    State("apt-upgrades", "apt configured to upgrade only, to purge, and to install suggested packages",
          prepare=(write(_APT_SITE, 'APT { Get { Only-Upgrade "1"; Purge "1"; }; Install-Suggests "1"; };\n'),),
          installed=_OPEN),
    State("apt-keeps", "apt configured not to remove or upgrade; Debian's driver 470", devices=(GTX_1080,),
          prepare=(have_old_driver, write(_APT_SITE, 'APT::Get { Remove "false"; Upgrade "false"; };\n')),
          installed=_CLOSED),
    State("default-release", "a default release set for apt", recipe="containerd",
          prepare=(write(_APT_SITE, 'APT::Default-Release "bookworm";\n'),), installed=_OPEN),
    State("src-deleted", "kernel headers whose files somebody has deleted",
          prepare=(run_shell("rm -r /usr/src/linux-headers-*"),), end="refused", says="--reinstall linux-headers-"),
    State("dkms-elsewhere", "DKMS configured to keep its tree elsewhere",
          prepare=(run_shell("mkdir -p /srv/dkms; echo 'dkms_tree=/srv/dkms' >> /etc/dkms/framework.conf"),),
          installed=_OPEN),
    State("wrapped", "the user diverted nvidia-smi and closed nvidia-persistenced", "trixie",
          prepare=(run_shell(_WRAPPED),), installed=_OPEN),
    State("dummy", "the user's own empty libcuda1 999", prepare=(install_files(_DUMMY),), end="stopped",
          says="libcuda1 999-1"),
    State("kernel-without-headers", "a kernel whose headers are in no archive",
          prepare=(install_files(kernel_image("9.9.9-amd64", "9.9.9-1")),), end="stopped",
          says="linux-headers-9.9.9-amd64"),
    State("usr-read-only", "/usr mounted read-only", prepare=(run_shell("mount --bind -o ro /usr /usr"),),
          end="refused", says="read-only"),
    # Preferences of the user's own.
    State("pin-600", "NVIDIA's own preferences, cuda-repository-pin-600",
          prepare=(write(f"{_PREFERENCES}/cuda-repository-pin-600", _PIN_600),), installed=_OPEN),
    State("pin-contradicts", "the user's pin of driver 580, read first by apt; 595 requested",
          prepare=(write(f"{_PREFERENCES}/00-site", _PIN_580),), options=("--driver", "595"), end="stopped",
          says="00-site:1"),
    State("pin-later", "the user's pin of driver 580, read last by apt; 595 requested",
          prepare=(write(f"{_PREFERENCES}/zz-site", _PIN_580),), options=("--driver", "595"), installed=_OPEN),
    State("pin-out", "the user's pin against NVIDIA's packages", prepare=(write(f"{_PREFERENCES}/00-site", _PIN_OUT),),
          end="stopped", says="00-site:1"),
    # Other ways to NVIDIA's archive.
    State("own-list", "the user's own list for NVIDIA's archive", prepare=_NVIDIA_ARCHIVE, installed=_OPEN),
    State("apt-key", "NVIDIA's key for every archive, a list without one", prepare=(trust_by_apt_key,),
          installed=_OPEN),
    State("main-list", "NVIDIA's archive in apt's main list", prepare=(list_in_main_file,), end="refused",
          says="/etc/apt/sources.list", core=True),
    State("deb822", "NVIDIA's archive in a deb822 file with an embedded key", "trixie", prepare=(embed_key,),
          installed=_OPEN),
    State("other-release", "NVIDIA's archive for another release, also listed", prepare=(list_other_release,),
          installed=_OPEN),
    State("local-archive", "the user's own archive in a folder", prepare=(list_local_mirror,), installed=_OPEN),
    State("docker2", "nvidia-docker2 with its list",
          prepare=(install_files(_DOCKER2), write(*_DOCKER2_LIST)),
          recipe="containerd", says="nvidia-docker2", installed={**_OPEN, "nvidia-docker2": "2.13.0-1"}),
    # Container runtimes.
    State("k3s", "k3s with its own containerd", prepare=(_K3S,), recipe="k3s", says="k3s", installed=_OPEN),
    State("toolkit-held", "one package of the container toolkit held at an older version", prepare=(_OLDER_TOOLKIT,),
          recipe="containerd", end="stopped", says="apt-mark unhold libnvidia-container1"),
    # Other things found on machines.
    State("boot-missing", "a /boot that /etc/fstab lists, not mounted",
          prepare=(write("/etc/fstab", "LABEL=boot /boot ext4 defaults 0 2\n"),), end="refused",
          says="which is not mounted"),
    State("boot-read-only", "/boot mounted read-only", "trixie",
          prepare=(run_shell("mount --bind -o ro /boot /boot"),), end="refused", says="/boot is mounted read-only"),
    State("boot-full", "a full /boot", prepare=(fill_boot,), end="refused", says="/boot"),
    State("broken-module", "another module that DKMS cannot build", prepare=(run_shell(_BROKEN_MODULE),),
          installed=_OPEN),
    State("stale-dkms", "sources and a DKMS tree of a removed driver", prepare=(run_shell(_STALE_DKMS),),
          says="525.60.13", installed=_OPEN),
    State("stray-first", "a module without a package in updates", prepare=(add_stray_module("updates"),), end="refused",
          says="/updates/nvidia.ko in place of"),
    State("stray-below", "a module without a package in a folder below updates", "trixie",
          prepare=(add_stray_module("updates/nvidia-470"),), end="refused",
          says="/updates/nvidia-470/nvidia.ko in place of"),
    State("stray-last", "a module without a package in extra", prepare=(add_stray_module("extra"),),
          says="/extra/nvidia.ko: neither a package", installed=_OPEN),
    State("stray-preferred", "a module without a package in extra, which depmod prefers", "trixie",
          prepare=(add_stray_module("extra"), write("/etc/depmod.d/x.conf", "search extra updates built-in\n")),
          end="refused", says="/extra/nvidia.ko in place of"),
    State("stubs", "ld.so searches a folder of stubs",
          prepare=(write("/etc/ld.so.conf.d/000-cuda.conf", "/usr/local/cuda/lib64/stubs\n"),), says="stub",
          installed=_OPEN),
    State("noexec", "umask 077, i386, and a noexec /tmp", "trixie",
          prepare=(mount_tmp_noexec, run_shell("dpkg --add-architecture i386; printf 'umask 077\\n' >> /etc/profile")),
          installed=_OPEN),
    State("ansible", "a config.toml that Ansible manages", "trixie", prepare=(write(CONFIG, _ANSIBLE, 0o640),),
          recipe="containerd", says="Ansible", installed=_OPEN),
    State("record-lost", "a node that is set up but has no gpunode record",
          prepare=(set_up(), run_shell("rm -r /var/lib/gpunode")), says="record of this node was lost",
          installed=_OPEN),
    # Debian's own driver of the present.
    State("own-replaced", "Debian's own driver 535; NVIDIA's requested", devices=(GTX_1080,),
          prepare=(have_own_driver,), options=("--driver-source", "nvidia"), installed=_CLOSED, lost=_LEFT_BY_DPKG),
    State("own-replaced-trixie", "Debian's own driver 550; NVIDIA's requested", "trixie", prepare=(have_own_driver,),
          options=("--driver-source", "nvidia"), installed=_OPEN, lost=_LEFT_BY_DPKG),
    State("own-same-branch", "Debian's own driver 535; NVIDIA's of this branch requested", prepare=(have_own_driver,),
          options=("--driver", "535"), end="refused", says="the same branch 535 is wanted", offered="same-branch"),
    State("own-mixed", "Debian's own driver 535 with NVIDIA's nvidia-smi and NVML",
          prepare=(have_own_driver, add_cuda_archive, install("nvidia-smi=535.309.01-1", "libnvidia-ml1=535.309.01-1")),
          options=("--driver-source", "distro"), end="refused", says="nvidia-smi 535.309.01-1", offered="same-branch"),
    State("nvidias-535", "NVIDIA's driver 535; Debian's own of this branch requested", prepare=(have_nvidias_535,),
          options=("--driver-source", "distro"), end="refused", says="the same branch 535 is wanted",
          offered="same-branch"),
)  # fmt: skip
