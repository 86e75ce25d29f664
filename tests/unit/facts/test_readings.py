"""Whether a later reading of the same thing stands for the earlier."""

from __future__ import annotations

import pytest

from gpunode.facts.readings import has_fewer, stands_for
from gpunode.facts.sources import recognise

PENDING = "    Remapped Rows\n        Pending                           : {}\n"
GPU = "GPU 00000000:{}:00.0\n    Remapped Rows\n        Pending                           : {}\n"
NODE = "Capacity:\n  nvidia.com/gpu:     {}\nAllocatable:\n  nvidia.com/gpu:     {}\n"
ROWS = "index, retired_pages.pending\n0, {}\n"
QUERY = "nvidia-smi --query-gpu=index,retired_pages.pending --format=csv"


@pytest.mark.parametrize(
    ("asked", "earlier", "later"),
    [
        ("nvidia-smi -q -d ROW_REMAPPER | grep -A8 Remapped", PENDING.format("Yes"), PENDING.format("No")),
        ("nvidia-smi -q -d ROW_REMAPPER", GPU.format("07", "Yes"), GPU.format("07", "No") + GPU.format("0A", "No")),
        (QUERY, ROWS.format("Yes"), ROWS.format("No")),
        ("kubectl describe node gpu1", NODE.format(8, 7), NODE.format(8, 8)),
        ("kubectl describe pod train", "Status: Pending", "Status: Running"),
    ],
)
def test_the_later_values_hold(asked: str, earlier: str, later: str) -> None:
    assert stands_for(recognise(asked), earlier, later)


@pytest.mark.parametrize(
    ("asked", "earlier", "later"),
    [
        ("nvidia-smi -q -d ROW_REMAPPER", GPU.format("07", "Yes") + GPU.format("0A", "No"), GPU.format("0A", "No")),
        ("nvidia-smi -q | grep Attached", "Attached GPUs      : 8", "Attached GPUs      : 7"),
        (QUERY, ROWS.format("Yes") + "1, No\n", ROWS.format("No")),
        ("nvidia-smi -q", GPU.format("07", "Yes"), "No devices were found"),
        ("nvidia-smi nvlink -e -i 0", "Link 0: Replay Errors: 9", "Link 0: Replay Errors: 0"),
        ("kubectl describe node gpu1", NODE.format(8, 7), "The connection to the server was refused"),
        ("kubectl get events", "Warning Failed", "Normal Started"),
        ("kubectl apply -f a.yaml", "pod/a configured", "pod/a unchanged"),
        ("dmesg", "[ 1.0] NVRM: a", "[ 2.0] NVRM: b"),
    ],
)
def test_what_is_gone_or_was_counted_stays(asked: str, earlier: str, later: str) -> None:
    assert not stands_for(recognise(asked), earlier, later)


def test_what_a_node_has_less_of_now_holds() -> None:
    node = recognise("kubectl describe node gpu1")
    assert has_fewer(node, NODE.format(8, 8), NODE.format(8, 7))
    assert not has_fewer(node, NODE.format(8, 7), NODE.format(8, 8))
    assert not has_fewer(recognise("kubectl describe pod a"), NODE.format(8, 8), NODE.format(8, 7))
