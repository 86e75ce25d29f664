"""Possible contents of a disk after a power cut, derived from the calls before it. Pure.

A call is an event with one effect, which reaches the disk independently: on the entries of a folder, or on a file's
bytes, size, mode or owner. ``fsync`` of a file brings the effects on its bytes and attributes to the disk, of a folder
those on its entries, and nothing else. All other effects are *pending*: each of them may be lost, independently of the
others. Linux's file systems promise more (a new file that is synced has its name there, journaled entries keep their
order), so a program that survives here survives there.

Not modelled: a half-lost rename, stale bytes of other files in new blocks, a disk that wrongly reports "synced".
``/run`` is in memory, so its content is lost.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TypeAlias

# The unit in which a disk writes; a partly written call is a number of complete units.
SECTOR = 512
_RANDOM_SUBSETS = 4
_ANY = range(1, 1 << 31)


@dataclass(frozen=True, slots=True)
class Made:
    """A new file or folder exists."""

    path: str
    mode: int
    is_folder: bool = False


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes were written to a file at ``offset``."""

    path: str
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized:
    """A file has the length ``size``."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """``path`` was renamed to ``new`` in the same folder, replacing what had that name."""

    path: str
    new: str


@dataclass(frozen=True, slots=True)
class Removed:
    """A name was removed."""

    path: str


@dataclass(frozen=True, slots=True)
class Changed:
    """A mode or an owner changed; None is unchanged."""

    path: str
    mode: int | None = None
    owner: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Synced:
    """fsync of a file or a folder has returned."""

    path: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A command has returned: its caller may rely on its answer."""

    path: str = ""


Event: TypeAlias = Made | Written | Resized | Renamed | Removed | Changed | Synced | Ended


@dataclass(frozen=True, slots=True)
class Node:
    """A file or a folder of a tree; ``data`` None is a folder."""

    mode: int
    uid: int
    gid: int
    data: bytes | None


Tree: TypeAlias = Mapping[str, Node]


@dataclass(frozen=True, slots=True)
class _Entries:
    """Names of one folder, each with its inode or None; the two names of a rename reach the disk together."""

    inode: int
    names: tuple[tuple[str, int | None], ...]


@dataclass(frozen=True, slots=True)
class _Bytes:
    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class _Size:
    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class _Attributes:
    inode: int
    mode: int | None
    owner: tuple[int, int] | None


_Effect: TypeAlias = _Entries | _Bytes | _Size | _Attributes


@dataclass(frozen=True, slots=True)
class Cut:
    """The power fails after ``events`` of a recording.

    Attributes:
        kept: the pending effects that reached the disk, in words.
        tree: the content afterwards.
    """

    events: int
    kept: str
    tree: Tree


@dataclass(slots=True)
class _Disk:
    """Inodes by number; 0 is the root."""

    nodes: dict[int, Node] = field(default_factory=dict)
    entries: dict[int, dict[str, int]] = field(default_factory=dict)

    def copy(self) -> _Disk:
        return _Disk(dict(self.nodes), {inode: dict(names) for inode, names in self.entries.items()})

    def add(self, node: Node) -> int:
        number = len(self.nodes)
        self.nodes[number] = node
        if node.data is None:
            self.entries[number] = {}
        return number

    def find(self, path: str) -> int | None:
        inode: int | None = 0
        for name in PurePosixPath(path).parts[1:]:
            inode = self.entries.get(inode, {}).get(name) if inode is not None else None
        return inode

    def content(self, inode: int) -> bytes:
        data = self.nodes[inode].data
        assert data is not None, "a folder has no bytes"
        return data

    def apply(self, effect: _Effect) -> None:
        node = self.nodes[effect.inode]
        match effect:
            case _Entries(inode=inode, names=names):
                for name, target in names:
                    if target is None:
                        self.entries[inode].pop(name, None)
                    else:
                        self.entries[inode][name] = target
            case _Bytes(inode=inode, offset=offset, data=data):
                old = self.content(inode).ljust(offset, b"\0")
                node = Node(node.mode, node.uid, node.gid, old[:offset] + data + old[offset + len(data) :])
            case _Size(inode=inode, size=size):
                node = Node(node.mode, node.uid, node.gid, self.content(inode)[:size].ljust(size, b"\0"))
            case _Attributes(mode=mode, owner=owner):
                uid, gid = owner or (node.uid, node.gid)
                node = Node(node.mode if mode is None else mode, uid, gid, node.data)
        self.nodes[effect.inode] = node

    def tree(self) -> dict[str, Node]:
        found, folders = {"/": self.nodes[0]}, [("", 0)]
        while folders:  # a recursion with Path took half of the time of these tests
            above, number = folders.pop()
            for name, inode in self.entries[number].items():
                path = f"{above}/{name}"
                found[path] = self.nodes[inode]
                if inode in self.entries:
                    folders.append((path, inode))
        return found


class Machine:
    """A file system as its processes see it, and the part of it that is on the disk."""

    def __init__(self, tree: Tree) -> None:
        self._live = _Disk()
        for path in sorted(tree):
            self._put(path, tree[path])
        self._durable = self._live.copy()
        self._pending: list[_Effect] = []

    def _put(self, path: str, node: Node) -> None:
        inode = self._live.add(node)
        if path != "/":
            folder, name = self._place(path)
            self._live.apply(_Entries(folder, ((name, inode),)))

    def _place(self, path: str) -> tuple[int, str]:
        where = PurePosixPath(path)
        return self._inode(str(where.parent)), where.name

    def _inode(self, path: str) -> int:
        inode = self._live.find(path)
        assert inode is not None, f"the recording speaks of {path}, which is not there"
        return inode

    def holds(self, path: str) -> bool:
        """True if something exists at ``path``."""
        return self._live.find(path) is not None

    def size(self, path: str) -> int:
        """Return the length of the file."""
        return len(self._live.content(self._inode(path)))

    @property
    def tree(self) -> Tree:
        """The tree that processes see, which is also what a kill without a power cut leaves."""
        return self._live.tree()

    def see(self, event: Event) -> None:
        """Apply ``event``."""
        if isinstance(event, Synced):
            self._sync(self._inode(event.path))
        elif not isinstance(event, Ended):
            effect = self._effect(event)
            self._live.apply(effect)
            self._pending.append(effect)

    def _sync(self, inode: int) -> None:
        for effect in self._pending:
            if effect.inode == inode:
                self._durable.apply(effect)
        self._pending = [effect for effect in self._pending if effect.inode != inode]

    def _effect(self, event: Made | Written | Resized | Renamed | Removed | Changed) -> _Effect:
        match event:
            case Made(path=path, mode=mode, is_folder=is_folder):
                folder, name = self._place(path)
                node = Node(mode, 0, 0, None if is_folder else b"")
                inode = self._live.add(node)
                assert self._durable.add(node) == inode
                return _Entries(folder, ((name, inode),))
            case Renamed(path=path, new=new):
                folder, name = self._place(path)
                new_folder, new_name = self._place(new)
                assert folder == new_folder, f"{path} moves to another folder: that is not modelled"
                return _Entries(folder, ((name, None), (new_name, self._inode(path))))
            case Removed(path=path):
                folder, name = self._place(path)
                return _Entries(folder, ((name, None),))
            case Written(path=path, offset=offset, data=data):
                return _Bytes(self._inode(path), offset, data)
            case Resized(path=path, size=size):
                return _Size(self._inode(path), size)
            case Changed(path=path, mode=mode, owner=owner):
                return _Attributes(self._inode(path), mode, owner)

    def cuts(self, random_subsets: random.Random) -> Iterator[tuple[str, Tree]]:
        """Yield each possible content of the disk if the power fails now, with a description of what was kept."""
        for kept, effects in _losses(tuple(self._pending), random_subsets):
            disk = self._durable.copy()
            for effect in effects:
                disk.apply(effect)
            yield kept, {path: node for path, node in disk.tree().items() if not path.startswith("/run/")}


def _losses(pending: Sequence[_Effect], chance: random.Random) -> Iterator[tuple[str, Sequence[_Effect]]]:
    yield "nothing that was pending", ()
    for count in range(1, len(pending)):
        yield f"the first {count} of {len(pending)} pending effects", pending[:count]
    yield "all that was pending", pending
    for index in range(len(pending)):
        rest = (*pending[:index], *pending[index + 1 :])
        yield f"all pending effects but number {index + 1}", rest
        yield f"pending effect number {index + 1} alone", pending[index : index + 1]
    yield "names and attributes, no bytes", [one for one in pending if not isinstance(one, _Bytes)]
    yield "names, attributes and sizes, zeroes for bytes", [_zeroed(one, 0) for one in pending]
    for index, effect in enumerate(pending):
        for how, torn in _torn(effect) if isinstance(effect, _Bytes) else ():
            yield f"all, {how} of number {index + 1}", (*pending[:index], torn, *pending[index + 1 :])
            yield f"the first {index + 1}, {how} of the last", (*pending[:index], torn)
    for _ in range(_RANDOM_SUBSETS):
        chosen = [effect for effect in pending if chance.random() < 0.5]
        yield "a random half of what was pending", chosen


def _torn(effect: _Bytes) -> Iterator[tuple[str, _Bytes]]:
    """Yield writes of which only a part reached the disk."""
    half = len(effect.data) // 2
    for length in {1, half, len(effect.data) - 1} - {0, len(effect.data)}:
        yield f"the first {length} bytes", replace(effect, data=effect.data[:length])
        yield f"{length} bytes and zeroes", replace(effect, data=effect.data[:length].ljust(len(effect.data), b"\0"))
    first = SECTOR - effect.offset % SECTOR
    if first < len(effect.data):
        yield "all but the first sector", _zeroed_bytes(effect, 0, first)


def _zeroed(effect: _Effect, start: int) -> _Effect:
    return _zeroed_bytes(effect, start, len(effect.data)) if isinstance(effect, _Bytes) else effect


def _zeroed_bytes(effect: _Bytes, start: int, stop: int) -> _Bytes:
    return replace(effect, data=effect.data[:start] + b"\0" * (stop - start) + effect.data[stop:])


def cuts(before: Tree, recording: Iterable[Event], *, seed: int = 0, at: Container[int] = _ANY) -> Iterator[Cut]:
    """Yield every crash state after each event, once; states with different running commands count as different.

    Args:
        before: the content of the disk at the start.
        recording: the events since then.
        seed: the seed of the random choices.
        at: the numbers of events after which the power may fail.
    """
    machine, chance = Machine(before), random.Random(seed)
    seen: set[tuple[int, frozenset[tuple[str, Node]]]] = set()
    ended = 0
    for count, event in enumerate(recording, 1):
        machine.see(event)
        ended += isinstance(event, Ended)
        for kept, tree in machine.cuts(chance) if count in at else ():
            state = (ended, frozenset(tree.items()))
            if state not in seen:
                seen.add(state)
                yield Cut(count, kept, tree)
