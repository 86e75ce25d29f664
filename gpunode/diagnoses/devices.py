"""The driver's device files and their first users: nvidia-persistenced, nvidia_uvm, CUDA's first call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import consequences, remedies, symptoms
from gpunode.diagnoses.commands import Shell, command, edit_matching_files, join_commands
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import drain_node, make_fixed_remedy, reboot_node, restart_unit, run_step, setup_step
from gpunode.diagnoses.signs import all_of, any_line, any_of, command_run, custom_sign, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot, cite, cite_fact, lines_with
from gpunode.diagnoses.views import boards, driver, faults, modules, pci, system
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

_NOT_LOADED: Final = predicate(lambda snapshot: driver.is_loaded(snapshot) is False, "NVIDIA's module is not loaded")

# Device nodes and the daemon that holds them open.

_DEVICE_NODE_PATH: Final = Pattern(r"/dev/nvidia(?:\*|\d+|ctl)?\*?$")
_PERSISTENCED_UNIT: Final = "nvidia-persistenced.service"


def _missing_device_nodes(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the evidence that /dev/nvidia0 and /dev/nvidiactl do not exist."""
    known = snapshot.facts.device_nodes
    if isinstance(known, Known) and driver.is_loaded(snapshot) and not any("nvidiactl" in node for node in known.value):
        yield cite_fact("/dev/nvidia*", "neither nvidia0 nor nvidiactl", known.probe)
    for item in snapshot.items_of("listing"):
        places = (item.subject, *item.source.words)
        if item.where == "host" and item.outcome == "absent" and any(map(_DEVICE_NODE_PATH.match, places)):
            yield cite(item)


def _failed_persistenced_lines(snapshot: Snapshot) -> Iterator[Citation]:
    unit = snapshot.facts.unit(_PERSISTENCED_UNIT)
    if isinstance(unit, Known) and unit.value.failed:
        yield system.failed_unit_line(snapshot, _PERSISTENCED_UNIT)


def _is_persistenced_active(snapshot: Snapshot) -> bool:
    unit = snapshot.facts.unit(_PERSISTENCED_UNIT)
    return isinstance(unit, Known) and unit.value.state.active


_DEVICE_NODES_MISSING: Final = custom_sign(_missing_device_nodes)
_DEVICE_NODES_PRESENT: Final = message_line(
    r"^c[rwx-]{9}.*\s/?(?:dev/)?nvidia(?:ctl|0)$|^/dev/nvidia(?:ctl|0)(?:\s|$)", "listing", "text", on_host=True
)
_DEVICE_FILES_NOT_FOUND: Final = message_line(
    r"Failed to query NVIDIA devices|ensure that the NVIDIA device files"
    r"|(?:custom device|stat failed:|stat CDI host device) [\\'\"]*/dev/nvidia(?:ctl|0)[\\'\"]*: "
    r"(?:lstat \S+ )?no such file"
)
_UNIT_CONDITION_UNMET: Final = message_line(
    r"ConditionPathExists(?:Glob)?=\S*/dev/nvidia\S* was not met|unmet condition check"
)
_PERSISTENCED_FAILED: Final = any_of(
    custom_sign(_failed_persistenced_lines),
    message_line(
        r"nvidia-persistenced failed to initialize|Failed to query NVIDIA devices"
        r"|Failed to start [^\n]{0,50}Persistence Daemon|ConditionPathExists(?:Glob)?=\S*/dev/nvidia\S* was not met"
        r"|[Pp]ersistence Daemon[^\n]{0,40}(?:skipped|because of an? (?:unmet|failed) condition)"
        r"|nvidia-persistenced\.service: (?:Failed with result|Main process exited|Control process exited)"
    ),
)
_PERSISTENCED_FAILED_OTHERWISE: Final = message_line(
    r"persistenced[^\n]{0,200}(?:already running|Failed to (?:create|open) (?:PID|lock|directory|/var/run)|no such user"
    r"|Failed to find user|Failed to determine user credentials|unable to look up user|Permission denied"
    r"|(?:API|[Vv]ersion) mismatch)"
)
_MODULE_LOAD_MESSAGE: Final = Pattern(r"NVRM: loading NVIDIA UNIX")


def _module_loaded_after_persistenced(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the line in which the module loads after the daemon's failure in the same log."""
    numbers = {line.key: line.line_number for line in snapshot.view(_PERSISTENCED_FAILED) if line.line_number}
    logs = (item for item in snapshot.items_of("unit-log", "journal", "kernel-log", "text") if item.key in numbers)
    return (
        line
        for item in logs
        for line in lines_with(item, _MODULE_LOAD_MESSAGE)
        if (line.line_number or 0) > (numbers[line.key] or 0)
    )


_MODULE_LOADED_LATE: Final = custom_sign(_module_loaded_after_persistenced)
_PERSISTENCED_ACTIVE: Final = predicate(_is_persistenced_active, "nvidia-persistenced runs")
_NO_GPU: Final = predicate(lambda snapshot: pci.has_gpu(snapshot) is False, "there is no GPU on the bus")


def _delay_persistenced_start(_: Snapshot) -> Iterable[Fix]:
    folder = f"/etc/systemd/system/{_PERSISTENCED_UNIT}.d"
    lines = ["[Unit]", "After=systemd-modules-load.service", "StartLimitIntervalSec=0"]
    lines += ["ConditionPathExistsGlob=", "ConditionPathExists="]
    lines += ["[Service]", "ExecStartPre=-/usr/bin/nvidia-modprobe -c 0", "Restart=on-failure", "RestartSec=5"]
    text = r"\n".join(lines)
    yield run_step(
        "configure",
        "load the module early, and let the daemon wait for its device files",
        Shell("echo nvidia | sudo tee /etc/modules-load.d/nvidia.conf"),
        command("sudo", "install", "-d", folder),
        join_commands(
            command("printf", rf"{text}\n"), Shell("|"), command("sudo", "tee", f"{folder}/10-after-module.conf")
        ),
        Shell("sudo systemctl daemon-reload"),
    )
    yield restart_unit(_PERSISTENCED_UNIT)


# The container toolkit waits ten seconds for NVML (setup_client in libnvidia-container's rpc.c). Without a program that
# keeps the GPUs open, NVML starts all of them first.

_TOOLKIT_TIMED_OUT: Final = message_line(
    r"nvidia-container-cli(?:\.real)?: initialization error: driver (?:rpc )?error: timed out"
)
_DRIVER_KEPT_LOADED: Final = message_line(
    r"^\|\s+\d+\s+\w[^|\n]*\sOn\s+\||^[ \t]*Persistence Mode\s*: Enabled|^[ \t]*Enabled[ \t]*$"
)
_SERIOUS_FAULT: Final = custom_sign(faults.serious_fault_lines)


def _keep_driver_loaded(snapshot: Snapshot) -> Iterable[Fix]:
    daemon = (Shell("sudo systemctl enable --now nvidia-persistenced"),)
    text = "keep the driver loaded between programs"
    yield setup_step(snapshot, "configure", text, "persistence", fallback_commands=daemon)
    yield run_step("inspect", "measure how long NVML takes", Shell("time nvidia-smi -L"), when="it times out again")


# nvidia_uvm: CUDA needs it, nvidia-smi does not.


def _missing_uvm_file(snapshot: Snapshot) -> Iterator[Citation]:
    for item in snapshot.items_of("listing", "file", "which"):
        if item.outcome == "absent" and item.where == "host" and "/dev/nvidia-uvm" in item.written:
            yield cite(item)


def _module_table_without_uvm(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the table that lists nvidia but not nvidia_uvm; people paste every line that mentions nvidia."""
    is_shown = modules.is_module_loaded(snapshot, "nvidia_uvm") or not modules.is_module_loaded(snapshot, "nvidia")
    return () if is_shown else modules.lsmod_line(snapshot, "nvidia_uvm")


_UVM_COMMAND_RUN: Final = command_run(r"nvidia[-_]uvm")
_UVM_LOADED: Final = predicate(
    lambda snapshot: modules.is_module_loaded(snapshot, "nvidia_uvm"), "nvidia_uvm is loaded"
)
_UVM_DEVICE_FILE_MISSING: Final = custom_sign(_missing_uvm_file)
_NO_UVM: Final = custom_sign(_module_table_without_uvm)
_UVM_LOAD_FAILED: Final = message_line(
    r"Could not load UVM kernel module|/dev/nvidia-uvm(?:-tools)?['\"]?: (?:[Nn]o such file|cannot open)"
    r"|(?:open|stat failed:|stat CDI host device|access|device) [\\'\"]*/dev/nvidia-uvm[^\n]{0,60}[Nn]o such file"
    r"|nvidia[-_]uvm (?:module )?(?:is )?not (?:loaded|found)"
    r"|(?:find module by name=|insert |[Mm]odule )['‘\"]?nvidia[\w-]*[-_]uvm['’\"]?"
    r"(?:: (?!Operation|Key|Required)| not found|$)"
)
_CUDA_STARTUP_FAILS: Final = any_of(
    symptoms.CUDA_UNKNOWN, symptoms.CUDA_FINDS_NO_DEVICE, symptoms.CUDA_NOT_INITIALISED, symptoms.CUDA_UNAVAILABLE
)
_SUSPENDED_OR_RESUMED: Final = message_line(
    r"PM: suspend (?:entry|exit)|suspend exit|Waking up from system sleep|systemd-suspend|PM: resume"
    r"|Entering sleep state|System returned from sleep|\b[Ss]uspend(?:ed)?\b[^.\n]{0,20}\b(?:w[ao]ke|resum)"
    r"|(?<!\b[Nn]ot )(?<!\b[Nn]ever )(?:after|since|from) (?:a |the )?(?:suspend|resum|sleep|hibernat)"
)
_LOAD_UVM: Final = make_fixed_remedy(
    run_step(
        "load",
        "load nvidia_uvm and create its device files",
        Shell("sudo modprobe nvidia_uvm"),
        Shell("sudo nvidia-modprobe -u -c=0"),
    ),
    run_step(
        "configure", "load it at every boot", Shell("echo nvidia_uvm | sudo tee /etc/modules-load.d/nvidia-uvm.conf")
    ),
)
_PRESERVE_VIDEO_MEMORY_COMMAND: Final = "echo 'options nvidia NVreg_PreserveVideoMemoryAllocations=1' | sudo tee"
_RELOAD_UVM_COMMANDS: Final = Shell("sudo rmmod nvidia_uvm"), Shell("sudo modprobe nvidia_uvm")
_RELOAD_UVM: Final = make_fixed_remedy(
    drain_node("stop the programs that use a GPU: fuser -v /dev/nvidia-uvm names them"),
    run_step("load", "reload nvidia_uvm", *_RELOAD_UVM_COMMANDS),
    run_step(
        "configure",
        "let the driver keep the GPU's memory over a suspend",
        Shell(f"{_PRESERVE_VIDEO_MEMORY_COMMAND} /etc/modprobe.d/nvidia-suspend.conf"),
        Shell("sudo systemctl enable nvidia-suspend.service nvidia-resume.service nvidia-hibernate.service"),
        when="the machine will be suspended again",
    ),
    reboot_node("reboot", when="nvidia_uvm cannot be unloaded"),
)

# The permissions of the device files.

_DEVICE_FILE_NAME: Final = r"nvidia(?:\d+|ctl|-uvm(?:-tools)?|-modeset)\s*$"
# The owner cannot both read and write, or a bit is set that no device file has. Modes are octal; written in decimal
# without a leading zero, a number such as 666 sets other bits.
_DEVICE_FILE_MODE_INVALID: Final = any_of(
    message_line(
        rf"^c(?!rw-[r-][w-]-[r-][w-]-)[rwxstST-]{{9}}[.+@]?\s.*{_DEVICE_FILE_NAME}|^(?!0?6[0246]{{2}}\s)[0-7]{{3,4}}\s.*/dev/{_DEVICE_FILE_NAME}",
        *("listing", "text"),
        on_host=True,
    ),
    any_line(r"^[^#\n]*DeviceFileMode(?:=|:\s*)(?:6[0-6][0-6]|777)\b"),
)
_RESTRICTED_DEVICE_FILES: Final = message_line(
    rf"^crw-[r-][w-]-[r-]--[.+@]?\s.*{_DEVICE_FILE_NAME}|^0?6[0246][0-4]\s.*/dev/{_DEVICE_FILE_NAME}",
    "listing",
    "text",
    on_host=True,
)
_RESTRICTED_DEVICE_FILE_MODE: Final = any_of(
    _RESTRICTED_DEVICE_FILES, any_line(r"^[^#\n]*DeviceFileMode(?:=(?:06[0246][04]|432|384)|:\s*(?:432|384))\b")
)
_ROOT_ONLY_DEVICE_FILE_MODE: Final = any_line(r"^[^#\n]*DeviceFileMode(?:=0600|[=:]\s*384)\b")
# The user and its groups, as id prints them.
_USER_OUTSIDE_GROUP: Final = message_line(r"^uid=(?!0\b)\d+\S* gid=(?![^\n]*\((?:video|render|nvidia)\))", on_host=True)


_USER_IN_GROUP: Final = message_line(r"^uid=(?:0\b|[^\n]*\((?:video|render|nvidia)\))", on_host=True)
_NVML_NOT_PERMITTED: Final = message_line(r"NVML: Insufficient Permissions", on_host=True)
# SELinux is only consulted after the file permissions allow the access.
_SELINUX_DENIAL: Final = message_line(
    r"avc:\s+denied\s[^\n]{0,300}\bname=\"?nvidia[^\n]{0,400}\btclass=chr_file(?![^\n]*permissive=1)"
)


def _permit_access(snapshot: Snapshot) -> Iterator[Fix]:
    if not snapshot.view(any_of(_DEVICE_FILE_MODE_INVALID, _ROOT_ONLY_DEVICE_FILE_MODE)):
        text = "add the user that runs the program to the group of the device files; takes effect at the next login"
        add = Shell('sudo usermod -aG "$(stat -c %G /dev/nvidiactl)" "${SUDO_USER:-$USER}"')
        yield run_step("configure", text, add)
        return
    text = "write the mode in octal, with a leading zero: 0666 is the driver's default"
    octal = "s/NVreg_DeviceFileMode=[0-9]+/NVreg_DeviceFileMode=0666/"
    yield run_step("configure", text, edit_matching_files("DeviceFileMode=", octal, "/etc/modprobe.d"))
    now = Shell("sudo chmod 0666 /dev/nvidia[0-9]* /dev/nvidiactl")
    yield run_step("configure", "correct the present files", now)
    yield reboot_node(when="the module must read its options again")


# cuInit fails on a node where everything else works.

_CUDA_ERROR_3: Final = message_line(
    r"CUDA_ERROR_NOT_INITIALIZED|cuInit[^\n]{0,60}(?:returned|failed|error|->)[^\n]{0,20}\b3\b"
    r"|driver library init failure: 3|cudaErrorInitializationError|CUDA driver initialization failed"
    r"|cuda(?:GetDeviceCount|Get\w+)[^\n]{0,60}(?:initialization error|returned 3\b)"
)
_CUDA_NOT_READY_OR_ERROR_3: Final = any_of(symptoms.CUDA_SYSTEM_NOT_READY, _CUDA_ERROR_3)


_NVSWITCH_SEEN: Final = any_of(
    custom_sign(lambda snapshot: (nvswitch.citation for nvswitch in snapshot.view(pci.nvswitches))),
    any_line(r"[Ff]abric ?[Mm]anager|NVSwitch|HGX|DGX|\bSXM|NVL72|^[ \t]*State\s+: In Progress"),
)
_CONFIDENTIAL_COMPUTING_ON: Final = any_line(
    r"(?i)conf-compute|Confidential Comput|CC status: ON|cc_mode=on|SEV-SNP|TDX guest"
)


def _disable_hmm(snapshot: Snapshot) -> Iterable[Fix]:
    option = Shell("echo 'options nvidia_uvm uvm_disable_hmm=1' | sudo tee /etc/modprobe.d/nvidia-uvm-hmm.conf")
    yield run_step("configure", "turn heterogeneous memory management of nvidia_uvm off", option)
    yield run_step("load", "reload nvidia_uvm; stop the programs that use a GPU first", *_RELOAD_UVM_COMMANDS)
    yield run_step("configure", "or start the kernel with nokaslr", when="managed memory of CUDA needs HMM")
    text = "install a newer driver release that knows this kernel's layout"
    yield from remedies.change_driver(snapshot, text)


# HAMi's library sits between the program and CUDA, and answers in CUDA's place.
_HAMI_ERROR: Final = message_line(r"\[HAMI-core ERROR")

_rule = partial(Rule, layer="driver")

RULES: Final = (
    _rule(
        cause="no-device-nodes-driver-not-initialised",
        decisive=all_of(_DEVICE_NODES_MISSING, symptoms.MODULE_LOADED),
        typical=any_of(
            _DEVICE_NODES_MISSING,
            unless(_DEVICE_FILES_NOT_FOUND, symptoms.MODULE_LOADED, _DEVICE_NODES_PRESENT),
            all_of(unless(_DEVICE_FILES_NOT_FOUND, _PERSISTENCED_FAILED), symptoms.MODULE_LOADED),
        ),
        symptoms=(_DEVICE_FILES_NOT_FOUND, symptoms.NO_DRIVER, symptoms.NO_DEVICES, symptoms.CUDA_FINDS_NO_DEVICE),
        against=(
            *(symptoms.DRIVER_WORKS, symptoms.IN_CONTAINER, symptoms.DRIVER_FROM_PLATFORM),
            *(_MODULE_LOADED_LATE, _NO_GPU),
        ),
        look_at=(Shell("ls -l /dev/nvidia*"), Shell("lsmod | grep nvidia")),
        remedy=make_fixed_remedy(
            run_step(
                "load",
                "load the module and create its device files",
                Shell("sudo modprobe nvidia"),
                Shell("sudo nvidia-modprobe -c 0 -u"),
            ),
            run_step(
                "inspect",
                "if there are still none, read the reason",
                Shell("sudo dmesg | grep -iE 'nvrm|nvidia' | tail -n 40"),
            ),
            restart_unit(_PERSISTENCED_UNIT, when="nvidia-persistenced is installed"),
        ),
        explains=consequences.NO_NVML,
    ),
    _rule(
        cause="persistenced-start-race",
        disruption="restart-service",
        decisive=all_of(_PERSISTENCED_FAILED, any_of(_MODULE_LOADED_LATE, unless(_UNIT_CONDITION_UNMET, _NOT_LOADED))),
        typical=any_of(
            all_of(_PERSISTENCED_FAILED, any_of(symptoms.MODULE_LOADED, _DEVICE_NODES_PRESENT)),
            unless(_PERSISTENCED_FAILED, _DEVICE_FILES_NOT_FOUND, _NOT_LOADED),
        ),
        symptoms=(_PERSISTENCED_FAILED,),
        against=(_DEVICE_NODES_MISSING, _PERSISTENCED_FAILED_OTHERWISE, _PERSISTENCED_ACTIVE),
        look_at=(Shell("systemctl status nvidia-persistenced"), Shell("ls -l /dev/nvidia*")),
        remedy=_delay_persistenced_start,
    ),
    _rule(
        cause="driver-not-kept-loaded",
        typical=unless(_TOOLKIT_TIMED_OUT, _SERIOUS_FAULT, symptoms.SMI_HANGS),
        symptoms=(_TOOLKIT_TIMED_OUT,),
        against=(_DRIVER_KEPT_LOADED, _PERSISTENCED_ACTIVE),
        look_at=(Shell("nvidia-smi --query-gpu=persistence_mode --format=csv"),),
        remedy=_keep_driver_loaded,
    ),
    _rule(
        cause="nvidia-uvm-not-loaded",
        share=1.3,
        decisive=any_of(_UVM_DEVICE_FILE_MISSING, _UVM_LOAD_FAILED, all_of(_NO_UVM, _CUDA_STARTUP_FAILS)),
        symptoms=(
            symptoms.CUDA_UNKNOWN,
            symptoms.CUDA_FINDS_NO_DEVICE,
            symptoms.CUDA_UNAVAILABLE,
            symptoms.CUDA_NOT_INITIALISED,
        ),
        context=any_of(_NO_UVM, _UVM_COMMAND_RUN),
        against=(_UVM_LOADED, _NOT_LOADED, symptoms.DRIVER_FROM_PLATFORM, symptoms.IN_CONTAINER),
        may_be_normal=True,
        look_at=(Shell("lsmod | grep nvidia_uvm"), Shell("ls -l /dev/nvidia-uvm")),
        remedy=_LOAD_UVM,
    ),
    _rule(
        cause="nvidia-uvm-wedged",
        disruption="restart-container",
        decisive=all_of(symptoms.CUDA_UNKNOWN, _SUSPENDED_OR_RESUMED, _UVM_LOADED),
        typical=any_of(
            unless(
                symptoms.CUDA_UNKNOWN,
                *(symptoms.ANY_XID, symptoms.IN_CONTAINER, symptoms.CUDA_TOO_NEW, _HAMI_ERROR),
            ),
            all_of(symptoms.CUDA_UNKNOWN, _SUSPENDED_OR_RESUMED, symptoms.DRIVER_WORKS),
            all_of(_SUSPENDED_OR_RESUMED, _UVM_LOADED, _UVM_COMMAND_RUN),
        ),
        symptoms=(symptoms.CUDA_UNKNOWN, symptoms.CUDA_UNAVAILABLE, symptoms.CUDA_NOT_INITIALISED),
        context=unless(any_of(_SUSPENDED_OR_RESUMED, _UVM_COMMAND_RUN), symptoms.NOTHING_FAILS),
        against=(_UVM_DEVICE_FILE_MISSING, _NO_UVM, _UVM_LOAD_FAILED, _NOT_LOADED, symptoms.DRIVER_FROM_PLATFORM),
        look_at=(Shell("sudo journalctl -b | grep -iE 'suspend|resume'"), Shell("lsmod | grep nvidia_uvm")),
        remedy=_RELOAD_UVM,
    ),
    _rule(
        cause="device-node-permissions",
        decisive=any_of(_DEVICE_FILE_MODE_INVALID, all_of(_RESTRICTED_DEVICE_FILE_MODE, _USER_OUTSIDE_GROUP)),
        typical=any_of(
            all_of(_RESTRICTED_DEVICE_FILE_MODE, symptoms.ACCESS_DENIED),
            all_of(_NVML_NOT_PERMITTED, _USER_OUTSIDE_GROUP),
            unless(_RESTRICTED_DEVICE_FILES, symptoms.DRIVER_WORKS),
        ),
        symptoms=(
            symptoms.ACCESS_DENIED,
            symptoms.CUDA_FINDS_NO_DEVICE,
            symptoms.CUDA_UNAVAILABLE,
            symptoms.NVML_UNKNOWN,
        ),
        against=(_SELINUX_DENIAL, unless(_USER_IN_GROUP, _DEVICE_FILE_MODE_INVALID, _USER_OUTSIDE_GROUP)),
        look_at=(Shell("ls -l /dev/nvidia*"), Shell("id")),
        remedy=_permit_access,
    ),
    _rule(
        cause="cuda-init-802-kaslr-or-hmm",
        layer="kernel",
        disruption="restart-container",
        share=1.5,
        typical=any_of(
            all_of(
                _CUDA_NOT_READY_OR_ERROR_3,
                predicate(
                    lambda snapshot: snapshot.view(boards.board_kinds) == {"card"},
                    "the GPUs are PCIe cards, which need no fabric manager",
                ),
            ),
            _CUDA_ERROR_3,
            command_run(r"uvm_disable_hmm=1|\bnokaslr\b"),
        ),
        symptoms=(symptoms.CUDA_SYSTEM_NOT_READY, _CUDA_ERROR_3, symptoms.CUDA_UNAVAILABLE),
        context=_UVM_COMMAND_RUN,
        against=(_NVSWITCH_SEEN, _CONFIDENTIAL_COMPUTING_ON, _NOT_LOADED, _UVM_DEVICE_FILE_MISSING),
        look_at=(Shell("cat /proc/cmdline"), Shell("lspci -nn -d 10de:")),
        remedy=_disable_hmm,
    ),
)
