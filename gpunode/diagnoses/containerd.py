"""containerd and CRI-O: whether the CRI plugin runs, the runtime is there, and under which cgroup driver."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import DEVICE_PLUGIN, TOOLKIT_GUIDE
from gpunode.diagnoses.chains import NO_RUNTIME
from gpunode.diagnoses.commands import Shell, command, joined
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import by_hand, restart, run, takes_gpunode
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import cdi, containerd, driver, packages, toolkit
from gpunode.diagnoses.views.containerd import Effective, Value
from gpunode.facts.model import CgroupDriver, Known
from gpunode.facts.patterns import Pattern
from gpunode.runtimes.containerd_files import CONFIG
from gpunode.runtimes.crio_files import DEAD_FOLDER

_NO_RUNTIME: Final = Pattern(
    r"no runtime for [\\\"']*(?P<name>nvidia[\w.-]*)[\\\"']* is configured"
    r"|RuntimeHandler [\\\"']*nvidia[\w.-]*[\\\"']* not supported"
)
_NO_HANDLER: Final = Pattern(r"failed to find runtime handler [\\\"']*(?P<name>nvidia[\w.-]*)")
_NO_DEFAULT: Final = Pattern(
    r"no corresponding runtime configured in `?containerd\.runtimes`? for `?containerd`? "
    r"`?default_runtime_name ?= ?[\\\"']*nvidia"
)
_UNIMPLEMENTED: Final = Pattern(
    r"unknown service runtime\.v1(?:alpha2)?\.(?:Runtime|Image)Service|CRI v1 \w+ API is not implemented for endpoint"
)
_NEW_API: Final = Pattern(r"unknown service runtime\.v1\.")
_OTHER_RUNTIME: Final = Pattern(r"\b(?:cri-o|docker)://\d|\bcri-dockerd\b|/crio/crio\.sock")
_CONFIGURED: Final = Pattern(r"(?:Wrote updated config to|Loading config from) (?P<path>/\S*containerd/config\.toml)")
_COMPLAINT: Final = Pattern(
    r"could not load NVML library|libnvidia-ml\.so\.1: cannot open|Incompatible (?:platform|strategy) detected"
    r"|Detected non-NVML platform|no runtime for [\\\"']*nvidia|FailedCreatePodSandBox"
    r"|nvidia-smi[^\n]{0,20}executable file not found|0/\d+ nodes are available[^\n]{0,200}nvidia\.com/gpu"
)
_NO_LIBRARY: Final = Pattern(
    r"could not load NVML library|Incompatible (?:platform|strategy) detected"
    r"|did you configure the NVIDIA Container Toolkit"
)
_COMMAND: Final = Shell("sudo gpunode ctk runtime configure --runtime=containerd --restart")


def _decide(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """What keeps pods from a runtime called nvidia, or from any runtime."""
    if verdict := _dead_drop_in(snapshot) or _overwritten(snapshot) or _cri_off(snapshot) or _missing(snapshot):
        yield verdict


# CRI-O.


def _dead_drop_in(snapshot: Snapshot) -> tuple[str, Verdict] | None:
    dead = containerd.crio_dead(snapshot)
    if not dead:
        return None
    said, told = snapshot.said(_NO_HANDLER), containerd.crio_configured(snapshot)
    if told is not None and "nvidia" in told.handlers:
        return None
    if not said and told is None:
        question = (
            f"{DEAD_FOLDER} holds a drop-in, and CRI-O never reads that folder: does another file register nvidia?"
        )
        return "crio-dropin-dead", Doubt(
            question, (Shell("crio status config | grep -A3 nvidia"), Shell("ls /etc/crio/crio.conf.d")), dead
        )
    summary = f"the runtime nvidia is registered in {DEAD_FOLDER}, and CRI-O reads /etc/crio/crio.conf.d"
    return "crio-dropin-dead", Proof(summary, (*dead, *said))


def _move(_: Snapshot) -> Iterable[Fix]:
    yield run(
        "configure",
        "register the runtime where CRI-O reads it, and take the dead file away",
        Shell("sudo gpunode ctk runtime configure --runtime=crio --restart"),
        command("sudo", "rm", f"{DEAD_FOLDER}/99-nvidia.toml"),
    )


# k3s and RKE2 make the file anew at every start.


def _overwritten(snapshot: Snapshot) -> tuple[str, Verdict] | None:
    product = containerd.product(snapshot)
    if product not in {"k3s", "rke2"}:
        return None
    theirs = f"/var/lib/rancher/{product}/agent/etc/containerd/config.toml"
    edited = (
        *_edit_of_usual_file(snapshot),
        *_edit_by_ctk(snapshot, theirs),
        *_edit_by_operator(snapshot),
        *_edit_that_is_gone(snapshot),
    )
    by_hand = _edit_by_hand(snapshot)
    said = snapshot.said(_COMPLAINT)
    effective = containerd.running(snapshot) or containerd.of_files(snapshot)
    differs = effective is not None and (effective.default is None or not effective.default.value.startswith("nvidia"))
    if not (edited or by_hand) or not (said or differs):
        return None
    seen = (effective.place,) if effective is not None else ()
    summary = (
        f"{product} makes {theirs} anew at every start and reads no other file, so what was set up elsewhere is lost"
    )
    return "k3s-runtime-config-overwritten", Proof(
        summary,
        (*edited, *by_hand, *seen, *containerd.product_citation(snapshot), *said[:3]),
        "certain" if edited else "likely",
        remedy=tuple(_for_rancher(product)),
    )


def _edit_of_usual_file(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines about nvidia in the file that only a containerd on its own reads."""
    usual = containerd.file(snapshot, CONFIG)
    if usual is None:
        return ()
    lines = (*usual.handlers.items(), *((name, value.citation) for name, value in usual.binaries.items()))
    named = tuple(citation for name, citation in lines if name.startswith("nvidia"))
    default = usual.default
    return (*((default.citation,) if default and default.value.startswith("nvidia") else ()), *named)[:2]


_GONE: Final = Pattern(r"^[<-][ \t]*\[plugins\.[^\n]*runtimes\.[\"']?nvidia", re.MULTILINE)
_THERE: Final = Pattern(r"^[>+][ \t]*\[plugins\.[^\n]*runtimes\.[\"']?nvidia", re.MULTILINE)


def _edit_that_is_gone(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines about nvidia that a copy of the file has, and the file of today has not any more."""
    compared = (item for item in snapshot.items if re.search(r"\bdiff\b[^;]*config\.toml", item.written))
    lost = tuple(line for item in compared if not _THERE.search(item.text) for line in lines_with(item, _GONE))
    return tuple(dict.fromkeys(lost))


def _edit_by_ctk(snapshot: Snapshot, theirs: str) -> tuple[Citation, ...]:
    match = snapshot.match(_CONFIGURED)
    return snapshot.said(_CONFIGURED) if match is not None and match["path"] in {CONFIG, theirs} else ()


# As a step that somebody describes, or as a command with its prompt.
_BY_HAND: Final = Pattern(
    r"\b(?:vim?|nano|emacs|sed[ \t]+-i[^\n]{0,200}|tee(?:[ \t]+-a)?)[ \t]+"
    r"/var/lib/rancher/(?:k3s|rke2)/agent/etc/containerd/config\.toml(?![\w.])"
)


def _edit_by_hand(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines in which an editor opens the file that is made anew."""
    typed = (cite(item) for item in snapshot.items if _BY_HAND.search(item.written))
    told = (line for item in snapshot.items for line in lines_with(item, _BY_HAND))
    return tuple(dict.fromkeys((*typed, *told)))[:1]


# The toolkit's daemon set is told so in its environment, in the operator's values or on helm's command line.
_TOLD: Final = Pattern(
    r"(?:CONTAINERD|RUNTIME)_CONFIG\b[^\n]{0,80}?(?P<path>/var/lib/rancher/(?:k3s|rke2)/agent/etc/containerd/config\.toml)"
    r"(?!\.tmpl)"
)


def _edit_by_operator(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The lines by which the operator's toolkit writes into the file that is made anew, where nvidia is not in it."""
    effective = containerd.running(snapshot) or containerd.of_files(snapshot)
    if effective is not None and "nvidia" in effective.handlers:
        return ()
    return tuple(line for item in snapshot.items if item.is_seen for line in lines_with(item, _TOLD))


def _for_rancher(product: str) -> Iterable[Fix]:
    folder = f"/etc/rancher/{product}/config.yaml.d"
    yield run(
        "configure",
        f"{product} finds the runtime by itself; make it the default in {product}'s own settings, or name "
        "runtimeClassName: nvidia in the device plugin and in every pod that wants a GPU",
        command("sudo", "mkdir", "-p", folder),
        joined(Shell("echo 'default-runtime: nvidia' |"), command("sudo", "tee", f"{folder}/99-nvidia.yaml")),
    )
    units = ("k3s", "k3s-agent") if product == "k3s" else ("rke2-server", "rke2-agent")
    yield run(
        "restart",
        f"restart {product}; on a worker it is the agent's unit",
        command("sudo", "systemctl", "try-restart", *units),
    )


def _rancher(snapshot: Snapshot) -> Iterable[Fix]:
    yield from _for_rancher("rke2" if containerd.product(snapshot) == "rke2" else "k3s")


# The CRI plugin.


def _cri_off(snapshot: Snapshot) -> tuple[str, Verdict] | None:
    # crictl's own words stand where its answer would.
    said = (*snapshot.said(_UNIMPLEMENTED), *snapshot.said(_UNIMPLEMENTED, "containerd-config"))
    said = containerd.since_start(snapshot, said)
    files = containerd.running(snapshot), containerd.of_files(snapshot)
    parts = tuple(containerd.file(snapshot, item.subject) for item in snapshot.files("/etc/k0s/containerd*.toml"))
    off = next((one.disabled for one in (*files, *parts) if one is not None and one.disabled is not None), None)
    if off is not None and (said or _has_kubelet(snapshot)):
        summary = "containerd's CRI plugin is switched off in its configuration, so no kubelet can use it"
        return "containerd-cri-disabled", Proof(summary, (off, *said))
    if not said or snapshot.says(_NO_DEFAULT):
        return None
    if faulty := next((one for one in files if one is not None and one.fault), None):
        question = f"containerd offers no CRI, and cannot read its configuration: {faulty.fault}"
        return "containerd-cri-disabled", Doubt(
            question, (Shell("journalctl -u containerd -b"), Shell("containerd config dump")), said
        )
    version = containerd.version(snapshot)
    if version and version < (1, 6) and snapshot.says(_NEW_API):
        question = f"containerd {'.'.join(map(str, version))} is too old for this kubelet, which asks for CRI v1"
        return "containerd-cri-disabled", Doubt(
            question, (Shell("containerd --version"), Shell("kubelet --version")), said
        )
    if any(one is not None and (one.names_handlers or one.handlers) for one in files):
        question = (
            "containerd offers no CRI, and its configuration does not switch it off: why did the plugin not load?"
        )
        return "containerd-cri-disabled", Doubt(question, (Shell("journalctl -u containerd -b | grep -i cri"),), said)
    if (package := snapshot.view(packages.packages).get("containerd.io")) is None or not package.is_installed:
        question = "containerd offers no CRI: is the plugin switched off, did it not load, is containerd too old?"
        look_at = (
            command("grep", "disabled_plugins", CONFIG),
            Shell("journalctl -u containerd -b | grep -i cri"),
            Shell("containerd --version"),
        )
        return "containerd-cri-disabled", Doubt(question, look_at, said, ("containerd-nvidia-runtime-missing",))
    summary = "containerd runs without its CRI plugin, as docker's package of it has it configured"
    return "containerd-cri-disabled", Proof(summary, (*said, package.citation), "likely")


def _has_kubelet(snapshot: Snapshot) -> bool:
    """Whether a kubelet is here that uses this containerd."""
    if snapshot.says(_OTHER_RUNTIME):
        return False
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known) and kubelet.value is not None:
        return kubelet.value.kind == "kubelet" and "containerd" in kubelet.value.socket
    seen = snapshot.of("kubernetes-node", "kubernetes-pod", "kubernetes", "kubernetes-log")
    return any(item.outcome == "ok" and item.text.strip() for item in seen)


def _switch_on(_: Snapshot) -> Iterable[Fix]:
    yield run(
        "configure",
        "take the CRI plugin off the list of those disabled, register NVIDIA's runtime, and have containerd read both",
        Shell("sudo gpunode ctk runtime configure --runtime=containerd --enable-cri --restart"),
    )


# The runtime.

# nvidia-ctk from the first of these on, and before the second, takes another folder for CRI-O's.
_WRONG_FOLDER: Final = ((1, 18), (1, 19, 1))


def _missing(snapshot: Snapshot) -> tuple[str, Verdict] | None:
    there = snapshot.view(toolkit.presence)
    if there is not None and not there.is_there:
        return None
    if said := snapshot.said(_NO_HANDLER):
        if misled := [one for one in toolkit.versions(snapshot) if _WRONG_FOLDER[0] <= one.numbers < _WRONG_FOLDER[1]]:
            question = f"CRI-O has no runtime nvidia, and nvidia-ctk {misled[0]} writes it where CRI-O does not look"
            return "crio-dropin-dead", Doubt(question, (command("ls", DEAD_FOLDER, "/etc/crio/crio.conf.d"),), said)
        summary = "CRI-O has no runtime called nvidia, which pods ask for by a RuntimeClass"
        return "containerd-nvidia-runtime-missing", Proof(summary, said, "likely", remedy=_FOR_CRIO)
    said = containerd.since_start(snapshot, (*snapshot.said(_NO_RUNTIME), *snapshot.said(_NO_DEFAULT)))
    running, files = containerd.running(snapshot), containerd.of_files(snapshot)
    if (dangling := _dangling(running) or _dangling(files)) is not None:
        summary = f"containerd's default runtime is {dangling.value}, and its configuration describes none of that name"
        return "containerd-nvidia-runtime-missing", Proof(summary, (dangling.citation, *said))
    if not said:
        return _unasked(snapshot, running or files)
    if running is not None and running.is_running and "nvidia" in running.handlers and not snapshot.says(_NO_DEFAULT):
        return _has_it(said, running)
    if files is not None and "nvidia" in files.handlers:
        summary = "containerd's files describe the runtime nvidia, and the running daemon has not read them"
        return "containerd-nvidia-runtime-missing", Proof(
            summary, (*said, files.handlers["nvidia"]), "likely", remedy=(restart("containerd.service"),)
        )
    known = next((one for one in (running, files) if one is not None and one.names_handlers), None)
    cited = (*said, *((known.place,) if known is not None else ()))
    summary = "pods ask for a runtime called nvidia, and containerd's configuration describes none"
    remedy = tuple(_rancher_restarts(snapshot))
    return "containerd-nvidia-runtime-missing", Proof(summary, cited, "certain" if known else "likely", remedy=remedy)


def _unasked(snapshot: Snapshot, effective: Effective | None) -> tuple[str, Verdict] | None:
    """The runtime is missing where a device plugin found no GPU: nothing could have given it one."""
    said = snapshot.said(_NO_LIBRARY, "kubernetes-log", "text", "application")
    if effective is None or not effective.names_handlers or driver.fails(snapshot):
        return None
    if any(name.startswith("nvidia") for name in effective.handlers):
        return None
    if not said:
        return _unserved(snapshot, effective)
    if not effective.handlers:
        return None
    summary = "the device plugin finds no NVIDIA library, and containerd describes no runtime that would bring it"
    return "containerd-nvidia-runtime-missing", Proof(summary, (*said, effective.place), "likely")


def _unserved(snapshot: Snapshot, effective: Effective) -> tuple[str, Verdict] | None:
    """A live kubelet with this containerd, a driver that works and the toolkit, and no way by which a pod has a GPU."""
    kubelet, there = snapshot.facts.kubelet, snapshot.view(toolkit.presence)
    is_known = isinstance(kubelet, Known) and kubelet.value is not None and _has_kubelet(snapshot)
    if not is_known or not driver.works(snapshot) or there is None or snapshot.view(cdi.specifications):
        return None
    summary = (
        "a kubelet uses this containerd, which describes no runtime called nvidia, and there is no CDI specification: "
        "no pod can be given a GPU"
    )
    return "containerd-nvidia-runtime-missing", Proof(summary, (effective.place, there.citation), "likely")


def _has_it(said: tuple[Citation, ...], running: Effective) -> tuple[str, Verdict]:
    question = "a pod found no runtime nvidia, and `containerd config dump` names one: was containerd restarted since?"
    look_at = (
        Shell("systemctl show containerd -p ActiveEnterTimestamp"),
        Shell("ls -l /etc/containerd"),
        Shell("crictl info | grep -A3 nvidia"),
    )
    return "containerd-nvidia-runtime-missing", Doubt(question, look_at, (*said, running.handlers["nvidia"]))


def _dangling(effective: Effective | None) -> Value | None:
    """The default runtime, where it is NVIDIA's and nothing describes it."""
    if effective is None or effective.default is None or not effective.names_handlers:
        return None
    name = effective.default.value
    return effective.default if name.startswith("nvidia") and name not in effective.handlers else None


def _rancher_restarts(snapshot: Snapshot) -> Iterable[Fix]:
    product = containerd.product(snapshot)
    if product not in {"k3s", "rke2"}:
        return
    units = ("k3s", "k3s-agent") if product == "k3s" else ("rke2-server", "rke2-agent")
    yield run(
        "restart",
        f"restart {product}: it looks for nvidia-container-runtime when it starts, and registers it by itself",
        command("sudo", "systemctl", "try-restart", *units),
    )


_FOR_CRIO: Final = (
    run(
        "configure",
        "register the runtime with CRI-O, and have it read that",
        Shell("sudo gpunode ctk runtime configure --runtime=crio --restart"),
    ),
)


def _register(snapshot: Snapshot) -> Iterable[Fix]:
    yield run("configure", "register NVIDIA's runtime, and have containerd read that", _COMMAND)
    yield run("inspect", "see what containerd reads", _DUMP.get(containerd.product(snapshot), _DUMPED))


# A containerd that a product brings is not on the path, and another one's dump would say what that one reads.
_DUMPED: Final = Shell("sudo containerd config dump | grep -A4 runtimes.nvidia")
_DUMP: Final = {
    name: command("sudo", "grep", "-A4", "nvidia", place)
    for name, place in (
        ("k3s", "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"),
        ("rke2", "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"),
        ("microk8s", "/var/snap/microk8s/current/args/containerd.toml"),
        ("k0s", "/etc/k0s/containerd.toml"),
    )
}


# cgroup drivers.

_DRIVERS_DIFFER: Final = Pattern(
    r"kubelet cgroup driver: [\\\"]*(?P<kubelet>systemd|cgroupfs)[\\\"]* is different from docker cgroup driver: "
    r"[\\\"]*(?P<docker>systemd|cgroupfs)"
)
_PATH_FORMAT: Final = Pattern(
    r"expected cgroupsPath to be of format [\\\"]*slice:prefix:name|invalid slice name: /kubepods"
)
_COME_AND_GO: Final = Pattern(
    r"CrashLoopBackOff|SandboxChanged|Pod sandbox changed|Back-off restarting failed container"
)
_KUBELET: Final = Pattern(
    r"^[ \t]*cgroupDriver:\s*[\"']?(?P<a>systemd|cgroupfs)|--cgroup-driver[= ](?P<b>systemd|cgroupfs)", re.MULTILINE
)


def _cgroup_drivers(snapshot: Snapshot) -> Iterator[Verdict]:
    if (match := snapshot.match(_DRIVERS_DIFFER)) is not None:
        summary = (
            f"the kubelet uses the cgroup driver {match['kubelet']}, docker {match['docker']}, so it does not start"
        )
        yield Proof(summary, snapshot.said(_DRIVERS_DIFFER), remedy=_DOCKERS_DRIVER)
        return
    effective = containerd.running(snapshot) or containerd.of_files(snapshot)
    if effective is not None and (proof := _differ(snapshot, effective) or _unlike_runc(snapshot, effective)):
        yield proof
    elif said := snapshot.said(_PATH_FORMAT):
        summary = "the runtime is under systemd's cgroup driver, and what starts the pod under cgroupfs"
        yield Proof(summary, said, "likely")


def _differ(snapshot: Snapshot, effective: Effective) -> Proof | None:
    """The runtime nvidia is under another cgroup driver than the kubelet."""
    if (kubelet := _kubelets(snapshot)) is None:
        return None
    driver, place = kubelet
    said = effective.systemd_cgroup.get("nvidia")
    if said is None and ("nvidia" not in effective.handlers or not effective.names_handlers):
        return None
    is_systemd = said is not None and said.is_true
    if is_systemd == (driver == "systemd"):
        return None
    where = said.citation if said is not None else effective.handlers["nvidia"]
    runc = effective.systemd_cgroup.get("runc")
    ruled = ("a kubelet that differs from every runtime: runc's entry agrees with it",) if runc and runc.is_true else ()
    summary = (
        f"the kubelet runs pods under {driver}, and containerd's runtime nvidia "
        f"{'under systemd' if is_systemd else 'under cgroupfs: SystemdCgroup is not true in its options'}"
    )
    return Proof(summary, (where, place), "certain" if said is not None else "likely", ruled)


def _unlike_runc(snapshot: Snapshot, effective: Effective) -> Proof | None:
    """The two runtimes of one kubelet differ, and pods come and go."""
    runc, nvidia = effective.systemd_cgroup.get("runc"), effective.systemd_cgroup.get("nvidia")
    said = snapshot.said(_COME_AND_GO)
    if not said or runc is None or nvidia is None or runc.is_true == nvidia.is_true:
        return None
    summary = "containerd's runtimes runc and nvidia are under different cgroup drivers, and the kubelet has one"
    return Proof(summary, (nvidia.citation, runc.citation, *said[:2]), "likely")


def _kubelets(snapshot: Snapshot) -> tuple[CgroupDriver, Citation] | None:
    """The cgroup driver of the kubelet, where something names it."""
    for item in snapshot.items:
        about = item.kind in {"file", "kubernetes", "unit-file", "unit-status", "text", "unit-log"}
        if about and item.where == "host" and "kubelet" in f"{item.written} {item.text[:400]}".lower():
            for citation in lines_with(item, _KUBELET):
                match = _KUBELET.search(citation.line)
                if match is not None:
                    return ("systemd" if "systemd" in match[0] else "cgroupfs"), citation
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known) and kubelet.value is not None and kubelet.value.cgroup_driver is not None:
        driver = kubelet.value.cgroup_driver
        return driver, stated("the kubelet's configuration", f"cgroup driver {driver}", kubelet.probe)
    return None


_DOCKERS_DRIVER: Final = (
    by_hand(
        "configure",
        'say the same in both: "exec-opts": ["native.cgroupdriver=systemd"] in /etc/docker/daemon.json, and '
        "cgroupDriver: systemd in /var/lib/kubelet/config.yaml",
    ),
    run("restart", "restart both", Shell("sudo systemctl restart docker kubelet")),
)


def _same_driver(snapshot: Snapshot) -> Iterable[Fix]:
    kubelet = _kubelets(snapshot)
    if kubelet is not None and kubelet[0] == "cgroupfs":
        yield by_hand(
            "configure",
            f"say cgroupDriver: systemd in the kubelet's configuration, or SystemdCgroup = false in {CONFIG}: "
            "the same in both, and systemd where the system runs on it",
        )
    elif takes_gpunode(snapshot):
        yield run(
            "configure",
            "put the runtimes under the kubelet's cgroup driver, systemd; gpunode keeps the rest of the file",
            Shell("sudo gpunode setup k8s-containerd --only runtime-config"),
        )
    else:
        say = f"say SystemdCgroup = true in the options of runc and of nvidia in {CONFIG}"
        yield by_hand("configure", f"{say}, and cgroupDriver: systemd in /var/lib/kubelet/config.yaml")
    yield run("restart", "restart containerd, then the kubelet", Shell("sudo systemctl restart containerd kubelet"))


FAMILY: Final = Family(
    "containerd",
    "containerd and CRI-O",
    (
        Rule(
            cause="containerd-cri-disabled",
            layer="runtime",
            storey="runtime",
            severity="error",
            disruption="restart-service",
            title="containerd's CRI plugin is switched off",
            symptoms=(
                symptoms.DAEMON_DOWN,
                symptoms.CONTAINER_FAILED,
            ),
            look_at=(Shell("grep disabled_plugins /etc/containerd/config.toml"),),
            story=(
                'docker\'s package containerd.io ships a configuration with disabled_plugins = ["cri"], since docker '
                "has no use for that plugin. A kubelet has: without it kubeadm and crictl say `unknown service "
                "runtime.v1.RuntimeService`, and whatever the file says of runtimes has no effect."
            ),
            sources=(
                "https://github.com/containerd/containerd/issues/4581",
                "https://kubernetes.io/docs/setup/production-environment/container-runtimes/#containerd",
            ),
            check=only("containerd-cri-disabled", _decide),
            remedy=_switch_on,
            explains=NO_RUNTIME | {"containerd-nvidia-runtime-missing"},
        ),
        Rule(
            cause="containerd-nvidia-runtime-missing",
            layer="runtime",
            storey="runtime",
            severity="error",
            disruption="restart-service",
            title="containerd has no runtime called nvidia",
            share=2,
            symptoms=(
                symptoms.NO_RUNTIME,
                symptoms.CONTAINER_FAILED,
                symptoms.NO_CAPACITY,
            ),
            look_at=(Shell("sudo containerd config dump | grep -A3 nvidia"),),
            story=(
                "A RuntimeClass only names a handler; containerd has to describe it, in the file that its daemon "
                "really reads. Installing the toolkit does not do that, a drop-in in a folder that nothing imports "
                "does not either, and a changed file counts from the next start on. The pod stays in ContainerCreating."
            ),
            sources=(
                "https://github.com/NVIDIA/gpu-operator/issues/730",
                f"{TOOLKIT_GUIDE}#configuring-containerd-for-kubernetes",
            ),
            check=only("containerd-nvidia-runtime-missing", _decide),
            remedy=_register,
            explains=NO_RUNTIME,
        ),
        Rule(
            cause="cgroup-driver-mismatch",
            layer="config",
            storey="runtime",
            severity="error",
            disruption="restart-service",
            title="kubelet and runtime use different cgroup drivers",
            symptoms=(
                symptoms.CONTAINER_FAILED,
                symptoms.DAEMON_DOWN,
            ),
            look_at=(
                Shell("grep cgroupDriver /var/lib/kubelet/config.yaml"),
                Shell("sudo containerd config dump | grep SystemdCgroup"),
            ),
            story=(
                "The kubelet and the runtime that starts its pods must manage cgroups in the same way. nvidia-ctk that "
                "finds no file to copy from writes an entry without SystemdCgroup, which means cgroupfs: pods of that "
                "runtime are then started and killed again, at first the system's own ones after a reboot."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-docker/issues/1788",
                "https://kubernetes.io/docs/setup/production-environment/container-runtimes/#cgroup-drivers",
            ),
            check=_cgroup_drivers,
            remedy=_same_driver,
        ),
        Rule(
            cause="k3s-runtime-config-overwritten",
            layer="runtime",
            storey="runtime",
            severity="error",
            disruption="restart-service",
            title="k3s or RKE2 does not read the containerd file that was edited",
            share=1,
            symptoms=(
                symptoms.NO_RUNTIME,
                symptoms.NO_CAPACITY,
                symptoms.PLUGIN_FAILS,
            ),
            look_at=(Shell("sudo grep nvidia /var/lib/rancher/k3s/agent/etc/containerd/config.toml"),),
            story=(
                "k3s and RKE2 run a containerd of their own, and make its configuration anew at every start, of a "
                "template and of the runtimes that they find. /etc/containerd/config.toml means nothing to them, and "
                "an edit of their config.toml is gone after a restart. They register nvidia by themselves, but do not "
                "make it the default."
            ),
            sources=(
                f"{DEVICE_PLUGIN}/issues/406",
                "https://docs.k3s.io/advanced#nvidia-container-runtime",
            ),
            check=only("k3s-runtime-config-overwritten", _decide),
            remedy=_rancher,
            explains=NO_RUNTIME | {"containerd-nvidia-runtime-missing", "cgroup-driver-mismatch"},
        ),
        Rule(
            cause="crio-dropin-dead",
            layer="runtime",
            storey="runtime",
            severity="error",
            disruption="restart-service",
            title="CRI-O's drop-in lies where CRI-O never looks",
            symptoms=(
                symptoms.NO_RUNTIME,
                symptoms.NO_CAPACITY,
                symptoms.PLUGIN_FAILS,
            ),
            look_at=(Shell("sudo crio status config | grep -A3 nvidia"),),
            story=(
                "nvidia-ctk 1.18.0 to 1.19.0 wrote CRI-O's drop-in to /etc/crio/conf.d; CRI-O reads "
                "/etc/crio/crio.conf.d. The command reports success, a restart changes nothing, and pods fail with "
                "`failed to find runtime handler nvidia`. Later toolkits write to the right folder and leave the dead "
                "file behind."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-container-toolkit/pull/1829",
                "https://github.com/NVIDIA/gpu-operator/issues/2236",
            ),
            check=only("crio-dropin-dead", _decide),
            remedy=_move,
            explains=NO_RUNTIME | {"containerd-nvidia-runtime-missing"},
        ),
    ),
)
