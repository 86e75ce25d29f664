"""Secrets without a sign of assignment before them: how configuration and people write them, form by form.

The forms are those of each program's manual. What follows a name and a sign of assignment is in ``assigned``, and what
a command is given in ``command_secrets``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpunode.host.assigned import NAME

_WORD: Final = r"[^\s'\"]+"
_STRING: Final = r"'[^'\n]{1,400}'|\"[^\"\n]{1,400}\""
# A shell's word; in quotes up to their end.
_ARGUMENT: Final = (
    r"(?<=[ \t,]\")[^\"\n]{1,400}(?=\")|(?<=[ \t,]')[^'\n]{1,400}(?=')"
    r"|[^\s'\"]+(?:[\"'](?![\s,:;)}\]|&]|\Z)[^\s'\"]*)*"
)
# A word that somebody has drawn: sentences go on with others.
_DRAWN: Final = r"(?=[^\s'\"]{0,200}\d)[^\s'\"]{8,}"
# What may be quoted with blanks within.
_REST: Final = r"[^\s\"'][^\n\"']*"
_TO_COMMA: Final = r"[^\s\"',}][^\n\"',}]*"
_JSON: Final = r"(?:[^\"\\\n]|\\.)+"

_LINE_END: Final = r"[ \t]*(?:#[^\n]*)?\n"
_COLON: Final = r"\s{0,99}:\s{0,99}"
_COMMA: Final = r"\s{0,99},\s{0,99}"
# What an image is called, with which `-e NAME IMAGE` goes on where the value is the caller's own.
_NO_IMAGE: Final = r"(?!(?-i:[a-z]+|[a-z\d._/-]*[/:][^\s'\"A-Z]*)(?:[\s'\"]|$))"
# What is said of a secret, and is none.
_NO_VERDICT: Final = (
    r"(?!(?:not|no|required|incorrect|wrong|invalid|expired|missing|empty|needed|set|too|an?|the|in|on|only|used|asked"
    r"|unknown|stored|being|never|now|already|correct|valid|accepted|protected|disabled|enabled|locked|for|at|to)\b)"
)


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write a secret; all four are regular expressions without groups of their own.

    Attributes:
        before: what tells that a secret follows, and stays.
        secret: what goes.
        unless: what stands in its place where it is none; looks ahead.
        after: what has to follow it, and stays; looks ahead.
    """

    before: str
    secret: str = _ARGUMENT
    unless: str = ""
    after: str = ""

    @property
    def pattern(self) -> str:
        """Two groups: what stays, and what goes."""
        return f"({self.before}){self.unless}({self.secret}){self.after}"


_HTTP: Final = (
    Form(r"\bbearer[ \t]+", r"[\w.~+/=-]{8,}"),
    Form(r"\bbasic[ \t]+", r"(?=[a-z+/]{0,400}[\d=])[\w+/-]{6,}={0,2}"),
    Form(r"\bauthorization:[ \t]*(?:digest|negotiate|ntlm|oauth|hawk|aws4-hmac-sha256)[ \t]+", r"[^\n]+"),
)
_VARIABLES: Final = (
    Form(rf"^[ \t]*(?-i:ENV)[ \t]+(?:{NAME})[ \t]+", r"[^\s=][^\n]*"),  # a Dockerfile
    Form(
        rf"(?:(?<!\w)-e|--env|\bsetenv|\bset[ \t]+-\w{{1,4}})[ \t]+(?:{NAME})[ \t]+",
        r"[^\s'\"-][^\s'\"]*",
        unless=_NO_IMAGE,
    ),
)
# Lines of single programs' configuration, and what they are handed.
_PROGRAMS: Final = (
    Form(r"\br[ow]community6?[ \t]+", r"\S+"),  # snmpd.conf
    Form(r"(?:^|[ \t])(?:root)?(?:bindpw|requirepass|masterauth)[ \t]+", r"[^\s=:]\S*"),  # nslcd.conf, redis.conf
    Form(r"(?<![\w.-])[\w:.-]{0,80}(?:passw(?:or)?d|token|secret)[ \t]+\"", r"[^\"\n]{1,400}", after=r"(?=\"[ \t]*;)"),
    Form(rf"^[ \t]*\?[ \t]+[\"']?(?:{NAME})[\"']?{_LINE_END}[ \t]*:[ \t]+[\"']?", _REST),  # YAML's explicit key
    Form(r"\bpass(?:in|out)?[ \t]+pass:", _WORD),  # openssl
    Form(r"\bPSK[ \t]+[\"']", r"[^\n\"']+"),  # ipsec.secrets
    Form(
        r"\b(?:echo|printf)[ \t]+(?:-\w[ \t]+)?(?:[\"']?%s(?:\\n)?[\"']?[ \t]+)?[\"']?(?:[\w.-]{1,80}:)?",
        r"[^\s'\"|]+",
        after=(
            r"(?=[\"']?[ \t]*\|(?:[^\n|]|\\\n){0,80}"
            r"(?:sudo[ \t][^\n|]{0,40}(?:-\w*(?-i:S)\w*|--stdin)|\bchpasswd|\bpasswd|--password-stdin))"
        ),
    ),
    Form(r"\bmachine[ \t]+\S{1,256}\s+password[ \t]+", r"\S+"),  # netrc(5)
    Form(r"\bldap_default_authtok[ \t]*=[ \t]*|\bwep-key\d[ \t]*=[ \t]*|^[ \t]*chap_password[ \t]+", r"[^\s=][^\n]*"),
    Form(r"\bcifsroot=//[^\s:/@]{1,80}:", r"[^\s@]+", after=r"(?=@)"),
    Form(
        r"(?:--password-stdin|\bsudo[ \t][^\n|<]{0,80}-S|\bchpasswd)\b[^\n|<]{0,200}<<<[ \t]*[\"']?(?:[\w.-]{1,80}:)?",
        _WORD,
    ),
    Form(r"^[ \t]*(?:passw(?:or)?d|passphrase)\t+", r"\S+", after=r"(?=[ \t]*$)"),
    Form(r"\blogin\s+\S{1,256}\s+password\s+", r"\S+"),  # netrc(5), without its machine
    Form(  # kubectl's, in a line or a list of its own
        r"^[ \t]*(?:-[ \t]+)?[\"']?--from-literal(?:[ \t]+|=)[\"']?[\w.-]{1,80}=",
        rf"{_STRING}|{_WORD}",
        unless=r"(?!\$[\w{(])",
    ),
    Form(r"\bIDENTIFIED[ \t]+(?:WITH[ \t]+\w{1,40}[ \t]+)?(?:BY|AS)[ \t]+(?:PASSWORD[ \t]+)?", _STRING),  # SQL
    Form(r"\b(?:USER|ROLE)\b[^\n;]{0,200}\bPASSWORD[ \t]+|\bPASSWORD[ \t]*\([ \t]*", _STRING),
    Form(r"\bpasswd/(?:root|user)-password(?:-again|-crypted)?[ \t]+password[ \t]+", r"\S+"),  # debconf's preseed
    Form(r"<(?:\w{1,20}:)?(?:password|passwd|secret|token|apikey)>", r"[^<\s][^<\n]*"),
    Form(r"\bcreateUser[ \t]+\S{1,80}[ \t]+(?:MD5|SHA[\d-]*)[ \t]+", r"\S+"),  # snmpd.conf
)
_SENTENCES: Final = (
    Form(r"\bpassw(?:or)?d (?:for [^\s:]{1,80} )?(?:is|was):?[ \t]+[\"']?", _WORD, unless=_NO_VERDICT),
    Form(r"(?<!\[sudo\] )\bpassw(?:or)?d for [^\n:]{1,80}:[ \t]+[\"']?", _WORD, after=r"(?=[\"']?[ \t]*$)"),
    Form(r"\b(?:token|secret|key) (?:for [^\s:]{1,80} )?(?:is|was):?[ \t]+[\"']?", _DRAWN),
    Form(r"\b(?:api|access) key:[ \t]+[\"']?", _DRAWN),
)
_HASHES: Final = (
    Form(r"(?:^|[ \t])rootpw[ \t]+(?:--\w+[ \t]+){0,4}", r"[^\s-]\S*"),  # kickstart
    Form(r"\bgrub\.pbkdf2\.\w{1,20}\.\d{1,9}\.", r"[0-9a-f.]+"),
    Form(r"(?<![\w$])\$(?:1|2[aby]|5|6|7|y)\$", r"[\w./=,$-]{20,}"),  # crypt(5)
)
# Lists of names and values: an entry of a pod's environment, a header; in both orders, as YAML and as JSON.
_ENTRIES: Final = (
    Form(r"\bauthorization[\"']?:[ \t]*\n[ \t]*-[ \t]+[\"']?", _REST),
    Form(
        rf"\bname:[ \t]*[\"']?(?:{NAME})[\"']?{_LINE_END}(?:[ \t]*#[^\n]*\n){{0,9}}[ \t]*value:[ \t]*",
        rf"\"{_JSON}\"|'(?:[^'\n]|'')+'|[^\s\"'|>][^\n]*",
    ),
    Form(rf"\bname:[ \t]*[\"']?(?:{NAME})[\"']?[ \t]*,[ \t]*value:[ \t]*[\"']?", _TO_COMMA),
    Form(
        r"\bvalue:[ \t]+[\"']?",
        r"[^\s\"'|>][^\n\"',}]{0,400}",
        after=rf"(?=[\"']?[ \t]{{0,8}}[,\n][ \t]{{0,80}}name:[ \t]{{1,8}}[\"']?(?:{NAME})[\"']?[ \t]{{0,8}}(?:\}}|$))",
    ),
    Form(
        rf"[\"']value[\"']{_COLON}\"", _JSON, after=rf"(?=\"{_COMMA}[\"'](?:name|key)[\"']{_COLON}[\"'](?:{NAME})[\"'])"
    ),
    Form(rf"[\"'](?:name|key)[\"']{_COLON}[\"'](?:{NAME})[\"']{_COMMA}[\"']value[\"']{_COLON}\"", _JSON),
    Form(  # JSON within a string
        rf"(?<!\\)\\{{1,7}}\"name\\{{1,7}}\":[ ]?\\{{1,7}}\"(?:{NAME})\\{{1,7}}\","
        r"[ ]?\\{1,7}\"value\\{1,7}\":[ ]?\\{1,7}\"",
        r"[^\"\\\n]+",
    ),
)
# Where two could begin at one place, the earlier one counts.
FORMS: Final = (*_HTTP, *_VARIABLES, *_PROGRAMS, *_SENTENCES, *_HASHES, *_ENTRIES)
SPOKEN: Final = re.compile("|".join(form.pattern for form in FORMS), re.IGNORECASE | re.MULTILINE)
