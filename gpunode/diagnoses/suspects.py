"""Rank the causes that no sign decides for, and tell when the ranking itself is an answer. Pure.

A cause's odds grow with each symptom (more, the fewer causes share it), with context that is specific to its reports,
with answers to its deciding commands, with its frequency in reports, and with the similarity to its reports.
``tests/scenarios/promotion.py`` learns the limits; see docs/explanation/how-doctor-decides.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import takewhile
from math import exp, log, sqrt
from typing import Final, NamedTuple

from gpunode.diagnoses import prose, symptoms
from gpunode.diagnoses.commands import Command
from gpunode.diagnoses.evaluation import is_examined_by_gpunode, is_ruled_out
from gpunode.diagnoses.model import Citation, Finding, Fix, Rule, Sign, Suspect
from gpunode.diagnoses.report_similarity import ReportWords, extract_words, score_causes, shipped_words
from gpunode.diagnoses.snapshot import COMMAND_WAS_RUN, Snapshot, cite_shown
from gpunode.diagnoses.user_phrases import SYMPTOM_NEEDED, USER_PHRASES
from gpunode.diagnoses.views import driver
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass

MAX_SUSPECTS: Final = 3
# Suspects that share a step.
_MIN_SUSPECTS_SHARING_STEP: Final = 2
# Log-odds.
_SYMPTOM_WEIGHT: Final = 3.2
_CONTEXT_SIGN_WEIGHT: Final = 3.2
_ANSWERED_COMMAND_WEIGHT: Final = 1.2
_PREVALENCE_WEIGHT: Final = 0.25
_SIMILARITY_WEIGHT: Final = 0.17
# Unrelated texts reach up to this.
_MIN_SIMILARITY: Final = 0.25
# From these probabilities on, a first suspect without rivals is the answer, or several suspects give their common first
# step. ``python -m tests.scenarios.promotion`` prints both.
MIN_STAND_ALONE_PROBABILITY: Final = 0.4
MIN_SHARED_STEPS_PROBABILITY: Final = 0.4


@dataclass(frozen=True, slots=True)
class RankedSuspect:
    """A suspect and the evidence for it.

    Attributes:
        probability: among all suspects.
        has_user_phrase: a person's description of the machine supports it.
        has_failure_line: a program's own line about a failure is among its symptoms.
        has_symptom: a line shows one of its symptoms, or tells of it; else only its setting, or similar words.
    """

    suspect: Suspect
    probability: float
    has_user_phrase: bool
    has_failure_line: bool
    has_symptom: bool = True


def standalone_probability(ranked: Sequence[RankedSuspect], rules: Mapping[str, Rule]) -> float:
    """Return the probability of the first suspect if people's descriptions support it alone, else 0."""
    if not ranked or not (ranked[0].has_failure_line and ranked[0].has_user_phrase):
        return 0.0
    follows = rules[ranked[0].suspect.cause].explains
    rivals = any(one.has_user_phrase and one.suspect.cause not in follows for one in ranked[1:])
    return 0.0 if rivals else ranked[0].probability


def rank_suspects(
    rules: Mapping[str, Rule], snapshot: Snapshot, findings: Iterable[Finding], report_words: ReportWords | None = None
) -> tuple[RankedSuspect, ...]:
    """Return the causes of symptoms that no finding explains, most likely first.

    For a pasted report, similarity to ``report_words`` (by default the project's collection) and context count as
    well, since its author selected what to show.
    """
    is_chosen = not is_examined_by_gpunode(snapshot)
    explained = explained_causes(rules, findings)
    cause_counts = count_causes_by_symptom(rules)
    similarity = score_causes(report_words or shipped_words(), snapshot.view(_evidence_words)) if is_chosen else {}
    is_well = bool(snapshot.view(symptoms.NOTHING_FAILS))
    has_failure = not driver.works(snapshot) and bool(snapshot.view(symptoms.FAILURE_MENTIONED))
    candidates: list[tuple[float, Suspect, bool, bool, bool]] = []
    for cause, rule in rules.items():
        if cause in explained:
            continue
        seen = [sign for sign in rule.symptoms if snapshot.view(sign)]
        context = snapshot.view(rule.context) if seen or is_chosen else ()
        told = _prose_about_cause(rule, snapshot)
        alike = similarity.get(cause, 0.0)
        shown = tuple(line for sign in seen for line in snapshot.view(sign))
        by_programs = prose.without_prose(snapshot, shown)
        is_likely_by_itself = context or told or (alike > _MIN_SIMILARITY and has_failure)
        if not by_programs and (is_well or not (seen or is_likely_by_itself)):
            continue
        if rule.severity == "info" and not rule.symptoms:
            continue  # what is no fault explains no failure
        names_own_xid = _names_own_xid(cause, shown)
        if names_own_xid is False or is_ruled_out(rule, snapshot):  # last, because it is rarely decided here
            continue
        asked = drop_answered_commands(snapshot, rule.look_at)
        is_answered = len(asked) < len(rule.look_at)
        words = _find_user_phrases(cause, snapshot, by_programs) if is_chosen and seen else ()
        score = (
            _SYMPTOM_WEIGHT * (_weigh_symptoms({sign: snapshot.view(sign) for sign in seen}, cause_counts) + bool(told))
            + _CONTEXT_SIGN_WEIGHT * bool(context or words or names_own_xid)
            + _ANSWERED_COMMAND_WEIGHT * is_answered
            + _PREVALENCE_WEIGHT * log(rule.share)
            + _SIMILARITY_WEIGHT * alike
        )
        citations = cite_shown((*shown, *told, *context, *words))
        if citations and all(line.line == f"({COMMAND_WAS_RUN})" for line in citations):
            continue  # of 400 reports from the field, a command alone pointed to the cause in none
        suspect = Suspect(cause, rule.title, citations, asked)
        has_failure_line = any(_FAILURE_WORD.search(line.line) for line in by_programs)
        candidates.append((score, suspect, bool(words), has_failure_line, bool(seen or told)))
    candidates.sort(key=lambda one: -one[0])
    total = sum(exp(score) for score, *_ in candidates)
    return tuple(RankedSuspect(suspect, exp(score) / total, *shows) for score, suspect, *shows in candidates)


def _find_user_phrases(cause: str, snapshot: Snapshot, by_programs: Collection[Citation]) -> tuple[Citation, ...]:
    """Return the lines in which people, not programs, describe something that supports the cause."""
    words = USER_PHRASES.get(cause)
    if words is None or (cause in SYMPTOM_NEEDED and not snapshot.view(SYMPTOM_NEEDED[cause])):
        return ()
    lines = snapshot.matching_lines(words)
    return tuple(one for one in lines if one not in by_programs and prose.tells(one.line, words))


def find_shared_steps(
    ranked: Sequence[RankedSuspect], remedy_of: Callable[[str], Sequence[Fix]]
) -> tuple[tuple[Fix, ...], float]:
    """Return the first steps that the leading suspects share, and the probability that one of these is the cause.

    Args:
        ranked: the suspects, likeliest first; nothing is shared unless a program's own line shows the first.
        remedy_of: returns the steps for a cause.
    """
    leading = ranked[:MAX_SUSPECTS] if ranked and ranked[0].has_failure_line else ()
    remedies = [remedy_of(suspect.suspect.cause) for suspect in leading]
    sharing = list(takewhile(lambda one: _count_shared_steps((one, remedies[0])), remedies))
    if len(sharing) < _MIN_SUSPECTS_SHARING_STEP:
        return (), 0.0
    steps = tuple(sharing[0][: _count_shared_steps(sharing)])
    return steps, sum(suspect.probability for suspect in leading[: len(sharing)])


def _count_shared_steps(remedies: Iterable[Sequence[Fix]]) -> int:
    """Return the number of leading steps that the remedies share."""
    return sum(1 for _ in takewhile(_are_same_step, zip(*remedies, strict=False)))


def _are_same_step(steps: Sequence[Fix]) -> bool:
    """Return whether the steps have the same commands, or the same text if they have none."""
    kinds = {(step.kind, step.commands, "" if step.commands else step.text) for step in steps}
    return len(kinds) == 1 and not any(step.when for step in steps)


def find_unexplained_failures(
    rules: Mapping[str, Rule], snapshot: Snapshot, findings: Iterable[Finding]
) -> tuple[Suspect, ...]:
    """Return the likeliest cause of each failure that no finding explains, with the lines that show it.

    A symptom is explained if a finding cites its line, if a found cause shows it, or if its most frequent cause follows
    from a found one.
    """
    findings = tuple(findings)
    explained, counts = explained_causes(rules, findings), count_causes_by_symptom(rules)
    known = {line for finding in findings for line in finding.citations}
    known |= {line for finding in findings for sign in rules[finding.cause].symptoms for line in snapshot.view(sign)}
    able = [rule for cause, rule in rules.items() if cause not in explained]
    left = {
        sign: lines
        for sign in counts
        if (lines := _failure_lines(snapshot, sign, known)) and _usual_cause(sign, rules, snapshot) not in explained
    }
    suspects: list[Suspect] = []
    while left and len(suspects) < MAX_SUSPECTS:
        able = [rule for rule in able if not left.keys().isdisjoint(rule.symptoms) and not is_ruled_out(rule, snapshot)]
        if not able:
            break
        rule = max(able, key=lambda one: _weigh_rule(one, snapshot, left, counts))
        lines = tuple(dict.fromkeys(line for sign in rule.symptoms for line in left.get(sign, ())))
        suspects.append(Suspect(rule.cause, rule.title, lines, drop_answered_commands(snapshot, rule.look_at)))
        rest = {sign: tuple(line for line in seen if line not in lines) for sign, seen in left.items()}
        left = {sign: seen for sign, seen in rest.items() if seen}
    return tuple(suspects)


# Settings and tables contain many symptoms' words without reporting a failure.
_FAILURE_WORD: Final = Pattern(rf"(?i)\b(?:{symptoms.FAILURE_WORDS}|xid|[a-z]+error)\b")
# Failures that programs report without such a word.
_FAILURE_REPORT: Final = Pattern(
    rf"(?i){_FAILURE_WORD.pattern}|\bno (?:[\w-]+ ){{0,2}}devices?\b|\b(?:in use|being used) by\b"
    r"|\b[a-z]\w+ returned [1-9]\d*\b|\buncorrectable\b[^:\n]*: [1-9]"
)


def _failure_lines(snapshot: Snapshot, sign: Sign, known_lines: Collection[Citation]) -> tuple[Citation, ...]:
    """Return the sign's lines in which programs report a failure, without the known ones."""
    lines = (line for line in snapshot.view(sign) if line.line_number and line not in known_lines)
    return prose.without_prose(snapshot, (line for line in lines if _FAILURE_REPORT.search(line.line)))


def _usual_cause(sign: Sign, rules: Mapping[str, Rule], snapshot: Snapshot) -> str:
    """Return the most frequent cause of the symptom that nothing rules out."""
    able = [rule for rule in rules.values() if sign in rule.symptoms and not is_ruled_out(rule, snapshot)]
    return max(able, key=lambda rule: rule.share).cause if able else ""


def _weigh_rule(
    rule: Rule, snapshot: Snapshot, unexplained: Mapping[Sign, tuple[Citation, ...]], counts: Mapping[Sign, int]
) -> float:
    shown = _weigh_symptoms({sign: unexplained[sign] for sign in rule.symptoms if sign in unexplained}, counts)
    return _SYMPTOM_WEIGHT * shown + _CONTEXT_SIGN_WEIGHT * bool(snapshot.view(rule.context)) + log(rule.share)


def _weigh_symptoms(lines_by_symptom: Mapping[Sign, tuple[Citation, ...]], counts: Mapping[Sign, int]) -> float:
    """Return the weight of a cause's symptoms; a line counts once, as the rarest symptom that it shows."""
    counted = set[Citation]()
    weight = 0.0
    for sign in sorted(lines_by_symptom, key=counts.__getitem__):
        if not counted.issuperset(lines_by_symptom[sign]):
            weight += 1 / sqrt(counts[sign])
            counted.update(lines_by_symptom[sign])
    return weight


def explained_causes(rules: Mapping[str, Rule], findings: Iterable[Finding]) -> frozenset[str]:
    """Return the found causes and the consequences of the faults among them."""
    found = [(finding, rules[finding.cause].explains) for finding in findings]
    return frozenset().union(*({one.cause} | (more if one.severity != "info" else frozenset()) for one, more in found))


def count_causes_by_symptom(rules: Mapping[str, Rule]) -> Mapping[Sign, int]:
    """Return the number of causes that show each symptom."""
    return Counter(sign for rule in rules.values() for sign in rule.symptoms)


def _prose_about_cause(rule: Rule, snapshot: Snapshot) -> list[Citation]:
    """Return the prose that mentions the cause."""
    told = (line for one in (rule.decisive, rule.typical) for line in snapshot.view(one))
    return [line for line in told if prose.cites_prose(snapshot, line)]


_XID_CAUSE: Final = Pattern(r"^xid-(?P<first>\d{2,3})(?:-(?P<last>\d{3}))?-")
_NAMED_XIDS: Final = Pattern(r"(?i)\bxids?\b[ :=#(]{0,3}(?P<codes>\d{2,3}(?:(?:, ?|/| and | or | & )\d{2,3}){0,9})\b")
_XID_CODE: Final = Pattern(r"\d{2,3}")


def _names_own_xid(cause: str, lines: Iterable[Citation]) -> bool | None:
    """Return whether the lines name an Xid of this cause; None if it is not a cause of one, or if they name none."""
    match = _XID_CAUSE.match(cause)
    if match is None:
        return None
    lists = (found["codes"] for line in lines for found in _NAMED_XIDS.finditer(line.line))
    named = {int(code[0]) for codes in lists for code in _XID_CODE.finditer(codes)}
    if not named:
        return None
    return not named.isdisjoint(range(int(match["first"]), int(match["last"] or match["first"]) + 1))


def _evidence_words(snapshot: Snapshot) -> frozenset[str]:
    return extract_words(f"{item.written}\n{item.text}" for item in snapshot.items)


# Options of a filter, as opposed to the words that it looks for.
_COMMAND_OPTION: Final = Pattern(r"(?:^|\s)-[\w-]+(?:=\S+)?")
# Options that do not change an answer, or only shorten it.
_NEUTRAL_OPTIONS: Final = Pattern(r"\s(?:-d [A-Z_,]+|-b|-n \d+|--no-pager|--tail=\d+|-[THxkr]+|--ctime)(?=\s|$)")
_PROMPT_AND_SUDO_PREFIX: Final = Pattern(r"^(?:\S+@\S+[:~]\S*\s*)?[$#%]?\s*(?:sudo\s+(?:-\S+\s+)*)?")
_PIPED_FILTER_WORD: Final = Pattern(r"[\w.:/-]+")
_DESCRIBE_NODES_COMMAND: Final = "kubectl describe nodes"
_FILE_READING_PROGRAMS: Final = frozenset({"cat", "grep", "head", "tail", "less"})


class _ComparableCommand(NamedTuple):
    """A command in comparable form: the program with its arguments, and the words that its filters keep."""

    asked: str
    filter_words: frozenset[str]
    files: tuple[str, ...]


def drop_answered_commands(snapshot: Snapshot, commands: Iterable[Command]) -> tuple[Command, ...]:
    """Return the commands whose output is not in the evidence."""
    return tuple(command for command in commands if not is_command_answered(snapshot, command))


def is_command_answered(snapshot: Snapshot, command: str) -> bool:
    """Return whether the evidence contains the output of this command, or a longer one of the same program."""
    wanted = _parse_command(command)
    if wanted.asked == _DESCRIBE_NODES_COMMAND and _is_node_described(snapshot, wanted.filter_words):
        return True
    if wanted.files and all((item := snapshot.file(path)) is not None and item.was_answered for path in wanted.files):
        return True
    return any(
        answered_command.asked == wanted.asked and answered_command.filter_words <= wanted.filter_words
        for answered_command in snapshot.view(_answered_commands)
    )


def _is_node_described(snapshot: Snapshot, words: Collection[str]) -> bool:
    """Return whether a node's description, with or without its command, contains these words."""
    return any(all(word in item.lowered for word in words) for item in snapshot.items_of("kubernetes-node"))


def _answered_commands(snapshot: Snapshot) -> frozenset[_ComparableCommand]:
    seen = (item for item in snapshot.items if item.where == "host" and item.was_answered)
    return frozenset(_parse_command(item.written) for item in seen)


@lru_cache(maxsize=1024)
def _parse_command(command: str) -> _ComparableCommand:
    plain = _PROMPT_AND_SUDO_PREFIX.sub("", command.partition("  #")[0].strip(), 1)
    head, *filters = plain.split(" | ")
    words = head.split()
    filter_words = (
        word.lower()
        for one in filters
        for word in _PIPED_FILTER_WORD.findall(_COMMAND_OPTION.sub(" ", one))
        if word != "grep"
    )
    files = tuple(word for word in words[1:] if word.startswith("/") and "*" not in word and "$" not in word)
    reads = bool(words) and words[0] in _FILE_READING_PROGRAMS
    return _ComparableCommand(_NEUTRAL_OPTIONS.sub("", head), frozenset(filter_words), files if reads else ())
