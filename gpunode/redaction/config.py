"""Masks unknown values in configuration: JSON, TOML, YAML, INI and shell assignments, read by one lenient reader.

Keys, comments, punctuation and line ends stay: the rest parses as before, and line numbers hold. A value stays if its
key is known or its form is harmless, and never below the name of a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpunode.redaction import patterns, secrets
from gpunode.redaction.named import strength
from gpunode.redaction.patterns import compiled, settled

# Keys, in lower case, whose values say how GPUs, runtimes and the kubelet are set up. Of an environment only the
# variables named here stay. A key called `value` may hold anything.
_KEPT: Final = "|".join(
    (
        # units, and what a daemon is started with
        r"exec\w+|environmentfile|after|before|wants|requires|requiredby|wantedby|partof|type|restart|user|group|delegate",
        r"slice|description|documentation|killmode|limit\w+|condition\w+|device(?:allow|policy)|alias|args",
        r"[\w-]+[_-](?:args?|opts|flags|options)|path|ld_library_path|ld_preload|cuda_\w+|(?:.*\W)?nvidia[\w./-]*|kubelet_\w+",
        # the vGPU licence, containerd, docker, CRI-O, Podman, NVIDIA's toolkit
        r"feature-?type|(?:backup)?server-?(?:address|port)|\w*tokenpath|version|imports|root|state|address|binaryname",
        r"(?:[\w-]*[_-])?(?:path|dirs?|root|driver|endpoints?|runtimes?|handlers?|annotations?|plugins|mode|level|prefix(?:es)?)",
        r"(?:[\w-]*[_-])?name|snapshotter|sandbox\w*|runtimeargs|exec-opts|graph|hosts|features|[\w-]*cgroup[\w-]*|conmon\w*",
        r"events_logger|hooks?|csv|ldconfig|registry-mirrors|insecure-registries|iptables|log-\w+|server|swarm-resource",
        r"supported-driver-capabilities",
        # the kubelet, and Kubernetes' objects
        r"kind|apiversion|featuregates|cluster\w+|resolvconf|\w+(?:policy|endpoint|driver|dir)|node-label|kubelet-arg",
        r"namespace|phase|reason|message|status|\w+(?:time|timestamp|version|class|classname|ids?)|image|osimage|architecture",
        r"operatingsystem|effect|operator|key|nodename|resource\w*|controller|uid|generatename|kubernetes\.io/hostname",
        # CDI, docker inspect
        r"hostpath|containerpath|options|hookname|permissions|created|startedat|error|pathon\w+|pathin\w+|cgrouppermissions",
        r"capabilities|deviceids",
    )
)
_PATHS: Final = (
    r"(?:unix://|file://|@)?(?:/(?:etc|usr|var|run|opt|dev|proc|sys|lib\w*|s?bin|boot|mnt|srv|home|root|snap|tmp)"
    r"(?:/[\w.+@*:-]+)*/?:?)+"
)
# Values that are not secret, whatever their keys.
_HARMLESS: Final = (
    r"(?:true|false|null|none|nil|yes|no|on|off|[\d.+:_-]{1,12}(?:[kmgtp]i?b?|[num]?s|h|%)?|0[xo][\da-f]+|\.{3}|~|-|[a-z]{1,4}"
    r"|runc|crun|kata\w*|systemd|cgroupfs|overlayfs|overlay2?|native|journald|json-file|local|debug|info|warn(?:ing)?|error"
    r"|io\.(?:containerd|kubernetes|k8s)\.[\w./-]+|(?:[\w-]+\.)*nvidia[\w./:=@-]*|(?:k8s\.gcr|registry\.k8s)\.io/[\w./:@-]+"
    rf"|--?[a-z][\w-]*|sha256:[\da-f]{{64}}|v?\d+\.\d+[\w.+~:-]{{0,24}}|linux|amd64|arm64|[\]\[{{}}(),:;$]*|{_PATHS})"
)
# Below these keys any value may be secret: HTTP headers, the data of a Kubernetes Secret.
_PLACE: Final = r".*headers?|(?:string)?data"
_SHELL: Final = (
    r"if|then|elif|else|fi|for|in|while|until|do|done|case|esac|return|exit|exec|unset|export|declare|typeset|\[\[?|\]\]?|[{}!]"
    r"|&&|\|\|?|redacted"
)
_STRING: Final = r"\"\"\".*?(?:\"\"\"|\Z)|'''.*?(?:'''|\Z)|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\n]|'')*'"
# In YAML a quoted string continues on the lines below, indented.
_FOLDED: Final = r"\"(?!\"\")(?:[^\"\\\n]|\\.|\n(?=\s)){0,4000}\"|'(?!'')(?:[^'\n]|''|\n(?=\s)){0,4000}'"
_TOKEN: Final = (
    rf"(?P<string>{_STRING})|(?P<comment>(?<!\S)(?:\#|//)[^\n]*)|(?P<opens>[\[{{])|(?P<shuts>[\]}}])|(?P<comma>,)"
    r"|(?P<sign>[:=])|(?P<blank>\s+)|(?P<bare>[^\s\[\]{},:=\"'](?:[^\s\[\]{},=\"':]|:(?=\S))*|[\"'][^\n]*)"
)
_KEYED: Final = (
    r"(?P<lead>[ \t]*(?:-[ \t]+)*(?:export[ \t]+)?)"
    # A word with digits that ends with = is base64, not a key without a value.
    r"(?!(?=\S*?\d)\S*=[ \t]*(?:\n|\Z))"
    r"(?P<key>\"(?:[^\"\\\n]|\\.){0,300}\"|'[^'\n]{0,300}'|[A-Za-z_.$*][^\s:=\"'{}\[\],#]*(?:[ \t][A-Za-z][\w-]*){0,3})"
    r"(?P<sign>[ \t]*[+?]?=(?!=)[ \t]*(?=\S)|=(?=\s|\Z)|[ \t]*:(?=\s|\Z)[ \t]*)"
)
_TABLE: Final = r"[ \t]*\[\[?(?P<table>[A-Za-z_][^\n]*?)\]\]?[ \t]*(?:\#[^\n]*)?(?=\n|\Z)"
_REMARK: Final = r"(?P<mark>[ \t]*(?:\#|;|//)[#; \t]*)(?P<key>[\w.\"-]+)(?P<sign>[ \t]*=[ \t]*)(?P<value>\S[^\n]*)"


def masked(text: str, *, strict: bool = True) -> str:
    """``text`` without its secrets and, if ``strict``, without any unknown value."""
    return settled(lambda one: "".join(_Reader(secrets.once(one), strict=strict).parts()), text)


def shows_secret(text: str) -> bool:
    """Whether ``text`` contains a Kubernetes Secret."""
    return compiled(r"\bkind\"?:[ \t]*\"?Secret(?:List)?\b", 0).search(text) is not None


class _Reader:
    """Reads configuration and keeps track of the enclosing keys: by table, indentation and brackets."""

    def __init__(self, text: str, *, strict: bool) -> None:
        self._text, self._strict, self._at = text, strict, 0
        self._table: tuple[str, ...] = ()
        self._indents: list[tuple[int, str]] = []
        self._brackets: list[tuple[str, bool]] = []
        self._key = ""

    def parts(self) -> Iterator[str]:
        """The masked text, in pieces."""
        while self._at < len(self._text):
            yield from self._token() if self._brackets else self._line()

    def _match(self, pattern: str, flags: int = 0) -> re.Match[str] | None:
        if match := compiled(pattern, flags).match(self._text, self._at):
            self._at = match.end()
        return match

    # ---- lines

    def _line(self) -> Iterator[str]:
        if blank := self._match(r"\s*\n|[ \t]*\Z"):
            yield blank[0]
        elif remark := self._match(_REMARK):
            yield remark["mark"] + remark["key"] + remark["sign"] + self._judged(remark["value"], remark["key"])
        elif remark := self._match(r"[ \t]*(?:#|;|//)[^\n]*\n?"):
            yield remark[0]
        elif table := self._match(_TABLE):
            self._table, self._indents = tuple(re.findall(r"[\w-]+", table["table"])), []
            yield table[0]
        elif keyed := self._match(_KEYED, re.DOTALL):
            self._enter(keyed)
            yield keyed[0]
            yield from self._value(self._key, len(keyed["lead"].expandtabs()))
        else:
            if lead := self._match(r"[ \t]*(?:-[ \t]+)*"):
                yield lead[0]
                self._leave(len(lead[0].expandtabs()))
            yield from self._value(self._key, 0)

    def _enter(self, keyed: re.Match[str]) -> None:
        self._leave(len(keyed["lead"].expandtabs()))
        self._key = keyed["key"].strip("\"'")
        self._indents.append((len(keyed["lead"].expandtabs()), self._key))

    def _leave(self, depth: int) -> None:
        while self._indents and self._indents[-1][0] >= depth:
            self._indents.pop()
        self._key = self._indents[-1][1] if self._indents else ""

    def _value(self, key: str, depth: int) -> Iterator[str]:
        """The rest of the line. Of a list or table in brackets, only the opening bracket."""
        if opens := self._match(r"[\[{]"):
            self._open(key)
            yield opens[0]
        elif string := self._match(_FOLDED, re.DOTALL) or self._match(_STRING, re.DOTALL):
            yield self._judged(string[0], key)
        elif block := self._match(r"[|>][\d+-]*[ \t]*(?:#[^\n]*)?\n"):
            yield block[0]
            while line := self._match(rf"[ \t]{{{depth + 1},}}[^\n]*\n?|[ \t]*\n"):
                yield self._judged(line[0], key)
        elif bare := self._match(r"(?:[^\n#]|(?<=\S)#)+"):
            value = bare[0].rstrip()
            yield (self._judged(value, key) if key else self._of_shell(value)) + bare[0][len(value) :]
        if rest := self._match(r"[ \t]*(?:#[^\n]*)?(?:\n|\Z)"):
            yield rest[0]

    def _of_shell(self, line: str) -> str:
        """``line``, which has no key. Only the words stay that decide whether a shell runs the next lines."""
        if not self._strict or compiled(_HARMLESS).fullmatch(line):
            return line
        return compiled(r"[^\s;()]+", 0).sub(
            lambda word: word[0] if compiled(_SHELL, 0).fullmatch(word[0]) else "redacted", line
        )

    # ---- brackets

    def _token(self) -> Iterator[str]:
        token = self._match(_TOKEN, re.DOTALL)
        assert token is not None  # every character starts one
        kind, word = token.lastgroup, token[0]
        if kind == "opens":
            self._open(self._key)
        elif kind == "shuts":
            self._key, _ = self._brackets.pop()
            if not self._brackets:
                yield word
                yield from self._value(self._key, 0)
                return
        elif kind == "comma":
            self._key, _ = self._brackets[-1]
        elif kind in {"string", "bare"}:
            if compiled(r"\s*(?::|=(?!=)\s*[^\s,\]}])").match(self._text, self._at):
                self._key = word.strip("\"'")
            else:
                word = self._judged(word, self._key)
        yield word

    def _open(self, key: str) -> None:
        self._brackets.append((key, self._is_hidden_place(key)))

    # ---- values

    def _is_hidden_place(self, key: str) -> bool:
        """Whether any value below ``key`` is secret here, whatever its form."""
        if self._brackets and self._brackets[-1][1]:
            return True
        around = (key, *self._table, *(key for _, key in self._indents))
        return strength(key) == "strong" or any(compiled(_PLACE).fullmatch(one) for one in around)

    def _judged(self, written: str, key: str) -> str:
        """``written`` or its mask, with the same quotes and lines."""
        body = written.strip()
        quote = next((one for one in ('"""', "'''", '"', "'") if body.startswith(one)), "")
        value = body[len(quote) : len(body) - len(quote)] if quote and body.endswith(quote) else body[len(quote) :]
        shown = self._shown(value, key)
        if shown != value and not quote and value.isdigit():
            shown = "0"  # a bare word would not parse
        return written if shown == value else written.replace(value, shown, 1)

    def _shown(self, value: str, key: str) -> str:
        name = key.lower()
        is_number = compiled(r"true|false|null|none|no|yes|\d{1,3}|").fullmatch(value) is not None
        if self._is_hidden_place(key):
            return value if is_number or _is_file(name, value) else patterns.masked(value)
        if not self._strict or compiled(_KEPT).fullmatch(name) or compiled(_HARMLESS).fullmatch(value):
            return value
        pair = compiled(r"((--?[a-z][\w-]*|[A-Z][A-Z\d_]+)=)([^=].*)", re.DOTALL).fullmatch(value)
        return pair[1] + self._shown(pair[3], pair[2]) if pair else patterns.masked(value)


def _is_file(name: str, value: str) -> bool:
    return name.endswith(("key", "file", "path")) and compiled(_PATHS).fullmatch(value) is not None
