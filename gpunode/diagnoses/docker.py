"""Diagnose docker: its configuration file, its flags, and which of several dockers answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell, command, join_commands
from gpunode.diagnoses.consequences import NO_RUNTIME
from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Citation, Fix, Proof, Rule, Sign
from gpunode.diagnoses.remedies import make_fixed_remedy, manual_step, restart_unit, run_step
from gpunode.diagnoses.signs import (
    all_of,
    any_line,
    any_of,
    command_run,
    custom_sign,
    file_line,
    message_line,
    predicate,
    unless,
)
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import runtimes, system, toolkit
from gpunode.facts.model import Known
from gpunode.facts.probes import TOOLKIT_FILE_LIST
from gpunode.runtimes.model import DOCKER_CONFIG

_REGISTER_RUNTIME_COMMAND: Final = Shell("sudo gpunode ctk runtime configure --runtime=docker")
_REGISTER_AND_RESTART: Final = join_commands(_REGISTER_RUNTIME_COMMAND, Shell("--restart"))
_START_DOCKER: Final = run_step(
    "restart",
    "start docker again",
    Shell("sudo systemctl daemon-reload"),
    Shell("sudo systemctl reset-failed docker"),
    Shell("sudo systemctl restart docker"),
)
_RESTART_DOCKER: Final = restart_unit("docker.service", "restart docker; its containers stop unless live-restore is on")
# The configuration file and the daemon's flags.

_CONFIG_REJECTED_BY_DOCKERD: Final = message_line(
    r"(?i)(?:unable to configure the Docker daemon with file|failed to load|error (?:reading|parsing)) "
    r"[^\s:]*daemon\.json:? [^\n]{0,80}?"
    r"(?:invalid character|invalid literal|unexpected end|EOF|cannot unmarshal|any configuration option|invalid UTF-8)"
    r"|unable to load config for runtime docker: (?:invalid character|unexpected end|json)"
)
_DOCKER_RUNS: Final = message_line(
    r"^active$|Active: active \(running\)|^ActiveState=active$|^[ \t]*Server Version:|^CONTAINER ID |^GPU \d+: ",
    *("unit-status", "unit-show", "docker-info", "docker-version", "container-run"),
)
# If docker answers all the same, the paste may have broken the file.
_DAEMON_JSON_INVALID: Final = unless(
    custom_sign(lambda node: (place for _, place in runtimes.docker_config_faults(node))),
    unless(_DOCKER_RUNS, predicate(is_examined_by_gpunode, "gpunode examined the node itself")),
)
_FLAGS_WITH_DAEMON_JSON_KEY: Final = ("log-driver", "storage-driver", "data-root", "default-runtime")
# The log keeps the refusals of a start that was repaired.
_DOCKER_UNIT_ACTIVE: Final = predicate(
    lambda node: isinstance(unit := node.facts.unit(runtimes.DOCKER_UNIT), Known) and unit.value.state.active,
    "docker.service runs",
)


def _dockerd_flag(names: str) -> Sign:
    return message_line(rf"\bdockerd\b.* (?:{names})[ =]", "unit-file", "unit-status", "text", "file")


_HOSTS_SET: Final = file_line("*daemon.json", r"\"hosts\"\s*:")
_SET_BY_FLAG_AND_FILE: Final = any_of(
    all_of(_dockerd_flag("-H|--host"), _HOSTS_SET),
    all_of(_dockerd_flag("--add-runtime"), file_line("*daemon.json", r"\"runtimes\"\s*:")),
    *(
        all_of(_dockerd_flag(f"--{name}"), file_line("*daemon.json", rf"\"{name}\"\s*:"))
        for name in _FLAGS_WITH_DAEMON_JSON_KEY
    ),
)


def _summarize_config_fault(snapshot: Snapshot) -> str:
    faults = (why for why, _ in runtimes.docker_config_faults(snapshot))
    return f"dockerd cannot read {next(faults, 'its configuration file')}"


# Another docker than the configured one.

_NVML_LIBRARY_NOT_FOUND: Final = message_line(
    r"load library failed: libnvidia-ml\.so|libdxcore\.so[^\n]{0,40}(?:not found|cannot open)"
)
_DOCKER_FROM_SNAP: Final = unless(
    any_of(
        message_line(
            r"/snap/(?:bin/)?docker\b|/run/snap\.docker\b|\bsnap\.docker\.dockerd\b|^docker\b.*\bcanonical\W"
            r"|^docker\s+\d\S*\s+\d+\s|^[ \t]*(?:\$ )?(?:sudo )?snap install docker\b"
        ),
        file_line("/var/snap/docker/*", r"\S"),
        command_run(r"\bsnap (?:install|refresh|restart|info|services) docker\b|\bdocker \(snap\)"),
    ),
    message_line(r"Docker Root Dir:\s*/var/lib/docker\b"),
)


# Docker Desktop on Windows supports GPUs and is excluded.
_DOCKER_IS_DESKTOP: Final = unless(
    message_line(
        r"Operating System:\s*Docker Desktop|Server: Docker Desktop|^Docker Desktop \d|^ *Context:\s*desktop-linux"
        r"|^desktop-linux\s*(?:\*|$)|\"Name\":\s*\"desktop-linux\"|^[ \t]*Name:\s*docker-desktop\b"
        r"|Kernel Version:\s*\S*linuxkit|^\d+\.\d+\.\d+-linuxkit\b|DOCKER_HOST=\S*/\.docker/desktop/"
        r"|Current context is now \"desktop-linux\""
    ),
    predicate(system.is_wsl, "this is WSL2"),
    message_line(r"(?i)microsoft-standard|Kernel Version:\s*\S*microsoft"),
)


_INSTALL_ENGINE_FIXES: Final = (
    manual_step(
        "install", "install Docker Engine as https://docs.docker.com/engine/install/ says", "none is installed yet"
    ),
    run_step("configure", "register NVIDIA's runtime", _REGISTER_AND_RESTART),
)
# Nobody reads on after a command, so a step that must come first is listed separately.
_REPLACE_DOCKER_SNAP_FIXES: Final = (
    manual_step(
        "remove", "save the data in the snap's volumes and images (docker volume ls): removing the snap deletes them"
    ),
    run_step("remove", "then remove the snap", Shell("sudo snap remove docker")),
    *_INSTALL_ENGINE_FIXES,
)


def _switch_to_engine(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_DOCKER_FROM_SNAP) and not snapshot.view(_DOCKER_IS_DESKTOP):
        return _REPLACE_DOCKER_SNAP_FIXES
    text = "switch to Docker Engine, which runs on this system itself"
    return run_step("configure", text, Shell("docker context use default")), *_INSTALL_ENGINE_FIXES


# A rootless docker.

ROOTLESS: Final = any_of(
    message_line(
        r"^[ \t]*rootless\s*$|name=rootless|^[ \t]*Context:\s*rootless|^rootless\s*\*|dockerd-rootless\.sh --"
        r"|rootlesskit --|\((?:Rootless|rootless)\)\s*$|/run/user/\d+/docker\.sock"
    ),
    command_run(
        r"systemctl --user \S+ docker|/\.config/docker/daemon\.json|/run/user/\d+/docker\.sock|\brootless docker\b"
        r"|--context[= ]rootless"
    ),
)
_DEVICE_CGROUP_DENIED: Final = message_line(
    r"bpf_prog_query\(BPF_CGROUP_DEVICE\) failed: operation not permitted"
    r"|/sys/fs/cgroup/devices/[^\s:]{0,300}devices\.allow: permission denied"
)
_RUNTIME_UNKNOWN: Final = message_line(
    r"(?i)unknown or invalid runtime name:? ?[\\\"'`]*nvidia|Unknown runtime specified [\\\"'`]*nvidia"
    r"|(?:(?:OCI|default) )?runtime [\\\"'`]*nvidia[\\\"'`]* (?:does not exist|not found|is not)"
)


def _runtime_known_only_as_root(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield answers without nvidia where "sudo docker" knows the runtime: there are two daemons."""
    answers = [item for item in snapshot.items_of("docker-info") if "untimes" in item.text]
    as_root = [item for item in answers if item.written.startswith("sudo ")]
    if any("nvidia" in item.text for item in as_root):
        yield from (cite(item) for item in answers if item not in as_root and "nvidia" not in item.text)


_REGISTERED_IN_USER_CONFIG: Final = file_line("*/.config/docker/daemon.json", r"\"nvidia\"")
_TOOLKIT_CGROUPS_ENABLED: Final = message_line(r"^[ \t]*no-cgroups\s*=\s*false", "file", "listing", "text")


_DISABLE_TOOLKIT_CGROUPS: Final = make_fixed_remedy(
    run_step(
        "configure",
        "configure the toolkit not to touch cgroups; this applies to every engine on this machine, so if one runs "
        "as root, use CDI for the rootless one instead",
        Shell("sudo gpunode ctk config --in-place --set nvidia-container-cli.no-cgroups=true"),
    ),
    run_step(
        "configure",
        "register the runtime in the user's own file",
        Shell('gpunode ctk runtime configure --runtime=docker --config="$HOME/.config/docker/daemon.json"'),
        when="docker has no runtime called nvidia",
    ),
    run_step("restart", "restart that user's docker", Shell("systemctl --user restart docker")),
)

_ENABLE_TOOLKIT_CGROUPS_FIXES: Final = (
    run_step(
        "configure",
        "let the toolkit allow the GPU in a container's cgroup; a rootless engine on this machine then needs CDI",
        Shell("sudo gpunode ctk config --in-place --set nvidia-container-cli.no-cgroups=false"),
    ),
    manual_step("restart", "start the container again"),
)


def _find_cgroups_disabled_for_root(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield the proof that the toolkit is configured for a rootless engine, and containers of root's lack the GPU."""
    disabled, denied = snapshot.view(symptoms.TOOLKIT_CGROUPS_DISABLED), snapshot.view(symptoms.NVML_UNKNOWN)
    if disabled and denied and not snapshot.view(ROOTLESS):
        yield Proof(
            "no-cgroups = true is for rootless engines: a container of the system's docker may not open the GPU",
            (*disabled, *denied),
            "likely",
            remedy=_ENABLE_TOOLKIT_CGROUPS_FIXES,
            disruption="restart-container",
        )


# The right docker, but the runtime is not registered.

_RUNTIMES_LINE: Final = r"(?:^[ \t]*Runtimes:|\bio\.containerd\.runc\.v2\b(?=[^\n]*[ {\"]runc\b))"
_SOME_RUNTIME_UNKNOWN: Final = any_line(r"(?i)\b(?:unknown|invalid) (?:or invalid )?runtime\b")
_DOCKER_INFO_SHOWS_NVIDIA: Final = message_line(rf"{_RUNTIMES_LINE}[^\n]*\bnvidia\b")
_LACKS_NVIDIA_RUNTIME: Final = unless(message_line(rf"{_RUNTIMES_LINE}(?![^\n]*\bnvidia\b)"), _DOCKER_INFO_SHOWS_NVIDIA)
_OTHER_DEFAULT_RUNTIME: Final = message_line(r"^[ \t]*Default Runtime:\s*(?!nvidia)\w")
_NVIDIA_RUNTIME_ENTRY: Final = r"\"nvidia\"\s*:\s*\{|^\"?nvidia\"?$"
_REGISTERED_IN_ANY_CONFIG: Final = file_line("*daemon.json", _NVIDIA_RUNTIME_ENTRY)
_IN_SYSTEM_CONFIG: Final = file_line("*etc/docker/daemon.json", _NVIDIA_RUNTIME_ENTRY)
_NVIDIA_IS_DEFAULT: Final = file_line("*daemon.json", r"\"default-runtime\"\s*:\s*\"nvidia\"")
_NVIDIA_DEFAULT_UNDEFINED: Final = unless(_NVIDIA_IS_DEFAULT, _REGISTERED_IN_ANY_CONFIG, _dockerd_flag("--add-runtime"))
_NVIDIA_NOT_IN_CONFIG: Final = unless(file_line("*daemon.json", r"\S"), _REGISTERED_IN_ANY_CONFIG, _DAEMON_JSON_INVALID)
_DOCKER_START_TIME_QUERIED: Final = command_run(r"(?=.*docker).*(?:ActiveEnter|ExecMainStart)Timestamp|lstart.*dockerd")


def _started_after_toolkit(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the start of a daemon that started after the toolkit was installed."""
    unit, installed = snapshot.facts.unit(runtimes.DOCKER_UNIT), snapshot.facts.changed_at.get(TOOLKIT_FILE_LIST)
    began = unit.value.started_at if isinstance(unit, Known) else None
    if began is not None and installed is not None and began >= installed:
        yield system.unit_line(snapshot, runtimes.DOCKER_UNIT, "ExecMainStartTimestamp")


def _register_runtime(snapshot: Snapshot) -> Iterable[Fix]:
    unit = snapshot.facts.unit(runtimes.DOCKER_UNIT)
    if isinstance(unit, Known) and unit.value.exists and not unit.value.state.active:
        yield run_step("configure", "register NVIDIA's runtime", _REGISTER_RUNTIME_COMMAND)
        yield _START_DOCKER
    else:
        yield run_step("configure", "register NVIDIA's runtime, and restart docker to read it", _REGISTER_AND_RESTART)
        yield replace(
            _RESTART_DOCKER, when="gpunode did not restart it because of running containers, and these may be stopped"
        )


_rule = partial(Rule, layer="runtime", disruption="restart-service")

# Only dockershim and cri-dockerd say it; containerd and CRI-O name the handler otherwise.
_RUNTIME_CLASS_REFUSED_BY_DOCKER: Final = message_line(r"RuntimeHandler [\\\"']*nvidia[\w.-]*[\\\"']* not supported")


RULES: Final = (
    _rule(
        cause="daemon-json-invalid",
        decisive=any_of(_DAEMON_JSON_INVALID, unless(_CONFIG_REJECTED_BY_DOCKERD, _DOCKER_UNIT_ACTIVE)),
        symptoms=(symptoms.RUNTIME_DAEMON_DOWN,),
        look_at=(Shell("sudo dockerd --validate --config-file /etc/docker/daemon.json"),),
        summary=_summarize_config_fault,
        remedy=make_fixed_remedy(
            manual_step("configure", f"correct {DOCKER_CONFIG}: one object, plain quotes, no comments, no last comma"),
            run_step(
                "inspect",
                "let dockerd check it (docker 23 and later)",
                command("sudo", "dockerd", "--validate", "--config-file", DOCKER_CONFIG),
            ),
            _START_DOCKER,
        ),
        explains=frozenset({"nvidia-runtime-not-registered", "docker-not-restarted", "docker-cdi-feature-disabled"}),
    ),
    _rule(
        cause="docker-directive-conflict",
        decisive=unless(
            message_line(r"directives are specified (?:both )?as a flag and in the config"), _DOCKER_UNIT_ACTIVE
        ),
        typical=any_of(all_of(symptoms.RUNTIME_DAEMON_DOWN, _HOSTS_SET), unless(_SET_BY_FLAG_AND_FILE, _DOCKER_RUNS)),
        symptoms=(symptoms.RUNTIME_DAEMON_DOWN,),
        context=any_of(_HOSTS_SET, _dockerd_flag("-H|--host|--add-runtime")),
        against=(_DAEMON_JSON_INVALID,),
        look_at=(Shell("sudo journalctl -u docker -b -n 20"), Shell("systemctl cat docker")),
        remedy=make_fixed_remedy(
            # `systemctl edit` waits in an editor, so it is no command to carry out as printed.
            manual_step(
                "configure",
                "remove the setting from daemon.json, or its flag from dockerd's command line with a drop-in "
                "(systemctl edit docker.service)",
            ),
            _START_DOCKER,
        ),
        explains=frozenset({"nvidia-runtime-not-registered", "docker-not-restarted", "docker-cdi-feature-disabled"}),
    ),
    _rule(
        cause="docker-from-snap",
        decisive=unless(_DOCKER_FROM_SNAP, _NVML_LIBRARY_NOT_FOUND),
        symptoms=(symptoms.NO_DEVICE_DRIVER, symptoms.RUNTIME_UNKNOWN),
        share=0.3,
        may_be_normal=True,
        look_at=(Shell("command -v docker"), Shell("snap list docker")),
        remedy=make_fixed_remedy(*_REPLACE_DOCKER_SNAP_FIXES),
        explains=frozenset({"nvidia-runtime-not-registered", "docker-not-restarted", "toolkit-not-installed"}),
    ),
    _rule(
        cause="docker-from-snap-or-desktop-vm",
        decisive=any_of(_DOCKER_IS_DESKTOP, all_of(_DOCKER_FROM_SNAP, _NVML_LIBRARY_NOT_FOUND)),
        typical=all_of(_NVML_LIBRARY_NOT_FOUND, symptoms.DRIVER_WORKS),
        symptoms=(
            symptoms.NO_DEVICE_DRIVER,
            symptoms.RUNTIME_UNKNOWN,
            symptoms.HOOK_FAILED,
            symptoms.NO_NVML_LIBRARY,
            symptoms.CONTAINER_FAILED,
        ),
        share=2,
        # NVML was found and answered.
        against=(symptoms.DRIVER_MISMATCH,),
        may_be_normal=True,
        look_at=(Shell("docker context ls"), Shell("docker info | grep -E 'Operating System|Name'")),
        remedy=_switch_to_engine,
        explains=frozenset({"nvidia-runtime-not-registered", "docker-not-restarted", "toolkit-not-installed"}),
    ),
    _rule(
        cause="docker-rootless-config",
        check=_find_cgroups_disabled_for_root,
        decisive=all_of(ROOTLESS, any_of(_DEVICE_CGROUP_DENIED, unless(_RUNTIME_UNKNOWN, _REGISTERED_IN_USER_CONFIG))),
        typical=any_of(
            custom_sign(_runtime_known_only_as_root),
            unless(_DEVICE_CGROUP_DENIED, message_line(r"(?i)\b(?:lxc|lxd|incus)\b")),
            all_of(ROOTLESS, any_of(_TOOLKIT_CGROUPS_ENABLED, unless(_IN_SYSTEM_CONFIG, _REGISTERED_IN_USER_CONFIG))),
        ),
        symptoms=(
            *(symptoms.HOOK_FAILED, symptoms.RUNTIME_UNKNOWN, symptoms.ACCESS_DENIED),
            all_of(symptoms.NO_DEVICE_DRIVER, any_of(ROOTLESS, any_line(r"(?i)\brootless\b"))),
        ),
        context=ROOTLESS,
        look_at=(Shell("docker info | grep -i rootless"), Shell("cat ~/.config/docker/daemon.json")),
        remedy=_DISABLE_TOOLKIT_CGROUPS,
        explains=frozenset({"nvidia-runtime-not-registered", "docker-not-restarted"}),
    ),
    _rule(
        cause="docker-without-runtime-classes",
        share=0.2,
        decisive=_RUNTIME_CLASS_REFUSED_BY_DOCKER,
        look_at=(Shell("kubectl get nodes -o wide"),),
        against=(unless(any_line(r"\bcontainerd://\d"), any_line(r"\bdocker://\d")),),
        remedy=make_fixed_remedy(
            run_step(
                "configure",
                "make NVIDIA's runtime the default of docker; its containers stop unless live-restore is on",
                Shell("sudo gpunode ctk runtime configure --runtime=docker --set-as-default --restart"),
            ),
            manual_step("application", "leave runtimeClassName out of the pods"),
            manual_step("configure", "or move the kubelet to containerd", when="pods must choose their runtime"),
        ),
        explains=NO_RUNTIME,
    ),
    _rule(
        cause="docker-not-restarted",
        decisive=any_of(
            all_of(_IN_SYSTEM_CONFIG, _LACKS_NVIDIA_RUNTIME),
            all_of(_NVIDIA_IS_DEFAULT, _REGISTERED_IN_ANY_CONFIG, _OTHER_DEFAULT_RUNTIME),
        ),
        typical=any_of(
            unless(all_of(_IN_SYSTEM_CONFIG, _RUNTIME_UNKNOWN), _DOCKER_INFO_SHOWS_NVIDIA),
            unless(all_of(symptoms.NO_DEVICE_DRIVER, toolkit.presence_lines), custom_sign(_started_after_toolkit)),
            unless(all_of(_DOCKER_START_TIME_QUERIED, toolkit.presence_lines), _NVIDIA_NOT_IN_CONFIG, _RUNTIME_UNKNOWN),
        ),
        symptoms=(symptoms.NO_DEVICE_DRIVER, symptoms.RUNTIME_UNKNOWN),
        context=unless(any_of(_IN_SYSTEM_CONFIG, toolkit.presence_lines), symptoms.NOTHING_FAILS),
        against=(unless(symptoms.CONTAINER_WORKS, symptoms.NO_DEVICE_DRIVER, symptoms.RUNTIME_UNKNOWN),),
        look_at=(Shell("docker info | grep -i runtimes"), Shell("systemctl show -p ActiveEnterTimestamp docker")),
        share=4,
        remedy=make_fixed_remedy(_RESTART_DOCKER),
    ),
    _rule(
        cause="nvidia-runtime-not-registered",
        decisive=any_of(_NVIDIA_DEFAULT_UNDEFINED, all_of(_RUNTIME_UNKNOWN, _NVIDIA_NOT_IN_CONFIG)),
        typical=any_of(
            _RUNTIME_UNKNOWN,
            all_of(any_of(command_run(r"runtimes?\b"), _SOME_RUNTIME_UNKNOWN), _LACKS_NVIDIA_RUNTIME),
        ),
        symptoms=(symptoms.RUNTIME_UNKNOWN, symptoms.NO_DEVICE_DRIVER),
        against=(_DOCKER_INFO_SHOWS_NVIDIA, _IN_SYSTEM_CONFIG, toolkit.absence_lines),
        look_at=(Shell("cat /etc/docker/daemon.json"), Shell("docker info | grep -i runtimes")),
        share=4,
        remedy=_register_runtime,
    ),
)
