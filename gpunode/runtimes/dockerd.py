"""dockerd's command line, and its conflicts with the configuration file. Pure.

dockerd does not start, and reloads nothing, when a directive is in both; only for runtimes it accepts those of
either, the file's first.

Source: dockerd 20.10.24, 26.1.5 and 28.5.2, started; moby, daemon/config, findConfigurationConflicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpunode.facts import systemd

# Flags whose directive in the file has another name; a flag that can be given twice has a plural there.
_DIRECTIVE_BY_FLAG = {
    "add-runtime": "runtimes",
    "authorization-plugin": "authorization-plugins",
    "cdi-spec-dir": "cdi-spec-dirs",
    "default-address-pool": "default-address-pools",
    "default-ulimit": "default-ulimits",
    "dns-opt": "dns-opts",
    "exec-opt": "exec-opts",
    "feature": "features",
    "host": "hosts",
    "insecure-registry": "insecure-registries",
    "label": "labels",
    "log-opt": "log-opts",
    "node-generic-resource": "node-generic-resources",
    "registry-mirror": "registry-mirrors",
    "storage-opt": "storage-opts",
}
_LONG_FLAG_BY_SHORT = {
    "b": "bridge",
    "D": "debug",
    "G": "group",
    "g": "graph",
    "H": "host",
    "l": "log-level",
    "p": "pidfile",
    "s": "storage-driver",
}
_SHORT_FLAGS_WITHOUT_VALUE = frozenset("D")
_MERGED_DIRECTIVES = frozenset({"runtimes"})
_TRUE = frozenset({"1", "t", "true"})


# What dockerd's log says of a SIGHUP: begun and done at level info, rejected at level error.
# Source: moby v20.10.24, v26.1.5 and v28.5.2: daemon/config, daemon/reload.go, cmd/dockerd/daemon.go.
_RELOAD_BEGUN_MESSAGE = "Got signal to reload configuration"
_RELOAD_DONE_MESSAGE = "Reloaded configuration:"
_RELOAD_REJECTED_MESSAGES = ("unable to configure the Docker daemon with file", "Error reconfiguring the daemon")


@dataclass(frozen=True, slots=True)
class ReloadOutcome:
    """The outcome of a reload in dockerd's log.

    Attributes:
        rejection: its own line when it goes on with its former configuration; empty when it does not say so.
        ended: whether nothing more is to come; a dockerd that logs no more than warnings says only what it rejects.
    """

    rejection: str
    ended: bool


def parse_reload_log(log: str) -> ReloadOutcome:
    """The reload that dockerd's ``log`` since the signal tells of."""
    lines = log.splitlines()
    rejection = next((line for line in lines if any(words in line for words in _RELOAD_REJECTED_MESSAGES)), "")
    taken = any(_RELOAD_DONE_MESSAGE in line for line in lines)
    return ReloadOutcome(
        rejection, bool(rejection) or taken or not any(_RELOAD_BEGUN_MESSAGE in line for line in lines)
    )


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags that dockerd is started with.

    Attributes:
        given: the values of each, in order; ``true`` for one that was given none.
        words: the same as words of a command line, without the one that names the configuration file.
        sources: the files that they may come from.
    """

    given: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()

    def last(self, name: str) -> str | None:
        """The value that counts of a flag that has one; None where it was not given."""
        values = self.given.get(name)
        return values[-1] if values else None

    @property
    def config(self) -> str:
        """The configuration file; empty for the usual one."""
        return self.last("config-file") or ""

    @property
    def runtimes(self) -> Mapping[str, str]:
        """The binaries of the runtimes that flags register."""
        pairs = (value.partition("=") for value in self.given.get("add-runtime", ()))
        return {name.strip(): path.strip() for name, mark, path in pairs if mark}

    @property
    def cdi(self) -> bool | None:
        """True if CDI is switched on; None where no flag says."""
        pairs = (value.partition("=") for value in self.given.get("feature", ()))
        values = [(value or "true") for name, _, value in pairs if name == "cdi"]
        return values[-1].lower() in _TRUE if values else None

    @property
    def live_restore(self) -> bool | None:
        """True if containers outlive the daemon; None where no flag says."""
        value = self.last("live-restore")
        return None if value is None else value.lower() in _TRUE


def flags(argv: Sequence[str], sources: tuple[str, ...] = ()) -> Flags:
    """The flags of a command line that starts dockerd, itself or through a wrapper."""
    words = list(_daemon_arguments(argv))
    given: dict[str, tuple[str, ...]] = {}
    kept: list[str] = []
    while words:
        word = words.pop(0)
        name, mark, value = _split_flag(word)
        own = [word]
        if name and not mark:
            takes_next = (
                bool(words)
                and not words[0].startswith("-")
                and word not in {f"-{one}" for one in _SHORT_FLAGS_WITHOUT_VALUE}
            )
            value = words.pop(0) if takes_next else "true"
            own += [value] if takes_next else []
        if name:
            given[name] = (*given.get(name, ()), value)
        kept += own if name != "config-file" else []
    return Flags(given, tuple(kept), sources)


def flags_of_command(command: systemd.UnitCommand | None) -> Flags:
    """The flags with which a unit starts dockerd."""
    return flags(command.argv, command.sources) if command else Flags()


def conflicts(given: Flags, directives: Sequence[str]) -> tuple[str, ...]:
    """The ``directives`` of the configuration file that flags also set, each with its flag."""
    return tuple(
        f"{directive} (--{name})"
        for name in given.given
        if (directive := _DIRECTIVE_BY_FLAG.get(name, name)) in directives and directive not in _MERGED_DIRECTIVES
    )


def _daemon_arguments(argv: Sequence[str]) -> Sequence[str]:
    """The words behind dockerd's name; behind a wrapper's where dockerd is not named."""
    words = [
        word for one in argv for word in (systemd.split_words(one) if "dockerd " in one and " " in one else (one,))
    ]
    names = [index for index, word in enumerate(words) if word.rpartition("/")[2] in {"dockerd", "dockerd-ce"}]
    return words[names[-1] + 1 :] if names else words[1:]


def _split_flag(word: str) -> tuple[str, str, str]:
    """A flag's full name, and its value if the same word has it."""
    if word.startswith("--"):
        name, mark, value = word[2:].partition("=")
        return name, mark, value
    if word.startswith("-") and word[1:2] in _LONG_FLAG_BY_SHORT:
        rest = word[2:].removeprefix("=")
        return _LONG_FLAG_BY_SHORT[word[1]], rest and "=", rest
    return "", "", ""
