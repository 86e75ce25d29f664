"""Docker: its file, its flags, and which of the dockers that a node can have it is that answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import TOOLKIT_GUIDE
from gpunode.diagnoses.commands import Shell, command, joined
from gpunode.diagnoses.model import Citation, Family, Fix, Rule
from gpunode.diagnoses.remedies import always, by_hand, install, restart, run
from gpunode.diagnoses.signs import all_of, any_of, asked, fact, file_line, holds, line, unless
from gpunode.diagnoses.snapshot import Snapshot, stated
from gpunode.diagnoses.views import docker, system, toolkit
from gpunode.diagnoses.views.docker import DaemonFile
from gpunode.facts.model import Known
from gpunode.facts.probes import TOOLKIT_LIST
from gpunode.facts.sources import Kind
from gpunode.runtimes.dockerd import conflicts
from gpunode.runtimes.model import DOCKER_CONFIG

_UNREAD: Final = Shell("sudo gpunode ctk runtime configure --runtime=docker")
_CONFIGURE: Final = joined(_UNREAD, Shell("--restart"))
_START: Final = run(
    "restart",
    "start docker again",
    Shell("sudo systemctl daemon-reload"),
    Shell("sudo systemctl reset-failed docker"),
    Shell("sudo systemctl restart docker"),
)
# Where docker, or whoever started it, speaks.
_TOLD: Final[tuple[Kind, ...]] = (
    *("docker-info", "docker-version", "container-run", "container-inspect", "text", "environment", "application"),
    *("unit-status", "unit-log", "unit-action", "which", "snap"),
)

# The file, and what else the daemon is started with.

_INVALID: Final = line(
    r"(?:unable to configure the Docker daemon with file|failed to load|error (?:reading|parsing)) "
    r"[^\s:]*daemon\.json:? [^\n]{0,80}?"
    r"(?:invalid character|invalid literal|unexpected end|EOF|cannot unmarshal|any configuration option|invalid UTF-8)",
    flags=re.IGNORECASE,
)
_RUNS: Final = line(
    r"^active$|Active: active \(running\)|^ActiveState=active$|^[ \t]*Server Version:|^CONTAINER ID |^GPU \d+: ",
    *("unit-status", "unit-show", "docker-info", "docker-version", "container-run"),
)


def _faulty(snapshot: Snapshot) -> Iterator[DaemonFile]:
    """The files that dockerd cannot read; of a paste nobody knows who broke it, where docker answers all the same."""
    for file in snapshot.view(docker.files):
        if file.fault and (file.is_probed or not snapshot.view(_RUNS)):
            yield file


_FAULTY: Final = fact(lambda snapshot: (file.citation for file in _faulty(snapshot)))
_FAULTY_ON_NODE: Final = fact(lambda snapshot: (file.citation for file in _faulty(snapshot) if file.is_probed))


def _is_running(snapshot: Snapshot) -> bool | None:
    unit = snapshot.facts.unit(docker.UNIT)
    return unit.value.state.active if isinstance(unit, Known) and unit.value.exists else None


def _fault(snapshot: Snapshot) -> str:
    for file in _faulty(snapshot):
        when = "at its next start dockerd" if file.is_probed and _is_running(snapshot) else "dockerd"
        return f"{when} cannot read {file.path}: {file.fault}"
    return "dockerd does not start: it cannot read its configuration file"


def _both(snapshot: Snapshot) -> Iterator[Citation]:
    """The settings that stand in a file and on dockerd's command line."""
    if (started := docker.started_with(snapshot)) is not None:
        for file in snapshot.view(docker.files):
            yield from (file.line(both.split(" ")[0]) for both in conflicts(started, tuple(file.document)))


# Another docker than the one that was set up.

_NO_LIBRARY: Final = line(
    r"load library failed: libnvidia-ml\.so|libdxcore\.so[^\n]{0,40}(?:not found|cannot open)", *_TOLD
)
_SNAP: Final = unless(
    any_of(
        line(
            r"/snap/(?:bin/)?docker\b|/run/snap\.docker\b|\bsnap\.docker\.dockerd\b|^docker\b.*\bcanonical\W"
            r"|^docker\s+\d\S*\s+\d+\s",
            *_TOLD,
        ),
        file_line("/var/snap/docker/*", r"\S"),
        asked(r"\bsnap (?:install|refresh|restart|info|services) docker\b|\bdocker \(snap\)"),
        fact(lambda snapshot: _active(snapshot, "snap.docker.dockerd.service")),
    ),
    line(r"Docker Root Dir:\s*/var/lib/docker\b"),
)


def _active(snapshot: Snapshot, name: str) -> Iterator[Citation]:
    unit = snapshot.facts.unit(name)
    if isinstance(unit, Known) and unit.value.exists and unit.value.state.active:
        yield system.unit_line(snapshot, name, "ActiveState")


# That of Windows has GPUs, and is left out.
_DESKTOP: Final = unless(
    line(
        r"Operating System:\s*Docker Desktop|Server: Docker Desktop|^Docker Desktop \d|^ *Context:\s*desktop-linux"
        r"|^desktop-linux\s*(?:\*|$)|\"Name\":\s*\"desktop-linux\"|^[ \t]*Name:\s*docker-desktop\b"
        r"|Kernel Version:\s*\S*linuxkit|^\d+\.\d+\.\d+-linuxkit\b|DOCKER_HOST=\S*/\.docker/desktop/"
        r"|Current context is now \"desktop-linux\"",
        *_TOLD,
    ),
    holds(system.is_wsl, "this is WSL2"),
    line(r"microsoft-standard|Kernel Version:\s*\S*microsoft", flags=re.IGNORECASE),
)


def _engine(snapshot: Snapshot, when: str = "") -> Iterable[Fix]:
    if snapshot.view(system.package_manager) == "apt":
        yield install(snapshot, "install Docker Engine from the distribution's own repository", "docker.io", when=when)
    else:
        yield by_hand("install", "install Docker Engine as https://docs.docker.com/engine/install/ says", when)
    yield run("configure", "register NVIDIA's runtime", _CONFIGURE)


def _replace_the_snap(snapshot: Snapshot) -> Iterable[Fix]:
    # Nobody reads on behind a command: what must be done before it is a step of its own.
    yield by_hand("remove", "save what the snap's volumes and images hold (docker volume ls): they go with it")
    yield run("remove", "then remove the snap", Shell("sudo snap remove docker"))
    yield from _engine(snapshot)


def _to_the_engine(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_SNAP) and not snapshot.view(_DESKTOP):
        yield from _replace_the_snap(snapshot)
        return
    text = "choose Docker Engine, which runs on this system itself"
    yield run("configure", text, Shell("docker context use default"))
    yield from _engine(snapshot, "no Docker Engine is installed beside it")


# A docker of a user's own.

_IS_ROOTLESS: Final = (
    r"^[ \t]*rootless\s*$|name=rootless|^[ \t]*Context:\s*rootless|^rootless\s*\*|dockerd-rootless\.sh --"
    r"|rootlesskit --|\((?:Rootless|rootless)\)\s*$|/run/user/\d+/docker\.sock"
)
ROOTLESS: Final = any_of(
    line(_IS_ROOTLESS, *_TOLD),
    asked(
        r"systemctl --user \S+ docker|/\.config/docker/daemon\.json|/run/user/\d+/docker\.sock|\brootless docker\b"
        r"|--context[= ]rootless"
    ),
)
_NOT_PERMITTED: Final = line(
    r"bpf_prog_query\(BPF_CGROUP_DEVICE\) failed: operation not permitted"
    r"|/sys/fs/cgroup/devices/[^\s:]{0,300}devices\.allow: permission denied"
)
_UNKNOWN: Final = line(
    r"unknown or invalid runtime name:? ?[\\\"'`]*nvidia|Unknown runtime specified [\\\"'`]*nvidia"
    r"|(?:(?:OCI|default) )?runtime [\\\"'`]*nvidia[\\\"'`]* (?:does not exist|not found|is not)",
    flags=re.IGNORECASE,
)


def _registering(snapshot: Snapshot, *, users: bool) -> Iterator[Citation]:
    """Where a file registers the runtime: that of a user's docker, or the one that the engine reads."""
    started = docker.started_with(snapshot)
    read = (started.config if started else "") or DOCKER_CONFIG
    for file in snapshot.view(docker.files):
        if file.has_nvidia and (".config/docker" in file.path if users else file.path == read):
            yield file.line("nvidia")


_USERS: Final = fact(lambda snapshot: _registering(snapshot, users=True))
_REGISTERED: Final = fact(lambda snapshot: _registering(snapshot, users=False))
_CGROUPS: Final = file_line("*nvidia-container-runtime/config.toml", r"^[ \t]*no-cgroups\s*=\s*false")


def _no_cgroups(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_UNKNOWN):
        register = Shell('gpunode ctk runtime configure --runtime=docker --config="$HOME/.config/docker/daemon.json"')
        yield run("configure", "register the runtime in the user's own file", register)
    yield run(
        "configure",
        "tell the toolkit to leave cgroups alone; it holds for every engine of this machine, so where one runs as "
        "root, use CDI for the rootless one instead",
        Shell("sudo gpunode ctk config --in-place --set nvidia-container-cli.no-cgroups=true"),
    )
    yield run("restart", "restart that user's docker", Shell("systemctl --user restart docker"))


# The right docker, which does not know of the runtime.

_RUNTIMES: Final = r"(?:^[ \t]*Runtimes:|\bio\.containerd\.runc\.v2\b(?=[^\n]*[ {\"]runc\b))"
_HAS_IT: Final = line(rf"{_RUNTIMES}[^\n]*\bnvidia\b", "docker-info", "text", "container-run")
_LACKS_IT: Final = unless(line(rf"{_RUNTIMES}(?![^\n]*\bnvidia\b)", "docker-info", "text", "container-run"), _HAS_IT)
_TAKES_ANOTHER: Final = line(r"^[ \t]*Default Runtime:\s*(?!nvidia)\w", "docker-info", "text", "container-run")
_DEFAULT: Final = fact(
    lambda node: (
        file.line("default-runtime") for file in node.view(docker.files) if file.is_default and file.has_nvidia
    )
)
_NOT_IN_FILE: Final = fact(
    lambda node: (file.citation for file in node.view(docker.files) if not (file.has_nvidia or file.fault))
)
_COMPARES: Final = asked(r"(?=.*docker).*(?:ActiveEnter|ExecMainStart)Timestamp|lstart.*dockerd")


def _started(snapshot: Snapshot, *, before: bool) -> Iterator[Citation]:
    """That the daemon was started before the toolkit was installed, or after it, where the node was looked at."""
    unit, installed = snapshot.facts.unit(docker.UNIT), snapshot.facts.changed_at.get(TOOLKIT_LIST)
    began = unit.value.started_at if isinstance(unit, Known) else None
    if began is not None and installed is not None and (began < installed) is before:
        yield system.unit_line(snapshot, docker.UNIT, "ExecMainStartTimestamp")
        yield stated(TOOLKIT_LIST, f"written {'after' if before else 'before'} that", f"file:{TOOLKIT_LIST}")


_STARTED_AFTER: Final = fact(lambda snapshot: _started(snapshot, before=False))


def _dangling(snapshot: Snapshot) -> Iterator[Citation]:
    """A default runtime that no file and no flag describes."""
    started = docker.started_with(snapshot)
    if started is None or "nvidia" not in started.runtimes:
        for file in snapshot.view(docker.files):
            if file.is_default and not file.has_nvidia:
                yield file.line("default-runtime")


def _register(snapshot: Snapshot) -> Iterable[Fix]:
    if _is_running(snapshot) is False:
        yield run("configure", "register NVIDIA's runtime", _UNREAD)
        yield _START
        return
    yield run("configure", "register NVIDIA's runtime, and have docker read that", _CONFIGURE)
    text = "restart docker; its containers stop unless live-restore is on"
    yield restart("docker.service", text, when="gpunode did not, for the containers that run, and they may stop")


FAMILY: Final = Family(
    "docker",
    "Docker",
    (
        Rule(
            cause="daemon-json-invalid",
            layer="config",
            disruption="restart-service",
            title="dockerd cannot read its configuration file",
            story=(
                "dockerd reads /etc/docker/daemon.json at its start and does not start when that is no valid JSON, or "
                "names an option that it does not know. It is often two files put one after the other, a missing comma "
                "or curly quotes of a web page. Every container of the node is down, not those with GPUs alone; "
                "systemd only says that the unit failed, the daemon's journal names the character."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-docker/issues/761",
                "https://docs.docker.com/reference/cli/dockerd/#daemon-configuration-file",
            ),
            decisive=any_of(_FAULTY, _INVALID),
            symptoms=(symptoms.DAEMON_DOWN, _FAULTY_ON_NODE),
            look_at=(Shell("sudo dockerd --validate --config-file /etc/docker/daemon.json"),),
            share=1,
            summary=_fault,
            remedy=always(
                by_hand("configure", f"correct {DOCKER_CONFIG}: one object, plain quotes, no comments, no last comma"),
                run(
                    "inspect",
                    "let dockerd check it (docker 23 and later)",
                    command("sudo", "dockerd", "--validate", "--config-file", DOCKER_CONFIG),
                ),
                _START,
            ),
            explains=frozenset(
                {"nvidia-runtime-not-registered", "docker-not-restarted", "docker-cdi-feature-disabled"}
            ),
        ),
        Rule(
            cause="docker-directive-conflict",
            layer="config",
            disruption="restart-service",
            title="a setting of dockerd stands in its file and on its command line",
            story=(
                "dockerd refuses to start when a setting is given both as a flag, by its systemd unit, and in "
                "daemon.json, even with the same value. Debian's and docker's units give the listening address with "
                "-H fd://, so `hosts` in the file is the usual one; old instructions for NVIDIA's runtime added "
                "--add-runtime to the unit."
            ),
            sources=(
                "https://github.com/moby/moby/issues/34104",
                "https://docs.docker.com/engine/daemon/troubleshoot/#conflicts-between-the-daemonjson-and-startup-scripts",
            ),
            decisive=any_of(
                line(r"directives are specified (?:both )?as a flag and in the config"),
                fact(_both),
            ),
            typical=all_of(symptoms.DAEMON_DOWN, file_line("*daemon.json", r"\"hosts\"\s*:")),
            symptoms=(symptoms.DAEMON_DOWN,),
            against=(_FAULTY,),
            look_at=(Shell("sudo journalctl -u docker -b -n 20"), Shell("systemctl cat docker")),
            summary="dockerd does not start: a setting stands in daemon.json and on its command line as well",
            remedy=always(
                run(
                    "configure",
                    "start dockerd without the flag, in a drop-in, or take the setting out of daemon.json",
                    Shell("sudo systemctl edit docker.service"),
                ),
                _START,
            ),
            explains=frozenset(
                {"nvidia-runtime-not-registered", "docker-not-restarted", "docker-cdi-feature-disabled"}
            ),
        ),
        Rule(
            cause="docker-from-snap",
            layer="runtime",
            disruption="restart-service",
            title="docker is the snap",
            story=(
                "The docker snap brings a daemon of its own, which reads /var/snap/docker/current/config/daemon.json "
                "and may run no program from outside of the snap. A toolkit that apt has installed, and what was "
                "written to /etc/docker/daemon.json, mean nothing to it, so it answers as if neither were there."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-docker/issues/1637",
                "https://github.com/canonical/docker-snap/issues/148",
            ),
            decisive=unless(_SNAP, _NO_LIBRARY),
            symptoms=(symptoms.NO_DEVICE_DRIVER, symptoms.NO_RUNTIME),
            may_be_normal=True,
            look_at=(Shell("command -v docker"), Shell("snap list docker")),
            summary="docker is the snap, which sees neither the toolkit nor the settings of this system",
            remedy=_replace_the_snap,
            explains=frozenset({"nvidia-runtime-not-registered", "docker-not-restarted", "toolkit-not-installed"}),
        ),
        Rule(
            cause="docker-from-snap-or-desktop-vm",
            layer="toolkit",
            in_stack="runtime",
            disruption="restart-service",
            title="the docker that answers cannot see the driver of this system",
            story=(
                "Docker Desktop for Linux runs its daemon in a virtual machine, and the docker snap runs its one "
                "confined: neither sees the driver's libraries or device nodes of the system. The toolkit inside then "
                "says that libnvidia-ml.so.1 cannot be loaded, though nvidia-smi works on the host. Often "
                "`sudo docker` works, since root uses the context of Docker Engine."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-container-toolkit/issues/229",
                "https://github.com/NVIDIA/nvidia-container-toolkit/issues/154",
            ),
            decisive=any_of(_DESKTOP, all_of(_SNAP, _NO_LIBRARY)),
            typical=all_of(_NO_LIBRARY, symptoms.DRIVER_WORKS),
            symptoms=(
                symptoms.NO_DEVICE_DRIVER,
                symptoms.NO_RUNTIME,
                symptoms.HOOK_FAILED,
                symptoms.NO_NVML_LIBRARY,
                symptoms.CONTAINER_FAILED,
            ),
            share=2,
            may_be_normal=True,
            look_at=(Shell("docker context ls"), Shell("docker info | grep -E 'Operating System|Name'")),
            summary="the docker that answers runs in a virtual machine or confined, and sees no driver of this system",
            remedy=_to_the_engine,
            explains=frozenset({"nvidia-runtime-not-registered", "docker-not-restarted", "toolkit-not-installed"}),
        ),
        Rule(
            cause="docker-rootless-config",
            layer="runtime",
            disruption="restart-service",
            title="a rootless docker is set up as if it ran as root",
            story=(
                "A docker that runs as a user reads ~/.config/docker/daemon.json and may not change device cgroups. "
                "So it knows nothing of a runtime in /etc/docker/daemon.json, and NVIDIA's library fails at the "
                "cgroup, with `bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted` or, on cgroup v1, "
                "`devices.allow: permission denied`, until it is told no-cgroups = true."
            ),
            sources=("https://github.com/NVIDIA/libnvidia-container/issues/154", f"{TOOLKIT_GUIDE}#rootless-mode"),
            decisive=all_of(ROOTLESS, any_of(_NOT_PERMITTED, unless(_UNKNOWN, _USERS))),
            typical=any_of(
                unless(_NOT_PERMITTED, line(r"\b(?:lxc|lxd|incus)\b", flags=re.IGNORECASE)),
                all_of(ROOTLESS, any_of(_CGROUPS, unless(_REGISTERED, _USERS))),
            ),
            symptoms=(symptoms.HOOK_FAILED, symptoms.NO_RUNTIME, symptoms.DENIED),
            context=ROOTLESS,
            look_at=(Shell("docker info | grep -i rootless"), Shell("cat ~/.config/docker/daemon.json")),
            summary="docker runs as a user: it reads its own daemon.json, and may not give devices out by cgroups",
            remedy=_no_cgroups,
            explains=frozenset({"nvidia-runtime-not-registered", "docker-not-restarted"}),
        ),
        Rule(
            cause="docker-not-restarted",
            layer="runtime",
            disruption="restart-service",
            title="docker runs since before the toolkit or its settings came",
            story=(
                "dockerd looks for NVIDIA's hook in its PATH, and reads daemon.json, when it starts. A toolkit that "
                "was installed or registered afterwards is unknown to the running daemon, which says that it could "
                "not select a device driver, or that it knows no runtime nvidia."
            ),
            sources=("https://github.com/NVIDIA/nvidia-docker/issues/1034",),
            decisive=any_of(
                all_of(_REGISTERED, _LACKS_IT),
                all_of(_DEFAULT, _TAKES_ANOTHER),
                all_of(symptoms.NO_DEVICE_DRIVER, fact(lambda node: _started(node, before=True))),
            ),
            typical=any_of(
                unless(all_of(_REGISTERED, _UNKNOWN), _HAS_IT),
                unless(all_of(symptoms.NO_DEVICE_DRIVER, toolkit.present), _STARTED_AFTER),
                unless(all_of(_COMPARES, toolkit.present), _NOT_IN_FILE, _UNKNOWN),
            ),
            symptoms=(symptoms.NO_DEVICE_DRIVER, symptoms.NO_RUNTIME),
            context=any_of(_REGISTERED, toolkit.present),
            look_at=(Shell("docker info | grep -i runtimes"), Shell("systemctl show -p ActiveEnterTimestamp docker")),
            share=4,
            summary="the running docker daemon was started before the toolkit was installed or registered",
            remedy=always(restart("docker.service", "restart docker; containers stop unless live-restore is on")),
        ),
        Rule(
            cause="nvidia-runtime-not-registered",
            layer="runtime",
            disruption="restart-service",
            title="docker knows no runtime called nvidia",
            story=(
                "--runtime=nvidia, `runtime: nvidia` of a compose file and default-runtime are names, which "
                "daemon.json has to describe under `runtimes`. Installing the toolkit does not do that; and with a "
                "default that is described nowhere dockerd does not even start."
            ),
            sources=("https://github.com/NVIDIA/nvidia-docker/issues/1795", f"{TOOLKIT_GUIDE}#configuring-docker"),
            decisive=any_of(fact(_dangling), all_of(_UNKNOWN, _NOT_IN_FILE)),
            typical=any_of(_UNKNOWN, all_of(asked(r"runtimes?\b"), _LACKS_IT)),
            symptoms=(symptoms.NO_RUNTIME, symptoms.NO_DEVICE_DRIVER),
            context=any_of(_LACKS_IT, _NOT_IN_FILE),
            against=(_HAS_IT, _REGISTERED, toolkit.absent),
            look_at=(Shell("cat /etc/docker/daemon.json"), Shell("docker info | grep -i runtimes")),
            share=4,
            summary="docker knows no runtime called nvidia",
            remedy=_register,
        ),
    ),
)
