"""Remove secrets from logs, command lines and messages; this is the only list of their forms.

Each form has words that every match contains; a text without them is not searched, and the pattern is not compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from gpunode.redaction.named import SECRET_NAMES, looks_like_secret, secret_spans
from gpunode.redaction.patterns import MASK, apply_masks, compile_cached, mask_matches, mask_secret, mask_until_stable

# Tokens with a known prefix. Source: gitleaks' public rules (config/gitleaks.toml, MIT).
TOKEN_PATTERN_BY_PREFIX: Final = {
    **dict.fromkeys(("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "hf_", "gsk_", "r8_", "rpa_"), r"\w{16,}"),
    **dict.fromkeys(("npm_", "lin_api_", "dop_v1_", "shpat_", "ops_", "sk_live_", "rk_live_", "sk_test_"), r"\w{10,}"),
    **dict.fromkeys(("glpat-", "glrt-", "gldt-", "glptt-", "glsoat-", "glagent-", "glcbt-", "xai-"), r"[\w-]{16,}"),
    **dict.fromkeys(("nvapi-", "dckr_pat_", "tskey-", "pypi-AgE", "ya29.", "hvs.", "hvb.", "SG."), r"[\w.-]{16,}"),
    **dict.fromkeys(("glsa_", "glc_", "tgp_v1_"), r"[\w+/-]{20,}={0,2}"),
    "fw_": r"[A-Za-z0-9]{20,}\b",
    **dict.fromkeys(("xoxa-", "xoxb-", "xoxp-", "xoxr-", "xoxs-", "xapp-", "pplx-"), r"[\w-]{10,}"),
    **dict.fromkeys(("sk-proj-", "sk-ant-", "sk-or-", "sk-svcacct-", "sk-admin-"), r"[\w-]{6,}"),
    **dict.fromkeys(("AKIA", "ASIA", "AGE-SECRET-KEY-"), r"[0-9A-Z]{12,}"),
    "sk-": r"[A-Za-z0-9]{20,}",
    "AIza": r"[\w-]{30,}",
    "dapi": r"[0-9a-f]{32}\b",
    "K10": r"\w{6,128}::[^\s\"',:]{1,80}:[^\s\"',]+",
    "eyJ": r"[\w-]{8,2000}\.[\w-]{8,}(?:\.[\w-]*)?",
}
# URLs with a secret path: the part before the secret.
WEBHOOK_PREFIXES: Final = {
    "hooks.slack.com/": r"\w{1,20}/",
    "hooks.zapier.com/hooks/": r"catch/\d{1,20}/",
    "api.telegram.org/bot": "",
    "/api/webhooks/": r"\d{1,30}/",
    "/receiver/v1/http/": "",
    "pagerduty.com/integration/": "",
    "hc-ping.com/": "",
    "/webhookb2/": "",
    "/priv/": "",
    "/v3/import/": "",
}
# One-letter options and operands that are secrets. `{}` is the secret, `<>` any word.
SECRET_OPTIONS: Final = {
    "curl": r"-[a-zA-Z]*[uUx] ?[^\s:]*:{}|--(?:proxy-)?user[= ][^\s:]*:{}",
    **dict.fromkeys(("mysql", "mariadb"), r"-p{}"),
    **dict.fromkeys(("docker login", "podman login", "nerdctl login", "useradd", "usermod", "sshpass"), r"-p\s*{}"),
    **dict.fromkeys(("helm registry login", "az login", "racadm", "ilorest"), r"-p\s*{}"),
    **dict.fromkeys(("podman", "skopeo", "buildah", "crictl"), r"--[\w-]*creds[= ]\S*?:{}"),
    **dict.fromkeys(("ctr ", "nerdctl"), r"(?:-u|--user)[= ]\S*?:{}"),
    "ipmitool": r"-[Pky]\s*{}",
    "sqlcmd": r"-P\s*{}",
    **dict.fromkeys(("mongosh", "mongodump", "mongorestore"), r"-p\s*{}"),
    "wandb login": r"login\s+(?:--[\w=-]+\s+)*(?=[\"']?\w{20}){}",
    "etcdctl": r"--user[= ]\S*?:{}",
    "consul": r"-encrypt[= ]{}",
    "gitlab-runner register": r"-[rt]\s*{}",
    "mc alias set": r"set\s+<>\s+<>\s+<>\s+{}",
    "cloudflared service install": r"install\s+{}",
    **dict.fromkeys(("ipa-client-install", "ldapsearch", "ldapwhoami"), r"-w\s*{}"),
    **dict.fromkeys(("snmpget", "snmpwalk"), r"-[cAX]\s*{}"),
    **dict.fromkeys(("k3s ", "rke2 "), r"-t\s+{}"),
    **dict.fromkeys(("pro attach", "ua attach", "ubuntu-advantage attach"), r"attach\s+{}"),
    **dict.fromkeys(("redis-cli", "rhc connect"), r"-a\s+{}"),
    "openssl": r"-pass(?:in|out)? pass:{}|-k\s+{}",
    "mokutil": r"--generate-hash[= ]{}",
    "ssh-keygen": r"-N\s+{}",
    "suseconnect": r"-r\s+{}",
    "htpasswd": r"-\w*b\w*\s+<>\s+<>\s+{}",
    "kubectl": r"--from-literal[= ][^\s=]+={}",
    "rootpw": r"--plaintext\s+{}",
    "wpa_passphrase": r"wpa_passphrase\s+<>\s+{}",
    "net use": r"\\\\<>\s+{}",
    "smbclient": r"//<>\s+{}",
}
# Programs that read a secret from standard input. Text piped to other programs (`echo 1 | tee FILE`) is no secret.
STDIN_READERS: Final = (
    *("--password-stdin", "chpasswd", "cryptsetup", "kinit", "mokutil", "passwd", "sudo -S", "sudo -kS", "kadmin"),
    *("gpg", "vault", "ipa "),
)
# Words, and a masking function. A text without any of the words is not searched.
SecretForm: TypeAlias = tuple[Sequence[str], Callable[[str], str]]


def redact_text(value: str) -> str:
    """Return ``value`` without secrets. Idempotent."""
    return mask_until_stable(lambda one: redact_once(one, (*CONTEXT_FREE_FORMS, *CONTEXTUAL_FORMS)), value)


def redact_known_shapes(value: str) -> str:
    """Return a message by gpunode without anything that is a secret in every context."""
    return mask_until_stable(lambda one: redact_once(one, CONTEXT_FREE_FORMS), value)


def redact_once(value: str, forms: Iterable[SecretForm] | None = None) -> str:
    """Return ``value`` with each form masked once, without colour codes, which may split a name; CRLF is kept."""
    plain = compile_cached(r"\x1b\[[0-9;:?]{0,40}[A-Za-z]").sub("", value) if "\x1b" in value else value
    is_dos = "\r\n" in plain and not compile_cached(r"(?<!\r)\n").search(plain)
    after = plain = compile_cached(r"\r+(?=\n)").sub("", plain) if is_dos else plain
    lowered = plain.lower()
    for words, mask in (*CONTEXT_FREE_FORMS, *CONTEXTUAL_FORMS) if forms is None else forms:
        if any(word in lowered for word in words):
            after = mask(after)
    if after == plain:
        return value
    return after.replace("\n", "\r\n") if is_dos else after


def _make_form(words: Iterable[str], pattern: str, flags: int = 0) -> SecretForm:
    """Return the form that masks the group of ``pattern``; ANY is replaced by the words with their suffixes."""
    rests = words if isinstance(words, Mapping) else dict.fromkeys(words, "")
    whole = pattern.replace("ANY", f"(?:{'|'.join(re.escape(word) + rest for word, rest in rests.items())})")
    return [word.lower() for word in rests], lambda value: mask_matches(whole, value, flags=flags)


def _command_form(program: str, options: str) -> SecretForm:
    """Return the form that masks the secrets among the arguments of ``program``."""
    command = rf"(?<![\w/-]){re.escape(program)}[^\n|;]*|/{re.escape(program)}[^\n|;]*"
    secrets = rf"(?<!\S)(?:{options.replace('<>', f'(?:{_SHELL_WORD})').replace('{}', f'({_SHELL_WORD})')})"
    return [program], lambda value: mask_matches(
        command, value, lambda words: mask_matches(secrets, words), re.IGNORECASE
    )


def _mask_named(value: str) -> str:
    return apply_masks(value, ((first, last, mask_secret(value[first:last])) for first, last in secret_spans(value)))


# Names of random values that are not secret: digests, ids, and identifiers of the kernel and of containers.
_HARMLESS_ID_NAMES: Final = (
    r"(?:sha\d+|md5|digest|hash|sum|id|ids|uid|uuid|guid|serial|commit|revision|srcversion|container|sandbox|pod|image"
    r"|version|containerd|runc|crun|docker-init|layer|snapshot|build|pci|fingerprint|machine|thumbprint|cert|name|path|dir|ref|parent|blob|checksum|resourceversion|etag)"
)
# The kernel's message about a key that it loads, with the owner and the fingerprint.
_INSIDE_CERTIFICATE_NAME: Final = r"\bX\.509 cert '[^'\n]*\Z"
# Letters of both cases with digits, or hexadecimal digits.
_RANDOM_LOOKING_WORD: Final = (
    r"(?<![A-Za-z\d+/_])(?=[A-Z\d+]*[a-z])(?=[A-Za-z+]*\d)"
    r"(?:[\da-f]{64}|[\da-f]{48}|[\da-f]{40}|[\da-f]{32}|(?=[a-z\d+]*[A-Z])[A-Za-z\d+]{32,100})={0,2}(?![\w/.+=:-])"
)
_NAME_BEFORE_VALUE: Final = (
    r"(?:(?<![\w.-])--?(?P<option>[a-z][\w-]*)[= ]|(?<![\w@-])(?P<name>[a-z][\w.-]*)[\"']?(?:=|:[ \t]*))\\*[\"']?\Z"
)


def _mask_random(value: str) -> str:
    """Return ``value`` without long random words after an unknown name or option."""

    def mask(run: re.Match[str]) -> str:
        before = value[max(0, run.start() - 200) : run.start()]
        if compile_cached(_INSIDE_CERTIFICATE_NAME).search(before):
            return run[0]
        by = compile_cached(_NAME_BEFORE_VALUE).search(before[-100:])
        name = by and (by["option"] or by["name"])
        return MASK if name and not compile_cached(rf"[\w.-]*{_HARMLESS_ID_NAMES}").fullmatch(name) else run[0]

    return compile_cached(_RANDOM_LOOKING_WORD, 0).sub(mask, value)


def _mask_truncated_private_keys(value: str) -> str:
    """Return ``value`` without the lines of private keys whose beginning is cut off, as in the tail of a journal.

    In a journal each line has a prefix before the key's text.
    """
    lines = value.split("\n")
    for end in [number for number, line in enumerate(lines) if compile_cached(_PRIVATE_KEY_END, 0).search(line)]:
        for number in range(end - 1, -1, -1):
            # Only the last line of a key is shorter than the others.
            if not (
                match := compile_cached(_PRIVATE_KEY_LAST_LINE if number == end - 1 else _PRIVATE_KEY_LINE, 0).search(
                    lines[number]
                )
            ):
                break
            lines[number] = lines[number][: match.start(1)] + MASK + lines[number][match.end(1) :]
    return "\n".join(lines)


_PRIVATE_KEY_END: Final = r"-----END [A-Z ]{0,40}PRIVATE KEY"
_PRIVATE_KEY_LAST_LINE: Final = r"(?<!\S)([A-Za-z0-9+/]{2,128}={0,2})[ \t\r]*\Z"
_PRIVATE_KEY_LINE: Final = r"(?<!\S)([A-Za-z0-9+/]{48,128}={0,2}|redacted)[ \t\r]*\Z"


def _mask_exec_passwords(value: str) -> str:
    """Return ``value`` without passwords after ``-p`` in a unit's command."""

    def mask(option: re.Match[str]) -> str:
        return f"{option[1]}{MASK}" if looks_like_secret(option[2]) and not set(option[2]) & set(":/=.") else option[0]

    line = compile_cached(r"^[ \t]*Exec\w+=[^\n]*", re.MULTILINE)
    option = compile_cached(r"(?<=\s)(-p[ \t]+)(?!-)([^\s\"']+)(?!\S)", 0)
    return line.sub(lambda found: option.sub(mask, found[0]), value)


_SHELL_WORD: Final = r"\"[^\"\n]*\"|'[^'\n]*'|[^\s\"'|;&<>-][^\s|;&<>]*"
_URL_USERINFO: Final = r"[^\s/?#\"'<>:@]{0,80}:(?!\d{1,5}(?:[/?#\s\"'<>,;]|\Z))"


def _mask_userinfo(value: str) -> str:
    """Return ``value`` without user names and passwords in URLs."""
    if "@" not in value:
        return value
    value = mask_matches(rf"://({_URL_USERINFO}[^\s\"']{{1,200}}|[^\s/?#\"'<>]+)(?=@(?!sha256:))", value)
    # In quotes or in a proxy setting, a password may contain any character.
    quoted = rf"(?:[\"']|(?i:proxy)[ \t]?[=:][ \t]?)\w[\w+.-]{{0,20}}://({_URL_USERINFO}[^\n\"'@]{{1,200}})(?=@[\w\[])"
    return mask_matches(quoted, value)


# Secrets in any context.
CONTEXT_FREE_FORMS: Final[tuple[SecretForm, ...]] = (
    (("private key",), _mask_truncated_private_keys),
    _make_form(("Static key V1",), r"-----BEGIN OpenVPN ANY-----(.*?)(?=-----END|\Z)", re.DOTALL),
    _make_form(("Private-Lines:",), r"ANY[ \t]*\d{1,3}\n((?:[A-Za-z0-9+/]{1,76}={0,2}(?:\n|\Z)){1,200})"),
    _make_form(("PRIVATE KEY",), r"-----BEGIN [A-Z ]{0,40}ANY(?: BLOCK)?-----(.*?)(?=-----END|\Z)", re.DOTALL),
    (("://",), _mask_userinfo),
    _make_form(
        ("proxy",),
        rf"(?i:ANY)(?:::[\w.-]{{1,80}})?[\"']?[ \t]*[=: ][ \t]*[\"']?(?!\w+://)({_URL_USERINFO}[^\s\"']{{1,200}})(?=@[\w\[])",
    ),
    _make_form(("iscsi:",), r"root=[\"']?ANY(\S{1,400})(?=@)"),
    _make_form(
        ("token=", "key=", "signature=", "credential=", "sig=", "password=", "secret="),
        r"(?i:[?&](?:amp;)?[\w-]{0,40}ANY)([^&\s\"'#\\]+)",
    ),
    _make_form(TOKEN_PATTERN_BY_PREFIX, r"(?<![A-Za-z0-9])(ANY)"),
    _make_form(WEBHOOK_PREFIXES, r"ANY([^\s\"'<>/][^\s\"'<>]*)"),
    _make_form(("password>", "secret>", "token>"), r"<(?:[\w:.-]{0,40})(?i:ANY)([^<>\s][^<>]{0,1000})(?=</)"),
    _make_form(("bearer", "basic"), r"(?i:\bANY)[ \t]+((?=[a-z._~-]*[A-Z0-9=+/])[\w.~+/=-]{6,})"),
    _make_form(("$1$", "$5$", "$6$", "$7$", "$y$", "$2a$", "$2b$", "$2y$", "pbkdf2."), r"(ANY[^\s:\"']{8,})"),
)
_ECHOED_TEXT: Final = r"((?:\"[^\"]{0,1000}\"|'[^']{0,1000}'|[^|\n\"']){1,200}?)"
# Secrets that are recognised by the name, option or program before them.
CONTEXTUAL_FORMS: Final[tuple[SecretForm, ...]] = (
    (SECRET_NAMES, _mask_named),
    _make_form(
        ("authorization",),
        r"(?i:ANY)\\*[\"']?[ \t]*[=:][ \t]*\\*[\"']?(?i:basic|bearer|digest|token|negotiate)[ \t]+([^\n\"'\\]+)",
    ),
    _make_form(("cookie",), r"(?i:\bANY):[ \t]*([^\s\"'=]+=[^\n\"']*)"),
    *(_command_form(program, options) for program, options in SECRET_OPTIONS.items()),
    (("exec",), _mask_exec_passwords),
    # The remaining words of a passphrase whose first word was masked as its value.
    _make_form(("password", "passphrase"), r"(?i:ANY):[ \t]+redacted((?:[ \t]+[a-z]{2,12}){2,9})[ \t]*$", re.MULTILINE),
    _make_form(
        STDIN_READERS, rf"\b(?:echo|printf|yes)[ \t]+(?:-\w+[ \t]+)*(?=[^|\s]){_ECHOED_TEXT}[ \t]*\|[^\n|]{{0,200}}ANY"
    ),
    _make_form(STDIN_READERS, rf"ANY[^\n|]*<<<[ \t]*({_SHELL_WORD})"),
    _make_form(
        STDIN_READERS,
        r"^(?=[^\n]{0,400}?ANY)[^\n]{0,400}<<-?[ \t]*[\"']?(?P<end>\w{1,40})[\"']?[^\n]{0,80}\n"
        r"((?:(?!\t*(?P=end)\s)[^\n]*(?:\n|\Z)){1,50})",
        re.MULTILINE,
    ),
    _make_form(("user=", "username=", "-u"), r"(?:(?<![\w-])(?i:ANY)[ \t]*[\"']?[\w.\\/-]{1,80})%([^\s,\"']+)"),
    # kubeadm's tokens, which may be on the next line.
    _make_form(("token", "join", "bootstrap"), r"(?i:ANY)[^\n]{0,80}?\n?(?<![\w.])([a-z\d]{6}\.[a-z\d]{16})(?![\w.])"),
    _make_form(("certificate key", "certificate-key"), r"(?i:ANY):?\s+([\da-f]{64})\b"),
    (("=", ":", "-"), _mask_random),
)
