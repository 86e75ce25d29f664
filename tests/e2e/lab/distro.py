"""Distribution specifics: Debian's old driver, and an archive of small packages with Ubuntu's names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from tests.e2e.lab.bases import kernel_image
from tests.e2e.lab.debs import Package
from tests.e2e.lab.driver import DKMS_CONF, DKMS_POSTINST, DKMS_PRERM, MAKEFILE, NVIDIA_SMI
from tests.e2e.lab.node import Node
from tests.e2e.lab.tree import ADDRESS, NATIVE, Base

OLD: Final = "470.256.02"
OLD_VERSION: Final = f"{OLD}-2"
TESLA_VERSION: Final = f"{OLD}-1~deb12u1"
# Package names in Debian's non-free: the ordinary driver, and the same driver with the names of its legacy branch.
OLD_LIBRARIES: Final = (
    *("libcuda1", "libnvidia-ml1", "libnvidia-cfg1", "libnvidia-ptxjitcompiler1", "libnvcuvid1", "libnvidia-encode1"),
    *("libnvidia-glcore", "libnvidia-eglcore", "libnvidia-compiler", "libglx-nvidia0", "libegl-nvidia0"),
    *("libgles-nvidia1", "libgles-nvidia2", "libgl1-nvidia-glvnd-glx"),
)
TESLA_LIBRARIES: Final = (
    *("libnvidia-tesla-470-cuda1", "libnvidia-tesla-470-ml1", "libnvidia-tesla-470-cfg1", "libnvidia-tesla-470-glcore"),
    *("libegl-nvidia-tesla-470-0", "libglx-nvidia-tesla-470-0", "libgl1-nvidia-tesla-470-glvnd-glx"),
)


@dataclass(frozen=True, slots=True)
class Ubuntu:
    """An Ubuntu release: labels and package names only.

    Attributes:
        kernel: the release of the running kernel.
        hwe: the kernel that the hardware-enablement meta packages bring.
    """

    version: str
    codename: str
    kernel: str
    hwe: str

    @property
    def directory(self) -> str:
        """The release's folder in NVIDIA's repositories."""
        return f"ubuntu{self.version.replace('.', '')}"

    @property
    def os_release(self) -> str:
        """The release's /etc/os-release."""
        fields = {
            "PRETTY_NAME": f'"Ubuntu {self.version} LTS"',
            "NAME": '"Ubuntu"',
            "VERSION_ID": f'"{self.version}"',
            "VERSION_CODENAME": self.codename,
            "ID": "ubuntu",
            "ID_LIKE": "debian",
            "UBUNTU_CODENAME": self.codename,
        }
        return "".join(f"{name}={value}\n" for name, value in fields.items())

    def base(self, debian: Base) -> Base:
        """Return a base with this release's kernel and archive over Debian's files."""
        return replace(debian, archive=f"ubuntu/{self.codename}", kernel=self.kernel)


UBUNTUS: Final = (
    Ubuntu("22.04", "jammy", "5.15.0-161-generic", "6.8.0-88-generic"),
    Ubuntu("24.04", "noble", "6.8.0-88-generic", "6.14.0-36-generic"),
)


def ubuntu_archive(ubuntu: Ubuntu, debian: Base) -> Iterator[Package]:
    """Return kernels, headers and meta packages with Ubuntu's names; modules can be built with the headers."""
    for release, metas in ((ubuntu.kernel, ("generic",)), (ubuntu.hwe, (f"generic-hwe-{ubuntu.version}",))):
        version = ".".join(release.removesuffix("-generic").split("-"))
        yield kernel_image(release, version)
        yield _headers(release, version, debian)
        for meta in metas:
            yield Package(f"linux-headers-{meta}", version, depends=(f"linux-headers-{release}",))
            yield Package(f"linux-image-{meta}", version, depends=(f"linux-image-{release}",))
            yield Package(f"linux-{meta}", version, depends=(f"linux-image-{meta}", f"linux-headers-{meta}"))


def become(node: Node, ubuntu: Ubuntu) -> None:
    """Give ``node``, made from ``ubuntu.base``, Ubuntu's label and kernel package instead of Debian's."""
    # /etc/os-release leads here.
    node.write("/usr/lib/os-release", ubuntu.os_release)
    images = [name for name in node.installed() if name.startswith("linux-image-")]
    node.run("apt-get", "update")
    frontend = {"DEBIAN_FRONTEND": "noninteractive"}
    node.run("apt-get", "-y", "install", "linux-image-generic", *(f"{name}-" for name in images), env=frontend)


def old_driver() -> Iterator[Package]:
    """Yield Debian's driver of branch 470 with its ordinary names, and with those of the legacy packages."""
    yield from (Package(name, OLD_VERSION) for name in (*OLD_LIBRARIES, "nvidia-alternative", "nvidia-modprobe"))
    yield _package("nvidia-kernel-support", "nvidia-modprobe")
    yield _old_module("nvidia-kernel-dkms", "nvidia-current", OLD_VERSION, "nvidia-kernel-support")
    yield _old_smi("nvidia-smi", OLD_VERSION, "libnvidia-ml1")
    yield _package("nvidia-driver-bin")
    yield _package("nvidia-driver-libs", *OLD_LIBRARIES)
    yield _package("nvidia-vdpau-driver")
    yield _package("xserver-xorg-video-nvidia")
    parts = ("nvidia-driver-libs", "nvidia-driver-bin", "xserver-xorg-video-nvidia", "nvidia-vdpau-driver")
    yield _package("nvidia-driver", *parts, "nvidia-alternative", "nvidia-kernel-dkms", "nvidia-smi")
    yield from _tesla()


def add_nonfree(node: Node) -> None:
    """Add the archive with the old driver to apt on ``node``."""
    line = f"deb [signed-by=/usr/share/keyrings/lab.gpg] {ADDRESS}/debian-nonfree/ /\n"
    node.write("/etc/apt/sources.list.d/nonfree.list", line)
    node.run("apt-get", "update")


def _tesla() -> Iterator[Package]:
    yield from (Package(name, TESLA_VERSION) for name in (*TESLA_LIBRARIES, "nvidia-tesla-470-alternative"))
    yield Package("nvidia-tesla-470-kernel-support", TESLA_VERSION)
    module = "nvidia-tesla-470-kernel-dkms"
    yield _old_module(module, "nvidia-tesla-470", TESLA_VERSION, "nvidia-tesla-470-kernel-support")
    yield _old_smi("nvidia-tesla-470-smi", TESLA_VERSION, "libnvidia-tesla-470-ml1")
    parts = (*TESLA_LIBRARIES, "nvidia-tesla-470-alternative", module, "nvidia-tesla-470-smi")
    yield Package("nvidia-tesla-470-driver", TESLA_VERSION, depends=parts)


def _package(name: str, *depends: str) -> Package:
    # Debian's driver packages depend on each other's exact version, so apt upgrades any that are not removed.
    return Package(name, OLD_VERSION, depends=tuple(f"{other} (= {OLD_VERSION})" for other in depends))


def _old_smi(name: str, version: str, *depends: str) -> Package:
    return Package(name, version, depends=depends, files={f"/usr/bin/{name}": NVIDIA_SMI.replace("@VERSION@", OLD)})


def _old_module(name: str, module: str, version: str, *depends: str) -> Package:
    """Return a dkms package like Debian's: the module is named after its alternative (nvidia-current), not nvidia."""
    conf = DKMS_CONF.replace("@VERSION@", OLD).replace('NAME="nvidia"', f'NAME="{module}"')
    conf += f'DEST_MODULE_NAME[0]="{module}"\n'
    sources = {
        "dkms.conf": conf,
        "Makefile": MAKEFILE.replace("@VERSION@", OLD).replace("@LICENSE@", "NVIDIA"),
        "nvidia.c": (NATIVE / "nvidia.c").read_text(),
    }
    scripts = {"postinst": DKMS_POSTINST, "prerm": DKMS_PRERM}
    named = {
        script: text.replace("postinst nvidia", f"postinst {module}").replace("-m nvidia", f"-m {module}")
        for script, text in scripts.items()
    }
    return Package(
        name,
        version,
        depends=("dkms", *depends),
        files={f"/usr/src/{module}-{OLD}/{path}": text for path, text in sources.items()},
        scripts={script: text.replace("@VERSION@", OLD) for script, text in named.items()},
    )


def _headers(release: str, version: str, debian: Base) -> Package:
    """Return a headers package with Ubuntu's name that uses Debian's headers."""
    return Package(
        f"linux-headers-{release}",
        version,
        depends=(f"linux-headers-{debian.kernel}",),
        links={
            f"/lib/modules/{release}/build": f"/usr/src/linux-headers-{debian.kernel}",
            f"/usr/src/linux-headers-{release}": f"linux-headers-{debian.kernel}",
        },
    )
