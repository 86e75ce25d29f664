"""Names for a secret behind which none stands: what a program was about when it failed, a name, a path.

A message tells behind a colon what went wrong, and a secret's name in front of it is no key then. What is masked there
is why an image was not pulled.
"""

from __future__ import annotations

import re
from typing import Final

_MESSAGE_OF_PATH: Final = re.compile(r"(?:\A|[\s\"'=(])(?:[/~.]|[^\s\"'=(]{0,200}/\.\./)[^\s\"'=(]{0,200}/\Z")
_SEVERAL_WORDS: Final = re.compile(r"[^\s\"',]{1,200}[ \t]+\S")
# Go's clients say what they asked, of whom, and what went wrong: `Post "https://reg.example/service/token": x509: …`.
_ASKED: Final = r"\b(?:Get|Head|Post|Put|Patch|Delete)[ \t]+\\{0,7}[\"']?"
_ADDRESS: Final = re.compile(rf"(?P<asked>{_ASKED})?\bhttps?://[^\s\"'<>]{{0,400}}/\Z", re.IGNORECASE)
# What could not be had is not told behind the colon, whatever follows and however short it was cut; what was asked
# with a token is another thing.
_WITH: Final = r"(?:and|as|at|because|by|for|from|in|of|on|or|to|using|via|with)\b"
_NOT_HAD: Final = re.compile(
    r"(?:\b(?:failed|failure|unable) to|\bcan(?:no|')t|\bcould(?: not|n't)|\berror(?: while)?)[ \t]+"
    r"(?:acquir|fetch|gett?|obtain|request|retriev)(?:e|ing)?[ \t]+"
    rf"(?:(?!{_WITH})[\w*-]{{1,40}}[ \t]+){{0,4}}[\w.-]{{1,80}}\Z"
    r"|\bfetch (?:oauth|anonymous) token\Z|\brequesting bear(?:er)? token\Z"  # containerd; podman and CRI-O
    r"|\binvalid username/password\Z|\brequires? authorization\Z|(?<![\w-])invalid_token\Z",  # RFC 6750
    re.IGNORECASE,
)
# A program that has the token may show it, also where it is a wrong one.
_WHY_NONE: Final = re.compile(
    rf"unexpected status (?:code )?from |(?:failed|unable) to [a-z]|(?:open|l?stat|read) /|{_ASKED}https?://",
    re.IGNORECASE,
)
_ARCHITECTURE: Final = re.compile(r"(?:amd64|arm64|armhf|i386|ppc64el|riscv64|s390x|all|any|native)(?=[\s,(]|\Z)")
_DEPENDS: Final = re.compile(r"(?:Pre-?)?(?:Depends|Recommends|Suggests|Conflicts|Breaks|Replaces|Enhances): \S")
_LEVEL: Final = re.compile(r"s\d{1,4}(?:[-:.,]|[^\w]|\Z)")  # SELinux: user:role:type:level
# Of the kubelet and kubectl: which of a Secret's keys a variable is set to, and what its client watches.
_SET_TO: Final = re.compile(r"<set to the key '[^'\n]{0,260}' (?:in|of) [a-z ]{1,20}'")
_OF_GO: Final = re.compile(r"v\d\w{0,20}\.[A-Z]\w{0,60}")
_SECRETS_NAME: Final = re.compile(r"secret[_-]?name\Z", re.IGNORECASE)
_NAME: Final = re.compile(r"[\"']?[a-z\d][a-z\d.-]{0,252}[\"']?(?=[\s,}\]]|\Z)")
# What a model has read and written.
_OF_MODELS: Final = re.compile(r"_tokens\Z", re.IGNORECASE)
_COUNT: Final = re.compile(r"\d{1,12}(?=[ \t]*(?:[\n,;)}\]]|\Z)|[ \t]+[\w.-]{1,80}=)")


def is_mentioned(text: str, key: re.Match[str]) -> bool:
    """Whether a secret's name with its sign, ``key`` in ``text``, is none that a secret follows."""
    if _is_name(text, key) or _is_count(text, key) or _SET_TO.match(text, key.end()):
        return True
    if key["sign"] != ":":
        return False
    if _is_address(text, key):
        return True
    return not (key["open"] or key["close"]) and any(is_one(text, key) for is_one in _WITHOUT_QUOTES)


def _is_name(text: str, key: re.Match[str]) -> bool:
    """Whether it is what a Secret of Kubernetes is called: ``secretName: licensing``."""
    return _SECRETS_NAME.search(key["name"]) is not None and _NAME.match(text, key.end()) is not None


def _is_count(text: str, key: re.Match[str]) -> bool:
    """Whether it tells of how many a model's tokens are: ``completion_tokens=5000``."""
    return _OF_MODELS.search(key["name"]) is not None and _COUNT.match(text, key.end()) is not None


def _is_address(text: str, key: re.Match[str]) -> bool:
    """Whether it is the end of an address of which something is said: ``Post "https://reg.example/token": EOF``."""
    start = key.start("name")
    if key["open"] or text[start - 1 : start] != "/" or not text[key.end() - 1].isspace():
        return False
    address = _ADDRESS.search(text, max(start - 440, 0), start)
    return address is not None and (address["asked"] is not None or _SEVERAL_WORDS.match(text, key.end()) is not None)


def _is_path(text: str, key: re.Match[str]) -> bool:
    """Whether it is the end of a path of which something is said: ``/etc/passwd: Permission denied``."""
    start = key.start("name")
    return (
        text[start - 1 : start] == "/"
        and text[key.end() - 1].isspace()
        and _MESSAGE_OF_PATH.search(text, max(start - 400, 0), start) is not None
        and _SEVERAL_WORDS.match(text, key.end()) is not None
    )


def _is_failure(text: str, key: re.Match[str]) -> bool:
    """Whether the request for the token is spoken of, which failed: ``failed to fetch oauth token: Get "https://…``."""
    end = key.end("name")
    return (
        text[key.end() - 1].isspace()
        and (_WHY_NONE.match(text, key.end()) or _NOT_HAD.search(text, max(end - 200, 0), end)) is not None
    )


def _is_package(text: str, key: re.Match[str]) -> bool:
    """Whether it is a package, as apt and dpkg write it: ``passwd:amd64 (1:4.13)``, ``passwd : Depends: libc6``."""
    return (_ARCHITECTURE.match(text, key.end("sign")) or _DEPENDS.match(text, key.end())) is not None


def _is_label(text: str, key: re.Match[str]) -> bool:
    """Whether it is the type in a context of SELinux: ``system_u:object_r:passwd_file_t:s0``."""
    is_type = key["name"].endswith("_t") and text[key.start("name") - 1 : key.start("name")] == ":"
    return is_type and _LEVEL.match(text, key.end("sign")) is not None


def _is_watched(text: str, key: re.Match[str]) -> bool:
    """Whether it is a type of Kubernetes' client, of which something is said: ``failed to list *v1.Secret: …``."""
    return text[key.start("name") - 1 : key.start("name")] == "*" and _OF_GO.fullmatch(key["name"]) is not None


_WITHOUT_QUOTES: Final = (_is_path, _is_failure, _is_package, _is_label, _is_watched)
