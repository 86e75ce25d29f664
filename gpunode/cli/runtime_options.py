"""Parse the options of ``gpunode ctk runtime`` into a desired configuration. Pure but for the working folder.

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
# Commands that print the configuration of each runtime; the first available one counts.
_DUMPS = {
    "containerd": (("containerd", "config", "dump"),),
    "crio": (("crio", "status", "config"), ("crio-status", "config")),
}


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """The options of configure, unconfigure and check.

    Attributes:
        drop_in: None if not given; empty to edit the configuration itself.
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
class RuntimeRequest:
    """The parsed request.

    Attributes:
        dumps: commands to print the current configuration, the first available one counts; none to read the file.
        notes: warnings about the options.
    """

    row: Runtime
    desired: DesiredConfig
    dumps: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def parse_options(options: RuntimeOptions, root: str) -> RuntimeRequest:
    """Parse ``options`` for the system at ``root``.

    Raises:
        UsageError: if a value is not allowed, or two options contradict each other.
    """
    row = _find_runtime(options.runtime)
    if not options.name:
        raise UsageError(
            "--nvidia-runtime-name is empty",
            why="containers ask for a runtime by its name",
            hint="leave it out for nvidia",
        )
    _refuse_unknown("--mode", options.mode, _MODES)
    _refuse_unknown("--config-source", options.source, _SOURCES)
    if options.config_mode in _HOOK_MODES:
        raise UsageError(
            f"--config-mode={options.config_mode} is not supported: gpunode writes no OCI hooks",
            why="NVIDIA has deprecated them; CDI and the NVIDIA runtime have taken their place",
            hint="leave --config-mode out; podman and CRI-O use CDI: gpunode ctk runtime configure --runtime=podman",
        )
    mode, drop_in = _choose_mode(options, row)
    if not options.path:
        raise UsageError(
            "--nvidia-runtime-path is empty",
            why="a runtime without a program prevents docker from starting",
            hint="leave the option out, or name the program: --nvidia-runtime-path=/usr/bin/nvidia-container-runtime",
        )
    notes = tuple(_option_notes(options, row))
    desired = DesiredConfig(
        handler=options.name,
        binary=options.path,
        default=options.default,
        cdi=options.cdi and row.cdi == "switch",
        mode=mode,
        config=absolute_path("--config", options.config, root),
        drop_in=drop_in,
        enable_cri=options.enable_cri,
        exact=True,
    )
    return RuntimeRequest(row, desired, _dump_commands(options), notes)


def _find_runtime(name: str) -> Runtime:
    names = [row.id for row in RUNTIMES]
    _refuse_unknown("--runtime", name, names)
    return runtime(name)


def _refuse_unknown(option: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UsageError(
            f"{option} cannot be {value!r}", why=f"it takes: {', '.join(allowed)}", hint=f"name one of these: {option}="
        )


def _choose_mode(options: RuntimeOptions, row: Runtime) -> tuple[Mode, str]:
    """Return the mode and the drop-in file."""
    if not options.drop_in:
        return ("in-place" if options.drop_in == "" else options.mode), ""  # type: ignore[return-value]  # checked before
    if options.mode == "in-place":
        raise UsageError(
            f"--mode in-place and --drop-in-config={options.drop_in} contradict each other",
            why="the first edits the configuration itself, the second writes another file",
            hint="leave one of them out",
        )
    if not row.drop_in:
        raise UsageError(
            f"{row.id} reads no drop-ins",
            why=f"{row.config} is the only configuration that it reads, so --drop-in-config has no meaning for it",
            hint="leave --drop-in-config out",
        )
    if not options.drop_in.startswith("/"):
        raise UsageError(
            f"--drop-in-config={options.drop_in} is not an absolute path",
            why=f"the daemon that reads it has another working folder; {row.id}'s usual one is {row.drop_in}",
            hint=f"give the whole path: --drop-in-config={row.drop_in}",
        )
    return "drop-in", options.drop_in


def _option_notes(options: RuntimeOptions, row: Runtime) -> Iterator[str]:
    """Yield a note for each option that has no effect."""
    if options.drop_in == "" and options.mode == "drop-in":
        yield "--drop-in-config is empty, so the configuration itself is edited, whatever --mode says"
    if options.config_mode not in _FILE_MODES:
        yield f"--config-mode={options.config_mode} is unknown and ignored; {options.runtime} is configured by its file"
    if options.cdi and row.cdi != "switch":
        yield f"--cdi.enabled is ignored: {options.runtime} already has CDI enabled"
    if options.enable_cri and not row.has_cri_plugin:
        yield f"--enable-cri is ignored: {options.runtime} has no CRI plugin"
    if row.cdi == "only" and (options.default or options.mode != "auto" or options.name != "nvidia"):
        yield f"{row.id} uses GPUs as CDI devices, so options about a runtime are ignored"
    if options.executable and (options.runtime not in _DUMPS or options.source == "file"):
        yield f"--executable-path={options.executable} is ignored: no command is asked for the configuration"
    if options.source == "command" and options.runtime not in _DUMPS:
        yield f"--config-source=command is ignored: {options.runtime} has no such command, so its file is read"


def _dump_commands(options: RuntimeOptions) -> tuple[tuple[str, ...], ...]:
    if options.source == "file":
        return ()
    found = _DUMPS.get(options.runtime, ())
    return tuple((options.executable, *words[1:]) for words in found[:1]) if options.executable else found


def absolute_path(option: str, path: str, root: str) -> str:
    """Return the absolute path; empty stays empty.

    Raises:
        UsageError: if it is relative under another ``root``, or names a folder.
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
    # POSIX gives two leading slashes a meaning of their own.
    return "/" + posixpath.normpath(Path.cwd() / path).lstrip("/") if path else ""
