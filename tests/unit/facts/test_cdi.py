"""CDI specifications: the content of a file, and which of several files counts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.facts import cdi

RUN, ETC = "/var/run/cdi/nvidia.yaml", "/etc/cdi/nvidia.yaml"
# In the layout of nvidia-ctk 1.20, shortened.
WRITTEN = b"""\
---
cdiVersion: 0.7.0
kind: nvidia.com/gpu
devices:
    - name: "0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
              hostPath: /dev/nvidia0
            - path: /dev/dri/card1
        additionalGids:
            - 44
    - name: "1:0"
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia1
            - path: /dev/nvidia-caps/nvidia-cap12
              hostPath: /dev/nvidia-caps/nvidia-cap12
    - name: all
      containerEdits:
        deviceNodes:
            - path: /dev/nvidia0
            - path: /dev/nvidia1
containerEdits:
    env:
        - NVIDIA_VISIBLE_DEVICES=void
    deviceNodes:
        - path: /dev/nvidiactl
          hostPath: /dev/nvidiactl
    hooks:
        - hookName: createContainer
          path: /usr/bin/nvidia-cdi-hook
          args:
            - nvidia-cdi-hook
            - create-symlinks
            - --link
            - libcuda.so.1::/lib/x86_64-linux-gnu/libcuda.so
            - "755"
    mounts:
        - hostPath: /lib/x86_64-linux-gnu/libcuda.so.580.95.05
          containerPath: /lib/x86_64-linux-gnu/libcuda.so.580.95.05
          options:
            - ro
        - containerPath: /run/nvidia-persistenced/socket
          hostPath: /run/nvidia-persistenced/socket
"""
# In the layout of nvidia-ctk 1.13 to 1.17: sorted, and lists at their key's own indent.
FORMER = b"""\
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  mounts:
  - containerPath: /lib/firmware/nvidia/535.104.05/gsp_tu10x.bin
    hostPath: /lib/firmware/nvidia/535.104.05/gsp_tu10x.bin
    options:
    - ro
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
"""


def spec(data: bytes, path: str = RUN) -> cdi.CdiSpec:
    found = cdi.read_spec(path, data)
    assert isinstance(found, cdi.CdiSpec), found
    return found


def cdi_file(*names: str, path: str = RUN, kind: str = "nvidia.com/gpu") -> bytes:
    devices = [{"name": name, "containerEdits": {"env": [path]}} for name in names]
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices}).encode()


def test_cdi_spec_of_nvidia_ctk_is_parsed() -> None:
    found = spec(WRITTEN)
    assert (found.version, found.kind, [*found.devices]) == ("0.7.0", "nvidia.com/gpu", ["0", "1:0", "all"])
    assert found.drivers == {"580.95.05"}
    assert found.gpus == {0, 1}
    assert found.mig_capabilities == {12}
    assert found.devices["1:0"].nodes == ("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap12")
    assert {"/usr/bin/nvidia-cdi-hook", "/run/nvidia-persistenced/socket", "/dev/nvidiactl"} <= {*found.paths}


def test_cdi_spec_of_older_toolkits_is_parsed() -> None:
    found = spec(FORMER)
    assert [*found.devices] == ["all"]
    assert found.drivers == {"535.104.05"}
    assert found.gpus == {0}


def test_json_cdi_spec_is_parsed_under_any_file_name() -> None:
    for path in ("/etc/cdi/x.json", RUN):
        assert [*spec(cdi_file("all"), path).devices] == ["all"]


def test_cdi_paths_use_the_host_path() -> None:
    data = WRITTEN.replace(b"hostPath: /dev/nvidiactl", b"hostPath: /run/nvidia/driver/dev/nvidiactl")
    assert "/run/nvidia/driver/dev/nvidiactl" in spec(data).paths


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff", "utf-8"),
        (b"kind: nvidia.com/gpu\nkind: a/b\n", "line 2: kind stands there twice"),
        (b"kind: &kind a/b\ncdiVersion: *kind\n", "line 1: anchors and aliases are not read"),
        (b"", "not a mapping"),
        (b"kind: nvidia.com/gpu\n", "cdiVersion is missing"),
        (b"cdiVersion: []\nkind: nvidia.com/gpu\n", "cdiVersion is not text"),
        (b"cdiVersion: 0.5.0\nkind: a/b\ndevices:\n- 1\n", "devices is not a list of mappings"),
        (b"cdiVersion: 0.5.0\nkind: a/b\ncontainerEdits: 1\n", "containerEdits is not a mapping"),
        (b"cdiVersion: 0.5.0\nkind: a/b\ndevices:\n- containerEdits: {}\n", "name is missing"),
    ],
)
def test_invalid_cdi_spec_says_why(data: bytes, why: str) -> None:
    found = cdi.read_spec(RUN, data)
    assert isinstance(found, cdi.UnreadableSpec)
    assert why in found.reason


@given(st.binary(max_size=200) | st.text(" -:\n'\"#ab{}[]|&", max_size=60).map(str.encode))
def test_any_bytes_are_a_spec_or_unreadable(data: bytes) -> None:
    assert isinstance(cdi.read_spec(RUN, data), cdi.CdiSpec | cdi.UnreadableSpec)


# Which one counts.


def test_later_cdi_folder_overrides_an_earlier_one() -> None:
    offer = cdi.resolve_devices({ETC: cdi_file("all", "0"), RUN: cdi_file("all")})
    assert {name: one.path for name, one in offer.devices.items()} == {"all": RUN, "0": ETC}
    assert cdi.resolve_devices({RUN: cdi_file("all")}, ("/etc/cdi",)).devices == {}


def test_device_in_two_files_of_one_folder_is_a_conflict() -> None:
    other = "/var/run/cdi/other.json"
    offer = cdi.resolve_devices({ETC: cdi_file("all"), RUN: cdi_file("all", "0"), other: cdi_file("all")})
    assert {**offer.conflicts} == {"all": (RUN, other)}
    assert [*offer.devices] == ["0"]


def test_overridden_conflict_is_no_conflict() -> None:
    offer = cdi.resolve_devices(
        {"/etc/cdi/a.json": cdi_file("all"), "/etc/cdi/b.json": cdi_file("all"), RUN: cdi_file("all")}
    )
    assert (offer.conflicts, offer.devices["all"].path) == ({}, RUN)


def test_other_kinds_and_unread_files_are_ignored() -> None:
    files = {
        "/etc/cdi/other.json": cdi_file("all", kind="vendor.com/net"),
        "/etc/cdi/nvidia.yml": cdi_file("all"),
        "/etc/cdi/nvidia.yaml.bak": cdi_file("all"),
        "/etc/cdi/sub/nvidia.json": cdi_file("all"),
        "/etc/cdi/flow.yaml": b"[cdiVersion: 0.5.0",
    }
    offer = cdi.resolve_devices(files)
    assert (offer.specs, offer.devices) == ((), {})
    assert [one.path for one in offer.unreadable] == ["/etc/cdi/flow.yaml"]
