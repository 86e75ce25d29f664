"""Diagnose the container toolkit: presence, version and configuration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.cluster import register_runtime_command, restart_rancher
from gpunode.diagnoses.commands import Command, Shell, command, join_commands
from gpunode.diagnoses.consequences import NO_RUNTIME, NO_TOOLKIT
from gpunode.diagnoses.docker import ROOTLESS
from gpunode.diagnoses.model import Citation, Fix, Proof, Rule
from gpunode.diagnoses.remedies import install, make_fixed_remedy, manual_step, restart_unit, run_step, setup_step
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
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact
from gpunode.diagnoses.views import runtimes, system, toolkit
from gpunode.diagnoses.views.runtimes import container_engine
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.facts.items import PACKAGE_NOT_FOUND_AFTER_NAME, PACKAGE_NOT_FOUND_BEFORE_NAME
from gpunode.facts.model import Known, value_or
from gpunode.facts.probes import TOOLKIT_PROGRAM

_INSTALL_GUIDE: Final = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html"
# A search for the toolkit found nothing; a package list may just omit it.
_TOOLKIT_SEARCHED_IN_VAIN: Final = custom_sign(
    lambda snapshot: (line for line in snapshot.view(toolkit.absence_lines) if "nvidia-c" in line.source)
)
_TOOLKIT_PROGRAM_MISSING: Final = message_line(
    r"(?:exec: [\\\"]*|fork/exec |stat )(?:/[\w./-]*/)?nvidia-(?:container-(?:runtime|toolkit|cli)|cdi-hook|ctk)"
    r"(?:-hook|\.cdi|\.legacy)?[\\\"]*:? ?(?:stat \S+ )?(?:executable file not found|no such file or directory)"
)
# apt, dnf, yum and zypper: no repository of this node has the package.
_TOOLKIT_PACKAGE_UNKNOWN: Final = message_line(
    rf"(?:{PACKAGE_NOT_FOUND_BEFORE_NAME}|No match for argument:|No package|No provider of)\s*"
    r"['‘]?nvidia-container-toolkit(?![\w-])"
    rf"|nvidia-container-toolkit['’]? (?:{PACKAGE_NOT_FOUND_AFTER_NAME}|has no installation candidate)"
)
# People who describe their setup and have the toolkit mention it.
_INSTALLATION_TOLD: Final = any_line(r"(?i)\binstall|\bput \S+(?: \S+)? on\b|\b(?:docker|driver) (?:version )?\d\d")
_GPU_NOT_SELECTED: Final = message_line(r"could not select device driver \S{0,6} ?with capabilities: \[\[gpu")
_TOOLKIT_MENTIONED: Final = any_line(
    r"(?i)nvidia-(?:container|docker|ctk)|libnvidia-container|container[- ]toolkit|\bsnap\b|docker desktop|nvidia ctk"
    r"|(?<!cuda[ -])\btoolkit\b"
)
# The operator's runtime is in another folder.
_RUNTIME_REGISTERED: Final = any_of(*(
    file_line(path, r"^[^#\n]*\b(?:BinaryName|path)[\"']?\s*[=:]\s*[\"'](?:/usr/bin/)?nvidia-container-runtime[\"']")
    for path in ("*containerd/*.toml", "*daemon.json")
))  # fmt: skip
_GPU_REQUEST_SYMPTOMS: Final = (
    *(symptoms.NO_DEVICE_DRIVER, symptoms.RUNTIME_UNKNOWN, symptoms.PLUGIN_FAILS),
    # By itself, a registered runtime is no failure.
    all_of(toolkit.absence_lines, _RUNTIME_REGISTERED),
)
# The operator provides its own toolkit, which is not in the node's packages.
_GPU_OPERATOR_SEEN: Final = message_line(r"gpu-operator|nvidia-container-toolkit-daemonset|/usr/local/nvidia/toolkit")


def _install_and_register_toolkit(snapshot: Snapshot) -> Iterable[Fix]:
    yield from _package_steps(snapshot, "install the toolkit from NVIDIA's repository")
    if container_engine(snapshot) == "podman":
        write = (Shell("sudo mkdir -p /etc/cdi"), Shell("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"))
        yield run_step("configure", "write the CDI specification, which podman uses for GPUs", *write)
    elif runtimes.containerd_product(snapshot) in {"k3s", "rke2"}:
        yield restart_rancher(
            runtimes.containerd_product(snapshot), "which finds the toolkit when it starts and registers it by itself"
        )
    else:
        text = "register it with this container runtime, or name the runtime in use instead"
        yield run_step("configure", text, register_runtime_command(snapshot))


def _package_steps(snapshot: Snapshot, text: str, *, upgrade: bool = False) -> Iterable[Fix]:
    if snapshot.view(system.package_manager) == "apt":
        by_person = (*remedies.ADD_TOOLKIT_ARCHIVE_COMMANDS, Shell("sudo apt-get install nvidia-container-toolkit"))
        yield setup_step(
            snapshot, "install", text, "toolkit-repository", "toolkit", upgrade=upgrade, fallback_commands=by_person
        )
    else:
        yield install(snapshot, f"{text}, see {_INSTALL_GUIDE}", "nvidia-container-toolkit")


# Whether the toolkit supports the system's cgroups.


_TOOLKIT_BEFORE_CGROUP_V2: Final = custom_sign(
    lambda snapshot: (one.citation for one in snapshot.view(toolkit.toolkit_versions) if one.numbers < (1, 8))
)
_TOOLKIT_SUPPORTS_CGROUP_V2: Final = custom_sign(
    lambda snapshot: (one.citation for one in snapshot.view(toolkit.toolkit_versions) if one.numbers >= (1, 8))
)
_NODE_USES_CGROUP_V2: Final = any_of(
    message_line(r"Cgroup Version:\s*2\b|cgroup2 on /sys/fs/cgroup |cgroup hierarchy: cgroupv2"),
    # Output of stat.
    message_line(r"^[ \t]*cgroup2fs\s*$", "listing", "text"),
)
_DEVICES_CGROUP_NOT_FOUND: Final = message_line(
    r"cgroup subsystem devices not found|/sys/fs/cgroup/devices\S*/devices\.allow: no such file"
)


def _upgrade_toolkit(snapshot: Snapshot) -> Iterable[Fix]:
    text = "upgrade the toolkit: 1.8 is the first version that supports cgroup v2"
    yield from _package_steps(snapshot, text, upgrade=True)
    yield restart_unit("docker.service", when="docker is the runtime")


# Where the toolkit looks for the driver.


_TOOLKIT_CONFIG_GLOB: Final = "*nvidia-container-runtime/config.toml"


def _empty_driver_root_lines(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield a listing that shows a driver container's folder as empty or missing."""
    for item in snapshot.items_of("listing"):
        names = {text.split()[-1] for text in item.lines if text.strip() and not text.startswith("total")}
        if item.written == "/run/nvidia/*" and "/run/nvidia/driver" not in names:
            yield cite_fact(item.written, "no /run/nvidia/driver", item.key)
        elif item.subject.rstrip("/") == "/run/nvidia/driver" and not names - {".", ".."}:
            yield cite(item)


_OTHER_DRIVER_ROOT_SET: Final = message_line(
    r"^(?:\d+:)?[ \t]*root\s*=\s*[\"']/[\w./-]*(?:nvidia|driver)|using root /[\w.-]+", "file", "listing", "text"
)
# An option of nvidia-container-cli.
_DRIVER_ROOT_OPTION: Final = message_line(r"(?:^|\s)--root=/(?:run/nvidia/driver|[\w./-]*nvidia[\w./-]*)(?=\s)")
_DRIVER_ROOT_NOT_FOUND: Final = message_line(
    r"(?i)change root failed: no such file|failed to change root directory: No such"
)
_EMPTY_DRIVER_ROOT: Final = custom_sign(_empty_driver_root_lines)
_TOOLKIT_FAILS: Final = message_line(
    r"nvidia-container-cli(?:\.real)?: (?:initialization|detection|driver|ldcache) error"
    r"|load library failed: libnvidia-ml|/run/nvidia/driver/\S{0,300}: no such file"
)
_DRIVER_ROOT_SYMPTOMS: Final = (
    *(symptoms.HOOK_FAILED, symptoms.NO_NVML_LIBRARY, symptoms.CONTAINER_FAILED, _EMPTY_DRIVER_ROOT),
    symptoms.DRIVER_LIBRARIES_NOT_FOUND,
)
_DRIVER_CONTAINER_ROOT_FILLED: Final = custom_sign(
    lambda node: (
        cite(item)
        for item in node.items_of("listing")
        if item.subject.startswith("/run/nvidia/driver") and {"lib", "usr"} & {*item.text.split()}
    )
)


# The ldconfig that the toolkit runs.

_LDCONFIG_REAL_PATH: Final = "/sbin/ldconfig.real"
_LDCONFIG_NOT_FOUND: Final = message_line(
    r"(?i)(?:ldcache error: open failed:|\b(?:open|stat|lstat|fork/exec|could not start)) "
    r"/(?!run/nvidia/driver)\S*ldconfig[^\s:]*:? ?[\w ]{0,40}:? ?no such file"
)


def _missing_ldconfig_real(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the evidence that ldconfig.real does not exist."""
    for item in snapshot.items:
        if item.written == "/sbin/ldconfig*" and item.text.strip() and _LDCONFIG_REAL_PATH not in item.text:
            yield cite_fact(item.written, f"no {_LDCONFIG_REAL_PATH}", item.key)
        elif (
            item.outcome == "absent"
            and item.where == "host"
            and _LDCONFIG_REAL_PATH in (item.subject, item.written[-len(_LDCONFIG_REAL_PATH) :])
        ):
            yield cite(item)


_LDCONFIG_SETTING: Final = r"^(?:\d+:)?[ \t]*ldconfig\s*=\s*\"@/sbin/ldconfig"
_USES_LDCONFIG_REAL: Final = any_of(
    file_line(_TOOLKIT_CONFIG_GLOB, rf"{_LDCONFIG_SETTING}\.real"), message_line(rf"{_LDCONFIG_SETTING}\.real")
)
_NOT_UBUNTU: Final = predicate(
    lambda node: (known := system.find_distro(node)) is not None and "ubuntu" not in (known.id, *known.like),
    "the system is not Ubuntu, which alone has it",
)
_LDCONFIG_IS_WRAPPER: Final = message_line(r"ldcache error: process \S*/ldconfig failed with error code: 127")


def _set_config(*entries: str) -> tuple[Command, ...]:
    start = ("sudo", "gpunode", "ctk", "config", "--in-place", "--set")
    return tuple(command(*start, f"nvidia-container-cli.{entry}") for entry in entries)


def _set_ldconfig(snapshot: Snapshot) -> Iterable[Fix]:
    path = _LDCONFIG_REAL_PATH if snapshot.view(_LDCONFIG_IS_WRAPPER) else "/sbin/ldconfig"
    yield run_step("configure", f"configure the toolkit to run {path} of the host", *_set_config(f"ldconfig=@{path}"))


def _reset_driver_root(snapshot: Snapshot) -> Iterable[Fix]:
    yield run_step("configure", "configure the toolkit for the driver of the host", *_set_config("root=/"))
    ldconfig = "@/sbin/ldconfig" if snapshot.view(_NOT_UBUNTU) else f"@{_LDCONFIG_REAL_PATH}"
    yield run_step("configure", "and run the host's ldconfig", *_set_config(f"ldconfig={ldconfig}"))
    yield manual_step(
        "configure",
        "configure the GPU Operator too, which would write it again: driver.enabled=false",
        when="the GPU Operator installs the toolkit",
    )


# libnvidia-container reads the container's device filter back from the kernel, which hides hardened programs: it gets
# zeros, and adds its own instructions to these (bottlerocket's issue 2504).

_FILTER_HIDDEN: Final = message_line(
    r"(?:nvidia-container-cli|device filter)[^\n]*load program: invalid argument: last insn is not an exit or jmp"
)
_PROGRAMS_SHOWN: Final = message_line(r"net\.core\.bpf_jit_harden\s*=\s*[01]\b")


# The hook that docker's --gpus adds refuses to run in every mode but legacy (nvidia-container-runtime-hook's main.go).

_HOOK_NEEDS_RUNTIME: Final = message_line(r"invoking the NVIDIA Container Runtime Hook directly")
_MODE_IS_SET: Final = message_line(r"Using requested mode ['\"]?\w|^[ \t]*mode\s*=\s*['\"](?!auto|legacy)\w")


def _request_runtime(snapshot: Snapshot) -> Iterable[Fix]:
    text = "start the container with --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=all in place of --gpus"
    yield manual_step("application", f"{text}; in a compose file, with runtime: nvidia")
    register = Shell("sudo gpunode ctk runtime configure --runtime=docker --restart")
    yield run_step("configure", "register that runtime", register, when="docker has no runtime called nvidia")
    if snapshot.view(_MODE_IS_SET):
        auto = command("sudo", "gpunode", "ctk", "config", "--in-place", "--set", "nvidia-container-runtime.mode=auto")
        yield run_step("configure", "or let the toolkit choose its mode", auto, when="the machine is no Jetson")


# Commands from old articles. If APT could not read its archives, it knows no packages of theirs, old or new.

_OLD_PACKAGE_OR_REPOSITORY: Final = unless(
    message_line(
        r"(?i)# ?Unsupported distribution!"
        r"|nvidia\.github\.io/[\w/-]+/(?:ubuntu|debian|linuxmint|pop)[\d._]+/[^\n]{0,30}does not have a Release file"
        r"|Type ['‘\"]?(?:<!doctype|<html|#)\S* is not known on line \d+ in source list \S*(?:nvidia-|libnvidia)"
        r"|(?:Unable to locate package|No match for argument:|No package|Package) ['‘\"]?"
        r"(?:nvidia-docker2?|nvidia-container-runtime)\b(?! is already)"
    ),
    symptoms.REPOSITORY_REFUSED,
)
_OUTDATED_INSTRUCTIONS: Final = message_line(
    r"(?i)(?:manifest for |docker\.io/|\s)nvidia/cuda:\S+ not found|/nvidia/cuda:[\w.-]+: not found"
    r"|reading manifest \S+ in \S*nvidia/cuda: manifest unknown"
    r"|unable to read URL \"\S*/k8s-device-plugin/\S*\.yml\"[^\n]{0,80}404"
    r"|nvidia-docker: (?:command )?not found|Command 'nvidia-docker' not found"
    r"|Error looking up volume plugin nvidia-docker|umount: /proc/driver/nvidia: (?:not mounted|no mount point)"
)


def _give_current_instructions(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_OUTDATED_INSTRUCTIONS) and not snapshot.view(_OLD_PACKAGE_OR_REPOSITORY):
        yield run_step("application", "use the current form", Shell("docker run --rm --gpus all ubuntu nvidia-smi"))
    else:
        text = "install nvidia-container-toolkit from the current repository"
        yield from _package_steps(snapshot, text, upgrade=True)


def _find_deleted_toolkit_program(snapshot: Snapshot) -> Iterator[Proof]:
    """Yield the proof that the program that runtimes run is missing although its package is installed."""
    program, listed = snapshot.facts.toolkit_program, value_or(snapshot.facts.packages, {})
    there = [one for one in TOOLKIT_PACKAGES if one in listed and not listed[one].config_files_only]
    has_program = not set(TOOLKIT_PACKAGES[:2]).isdisjoint(there)  # the libraries alone (enroot) have no program
    if isinstance(program, Known) and not program.value and has_program:
        what = f"{TOOLKIT_PROGRAM} is gone, although {there[0]} is installed, so no container can use a GPU"
        lines = (cite_fact(TOOLKIT_PROGRAM, "not there", program.probe),)
        # One of the first two has the program; dependencies among the four are only reinstalled if named.
        names = TOOLKIT_PACKAGES[:2] if len(there) == len(TOOLKIT_PACKAGES) else TOOLKIT_PACKAGES
        again = remedies.reinstall(snapshot, "install the toolkit's packages again", *map(str, names))
        yield Proof(what, lines, remedy=(again,))


_PROGRAM_LOST: Final = custom_sign(
    lambda snapshot: (one for found in _find_deleted_toolkit_program(snapshot) for one in found.citations)
)


# The helper of libnvidia-container, for which libtirpc allocates eight bytes for each file that it may open.
_HELPER_REFUSED_MEMORY: Final = message_line(r"__vm_enough_memory: [^\n]*comm: nvc:\[driver\], bytes: 85899\d{5}\b")
_HELPER_WITHOUT_MEMORY: Final = message_line(
    r"nvidia-container-cli: initialization error: driver [^\n]{0,80}Cannot allocate memory"
)
_HELPER_CRASHED: Final = message_line(r"driver rpc error: failed to process request")
_OPEN_FILES_LIMITED: Final = any_line(r"LimitNOFILE(?:Soft)?=\d{1,9}$|Max open files\s+\d{1,9}\s")
_OPEN_FILES_UNLIMITED: Final = any_line(r"LimitNOFILE(?:Soft)?=(?:infinity|1073741\d{3})|Max open files\s+1073741\d{3}")


def _limit_open_files(snapshot: Snapshot) -> Iterable[Fix]:
    engine = snapshot.view(container_engine)
    if engine == "podman" or runtimes.containerd_product(snapshot) != "containerd" or snapshot.view(ROOTLESS):
        text = "set LimitNOFILE=1048576 for what starts the containers (the unit of k3s, or the user's session)"
        yield manual_step("configure", f"{text}, and restart it")
        return
    # Docker's containers are started by containerd too.
    unit = "crio.service" if engine == "crio" else "containerd.service"
    write = join_commands(
        Shell("printf '[Service]\\nLimitNOFILE=1048576\\n' | sudo install -D -m 644 /dev/stdin"),
        command(f"/etc/systemd/system/{unit}.d/open-files.conf"),
    )
    yield run_step("configure", f"limit the files that {unit.removesuffix('.service')} may open", write)
    yield run_step("configure", "let systemd read the limit", Shell("sudo systemctl daemon-reload"))
    yield restart_unit(unit)


RULES: Final = (
    Rule(
        cause="toolkit-not-installed",
        layer="toolkit",
        check=_find_deleted_toolkit_program,
        disruption="restart-service",
        decisive=unless(all_of(toolkit.absence_lines, any_of(*_GPU_REQUEST_SYMPTOMS)), _GPU_OPERATOR_SEEN),
        typical=any_of(
            _TOOLKIT_PROGRAM_MISSING,
            _TOOLKIT_SEARCHED_IN_VAIN,
            _TOOLKIT_PACKAGE_UNKNOWN,
            unless(all_of(_GPU_NOT_SELECTED, _INSTALLATION_TOLD), _TOOLKIT_MENTIONED, _GPU_OPERATOR_SEEN),
        ),
        symptoms=_GPU_REQUEST_SYMPTOMS,
        against=(unless(toolkit.presence_lines, _PROGRAM_LOST), symptoms.NO_GPU_ON_BUS, symptoms.CONTAINER_WORKS),
        may_be_normal=True,
        look_at=(
            Shell("nvidia-ctk --version"),
            Shell("dpkg -l nvidia-container-toolkit || rpm -q nvidia-container-toolkit"),
        ),
        share=5,
        remedy=_install_and_register_toolkit,
        explains=NO_TOOLKIT | {"old-command-form"},
        context=toolkit.absence_lines,
    ),
    Rule(
        cause="toolkit-too-old-cgroupv2",
        layer="toolkit",
        disruption="restart-container",
        decisive=all_of(_TOOLKIT_BEFORE_CGROUP_V2, _DEVICES_CGROUP_NOT_FOUND),
        typical=any_of(
            message_line(r"cgroup subsystem devices not found"),
            unless(
                all_of(
                    _TOOLKIT_BEFORE_CGROUP_V2,
                    any_of(_NODE_USES_CGROUP_V2, command_run(r"(?:dpkg|rpm|apt|dnf)\b.*nvidia-container")),
                ),
                symptoms.RUNTIME_UNKNOWN,
            ),
        ),
        symptoms=(symptoms.HOOK_FAILED, symptoms.CONTAINER_FAILED),
        against=(unless(_TOOLKIT_SUPPORTS_CGROUP_V2, _TOOLKIT_BEFORE_CGROUP_V2),),
        may_be_normal=True,
        look_at=(Shell("nvidia-container-cli --version"), Shell("stat -fc %T /sys/fs/cgroup")),
        remedy=_upgrade_toolkit,
        explains=NO_RUNTIME,
    ),
    Rule(
        cause="toolkit-wrong-driver-root",
        layer="toolkit",
        disruption="restart-container",
        decisive=any_of(
            _DRIVER_ROOT_NOT_FOUND,
            all_of(_OTHER_DRIVER_ROOT_SET, symptoms.DRIVER_WORKS, any_of(_TOOLKIT_FAILS, _EMPTY_DRIVER_ROOT)),
        ),
        # By itself, such a root is right on a node whose driver the GPU Operator brings.
        typical=any_of(
            all_of(
                _OTHER_DRIVER_ROOT_SET,
                any_of(*_DRIVER_ROOT_SYMPTOMS, unless(symptoms.DRIVER_WORKS, symptoms.CONTAINER_WORKS)),
            ),
            all_of(any_of(_EMPTY_DRIVER_ROOT, _DRIVER_ROOT_OPTION), _TOOLKIT_FAILS),
        ),
        symptoms=_DRIVER_ROOT_SYMPTOMS,
        context=_EMPTY_DRIVER_ROOT,
        against=(_DRIVER_CONTAINER_ROOT_FILLED,),
        may_be_normal=True,
        look_at=(Shell("cat /etc/nvidia-container-runtime/config.toml"),),
        remedy=_reset_driver_root,
        explains=NO_RUNTIME | {"ldconfig-path-wrong", "docker-from-snap-or-desktop-vm"},
    ),
    Rule(
        cause="ldconfig-path-wrong",
        layer="toolkit",
        disruption="restart-container",
        decisive=any_of(_LDCONFIG_NOT_FOUND, all_of(_USES_LDCONFIG_REAL, custom_sign(_missing_ldconfig_real))),
        typical=any_of(
            _LDCONFIG_IS_WRAPPER, all_of(_USES_LDCONFIG_REAL, _NOT_UBUNTU), command_run(r"ls\b.*/sbin/ldconfig\.real")
        ),
        symptoms=(symptoms.HOOK_FAILED, symptoms.CONTAINER_FAILED, custom_sign(_missing_ldconfig_real)),
        may_be_normal=True,
        look_at=(Shell("grep ldconfig /etc/nvidia-container-runtime/config.toml"), Shell("ls -l /sbin/ldconfig*")),
        remedy=_set_ldconfig,
        explains=NO_RUNTIME,
    ),
    Rule(
        cause="open-files-unlimited",
        layer="runtime",
        disruption="restart-service",
        decisive=any_of(_HELPER_REFUSED_MEMORY, all_of(_HELPER_WITHOUT_MEMORY, _OPEN_FILES_UNLIMITED)),
        typical=_HELPER_WITHOUT_MEMORY,
        symptoms=(_HELPER_REFUSED_MEMORY, _HELPER_WITHOUT_MEMORY, _HELPER_CRASHED),
        context=_OPEN_FILES_UNLIMITED,
        against=(_OPEN_FILES_LIMITED,),
        look_at=(
            Shell("systemctl show -p LimitNOFILE containerd docker"),
            Shell("sudo dmesg | grep __vm_enough_memory"),
        ),
        remedy=_limit_open_files,
        explains=NO_RUNTIME | {"toolkit-wrong-driver-root"},
    ),
    Rule(
        cause="bpf-hardening-hides-filter",
        layer="toolkit",
        share=0.3,
        decisive=_FILTER_HIDDEN,
        against=(_PROGRAMS_SHOWN, symptoms.CONTAINER_WORKS),
        look_at=(Shell("sysctl net.core.bpf_jit_harden"),),
        remedy=make_fixed_remedy(
            manual_step(
                "application",
                "start the container by CDI: --device nvidia.com/gpu=all in place of --gpus; the runtime then writes "
                "the filter itself",
            ),
            run_step(
                "configure",
                "or harden only the BPF programs of ordinary users, which weakens the kernel's protection",
                Shell("echo net.core.bpf_jit_harden=1 | sudo tee /etc/sysctl.d/90-bpf-jit-harden.conf"),
                Shell("sudo sysctl --system"),
                when="CDI cannot be used",
            ),
        ),
        explains=NO_RUNTIME | {"docker-rootless-config", "toolkit-wrong-driver-root", "toolkit-too-old-cgroupv2"},
    ),
    Rule(
        cause="gpus-flag-needs-runtime",
        layer="toolkit",
        decisive=_HOOK_NEEDS_RUNTIME,
        severity="warning",
        against=(symptoms.CONTAINER_WORKS,),
        look_at=(Shell("docker info | grep -i runtimes"),),
        remedy=_request_runtime,
        explains=NO_RUNTIME,
    ),
    Rule(
        cause="old-command-form",
        layer="toolkit",
        decisive=any_of(_OLD_PACKAGE_OR_REPOSITORY, _OUTDATED_INSTRUCTIONS),
        look_at=(Shell("nvidia-ctk --version"),),
        remedy=_give_current_instructions,
    ),
)
