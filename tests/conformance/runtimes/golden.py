"""The vectors: the arguments, input and output of the real nvidia-ctk, laid out as root folders for gpunode."""

from __future__ import annotations

import json
import re
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from gpunode.journal.store import Store

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent / "vectors"
# gpunode's own.
_OWN = ("var/lib/gpunode", "var/log/gpunode", "run/gpunode")
Tree: TypeAlias = Mapping[str, tuple[int, bytes]]


@dataclass(frozen=True, slots=True)
class Vector:
    """A run of nvidia-ctk.

    Attributes:
        folder: the folder with the files that SOURCE.md describes.
        told: the content of vector.json.
    """

    folder: Path
    told: Mapping[str, Any]

    @property
    def number(self) -> int:
        """The number at the beginning of the folder's name."""
        return int(self.folder.name[:3])

    @property
    def verdict(self) -> str:
        """The expected result of gpunode."""
        return str(self.told["gpunode_should"])

    @property
    def files(self) -> dict[str, bytes]:
        """Every input file of nvidia-ctk, by its path."""
        config, drop_in = self.paths
        files = {config: self.read("input"), drop_in: self.read("input-dropin"), **self.others("input")}
        return {path: data for path, data in files.items() if data is not None}

    @property
    def paths(self) -> tuple[str, str]:
        """The paths of the configuration and the drop-in; the second is empty for runtimes without one."""
        return self.told["config_path"], self.told["dropin_path"] or ""

    def argv(self, root: Path) -> list[str]:
        """gpunode's arguments for the same command, in the vector's mode and with ``root`` for the chroot."""
        words = ["ctk", *self.told["command"], *self.told["argv"], "--root", str(root)]
        return words if self.runtime == "toolkit-config" else [*words, "--mode", self.told["mode"]]

    def undo(self, root: Path) -> list[str]:
        """Return the arguments that undo it."""
        if self.runtime == "toolkit-config":
            return ["rollback", "--root", str(root), "--yes"]
        kept = ("--runtime", "--config", "--drop-in-config", "--nvidia-runtime-name")
        words = [word for word in self.told["argv"] if word.partition("=")[0] in kept]
        return ["ctk", "runtime", "unconfigure", *words, "--root", str(root)]

    @property
    def programs(self) -> set[str]:
        """The programs configured for the runtime: gpunode requires them before making it the default."""
        named = (word.partition("=")[2] for word in self.told["argv"] if "runtime-path=" in word)
        return {"/usr/bin/nvidia-container-runtime", *(path for path in named if path.startswith("/"))}

    @property
    def runtime(self) -> str:
        """The runtime that the configuration belongs to."""
        return str(self.told["runtime"])

    def read(self, name: str) -> bytes | None:
        """Return the vector's file of that name, whatever its suffix."""
        found = [path for path in self.folder.iterdir() if path.stem == name and path.suffix in {".toml", ".json"}]
        return found[0].read_bytes() if found else None

    def others(self, kind: str) -> dict[str, bytes]:
        """Return further files by their path: ``input`` or ``expected``."""
        start = f"{kind}-other__"
        return {
            "/" + path.name.removeprefix(start).replace("__", "/"): path.read_bytes()
            for path in self.folder.glob(f"{start}*")
        }

    @property
    def stdout(self) -> str | None:
        """The output of nvidia-ctk; None if it printed nothing."""
        file = self.folder / "expected-stdout.txt"
        return file.read_text() if file.exists() else None

    @property
    def ours(self) -> Sequence[str]:
        """The reason why gpunode's answer differs, then the words that it must contain; empty if it does not differ."""
        file = self.folder / "ours.txt"
        return file.read_text().splitlines() if file.exists() else ()

    @property
    def is_refused(self) -> bool:
        """True if gpunode stops: the vector asks for it, or ours.txt names words of the message."""
        return self.verdict == "refuse" or len(self.ours) > 1

    def lay_out(self, root: Path) -> None:
        """Write nvidia-ctk's input files to ``root``."""
        (root / "etc").mkdir(parents=True)
        for path, data in self.files.items():
            file = Path(f"{root}{path}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        for program in self.programs:
            file = Path(f"{root}{program}")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(0o755)
        if self.number == 61:
            Path(f"{root}{self.paths[0]}").mkdir(parents=True)


def vectors() -> list[Vector]:
    """Return all of them, by their numbers."""
    return [Vector(folder, json.loads((folder / "vector.json").read_text())) for folder in sorted(FOLDER.iterdir())]


def tree(root: Path) -> Tree:
    """Return every file below ``root`` with its mode and bytes, except gpunode's own."""
    return dict(_files(root))


def _files(root: Path) -> Iterator[tuple[str, tuple[int, bytes]]]:
    for path in sorted(root.rglob("*")):
        inside = str(path.relative_to(root))
        if path.is_file() and not inside.startswith(_OWN):
            yield f"/{inside}", (stat.S_IMODE(path.stat().st_mode), path.read_bytes())


def runs(root: Path) -> tuple[str, ...]:
    """Return the runs that are recorded in ``root``."""
    return Store(root).ids()


def parsed(path: str, data: bytes) -> Any:
    """Return the parsed file at ``path``."""
    text = data.decode().removeprefix("\ufeff")
    return json.loads(text) if path.endswith(".json") else tomllib.loads(text)


_NO_COMMENT = r"\"{3}(?:\\.|[^\\])*?\"{3}|'{3}.*?'{3}|\"(?:\\.|[^\"\\\n])*\"|'[^'\n]*'"


def comments(text: str) -> list[str]:
    """Return every comment of a TOML document."""
    found = re.findall(rf"{_NO_COMMENT}|(#[^\r\n]*)", text, re.DOTALL)
    return [comment.rstrip() for comment in found if comment]


# Additions that the quirk of a match-plus vector permits.
_RUNC = ("plugins", "*", "containerd", "runtimes", "runc")
_OTHER_KEYS = ("plugins", "*", "containerd", "runtimes", "nvidia")
_DEFAULT = ("plugins", "*", "containerd", "default_runtime_name")
_MAY_ADD: Mapping[int, tuple[tuple[str, ...], ...]] = {
    **dict.fromkeys((1, 2, 3, 4, 10, 25, 29, 32, 56, 63, 64, 79), (_RUNC,)),
    12: (_OTHER_KEYS, _DEFAULT),
    13: (_OTHER_KEYS,),
    49: (_RUNC, _OTHER_KEYS),
    69: (_OTHER_KEYS,),
}


def judge(vector: Vector, files: Mapping[str, bytes]) -> None:
    """Assert that the configuration and the drop-in among ``files`` are the vector's expected answer."""
    config, drop_in = vector.paths
    own = bool(vector.ours)
    answer = {config: vector.read("ours" if own else "expected"),
              drop_in: vector.read("ours-dropin" if own else "expected-dropin")}  # fmt: skip
    wanted = {path: data if data is not None or not own else vector.files.get(path) for path, data in answer.items()}
    for path, data in wanted.items():
        if data is None:
            assert path not in files, f"there is a {path}"
            continue
        ours, theirs = parsed(path, files[path]), parsed(path, data)
        if vector.verdict == "match-plus" and not own:
            assert _missing(ours, theirs) == []
            assert [way for way in _added(ours, theirs) if not _may_add(vector, way)] == []
        else:
            assert ours == theirs, path


def _may_add(vector: Vector, way: Sequence[str]) -> bool:
    starts = _MAY_ADD.get(vector.number, ())
    return any(
        len(way) >= len(start) and all(mine in {"*", other} for mine, other in zip(start, way, strict=False))
        for start in starts
    )


def _missing(found: Any, wanted: Any) -> list[tuple[str, ...]]:
    """Return the key paths that ``found`` lacks or changes compared with ``wanted``; lists are values."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        return [(key, *way) for key in wanted for way in (_missing(found[key], wanted[key]) if key in found else [()])]
    numbers = [isinstance(value, int | float) and not isinstance(value, bool) for value in (found, wanted)]
    # nvidia-ctk converts every number to a float and back.
    same = float(found) == float(wanted) if all(numbers) else found == wanted
    return [] if same else [()]


def _added(found: Any, wanted: Any) -> list[tuple[str, ...]]:
    """Return the key paths in ``found`` that ``wanted`` lacks."""
    return [way for way in _missing(wanted, found) if way not in _missing(found, wanted)]
