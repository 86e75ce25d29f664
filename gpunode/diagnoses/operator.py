"""GPU Operator: its driver pod conflicts with the host's driver or running clients, or has no image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from gpunode.diagnoses import consequences, symptoms
from gpunode.diagnoses.cluster import kubectl_node_name
from gpunode.diagnoses.commands import Shell, command, join_commands, surround_word
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import install_driver as driver_fix
from gpunode.diagnoses.remedies import make_fixed_remedy, manual_step, run_step
from gpunode.diagnoses.signs import all_of, any_of, command_run, custom_sign, message_line, unless
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import driver, modules, packages

# NVIDIA/gpu-driver-container, nvidia-driver's _unload_driver; NVIDIA/k8s-driver-manager.
_UNLOAD_FAILED: Final = any_of(
    message_line(
        r"Could not unload NVIDIA driver kernel modules|[Ff]ailed to (?:unload|uninstall) (?:the )?(?:nvidia )?driver"
        r"|nvidia driver module is already loaded with refcount"
    ),
    message_line(
        r"driver is (?:currently )?in use|Module nvidia\w* is in use|appears to (?:be )?already (?:be )?loaded"
        r"|nvidia(?:\.ko)?['’]? (?:kernel )?module is already loaded(?! with refcount)",
        "kubernetes-log",
    ),
)
# Evidence that it was the operator: its driver manager, which unloads the driver, and the reason for its failure.
_DRIVER_MANAGER_SEEN: Final = any_of(
    message_line(
        r"(?i)k8s-driver-manager|Shutting down all GPU clients"
        r"|Auto[- ]?drain of the node|Failed to uninstall nvidia driver components|Starting driver uninstallation"
        r"|Waiting for the [\w-]+ to shutdown|Auto eviction of GPU pods on node|gpu-driver-upgrade-state"
        r"|upgradePolicy|Auto[- ]?(?:drain|eviction) (?:of .{0,80})?(?:is )?disabled"
        r"|cannot delete Pods? (?:with|not|declare)"
    ),
    custom_sign(lambda node: (cite(item) for item in node.items if "k8s-driver-manager" in item.written)),
)


_DRIVER_POD_FAILING: Final = message_line(
    r"^[ \t]*(?:\S+\s+)?(?:pod/)?(?:\S*driver-daemonset|nvidia-(?:gpu-)?driver-)\S*\s+\d+/\d+\s+\S*(?:CrashLoop|Error)"
    r"|driver-daemonset\S* [^\n]{0,60}(?:CrashLoop|Init:C)"
)
# The init container, which removes the existing driver.
_DRIVER_POD_INIT_FAILING: Final = message_line(
    r"(?:driver-daemonset|nvidia-(?:gpu-)?driver-)\S*\s+\d+/\d+\s+Init:(?:CrashLoop|Error)"
)


def _host_driver_lines(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield the evidence of a host driver: packages, DKMS, or the host's own nvidia-smi."""
    yield from (package.citation for package in driver.driver_packages(snapshot) if package.is_installed)
    yield from (row.citation for row in snapshot.view(modules.dkms_rows) if row.module.startswith("nvidia"))
    yield from (driver_upgrade.citation for driver_upgrade in packages.logged_driver_upgrades(snapshot))
    own = (place for state, place in snapshot.view(driver.smi_states) if state == "works")
    yield from (place for place in own if place.source.startswith(("nvidia-smi", "sudo nvidia-smi")))


_DRIVER_INSTALLED_ON_HOST: Final = any_of(
    custom_sign(_host_driver_lines),
    message_line(r"(?:^|\s)/usr/(?:local/)?s?bin/nvidia-(?:smi|uninstall)\b", "which", "listing"),
)
# A search for the host's driver found nothing, or found the tree of a driver pod.
_DRIVER_FROM_POD: Final = any_of(
    unless(command_run(r"(?:dpkg|rpm|apt|which)\b.*nvidia"), _DRIVER_INSTALLED_ON_HOST),
    message_line(r"/run/nvidia/driver/\S*(?:nvidia-smi|libnvidia|usr)", "listing"),
)
# Programs that use a GPU, as listed by nvidia-smi, fuser and lsof; another vendor's module that uses NVIDIA's; pods
# that are still terminating.
_GPU_CLIENTS_SEEN: Final = any_of(
    message_line(r"^\|\s+\d+\s+(?:N/A\s+){2}\d+\s+[CG+M]+\s+\S+"),
    message_line(
        r"^[ \t]*/dev/nvidia\w*:\s+\d+|^\S+\s+\d+\s+\S+.{0,60}\s/dev/nvidia|^gdrdrv\s", "listing", "text", "lsmod"
    ),
    message_line(r"^(?!.*\b(?:nvidia-|gpu-(?:operator|feature)|node-feature)).*\d/\d+\s+Terminating\b"),
)
# Works for any release name of the operator; keeps its version and other values.
_DISABLE_OPERATOR_DRIVER: Final = Shell(
    "helm list -A --no-headers | awk '/gpu-operator-v/ {print $1, $2, $(NF-1)}' | while read -r name space chart; do "
    'helm upgrade "$name" nvidia/gpu-operator -n "$space" --version "${chart#gpu-operator-}" --reuse-values '
    "--set driver.enabled=false; done"
)


_KEEP_ONE_DRIVER_FIXES: Final = make_fixed_remedy(
    run_step(
        "configure", "keep the host's driver: configure the operator not to install one", _DISABLE_OPERATOR_DRIVER
    ),
    manual_step(
        "remove",
        "or remove the driver's packages from the host and reboot it",
        "the operator should provide the driver",
    ),
)


def _stop_driver_clients(snapshot: Snapshot) -> Iterable[Fix]:
    node = kubectl_node_name(snapshot)
    yield manual_step(
        "drain", "save the data that the node's pods keep in emptyDir volumes: it is lost when they are moved"
    )
    yield Fix(
        "drain",
        "then move the pods off the node, and stop programs outside of pods that use a GPU",
        (command("kubectl", "drain", node, "--ignore-daemonsets", "--delete-emptydir-data"),),
    )
    restart = join_commands(
        command(
            "kubectl", "get", "pods", "-A", "--field-selector", surround_word("spec.nodeName=", node), "--no-headers"
        ),
        Shell(
            "| awk '$2 ~ /^nvidia-(gpu-)?driver-/ {print $1, $2}' | "
            'while read -r space name; do kubectl -n "$space" delete pod "$name"; done'
        ),
    )
    yield run_step("restart", "start the driver pod again", restart, command("kubectl", "uncordon", node))


# No driver image.

_DRIVER_IMAGE: Final = r"/(?:(?:gpu-|nvidia-|vgpu-)?driver|vgpu-guest-driver)"
_REGISTRY_ACCESS_FAILURE: Final = (
    r"unauthori[sz]ed|\b401\b|\b403\b|denied|x509|certificate|i/o timeout|no such host|connection refused|TLS handshake"
    r"|toomanyrequests|\b429\b|no space left|deadline exceeded"
)
_DRIVER_IMAGE_NOT_FOUND: Final = message_line(
    rf"^(?![^\n]*(?:{_REGISTRY_ACCESS_FAILURE}))[^\n]*{_DRIVER_IMAGE}(?::[\w.+-]+)?[\"'\\]*[ :]"
    r"[^\n]{0,600}?(?:not found|manifest unknown|does not exist|NotFound|name unknown|no such manifest"
    r"|no match(?:ing manifest)? for)"
)
_IMAGE_PULL_FAILED: Final = message_line(
    r"driver[^\n]{0,120}(?:ImagePullBackOff|ErrImagePull|InvalidImageName)|Reason: +ErrImagePull"
)
_NO_DRIVER_IMAGE_FOR_KERNEL: Final = message_line(r"Could not resolve Linux kernel version")


def _install_driver_on_host(snapshot: Snapshot) -> Iterable[Fix]:
    text = "install the driver on the host, and configure the operator not to"
    yield replace(driver_fix(snapshot, text), kind="configure")
    yield run_step("configure", "configure the operator not to install one", _DISABLE_OPERATOR_DRIVER)
    yield manual_step("configure", "or set a driver version that has an image for this system (driver.version)")


RULES: Final = (
    Rule(
        cause="gpu-operator-vs-host-driver",
        layer="kubernetes",
        disruption="restart-container",
        decisive=all_of(_UNLOAD_FAILED, _DRIVER_INSTALLED_ON_HOST),
        typical=unless(
            any_of(all_of(_DRIVER_POD_FAILING, _DRIVER_INSTALLED_ON_HOST), _UNLOAD_FAILED, _DRIVER_POD_INIT_FAILING),
            _DRIVER_IMAGE_NOT_FOUND,
            _NO_DRIVER_IMAGE_FOR_KERNEL,
            unless(any_of(_DRIVER_MANAGER_SEEN, _GPU_CLIENTS_SEEN, _DRIVER_FROM_POD), _DRIVER_INSTALLED_ON_HOST),
        ),
        symptoms=(_UNLOAD_FAILED, symptoms.OPERATOR_PODS_NOT_READY),
        context=_DRIVER_POD_FAILING,
        look_at=(
            Shell("nvidia-smi  # on the host"),
            Shell("kubectl logs -n gpu-operator -l app=nvidia-driver-daemonset --tail=30"),
        ),
        share=1.5,
        remedy=_KEEP_ONE_DRIVER_FIXES,
        explains=frozenset({"gpu-labels-without-capacity", "device-plugin-library-not-found"}),
    ),
    Rule(
        cause="gpu-operator-driver-restart-blocked",
        layer="kubernetes",
        disruption="restart-container",
        decisive=unless(all_of(_UNLOAD_FAILED, _DRIVER_FROM_POD), _DRIVER_INSTALLED_ON_HOST),
        typical=unless(
            any_of(
                all_of(any_of(_UNLOAD_FAILED, _DRIVER_POD_FAILING), any_of(_DRIVER_MANAGER_SEEN, _GPU_CLIENTS_SEEN)),
                all_of(_DRIVER_MANAGER_SEEN, _GPU_CLIENTS_SEEN),
                message_line(r"gpu-driver-upgrade-state=(?!upgrade-done|unknown)\S"),
            ),
            _DRIVER_INSTALLED_ON_HOST,
        ),
        symptoms=(_UNLOAD_FAILED, symptoms.OPERATOR_PODS_NOT_READY),
        context=_DRIVER_MANAGER_SEEN,
        look_at=(Shell("kubectl logs -n gpu-operator -l app=nvidia-driver-daemonset --tail=30"),),
        share=1.5,
        remedy=_stop_driver_clients,
        explains=frozenset({"gpu-labels-without-capacity", "device-plugin-library-not-found"}),
    ),
    Rule(
        cause="operator-no-driver-image",
        layer="kubernetes",
        decisive=_DRIVER_IMAGE_NOT_FOUND,
        typical=any_of(
            _NO_DRIVER_IMAGE_FOR_KERNEL,
            unless(
                all_of(message_line(rf"{_DRIVER_IMAGE}:\w"), _IMAGE_PULL_FAILED), message_line(_REGISTRY_ACCESS_FAILURE)
            ),
        ),
        symptoms=(_DRIVER_IMAGE_NOT_FOUND, _IMAGE_PULL_FAILED, symptoms.OPERATOR_PODS_NOT_READY),
        look_at=(Shell("kubectl get events -n gpu-operator | grep -i pull"),),
        remedy=_install_driver_on_host,
        # The operator should provide the driver, so a host without a driver or build tools is normal.
        explains=consequences.NOT_INSTALLED | {"driver-not-installed", "kernel-headers-missing"},
    ),
)
