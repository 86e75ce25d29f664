"""What a declared cause comes to on a node: a proof by its decisive sign, or a suspicion by its symptoms. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import sqrt
from typing import Final

from gpunode.diagnoses.model import Citation, Finding, Proof, Rule, Suspect
from gpunode.diagnoses.resemblance import Words, of_reports, resemblance, words
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import driver, kernel, pci
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern

SUSPECTS: Final = 3
RULED_OUT: Final = 3
_LONGEST: Final = 160
_ADDRESS: Final = Pattern(
    r"\b(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b|\(PCI:(?P<xid>[0-9a-f:.]+)\)", re.IGNORECASE
)


def is_examined(snapshot: Snapshot) -> bool:
    """Whether gpunode itself looked at the node; what people paste was chosen, of all that a node has."""
    return isinstance(snapshot.facts.modules, Known) or bool(snapshot.of("nvml"))


def judged(rule: Rule, snapshot: Snapshot) -> Iterable[Proof]:
    """What the rule says of the node: by its function, else by its signs."""
    found = tuple(rule.check(snapshot)) if rule.check is not None and not is_ruled_out(rule, snapshot) else ()
    return found or _declared(rule, snapshot)


def _declared(rule: Rule, snapshot: Snapshot) -> Iterator[Proof]:
    decisive, typical = snapshot.view(rule.decisive), snapshot.view(rule.typical)
    if not (decisive or typical) or is_ruled_out(rule, snapshot):
        return
    symptoms = tuple(line for sign in rule.symptoms for line in snapshot.view(sign))
    if rule.symptoms and not symptoms and rule.may_be_normal and is_examined(snapshot):
        return
    summary = rule.summary(snapshot) if callable(rule.summary) else rule.summary
    is_sure = bool(decisive) and (bool(symptoms) or not rule.symptoms)
    for gpu, lines in _by_gpu(snapshot, (*decisive, *typical)).items():
        cited = tuple(dict.fromkeys((*lines, *symptoms)))
        yield Proof(
            summary or rule.title,
            cited,
            "certain" if is_sure else "likely",
            gpu=gpu,
            at=_began(snapshot, lines),
            severity="warning" if snapshot.view(rule.later) else None,
        )


def is_ruled_out(rule: Rule, snapshot: Snapshot) -> bool:
    """Whether something is seen that speaks against the cause."""
    return any(snapshot.view(sign) for sign in rule.against)


def _by_gpu(snapshot: Snapshot, lines: tuple[Citation, ...]) -> Mapping[str, tuple[Citation, ...]]:
    """The lines by the GPU that they name; lines that name none belong to each, and to nobody where none is named."""
    gpus = {one.address for one in snapshot.view(pci.gpus)}
    named: dict[str, list[Citation]] = {}
    for line in lines:
        match = _ADDRESS.search(line.line)
        address = pci.address(match["xid"] or match[0]) if match else ""
        named.setdefault(address if address in gpus else "", []).append(line)
    common = named.pop("", [])
    return {gpu: (*own, *common) for gpu, own in named.items()} or {"": tuple(common)}


def _began(snapshot: Snapshot, lines: Iterable[Citation]) -> float | None:
    messages = snapshot.view(kernel.by_place)
    told = (messages.get((one.key, one.number or 0)) for one in lines)
    times = [message.at for message in told if message and message.at is not None]
    return min(times) if times else None


def ruled_out(
    rules: Mapping[str, Rule], snapshot: Snapshot, findings: Iterable[Finding]
) -> Mapping[str, tuple[str, ...]]:
    """By root cause, the likeliest other causes of the same symptoms, each with the line that speaks against it."""
    found = {one.cause for one in findings}
    others = [
        (rule, line) for rule in rules.values() if rule.cause not in found and (line := _objection(rule, snapshot))
    ]
    against: dict[str, tuple[str, ...]] = {}
    for root in (one for one in findings if not one.explained_by and one.severity != "info"):
        seen = {sign for sign in rules[root.cause].symptoms if snapshot.view(sign)}
        alike = [(len(seen & set(rule.symptoms)), rule.share, rule, line) for rule, line in others]
        nearest = sorted((one for one in alike if one[0]), key=lambda one: (-one[0], -one[1]))
        against[root.cause] = tuple(f"{rule.title}: {_words_of(line)}" for *_, rule, line in nearest[:RULED_OUT])
    return against


def _objection(rule: Rule, snapshot: Snapshot) -> Citation | None:
    """The first line that speaks against the cause."""
    return next((line for sign in rule.against for line in snapshot.view(sign)), None)


def _words_of(line: Citation) -> str:
    text = " ".join(line.line.split())
    if line.number is None:
        return text.strip("()")
    return f"{text if len(text) <= _LONGEST else f'{text[:_LONGEST]}…'} ({line.source})"


def suspects(
    rules: Mapping[str, Rule],
    snapshot: Snapshot,
    findings: Iterable[Finding],
    told: Words | None = None,
) -> tuple[Suspect, ...]:
    """The likeliest causes of what no finding explains, the likeliest first.

    A symptom speaks the louder the fewer causes have it. Of what somebody chose to show, the words speak as well (of
    ``told``, else of the project's reports); what goes with a cause is a sign of it there alone, too: nobody chose
    what gpunode saw when it looked at everything.
    """
    is_chosen = not is_examined(snapshot)
    settled = {finding.cause for finding in findings}
    for finding in findings:
        settled |= rules[finding.cause].explains if finding.severity != "info" else frozenset()
    sharing = Counter(sign for rule in rules.values() for sign in rule.symptoms)
    alike = resemblance(told or of_reports(), snapshot.view(_words)) if is_chosen else {}
    is_well = driver.works(snapshot)
    found: list[tuple[float, Suspect]] = []
    for cause, rule in rules.items():
        if cause in settled or is_ruled_out(rule, snapshot):
            continue
        seen = [sign for sign in rule.symptoms if snapshot.view(sign)]
        context = snapshot.view(rule.context) if seen or is_chosen else ()
        weight = sum(1 / sqrt(sharing[sign]) for sign in seen) + (_OF_CONTEXT if context else 0.0)
        if weight or (alike.get(cause, 0.0) > _NOISE and not is_well):
            lines = (*(line for sign in seen for line in snapshot.view(sign)), *context)
            score = _OF_SIGNS * weight * rule.share**_OF_SHARE + alike.get(cause, 0.0)
            found.append((score, Suspect(cause, rule.title, tuple(dict.fromkeys(lines)), rule.look_at)))
    found.sort(key=lambda one: -one[0])
    return tuple(suspect for _, suspect in found[:SUSPECTS])


def _words(snapshot: Snapshot) -> frozenset[str]:
    return words(f"{item.written}\n{item.text}" for item in snapshot.items)


_OF_CONTEXT: Final = 0.7
_OF_SHARE: Final = 0.2
_OF_SIGNS: Final = 40.0
# The words of any text reach as much.
_NOISE: Final = 0.25
