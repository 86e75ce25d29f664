"""The container toolkit: whether it is there, fits the system, and is told the right places."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses import remedies, symptoms
from gpunode.diagnoses.addresses import TOOLKIT_GUIDE
from gpunode.diagnoses.chains import NO_RUNTIME, NO_TOOLKIT
from gpunode.diagnoses.cluster import set_runtime_class
from gpunode.diagnoses.commands import Command, Shell, command, is_place, joined
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, FixKind, Proof, Rule, Verdict
from gpunode.diagnoses.remedies import install, restart, run, setup_step
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import containerd, docker, driver, system, toolkit
from gpunode.diagnoses.views.engine import engine
from gpunode.facts.patterns import Pattern

_CONFIG: Final = "/etc/nvidia-container-runtime/config.toml"
_RPM_REPOSITORY: Final = "https://nvidia.github.io/libnvidia-container/stable/rpm/nvidia-container-toolkit.repo"
_NO_RUNTIME: Final = Pattern(r"no runtime for [\\\"]*nvidia|failed to find runtime handler nvidia")


# It is not there.


def _missing(snapshot: Snapshot) -> Iterator[Verdict]:
    """Somebody asked for a GPU, and nothing of the toolkit is there to give it."""
    refused, gone = docker.refused(snapshot), toolkit.gone(snapshot)
    asked = (*refused, *docker.unknown_runtime(snapshot), *gone, *snapshot.said(_NO_RUNTIME), *_registered(snapshot))
    asked += _asked_for_by_plugin(snapshot)
    if not asked or docker.snap(snapshot) or docker.desktop(snapshot):
        return
    there = snapshot.view(toolkit.presence)
    if there is not None and not there.is_there:
        summary = "nvidia-container-toolkit is not installed, so no container can be given a GPU"
        yield Proof(summary, (*asked, there.citation), ruled_out=_driver_is_well(snapshot))
    elif gone and there is None:
        summary = "a container runtime is told to run NVIDIA's, and that program is not there"
        yield Proof(summary, gone, "likely", _driver_is_well(snapshot))
    elif gone:
        question = "the toolkit is there, and not the program that the runtime is told to run"
        yield Doubt(
            question,
            (
                Shell("command -v nvidia-container-runtime"),
                Shell("grep -rs nvidia-container-runtime /etc/docker/daemon.json /etc/containerd"),
            ),
            gone,
        )
    elif refused and there is None:
        yield Doubt(
            "docker knows no way to give GPUs out: is the toolkit there, was docker restarted since, which docker?",
            (
                Shell("dpkg -l nvidia-container-toolkit"),
                Shell("which nvidia-container-runtime-hook docker"),
                Shell("docker context ls"),
            ),
            refused,
            ("docker-not-restarted", "docker-from-snap", "docker-from-snap-or-desktop-vm", "docker-rootless-config"),
        )


# The device plugin finds nothing of the driver in its own container.
_PLUGIN_ASKS: Final = Pattern(
    r"did you configure the NVIDIA Container Toolkit|Incompatible (?:strategy|platform) detected"
)
_OF_OPERATOR: Final = Pattern(r"gpu-operator|nvidia-container-toolkit-daemonset|/usr/local/nvidia/toolkit")


def _asked_for_by_plugin(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The device plugin's word that nothing gives its container the driver that works on the node.

    The GPU Operator brings a toolkit of its own, which no package of the node is.
    """
    if not driver.works(snapshot) or snapshot.says(_OF_OPERATOR):
        return ()
    return snapshot.said(_PLUGIN_ASKS, "kubernetes-log", "kubernetes-pod", "kubernetes")


def _registered(snapshot: Snapshot) -> Iterator[Citation]:
    """Where docker or containerd is told to run NVIDIA's runtime of the packages."""
    for file in snapshot.view(docker.files):
        entry = file.runtimes.get("nvidia")
        path = str(entry.get("path", "")) if isinstance(entry, dict) else ""
        if path.removeprefix("/usr/bin/") == "nvidia-container-runtime":
            yield file.line("nvidia")
    files = containerd.of_files(snapshot)
    binary = files.binaries.get("nvidia") if files is not None and "nvidia" in files.handlers else None
    if binary is not None and binary.value == "/usr/bin/nvidia-container-runtime":
        yield binary.citation


def _driver_is_well(snapshot: Snapshot) -> tuple[str, ...]:
    return ("a missing driver: nvidia-smi works on the host",) if driver.works(snapshot) else ()


def _install(snapshot: Snapshot) -> Iterable[Fix]:
    yield from _packages(snapshot, "install", "install the toolkit from NVIDIA's repository")
    runtime = engine(snapshot)
    if runtime == "podman":
        write = (Shell("sudo mkdir -p /etc/cdi"), Shell("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"))
        yield run("configure", "describe the GPUs for podman, which asks for them by CDI", *write)
        return
    product = containerd.product(snapshot)
    if runtime == "containerd" and product in {"k3s", "rke2"}:
        units = ("k3s", "k3s-agent") if product == "k3s" else ("rke2-server", "rke2-agent")
        text = f"restart {product}, which looks for the toolkit when it starts and registers it by itself"
        yield run("restart", text, command("sudo", "systemctl", "try-restart", *units))
    else:
        register = command("sudo", "gpunode", "ctk", "runtime", "configure", f"--runtime={runtime}", "--restart")
        yield run("configure", f"register it with {runtime}, or name the runtime that is in use instead", register)
    if _asked_for_by_plugin(snapshot):
        yield set_runtime_class("let the device plugin ask for NVIDIA's runtime")


def _packages(snapshot: Snapshot, kind: FixKind, text: str, *, upgrade: bool = False) -> Iterable[Fix]:
    if snapshot.view(system.package_manager) == "apt":
        by_person = (*remedies.TOOLKIT_ARCHIVE, Shell("sudo apt-get install nvidia-container-toolkit"))
        yield setup_step(snapshot, kind, text, "toolkit-repository", "toolkit", upgrade=upgrade, instead=by_person)
    elif snapshot.view(system.package_manager) == "pacman":
        yield install(snapshot, text, "nvidia-container-toolkit")
    else:
        folder = "/etc/zypp/repos.d" if snapshot.view(system.package_manager) == "zypper" else "/etc/yum.repos.d"
        repository = joined(
            command("curl", "-fsSL", _RPM_REPOSITORY),
            Shell("|"),
            command("sudo", "tee", f"{folder}/nvidia-container-toolkit.repo"),
        )
        yield run(kind, text, repository, *install(snapshot, text, "nvidia-container-toolkit").commands)


# It is older than the system's cgroups.

_NO_DEVICES: Final = Pattern(r"cgroup subsystem devices not found")
_NO_FOLDER: Final = Pattern(r"/sys/fs/cgroup/devices\S*/devices\.allow: no such file")
_V2: Final = Pattern(
    r"^[ \t]*cgroup2fs\s*$|Cgroup Version:\s*2\b|cgroup2 on /sys/fs/cgroup |cgroup hierarchy: cgroupv2", re.MULTILINE
)
_KNOWS_V2: Final = (1, 8)


def _too_old(snapshot: Snapshot) -> Iterator[Verdict]:
    versions = toolkit.versions(snapshot)
    old = [one for one in versions if one.numbers < _KNOWS_V2]
    # stat's answer is a listing.
    second = (*snapshot.said(_V2), *snapshot.said(_V2, "listing"))
    said = (*snapshot.said(_NO_DEVICES), *(snapshot.said(_NO_FOLDER) if old and second else ()))
    if not said:
        return
    if versions and not old:
        yield Doubt(
            f"libnvidia-container {versions[0]} knows cgroup v2, and still looks for the devices of v1",
            (
                Shell("which -a nvidia-container-cli"),
                Shell("nvidia-container-cli -V"),
                Shell("stat -fc %T /sys/fs/cgroup"),
                Shell("docker info"),
            ),
            (*said, versions[0].citation),
        )
        return
    which = f"libnvidia-container {old[0]} is" if old else "libnvidia-container is"
    summary = f"{which} from before 1.8 and knows cgroup v1 alone, and this system has cgroup v2"
    certain = bool(old and second)
    yield Proof(summary, (*said, *(one.citation for one in old), *second), "certain" if certain else "likely")


def _upgrade(snapshot: Snapshot) -> Iterable[Fix]:
    text = "bring the toolkit to a current version: 1.8 is the first that knows cgroup v2"
    yield from _packages(snapshot, "install", text, upgrade=True)
    yield restart("docker.service", when="docker is the runtime")


# It looks for the driver in another place.

_NO_ROOT: Final = Pattern(
    r"change root failed: no such file|failed to change root directory: No such file", re.IGNORECASE
)
_USING: Final = Pattern(r"using root (?P<root>/\S+)")


def _wrong_root(snapshot: Snapshot) -> Iterator[Verdict]:
    """The toolkit is told that the driver lies below a folder, and that is not there or does not hold it."""
    root = toolkit.setting(snapshot, "root")
    failed, used = snapshot.said(_NO_ROOT), snapshot.match(_USING)
    place = root.value if root is not None and root.value not in {"", "/"} else used["root"] if used else ""
    cited = (*((root.citation,) if root else ()), *snapshot.said(_USING), *failed)
    if failed:
        where = place or "a folder of its own"
        summary = f"the toolkit is told that the driver lies below {where}, which is not there"
        yield Proof(summary, cited, "certain" if place else "likely", _host_driver(snapshot))
    elif place and root is not None and driver.works(snapshot) and (empty := _not_there(snapshot, place)):
        summary = f"the toolkit is told that the driver lies below {place}, where nothing is: it is the host's own"
        yield Proof(summary, (root.citation, empty), ruled_out=_host_driver(snapshot))
    elif place and root is not None and driver.works(snapshot) and (complaint := _complaint(snapshot)):
        summary = f"the toolkit is told that the driver lies below {place}, and the driver is the host's own"
        yield Proof(summary, (*cited, *complaint), "likely", _host_driver(snapshot))


_COMPLAINTS: Final = Pattern(
    r"nvidia-container-cli(?:\.real)?: (?:initialization|detection|driver|ldcache) error"
    r"|load library failed: libnvidia-ml"
    r"|/run/nvidia/driver/\S{0,300}: no such file"
)


def _not_there(snapshot: Snapshot, place: str) -> Citation | None:
    """What shows that ``place`` does not exist: a listing of the folder that would hold it."""
    folder = place.rstrip("/").rpartition("/")[0]
    for item in snapshot.of("listing"):
        if item.written == f"{folder}/*" and place.rstrip("/") not in item.lines:
            return stated(item.written, f"no {place}", item.key)
    return None


def _complaint(snapshot: Snapshot) -> tuple[Citation, ...]:
    return snapshot.said(_COMPLAINTS)


def _host_driver(snapshot: Snapshot) -> tuple[str, ...]:
    return ("a missing driver: nvidia-smi works on the host itself",) if driver.works(snapshot) else ()


def _own_root(snapshot: Snapshot) -> Iterable[Fix]:
    distro = system.distro(snapshot)
    ldconfig = _REAL if distro is not None and distro.id == "ubuntu" else "/sbin/ldconfig"
    yield run(
        "configure",
        "let the toolkit take the driver of the host",
        _command(toolkit.setting(snapshot, "root"), "root=/"),
        _command(toolkit.setting(snapshot, "ldconfig"), f"ldconfig=@{ldconfig}"),
    )
    yield run(
        "inspect",
        "in a cluster say the same to the GPU Operator, which would write it again: driver.enabled=false where the "
        "host has its own driver",
        Shell("kubectl get clusterpolicy -o jsonpath='{.items[*].spec.driver.enabled}'"),
        when="the GPU Operator brings the toolkit",
    )


# It runs another ldconfig than there is.

_NO_LDCONFIG: Final = Pattern(
    r"ldcache error: open failed: (?P<path>/\S*ldconfig\S*?): no such file"
    r"|(?:open|stat|lstat) (?P<other>/\S*ldconfig\S*?): no such file"
    r"|fork/exec (?P<third>/\S*ldconfig\S*?): no such file"
    r"|could not start (?P<fourth>/\S*ldconfig\S*?): [\w ]{0,40}:? ?no such file",
    re.IGNORECASE,
)
_WRAPPER: Final = Pattern(r"ldcache error: process (?P<path>\S*/ldconfig) failed with error code: 127")
_REAL: Final = "/sbin/ldconfig.real"


def _ldconfig(snapshot: Snapshot) -> Iterator[Verdict]:
    setting = toolkit.setting(snapshot, "ldconfig")
    configured = (setting.citation,) if setting else ()
    if (match := snapshot.match(_NO_LDCONFIG)) is not None:
        path = match["path"] or match["other"] or match["third"] or match["fourth"]
        if path.startswith("/run/nvidia/driver"):
            return
        summary = f"the toolkit is told to run {path}, which this system does not have"
        remedy = _set_ldconfig(setting, "/sbin/ldconfig" if path.endswith(".real") else "$(command -v ldconfig)")
        yield Proof(summary, (*snapshot.said(_NO_LDCONFIG), *configured), remedy=remedy)
    elif said := snapshot.said(_WRAPPER):
        summary = "the toolkit runs /sbin/ldconfig in the container, and here that is a script around ldconfig.real"
        yield Proof(summary, (*said, *configured, *_has_real(snapshot)), "likely", remedy=_set_ldconfig(setting, _REAL))
    elif setting is not None and setting.value.lstrip("@") == _REAL and (lacking := _lacks_real(snapshot)):
        summary = f"the toolkit is told to run {_REAL}, which Ubuntu has and this system does not"
        yield Proof(summary, (setting.citation, *lacking), remedy=_set_ldconfig(setting, "/sbin/ldconfig"))


def _has_real(snapshot: Snapshot) -> tuple[Citation, ...]:
    return tuple(c for item in snapshot.of("listing") for c in lines_with(item, _REAL_LISTED))


_REAL_LISTED: Final = Pattern(r"/sbin/ldconfig\.real\b")


def _lacks_real(snapshot: Snapshot) -> tuple[Citation, ...]:
    """What shows that there is no ldconfig.real."""
    found = (item for item in snapshot.of("listing") if item.written == _LDCONFIGS and item.text.strip())
    listed = tuple(stated(item.written, f"no {_REAL}", item.key) for item in found if _REAL not in item.text)
    looked = (item for item in snapshot.items if item.outcome == "absent" and item.where == "host")
    return (*listed, *(cite(item) for item in looked if item.subject == _REAL or item.written.endswith(_REAL)))


_LDCONFIGS: Final = "/sbin/ldconfig*"


# Its own, and that of the GPU Operator's.
_CONFIGS: Final = ("/etc/nvidia-container-runtime", "/usr/local/nvidia/toolkit")
_TO_RUN: Final = frozenset({_REAL, "/sbin/ldconfig"})


def _command(setting: toolkit.Setting | None, entry: str) -> Command:
    """Sets ``entry`` in the file that has ``setting``: the GPU Operator's toolkit keeps one of its own."""
    file = setting.file if setting is not None and is_place(setting.file, *_CONFIGS) else _CONFIG
    other = () if file == _CONFIG else (f"--config-file={file}",)
    return command("sudo", "gpunode", "ctk", "config", *other, "--in-place", "--set", f"nvidia-container-cli.{entry}")


def _set_ldconfig(setting: toolkit.Setting | None, path: str) -> tuple[Fix, ...]:
    return (
        run(
            "configure",
            f"let the toolkit run {path} of the host",
            *((_command(setting, f"ldconfig=@{path}"),) if path in _TO_RUN else ()),
        ),
    )


# A command of an old article.


@dataclass(frozen=True, slots=True)
class _Form:
    """A form that nothing answers to any more, by what is said when it is used."""

    said: Pattern
    summary: str
    instead: tuple[Command, ...] = ()


_DOCKER_RUN: Final = (Shell("docker run --rm --gpus all ubuntu nvidia-smi"),)
# Those whose place the packages of today take.
_PACKAGES: Final = (
    _Form(
        Pattern(r"# ?Unsupported distribution!"),
        "the article's repositories, one for each distribution, are gone: what it saves as nvidia-docker.list is an "
        "error page",
    ),
    _Form(
        Pattern(
            r"Type ['‘\"]?(?:<!doctype|<html|#)\S* is not known on line \d+ in source list "
            r"\S*(?:nvidia-docker|nvidia-container|libnvidia)",
            re.IGNORECASE,
        ),
        "the article's address of nvidia-docker.list is gone, and its error page was saved as a source of APT",
    ),
    _Form(
        Pattern(
            r"(?:Unable to locate package|No match for argument:|No package|Package) ['‘\"]?"
            r"(?:nvidia-docker2?|nvidia-container-runtime)\b(?! is already)",
            re.IGNORECASE,
        ),
        "the packages of the article, nvidia-docker2 and its like, are gone: nvidia-container-toolkit has their place",
    ),
)
_USES: Final = (
    _Form(
        Pattern(
            r"nvidia-docker: (?:command )?not found|Command 'nvidia-docker' not found"
            r"|Error looking up volume plugin nvidia-docker",
            re.IGNORECASE,
        ),
        "the command nvidia-docker is gone: docker gives GPUs out itself",
        _DOCKER_RUN,
    ),
    _Form(
        Pattern(
            r"(?:manifest for |docker\.io/|\s)nvidia/cuda:\S+ not found|/nvidia/cuda:[\w.-]+: not found"
            r"|reading manifest \S+ in \S*nvidia/cuda: manifest unknown",
            re.IGNORECASE,
        ),
        "the image of the article is gone: NVIDIA takes old tags of nvidia/cuda away",
        _DOCKER_RUN,
    ),
    _Form(
        Pattern(r"umount: /proc/driver/nvidia: (?:not mounted|no mount point)", re.IGNORECASE),
        "the article's `umount -R /proc/driver/nvidia` has nothing to do any more: toolkit 1.19 masks one file only",
    ),
    _Form(
        Pattern(r"unable to read URL \"\S*/k8s-device-plugin/\S*\.yml\"[^\n]{0,80}404", re.IGNORECASE),
        "the article's address of the device plugin is gone: its manifests lie in deployments/static now",
        (Shell("kubectl get runtimeclass"), Shell("kubectl get daemonset -A | grep -i device-plugin")),
    ),
)


# Where APT could not read its archives, it knows no package of theirs, old or new.
_UNSIGNED: Final = Pattern(r"NO_PUBKEY|EXPKEYSIG|Conflicting values set for option|is not signed|could not be verified")


def _old_form(snapshot: Snapshot) -> Iterator[Verdict]:
    """A command of an older article, which nothing answers to any more."""
    for form in _PACKAGES if not snapshot.says(_UNSIGNED) else ():
        if said := snapshot.said(form.said):
            yield Proof(form.summary, said, remedy=tuple(_today(snapshot)))
            return
    for form in _USES:
        if said := snapshot.said(form.said):
            yield Proof(form.summary, said, remedy=(_use(form),))
            return


def _use(form: _Form) -> Fix:
    return run("application", "use the form of today", *form.instead)


def _today(snapshot: Snapshot) -> Iterable[Fix]:
    yield from _packages(
        snapshot, "install", "install nvidia-container-toolkit from the one repository of today", upgrade=True
    )


FAMILY: Final = Family(
    "toolkit",
    "the container toolkit",
    (
        Rule(
            cause="toolkit-not-installed",
            layer="toolkit",
            storey="toolkit",
            severity="error",
            disruption="restart-service",
            title="the container toolkit is not installed",
            share=5,
            symptoms=(
                symptoms.NO_DEVICE_DRIVER,
                symptoms.NO_RUNTIME,
                symptoms.CONTAINER_FAILED,
            ),
            look_at=(Shell("nvidia-ctk --version"),),
            story=(
                "The driver alone gives no container a GPU: nvidia-container-toolkit has the hook and the runtime that "
                "put libraries and device nodes into it. Without it docker says that it could not select a device "
                'driver "" with capabilities [[gpu]]; a runtime that was registered before the packages were removed '
                "fails with nvidia-container-runtime not found."
            ),
            sources=(
                "https://github.com/docker/cli/issues/2425",
                TOOLKIT_GUIDE,
            ),
            check=_missing,
            remedy=_install,
            explains=NO_TOOLKIT | {"old-command-form"},
        ),
        Rule(
            cause="toolkit-too-old-cgroupv2",
            layer="toolkit",
            storey="toolkit",
            severity="error",
            disruption="restart-container",
            title="the container toolkit is too old for cgroup v2",
            symptoms=(
                symptoms.HOOK_FAILED,
                symptoms.CONTAINER_FAILED,
            ),
            look_at=(
                Shell("nvidia-container-cli --version"),
                Shell("stat -fc %T /sys/fs/cgroup"),
            ),
            story=(
                "libnvidia-container before 1.8 looks for the devices controller of cgroup v1 to let a container use "
                "the GPU. With the unified hierarchy, the default since Debian 11, Ubuntu 21.10 and Fedora 31, there "
                "is none, and every container ends with `cgroup subsystem devices not found`."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-docker/issues/1447",
                "https://github.com/NVIDIA/libnvidia-container/issues/111",
            ),
            check=_too_old,
            remedy=_upgrade,
            explains=NO_RUNTIME,
        ),
        Rule(
            cause="toolkit-wrong-driver-root",
            layer="config",
            storey="toolkit",
            severity="error",
            disruption="restart-container",
            title="the container toolkit looks for the driver in another place",
            symptoms=(
                symptoms.HOOK_FAILED,
                symptoms.NO_NVML_LIBRARY,
                symptoms.CONTAINER_FAILED,
            ),
            look_at=(Shell("cat /etc/nvidia-container-runtime/config.toml"),),
            story=(
                "nvidia-container-cli.root in the toolkit's config.toml says below which folder the driver lies: "
                "/run/nvidia/driver where a driver container brings it, / where it is the host's. A leftover of the "
                "GPU Operator, or a line that was uncommented, makes the toolkit change into a folder that is not "
                "there, though nvidia-smi works on the host."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-docker/issues/1246",
                "https://github.com/NVIDIA/gpu-operator/issues/350",
            ),
            check=_wrong_root,
            remedy=_own_root,
            explains=NO_RUNTIME | {"ldconfig-path-wrong"},
        ),
        Rule(
            cause="ldconfig-path-wrong",
            layer="config",
            storey="toolkit",
            severity="error",
            disruption="restart-container",
            title="the container toolkit is told to run an ldconfig that is not there",
            symptoms=(
                symptoms.HOOK_FAILED,
                symptoms.CONTAINER_FAILED,
            ),
            look_at=(
                Shell("grep ldconfig /etc/nvidia-container-runtime/config.toml"),
                Shell("ls -l /sbin/ldconfig*"),
            ),
            story=(
                "The toolkit has the host's own ldconfig make the container's list of libraries. On Ubuntu that is "
                "/sbin/ldconfig.real, with a script around it in /sbin/ldconfig; elsewhere it is /sbin/ldconfig. A "
                "config.toml that came from another distribution names the wrong one, and no GPU container starts."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-docker/issues/614",
                "https://github.com/NVIDIA/nvidia-docker/issues/587",
            ),
            check=_ldconfig,
            remedy=lambda snapshot: _set_ldconfig(toolkit.setting(snapshot, "ldconfig"), "/sbin/ldconfig"),
            explains=NO_RUNTIME,
        ),
        Rule(
            cause="old-command-form",
            layer="toolkit",
            storey="toolkit",
            severity="error",
            disruption="none",
            title="a command of an old article, which nothing answers to any more",
            symptoms=(
                symptoms.NO_DEVICE_DRIVER,
                symptoms.NO_RUNTIME,
            ),
            look_at=(Shell("nvidia-ctk --version"),),
            story=(
                "Many articles still say nvidia-docker, nvidia-docker2, a repository for each distribution and image "
                "tags such as nvidia/cuda:11.0-base. All of these are gone: one repository has "
                "nvidia-container-toolkit for every distribution, docker takes --gpus itself, and old tags of the "
                "images were taken away. The node may be quite well."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-docker/issues/1735",
                TOOLKIT_GUIDE,
            ),
            check=_old_form,
            remedy=_today,
        ),
    ),
)
