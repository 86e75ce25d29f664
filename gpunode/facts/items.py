"""Evidence as doctor's rules read it: one item for each file, command output or pasted piece."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import field, replace
from functools import cached_property
from itertools import accumulate, islice
from typing import Any, Final, TypeVar, cast

from gpunode.facts import nvml
from gpunode.facts.evidence import NOT_CAPTURED_REASON, Capture, Evidence, GlobMatch, ProbeOutcome, decode_matches
from gpunode.facts.patterns import Pattern
from gpunode.facts.sources import (
    Source,
    SourceKind,
    SourcePlace,
    identify_described_sources,
    identify_source,
    program_name,
)
from gpunode.fast_dataclass import dataclass

T = TypeVar("T")

_TERMINAL_ESCAPE_CODE: Final = Pattern(r"\x1b\[[0-9;?]*[A-Za-z]")
# Messages of shells and tools that something is missing, from the message catalogues of bash, zsh and coreutils
# (translationproject.org).
COMMAND_NOT_FOUND_WORDS: Final = (
    r"(?:command not found|未找到命令|命令未找到|找不到(?:指令|命令)|commande introuvable"
    r"|(?:Befehl|Kommando) nicht gefunden"
    r"|orden no encontrada|no se encontró la orden|comando não encontrado|comando non trovato|команда не найдена"
    r"|コマンドが見つかりません|명령어를 찾을 수 없음|nie znaleziono polecenia|komut bulunamadı|příkaz nenalezen)"
)
FILE_NOT_FOUND_WORDS: Final = (
    r"(?:no such file or directory|没有那个文件或目录|沒有此一檔案或目錄|Datei oder Verzeichnis nicht gefunden"
    r"|Aucun fichier ou dossier de ce (?:nom|type)|No existe el (?:fichero|archivo) o el directorio"
    r"|Arquivo ou diretório inexistente|File o directory non esistente|Нет такого файла или каталога"
    r"|そのようなファイルやディレクトリはありません)"
)
# apt's messages, before and after the package's name.
PACKAGE_NOT_FOUND_BEFORE_NAME: Final = (
    r"(?:Unable to locate package|无法定位软件包|找不到套件|Impossible de trouver le paquet"
    r"|Impossibile trovare il pacchetto"
    r"|No se ha podido localizar el paquete|Não foi possível encontrar o pacote|Не удалось найти пакет)"
)
PACKAGE_NOT_FOUND_AFTER_NAME: Final = r"(?:kann nicht gefunden werden|が見つかりません|패키지를 찾을 수 없습니다)"
_ABSENCE_LINE: Final = Pattern(
    rf"^(?:[^\n]{{0,200}}[:：] ?)?(?:{COMMAND_NOT_FOUND_WORDS}|{FILE_NOT_FOUND_WORDS}|not found)\.{{0,3}}$"
    rf"|^(?:ls|cat|stat|find|grep|head|tail|less): [^\n]{{1,200}}: {FILE_NOT_FOUND_WORDS}$"
    r"|^zsh: command not found: \S+$|^(?:/usr/bin/)?which: no \S+ in \(|^\S+ not found$|^Command '[^'\n]+' not found",
    re.IGNORECASE,
)
_PACKAGE_TABLE_FILES: Final = frozenset({"/var/lib/dpkg/status", "/var/lib/apt/extended_states"})


@dataclass(frozen=True)
class EvidenceItem:
    """A piece of evidence.

    Attributes:
        key: of the evidence that contains it.
        written: its source, as it was written.
        outcome: ``absent`` if the text only says that the thing does not exist.
        error: the command's standard error, or the system's error.
    """

    key: str
    written: str
    source: Source
    text: str
    outcome: ProbeOutcome = "ok"
    error: str = ""
    exit_status: int | None = None
    _views: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def kind(self) -> SourceKind:
        """The kind of its source."""
        return self.source.kind

    @property
    def subject(self) -> str:
        """The file, unit, module or pod."""
        return self.source.subject

    @property
    def where(self) -> SourcePlace:
        """Its place: the host or a container."""
        return self.source.where

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The lines, without their ends; line numbers count from 1."""
        return tuple(self.text.removesuffix("\n").split("\n")) if self.text else ()

    def view(self, read: Callable[[EvidenceItem], T]) -> T:
        """Return ``read(self)``, computed once."""
        if read not in self._views:
            self._views[read] = read(self)
        return cast(T, self._views[read])

    @cached_property
    def lowered(self) -> str:
        """The text in lower case and of the same length: a character whose lower case is longer is kept."""
        lowered = self.text.lower()
        if len(lowered) == len(self.text):
            return lowered
        return "".join(lower if len(lower := one.lower()) == 1 else one for one in self.text)

    @cached_property
    def _line_offsets(self) -> tuple[int, ...]:
        return (0, *accumulate(len(line) + 1 for line in self.lines))

    def line_number_at(self, offset: int) -> int:
        """Return the number of the line at ``offset`` of the text, counted from 1."""
        return bisect_right(self._line_offsets, offset)

    @property
    def is_package_record(self) -> bool:
        """True for a package manager's database or log: the longest texts, with only names, states and versions."""
        return self.is_package_database or "/dpkg.log" in self.subject

    @property
    def is_package_database(self) -> bool:
        """True for a package manager's database, which is never searched for words: it describes all packages."""
        return self.subject in _PACKAGE_TABLE_FILES

    @property
    def was_answered(self) -> bool:
        """True if the system answered, even if only that there is nothing."""
        return self.outcome in {"ok", "absent"} or bool(self.text)


def split_items(evidence: Evidence) -> tuple[EvidenceItem, ...]:
    """Split ``evidence`` into items, in its order, without probes that were never run."""
    return tuple(item for key, capture in evidence.items() for item in _items_of_capture(key, capture))


def _items_of_capture(key: str, capture: Capture) -> Iterator[EvidenceItem]:
    if capture.outcome == "failed" and capture.error == NOT_CAPTURED_REASON:
        return
    # One unreadable folder does not discard what was found in the others.
    is_answer = capture.outcome == "ok" or bool(capture.data)
    if (
        capture.source.startswith("/")
        and "*" in capture.source
        and is_answer
        and (matches := _decode_matches(capture)) is not None
    ):
        yield from _items_of_glob(key, capture, matches)
        return
    answer = _plain_output_with_error(capture)
    sources = (Source("nvml"),) if key == nvml.NVML_PROBE_KEY else identify_described_sources(capture.source, answer)
    for source, part in _split_text_among_sources(sources, answer):
        own = _extract_own_output(source, part)
        outcome: ProbeOutcome = "absent" if capture.outcome == "ok" and reports_absence(own) else capture.outcome
        if not own.strip() and is_denial(capture):
            outcome = "denied"
        if len(sources) > 1 and outcome == "absent" and not reports_absence(own):
            outcome = "ok"  # another of the commands gave that answer
        yield EvidenceItem(
            key,
            capture.source,
            _mark_complete_if_count_zero(source, own),
            own,
            outcome,
            capture.error,
            capture.exit_status,
        )
        if source.kind == "listing" and program_name(source.words) in _SEARCH_PROGRAMS and outcome == "ok":
            yield from _items_of_search(key, capture.source, source, own)


_SEARCH_PROGRAMS: Final = frozenset({"grep", "egrep", "rg", "zgrep"})
# Only rules that read the complete listing see further matches.
_MAX_GREP_MATCHES: Final = 500
_GREP_LINE: Final = Pattern(r"^(?P<path>/[^\s:]{2,200}):(?:\d{1,6}:)?(?P<line>.*)$", re.MULTILINE)


def _items_of_search(key: str, written: str, source: Source, text: str) -> Iterator[EvidenceItem]:
    """Yield the matches of a recursive search as one item per file."""
    lines_by_path: dict[str, list[str]] = {}
    for number, match in enumerate(islice(_GREP_LINE.finditer(text), _MAX_GREP_MATCHES)):
        lines = lines_by_path.setdefault(match["path"], [])
        lines += [""] * (number - len(lines)) + [match["line"]]
    for path, lines in lines_by_path.items():
        seen = identify_source(path)
        if seen.kind == "file":
            yield EvidenceItem(
                key, written, replace(seen, pattern=source.pattern or ".", is_part=True), "\n".join(lines)
            )


# One-line outputs of some commands: a module's version, the kernel's release, a value of sysfs.
_DRIVER_VERSION_LINE: Final = Pattern(r"\d{3}\.\d{1,3}(?:\.\d{1,3})?")
_KERNEL_RELEASE_LINE: Final = Pattern(r"\d\.\d{1,3}\.\S+")
_NUMBER_LINE: Final = Pattern(r"\d{1,6}")


def _single_line_form(source: Source) -> Pattern | None:
    """Return the pattern of a command's single line of output; None if it prints something else."""
    if source.is_count:
        return _NUMBER_LINE
    if source.kind == "uname":
        return _KERNEL_RELEASE_LINE if "-r" in source.words else None
    if source.kind == "modinfo":
        return _DRIVER_VERSION_LINE if "version" in source.words else None
    if source.kind == "file" and source.subject.startswith("/sys/") and not source.pattern:
        return _DRIVER_VERSION_LINE if source.subject.endswith("/version") else _NUMBER_LINE
    return None


def _split_text_among_sources(sources: tuple[Source, ...], text: str) -> Iterator[tuple[Source, str]]:
    """Yield each source with its part of the text.

    One-line answers are assigned by form if their number matches; the rest goes to every other source.
    """
    if len(sources) == 1:
        yield sources[0], text
        return
    lines = text.split("\n")
    own: dict[int, int] = {}
    for form in (_DRIVER_VERSION_LINE, _KERNEL_RELEASE_LINE, _NUMBER_LINE):
        asking = [place for place, source in enumerate(sources) if _single_line_form(source) is form]
        starts = [number for number, line in enumerate(lines) if form.fullmatch(line.strip())]
        own |= dict(zip(asking, starts, strict=True)) if len(asking) == len(starts) else {}
    own_lines = set(own.values())
    rest = "\n".join("" if number in own_lines else line for number, line in enumerate(lines))
    for place, source in enumerate(sources):
        if (number := own.get(place)) is None:
            yield source, rest
        else:
            yield replace(source, is_mixed=False), "\n" * number + lines[number]


def _extract_own_output(source: Source, text: str) -> str:
    """Return this command's share of a text by several: a JSON object, its "not found" line, or all of it."""
    if not source.is_mixed:
        return text
    if source.subject.endswith(".json") and "{" in text:
        start = text.find("{")
        with suppress(ValueError, RecursionError):
            return text[start : json.JSONDecoder().raw_decode(text, start)[1]]
    is_one = sum(word.startswith("/") for word in source.words[1:]) < 2
    lacks = (
        match[0] for match in _PROGRAM_NOT_FOUND_LINE.finditer(text) if match["name"] == program_name(source.words)
    )
    return next(lacks, text) if is_one else text


# bash: nvidia-container-cli: command not found; ls: cannot access '/dev/nvidia*': No such file or directory
_PROGRAM_NOT_FOUND_LINE: Final = Pattern(
    r"^(?:-?(?:bash|sh|zsh|ash|fish)(?:: line \d+)?: )?(?P<name>[\w.+-]{2,40}): (?:\d+: )?"
    rf"(?:.{{0,200}}(?:not found|[Nn]o such file|{COMMAND_NOT_FOUND_WORDS}|{FILE_NOT_FOUND_WORDS}).*)$",
    re.MULTILINE,
)


def _mark_complete_if_count_zero(source: Source, output: str) -> Source:
    """Mark a count of zero as complete: it says as much as an empty listing."""
    is_none = source.is_count and not source.is_mixed and not re.search(r"[1-9]", output)
    return replace(source, is_part=False) if is_none else source


# These messages about permissions are no answer. In a report, docker's refusal may be the problem itself.
_DENIAL_LINE: Final = Pattern(
    r"^(?:Hint: You are currently not seeing messages from other users|No journal files were opened due to insufficient"
    r" permissions|dmesg: read kernel buffer failed: Operation not permitted"
    r"|[^\n]{0,40}permission denied while trying to connect to the [Dd]ocker )[^\n]*",
    re.MULTILINE,
)
_MAX_DENIAL_LENGTH: Final = 4096


def is_denial(capture: Capture) -> bool:
    """Return whether journalctl, dmesg or gpunode's own docker said that the user may not see all."""
    text = f"{capture.error}\n{capture.text[:_MAX_DENIAL_LENGTH]}"
    programs = ("journalctl", "dmesg") if capture.exit_status is None else ("journalctl", "dmesg", "docker")
    return capture.source.startswith(programs) and _DENIAL_LINE.search(text) is not None


def _plain_output_with_error(capture: Capture) -> str:
    """Return the output as plain lines, with the error of a failed command."""
    answer = capture.text
    if not answer.strip():
        answer = capture.error
    elif capture.outcome == "failed" and capture.error:
        answer = f"{answer.rstrip()}\n{capture.error}"
    if is_denial(capture):
        answer = _DENIAL_LINE.sub("", answer)
    return cut_overlong_lines(_strip_terminal_codes(answer))


def _strip_terminal_codes(text: str) -> str:
    """Return ``text`` without terminal colours and carriage returns."""
    text = text.replace("\r\n", "\n") if "\r" in text else text
    return _TERMINAL_ESCAPE_CODE.sub("", text) if "\x1b" in text else text


def cut_overlong_lines(text: str) -> str:
    """Cut overlong lines of ``text``, except JSON, which programs write in one line."""
    if len(text) <= _MAX_LINE_LENGTH:
        return text
    lines = text.split("\n")
    return "\n".join(map(_cut_overlong_line, lines)) if max(map(len, lines)) > _MAX_LINE_LENGTH else text


# Patterns search line by line; a line of megabytes can only be an attack.
_MAX_LINE_LENGTH: Final = 64 << 10
_MAX_JSON_LINE_LENGTH: Final = 16 << 20
_MAX_NOTE_LENGTH: Final = 80


def _cut_overlong_line(line: str) -> str:
    # Do not cut a line again that was cut and noted before.
    if len(line) <= _MAX_LINE_LENGTH + _MAX_NOTE_LENGTH or (len(line) <= _MAX_JSON_LINE_LENGTH and _is_json(line)):
        return line
    return f"{line[:_MAX_LINE_LENGTH]} … ({len(line) - _MAX_LINE_LENGTH} more characters of this line were not read)"


def _is_json(line: str) -> bool:
    if line.lstrip()[:1] not in {"{", "["}:
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def reports_absence(text: str) -> bool:
    """Return True if ``text`` says only that something does not exist."""
    lines = text[:4096].strip().splitlines()
    return bool(lines) and len(text) < 4096 and all(_ABSENCE_LINE.search(line.strip()) for line in lines)


def _decode_matches(capture: Capture) -> tuple[GlobMatch, ...] | None:
    try:
        return decode_matches(capture.data)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _items_of_glob(key: str, capture: Capture, matches: tuple[GlobMatch, ...]) -> Iterator[EvidenceItem]:
    """Yield a listing of the matches, and each file that was read."""
    listing = "\n".join(f"{match.path} -> {match.link}" if match.link else match.path for match in matches)
    yield EvidenceItem(key, capture.source, Source("listing", capture.source), listing, capture.outcome, capture.error)
    for match in matches:
        if match.data is not None and not _is_config_without_effect(match.path):
            text = match.data.decode("utf-8", "replace")
            # A wrapper script's content is not program output.
            source = Source("file", match.path) if "/bin/" in match.path else identify_source(match.path, text)
            yield EvidenceItem(key, match.path, source, text)
        elif match.denied and not _is_config_without_effect(match.path):
            yield EvidenceItem(key, match.path, identify_source(match.path), "", "denied")


# Only *.conf is read in these; backups that an editor or a remedy left have no effect.
_FOLDERS_READING_CONF_ONLY: Final = ("/etc/modprobe.d/", "/etc/modules-load.d/", "/etc/ld.so.conf.d/")


def _is_config_without_effect(path: str) -> bool:
    return path.startswith(_FOLDERS_READING_CONF_ONLY) and not path.endswith(".conf")
