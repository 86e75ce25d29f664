"""NVIDIA's repositories and the distributions' archives in their real layouts, signed with test keys."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.e2e.lab import distro, driver, toolkit
from tests.e2e.lab.architecture import NODES
from tests.e2e.lab.commands import run
from tests.e2e.lab.debs import Content, Package, Release, build_all, publish
from tests.e2e.lab.keys import Key, make_key, stop_agent
from tests.e2e.lab.tree import ADDRESS, Base

DRIVERS: Final = ("580.178.04", "595.91.07", "620.70.06")
TOOLKITS: Final = ("1.19.1", "1.20.1")
# The key's file name depends on the distribution's release (NVIDIA's repositories, 2026-11).
KEY_FILES: Final = {
    "debian12": "3bf863cc.pub",
    "debian13": "8793F200.pub",
    "ubuntu2204": "3bf863cc.pub",
    "ubuntu2404": "3bf863cc.pub",
}
CUDA_PATH: Final = "/compute/cuda/repos"
TOOLKIT_PATH: Final = "/libnvidia-container"
_CUDA: Final = Release("NVIDIA", "NVIDIA CUDA")
TOOLKIT: Final = Release("https://nvidia.github.io/libnvidia-container/stable/deb", "libnvidia-container")
_LIST: Final = """\
deb ADDRESS/stable/deb/$(ARCH) /
#deb ADDRESS/experimental/deb/$(ARCH) /
"""
_PIN: Final = "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n"
_KEYRING: Final = "/usr/share/keyrings/cuda-archive-keyring.gpg"


# As Debian's depend, less what no module of the lab needs.
_TOOLCHAIN: Final = (
    Package("build-essential", "12.9", depends=("gcc", "make", "libc6-dev")),
    Package("libelf-dev", "0.188-2.1"),
)


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys, by the repository they sign; ``stranger`` signs nothing."""

    cuda: Key
    cuda13: Key
    toolkit: Key
    debian: Key
    stranger: Key

    def of(self, directory: str) -> Key:
        """Return the key of the CUDA repository ``directory``."""
        return self.cuda13 if directory == "debian13" else self.cuda


@dataclass(frozen=True, slots=True)
class Repositories:
    """All repositories, as files below ``root``.

    Attributes:
        debian_keyring: the key of the distributions' archives, as apt's signed-by takes it.
    """

    root: Path
    keys: Keys
    debian_keyring: bytes

    @property
    def cuda(self) -> str:
        """The value of a recipe's ``repositories.cuda``."""
        return f"{ADDRESS}{CUDA_PATH}"

    @property
    def toolkit(self) -> str:
        """The value of a recipe's ``repositories.toolkit``."""
        return f"{ADDRESS}{TOOLKIT_PATH}"

    def recipe(self, directory: str) -> str:
        """Return the recipe's table for these repositories."""
        rows = {
            "cuda": self.cuda,
            "toolkit": self.toolkit,
            "cuda_key_fingerprint": self.keys.of(directory).fingerprint,
            "toolkit_key_fingerprint": self.keys.toolkit.fingerprint,
        }
        return "[repositories]\n" + "".join(f'{name} = "{value}"\n' for name, value in rows.items())

    def cuda_path(self, directory: str) -> str:
        """Return the server's path of the CUDA repository ``directory``."""
        return f"{CUDA_PATH}/{directory}/{NODES.folder}"

    def key_path(self, directory: str) -> str:
        """Return the server's path of the key of the CUDA repository ``directory``."""
        return f"{self.cuda_path(directory)}/{KEY_FILES[directory]}"

    def variant(
        self, directory: str, folder: Path, *, added: Iterable[Package] = (), without: str = "", key: Key | None = None
    ) -> Path:
        """Return a second CUDA repository ``directory`` in ``folder``, to mount over the first on a server.

        Args:
            added: further packages.
            without: a pattern of package files to omit (``*_580.*``).
            key: the key that signs it, which is not the key that it offers.
        """
        original = self.root / self.cuda_path(directory).lstrip("/")
        shutil.copytree(original, folder, copy_function=os.link)
        for path in folder.glob(without) if without else ():
            path.unlink()
        build_all(added, folder)
        publish(folder, _CUDA, key or self.keys.of(directory))
        return folder


def make_repositories(root: Path, bases: Iterable[Base]) -> Repositories:
    """Return all repositories below ``root``; the distributions' archives hold the packages of ``bases``."""
    home = Path(tempfile.mkdtemp(prefix="gpunode-lab-gpg-"))
    owners = ("cudatools", "cudatools13", "libnvidia-container", "debian", "stranger")
    keys = Keys(*(make_key(home, owner) for owner in owners))
    root.mkdir(parents=True)
    _make_cuda(root, keys)
    _make_toolkit(root / TOOLKIT_PATH.lstrip("/"), keys.toolkit)
    _make_archives(root, tuple(bases), keys.debian)
    keyring = root / "debian.gpg"
    keys.debian.write_keyring(keyring)
    return Repositories(root, keys, keyring.read_bytes())


def discard_keys(keys: Keys) -> None:
    """Remove the keys and their agent."""
    stop_agent(keys.cuda.home)
    # Not shutil.rmtree: the agent still removes its sockets after it has been told to end, and rm does not mind.
    run(["rm", "--recursive", "--force", os.fspath(keys.cuda.home)])


def _make_cuda(root: Path, keys: Keys) -> None:
    build = root / "build"
    for directory, key_file in KEY_FILES.items():
        folder = root / CUDA_PATH.lstrip("/") / directory / NODES.folder
        folder.mkdir(parents=True)
        family = directory.rstrip("0123456789")
        for path in _driver_packages(build, family):
            os.link(path, folder / path.name)
        key = keys.of(directory)
        (folder / key_file).write_text(key.armored)
        _keyring_package(directory, key, build).build(folder)
        publish(folder, _CUDA, key)
    shutil.rmtree(build)


def _driver_packages(build: Path, family: str) -> Iterable[Path]:
    """Return the packages of all releases, built once per family and shared by its repositories."""
    folder = build / family
    if not folder.exists():
        packages = driver.debian_packages if family == "debian" else driver.ubuntu_packages
        for version in DRIVERS:
            build_all(packages(driver.make_driver(version, build / f"native-{family}")), folder)
    return sorted(folder.glob("*.deb"))


def _keyring_package(directory: str, key: Key, build: Path) -> Package:
    keyring = build / f"{directory}.gpg"
    key.write_keyring(keyring)
    source = f"deb [signed-by={_KEYRING}] {ADDRESS}{CUDA_PATH}/{directory}/{NODES.folder}/ /\n"
    pin = {"/etc/apt/preferences.d/cuda-repository-pin-600": _PIN} if directory.startswith("ubuntu") else {}
    files: dict[str, Content] = {
        _KEYRING: keyring,
        f"/etc/apt/sources.list.d/cuda-{directory}-{NODES.folder}.list": source,
        **pin,
    }
    return Package("cuda-keyring", "1.1-1", architecture="all", files=files)


def _make_toolkit(root: Path, key: Key) -> None:
    folder = root / "stable/deb" / NODES.deb
    for version in TOOLKITS:
        build_all(toolkit.packages(version), folder)
    publish(folder, TOOLKIT, key)
    (root / "gpgkey").write_text(key.armored)
    text = _LIST.replace("ADDRESS", f"{ADDRESS}{TOOLKIT_PATH}")
    (root / "stable/deb/nvidia-container-toolkit.list").write_text(text)


def _make_archives(root: Path, bases: tuple[Base, ...], key: Key) -> None:
    for base in bases:
        folder = root / base.archive
        folder.mkdir(parents=True)
        _link(base.debs, folder)
        build_all(_TOOLCHAIN, folder)
        publish(folder, Release("Debian", "Debian", "stable", base.codename), key)
    nonfree = root / "debian-nonfree"
    build_all(distro.old_driver(), nonfree)
    publish(nonfree, Release("Debian", "Debian", "stable"), key)
    for ubuntu in distro.UBUNTUS:
        folder = root / "ubuntu" / ubuntu.codename
        build_all(distro.ubuntu_archive(ubuntu, bases[0]), folder)
        _link(bases[0].debs, folder, besides=("linux-image-*", f"linux-headers-{NODES.deb}_*"))
        publish(folder, Release("Ubuntu", "Ubuntu", ubuntu.codename, ubuntu.codename), key)


def _link(source: Path, target: Path, besides: tuple[str, ...] = ()) -> None:
    for path in source.glob("*.deb"):
        if not any(path.match(pattern) for pattern in besides):
            os.link(path, target / path.name)
