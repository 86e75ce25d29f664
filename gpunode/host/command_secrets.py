"""Secrets among the words of a command: which options and arguments of which programs hold one, and how much of it.

The programs' rows are those of their manuals, and tell large letters from small ones as the programs do. Options that
say by their name what follows need no program. ``command_words`` reads the words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from gpunode.host.command_words import Lines, Piece, Place, Word, is_in_brackets, words_behind


@dataclass(frozen=True, slots=True)
class Option:
    """Options of programs that are followed by a secret, or by something with one in it.

    Attributes:
        programs: their names.
        names: the options, as they are written.
        behind: the sign in the value that the secret follows: ``:`` of a user and a password; ``@`` stands for the
            password of a proxy's address. Without a sign all of it is secret.
        needs: what has to stand before: commands of the program, with ``|`` between those of which one is enough.
        is_glued: whether it is followed at once, and a next word is something else.
    """

    programs: str
    names: str
    behind: str = ""
    needs: tuple[str, ...] = ()
    is_glued: bool = False


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument without an option that is a secret.

    Attributes:
        programs: their names.
        path: the commands before it; of a name with dots the last part is enough.
        skipped: how many arguments stand between.
        valued: options whose value is the next word, and no argument.
        flags: short options, all of which have to stand before.
    """

    programs: str
    path: tuple[str, ...]
    skipped: int = 0
    valued: str = ""
    flags: str = ""


# A command of programs that nobody listed.
_ANY_LOGIN: Final = "login"
_KUBECTL: Final = "kubectl oc k kubecolor microk8s.kubectl kubectl.exe"
_SNMP: Final = " ".join(
    f"snmp{one}" for one in ("get", "getnext", "walk", "set", "table", "status", "trap", "inform", "df", "translate",
                             "netstat", "usm", "test", "delta", "bulkget", "bulkwalk", "vacm", "ping")
)  # fmt: skip
_LDAP: Final = "ldapsearch ldapadd ldapmodify ldapdelete ldapwhoami ldapcompare ldapmodrdn ldappasswd ldapexop ldapvi"
_SAMBA: Final = "smbclient rpcclient smbget net smbcacls smbtree smbspool winexe wmic wbinfo smbmap"
_IPMITOOL: Final = "-I -H -U -L -C -p -P -f -k -t -b -T -B -o -O -d -N -R -S"

OPTIONS: Final = (
    Option(
        "docker podman nerdctl buildah skopeo helm oras singularity apptainer az oc ibmcloud ilorest",
        "-p",
        needs=("login",),
    ),
    Option(_ANY_LOGIN, "-p"),
    Option("podman buildah skopeo crictl", "--creds --src-creds --dest-creds", ":"),
    Option("ctr", "-u --user", ":", ("pull|push|fetch|fetch-object|push-object",)),
    Option("crictl", "--auth"),
    Option(_KUBECTL, "--from-literal", "=", ("secret",)),
    Option(_KUBECTL, "-p --patch", needs=("patch", "secret|secrets")),
    Option("k3s rke2", "-t", needs=("agent|server",)),
    Option("rancher", "-t", needs=("login",)),
    Option("curl", "-u --user -U --proxy-user", ":"),
    Option("curl", "-x --proxy --preproxy", "@"),
    Option("lftp", "-u", ","),
    Option("ttyd gotty", "-c --credential", ":"),
    Option("ipmitool", "-P"),
    Option("ipmipower ipmi-power ipmi-chassis ipmi-sel ipmi-sensors ipmi-fru ipmiconsole ipmi-console bmc-info", "-p"),
    Option("racadm redfishtool SMCIPMITool", "-p"),
    Option(
        "mysql mysqldump mysqladmin mysqlcheck mysqlimport mysqlshow mysqlsh mariadb mariadb-dump mariadb-admin",
        "-p",
        is_glued=True,
    ),
    Option("mongo mongosh mongodump mongorestore", "-p"),
    Option("redis-cli", "-a"),
    Option("sshpass useradd usermod", "-p"),
    Option(_SNMP, "-c -A -X"),
    Option(_LDAP + " kadmin", "-w"),
    Option(_SAMBA, "-U --user", "%"),
    Option("zip unzip", "-P"),
    Option("7z 7za 7zz", "-p", is_glued=True),
    Option("openssl", "-k", needs=("enc",)),
    Option("SUSEConnect suseconnect", "-r"),
    Option("transactional-update", "-r", needs=("register",)),
    Option("twine", "-p", needs=("upload",)),
    Option("doctl", "-t", needs=("auth",)),
)
ARGUMENTS: Final = (
    Argument("wandb", ("login",), valued="--host --base-url --entity"),
    Argument("vault cargo", ("login",), valued="--registry"),
    Argument("aws", ("configure", "set", "aws_secret_access_key"), valued="--profile --region"),
    Argument("aws", ("configure", "set", "aws_session_token"), valued="--profile --region"),
    Argument("pro ua ubuntu-advantage", ("attach",), valued="--attach-config --format"),
    Argument("openssl", ("passwd",), valued="-salt -in"),
    Argument("htpasswd", (), 1, "-C -r", "nb"),
    Argument("htpasswd", (), 2, "-C -r", "b"),
    Argument("wpa_passphrase", (), 1),
    Argument("racadm", ("set", "Password"), valued="-r -u -p -i"),
    Argument("ipmitool", ("user", "set", "password"), 1, _IPMITOOL),
    Argument("mysqladmin mariadb-admin", ("password",), valued="-u -h -P -S"),
    Argument("mc", ("alias", "set"), 3),
    Argument("nmcli", ("password",)),
    Argument("nmcli", ("psk",)),
)
# What stands behind its own options is another's command.
_RUNS_ANOTHER: Final = "sshpass"
# Short options without a value, which another may follow in one word.
_FLAGS: Final = {
    "curl": "#0123456BGIJLMNORSVZafgijklnpqsv",
    "ldapsearch": "xLnvZWMACc",
    "useradd": "mMrNoUlD",
    "sshpass": "v",
    "htpasswd": "bcniBmdspDv",
    "redis-cli": "xc",
}
# Options that say by their name that a secret is the next word.
_SAYS_SO: Final = (
    r"(?:[\w.-]{0,40}(?:passw(?:or)?d|passphrase|token|secret(?:-id)?|secret[_.-]?key|credentials?|requirepass|token-auth"
    r"|bearer|regcode|(?:api|access|private|client|auth|licen[cs]e|activation|shared|account|encryption|certificate|setup"
    r"|registration|wandb)[_-]?key)|(?:[\w.-]{0,40}[_.-])?(?:pass|pwd|psk|community))"
)


def _programs() -> dict[str, tuple[tuple[Option, ...], tuple[Argument, ...]]]:
    # Scripts keep a program in a variable of capitals, and whoever writes of one begins with a capital.
    names = sorted({name for row in (*OPTIONS, *ARGUMENTS) for name in row.programs.lower().split()})
    return {
        name: (
            tuple(row for row in OPTIONS if name in row.programs.lower().split()),
            tuple(row for row in ARGUMENTS if name in row.programs.lower().split()),
        )
        for name in names
    }


_PROGRAMS: Final = _programs()
_FIRST: Final = re.compile(
    rf"(?<![\w.@+-])(?i:{'|'.join(sorted(map(re.escape, _PROGRAMS), reverse=True))})(?=[\s\"'\\,]|\Z)"
    rf"|(?<![\w-])--?(?=[a-zA-Z])(?:(?i:{_SAYS_SO})|(?:[a-z-]{{0,40}}-)?auth)(?=[\s\"'\\,]|\Z)"
)
_SPEAKING: Final = re.compile(rf"--?(?=[a-z]){_SAYS_SO}", re.IGNORECASE)
_PAIR: Final = re.compile(r"--?(?:[a-z-]{0,40}-)?auth")
_PATH: Final = re.compile(r"[\w./+~-]*\Z")
_LONGEST_PATH: Final = 200
# Letters that stand together are options; a password may begin with a dash, too.
_IS_OPTION: Final = re.compile(r"-|-[A-Za-z]{1,6}|-[A-Za-z]\d{1,5}|--?[a-z][a-z0-9_.-]*(?:=.*)?|--", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$(?:\{[A-Z_][A-Z\d_]*\}|[A-Z_][A-Z\d_]*|\([A-Z_][A-Z\d_]*\))")
_LONG_OF_ONE_DASH: Final = re.compile(r"-[a-z]{2,}(?:-[a-z]+)*")
_PORT: Final = re.compile(r"\d{1,5}")
_SETTING: Final = re.compile(r"[a-z_]+=.+")
_FILE: Final = re.compile(r"(?:/|\./|~/|\.\./)")
# A key may begin with a slash.
_SYSTEM_FILE: Final = re.compile(r"\.{1,2}/|~/|/(?:boot|etc|home|mnt|opt|root|run|srv|tmp|usr|var)/")
# What is said of an option, behind its name: no shell's word is that alone, if it is a password.
_SAID: Final = re.compile(
    r"(?:not|no|required|incorrect|wrong|invalid|expired|missing|empty|needed|set|too|an?|the|in|on|only|used|asked|unknown"
    r"|stored|being|never|now|already|correct|valid|accepted|protected|disabled|enabled|locked|for|at|to|is|are|was|were|and"
    r"|or|via|with|must|may|can|cannot|should|flags?|options?|arguments?|parameters?|from|by|of|if|when|but|has|have|as"
    r"|instead|string|stringArray|value|true|false|failed|failure|errors?|succeeded|successful|first|again|here|it|this|that|your)[.,;:!?)]*",
    re.IGNORECASE,
)
# Arguments that count are among the first.
_MOST_ARGUMENTS: Final = 12
_DEEPEST: Final = 8
_OF_NAME: Final = Option("", "")
_OF_ITEM: Final = Option("", "", "]")  # of a list whose words have no quotes
_USER_AND_PASSWORD: Final = Option("", "", ":")
_ALL: Final = Option("", "", needs=("",))


def secrets(text: str) -> list[tuple[int, int]]:
    """Where secrets stand that commands are given, in their order; none is within another."""
    found = sorted(_within(text, Place(len(text)), 0))
    kept: list[tuple[int, int]] = []
    for start, end in found:
        begin = max(start, kept[-1][1]) if kept else start
        if begin < end:
            kept.append((begin, end))
    return kept


def secrets_of_process(words: list[str]) -> list[tuple[int, int]]:
    """The same among the words that a process was started with, as they stand behind each other with a sign between."""
    text = "\0".join(words)
    command, at = _Command(text), 0
    found: list[tuple[int, int]] = []
    for one in words:
        read = command.read(Word((Piece(at, at + len(one)),), at + len(one), is_listed=True))
        found += read.spans if read else ()
        at += len(one) + 1
    return found


def _within(text: str, part: Place, start: int) -> Iterator[tuple[int, int]]:
    lines, at = Lines(text, start, part), start
    while first := _FIRST.search(text, at, part.end):
        command = _Command(text, first[0])
        begin = _begin(text, first.start())
        at = first.end()
        for word in words_behind(text, begin, first.end(), lines):
            if word.end > part.end or not (spans := command.read(word)):
                break
            yield from spans.spans
            at = max(word.next_command if word.next_command >= 0 else word.end, at)
            if part.depth < _DEEPEST and not spans.is_secret:
                yield from _quoted(text, word, part, at)
        lines.go_on(at)


def _begin(text: str, start: int) -> int:
    """Where the path of a program begins, whose name does at ``start``."""
    if text[start - 1 : start] != "/":
        return start
    first = max(start - _LONGEST_PATH, 0)
    path = _PATH.search(text[first:start])
    return first + path.start() if path else start


def _quoted(text: str, word: Word, part: Place, end: int) -> Iterator[tuple[int, int]]:
    """What stands in a string among the words: a shell's script, another machine's command."""
    for piece in word.pieces:
        if piece.quote and piece.start < end and " " in text[piece.start : piece.end]:
            yield from _within(text, Place(piece.end, part.depth + 1, piece.quote[-1] == '"'), piece.start)


@dataclass(frozen=True, slots=True)
class _Read:
    """What a word turned out to hold."""

    spans: tuple[tuple[int, int], ...] = ()
    is_secret: bool = False


@dataclass(slots=True)
class _Running:
    """A program of a command, with what it was given so far."""

    name: str
    said: list[str] = field(default_factory=list)
    flags: str = ""
    is_skipping: bool = False  # the next word is an option's value

    @property
    def options(self) -> Iterator[Option]:
        return (row for row in _PROGRAMS[self.name][0] if all(map(self._has, row.needs)))

    def _has(self, need: str) -> bool:
        return any(one.partition("/")[0].lower() in need.split("|") for one in self.said)

    def takes_next(self, option: str) -> bool:
        return any(option in row.valued.split() for row in _PROGRAMS[self.name][1])

    def argument(self) -> Argument | None:
        """The row for which the last of the words is a secret."""
        for row in _PROGRAMS[self.name][1]:
            begins = len(self.said) - row.skipped - 1 - len(row.path)
            path = self.said[max(begins, 0) : begins + len(row.path)]
            is_path = len(path) == len(row.path) and all(map(_is_called, path, row.path))
            if begins >= 0 and (begins == 0 or row.path) and is_path and set(row.flags) <= set(self.flags):
                return row
        return None


def _is_called(word: str, name: str) -> bool:
    return word == name or word.endswith("." + name)


class _Command:
    """A command whose words are read one after the other."""

    def __init__(self, text: str, first: str = "") -> None:
        self._text = text
        self._running: dict[str, _Running] = {}
        self._due: Option | None = None
        self._of = first  # the option that is due
        if (name := first.lower()) in _PROGRAMS:
            self._running[name] = _Running(name)
        elif first:
            self._due = _OF_NAME if _SPEAKING.fullmatch(first) else _USER_AND_PASSWORD

    def read(self, word: Word) -> _Read | None:
        """What is secret of the next word; None where a remark begins."""
        value = word.read(self._text)
        due, self._due = self._due, None
        is_run = value.startswith(("$(", "`")) and not _is_quoted(word)
        if due and not is_run and (_is_quoted(word) or not _IS_OPTION.fullmatch(value)):
            return _Read(tuple(self._secret(word, value, 0, due)), is_secret=True)
        if value.startswith("#") and not (_is_quoted(word) or word.is_listed):
            return None
        if value.startswith("-") and len(value) > 1:
            return self._option(word, value)
        return self._argument(word, value)

    def _option(self, word: Word, value: str) -> _Read:
        self._due = self._named(word, value)
        name, sign, _ = value.partition("=")
        for running in self._running.values():
            running.is_skipping = not sign and running.takes_next(value)
            if not value.startswith("--"):
                running.flags += value[1:9]
            for row in running.options:
                if row.programs == _ANY_LOGIN and _LONG_OF_ONE_DASH.fullmatch(value):
                    continue
                names = row.names.split()
                at = len(name) + 1 if sign and name in names else _glued(value, names, _FLAGS.get(running.name, ""))
                if 0 < at < len(value):
                    return _Read(tuple(self._secret(word, value, at, row)))
                if at == len(value) and not row.is_glued:
                    self._due = row
        return _Read()

    def _named(self, word: Word, value: str) -> Option | None:
        """What an option is followed by that tells so by its name."""
        self._of = value
        if _SPEAKING.fullmatch(value):
            return _OF_NAME
        if value.endswith(",") and _SPEAKING.fullmatch(value[:-1]) and is_in_brackets(self._text, word.pieces[0].start):
            return _OF_ITEM
        return _USER_AND_PASSWORD if _PAIR.fullmatch(value) else None

    def _argument(self, word: Word, value: str) -> _Read:
        found: Argument | None = None
        self._running.pop(_RUNS_ANOTHER, None)
        for running in self._running.values():
            if not running.is_skipping and len(running.said) < _MOST_ARGUMENTS:
                running.said.append(value)
                found = found or running.argument()
            running.is_skipping = False
        name = value.lstrip("$(`").rpartition("/")[2].lower()
        if name in _PROGRAMS and not (found or " " in value):
            self._running.setdefault(name, _Running(name))  # a file may be called as the program is
        if not found or _SETTING.fullmatch(value):
            return _Read()
        return _Read(tuple(self._secret(word, value, 0, _ALL)), is_secret=True)

    def _secret(self, word: Word, value: str, at: int, row: Option) -> Iterator[tuple[int, int]]:
        start, end = at, len(value)
        if row is _OF_ITEM:
            end = len(value.rstrip(",]"))
        elif row.behind == "@":
            end = value.rfind("@")
            start = value.find(":", at, max(end, at)) + 1
        elif row.behind:
            start = value.find(row.behind, at) + 1
        is_found = row is _OF_ITEM or not row.behind or (start > at and not value.startswith("//", start))
        if is_found and start < end and not self._is_none(word, value[start:end], row):
            yield from word.span(start, end)

    def _is_none(self, word: Word, value: str, row: Option) -> bool:
        """Whether it is no secret, but what stands for one: a variable, a file, what is said of the option."""
        is_literal = any(piece.quote.endswith("'") for piece in word.pieces) and not word.is_listed
        if (_VARIABLE.fullmatch(value) and not is_literal) or (row.programs == _ANY_LOGIN and _PORT.fullmatch(value)):
            return True
        if row is _OF_NAME:
            is_file = _SYSTEM_FILE if self._of.lower().endswith(("secret-key", "secretkey", "secret_key")) else _FILE
            if is_file.match(value) or (word.is_listed and not _is_quoted(word) and " " in value):
                return True
        if _is_quoted(word):
            return False
        is_said = row in (_OF_NAME, _OF_ITEM, _ALL) and not word.is_listed and _SAID.fullmatch(value) is not None
        return is_said or value.startswith(("$(", "`", "<"))


def _is_quoted(word: Word) -> bool:
    return bool(word.pieces) and word.pieces[0].quote != ""


def _glued(value: str, names: list[str], flags: str) -> int:
    """Where the value of one of the options begins in this word; its length if it is the next word, -1 for none."""
    if value in names:
        return len(value)
    if value.startswith("--"):
        return -1
    for at, sign in enumerate(value[1:12], 1):
        if f"-{sign}" in names:
            return at + 2 if value[at + 1 : at + 2] == "=" else at + 1
        if sign not in flags:
            return -1
    return -1
