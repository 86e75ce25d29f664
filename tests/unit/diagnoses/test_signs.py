from __future__ import annotations

from collections.abc import Iterable

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.signs import all_of, custom_sign, unless
from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.diagnoses.views.evidence_origin import node_evidence_only
from gpunode.facts.evidence import Capture
from gpunode.facts.pasted import collect_pieces
from gpunode.host.reports import read_report
from tests.unit.diagnoses.test_cost import SAMPLE

LINE = Citation("dmesg", "NVRM: a line", 1)


def never_read(_: Snapshot) -> Iterable[Citation]:
    raise AssertionError("this sign cannot change the result")


def test_missing_part_of_a_sign_ends_its_evaluation() -> None:
    node = take_snapshot(collect_pieces([("dmesg", "NVRM: a line")]))
    seen, unseen, later = custom_sign(lambda _: (LINE,)), custom_sign(lambda _: ()), custom_sign(never_read)
    assert node.view(all_of(seen, unseen, later)) == ()
    assert node.view(unless(unseen, later)) == ()
    assert node.view(all_of(seen, seen)) == node.view(unless(seen, unseen)) == (LINE,)
    assert node.view(unless(seen, seen)) == ()


def test_node_with_empty_container_logs_is_examined_once() -> None:
    evidence = {**read_report(str(SAMPLE)), "engine": Capture("journalctl -u docker", "ok", b"")}
    empty = take_snapshot(evidence)
    assert node_evidence_only(empty) is empty
    logged = take_snapshot({**evidence, "engine": Capture("journalctl -u docker", "ok", b"dockerd: NVRM: a line\n")})
    assert node_evidence_only(logged) is not logged
