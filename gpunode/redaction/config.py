"""Mask unknown values in configuration: JSON, TOML, YAML, INI and shell, in one lenient reader.

Keys, comments, punctuation and line ends stay, so the result parses as before and line numbers do not change. A value
stays if its key is known or its form is harmless, and never below the name of a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.redaction import patterns, secrets
from gpunode.redaction.named import PATH_VALUE, is_plain_value, name_strength
from gpunode.redaction.patterns import MaskedSpan, apply_masks, compile_cached, mask_until_stable

# Lower-case keys whose values describe the setup of GPUs, runtimes and the kubelet. Of an environment only the
# variables named here stay. A key called `value` may contain anything, so it is not here.
_UNREDACTED_KEYS: Final = "|".join(
    (
        # units, and the arguments of a daemon
        r"exec\w+|environmentfile|after|before|wants|requires|requiredby|wantedby|partof|type|restart|user|group|delegate",
        r"slice|description|documentation|killmode|limit\w+|condition\w+|device(?:allow|policy)|alias|args",
        r"[\w-]+[_-](?:args?|opts|flags|options)|ld_preload|cuda_\w+|(?:.*\W)?nvidia[\w./-]*|kubelet_\w+",
        # the vGPU licence, containerd, docker, CRI-O, Podman, NVIDIA's toolkit
        r"feature-?type|(?:backup)?server-?(?:address|port)|\w*tokenpath|version|imports|state|address|binaryname",
        r"(?:[\w-]*[_-])?(?:path|dirs?|root|driver|endpoints?|runtimes?|handlers?|annotations?|plugins|mode|level|prefix(?:es)?)",
        r"(?:[\w-]*[_-])?name|snapshotter|sandbox\w*|runtimeargs|graph|hosts|features|[\w-]*cgroup[\w-]*|conmon\w*",
        r"events_logger|hooks?|csv|ldconfig|registry-mirrors|insecure-registries|iptables|log-\w+|server|swarm-resource",
        r"supported-driver-capabilities",
        # the kubelet, and Kubernetes' objects
        r"kind|featuregates|cluster\w+|resolvconf|[\w-]+(?:policy|endpoint|driver|dir)|node-label",
        r"namespace|phase|reason|message|status|\w+(?:time|timestamp|version|class|classname|ids?)|image|osimage|architecture",
        r"operatingsystem|effect|operator|key|nodename|resource\w*|controller|generatename|kubernetes\.io/hostname",
        # CDI, docker inspect
        r"hostpath|containerpath|options|hookname|permissions|created|startedat|error|pathon\w+|pathin\w+|capabilities",
    )
)
# Values that are never secret, whatever their keys.
_HARMLESS_VALUE: Final = (
    r"(?:true|false|null|none|nil|yes|no|on|off|[\d.+:_-]{1,12}(?:[kmgtp]i?b?|[num]?s|h|%)?|0[xo][\da-f]+|\.{3}|~|-|[a-z]{1,4}"
    r"|runc|crun|kata\w*|systemd|cgroupfs|overlayfs|overlay2?|native|journald|json-file|local|debug|info|warn(?:ing)?|error"
    r"|io\.(?:containerd|kubernetes|k8s)\.[\w./-]+|(?:[\w-]+\.)*nvidia[\w./:=@-]*|(?:k8s\.gcr|registry\.k8s)\.io/[\w./:@-]+"
    rf"|--?[a-z][\w-]*|sha256:[\da-f]{{64}}|v?\d+\.\d+[\w.+~:-]{{0,24}}|linux|amd64|arm64|[\]\[{{}}(),:;$]*|{PATH_VALUE})"
)
# Below these keys any value may be secret: HTTP headers, the data of a Kubernetes Secret.
_SENSITIVE_SECTION_NAME: Final = r".*headers?|(?:string)?data"
_SHELL_KEYWORDS: Final = (
    r"if|then|elif|else|fi|for|in|while|until|do|done|case|esac|return|exit|exec|unset|export|declare|typeset|\[\[?|\]\]?|[{}!]"
    r"|&&|\|\|?|redacted"
)
_STRING: Final = r"\"\"\".*?(?:\"\"\"|\Z)|'''.*?(?:'''|\Z)|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\n]|'')*'"
# In YAML a quoted string continues on the lines below, indented.
_MULTILINE_QUOTED_STRING: Final = (
    r"\"(?!\"\")(?:[^\"\\\n]|\\.|\n(?=\s)){0,4000}\"|'(?!'')(?:[^'\n]|''|\n(?=\s)){0,4000}'"
)
_SYNTAX_TOKEN: Final = (
    rf"(?P<string>{_STRING})|(?P<comment>(?<!\S)(?:\#|//)[^\n]*)|(?P<opens>[\[{{])|(?P<shuts>[\]}}])|(?P<comma>,)"
    r"|(?P<sign>[:=])|(?P<blank>\s+)|(?P<bare>[^\s\[\]{},:=\"'](?:[^\s\[\]{},=\"':]|:(?=\S))*|[\"'][^\n]*)"
)
_LINE_WITH_KEY: Final = (
    r"(?P<lead>[ \t]*(?:-[ \t]+)*)(?:(?:export[ \t]+)?"
    # A word with digits that ends in = is base64, not a key without a value.
    r"(?!(?=\S*?\d)\S*=[ \t]*(?:\n|\Z))"
    r"(?P<key>\"(?:[^\"\\\n]|\\.){0,300}\"|'[^'\n]{0,300}'|[A-Za-z_.$*][^\s:=\"'{}\[\],#]*(?:[ \t][A-Za-z][\w-]*){0,3})"
    r"(?:[ \t]*[+?]?=(?!=)[ \t]*(?=\S)|=(?=\s|\Z)|[ \t]*:(?=\s|\Z)[ \t]*))?"
)
_TABLE_OR_SECTION_HEADING: Final = r"[ \t]*\[\[?(?P<table>[A-Za-z_][^\n]*?)\]\]?[ \t]*(?:\#[^\n]*)?(?=\n|\Z)"
_COMMENTED_SETTING: Final = r"[ \t]*(?:\#|;|//)[#; \t]*(?P<key>[\w.\"-]+)[ \t]*=[ \t]*(?P<value>\S[^\n]*)"


def redact_config(text: str, *, strict: bool = True) -> str:
    """Return ``text`` without secrets and, if ``strict``, without any unknown value."""

    def once(one: str) -> str:
        one = secrets.redact_once(one)
        return apply_masks(one, _ConfigReader(one, strict=strict).masks())

    return mask_until_stable(once, text)


class _ConfigReader:
    """A reader that tracks the enclosing keys: by table, indentation and brackets."""

    def __init__(self, text: str, *, strict: bool) -> None:
        self._text, self._strict, self._at = text, strict, 0
        self._table: tuple[str, ...] = ()
        self._indents: list[tuple[int, str]] = []
        self._brackets: list[tuple[str, bool]] = []
        self._key = ""

    def masks(self) -> Iterator[MaskedSpan]:
        """Yield the masks in order."""
        while self._at < len(self._text):
            yield from self._read_token() if self._brackets else self._read_line()

    def _match(self, pattern: str, flags: int = 0) -> re.Match[str] | None:
        if match := compile_cached(pattern, flags).match(self._text, self._at):
            self._at = match.end()
        return match

    # ---- lines

    def _read_line(self) -> Iterator[MaskedSpan]:
        if self._match(r"\s*\n|[ \t]*\Z"):
            return
        if commented := self._match(_COMMENTED_SETTING):
            yield from self._mask_scalar(*commented.span("value"), commented["key"])
        elif self._match(r"[ \t]*(?:#|;|//)[^\n]*\n?"):
            return
        elif table := self._match(_TABLE_OR_SECTION_HEADING):
            self._table, self._indents = tuple(re.findall(r"[\w-]+", table["table"])), []
        elif keyed := self._match(_LINE_WITH_KEY, re.DOTALL):
            depth = len(keyed["lead"].expandtabs())
            while self._indents and self._indents[-1][0] >= depth:
                self._indents.pop()
            if keyed["key"]:
                self._indents.append((depth, keyed["key"].strip("\"'")))
            self._key = self._indents[-1][1] if self._indents else ""
            yield from self._read_value(self._key, depth if keyed["key"] else 0)

    def _read_value(self, key: str, depth: int) -> Iterator[MaskedSpan]:
        """Read the rest of the line; of a list or table in brackets, only the opening bracket."""
        if self._match(r"[\[{]"):
            self._open_bracket(key)
        elif string := self._match(_MULTILINE_QUOTED_STRING, re.DOTALL) or self._match(_STRING, re.DOTALL):
            yield from self._mask_scalar(*string.span(), key)
        elif self._match(r"[|>][\d+-]*[ \t]*(?:#[^\n]*)?\n"):
            while line := self._match(rf"[ \t]{{{depth + 1},}}[^\n]*\n?|[ \t]*\n"):
                yield from self._mask_scalar(*line.span(), key)
        elif bare := self._match(r"(?:[^\n#]|(?<=\S)#)+"):
            yield from self._mask_scalar(*bare.span(), key) if key else self._read_shell_line(*bare.span())
        self._match(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)")

    def _read_shell_line(self, first: int, last: int) -> Iterator[MaskedSpan]:
        """Read a line without a key, keeping only shell keywords."""
        if self._strict and not compile_cached(_HARMLESS_VALUE).fullmatch(self._text[first:last].rstrip()):
            for word in compile_cached(r"[^\s;()]+", 0).finditer(self._text, first, last):
                if not compile_cached(_SHELL_KEYWORDS, 0).fullmatch(word[0]):
                    yield *word.span(), patterns.MASK

    # ---- brackets

    def _read_token(self) -> Iterator[MaskedSpan]:
        token = self._match(_SYNTAX_TOKEN, re.DOTALL)
        assert token is not None  # every character starts a token
        match token.lastgroup:
            case "opens":
                self._open_bracket(self._key)
            case "shuts":
                self._key, _ = self._brackets.pop()
                if not self._brackets:
                    yield from self._read_value(self._key, 0)
            case "comma":
                self._key, _ = self._brackets[-1]
            case "string" | "bare":
                if compile_cached(r"\s*(?::|=(?!=)\s*[^\s,\]}])").match(self._text, self._at):
                    self._key = token[0].strip("\"'")
                else:
                    yield from self._mask_scalar(*token.span(), self._key)
            case _:
                pass

    def _open_bracket(self, key: str) -> None:
        self._brackets.append((key, self._is_hidden_section(key)))

    # ---- values

    def _is_hidden_section(self, key: str) -> bool:
        """Return whether every value below ``key`` is secret, whatever its form."""
        if self._brackets and self._brackets[-1][1]:
            return True
        around = (key, *self._table, *(key for _, key in self._indents))
        return name_strength(key) == "strong" or any(map(compile_cached(_SENSITIVE_SECTION_NAME).fullmatch, around))

    def _mask_scalar(self, first: int, last: int, key: str) -> Iterator[MaskedSpan]:
        """Yield the mask of the span without its quotes and blanks."""
        written = self._text[first:last].lstrip()
        start = last - len(written)
        match = compile_cached(r"(\"{3}|'{3}|[\"']?)(.*?)\1?", re.DOTALL).fullmatch(
            self._text, start, start + len(written.rstrip())
        )
        assert match is not None
        shown = self._mask_value(match[2], key)
        if shown != match[2]:
            # A bare word instead of a number would not parse.
            yield *match.span(2), "0" if match[2].isdigit() and not match[1] else shown

    def _mask_value(self, value: str, key: str) -> str:
        name = key.lower()
        if self._is_hidden_section(key):
            return value if is_plain_value(name, value) else patterns.mask_secret(value)
        if (
            not self._strict
            or compile_cached(_UNREDACTED_KEYS).fullmatch(name)
            or compile_cached(_HARMLESS_VALUE).fullmatch(value)
        ):
            return value
        pair = compile_cached(r"((--?[a-z][\w-]*|[A-Z][A-Z\d_]+)=)([^=].*)", re.DOTALL).fullmatch(value)
        return pair[1] + self._mask_value(pair[3], pair[2]) if pair else patterns.mask_secret(value)
