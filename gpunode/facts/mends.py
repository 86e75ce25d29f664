"""What a command that somebody typed can have mended: a part of the node's stack, or nothing of it.

People type much between a failure and a success, and most of it mends nothing: ``vim train.py``, ``apt install htop``.
Only what changes the part that failed, or one that it stands on, ends a failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias, get_args

from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import Command, Kind, Source, commands, program

Part: TypeAlias = Literal[
    "node",  # driver, kernel, firmware, GPU, libraries, whoever may use them
    "packages",  # what apt, dnf and the like need: repositories, keys, lists
    "containers",  # docker, containerd, CRI-O, CDI, the toolkit
    "cluster",  # the kubelet, and what runs in Kubernetes
    "programs",  # what programs use: CUDA builds of frameworks, the login's environment
    "space",  # on the disk
]
_NOTHING: Final[frozenset[Part]] = frozenset()
_NODE: Final[frozenset[Part]] = frozenset({"node"})
_CONTAINERS: Final[frozenset[Part]] = frozenset({"containers"})
_CLUSTER: Final[frozenset[Part]] = frozenset({"cluster"})
_ALL: Final[frozenset[Part]] = frozenset(get_args(Part)) - {"space"}


# --- what failed ----------------------------------------------------------------------------------------------------


def mended_by(seen: Source, said: str) -> frozenset[Part]:
    """The parts of which a change may have mended what complains so: its own, and those that it stands on."""
    parts = _NODE | _own_parts(seen, said)
    return parts | {"space"} if _FULL.search(said) else parts


def _own_parts(seen: Source, said: str) -> frozenset[Part]:
    kind = seen.kind
    if kind in {"application", "text", "container-run"} and _OF_GPUS.search(said):
        return _NOTHING
    if seen.where == "container" or kind in _IN_CLUSTER:
        return frozenset({"containers", "cluster", "programs"})
    if kind in _OF_RUNTIMES:
        return _CONTAINERS
    if kind in _OF_PACKAGES:
        return frozenset({"packages"})
    if kind in _OF_UNITS:
        return _of_unit(seen.subject)
    if kind in {"application", "text"}:
        return frozenset({"programs", "containers"} if _RUNTIME.search(said) else {"programs"})
    return _NOTHING


_FULL: Final = Pattern(
    r"No space left|disk quota exceeded|not enough (?:free )?space|You don't have enough", re.IGNORECASE
)
# What the GPU or its fabric says through a program: no other program, and no container, changes that.
_OF_GPUS: Final = Pattern(r"system not yet initialized|\b802\b|\bECC\b|[Nn][Vv][Ll]ink|\bXid\b|fallen off|is lost")
_RUNTIME: Final = Pattern(
    r"docker|podman|containerd|OCI runtime|nvidia-container|\bCDI\b|\bcontainers?\b", re.IGNORECASE
)
_IN_CLUSTER: Final[frozenset[Kind]] = frozenset({"kubernetes", "kubernetes-node", "kubernetes-pod", "kubernetes-log"})
_OF_RUNTIMES: Final[frozenset[Kind]] = frozenset(
    {
        *("container-run", "container-inspect", "docker-info", "docker-version", "containerd-config", "crictl"),
        *("nvidia-container-cli", "nvidia-ctk"),
    }
)
_OF_PACKAGES: Final[frozenset[Kind]] = frozenset({"package-output", "packages", "package-policy", "package-owner"})
_OF_UNITS: Final[frozenset[Kind]] = frozenset({"unit-status", "unit-show", "unit-file", "unit-action", "unit-log"})


# --- what was done --------------------------------------------------------------------------------------------------


def parts(command: Command, prompt: str = "") -> frozenset[Part]:
    """What of the stack the command changes for good, by its words; nothing where it looks, or changes another thing.

    What a script, ``make install`` or ansible did, nobody knows. It counts as nothing: a fault that is called over is
    not looked for any more, while one that is still named stands beside the success that everybody sees.
    """
    folder = match["folder"] if (match := _FOLDER.search(prompt)) else ""
    found = _of_path(command.into, folder)
    for words in (command.words, *command.filters):
        found |= _by_words(words, folder)
    if (line := _handed(command.words)) and (inner := commands(line)) != (command,):
        return found.union(*(parts(one, prompt) for one in inner))
    return found


def _handed(words: tuple[str, ...]) -> str:
    """The line that a shell is given as one word: ``sudo sh -c 'echo … > /etc/modprobe.d/x.conf'``."""
    at = words.index("-c") + 1 if program(words) in {"sh", "bash", "zsh"} and "-c" in words else len(words)
    return words[at] if at < len(words) else ""


# "root@gpu1:/etc/docker#", "[root@gpu1 /etc/docker]#".
_FOLDER: Final = Pattern(r"[: ](?P<folder>/[\w./+-]{1,200}?)/?\]?\s?[$#%>]")


def _by_words(words: tuple[str, ...], folder: str) -> frozenset[Part]:
    name, rest = program(words), words[1:]
    if name in _EDITORS or (name in {"sed", "perl", "yq"} and any(_IN_PLACE.match(word) for word in rest)):
        removed: frozenset[Part] = frozenset({"space"}) if name in {"rm", "truncate"} else _NOTHING
        return removed.union(*(_of_path(word, folder) for word in rest))
    if name in PACKAGERS:
        return _of_packages(name, rest)
    if name.startswith(("pip", "conda", "mamba", "uv")) or rest[:2] == ("-m", "pip"):
        return _of_frameworks(rest)
    if any(_RUNFILE.search(word) for word in words):
        return _NODE
    return _BY_PROGRAM[name](rest) if name in _BY_PROGRAM else _NOTHING


def is_edit(command: Command) -> bool:
    """Whether what it does cannot be told from its words: the same edit, made again, may be another one."""
    return bool(command.into) or any(program(words) in _EDITORS for words in (command.words, *command.filters))


_EDITORS: Final = frozenset(
    {"vi", "vim", "nvim", "nano", "emacs", "tee", "rm", "mv", "cp", "ln", "install", "truncate", "chmod", "chown"}
    | {"sudoedit", "gpg", "restorecon", "curl", "wget", "rsync", "gedit", "micro", "mcedit", "unlink"}
)
_IN_PLACE: Final = Pattern(r"-[a-zA-Z]{0,3}i|--in-place")
_RUNFILE: Final = Pattern(r"NVIDIA-Linux|(?:^|/)cuda_[\w.]{1,60}\.run$")


def _of_path(path: str, folder: str) -> frozenset[Part]:
    """What a file belongs to; nothing for those of the user's own."""
    whole = path if path[:1] in {"/", "~", ""} or not folder else f"{folder}/{path.removeprefix('./')}"
    return next((found for pattern, found in _PATHS if pattern.search(whole)), _NOTHING)


# A relative name counts where it is one of the stack's. What is below /dev is made anew at each start of the node.
_PATHS: Final[tuple[tuple[Pattern, frozenset[Part]], ...]] = (
    (
        Pattern(
            r"^/etc/(?:apt|yum|dnf|zypp|pacman|pki)\b|^/etc/\w{1,10}\.repos\.d|keyrings?\b|^/var/(?:lib|cache)/(?:apt|dpkg|rpm"
            r"|dnf|yum)\b|\.(?:repo|gpg)$"
        ),
        frozenset({"packages"}),
    ),
    (
        Pattern(
            r"^(?:/etc|/var/run|/run)/cdi\b|^/etc/(?:docker|containerd|crio|containers|nvidia-container-\w{1,10}|default/docker)\b"
            r"|\.(?:docker|config/(?:docker|containers|cdi))/|(?:docker|containerd|crio)\.(?:service|socket)\b"
            r"|(?:^|/)(?:daemon\.json|(?:docker-)?compose[\w.-]{0,40}\.ya?ml|Dockerfile[\w.-]{0,40})$"
        ),
        _CONTAINERS,
    ),
    (
        Pattern(
            r"^/etc/(?:kubernetes|rancher|default/kubelet)|^/var/lib/(?:kubelet|rancher)\b|(?:kubelet|k3s)\.service\b"
        ),
        _CLUSTER,
    ),
    (Pattern(r"(?:^|/)\.(?:(?:ba|z|k)sh(?:rc|env)|(?:bash_|z)?profile)$|/\.nv/"), frozenset({"programs"})),
    (
        Pattern(
            r"^/etc/\w|^/boot/|^(?:/usr)?/lib/(?:modprobe\.d|modules|systemd|udev|firmware|dracut|modules-load\.d)\b"
            r"|^/usr/src/|^/var/lib/dkms\b|^/usr/local/cuda|^/(?:usr|opt|lib\d{0,2})/\S{0,200}(?:nvidia|libcuda|libnv|cuda)"
        ),
        _NODE,
    ),
    (Pattern(r"^(?:nvidia|nouveau|blacklist)[\w.-]{0,60}\.(?:conf|service|rules)$"), _NODE),
)

# --- packages -------------------------------------------------------------------------------------------------------

PACKAGERS: Final = frozenset({"apt", "apt-get", "aptitude", "dpkg", "dnf", "yum", "zypper", "pacman", "rpm", "snap"})
_PACKAGED: Final = Pattern(
    r"(?:re)?install|in|remove|rm|purge|autoremove|erase|\w{0,20}-?upgrade|dup|distro-sync|downgrade|swap|module|refresh"
    r"|-[eiUrPSR]\w{0,9}|--(?:install|configure|remove|purge|erase|upgrade)|--fix-broken"
)
_ANEW: Final = frozenset({"update", "up", "makecache", "clean", "addrepo", "ar", "config-manager", "modifyrepo"})


def _of_packages(name: str, rest: tuple[str, ...]) -> frozenset[Part]:
    """What the packages belong to; where none is named, as of an upgrade of all, nobody knows, and it may be each."""
    verbs = [word for word in rest if _PACKAGED.fullmatch(word)]
    is_upgrade = name in {"dnf", "yum", "zypper"} and {"update", "up"} & set(rest)
    if not (verbs or is_upgrade):
        cleaned: frozenset[Part] = frozenset({"space"} if "clean" in rest else ())
        return cleaned | ({"packages"} if _ANEW & set(rest) else _NOTHING)
    named = [word for word in rest if word not in verbs and word[:1] != "-" and word not in _ANEW | _OF_MODULES]
    return frozenset[Part]({"packages"}).union(*map(_of_package, named)) if named else _ALL | {"space"}


# "dnf module reset nvidia-driver"
_OF_MODULES: Final = frozenset({"enable", "disable", "reset", "switch-to"})


def _of_package(name: str) -> frozenset[Part]:
    return next((found for pattern, found in _PACKAGES if pattern.search(name)), _NOTHING)


_PACKAGES: Final[tuple[tuple[Pattern, frozenset[Part]], ...]] = (
    (Pattern(r"keyring"), frozenset({"packages"})),
    (
        Pattern(r"container|docker|moby|\brunc\b|podman|buildah|\bcri-?o|\bcrun\b|\bnerdctl\b|compose"),
        _CONTAINERS,
    ),
    (Pattern(r"kube|\bk3s|\bk8s|\brke2"), _CLUSTER),
    (Pattern(r"torch|tensorflow|jax|cupy|onnx|ollama|llama"), frozenset({"programs"})),
    (
        Pattern(
            r"nvidia|cuda|nouveau|cudnn|nccl|^(?:\S*/)?linux-|^(?:\S*/)?kernel|kmod|dkms|datacenter-gpu|dcgm|fabric|firmware"
            r"|mokutil|shim-?signed|shim-x64|\bgcc|\bg\+\+|\bmake$|build-essential|libelf|elfutils|dracut|initramfs|ubuntu-drivers"
            r"|libgl|libegl|libvulkan|vulkan|mesa|xserver|xorg|rdma|ofed|mlnx|doca|infiniband|^\*$"
        ),
        _NODE,
    ),
)
_FRAMEWORKS: Final = Pattern(
    r"torch|tensorflow|jax|cupy|numba|nvidia|cuda|cudnn|vllm|llama|onnx|triton|flash|xformers|bitsandbytes|rapids|cudf"
    r"|deepspeed|\bapex|nccl|pynvml|sglang|paddle|mxnet"
)


def _of_frameworks(rest: tuple[str, ...]) -> frozenset[Part]:
    """A framework that was built for CUDA; what a list of requirements brings, nobody knows."""
    is_done = bool({"install", "uninstall", "remove", "update", "upgrade", "add", "sync"} & set(rest))
    return frozenset({"programs"} if is_done and any(_FRAMEWORKS.search(word) for word in rest) else ())


# --- programs -------------------------------------------------------------------------------------------------------


def _always(found: frozenset[Part]) -> Callable[[tuple[str, ...]], frozenset[Part]]:
    return lambda _: found


def _with(found: frozenset[Part], *verbs: str) -> Callable[[tuple[str, ...]], frozenset[Part]]:
    """It changes something only with one of these words."""
    return lambda rest: found if set(verbs) & set(rest) else _NOTHING


def _of_units(rest: tuple[str, ...]) -> frozenset[Part]:
    """A restart of a unit that GPUs need, or what it is from the next start on; a start is an experiment."""
    if {"reboot", "poweroff", "kexec", "soft-reboot", "isolate"} & set(rest):
        return _NODE
    is_done = {"restart", "reload", "enable", "disable", "mask", "unmask", "try-restart", "reload-or-restart"} & set(
        rest
    )
    named = [word for word in rest if _STACK.search(word)]
    return _NOTHING.union(*map(_of_named, named)) if is_done else _NOTHING


_STACK: Final = Pattern(
    r"nvidia|fabric|persistenced|imex|gridd|dcgm|mps\b|docker|containerd|crio|cri-o|podman|cdi|kubelet|k3s|rke2|microk8s|udev"
    r"|modules-load|dkms|gdm|lightdm|sddm|display-manager|openibd"
)


def _of_named(unit: str) -> frozenset[Part]:
    return _of_unit(unit) or _NODE


def _of_unit(unit: str) -> frozenset[Part]:
    if re.search(r"docker|containerd|crio|cri-o|podman|cdi", unit):
        return _CONTAINERS
    return frozenset({"cluster", "containers"}) if re.search(r"kubelet|k3s|rke2|microk8s", unit) else _NOTHING


def _of_engine(rest: tuple[str, ...]) -> frozenset[Part]:
    freed: frozenset[Part] = frozenset({"space"} if {"prune", "rm", "rmi"} & set(rest) else ())
    return freed | (_CONTAINERS if _OF_CONTAINERS & set(rest) else _NOTHING)


_OF_CONTAINERS: Final = frozenset(
    {"restart", "rm", "stop", "start", "pull", "up", "down", "build", "load", "update", "context"}
)


def _of_cluster(rest: tuple[str, ...]) -> frozenset[Part]:
    """What runs in the cluster; the operator's driver is the node's."""
    is_look = "rollout" in rest and not {"restart", "undo"} & set(rest)
    if is_look or not _OF_OBJECTS & set(rest):
        return _NOTHING
    return _CLUSTER | {"containers", "node"} if any(_DRIVERS.search(word) for word in rest) else _CLUSTER


_DRIVERS: Final = Pattern(r"gpu-operator|clusterpolic|nvidiadrivers?\b|nvidia-driver|container-toolkit")
_OF_OBJECTS: Final = frozenset(
    {"apply", "delete", "rollout", "patch", "edit", "label", "create", "replace", "scale", "drain", "uncordon"}
    | {"install", "upgrade", "uninstall", "rollback", "taint", "annotate", "set"}
)


def _of_gpus(rest: tuple[str, ...]) -> frozenset[Part]:
    if rest[:1] == ("mig",):
        return _NODE if any(re.match(r"-(?:c|d)(?:g|c)i", word) for word in rest) else _NOTHING
    changes = {"--gpu-reset", "-r", "-mig", "--multi-instance-gpu", "-pm", "--persistence-mode", "-c", "--compute-mode"}
    names = {word.partition("=")[0] for word in rest}
    return _NODE if (changes | {"-e", "--ecc-config", "-p", "--reset-ecc-errors"}) & names else _NOTHING


def _of_user(rest: tuple[str, ...]) -> frozenset[Part]:
    """A user in the group that may open the GPU's files, or speak to docker."""
    is_of_stack = any(re.search(r"\b(?:docker|video|render|nvidia|vglusers)\b", word) for word in rest)
    return frozenset({"node", "containers", "programs"}) if is_of_stack else _NOTHING


_BY_PROGRAM: Final[Mapping[str, Callable[[tuple[str, ...]], frozenset[Part]]]] = {
    **dict.fromkeys(
        (
            "update-initramfs",
            "dracut",
            "mkinitramfs",
            "mkinitcpio",
            "depmod",
            "akmods",
            "update-grub",
            "grub2-mkconfig",
        ),
        _always(_NODE),
    ),
    **dict.fromkeys(("grub-mkconfig", "nvidia-uninstall", "kmodsign", "reboot", "poweroff"), _always(_NODE)),
    "shutdown": lambda rest: _NOTHING if "-c" in rest else _NODE,
    **dict.fromkeys(("init", "telinit"), _with(_NODE, "6", "0")),
    "ipmitool": _with(_NODE, "cycle", "off", "reset"),
    "grubby": lambda rest: (
        _NODE if any(word.startswith(("--update-kernel", "--set-default")) for word in rest) else _NOTHING
    ),
    "ubuntu-drivers": _with(_NODE, "install", "autoinstall"),
    "update-alternatives": _with(_NODE, "--set", "--config", "--install", "--auto", "--remove"),
    "fwupdmgr": _with(_NODE, "update", "install", "upgrade"),
    "prime-select": _with(_NODE, "nvidia", "intel", "on-demand"),
    "dkms": _with(_NODE, "build", "install", "autoinstall", "remove", "add", "unbuild"),
    "mokutil": _with(_NODE, "--import", "-i", "--disable-validation", "--reset"),
    "gpunode": _with(_ALL, "setup", "rollback", "remove", "ctk"),
    "nvidia-smi": _of_gpus,
    "ldconfig": lambda rest: _NODE if rest in {(), ("-v",)} else _NOTHING,
    "semodule": _always(_ALL),
    "setsebool": _always(_ALL),
    **dict.fromkeys(("usermod", "gpasswd", "adduser"), _of_user),
    **dict.fromkeys(("add-apt-repository", "apt-key"), _always(frozenset({"packages"}))),
    **dict.fromkeys(("systemctl", "service"), _of_units),
    **dict.fromkeys(("docker", "podman", "nerdctl", "docker-compose", "podman-compose"), _of_engine),
    "nvidia-ctk": _with(
        _CONTAINERS, "configure", "generate", "create-dev-char-symlinks", "create-device-nodes", "--set", "--in-place"
    ),
    **dict.fromkeys(("kubectl", "oc", "k", "helm", "kubeadm"), _of_cluster),
}
