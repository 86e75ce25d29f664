"""Order of findings: roots by the rules' edges, by GPU and by time, and the order of several roots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import STACK_LAYERS, Diagnosis, FaultOnset, Finding
from gpunode.diagnoses.ranking import SEVERITIES, rank_findings
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.views import kernel
from gpunode.facts import pasted
from gpunode.facts.patterns import Pattern
from tests.fakes.examples import examples

ONE, OTHER = "0000:07:00.0", "0000:0f:00.0"
LATE_S = 45.0


def make_finding(cause: str, *events: FaultOnset, **more: object) -> Finding:
    gpus = tuple(sorted({event.gpu for event in events} - {""}))
    plain = Finding(*(cause, cause, "driver", "error", "certain", cause, (), (), "none", ()), gpus=gpus, onsets=events)
    return replace(plain, **more)  # type: ignore[arg-type]


def fault_onset(seconds: float, gpu: str = "", clock: str = "boot 0 dmesg") -> FaultOnset:
    return FaultOnset(gpu, seconds, clock)


def ranked_causes(*findings: Finding, **explains: str) -> dict[str, str]:
    """Return each cause in order, with the root that explains it."""
    edges = {one.cause: frozenset(explains.get(one.cause, "")) for one in findings}
    return {one.cause: one.explained_by for one in rank_findings(findings, edges)}


@pytest.mark.parametrize(
    ("root", "consequence", "explained"),
    [
        (fault_onset(10), fault_onset(100), True),
        (fault_onset(100), fault_onset(10), False),
        (fault_onset(100), fault_onset(100 - LATE_S), True),  # a GSP is called dead after a timeout
        (fault_onset(100), fault_onset(99 - LATE_S), False),
        (fault_onset(100), fault_onset(10, clock="zoned"), True),
        (fault_onset(100), fault_onset(10, clock="boot 1 dmesg"), True),  # of another boot, or another log
        (fault_onset(100, clock=""), fault_onset(10, clock=""), True),
        (fault_onset(100, ONE), fault_onset(200, OTHER), False),
        (fault_onset(100, ONE), fault_onset(200, ONE), True),
        (fault_onset(100, ONE), fault_onset(10, ONE), False),
        (fault_onset(100, ONE), fault_onset(200), True),
        (fault_onset(100), fault_onset(200, ONE), True),
    ],
)
def test_fault_explains_only_later_faults_of_its_gpu(
    root: FaultOnset, consequence: FaultOnset, explained: bool
) -> None:
    assert ranked_causes(make_finding("a", root), make_finding("b", consequence), a="b")["b"] == (
        "a" if explained else ""
    )


@pytest.mark.parametrize("past", ["a", "b"])
def test_faults_of_two_boots_do_not_explain_each_other(past: str) -> None:
    one, other = (make_finding(cause, fault_onset(100, ONE, cause), is_past=cause == past) for cause in "ab")
    assert list(ranked_causes(one, other, a="b").items()) == [("b" if past == "a" else "a", ""), (past, "")]
    # An undated fault may be current, and caused by the earlier one.
    lasting = make_finding("b", severity="warning")
    assert ranked_causes(make_finding("a", fault_onset(100), is_past=True), lasting, a="b") == {"a": "", "b": "a"}
    assert ranked_causes(make_finding("c", fault_onset(100), is_past=True), lasting) == {"c": "", "b": ""}


def test_consequence_that_exceeds_its_root_is_a_root() -> None:
    both = make_finding("b", fault_onset(150, ONE), fault_onset(151, OTHER))
    assert ranked_causes(make_finding("a", fault_onset(100, ONE)), both, a="b") == {"a": "", "b": ""}
    assert ranked_causes(make_finding("a", fault_onset(100, ONE), fault_onset(100, OTHER)), both, a="b") == {
        "a": "",
        "b": "a",
    }
    assert ranked_causes(make_finding("a", fault_onset(100, ONE), fault_onset(300, OTHER)), both, a="b") == {
        "a": "",
        "b": "",
    }
    assert (
        ranked_causes(
            make_finding("a", fault_onset(100, ONE)), make_finding("c", fault_onset(140, OTHER)), both, a="b", c="b"
        )["b"]
        == "a"
    )


def test_explanation_through_a_vague_fault_respects_gpu_and_time() -> None:
    root, between = make_finding("a", fault_onset(100, ONE)), make_finding("b")
    assert ranked_causes(root, between, make_finding("c", fault_onset(200, OTHER)), a="b", b="c") == {
        "a": "",
        "c": "",
        "b": "a",
    }
    assert ranked_causes(root, between, make_finding("c", fault_onset(10)), a="b", b="c") == {
        "c": "",
        "a": "",
        "b": "a",
    }
    assert ranked_causes(root, between, make_finding("c", fault_onset(200, ONE)), a="b", b="c") == {
        "a": "",
        "b": "a",
        "c": "a",
    }


def test_highest_ranked_explanation_is_the_root() -> None:
    assert (
        ranked_causes(
            make_finding("a", fault_onset(20)),
            make_finding("b", fault_onset(10)),
            make_finding("c", fault_onset(30)),
            a="c",
            b="c",
        )["c"]
        == "b"
    )
    mild = make_finding("a", fault_onset(10), severity="warning")
    assert (
        ranked_causes(mild, make_finding("b", fault_onset(20)), make_finding("c", fault_onset(30)), a="c", b="c")["c"]
        == "b"
    )


def test_information_is_no_explanation() -> None:
    assert ranked_causes(make_finding("a", severity="info"), make_finding("b"), a="b")["b"] == ""


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (make_finding("b", fault_onset(20)), make_finding("a", fault_onset(10), severity="warning")),
        (make_finding("b", fault_onset(20)), make_finding("a", fault_onset(10), confidence="likely")),
        (make_finding("b", fault_onset(10)), make_finding("a", fault_onset(20), layer="pci")),
        (make_finding("b", fault_onset(10, ONE)), make_finding("a", fault_onset(20, OTHER))),
        (make_finding("b", layer="pci"), make_finding("a", fault_onset(20))),
        (make_finding("b", fault_onset(20), layer="pci"), make_finding("a", fault_onset(10, clock="zoned"))),
        (make_finding("a"), make_finding("b")),
    ],
)
def test_roots_are_ordered_by_severity_confidence_time_and_layer(first: Finding, second: Finding) -> None:
    assert list(ranked_causes(first, second)) == list(ranked_causes(second, first)) == [first.cause, second.cause]


CAUSES = "abcdef"
EVENTS = st.builds(
    FaultOnset,
    gpu=st.sampled_from(["", ONE, OTHER]),
    at=st.sampled_from([1.0, 10.0, 60.0, 100.0, 500.0]),
    clock=st.sampled_from(["", "boot 0 dmesg", "zoned"]),
)
FINDINGS = st.tuples(
    *(
        st.none()
        | st.builds(
            lambda cause, events, severity, sure, layer: make_finding(
                cause, *events, severity=severity, confidence=sure, layer=layer
            ),
            st.just(cause),
            st.lists(EVENTS, max_size=3),
            st.sampled_from(SEVERITIES),
            st.sampled_from(["certain", "likely"]),
            st.sampled_from(STACK_LAYERS),
        )
        for cause in CAUSES
    )
).map(lambda many: tuple(one for one in many if one is not None))
# Explanations run one way: towards the later letter.
EDGES = st.fixed_dictionaries(
    {cause: st.frozensets(st.sampled_from([*CAUSES[place + 1 :], "z"])) for place, cause in enumerate(CAUSES)}
)


@given(FINDINGS, EDGES, st.data())
@settings(max_examples=examples(200), deadline=None)
def test_ranking_does_not_depend_on_input_order(
    findings: tuple[Finding, ...], explains: Mapping[str, frozenset[str]], data: st.DataObject
) -> None:
    shuffled = tuple(data.draw(st.permutations(findings)))
    assert rank_findings(shuffled, explains) == rank_findings(findings, explains)


@given(FINDINGS, EDGES)
@settings(max_examples=examples(200), deadline=None)
def test_every_explanation_is_a_root_of_its_gpu(
    findings: tuple[Finding, ...], explains: Mapping[str, frozenset[str]]
) -> None:
    order = rank_findings(findings, explains)
    assert {one.cause for one in order} == {one.cause for one in findings}
    roots = {one.cause: one for one in order if not one.explained_by}
    assert bool(roots) == bool(findings)
    assert list(roots) == [one.cause for one in order][: len(roots)]
    for one in order:
        if root := roots.get(one.explained_by):
            assert not root.gpus or not one.gpus or set(root.gpus) & set(one.gpus)
            assert root.severity != "info" or one.severity == "info"


# The same, of nodes.

FALLEN = "NVRM: Xid (PCI:0000:07:00): 79, pid=1204, name=python, GPU has fallen off the bus."
OF_OTHER = "NVRM: Xid (PCI:0000:0f:00): 31, pid=77, name=python, Ch 00000010, MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0"
PORT = "pcieport 0000:00:01.0: AER: Corrected error received: 0000:00:01.0"
BAD_TLP = "pcieport 0000:00:01.0:    [ 6] BadTLP"
TREE = "-[0000:00]-+-00.0  Intel Corporation\n           +-01.0-[07]----00.0  NVIDIA Corporation GH100\n"


def node(*pieces: tuple[str, str]) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces(pieces)))


def log(*lines: tuple[float, str]) -> tuple[str, str]:
    return "dmesg", "\n".join(f"[{seconds:12.6f}] {text}" for seconds, text in lines)


def test_link_errors_before_a_lost_gpu_are_no_consequence() -> None:
    storm = [(100.0 + second, line) for second in range(20) for line in (PORT, BAD_TLP)]
    before = node(log(*storm, (900.0, FALLEN)), ("lspci -tv", TREE))
    assert {one.cause: one.explained_by for one in before.findings} == {
        "gpu-fallen-off-bus": "",
        "pcie-aer-correctable-storm": "",
    }
    after = node(log((50.0, FALLEN), *storm), ("lspci -tv", TREE))
    assert [one.cause for one in after.roots] == ["gpu-fallen-off-bus"]


def test_faults_on_two_gpus_are_separate_roots_in_order_of_time() -> None:
    late = node(log((100.0, FALLEN), (2000.0, OF_OTHER)))
    assert [(one.cause, one.gpus) for one in late.roots] == [
        ("gpu-fallen-off-bus", (ONE,)),
        ("xid-31-mmu-fault", (OTHER,)),
    ]


def clocks(*pieces: tuple[str, str]) -> list[str]:
    return [
        message.clock for message in kernel.matching_messages(take_snapshot(pasted.collect_pieces(pieces)), Pattern(""))
    ]


def test_times_compare_within_one_boot_or_with_a_time_zone() -> None:
    one = clocks(("dmesg", "[    1.0] a\n[    2.0] b\n[    1.9] c\n[    0.1] d"))
    assert one[0] == one[1] == one[2] != one[3]
    assert len({*one, *clocks(("journalctl -k", "[    1.0] a"))}) == 3
    zoned = clocks(("journalctl -k -o short-iso", "2026-11-16T06:12:01+0000 gpu1 kernel: a"))
    assert zoned == clocks(("cat /var/log/kern.log", "2026-11-16T05:12:01.5Z gpu1 kernel: b")) == ["zoned"]
    assert clocks(("dmesg", "NVRM: a")) == [""]
