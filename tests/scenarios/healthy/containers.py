"""Container runtimes and kubelets that correctly give GPUs to containers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from tests.scenarios.healthy.boards import Board
from tests.scenarios.healthy.captures import Node, Said, failed, held, journal, listed
from tests.scenarios.healthy.machines import System, dpkg_status, units

_TOOLKIT: Final = "1.18.0"
_TOOLKIT_NAMES: Final = ("nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools",
                         "libnvidia-container1")  # fmt: skip
_CONFIG: Final = """#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"
#swarm-resource = "DOCKER_RESOURCE_GPU"

[nvidia-container-cli]
#debug = "/var/log/nvidia-container-toolkit.log"
environment = []
#ldcache = "/etc/ld.so.cache"
ldconfig = "@/sbin/ldconfig"
load-kmods = true
#no-cgroups = false
#path = "/usr/bin/nvidia-container-cli"
#root = "/run/nvidia/driver"
#user = "root:video"

[nvidia-container-runtime]
#debug = "/var/log/nvidia-container-runtime.log"
log-level = "info"
mode = "auto"
runtimes = ["runc", "crun"]

[nvidia-container-runtime.modes.cdi]
annotation-prefixes = ["cdi.k8s.io/"]
default-kind = "nvidia.com/gpu"
spec-dirs = ["/etc/cdi", "/var/run/cdi"]

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"
"""


def toolkit(system: System, gpus: Sequence[Board]) -> dict[str, Said]:
    """Return NVIDIA's Container Toolkit, installed and able to list the driver."""
    folder, driver = system.libraries, system.driver
    nodes = [f"/dev/nvidia{number}" for number in range(len(gpus))]
    rows = [*nodes, "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/usr/bin/nvidia-smi",
            f"{folder}/libnvidia-ml.so.{driver}", f"{folder}/libcuda.so.{driver}"]  # fmt: skip
    version = f"{_TOOLKIT}-1"
    packages: Node = {"rpms": "".join(f"{row}\n" for row in (*system.rpms, *(f"{name}-{version}.x86_64" for name in _TOOLKIT_NAMES)))} \
        if system.rpms else {"dpkg-status": dpkg_status({**system.packages, **dict.fromkeys(_TOOLKIT_NAMES, version)}, system.arch)}  # fmt: skip
    return {
        **packages,
        "file:/etc/nvidia-container-runtime/config.toml": _CONFIG,
        "toolkit-version": f"cli-version: {_TOOLKIT}\nlib-version: {_TOOLKIT}\nbuild date: 2025-10-20T14:05+00:00\nbuild platform: x86_64\n",
        "toolkit-list": "\n".join(rows) + "\n",
        "toolkit-program": listed("/usr/bin/nvidia-container-runtime"),
        "toolkit-binaries": listed("/usr/bin/nvidia-cdi-hook", "/usr/bin/nvidia-container-cli", "/usr/bin/nvidia-container-runtime",
                                   "/usr/bin/nvidia-container-runtime-hook", "/usr/bin/nvidia-ctk"),
        "cdi-list": "time=\"2026-11-16T09:41:12Z\" level=info msg=\"Found 0 CDI devices\"\n",
    }  # fmt: skip


def cdi(system: System, gpus: Sequence[Board], folder: str = "/var/run/cdi") -> dict[str, Said]:
    """Return a specification for the installed driver, and nvidia-ctk's list of its devices."""
    driver, libraries = system.driver, system.libraries
    names = [*(str(number) for number in range(len(gpus))), *(gpu.uuid for gpu in gpus), "all"]
    nodes = [[number] for number in range(len(gpus))] * 2 + [list(range(len(gpus)))]
    devices = "".join(
        f'  - name: "{name}"\n    containerEdits:\n      deviceNodes:\n'
        + "".join(f"        - path: /dev/nvidia{number}\n" for number in numbers)
        for name, numbers in zip(names, nodes, strict=True)
    )
    mounts = "".join(
        f"    - hostPath: {path}\n      containerPath: {path}\n      options: [ro, nosuid, nodev, rbind, rprivate]\n"
        for path in (f"{libraries}/libcuda.so.{driver}", f"{libraries}/libnvidia-ml.so.{driver}", "/usr/bin/nvidia-smi")
    )
    spec = f"""---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
{devices}containerEdits:
  env:
    - NVIDIA_CTK_LIBCUDA_DIR={libraries}
    - NVIDIA_VISIBLE_DEVICES=void
  deviceNodes:
    - path: /dev/nvidia-modeset
    - path: /dev/nvidia-uvm
    - path: /dev/nvidia-uvm-tools
    - path: /dev/nvidiactl
  hooks:
    - hookName: createContainer
      path: /usr/bin/nvidia-cdi-hook
      args: [nvidia-cdi-hook, update-ldcache, --folder, {libraries}]
  mounts:
{mounts}"""
    key = {"/var/run/cdi": "cdi-run", "/etc/cdi": "cdi-etc"}[folder]
    found = f'time="2026-11-16T09:41:12Z" level=info msg="Found {len(names)} CDI devices"\n'
    return {
        key: held({f"{folder}/nvidia.yaml": spec}),
        "cdi-list": found + "".join(f"nvidia.com/gpu={name}\n" for name in names),
    }


def docker(
    *, default: str = "runc", driver: str = "systemd", more: Mapping[str, object] | None = None
) -> dict[str, Said]:
    """Return Docker from Docker's own packages, with the runtime called nvidia."""
    settings: dict[str, object] = {
        "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}},
        **(more or {}),
    }
    if default != "runc":
        settings["default-runtime"] = default
    if driver != "systemd":
        settings["exec-opts"] = [f"native.cgroupdriver={driver}"]
    return {
        "file:/etc/docker/daemon.json": json.dumps(settings, indent=4) + "\n",
        "docker-info": f"""Client: Docker Engine - Community
 Version:    28.5.1
 Context:    default
 Debug Mode: false

Server:
 Containers: 3
  Running: 2
 Images: 7
 Server Version: 28.5.1
 Storage Driver: overlay2
 Cgroup Driver: {driver}
 Cgroup Version: 2
 CDI spec directories:
  /etc/cdi
  /var/run/cdi
 Runtimes: io.containerd.runc.v2 nvidia runc
 Default Runtime: {default}
 Init Binary: docker-init
 Security Options:
  apparmor
  seccomp
   Profile: builtin
  cgroupns
 Operating System: Debian GNU/Linux 12 (bookworm)
 OSType: linux
 Architecture: x86_64
 Docker Root Dir: /var/lib/docker
 Live Restore Enabled: false
""",
        "docker-version": "Client: Docker Engine - Community\n Version:           28.5.1\n API version:       1.51\n\n"
        "Server: Docker Engine - Community\n Engine:\n  Version:          28.5.1\n  API version:      1.51 (minimum version 1.24)\n"
        " containerd:\n  Version:          v1.7.28\n runc:\n  Version:          1.3.0\n",
        "docker-unit": "# /lib/systemd/system/docker.service\n[Unit]\nDescription=Docker Application Container Engine\n"
        "After=network-online.target containerd.service\n\n[Service]\nType=notify\n"
        "ExecStart=/usr/bin/dockerd -H fd:// --containerd=/run/containerd/containerd.sock\n",
        "docker-binaries": listed("/usr/bin/dockerd"),
        "units": units("nvidia-persistenced.service", "docker.service", "containerd.service"),
        "log:docker": journal((
            "systemd[1]: Starting docker.service - Docker Application Container Engine...",
            'dockerd[901]: time="2026-11-16T06:12:39.1Z" level=info msg="Starting up"',
            'dockerd[901]: time="2026-11-16T06:12:39.2Z" level=info msg="CDI directory does not exist, skipping: failed to '
            'monitor for changes: no such file or directory" dir=/etc/cdi',
            'dockerd[901]: time="2026-11-16T06:12:39.6Z" level=warning msg="WARNING: No swap limit support"',
            'dockerd[901]: time="2026-11-16T06:12:40.2Z" level=info msg="Daemon has completed initialization"',
            'dockerd[901]: time="2026-11-16T07:02:11.4Z" level=info msg="ignoring event" container=0f3a module=libcontainerd',
        )),
        "containerd-dump": containerd_dump(nvidia=False),
    }  # fmt: skip


def containerd_dump(*, nvidia: bool, default: str = "runc", version: int = 2, cgroups: bool = True) -> str:
    """Return an abridged output of ``containerd config dump``."""
    cri = {2: '"io.containerd.grpc.v1.cri"', 3: "'io.containerd.cri.v1.runtime'"}[version]
    kinds = ["runc", *(["nvidia"] if nvidia else [])]
    rows = [f"version = {version}", 'root = "/var/lib/containerd"', 'state = "/run/containerd"', "disabled_plugins = []",
            'imports = ["/etc/containerd/config.toml"]', "", "[grpc]", '  address = "/run/containerd/containerd.sock"', "",
            "[plugins]", "", f"  [plugins.{cri}]", "    enable_cdi = true", '    cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]',
            "", f"    [plugins.{cri}.containerd]", f'      default_runtime_name = "{default}"', ""]  # fmt: skip
    for kind in kinds:
        binary = "/usr/bin/nvidia-container-runtime" if kind == "nvidia" else ""
        rows += [f"      [plugins.{cri}.containerd.runtimes.{kind}]", '        runtime_type = "io.containerd.runc.v2"', "",
                 f"        [plugins.{cri}.containerd.runtimes.{kind}.options]", f'          BinaryName = "{binary}"',
                 f"          SystemdCgroup = {str(cgroups).lower()}", ""]  # fmt: skip
    return "\n".join(rows)


def containerd(*, default: str = "runc", version: int = 2) -> dict[str, Said]:
    """Return containerd with the runtime called nvidia."""
    dump = containerd_dump(nvidia=True, default=default, version=version)
    kept = [line for line in dump.split("\n") if not line.startswith("imports")]
    return {
        "file:/etc/containerd/config.toml": "\n".join(kept) + "\n",
        "containerd-dump": dump,
        "units": units("nvidia-persistenced.service", "containerd.service"),
        "log:containerd": journal((
            'containerd[701]: time="2026-11-16T06:12:38.1Z" level=info msg="starting containerd" revision=b98a3aa version=v1.7.28',
            'containerd[701]: time="2026-11-16T06:12:38.2Z" level=info msg="skip loading plugin \\"io.containerd.snapshotter.v1.btrfs\\"..." '
            'error="path /var/lib/containerd/io.containerd.snapshotter.v1.btrfs (ext4) must be a btrfs filesystem to be used with the '
            'btrfs snapshotter: skip plugin" type=io.containerd.snapshotter.v1',
            'containerd[701]: time="2026-11-16T06:12:38.4Z" level=error msg="failed to load cni during init, please check CRI plugin '
            'status before setting up network for pods" error="cni config load failed: no network config found in /etc/cni/net.d: '
            'cni plugin not initialized: failed to load cni config"',
            'containerd[701]: time="2026-11-16T06:12:38.6Z" level=info msg="containerd successfully booted in 0.048s"',
        )),
    }  # fmt: skip


def crio() -> dict[str, Said]:
    """Return CRI-O with the runtime called nvidia in a drop-in."""
    return {
        "crio-conf-d": held({
            "/etc/crio/crio.conf.d/10-crio.conf": '[crio.runtime]\ndefault_runtime = "crun"\n\n[crio.runtime.runtimes.crun]\n'
            'runtime_path = "/usr/libexec/crio/crun"\nmonitor_path = "/usr/libexec/crio/conmon"\n',
            "/etc/crio/crio.conf.d/99-nvidia.conf": '[crio]\n\n  [crio.runtime]\n    default_runtime = "crun"\n\n    '
            '[crio.runtime.runtimes]\n\n      [crio.runtime.runtimes.nvidia]\n        runtime_path = "/usr/bin/nvidia-container-runtime"\n'
            '        runtime_type = "oci"\n',
        }),
        "units": units("nvidia-persistenced.service", "crio.service"),
        "log:crio": journal((
            'crio[811]: time="2026-11-16 06:12:38.51Z" level=info msg="Starting CRI-O, version: 1.34.1, git: unknown(clean)"',
            'crio[811]: time="2026-11-16 06:12:38.52Z" level=info msg="Registered SIGHUP reload watcher"',
        )),
    }  # fmt: skip


def podman() -> dict[str, Said]:
    """Return podman, which gets GPUs only through CDI."""
    return {
        "podman-version": "Client:       Podman Engine\nVersion:      5.4.0\nAPI Version:  5.4.0\nOS/Arch:      linux/amd64\n",
        "file:/etc/containers/containers.conf": "[containers]\n\n[engine]\n",
    }


def k3s(system: System) -> dict[str, Said]:
    """Return k3s, which detected the nvidia runtime by itself."""
    generated = """# File generated by k3s. DO NOT EDIT. Use config.toml.tmpl instead.
version = 3
root = "/var/lib/rancher/k3s/agent/containerd"
state = "/run/k3s/containerd"

[grpc]
  address = "/run/k3s/containerd/containerd.sock"

[plugins.'io.containerd.cri.v1.runtime']
  enable_selinux = false
  enable_unprivileged_ports = true

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = true

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia']
  runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.'nvidia'.options]
  BinaryName = "/usr/bin/nvidia-container-runtime"
  SystemdCgroup = true
"""
    return {
        "rancher-containerd": held({"/var/lib/rancher/k3s/agent/etc/containerd/config.toml": generated}),
        "file:/var/lib/rancher/k3s/agent/etc/crictl.yaml": "runtime-endpoint: unix:///run/k3s/containerd/containerd.sock\n",
        "units": units("nvidia-persistenced.service", "k3s.service"),
        "log:k3s": journal((
            'k3s[902]: time="2026-11-16T06:12:40Z" level=info msg="Starting k3s v1.34.1+k3s1 (24fc436e)"',
            'k3s[902]: time="2026-11-16T06:12:41Z" level=info msg="Found nvidia container runtime at /usr/bin/nvidia-container-runtime"',
            'k3s[902]: I1116 06:12:52.110231     902 plugin_manager.go:118] "Starting Kubelet Plugin Manager"',
            'k3s[902]: I1116 06:13:02.510231     902 manager.go:230] "Device plugin connected" resourceName="nvidia.com/gpu"',
        )),
        **plugin_files(1),
        "pod-logs": held({"/var/log/pods/kube-system_nvidia-device-plugin-daemonset-7kq2x_0a1b/nvidia-device-plugin-ctr/0.log": PLUGIN_LOG}),
    }  # fmt: skip


def _logged(*lines: str) -> str:
    return "".join(f"2026-11-16T06:13:0{at}.104233112Z stderr F {line}\n" for at, line in enumerate(lines))


PLUGIN_LOG: Final = _logged(
    'I1116 06:13:00.104233       1 main.go:235] "Starting NVIDIA Device Plugin" version="v0.18.0"',
    "I1116 06:13:00.104301       1 main.go:238] Starting FS watcher for /var/lib/kubelet/device-plugins",
    "I1116 06:13:00.104341       1 main.go:252] Starting Plugins.",
    'I1116 06:13:01.004233       1 factory.go:107] Detected NVML platform: found NVML library',
    "I1116 06:13:01.005233       1 server.go:197] Starting GRPC server for 'nvidia.com/gpu'",
    "I1116 06:13:01.008233       1 server.go:141] Starting to serve 'nvidia.com/gpu' on /var/lib/kubelet/device-plugins/nvidia-gpu.sock",
    "I1116 06:13:01.018233       1 server.go:148] Registered device plugin for 'nvidia.com/gpu' with Kubelet",
)  # fmt: skip


def plugin_files(gpus: int) -> dict[str, Said]:
    """Return the files of the kubelet and the device plugin in the kubelet's folders."""
    devices = [f"GPU-{number:08}-0000-4000-8000-000000000000" for number in range(gpus)]
    checkpoint = {
        "Data": {"PodDeviceEntries": None, "RegisteredDevices": {"nvidia.com/gpu": devices}},
        "Checksum": 3106178347,
    }
    return {
        "device-plugin-sockets": listed("/var/lib/kubelet/device-plugins/kubelet.sock",
                                        "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
                                        "/var/lib/kubelet/device-plugins/nvidia-gpu.sock"),
        "file:/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": json.dumps(checkpoint),
        "file:/var/lib/kubelet/cpu_manager_state": '{"policyName":"none","defaultCpuSet":"","checksum":1353318690}',
    }  # fmt: skip


def kubeadm(gpus: int, *, free: int | None = None, resource: str = "nvidia.com/gpu") -> dict[str, Said]:
    """Return a node of a kubeadm cluster on containerd, with the device plugin; ``free`` GPUs are unassigned."""
    taken = 0 if free is None else gpus - free
    return {
        **containerd(default="nvidia"),
        "units": units("nvidia-persistenced.service", "containerd.service", "kubelet.service"),
        "file:/var/lib/kubelet/config.yaml": "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\ncgroupDriver: systemd\n"
        "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\ncpuManagerReconcilePeriod: 0s\n",
        "file:/var/lib/kubelet/kubeadm-flags.env": 'KUBELET_KUBEADM_ARGS="--pod-infra-container-image=registry.k8s.io/pause:3.10"\n',
        "kubelet-conf": listed("/etc/kubernetes/kubelet.conf"),
        "kubelet-conf-programs": "",
        "kubelet-pods": listed("/var/lib/kubelet/pods/0a1b2c3d-0000-4000-8000-000000000001"),
        **plugin_files(gpus),
        "pod-logs": held({"/var/log/pods/kube-system_nvidia-device-plugin-daemonset-7kq2x_0a1b/nvidia-device-plugin-ctr/0.log":
                          PLUGIN_LOG.replace("nvidia.com/gpu", resource)}),
        "log:kubelet": journal((
            "systemd[1]: Started kubelet.service - kubelet: The Kubernetes Node Agent.",
            'kubelet[920]: I1116 06:12:44.104233     920 server.go:529] "Kubelet version" kubeletVersion="v1.34.2"',
            'kubelet[920]: E1116 06:12:44.404233     920 eviction_manager.go:267] "eviction manager: failed to check if we have separate '
            'container filesystem. Ignoring." err="no imagefs label for configured runtime"',
            'kubelet[920]: E1116 06:12:44.504233     920 kubelet.go:2451] "Container runtime network not ready" networkReady="NetworkReady=false '
            'reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized"',
            f'kubelet[920]: I1116 06:13:01.104233     920 server.go:144] "Got registration request from device plugin with resource" resource="{resource}"',
            f'kubelet[920]: I1116 06:13:01.204233     920 handler.go:94] "Registered client" name="{resource}"',
            'kubelet[920]: I1116 07:13:01.204233     920 scope.go:117] "RemoveContainer" containerID="0f3a"',
        )),
        "kubernetes-node": json.dumps(_node(gpus, resource)),
        "kubernetes-pods": json.dumps({"kind": "PodList", "apiVersion": "v1", "items": [*_PODS, *(_job(at, resource) for at in range(taken))]}),
    }  # fmt: skip


def _node(gpus: int, resource: str) -> dict[str, object]:
    room = {"cpu": "64", "memory": "528088580Ki", resource: str(gpus), "pods": "110"}
    return {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": "gpu-node-17",
            "labels": {"kubernetes.io/arch": "amd64", "kubernetes.io/hostname": "gpu-node-17", "nvidia.com/gpu.present": "true"},
        },
        "spec": {},
        "status": {
            "allocatable": room,
            "capacity": room,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}],
            "nodeInfo": {"containerRuntimeVersion": "containerd://1.7.28", "kubeletVersion": "v1.34.2"},
        },
    }  # fmt: skip


def _pod(namespace: str, name: str, limits: Mapping[str, str], restarts: int = 0) -> dict[str, object]:
    return {
        "metadata": {"namespace": namespace, "name": name},
        "spec": {"nodeName": "gpu-node-17", "containers": [{"name": "main", "resources": {"limits": dict(limits)}}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "ready": True, "restartCount": restarts, "state": {"running": {"startedAt": "2026-11-16T06:13:01Z"}}}],
        },
    }  # fmt: skip


def _job(number: int, resource: str) -> dict[str, object]:
    return _pod("training", f"job-{number}-x7z2k", {resource: "1"})


_PODS: Final = (
    _pod("kube-system", "kube-proxy-9x2lm", {}, 3),
    _pod("kube-system", "nvidia-device-plugin-daemonset-7kq2x", {}, 5),
)


def mig_instances() -> Said:
    """Return the output of ``nvidia-smi mig -lgi`` with two instances."""
    return (
        "+---------------------------------------------------------+\n| GPU instances:                                          |\n"
        "| GPU   Name               Profile  Instance   Placement  |\n|                            ID       ID       Start:Size |\n"
        "|=========================================================|\n|   0  MIG 3g.40gb            9        1          0:4     |\n"
        "+---------------------------------------------------------+\n|   0  MIG 3g.40gb            9        2          4:4     |\n"
        "+---------------------------------------------------------+\n"
    )


def without_answer() -> Said:
    """Return a command without output and with exit status 1."""
    return failed("")
