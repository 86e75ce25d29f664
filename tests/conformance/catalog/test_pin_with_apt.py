"""The preferences file in the real apt, with two small indexes: NVIDIA's flat repository and a distribution's."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode.catalog.driver import DriverChoice
from gpunode.distros import DEBIAN, UBUNTU, Family
from gpunode.packages.deb.preferences import render_driver_pin
from tests.needs import lacking

_LACKING = lacking("apt-get", "apt-ftparchive")
pytestmark = pytest.mark.skipif(bool(_LACKING), reason=_LACKING)

P580 = DriverChoice(580, "", "proprietary", "")
EXACT = DriverChoice(580, "580.126.09", "proprietary", "")
P595 = DriverChoice(595, "", "open", "")


@dataclass(frozen=True)
class Deb:
    name: str
    version: str
    depends: str = ""
    arch: str = "amd64"

    def stanza(self, *, installed: bool = False) -> str:
        lines = [f"Package: {self.name}", f"Version: {self.version}", f"Architecture: {self.arch}"]
        lines += ["Status: install ok installed"] if installed else []
        lines += [f"Depends: {self.depends}"] if self.depends else []
        lines += [
            "Maintainer: nobody <nobody@localhost>",
            "Description: a stand-in",
            f"Filename: ./{self.name}_{self.version}_{self.arch}.deb",
            "Size: 1000",
            "SHA256: " + "0" * 64,
        ]
        return "\n".join(lines) + "\n"


class Apt:
    """apt with its own folders; it reads none of the host's configuration or state."""

    def __init__(self, root: Path, repositories: Mapping[str, Sequence[Deb]], installed: Sequence[Deb], pin: bytes):
        self.root = root
        for folder in ("lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/conf.d", "log"):
            (root / folder).mkdir(parents=True)
        (root / "status").write_text("\n".join(deb.stanza(installed=True) for deb in installed))
        (root / "etc/preferences.d/gpunode-nvidia").write_bytes(pin)
        sources = [self._repository(origin, debs) for origin, debs in repositories.items()]
        (root / "etc/sources.list").write_text("".join(sources))
        self.run("apt-get", "update")

    def _repository(self, origin: str, debs: Sequence[Deb]) -> str:
        folder = self.root / "www" / re.sub(r"\W", "_", origin)
        folder.mkdir(parents=True)
        (folder / "Packages").write_text("\n".join(deb.stanza() for deb in debs))
        release = subprocess.run(
            ["apt-ftparchive", "-o", f"APT::FTPArchive::Release::Origin={origin}", "release", "."],
            cwd=folder,
            check=True,
            capture_output=True,
        )
        (folder / "Release").write_bytes(release.stdout)
        return f"deb [trusted=yes] file:{folder} ./\n"

    def run(self, *argv: str) -> str:
        root = self.root
        settings = {
            "Dir::Etc": f"{root}/etc",
            "Dir::Etc::sourcelist": f"{root}/etc/sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": f"{root}/etc/preferences.d",
            "Dir::State": f"{root}",
            "Dir::State::lists": f"{root}/lists",
            "Dir::State::status": f"{root}/status",
            "Dir::Cache": f"{root}/cache",
            "Dir::Log": f"{root}/log",
            "APT::Architecture": "amd64",
            "APT::Architectures": "amd64,i386",
            "APT::Sandbox::User": "",
            "APT::Install-Recommends": "false",
            "Acquire::Languages": "none",
        }
        options = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "APT_CONFIG": "/dev/null"}
        done = subprocess.run([argv[0], *options, *argv[1:]], capture_output=True, text=True, env=environment)
        return done.stdout + done.stderr

    def candidate(self, name: str) -> str:
        found = re.search(r"Candidate: (\S+)", self.run("apt-cache", "policy", name))
        return found[1] if found else "(unknown)"

    def installs(self, *names: str) -> dict[str, str]:
        output = self.run("apt-get", "-s", "install", *names)
        # At the beginning of a line: to an ordinary user apt-get says "NOTE: This is only a simulation!".
        assert not re.search(r"^E:", output, re.MULTILINE), output
        return dict(re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", output, re.MULTILINE))


DEBIAN_NVIDIA = [
    deb
    for version in ("580.95.05-1", "580.126.09-1", "580.178.04-1", "595.91.07-1", "615.71.09-1")
    for deb in (
        Deb("nvidia-driver-cuda", version, f"libcuda1 (= {version}), nvidia-persistenced (= {version})"),
        Deb("libcuda1", version),
        Deb("libcuda1", version, arch="i386"),
        Deb("nvidia-persistenced", version),
        Deb("nvidia-kernel-dkms", version, "nvidia-kernel-support"),
        Deb("nvidia-kernel-open-dkms", version, "nvidia-kernel-support"),
        Deb("nvidia-kernel-support", version),
        Deb("firmware-nvidia-gsp", version),
        Deb("nvidia-modprobe", version),
    )
] + [
    Deb("libnvidia-tileiras", "615.71.09-1"),
    Deb("nvidia-container-toolkit", "1.20.1-1"),
    Deb("nvidia-driver-assistant", "0.23.48.01-1"),
    Deb("nvidia-driver-pinning-580", "580-1"),
    Deb("cuda-toolkit-13-0", "13.0.2-1"),
    Deb("libnvidia-egl-wayland1", "1.1.21-1"),
]
DEBIANS_OWN = [
    Deb("libcuda1", "580.999.01-1~deb13u1"),
    Deb("nvidia-driver", "550.163.01-2"),
    Deb("nvidia-smi", "550.163.01-2"),
    Deb("nvidia-open-kernel-dkms", "550.163.01-2"),
    Deb("nvidia-tesla-535-driver", "535.274.02-1"),
    Deb("nvidia-persistenced", "550.163.01-1"),
    Deb("nvidia-opencl-dev", "12.4.131~12.4.1-2"),
    Deb("nvidia-cuda-toolkit", "12.4.131~12.4.1-2"),
    Deb("nvidia-vaapi-driver", "0.0.13-1"),
    Deb("linux-image-amd64", "6.12.48-1"),
]


def debian(tmp_path: Path, choice: DriverChoice, *installed: Deb, family: Family = DEBIAN) -> Apt:
    return Apt(
        tmp_path, {"NVIDIA": DEBIAN_NVIDIA, "Debian": DEBIANS_OWN}, installed, render_driver_pin(choice, family.origins)
    )


def test_pascal_host_gets_580_although_the_index_has_615(tmp_path: Path) -> None:
    packages = DEBIAN.driver_packages(P580, "compute")

    chosen = debian(tmp_path, P580).installs(*packages)

    assert set(packages) <= set(chosen)
    assert set(chosen.values()) == {"580.178.04-1"}


def test_exact_version_is_chosen_over_a_newer_one_of_its_branch(tmp_path: Path) -> None:
    chosen = debian(tmp_path, EXACT).installs(*DEBIAN.driver_packages(EXACT, "compute"))

    assert set(chosen.values()) == {"580.126.09-1"}


def test_newer_installed_driver_is_downgraded_to_the_wanted_branch(tmp_path: Path) -> None:
    apt = debian(tmp_path, P580, Deb("libcuda1", "615.71.09-1"), Deb("nvidia-modprobe", "615.71.09-1"))

    assert apt.installs("--allow-downgrades", "libcuda1", "nvidia-modprobe") == {
        "libcuda1": "580.178.04-1",
        "nvidia-modprobe": "580.178.04-1",
    }


@pytest.mark.parametrize(
    ("name", "candidate"),
    [
        ("libcuda1", "580.178.04-1"),  # Debian's has a fitting version, but the wrong origin
        ("libcuda1:i386", "580.178.04-1"),
        ("nvidia-driver", "(none)"),
        ("nvidia-smi", "(none)"),
        ("nvidia-open-kernel-dkms", "(none)"),
        ("nvidia-tesla-535-driver", "535.274.02-1"),  # a name of another branch, which no package of this one requires
        ("libnvidia-tileiras", "(none)"),  # exists in another branch only
        ("nvidia-container-toolkit", "1.20.1-1"),
        ("nvidia-driver-assistant", "0.23.48.01-1"),
        ("nvidia-driver-pinning-580", "580-1"),
        ("cuda-toolkit-13-0", "13.0.2-1"),
        ("libnvidia-egl-wayland1", "1.1.21-1"),
        ("nvidia-opencl-dev", "12.4.131~12.4.1-2"),
        ("nvidia-cuda-toolkit", "12.4.131~12.4.1-2"),
        ("nvidia-vaapi-driver", "0.0.13-1"),
        ("linux-image-amd64", "6.12.48-1"),
    ],
)
def test_only_driver_packages_are_pinned_to_nvidia(tmp_path: Path, name: str, candidate: str) -> None:
    assert debian(tmp_path, P580).candidate(name) == candidate


def test_upgrade_stays_in_the_branch(tmp_path: Path) -> None:
    old = [Deb("libcuda1", "580.95.05-1"), Deb("nvidia-modprobe", "580.95.05-1")]
    output = debian(tmp_path, P580, *old).run("apt-get", "-s", "dist-upgrade")

    assert dict(re.findall(r"^Inst (\S+) \[\S+\] \((\S+)", output, re.MULTILINE)) == {
        "libcuda1": "580.178.04-1",
        "nvidia-modprobe": "580.178.04-1",
    }


def ubuntu(tmp_path: Path, choice: DriverChoice, *installed: Deb) -> Apt:
    nvidia = [
        deb
        for version in ("580.95.05-0ubuntu1", "580.178.04-1ubuntu1")
        for deb in (
            Deb("libnvidia-compute-580", version),
            Deb("nvidia-dkms-580", version, f"nvidia-kernel-common-580 (= {version})"),
            Deb("nvidia-kernel-common-580", version),
            Deb("nvidia-utils-580", version),
            Deb("nvidia-persistenced", version),
        )
    ] + [
        Deb(name, version)
        for version in ("595.91.07-1ubuntu1", "615.71.09-2ubuntu1")
        for name in ("libnvidia-compute", "nvidia-dkms-open", "nvidia-persistenced", "nvidia-open")
    ]
    own = [
        Deb("libnvidia-compute-580", "580.200.01-0ubuntu0.24.04.1"),
        Deb("nvidia-utils-580", "580.200.01-0ubuntu0.24.04.1"),
        Deb("nvidia-driver-595-open", "595.84-0ubuntu0.24.04.1"),
        Deb("linux-modules-nvidia-580-generic", "6.8.0-51.52+1"),
    ]
    ppa = [Deb("nvidia-utils-580", "580.300.01-0ubuntu0~gpu24.04.1")]
    repositories = {"NVIDIA": nvidia, "Ubuntu": own, "LP-PPA-graphics-drivers": ppa}
    return Apt(tmp_path, repositories, installed, render_driver_pin(choice, UBUNTU.origins))


def test_ubuntu_580_packages_are_not_mixed_in(tmp_path: Path) -> None:
    apt = ubuntu(tmp_path, P580)

    assert set(apt.installs(*UBUNTU.driver_packages(P580, "compute")).values()) == {"580.178.04-1ubuntu1"}
    assert apt.candidate("nvidia-utils-580") == "580.178.04-1ubuntu1"
    assert apt.candidate("nvidia-open") == "(none)"


def test_unsuffixed_names_get_the_wanted_branch(tmp_path: Path) -> None:
    chosen = ubuntu(tmp_path, P595).installs(*UBUNTU.driver_packages(P595, "compute"))

    assert chosen == {
        "libnvidia-compute": "595.91.07-1ubuntu1",
        "nvidia-dkms-open": "595.91.07-1ubuntu1",
        "nvidia-persistenced": "595.91.07-1ubuntu1",
    }


def test_branch_missing_in_the_index_has_no_candidate(tmp_path: Path) -> None:
    apt = debian(tmp_path, DriverChoice(610, "", "open", ""))

    assert apt.candidate("nvidia-driver-cuda") == "(none)"
    assert "no installation candidate" in apt.run("apt-get", "-s", "install", "nvidia-driver-cuda")
