"""Learn the probability from which a suspect is the answer, and the one from which a shared step is suggested.

``python -m tests.scenarios.promotion`` prints the table and the two limits for ``gpunode.diagnoses.suspects``. Each
report, complete and with one piece removed, is judged twice if no sign decides: with all causes, and without the family
of its own cause, both as rules and as words. The second run simulates a report whose cause is not in the catalogue, so
every answer to it is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache

from gpunode.diagnoses import diagnose, fit_remedy, rule_families, rules_by_cause
from gpunode.diagnoses.report_similarity import ReportWords
from gpunode.diagnoses.snapshot import Snapshot, take_snapshot
from gpunode.diagnoses.suspects import find_shared_steps, rank_suspects, standalone_probability
from gpunode.facts import pasted
from tests.scenarios.reports import Report, reports
from tests.scenarios.words import words_of

LIMITS = tuple(number / 20 for number in range(8, 20))
# At most this share of the reports without a cause in the catalogue may be given one.
MAX_ANSWERED = 1 / 40
# At least this share of the shared steps must be of the same kind as the first step of the report's own remedy.
MIN_FITTING = 2 / 3


@dataclass(frozen=True, slots=True)
class Ranking:
    """An answer that the ranking alone would give.

    Attributes:
        is_known: whether the report's cause was among the rules.
        alone: the probability of the first suspect, if it may stand alone; else 0.
        is_right: whether that suspect is the cause.
        together: the probability of the suspects that share the first step, else 0.
        fits: whether that step is of the same kind as the first step of the report's remedy.
    """

    is_known: bool
    alone: float
    is_right: bool
    together: float
    fits: bool


@cache
def _family_of(cause: str) -> str:
    return next(family.id for family in rule_families() if cause in {rule.cause for rule in family.rules})


def rankings(report: Report) -> list[Ranking]:
    """Return the rankings of the report and of its parts, with and without the family of its cause."""
    family = _family_of(report.cause) if report.cause else ""
    others = [one for one in reports() if one.thread != report.thread]
    strangers = [one for one in others if not one.cause or _family_of(one.cause) != family]
    known, unknown = words_of(others), words_of(strangers)
    pieces = range(len(report.evidence)) if len(report.evidence) > 1 else ()
    found = []
    for left in (None, *pieces):
        evidence = tuple((one["source"], one["text"]) for at, one in enumerate(report.evidence) if at != left)
        snapshot = take_snapshot(pasted.collect_pieces(evidence))
        found += [*_rank(report, snapshot, known, ""), *_rank(report, snapshot, unknown, family)]
    return found


def _rank(report: Report, snapshot: Snapshot, words: ReportWords, without: str) -> Iterator[Ranking]:
    """Yield the ranking without the rules of a family, unless signs decide."""
    rules = {cause: rule for cause, rule in rules_by_cause().items() if _family_of(cause) != without}
    if any(one.basis == "signs" and one.cause in rules for one in diagnose(snapshot, report_words=words).findings):
        return
    ranked = rank_suspects(rules, snapshot, (), words)
    if not ranked:
        yield Ranking(not without, 0.0, False, 0.0, False)
        return
    first = ranked[0]
    steps, together = find_shared_steps(ranked, lambda cause: fit_remedy(cause, snapshot))
    yield Ranking(
        not without,
        standalone_probability(ranked, rules),
        first.suspect.cause == report.cause,
        together,
        bool(steps) and steps[0].kind == report.remedy,
    )


def main() -> None:
    """Print the share that each limit would answer, and the limits to record."""
    with ProcessPoolExecutor() as pool:
        given = [one for found in pool.map(rankings, reports(), chunksize=16) for one in found]
    known, strange = ([one for one in given if one.is_known is is_known] for is_known in (True, False))
    print(f"{'from':>6} {'right':>6} {'wrong':>6} {'without a cause':>16} {'shared steps':>13} {'fitting':>8}")
    for limit in LIMITS:
        alone, steps = [one for one in known if one.alone >= limit], _shared(known, limit)
        right = sum(one.is_right for one in alone)
        print(
            f"{limit:6.2f} {right:6} {len(alone) - right:6} {_answered(strange, limit):16.1%}"
            f" {len(steps):13} {sum(one.fits for one in steps):8}"
        )
    print("ALONE =", next((one for one in LIMITS if _answered(strange, one) <= MAX_ANSWERED), 1.0))
    print("TOGETHER =", next((one for one in LIMITS if _fitting(_shared(known, one)) >= MIN_FITTING), 1.0))


def _answered(given: Sequence[Ranking], limit: float) -> float:
    return sum(one.alone >= limit for one in given) / len(given)


def _shared(given: Sequence[Ranking], limit: float) -> list[Ranking]:
    return [one for one in given if one.together >= limit and one.alone < limit]


def _fitting(given: Sequence[Ranking]) -> float:
    return sum(one.fits for one in given) / len(given) if given else 1.0


if __name__ == "__main__":
    main()
