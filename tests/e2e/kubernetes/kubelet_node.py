"""A booted test node with a kubelet, whose pods are real containers; its GPUs and their runtime are stand-ins."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

from tests.e2e.kubernetes.control_plane import ControlPlane
from tests.e2e.lab.code import PROJECT
from tests.e2e.lab.machine import Machine
from tests.e2e.lab.toolkit import CALLS
from tests.needs import asset

# The name of the lab's machines; gpunode uses a node's host name as that of its Node.
NAME: Final = "lab"
CNI: Final = "/usr/lib/cni"
KUBELET: Final = "kubelet.service"
KUBECONFIG: Final = "/root/admin.kubeconfig"
_ADDRESS: Final = "10.99.0.1"
KUBELET_CONFIG: Final = "/var/lib/kubelet/config.yaml"
_CONFIG: Final[dict[str, Any]] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    # As with kubeadm, but without its own cgroups, since the lab's machine has no controllers for them.
    "cgroupDriver": "systemd",
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failSwapOn": False,
    "localStorageCapacityIsolation": False,
    "evictionHard": dict.fromkeys(("memory.available", "nodefs.available", "imagefs.available"), "0%"),
    "imageGCHighThresholdPercent": 100,
    "resolvConf": "",
    "makeIPTablesUtilChains": False,
    "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
    "authorization": {"mode": "AlwaysAllow"},
    # By default allocatable lags by up to 10 s.
    "nodeStatusUpdateFrequency": "1s",
}
_UNIT: Final = f"""\
[Unit]
Description=kubelet: The Kubernetes Node Agent
Wants=network-online.target
After=containerd.service

[Service]
EnvironmentFile=-/etc/default/kubelet
ExecStartPre=/usr/local/sbin/lab-kernel
ExecStart=/usr/local/bin/kubelet --config=/var/lib/kubelet/config.yaml \\
  --kubeconfig=/etc/kubernetes/kubelet.conf --node-ip={_ADDRESS} --hostname-override={NAME} $KUBELET_EXTRA_ARGS
Restart=always
RestartSec=1

[Install]
WantedBy=multi-user.target
"""
# The kubelet would set these; the kernel is the machine's own, so it finds them set.
_KERNEL: Final = """\
#!/bin/sh
set -e
ln -sfn /dev/null /dev/kmsg
while read -r name value; do
  [ "$(cat "/proc/sys/$name")" != "$value" ] || continue
  echo "$value" > "/run/lab-$(basename "$name")"
  mount --bind "/run/lab-$(basename "$name")" "/proc/sys/$name"
done <<END
vm/overcommit_memory 1
vm/panic_on_oom 0
kernel/panic 10
kernel/panic_on_oops 1
kernel/keys/root_maxkeys 1000000
kernel/keys/root_maxbytes 25000000
END
"""
# Before the real one on PATH: it removes settings that the lab's machine does not permit: limits, and OOM scores below
# its own. A kubelet without its own cgroups names no slice, so it adds one if the driver is systemd, as other kubelets
# do. containerd's configuration stays as gpunode wrote it. A container from NVIDIA's runtime, whose stand-in logs its
# calls, gets the driver if NVIDIA_VISIBLE_DEVICES is set, as with that runtime.
_DRIVER: Final = "/usr/lib/lab-driver"
_RUNC: Final = """\
#!/usr/bin/python3
import json, os, sys
if "--bundle" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(path) as file:
        spec = json.load(file)
    for name in ("cpu", "memory", "pids", "unified", "hugepageLimits"):
        spec["linux"].get("resources", {}).pop(name, None)
    spec["process"]["oomScoreAdj"] = max(0, spec["process"].get("oomScoreAdj", 0))
    gpus = dict(one.split("=", 1) for one in spec["process"].get("env", [])).get("NVIDIA_VISIBLE_DEVICES", "void")
    if gpus != "void" and " ".join(sys.argv[1:]) in open("@CALLS@").read().splitlines():
        spec["process"]["env"] += ["LAB_GPU=" + gpus, "LAB_WAY=NVIDIA's runtime"]
        driver = {"destination": "/lab/driver", "type": "bind", "source": "@DRIVER@", "options": ["bind", "ro"]}
        spec["mounts"].append(driver)
    with open("/var/lib/kubelet/config.yaml") as file:
        if json.load(file)["cgroupDriver"] == "systemd":
            spec["linux"]["cgroupsPath"] = "lab.slice:cri-containerd:" + os.path.basename(spec["linux"]["cgroupsPath"])
    with open(path, "w") as file:
        json.dump(spec, file)
real = next(path for path in ("/usr/sbin/runc", "/usr/bin/runc") if os.path.exists(path))
os.execv(real, ["runc", *sys.argv[1:]])
""".replace("@CALLS@", CALLS).replace("@DRIVER@", _DRIVER)
_BRIDGE: Final = {
    "cniVersion": "0.4.0",
    "name": "lab",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": False,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.98.0.0/24"}]]},
        }
    ],
}


def lacking_network() -> str:
    """Return why pods cannot have a network here; empty if they can."""
    return (
        "" if os.path.exists(f"{CNI}/bridge") else "needs the CNI plugins: apt-get install containernetworking-plugins"
    )


class KubeletNode(Machine):
    """A machine that can join a cluster as node NAME."""

    def storage(self) -> dict[str, Path]:
        """Return the folders, including the kubelet's."""
        return {**super().storage(), "/var/lib/kubelet": self.sandbox.scratch / "kubelet"}

    def bound(self) -> dict[str, Path]:
        """Return the mounts, including the programs of a Kubernetes node."""
        programs = {f"/usr/local/bin/{name}": Path(asset(name) or "") for name in ("kubelet", "kubectl")}
        return {**super().bound(), **programs, CNI: Path(CNI)}

    def provide_kubelet(self, plane: ControlPlane) -> None:
        """Install the kubelet, not started, and credentials for ``plane``; root is the cluster's administrator."""
        self.write(KUBELET_CONFIG, json.dumps(_CONFIG))
        self.write("/etc/systemd/system/kubelet.service", _UNIT)
        self.write("/usr/local/sbin/lab-kernel", _KERNEL, 0o755)
        self.write("/usr/local/sbin/runc", _RUNC, 0o755)
        self.write(_DRIVER, "595.91.07\n")
        self.write("/etc/cni/net.d/10-lab.conflist", json.dumps(_BRIDGE))
        self.write("/etc/kubernetes/kubelet.conf", plane.kubeconfig(NAME).read_text(), 0o600)
        self.write(KUBECONFIG, plane.kubeconfig().read_text(), 0o600)
        # There is no name resolution here; an immediate error keeps image pulls from waiting.
        self.write("/etc/resolv.conf", "nameserver 127.0.0.1\n")
        self.run("systemctl", "enable", KUBELET)

    def offer_gpus(self, count: int) -> None:
        """Offer GPUs through the device plugin's stand-in whenever the plugin's pod runs."""
        self.set_health(["Healthy"] * count)
        program = (sys.executable, "-m", "tests.e2e.kubernetes.device_plugin")
        folders = (str(self.sandbox.scratch / "kubelet/device-plugins"), str(self._devices))
        argv = self.sandbox.argv("env", f"PYTHONPATH={PROJECT}", *program, *folders)
        self.spawn(argv, self.sandbox.scratch / "plugin.log")

    def set_health(self, health: list[str]) -> None:
        """Set each GPU to ``Healthy`` or ``Unhealthy``."""
        names = (f"GPU-00000000-0000-0000-0000-{number:012x}" for number in range(1, len(health) + 1))
        partial = self._devices.with_suffix(".partial")
        partial.write_text(json.dumps(dict(zip(names, health, strict=True))))
        partial.rename(self._devices)

    def registrations(self) -> int:
        """Return how often a kubelet has registered the plugin's GPUs so far; the cluster sees it later."""
        return (self.sandbox.scratch / "plugin.log").read_text().count("registered")

    def journal(self, unit: str, lines: int = 30) -> str:
        """Return the last log lines of a unit."""
        return self.finish("journalctl", "--no-pager", "-q", "-o", "cat", "-n", str(lines), "-u", unit).stdout

    @property
    def _devices(self) -> Path:
        return self.sandbox.scratch / "devices.json"

    def _boot(self) -> None:
        # A kubelet does not accept a loopback address as its node's.
        for command in (
            ("link", "add", "lab0", "type", "bridge"),
            ("address", "add", f"{_ADDRESS}/24", "dev", "lab0"),
            ("link", "set", "lab0", "up"),
            ("route", "add", "default", "dev", "lab0"),
        ):
            self.sandbox.run("ip", *command)
        super()._boot()
