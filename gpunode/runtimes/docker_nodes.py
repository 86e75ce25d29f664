"""Which docker a node has, and where it is configured: file, unit and command line. Pure.

Source: dockerd(8); dockerd 20.10.24, 26.1.5 and 28.5.2, started; docs.docker.com, "Rootless mode" and "Docker Desktop
for Linux"; canonical/docker-snap, its snapcraft.yaml and nvidia/lib.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from gpunode.errors import Refused
from gpunode.facts import systemd
from gpunode.fast_dataclass import dataclass
from gpunode.runtimes.model import DOCKER_CONFIG, DesiredConfig, Files, Runtime

# Flags whose key in the file has another name; for a repeatable flag it is a plural.
_DIRECTIVE_BY_FLAG = {
    "add-runtime": "runtimes",
    "authorization-plugin": "authorization-plugins",
    "cdi-spec-dir": "cdi-spec-dirs",
    "default-address-pool": "default-address-pools",
    "default-ulimit": "default-ulimits",
    "dns-opt": "dns-opts",
    "exec-opt": "exec-opts",
    "feature": "features",
    "host": "hosts",
    "insecure-registry": "insecure-registries",
    "label": "labels",
    "log-opt": "log-opts",
    "node-generic-resource": "node-generic-resources",
    "registry-mirror": "registry-mirrors",
    "storage-opt": "storage-opts",
}
_LONG_FLAG_BY_SHORT = {
    "b": "bridge",
    "D": "debug",
    "G": "group",
    "g": "graph",
    "H": "host",
    "l": "log-level",
    "p": "pidfile",
    "s": "storage-driver",
}
_TRUE_WORDS = frozenset({"1", "t", "true"})


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags that dockerd is started with.

    Attributes:
        given: the values of each flag, in order; ``true`` for a flag without a value.
        command_words: the same flags as words of a command line, without the one that names the configuration file.
        source_files: the files that the flags may come from.
    """

    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    command_words: tuple[str, ...] = ()
    source_files: tuple[str, ...] = ()

    def last_value(self, name: str) -> str | None:
        """Return the effective value of a flag; None if it was not given."""
        values = self.given.get(name)
        return values[-1] if values else None

    @property
    def config(self) -> str:
        """The configuration file; empty for the usual one. A service's working folder is the root."""
        path = self.last_value("config-file")
        return posixpath.normpath(posixpath.join("/", path)) if path else ""

    @property
    def runtimes(self) -> Mapping[str, str]:
        """The binaries of the runtimes that flags register."""
        pairs = (value.partition("=") for value in self.given.get("add-runtime", ()))
        return {name.strip(): path.strip() for name, mark, path in pairs if mark}

    @property
    def cdi(self) -> bool | None:
        """True if CDI is enabled; None if no flag says."""
        pairs = (value.partition("=") for value in self.given.get("feature", ()))
        values = [(value or "true") for name, _, value in pairs if name == "cdi"]
        return values[-1].lower() in _TRUE_WORDS if values else None

    @property
    def live_restore(self) -> bool | None:
        """True if containers outlive the daemon; None if no flag says."""
        value = self.last_value("live-restore")
        return None if value is None else value.lower() in _TRUE_WORDS


def parse_flags(argv: Sequence[str], sources: tuple[str, ...] = ()) -> Flags:
    """Parse the flags of a command line that starts dockerd, directly or through a wrapper."""
    behind = systemd.find_program_arguments(argv, "dockerd", "dockerd-ce")
    words = [*(argv[1:] if behind is None else behind)]
    given: dict[str, tuple[str, ...]] = {}
    kept: list[str] = []
    while words:
        own = [words.pop(0)]
        name, mark, value = _split_flag(own[0])
        if name and not mark:
            takes_next = words and not words[0].startswith("-") and own[0] != "-D"
            own += [words.pop(0)] if takes_next else []
            value = own[1] if takes_next else "true"
        if name:
            given[name] = (*given.get(name, ()), value)
        kept += own if name != "config-file" else []
    return Flags(given, tuple(kept), sources)


def conflicts(flags: Flags, directives: Sequence[str]) -> tuple[str, ...]:
    """Return the ``directives`` of the configuration file that flags also set, each with its flag.

    dockerd neither starts nor reloads if a key is in both; only for runtimes it accepts both, and the file's win (moby,
    daemon/config, findConfigurationConflicts).
    """
    return tuple(
        f"{directive} (--{name})"
        for name in flags.given
        if (directive := _DIRECTIVE_BY_FLAG.get(name, name)) in directives and directive != "runtimes"
    )


def _split_flag(word: str) -> tuple[str, str, str]:
    """Return a flag's full name, and its value if that is in the same word."""
    if word.startswith("--"):
        name, mark, value = word[2:].partition("=")
        return name, mark, value
    if word.startswith("-") and word[1:2] in _LONG_FLAG_BY_SHORT:
        rest = word[2:].removeprefix("=")
        return _LONG_FLAG_BY_SHORT[word[1]], rest and "=", rest
    return "", "", ""


# What dockerd logs about a SIGHUP: start and success at level info, rejection at level error.
# Source: moby v20.10.24, v26.1.5 and v28.5.2: daemon/config, daemon/reload.go, cmd/dockerd/daemon.go.
_RELOAD_BEGUN_MESSAGE = "Got signal to reload configuration"
_RELOAD_DONE_MESSAGE = "Reloaded configuration:"
_RELOAD_REJECTED_MESSAGES = ("unable to configure the Docker daemon with file", "Error reconfiguring the daemon")


@dataclass(frozen=True, slots=True)
class ReloadOutcome:
    """The outcome of a reload in dockerd's log.

    Attributes:
        rejection: dockerd's line if it keeps its former configuration; empty if it does not report that.
        ended: whether no more lines will come; a dockerd that only logs warnings reports nothing but rejections.
    """

    rejection: str
    ended: bool


def parse_reload_log(log: str) -> ReloadOutcome:
    """Return the outcome of the reload in dockerd's ``log`` since the signal."""
    rejected = (line for line in log.splitlines() if any(words in line for words in _RELOAD_REJECTED_MESSAGES))
    rejection = next(rejected, "")
    return ReloadOutcome(rejection, bool(rejection) or _RELOAD_DONE_MESSAGE in log or _RELOAD_BEGUN_MESSAGE not in log)


@dataclass(frozen=True, slots=True)
class DockerInstallation:
    """A docker in the form in which one installation method provides it.

    Attributes:
        product: the installing product, if it is not a package of the distribution's or docker's own.
        unit: the system unit that runs the daemon; empty if there is none.
        socket: where it listens; empty if that depends on the user.
    """

    config: str
    unit: str
    socket: str
    product: str = ""


ENGINE = DockerInstallation(DOCKER_CONFIG, "docker.service", "/run/docker.sock")
SNAP = DockerInstallation(
    "/var/snap/docker/current/config/daemon.json", "snap.docker.dockerd.service", "/run/docker.sock", "the docker snap"
)
# Each user has their own; systemctl --user starts it.
ROOTLESS_INSTALLATION = DockerInstallation("", "", "")

_SNAP_UNIT_FILE = f"/etc/systemd/system/{SNAP.unit}"
_SNAP_FOLDER = "/snap/docker/"
_DESKTOP_UNIT_FILE = "/usr/lib/systemd/user/docker-desktop.service"
_DESKTOP_CONFIG_ENDING = "/.docker/daemon.json"
_TOOLKIT_CONFIG = "/etc/nvidia-container-runtime/config.toml"
_ROOTLESS_CONFIG_PATH = re.compile(r"(?P<home>/.+)/\.config/docker/daemon\.json")


@dataclass(frozen=True, slots=True)
class NodeDocker:
    """The docker to configure, and how it is started.

    Attributes:
        config: the file that it reads.
        flags: those of its command line; none if a file is edited that it does not read.
        like: the file whose owner a new configuration gets; empty for root's.
    """

    kind: DockerInstallation
    config: str
    flags: Flags
    files: Files
    like: str = ""

    def said_in(self, flag: str) -> str:
        """Return the files that contain ``flag``."""
        flag_files = [path for path in self.flags.source_files if f"--{flag}".encode() in self.files.get(path, b"")]
        return ", ".join(flag_files or self.flags.source_files)


def list_read_paths(files: Files, desired: DesiredConfig) -> tuple[str, ...]:
    """Return all files that tell how docker is installed, started and configured."""
    node = find_docker(files, desired)
    unit_files = systemd.unit_source_patterns(files, ENGINE.unit)
    if home := _rootless_home(desired.config):
        unit_files = (*systemd.unit_source_patterns(files, ENGINE.unit, _user_unit_folders(home)), _TOOLKIT_CONFIG)
    marks = (_SNAP_UNIT_FILE, SNAP.config, _DESKTOP_UNIT_FILE)
    return tuple(dict.fromkeys((*unit_files, *marks, DOCKER_CONFIG, node.config)))


def adapt_to_node(runtime: Runtime, files: Files, desired: DesiredConfig) -> Runtime:
    """Return ``runtime`` as docker is on this node: its configuration file, its unit, its socket."""
    node = find_docker(files, desired)
    kind = node.kind
    here = replace(runtime, config=node.config, unit=kind.unit, socket=kind.socket, product=kind.product)
    return runtime if here == runtime else here


def find_docker(files: Files, desired: DesiredConfig) -> NodeDocker:
    """Return the docker whose file is requested, else the installed one."""
    if home := _rootless_home(desired.config):
        folders = _user_unit_folders(home)
        like = f"{folders[0]}/{ENGINE.unit}"
        flags = _read_flags(files, ENGINE.unit, folders)
        return NodeDocker(ROOTLESS_INSTALLATION, desired.config, flags, files, like if like in files else "")
    kind = _find_installation(files, desired)
    flags = _read_flags(files, kind.unit) if kind is ENGINE else Flags()
    config = flags.config or kind.config
    if desired.config and desired.config != config:
        return NodeDocker(kind, desired.config, Flags(), files)
    return NodeDocker(kind, config, flags, files)


def _read_flags(files: Files, unit: str, *folders: tuple[str, ...]) -> Flags:
    started = systemd.find_start_command(files, unit, *folders)
    return parse_flags(started.argv, started.sources) if started else Flags()


def refuse_unusable_docker(files: Files, node: NodeDocker, desired: DesiredConfig) -> None:
    """Refuse a request that this docker cannot fulfil.

    Raises:
        Refused: it cannot.
    """
    if desired.drop_in or desired.mode == "drop-in":
        raise Refused(
            "docker reads no drop-ins",
            why=f"{node.config} is the only file of its daemon",
            hint="leave --drop-in-config and --mode drop-in out",
        )
    only_desktop = not desired.config and node.kind is ENGINE and _DESKTOP_UNIT_FILE in files and not _has_engine(files)
    if only_desktop or desired.config.endswith(_DESKTOP_CONFIG_ENDING):
        raise Refused(
            f"{node.config} is Docker Desktop's" if desired.config else "the docker of this machine is Docker Desktop",
            why="its daemon runs in a virtual machine that reads no file of this machine and has no GPU",
            hint="install Docker Engine beside it (docker.io or docker-ce), select it with `docker context use "
            "default`, then run the command again",
        )
    if node.kind is SNAP and desired.binary.startswith("/") and not desired.binary.startswith(_SNAP_FOLDER):
        raise Refused(
            f"docker is a snap here, and a snap's daemon cannot run {desired.binary}",
            why="a snap runs only its own programs; docker's ships NVIDIA's runtime and registers it when "
            "its daemon starts on a machine with an NVIDIA driver",
            hint="sudo snap restart docker, then `docker info` names the runtime nvidia; or register the snap's "
            f"own: --nvidia-runtime-path={_SNAP_FOLDER}current/usr/bin/nvidia-container-runtime",
        )


def installation_notes(files: Files, node: NodeDocker) -> tuple[str, ...]:
    """Return notes for the user about this docker."""
    if node.kind is ROOTLESS_INSTALLATION:
        return _rootless_notes(files)
    notes = []
    if node.kind is SNAP and DOCKER_CONFIG in files:
        notes.append(f"docker is a snap here and does not read {DOCKER_CONFIG}")
    if _SNAP_UNIT_FILE in files and node.kind is ENGINE:
        notes.append(f"docker is also installed as a snap, which has its own file: {SNAP.config}")
    if _DESKTOP_UNIT_FILE in files:
        notes.append("Docker Desktop is installed too: containers of its context, desktop-linux, see no GPU")
    return tuple(notes)


_RESTART_ROOTLESS_HINT = "a rootless docker is restarted by its user: systemctl --user restart docker"
_SET_NO_CGROUPS_NOTE = (
    "a rootless docker cannot set device cgroups, so the container toolkit needs no-cgroups = true: "
    "gpunode ctk config --in-place --set nvidia-container-cli.no-cgroups=true. That applies to every runtime on "
    "this machine: if one that runs as root uses GPUs too, use CDI for the rootless one instead"
)


def _rootless_notes(files: Files) -> tuple[str, ...]:
    from gpunode.runtimes.documents import parse_document, value_at

    try:
        config = parse_document(files.get(_TOOLKIT_CONFIG), _TOOLKIT_CONFIG)
    except (ValueError, Refused):
        config = {}  # the code that edits the file reports the problem
    has_no_cgroups = value_at(config, ("nvidia-container-cli", "no-cgroups")) is True
    return (_RESTART_ROOTLESS_HINT,) if has_no_cgroups else (_RESTART_ROOTLESS_HINT, _SET_NO_CGROUPS_NOTE)


def _find_installation(files: Files, desired: DesiredConfig) -> DockerInstallation:
    if desired.config == SNAP.config:
        return SNAP
    if _has_engine(files) or desired.config:
        return ENGINE
    return SNAP if _SNAP_UNIT_FILE in files or (SNAP.config in files and DOCKER_CONFIG not in files) else ENGINE


def _has_engine(files: Files) -> bool:
    """Return whether systemd would start an engine; it does not start masked units."""
    return systemd.find_start_command(files, ENGINE.unit) is not None


def _rootless_home(config: str) -> str:
    """Return the home of the user whose rootless docker reads ``config``; empty for another file."""
    match = _ROOTLESS_CONFIG_PATH.fullmatch(config)
    return match["home"] if match else ""


def _user_unit_folders(home: str) -> tuple[str, ...]:
    return (f"{home}/.config/systemd/user", "/etc/systemd/user", "/usr/lib/systemd/user")
