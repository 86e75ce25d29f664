"""containerd, CRI-O and device cgroups: GPUs that a runtime cannot reach, and GPUs that a container loses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.container_runtimes import UNREAD_FOLDER
from gpunode.diagnoses import symptoms
from gpunode.diagnoses.cluster import restart_rancher
from gpunode.diagnoses.commands import Shell, command, join_commands
from gpunode.diagnoses.consequences import NO_CLUSTER_GPU, NO_RUNTIME
from gpunode.diagnoses.evaluation import is_examined_by_gpunode
from gpunode.diagnoses.model import Citation, Fix, Rule, Sign
from gpunode.diagnoses.remedies import can_run_setup, make_fixed_remedy, manual_step, restart_unit, run_step
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
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with
from gpunode.diagnoses.views import cdi, driver, runtimes, toolkit
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.runtimes import documents

_EXAMINED_BY_GPUNODE: Final = predicate(is_examined_by_gpunode, "gpunode examined the node itself")
_CONTAINERD_OF_RANCHER: Final = custom_sign(
    lambda snapshot: (
        runtimes.product_lines(snapshot) if runtimes.containerd_product(snapshot) in {"k3s", "rke2"} else ()
    )
)
_RANCHER_MENTIONED: Final = any_of(
    _CONTAINERD_OF_RANCHER, message_line(r"(?i)(?<!not )(?<!no )\b(?:rke2|k3s)\b(?: v?\d| cluster| node)")
)
# The operator's toolkit pod if it was not told of such a containerd: its socket is elsewhere, its file is a template.
_TOOLKIT_POD_FAILS: Final = message_line(
    r"unable to dial: dial unix /runtime/sock-dir/containerd\.sock: connect: no such file"
    r"|nvidia[^\n]*unable to load config: \(\d+, \d+\): [^\n]*keys cannot contain \{"
)

# The CRI plugin. crictl prints its own error if the plugin does not answer.

_CRI_NOT_SERVED: Final = (
    r"unknown service runtime\.v1(?:alpha2)?\.(?:Runtime|Image)Service|CRI v1 \w+ API is not implemented"
)
_CRI_UNIMPLEMENTED: Final = any_of(message_line(_CRI_NOT_SERVED), message_line(_CRI_NOT_SERVED, "containerd-config"))
_CRI_PLUGIN_DISABLED: Final = any_line(
    r"^[^#\n]*disabled_plugins\s*=\s*\[[^\]\n]*[\"'](?:cri|io\.containerd\.(?:grpc\.v1\.cri|cri\.v1\.runtime))[\"']"
)
_OTHER_KUBELET_RUNTIME: Final = message_line(r"\b(?:cri-o|docker)://\d|\bcri-dockerd\b|/crio/crio\.sock")


def _uses_plain_containerd(snapshot: Snapshot) -> bool:
    """Return whether a kubelet uses this containerd, and not one bundled with a product."""
    kubelet = snapshot.facts.kubelet
    if isinstance(kubelet, Known):
        return kubelet.value is not None and kubelet.value.kind == "kubelet" and "containerd" in kubelet.value.socket
    pods = snapshot.items_of("kubernetes-node", "kubernetes-pod", "kubernetes", "kubernetes-log")
    is_seen = any(item.outcome == "ok" and item.text.strip() for item in pods)  # a failed query proves nothing
    return is_seen and runtimes.containerd_product(snapshot) == "containerd"


_KUBELET_USES_CONTAINERD: Final = unless(
    predicate(_uses_plain_containerd, "a kubelet uses this containerd"), _OTHER_KUBELET_RUNTIME
)

# The configuration file: containerd's complaints, and a complete file that is not valid TOML.

_CONFIG_REJECTED_BY_CONTAINERD: Final = message_line(
    r"containerd[^\n]{0,200}(?:failed to (?:load|parse|unmarshal) TOML|toml: "
    r"|drop-in config version \d+ higher than root)"
    r"|failed to load TOML[^\n]{0,120}containerd|drop-in config version \d+ higher than root config version \d+"
    r"|containerd: [^\n]{0,120}unsupported config version"
)
# Also with text by the author before or after it, or with line numbers.
_PASTED_EXCERPT: Final = Pattern(
    r"(?mi)^[ \t]*(?:[\[(]?(?:\.{3}|…|snip)|\d{1,4}(?:[:-]|\s)|[<>─-]|[a-z][\w'’]*,? [a-z][^=\n]*$)|\{\{"
)
# A glob, or two names.
_SEVERAL_FILES: Final = Pattern(r"[*?{]|/\S*\s+/")


def _invalid_toml_lines(snapshot: Snapshot, *globs: str) -> Iterator[Citation]:
    """Yield the line at which a completely shown file of ``globs`` is not valid TOML."""
    for item in (item for glob in globs for item in snapshot.files(glob)):
        is_whole = item.outcome == "ok" and item.where == "host" and not (item.source.pattern or item.source.is_part)
        is_excerpt = _SEVERAL_FILES.search(item.written) or _PASTED_EXCERPT.search(item.text)
        if is_whole and (is_examined_by_gpunode(snapshot) or not is_excerpt):
            # In a paste without file names other output may follow the file.
            text = item.text if item.subject in item.written else item.text.lstrip().partition("\n\n")[0]
            try:
                documents.parse_toml(text)
            except (ValueError, RecursionError) as error:
                at = _TOML_ERROR_LINE.search(str(error))
                # Without a line the parser names the end of the document.
                yield cite(item, min(int(at["line"]), len(item.lines)) if at else len(item.text.rstrip().split("\n")))


_TOML_ERROR_LINE: Final = Pattern(r"\(at line (?P<line>\d{1,6})")
_UNIT_ACTIVE: Final = message_line(r"Active: active \(running\)|^ActiveState=active$", "unit-status", "unit-show")


def _running(unit: str) -> Sign:
    """Return the sign that ``unit`` is running."""

    def is_running(snapshot: Snapshot) -> bool:
        known_unit = snapshot.facts.unit(unit)
        if isinstance(known_unit, Known):
            return known_unit.value.state.active
        return any(unit.removesuffix(".service") in active.source for active in snapshot.view(_UNIT_ACTIVE))

    return predicate(is_running, f"{unit} runs")


_RUNTIME_TYPE_MISSING: Final = message_line(r"container\.Runtime\.Name must be set")


# The runtime. A RuntimeClass or the default names it, and containerd's configuration defines it.

_NVIDIA_RUNTIME_UNKNOWN: Final = message_line(r"no runtime for [\\\"']*nvidia[\w.-]*[\\\"']* is configured")
_NO_HANDLER: Final = message_line(r"failed to find runtime handler [\\\"']*nvidia")
_NVIDIA_DEFAULT_REJECTED: Final = message_line(
    r"no corresponding runtime configured in `?containerd\.runtimes`? for `?containerd`? "
    r"`?default_runtime_name ?= ?[\\\"']*nvidia"
)


def _kubelet_runtime_without_gpus(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield evidence of a kubelet whose driver and toolkit work but whose pods get no GPU."""
    is_live = isinstance(snapshot.facts.kubelet, Known) and bool(snapshot.view(_KUBELET_USES_CONTAINERD))
    if is_live and driver.works(snapshot) and not snapshot.view(cdi.cdi_specifications):
        yield from snapshot.view(all_of(_NVIDIA_NOT_CONFIGURED, toolkit.presence_lines))


def _config_sign(pattern: str) -> Sign:
    """Return the sign of a match in containerd's configuration: TOML of any schema, or crictl's JSON."""
    compiled = Pattern(pattern, re.MULTILINE)
    return custom_sign(
        lambda node: (one for item in node.view(runtimes.containerd_config_items) for one in lines_with(item, compiled))
    )


_ANY_HANDLER: Final = r"runtimes\.[\"']?[\w-]+|\"runtimes\"\s*:\s*\{"
_NVIDIA_HANDLER: Final = (
    r"runtimes\.[\"']?nvidia|\"nvidia[\w-]*\"\s*:\s*\{[\s\n]*\"(?:options|runtime)|\"runtimes\": *\[[^\]]*\"nvidia"
)
_ANY_HANDLER_IN_CONFIG: Final = _config_sign(_ANY_HANDLER)
_NVIDIA_HANDLER_IN_CONFIG: Final = _config_sign(_NVIDIA_HANDLER)
_NVIDIA_IN_LIVE_CONFIG: Final = message_line(_NVIDIA_HANDLER, "containerd-config")
_COMPLETE_CONFIG_SHOWN: Final = custom_sign(runtimes.complete_containerd_config)
_NVIDIA_NOT_CONFIGURED: Final = any_of(
    unless(_COMPLETE_CONFIG_SHOWN, _NVIDIA_HANDLER_IN_CONFIG),
    command_run(r"\b(?:containerd|crictl)\b.*(?:dump|info|\.toml).*grep.*nvidia", empty=True),
)
# A runtime class as YAML, and as kubectl's table with name, handler and age.
_RUNTIME_CLASS_SEEN: Final = any_line(r"^[ \t]*[\"']?handler[\"']?:\s*[\"']?nvidia|^nvidia\S*\s+nvidia\S*\s+\d")
_PLUGIN_WITHOUT_NVML: Final = unless(
    message_line(
        r"could not load NVML library|Incompatible (?:platform|strategy) detected|did you configure the NVIDIA Contain",
        *("kubernetes-log", "text", "application"),
    ),
    custom_sign(lambda snapshot: (line for state, line in snapshot.view(driver.smi_states) if state != "works")),
)


def _register_runtime(snapshot: Snapshot) -> Iterable[Fix]:
    product = runtimes.containerd_product(snapshot)
    if snapshot.view(_NO_HANDLER):
        yield _REGISTER_RUNTIME_FOR_CRIO
    elif product in {"k3s", "rke2"}:
        yield restart_rancher(product, "which finds nvidia-container-runtime at its start and registers it itself")
    elif snapshot.view(_NVIDIA_HANDLER_IN_CONFIG):
        yield restart_unit("containerd.service")
    else:
        text = "register NVIDIA's runtime, and restart containerd to read it"
        yield run_step("configure", text, Shell("sudo gpunode ctk runtime configure --runtime=containerd --restart"))


_REGISTER_RUNTIME_FOR_CRIO: Final = run_step(
    "configure",
    "register the runtime where CRI-O reads it, and restart CRI-O",
    Shell("sudo gpunode ctk runtime configure --runtime=crio --restart"),
)
# cgroup drivers.


def _kubelet_cgroup_driver(driver: str) -> Sign:
    """Return the sign that the kubelet uses ``driver`` as its cgroup driver."""
    return any_of(
        any_line(rf"^[ \t]*(?:\S+:)?cgroupDriver:\s*[\"']?{driver}|--cgroup-driver[= ]{driver}"),
        predicate(lambda node: _configured_cgroup_driver(node) == driver, f"the kubelet's cgroup driver is {driver}"),
    )


def _configured_cgroup_driver(snapshot: Snapshot) -> str | None:
    kubelet = snapshot.facts.kubelet
    return kubelet.value.cgroup_driver if isinstance(kubelet, Known) and kubelet.value is not None else None


# Without this option the runtime uses cgroupfs.
_SYSTEMD_CGROUP_OPTION: Final = (
    r"(?:runtimes\.[\"']?nvidia[\"']?\.options\](?:\n(?![ \t]*(?:\d+[:-])?[ \t]*\[)[^\n]*){0,20}?\n[^\n]*?"
    r"|\"nvidia\"\s*:\s*\{[^}]*?)SystemdCgroup\"?\s*[=:]\s*"
)
_NVIDIA_USES_SYSTEMD_CGROUP: Final = _config_sign(rf"{_SYSTEMD_CGROUP_OPTION}true")
_NVIDIA_USES_CGROUPFS: Final = any_of(
    _config_sign(rf"{_SYSTEMD_CGROUP_OPTION}false"),
    unless(all_of(_NVIDIA_HANDLER_IN_CONFIG, _COMPLETE_CONFIG_SHOWN), _NVIDIA_USES_SYSTEMD_CGROUP),
)
_KUBELET_USES_SYSTEMD_CGROUP: Final = _kubelet_cgroup_driver("systemd")
_KUBELET_USES_CGROUPFS: Final = _kubelet_cgroup_driver("cgroupfs")
_CGROUP_DRIVERS_DIFFER: Final = any_of(
    all_of(_NVIDIA_USES_CGROUPFS, _KUBELET_USES_SYSTEMD_CGROUP),
    all_of(_NVIDIA_USES_SYSTEMD_CGROUP, _KUBELET_USES_CGROUPFS),
)
_DOCKER_CGROUP_DRIVER_DIFFERS: Final = message_line(
    r"kubelet cgroup driver: [\\\"]*\w+[\\\"]* is different from docker cgroup driver"
)
_PODS_IN_CRASH_LOOP: Final = message_line(
    r"CrashLoopBackOff|SandboxChanged|Pod sandbox changed|Back-off restarting failed container"
)
_SYSTEM_PODS_IN_CRASH_LOOP: Final = message_line(
    r"kube-(?:apiserver|controller|scheduler|proxy|system|flannel)[^\n]{0,200}CrashLoopBackOff"
)
# Only one side's cgroup driver is known, while system pods keep restarting.
_ONE_CGROUP_DRIVER_SEEN: Final = any_of(
    unless(_NVIDIA_USES_CGROUPFS, _KUBELET_USES_SYSTEMD_CGROUP, _KUBELET_USES_CGROUPFS),
    unless(any_of(_KUBELET_USES_SYSTEMD_CGROUP, _KUBELET_USES_CGROUPFS), _ANY_HANDLER_IN_CONFIG, _EXAMINED_BY_GPUNODE),
)


def _fix_cgroup_driver(snapshot: Snapshot) -> Iterable[Fix]:
    if can_run_setup(snapshot) and not snapshot.view(any_of(_KUBELET_USES_CGROUPFS, _DOCKER_CGROUP_DRIVER_DIFFERS)):
        text = "set the runtimes to the kubelet's cgroup driver, systemd; gpunode keeps the rest of the file"
        yield run_step("configure", text, Shell("sudo gpunode setup k8s-containerd --only runtime-config"))
    else:
        text = "set the same in both: SystemdCgroup = true in containerd's options of runc and nvidia, or for docker "
        text += (
            '"exec-opts": ["native.cgroupdriver=systemd"], and cgroupDriver: systemd in /var/lib/kubelet/config.yaml'
        )
        yield manual_step("configure", text)
    yield run_step("restart", "restart the runtime and the kubelet", Shell("sudo systemctl restart containerd kubelet"))


# k3s and RKE2 regenerate the file at every start.

_RANCHER_CONFIG: Final = r"/var/lib/rancher/(?:k3s|rke2)/agent/etc/containerd/config\.toml(?![\w.])"
_GENERATED_CONFIG_EDITED: Final = any_of(
    file_line("/etc/containerd/config.toml", r"^[^#\n]*nvidia"),
    message_line(
        rf"(?:Wrote updated config to|Loading config from) (?:/etc/containerd/config\.toml|{_RANCHER_CONFIG})"
    ),
    any_line(rf"\b(?:vim?|nano|emacs|sed[ \t]+-i[^\n]{{0,200}}|tee(?:[ \t]+-a)?)[ \t]+{_RANCHER_CONFIG}"),
    any_line(r"^[<-][ \t]*\[plugins\.[^\n]*runtimes\.[\"']?nvidia"),
    # The operator's toolkit reads the path from its environment, the operator's values or helm's command line.
    unless(any_line(rf"(?:CONTAINERD|RUNTIME)_CONFIG\b[^\n]{{0,80}}?{_RANCHER_CONFIG}"), _NVIDIA_HANDLER_IN_CONFIG),
)


def _set_rancher_default(snapshot: Snapshot) -> Iterable[Fix]:
    product = "rke2" if runtimes.containerd_product(snapshot) == "rke2" else "k3s"
    folder = f"/etc/rancher/{product}/config.yaml.d"
    yield run_step(
        "configure",
        f"{product} finds the runtime by itself; make it the default in {product}'s own settings, or set "
        "runtimeClassName: nvidia in the device plugin and in every pod that needs a GPU",
        command("sudo", "mkdir", "-p", folder),
        join_commands(Shell("echo 'default-runtime: nvidia' |"), command("sudo", "tee", f"{folder}/99-nvidia.yaml")),
    )
    yield restart_rancher(product, "on a worker its agent")


# CRI-O. nvidia-ctk 1.18 up to, not including, 1.19.1 writes its drop-in into a folder that CRI-O does not read.

_NVIDIA_DROP_IN_LINE: Final = Pattern(r"(?m)nvidia[^\n]*(?:\.toml|\]|=)")


def _unread_drop_in_lines(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield NVIDIA's drop-in in a listing or a search of the folder."""
    items = (item for item in snapshot.items_of("file", "listing") if UNREAD_FOLDER in f"{item.subject} {item.written}")
    return (found for item in items if item.outcome == "ok" for found in lines_with(item, _NVIDIA_DROP_IN_LINE))


_CRIO_DROP_IN_UNREAD: Final = any_of(
    custom_sign(_unread_drop_in_lines),
    message_line(rf"(?:Wrote|Writing|Created) [^\n]{{0,60}}{UNREAD_FOLDER}/|^{UNREAD_FOLDER}/[\w-]*nvidia\S*$"),
)
# CRI-O reads every file of its folder regardless of its name, and does not start if one is not valid TOML.
_CONFIG_REJECTED_BY_CRIO: Final = message_line(r"unable to decode configuration [\\\"']*/\S*crio")
_CRIO_CONFIGURED: Final = file_line("/etc/crio/crio.conf*", r"runtimes\.[\"']?nvidia")
_TOOLKIT_USES_UNREAD_FOLDER: Final = custom_sign(
    lambda snapshot: (
        one.citation for one in snapshot.view(toolkit.toolkit_versions) if (1, 18) <= one.numbers < (1, 19, 1)
    )
)


_CONTAINER_WORDS: Final = Pattern(r"(?i)\b(?:containers?|pods?|docker|podman|crictl|nerdctl|kubectl)\b")
_WORKING_SMI_OUTPUT: Final = Pattern(r"(?m)Driver Version\s*:|^GPU \d+: ")
_CONTAINER_KINDS: Final = frozenset({"container-run", "kubernetes-log", "kubernetes-pod", "application", "kubernetes"})


def _container_lines(snapshot: Snapshot, pattern: Pattern) -> Iterator[Citation]:
    """Yield matching lines from containers, from commands in them, and from reports about them.

    If nvidia-smi works in the same paste, the failure is a container's.
    """
    for item in snapshot.items:
        is_inside = item.where == "container" or item.kind in _CONTAINER_KINDS or _CONTAINER_WORDS.search(item.written)
        tells = item.kind == "text" and _CONTAINER_WORDS.search(item.text)
        is_both = (
            item.kind in {"text", "nvidia-smi"}
            and "nvidia-smi" not in item.written
            and _WORKING_SMI_OUTPUT.search(item.text)
        )
        if item.was_answered and (is_inside or tells or is_both):
            yield from lines_with(item, pattern)


_NVML_UNKNOWN_ERROR: Final = Pattern(r"NVML[^\n]{0,20}: Unknown Error")
_NVML_FORBIDDEN: Final = Pattern(r"(?i)(?:NVML|nvml error)[^\n]{0,10}: insufficient permissions")
_CONTAINER_LOST_GPU: Final = custom_sign(lambda snapshot: _container_lines(snapshot, _NVML_UNKNOWN_ERROR))
_SYSTEMD_RELOADED: Final = any_of(
    message_line(r"systemd\[1\]: Reload(?:ing|ed)(?:\.|\s*$| requested| finished)|systemctl daemon-reload"),
    command_run(r"daemon-reload"),
)
# The device is known but may not be opened: cgroup v1 lists it without read and write access.
_NVIDIA_DEVICES_NOT_ALLOWED: Final = any_line(r"^[ \t]*c 195:\* m\s*$")
_SYSTEMD_CGROUP_DRIVER_USED: Final = message_line(
    r"Cgroup Driver:\s*systemd|cgroupManager:\s*systemd|native\.cgroupdriver=systemd|SystemdCgroup = true"
)


_RESTART_LOST_CONTAINERS: Final = make_fixed_remedy(
    manual_step("restart", "restart the containers that lost their GPU; they get it back when they start"),
    run_step(
        "configure",
        "make the devices known to systemd: links in /dev/char, now and whenever the driver is loaded",
        Shell("sudo nvidia-ctk system create-dev-char-symlinks --create-all"),
        Shell(
            'echo \'ACTION=="add", DEVPATH=="/bus/pci/drivers/nvidia", RUN+="/usr/bin/nvidia-ctk system '
            "create-dev-char-symlinks --create-all\"' | sudo tee /etc/udev/rules.d/71-nvidia-dev-char.rules"
        ),
    ),
    manual_step("configure", "or use CDI devices, which are part of the container's own specification"),
)

# Links in /dev/char.

_DEV_CHAR_LINKS_NOT_CREATED: Final = message_line(
    r"error creating (?:symlink creator|symlinks)|Failed to create symlinks under /dev/char"
    r"|failed to create NVIDIA device nodes|create-dev-char-symlinks[^\n]{0,80}(?:no NVIDIA devices found|failed)"
    r"|Couldn't stat device /dev/char/(?:195|23\d|50\d|51\d):\d+|/dev/char/195:\d+: No such file"
)


# SELinux.

# Whoever gives containerd a runtime wants its CRI plugin; docker needs neither.
_CONFIGURED_FOR_CONTAINERD: Final = command_run(r"nvidia-ctk runtime configure\b.*--runtime[= ]containerd")
_SELINUX_PERMISSIVE: Final = message_line(
    r"(?i)^[ \t]*(?:Enforcing Mode\s+|Current mode:\s*)?(?:Permissive|Disabled)\s*$", *("audit", "text", "application")
)
_SELINUX_DENIAL: Final = unless(
    message_line(
        r"avc:\s+denied\s+\{[^}\n]{1,80}\}[^\n]{0,200}?(?:(?:name|path)=\"?(?:/dev/)?nvidia[\w-]*|\bcomm=\"nvidia-[\w-]+\")"
        r"(?=[^\n]*(?:context=\S{0,200}:(?:container|svirt|spc)\w*_t\b|xserver_misc_device_t|nvidia_device_t|:device_t))"
        r"(?![^\n]*permissive=1)"
        r"|Target Objects\s+/dev/nvidia\S*|SELinux is preventing \S+ from [^\n]{1,80}\bnvidia(?:\d|ctl|-\w+)"
    ),
    _SELINUX_PERMISSIVE,
)
_SELINUX_ENFORCING: Final = message_line(
    r"(?i)^[ \t]*Enforcing\s*$|Current mode:\s*enforcing|Enforcing Mode\s+Enforcing|selinux: enforcing"
)
_NVML_DENIED_IN_CONTAINER: Final = unless(
    custom_sign(
        lambda snapshot: (
            one for one in _container_lines(snapshot, _NVML_FORBIDDEN) if not re.search("label[=:]disable", one.source)
        )
    ),
    symptoms.NO_DRIVER,
    _SELINUX_PERMISSIVE,
    message_line(r"^crw-[r-][w-]-[r-]--[.+@]?\s.*nvidia(?:\d|ctl)|\bMIG\b", "listing", "text", "nvidia-smi"),
)

_rule = partial(Rule, layer="runtime")

RULES: Final = (
    _rule(
        cause="containerd-cri-disabled",
        disruption="restart-service",
        decisive=unless(
            # Docker's containerd package disables the plugin, since docker does not use it.
            all_of(_CRI_PLUGIN_DISABLED, any_of(_CRI_UNIMPLEMENTED, _KUBELET_USES_CONTAINERD)),
            _CONTAINERD_OF_RANCHER,
        ),
        typical=any_of(
            unless(_CRI_UNIMPLEMENTED, _NVIDIA_DEFAULT_REJECTED),
            unless(
                all_of(_CRI_PLUGIN_DISABLED, _CONFIGURED_FOR_CONTAINERD),
                *(_CONTAINERD_OF_RANCHER, symptoms.CONTAINER_WORKS),
            ),
        ),
        symptoms=(_CRI_UNIMPLEMENTED, all_of(_CRI_PLUGIN_DISABLED, _KUBELET_USES_CONTAINERD)),
        against=(unless(_OTHER_KUBELET_RUNTIME, _CRI_UNIMPLEMENTED),),
        may_be_normal=True,
        look_at=(Shell("grep disabled_plugins /etc/containerd/config.toml"),),
        remedy=make_fixed_remedy(
            run_step(
                "configure",
                "remove the CRI plugin from disabled_plugins, register NVIDIA's runtime, and restart containerd",
                Shell("sudo gpunode ctk runtime configure --runtime=containerd --enable-cri --restart"),
            )
        ),
        explains=NO_RUNTIME | {"containerd-nvidia-runtime-missing"},
    ),
    _rule(
        cause="containerd-config-invalid",
        disruption="restart-service",
        decisive=_CONFIG_REJECTED_BY_CONTAINERD,
        typical=custom_sign(lambda snapshot: _invalid_toml_lines(snapshot, "*containerd/*.toml")),
        against=(_running("containerd.service"),),
        look_at=(Shell("sudo containerd config dump"), Shell("sudo journalctl -u containerd -b -n 20")),
        remedy=make_fixed_remedy(
            run_step("inspect", "let containerd say what is wrong", Shell("sudo containerd config dump")),
            manual_step(
                "configure",
                "correct the line, or give the drop-in the version of the file that imports it; for NVIDIA's "
                "drop-in let gpunode write it again",
            ),
            restart_unit("containerd.service"),
        ),
        explains=NO_RUNTIME | {"containerd-nvidia-runtime-missing", "containerd-cri-disabled"},
    ),
    _rule(
        cause="containerd-runtime-entry-incomplete",
        disruption="restart-service",
        decisive=_RUNTIME_TYPE_MISSING,
        symptoms=(_RUNTIME_TYPE_MISSING, symptoms.CONTAINER_FAILED),
        look_at=(Shell("sudo containerd config dump | grep -A6 'runtimes.nvidia'"),),
        remedy=make_fixed_remedy(
            run_step(
                "configure",
                "write the whole entry, and restart containerd to read it",
                Shell("sudo gpunode ctk runtime configure --runtime=containerd --restart"),
            ),
            manual_step("install", "update the toolkit", when="the GPU Operator's pod of the toolkit wrote the entry"),
        ),
        explains=NO_RUNTIME | {"containerd-nvidia-runtime-missing"},
    ),
    _rule(
        cause="containerd-cni-folder-replaced",
        disruption="restart-service",
        decisive=message_line(r"failed to find plugin [\\\"']*gke[\\\"']* in path \[/opt/cni/bin\]"),
        look_at=(Shell("grep -A3 'cni\\]' /etc/containerd/config.toml"),),
        remedy=make_fixed_remedy(
            manual_step(
                "configure",
                "let the toolkit read the file instead of containerd's defaults: the operator's value toolkit.env "
                "with RUNTIME_CONFIG_SOURCE=file",
            ),
            manual_step(
                "configure", 'and set bin_dir = "/home/kubernetes/bin" in the file again, or recreate the node'
            ),
            restart_unit("containerd.service"),
        ),
        explains=NO_RUNTIME,
    ),
    _rule(
        cause="containerd-nvidia-runtime-missing",
        disruption="restart-service",
        decisive=any_of(
            _NVIDIA_DEFAULT_REJECTED,
            all_of(any_of(_NVIDIA_RUNTIME_UNKNOWN, _NO_HANDLER, _RUNTIME_CLASS_SEEN), _NVIDIA_NOT_CONFIGURED),
        ),
        typical=any_of(
            unless(_NVIDIA_RUNTIME_UNKNOWN, _NVIDIA_IN_LIVE_CONFIG, _CONTAINERD_OF_RANCHER),
            _NO_HANDLER,
            all_of(_PLUGIN_WITHOUT_NVML, unless(_ANY_HANDLER_IN_CONFIG, _NVIDIA_HANDLER_IN_CONFIG)),
            custom_sign(_kubelet_runtime_without_gpus),
        ),
        symptoms=(
            symptoms.RUNTIME_UNKNOWN,
            symptoms.CONTAINER_FAILED,
            symptoms.NO_GPUS_OFFERED,
            _NVIDIA_DEFAULT_REJECTED,
        ),
        context=_NVIDIA_NOT_CONFIGURED,
        look_at=(Shell("sudo containerd config dump | grep -A3 nvidia"),),
        share=2,
        remedy=_register_runtime,
        explains=NO_RUNTIME,
    ),
    _rule(
        cause="cgroup-driver-mismatch",
        disruption="restart-service",
        decisive=any_of(
            _DOCKER_CGROUP_DRIVER_DIFFERS,
            message_line(r"expected cgroupsPath to be of format|invalid slice name: /kubepods"),
            _CGROUP_DRIVERS_DIFFER,
        ),
        typical=all_of(_ONE_CGROUP_DRIVER_SEEN, _SYSTEM_PODS_IN_CRASH_LOOP),
        symptoms=(symptoms.CONTAINER_FAILED, _PODS_IN_CRASH_LOOP, _DOCKER_CGROUP_DRIVER_DIFFERS),
        context=_ONE_CGROUP_DRIVER_SEEN,
        look_at=(
            Shell("grep cgroupDriver /var/lib/kubelet/config.yaml"),
            Shell("sudo containerd config dump | grep SystemdCgroup"),
        ),
        remedy=_fix_cgroup_driver,
    ),
    _rule(
        cause="k3s-runtime-config-overwritten",
        disruption="restart-service",
        decisive=all_of(_CONTAINERD_OF_RANCHER, _GENERATED_CONFIG_EDITED),
        typical=any_of(
            all_of(any_line(r"File generated by (?:k3s|rke2)\. DO NOT EDIT"), symptoms.RUNTIME_UNKNOWN),
            all_of(_TOOLKIT_POD_FAILS, _RANCHER_MENTIONED),
        ),
        symptoms=(
            *(symptoms.RUNTIME_UNKNOWN, symptoms.NO_GPUS_OFFERED, symptoms.PLUGIN_FAILS, symptoms.NO_NVML_LIBRARY),
            _TOOLKIT_POD_FAILS,
        ),
        context=_CONTAINERD_OF_RANCHER,
        may_be_normal=True,
        look_at=(Shell("sudo grep nvidia /var/lib/rancher/k3s/agent/etc/containerd/config.toml"),),
        remedy=_set_rancher_default,
        explains=NO_RUNTIME | {"containerd-nvidia-runtime-missing", "cgroup-driver-mismatch"},
    ),
    _rule(
        cause="crio-dropin-dead",
        disruption="restart-service",
        decisive=unless(_CRIO_DROP_IN_UNREAD, _CRIO_CONFIGURED),
        typical=all_of(_NO_HANDLER, _TOOLKIT_USES_UNREAD_FOLDER),
        symptoms=(symptoms.RUNTIME_UNKNOWN, symptoms.NO_GPUS_OFFERED, symptoms.PLUGIN_FAILS),
        look_at=(Shell("sudo crio status config | grep -A3 nvidia"),),
        remedy=make_fixed_remedy(
            _REGISTER_RUNTIME_FOR_CRIO,
            run_step(
                "remove",
                "remove the dead file",
                command("sudo", "rm", f"{UNREAD_FOLDER}/99-nvidia.toml"),
                when="it is there",
            ),
        ),
        explains=NO_RUNTIME | {"containerd-nvidia-runtime-missing"},
    ),
    _rule(
        cause="crio-config-invalid",
        disruption="restart-service",
        decisive=_CONFIG_REJECTED_BY_CRIO,
        typical=custom_sign(
            lambda snapshot: _invalid_toml_lines(snapshot, "/etc/crio/crio.conf", "/etc/crio/crio.conf.d/*")
        ),
        against=(_running("crio.service"),),
        look_at=(Shell("sudo crio config"), Shell("sudo journalctl -u crio -b -n 20")),
        remedy=make_fixed_remedy(
            run_step("inspect", "let CRI-O say which file is wrong, and where", Shell("sudo crio config")),
            manual_step(
                "configure",
                "correct the file, or move it out of /etc/crio/crio.conf.d, where CRI-O reads copies and backups too",
            ),
            restart_unit("crio.service"),
        ),
        explains=NO_RUNTIME | {"containerd-nvidia-runtime-missing", "crio-dropin-dead"},
    ),
    _rule(
        cause="cgroup-daemon-reload-loses-gpu",
        disruption="restart-container",
        decisive=all_of(
            _CONTAINER_LOST_GPU,
            any_of(_SYSTEMD_RELOADED, _NVIDIA_DEVICES_NOT_ALLOWED, _SYSTEMD_CGROUP_DRIVER_USED),
            symptoms.DRIVER_WORKS,
        ),
        typical=any_of(
            unless(_CONTAINER_LOST_GPU, message_line(r"\bvGPU\b|\bGRID [A-Z]\d|nvidia-gridd")),
            _NVIDIA_DEVICES_NOT_ALLOWED,
            all_of(
                message_line(r"systemd\[1\]: Reloading"), symptoms.DRIVER_WORKS, command_run(r"/dev/char|journalctl")
            ),
            all_of(_SYSTEMD_CGROUP_DRIVER_USED, symptoms.DRIVER_WORKS, command_run(r"grep\b.*\bcgroup")),
        ),
        symptoms=(symptoms.NVML_UNKNOWN, symptoms.CUDA_UNAVAILABLE, symptoms.CUDA_FINDS_NO_DEVICE),
        context=any_of(_SYSTEMD_RELOADED, _NVIDIA_DEVICES_NOT_ALLOWED, _SYSTEMD_CGROUP_DRIVER_USED),
        against=(
            symptoms.GPU_LOST,
            symptoms.NO_DRIVER,
            symptoms.DRIVER_MISMATCH,
            symptoms.TOOLKIT_CGROUPS_DISABLED,
        ),
        look_at=(Shell("nvidia-smi -L  # on the host"), Shell("journalctl -b | grep -i reloading")),
        share=4,
        remedy=_RESTART_LOST_CONTAINERS,
        explains=NO_CLUSTER_GPU,
    ),
    _rule(
        cause="dev-char-symlinks-missing",
        decisive=_DEV_CHAR_LINKS_NOT_CREATED,
        symptoms=(_DEV_CHAR_LINKS_NOT_CREATED, symptoms.OPERATOR_PODS_NOT_READY),
        against=(symptoms.NO_DRIVER,),
        look_at=(
            Shell("kubectl logs -n gpu-operator -l app=nvidia-operator-validator -c driver-validation"),
            Shell("ls -l /dev/char | grep nvidia"),
        ),
        remedy=make_fixed_remedy(
            run_step("load", "load the driver, so that its device numbers are known", Shell("sudo modprobe nvidia")),
            run_step(
                "configure",
                "create the links",
                Shell("sudo nvidia-ctk system create-dev-char-symlinks --create-all --load-kernel-modules"),
            ),
            manual_step(
                "configure",
                "or turn them off in the GPU Operator: DISABLE_DEV_CHAR_SYMLINK_CREATION=true of its validator",
                when="the toolkit does not know a device of this machine, and CDI is in use",
            ),
        ),
    ),
    _rule(
        cause="selinux-denies-gpu",
        disruption="restart-container",
        decisive=_SELINUX_DENIAL,
        typical=any_of(
            _NVML_DENIED_IN_CONTAINER, all_of(command_run(r"\bgetenforce\b|\bsestatus\b"), _SELINUX_ENFORCING)
        ),
        symptoms=(symptoms.ACCESS_DENIED, symptoms.NVML_UNKNOWN),
        context=_SELINUX_ENFORCING,
        against=(_SELINUX_PERMISSIVE,),
        look_at=(Shell("sudo ausearch -m avc -ts recent | grep nvidia"), Shell("getenforce")),
        remedy=make_fixed_remedy(
            run_step(
                "configure", "allow containers to use devices", Shell("sudo setsebool -P container_use_devices on")
            ),
            manual_step(
                "configure",
                "or start that container without a label: --security-opt label=disable",
                when="the policy of this system has no such boolean, or denies `map` anyway",
            ),
        ),
        explains=NO_CLUSTER_GPU,
    ),
)
