"""Configuration files, their settings compared one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses.model import StoreyId
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.traits.model import Judgement, Lack, Reading, Trait, always, by_name, each, lack_of
from gpunode.facts.items import Item
from gpunode.toml import loads


@dataclass(frozen=True, slots=True)
class _File:
    """A configuration file, or all of a folder."""

    path: str
    judge: Callable[[str, str], Judgement]
    storeys: tuple[StoreyId, ...]

    def read(self, snapshot: Snapshot) -> Reading:
        """Its settings; none where it is known not to be there."""
        if "*" in self.path:
            return in_folders(snapshot, (self.path.rpartition("/")[0],), settings)
        item = snapshot.file(self.path)
        lack = _lack(item)
        values = {} if lack or item is None or item.outcome != "ok" else dict(settings(item))
        # Of a file that no parser takes nobody can say what it does not hold.
        rest = "failed" if _UNPARSED in values.values() else lack
        return Reading(values, lambda name: lack if name in {"", self.path} else rest)

    @property
    def trait(self) -> Trait:
        """Its row."""
        words = (self.path.rstrip("*"),)
        return Trait(f"file:{self.path}", self.path, self.storeys, each(self.read), self.judge, words)


def _lack(item: Item | None) -> Lack:
    """Why the file is not shown whole; empty where it is, or is not there."""
    is_cut = item is not None and (item.source.is_part or bool(item.source.only))
    return "not asked" if is_cut else lack_of(item)


def in_folders(
    snapshot: Snapshot, folders: tuple[str, ...], read: Callable[[Item], Iterator[tuple[str, str]]]
) -> Reading:
    """What ``read`` finds in the files of ``folders``; each of its names begins with the file's."""
    found = [item for folder in folders for item in snapshot.items if _is_in(item, folder)]
    values = {name: value for item in found if not _lack(item) and item.outcome == "ok" for name, value in read(item)}
    unread = {item.subject: why for item in found if (why := _lack(item))}
    whole = {folder: _of_folder(snapshot, folder) for folder in folders}

    def lack(name: str) -> Lack:
        if not name:
            told = [*whole.values(), *unread.values()]
            return "" if "" in told else next((one for one in told if one != "not asked"), "not asked")
        path = name.partition(": ")[0]
        return unread.get(path) or ("" if any(_is_of(item, path) for item in found) else whole[_folder(path, folders)])

    return Reading(values, lack)


def _folder(path: str, folders: tuple[str, ...]) -> str:
    return next((folder for folder in folders if path.startswith(f"{folder}/")), folders[0])


def _is_in(item: Item, folder: str) -> bool:
    """Whether it is one file of the folder, and not a look at the folder as a whole."""
    is_file = item.kind != "listing" and not item.source.words and "*" not in item.subject
    return is_file and item.subject.rpartition("/")[0] == folder


def _is_of(item: Item, path: str) -> bool:
    return item.subject == path and item.kind != "listing"


def _of_folder(snapshot: Snapshot, folder: str) -> Lack:
    """Why a file that was not found in the folder may be there all the same; empty where it is not."""
    looked = [item for item in snapshot.items if "*" in item.written and item.written.rpartition("/")[0] == folder]
    whole = [item for item in looked if item.subject == item.written]
    return next((lack_of(item) for item in whole), "not asked")


_UNPARSED: Final = "cannot be parsed"


def settings(item: Item) -> Iterator[tuple[str, str]]:
    """The settings in a file, each named by the file and its own key."""
    for name, value in _settings(item):
        yield f"{item.subject}: {name}" if name else item.subject, value


def _settings(item: Item) -> Iterator[tuple[str, str]]:
    """The settings in JSON or TOML by their keys; of anything else every line that is no comment."""
    try:
        if item.subject.endswith(".json"):
            yield from _flat(json.loads(item.text), "")
            return
        if item.subject.endswith(".toml"):
            yield from _flat(loads(item.text), "")
            return
    except (ValueError, RecursionError):
        yield "", _UNPARSED
        return
    for line in item.lines:
        words = " ".join(line.split())
        if words and not words.startswith(("#", "//", ";")):
            yield words, "there"


def _flat(value: object, above: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict) and value:
        for name, one in value.items():
            yield from _flat(one, f"{above}.{name}" if above else str(name))
    else:
        yield above, json.dumps(value, default=str, ensure_ascii=False)


_RUNTIME: Final = by_name(
    (r"cannot be parsed", "likely", "a daemon does not start with a file that it cannot read"),
    (r"nvidia|runtime|cgroup|cdi|disabled_plugins|exec-opts|hooks|imports", "likely",
     "containers get their GPUs through these settings"),
    (r"data-root|storage|root|state|debug|log", "background", "where things are kept or told"),
    (r"", "possible", "the daemon is set up otherwise"),
)  # fmt: skip
_BOOT: Final = by_name(
    (
        r"nvidia|nouveau|nova|vfio|blacklist",
        "likely",
        "it decides which driver takes the GPU, and with what parameters",
    ),
    (r"", "background", "modules are set up otherwise"),
)
_TOOLKIT: Final = always("likely", "the toolkit finds driver and device nodes through these settings")
_KUBELET: Final = by_name(
    (r"cgroup|cpuManager|topologyManager|memoryManager|featureGates|kubeReserved|containerRuntime", "possible",
     "the kubelet gives devices, processors and cgroups to pods by these settings"),
    (r"", "background", "the kubelet is set up otherwise"),
)  # fmt: skip
_LOADER: Final = by_name(
    (r"nvidia|cuda|stubs|LD_", "likely", "programs may load another libcuda than the driver's"),
    (r"", "background", "the environment is set up otherwise"),
)
_PIN: Final = by_name(
    (r"nvidia|cuda|driver", "possible", "it decides which driver apt takes next"),
    (r"", "background", "packages are pinned otherwise"),
)
_FILES: Final = (
    _File("/etc/docker/daemon.json", _RUNTIME, ("runtime",)),
    _File("/etc/containerd/config.toml", _RUNTIME, ("runtime",)),
    _File("/etc/nvidia-container-runtime/config.toml", _TOOLKIT, ("toolkit",)),
    _File("/etc/modprobe.d/*", _BOOT, ("kernel", "driver")),
    _File("/etc/modules-load.d/*", _BOOT, ("kernel", "driver")),
    _File("/etc/modules", _BOOT, ("kernel", "driver")),
    _File("/etc/ld.so.conf.d/*", _LOADER, ("libraries",)),
    _File("/etc/ld.so.preload", _LOADER, ("libraries",)),
    _File("/etc/environment", _LOADER, ("libraries",)),
    _File("/etc/nvidia/gridd.conf", _TOOLKIT, ("driver",)),
    _File("/var/lib/kubelet/config.yaml", _KUBELET, ("kubernetes",)),
    _File("/etc/apt/preferences.d/*", _PIN, ("packages",)),
)

TRAITS: Final[tuple[Trait, ...]] = tuple(one.trait for one in _FILES)
