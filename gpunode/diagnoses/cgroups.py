"""Device cgroups and labels: what takes a GPU away from a container that the host still has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.consequences import NO_CLUSTER_GPU
from gpunode.diagnoses.model import Citation, Rule
from gpunode.diagnoses.remedies import always, manual_step, run_step
from gpunode.diagnoses.signs import all_of, any_line, any_of, command_run, custom_sign, message_line, unless
from gpunode.diagnoses.snapshot import Snapshot, lines_with
from gpunode.facts.patterns import Pattern

_CONTAINER: Final = Pattern(r"\b(?:containers?|pods?|docker|podman|crictl|nerdctl|kubectl)\b", re.IGNORECASE)
_INSIDE: Final = frozenset({"container-run", "kubernetes-log", "kubernetes-pod", "application", "kubernetes"})


def _container_lines(snapshot: Snapshot, pattern: Pattern) -> Iterator[Citation]:
    """Yield matching lines by containers, by commands in them, and in reports about them."""
    for item in snapshot.items:
        is_inside = item.where == "container" or item.kind in _INSIDE or _CONTAINER.search(item.written)
        if item.is_seen and (is_inside or (item.kind == "text" and _CONTAINER.search(item.text))):
            yield from lines_with(item, pattern)


_UNKNOWN: Final = Pattern(r"NVML[^\n]{0,20}: Unknown Error")
_FORBIDDEN: Final = Pattern(r"(?:NVML|nvml error)[^\n]{0,10}: insufficient permissions", re.IGNORECASE)
_LOST: Final = custom_sign(lambda snapshot: _container_lines(snapshot, _UNKNOWN))
_RELOADED: Final = any_of(
    message_line(r"systemd\[1\]: Reload(?:ing|ed)(?:\.|\s*$| requested| finished)|systemctl daemon-reload"),
    command_run(r"daemon-reload"),
)
# The device is known and may not be opened: the list of cgroup v1 without read and write.
_CUT_OFF: Final = any_line(r"^[ \t]*c 195:\* m\s*$")
_BY_SYSTEMD: Final = message_line(
    r"Cgroup Driver:\s*systemd|cgroupManager:\s*systemd|native\.cgroupdriver=systemd|SystemdCgroup = true"
)


_RESTART: Final = always(
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

_NO_LINKS: Final = message_line(
    r"error creating (?:symlink creator|symlinks)|Failed to create symlinks under /dev/char"
    r"|failed to create NVIDIA device nodes|create-dev-char-symlinks[^\n]{0,80}(?:no NVIDIA devices found|failed)"
    r"|Couldn't stat device /dev/char/(?:195|23\d|50\d|51\d):\d+|/dev/char/195:\d+: No such file"
)


# SELinux.

_PERMISSIVE: Final = message_line(
    r"^[ \t]*(?:Enforcing Mode\s+|Current mode:\s*)?(?:Permissive|Disabled)\s*$",
    *("text", "application"),
    flags=re.IGNORECASE,
)
_DENIED: Final = unless(
    message_line(
        r"avc:\s+denied\s+\{[^}\n]{1,80}\}[^\n]{0,200}?(?:(?:name|path)=\"?(?:/dev/)?nvidia[\w-]*|\bcomm=\"nvidia-[\w-]+\")"
        r"(?=[^\n]*(?:context=\S{0,200}:(?:container|svirt|spc)\w*_t\b|xserver_misc_device_t|nvidia_device_t|:device_t))"
        r"(?![^\n]*permissive=1)"
        r"|Target Objects\s+/dev/nvidia\S*|SELinux is preventing \S+ from [^\n]{1,80}\bnvidia(?:\d|ctl|-\w+)"
    ),
    _PERMISSIVE,
)
_ENFORCING: Final = message_line(
    r"^[ \t]*Enforcing\s*$|Current mode:\s*enforcing|Enforcing Mode\s+Enforcing|selinux: enforcing", flags=re.IGNORECASE
)
_REFUSED: Final = unless(
    custom_sign(
        lambda snapshot: (
            one for one in _container_lines(snapshot, _FORBIDDEN) if not re.search("label[=:]disable", one.source)
        )
    ),
    symptoms.NO_DRIVER,
    _PERMISSIVE,
    message_line(r"^crw-[r-][w-]-[r-]--[.+@]?\s.*nvidia(?:\d|ctl)|\bMIG\b", "listing", "text", "nvidia-smi"),
)

RULES: Final = (
    Rule(
        cause="cgroup-daemon-reload-loses-gpu",
        layer="runtime",
        disruption="restart-container",
        decisive=all_of(_LOST, any_of(_RELOADED, _CUT_OFF, _BY_SYSTEMD), symptoms.DRIVER_WORKS),
        typical=any_of(
            unless(_LOST, message_line(r"\bvGPU\b|\bGRID [A-Z]\d|nvidia-gridd")),
            _CUT_OFF,
            all_of(
                message_line(r"systemd\[1\]: Reloading"), symptoms.DRIVER_WORKS, command_run(r"/dev/char|journalctl")
            ),
            all_of(_BY_SYSTEMD, symptoms.DRIVER_WORKS, command_run(r"grep\b.*\bcgroup")),
        ),
        symptoms=(symptoms.NVML_UNKNOWN, symptoms.CUDA_UNAVAILABLE, symptoms.CUDA_NO_DEVICE),
        context=any_of(_RELOADED, _CUT_OFF, _BY_SYSTEMD),
        against=(symptoms.GPU_LOST, symptoms.NO_DRIVER, symptoms.MISMATCH),
        look_at=(Shell("nvidia-smi -L  # on the host"), Shell("journalctl -b | grep -i reloading")),
        share=4,
        summary="systemd rewrote the container's device cgroup without the GPU, which was added behind its back",
        remedy=_RESTART,
        explains=NO_CLUSTER_GPU,
    ),
    Rule(
        cause="dev-char-symlinks-missing",
        layer="runtime",
        disruption="none",
        decisive=_NO_LINKS,
        symptoms=(_NO_LINKS, symptoms.OPERATOR_WAITS),
        against=(symptoms.NO_DRIVER,),
        look_at=(
            Shell("kubectl logs -n gpu-operator -l app=nvidia-operator-validator -c driver-validation"),
            Shell("ls -l /dev/char | grep nvidia"),
        ),
        summary="the links in /dev/char that systemd needs are missing and cannot be created",
        remedy=always(
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
    Rule(
        cause="selinux-denies-gpu",
        layer="config",
        disruption="restart-container",
        decisive=_DENIED,
        typical=any_of(_REFUSED, all_of(command_run(r"\bgetenforce\b|\bsestatus\b"), _ENFORCING)),
        symptoms=(symptoms.DENIED, symptoms.NVML_UNKNOWN),
        context=_ENFORCING,
        look_at=(Shell("sudo ausearch -m avc -ts recent | grep nvidia"), Shell("getenforce")),
        summary="SELinux is enforcing, and denies the container the GPU's device nodes",
        remedy=always(
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
