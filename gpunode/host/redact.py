"""Text without its secrets: evidence, logs, screen and JSON alike.

What is left has the same structure, so that configuration still parses and patches, and a diff still reads.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from gpunode.change import FileChange, FileState
from gpunode.facts.evidence import Capture, Evidence, Found, decode_found, encode_found
from gpunode.host.process import may_hold_secret

# A secret's replacement tells only which of these lengths it does not exceed; so redacting twice changes nothing.
_LENGTHS: Final = (8, 32, 128, 512)
_STRING: Final = (
    r"\"\"\"(?:[^\\]|\\.)*?(?:\"\"\"|\Z)|'''.*?(?:'''|\Z)"
    r"|\"(?:[^\"\\\n]|\\.)*(?:\"|(?=\n)|\Z)|'[^'\n]*(?:'|(?=\n)|\Z)"
)
_SENSITIVE: Final = (
    # The counts are bounded, so that a long word costs no more than its length.
    r"[\w.-]{0,40}(?:passw(?:or)?d|passphrase|secret|token|(?:api|access|private|client)[_-]?key)[\w.-]{0,40}"
    r"|auth|_auth|(?:proxy-|x-)?authorization|x-[\w-]{0,40}(?:auth|key|cred)[\w-]{0,40}|\w{1,40}_pwd"
)
# Backslashes: JSON that stands as a string in a line of a log.
_KEY: Final = rf"(?<![\w.?&-])(?:[\"']?)(?:{_SENSITIVE})(?:\\{{0,7}}[\"'])?[ \t]*[=:][ \t]*"
_ESCAPED: Final = r"\\{1,7}[\"'][^\"'\\\n]*"
# A bare value ends before the next option of a command line, whose own value may stand in quotes.
_BARE: Final = r"[^\s\[\]{}\"',#\\](?:(?![ \t]-)[^\n,}\"'])*"
_ARRAY: Final = rf"\[(?:[\s,]|{_STRING}|\#[^\n]*)*"
_ASSIGNED: Final = re.compile(
    rf"(?P<key>{_KEY})(?:(?P<array>{_ARRAY})|(?P<string>{_STRING})|(?P<escaped>{_ESCAPED})|(?P<bare>{_BARE}))",
    re.IGNORECASE | re.DOTALL,
)
_STRINGS: Final = re.compile(_STRING, re.DOTALL)
# containerd's [plugins.….registry.….headers]: every value there may be a credential.
_HEADERS: Final = re.compile(
    r"^[ \t]*\[[^\]\n]*headers?[\"']?\][^\n]*\n(?:(?![ \t]*\[)[^\n]*\n)*(?:(?![ \t]*\[)[^\n]+\Z)?"
    r"|headers?[\"']?[ \t]*[=:]\s*\{[^{}]*",
    re.MULTILINE | re.IGNORECASE,
)
_PERHAPS_KEY: Final = re.compile(rf"({_STRING})(\s*[=:])?", re.DOTALL)
_USERINFO: Final = re.compile(r"(?<=://)[^\s/?#\"'<>]*(?=@)")
_QUERY: Final = re.compile(
    r"(?<=[?&])((?:[\w-]*(?:token|signature|credential|key)|sig|password)=)([^&\s\"'#]+)", re.IGNORECASE
)
_PRIVATE_KEY: Final = re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(.*?)(?=-----END|\Z)", re.DOTALL)
# Where no sign of assignment stands before it: an Authorization spoken of, an option's value (also as a list of words),
# docker login -p, curl -u, a line of netrc(5), grub's password, an entry of a pod's environment.
_SPOKEN: Final = re.compile(
    r"(\bbearer[ \t]+)([\w.~+/=-]{8,})"
    r"|((?<!\w)--?(?:password|passphrase|token|secret|api-key)(?:[ \t]+|[\"'],[ \t]?[\"']))([^\s'\"-][^\s'\"]*)"
    r"|(\blogin[ \t](?:[^\n\s]{1,80}[ \t]+){0,6}-p[ \t]+)([^\s'\"]+)"
    r"|(\bcurl[ \t](?:[^\n\s]{1,200}[ \t]+){0,6}(?:-u|--user)[ \t]+[^\s:'\"]{1,80}:)([^\s'\"]+)"
    r"|(\blogin\s+\S{1,256}\s+password\s+)(\S+)"
    r"|(\bgrub\.pbkdf2\.\w{1,20}\.\d{1,9}\.)([0-9a-f.]+)"
    rf"|(\bname:[ \t]*(?:{_SENSITIVE})[ \t]*\n[ \t]*value:[ \t]*[\"']?)([^\s\"']+)",
    re.IGNORECASE,
)
# What tells by its own shape that it is a key: JSON Web Tokens, and those of the services that GPU nodes log in to.
_SHAPES: Final = re.compile(
    r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?|\bAKIA[0-9A-Z]{12,}"
    r"|\b(?:nvapi-|gh[opsur]_|github_pat_|glpat-|hf_|xox[abprs]-)[\w-]{16,}"
)
# Two passes do for what was found so far; the bound is for text that was made to go on for ever.
_PASSES: Final = 8
_PLAIN: Final = frozenset({"true", "false", "null", "none"})
# The system's own tables: no person writes a secret there, and dpkg's descriptions speak of passwords. Of /var/lib only
# those of packages: k3s and RKE2 keep containerd's configuration there, with the registries' passwords.
_TABLES: Final = (
    *("/proc/", "/sys/", "/var/lib/apt/", "/var/lib/dkms/", "/var/lib/dpkg/", "/boot/", "/lib/", "/usr/", "/dev/"),
    *("/var/log/dpkg.log", "lspci", "uname", "systemctl"),
)
# What grows to megabytes, and tells each thing in a line.
_LOGS: Final = ("journalctl", "dmesg")
# What a person wrote all the same: the words with which a process was started.
_COMMAND_LINE: Final = re.compile(r"/proc/\d+/cmdline")


def redact(evidence: Evidence) -> Evidence:
    """``evidence`` with every secret replaced: passwords and tokens of URLs, registries, headers and proxies.

    Law: redacting twice is redacting once.
    """
    return {key: _capture(capture) for key, capture in evidence.items()}


def _capture(capture: Capture) -> Capture:
    if _COMMAND_LINE.fullmatch(capture.source):
        return replace(capture, data=b"\0".join(content(word) for word in capture.data.split(b"\0")))
    if capture.source.startswith(_TABLES):
        return capture
    return replace(capture, data=_data(capture), error=text(capture.error))


def _data(capture: Capture) -> bytes:
    if capture.source.startswith(_LOGS) and b"PRIVATE KEY" not in capture.data:
        return b"\n".join(map(content, capture.data.split(b"\n")))
    if "*" not in capture.source:
        return content(capture.data)
    try:
        found = decode_found(capture.data)
    except (ValueError, KeyError, TypeError):
        return content(capture.data)
    return encode_found(_found(one) for one in found)


def _found(found: Found) -> Found:
    return found if found.data is None else replace(found, data=content(found.data))


def without_secrets(change: FileChange) -> FileChange:
    """``change`` as it may be shown; redacted as whole files, since one line does not tell that it belongs to a key."""

    def shown(state: FileState) -> FileState:
        return replace(state, content=content(state.content))

    after = change.after
    return replace(
        change,
        before=change.before and shown(change.before),
        after=shown(after) if isinstance(after, FileState) else after,
    )


def content(data: bytes) -> bytes:
    """The bytes of a file, redacted; bytes that are not text stay."""
    return text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def text(value: str) -> str:
    """``value`` without secrets."""
    if not may_hold_secret(value):
        return value
    # What one replacement leaves may be the user and password of an address to the next: until nothing changes.
    for _ in range(_PASSES):
        if (after := _once(value)) == value:
            break
        value = after
    return value


def _once(value: str) -> str:
    value = _PRIVATE_KEY.sub(lambda match: match[1] + _block(match[2]), value)
    value = _USERINFO.sub(lambda match: ":".join(map(_mask, match[0].split(":", 1))), value)
    value = _QUERY.sub(lambda match: match[1] + _mask(match[2]), value)
    value = _SHAPES.sub(lambda match: _mask(match[0]), value)
    value = _SPOKEN.sub(_spoken, value)
    value = _HEADERS.sub(lambda table: _headers(table[0]), value)
    return _ASSIGNED.sub(_assigned, value)


def _mask(secret: str) -> str:
    if not secret:
        return ""
    length = next((length for length in _LENGTHS if len(secret) <= length), _LENGTHS[-1])
    return "redacted" * (length // 8)


def _block(body: str) -> str:
    return f"\n{_mask(body.strip())}\n" if body.strip() else body


def _spoken(match: re.Match[str]) -> str:
    before, secret = (group for group in match.groups() if group is not None)
    return before + _mask(secret)


def _headers(table: str) -> str:
    # The table's own name may be quoted, and its keys are: only what no sign of assignment follows is a value.
    mark = "\n" if table.lstrip().startswith("[") else "{"
    head, mark, body = table.partition(mark)
    return head + mark + _PERHAPS_KEY.sub(lambda match: match[0] if match[2] else _quoted(match[1]), body)


def _assigned(match: re.Match[str]) -> str:
    if escaped := match["escaped"]:
        quote = escaped[: len(escaped) - len(escaped.lstrip("\\")) + 1]
        return match["key"] + quote + _mask(escaped[len(quote) :])
    if match["bare"] is None:
        return match["key"] + _strings(match["array"] or match["string"])
    word = match["bare"].rstrip()
    is_plain = word.lower() in _PLAIN or re.fullmatch(r"[\d.+-]+", word)
    return match[0] if is_plain else match["key"] + _mask(word) + match["bare"][len(word) :]


def _strings(value: str) -> str:
    return _STRINGS.sub(lambda match: _quoted(match[0]), value)


def _quoted(literal: str) -> str:
    for quote in ('"""', "'''", '"', "'"):
        if literal.startswith(quote):
            end = quote if len(literal) >= 2 * len(quote) and literal.endswith(quote) else ""
            return quote + _mask(literal[len(quote) : len(literal) - len(end)]) + end
    return literal
