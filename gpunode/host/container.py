"""A container that must see the GPUs that NVML sees, run through the configured runtime and removed again."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpunode.host.image import image, library_paths
from gpunode.host.ownership import why_others_write

if TYPE_CHECKING:
    from gpunode.host.process import Finished, Runner

QUERY = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
# `utility` is what brings nvidia-smi and NVML into a container (NVIDIA container toolkit, driver capabilities).
_ENVIRONMENT = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility")
_PROGRAMS = ("/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi")
_LDD_TIMEOUT_S = 10.0
_LOAD_TIMEOUT_S = 120.0
_REMOVE_TIMEOUT_S = 60.0
TIMEOUT_S = 120.0
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Argv = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Commands:
    """The commands of one runtime.

    Attributes:
        load: takes the image from standard input.
        rescue: removes a container whose run did not end well.
        remove: removes all the rest.
    """

    runtime: str
    reference: str
    load: Argv
    run: Argv
    rescue: tuple[Argv, ...]
    remove: tuple[Argv, ...]


def containerd(
    token: str,
    *,
    binary: str = "/usr/bin/nvidia-container-runtime",
    address: str = "/run/containerd/containerd.sock",
) -> Commands:
    """The commands for containerd, in a namespace of their own, so Kubernetes never sees the container.

    ctr does not go through the CRI plugin and its handlers. ``binary`` is therefore the runtime that the handler names
    (``BinaryName``): what is shown is that this binary gives a container the GPUs; that the handler names it is shown
    by containerd's own view of its configuration.
    """
    name = f"gpunode-{token}"
    reference = f"localhost/gpunode-check:{token}"
    ctr = ("ctr", "--address", address, "--namespace", name)
    environment = tuple(word for one in _ENVIRONMENT for word in ("--env", one))
    return Commands(
        runtime="containerd",
        reference=reference,
        load=(*ctr, "images", "import", "-"),
        run=(
            *(*ctr, "run", "--rm", "--runtime", "io.containerd.runc.v2", "--runc-binary", binary),
            *(*environment, reference, name, *QUERY),
        ),
        rescue=(
            (*ctr, "tasks", "kill", "--signal", "SIGKILL", name),
            (*ctr, "tasks", "delete", "--force", name),
            (*ctr, "containers", "rm", name),
        ),
        remove=((*ctr, "images", "rm", "--sync", reference), (*ctr, "namespaces", "rm", name)),
    )


def docker(token: str, *, runtime: str = "nvidia") -> Commands:
    """The commands for docker, through the runtime that daemon.json calls ``runtime``."""
    name = f"gpunode-{token}"
    reference = f"localhost/gpunode-check:{token}"
    environment = tuple(word for one in _ENVIRONMENT for word in ("--env", one))
    return Commands(
        runtime="docker",
        reference=reference,
        load=("docker", "load", "--quiet"),
        run=(
            *("docker", "run", "--rm", "--name", name, "--runtime", runtime, "--network", "none"),
            *(*environment, reference, *QUERY),
        ),
        rescue=(("docker", "rm", "--force", "--volumes", name),),
        remove=(("docker", "image", "rm", "--force", reference),),
    )


def podman(token: str) -> Commands:
    """The commands for podman, which takes the GPUs as CDI devices.

    Without SELinux's confinement, which lets no container near /dev/nvidia* on the hosts that have it.
    """
    name = f"gpunode-{token}"
    reference = f"localhost/gpunode-check:{token}"
    return Commands(
        runtime="podman",
        reference=reference,
        load=("podman", "load", "--quiet"),
        run=(
            *("podman", "run", "--rm", "--name", name, "--device", "nvidia.com/gpu=all", "--network", "none"),
            *("--security-opt", "label=disable", reference, *QUERY),
        ),
        rescue=(("podman", "rm", "--force", "--volumes", name),),
        remove=(("podman", "image", "rm", "--force", reference),),
    )


@dataclass(frozen=True, slots=True)
class ContainerCheck:
    """What a container saw.

    Attributes:
        expected: the UUIDs that NVML lists on the host.
        seen: those that nvidia-smi lists in the container.
        failure: why there is nothing to compare; the runtime's own words are in it.
        leftovers: what could not be removed again, with the command to do it.
    """

    runtime: str
    expected: frozenset[str]
    seen: frozenset[str] = frozenset()
    failure: str = ""
    leftovers: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether the container saw exactly the GPUs of the host."""
        return not self.failure and bool(self.expected) and self.seen == self.expected

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, one sentence each; nothing when it passed."""
        if self.failure:
            return (self.failure,)
        if not self.expected:
            return ("NVML lists no GPU on the host, so there is nothing that a container could see",)
        missing = f"the container does not see {', '.join(sorted(self.expected - self.seen))}"
        strange = f"the container sees {', '.join(sorted(self.seen - self.expected))}, which NVML does not list"
        return (missing,) * (not self.expected <= self.seen) + (strange,) * (not self.seen <= self.expected)


def uuids(output: bytes) -> frozenset[str]:
    """The GPUs in what nvidia-smi printed."""
    return frozenset(_UUID.findall(output.decode("utf-8", "replace")))


def new_token() -> str:
    """A unique name for each check, so that two concurrent ones do not remove each other's image."""
    return secrets.token_hex(4)


def check(runner: Runner, commands: Commands, expected: Iterable[str], timeout_s: float = TIMEOUT_S) -> ContainerCheck:
    """Whether a container run by ``commands`` sees exactly the GPUs ``expected``; nothing of it is left afterwards."""
    wanted = frozenset(expected)
    program = next((path for path in _PROGRAMS if Path(path).exists()), None)
    if program is None:
        return _failed(commands, wanted, "nvidia-smi is not installed on the host, so no runtime can mount it")
    try:
        archive = image(read_libraries(runner, program), os.uname().machine, commands.reference, QUERY)
    except (ValueError, OSError) as error:
        return _failed(commands, wanted, f"cannot build an image from this host's files: {error}")
    loaded = runner.run(commands.load, timeout_s=_LOAD_TIMEOUT_S, stdin=archive)
    if not loaded.ok:
        return _failed(commands, wanted, _said("the image could not be imported", loaded), _remove(runner, commands))
    try:
        ran = runner.run(commands.run, timeout_s=timeout_s)
    except BaseException:
        _rescue(runner, commands)
        raise
    return _judge(commands, wanted, ran, _remove(runner, commands) if ran.ok else _rescue(runner, commands))


def read_libraries(runner: Runner, program: str) -> Mapping[str, bytes]:
    """Return what ``program`` needs to start, without NVIDIA's libraries: the bytes of each library by its path.

    ldd(1) may run the program, so it is asked only of one that nobody but root, or this user, can change.

    Raises:
        ValueError: it is not asked, it does not know the program, or a library is missing.
        OSError: a library cannot be read.
    """
    if why := why_others_write(Path(program), trusted=frozenset({0, os.geteuid()})):
        raise ValueError(f"ldd may run {program}, and {why}")
    listed = runner.run(("ldd", program), timeout_s=_LDD_TIMEOUT_S, only_reads=True)
    if listed.missing:
        raise ValueError("ldd is missing, which comes with glibc (libc-bin, glibc-common); nvidia-smi needs glibc")
    if not listed.ok:
        raise ValueError(_said(f"the libraries of {program} are not known", listed))
    return {path: Path(path).read_bytes() for path in library_paths(listed.stdout.decode("utf-8", "surrogateescape"))}


def _failed(commands: Commands, wanted: frozenset[str], why: str, leftovers: tuple[str, ...] = ()) -> ContainerCheck:
    return ContainerCheck(commands.runtime, wanted, failure=why, leftovers=leftovers)


def _judge(commands: Commands, wanted: frozenset[str], ran: Finished, leftovers: tuple[str, ...]) -> ContainerCheck:
    if not ran.ok:
        return _failed(commands, wanted, _said("the container did not run", ran), leftovers)
    return ContainerCheck(commands.runtime, wanted, seen=uuids(ran.stdout), leftovers=leftovers)


def _said(what: str, finished: Finished) -> str:
    how = f"timed out after {finished.seconds:.0f} s" if finished.timed_out else f"exit status {finished.exit_status}"
    return f"{what} ({finished.argv[0]}: {how}): {finished.last_lines(5) or 'no output'}"


def _rescue(runner: Runner, commands: Commands) -> tuple[str, ...]:
    """The container is gone however far it came; its absence is no failure, so only the rest is judged."""
    for argv in commands.rescue:
        runner.run(argv, timeout_s=_REMOVE_TIMEOUT_S)
    return _remove(runner, commands)


def _remove(runner: Runner, commands: Commands) -> tuple[str, ...]:
    ended = [runner.run(argv, timeout_s=_REMOVE_TIMEOUT_S) for argv in commands.remove]
    return tuple(f"{' '.join(one.argv)}: {one.last_lines(1)}" for one in ended if not one.ok)
