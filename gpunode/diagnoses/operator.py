"""GPU Operator: its driver pod against the host's driver, against running clients, without an image."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import chains, symptoms
from gpunode.diagnoses.cluster import node_word
from gpunode.diagnoses.commands import Shell, beside, command, joined
from gpunode.diagnoses.model import Citation, Confidence, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import by_hand, run
from gpunode.diagnoses.remedies import driver as driver_fix
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with
from gpunode.diagnoses.views import driver, history, kube, modules
from gpunode.facts.patterns import Pattern

_OPERATOR: Final = "https://github.com/NVIDIA/gpu-operator"

# NVIDIA/gpu-driver-container, nvidia-driver's _unload_driver; NVIDIA/k8s-driver-manager.
_IN_USE: Final = Pattern(
    r"Could not unload NVIDIA driver kernel modules|driver is (?:currently )?in use|Module nvidia\w* is in use"
    r"|[Ff]ailed to (?:unload|uninstall) (?:the )?(?:nvidia )?driver|appears to (?:be )?already (?:be )?loaded"
    r"|nvidia(?:\.ko)?['’]? (?:kernel )?module is already loaded(?! with refcount)"
)
_UNLOADING: Final = Pattern(
    r"Unloading NVIDIA driver kernel modules|NVIDIA Software Installer|Stopping NVIDIA persistence"
)
_MANAGER: Final = Pattern(
    r"k8s-driver-manager|nvidia driver module is already loaded with refcount|Shutting down all GPU clients"
    r"|Auto[- ]?drain of the node|Failed to uninstall nvidia driver components|Starting driver uninstallation"
    r"|Waiting for the (?:operator-validator|container-toolkit|device-plugin|dcgm(?:-exporter)?|gpu-feature-discovery"
    r"|mig-manager|sandbox-validator) to shutdown|Auto eviction of GPU pods on node|evicting pod \S"
    r"|Draining node|failed to drain|error when evicting|cannot delete Pods (?:with local storage|not managed|declare)"
    r"|GPU pods? (?:still )?(?:running|found)|unable to (?:drain|evict)|gpu-driver-upgrade-state",
    re.IGNORECASE,
)
_MANAGER_MARKS: Final = ("driver", "rain", "evict", "cannot delete", "clients", "to shutdown")
_CANNOT_DRAIN: Final = Pattern(
    r"Auto[- ]?(?:drain|eviction) of .{0,80}disabled|cannot delete Pods? (?:with|not|declare)|error when evicting"
    r"|failed to drain|unable to drain|upgrade-failed|timed out waiting for .{0,60}(?:drain|evict|terminat)",
    re.IGNORECASE,
)
# The driver manager evicts the pods with a GPU, and goes on when they are gone.
_EVICTING: Final = Pattern(r"^[ \t]*evicting pod (?P<pod>[\w./-]+)", re.IGNORECASE | re.MULTILINE)
_DRIVER_POD: Final = Pattern(r"nvidia-(?:gpu-)?driver-(?:daemonset|ctr|[a-z0-9.-]+-)|gpu-driver|driver-daemonset")
_HOST_SAYS: Final = Pattern(
    r"driver (?:is )?(?:already |pre-?)installed (?:on|in) (?:the )?(?:host|node)|pre-?installed (?:host )?driver"
    r"|An NVIDIA (?:GPU )?driver is already installed",
    re.IGNORECASE,
)


def _unload(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Who holds the modules that the driver pod wants to unload: the host's own driver, or clients of its own."""
    stuck = tuple(
        one
        for one in kube.said(snapshot, _IN_USE, "in use", "unload", "uninstall", "already")
        if _is_of_pod(snapshot, one)
    )
    host = tuple(dict.fromkeys(_host_driver(snapshot)))
    asked = (cite(item) for item in snapshot.items if "upgrade-state" in item.written)
    managed = (*kube.said(snapshot, _MANAGER, *_MANAGER_MARKS), *asked)
    failing = tuple(row.citation for row in snapshot.view(kube.rows) if _is_failing_driver(row))
    said_host = kube.said(snapshot, _HOST_SAYS, "installed")
    if host and (stuck or (failing and not _no_image(snapshot))):
        summary = "the node has a driver of its own, and the operator's driver pod wants to replace it with another"
        cited = (*stuck, *said_host, *failing, *host)
        certain: Confidence = "certain" if stuck else "likely"
        ruled_out = ("gpu-operator-driver-restart-blocked: what is loaded is the host's driver, not an older pod's",)
        yield "gpu-operator-vs-host-driver", Proof(summary, tuple(dict.fromkeys(cited)), certain, ruled_out)
        return
    cannot = kube.said(snapshot, _CANNOT_DRAIN, *_MANAGER_MARKS) if (managed or failing or stuck) else ()
    cannot = (*cannot, *_never_gone(snapshot))
    clients = tuple(_clients(snapshot))
    if not stuck and not (managed and cannot):
        return
    if managed or cannot or clients or _no_host_driver(snapshot) or _has_own_root(snapshot):
        summary = (
            "the operator's driver pod was started again and cannot unload the driver that its predecessor loaded: "
            "programs still use the GPUs"
        )
        cited = (*stuck, *cannot, *clients, *managed[:4])
        sure: Confidence = "certain" if _no_host_driver(snapshot) and stuck else "likely"
        yield "gpu-operator-driver-restart-blocked", Proof(summary, tuple(dict.fromkeys(cited)), sure)
        return
    question = "the operator's driver pod cannot unload a driver that is in use: whose driver that is was not shown"
    look_at = (Shell("dpkg -l | grep nvidia; rpm -qa | grep nvidia  # on the host"), Shell("ls /run/nvidia/driver"))
    causes = ("gpu-operator-vs-host-driver", "gpu-operator-driver-restart-blocked")
    yield "gpu-operator-vs-host-driver", Doubt(question, look_at, stuck, causes)


def _never_gone(snapshot: Snapshot) -> tuple[Citation, ...]:
    """The pods that the driver manager evicts and that are still terminating, while its own pod waits for that."""
    evicted = {
        match["pod"].split("/")[-1]
        for c in kube.said(snapshot, _EVICTING, "evict")
        if (match := _EVICTING.search(c.line))
    }
    rows = snapshot.view(kube.rows)
    waiting = any(_is_driver(row) and not _RUNS.search(row.status) for row in rows)
    left = tuple(row.citation for row in rows if row.name in evicted and "Terminating" in row.status)
    return left if waiting else ()


_RUNS: Final = Pattern(r"Running|Completed")


def _is_driver(row: kube.Row) -> bool:
    return "driver-daemonset" in row.name or bool(re.match(r"nvidia-(?:gpu-)?driver-", row.name))


def _is_of_pod(snapshot: Snapshot, place: Citation) -> bool:
    """Whether the line stands in what a driver pod said, not in that of an installer on the host."""
    if "Could not unload NVIDIA driver kernel modules" in place.line:
        return True
    item = next((one for one in snapshot.items if one.key == place.key), None)
    if item is None:
        return False
    return item.kind == "kubernetes-log" or bool(
        _DRIVER_POD.search(item.written) or _MANAGER.search(item.text) or _UNLOADING.search(item.text)
    )


def _is_failing_driver(row: kube.Row) -> bool:
    return _is_driver(row) and bool(re.search(r"CrashLoop|Error", row.status))


def _host_driver(snapshot: Snapshot) -> Iterator[Citation]:
    """What shows that the host itself has a driver installed: packages, DKMS, its own nvidia-smi."""
    yield from (one.citation for one in driver.packaged(snapshot) if one.is_installed)
    yield from (row.citation for row in snapshot.view(modules.dkms) if row.module.startswith("nvidia"))
    logs = "\n".join(item.text for item in snapshot.of("package-history"))
    for one in history.upgrades(snapshot):
        if not re.search(rf"\b(?:[Rr]emove|[Pp]urge|[Ee]rased?):? {re.escape(one.name)}\b", logs):
            yield one.citation
    for state, place in snapshot.view(driver.smi):
        if state == "works" and not _runs_in_pod(snapshot, place):
            yield place
    for item in snapshot.items:
        at_place = item.kind in {"which", "listing"} and item.outcome == "ok" and item.where == "host"
        if at_place and (
            match := re.search(r"(?:^|\s)/usr/(?:local/)?(?:s?bin)/nvidia-(?:smi|uninstall)\b", item.text)
        ):
            yield cite(item, item.number_at(match.start()))


def _runs_in_pod(snapshot: Snapshot, place: Citation) -> bool:
    item = next((one for one in snapshot.items if one.key == place.key), None)
    words = " ".join(item.source.words) if item else ""
    return item is None or "exec" in words or "/run/nvidia" in item.written or item.kind == "text"


def _has_own_root(snapshot: Snapshot) -> bool:
    """Whether a driver pod has left its tree on the node."""
    roots = (item for item in snapshot.of("listing") if item.outcome == "ok" and "/run/nvidia/driver" in item.written)
    return any("nvidia-smi" in item.text or "libnvidia" in item.text or "usr" in item.text for item in roots)


def _no_host_driver(snapshot: Snapshot) -> bool:
    """Whether somebody looked for the host's driver and found none."""
    looked = any(
        item.kind in {"packages", "which"} and item.where == "host" and "nvidia" in item.written
        for item in snapshot.items
        if item.is_seen
    )
    return looked and not any(_host_driver(snapshot))


_CLIENT: Final = Pattern(
    r"^\|\s+\d+\s+(?:N/A\s+){2}\d+\s+[CG+M]+\s+\S+|^[ \t]*/dev/nvidia\w*:\s+\d+|^\S+\s+\d+\s+\S+.{0,60}\s/dev/nvidia",
    re.MULTILINE,
)
_HOLDER: Final = Pattern(r"/dev/nvidia")


def _clients(snapshot: Snapshot) -> Iterator[Citation]:
    """The programs that use a GPU, or how often the module is used besides its own."""
    yield from kube.said(snapshot, _CLIENT, "/dev/nvidia", "MiB |")
    for item in snapshot.of("listing"):
        asked = item.source.words[:1] in {("lsof",), ("fuser",)}
        yield from tuple(lines_with(item, _HOLDER))[:4] if asked else ()
    for row in snapshot.view(kube.rows):
        is_own = re.search(r"nvidia-|gpu-operator|gpu-feature|node-feature", row.name)
        if row.status == "Terminating" and not is_own:
            yield row.citation


# No image.

_DRIVER_IMAGE: Final = Pattern(r"/(?:(?:gpu-|nvidia-|vgpu-)?driver|vgpu-guest-driver):(?P<tag>[\w.+-]+)")
_ABSENT: Final = Pattern(
    r"not found|manifest unknown|manifest for \S+ not found|does not exist|NotFound|name unknown|no such manifest"
)
_OTHER_REASON: Final = Pattern(
    r"unauthori[sz]ed|\b401\b|\b403\b|denied|x509|certificate|i/o timeout|no such host|connection refused|TLS handshake"
    r"|toomanyrequests|\b429\b|no space left|deadline exceeded",
    re.IGNORECASE,
)
_NO_KERNEL: Final = Pattern(
    r"Could not resolve Linux kernel version"
    r"|Unable to (?:find|locate) (?:a )?(?:package )?(?:linux-headers|kernel-(?:devel|headers))"
    r"|No match for argument: kernel-(?:devel|headers|core)|No package kernel-(?:headers|devel|core)\S* available"
    r"|unsupported (?:OS|operating system|kernel)|linux-modules-nvidia-\S+ (?:not found|has no installation candidate)"
    r"|No precompiled (?:driver|kernel).{0,60}found|driver-toolkit.{0,80}(?:not found|no matching|missing)"
    r"|Unable to find a matching .{0,30}driver",
    re.IGNORECASE,
)
_KERNEL_MARKS: Final = ("Linux kernel version", "headers", "kernel-", "unsupported", "nvidia-", "recompiled", "driver")
_SUFFIX: Final = Pattern(r"(?:-(?P<kernel>\d+\.\d+\.\d+[\w.-]*?))?-(?P<os>[a-z]+[\d.]*)$")
_UNPULLED: Final = Pattern(r"ImagePullBackOff|ErrImagePull|InvalidImageName")


def _no_image(snapshot: Snapshot) -> bool:
    return any(cause == "operator-no-driver-image" for cause, _ in _image(snapshot))


def _image(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    pulls = tuple(_unpulled(snapshot))
    absent = [
        (place, tag) for place, tag in pulls if _ABSENT.search(place.line) and not _OTHER_REASON.search(place.line)
    ]
    rows = tuple(row.citation for row in snapshot.view(kube.rows) if _is_unpulled(row))
    if absent:
        tag = absent[0][1]
        summary = f"there is no driver image {tag}: NVIDIA builds one for each driver version and supported system only"
        cited = (*(place for place, _ in pulls), *rows)
        yield "operator-no-driver-image", Proof(_of_tag(tag) or summary, tuple(dict.fromkeys(cited)))
        return
    if unresolved := tuple(
        one for one in kube.said(snapshot, _NO_KERNEL, *_KERNEL_MARKS) if _is_driver_log(snapshot, one)
    ):
        summary = "the driver pod finds no packages of the running kernel, which it needs to build its modules"
        yield "operator-no-driver-image", Proof(summary, (*unresolved, *rows), "likely")
        return
    refused = tuple(place for place, _ in pulls if _OTHER_REASON.search(place.line))
    if refused:
        why = _OTHER_REASON.search(refused[0].line)
        question = (
            f"the registry of the operator's driver image is not reached or refuses ({why[0] if why else 'an error'}): "
            "is it the node's name resolution, its way out, or its credentials?"
        )
        look = (Shell("getent hosts nvcr.io  # on the node"), Shell("curl -sSI https://nvcr.io/v2/"))
        yield "operator-no-driver-image", Doubt(question, look, (*refused, *rows))
    elif rows:
        question = "the image of the operator's driver pod is not pulled; why was not shown"
        yield (
            "operator-no-driver-image",
            Doubt(question, (Shell("kubectl -n gpu-operator describe pod -l app=nvidia-driver-daemonset"),), rows),
        )


def _unpulled(snapshot: Snapshot) -> Iterator[tuple[Citation, str]]:
    for place in kube.said(snapshot, _DRIVER_IMAGE, "driver:", logs=True):
        match = _DRIVER_IMAGE.search(place.line)
        if match and re.search(r"pull|resolve|not found|manifest|rpc error", place.line, re.IGNORECASE):
            yield place, match["tag"].rstrip(".:")


def _of_tag(tag: str) -> str:
    match = _SUFFIX.search(tag)
    if match is None:
        return ""
    kernel = f" and kernel {match['kernel']}" if match["kernel"] else ""
    return f"there is no driver image {tag}: none was built of this driver version for {match['os']}{kernel}"


def _is_unpulled(row: kube.Row) -> bool:
    return bool(_UNPULLED.search(row.status)) and "driver" in row.name


def _is_driver_log(snapshot: Snapshot, place: Citation) -> bool:
    item = next((one for one in snapshot.items if one.key == place.key), None)
    if item is None:
        return False
    in_pod = item.kind in {"kubernetes-log", "kubernetes-pod", "kubernetes"}
    return in_pod or bool(
        _UNLOADING.search(item.text) or _DRIVER_POD.search(item.written) or "Could not resolve" in place.line
    )


# Remedies.


# The operator's release, whatever it is called; its version and its other values stay.
_WITHOUT_DRIVER: Final = Shell(
    "helm list -A --no-headers | awk '/gpu-operator-v/ {print $1, $2, $(NF-1)}' | while read -r name space chart; do "
    'helm upgrade "$name" nvidia/gpu-operator -n "$space" --version "${chart#gpu-operator-}" --reuse-values '
    "--set driver.enabled=false; done"
)


def _keep_host(_: Snapshot) -> Iterable[Fix]:
    yield run(
        "configure",
        "keep the host's driver: tell the operator not to install one",
        _WITHOUT_DRIVER,
    )
    yield by_hand(
        "remove", "or take the driver's packages off the host and reboot it", "the operator is to manage the driver"
    )


def _free(snapshot: Snapshot) -> Iterable[Fix]:
    names = [node.name for node in snapshot.view(kube.nodes) if node.name]
    # Of several nodes nobody says which one it is; then it is the one on which this is typed.
    node = node_word(names[0] if len(names) == 1 else "")
    yield by_hand("drain", "save what pods of the node keep in an emptyDir: it is lost when they are moved away")
    yield Fix(
        "drain",
        "then move the pods off the node; programs outside of pods that use a GPU have to be stopped, too",
        (command("kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data"),),
    )
    restart = joined(
        command("kubectl", "get", "pods", "-A", "--field-selector", beside("spec.nodeName=", node), "--no-headers"),
        Shell(
            "| awk '$2 ~ /^nvidia-(gpu-)?driver-/ {print $1, $2}' | "
            'while read -r space name; do kubectl -n "$space" delete pod "$name"; done'
        ),
    )
    yield run("restart", "start the driver pod again", restart, command("kubectl", "uncordon", node))


def _other_image(snapshot: Snapshot) -> Iterable[Fix]:
    text, kept = "install the driver on the host", _WITHOUT_DRIVER
    own = driver_fix(snapshot, text)
    if own.commands:
        yield run("configure", f"{text}, and tell the operator not to", *own.commands, kept)
    else:
        yield own
        yield run("configure", "tell the operator to install none", kept)
    yield by_hand("configure", "or name a driver version for which an image of this system exists (driver.version)")


FAMILY: Final = Family(
    "operator",
    "GPU Operator and products",
    (
        Rule(
            cause="gpu-operator-vs-host-driver",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="restart-container",
            title="the operator installs a driver over the host's own",
            share=1.5,
            symptoms=(
                symptoms.OPERATOR_WAITS,
                symptoms.NO_MODULE,
                symptoms.BUILD_FAILED,
            ),
            look_at=(
                Shell("nvidia-smi  # on the host"),
                Shell("kubectl logs -n gpu-operator -l app=nvidia-driver-daemonset --tail=30"),
            ),
            story=(
                "By default the GPU Operator brings the driver in a pod. On a node that has one installed, its modules "
                "are loaded and in use, so the driver pod can neither unload them nor load its own, and starts again "
                "and again; everything that waits for it stays in Init. One of the two has to own the driver: the "
                "host, with driver.enabled=false, or the operator, on a host without driver packages."
            ),
            sources=(
                f"{_OPERATOR}/issues/126",
                f"{_OPERATOR}/issues/327",
                "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/getting-started.html",
            ),
            check=only("gpu-operator-vs-host-driver", _unload),
            remedy=_keep_host,
            explains=frozenset({"gpu-labels-without-capacity", "device-plugin-library-not-found"}),
        ),
        Rule(
            cause="gpu-operator-driver-restart-blocked",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="restart-container",
            title="the restarted driver pod cannot unload the driver, programs still use it",
            share=1.5,
            symptoms=(symptoms.OPERATOR_WAITS,),
            look_at=(Shell("kubectl logs -n gpu-operator -l app=nvidia-driver-daemonset --tail=30"),),
            story=(
                "A driver pod that starts again, after an upgrade or a crash, unloads the modules that the one before "
                "loaded. Pods with a GPU, a monitoring agent or a display server still hold them, and the driver "
                "manager may not drain the node, or is refused for pods with local data. The driver pod fails in its "
                "init container, and with it the whole stack, until the clients are gone."
            ),
            sources=(f"{_OPERATOR}/issues/2166", f"{_OPERATOR}/issues/416", f"{_OPERATOR}/issues/304"),
            check=only("gpu-operator-driver-restart-blocked", _unload),
            remedy=_free,
            explains=frozenset({"gpu-labels-without-capacity", "device-plugin-library-not-found"}),
        ),
        Rule(
            cause="operator-no-driver-image",
            layer="kubernetes",
            storey="kubernetes",
            severity="error",
            disruption="none",
            title="there is no driver image for this system or kernel",
            symptoms=(symptoms.OPERATOR_WAITS,),
            look_at=(Shell("kubectl get events -n gpu-operator | grep -i pull"),),
            story=(
                "The operator puts the image's tag together from the driver's version and the node's system, and for "
                "precompiled drivers the kernel. Images exist for the supported systems, not for every kernel; a pull "
                "ends with not found or manifest unknown. In an image that builds on the node, the packages "
                "of a kernel that the distribution no longer offers are missing in the same way. A driver on the host "
                "does without either."
            ),
            sources=(
                f"{_OPERATOR}/issues/722",
                f"{_OPERATOR}/issues/1212",
                f"{_OPERATOR}/issues/85",
                "https://docs.nvidia.com/datacenter/cloud-native/gpu-operator/latest/platform-support.html",
            ),
            check=only("operator-no-driver-image", _image),
            remedy=_other_image,
            # The operator was to bring the driver: that the host has none, or nothing to build one, is as it should be.
            explains=chains.NOT_INSTALLED | {"driver-not-installed", "kernel-headers-missing"},
        ),
    ),
)
