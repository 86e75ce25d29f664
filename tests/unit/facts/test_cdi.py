"""CDI specifications: the subset of YAML that nvidia-ctk writes, and which of several specifications counts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.facts import cdi

RUN, ETC = "/var/run/cdi/nvidia.yaml", "/etc/cdi/nvidia.yaml"
# As nvidia-ctk 1.20 lays it out; shortened.
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
# As nvidia-ctk 1.13 to 1.17 lay it out: sorted, and lists at their key's own indent.
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


def spec(data: bytes, path: str = RUN) -> cdi.Spec:
    found = cdi.read(path, data)
    assert isinstance(found, cdi.Spec), found
    return found


def named(*names: str, path: str = RUN, kind: str = "nvidia.com/gpu") -> bytes:
    devices = [{"name": name, "containerEdits": {"env": [path]}} for name in names]
    return json.dumps({"cdiVersion": "0.5.0", "kind": kind, "devices": devices}).encode()


def test_what_nvidia_ctk_writes_is_understood() -> None:
    found = spec(WRITTEN)
    assert (found.version, found.kind, [*found.devices]) == ("0.7.0", "nvidia.com/gpu", ["0", "1:0", "all"])
    assert found.drivers == {"580.95.05"}
    assert found.gpus == {0, 1}
    assert found.mig_caps == {12}
    assert found.devices["1:0"].nodes == ("/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap12")
    assert {"/usr/bin/nvidia-cdi-hook", "/run/nvidia-persistenced/socket", "/dev/nvidiactl"} <= {*found.paths}


def test_so_is_what_older_toolkits_wrote() -> None:
    found = spec(FORMER)
    assert [*found.devices] == ["all"]
    assert found.drivers == {"535.104.05"}
    assert found.gpus == {0}


def test_json_is_read_whatever_the_file_is_called() -> None:
    for path in ("/etc/cdi/x.json", RUN):
        assert [*spec(named("all"), path).devices] == ["all"]


def test_in_a_driver_container_it_is_the_hosts_path_that_must_be_there() -> None:
    data = WRITTEN.replace(b"hostPath: /dev/nvidiactl", b"hostPath: /run/nvidia/driver/dev/nvidiactl")
    assert "/run/nvidia/driver/dev/nvidiactl" in spec(data).paths


@pytest.mark.parametrize(
    "text",
    [
        "a: |\n  x\n",
        "a: >-\n  x\n",
        "a: &anchor 1\n",
        "a: *anchor\n",
        "a: !tag b\n",
        "a: [1, 2]\n",
        "a: {b: c}\n",
        "a: b: c\n",
        "a: b # comment\n",
        "a: 1.5\n",
        "a: 0x1F\n",
        "a: 'b\n",
        'a: "b\n',
        'a: "\\x41"\n',
        "a: b\n  c\n",
        "a: b\n---\nc: d\n",
        "a: b\n...\n",
        "a:\tb\n",
        "a: b\na: c\n",
        "a:\n  b: c\n d: e\n",
        "- a\nb: c\n",
        "%YAML 1.2\n---\na: b\n",
        "? a\n: b\n",
        "just words\n",
        "- " * 200 + "a",
    ],
)
def test_more_of_yaml_makes_a_file_unread_and_is_never_guessed(text: str) -> None:
    with pytest.raises(ValueError, match=r"line|deeply"):
        cdi.yaml(text)
    assert isinstance(cdi.read(RUN, text.encode()), cdi.Unread)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\xff", "utf-8"),
        (b"", "not a mapping"),
        (b"kind: nvidia.com/gpu\n", "cdiVersion is missing"),
        (b"cdiVersion: 5\nkind: nvidia.com/gpu\n", "cdiVersion is not text"),
        (b"cdiVersion: 0.5.0\nkind: a/b\ndevices:\n- 1\n", "devices is not a list of mappings"),
        (b"cdiVersion: 0.5.0\nkind: a/b\ncontainerEdits: 1\n", "containerEdits is not a mapping"),
        (b"cdiVersion: 0.5.0\nkind: a/b\ndevices:\n- containerEdits: {}\n", "name is missing"),
    ],
)
def test_what_is_no_specification_says_why(data: bytes, why: str) -> None:
    found = cdi.read(RUN, data)
    assert isinstance(found, cdi.Unread)
    assert why in found.reason


PLAIN = st.text("abz/_.-=09", min_size=1, max_size=8).filter(lambda word: word[0] not in "-.09")
WORDS = PLAIN.map(lambda word: (word, word)) | st.text("a \"'#:\\-0", max_size=6).map(lambda w: (json.dumps(w), w))


def _block(draw: st.DrawFn, depth: int, step: int) -> tuple[list[str], Any]:
    """Lines and their meaning, as Go's encoders write: block style, each level indented by ``step``."""
    if depth == 0 or draw(st.booleans()):
        text, value = draw(WORDS)
        return [text], value
    lines: list[str] = []
    if draw(st.booleans()):
        items = [_block(draw, depth - 1, step) for _ in range(draw(st.integers(1, 3)))]
        for inner, _ in items:
            lines += [f"- {inner[0]}", *(f"  {line}" for line in inner[1:])]
        return lines, [value for _, value in items]
    keys = draw(st.lists(st.sampled_from(["alpha", "beta", "gamma"]), min_size=1, unique=True))
    members = {key: _block(draw, depth - 1, step) for key in keys}
    for key, (inner, value) in members.items():
        if isinstance(value, str):
            lines.append(f"{key}: {inner[0]}")
        else:
            indent = " " * (draw(st.sampled_from([0, step])) if isinstance(value, list) else step)
            lines += [f"{key}:", *(indent + line for line in inner)]
    return lines, {key: value for key, (_, value) in members.items()}


@st.composite
def blocks(draw: st.DrawFn) -> tuple[str, Any]:
    lines, value = _block(draw, 4, draw(st.sampled_from([2, 4])))
    return "\n".join(("---", *lines, "")), value


@given(blocks())
def test_block_style_is_read_as_it_was_meant(block: tuple[str, Any]) -> None:
    text, value = block
    if isinstance(value, str):
        return
    assert cdi.yaml(text) == value


@given(st.binary(max_size=200) | st.text(" -:\n'\"#ab{}[]|&", max_size=60).map(str.encode))
def test_any_bytes_are_a_specification_or_unread(data: bytes) -> None:
    assert isinstance(cdi.read(RUN, data), cdi.Spec | cdi.Unread)


# Which one counts.


def test_the_folder_that_comes_later_wins() -> None:
    offer = cdi.offer({ETC: named("all", "0"), RUN: named("all")})
    assert {name: one.path for name, one in offer.devices.items()} == {"all": RUN, "0": ETC}
    assert cdi.offer({RUN: named("all")}, ("/etc/cdi",)).devices == {}


def test_a_name_that_two_files_of_one_folder_have_is_nobodys() -> None:
    other = "/var/run/cdi/other.json"
    offer = cdi.offer({ETC: named("all"), RUN: named("all", "0"), other: named("all")})
    assert {**offer.conflicts} == {"all": (RUN, other)}
    assert [*offer.devices] == ["0"]


def test_a_conflict_in_a_folder_that_another_overrules_is_none() -> None:
    offer = cdi.offer({"/etc/cdi/a.json": named("all"), "/etc/cdi/b.json": named("all"), RUN: named("all")})
    assert (offer.conflicts, offer.devices["all"].path) == ({}, RUN)


def test_other_kinds_and_files_that_no_engine_reads_do_not_count() -> None:
    files = {
        "/etc/cdi/other.json": named("all", kind="vendor.com/net"),
        "/etc/cdi/nvidia.yml": named("all"),
        "/etc/cdi/nvidia.yaml.bak": named("all"),
        "/etc/cdi/sub/nvidia.json": named("all"),
        "/etc/cdi/flow.yaml": b"{cdiVersion: 0.5.0}",
    }
    offer = cdi.offer(files)
    assert (offer.specs, offer.devices) == ((), {})
    assert [one.path for one in offer.unread] == ["/etc/cdi/flow.yaml"]
