"""A declared cause: certain, likely, suspected or ruled out, depending on the signs seen."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.cause_texts import CauseText
from gpunode.diagnoses.commands import Shell
from gpunode.diagnoses.evaluation import evaluate_rule
from gpunode.diagnoses.model import Rule
from gpunode.diagnoses.signs import all_of, any_of, message_line, unless
from gpunode.diagnoses.snapshot import Snapshot, cite, take_snapshot
from gpunode.diagnoses.suspects import rank_suspects
from gpunode.facts import pasted

DECISIVE, TYPICAL, SYMPTOM, AGAINST, CONTEXT = (
    message_line(f"{word} sign") for word in ("first", "second", "third", "no", "by")
)


def rule(cause: str = "a-cause", **more: object) -> Rule:
    fields: dict[str, object] = {
        "layer": "driver",
        "severity": "error",
        "disruption": "none",
        "summary": lambda _: "wrong",
        "remedy": lambda _: (),
        "decisive": DECISIVE,
        "typical": TYPICAL,
        "symptoms": (SYMPTOM,),
        "against": (AGAINST,),
        "context": CONTEXT,
        "look_at": (Shell("look"),),
    }
    return Rule(cause, **{**fields, **more})  # type: ignore[arg-type]


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every cause, including those of this file, the same text."""
    monkeypatch.setattr("gpunode.diagnoses.model.find_text", lambda _: CauseText("wrong", "", ()))


def node(*said: str) -> Snapshot:
    return take_snapshot(pasted.collect_pieces([("a program", f"{words} sign") for words in said]))


@pytest.mark.parametrize(
    ("said", "confidence"),
    [
        (("first", "third"), "certain"),
        (("first",), "likely"),
        (("second",), "likely"),
        (("second", "third"), "likely"),
        (("third",), ""),
        (("by",), ""),
        (("first", "third", "no"), ""),
    ],
)
def test_signs_decide_the_confidence(said: tuple[str, ...], confidence: str) -> None:
    found = [one.confidence for one in evaluate_rule(rule(), node(*said))]
    assert found == ([confidence] if confidence else [])


def test_decisive_sign_suffices_without_declared_symptoms() -> None:
    assert [one.confidence for one in evaluate_rule(rule(symptoms=()), node("first"))] == ["certain"]


@pytest.mark.usefixtures("texts")
def test_suspect_with_the_rarer_symptom_ranks_first() -> None:
    rare = message_line("rare sign")
    rules = {
        one.cause: one
        for one in (rule("a"), rule("b"), rule("c", symptoms=(rare,)), rule("d", symptoms=(message_line("unseen"),)))
    }
    found = [one.suspect for one in rank_suspects(rules, node("third", "rare"), ())]
    assert [one.cause for one in found] == ["c", "a", "b"]
    assert found[0].look_at == ("look",)
    assert [one.line for one in found[0].citations] == ["rare sign"]
    assert not rank_suspects(rules, node("third", "rare", "no"), ())


@pytest.mark.usefixtures("texts")
def test_context_makes_a_suspect_and_ranks_it_higher() -> None:
    rules = {one.cause: one for one in (rule("a", context=message_line("unseen")), rule("b"))}
    assert [one.suspect.cause for one in rank_suspects(rules, node("third"), ())] == ["a", "b"]
    assert [one.suspect.cause for one in rank_suspects(rules, node("third", "by"), ())] == ["b", "a"]


def test_combined_signs_follow_boolean_logic() -> None:
    both = node("first", "second")
    assert len(any_of(DECISIVE, SYMPTOM)(both)) == 1
    assert len(all_of(DECISIVE, TYPICAL)(both)) == 2
    assert not all_of(DECISIVE, SYMPTOM)(both)
    assert not unless(DECISIVE, TYPICAL)(both)
    assert unless(DECISIVE, SYMPTOM)(both)


def test_ruled_out_causes_cite_the_contradicting_line() -> None:
    rows = (
        ("lspci -nnk -d 10de:", "01:00.0 3D controller [0302]: NVIDIA [10de:20b5]\n\tKernel driver in use: nouveau"),
        ("nvidia-smi", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
        ("dpkg -l nvidia-driver-550", "ii  nvidia-driver-550  550.54.15-0ubuntu1  amd64  NVIDIA driver metapackage"),
    )  # fmt: skip
    root = diagnose(take_snapshot(pasted.collect_pieces(rows))).findings[0]
    assert root.cause == "nouveau-bound"
    assert "no NVIDIA driver is installed: a driver is installed" in root.ruled_out
    assert any(one.endswith(": no GPU of this node needs the open modules") for one in root.ruled_out)


@pytest.mark.parametrize(
    ("source", "text", "shown"),
    [
        ("cat /etc/containerd/config.toml", 'version = 2\nroot = "/a"\nroot = "/b"', 'root = "/b"'),
        ("head -4 /etc/cdi/nvidia.yaml", "---\ncdiVersion: 0.7.0\nkind: nvidia.com/gpu\n", "cdiVersion: 0.7.0"),
        ("dpkg -l", "||/ Name Version\n| a table's row |", "| a table's row |"),
        (
            "dpkg -l",
            "Desired=Unknown/Install/Remove/Purge/Hold\n| Status=Not/Inst\nii  gcc 12.2 amd64 c",
            "ii  gcc 12.2 amd64 c",
        ),
    ],
)
def test_citation_shows_content_instead_of_a_separator_or_legend(source: str, text: str, shown: str) -> None:
    node = take_snapshot(pasted.collect_pieces([(source, text)]))
    found = [line.line for one in diagnose(node).findings for line in one.citations]
    assert (found or [cite(node.items[0]).line]) == [shown]


def test_command_that_was_only_run_is_not_cited_as_evidence() -> None:
    pieces = (("nvidia-smi mig -lgi", "NVML_ERROR_NO_PERMISSION"), ("ls -l /dev/nvidia-caps", "total 0"))
    found = diagnose(take_snapshot(pasted.collect_pieces(pieces)))
    lines = (*(one.citations for one in found.findings), *(one.citations for one in found.suspects))
    cited = [line.line for shown in lines for line in shown]
    assert "NVML_ERROR_NO_PERMISSION" in cited
    assert "(that was run)" not in cited


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Error: unknown flag: --include-crds", "only helm template has it"),
        (
            "This installation did not install the CUDA Driver. A driver of version at least 560.00 is required",
            "at least 560",
        ),
    ],
)
def test_remedy_repeats_what_the_message_asks_for(text: str, words: str) -> None:
    first = diagnose(take_snapshot(pasted.parse_text_report(text))).roots[0].remedy[0]
    assert words in first.text
    assert not any("docker run" in command for command in first.commands)


def test_missing_module_is_read_in_chinese() -> None:
    said = "modprobe: 致命错误：在目录 /lib/modules/6.1.0-25-amd64 中没有找到模块 nvidia。"
    found = diagnose(take_snapshot(pasted.parse_text_report(said))).suspects
    assert "module-built-for-other-kernel" in [one.cause for one in found]
    assert {line.line for one in found for line in one.citations} == {said}


def test_line_that_rules_a_cause_out_is_not_its_symptom() -> None:
    lost = "[ 1234.567890] NVRM: Xid (PCI:0000:01:00): 79, pid=1234, GPU has fallen off the bus."
    (root,) = diagnose(take_snapshot(pasted.parse_text_report(lost))).roots
    assert (root.cause, root.ruled_out) == ("gpu-fallen-off-bus", ())
