"""Text without its secrets: the one list of what a secret looks like, in logs, on command lines and in messages.

Each form is built from the words without which it cannot match: a text that has none of them is done at a glance, and
a pattern is compiled when a text first asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeAlias

from gpunode.redaction.named import NAMES, compiled, spans

MASK: Final = "redacted"
# Tokens that tell by their beginning what they are. Source: gitleaks' public rules (config/gitleaks.toml, MIT).
SHAPES: Final = {
    **dict.fromkeys(("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "hf_", "gsk_"), r"\w{16,}"),
    **dict.fromkeys(("glpat-", "glrt-", "gldt-", "glptt-", "glsoat-", "glagent-", "glcbt-"), r"[\w-]{16,}"),
    **dict.fromkeys(("nvapi-", "dckr_pat_", "tskey-", "pypi-AgE", "ya29.", "hvs.", "hvb.", "SG."), r"[\w.-]{16,}"),
    **dict.fromkeys(("xai-", "r8_", "rpa_", "pplx-", "npm_", "lin_api_", "dop_v1_", "shpat_"), r"[A-Za-z0-9]{16,}"),
    **dict.fromkeys(("xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-", "xapp-"), r"[\w-]{10,}"),
    **dict.fromkeys(("sk-proj-", "sk-ant-", "sk-or-", "sk-svcacct-", "sk-admin-"), r"[\w-]{6,}"),
    **dict.fromkeys(("sk_live_", "rk_live_", "sk_test_"), r"[A-Za-z0-9]{10,}"),
    **dict.fromkeys(("AKIA", "ASIA"), r"[0-9A-Z]{12,}"),
    "sk-": r"[A-Za-z0-9]{20,}",
    "AIza": r"[\w-]{30,}",
    "dapi": r"[0-9a-f]{32}\b",
    "K10": r"\w{6,128}::[^\s\"',:]{1,80}:[^\s\"',]+",
    "AGE-SECRET-KEY-": r"[0-9A-Z]{16,}",
    "ops_": r"[A-Za-z0-9]{16,}",
    "eyJ": r"[\w-]{8,2000}\.[\w-]{8,}(?:\.[\w-]*)?",
}
# Addresses whose path is the key, up to it.
HOOKS: Final = {
    "hooks.slack.com/": r"\w{1,20}/",
    "hooks.zapier.com/hooks/": r"catch/\d{1,20}/",
    "api.telegram.org/bot": "",
    "/api/webhooks/": r"\d{1,30}/",
    "/receiver/v1/http/": "",
    "/webhookb2/": "",
    "/priv/": "",
}
# Options of one letter, and last words, that are secrets; `{}` is one.
COMMANDS: Final = {
    "curl": r"-[a-zA-Z]*[uUx] ?[^\s:]*:{}|--(?:proxy-)?user[= ][^\s:]*:{}",
    **dict.fromkeys(("mysql", "mariadb"), r"-p{}"),
    **dict.fromkeys(("docker login", "podman login", "nerdctl login", "useradd", "usermod", "sshpass"), r"-p ?{}"),
    **dict.fromkeys(("helm registry login", "az login", "racadm", "ilorest"), r"-p ?{}"),
    **dict.fromkeys(("podman", "skopeo", "buildah", "crictl"), r"--[\w-]*creds[= ]\S*?:{}"),
    **dict.fromkeys(("ctr ", "nerdctl"), r"(?:-u|--user)[= ]\S*?:{}"),
    **dict.fromkeys(("ipmitool", "sqlcmd"), r"-P ?{}"),
    **dict.fromkeys(("ipa-client-install", "ldapsearch", "ldapwhoami"), r"-w ?{}"),
    **dict.fromkeys(("snmpget", "snmpwalk"), r"-[cAX] ?{}"),
    **dict.fromkeys(("k3s ", "rke2 "), r"-t {}"),
    "redis-cli": r"-a {}",
    "openssl": r"-pass(?:in|out)? pass:{}|-k {}",
    "mokutil": r"--generate-hash[= ]{}",
    "ssh-keygen": r"-N {}",
    "rhc connect": r"-a {}",
    "suseconnect": r"-r {}",
    "htpasswd": r"-\w*b\w* \S+ \S+ {}",
    **dict.fromkeys(("pro attach", "ua attach", "ubuntu-advantage attach"), r"attach {}"),
    "kubectl": r"--from-literal[= ][^\s=]+={}",
}
# What is handed to these on standard input is a secret; what is piped elsewhere (`echo 1 | tee FILE`) is none.
READERS: Final = (
    *("--password-stdin", "chpasswd", "cryptsetup", "kinit", "mokutil", "passwd", "sudo -S", "sudo -kS", "kadmin"),
    *("gpg", "vault", "ipa "),
)
# One of these words and, where there is one, this sign are in every text that the form changes.
Form: TypeAlias = tuple[Sequence[str], str, Callable[[str], str]]


def text(value: str) -> str:
    """``value`` without secrets. Law: doing it twice is doing it once."""
    return _without(value, (*EVIDENT, *TOLD))


def evident(value: str) -> str:
    """``value``, words of gpunode's own, without what is a secret wherever it stands: no name is asked."""
    return _without(value, EVIDENT)


def _without(value: str, forms: Iterable[Form]) -> str:
    if "\x1b" in value and (plain := compiled(r"\x1b\[[0-9;:?]{0,40}[A-Za-z]").sub("", value)) != value:
        # A colour may stand between a name and its value, or within either.
        return after if (after := _without(plain, forms)) != plain else value
    if "\r\n" in value and not compiled(r"(?<!\r)\n").search(value):
        plain = compiled(r"\r+(?=\n)").sub("", value)
        return after.replace("\n", "\r\n") if (after := _without(plain, forms)) != plain else value
    lowered = value.lower()
    wanted = [form for words, sign, form in forms if sign in lowered and any(word in lowered for word in words)]
    # What one replacement leaves may be a secret to the next: until nothing changes.
    for _ in range(4 if wanted else 0):
        before = value
        for form in wanted:
            value = form(value)
        if value == before:
            break
    return value


def lines(secret: str) -> str:
    """What stands for ``secret``: as many lines, each as far in."""
    if "\n" not in secret:
        return MASK if secret else ""
    return "\n".join(part[: len(part) - len(part.lstrip())] + MASK if part.strip() else part
                     for part in secret.split("\n"))  # fmt: skip


def _masked(match: re.Match[str]) -> str:
    start, end = match.span("s")
    return match.string[match.start() : start] + lines(match.string[start:end]) + match.string[end : match.end()]


def _form(words: Iterable[str], pattern: str, flags: int = 0, *, sign: str = "") -> Form:
    """What masks the group ``s`` of ``pattern``, in which ANY is each of ``words`` and SIGN is ``sign``."""
    words = tuple(words)
    whole = pattern.replace("SIGN", re.escape(sign)).replace("ANY", f"(?:{'|'.join(map(re.escape, words))})")
    return [word.lower() for word in words], sign, lambda value: compiled(whole, flags).sub(_masked, value)


def _prefixed(table: dict[str, str], lead: str, tail: str = "") -> Form:
    """What masks behind one of the beginnings in ``table`` what goes on as it says there."""
    either = "|".join(re.escape(word) + rest for word, rest in table.items())
    whole = lead.replace("ANY", f"(?:{either})") + tail
    return [word.lower() for word in table], "", lambda value: compiled(whole, 0).sub(_masked, value)


_USER: Final = r"[^\s/?#\"'<>:@]{0,80}:(?!\d{1,5}(?:[/?#\s\"'<>,;]|\Z))"
# What is a secret wherever it stands.
EVIDENT: Final[tuple[Form, ...]] = (
    _form(("PRIVATE KEY",), r"-----BEGIN [A-Z ]{0,40}ANY(?: BLOCK)?-----(?P<s>.*?)(?=-----END|\Z)", re.DOTALL),
    # Up to the last @ before the host; of any signs where a user and a colon tell that it is a password.
    _form(("://",), rf"ANY(?P<s>{_USER}[^\s\"']{{1,200}}|[^\s/?#\"'<>]+)(?=SIGN(?!sha256:))", sign="@"),
    _form(
        ("://",),
        rf"(?:[\"']|(?i:proxy)[ \t]?[=:][ \t]?)\w[\w+.-]{{0,20}}ANY(?P<s>{_USER}[^\n\"'@]{{1,200}})(?=SIGN[\w\[])",
        sign="@",
    ),
    _form(
        ("proxy",),
        rf"(?i:ANY)(?:::[\w.-]{{1,80}})?[\"']?[ \t]*[=: ][ \t]*[\"']?(?!\w+://)(?P<s>{_USER}[^\s\"']{{1,200}})(?=SIGN[\w\[])",
        sign="@",
    ),
    _form(("iscsi:",), r"root=[\"']?ANY(?P<s>\S{1,400})(?=SIGN)", sign="@"),
    _form(
        ("token", "key", "signature", "credential", "sig", "password", "secret"),
        r"(?i:[?&](?:amp;)?[\w-]{0,40}ANY)SIGN(?P<s>[^&\s\"'#\\]+)",
        sign="=",
    ),
    _prefixed(SHAPES, r"(?<![A-Za-z0-9])(?P<s>ANY)"),
    _prefixed(HOOKS, "ANY", r"(?P<s>[^\s\"'<>/][^\s\"'<>]*)"),
    _form(("password>", "secret>", "token>"), r"<(?:[\w:.-]{0,40})(?i:ANY)(?P<s>[^<>\s][^<>]{0,1000})(?=</)"),
    _form(("bearer", "basic"), r"(?i:\bANY)[ \t]+(?P<s>(?=[a-z._~-]*[A-Z0-9=+/])[\w.~+/=-]{6,})"),
    _form(("$1$", "$5$", "$6$", "$7$", "$y$", "$2a$", "$2b$", "$2y$", "pbkdf2."), r"(?P<s>ANY[^\s:\"']{8,})"),
)

_WORD: Final = r"\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'|;&<>-][^\s|;&<>]*"


def _command(program: str, options: str) -> Form:
    # Each option's `{}` is a group of its own, and one of them has matched.
    inner = rf"(?<=\s)(?:{options.replace('{}', f'({_WORD})')})"

    def option(match: re.Match[str]) -> str:
        at = next(number for number, group in enumerate(match.groups(), 1) if group is not None)
        return match.string[match.start() : match.start(at)] + MASK + match.string[match.end(at) : match.end()]

    def apply(value: str) -> str:
        found = compiled(rf"(?<![\w/-]){re.escape(program)}[^\n|;]*|/{re.escape(program)}[^\n|;]*")
        return found.sub(lambda line: compiled(inner, 0).sub(option, line[0]), value)

    return [program], "", apply


def _named(value: str) -> str:
    kept, end = [], 0
    for first, last in spans(value):
        kept += [value[end:first], lines(value[first:last])]
        end = last
    return "".join(kept) + value[end:]


# Names of values that are long and random and no secret: digests, ids, what the kernel and containers are known by.
_IDS: Final = (
    r"(?:sha\d+|md5|digest|hash|sum|id|ids|uid|uuid|guid|serial|commit|revision|srcversion|container|sandbox|pod|image"
    r"|layer|snapshot|build|pci|fingerprint|machine|thumbprint|cert|name|path|dir|ref|parent|blob|checksum|resourceversion|etag)"
)
_RUN: Final = (
    r"(?<![A-Za-z\d+/_])(?:[\da-f]{64}|[\da-f]{48}|[\da-f]{40}|[\da-f]{32}|[A-Za-z\d+]{32,100})={0,2}(?![\w/.+=:-])"
)
_INTRODUCED: Final = (
    r"(?:(?<![\w.-])--?(?P<option>[a-z][\w-]*)[= ]|(?<![\w@-])(?P<name>[a-z][\w.-]*)[\"']?(?:=|:[ \t]*))\\*[\"']?\Z"
)


def _random(value: str) -> str:
    """``value`` without long words of letters and digits at random that a name or an option introduces."""

    def hide(run: re.Match[str]) -> str:
        word, start = run[0], run.start()
        is_mixed = any(map(str.isdigit, word)) and any(map(str.islower, word))
        if not is_mixed or not (any(map(str.isupper, word)) or compiled(r"[\da-f]+", 0).fullmatch(word)):
            return word
        by = compiled(_INTRODUCED).search(value[max(0, start - 100) : start])
        name = by and (by["option"] or by["name"])
        return MASK if name and not compiled(rf"[\w.-]*{_IDS}").fullmatch(name) else word

    return compiled(_RUN, 0).sub(hide, value)


_HERE: Final = (
    r"ANY[^\n]{0,200}<<-?[ \t]*[\"']?(?P<mark>\w{1,40})[\"']?[^\n]{0,80}\n"
    r"(?P<s>(?:(?!\t*(?P=mark)\s)[^\n]*(?:\n|\Z)){1,50})"
)
# What a name, an option or a program tells.
TOLD: Final[tuple[Form, ...]] = (
    (NAMES, "", _named),
    *(_command(program, options) for program, options in COMMANDS.items()),
    _form(READERS, r"\b(?:echo|printf|yes)[ \t]+(?:-\w+[ \t]+)*(?P<s>[^|\n\s][^|\n]{0,1000}?)[ \t]*\|[^\n|]{0,200}ANY"),
    _form(READERS, rf"ANY[^\n|]*<<<[ \t]*(?P<s>{_WORD})"),
    _form(READERS, _HERE),
    _form(("user=", "username=", "-u "), r"(?:(?<![\w-])(?i:ANY)[\w.\\-]{1,80})%(?P<s>[^\s,\"']+)"),
    # kubeadm's, which stand in the next line, too.
    _form(("token", "join", "bootstrap"), r"(?i:ANY)[^\n]{0,80}?\n?(?<![\w.])(?P<s>[a-z\d]{6}\.[a-z\d]{16})(?![\w.])"),
    _form(("certificate key", "certificate-key"), r"(?i:ANY):?\s+(?P<s>[\da-f]{64})\b"),
    (("=", ":", "-"), "", _random),
)
