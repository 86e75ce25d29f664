"""A program: NVIDIA's device plugin, as far as a kubelet sees it. It runs beside a lab's node, not in it.

Its arguments are the kubelet's folder of plugins and a JSON file of devices by id with their health, read again
whenever it changes. It serves as long as the plugin's pod on the node reports that it runs (``pod.c``), and assigns
devices according to the configuration mounted in that pod.

Sources: kubelet/pkg/apis/deviceplugin/v1beta1/api.proto, whose field numbers stand here in place of generated classes;
NVIDIA/k8s-device-plugin 0.20.0, internal/plugin/server.go (what Allocate answers) and internal/cdi (the specification).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, Final, TypeAlias

import grpc
import yaml

from tests.e2e.runtimes.cri import Message, decode, encode, text

Socket: TypeAlias = "tuple[int, int]"
RESOURCE: Final = "nvidia.com/gpu"
_SOCKET: Final = "lab-gpu.sock"
_KUBELET: Final = "kubelet.sock"
_HEARTBEAT: Final = "lab-heartbeat"
_CONFIG: Final = "lab-config.yaml"
_SPECIFICATION: Final = "lab-cdi.json"
_KIND: Final = "k8s.device-plugin.nvidia.com/gpu"
_YOUNG_S: Final = 1.5
_POLL_S: Final = 0.1


class _Service(grpc.GenericRpcHandler):  # type: ignore[misc]
    def __init__(self, devices: Path, ending: Event) -> None:
        self._devices = devices
        self._ending = ending

    def service(self, details: Any) -> Any:
        """Return the handler of a method."""
        match details.method.rpartition("/")[2]:
            case "GetDevicePluginOptions":
                return grpc.unary_unary_rpc_method_handler(lambda _request, _context: b"")
            case "ListAndWatch":
                return grpc.unary_stream_rpc_method_handler(lambda _request, _context: self._watch())
            case "Allocate":
                return grpc.unary_unary_rpc_method_handler(lambda request, _context: _allocate(request))
            case _:
                pass
        return None

    def _watch(self) -> Iterator[bytes]:
        told = None
        while not self._ending.is_set():
            if (content := self._devices.read_text()) != told:
                told = content
                yield encode({1: [{1: name, 2: health} for name, health in json.loads(content).items()]})
            time.sleep(_POLL_S)


def _allocate(request: bytes) -> bytes:
    plugin = yaml.safe_load(Path(_CONFIG).read_text())["flags"].get("plugin", {})
    strategies = plugin.get("deviceListStrategy", ["envvar"])
    containers: list[Message] = []
    for _, container in decode(request):
        assert isinstance(container, bytes)
        devices = [text(value) for _, value in decode(container)]
        answer: dict[int, Any] = {}
        if "envvar" in strategies:
            answer[1] = [{1: "NVIDIA_VISIBLE_DEVICES", 2: ",".join(devices)}]
        if "cdi-cri" in strategies:
            answer[5] = [{1: f"{_KIND}={device}"} for device in devices]
        containers.append(answer)
    return encode({1: containers})


def _specification(devices: Path) -> str:
    """Return the specification that the plugin writes to /var/run/cdi, with a mark that shows in a pod that used it."""
    names = json.loads(devices.read_text())
    driver = {"hostPath": "/usr/lib/lab-driver", "containerPath": "/lab/driver", "options": ["ro", "bind"]}
    specification = {
        "cdiVersion": "0.5.0",
        "kind": _KIND,
        "devices": [{"name": name, "containerEdits": {"env": [f"LAB_GPU={name}"]}} for name in names],
        "containerEdits": {"env": ["NVIDIA_VISIBLE_DEVICES=void", "LAB_WAY=CDI"], "mounts": [driver]},
    }
    return json.dumps(specification)


def _serve(devices: Path, kubelet: Socket) -> None:
    """Serve until the plugin's pod has ended, or another kubelet has replaced the one at socket ``kubelet``."""
    ending = Event()
    server = grpc.server(ThreadPoolExecutor(4), handlers=[_Service(devices, ending)])
    Path(_SOCKET).unlink(missing_ok=True)
    server.add_insecure_port(f"unix:{_SOCKET}")
    server.start()
    try:
        with grpc.insecure_channel(f"unix:{_KUBELET}") as channel:
            register = channel.unary_unary("/v1beta1.Registration/Register", request_serializer=encode)
            register({1: "v1beta1", 2: _SOCKET, 3: RESOURCE}, timeout=5)
        print("registered", flush=True)
        while _runs() and _kubelet() == kubelet:
            time.sleep(_POLL_S)
    except grpc.RpcError as error:
        print(error, flush=True)
    finally:
        ending.set()
        server.stop(grace=None).wait()
        Path(_SOCKET).unlink(missing_ok=True)
        print("ended", flush=True)


def _kubelet() -> Socket | None:
    try:
        found = os.stat(_KUBELET)
    except FileNotFoundError:
        return None
    # The next socket may get the same inode number.
    return found.st_ino, found.st_ctime_ns


def _runs() -> bool:
    try:
        return time.time() < os.stat(_HEARTBEAT).st_mtime + _YOUNG_S
    except FileNotFoundError:
        return False


def main() -> None:
    """Serve each new kubelet."""
    folder, devices = (Path(word) for word in sys.argv[1:])
    while not folder.exists():
        time.sleep(_POLL_S)
    # A socket's full path may be longer than the kernel allows.
    os.chdir(folder)
    while True:
        # A kubelet that starts empties the folder.
        if not Path(_SPECIFICATION).exists():
            Path("partial").write_text(_specification(devices))
            Path("partial").rename(_SPECIFICATION)
        if _runs() and (kubelet := _kubelet()):
            _serve(devices, kubelet)
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main()
