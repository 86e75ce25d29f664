"""What was typed after ``gpunode ctk runtime``, as a desired configuration. Pure but for the working folder.

Source: nvidia-container-toolkit@v1.20.0, cmd/nvidia-ctk/runtime/configure.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpunode.errors import UsageError
from gpunode.runtimes import RUNTIMES, DesiredConfig, Runtime, runtime
from gpunode.runtimes.model import Mode

_MODES = ("auto", "in-place", "drop-in")
_SOURCES = ("file", "command")
_HOOK_MODES = frozenset({"hook", "oci-hook"})
_FILE_MODES = frozenset({"", "config", "config-file"})
# What prints the configuration of each runtime, the first that is there.
_DUMPS = {
    "containerd": (("containerd", "config", "dump"),),
    "crio": (("crio", "status", "config"), ("crio-status", "config")),
}


@dataclass(frozen=True, slots=True)
class Typed:
    """The options of configure, unconfigure and check.

    Attributes:
        drop_in: None when the option was not given; empty means that none is wanted.
    """

    runtime: str = "docker"
    config: str = ""
    drop_in: str | None = None
    mode: str = "auto"
    name: str = "nvidia"
    path: str = "nvidia-container-runtime"
    default: bool = False
    cdi: bool = False
    enable_cri: bool = False
    source: str = "file"
    executable: str = ""
    config_mode: str = ""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was typed, understood.

    Attributes:
        dumps: commands of which the first that is there prints what options are copied from; none for the file.
        notes: what the user should know of the options.
    """

    row: Runtime
    desired: DesiredConfig
    dumps: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def wanted(typed: Typed, root: str) -> Wanted:
    """What ``typed`` asks for in ``root``.

    Raises:
        UsageError: an option says what none of its values is, or two contradict each other.
    """
    row = _row(typed.runtime)
    if not typed.name:
        raise UsageError(
            "--nvidia-runtime-name is empty",
            why="containers ask for a runtime by its name",
            hint="leave it out for nvidia",
        )
    _refuse_unknown("--mode", typed.mode, _MODES)
    _refuse_unknown("--config-source", typed.source, _SOURCES)
    if typed.config_mode in _HOOK_MODES:
        raise UsageError(
            f"--config-mode={typed.config_mode} is not supported: gpunode writes no OCI hooks",
            why="NVIDIA has deprecated them; CDI and the NVIDIA runtime have taken their place",
            hint="leave --config-mode out; podman and CRI-O use CDI: gpunode ctk runtime configure --runtime=podman",
        )
    mode, drop_in = _mode(typed, row)
    if not typed.path:
        raise UsageError(
            "--nvidia-runtime-path is empty",
            why="a runtime that runs nothing keeps docker from starting",
            hint="leave the option out, or name the program: --nvidia-runtime-path=/usr/bin/nvidia-container-runtime",
        )
    notes = tuple(_notes(typed, row))
    desired = DesiredConfig(
        handler=typed.name,
        binary=typed.path,
        default=typed.default,
        cdi=typed.cdi and row.cdi == "switch",
        mode=mode,
        config=absolute("--config", typed.config, root),
        drop_in=drop_in,
        enable_cri=typed.enable_cri,
        exact=True,
    )
    return Wanted(row, desired, _dumps(typed), notes)


def _row(name: str) -> Runtime:
    names = [row.id for row in RUNTIMES]
    _refuse_unknown("--runtime", name, names)
    return runtime(name)


def _refuse_unknown(option: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UsageError(
            f"{option} cannot be {value!r}", why=f"it takes: {', '.join(allowed)}", hint=f"name one of these: {option}="
        )


def _mode(typed: Typed, row: Runtime) -> tuple[Mode, str]:
    """Where the runtime is written, and the drop-in that was named."""
    if not typed.drop_in:
        return ("in-place" if typed.drop_in == "" else typed.mode), ""  # type: ignore[return-value]  # checked before
    if typed.mode == "in-place":
        raise UsageError(
            f"--mode in-place and --drop-in-config={typed.drop_in} contradict each other",
            why="the first edits the configuration itself, the second writes another file",
            hint="leave one of them out",
        )
    if not row.drop_in:
        raise UsageError(
            f"{row.id} reads no drop-ins",
            why=f"{row.config} is the only configuration that it reads, so --drop-in-config has no meaning for it",
            hint="leave --drop-in-config out",
        )
    if not typed.drop_in.startswith("/"):
        raise UsageError(
            f"--drop-in-config={typed.drop_in} is not an absolute path",
            why=f"the daemon that reads it has another working folder; {row.id}'s usual one is {row.drop_in}",
            hint=f"give the whole path: --drop-in-config={row.drop_in}",
        )
    return "drop-in", typed.drop_in


def _notes(typed: Typed, row: Runtime) -> Iterator[str]:
    """What is ignored, and what is deprecated."""
    if typed.drop_in == "" and typed.mode == "drop-in":
        yield "--drop-in-config is empty, so the configuration itself is edited, whatever --mode says"
    if typed.config_mode not in _FILE_MODES:
        yield f"--config-mode={typed.config_mode} is unknown and ignored; {typed.runtime} is configured by its file"
    if typed.cdi and row.cdi != "switch":
        yield f"--cdi.enabled is ignored: {typed.runtime} already has CDI enabled"
    if typed.enable_cri and not row.has_cri_plugin:
        yield f"--enable-cri is ignored: {typed.runtime} has no CRI plugin"
    if row.cdi == "only" and (typed.default or typed.mode != "auto" or typed.name != "nvidia"):
        yield f"{row.id} uses GPUs as CDI devices, so options about a runtime are ignored"
    if typed.executable and (typed.runtime not in _DUMPS or typed.source == "file"):
        yield f"--executable-path={typed.executable} is ignored: no command is asked for the configuration"
    if typed.source == "command" and typed.runtime not in _DUMPS:
        yield f"--config-source=command is ignored: {typed.runtime} has no such command, so its file is read"


def _dumps(typed: Typed) -> tuple[tuple[str, ...], ...]:
    if typed.source == "file":
        return ()
    found = _DUMPS.get(typed.runtime, ())
    return tuple((typed.executable, *words[1:]) for words in found[:1]) if typed.executable else found


def absolute(option: str, path: str, root: str) -> str:
    """``path`` as a whole one; empty stays empty.

    Raises:
        UsageError: it is relative, and no working folder is inside ``root``.
    """
    if path and not path.startswith("/") and root != "/":
        raise UsageError(
            f"{option}={path} is not an absolute path",
            why=f"with --root every path is inside {root}",
            hint=f"give it as it is in there: {option}=/etc/…",
        )
    if path.endswith("/"):
        raise UsageError(
            f"{option}={path} names a folder",
            why="it takes a file",
            hint=f"name the file: {option}={path}99-nvidia.toml",
        )
    # Without what makes one place look like two; with two slashes in front it would still be another for POSIX.
    return "/" + posixpath.normpath(Path.cwd() / path).lstrip("/") if path else ""
