"""The kind of a piece of evidence: by the command or path written above it, else by its content.

People write ``dmesg``, ``sudo dmesg -T | tail``, ``$ journalctl -k -b``, ``cat /etc/docker/daemon.json (host)`` or
``app log``; probes write paths and command lines. One table has for each kind the commands that print it, the files
that hold it, its appearance, and what people call it.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

SourceKind: TypeAlias = Literal[
    "kernel-log",  # dmesg, journalctl -k, kern.log
    "journal",  # journalctl of everything, syslog
    "unit-log",  # journalctl -u UNIT; subject: the unit
    "unit-status",  # systemctl status, is-active; subject: the unit
    "unit-show",  # systemctl show; subject: the unit
    "unit-file",  # systemctl cat; subject: the unit
    "unit-action",  # systemctl start, restart, reload; subject: the unit
    "lspci",
    "lsmod",  # also /proc/modules
    "modinfo",  # subject: the module
    "modprobe",  # also insmod, rmmod; subject: the module
    "depmod",
    "dkms-status",
    "dkms-output",  # dkms build, install, autoinstall
    "make-log",
    "initramfs",  # lsinitramfs, lsinitrd; subject: the image
    "uname",
    "mokutil",
    "packages",  # dpkg -l, dpkg-query, apt list --installed, rpm -qa
    "package-owner",  # dpkg -S, rpm -qf
    "package-policy",  # apt-cache policy
    "package-output",  # output of apt, dpkg, dnf, zypper
    "package-history",  # /var/log/apt/history.log, /var/log/dpkg.log, dnf history
    "installer-log",  # NVIDIA's .run installer
    "nvidia-smi",  # the table, -L, --query-gpu, and its errors
    "nvidia-smi-q",
    "nvidia-smi-nvlink",
    "nvidia-smi-topo",
    "nvidia-smi-mig",
    "nvidia-smi-c2c",
    "nvml",  # gpunode's own query, JSON
    "nvidia-container-cli",
    "nvidia-ctk",
    "container-run",  # docker, podman, nerdctl, ctr: run, start, exec, compose
    "container-inspect",
    "docker-info",
    "docker-version",
    "containerd-config",  # containerd config dump, crictl info
    "crictl",
    "kubernetes-node",  # kubectl describe node, get node
    "kubernetes-pod",  # kubectl describe pod, get pod
    "kubernetes-log",  # kubectl logs; subject: the pod
    "kubernetes",  # any other answer of kubectl, kubeadm, minikube, helm
    "ldconfig",
    "which",
    "listing",  # ls, find, stat; subject: the first path
    "file",  # cat; subject: the path
    "environment",  # env, printenv
    "snap",
    "audit",  # ausearch, audit.log, getenforce
    "gpudirect",  # gdscheck, cufile.log, ibstat, ofed_info
    "virtualization",  # systemd-detect-virt, virsh
    "application",  # a program that wants a GPU, and its log
    "exit-status",  # echo $?
    "shell-history",  # history, ~/.bash_history: what was typed, without output
    "text",  # none of the above
]
SourcePlace: TypeAlias = Literal["host", "container"]


@dataclass(frozen=True, slots=True)
class Source:
    """The source of a piece of evidence.

    Attributes:
        subject: the file, unit, module, pod or image that it is about; empty if there is none.
        words: the command's words without prefixes (sudo, assignments); empty for a file.
        pattern: the pattern of a ``grep`` after the command, or of one that read the file: the text has only lines that
            match it, all of them unless ``is_part``. Empty if no grep was used.
        is_part: whether lines may be missing that no pattern accounts for (head, tail, ``…``).
        is_mixed: whether the text is that of several commands, of which this is one.
        is_count: whether the text is the number of the lines, and not the lines.
    """

    kind: SourceKind
    subject: str = ""
    words: tuple[str, ...] = ()
    where: SourcePlace = "host"
    pattern: str = ""
    is_part: bool = False
    is_mixed: bool = False
    is_count: bool = False

    def lets_through(self, line: str) -> bool:
        """Return True if ``line``, had it been in the full output, would be in the text.

        An invalid or dangerously slow pattern is searched for literally.
        """
        if (
            len(self.pattern) > _MAX_REGEX_LENGTH
            or len(_REGEX_REPEAT_OPERATOR.findall(self.pattern)) > _MAX_REGEX_REPEATS
            or _REPEATED_REGEX_GROUP.search(self.pattern)
        ):
            return self.pattern in line
        try:
            return re.search(self.pattern, line, re.IGNORECASE) is not None
        except re.error:
            return self.pattern in line


# Patterns are typed by hand, and a report may come from anybody: nested repetition is not run.
_MAX_REGEX_LENGTH: Final = 200
_MAX_REGEX_REPEATS: Final = 6
_REGEX_REPEAT_OPERATOR: Final = Pattern(r"[*+}]")
_REPEATED_REGEX_GROUP: Final = Pattern(r"\)[*+{]")


# Options before a command's verb or operand. Each can match in only one way, so that a long line costs no time.
_CLIENT_OPTIONS: Final = (
    r"(?: (?:-[nolcLApH]|--(?:namespace|kubeconfig|context|output|selector|container|host)) [^\s-]\S*| -\S+)*"
)
_CONTAINER_ENGINE_COMMAND: Final = (
    r"(?:docker|podman|nerdctl|ctr|docker-compose|podman-compose|apptainer|singularity|nvidia-docker|enroot|lxc|incus"
    rf"|pct){_CLIENT_OPTIONS}(?: (?:compose|container|image|system))?{_CLIENT_OPTIONS}"
)
_KUBECTL: Final = rf"(?:kubectl|k|oc|kubecolor){_CLIENT_OPTIONS}"
_FIRST_OPERAND: Final = r"(?: -\S+)*(?: (?P<of>[^\s-]\S*))?"
_UNIT_OPERAND: Final = rf"(?: (?:-[pno]|--property|--lines|--output) [^\s-]\S*| -\S+)*{_FIRST_OPERAND}"
_MODULE_OPERAND: Final = rf"(?: (?:-[FkbCdS]|--field|--basedir|--set-version) [^\s-]\S*| -\S+)*{_FIRST_OPERAND}"
_PACKAGE_MANAGER_COMMAND: Final = (
    r"(?:apt|apt-get|aptitude|dpkg|dnf|yum|zypper|unattended-upgrade|dpkg-reconfigure|pacman|rpm)(?= |$)"
)


class _KindRow:
    """A way to recognise a kind.

    Attributes:
        command: the start of the command line; the group ``of`` is its subject.
        path: matched at the end of the file's path.
        looks: text that no other kind contains.
        label: what people call it.
        subject: that of text matched by ``looks``.
    """

    def __init__(
        self, kind: SourceKind, command: str = "", path: str = "", looks: str = "", label: str = "", subject: str = ""
    ) -> None:
        self.kind, self.subject = kind, subject
        self.command = Pattern(rf"(?:{command})(?!\S)") if command else None
        self.path = Pattern(path) if path else None
        self.looks = Pattern(looks, re.MULTILINE) if looks else None
        self.label = Pattern(label, re.IGNORECASE) if label else None


# The first matching row counts.
_SOURCE_KIND_ROWS: Final = (
    _KindRow(
        "lsmod", "lsmod", r"^/proc/modules$", r"^Module +Size +Used by|^(?:nvidia|nouveau)\w* +\d{4,} +-?\d+(?: |$)"
    ),
    _KindRow(
        "make-log",
        path=r"make\.log$|/akmods/.*\.log$|\.failed\.log$",
        looks=r"^DKMS make\.log for |\bmake\[\d\]: \*\*\*|\bmodpost: ",
    ),
    _KindRow(
        "installer-log",
        r"\S*(?:NVIDIA-Linux|cuda_)[\w.-]+\.run",
        r"nvidia-installer\.log$|cuda-installer\.log$|(?:^|/)(?:NVIDIA-Linux|cuda_)[\w.-]+\.run$",
        r"^nvidia-installer log file |^Using: nvidia-installer ",
    ),
    _KindRow(
        "package-history",
        r"(?:dnf|yum|zypper)(?: -\S+)* history",
        r"apt/history\.log|dpkg\.log|apt/term\.log|dnf\.(?:rpm\.)?log|yum\.log|pacman\.log|zypp/history"
        r"|unattended-upgrades",
        r"^Start-Date: \d{4}-|^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (?:upgrade|install|status) \S+",
    ),
    _KindRow(
        "kernel-log",
        r"dmesg|journalctl .*(?:-[a-tv-z]*k[\w-]*|--dmesg|_TRANSPORT=kernel)|talosctl .*\bdmesg",
        r"/var/log/(?:kern|dmesg)[\w.*?{},-]*$|kern\.log$|dmesg(?:\.\w+)?$|/pstore/\S*dmesg-",
        r"\bNVRM: |\bnvidia-nvlink: |\bnvidia-nvswitch\d*: |^[ \t]{0,8}\[ {0,12}\+?\d{1,9}\.\d{6}\]|\bkernel: "
        r"|^\[\w{3} \w{3} [ \d]\d [\d:]{8} \d{4}\] ",
        r"\b(?:dmesg|kernel (?:log|messages?|ring buffer|output)|kmsg|console|serial)\b",
    ),
    _KindRow("unit-log", r"journalctl (?:.*? )?(?:-u ?|--unit[= ]|-t ?|--identifier[= ])(?P<of>[^\s-]\S*)"),
    _KindRow(
        "unit-log",
        looks=r"^(?:\w{3} [ \d]\d [\d:]{8} )?(?:\S+ )?(?P<of>dockerd|containerd|kubelet"
        r"|nvidia-(?:fabricmanager|persistenced|gridd|imex))(?:\[\d+\])?: ",
    ),
    _KindRow("unit-log", looks=r"^nvidia-persistenced failed|^Failed to query NVIDIA", subject="nvidia-persistenced"),
    _KindRow("unit-log", looks=r"\bnv-fabricmanager\[\d+\]: ", subject="nvidia-fabricmanager"),
    _KindRow(
        "unit-log",
        r"dockerd|containerd(?! .*config)|talosctl\b(?!.* (?:read|cat))",
        r"fabricmanager\.log$",
        label=r"\b(?:kubelet|dockerd?|containerd|crio|cri-o|persistenced|fabric ?manager)\b.{0,200}\blogs?\b",
    ),
    _KindRow(
        "journal",
        "journalctl",
        r"/var/log/(?:syslog|messages)[\w.*?{},-]*$|syslog$",
        r"^(?:\w{3} [ \d]\d [\d:]{8} \S+ )?(?:systemd\[1\]: |\w[\w.-]*\[\d+\]: )",
        r"\b(?:journal|syslog|system log|messages)\b",
    ),
    _KindRow(
        "unit-status",
        rf"systemctl(?: \S+)*? (?:status|is-\S+|list-\S+){_UNIT_OPERAND}",
        looks=r"^[ \t]*Loaded: loaded \(/",
    ),
    _KindRow("unit-show", rf"systemctl(?: \S+)*? show{_UNIT_OPERAND}", looks=r"^Id=\S+\.service$"),
    _KindRow("unit-file", rf"systemctl(?: \S+)*? cat{_UNIT_OPERAND}"),
    _KindRow("unit-action", rf"(?:systemctl(?: -\S+)*(?: [a-z][\w-]+)?|service){_UNIT_OPERAND}"),
    _KindRow(
        "lspci",
        "lspci",
        looks=r"^(?:\w{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.\d .*(?:controller|[Bb]ridge)|^[ \t]*(?:LnkSta|LnkCap|ACSCtl):\s",
    ),
    _KindRow("modinfo", r"find .* -name (?P<of>[\w-]+)\S* -exec modinfo"),
    _KindRow("modinfo", rf"modinfo{_MODULE_OPERAND}", looks=r"^filename: +/lib/modules/"),
    _KindRow(
        "modprobe", rf"(?:modprobe|insmod|rmmod){_MODULE_OPERAND}", looks=r"^(?:modprobe|insmod|rmmod): (?:FATAL|ERROR)"
    ),
    _KindRow("depmod", "depmod"),
    _KindRow(
        "dkms-status",
        r"dkms (?:.* )?status",
        looks=r"^\w[\w.+-]*/[\w.+~:-]+(?:, [\w.+-]+, \w+)?: (?:added|built|installed)",
    ),
    _KindRow("dkms-output", "dkms", looks=r"^Error! |^Building module:"),
    _KindRow("initramfs", rf"(?:lsinitramfs|lsinitrd|unmkinitramfs|lsinitcpio){_FIRST_OPERAND}"),
    _KindRow("uname", "uname", looks=r"^Linux \S+ \d+\.\d+|\A\s*\d\.\d{1,3}\.\d{1,3}-[\w.+~-]+\s*\Z"),
    _KindRow("mokutil", "mokutil", looks=r"^SecureBoot (?:enabled|disabled)"),
    _KindRow("package-owner", r"dpkg(?:-query)? (?:-S|--search)(?: (?P<of>\S+))?"),
    _KindRow("package-owner", r"rpm -(?:\w*q\w*f|\w*f\w*q)\w*(?: (?P<of>\S+))?"),
    _KindRow("packages", r"dpkg (?:.* )?(?:-l|--list|-s|--status|--get-selections)(?: (?P<of>.+))?"),
    _KindRow("packages", r"apt-mark(?: (?P<of>.+))?"),
    _KindRow(
        "packages",
        r"dpkg-query|(?:apt|apt-get|aptitude|dnf|yum|zypper)(?: -\S+)* (?:list|versionlock)"
        r"|pacman -Q[ims]*|rpm (?:.* )?-\w*q\w*",
        looks=r"^(?:ii|iU|iF|rc|hi|iHR?|pn|un) {1,2}\S+ |^dpkg-query: no packages found"
        r"|^(?:\w+-)*(?:nvidia|kernel|cuda)\S*-\d\S*\.(?:x86_64|noarch|aarch64)$",
    ),
    _KindRow("package-policy", r"apt-cache|apt(?:-get)?(?: -\S+)* policy", looks=r"^  Installed: \S+\n  Candidate: "),
    _KindRow(
        "package-output",
        _PACKAGE_MANAGER_COMMAND,
        looks=r"^(?:E|W|Err|Hit|Get|Ign):\d*\s|^dpkg: |^The following packages |^Setting up \S+ \(",
    ),
    _KindRow("nvidia-smi-nvlink", "nvidia-smi nvlink", looks=r"^[ \t]+Link \d+: (?:<inactive>|[\d.]+ GB/s)"),
    _KindRow("nvidia-smi-topo", "nvidia-smi topo", looks=r"^[ \t]+(?:\x1b\S*)?GPU0[ \t]+.*CPU Affinity"),
    _KindRow(
        "nvidia-smi-mig", r"nvidia-smi (?:.*-)?(?:mig|-multi-instance-gpu)", looks=r"^\| (?:GPU|Compute) instances"
    ),
    _KindRow("nvidia-smi-c2c", "nvidia-smi c2c"),
    _KindRow(
        "nvidia-smi-q",
        r"nvidia-smi(?!.* --query-) (?:.* )?(?:-q\w*|--query|-x)",
        looks=r"==NVSMI LOG==|^[ \t]{0,8}GPU \d{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0$|<nvidia_smi_log>"
        r"|^ {4,}[A-Z][\w ()/.-]{2,40} {2,}: \S",
    ),
    _KindRow("nvidia-smi", looks=r"^(?:index|name|uuid|gpu_bus_id|pci\.bus_id|timestamp|driver_version), ?\w"),
    _KindRow(
        "nvidia-smi",
        "nvidia-smi",
        looks=r"\| NVIDIA-SMI |^NVIDIA-SMI has failed|^Failed to initialize NVML|^No devices were found$"
        r"|^GPU \d+: .* \(UUID: |^Unable to determine the device handle|\bnvidia-smi: command not found",
    ),
    _KindRow(
        "nvidia-container-cli",
        r"nvidia-container-(?:cli|runtime|toolkit)(?!\.log)\S*",
        r"nvidia-container-(?:toolkit|runtime)\.log$",
        r"^[IWE]\d{4} [\d:.]+ \d+ nvc\.c:",
    ),
    _KindRow(
        "nvidia-ctk", "nvidia-ctk", looks=r'^time="[^"\n]+" level=\w+ msg="(?:Found \d+ CDI|Selecting /dev/nvidia)'
    ),
    _KindRow("docker-info", rf"{_CONTAINER_ENGINE_COMMAND} (?:info|context)", looks=r"^ ?Server Version: "),
    _KindRow("docker-version", rf"{_CONTAINER_ENGINE_COMMAND} version", looks=r"^Client: Docker Engine"),
    _KindRow("container-inspect", rf"{_CONTAINER_ENGINE_COMMAND} (?:inspect|ps)", looks=r'^[ \t]*"HostConfig": \{'),
    _KindRow("application", rf"{_CONTAINER_ENGINE_COMMAND} logs|{_KUBECTL} exec"),
    _KindRow("containerd-config", r"containerd .*config|crictl (?:.* )?info"),
    _KindRow("crictl", "crictl"),
    _KindRow(
        "kubernetes-log",
        rf"{_KUBECTL} logs{_CLIENT_OPTIONS}(?: (?:pod/)?(?P<of>\S+))?",
        r"^/var/log/(?:pods|containers)/",
        label=r"\b(?:device[- ]plugin|validator|operator|mig-manager|dcgm|gfd)\b",
    ),
    _KindRow(
        "kubernetes-node",
        rf"{_KUBECTL} \w+{_CLIENT_OPTIONS} (?i:nodes?|no)(?:/\S*)?|{_KUBECTL} .*/api/\S*/nodes/\S*",
        looks=r"^Capacity:|^Allocatable:|^Allocated resources:|^NAME +STATUS +ROLES +AGE",
    ),
    _KindRow(
        "kubernetes-pod",
        rf"{_KUBECTL} \w+{_CLIENT_OPTIONS} (?i:pods?|po)(?:/\S*)?{_CLIENT_OPTIONS}(?: (?P<of>[^\s-]\S*))?"
        rf"|{_KUBECTL} .*/api/",
        looks=r"\bFailedScheduling\b|\bFailedCreatePodSandBox\b|\bUnexpectedAdmissionError\b|^NAME +READY +STATUS",
    ),
    _KindRow("kubernetes", rf"{_KUBECTL} \w+{_CLIENT_OPTIONS}(?: (?P<of>\S+))?"),
    _KindRow("kubernetes", r"(?:kubectl|oc|kubeadm|helm|kubelet|k3s|rke2|microk8s|k0s|minikube|kind|talos)"),
    _KindRow(
        "container-run",
        rf"{_CONTAINER_ENGINE_COMMAND}(?: exec)?",
        looks=r"Error response from daemon|OCI runtime|nvidia-container-cli: ",
    ),
    _KindRow("ldconfig", "ldconfig", looks=r"^[ \t]+lib\S+ \(libc6"),
    _KindRow("which", rf"(?:which|whereis|type){_FIRST_OPERAND}"),
    _KindRow("listing", r"stat -\w*c \S+(?: -\S+)* (?P<of>\S+)"),
    _KindRow(
        "listing",
        r"(?:ls|stat|ll|tree|lsof|fuser|readlink|realpath|find)(?: -\S+)*(?: (?P<of>[^\s-]\S*))?",
        looks=r"^[-lcd][rwx-]{9}[.+]? +\d+ \w+ +\w+ |^ls: cannot access '(?P<of>[^'\n]+)'",
    ),
    _KindRow("environment", r"env|printenv"),
    _KindRow("shell-history", r"(?:(?:shell|bash|zsh) )?history|fc", r"(?:^|[/.])(?:(?:ba|z|k|fi)?sh_|zhist)?history$"),
    _KindRow(
        "file",
        looks=r'^\{\s*"(?:default-runtime|runtimes|exec-opts|log-driver|data-root|features|hosts)":',
        subject="/etc/docker/daemon.json",
    ),
    _KindRow("file", looks=r"^ *\[plugins\.\W?io\.containerd|^version = [23]$", subject="/etc/containerd/config.toml"),
    _KindRow("file", looks=r"^\[nvidia-container-", subject="/etc/nvidia-container-runtime/config.toml"),
    _KindRow("file", looks=r'^(?:PRETTY_NAME|NAME|VERSION_ID)="', subject="/etc/os-release"),
    _KindRow("file", looks=r"^NVRM version: ", subject="/proc/driver/nvidia/version"),
    _KindRow("file", looks=r"^BOOT_IMAGE=\S+ ", subject="/proc/cmdline"),
    _KindRow("snap", "snap"),
    _KindRow("audit", r"ausearch|sealert|aureport|getenforce|sestatus", r"audit\.log$", r"^type=AVC msg=audit"),
    _KindRow(
        "gpudirect", r"(?:gdscheck\S*|gdsio|ibstat|ofed_info|ibv_devinfo)", r"cufile\.log$", r"^ ?GDS release version"
    ),
    _KindRow(
        "virtualization", r"systemd-detect-virt|virsh|virt-what", looks=r"\A\s*(?:kvm|qemu|vmware|microsoft|xen)\s*\Z"
    ),
    _KindRow("exit-status", r"echo .*\$\?\S*"),
    _KindRow("text", r"echo .*\$\S*"),
    _KindRow(
        "application",
        r"(?:python[\d.]*|nvcc|ollama|vllm|torchrun|deviceQuery|mpirun)",
        # NCCL_DEBUG_FILE ends in a PID where other logs have a suffix. What other programs print about themselves is a
        # message, not a setting.
        r"nccl[\w.-]{0,80}debug[^/]{0,120}$|debug[\w.-]{0,80}nccl[^/]{0,120}$|nccl[^/]{0,120}\.\d{1,9}$"
        r"|\.(?:log|out|err|stderr|stdout)(?:\.\d+)?$",
        r"^Traceback \(most recent|CUDA error|RuntimeError|torch\.",
        r"\b(?:app(?:lication)?|pod|program|job|training|server|container|workload|stderr|stdout|traceback)\b",
    ),
)


_SHELL_PROMPT: Final = Pattern(
    r"^\s*(?:\[[^\]\n]{1,80}\]|[\w.+-]{1,40}@[\w.:~/ -]{1,80}?|[\w.-]{1,40}:[~/][\w./~-]{0,80}"
    r"|[\w.-]{1,40}(?=[$#]))?\s{0,4}[$#>%❯]\s+"
)
# "host: nvidia-smi", "in the container: ls /dev", "Talos, node gpu-3: lsmod", "root@gpu-3 (Ubuntu): lsmod".
_LABEL_PREFIX: Final = Pattern(r"[A-Za-z][\w ,.()@-]{0,60}:\s+")
_PLAIN_PATH: Final = Pattern(r"/[\w./*@+:,-]+")
_REMARK_IN_PARENTHESES: Final = Pattern(r"(?<=\S)\s*\(([^()]*)\)\s*$")
_EXCERPT_WORDS: Final = Pattern(
    r"\b(?:further down|excerpt|extract|snippet|shortened|abridged|truncated|snipped|partial|(?:last|first) lines)\b",
    re.IGNORECASE,
)
_CONTAINER_WORDS: Final = Pattern(r"\b(?:container|pod|image)\b", re.IGNORECASE)
_WRAPPER_PROGRAMS: Final = frozenset(
    {"sudo", "doas", "time", "nohup", "command", "exec", "env", "watch", "timeout", "strace"}
)
# Words of the shell's grammar, and commands that print nothing of their own.
_SHELL_KEYWORDS: Final = frozenset({"do", "then", "if", "else", "!", "{", "("})
_COMMANDS_WITHOUT_OUTPUT: Final = frozenset(
    {"cd", "export", "set", "sleep", "for", "while", "done", "fi", "clear", "true", "source"}
)
_GREP_PROGRAMS: Final = frozenset({"grep", "egrep", "fgrep", "rg", "zgrep"})
_TEXT_FILTERS: Final = frozenset({"head", "tail", "sed", "awk", "gawk", "cut"})
# These show a file, or a part of it; the file is their last argument.
_FILE_PRINTING_PROGRAMS: Final = frozenset(
    {
        "cat",
        "less",
        "more",
        "zcat",
        "bat",
        "batcat",
        "nl",
        "strings",
        "jq",
        "yq",
        *_TEXT_FILTERS,
        "tac",
        "sort",
        "column",
    }
)
# These run a command line: in another shell, on another host, in a container.
_COMMAND_RUNNER: Final = Pattern(
    rf"(?:(?P<container>{_CONTAINER_ENGINE_COMMAND} exec|{_KUBECTL} exec)|{_KUBECTL} debug(?P<debug>)|ssh|ansible|pdsh"
    r"|clush|pssh"
    r"|parallel-ssh|salt|xargs|chroot|nsenter|wsl|(?:sh|bash|zsh|su)\b.* -\w*c|minikube ssh"
    r"|\w+(?= (?:kubectl|ctr|crictl) ))(?!\S)"
)
# A program that somebody has built or written: ./deviceQuery, ./run.sh, /usr/local/cuda/samples/…/vectorAdd.
_USERS_OWN_PROGRAM: Final = Pattern(r"(?:\./|/\S{1,300}/samples/)(?:[\w/.-]+/)?[\w-]+(?:\.sh|\.py)?(?!\S)")
# No person or probe writes a longer command; a longer one was made to cost time.
_MAX_DESCRIPTION_LENGTH: Final = 4096
_BLANK_INSIDE_WORD: Final = "\uf8ff"


def identify_source(source: str, text: str = "") -> Source:
    """Identify ``text`` by its ``source``, else by its content; of several commands, return the first."""
    return identify_described_sources(source, text)[0]


def identify_described_sources(description: str, text: str = "") -> tuple[Source, ...]:
    """Identify the part of ``text`` of each command in ``description``; return at least one."""
    found, where, is_part = _parse_description(description[:_MAX_DESCRIPTION_LENGTH].strip())
    if not found or found[0].kind == "text":
        found = (
            _as_tuple(identify_by_content(text))
            or _as_tuple(_source_of_label(description[:_MAX_DESCRIPTION_LENGTH]))
            or found
            or (Source("text"),)
        )
    found = tuple(replace(source, is_part=True) for source in found) if is_part else found
    return tuple(replace(source, where="container") for source in found) if where == "container" else found


def identify_by_content(text: str) -> Source | None:
    """Identify ``text`` by its content; return None if it resembles nothing known."""
    head = text[:20_000]
    lowered = head.lower()
    for row in _SOURCE_KIND_ROWS if head else ():
        match = row.looks.search(head) if row.looks and row.looks.may_match(lowered) else None
        if match and (row.kind not in TABLE_KINDS or head.count("\n", 0, match.start()) <= _MAX_LINES_ABOVE_TABLE):
            return _make_source(row, match)
    return None


TABLE_KINDS: Final[frozenset[SourceKind]] = frozenset(
    {"packages", "listing", "lsmod", "lspci", "modinfo", "uname", "mokutil", "file"}
)
"""Kinds that contain no messages; a text with more than a title above the table is not one of them."""
_MAX_LINES_ABOVE_TABLE: Final = 2


@lru_cache(maxsize=1024)
def _parse_description(source: str) -> tuple[tuple[Source, ...], SourcePlace, bool]:
    """Return the sources named in ``source``, the place, and whether remarks call it an excerpt."""
    if _PLAIN_PATH.fullmatch(source) and "bin/" not in source:  # nine tenths of gpunode's own
        return _as_tuple(_source_of_path(source)), "host", False
    where: SourcePlace = "host"
    is_part = False
    source = _SHELL_PROMPT.sub("", source)
    while match := _REMARK_IN_PARENTHESES.search(source):
        where = "container" if _CONTAINER_WORDS.search(match[1]) else where
        is_part = is_part or bool(_EXCERPT_WORDS.search(match[1]))
        source = source[: match.start()]
    label = _LABEL_PREFIX.match(source)
    if label and not _sources_of_line(label[0]) and (found := _sources_of_line(source[label.end() :])):
        return found, "container" if _CONTAINER_WORDS.search(label[0]) else where, is_part
    found = _sources_of_line(source) or _as_tuple(_source_of_path(source))
    return found, where if found or not _CONTAINER_WORDS.search(source) else "container", is_part


def _as_tuple(source: Source | None) -> tuple[Source, ...]:
    return (source,) if source else ()


def _source_of_path(source: str) -> Source | None:
    first = source.split()[0].rstrip(",;:") if source.split() else ""
    if first.startswith("/") or re.fullmatch(r"~?[\w.-]*/[\w./*-]+|[\w-]+\.(?:log|conf|toml|ya?ml|json)", first):
        return _file_source(first)
    return None


def _source_of_label(source: str) -> Source | None:
    row = next((row for row in _SOURCE_KIND_ROWS if row.label and row.label.search(source)), None)
    return Source(row.kind, _find_unit(source) if row.kind == "unit-log" else "") if row else None


def _file_source(path: str) -> Source:
    lowered = path.lower()
    rows = (row for row in _SOURCE_KIND_ROWS if row.path and row.path.may_match(lowered))
    row = next((row for row in rows if row.path and row.path.search(path)), None)
    kind: SourceKind = row.kind if row else "file"
    subject = "nvidia-fabricmanager.service" if kind == "unit-log" else path
    return Source(kind, subject, where="container" if kind == "kubernetes-log" else "host")


def _sources_of_line(source: str) -> tuple[Source, ...]:
    """Return the source of each command in a line; several share one text."""
    found = tuple(source for pipeline in _split_pipelines(source) for source in _sources_of_pipeline(pipeline))
    return tuple(replace(source, is_mixed=True) for source in found) if len(found) > 1 else found


def _sources_of_pipeline(pipeline: Sequence[tuple[str, ...]]) -> Iterator[Source]:
    head, last = pipeline[0], pipeline[-1]
    greps = [_grep_pattern(words) for words in pipeline[1:] if program_name(words) in _GREP_PROGRAMS]
    is_count = _is_count_command(last)
    is_cut = is_count or any(program_name(words) in _TEXT_FILTERS for words in pipeline[1:]) or _is_head_or_tail(head)
    for source in _sources_of_command(head):
        yield replace(
            source, pattern=_require_all(source.pattern, *greps), is_part=source.is_part or is_cut, is_count=is_count
        )


def _require_all(*patterns: str) -> str:
    """Return one pattern for lines that match all ``patterns``."""
    present = [pattern for pattern in patterns if pattern]
    return present[0] if len(present) == 1 else "".join(f"(?=.*(?:{pattern}))" for pattern in present)


def _is_head_or_tail(words: Sequence[str]) -> bool:
    """Return True for a command that prints only the beginning or end; ``tail -n +1`` prints all."""
    return program_name(words) in _TEXT_FILTERS and not any(re.fullmatch(r"(?:-n)?\+[01]", word) for word in words)


def _is_count_command(words: Sequence[str]) -> bool:
    """Return True for a command that prints the number of lines instead of the lines."""
    is_grep = program_name(words) in _GREP_PROGRAMS and any(
        re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*|--count", word) for word in words
    )
    return is_grep or program_name(words) == "wc"


def _split_pipelines(source: str) -> Iterator[list[tuple[str, ...]]]:
    """Yield the commands of every pipeline with visible output in a line of shell, without wrappers."""
    # A substitution's inner blank does not end the word: /lib/modules/$(uname -r)/extra is one path.
    source = source.replace("`uname -r`", "$(uname -r)").replace("$(uname -r)", f"$(uname{_BLANK_INSIDE_WORD}-r)")
    pipeline, words = list[tuple[str, ...]](), list[str]()
    for word in (*_split_words(source), ";"):
        if word not in {"|", "|&", "&&", ";", "||", "&"}:
            words.append(word.replace(_BLANK_INSIDE_WORD, " "))
            continue
        if plain := _strip_wrappers(words):
            pipeline.append(plain)
        is_silenced = words[-2:] == [">", "/dev/null"] and words[-3:-2] != ["2"]
        words = []
        if word not in {"|", "|&"}:
            if pipeline and pipeline[0][0] not in _COMMANDS_WITHOUT_OUTPUT and not is_silenced:
                yield pipeline
            pipeline = []


def _split_words(source: str) -> list[str]:
    """Split a line of shell into words and operators, without its comment."""
    lexer = shlex.shlex(source, posix=True, punctuation_chars="|;&<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words = list(lexer) if _SHELL_SPECIAL_CHARACTERS.intersection(source) else source.split()
    except ValueError:
        words = source.split()
    return words[: words.index("#")] if "#" in words[1:] else words


# shlex reads character by character; most sources have none of these.
_SHELL_SPECIAL_CHARACTERS: Final = frozenset("'\"\\|;&<>")


def _strip_wrappers(words: Sequence[str]) -> tuple[str, ...]:
    """Strip sudo, assignments and redirections from a command; append a file that it reads."""
    rest = list(words)
    while len(rest) > 1 and (rest[0] in _WRAPPER_PROGRAMS | _SHELL_KEYWORDS or re.match(r"[A-Za-z_]\w*=|-", rest[0])):
        rest.pop(0)
    if "<" in rest[1:-1]:
        rest = [*rest[: rest.index("<")], rest[rest.index("<") + 1]]
    for sign in (">", ">>", ">&", "2"):
        if sign in rest[1:]:
            rest = rest[: rest.index(sign, 1)]
    return tuple(rest)


def program_name(words: Sequence[str]) -> str:
    """Return the name of the program that these words run; empty without any."""
    return words[0].rsplit("/", 1)[-1].removesuffix(".exe") if words else ""


def _grep_pattern(words: Sequence[str]) -> str:
    """Return a grep's pattern as a regular expression; empty if it inverts (-v) or matches everything."""
    options, patterns, _ = _parse_grep(words)
    if any(re.fullmatch(r"-\w*v\w*|--invert-match", option) for option in options) or _MATCH_ALL & set(patterns):
        return ""
    return "|".join(patterns).replace(r"\|", "|")


_MATCH_ALL: Final = frozenset({".", "", "^", ".*"})


def _parse_grep(words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """Split a grep's words into options, patterns and files."""
    options, patterns, plain = list[str](), list[str](), list[str]()
    rest = iter(words[1:])
    for word in rest:
        if re.fullmatch(r"-\w*e|--regexp", word):
            patterns.append(next(rest, ""))
        elif word.startswith("--regexp="):
            patterns.append(word.removeprefix("--regexp="))
        elif word.startswith("-") and len(word) > 1:
            options.append(word)
            if re.fullmatch(r"-\w*[ABCmf]", word):
                next(rest, "")
        else:
            plain.append(word)
    return (options, patterns, plain) if patterns else (options, plain[:1], plain[1:])


def _sources_of_command(words: tuple[str, ...]) -> tuple[Source, ...]:
    """Return the source of a command, or of those it passes to another shell; none if unknown."""
    line = " ".join((program_name(words), *(word.replace(" ", _BLANK_INSIDE_WORD) for word in words[1:])))[
        :_MAX_COMMAND_LENGTH
    ]
    if (runner := _COMMAND_RUNNER.match(line)) and (found := _sources_of_nested_command(words, line[runner.end() :])):
        is_inside = runner["container"] or (runner["debug"] is not None and not _RUNS_ON_NODE_ITSELF.search(line))
        return tuple(replace(source, where="container") for source in found) if is_inside else found
    return _as_tuple(_source_of_plain_command(words, line))


# The beginning of a command is enough to identify it.
_MAX_COMMAND_LENGTH: Final = 600
_RUNS_ON_NODE_ITSELF: Final = Pattern(r" (?:chroot|nsenter|dmesg)(?!\S)")


def _source_of_plain_command(words: tuple[str, ...], line: str) -> Source | None:
    """Return the source of a command that runs no other; ``line`` is its words joined by single blanks."""
    name = program_name(words)
    if len(words) == 1 and words[0].startswith("/") and "bin/" not in words[0]:
        return None
    if name in _FILE_PRINTING_PROGRAMS or (name == "talosctl" and {"read", "cat"} & set(words)):
        path = next((word for word in reversed(words[1:]) if "/" in word or "." in word), "")
        return _file_source(path) if path else None
    if name in _GREP_PROGRAMS:
        return _source_of_grep(words)
    lowered = line.lower()
    for row in _SOURCE_KIND_ROWS:
        if row.command and row.command.may_match(lowered) and (match := row.command.match(line)):
            return replace(_make_source(row, match), words=words, pattern=_journal_grep_pattern(words))
    return Source("application", words=words) if _USERS_OWN_PROGRAM.match(" ".join(words)) else None


def _sources_of_nested_command(words: tuple[str, ...], nested_line: str) -> tuple[Source, ...]:
    """Return the sources of a command line inside the words: a quoted one, or the last ones."""
    quoted = next((word for word in reversed(words[1:]) if " " in word), "")
    if quoted and (found := _sources_of_line(quoted)):
        return found
    tail = nested_line.split()
    tails = (tail[start:] for start in range(len(tail)))
    known = (
        _source_of_plain_command(tuple(word.replace(_BLANK_INSIDE_WORD, " ") for word in tail), " ".join(tail))
        for tail in tails
    )
    return _as_tuple(next(filter(None, known), None))


def _make_source(row: _KindRow, match: re.Match[str]) -> Source:
    of = (match.groupdict().get("of") or row.subject).replace(_BLANK_INSIDE_WORD, " ")
    if row.kind.startswith("unit-"):
        of = full_unit_name(of) if of else _find_unit(match[0])
    is_inside = row.kind == "kubernetes-log" or match[0].endswith((" logs", " exec"))
    return Source(row.kind, of, where="container" if is_inside else "host")


def _journal_grep_pattern(words: Sequence[str]) -> str:
    """Return the pattern of journalctl's --grep."""
    at = next((at for at, word in enumerate(words) if word in {"-g", "--grep"}), len(words))
    given = next((word.partition("=")[2] for word in words if word.startswith("--grep=")), "")
    return (given or "".join(words[at + 1 : at + 2])) if program_name(words) == "journalctl" else ""


def _source_of_grep(words: tuple[str, ...]) -> Source | None:
    options, patterns, files = _parse_grep(words)
    if not files or not patterns:
        return None
    if any(re.fullmatch(r"-\w*[lLrR]\w*|--recursive", word) for word in options):
        return Source("listing", files[0], words, pattern="|".join(patterns))
    return replace(_file_source(files[0]), words=words, pattern=_grep_pattern(words))


_UNIT_BY_KEYWORD: Final = (
    ("fabric", "nvidia-fabricmanager.service"),
    ("persistenced", "nvidia-persistenced.service"),
    ("gridd", "nvidia-gridd.service"),
    ("imex", "nvidia-imex.service"),
    ("kubelet", "kubelet.service"),
    ("containerd", "containerd.service"),
    ("docker", "docker.service"),
    ("crio", "crio.service"),
    ("cri-o", "crio.service"),
    ("k3s", "k3s.service"),
    ("rke2", "rke2-server.service"),
)


def _find_unit(text: str) -> str:
    """Return the known unit that the text mentions; empty if none."""
    return next((unit for word, unit in _UNIT_BY_KEYWORD if word in text.lower()), "")


def full_unit_name(word: str) -> str:
    """Return the unit's name with its suffix."""
    return word if re.search(r"\.(?:service|path|timer|socket|target|mount)$", word) else f"{word}.service"
