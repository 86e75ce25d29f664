"""Docker: its file, its flags, and which of the dockers that a node can have it is that answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import TOOLKIT_GUIDE
from gpunode.diagnoses.commands import Shell, command, is_place, joined
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import by_hand, install, restart, run
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import cdi, docker, driver, hearsay, packages, toolkit
from gpunode.diagnoses.views.docker import DaemonFile
from gpunode.diagnoses.views.system import distro, package_manager
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.runtimes.dockerd import conflicts
from gpunode.runtimes.model import DOCKER_CONFIG

_INVALID: Final = Pattern(
    r"(?:unable to configure the Docker daemon with file|failed to load|error (?:reading|parsing)) "
    r"[^\s:]*daemon\.json:? (?!the following directives are specified)[^\n]{0,80}?"
    r"(?:invalid character|invalid literal|unexpected end|EOF|cannot unmarshal|any configuration option|invalid UTF-8)",
    re.IGNORECASE,
)
_CONFLICT: Final = Pattern(r"directives are specified (?:both )?as a flag and in the config")
_NO_LIBRARY: Final = Pattern(r"load library failed: libnvidia-ml\.so|libdxcore\.so[^\n]{0,40}(?:not found|cannot open)")
_NOT_PERMITTED: Final = Pattern(
    r"bpf_prog_query\(BPF_CGROUP_DEVICE\) failed: operation not permitted"
    r"|/sys/fs/cgroup/devices/[^\s:]{0,300}devices\.allow: permission denied"
)
_NESTED: Final = Pattern(r"\b(?:lxc|lxd|incus)\b", re.IGNORECASE)
_UNREAD: Final = Shell("sudo gpunode ctk runtime configure --runtime=docker")
_CONFIGURE: Final = joined(_UNREAD, Shell("--restart"))


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Why docker was asked for a GPU in vain."""

    refused: tuple[Citation, ...]
    unknown: tuple[Citation, ...]

    @property
    def citations(self) -> tuple[Citation, ...]:
        return (*self.refused, *self.unknown)


def _wanted(snapshot: Snapshot) -> _Wanted:
    return _Wanted(docker.refused(snapshot), docker.unknown_runtime(snapshot))


def _decide(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Which docker answers, and why that one has no GPUs."""
    if verdicts := tuple(_unreadable(snapshot)):
        yield from verdicts
        return
    wanted = _wanted(snapshot)
    if verdict := _elsewhere(snapshot, wanted) or _rootless(snapshot, wanted):
        yield verdict
        return
    if verdict := _not_restarted(snapshot, wanted) or _not_registered(snapshot, wanted):
        yield verdict


# The daemon does not start.


def _unreadable(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    for file in snapshot.view(docker.files):
        if file.fault and file.is_whole and (verdict := _faulty(snapshot, file)):
            yield "daemon-json-invalid", verdict
            return
    if said := docker.since_start(snapshot, snapshot.said(_INVALID)):
        summary = f"dockerd does not start: it cannot read its configuration file ({_reason(said[0])})"
        yield "daemon-json-invalid", Proof(summary, said, remedy=_correct(DOCKER_CONFIG, _reason(said[0])))
        return
    if verdict := _conflict(snapshot):
        yield "docker-directive-conflict", verdict


def _faulty(snapshot: Snapshot, file: DaemonFile) -> Verdict | None:
    """What a file shows that is no JSON; None where only the paste is none, or dockerd's own word is better."""
    said = docker.since_start(snapshot, snapshot.said(_INVALID))
    runs = () if said else docker.runs(snapshot)
    is_read = hearsay.was_looked_at(snapshot)
    if not file.is_as_read and (said or runs):
        return None
    if not file.is_as_read or (runs and not is_read):
        question = f"{file.path} is no JSON as it was pasted ({file.fault}): was it shortened, or is the file so?"
        validate = command("sudo", "dockerd", "--validate", "--config-file", file.path)
        look_at = (*((validate,) if is_place(file.path, *_CONFIGS) else ()), Shell("systemctl is-active docker"))
        return Doubt(question, look_at, (file.citation, *runs))
    summary = f"dockerd cannot read {file.path}: {file.fault}"
    if runs:
        summary = f"dockerd runs, and will fail at its next start: it cannot read {file.path} ({file.fault})"
    return Proof(summary, (file.citation, *said, *runs), remedy=_correct(file.path, file.fault))


def _reason(citation: Citation) -> str:
    return citation.line.rpartition("daemon.json")[2].strip(": ")[:160] or "it is no JSON"


# Docker's own, and its snap's.
_CONFIGS: Final = ("/etc/docker", "/var/snap/docker")


def _correct(path: str, fault: str) -> tuple[Fix, ...]:
    text = f"correct {path}: {fault}; JSON has one object, plain quotes, no comments, no last comma"
    start = run(
        "restart",
        "start docker again",
        Shell("sudo systemctl reset-failed docker"),
        Shell("sudo systemctl restart docker"),
    )
    if not is_place(path, *_CONFIGS):
        return by_hand("configure", text), start
    check = command("sudo", "dockerd", "--validate", "--config-file", path)
    return (
        by_hand("configure", text),
        run(
            "configure",
            "or have it made anew, and bring your own settings back into it",
            command("sudo", "mv", path, f"{path}.broken"),
            Shell("sudo gpunode ctk runtime configure --runtime=docker"),
            when="you cannot find the fault; a data-root or mirror in it would be missed",
        ),
        run("inspect", "let dockerd check it (docker 23 and later)", check),
        start,
    )


def _conflict(snapshot: Snapshot) -> Verdict | None:
    said = docker.since_start(snapshot, snapshot.said(_CONFLICT))
    started = docker.started_with(snapshot)
    for file in snapshot.view(docker.files):
        both = conflicts(started[0], tuple(file.document)) if started else ()
        if started and both:
            names = tuple(one.split(" ")[0] for one in both)
            cited = (*said, *(file.line(name) for name in names), started[1])
            summary = f"dockerd does not start: {', '.join(both)} stands in {file.path} and on its command line"
            return Proof(summary, cited)
    if said:
        return Proof("dockerd does not start: a setting stands in daemon.json and on its command line as well", said)
    return None


def _drop_the_flag(snapshot: Snapshot) -> Iterable[Fix]:
    if _is_about_hosts(snapshot):
        # The unit's own line, read where the command runs: of a report it might be anything.
        place = f"{_DROP_INS}/10-hosts-in-the-file.conf"
        yield run(
            "configure",
            "start dockerd without the hosts on its command line: those of daemon.json count then",
            command("sudo", "install", "-d", _DROP_INS),
            joined(
                Shell(
                    r"systemctl cat docker.service | sed -nE 's/[ ](-H|--host)[= ][^ ]+//g; /^ExecStart=./p'"
                    r" | tail -n 1 | sed '1i [Service]\nExecStart=' |"
                ),
                command("sudo", "tee", place),
            ),
        )
    else:
        yield run(
            "configure",
            "start dockerd without the flag, in a drop-in, or take the setting out of daemon.json: one of the two",
            Shell("sudo systemctl edit docker.service"),
        )
    yield run(
        "restart",
        "start docker again",
        Shell("sudo systemctl daemon-reload"),
        Shell("sudo systemctl reset-failed docker"),
        Shell("sudo systemctl restart docker"),
    )


def _is_about_hosts(snapshot: Snapshot) -> bool:
    """Whether the hosts, and nothing else, stand on the unit's command line and in the file."""
    started = docker.started_with(snapshot)
    if started is None:
        return False
    files = snapshot.view(docker.files)
    return {name for file in files for name in conflicts(started[0], tuple(file.document))} == {"hosts (--host)"}


_DROP_INS: Final = "/etc/systemd/system/docker.service.d"


# Another docker than the one that was set up.


def _elsewhere(snapshot: Snapshot, wanted: _Wanted) -> tuple[str, Verdict] | None:
    no_library = () if driver.fails(snapshot) else snapshot.said(_NO_LIBRARY)
    asked = (*wanted.citations, *no_library)
    desktop, snap = docker.desktop(snapshot), docker.snap(snapshot)
    if not asked or not (desktop or snap):
        return _hidden_library(snapshot, no_library) if no_library and not asked[len(no_library) :] else None
    works = tuple(citation for state, citation in snapshot.view(driver.smi) if state == "works")
    if desktop:
        summary = "the docker that answers is Docker Desktop: its daemon runs in a virtual machine without the GPUs"
        return "docker-from-snap-or-desktop-vm", Proof(
            summary,
            (*asked, *desktop, *works[:1]),
            ruled_out=_driver_is_well(works),
            remedy=tuple(_to_the_engine(snapshot)),
        )
    if no_library:
        summary = "docker is the snap: its daemon is confined, and does not see the driver's libraries of this system"
        return "docker-from-snap-or-desktop-vm", Proof(
            summary, (*asked, *snap, *works[:1]), ruled_out=_driver_is_well(works)
        )
    summary = "docker is the snap, which sees neither the toolkit nor the settings of this system"
    return "docker-from-snap", Proof(summary, (*asked, *snap))


def _driver_is_well(works: tuple[Citation, ...]) -> tuple[str, ...]:
    return ("a missing driver: nvidia-smi works on the host",) if works else ()


def _hidden_library(snapshot: Snapshot, no_library: tuple[Citation, ...]) -> tuple[str, Verdict] | None:
    if not driver.works(snapshot) or toolkit.setting(snapshot, "root") is not None:
        return None
    question = (
        "the driver works on the host, and the container toolkit does not find its library: which docker answers?"
    )
    causes = ("docker-from-snap-or-desktop-vm", "toolkit-wrong-driver-root", "driver-userspace-incomplete")
    look_at = (
        Shell("docker context ls"),
        Shell("which docker"),
        Shell("snap list docker"),
        Shell("ldconfig -p | grep libnvidia-ml"),
    )
    return "docker-from-snap-or-desktop-vm", Doubt(question, look_at, no_library, causes)


def _to_the_engine(snapshot: Snapshot) -> Iterable[Fix]:
    yield run(
        "configure", "choose Docker Engine, which runs on this system itself", Shell("docker context use default")
    )
    yield _engine(snapshot, "no Docker Engine is installed beside it")
    yield run("configure", "register NVIDIA's runtime with it", _CONFIGURE)


def _engine(snapshot: Snapshot, when: str = "") -> Fix:
    known, manager = distro(snapshot), snapshot.view(package_manager)
    if manager == "dnf" and known is not None and known.id not in {"fedora", "amzn"}:
        text = "install Docker Engine from docker's own repository: the distribution has none"
        commands = (
            Shell("sudo dnf config-manager --add-repo https://download.docker.com/linux/rhel/docker-ce.repo"),
            Shell("sudo dnf install docker-ce docker-ce-cli containerd.io"),
            Shell("sudo systemctl enable --now docker"),
        )
        return run("install", text, *commands, when=when)
    fedora = "moby-engine" if known is None or known.id == "fedora" else "docker"
    name = {"apt": "docker.io", "dnf": fedora}.get(manager, "docker")
    return install(snapshot, "install Docker Engine from the distribution's own repository", name, when=when)


def _replace_the_snap(snapshot: Snapshot) -> Iterable[Fix]:
    # Nobody reads on behind a command: what must be done before it is a step of its own.
    yield by_hand("remove", "save what the snap's volumes and images hold (docker volume ls): they go with it")
    yield run("remove", "then remove the snap", Shell("sudo snap remove docker"))
    yield _engine(snapshot)
    yield run("configure", "register NVIDIA's runtime", _CONFIGURE)


# A docker of a user's own.


def _rootless(snapshot: Snapshot, wanted: _Wanted) -> tuple[str, Verdict] | None:
    signs = docker.rootless(snapshot)
    if said := snapshot.said(_NOT_PERMITTED):
        if not signs and snapshot.says(_NESTED):
            return None
        summary = (
            "a rootless docker may not give devices out by cgroups, and the toolkit is told to (no-cgroups = false)"
        )
        setting = toolkit.setting(snapshot, "no-cgroups")
        cited = (*said, *signs, *((setting.citation,) if setting else ()))
        return "docker-rootless-config", Proof(summary, cited, "certain" if signs else "likely")
    of_root = [file for file in snapshot.view(docker.files) if file.path == DOCKER_CONFIG and "nvidia" in file.runtimes]
    if signs and wanted.unknown and not _users_file_has_it(snapshot):
        summary = f"docker runs as a user and does not read {DOCKER_CONFIG}; its own file does not register nvidia"
        cited = (*wanted.unknown, *signs, *(file.line("nvidia") for file in of_root))
        return "docker-rootless-config", Proof(
            summary, cited, "certain" if of_root else "likely", remedy=_RUNTIME_OF_A_USER
        )
    return None


def _users_file_has_it(snapshot: Snapshot) -> bool:
    users = (file for file in snapshot.view(docker.files) if ".config/docker" in file.path)
    return any("nvidia" in file.runtimes for file in users)


_RUNTIME_OF_A_USER: Final = (
    run(
        "configure",
        "register the runtime in the user's own file",
        Shell('gpunode ctk runtime configure --runtime=docker --config="$HOME/.config/docker/daemon.json"'),
        Shell("sudo gpunode ctk config --in-place --set nvidia-container-cli.no-cgroups=true"),
    ),
    run("restart", "restart that user's docker", Shell("systemctl --user restart docker")),
)


def _no_cgroups(snapshot: Snapshot) -> Iterable[Fix]:
    yield run(
        "configure",
        "tell the toolkit to leave cgroups alone; it holds for every engine of this machine, so where one runs as "
        "root, use CDI for the rootless one instead",
        Shell("sudo gpunode ctk config --in-place --set nvidia-container-cli.no-cgroups=true"),
    )
    if cdi.podman_version(snapshot) is None:
        yield run("restart", "restart that user's docker", Shell("systemctl --user restart docker"))


# The right docker, which does not know of the runtime.


def _not_restarted(snapshot: Snapshot, wanted: _Wanted) -> tuple[str, Verdict] | None:
    running, file = docker.registered(snapshot), _registers(snapshot)
    lacks = "nvidia" not in running.names if running is not None else bool(wanted.unknown)
    if lacks and file is not None:
        cited = (*wanted.citations, file.line("nvidia"), *((running.citation,) if running else ()))
        summary = f"{file.path} registers nvidia, and the running daemon was started before and has not read that"
        return "docker-not-restarted", Proof(summary, cited, "certain" if running else "likely")
    has = running.default if running is not None else ""
    if running is not None and file is not None and file.default == "nvidia" and has not in {"", "nvidia"}:
        summary = f"{file.path} makes nvidia the default, and the running daemon has {has}: it has not read that"
        return "docker-not-restarted", Proof(summary, (file.line("default-runtime"), running.citation))
    return _older_than_the_toolkit(snapshot, wanted.refused)


def _registers(snapshot: Snapshot) -> DaemonFile | None:
    """The file that the engine reads, where it registers the runtime."""
    started = docker.started_with(snapshot)
    read = (started[0].config if started else "") or DOCKER_CONFIG
    files = (file for file in snapshot.view(docker.files) if file.path == read)
    return next((file for file in files if "nvidia" in file.runtimes), None)


def _older_than_the_toolkit(snapshot: Snapshot, refused: tuple[Citation, ...]) -> tuple[str, Verdict] | None:
    there = snapshot.view(toolkit.presence)
    if not refused or there is None or not there.is_there:
        return None
    started, installed = docker.started(snapshot), toolkit.installed_at(snapshot)
    is_older = started[0] < installed[0] if started and installed else None
    cited = (*refused, there.citation, *(one[1] for one in (installed, started) if one))
    if is_older is False:
        question = "docker was started after the toolkit was installed, and still knows no way to give GPUs out"
        look_at = (
            Shell("which nvidia-container-runtime-hook"),
            Shell("systemctl show docker -p Environment"),
            Shell("docker info"),
        )
        return "docker-not-restarted", Doubt(question, look_at, cited, ("toolkit-not-installed",))
    summary = "dockerd was started before the container toolkit was installed, and looks for its hook only at its start"
    return "docker-not-restarted", Proof(summary, cited, "certain" if is_older else "likely")


def _not_registered(snapshot: Snapshot, wanted: _Wanted) -> tuple[str, Verdict] | None:
    there, running = snapshot.view(toolkit.presence), docker.registered(snapshot)
    if there is not None and not there.is_there:
        return None
    files = snapshot.view(docker.files)
    dangling = [file for file in files if file.default == "nvidia" and "nvidia" not in file.runtimes]
    started = docker.started_with(snapshot)
    if started is not None and "nvidia" in started[0].runtimes:
        dangling = []
    if not wanted.unknown and not dangling:
        return None
    if running is not None and "nvidia" in running.names:
        return None
    cited = (
        *wanted.unknown,
        *(file.line("default-runtime") for file in dangling),
        *(file.citation for file in files if not dangling),
        *((running.citation,) if running else ()),
    )
    registers = snapshot.view(packages.packages).get("nvidia-docker2")
    if not files and running is None and registers is not None and registers.is_installed:
        question = "nvidia-docker2 registers the runtime, and docker does not know it: does it read that file?"
        look_at = (
            Shell("cat /etc/docker/daemon.json"),
            Shell("systemctl show docker -p ActiveEnterTimestamp"),
            Shell("journalctl -u docker"),
        )
        causes = ("docker-not-restarted", "daemon-json-invalid", "docker-rootless-config")
        return "nvidia-runtime-not-registered", Doubt(question, look_at, (*cited, registers.citation), causes)
    certain = bool(dangling or files)
    what = (
        "names nvidia as the default runtime and describes none of that name"
        if dangling
        else "registers no such runtime"
    )
    of_file = f": {files[0].path} {what}" if files else ""
    summary = f"docker knows no runtime called nvidia{of_file}"
    return "nvidia-runtime-not-registered", Proof(summary, cited, "certain" if certain else "likely")


def _register(snapshot: Snapshot) -> Iterable[Fix]:
    unit = snapshot.facts.unit(docker.UNIT)
    if isinstance(unit, Known) and unit.value.exists and not unit.value.state.active:
        yield run("configure", "register NVIDIA's runtime", _UNREAD)
        yield run(
            "restart",
            "start docker again",
            Shell("sudo systemctl reset-failed docker"),
            Shell("sudo systemctl restart docker"),
        )
        return
    yield run("configure", "register NVIDIA's runtime, and have docker read that", _CONFIGURE)
    text = "restart docker; its containers stop unless live-restore is on"
    yield restart("docker.service", text, when="gpunode did not, for the containers that run, and they may stop")


def _restart(_: Snapshot) -> Iterable[Fix]:
    yield restart("docker.service", "restart docker; containers stop unless live-restore is on")


FAMILY: Final = Family(
    "docker",
    "Docker",
    (
        Rule(
            cause="daemon-json-invalid",
            layer="config",
            storey="runtime",
            severity="error",
            disruption="restart-service",
            title="dockerd cannot read its configuration file",
            share=1,
            symptoms=(symptoms.DAEMON_DOWN,),
            look_at=(Shell("sudo dockerd --validate --config-file /etc/docker/daemon.json"),),
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
            check=only("daemon-json-invalid", _decide),
            remedy=lambda _: _correct(DOCKER_CONFIG, "the journal of docker names the place"),
            explains=frozenset(
                {"nvidia-runtime-not-registered", "docker-not-restarted", "docker-cdi-feature-disabled"}
            ),
        ),
        Rule(
            cause="docker-directive-conflict",
            layer="config",
            storey="runtime",
            severity="error",
            disruption="restart-service",
            title="a setting of dockerd stands in its file and on its command line",
            symptoms=(symptoms.DAEMON_DOWN,),
            look_at=(
                Shell("sudo journalctl -u docker -b -n 20"),
                Shell("systemctl cat docker"),
            ),
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
            check=only("docker-directive-conflict", _decide),
            remedy=_drop_the_flag,
            explains=frozenset(
                {"nvidia-runtime-not-registered", "docker-not-restarted", "docker-cdi-feature-disabled"}
            ),
        ),
        Rule(
            cause="docker-from-snap",
            layer="runtime",
            storey="runtime",
            severity="error",
            disruption="restart-service",
            title="docker is the snap",
            symptoms=(
                symptoms.NO_DEVICE_DRIVER,
                symptoms.NO_RUNTIME,
                symptoms.CONTAINER_FAILED,
            ),
            look_at=(
                Shell("command -v docker"),
                Shell("snap list docker"),
            ),
            story=(
                "The docker snap brings a daemon of its own, which reads /var/snap/docker/current/config/daemon.json "
                "and may run no program from outside of the snap. A toolkit that apt has installed, and what was "
                "written to /etc/docker/daemon.json, mean nothing to it, so it answers as if neither were there."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-docker/issues/1637",
                "https://github.com/canonical/docker-snap/issues/148",
            ),
            check=only("docker-from-snap", _decide),
            remedy=_replace_the_snap,
            explains=frozenset({"nvidia-runtime-not-registered", "docker-not-restarted", "toolkit-not-installed"}),
        ),
        Rule(
            cause="docker-from-snap-or-desktop-vm",
            layer="toolkit",
            storey="runtime",
            severity="error",
            disruption="restart-service",
            title="the docker that answers cannot see the driver of this system",
            symptoms=(
                symptoms.NO_DEVICE_DRIVER,
                symptoms.HOOK_FAILED,
                symptoms.NO_NVML_LIBRARY,
            ),
            look_at=(
                Shell("docker context ls"),
                Shell("docker info | grep -E 'Operating System|Name'"),
            ),
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
            check=only("docker-from-snap-or-desktop-vm", _decide),
            remedy=_replace_the_snap,
            explains=frozenset({"nvidia-runtime-not-registered", "docker-not-restarted", "toolkit-not-installed"}),
        ),
        Rule(
            cause="docker-rootless-config",
            layer="runtime",
            storey="runtime",
            severity="error",
            disruption="restart-service",
            title="a rootless docker is set up as if it ran as root",
            symptoms=(
                symptoms.HOOK_FAILED,
                symptoms.DENIED,
                symptoms.NO_RUNTIME,
            ),
            look_at=(
                Shell("docker info | grep -i rootless"),
                Shell("cat ~/.config/docker/daemon.json"),
            ),
            story=(
                "A docker that runs as a user reads ~/.config/docker/daemon.json and may not change device cgroups. "
                "So it knows nothing of a runtime in /etc/docker/daemon.json, and NVIDIA's library fails at the "
                "cgroup, with `bpf_prog_query(BPF_CGROUP_DEVICE) failed: operation not permitted` or, on cgroup v1, "
                "`devices.allow: permission denied`, until it is told no-cgroups = true."
            ),
            sources=(
                "https://github.com/NVIDIA/libnvidia-container/issues/154",
                f"{TOOLKIT_GUIDE}#rootless-mode",
            ),
            check=only("docker-rootless-config", _decide),
            remedy=_no_cgroups,
            explains=frozenset({"nvidia-runtime-not-registered", "docker-not-restarted"}),
        ),
        Rule(
            cause="docker-not-restarted",
            layer="runtime",
            storey="runtime",
            severity="error",
            disruption="restart-service",
            title="docker runs since before the toolkit or its settings came",
            share=4,
            symptoms=(
                symptoms.NO_DEVICE_DRIVER,
                symptoms.NO_RUNTIME,
            ),
            look_at=(
                Shell("docker info | grep -i runtimes"),
                Shell("systemctl show -p ActiveEnterTimestamp docker"),
            ),
            story=(
                "dockerd looks for NVIDIA's hook in its PATH, and reads daemon.json, when it starts. A toolkit that "
                "was installed or registered afterwards is unknown to the running daemon, which says that it could "
                "not select a device driver, or that it knows no runtime nvidia."
            ),
            sources=("https://github.com/NVIDIA/nvidia-docker/issues/1034",),
            check=only("docker-not-restarted", _decide),
            remedy=_restart,
        ),
        Rule(
            cause="nvidia-runtime-not-registered",
            layer="runtime",
            storey="runtime",
            severity="error",
            disruption="restart-service",
            title="docker knows no runtime called nvidia",
            share=4,
            symptoms=(
                symptoms.NO_RUNTIME,
                symptoms.NO_DEVICE_DRIVER,
            ),
            look_at=(
                Shell("cat /etc/docker/daemon.json"),
                Shell("docker info | grep -i runtimes"),
            ),
            story=(
                "--runtime=nvidia, `runtime: nvidia` of a compose file and default-runtime are names, which "
                "daemon.json has to describe under `runtimes`. Installing the toolkit does not do that; and with a "
                "default that is described nowhere dockerd does not even start."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-docker/issues/1795",
                f"{TOOLKIT_GUIDE}#configuring-docker",
            ),
            check=only("nvidia-runtime-not-registered", _decide),
            remedy=_register,
        ),
    ),
)
