"""The words of reports order suspects; since people choose what to show, they prove no cause."""

from __future__ import annotations

import pytest

from gpunode.diagnoses.report_similarity import extract_words, parse_report_words, score_causes
from tests.scenarios.reports import diagnosis, reports
from tests.scenarios.words import FILE, MIN_REPORTS, count_words, dump_words, words_of

FALLEN, SPOKEN = frozenset({"lost", "gpu"}), frozenset({"key", "gpu"})
WORDS = count_words(
    [*[("lost", FALLEN)] * MIN_REPORTS, *[("key", SPOKEN)] * MIN_REPORTS, ("key", frozenset({"alice"}))]
)


def test_word_file_matches_the_reports() -> None:
    assert FILE.read_text() == dump_words(words_of(reports())), "python -m tests.scenarios.words writes it"


def test_word_file_round_trips() -> None:
    assert parse_report_words(dump_words(WORDS)) == WORDS


def test_word_of_few_reports_is_not_kept() -> None:
    assert "alice" not in dump_words(WORDS)


def test_score_grows_with_the_share_of_reports_with_the_word() -> None:
    found = score_causes(WORDS, frozenset({"lost", "unheard"}))
    assert found["lost"] > 0 > found["key"]


def test_word_of_all_reports_scores_zero() -> None:
    found = score_causes(count_words([("a", SPOKEN)] * MIN_REPORTS + [("b", SPOKEN)] * MIN_REPORTS), SPOKEN)
    assert found["a"] == found["b"] == 0


def test_words_are_lowercase_without_numbers() -> None:
    assert extract_words(["NVRM: Xid 79", "xid 0000:01:00"]) == {"nvrm", "xid"}


@pytest.mark.parametrize(
    "said",
    [
        "containers do not see the GPU in docker compose",
        "the A100 is not detected after the upgrade to kernel 6.8, driver 535",
        "NVRM: GPU at 0000:31:00 rejected by driver",
        "nvidia-smi shows a wrong CUDA version, 11.4 instead of 12",
        "libcuda segfaults: docker run, then the pod is killed",
    ],
)
def test_everyday_words_for_a_failure_get_suspects(said: str) -> None:
    assert diagnosis([{"source": "post", "text": said}]).suspects


def test_word_scores_rank_suspects_only_where_driver_and_report_fail() -> None:
    typed = {"source": "grep -rl nvidia.github.io /etc/apt/sources.list.d", "text": "nvidia-docker.list"}
    assert not diagnosis([typed]).suspects
    typed["text"] += "\napt does not work"
    found = diagnosis([typed])
    assert not found.findings
    assert found.suspects[0].cause == "apt-signed-by-conflict"
    works = {"source": "nvidia-smi -L", "text": "GPU 0: NVIDIA A10 (UUID: GPU-3c4e1a2b-0000-0000-0000-000000000000)"}
    assert not diagnosis([typed, works]).suspects
