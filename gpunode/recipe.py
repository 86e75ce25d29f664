"""The wanted state of a node: a recipe, read from TOML. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

RuntimeName: TypeAlias = Literal["containerd", "docker", "none"]
Flavour: TypeAlias = Literal["auto", "open", "proprietary"]
Scope: TypeAlias = Literal["compute", "media", "full"]
Install: TypeAlias = Literal["if-missing", "never"]


@dataclass(frozen=True, slots=True)
class Driver:
    """The NVIDIA driver.

    Attributes:
        version: ``auto``, ``production``, ``lts``, a branch (``580``), a full version (``580.178.04``), or ``none``
            for a host whose driver is somebody else's.
        scope: ``compute`` has no display libraries; ``media`` adds video encoding and decoding; ``full`` a display.
        persistence: whether nvidia-persistenced runs.
    """

    version: str = "auto"
    flavour: Flavour = "auto"
    scope: Scope = "compute"
    persistence: bool = True


@dataclass(frozen=True, slots=True)
class Repositories:
    """Where the packages come from; empty means NVIDIA's own address.

    Attributes:
        cuda: base of the CUDA repositories, above the distribution's folder (``https://…/compute/cuda/repos``).
        toolkit: base of the container toolkit's repository, above ``stable/deb`` and ``gpgkey``.
        cuda_key: the fingerprint of a mirror that signs with a key of its own; likewise ``toolkit_key``.
    """

    cuda: str = ""
    toolkit: str = ""
    cuda_key: str = ""
    toolkit_key: str = ""


@dataclass(frozen=True, slots=True)
class Toolkit:
    """The NVIDIA container toolkit: ``auto`` takes the newest, a version pins all four packages, ``none`` leaves it."""

    version: str = "auto"


@dataclass(frozen=True, slots=True)
class Runtime:
    """The container runtime and how NVIDIA's handler is registered in it.

    Attributes:
        default: whether containers get the NVIDIA runtime unless they ask for another.
        cgroup: ``auto`` keeps what the runtime has; ``systemd`` makes runc and nvidia use systemd's cgroup driver.
        cdi: whether the runtime's own CDI support is switched on.
    """

    name: RuntimeName = "none"
    install: Install = "if-missing"
    default: bool = False
    cgroup: Literal["auto", "systemd"] = "auto"
    cdi: bool = False


@dataclass(frozen=True, slots=True)
class Expect:
    """What the machine must have; None and the empty string expect nothing."""

    gpus: int | None = None
    model: str = ""
    driver: str = ""
    memory_mib: int | None = None
    ecc: bool | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """The wanted state of a node."""

    name: str
    description: str = ""
    driver: Driver = field(default_factory=Driver)
    repositories: Repositories = field(default_factory=Repositories)
    toolkit: Toolkit = field(default_factory=Toolkit)
    runtime: Runtime = field(default_factory=Runtime)
    expect: Expect = field(default_factory=Expect)
