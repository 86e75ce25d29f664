"""The driver's device files, and what opens them: nvidia-persistenced, nvidia_uvm, CUDA's first call."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import chains, remedies, symptoms
from gpunode.diagnoses.addresses import DRIVER_README, OPEN_MODULES
from gpunode.diagnoses.commands import Shell, command, edited, edited_where, is_name, joined
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import drain, reboot, restart, run, uninstall
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import boards, driver, fabric, inside, modules, packages, pci, system, users
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

# Device nodes and the daemon that holds them open.

_NODES: Final = Pattern(r"/dev/nvidia(?:\*|\d+|ctl)?\*?$")
_NO_FILES: Final = Pattern(
    r"Failed to query NVIDIA devices|ensure that the NVIDIA device files"
    r"|(?:custom device|stat failed:|stat CDI host device) [\\'\"]*/dev/nvidia(?:ctl|0)[\\'\"]*: "
    r"(?:lstat \S+ )?no such file"
)
_DAEMON_FAILED: Final = Pattern(
    r"nvidia-persistenced failed to initialize|Failed to query NVIDIA devices"
    r"|Failed to start [^\n]{0,50}Persistence Daemon"
    r"|ConditionPathExists(?:Glob)?=\S*/dev/nvidia\S* was not met"
    r"|[Pp]ersistence Daemon[^\n]{0,40}(?:skipped|because of an? (?:unmet|failed) condition)"
    r"|nvidia-persistenced\.service: (?:Failed with result|Main process exited|Control process exited)"
)
_DAEMON_ELSE: Final = Pattern(
    r"already running|Failed to (?:create|open) (?:PID|lock|directory|/var/run)|no such user|Failed to find user"
    r"|Failed to determine user credentials|unable to look up user|Permission denied|API mismatch|version mismatch",
    re.IGNORECASE,
)
_UNMET: Final = Pattern(r"ConditionPathExists(?:Glob)?=\S*/dev/nvidia\S* was not met|unmet condition check")
_PERSISTENCED: Final = "nvidia-persistenced.service"


def _missing_nodes(snapshot: Snapshot) -> Iterator[Citation]:
    """Where it is seen that /dev/nvidia0 and /dev/nvidiactl are not there."""
    known = snapshot.facts.device_nodes
    if isinstance(known, Known) and driver.is_loaded(snapshot) and not any("nvidiactl" in node for node in known.value):
        yield stated("/dev/nvidia*", "neither nvidia0 nor nvidiactl", known.probe)
    for item in snapshot.of("listing"):
        asked = (item.subject, *item.source.words)
        if item.where == "host" and item.outcome == "absent" and any(map(_NODES.match, asked)):
            yield cite(item)


_LISTED: Final = Pattern(r"^c[rwx-]{9}.*\s/?(?:dev/)?nvidia(?:ctl|0)$|^/dev/nvidia(?:ctl|0)(?:\s|$)", re.MULTILINE)


def _present_nodes(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Where it is seen that the node has /dev/nvidia0 or /dev/nvidiactl."""
    items = (item for item in snapshot.of("listing", "text") if item.where == "host")
    return tuple(citation for item in items for citation in lines_with(item, _LISTED))


def _no_nodes(snapshot: Snapshot) -> Iterator[Verdict]:
    if system.has_driver_from_elsewhere(snapshot) or pci.has_gpu(snapshot) is False or driver.works(snapshot):
        return
    nodes, said = tuple(_missing_nodes(snapshot)), snapshot.said(_NO_FILES)
    if nodes and (bare := inside.without_gpu(snapshot, *nodes)) is not None:
        yield bare
    elif nodes:
        summary = "there is no /dev/nvidia0 and no /dev/nvidiactl: the module did not take up the GPU"
        yield Proof(summary, (*nodes, *said), "certain" if said or driver.is_loaded(snapshot) is not None else "likely")
    elif said and driver.is_loaded(snapshot) and not snapshot.says(_DAEMON_FAILED):
        yield Proof("a container was to be given device files that the node does not have", said, "likely")
    elif said and driver.is_loaded(snapshot) is None and not _loaded_after(snapshot, said):
        question = "Did nvidia-persistenced find no device files for it started too early, or are there none?"
        yield Doubt(
            question, (Shell("ls -l /dev/nvidia*"), Shell("lsmod | grep nvidia")), said, ("persistenced-start-race",)
        )


def _initialise(_: Snapshot) -> Iterable[Fix]:
    text = "load the module and have it make its device files"
    yield run("load", text, Shell("sudo modprobe nvidia"), Shell("sudo nvidia-modprobe -c 0 -u"))
    yield run(
        "inspect", "where there are none still, read why", Shell("sudo dmesg | grep -iE 'nvrm|nvidia' | tail -n 40")
    )
    yield restart(_PERSISTENCED, when="nvidia-persistenced is installed")


def _raced(snapshot: Snapshot) -> Iterator[Verdict]:
    """The daemon failed, and what it missed is there now."""
    unit = snapshot.facts.unit(_PERSISTENCED)
    failed = [*snapshot.said(_DAEMON_FAILED)]
    if isinstance(unit, Known) and unit.value.failed:
        failed.append(system.failed_line(snapshot, _PERSISTENCED))
    if isinstance(unit, Known) and unit.value.state.active:
        return  # its log tells of an earlier start
    there, later = _present_nodes(snapshot), _loaded_after(snapshot, failed)
    if not failed or not (driver.is_loaded(snapshot) or there or later) or tuple(_missing_nodes(snapshot)):
        return
    for item in snapshot.of("unit-log", "unit-status", "journal"):
        about = (line for line in item.lines if "persistenced" in line or "persistenced" in item.written)
        if any(_DAEMON_ELSE.search(line) for line in about):
            return
    works = tuple(where for state, where in driver.smi(snapshot) if state == "works")
    now = later or modules.lsmod_line(snapshot, "nvidia") or works or there
    since = "the module was loaded after that" if later else "they are there now"
    summary = f"nvidia-persistenced started before the module had made its device files; {since}"
    yield Proof(summary, (*failed, *now), "certain" if later or snapshot.says(_UNMET) else "likely")


def _loaded_after(snapshot: Snapshot, failed: Iterable[Citation]) -> tuple[Citation, ...]:
    """The first line in which the module says that it was loaded, behind one of ``failed`` in the same log."""
    numbers = {one.key: one.number for one in failed if one.number}
    logs = (item for item in snapshot.of("unit-log", "journal", "kernel-log", "text") if item.key in numbers)
    loaded = (citation for item in logs for citation in lines_with(item, _LOADING))
    return tuple(one for one in loaded if (one.number or 0) > (numbers[one.key] or 0))[:1]


_LOADING: Final = Pattern(r"NVRM: loading NVIDIA UNIX")


def _order(snapshot: Snapshot) -> Iterable[Fix]:
    folder = f"/etc/systemd/system/{_PERSISTENCED}.d"
    lines = ["[Unit]", "After=systemd-modules-load.service", "StartLimitIntervalSec=0"]
    lines += ["ConditionPathExistsGlob=", "ConditionPathExists="] if snapshot.says(_UNMET) else []
    lines += ["[Service]", "ExecStartPre=-/usr/bin/nvidia-modprobe -c 0", "Restart=on-failure", "RestartSec=5"]
    text = r"\n".join(lines)
    yield run(
        "configure",
        "have the module loaded early, and the daemon wait for its device files",
        Shell("echo nvidia | sudo tee /etc/modules-load.d/nvidia.conf"),
        command("sudo", "install", "-d", folder),
        joined(command("printf", rf"{text}\n"), Shell("|"), command("sudo", "tee", f"{folder}/10-after-module.conf")),
        Shell("sudo systemctl daemon-reload"),
    )
    yield restart(_PERSISTENCED)
    if packages.installed(snapshot, "bumblebee") or any("bbswitch" in item.text for item in snapshot.of("lsmod")):
        text = "remove Bumblebee: a server does not switch its GPU off"
        yield uninstall(snapshot, text, Shell("bumblebee"), Shell("bbswitch-dkms"))


# nvidia_uvm, which CUDA needs and nvidia-smi does not.

_UNKNOWN_ERROR: Final = Pattern(
    r"CUDA_ERROR_UNKNOWN|cudaErrorUnknown|CUDA unknown error|(?:CUDA|cuda|cuInit)[^\n]{0,80}unknown error"
    r"|unknown error[^\n]{0,40}cuda|(?:CUDA|cuda|cuInit|driver library)[^\n]{0,80}\b999\b|error code 999"
    r"|cudaGetDeviceCount returned (?:30|999)|cuInit failed: unknown|UNKNOWN_ERROR\(99",
)
_UVM_WANTED: Final = Pattern(
    r"Could not load UVM kernel module|/dev/nvidia-uvm(?:-tools)?['\"]?: (?:[Nn]o such file|cannot open)"
    r"|(?:open|stat failed:|stat CDI host device|access) [\\'\"]*/dev/nvidia-uvm[^\n]{0,60}[Nn]o such file"
    r"|nvidia_uvm (?:module )?(?:is )?not loaded"
)
_NO_DEVICE: Final = Pattern(
    r"no CUDA-capable device|CUDA_ERROR_NO_DEVICE|cuInit[^\n]{0,60}(?:failed|error)|No CUDA GPUs are available"
    r"|CUDA (?:driver )?initiali[sz]ation (?:failed|error)|failed to initialize CUDA"
)
_SUSPENDED: Final = Pattern(
    r"PM: suspend (?:entry|exit)|suspend exit|Waking up from system sleep|systemd-suspend|PM: resume"
    r"|Entering sleep state|System returned from sleep"
    r"|(?:after|since|from) (?:a |the )?(?:suspend|resum|sleep|hibernat)"
)
# A person's word that loading it anew helps.
_RELOADED: Final = Pattern(
    r"(?:reload(?:ing|ed)?|rmmod|modprobe -r|remov(?:e|ing) and (?:load|insert)ing) (?:the )?nvidia[-_]uvm"
)
_UVM_NODE: Final = Pattern(r"/dev/nvidia-uvm")


def _on_host(snapshot: Snapshot, pattern: Pattern) -> tuple[Citation, ...]:
    """The lines with ``pattern`` that were not seen in a container, where a missing device file is another matter."""
    inside = {item.key for item in snapshot.items if item.where == "container" or item.kind == "container-run"}
    return tuple(citation for citation in snapshot.said(pattern) if citation.key not in inside)


def _decide_uvm(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Whether CUDA fails for want of nvidia_uvm, or though it is loaded."""
    state, wanted = driver.is_loaded(snapshot), snapshot.said(_UVM_WANTED)
    unknown = _on_host(snapshot, _UNKNOWN_ERROR)
    lost = (*snapshot.said(_SUSPENDED), *snapshot.said(_RELOADED)) if unknown else ()
    if state is False or system.has_driver_from_elsewhere(snapshot) or not (state or wanted or lost):
        return
    absent = tuple(_uvm_absence(snapshot))
    if modules.loaded(snapshot, "nvidia_uvm") or (lost and modules.loaded(snapshot, "nvidia_uvm") is None):
        if unknown and not absent:
            yield "nvidia-uvm-wedged", _wedged(snapshot, unknown)
        return
    anywhere = (*snapshot.said(_UNKNOWN_ERROR), *snapshot.said(_NO_DEVICE)) if absent else ()
    failing = tuple(dict.fromkeys((*unknown, *wanted, *anywhere)))
    if failing and (absent or wanted or _table_without_uvm(snapshot)):
        summary = "nvidia_uvm is not loaded: nvidia-smi works without it, CUDA does not"
        proof = (*failing, *absent, *_table_without_uvm(snapshot))
        yield "nvidia-uvm-not-loaded", Proof(summary, proof, "certain" if absent else "likely")


def _uvm_absence(snapshot: Snapshot) -> Iterator[Citation]:
    if modules.loaded(snapshot, "nvidia_uvm") is False:
        yield from modules.lsmod_line(snapshot, "nvidia_uvm")
    for item in snapshot.of("listing", "file", "which"):
        if item.outcome == "absent" and item.where == "host" and _UVM_NODE.search(item.written):
            yield cite(item)


def _table_without_uvm(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The table that shows nvidia and not nvidia_uvm; people paste all lines that speak of nvidia."""
    if modules.loaded(snapshot, "nvidia_uvm") or modules.loaded(snapshot, "nvidia") is None:
        return ()
    return modules.lsmod_line(snapshot, "nvidia_uvm")


def _wedged(snapshot: Snapshot, unknown: tuple[Citation, ...]) -> Proof:
    suspended, is_loaded = snapshot.said(_SUSPENDED), modules.loaded(snapshot, "nvidia_uvm")
    after = " since the machine was suspended" if suspended else ""
    summary = f"CUDA fails with an unknown error although nvidia_uvm is loaded: it has lost its state{after}"
    lines = modules.lsmod_line(snapshot, "nvidia_uvm") if is_loaded else snapshot.said(_RELOADED)
    ruled_out = ("nvidia_uvm is not loaded: it is",) if is_loaded else ()
    cited = (*unknown, *lines, *suspended[:2])
    return Proof(summary, cited, "certain" if suspended and is_loaded else "likely", ruled_out)


def _load_uvm(_: Snapshot) -> Iterable[Fix]:
    text = "load nvidia_uvm and make its device files"
    yield run("load", text, Shell("sudo modprobe nvidia_uvm"), Shell("sudo nvidia-modprobe -u -c=0"))
    text = "have it loaded at every boot"
    yield run("configure", text, Shell("echo nvidia_uvm | sudo tee /etc/modules-load.d/nvidia-uvm.conf"))


def _reload_uvm(_: Snapshot) -> Iterable[Fix]:
    yield drain("stop the programs that use a GPU: fuser -v /dev/nvidia-uvm names them")
    yield run("load", "load nvidia_uvm anew", Shell("sudo rmmod nvidia_uvm"), Shell("sudo modprobe nvidia_uvm"))
    text = "have the driver keep the GPU's memory over a suspend"
    yield run(
        "configure",
        text,
        Shell(
            "echo 'options nvidia NVreg_PreserveVideoMemoryAllocations=1' | "
            "sudo tee /etc/modprobe.d/nvidia-suspend.conf"
        ),
        Shell("sudo systemctl enable nvidia-suspend.service nvidia-resume.service nvidia-hibernate.service"),
        when="the machine is suspended again",
    )
    yield reboot("reboot", when="nvidia_uvm cannot be unloaded")


# The permissions of the device files.

_NODE: Final = Pattern(
    r"^c(?P<mode>[rwxstST-]{9})[.+@]?\s+\d+\s+(?P<owner>\S+)\s+(?P<group>\S+)\s+\d+,\s*\d+\s.*/?"
    r"(?P<name>(?:/dev/)?nvidia(?:\d+|ctl|-uvm(?:-tools)?|-modeset))\s*$"
)
_FILE_MODE: Final = Pattern(r"^[ \t]*DeviceFileMode:\s*(?P<mode>\d{1,18})", re.MULTILINE)
_OPTION: Final = Pattern(r"NVreg_DeviceFileMode=(?P<mode>0[xX][0-9a-fA-F]+|\d+)")
_DENIED: Final = Pattern(
    r"/dev/nvidia[\w-]*['\"]?:? [^\n]{0,60}[Pp]ermission denied|[Pp]ermission denied[^\n]{0,40}/dev/nvidia"
    r"|[Ii]nsufficient [Pp]ermissions|could not open the device file /dev/nvidia\w* \(Permission denied"
    r"|CUDA_ERROR_NOT_PERMITTED|Failed to open NVIDIA device"
)
_READ_WRITE_ALL: Final = 0o666


def _permissions(snapshot: Snapshot) -> Iterator[Verdict]:
    """Device files that not everybody may read and write: by a mode nobody wants, or where somebody is refused."""
    nodes = tuple(_nodes(snapshot))
    odd = tuple(citation for mode, citation in nodes if _is_odd(mode))
    closed = tuple(citation for mode, citation in nodes if not _is_odd(mode) and mode[6:8] != "rw")
    wrong = tuple(_wrong_options(snapshot))
    closed += tuple(_closing_options(snapshot))
    denied = snapshot.said(_DENIED)
    if odd or wrong:
        summary = "the device files have a mode that was written in the wrong base: nobody can open them as usual"
        yield Proof(summary, (*odd, *wrong, *denied), "certain" if odd else "likely", remedy=tuple(_set_mode(snapshot)))
    elif closed and denied and not any("mig" in line.line.lower() for line in denied):
        yield from _kept_from(snapshot, closed, denied)


# SELinux is asked when the permissions have let the program through: what it denies, they have not.
_LET_THROUGH: Final = Pattern(
    r"avc:\s+denied\s[^\n]{0,300}\bname=\"?nvidia[^\n]{0,400}\btclass=chr_file(?![^\n]*permissive=1)"
)
_REFUSED: Final = "root is refused the device files, whose permissions do not hold for root: what else keeps it out?"
_MEMBER: Final = "the device files are open to group {0}, and the user is in it: did the program start before that?"


def _kept_from(snapshot: Snapshot, closed: tuple[Citation, ...], denied: tuple[Citation, ...]) -> Iterator[Verdict]:
    """Files that are open to their owner and group only; whether the program runs as neither, ``id`` tells."""
    if snapshot.says(_LET_THROUGH):
        return
    asking, group = snapshot.view(users.users), _group(closed)
    told = tuple(user.citation for user in asking)
    if asking and all(user.is_root for user in asking):
        look = (
            Shell("getenforce"),
            Shell("sudo ausearch -m avc -ts recent | grep nvidia"),
            Shell("cat /proc/self/uid_map"),
        )
        yield Doubt(_REFUSED, look, (*denied, *closed, *told), ("selinux-denies-gpu",))
        return
    if asking and all(user.is_root or group in user.groups for user in asking):
        yield Doubt(_MEMBER.format(group), (Shell("id -nG"), Shell("grep Groups /proc/PID/status")), (*denied, *told))
        return
    summary = "the device files are open to their owner and group only, and the program runs as neither"
    remedy = tuple(_open_up(snapshot, closed))
    yield Proof(summary, (*closed, *denied, *told), "certain" if asking else "likely", remedy=remedy)


def _group(closed: tuple[Citation, ...]) -> str:
    """The group to which the files are open."""
    match = _NODE.match(closed[0].line.strip())
    return match["group"] if match else "video"


def _nodes(snapshot: Snapshot) -> Iterator[tuple[str, Citation]]:
    """The device files that ``ls -l`` lists, each with its mode in letters."""
    for item in snapshot.of("listing", "text"):
        for number, line in enumerate(item.lines, 1):
            if item.where != "host":
                continue
            if match := _NODE.match(line.strip()):
                yield match["mode"], cite(item, number)
            elif match := _STAT.match(line.strip()):
                yield _letters(match["mode"]), cite(item, number)


# stat -c '%a %U:%G %n', in whatever order of user and group.
_STAT: Final = Pattern(r"^(?P<mode>[0-7]{3,4})\s(?:.*\s)?/dev/nvidia(?:\d+|ctl|-uvm(?:-tools)?|-modeset)$")


def _letters(mode: str) -> str:
    digits = (int(digit) for digit in mode[-3:])
    return "".join(letter if digit & bit else "-" for digit in digits for letter, bit in (("r", 4), ("w", 2), ("x", 1)))


def _is_odd(mode: str) -> bool:
    """Whether the owner may not both read and write, or a bit is set that no device file has."""
    return mode[:2] != "rw" or any(letter in mode for letter in "xstST")


def _wrong_options(snapshot: Snapshot) -> Iterator[Citation]:
    return (citation for mode, citation in _modes(snapshot) if _is_wrong(mode))


def _closing_options(snapshot: Snapshot) -> Iterator[Citation]:
    """Where the driver is told to keep its files from all but their owner and group."""
    return (citation for mode, citation in _modes(snapshot) if not _is_wrong(mode) and mode & 0o006 != 0o006)


def _modes(snapshot: Snapshot) -> Iterator[tuple[int, Citation]]:
    """Each mode that the driver is told to give its files, or shows that it gives them."""
    for item in snapshot.items:
        # The files that open parts of a GPU (MIG, the fabric) have modes of their own, and may be read-only.
        if "DeviceFileMode" not in item.text or "DeviceFileMinor:" in item.text:
            continue
        for number, line in enumerate(item.lines, 1):
            if shown := _FILE_MODE.match(line):
                yield int(shown["mode"]), cite(item, number)
            elif option := _OPTION.search(line):
                yield _base_0(option["mode"]), cite(item, number)


def _base_0(text: str) -> int:
    """A number as the kernel reads it: with a leading zero octal, with 0x hexadecimal."""
    if text.lower().startswith("0x"):
        return int(text, 16)
    return int(text[:24], 8) if text.startswith("0") and not set(text) & set("89") else int(text[:18])


def _is_wrong(mode: int) -> bool:
    """Whether, in octal, its owner may not read and write, or it has bits that no device file has."""
    return mode & 0o600 != 0o600 or bool(mode & ~_READ_WRITE_ALL)


def _set_mode(snapshot: Snapshot) -> Iterator[Fix]:
    set_in = (item.subject for item in snapshot.files("*modprobe.d/*") if "NVreg_DeviceFileMode" in item.text)
    text = "write the mode in octal, with a leading zero: 0666 is what the driver does by itself"
    octal = "s/NVreg_DeviceFileMode=[0-9]+/NVreg_DeviceFileMode=0666/"
    yield run("configure", text, *(edited(octal, *set_in) or (edited_where("DeviceFileMode=", octal, _MODPROBE),)))
    yield run(
        "configure", "correct the files that are there now", Shell("sudo chmod 0666 /dev/nvidia[0-9]* /dev/nvidiactl")
    )
    yield reboot(when="the module's options are to be read again")


_MODPROBE: Final = "/etc/modprobe.d"
# Groups that give a user GPUs and nothing else; docker, disk and the like would give the machine.
_OF_GPUS: Final = frozenset({"video", "render", "nvidia", "gpu", "cuda", "nvidia-persistenced", "vglusers"})


def _open_up(snapshot: Snapshot, closed: tuple[Citation, ...]) -> Iterator[Fix]:
    group = _group(closed)
    if group in _OF_GPUS:
        text = f"add the user that runs the program to the group {group}; a new login takes it up"
        user = Shell('"${SUDO_USER:-$USER}"')
        yield run("configure", text, *((command("sudo", "usermod", "-aG", group, user),) if is_name(group) else ()))
    else:
        yield from _set_mode(snapshot)


# cuInit on a node where everything else works.

_NOT_READY: Final = Pattern(
    r"cudaErrorSystemNotReady|CUDA_ERROR_SYSTEM_NOT_READY|system not yet initiali[sz]ed"
    r"|(?:CUDA|cuda|cuInit)[^\n]{0,60}\b802\b"
    r"|code[= ]+802|CUDA_ERROR_NOT_INITIALIZED|cuInit[^\n]{0,60}(?:returned|failed|error|->)[^\n]{0,20}\b3\b"
    r"|driver library init failure: 3|cudaErrorInitializationError|CUDA driver initialization failed"
    r"|cuda(?:GetDeviceCount|Get\w+)[^\n]{0,60}(?:initialization error|returned 3\b)"
)
_WORKED_AROUND: Final = Pattern(r"uvm_disable_hmm=(?:1|Y)\b|\bnokaslr\b")
# What a person, or a program that found no GPU before, says when one is there now.
_CURED: Final = Pattern(
    r"(?:->|=>|now|then|after(?:wards| (?:that|this|reboot)))[^\n]{0,80}"
    r"(?:works|sees the|finds the|True\b|library=cuda)"
    r"|(?:works|fixed|solved|True\b)[^\n]{0,40}(?:with|after|by) [^\n]{0,60}(?:uvm_disable_hmm|nokaslr)"
    r"|(?:uvm_disable_hmm=1|nokaslr)[^\n]{0,60}(?:works|fixe[sd]|solve[sd]|helps|helped|True\b)",
    re.IGNORECASE,
)
_CONFIDENTIAL: Final = Pattern(
    r"conf-compute|Confidential Comput|CC status: ON|cc_mode=on|SEV-SNP|TDX guest", re.IGNORECASE
)
_FABRIC: Final = Pattern(
    r"[Ff]abric ?[Mm]anager|NVSwitch|HGX|DGX|\bSXM|NVL72|^[ \t]*State\s+: In Progress", re.MULTILINE
)


def _hmm(snapshot: Snapshot) -> Iterator[Verdict]:
    """CUDA does not start on a node whose GPUs have no NVSwitch, and whose driver answers."""
    said = snapshot.said(_NOT_READY) or fabric.not_ready(snapshot)
    if not said or driver.is_loaded(snapshot) is False or not _is_plain(snapshot):
        return
    done = tuple(_anywhere(snapshot, _WORKED_AROUND))
    # Where that cured it, the driver itself works.
    if tuple(_anywhere(snapshot, _CONFIDENTIAL)) or not (driver.is_loaded(snapshot) or done):
        return
    if done and (cured := (*snapshot.said(_CURED), *_worked_after(snapshot))):
        summary = (
            "cuInit fails until heterogeneous memory management of nvidia_uvm, or the kernel's address layout, is off"
        )
        yield Proof(summary, (*said, *done, *cured), "likely")
        return
    if done:
        question = "Why does cuInit fail although HMM is off or the kernel's addresses are not randomised?"
        yield Doubt(
            question,
            (Shell("sudo dmesg | grep -iE 'nvrm|uvm'"), Shell("sudo strace -f -e openat nvidia-smi")),
            (*said, *done),
        )
        return
    works = tuple(where for state, where in driver.smi(snapshot) if state == "works")
    summary = (
        "cuInit fails on a node whose driver works and whose GPUs need no fabric manager: nvidia_uvm's heterogeneous "
        "memory management does not come up with this kernel's address layout"
    )
    not_so = ("fabric manager: these GPUs have no NVSwitch", "nvidia-smi fails: it works")
    yield Proof(summary, (*said, *works), "likely", not_so)


def _worked_after(snapshot: Snapshot) -> Iterator[Citation]:
    """The last line behind a command that switched it off, where that is success: a code of 0, or True."""
    for item in snapshot.items:
        if _WORKED_AROUND.search(item.written) and item.text.split()[-1:] in (["0"], ["True"]):
            yield cite(item, len(item.lines))


def _anywhere(snapshot: Snapshot, pattern: Pattern) -> Iterator[Citation]:
    for item in snapshot.items:
        if item.is_seen:
            yield from lines_with(item, pattern)


def _is_plain(snapshot: Snapshot) -> bool:
    """Whether the GPUs are known and none is of a board with NVSwitches, where error 802 has another cause."""
    if snapshot.view(pci.switches) or any(_FABRIC.search(item.text) for item in snapshot.items):
        return False
    return snapshot.view(boards.carriers) == {"card"}


def _disable_hmm(snapshot: Snapshot) -> Iterable[Fix]:
    yield run(
        "configure",
        "switch heterogeneous memory management of nvidia_uvm off",
        Shell("echo 'options nvidia_uvm uvm_disable_hmm=1' | sudo tee /etc/modprobe.d/nvidia-uvm-hmm.conf"),
    )
    text = "load nvidia_uvm anew; stop the programs that use a GPU first"
    yield run("load", text, Shell("sudo rmmod nvidia_uvm"), Shell("sudo modprobe nvidia_uvm"))
    yield run("configure", "or start the kernel with nokaslr", when="managed memory of CUDA needs HMM")
    text = "take a newer release of the driver, which knows this kernel's layout"
    yield from remedies.newer_driver(snapshot, text)


_NODES_PAGE: Final = "https://docs.nvidia.com/cuda/cuda-installation-guide-linux/"

FAMILY: Final = Family(
    "devices",
    "device files, nvidia_uvm and CUDA's start",
    (
        Rule(
            cause="no-device-nodes-driver-not-initialised",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="none",
            title="the driver has made no device files",
            symptoms=(
                symptoms.NO_DRIVER,
                symptoms.NO_DEVICES,
                symptoms.CUDA_NO_DEVICE,
            ),
            look_at=(Shell("ls -l /dev/nvidia*"),),
            story=(
                "Programs reach a GPU through /dev/nvidiactl and /dev/nvidia0, which are made once the module has "
                "taken up a GPU. Where they are missing, the module is not loaded, found no GPU that it could drive, "
                "or nobody asked for the files yet. nvidia-persistenced and NVML are only the first to complain. "
                "Loading the module shows which it is; the kernel log has the reason where it stays without a GPU."
            ),
            sources=(
                f"{DRIVER_README}faq.html",
                _NODES_PAGE,
                "https://github.com/NVIDIA/ansible-role-nvidia-driver/issues/3",
            ),
            check=_no_nodes,
            remedy=_initialise,
            explains=chains.NO_NVML,
        ),
        Rule(
            cause="persistenced-start-race",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="restart-service",
            title="nvidia-persistenced started before its device files were there",
            symptoms=(symptoms.SLOW,),
            look_at=(
                Shell("systemctl status nvidia-persistenced"),
                Shell("ls -l /dev/nvidia*"),
            ),
            story=(
                "nvidia-persistenced opens the GPUs once, when it starts; it does not wait for them. Where something "
                "loads the module late (Bumblebee, a blacklist with a later modprobe, an udev rule, a generator of "
                "CDI specifications), the daemon may lose the race at boot, fails or is skipped by its condition, and "
                "stays down although everything works a second later. Without it, every first use of a GPU takes "
                "seconds and clocks and limits are forgotten in between."
            ),
            sources=(
                "https://docs.nvidia.com/deploy/driver-persistence/index.html",
                "https://github.com/Bumblebee-Project/Bumblebee/issues/1093",
                "https://github.com/ublue-os/ucore/issues/419",
            ),
            check=_raced,
            remedy=_order,
        ),
        Rule(
            cause="nvidia-uvm-not-loaded",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="none",
            title="nvidia_uvm is not loaded",
            share=1.3,
            symptoms=(
                symptoms.CUDA_UNKNOWN,
                symptoms.CUDA_NO_DEVICE,
                symptoms.CUDA_UNAVAILABLE,
                symptoms.CUDA_NOT_INITIALISED,
            ),
            look_at=(
                Shell("lsmod | grep nvidia_uvm"),
                Shell("ls -l /dev/nvidia-uvm"),
            ),
            story=(
                "CUDA needs a second module, nvidia_uvm, with its own device files; nvidia-smi does not. It is loaded "
                "when a program that runs as root, or nvidia-modprobe, asks for it. Where neither happens "
                "(nvidia-modprobe is missing, a container comes first, a softdep is not honoured), nvidia-smi looks "
                "fine and every CUDA program ends with an unknown error or finds no device."
            ),
            sources=(
                f"{DRIVER_README}commonproblems.html",
                "https://github.com/ggml-org/llama.cpp/issues/7218",
                "https://github.com/Bumblebee-Project/Bumblebee/issues/854",
            ),
            check=only("nvidia-uvm-not-loaded", _decide_uvm),
            remedy=_load_uvm,
        ),
        Rule(
            cause="nvidia-uvm-wedged",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="restart-container",
            title="nvidia_uvm is loaded and has lost its state",
            share=0.8,
            symptoms=(
                symptoms.CUDA_UNKNOWN,
                symptoms.CUDA_UNAVAILABLE,
                symptoms.CUDA_NOT_INITIALISED,
            ),
            look_at=(
                Shell("sudo journalctl -b | grep -iE 'suspend|resume'"),
                Shell("lsmod | grep nvidia_uvm"),
            ),
            story=(
                "After a suspend, or after a program with open GPU memory was killed over one, nvidia_uvm may stay "
                "loaded with a state that no longer fits the GPU. nvidia-smi works, and every new CUDA program fails "
                "with the unknown error 999. Unloading and loading nvidia_uvm, once nothing uses it, brings CUDA back "
                "without a reboot; the driver can be told to keep GPU memory over a suspend."
            ),
            sources=(
                f"{DRIVER_README}powermanagement.html",
                "https://github.com/ollama/ollama/issues/8638",
                "https://github.com/pop-os/default-settings/pull/64",
                "https://github.com/gbionics/jaxsim/issues/50",
            ),
            check=only("nvidia-uvm-wedged", _decide_uvm),
            remedy=_reload_uvm,
        ),
        Rule(
            cause="device-node-permissions",
            layer="driver",
            storey="driver",
            severity="error",
            disruption="none",
            title="the device files have the wrong permissions",
            symptoms=(
                symptoms.DENIED,
                symptoms.CUDA_NO_DEVICE,
                symptoms.CUDA_UNAVAILABLE,
                symptoms.NVML_UNKNOWN,
            ),
            look_at=(Shell("ls -l /dev/nvidia*"),),
            story=(
                "The driver makes its device files readable and writable for everybody, unless module options say "
                "otherwise. The kernel reads NVreg_DeviceFileMode as C does: 0666 is octal, 666 is a decimal number "
                "whose bits make a mode that nobody can use. A mode of 0660 is a choice, and then only the group may "
                "use the GPU. From above, root sees the GPU and users do not, or nobody does."
            ),
            sources=(f"{DRIVER_README}faq.html", "https://github.com/vowstar/vowstar-overlay/issues/6"),
            check=_permissions,
            remedy=_set_mode,
        ),
        Rule(
            cause="cuda-init-802-kaslr-or-hmm",
            layer="driver",
            storey="kernel",
            severity="error",
            disruption="restart-container",
            title="CUDA does not start with this kernel's memory layout",
            symptoms=(
                symptoms.CUDA_NOT_READY,
                symptoms.CUDA_NOT_INITIALISED,
                symptoms.CUDA_UNAVAILABLE,
            ),
            look_at=(
                Shell("cat /proc/cmdline"),
                Shell("lspci -nn -d 10de:"),
            ),
            story=(
                "With heterogeneous memory management (HMM), nvidia_uvm claims a part of the kernel's physical "
                "address space for the GPU. On some kernels, with address randomisation (KASLR) or on machines with "
                "much memory, there is no room left where it must be, and cuInit fails with 802 or 3 although "
                "nvidia-smi, the modules and the device files are as they should be. On boards with NVSwitches the "
                "same number means that the fabric manager does not run; here there is none. HMM can be switched off "
                "with a module option."
            ),
            sources=(
                "https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/index.html",
                f"{OPEN_MODULES}/issues/797",
                f"{OPEN_MODULES}/issues/901",
                "https://github.com/wilicc/gpu-burn/issues/133",
            ),
            check=_hmm,
            remedy=_disable_hmm,
        ),
    ),
)
