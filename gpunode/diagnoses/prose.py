"""Distinguish what people wrote about a node from the output of its programs.

"We never saw Xid 79" or "is it normal that the GPU falls off the bus?" contain a message's text but prove nothing. A
line is prose if its author speaks, asks, denies, supposes or quotes, and it does not begin like a log, a shell or a
table. Prose makes a cause a suspect and proves nothing. Anything that is not clearly prose counts as evidence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern

# Prefixes that lists and forum answers put before a sentence.
_SENTENCE_LEAD_IN: Final = Pattern(
    r"(?i)^(?:[>*•\s]|-\s|\d{1,2}[.)]\s|(?:note|question|edit|update|problem|issue|summary|hi|hello|ps|q|a|answer|comment"
    r"|description|expected|background|context|env(?:ironment)?|tl;?dr)\s*:\s*)*"
)
# A time, level, tag, prompt, table row, setting or path.
_MACHINE_OUTPUT_START: Final = Pattern(
    r"^(?:\[|<\d+>|\d{4}[-/]\d\d|\d\d:\d\d|[A-Z][a-z]{2}\s+\d{1,2} \d\d:|[IWEF]\d{4} |\||\+[-=]|[$#%] |\S+@\S+[:~ ]"
    r"|[\w.()/\[\]-]{2,60}: |\w+=|[{}]|\"[\w.-]+\"\s*:|/)"
)
_FIRST_PERSON_WORDS: Final = Pattern(
    r"\bI(?:['’](?:m|ve|d|ll)\b| (?:am|have|had|do|did|don['’]t|didn['’]t|got|get|see|saw|run|ran|think|was|use|tried"
    r"|want|need|can|can['’]t|cannot|could|never|just|also|only|would|will|know|found|installed|heard|read|fear|believe|guess"
    r"|hope|suspect|assume|wonder)\b)"
    r"|\b[Ww]e(?:['’](?:ve|re|d|ll)\b| (?:never|have|had|did|didn['’]t|do|don['’]t|are|were|saw|see|got|get|run|ran|use"
    r"|found|think|tried|also|always|only|can|can['’]t|cannot|could|suspect|read|heard)\b)"
    r"|\b(?:[Mm]y|[Oo]ur) [a-z]|\b(?:colleagues?|friends?|forums?|somebody|someone|anybody|anyone|everybody)\b"
)
_QUESTION_START: Final = Pattern(
    r"^(?:Is|Are|Do|Does|Did|Can|Could|Should|What|Why|How|Has|Have|Was|Were|Will|Would|Any|Where|When|Who|Which|Must"
    r"|May|Might|Shall)\b[^?]*\?"
)
_DENIAL_WORDS: Final = Pattern(
    r"(?i)\b(?:never|neither|nor|nobody)\b"
    r"|\b(?:no|any|without(?: any)?) (?:sign|trace|mention|hint|evidence|occurrence|instance|report)s?\b"
    r"|\b(?:zero|no|without(?: any)?) (?:[\w-]+ ){0,3}(?:errors?|xids?|faults?|messages?|lines?|entries)\b"
    r"|\b(?:there|this) (?:is|was|are|were|has been|have been)(?:n['’]t| no| not| never)\b"
    r"|\b(?:did|do|does|have|has|was|were|is|are)(?:n['’]t| not) (?:see|seen|find|get|got|had|show|contain|appear"
    r"|report|reported|seeing|getting|about|because|the case|due to|caused)\b"
    r"|\bnot (?:caused by|due to|because|the same as|a case of)\b|\bruled out\b"
    r"|(?:^|[.,;!?] |\b(?:but|and|so) )(?:it|that)(?:['’]s| is| was)(?:n['’]t| not)\b(?! (?:going to be )?install)"
)
_SUPPOSITION_START: Final = Pattern(
    r"^(?:If|When|Whenever|Suppose|Imagine|Assume|In case)(?: that)? (?:a|an|the|your|it|one|some|I|we) "
    r"|\b(?:(?:might|would|often|usually) means?|known issue|stands for)\b"
    r"|\b(?:[Ll]ast (?:week|month|year|time)|[Yy]esterday|used to (?:see|get|have)|[Ii]n the past)\b"
)
_REPORTED_SPEECH: Final = Pattern(
    r"^(?:The|This|That|A|An|Its?|Another) [\w'’ -]{2,60}\b(?:says?|said|reports?|reported|shows?|showed|tells?|told"
    r"|complains?|complained|claims?|mentions?|states?|stated|prints?|printed|writes|wrote|explains?)\b"
    r"(?: me| us)?(?: that\b| about\b|:| [\"'“„«`])"
)
_QUOTING_SENTENCE: Final = Pattern(
    r"^[A-Z][A-Za-z,'’-]* [A-Za-z,'’ -]{4,120}[\"“„«`](?P<quoted>[^\"”“«»`\n]{12,})[\"”»`]"
)
# Sentences that ask, suppose, report hearsay, or are about another machine or time.
_DOUBTFUL: Final = Pattern(
    rf"(?i){_QUESTION_START.pattern.replace('^', r'^[^a-z]*(?:or |so |and )?', 1)}|^\s*>"
    r"|^\W*(?:suppose|imagine|before|if(?! (?:I|we|my|our)\b))\b|\b(?:whether|guess|suspect|think|thought|wonder|fear"
    r"|afraid|assume|maybe|perhaps|probably|might|could|in case|colleagues?|friends?|forums?|some(?:body|one)|articles?"
    r"|any(?:body|one)|known issue|according to|documentation|docs|manual|wiki|faq|they|told|used to"
    r"|(?:other|another) (?:machine|node|host|server|pc|laptop))\b"
)
_NEGATION: Final = Pattern(r"(?i)\b(?:not|never|nowhere|neither|nor|no longer|removed|blacklisted|disabled)\b|n['’]t\b")
_DENIED_BEFORE: Final = Pattern(r"(?i)\b(?:no|zero|none|without|avoid\w*|instead of|(?:got|get) rid of)\b")
# About another time.
_NOT_NOW: Final = Pattern(
    r"(?i)\b(?:until|years? ago|ages ago|last (?:week|month|year)|tomorrow|purged|uninstalled|dropped|switched|solved"
    r"|fixed)\b"
)
_QUOTED_OR_SET_APART: Final = Pattern(r"[\"“„«][^\"“”„«»]*[\"”“»]|\((?:[^()]* )?(?:not?|never|without) [^()]*\)")
_SENTENCE_END: Final = Pattern(r"(?<=[.!?;])\s+")
_CLAUSE_START: Final = Pattern(
    r"(?i)[,;](?! (?:which|that|who)\b)|(?=\b(?:and|but|because|since|while|when|after|although|though)\b)"
)
_AUTHOR_PATTERNS: Final = (_FIRST_PERSON_WORDS, _QUESTION_START, _DENIAL_WORDS, _SUPPOSITION_START, _REPORTED_SPEECH)
# The attribution that mail programs and forums put above a quote.
_QUOTE_ATTRIBUTION_LINE: Final = Pattern(
    r"(?i)^[^>\n]{1,120}\b(?:wrote|writes|said|schrieb(?: [^:\n]{1,80})?|a écrit|escribió|ha scritto|написал|写道)"
    r"\s*[:：]\s*$"
)
_MARKDOWN_FENCE: Final = Pattern(r"^\s{0,3}(?:```|~~~)")
_SENTENCE_ENDINGS: Final = (".", ":", "!", "?", "```")


def without_prose(snapshot: Snapshot, citations: Iterable[Citation]) -> tuple[Citation, ...]:
    """Return the citations that are not prose."""
    return tuple(citation for citation in citations if not cites_prose(snapshot, citation))


def cites_prose(snapshot: Snapshot, citation: Citation) -> bool:
    """Return whether the cited line is prose."""
    number = citation.line_number
    if number is None:
        return False
    items = snapshot.view(_items_by_key_and_source).get((citation.key, citation.source), ())
    cited = (item for item in items if number <= len(item.lines) and item.lines[number - 1] == citation.line)
    return any(number in item.view(_ProseLines) for item in cited)


def tells(line: str, words: Pattern) -> bool:
    """Return whether the author states ``words`` about the machine now; the first matched word itself may negate."""
    sentences = _SENTENCE_END.split(_QUOTED_OR_SET_APART.sub("", line))
    plain = (one for one in sentences if not _DOUBTFUL.search(one))
    # In "the GPU is used by another user, is that normal?" the first part is a statement.
    parts = (one.rpartition(",")[0] if one.rstrip().endswith("?") else one for one in plain)
    for clause in (clause for part in parts for clause in _CLAUSE_START.split(part)):
        if match := words.search(clause):
            before = clause[: match.start()]
            rest = before + clause[match.start() :].partition(" ")[2]
            if not (_NEGATION.search(rest) or _DENIED_BEFORE.search(before) or _NOT_NOW.search(clause)):
                return True
    return False


def _items_by_key_and_source(snapshot: Snapshot) -> Mapping[tuple[str, str], tuple[EvidenceItem, ...]]:
    items: dict[tuple[str, str], tuple[EvidenceItem, ...]] = {}
    for item in snapshot.items:
        place = item.key, item.written
        items[place] = (*items.get(place, ()), item)
    return items


class _ProseLines:
    """The line numbers that are prose, computed on demand."""

    def __init__(self, item: EvidenceItem) -> None:
        self._lines = item.lines
        self._known: dict[int, bool] = {}

    def __contains__(self, number: int) -> bool:
        walked = [number]
        # Iterative, because an unfinished sentence may continue over ten thousand lines of a paste.
        while (answer := self._is_prose_by_itself(walked[-1])) is None:
            walked.append(walked[-1] - 1)
        self._known.update(dict.fromkeys(walked, answer))
        return answer

    def _is_prose_by_itself(self, number: int) -> bool | None:
        """Return whether the line is prose; None if it continues the sentence above and shares its answer."""
        if number in self._known:
            return self._known[number]
        if not 0 < number <= len(self._lines):
            return False
        line = self._lines[number - 1]
        if line.startswith(">") and number in self._quoted_lines:
            return True
        sentence = _SENTENCE_LEAD_IN.sub("", line, 1)
        if not sentence.strip() or _MACHINE_OUTPUT_START.match(sentence) or number in self._fenced_lines:
            return False
        if is_written_by_person(sentence):
            return True
        before = self._lines[number - 2].rstrip() if number > 1 else ""
        return None if before and not before.endswith(_SENTENCE_ENDINGS) else False

    @cached_property
    def _fenced_lines(self) -> frozenset[int]:
        """The numbers of the lines between Markdown's fences, which are pasted output."""
        fences = [number for number, line in enumerate(self._lines, 1) if _MARKDOWN_FENCE.match(line)]
        pairs = zip(fences[::2], fences[1::2], strict=False)
        return frozenset(number for first, last in pairs for number in range(first, last))

    @cached_property
    def _quoted_lines(self) -> frozenset[int]:
        """The numbers of the lines that quote a person named above them."""
        numbers = set[int]()
        is_named, above = False, ""
        for number, line in enumerate(self._lines, 1):
            if not line.startswith(">"):
                above = line
                continue
            if not self._lines[number - 2].startswith(">") or number == 1:
                is_named = _QUOTE_ATTRIBUTION_LINE.match(above) is not None
            if is_named:
                numbers.add(number)
        return frozenset(numbers)


def is_written_by_person(sentence: str) -> bool:
    """Return whether a person speaks, asks, denies, supposes, reports or quotes in the sentence."""
    if any(pattern.search(sentence) for pattern in _AUTHOR_PATTERNS):
        return True
    match = _QUOTING_SENTENCE.search(sentence)
    return match is not None and match["quoted"].count(" ") > 1
