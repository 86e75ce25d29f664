"""Distinguish what people wrote about a node from the output of its programs.

"We never saw Xid 79" or "is it normal that the GPU falls off the bus?" contain a message's text but prove nothing. A
line is prose if its author speaks, asks, denies, supposes or quotes, and it does not begin like a log, a shell or a
table; if it is set apart, as headings, comments and alert rules are; or if the line above it says that what follows is
denied, past or hypothetical. Prose makes a cause a suspect and proves nothing. A bare message is evidence, but somebody
may have typed it, so it makes no cause certain.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import pairwise
from typing import Final

from gpunode.diagnoses.model import Citation
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.facts.items import EvidenceItem
from gpunode.facts.patterns import Pattern

# Prefixes that lists and forum answers put before a sentence.
_SENTENCE_LEAD_IN: Final = Pattern(
    r"(?i)^(?:[>*•`\s]|-\s|<(?:pre|code)>|\d{1,2}[.)]\s|(?:note|question|edit|update|problem|issue|summary|hi|hello|ps|q|a|answer|comment"
    r"|description|expected|background|context|env(?:ironment)?|tl;?dr)\s*:\s*)*"
)
# A time, level, prompt, table row, setting or path. The systemd journal names months in the user's language.
_FRAME: Final = (
    r"\[|<\d+>|\d{4}[-/]\d\d|\d\d:\d\d|[A-Z][a-z]{2}\s+\d{1,2} \d\d:|[IWEF]\d{4} |\||\+[-=]|[$#%] |\S+@\S+[:~ ]"
    r"|(?:\S{2,12} {1,2}\d{1,2}\.?|\d{1,2}\.? \S{2,12}) \d\d:\d\d:\d\d |[EWN]: |\w+=|[{}]|\"[\w.-]+\"\s*:|/"
)
_TAG: Final = r"[\w.()/:\[\]-]{2,60}: "
_MACHINE_OUTPUT_START: Final = Pattern(rf"^(?:{_FRAME}|{_TAG})")
# Nobody types these by hand: a frame, a program's tag before its message, an indented value, a row of a padded table,
# a time within the first words. A quoted message is one of a script, a list or an alert rule, and one that is explained
# is of a glossary.
_FRAMED_LINE_START: Final = Pattern(
    r"^\s*(?=\S)(?!\[\s*[\"']|(?!(?:time|ts|t|level|lvl)=)\w+=)"
    rf"(?:{_FRAME}|(?:(?:\d+: )?{_TAG}|[A-Z]+(?: [A-Z]+)* [Ee]rror(?: at line \d+)?: |\S+ : (?:Pre)?Depends: )"
    r"(?![\"'\[])(?![^\n]* (?:=|means|->) [^\W\d]{6})|\S+(?: {2,}|\t)\S|[^\n]*\brpc error: code = "
    r"|(?!>|[A-Za-z]+ [a-z]+ )[^\n\"'`]{0,24}?(?:\b\d\d:\d\d:\d\d\b|\[ *\d+\.\d{4,}\])|\S+ kernel: |\(\w+ pid=\d+)"
    r"|^(?:\t| {2,})[^\s\"'(*•-][^\n\"'(]*$"
)
# Lines that begin like a program's, but are of a chat, a title, a list of codes, a rule, a test or a change.
_FRAMED_BY_PERSON: Final = (
    Pattern(
        r"^\[?[\d:., /-]+(?:[AP]M)?\]? ?<[@+%~&]?[\w-]+> |^\[\d\d?[./]\d\d?[./]\d\d(?:\d\d)?, "
    ),  # "[09:12] <alice> "
    Pattern(
        r"(?i)^\s*[\[(]?(?:(?:re|fwd?|subject|titles?|symptoms?|causes?|topic|examples?|samples?|tests?|case|feature|docs?"
        r"|faq|bug|issue|questions?|help|solved|resolved|fixed|closed|alert)(?: [^\n\])\d:]{0,20})?(?:[\])]|: ))"
    ),
    Pattern(r"(?i)^\s*(?:xid[ _-]?)?\d{1,3}(?:: (?!\w+: )|(?: {2,}|\t)[a-z]+:? \S)"),  # "79: GPU has"
    Pattern(r"^\s*\d+  \w+ [^\n]*\b(?:grep|echo|logger)\b|^[+-][\w\[]"),  # a shell's history, a diff
    Pattern(
        r"(?i)^[^\n]*\"(?:title|summary|description|expr|alert|pattern|regexp?|input|want|expect(?:ed)?|example)\"\s*:"
        r"|^[^\n]*\b(?:pars(?:es?|ed|ing)|match(?:es|ed|ing)?|test(?:s|ed|ing)?|expect(?:s|ed|ing)?|patterns?|regexp?"
        r"|inputs?)[ :=]+[\"'`]|^\S+::\w+\["
    ),
    # A question behind a word that looks like a tag, as in "Laptop: all works. Is it normal?"
    Pattern(r"^[^\n]{0,300}[.:] (?:Is|Are|Does|Do|Did|Can|Could|Why|What|How)\b[^\n?]{0,300}\?\s*$"),
)
# What these programs print was written by people, even if it begins like a log.
_TEXT_SHOWING_COMMAND: Final = Pattern(
    r"^\W*(?:sudo )?(?:git|gh|man|history|echo|printf|curl|diff|jq|pytest|(?:cargo|go|npm) test|ollama run)\b"
    r"|^\W*(?:sudo )?(?:cat|grep|head|less|tail)\b[^\n|]*\s(?:[^\s|]*/)?(?:fixtures?|tests?)/"
)
# A runbook's line is about any node: "Runbook: ...", "Step 2: ...", "Xid 79: ... -> drain the node".
_INSTRUCTIONS: Final = Pattern(
    r"(?i)^\W*(?:\d{1,2}[.)]\s*)?(?:run ?books?|play ?books?|check ?lists?|trouble ?shooting|remediations?|mitigations?"
    r"|work ?arounds?|sop|step \d{1,2})\b[^\n:]{0,60}:\s*\S"
    r"|^[^\n]*\s(?:=>|->|→)\s(?:check|collect|contact|drain|open|power|reboot|reinstall|reload|replace|reseat|reset"
    r"|restart|run|rma|see|update)\b"
)
# Lines that are set apart from what a node printed. NVIDIA's package repository answered with a comment once.
_SET_APART: Final = (
    Pattern(r"^\s*(?:#{1,6}|//|--|;)\s+(?!Unsupported distribution)\S|^\s*/\*"),  # a heading or a comment
    Pattern(r"^\s*(?:[-*•+]\s)?\[[ xX]\]\s"),  # an item of a checklist
    _INSTRUCTIONS,
    # An item with the answer, as in "- Xid 79: no".
    Pattern(
        r"(?i)^\s*[-*•+]\s[^\n]*(?::|=|->|→|–| -)\s*"
        r"(?:no|none|nope|not\b[^\n]{0,20}|never|nein|non|❌|✗|✘|否|нет)\W*$"
    ),
    Pattern(r"(?i)^\s*(?:logger\s+(?:-\S+\s+)*[\"']|(?:el)?if\s[^\n]*\bgrep\b)"),  # a script's own words
    # An alert rule, or the words of a playbook.
    Pattern(
        r"^\s*(?:- |(?<=\s))(?:(?:summary|description|expr|alert|title|annotations?|msg|fail_msg)\s*: "
        r"|(?i:regexp?|pattern)(?:\s*: | {2,}))"
    ),
    # A line in quotation marks that is not one of a log.
    Pattern(
        r"(?i)^\s*[\"“„«'](?=[^\W\d][^\n]* [^\n]* |\[)(?!\[ *\d+\.\d|NVRM: |\w{3} {1,2}\d{1,2} \d\d:)"
        r"[^\"“”„«»]*[\"”“»'][.!]?\s*$"
    ),
)
# The tables of programs are padded.
_MARKDOWN_ROW: Final = Pattern(r"^\s*\|\s\S(?=[^\n]*\S \S)(?![^\n]*(?:\s\s\||\|\s\s))")
_MARKDOWN_TABLE_RULE: Final = Pattern(r"^\s*\|(?:\s*:?-+:?\s*\|){2,}\s*$")
# "dmesg of another node", "lsmod (last year)".
_DISCLAIMING_HEADING: Final = Pattern(
    r"(?i)\b(?:another|other|different) (?:box|cluster|computer|host|machine|node|pc|server|vm)\b"
    r"|\blast (?:month|year)\b"
)
# The last line above pasted lines says that they are denied, old, another machine's or hypothetical. Who goes on about
# the present or about what follows, as in "it used to work, now dmesg says:", introduces evidence.
_DISCLAIMERS: Final = (
    # "We looked, and there is no line like"
    Pattern(
        r"(?i)(?:^|(?<=\w ))(?:no|never|nor|without|(?:do|did|does|have|has|had)(?: not|n['’]t)"
        r"(?= (?:see|get|have|had|find|contain))|kein\w*|aucune?|nessun\w*)"
        r"(?: (?:saw|seen|see|get|got|had|have|find|found|contains?|shows?|an?|any|the|such|sign|mention|of|lines?"
        r"|messages?|like)){0,4}\s*:?\s*$"
    ),
    Pattern(
        r"(?i)\b(?:nie|jamais|nunca|mai|никогда не)(?: \w+){0,2} (?:gesehen|vu|visto|vimos|видели)"
        r"(?: (?:questa|esta|essa|cette) \w+)?\s*:?\s*$"
    ),
    # "None of our nodes ever printed this:", "We have never seen this line:", but not "Never seen this error before:"
    Pattern(
        r"(?i)\b(?:never|none|nobody|no one)\b[^\n.,;?!]*\b(?:(?:print|logg?|show)(?:s|ed|n)? (?:this|that|these|such)"
        r"|(?:see|seen|saw|had|got) (?:this|that|these|such|a) (?:lines?|messages?|output))\s*:\s*$"
    ),
    Pattern(r"(?i)\bthis is not what\b[^\n.;?!]*:\s*$|\bno longer (?:appears?|shows?|happens?)\b[^\n.;?!]*:\s*$"),
    Pattern(r"(?:没有?|从未|从没)[^\n，,。]{0,6}(?:看到|看见|见到?|出现)?过?\s*[:：]?\s*$"),
    # "None of the nodes has messages such as:", but not "It does not work with messages like:"
    Pattern(
        r"(?i)\b(?:no|none|never|not|nobody)\b(?:(?!\b(?:with|and|but|because|full|gives?)\b)[^\n.,;?!])*"
        r"\b(?:like|such as|saying|saying that|that says?)\s*:?\s*$"
    ),
    # "Last year dmesg said:", but not "It started last year:"
    Pattern(
        r"(?i)(?:^|[.?!]\s)(?![^\n]*\b(?:since|now|today|still|until|again|but|start\w*|beg[aiu]n\w*|is|are|gets?|gives?"
        r"|fails?|sees?|shows?|says)\b)[^\n.?!]*\b(?:last (?:month|year)|(?:years?|months?) ago|in the past|back in"
        r"|in (?:19|20)\d\d)\b[^\n.?!]*:\s*$"
    ),
    Pattern(r"(?i)\bused to (?:get|have|report|say|see|show)\b[^\n.,;?!]*:\s*$"),
    Pattern(r"(?i)\bbefore (?:I|they|we)\b[^\n:.,;?!]* (?:fix|repair|replac|reseat|swapp)ed\b[^\n:.,;?!]*:\s*$"),
    Pattern(r"(?i)\bbefore (?:the|its) (?:fix|repair|replacement)\b[^\n:.,;?!]*:\s*$"),
    Pattern(
        r"(?i)^\W*(?:an? |the )?(?:example|expected|sample)(?: of)? (?:logs?|output|dmesg|lsmod|lspci|nvidia-smi)\b"
        r"[^\n.,;?!]*$"
    ),
    # "The manual of another cluster:", but not "My colleague got this today:"
    Pattern(
        r"(?i)(?:^\W*|[.?!]\s)(?:(?:at|from|in|on) )?(?:the|our|your|an?|some|other|another|my)\b"
        r"(?![^\n]*\b(?:here|now|then|but|fails?|(?:I|we) (?:get|got|have|ran|run|saw|see|tried)"
        r"|to (?:add|check|do|execute|install|run|set|try|type|use))\b)[^\n:.,;?!]*\b(?:docs?|documentation|manual"
        r"|wiki|faq|article|blog|tutorial|forum|friends?|(?:other|another) (?:cluster|host|machine|node|server))\b"
        r"[^\n:.,;?!]*:\s*$"
    ),
    # A runbook says "Look for lines such as" or "Search the kernel log:"
    Pattern(
        r"(?i)(?:^\W*(?:\d+\W+)?|[.?!,] )(?:check|look|search|grep|watch|scan)(?:e?s)?"
        r" (?:[^\n.?!]*\bfor\b[^\n.?!]*\b(?:like|such as|of the form)|(?:the|your) (?:[\w-]+ )*(?:logs?|journal|dmesg))"
        r"\s*:?\s*$"
    ),
    # Documentation says "You might see:", a post "Below you will see the log:"
    Pattern(
        r"(?i)^(?![^\n]*\b(?:here|below|attached|my|our|following)\b)[^\n]*"
        r"\byou (?:might|may|could|would|will|should) (?:\w+ )?see\b[^\n.?!]*:?\s*$"
    ),
    # Invented lines, as below "Imagine that dmesg says:" or "I made this line up:"
    Pattern(
        r"(?i)(?:^|[.?!]\s)\W*(?:assume|imagine|suppose)\b[^\n.;?!]*:\s*$"
        r"|\b(?:fake|invented|made[- ]up|found on the (?:internet|web))\b[^\n.;?!]*:\s*$"
        r"|\bmade [^\n.,;?!]{1,30} up:\s*$"
    ),
    # "What does the line look like?" and its answer
    Pattern(r"(?i)\bwhat (?:does|do|did|would|will|should) (?![^\n]*\bmean)[^\n?]*\blook like\b[^\n?]*\?\s*$"),
    Pattern(r"(?i)^(?![^\n]*\b(?:I|we|our|my)\b)[^\n]*\btypical(?:ly)?\b[^\n.?!]*\blooks? like\s*:\s*$"),
    # "If your node prints"
    Pattern(
        r"(?i)^\W*if (?:you|your|an?|one|some\w*)\b(?![^\n]*\b(?:here|want|need|like)\b)[^\n.?!]*"
        r"\b(?:find|get|print|report|say|see|show)s?\b[^\n.?!]*\s*$"
    ),
)
# Common words of German, French, Spanish, Italian and Portuguese that no English line has, without names ("Red Hat"),
# time zones ("EST") and "non-fatal".
_OTHER_LANGUAGE_WORD: Final = (
    r"\b(?-i:(?!Hat\b|[A-Z]{2}))(?:der|das|ist|sind|nicht|kein\w*|nie|nein|und|wir|bei|uns|ich|eine?|hat|haben|wenn|aber"
    r"|auch|nous|les|sur|est|dans|une|avec|pour|pas|jamais|aucune?|n['’]\w+|vous|c['’]est|por|los|las|del|una|pero|nunca"
    r"|ning[uú]na?|hay|es|en|el|nuestr[oa]s?|che|della|sono|non(?!-)|mai|nessun\w*|abbiamo|n[aã]o|uma?|nenhum\w*|temos"
    r"|nosso)\b"
)
# Without regard to case, re would compile each of the thirty thousand characters.
_OTHER_LETTER: Final = r"(?-i:[\u0400-\u04ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af])"
_OTHER_LANGUAGE: Final = Pattern(rf"(?i)(?:{_OTHER_LANGUAGE_WORD}[^\n]*?){{2}}|(?:{_OTHER_LETTER}[^\n]*?){{4}}")
# More words and letters of other languages; two of these words are in few English lines, but in some of programs.
_PERHAPS_OTHER_LANGUAGE: Final = Pattern(
    r"(?i)(?:\b(?:vom|zum|zur|nach|seit|jede\w?|zweimal|la|se|al|dos|veces|d[ií]as?|cada|tras|cuando|duas|vezes|cai|depois"
    r"|minha|quando|nie|si[eę]|jest|po|dwa|razy|dziennie|het|een|niet|keer|elke|ve|bir|sonra|yeniden)\b[^\n]*?){2}"
    # With the flag, these ranges would contain s, k and i.
    r"|(?:(?-i:[\u00c0-\u024f])[^\n]*?){3}"
    r"|(?:(?-i:[\u0370-\u03ff\u0590-\u06ff\u0900-\u0dff\u0e00-\u0e7f])[^\n]*?){4}"
)
_FIRST_PERSON_WORDS: Final = Pattern(
    r"\bI(?:['’](?:m|ve|d|ll)\b| (?:am|have|had|do|did|don['’]t|didn['’]t|got|get|see|saw|run|ran|think|was|use|tried"
    r"|want|need|can|can['’]t|cannot|could|never|just|also|only|would|will|know|found|installed|heard|read|fear|believe|guess"
    r"|hope|suspect|assume|wonder)\b)"
    r"|\b[Ww]e(?:['’](?:ve|re|d|ll)\b| (?:never|have|had|did|didn['’]t|do|don['’]t|are|were|saw|see|got|get|run|ran|use"
    r"|found|think|tried|also|always|only|can|can['’]t|cannot|could|suspect|read|heard)\b)"
    r"|\b(?:[Mm]y|[Oo]ur) [A-Za-z]|\b(?:[Cc]olleagues?|[Ff]riends?|[Ff]orums?|[Ss]ome(?:body|one)|[Aa]ny(?:body|one)"
    r"|[Ee]verybody)\b"
)
_QUESTION_START: Final = Pattern(
    r"^(?:Is|Are|Do|Does|Did|Can|Could|Should|What|Why|How|Has|Have|Was|Were|Will|Would|Any|Where|When|Who|Which|Must"
    r"|May|Might|Shall)\b[^?]*\?"
)
_DENIAL_WORDS: Final = Pattern(
    r"(?i)\b(?:never|neither|nor|nobody|none of)\b"
    r"|\b(?:no|any|without(?: any)?) (?:sign|trace|mention|hint|evidence|occurrence|instance|report)s?\b"
    r"|\b(?:zero|no|without(?: any)?) (?:[\w-]+ ){0,3}(?:errors?|xids?|faults?|messages?|lines?|entries)\b"
    r"|\bno (?:\w+ ){1,2}(?:has|have|had)\b(?! been)|\bnothing (?:about|like)\b"
    r"|\b(?:there|this) (?:is|was|are|were|has been|have been)(?:n['’]t| no| not| never)\b"
    r"|\b(?:did|do|does|have|has|was|were|is|are)(?:n['’]t| not) (?:see|seen|find|get|got|had|show|contain|appear"
    r"|report|reported|seeing|getting|about|because|the case|due to|caused)\b"
    r"|\bnot (?:caused by|due to|because|the same as|a case of)\b|\bruled out\b"
    r"|(?:^|[.,;!?] |\b(?:but|and|so) )(?:it|that)(?:['’]s| is| was)(?:n['’]t| not)\b(?! (?:going to be )?install)"
)
_SUPPOSITION_START: Final = Pattern(
    r"^(?:[Ii]f|[Ww]hen(?:ever)?|[Ss]uppose|[Ii]magine|[Aa]ssume|[Ii]n case)(?: that)?"
    r" (?:a|an|the|your|it|one|some|any|I|we) "
    r"|^(?:Check|Contact|Drain|Power|Reboot|Reinstall|Reload|Replace|Reset|Restart|Run)\b[^\n]* (?:if|when|in case) "
    r"|\b(?:(?:might|would|often|usually) means?|known issue|stands for|release notes|changelog)\b|Xid \d+ ="
    r"|\b(?:[Ff]ix(?:e[ds])?|[Rr]esolve[ds]?|[Aa]ddresse[ds]) (?:an?|the|some) (?:\w+ )?(?:bug|issue|problem)s?\b"
    r"|\b(?:[Ll]ast (?:week|month|year|time)|[Yy]esterday|used to (?:see|get|have)|[Ii]n the past)\b"
)
_REPORTED_SPEECH: Final = Pattern(
    r"^(?:People|Users|They|Some(?: \w+)?|Many(?: \w+)?|Most(?: \w+)?|Others) (?:say|report|claim|write|mention)\b"
    r"|^(?:The|This|That|A|An|Its?|Another) [\w'’ -]{2,60}\b(?:says?|said|reports?|reported|shows?|showed|tells?|told"
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
    r"(?i)\b(?:until|(?:years?|months|ages) ago|last (?:week|month|year)|tomorrow|purged|uninstalled|dropped|switched"
    r"|solved|fixed)\b"
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
# The source of text without a command or heading above it.
_PASTED_TEXT: Final = "pasted text"
# A log below a sentence may be long, and its beginning is what the sentence is about.
_MAX_DISCLAIMED_LINES: Final = 12
# Of a longer line only the end is read: these patterns take time by the square of its length.
_MAX_DISCLAIMER_LENGTH: Final = 300
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
    cited = [item for item in items if number <= len(item.lines) and item.lines[number - 1] == citation.line]
    if any(number in item.view(_ProseLines) for item in cited):
        return True
    disclaimed = snapshot.view(_disclaimed_keys)
    return bool(disclaimed) and any(item.key in disclaimed and item.view(_first_block_end) >= number for item in cited)


def is_program_output(snapshot: Snapshot, citation: Citation) -> bool:
    """Return whether the line is certainly a program's: by the command or file it is from, or by how it begins."""
    items = snapshot.view(_items_by_key_and_source).get((citation.key, citation.source), ())
    if _TEXT_SHOWING_COMMAND.match(citation.source):
        return False
    if citation.source != _PASTED_TEXT and any(item.kind != "text" for item in items):
        return True
    is_by_person = any(pattern.match(citation.line) for pattern in _FRAMED_BY_PERSON)
    return not is_by_person and _FRAMED_LINE_START.match(citation.line) is not None


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


def is_in_other_language(line: str) -> bool:
    """Return whether a person wrote the line in another language than English, which alone the rules read."""
    sentence = _SENTENCE_LEAD_IN.sub("", line, 1)
    if _MACHINE_OUTPUT_START.match(sentence):
        return False
    return any(pattern.search(sentence) for pattern in (_OTHER_LANGUAGE, _PERHAPS_OTHER_LANGUAGE))


def _is_set_apart(line: str) -> bool:
    return any(pattern.match(line) for pattern in _SET_APART)


def _is_disclaimer(line: str) -> bool:
    end = line[-_MAX_DISCLAIMER_LENGTH:]
    return any(pattern.search(end) for pattern in _DISCLAIMERS)


def _items_by_key_and_source(snapshot: Snapshot) -> Mapping[tuple[str, str], tuple[EvidenceItem, ...]]:
    items: dict[tuple[str, str], tuple[EvidenceItem, ...]] = {}
    for item in snapshot.items:
        place = item.key, item.written
        items[place] = (*items.get(place, ()), item)
    return items


def _disclaimed_keys(snapshot: Snapshot) -> frozenset[str]:
    """Return the keys of the pieces that their own heading, or the last line of the pasted piece above, disclaims."""
    texts = [item for item in snapshot.items if item.text]
    below_disclaimer = (
        below.key
        for above, below in pairwise(texts)
        if above.written == _PASTED_TEXT and above.view(_ends_with_disclaimer)
    )
    return frozenset((*below_disclaimer, *(item.key for item in texts if _DISCLAIMING_HEADING.search(item.written))))


def _ends_with_disclaimer(item: EvidenceItem) -> bool:
    last = next((line for line in reversed(item.lines) if line.strip() and not _MARKDOWN_FENCE.match(line)), "")
    return not _MACHINE_OUTPUT_START.match(last) and _is_disclaimer(last)


def _first_block_end(item: EvidenceItem) -> int:
    """Return the number of the last line before the first blank one, at most ``_MAX_DISCLAIMED_LINES``."""
    lines = item.lines[:_MAX_DISCLAIMED_LINES]
    return next((number for number, line in enumerate(lines) if number and not line.strip()), len(lines))


class _ProseLines:
    """The line numbers that are prose, computed on demand."""

    def __init__(self, item: EvidenceItem) -> None:
        self._lines, self._is_file, self._is_output = item.lines, item.kind == "file", item.written != _PASTED_TEXT
        self._known: dict[int, bool] = {}
        self._pasted: dict[int, bool] = {}

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
        if _is_set_apart(line) and not self._is_file:
            return True
        if line.lstrip().startswith("|") and (
            self._has_markdown_table
            or (_MARKDOWN_ROW.match(line) and not self._is_output and not self._has_program_table)
        ):
            return True
        sentence = _SENTENCE_LEAD_IN.sub("", line, 1)
        if not sentence.strip():
            return False
        if self._is_pasted(number):
            return self._is_disclaimed(number)
        # Translated programs continue an error on indented lines.
        is_translated = self._is_output and line[:1].isspace()
        if is_written_by_person(sentence) or (not is_translated and _OTHER_LANGUAGE.search(sentence)):
            return True
        before = self._lines[number - 2].rstrip() if number > 1 else ""
        # Below a sentence in another language, English is a program's.
        is_over = (
            not before or before.endswith(_SENTENCE_ENDINGS) or _is_set_apart(before) or _OTHER_LANGUAGE.search(before)
        )
        return self._is_disclaimed(number) if is_over else None

    def _is_pasted(self, number: int) -> bool:
        if number not in self._pasted:
            sentence = _SENTENCE_LEAD_IN.sub("", self._lines[number - 1], 1)
            is_framed = _MACHINE_OUTPUT_START.match(sentence) is not None
            self._pasted[number] = is_framed or number in self._fenced_lines
        return self._pasted[number]

    def _is_disclaimed(self, number: int) -> bool:
        """Return whether the text above the block of pasted lines says that they are not this node's present."""
        is_block = True
        for above in range(number - 1, max(number - 1 - _MAX_DISCLAIMED_LINES, 0), -1):
            line = self._lines[above - 1]
            if not line.strip() or _MARKDOWN_FENCE.match(line):
                is_block = False
            elif not self._is_pasted(above):
                return _is_disclaimer(line)
            elif not is_block:
                return False
        return False

    @cached_property
    def _has_markdown_table(self) -> bool:
        return any(map(_MARKDOWN_TABLE_RULE.match, self._lines))

    @cached_property
    def _has_program_table(self) -> bool:
        return any(line.lstrip().startswith(("+-", "+=")) for line in self._lines)

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
