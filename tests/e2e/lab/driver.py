"""NVIDIA's driver packages: names, relations and maintainer scripts as in its repositories, with few files.

Names and relations come from the driver installation guide (releases 590 to 620) and from reports of real hosts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tests.e2e.lab.architecture import NODES
from tests.e2e.lab.commands import compile_library
from tests.e2e.lab.debs import Package
from tests.e2e.lab.tree import NATIVE

LIBRARIES: Final = f"/usr/lib/{NODES.triplet}"
DKMS_CONF: Final = """\
PACKAGE_NAME="nvidia"
PACKAGE_VERSION="@VERSION@"
BUILT_MODULE_NAME[0]="nvidia"
DEST_MODULE_LOCATION[0]="/updates/dkms"
AUTOINSTALL="yes"
MAKE[0]="make KVER=$kernelver"
CLEAN="make clean KVER=$kernelver"
"""
MAKEFILE: Final = """\
obj-m := nvidia.o
ccflags-y := -DLAB_VERSION='"@VERSION@"' -DLAB_LICENSE='"@LICENSE@"'
all:
\t$(MAKE) -C /lib/modules/$(KVER)/build M=$(CURDIR) modules
clean:
\t$(MAKE) -C /lib/modules/$(KVER)/build M=$(CURDIR) clean
"""
# As dh_dkms writes them.
DKMS_POSTINST: Final = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
  /usr/lib/dkms/common.postinst nvidia @VERSION@ "" "" "$2"
fi
"""
DKMS_PRERM: Final = """\
#!/bin/sh
set -e
if [ "$1" = remove ] || [ "$1" = upgrade ] || [ "$1" = deconfigure ]; then
  if [ -n "$(dkms status -m nvidia -v @VERSION@)" ]; then
    dkms remove -m nvidia -v @VERSION@ --all
  fi
fi
"""
LDCONFIG: Final = "activate-noawait ldconfig\n"
NVIDIA_SMI: Final = """\
#!/bin/sh
if ! gpus=$(cat /run/lab-gpus 2>/dev/null); then
  printf %s "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
  echo "Make sure that the latest NVIDIA driver is installed and running."
  exit 9
fi
loaded=$(cat /sys/module/nvidia/version 2>/dev/null)
if [ "${loaded:-@VERSION@}" != @VERSION@ ]; then
  echo "Failed to initialize NVML: Driver/library version mismatch"
  echo "NVML library version: $(echo @VERSION@ | cut -d. -f1,2)"
  exit 18
fi
case "$*" in
-L)
  for gpu in $(seq "$gpus"); do
    printf 'GPU %d: NVIDIA Lab GPU (UUID: GPU-00000000-0000-0000-0000-%012x)\\n' $((gpu - 1)) "$gpu"
  done ;;
*) echo "NVIDIA-SMI VERSION  Driver Version: @VERSION@  $gpus GPU(s)" ;;
esac
"""
PERSISTENCED: Final = """\
#!/bin/sh
# Forks and stays, as the real one; refuses without a GPU, as the real one.
if [ ! -s /run/lab-gpus ]; then
  echo "nvidia-persistenced failed to initialize. Check syslog for more details." >&2
  exit 1
fi
mkdir -p /run/nvidia-persistenced
chown nvpd:nvpd /run/nvidia-persistenced
setsid sleep infinity >/dev/null 2>&1 </dev/null &
echo $! > /run/nvidia-persistenced/nvidia-persistenced.pid
"""
PERSISTENCED_UNIT: Final = """\
[Unit]
Description=NVIDIA Persistence Daemon
Wants=syslog.target

[Service]
Type=forking
PIDFile=/run/nvidia-persistenced/nvidia-persistenced.pid
Restart=always
ExecStart=/usr/bin/nvidia-persistenced --verbose
ExecStopPost=/bin/rm -rf /run/nvidia-persistenced

[Install]
WantedBy=multi-user.target
"""
PERSISTENCED_POSTINST: Final = """\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
  getent passwd nvpd >/dev/null ||
    useradd --system --user-group --no-create-home --home-dir /var/run/nvpd/ --shell /usr/sbin/nologin nvpd
  deb-systemd-helper enable nvidia-persistenced.service >/dev/null || true
  if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
    deb-systemd-invoke start nvidia-persistenced.service >/dev/null || true
  fi
fi
"""
PERSISTENCED_PRERM: Final = """\
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
  deb-systemd-invoke stop nvidia-persistenced.service >/dev/null || true
fi
"""
PERSISTENCED_POSTRM: Final = """\
#!/bin/sh
set -e
if [ "$1" = purge ]; then
  deb-systemd-helper purge nvidia-persistenced.service >/dev/null || true
fi
"""


@dataclass(frozen=True, slots=True)
class Driver:
    """A driver release.

    Attributes:
        nvml: its libnvidia-ml, compiled.
        cuda: its libcuda, compiled; ldconfig links libraries by the names in them.
        revision: the suffix of the packages' version after the driver's.
    """

    version: str
    nvml: Path
    cuda: Path
    revision: str = "1"

    @property
    def branch(self) -> int:
        """The major version."""
        return int(self.version.split(".")[0])

    @property
    def full(self) -> str:
        """The version of the packages."""
        return f"{self.version}-{self.revision}"

    def package(self, name: str, *depends: str) -> Package:
        """Return a package of this release that depends on ``depends``; a bare name means exactly this version."""
        return Package(name, self.full, depends=tuple(self.exact(item) for item in depends))

    def exact(self, dependency: str) -> str:
        """Return ``dependency`` at this version, unless it says otherwise (``dkms`` is not the driver's)."""
        if dependency == "dkms" or " " in dependency:
            return dependency
        return f"{dependency} (= {self.full})"


def make_driver(version: str, folder: Path) -> Driver:
    """Return driver ``version`` with its library compiled in ``folder``."""
    place, define = folder / version, f'VERSION="{version}"'
    place.mkdir(parents=True)
    nvml, cuda = (
        compile_library(NATIVE / "nvml.c", place / f"lib{name}.so.1", define) for name in ("nvidia-ml", "cuda")
    )
    return Driver(version, nvml, cuda)


def debian_packages(driver: Driver) -> Iterator[Package]:
    """Return all packages of the release in NVIDIA's Debian repositories."""
    return _with_pinning(driver, _debian(driver))


def ubuntu_packages(driver: Driver) -> Iterator[Package]:
    """Return the release's packages in NVIDIA's Ubuntu repositories: up to 580 the names contain the branch."""
    driver = replace(driver, revision="1ubuntu1")
    return _with_pinning(driver, _ubuntu_suffixed(driver) if driver.branch <= 580 else _ubuntu_plain(driver))


def _debian(driver: Driver) -> Iterator[Package]:
    """Yield the release's packages in NVIDIA's Debian repositories: from 615 on open only, ``cuda-drivers`` empty."""
    branch, package = driver.branch, driver.package
    yield module_package(driver, "nvidia-kernel-open-dkms", "nvidia-kernel-dkms", licence="Dual MIT/GPL")
    if branch < 615:
        yield module_package(driver, "nvidia-kernel-dkms", "nvidia-kernel-open-dkms", licence="NVIDIA")
    yield _support(driver, "nvidia-kernel-support")
    yield package("firmware-nvidia-gsp")
    yield _nvml(driver, "libnvidia-ml1")
    yield _with_libcuda(driver, package("libcuda1", "libnvidia-ptxjitcompiler1"))
    for library in (
        "libnvidia-ptxjitcompiler1",
        "libcudadebugger1",
        "libnvcuvid1",
        "libnvidia-encode1",
        "libnvidia-cfg1",
    ):
        yield package(library)
    yield _smi(driver, "nvidia-smi", "libnvidia-ml1")
    yield _persistenced(driver, "nvidia-persistenced", "libnvidia-cfg1")
    yield package("nvidia-modprobe")
    compute = ("libcuda1", "libcudadebugger1", "libnvcuvid1", "libnvidia-encode1", "libnvidia-ml1", "nvidia-smi")
    yield package("nvidia-driver-cuda", *compute, "nvidia-persistenced", "nvidia-modprobe")
    for desktop in ("nvidia-driver-libs", "xserver-xorg-video-nvidia", "nvidia-settings"):
        yield package(desktop)
    kernel = ("nvidia-kernel-dkms", "nvidia-kernel-open-dkms") if branch < 615 else ("nvidia-kernel-open-dkms",)
    either = " | ".join(driver.exact(name) for name in kernel)
    yield package("nvidia-driver", "nvidia-driver-libs", "xserver-xorg-video-nvidia", either)
    yield package("nvidia-open", "nvidia-driver", "nvidia-driver-cuda", "nvidia-kernel-open-dkms")
    if branch < 615:
        yield package("cuda-drivers", "nvidia-driver", "nvidia-driver-cuda", "nvidia-kernel-dkms")
    else:
        yield package("cuda-drivers")


def _ubuntu_suffixed(driver: Driver) -> Iterator[Package]:
    suffix = f"-{driver.branch}"

    def named(name: str, *depends: str) -> Package:
        return _replacing(driver.package(f"{name}{suffix}", *depends), name)

    common, firmware = f"nvidia-kernel-common{suffix}", f"nvidia-firmware{suffix}-{driver.version}"
    yield driver.package(firmware)
    yield _replacing(_support(driver, common, firmware), "nvidia-kernel-common")
    for flavour, licence in (("", "NVIDIA"), ("-open", "Dual MIT/GPL")):
        dkms = f"nvidia-dkms{suffix}{flavour}"
        yield (
            named(f"nvidia-kernel-source{flavour}")
            if not flavour
            else driver.package(f"nvidia-kernel-source{suffix}-open")
        )
        yield _replacing(module_package(driver, dkms, licence=licence, needs=(common,)), "nvidia-dkms-kernel")
        wanted = (f"libnvidia-compute{suffix}", f"libnvidia-gl{suffix}", f"nvidia-utils{suffix}", dkms)
        yield _replacing(driver.package(f"nvidia-driver{suffix}{flavour}", *wanted), "nvidia-driver-flavour")
    yield _replacing(_with_libcuda(driver, _nvml(driver, f"libnvidia-compute{suffix}")), "libnvidia-compute")
    for name in ("libnvidia-gl", "libnvidia-decode", "libnvidia-encode", "libnvidia-cfg1", "libnvidia-extra"):
        yield named(name)
    yield _replacing(_smi(driver, f"nvidia-utils{suffix}", f"libnvidia-compute{suffix}"), "nvidia-utils")
    # From 580 on the daemon is in its own package, without the branch in its name.
    yield _persistenced(driver, "nvidia-persistenced", f"libnvidia-cfg1{suffix}")
    utilities = (f"nvidia-utils{suffix}", "nvidia-persistenced")
    yield driver.package(f"cuda-drivers{suffix}", f"nvidia-driver{suffix}", *utilities)
    yield driver.package(f"nvidia-open{suffix}", f"nvidia-driver{suffix}-open", *utilities)
    yield driver.package("cuda-drivers", f"cuda-drivers{suffix}")
    yield driver.package("nvidia-open", f"nvidia-open{suffix}")


def _ubuntu_plain(driver: Driver) -> Iterator[Package]:
    """Yield the packages without suffixes. They conflict with the suffixed sets, which provide the plain names."""
    package = driver.package
    yield package("nvidia-firmware")
    yield _against(_support(driver, "nvidia-kernel-common", "nvidia-firmware"), "nvidia-kernel-common")
    flavours = (("-open", "Dual MIT/GPL"),) if driver.branch >= 615 else (("", "NVIDIA"), ("-open", "Dual MIT/GPL"))
    for flavour, licence in flavours:
        dkms = module_package(driver, f"nvidia-dkms{flavour}", licence=licence, needs=("nvidia-kernel-common",))
        yield _replacing(dkms, "nvidia-dkms-kernel")
        wanted = ("libnvidia-compute", "libnvidia-gl", "nvidia-persistenced", f"nvidia-dkms{flavour}")
        yield _replacing(package(f"nvidia-driver{flavour}", *wanted), "nvidia-driver-flavour")
    library = _with_libcuda(driver, _nvml(driver, "libnvidia-compute"))
    smi = {"/usr/bin/nvidia-smi": NVIDIA_SMI.replace("@VERSION@", driver.version)}
    yield _against(replace(library, files={**library.files, **smi}), "libnvidia-compute", "nvidia-utils")
    for name in ("libnvidia-gl", "libnvidia-decode", "libnvidia-encode", "libnvidia-cfg1"):
        yield _against(package(name), name)
    yield _against(_persistenced(driver, "nvidia-persistenced", "libnvidia-cfg1"), "nvidia-persistenced")
    yield package("nvidia-modprobe")
    yield package("nvidia-open", "nvidia-driver-open")
    yield package("cuda-drivers", *(() if driver.branch >= 615 else ("nvidia-driver",)))


def module_package(driver: Driver, name: str, *rivals: str, licence: str, needs: tuple[str, ...] = ()) -> Package:
    """Return a package whose module dkms really builds."""
    sources = {
        "dkms.conf": DKMS_CONF.replace("@VERSION@", driver.version),
        "Makefile": MAKEFILE.replace("@VERSION@", driver.version).replace("@LICENSE@", licence),
        "nvidia.c": (NATIVE / "nvidia.c").read_text(),
    }
    needed = needs or ("nvidia-kernel-support", "firmware-nvidia-gsp")
    return replace(
        driver.package(name, "dkms", *needed),
        conflicts=rivals,
        files={f"/usr/src/nvidia-{driver.version}/{path}": text for path, text in sources.items()},
        scripts={
            "postinst": DKMS_POSTINST.replace("@VERSION@", driver.version),
            "prerm": DKMS_PRERM.replace("@VERSION@", driver.version),
        },
    )


def _support(driver: Driver, name: str, *depends: str) -> Package:
    blacklist = {"/etc/modprobe.d/nvidia-blacklists-nouveau.conf": "blacklist nouveau\n"}
    return replace(driver.package(name, *depends), files=blacklist)


def _nvml(driver: Driver, name: str) -> Package:
    real = f"libnvidia-ml.so.{driver.version}"
    return replace(
        driver.package(name),
        files={f"{LIBRARIES}/{real}": driver.nvml},
        links={f"{LIBRARIES}/libnvidia-ml.so.1": real},
        scripts={"triggers": LDCONFIG},
    )


def _with_libcuda(driver: Driver, package: Package) -> Package:
    """Return ``package`` with a library that can be loaded as libcuda.so.1; no program of the lab calls it."""
    real = f"libcuda.so.{driver.version}"
    return replace(
        package,
        files={**package.files, f"{LIBRARIES}/{real}": driver.cuda},
        links={**package.links, f"{LIBRARIES}/libcuda.so.1": real},
        scripts={**package.scripts, "triggers": LDCONFIG},
    )


def _smi(driver: Driver, name: str, *depends: str) -> Package:
    text = NVIDIA_SMI.replace("@VERSION@", driver.version)
    return replace(driver.package(name, *depends), files={"/usr/bin/nvidia-smi": text})


def _persistenced(driver: Driver, name: str, *depends: str) -> Package:
    return replace(
        driver.package(name, *depends),
        files={
            "/usr/bin/nvidia-persistenced": PERSISTENCED,
            "/lib/systemd/system/nvidia-persistenced.service": PERSISTENCED_UNIT,
        },
        scripts={
            "postinst": PERSISTENCED_POSTINST,
            "prerm": PERSISTENCED_PRERM,
            "postrm": PERSISTENCED_POSTRM,
        },
    )


def _with_pinning(driver: Driver, packages: Iterator[Package]) -> Iterator[Package]:
    """Yield ``packages``, and NVIDIA's pinning package for this branch: preferences for each of them."""
    built = tuple(packages)
    yield from built
    names = " ".join(package.name for package in built)
    pin = f"Package: {names}\nPin: version {driver.branch}.*\nPin-Priority: 1000\n"
    yield Package(
        f"nvidia-driver-pinning-{driver.branch}",
        driver.full,
        conflicts=("nvidia-driver-pinning",),
        provides=("nvidia-driver-pinning",),
        files={"/etc/apt/preferences.d/nvidia-driver-pin": pin},
    )


def _replacing(package: Package, virtual: str) -> Package:
    """Return ``package`` as one of several that provide ``virtual`` and conflict with each other."""
    others = (*package.conflicts, virtual)
    return replace(package, conflicts=others, provides=(*package.provides, virtual))


def _against(package: Package, *virtual: str) -> Package:
    """Return ``package`` as one that conflicts with the branch-suffixed ones, which provide ``virtual``."""
    return replace(package, conflicts=(*package.conflicts, *virtual))
