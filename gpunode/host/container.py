"""A test container, run through the configured runtime, which must see the same GPUs as NVML.

Its image contains only what nvidia-smi needs: the dynamic loader and the C library of the host, and no NVIDIA file.
nvidia-smi and its library must come from the container runtime, which is what is tested. No compiler, no registry and
no network are needed.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from gpunode.fast_dataclass import dataclass
from gpunode.host.ownership import explain_writable_by_others

if TYPE_CHECKING:
    from gpunode.host.process import FinishedCommand, Runner

# Besides libc, libnvidia-ml.so.1 of every branch links these; they are in the same folder as libc.
_GLIBC_LIBRARIES = ("libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1")
_DRIVER_LIBRARY_PREFIXES = ("libnvidia", "libcuda")
_IMAGE_ETC_FILES = {"/etc/ld.so.conf": b"include /etc/ld.so.conf.d/*.conf\n", "/etc/passwd": b"root:x:0:0:root:/:/\n"}
_IMAGE_FOLDERS = ("/tmp", "/proc", "/sys", "/dev", "/run", "/usr/bin", "/usr/lib", "/etc/ld.so.conf.d")  # noqa: S108
# uname(2)'s machine name → the multiarch folder of Debian and Ubuntu, and OCI's architecture name.
_ARCHITECTURES_BY_MACHINE = {"x86_64": ("x86_64-linux-gnu", "amd64"), "aarch64": ("aarch64-linux-gnu", "arm64")}


def find_host_libraries(ldd_output: str) -> frozenset[str]:
    """Return the paths of the loader and libraries in ldd(1)'s output, and of the rest of glibc.

    NVIDIA's libraries are left out.

    Raises:
        ValueError: if a library is missing, or the C library is not glibc.
    """
    libraries: dict[str, str] = {}
    for name, path in re.findall(r"^\s+(?:(\S+) => )?(/\S+(?= \()|not found)", ldd_output, re.MULTILINE):
        name = name or PurePosixPath(path).name
        if name.startswith(_DRIVER_LIBRARY_PREFIXES):
            continue
        if path == "not found":
            raise ValueError(f"{name} is missing on this host")
        libraries[name] = path
    if "libc.so.6" not in libraries:
        raise ValueError("nvidia-smi needs glibc, and ldd finds no libc.so.6 on this host (musl is not supported)")
    folder = PurePosixPath(libraries["libc.so.6"]).parent
    return frozenset(libraries.values()) | {str(folder / name) for name in _GLIBC_LIBRARIES}


def build_image(libraries: Mapping[str, bytes], machine: str, reference: str, command: Iterable[str]) -> bytes:
    """Return an archive of ``docker save``'s format (moby's image/spec/v1.2); the same bytes for the same arguments.

    ``ctr images import`` and ``podman load`` read it, too.

    ``libraries`` maps paths to contents; ``machine`` is the architecture, as uname(2) calls it.

    Raises:
        ValueError: if NVIDIA has no driver for this architecture.
    """
    if machine not in _ARCHITECTURES_BY_MACHINE:
        raise ValueError(f"the architecture is {machine}, not one of {', '.join(_ARCHITECTURES_BY_MACHINE)}")
    architecture = _ARCHITECTURES_BY_MACHINE[machine][1]
    layer = _make_tar({**libraries, **_IMAGE_ETC_FILES}, _IMAGE_FOLDERS)
    digest = hashlib.sha256(layer).hexdigest()
    # Toolkits mount the libraries in different folders, by version and mode, and not all refresh ld.so.cache.
    folders = (*(f"/{triplet}" for triplet, _ in _ARCHITECTURES_BY_MACHINE.values()), "64")
    places = ":".join(f"{root}{folder}" for folder in folders for root in ("/usr/lib", "/lib"))
    environment = ["PATH=/usr/bin:/bin:/usr/sbin:/sbin", f"LD_LIBRARY_PATH={places}"]
    config = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Cmd": list(command), "Env": environment},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "history": [{"created_by": "gpunode verify --container"}],
    }
    config_file = _encode_json(config)
    config_path, layer_path = f"{hashlib.sha256(config_file).hexdigest()}.json", f"{digest}/layer.tar"
    manifest = _encode_json([{"Config": config_path, "RepoTags": [reference], "Layers": [layer_path]}])
    return _make_tar({config_path: config_file, layer_path: layer, "manifest.json": manifest})


def _make_tar(files: Mapping[str, bytes], folders: Iterable[str] = ()) -> bytes:
    """Return an archive of ``files``, ``folders`` and their parents: sorted, owned by root, dated 1970."""
    above = {str(parent) for path in (*files, *folders) for parent in PurePosixPath(path).parents}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted({*files, *folders, *above} - {"/", "."}):
            member = tarfile.TarInfo(path.lstrip("/"))
            member.mode = 0o644 if path in _IMAGE_ETC_FILES else 0o755
            member.type = tarfile.REGTYPE if path in files else tarfile.DIRTYPE
            member.size = len(files.get(path, b""))
            archive.addfile(member, io.BytesIO(files.get(path, b"")))
    return out.getvalue()


def _encode_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


UUID_QUERY = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")
# `utility` provides nvidia-smi and NVML in a container (NVIDIA container toolkit, driver capabilities).
_CONTAINER_ENVIRONMENT = ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_DRIVER_CAPABILITIES=utility")
_NVIDIA_SMI_PATHS = ("/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi")
_LDD_TIMEOUT_S = 10.0
_IMAGE_LOAD_TIMEOUT_S = 120.0
_REMOVE_TIMEOUT_S = 60.0
CONTAINER_CHECK_TIMEOUT_S = 120.0
_GPU_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Argv = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ContainerCommands:
    """The commands of one runtime.

    Attributes:
        load: takes the image from standard input.
        force_remove: removes a container whose run failed.
        remove: removes all the rest.
    """

    reference: str
    load: Argv
    run: Argv
    force_remove: tuple[Argv, ...]
    remove: tuple[Argv, ...]


def containerd_commands(token: str, *, binary: str = "/usr/bin/nvidia-container-runtime") -> ContainerCommands:
    """Return the commands for containerd, in a namespace of their own, so Kubernetes never sees the container.

    ctr bypasses the CRI plugin and its handlers, so ``binary`` is the runtime that the handler names (``BinaryName``).
    The check shows that this binary gives a container the GPUs; containerd's own view of its configuration shows that
    the handler names it.
    """
    name = f"gpunode-{token}"
    reference = f"localhost/gpunode-check:{token}"
    ctr = ("ctr", "--address", "/run/containerd/containerd.sock", "--namespace", name)
    environment = tuple(word for one in _CONTAINER_ENVIRONMENT for word in ("--env", one))
    return ContainerCommands(
        reference=reference,
        load=(*ctr, "images", "import", "-"),
        run=(
            *(*ctr, "run", "--rm", "--runtime", "io.containerd.runc.v2", "--runc-binary", binary),
            *(*environment, reference, name, *UUID_QUERY),
        ),
        force_remove=(
            (*ctr, "tasks", "kill", "--signal", "SIGKILL", name),
            (*ctr, "tasks", "delete", "--force", name),
            (*ctr, "containers", "rm", name),
        ),
        remove=((*ctr, "images", "rm", "--sync", reference), (*ctr, "namespaces", "rm", name)),
    )


def docker_commands(token: str) -> ContainerCommands:
    """Return the commands for docker, through the runtime that daemon.json calls ``nvidia``."""
    environment = (word for one in _CONTAINER_ENVIRONMENT for word in ("--env", one))
    return _engine_commands("docker", token, "--runtime", "nvidia", *environment)


def podman_commands(token: str) -> ContainerCommands:
    """Return the commands for podman, which takes the GPUs as CDI devices.

    SELinux confinement is off, since it denies containers /dev/nvidia* on hosts with SELinux.
    """
    return _engine_commands("podman", token, "--device", "nvidia.com/gpu=all", "--security-opt", "label=disable")


def _engine_commands(program: str, token: str, *options: str) -> ContainerCommands:
    """Return the commands for docker, or for podman, which has docker's command line."""
    name = f"gpunode-{token}"
    reference = f"localhost/gpunode-check:{token}"
    return ContainerCommands(
        reference=reference,
        load=(program, "load", "--quiet"),
        run=(program, "run", "--rm", "--name", name, "--network", "none", *options, reference, *UUID_QUERY),
        force_remove=((program, "rm", "--force", "--volumes", name),),
        remove=((program, "image", "rm", "--force", reference),),
    )


@dataclass(frozen=True, slots=True)
class ContainerCheck:
    """The result of a test container.

    Attributes:
        expected: the UUIDs that NVML lists on the host.
        seen: those that nvidia-smi lists in the container.
        failure: why there is nothing to compare, with the runtime's output.
        leftovers: what could not be removed, with the command to do it.
    """

    expected: frozenset[str]
    seen: frozenset[str] = frozenset()
    failure: str = ""
    leftovers: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """True if the container saw exactly the GPUs of the host."""
        return not self.failure and bool(self.expected) and self.seen == self.expected

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems, one sentence each; empty if it passed."""
        if self.failure:
            return (self.failure,)
        if not self.expected:
            return ("NVML lists no GPU on the host, so a container cannot see any",)
        missing = f"the container does not see {', '.join(sorted(self.expected - self.seen))}"
        strange = f"the container sees {', '.join(sorted(self.seen - self.expected))}, which NVML does not list"
        return (missing,) * (not self.expected <= self.seen) + (strange,) * (not self.seen <= self.expected)


def parse_uuids(output: bytes) -> frozenset[str]:
    """Parse the GPUs' UUIDs in nvidia-smi's output."""
    return frozenset(_GPU_UUID.findall(output.decode("utf-8", "replace")))


def check_container(
    runner: Runner, commands: ContainerCommands, expected: Iterable[str], timeout_s: float = CONTAINER_CHECK_TIMEOUT_S
) -> ContainerCheck:
    """Run a container, compare its GPUs with ``expected``, and remove everything."""
    result = partial(ContainerCheck, frozenset(expected))
    program = next((path for path in _NVIDIA_SMI_PATHS if Path(path).exists()), None)
    if program is None:
        return result(failure="nvidia-smi is not installed on the host, so no runtime can mount it")
    try:
        archive = build_image(read_libraries(runner, program), os.uname().machine, commands.reference, UUID_QUERY)
    except (ValueError, OSError) as error:
        return result(failure=f"cannot build an image from this host's files: {error}")
    loaded = runner.run(commands.load, timeout_s=_IMAGE_LOAD_TIMEOUT_S, stdin=archive)
    if not loaded.ok:
        why = _quote_output("the image could not be imported", loaded)
        return result(failure=why, leftovers=_remove_image(runner, commands))
    try:
        ran = runner.run(commands.run, timeout_s=timeout_s)
    except BaseException:
        _remove_container(runner, commands)
        raise
    if ran.ok:
        return result(seen=parse_uuids(ran.stdout), leftovers=_remove_image(runner, commands))
    why = _quote_output("the container did not run", ran)
    return result(failure=why, leftovers=_remove_container(runner, commands))


def read_libraries(runner: Runner, program: str) -> Mapping[str, bytes]:
    """Return what ``program`` needs to start, without NVIDIA's libraries: the bytes of each library by its path.

    ldd(1) may run the program, so only root and this user may be able to change it.

    Raises:
        ValueError: if others can change the program, ldd does not know it, or a library is missing.
        OSError: if a library cannot be read.
    """
    if why := explain_writable_by_others(Path(program), trusted=frozenset({0, os.geteuid()})):
        raise ValueError(f"ldd may run {program}, and {why}")
    listed = runner.run(("ldd", program), timeout_s=_LDD_TIMEOUT_S, only_reads=True)
    if listed.is_program_missing:
        raise ValueError("ldd is missing; it comes with glibc (libc-bin, glibc-common); nvidia-smi needs glibc")
    if not listed.ok:
        raise ValueError(_quote_output(f"the libraries of {program} are not known", listed))
    return {
        path: Path(path).read_bytes() for path in find_host_libraries(listed.stdout.decode("utf-8", "surrogateescape"))
    }


def _quote_output(what: str, finished: FinishedCommand) -> str:
    how = f"timed out after {finished.seconds:.0f} s" if finished.timed_out else f"exit status {finished.exit_status}"
    return f"{what} ({finished.argv[0]}: {how}): {finished.last_lines(5) or 'no output'}"


def _remove_container(runner: Runner, commands: ContainerCommands) -> tuple[str, ...]:
    """Remove the container, which may not exist, then the rest; report only failures of the latter."""
    for argv in commands.force_remove:
        runner.run(argv, timeout_s=_REMOVE_TIMEOUT_S)
    return _remove_image(runner, commands)


def _remove_image(runner: Runner, commands: ContainerCommands) -> tuple[str, ...]:
    ended = [runner.run(argv, timeout_s=_REMOVE_TIMEOUT_S) for argv in commands.remove]
    return tuple(f"{' '.join(one.argv)}: {one.last_lines(1)}" for one in ended if not one.ok)
