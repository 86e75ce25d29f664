"""Recording of every call of a command that changes a file system, in order, with strace."""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.power.disk import (
    Changed,
    Ended,
    Event,
    Machine,
    Made,
    Node,
    Removed,
    Renamed,
    Resized,
    Synced,
    Tree,
    Written,
)
from tests.needs import lacking

# Every call that can change or sync a file or folder; unsupported forms are refused below.
_CALLS = (
    *("open", "openat", "openat2", "creat", "write", "writev", "pwrite64", "pwritev", "pwritev2", "truncate"),
    *("ftruncate", "fallocate", "copy_file_range", "sendfile", "splice", "fsync", "fdatasync", "sync", "syncfs"),
    *(
        "sync_file_range",
        "msync",
        "rename",
        "renameat",
        "renameat2",
        "link",
        "linkat",
        "symlink",
        "symlinkat",
        "unlink",
    ),
    *("unlinkat", "mkdir", "mkdirat", "rmdir", "mknod", "mknodat", "chmod", "fchmod", "fchmodat", "chown", "fchown"),
    *("lchown", "fchownat", "setxattr", "lsetxattr", "fsetxattr", "removexattr", "lremovexattr", "fremovexattr"),
    "io_uring_setup",
)
_OPENING = frozenset({"open", "openat", "openat2", "creat"})
_LINE = re.compile(r"(?P<pid>\d+) +(?P<call>\w+)\((?P<arguments>.*)\) += (?P<result>-?\d+)(?:<(?P<opened>[^>]*)>)?.*")
_UNFINISHED = re.compile(r"(?P<pid>\d+) +(?P<begun>\w+\(.*) <unfinished \.\.\.>")
_RESUMED = re.compile(r"(?P<pid>\d+) +<\.\.\. \w+ resumed>(?P<rest>.*)")
_ARGUMENT = re.compile(r'"(?P<string>[^"]*)"(?:\.\.\.)?|(?P<fd>-?\d+|AT_FDCWD)<(?P<path>[^>]*)>|(?P<word>[^,\s"<>]+)')
_BYTE = re.compile(r"\\x([0-9a-f]{2})")
_UMASK = 0o022


def cannot_trace() -> str:
    """Return why nothing can be recorded here; empty if it can."""
    if reason := lacking("strace"):
        return reason
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return "" if probe.returncode == 0 else f"strace cannot trace here: {probe.stderr.decode().strip()}"


def tree_of(root: Path) -> Tree:
    """Return the files and folders below ``root``, which is ``/``."""
    paths = [root, *root.rglob("*")]
    return {str(Path("/", path.relative_to(root))): _node(path) for path in paths}


def _node(path: Path) -> Node:
    status = path.lstat()
    assert stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode), f"{path} is not modelled"
    data = path.read_bytes() if stat.S_ISREG(status.st_mode) else None
    return Node(stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, data)


def record(argv: Sequence[str], root: Path, log: Path) -> list[Event]:
    """Record the calls of ``argv`` below ``root``, replay them and compare the result; it must exit with 0."""
    root = root.resolve()
    machine = Machine(tree_of(root))
    traced = ["strace", "-f", "-y", "-xx", "-s", "100000000", "-e", f"trace={','.join(_CALLS)}", "-e", "signal=none"]
    done = subprocess.run([*traced, "-o", str(log), *argv], umask=_UMASK, capture_output=True, check=False, cwd="/")
    said = done.stderr.decode(errors="replace") + done.stdout.decode(errors="replace")
    assert done.returncode == 0, f"{' '.join(argv)} exited with {done.returncode}:\n{said}"
    reader = _Reader(str(root), machine)
    events = [event for line in log.read_text().splitlines() for event in reader.events(line)]
    assert machine.tree == tree_of(root), "the recording does not lead to what is there: a call was missed"
    return [*events, Ended()]


@dataclass(frozen=True, slots=True)
class _Word:
    """An argument: a string with its bytes, a descriptor with the path that it is open on, or a number or flags."""

    kind: str
    text: str
    data: bytes = b""
    path: str = ""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call that succeeded."""

    pid: str
    name: str
    words: tuple[_Word, ...]
    result: int
    opened: str

    @property
    def paths(self) -> tuple[str, ...]:
        """The files of the call: the one behind its descriptor, or the given names."""
        if self.words[:1] and self.words[0].kind == "fd" and not re.search("at2?$", self.name):
            return (self.words[0].path,)
        above = ("", *(word.path for word in self.words))
        return tuple(
            os.path.normpath(os.path.join(above[index], word.text))
            for index, word in enumerate(self.words)
            if word.kind == "string"
        )

    @property
    def numbers(self) -> tuple[str, ...]:
        return tuple(word.text for word in self.words if word.kind == "word")

    @property
    def owner(self) -> tuple[int, int]:
        """The two numbers after the path or the descriptor."""
        uid, gid = [number for number in self.numbers if number.lstrip("-").isdecimal()][:2]
        return int(uid), int(gid)

    @property
    def mode(self) -> int:
        """The mode, which strace prints in octal."""
        return int(next(number for number in reversed(self.numbers) if number.startswith("0")), 8)


@dataclass(slots=True)
class _Reader:
    """Converts strace's lines to events; ``machine`` follows them, since a call's meaning depends on existing files."""

    root: str
    machine: Machine
    unfinished: dict[str, str] = field(default_factory=dict)
    positions: dict[tuple[str, str], int | None] = field(default_factory=dict)

    def events(self, line: str) -> Iterator[Event]:
        if (begun := _UNFINISHED.fullmatch(line)) is not None:
            self.unfinished[begun["pid"]] = begun["begun"]
            return
        if (resumed := _RESUMED.fullmatch(line)) is not None:
            line = f"{resumed['pid']} {self.unfinished.pop(resumed['pid'])}{resumed['rest']}"
        match = _LINE.fullmatch(line)
        if match is None or int(match["result"]) < 0:
            return
        words, opened = _words(match["arguments"]), _text(match["opened"] or "")
        call = _Call(match["pid"], match["call"], words, int(match["result"]), opened)
        for event in self._opened(call) if call.name in _OPENING else self._changed(call):
            self.machine.see(event)
            yield event

    def _opened(self, call: _Call) -> Iterator[Event]:
        self.positions.pop((call.pid, str(call.result)), None)
        path = self._inside(call.opened)
        flags = {flag for word in call.numbers for flag in word.split("|") if flag.startswith("O_")}
        if path is None or not flags & {"O_WRONLY", "O_RDWR", "O_CREAT"}:
            return
        assert "O_TMPFILE" not in flags, "a file without a name is not modelled"
        if not self.machine.holds(path):
            yield Made(path, call.mode & ~_UMASK)
        elif "O_TRUNC" in flags:
            yield Resized(path, 0)
        self.positions[call.pid, str(call.result)] = None if "O_APPEND" in flags else 0

    def _changed(self, call: _Call) -> Iterator[Event]:
        paths = [inside for path in call.paths if (inside := self._inside(path)) is not None]
        if not paths:
            return
        if call.name in {"write", "pwrite64", "ftruncate"}:
            yield self._content(call, paths[0])
        else:
            yield _naming(call, paths)

    def _content(self, call: _Call, path: str) -> Event:
        if call.name == "ftruncate":
            return Resized(path, int(call.numbers[-1]))
        offset = self._advance(call, path) if call.name == "write" else int(call.numbers[-1])
        return Written(path, offset, call.words[1].data[: call.result])

    def _advance(self, call: _Call, path: str) -> int:
        """Return the offset of a write, and move the descriptor's position past it."""
        key = (call.pid, call.words[0].text)
        assert key in self.positions, f"{path} is written through a descriptor from elsewhere: that is not modelled"
        position = self.positions[key]
        if position is None:
            return self.machine.size(path)
        self.positions[key] = position + call.result
        return position

    def _inside(self, path: str) -> str | None:
        """Return the path relative to the root; None for a path elsewhere."""
        if path == self.root:
            return "/"
        return path.removeprefix(self.root) if path.startswith(f"{self.root}/") else None


def _naming(call: _Call, paths: Sequence[str]) -> Event:
    path = paths[0]
    match call.name:
        case "fsync" | "fdatasync":
            return Synced(path)
        case "rename" | "renameat" | "renameat2":
            return Renamed(path, paths[1])
        case "unlink" | "unlinkat" | "rmdir":
            return Removed(path)
        case "mkdir" | "mkdirat":
            return Made(path, call.mode & ~_UMASK, is_folder=True)
        case "chmod" | "fchmod" | "fchmodat":
            return Changed(path, mode=call.mode)
        case "chown" | "fchown" | "lchown" | "fchownat":
            return Changed(path, owner=call.owner)
        case _:
            pass
    raise AssertionError(f"{call.name} on {path} is not modelled")


def _words(arguments: str) -> tuple[_Word, ...]:
    return tuple(map(_word, _ARGUMENT.finditer(arguments)))


def _word(match: re.Match[str]) -> _Word:
    if match["string"] is not None:
        data = _bytes(match["string"])
        return _Word("string", os.fsdecode(data), data)
    if match["fd"] is not None:
        return _Word("fd", match["fd"], path=_text(match["path"]))
    return _Word("word", match["word"])


def _bytes(quoted: str) -> bytes:
    assert not _BYTE.sub("", quoted), f"strace printed {quoted!r}, not hexadecimal"
    return bytes.fromhex(quoted.replace("\\x", ""))


def _text(quoted: str) -> str:
    return os.fsdecode(_bytes(quoted)) if "\\x" in quoted else quoted
