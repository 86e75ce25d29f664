"""What a piece of evidence is, from the way in which somebody wrote where it comes from.

People write ``dmesg``, ``sudo dmesg -T | tail``, ``$ journalctl -k -b``, ``cat /etc/docker/daemon.json (host)`` or
``app log``; probes write paths and command lines. All are read here, and where the words tell nothing, the text does.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final, Literal, TypeAlias

from gpunode.facts.patterns import Pattern

Kind: TypeAlias = Literal[
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
    "package-output",  # what apt, dpkg, dnf, zypper said
    "package-history",  # /var/log/apt/history.log, /var/log/dpkg.log, dnf history
    "installer-log",  # NVIDIA's .run installer
    "nvidia-smi",  # the table, -L, --query-gpu, and what it says when it fails
    "nvidia-smi-q",
    "nvidia-smi-nvlink",
    "nvidia-smi-topo",
    "nvidia-smi-mig",
    "nvidia-smi-c2c",
    "nvml",  # gpunode's own question, JSON
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
    "audit",  # ausearch, audit.log
    "gpudirect",  # gdscheck, cufile.log, ibstat, ofed_info
    "virtualization",  # systemd-detect-virt, virsh
    "application",  # a program that wants a GPU, and its log
    "exit-status",  # echo $?
    "shell-history",  # history, ~/.bash_history: what was typed, not what was answered
    "text",  # nothing of the above
]
Where: TypeAlias = Literal["host", "container"]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a piece of evidence comes from.

    Attributes:
        subject: the file, unit, module, pod or image that it is about; empty where there is none.
        words: the command's words without what stands before it (sudo, assignments); empty for a file.
        only: the pattern of a ``grep`` behind the command, or of one that read the file: the text holds only the
            lines that match it, all of them unless ``is_part``. Empty where nothing was left out that way.
        is_part: whether lines may be missing that no pattern accounts for (head, tail, ``…``).
        is_mixed: whether the text is that of several commands, of which this is one.
        is_count: whether the text is the number of the lines, and not the lines.
    """

    kind: Kind
    subject: str = ""
    words: tuple[str, ...] = ()
    where: Where = "host"
    only: str = ""
    is_part: bool = False
    is_mixed: bool = False
    is_count: bool = False

    def lets_through(self, line: str) -> bool:
        """Whether the text would have ``line``, if the whole answer had it: all of it, or what ``only`` matches.

        Of a pattern that is none, or so built that a search may take for ever, its characters decide.
        """
        if len(self.only) > _LONG_PATTERN or len(_REPEATS.findall(self.only)) > _MANY or _NESTED.search(self.only):
            return self.only in line
        try:
            return re.search(self.only, line, re.IGNORECASE) is not None
        except re.error:
            return self.only in line


# People type such patterns by hand, and a report may come from anybody: a repeated group of repetitions is no search.
_LONG_PATTERN: Final = 200
_MANY: Final = 6
_REPEATS: Final = Pattern(r"[*+}]")
_NESTED: Final = Pattern(r"\)[*+{]")


_PROMPT: Final = Pattern(
    r"^\s*(?:\[[^\]\n]{1,80}\]|[\w.+-]{1,40}@[\w.:~/ -]{1,80}?|[\w.-]{1,40}:[~/][\w./~-]{0,80}"
    r"|[\w.-]{1,40}(?=[$#]))?\s{0,4}[$#>%❯]\s+"
)
_REMARK: Final = Pattern(r"\(([^()]*)\)\s*$")
_PART: Final = Pattern(
    r"\b(?:further down|excerpt|extract|snippet|shortened|abridged|truncated|snipped|partial|(?:last|first) lines)\b",
    re.IGNORECASE,
)
_INSIDE: Final = Pattern(r"\b(?:in|inside|within|from)?\s*(?:the\s+|a\s+)?(?:container|pod|image)\b", re.IGNORECASE)
_BEFORE: Final = frozenset({"sudo", "doas", "time", "nohup", "command", "exec", "env", "watch", "timeout", "strace"})
# Commands that print nothing of their own; words of the shell's grammar.
_SILENT: Final = frozenset({"cd", "export", "set", "sleep", "for", "while", "done", "fi", "clear", "true", "source"})
_SHELL: Final = frozenset({"do", "then", "if", "else", "!", "{", "("})
# They hand a command line, as one word, to a shell: of their own, on another host, on many.
_SHELLS: Final = frozenset(
    {"sh", "bash", "zsh", "su", "ssh", "ansible", "pdsh", "clush", "parallel-ssh", "pssh", "salt", "xargs", "chroot"}
)
_GREPS: Final = frozenset({"grep", "egrep", "fgrep", "rg", "zgrep"})
_CUTTERS: Final = frozenset({"head", "tail", "sed", "awk", "gawk", "cut"})
# They show a file, or a part of it; the file is what they are given last.
_READERS: Final = frozenset(
    {"cat", "less", "more", "zcat", "bat", "batcat", "nl", "strings", "jq", "yq", *_CUTTERS, "tac", "sort", "column"}
)
_CONTAINERS: Final = frozenset(
    {"docker", "podman", "nerdctl", "ctr", "docker-compose", "podman-compose", "apptainer", "singularity"}
    | {"nvidia-docker", "enroot", "lxc", "incus", "pct"}
)
_KUBECTL: Final = frozenset({"kubectl", "k", "oc", "kubecolor"})
_PACKAGERS: Final = frozenset(
    {"apt", "apt-get", "aptitude", "dpkg", "dnf", "yum", "zypper", "unattended-upgrade", "dpkg-reconfigure", "pacman"}
)
_WITH_VALUE: Final = frozenset(
    {*("-u", "--unit", "-n", "--namespace", "-p", "--property", "-o", "--output", "--lines", "-c", "--context")}
    | {*("-l", "--selector", "-H", "--host", "-t", "--since", "--until", "-S", "-U", "--kubeconfig", "-k", "-a")}
)

# By name, where a file's place tells what stands in it.
_PATHS: Final[tuple[tuple[str, Kind], ...]] = (
    (r"make\.log$|/akmods/.*\.log$|\.failed\.log$", "make-log"),
    (r"nvidia-installer\.log$|cuda-installer\.log$|(?:^|/)(?:NVIDIA-Linux|cuda_)[\w.-]+\.run$", "installer-log"),
    (r"/var/log/(?:kern|dmesg)[\w.*?{},-]*$|kern\.log$|dmesg(?:\.\w+)?$|/pstore/\S*dmesg-", "kernel-log"),
    (r"/var/log/(?:syslog|messages)[\w.*?{},-]*$|syslog$", "journal"),
    (
        r"apt/history\.log|dpkg\.log|apt/term\.log|dnf\.(?:rpm\.)?log|yum\.log|pacman\.log|zypp/history|unattended-upgrades",
        "package-history",
    ),
    (r"^/proc/modules$", "lsmod"),
    (r"fabricmanager\.log$", "unit-log"),
    (r"^/var/log/(?:pods|containers)/", "kubernetes-log"),
    (r"(?:^|[/.])(?:(?:ba|z|k|fi)?sh_|zhist)?history$", "shell-history"),
    (r"audit\.log$", "audit"),
    (r"cufile\.log$", "gpudirect"),
    # NCCL_DEBUG_FILE has a process's number where other logs have an ending.
    (r"nccl[\w.-]{0,80}debug[^/]{0,120}$|debug[\w.-]{0,80}nccl[^/]{0,120}$|nccl[^/]{0,120}\.\d{1,9}$", "application"),
    (r"nvidia-container-(?:toolkit|runtime)\.log$", "nvidia-container-cli"),
    # Whatever other program wrote a log: what it says is a message, not a setting.
    (r"\.(?:log|out|err)(?:\.\d+)?$", "application"),
)
# By words, where no command and no path stands.
_WORDS: Final[tuple[tuple[str, Kind], ...]] = (
    (r"\b(?:dmesg|kernel (?:log|messages?|ring buffer|output)|kmsg|console|serial)\b", "kernel-log"),
    (r"\b(?:shell|bash|zsh|command) history\b", "shell-history"),
    (r"\b(?:kubelet|dockerd?|containerd|crio|cri-o|persistenced|fabric ?manager)\b.{0,200}\blogs?\b", "unit-log"),
    (r"\b(?:device[- ]plugin|validator|operator|mig-manager|dcgm|gfd)\b", "kubernetes-log"),
    (r"\b(?:journal|syslog|system log|messages)\b", "journal"),
    (r"\b(?:app(?:lication)?|pod|program|job|training|server|container|workload|stderr|stdout|traceback)\b",
     "application"),
)  # fmt: skip
# By what stands in the text, where the source tells nothing.
_TEXTS: Final[tuple[tuple[str, Kind], ...]] = (
    (
        r"\bNVRM: |\bnvidia-nvlink: |\bnvidia-nvswitch\d*: |^[ \t]{0,8}\[ {0,12}\d{1,9}\.\d{6}\]|\bkernel: ",
        "kernel-log",
    ),
    (r"^DKMS make\.log for |\bmake\[\d\]: \*\*\*|\bmodpost: ", "make-log"),
    (r"^\w[\w.+-]*/[\w.+~:-]+(?:, [\w.+-]+, \w+)?: (?:added|built|installed)", "dkms-status"),
    (r"^(?:ii|iU|iF|rc|hi|iHR?|pn|un) {1,2}\S+ ", "packages"),
    (r"^(?:E|W|Err|Hit|Get|Ign):\d*\s|^dpkg: |^The following packages ", "package-output"),
    (r"==NVSMI LOG==|^[ \t]{0,8}GPU \d{8}:[0-9A-F]{2}:[0-9A-F]{2}\.0$", "nvidia-smi-q"),
    (r"\| NVIDIA-SMI |NVIDIA-SMI has failed|Failed to initialize NVML", "nvidia-smi"),
    (r"^Module +Size +Used by", "lsmod"),
    (r"^[0-9a-f:]{7,12}\.\d .*(?:controller|Bridge)", "lspci"),
    (r"Error response from daemon|OCI runtime|nvidia-container-cli: ", "container-run"),
    (r"^Capacity:|^Allocatable:", "kubernetes-node"),
    (r"\bFailedScheduling\b|\bFailedCreatePodSandBox\b|\bUnexpectedAdmissionError\b", "kubernetes-pod"),
    (r"^Linux \S+ \d+\.\d+", "uname"),
    (r"^Traceback \(most recent|CUDA error|RuntimeError|torch\.", "application"),
)
_COMPILED: Final[Mapping[str, tuple[tuple[Pattern, Kind], ...]]] = {
    "paths": tuple((Pattern(pattern), kind) for pattern, kind in _PATHS),
    "words": tuple((Pattern(pattern, re.IGNORECASE), kind) for pattern, kind in _WORDS),
    "texts": tuple((Pattern(pattern, re.MULTILINE), kind) for pattern, kind in _TEXTS),
}


_RUNNING: Final = "\uf8ffuname-r\uf8ff"
# No command that a person or a probe writes is longer; what is, was made to cost time.
_LONGEST: Final = 4096


def recognise(source: str, text: str = "") -> Source:
    """What ``source`` says that ``text`` is, else what the text shows itself to be; of several commands, the first."""
    return recognise_all(source, text)[0]


def recognise_all(source: str, text: str = "") -> tuple[Source, ...]:
    """What each command of ``source`` says that its part of ``text`` is; at least one."""
    source = source[:_LONGEST].strip()
    written, where, is_part = _unwrapped(source)
    found = _by_commands(written) or _only(_by_path(written)) or _only(_by_words(source))
    if not found or found[0].kind == "text":
        found = _only(_by_text(text)) or found or (Source("text"),)
    inside = where == "container"
    found = tuple(replace(one, is_part=True) for one in found) if is_part else found
    return tuple(replace(one, where="container") if inside and one.where == "host" else one for one in found)


def _unwrapped(source: str) -> tuple[str, Where, bool]:
    """The source without prompt, remarks and label; whether they say ``container``, or that it is a part."""
    written, where, is_part = _without_remarks(_PROMPT.sub("", source))
    if (label := _LABEL.match(written)) and not _by_commands(label[0]) and _by_commands(written[label.end() :]):
        where = "container" if _INSIDE.search(label[0]) else where
        written = written[label.end() :]
    return written, where, is_part


# "host: nvidia-smi", "in the container: ls /dev", "Talos, node gpu-3: lsmod", "root@gpu-3 (Ubuntu): lsmod".
_LABEL: Final = Pattern(r"[A-Za-z][\w ,.()@-]{0,60}:\s+")


def _only(found: Source | None) -> tuple[Source, ...]:
    return (found,) if found else ()


def _without_remarks(source: str) -> tuple[str, Where, bool]:
    """The source without what stands in brackets behind it; whether that says ``container``, or that it is a part."""
    where: Where = "host"
    is_part = False
    while match := _REMARK.search(source):
        if source[: match.start()].strip() == "":
            break
        where = "container" if _INSIDE.search(match[1]) else where
        is_part = is_part or bool(_PART.search(match[1]))
        source = source[: match.start()]
    return source.strip(), where, is_part


def _by_commands(source: str) -> tuple[Source, ...]:
    """What each command of a line shows; they share one text where they are several."""
    found = tuple(one for pipeline in _in_order(source) if (one := _by_pipeline(pipeline)))
    return tuple(replace(one, is_mixed=True) for one in found) if len(found) > 1 else found


def _in_order(source: str) -> list[list[list[str]]]:
    """The pipelines of a line."""
    return [handed for pipeline in _pipelines(source) for handed in _handed(pipeline)]


def _handed(pipeline: list[list[str]]) -> list[list[list[str]]]:
    """The pipeline, or each of those that one of its words, in quotes, hands to another shell."""
    if (found := _by_pipeline(pipeline)) is not None and found.kind != "text":
        return [pipeline]
    inner = _in_order(_line_handed(_plain(pipeline[0])))
    return inner if any(map(_by_pipeline, inner)) else [pipeline]


def _line_handed(words: Sequence[str]) -> str:
    """The command line that is one of the words, which a shell takes; empty without."""
    if program(words) not in _SHELLS:
        return ""
    return _value(words, "-c") or next((word for word in reversed(words[1:]) if " " in word), "")


def _by_pipeline(pipeline: Sequence[Sequence[str]]) -> Source | None:
    commands = [_plain(words) for words in pipeline]
    head = commands[0] if commands else ()
    found = _of(head) if head else None
    if found is None:
        return None
    if found.kind == "file" and _is_silenced(pipeline[-1]):
        return None
    patterns = [_pattern(words) for words in commands[1:] if program(words) in _GREPS]
    cut = any(program(words) in _CUTTERS for words in commands[1:]) or _begins_or_ends(head)
    is_count = _counts(commands[-1])
    is_part = found.is_part or cut or is_count
    return replace(found, only=_all_of(found.only, *patterns), is_part=is_part, is_count=is_count)


def _is_silenced(words: Sequence[str]) -> bool:
    """Whether what the command says goes nowhere, so that only its status is seen."""
    into = (index for index, word in enumerate(words[:-1]) if word == ">" and words[index - 1] != "2")
    return any(words[index + 1] == "/dev/null" for index in into)


def _all_of(*patterns: str) -> str:
    """One pattern for what every one of them lets through."""
    given = [pattern for pattern in patterns if pattern]
    return given[0] if len(given) == 1 else "".join(f"(?=.*(?:{pattern}))" for pattern in given)


def _begins_or_ends(words: Sequence[str]) -> bool:
    """Whether it shows the beginning or the end of something; ``tail -n +1`` shows the whole of several files."""
    return program(words) in _CUTTERS and not any(re.fullmatch(r"(?:-n)?\+[01]", word) for word in words)


def _counts(words: Sequence[str]) -> bool:
    """Whether it prints how many lines there are in place of them."""
    options = [word for word in words[1:] if word.startswith("-")]
    if program(words) == "wc":
        return True
    return program(words) in _GREPS and any(re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*|--count", word) for word in options)


def _pipelines(source: str) -> list[list[list[str]]]:
    """The words of every command of every pipeline in a line of shell."""
    # A substitution's inner blank does not end the word: /lib/modules/$(uname -r)/extra is one path.
    source = _without_comment(source).replace("`uname -r`", "$(uname -r)").replace("$(uname -r)", _RUNNING)
    words = _words(source)
    pipelines: list[list[list[str]]] = [[[]]]
    for word in (one.replace(_RUNNING, "$(uname -r)") for one in words):
        if word in {"|", "|&"}:
            pipelines[-1].append([])
        elif word in {"&&", ";", "||", "&"}:
            pipelines.append([[]])
        else:
            pipelines[-1][-1].append(word)
    found = ([command for command in pipeline if command] for pipeline in pipelines)
    return [pipeline for pipeline in found if pipeline and pipeline[0][0] not in _SILENT]


def _without_comment(line: str) -> str:
    """A line of shell without the words behind a number sign that is not in quotes."""
    for match in _COMMENT.finditer(line):
        before = line[: match.start()]
        if before.count('"') % 2 == 0 and before.count("'") % 2 == 0:
            return before
    return line


_COMMENT: Final = Pattern(r"\s#\s")


def _words(source: str) -> list[str]:
    if not _SHELL_SIGNS.intersection(source):
        return source.split()
    try:
        lexer = shlex.shlex(source, posix=True, punctuation_chars="|;&<>")
        lexer.whitespace_split = True
        lexer.commenters = ""
        return list(lexer)
    except ValueError:
        return source.split()


# shlex reads character by character; most sources have none of these.
_SHELL_SIGNS: Final = frozenset("'\"\\|;&<>")


def _plain(words: Sequence[str]) -> tuple[str, ...]:
    """A command's words without sudo, assignments and redirections."""
    rest = list(words)
    while rest and (
        rest[0] in _BEFORE or rest[0] in _SHELL or re.fullmatch(r"[A-Za-z_]\w*=.*", rest[0]) or rest[0].startswith("-")
    ):
        rest.pop(0)
    if "<" in rest[1:-1] and (program(rest) in _READERS | {"jq", "yq"} or "json.tool" in rest):
        rest = [*rest[: rest.index("<")], rest[rest.index("<") + 1]]
    for sign in (">", ">>", "<", ">&", "2"):
        if sign in rest[1:]:
            rest = rest[: rest.index(sign, 1)]
    return tuple(rest)


def program(words: Sequence[str]) -> str:
    """The name of the program that these words run; empty without any."""
    return words[0].rsplit("/", 1)[-1].removesuffix(".exe") if words else ""


def _pattern(words: Sequence[str]) -> str:
    """What a grep leaves over, as a regular expression; empty where it takes lines away (-v) or lets all through."""
    options, patterns, _ = _asked(words)
    if any(re.fullmatch(r"-\w*v\w*|--invert-match", option) for option in options) or _ALL & set(patterns):
        return ""
    return "|".join(patterns).replace(r"\|", "|")


_ALL: Final = frozenset({".", "", "^", ".*"})


def _asked(words: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
    """A grep's options, patterns and files."""
    options, patterns, plain = list[str](), list[str](), list[str]()
    rest = iter(words[1:])
    for word in rest:
        if re.fullmatch(r"-\w*e|--regexp", word):
            options.append(word)
            patterns.append(next(rest, ""))
        elif word.startswith(("-e", "--regexp=")):
            patterns.append(word.removeprefix("--regexp=").removeprefix("-e"))
        elif re.fullmatch(r"-\w*[ABCmf]", word):
            options += [word, next(rest, "")]
        elif word.startswith("-") and len(word) > 1:
            options.append(word)
        else:
            plain.append(word)
    return (options, patterns, plain) if patterns else (options, plain[:1], plain[1:])


def _operands(words: Sequence[str]) -> list[str]:
    """The words that are neither options nor their values."""
    found, skip = [], False
    for word in words[1:]:
        if skip:
            skip = False
        elif word in _WITH_VALUE:
            skip = True
        elif not word.startswith("-"):
            found.append(word)
    return found


def _value(words: Sequence[str], *names: str) -> str:
    """The value of the first option of these names."""
    for index, word in enumerate(words):
        name, has_value, value = word.partition("=")
        if name in names:
            return value if has_value else (words[index + 1] if index + 1 < len(words) else "")
        short = next((name for name in names if len(name) == 2 and word.startswith(name) and len(word) > 2), "")
        if short and not word.startswith("--"):
            return word[2:]
    return ""


def _of(words: tuple[str, ...]) -> Source | None:
    """What a command's output is; None where nobody knows the command."""
    name = program(words)
    if name in _READERS:
        path = next((word for word in reversed(words[1:]) if "/" in word or "." in word), "")
        return _file(path) if path else None
    if name in _GREPS:
        return _grep(words)
    reader = _PROGRAMS.get(name)
    if reader is None and _OWN_PROGRAM.fullmatch(words[0]):
        return Source("application", words=words)
    found = reader(words) if reader else None
    return found if found is None or found.words else replace(found, words=words)


# A program that somebody has built or written: ./deviceQuery, ./run.sh, /usr/local/cuda/samples/…/vectorAdd.
_OWN_PROGRAM: Final = Pattern(r"(?:\./|/\S{1,300}/samples/)(?:[\w/.-]+/)?[\w-]+(?:\.sh|\.py)?")


def _grep(words: tuple[str, ...]) -> Source | None:
    options, patterns, files = _asked(words)
    if not files or not patterns:
        return None
    found = _file(files[0])
    if any(re.fullmatch(r"-\w*[lLrR]\w*|--recursive", word) for word in options):
        return Source("listing", files[0], words, only="|".join(patterns))
    return replace(found, words=words, only=_pattern(words))


def _file(path: str) -> Source:
    kind = next((kind for pattern, kind in _COMPILED["paths"] if pattern.search(path)), None)
    if kind == "unit-log":
        return Source(kind, "nvidia-fabricmanager.service")
    where: Where = "container" if kind == "kubernetes-log" else "host"
    return Source(kind or ("application" if _LOG.search(path) else "file"), path, where=where)


# What a program wrote of itself; a configuration is not named so.
_LOG: Final = Pattern(r"\.(?:log|out|err|stderr|stdout)(?:\.\d+)?$")


def _by_path(source: str) -> Source | None:
    first = source.split()[0].rstrip(",;:") if source.split() else ""
    if first.startswith("/") or re.fullmatch(r"~?[\w.-]*/[\w./*-]+|[\w-]+\.(?:log|conf|toml|ya?ml|json)", first):
        return _file(first)
    return None


def _by_words(source: str) -> Source | None:
    where: Where = "container" if _INSIDE.search(source) else "host"
    kind = next((kind for pattern, kind in _COMPILED["words"] if pattern.search(source)), None)
    if kind is None:
        return None
    return Source(kind, unit_in(source) if kind == "unit-log" else "", where=where)


def _by_text(text: str) -> Source | None:
    head = text[:20_000]
    kind = next((kind for pattern, kind in _COMPILED["texts"] if pattern.search(head)), None)
    return Source(kind) if kind else None


_UNITS: Final = (
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


def unit_in(text: str) -> str:
    """The unit that these words speak of; empty where none of those that matter here is."""
    return next((unit for word, unit in _UNITS if word in text.lower()), "")


def unit_name(word: str) -> str:
    """A unit's whole name."""
    return word if re.search(r"\.(?:service|path|timer|socket|target|mount)$", word) else f"{word}.service"


def _always(kind: Kind) -> Callable[[tuple[str, ...]], Source]:
    return lambda words: Source(kind, words=words)


def _subject(kind: Kind) -> Callable[[tuple[str, ...]], Source]:
    return lambda words: Source(kind, next(iter(_operands(words)), ""), words)


def _module(kind: Kind) -> Callable[[tuple[str, ...]], Source]:
    """What modinfo or modprobe says of the module that it was asked for; few of their options take a value."""

    def read(words: tuple[str, ...]) -> Source:
        plain = [word for before, word in pairwise(words) if word[:1] != "-" and before not in _OF_MODULES]
        return Source(kind, next(iter(plain), ""), words)

    return read


_OF_MODULES: Final = frozenset({"-F", "--field", "-k", "--set-version", "-b", "--basedir", "-C", "-d", "-S"})


def _find(words: tuple[str, ...]) -> Source:
    """A listing, or what modinfo says of each file that was found."""
    inner = words[words.index("-exec") + 1 :] if "-exec" in words else ()
    if inner[:1] == ("modinfo",) and "-name" in words:
        return Source("modinfo", words[words.index("-name") + 1].split(".ko")[0], words)
    return _listed(words)


def _listed(words: tuple[str, ...]) -> Source:
    """A listing; unlike kubectl's, the options of ls take no value: the first other word is the path."""
    if "-c" in words and program(words) == "stat":
        at = words.index("-c")
        return Source("listing", next((word for word in words[at + 2 :] if word[:1] != "-"), ""), words)
    return Source("listing", next((word for word in words[1:] if not word.startswith("-")), ""), words)


def _dmesg(words: tuple[str, ...]) -> Source:
    return Source("kernel-log", words=words, is_part="-w" in words)


def _journalctl(words: tuple[str, ...]) -> Source:
    unit = _value(words, "-u", "--unit", "-t", "--identifier")
    flags = {word for word in words if word.startswith("-")}
    if any(re.fullmatch(r"-\w*k\w*", word) for word in flags) or "--dmesg" in flags or "_TRANSPORT=kernel" in words:
        return Source("kernel-log", words=words, only=_value(words, "-g", "--grep"))
    if unit:
        return Source("unit-log", unit_name(unit), words, only=_value(words, "-g", "--grep"))
    return Source("journal", words=words, only=_value(words, "-g", "--grep"))


def _systemctl(words: tuple[str, ...]) -> Source | None:
    operands = _operands(words)
    verb, units = (operands[0] if operands else ""), operands[1:]
    kinds: dict[str, Kind] = {"status": "unit-status", "show": "unit-show", "cat": "unit-file"}
    if verb.startswith(("is-", "list-")):
        return Source("unit-status", unit_name(units[0]) if units else "", words)
    kind = kinds.get(verb, "unit-action")
    return Source(kind, unit_name(units[0]) if units else "", words)


def _nvidia_smi(words: tuple[str, ...]) -> Source:
    rest = words[1:]
    by_verb: dict[str, Kind] = {"nvlink": "nvidia-smi-nvlink", "topo": "nvidia-smi-topo", "mig": "nvidia-smi-mig"}
    kind: Kind = by_verb.get(rest[0], "nvidia-smi") if rest else "nvidia-smi"
    if rest[:1] == ("c2c",):
        kind = "nvidia-smi-c2c"
    elif kind == "nvidia-smi" and any(word in {"-q", "--query", "-x"} or word.startswith("-q") for word in rest):
        kind = "nvidia-smi" if any(word.startswith("--query-") for word in rest) else "nvidia-smi-q"
    elif any(word in {"-mig", "--multi-instance-gpu"} for word in rest):
        kind = "nvidia-smi-mig"
    return Source(kind, words=words)


def _container(words: tuple[str, ...]) -> Source | None:
    operands = _operands(words)
    verb = operands[0] if operands else ""
    if verb in {"compose", "container", "image", "system"} and len(operands) > 1:
        verb = operands[1]
    if verb == "exec":
        inner = words[words.index("exec") + 1 :]
        after = [index for index, word in enumerate(inner) if program((word,)) in _PROGRAMS]
        found = _of(tuple(inner[after[0] :])) if after else None
        return replace(found, where="container") if found else Source("container-run", words=words, where="container")
    by_verb: dict[str, Kind] = {
        "info": "docker-info",
        "version": "docker-version",
        "inspect": "container-inspect",
        "logs": "application",
        "ps": "container-inspect",
        "context": "docker-info",
    }
    return Source(by_verb.get(verb, "container-run"), words=words, where="container" if verb == "logs" else "host")


def _kubectl(words: tuple[str, ...]) -> Source | None:
    operands = _operands(words)
    verb, what = (operands[0] if operands else ""), (operands[1] if len(operands) > 1 else "")
    if verb == "logs":
        return Source("kubernetes-log", what.removeprefix("pod/"), words, where="container")
    if verb == "exec":
        inner = words[words.index("--") + 1 :] if "--" in words else words[-1:]
        found = _of(tuple(inner))
        return replace(found, where="container") if found else Source("application", words=words, where="container")
    if verb == "debug" and "--" in words:
        inner = tuple(words[words.index("--") + 1 :])
        found = _of(inner)
        if found is None and kind_of(what) in _NODES:
            return Source("kubernetes-node", words=words)
        on_node = program(inner) in {"chroot", "nsenter", "dmesg"}
        return found if found is None or on_node else replace(found, where="container")
    if what.startswith("/api/"):
        return Source("kubernetes-node" if "/nodes/" in what else "kubernetes-pod", words=words)
    kind = kind_of(what)
    if kind in _NODES:
        return Source("kubernetes-node", words=words)
    if kind in {"pod", "pods", "po"}:
        return Source("kubernetes-pod", operands[2] if len(operands) > 2 else "", words)
    return Source("kubernetes", what, words)


_NODES: Final = frozenset({"node", "nodes", "no"})


def kind_of(what: str) -> str:
    """The kind of object in kubectl's word for one: ``node`` of ``node/gpu1``."""
    return what.split("/")[0].lower()


def _dkms(words: tuple[str, ...]) -> Source:
    return Source("dkms-status" if "status" in words else "dkms-output", words=words)


def _packager(words: tuple[str, ...]) -> Source:
    name, operands = program(words), _operands(words)
    flags = {word for word in words if word.startswith("-")}
    if name == "dpkg" and flags & {"-l", "--list", "-s", "--status", "--get-selections"}:
        return Source("packages", words=words, subject=" ".join(word for word in words[1:] if word[:1] != "-"))
    if name == "dpkg" and flags & {"-S", "--search"}:
        return Source("package-owner", words=words, subject=next(iter(operands), ""))
    if operands[:1] == ["policy"]:
        return Source("package-policy", words=words)
    if operands[:1] == ["list"]:
        return Source("packages", words=words)
    if operands[:1] == ["history"]:
        return Source("package-history", words=words)
    if operands[:1] == ["versionlock"] or (name == "pacman" and any(re.match(r"-Q[ims]*$", word) for word in words)):
        return Source("packages", words=words)
    return Source("package-output", words=words)


def _apt_cache(words: tuple[str, ...]) -> Source:
    return Source("package-policy", words=words)


def _dpkg_query(words: tuple[str, ...]) -> Source:
    if {"-S", "--search"} & set(words):
        return Source("package-owner", words=words, subject=next(iter(_operands(words)), ""))
    return Source("packages", words=words)


def _rpm(words: tuple[str, ...]) -> Source:
    flags = "".join(word for word in words[1:] if re.match(r"-\w", word))
    if "f" in flags and "q" in flags:
        return Source("package-owner", words=words, subject=next(iter(_operands(words)), ""))
    return Source("packages" if "q" in flags else "package-output", words=words)


def _containerd(words: tuple[str, ...]) -> Source:
    return Source("containerd-config" if "config" in words else "unit-log", "containerd.service", words)


def _crictl(words: tuple[str, ...]) -> Source:
    return Source("containerd-config" if "info" in words else "crictl", words=words)


def _apt_mark(words: tuple[str, ...]) -> Source:
    return Source("packages", " ".join(words[1:]), words)


def _product(words: tuple[str, ...]) -> Source | None:
    """k3s, microk8s, minikube …: a kubectl or ctr of its own, or itself."""
    rest = words[1:]
    if rest[:1] and program(rest) in _PROGRAMS:
        return _of(tuple(rest))
    return Source("kubernetes", words=words)


def _typed_before(words: tuple[str, ...]) -> Source | None:
    """What the shell remembers; no file of that name."""
    return Source("shell-history", words=words) if words[0] in {"history", "fc"} else None


def _application(words: tuple[str, ...]) -> Source:
    return Source("application", words=words)


def _ssh(words: tuple[str, ...]) -> Source | None:
    known = _PROGRAMS.keys() | _READERS | _GREPS
    after = [index for index, word in enumerate(words[1:], 1) if program((word,)) in known]
    return _of(tuple(words[after[0] :])) if after else None


def _echo(words: tuple[str, ...]) -> Source | None:
    """A word of the shell's; a heading between the answers of other commands is none."""
    if not any("$" in word for word in words):
        return None
    return Source("exit-status" if "$?" in words else "text", words=words)


def _talosctl(words: tuple[str, ...]) -> Source:
    for verb in {"read", "cat"} & set(words):
        if path := next(iter(words[words.index(verb) + 1 :]), ""):
            return _file(path)
    return Source("kernel-log" if "dmesg" in words else "unit-log", words=words)


_PROGRAMS: Final[Mapping[str, Callable[[tuple[str, ...]], Source | None]]] = {
    "dmesg": _dmesg,
    "talosctl": _talosctl,
    "journalctl": _journalctl,
    "systemctl": _systemctl,
    "service": lambda words: Source("unit-action", unit_name(words[1]) if len(words) > 1 else "", words),
    "lspci": _always("lspci"),
    "lsmod": _always("lsmod"),
    "modinfo": _module("modinfo"),
    **dict.fromkeys(("modprobe", "insmod", "rmmod"), _module("modprobe")),
    "depmod": _always("depmod"),
    "dkms": _dkms,
    **dict.fromkeys(("lsinitramfs", "lsinitrd", "unmkinitramfs", "lsinitcpio"), _subject("initramfs")),
    "uname": _always("uname"),
    "mokutil": _always("mokutil"),
    **dict.fromkeys(_PACKAGERS, _packager),
    "apt-cache": _apt_cache,
    "apt-mark": _apt_mark,
    "dpkg-query": _dpkg_query,
    "rpm": _rpm,
    "nvidia-smi": _nvidia_smi,
    **dict.fromkeys(("nvidia-container-cli", "nvidia-container-runtime-hook"), _always("nvidia-container-cli")),
    **dict.fromkeys(("nvidia-container-runtime", "nvidia-container-toolkit"), _always("nvidia-container-cli")),
    "nvidia-ctk": _always("nvidia-ctk"),
    **dict.fromkeys(_CONTAINERS, _container),
    "containerd": _containerd,
    "dockerd": lambda words: Source("unit-log", "docker.service", words),
    "crictl": _crictl,
    **dict.fromkeys(_KUBECTL, _kubectl),
    **dict.fromkeys(("k3s", "rke2", "microk8s", "k0s", "minikube", "kind", "talos"), _product),
    **dict.fromkeys(("kubeadm", "helm", "kubelet"), _always("kubernetes")),
    "ldconfig": _always("ldconfig"),
    **dict.fromkeys(("which", "whereis", "type"), _subject("which")),
    **dict.fromkeys(("ls", "stat", "ll", "tree", "lsof", "fuser", "readlink", "realpath"), _listed),
    "find": _find,
    **dict.fromkeys(("env", "printenv"), _always("environment")),
    **dict.fromkeys(("history", "fc"), _typed_before),
    "snap": _always("snap"),
    **dict.fromkeys(("ausearch", "sealert", "aureport"), _always("audit")),
    **dict.fromkeys(("gdscheck", "gdscheck.py", "gdsio", "ibstat", "ofed_info", "ibv_devinfo"), _always("gpudirect")),
    **dict.fromkeys(("systemd-detect-virt", "virsh", "virt-what"), _always("virtualization")),
    "echo": _echo,
    **dict.fromkeys(("python", "python3", "nvcc", "ollama", "vllm", "torchrun", "deviceQuery", "mpirun"), _application),
    **dict.fromkeys(("ssh", "chroot", "nsenter", "wsl"), _ssh),
}
