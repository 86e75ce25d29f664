"""Text without its secrets: evidence, logs, screen and JSON alike.

What is left has the same structure, so that configuration still parses and patches, and a diff still reads.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import count, groupby
from typing import Final

from gpunode.change import FileChange, FileState
from gpunode.facts.evidence import Capture, Evidence, Found, decode_found, encode_found
from gpunode.host import manifests
from gpunode.host.assigned import ARRAY, NAME, STRING, Value, values
from gpunode.host.command_secrets import secrets, secrets_of_process
from gpunode.host.process import may_hold_secret
from gpunode.host.spoken import SPOKEN

# A secret's replacement tells only which of these lengths it does not exceed; so redacting twice changes nothing.
_LENGTHS: Final = (8, 32, 128, 512)
_STRINGS: Final = re.compile(STRING, re.DOTALL)
# containerd's [plugins.….registry.….headers]: every value there may be a credential.
_HEADERS: Final = re.compile(
    r"^[ \t]*\[[^\]\n]*headers?[\"']?\][^\n]*\n(?:(?![ \t]*\[)[^\n]*\n)*(?:(?![ \t]*\[)[^\n]+\Z)?"
    r"|headers?[\"']?[ \t]*[=:]\s*\{[^{}]*",
    re.MULTILINE | re.IGNORECASE,
)
_PERHAPS_KEY: Final = re.compile(rf"({STRING})(\s*[=:])?", re.DOTALL)
# A slash has no place in a password there, and stands in many; an image's digest follows a path.
_USER: Final = r"[^\s/?#\"'<>:@]{0,80}"
_QUOTE_WITHIN: Final = r"\\?[\"'](?![\s,:;)}\]])"
_USERINFO: Final = re.compile(
    rf"(?<=://)(?:[^\s/?#\"'<>]*|{_USER}:(?!\d{{1,5}}[/>])(?:[^\s?#\"'@]|{_QUOTE_WITHIN}){{1,200}}"
    rf"|{_USER}:(?!\d{{1,5}}[/?#>])(?:[^\s/\"'@]|{_QUOTE_WITHIN}){{1,200}})(?=@)"
)
# Where a string is an address and nothing else, or a proxy's, blanks do not end it.
_USERINFO_WITH_BLANKS: Final = re.compile(
    rf"((?:[\"']|proxy[ \t]{{0,8}}[=:][ \t]{{0,8}})\w[\w+.-]{{0,20}}://{_USER}:)(?!\d{{1,5}}(?:[^\w]|$))([^\n\"'@]{{1,200}})(?=@[\w\[])",
    re.IGNORECASE,
)
# Go's JSON writes & as \u0026.
_QUERY: Final = re.compile(
    r"(?:(?<=[?&])|(?<=\\u0026))((?:[\w-]*(?:token|signature|credential|key)|sig|password)=)([^&\s\"'#]+)",
    re.IGNORECASE,
)
_PRIVATE_KEY: Final = re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(.*?)(?=-----END|\Z)", re.DOTALL)
_LINE_END: Final = r"[ \t]*(?:#[^\n]*)?\n"
# What a shell hands to a program in the lines that follow.
_HERE: Final = re.compile(
    r"((?:(?<![\w.-])(?P<name>[\w.-]{1,80})=[\"']?\$\(cat|--password-stdin\b[^\n|<]{0,200}"
    r"|\bsudo[ \t][^\n|<]{0,80}-S\b[^\n|<]{0,200}"
    r"|\bchpasswd\b[^\n|<]{0,80})[ \t]{0,8}<<-?[ \t]{0,8}[\"']?(?P<mark>\w{1,40})[\"']?[^\n]{0,80}\n)"
    r"(?P<lines>(?:(?!\t{0,9}(?P=mark)[ \t]*(?:\n|\Z))[^\n]*(?:\n|\Z)){1,50})",
    re.IGNORECASE,
)
_IS_NAME: Final = re.compile(NAME, re.IGNORECASE)
_LINE: Final = re.compile(r"[^\s][^\n]*")
# A proxy may be named without a scheme.
_PROXY: Final = re.compile(
    r"(proxy(?:::[\w.-]{1,80})?[\"']?[ \t]*[=:]?[ \t]*[\"']?)(?![\w+.-]{1,20}://)([^\s/:@=\"']{1,256}):([^\s/\"']{1,256})(?=@[\w\[])",
    re.IGNORECASE,
)
# dracut.cmdline(7): netroot=iscsi:USER:PASSWORD:OTHER:PASSWORD@SERVER.
_ISCSI: Final = re.compile(r"(root=[\"']?iscsi:)(\S{1,400})(?=@)", re.IGNORECASE)
# kubeadm's own words, with its key in the next line.
_CERTIFICATE_KEY: Final = re.compile(r"(\bcertificate[ -]key:?[ \t]*\n[ \t]*)([0-9a-f]{64})\b")
# Addresses whose path is the key.
_HOOKS: Final = re.compile(
    r"(hooks\.slack\.com/\w{1,20}/|discord(?:app)?\.com/api/webhooks/\d{1,30}/|sumologic\.\w{1,20}/receiver/v1/http/"
    r"|webhook\.office\.com/webhookb2/|://[^\s/\"'<>]{1,253}/priv/)([^\s\"'<>]+)"
)
# The headers that the kubelet sends for its static pods, and the like: each value may be a credential.
_YAML_HEADERS: Final = re.compile(
    r"^([ \t]*)\w{0,40}(?:url|http|request|custom)_?headers?:[ \t]*\n(?:\1[ \t]+[^\n]*(?:\n|\Z)){1,200}",
    re.IGNORECASE | re.MULTILINE,
)
_YAML_VALUE: Final = re.compile(r"^([ \t]+(?:-[ \t]+)?(?:[^\s:]{1,80}:[ \t]+)?)([^\s\[{][^\n]*(?<!:))$", re.MULTILINE)
# YAML's value behind its key's line: a block with its mark, or one word or string. JSON's may stand there, too.
_BLOCK_MARK: Final = r"[|>][\d+-]{0,2}"
_YAML_HEAD: Final = re.compile(
    rf"^(?P<lead>[ \t-]{{0,200}})(?:[\"']?(?:{NAME})[\"']?[ \t]{{0,8}}:"
    rf"|name:[ \t]{{1,8}}[\"']?(?:{NAME})[\"']?{_LINE_END}[ \t]*value:)"
    rf"(?P<mark>[ \t]+(?:![\w!/:.,-]{{0,80}}[ \t]+)?{_BLOCK_MARK})?{_LINE_END}",
    re.IGNORECASE | re.MULTILINE,
)
# A quoted value that goes on in the next lines.
_YAML_FOLDED: Final = re.compile(
    rf"^(?P<key>[ \t-]{{0,200}}[\"']?(?:{NAME})[\"']?[ \t]{{0,8}}:[ \t]+(?P<quote>[\"']))(?P<first>[^\"'\\\n]{{0,400}})"
    r"(?P<rest>(?:\n[ \t]+[^\"'\\\n]{0,400}|\n){1,20})(?=(?P=quote)[ \t]*$)",
    re.IGNORECASE | re.MULTILINE,
)
_BLOCK_BEGINS: Final = re.compile(rf"(?:![\w!/:.,-]{{0,80}}[ \t]+)?{_BLOCK_MARK}[ \t]*(?:#.*)?")
_YAML_SCALAR: Final = re.compile(
    r"(?P<lead>[ \t]+)(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s\[\]{}\"'#|>&*!-][^\s#]*)(?<!:)[ \t]*(?:#.*)?"
)
_JSON_NEXT_LINE: Final = re.compile(
    rf"(?P<key>[\"'](?:{NAME})[\"'][ \t]{{0,8}}:[ \t]{{0,80}}\n\s{{0,99}})(?P<value>{ARRAY}|{STRING})",
    re.IGNORECASE | re.DOTALL,
)
# JSON may write any sign of a name by its number.
_KEY_BY_NUMBERS: Final = re.compile(
    rf"(?P<name>\"(?=[^\"\n]{{0,200}}\\u00)(?:[^\"\\\n]|\\.){{1,200}}\")(?P<sign>\s{{0,99}}:\s{{0,99}})(?P<value>{ARRAY}|{STRING})",
    re.DOTALL,
)
_BY_NUMBER: Final = re.compile(r"\\u00([2-7][0-9a-f])", re.IGNORECASE)
# What tells by its own shape that it is a key: JSON Web Tokens, and those of the services that GPU nodes log in to.
# What begins as such a token is read once, whether or not it goes on as one.
_SHAPES: Final = re.compile(
    r"\beyJ[\w-]{8,}(?:(?P<token>\.[\w-]{8,})(?:\.[\w-]*)?)?|\bA(?:KIA|SIA)[0-9A-Z]{12,}|\bAIza[\w-]{30,}|\bnpm_[A-Za-z0-9]{30,}"
    r"|\bsk-(?:[A-Za-z0-9]{20,}|(?:proj|ant|or|svcacct|admin)-[\w-]{6,})|\b[sr]k_live_[A-Za-z0-9]{10,}|\bhvs\.[\w-]{16,}"
    r"|\bya29\.[\w-]{16,}|\bdapi[0-9a-f]{32}\b|\bK10\w{6,128}::[^\s\"',:]{1,80}:[^\s\"',]+|\bAGE-SECRET-KEY-[0-9A-Z]{16,}"
    r"|(?<![\w.@/-])(?=[a-z.]{0,22}\d)[a-z0-9]{6}\.[a-z0-9]{16}(?![\w-]|\.\w)"
    r"|\b(?:nvapi-|gh[opsur]_|github_pat_|gl(?:pat|rt|dt|ptt|soat|agent)-|hf_|xox[abprs]-|dckr_pat_|tskey-|pypi-AgE)[\w-]{16,}"
)
# What Windows and terminals write before the end of a line.
_RETURNS: Final = re.compile(r"\r+(?=\n|\Z)")
# A string that holds JSON: an annotation of Kubernetes, a line of a log.
_HOLDS_JSON: Final = re.compile(r"(?<!\\)\"(?:[^\"\\\n]|\\.)*\"")
_JSON_BEGINS: Final = re.compile(r"[{\[](?:\\n|\s){0,80}(?:\\\"|\{|\[)")
_OF_HTML: Final = {"&": "\\u0026", "<": "\\u003c", ">": "\\u003e"}
_COLOURS: Final = re.compile(r"\x1b\[[0-9;:?]{0,40}[A-Za-z]")
# Two passes do for what was found so far; the bound is for text that was made to go on for ever.
_PASSES: Final = 8
# A number may be a password; of other things it is a limit or a count.
_NUMBER: Final = re.compile(r"[+-]*\d[\d+-]{3,}")
_HIDES: Final = re.compile(
    r"(?:passw(?:or)?d|passphrase|pass|pwd|pw|pat|token|secret|key|psk|community|rootpw|auth|creds?|bearer|regcode|cookie|data|dockerc\w+)$",
    re.IGNORECASE,
)
_COUNTS: Final = re.compile(
    r"(?:^|[_.-])(?:max|min|num)|(?:^|[_.-])(?:count|limit|size|len|ttl|time|timeout|age|port|id|version)(?:[_.-]|$)",
    re.IGNORECASE,
)
_PLAIN: Final = frozenset({"true", "false", "null", "none", "yes", "no", "y", "n", "m"})
_FILE: Final = re.compile(r"/(?:boot|etc|home|lib|mnt|opt|root|run|srv|tmp|usr|var)(?:/[\w.+-]+)+;?")
_PATH: Final = re.compile(r"(?:/[\w.+-]+){1,20}/?;?")
# What programs say instead of a secret, and of what.
_COMPLAINTS: Final = re.compile(
    r"denied|disabled|error|expired|failed|failure|forbidden|incorrect|invalid|missing|rejected|required"
    r"|revoked|timeout|unauthorized|unavailable|unknown|unsupported|wrong"
)
_OF_COMPLAINTS: Final = re.compile(
    r"a|access|acquire|acquired|an|and|authentication|authorization|been|by|client|configuration|could"
    r"|credential|credentials|driver|empty|file|for|found|from|grid|has|have|image|in|is|key|kernel|licence"
    r"|license|licensing|module|not|nvidia|nvidia-gridd|nvidia-persistenced|nvidia-smi|of|on|or|password"
    r"|permission|pull|read|registry|request|response|secret|server|signature|the|to|token|unable|validate"
    r"|validation|vgpu|was|with"
)
# The system's own tables: no person writes a secret there, and dpkg's descriptions speak of passwords. Of /var/lib only
# those of packages: k3s and RKE2 keep containerd's configuration there, with the registries' passwords. Not what a
# person can edit (units below /usr), nor the words with which the kernel or a process was started.
_TABLES: Final = re.compile(
    r"(?!/proc/(?:[\w*-]{1,40}/){0,4}(?:cmdline|environ|mounts|mountinfo|mountstats)|/dev/shm/)"
    r"(?:/(?:proc|sys|dev|var/lib/apt|var/lib/dkms|var/lib/dpkg)/(?![^\n]*\.\.)|/var/log/dpkg\.log)"
    r"[\w ./*:+,@-]*"
)
# What grows to megabytes, and tells each thing in a line.
_LOGS: Final = ("journalctl", "dmesg")
_COMMAND_LINE: Final = re.compile(r"/proc/(?:(?:[\w-]{1,40}/){1,4}(?:cmdline|environ)|cmdline)")


def redact(evidence: Evidence) -> Evidence:
    """``evidence`` with every secret replaced: passwords and tokens of URLs, registries, headers and proxies.

    Law: redacting twice is redacting once.
    """
    redacted: dict[str, Capture] = {}
    for key, capture in evidence.items():
        shown = _key(key, capture)
        redacted[shown if shown not in redacted else _free(shown, redacted)] = _capture(capture)
    return redacted


def _key(key: str, capture: Capture) -> str:
    """What was pasted stands under its source, which may be a command with a password."""
    return _command(key) if key.startswith(capture.source) else key


def _free(key: str, taken: Mapping[str, object]) -> str:
    return next(name for number in count(2) if (name := f"{key}#{number}") not in taken)


def _command(line: str) -> str:
    """``line``, redacted as what somebody typed behind a prompt."""
    return text(f"$ {line}")[2:]


def _capture(capture: Capture) -> Capture:
    source = _command(capture.source)
    if _TABLES.fullmatch(capture.source):
        return capture if source == capture.source else replace(capture, source=source)
    return replace(capture, source=source, data=_data(capture), error=text(capture.error))


def _words(data: bytes, mark: bytes) -> bytes:
    """Words that started something, each redacted by itself, so that none is taken for another's secret."""
    words = mark.join(content(word) for word in data.split(mark)).decode("utf-8", "surrogateescape")
    if mark == b" ":
        return text(words).encode("utf-8", "surrogateescape")
    # An option and its value are two words.
    parts = words.split("\0")
    for at, option in enumerate(parts[:-1], 1):
        value = parts[at]
        if _OPTION.fullmatch(option) and not value.startswith(("-", "/")) and not _PORT.fullmatch(value):
            parts[at] = _mask(value)
    # The words before an option tell whose it is: `snmpget -c`.
    return _masked("\0".join(parts), secrets_of_process(parts)).encode("utf-8", "surrogateescape")


_OPTION: Final = re.compile(rf"-p|--?(?:{NAME})", re.IGNORECASE)
_PORT: Final = re.compile(r"[\d.:]+(?:/\w+)?|true|false")


def _data(capture: Capture) -> bytes:
    if _COMMAND_LINE.fullmatch(capture.source):
        return _words(capture.data, b" " if capture.source == "/proc/cmdline" else b"\0")
    is_log = capture.source.startswith(_LOGS) and not _of_two_bytes(capture.data)
    if is_log and b"PRIVATE KEY" not in capture.data:
        return b"\n".join(_log(capture.data.split(b"\n")))
    if "*" not in capture.source:
        return content(capture.data)
    try:
        found = decode_found(capture.data)
    except (ValueError, KeyError, TypeError):
        return content(capture.data)
    return encode_found(_found(one) for one in found)


# How the lines of a log begin; what is pasted below one does not.
_STAMPED: Final = re.compile(rb"\[[ \d]|\[\w{3} |<\d|[A-Z][a-z]{2} [ \d]\d \d\d:|\d{4}-\d\d-\d\dT|\d+,\d+,")


def _log(lines: list[bytes]) -> Iterator[bytes]:
    """The lines of a log, each by itself; those that are of no log as one text."""
    for is_stamped, some in groupby(lines, key=lambda line: _STAMPED.match(line) is not None):
        part = list(some)
        yield from map(content, part) if is_stamped else (content(b"\n".join(part)),)


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


def _of_two_bytes(data: bytes) -> str:
    """The encoding of what Windows and PowerShell write; empty for all else."""
    start = data[:4096]
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        if (
            len(start) > 3
            and start[first::2].count(0) * 4 > len(start[first::2]) * 3
            and 0 not in start[1 - first :: 2]
        ):
            return encoding
    return ""


def content(data: bytes) -> bytes:
    """The bytes of a file, redacted; bytes that are not text stay."""
    if encoding := _of_two_bytes(data):
        whole = len(data) // 2 * 2
        with suppress(UnicodeError):
            return text(data[:whole].decode(encoding)).encode(encoding) + data[whole:]
    return text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def text(value: str) -> str:
    """``value`` without secrets."""
    if not may_hold_secret(value):
        return value
    if "\r" in value and (plain := _RETURNS.sub("", value)) != value:
        # The patterns know one end of a line; the others come back where nothing was hidden, or each line still is one.
        return _with_returns(after, value) if (after := text(plain)) != plain else value
    if "\x1b" in value and (plain := _COLOURS.sub("", value)) != value:
        # A colour may stand between a name and its value, or within either.
        return after if (after := text(plain)) != plain else value
    # What one replacement leaves may be the user and password of an address to the next: until nothing changes.
    for _ in range(_PASSES):
        if (after := _once(value)) == value:
            break
        value = after
    return value


def _with_returns(after: str, before: str) -> str:
    ends = [line[len(line.rstrip("\r")) :] for line in before.split("\n")]
    lines = after.split("\n")
    if len(lines) == len(ends):
        return "\n".join(line + end for line, end in zip(lines, ends, strict=True))
    return after.replace("\n", "\r\n") if all(ends[:-1]) else after


def _within(literal: re.Match[str]) -> str:
    """A string of JSON that holds JSON itself, without the secrets in there; as it was where there are none."""
    written = literal[0]
    if '\\"' not in written or not _JSON_BEGINS.search(written):
        return written
    try:
        held = json.loads(written)
    except ValueError:
        return written
    if (after := text(held)) == held:
        return written
    encoded = json.dumps(after, ensure_ascii=written.isascii())
    for sign, number in _OF_HTML.items():
        encoded = encoded.replace(sign, number) if sign not in written else encoded
    return encoded


def _once(value: str) -> str:
    value = _HOLDS_JSON.sub(_within, value) if '\\"' in value else value
    value = _PRIVATE_KEY.sub(lambda match: match[1] + _block(match[2]), value)
    value = _USERINFO.sub(lambda match: ":".join(map(_mask, match[0].split(":", 1))), value)
    value = _USERINFO_WITH_BLANKS.sub(lambda match: match[1] + _mask(match[2]), value)
    value = _ISCSI.sub(lambda match: match[1] + ":".join(map(_mask, match[2].split(":"))), value)
    value = _PROXY.sub(lambda match: f"{match[1]}{_mask(match[2])}:{_mask(match[3])}", value)
    value = _CERTIFICATE_KEY.sub(lambda match: match[1] + _mask(match[2]), value)
    value = _HOOKS.sub(lambda match: match[1] + _mask(match[2]), value)
    value = _QUERY.sub(lambda match: match[1] + _mask(match[2]), value)
    value = _SHAPES.sub(_shape, value)
    value = _masked(value, secrets(value))
    value = SPOKEN.sub(_spoken, value)
    value = _HERE.sub(_handed_over, value)
    value = _HEADERS.sub(lambda table: _headers(table[0]), value)
    value = _YAML_HEADERS.sub(_yaml_headers, value)
    for found in manifests.FINDERS:
        value = _without(value, found(value))
    value = _JSON_NEXT_LINE.sub(lambda match: match["key"] + _strings(match["value"]), value)
    value = _KEY_BY_NUMBERS.sub(_by_numbers, value) if "\\u00" in value else value
    value = _YAML_FOLDED.sub(_folded, value)
    value = _behind_their_keys(value)
    return _without(value, values(value))


def _behind_their_keys(value: str) -> str:
    """``value`` without the secrets that stand, in YAML, in the lines behind their key's."""
    kept, end = [], 0
    for head in _YAML_HEAD.finditer(value):
        if head.start() < end:
            continue
        kept.append(value[end : head.end()])
        end = head.end()
        depth = len(head["lead"])
        while end < len(value) and (line := value[end : value.find("\n", end) + 1 or len(value)]):
            body = line.strip()
            if body and len(line) - len(line.lstrip()) <= depth:
                break
            if head["mark"] is None and body and not body.startswith("#"):
                if scalar := _YAML_SCALAR.fullmatch(line.rstrip("\n")):
                    kept.append(line.replace(scalar["value"], _scalar(scalar["value"]), 1))
                    end += len(line)
                break
            is_shown = head["mark"] is None or not body or body.startswith("-----")
            kept.append(line if is_shown else line.replace(body, _mask(body), 1))
            end += len(line)
    return "".join(kept) + value[end:]


def _folded(match: re.Match[str]) -> str:
    return match["key"] + _mask(match["first"]) + _LINE.sub(lambda line: _mask(line[0]), match["rest"])


def _by_numbers(match: re.Match[str]) -> str:
    name = _BY_NUMBER.sub(lambda sign: chr(int(sign[1], 16)), match["name"]).strip('"')
    is_secret = _IS_NAME.fullmatch(name) is not None
    return match["name"] + match["sign"] + (_strings(match["value"]) if is_secret else match["value"])


def _scalar(value: str) -> str:
    if value[0] in "\"'":
        return _strings(value)
    return value if value.lower() in _PLAIN or re.fullmatch(r"[\d.+-]{1,3}", value) else _mask(value)


def _mask(secret: str) -> str:
    if not secret:
        return ""
    if _NUMBER.fullmatch(secret):
        return "0"
    length = next((length for length in _LENGTHS if len(secret) <= length), _LENGTHS[-1])
    return "redacted" * (length // 8)


def _block(body: str) -> str:
    return f"\n{_mask(body.strip())}\n" if body.strip() else body


def _shape(match: re.Match[str]) -> str:
    is_key = match["token"] is not None or not match[0].startswith("eyJ")
    return _mask(match[0]) if is_key else match[0]


def _spoken(match: re.Match[str]) -> str:
    before, secret = (group for group in match.groups() if group is not None)
    quote = secret[0] if len(secret) > 1 and secret[0] == secret[-1] and secret[0] in "\"'" else ""
    return before + quote + _mask(secret[len(quote) : len(secret) - len(quote)]) + quote


def _masked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    kept: list[str] = []
    at = 0
    for start, end in spans:
        kept += text[at:start], _mask(text[start:end])
        at = end
    return "".join(kept) + text[at:]


def _handed_over(match: re.Match[str]) -> str:
    if match["name"] and not _IS_NAME.fullmatch(match["name"]):
        return match[0]
    return match[1] + _LINE.sub(lambda line: _mask(line[0]), match["lines"])


def _headers(table: str) -> str:
    # The table's own name may be quoted, and its keys are: only what no sign of assignment follows is a value.
    mark = "\n" if table.lstrip().startswith("[") else "{"
    head, mark, body = table.partition(mark)
    return head + mark + _PERHAPS_KEY.sub(lambda match: match[0] if match[2] else _quoted(match[1]), body)


def _yaml_headers(block: re.Match[str]) -> str:
    head, end, body = block[0].partition("\n")
    return head + end + _YAML_VALUE.sub(_yaml_value, body)


def _yaml_value(match: re.Match[str]) -> str:
    return match[1] + (_strings(match[2]) if match[2][0] in "\"'" else _mask(match[2]))


def _without(text: str, secrets: Iterable[Value]) -> str:
    kept: list[str] = []
    end = 0
    for value in secrets:
        kept += text[end : value.start], _value(text[value.start : value.end], value)
        end = value.end
    return "".join(kept) + text[end:]


def _value(written: str, value: Value) -> str:
    if value.kind == "escaped":
        quote = written[: len(written) - len(written.lstrip("\\")) + 1]
        return quote + _mask(written[len(quote) :])
    if value.kind == "whole":
        return _mask(written)
    if value.kind == "literal":
        return written if _names_file(written.strip("\"'"), value.name) else _strings(written)
    word = written.rstrip()
    if _is_plain(word, value.name):
        return written
    lines = (_LINE.sub(lambda line: _mask(line[0]), line) for line in word.split("\\\n"))
    return "\\\n".join(lines) + written[len(word) :]


def _is_plain(word: str, name: str) -> bool:
    """Whether the value is none that must be hidden: a number, a word of configuration, the file that holds a key."""
    name = name.rstrip(" \t=:\"'\\")
    if _NUMBER.fullmatch(word):
        return _HIDES.search(name) is None or _COUNTS.search(name) is not None
    if name.lower().endswith("pwd") and word.startswith("/"):
        return True
    if _BLOCK_BEGINS.fullmatch(word) or _is_complaint(word):
        return True
    return word.lower() in _PLAIN or re.fullmatch(r"[\d.+-]+", word) is not None or _names_file(word, name)


def _names_file(word: str, name: str) -> bool:
    name = name.rstrip(" \t=:\"'\\").lower()
    if name.endswith(("file", "path")):
        return _PATH.fullmatch(word) is not None
    return name.endswith("key") and _FILE.fullmatch(word) is not None


def _is_complaint(words: str) -> bool:
    """Whether a program says, behind a colon, that something is wrong; each word must be known for one of no secret."""
    said = [word.strip(".,;:()").lower() for word in words.split()]
    others = [word for word in said if not _COMPLAINTS.fullmatch(word)]
    return len(others) < len(said) and all(map(_OF_COMPLAINTS.fullmatch, others))


def _strings(value: str) -> str:
    return _STRINGS.sub(lambda match: _quoted(match[0]), value)


def _quoted(literal: str) -> str:
    for quote in ('"""', "'''", '"', "'"):
        if literal.startswith(quote):
            end = quote if len(literal) >= 2 * len(quote) and literal.endswith(quote) else ""
            return quote + _mask(literal[len(quote) : len(literal) - len(end)]) + end
    return literal
