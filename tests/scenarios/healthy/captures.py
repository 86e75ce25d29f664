"""Complete captures: every probe of `gpunode capture`, by default with its result for a missing thing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from gpunode.change import PackageChange
from gpunode.facts.evidence import Capture, Evidence, GlobMatch, Ownership, Probe, encode_matches
from gpunode.facts.examination import DOCTOR_PROBES, UNITS
from gpunode.facts.probes import LSPCI_PROBE, list_probes
from gpunode.packages.simulation import Simulation
from gpunode.workflow.doctor import collect_doctor_evidence

# By probe key: the output, the files found by a glob, or the complete capture of a failed command.
Said: TypeAlias = "str | tuple[GlobMatch, ...] | Capture"
Node: TypeAlias = "Mapping[str, Said]"

PROBES: Final[Mapping[str, Probe]] = {probe.key: probe for probe in (*list_probes(UNITS), LSPCI_PROBE, *DOCTOR_PROBES)}
_ROOTS: Final = Ownership(0o644, 0, 0)


def listed(*paths: str) -> tuple[GlobMatch, ...]:
    """Return the result of a glob without contents; ``path -> target`` is a link."""
    parted = (path.partition(" -> ") for path in paths)
    return tuple(GlobMatch(path, target or None) for path, _, target in parted)


def held(files: Mapping[str, str]) -> tuple[GlobMatch, ...]:
    """Return the result of a glob with contents."""
    return tuple(GlobMatch(path, data=text.encode(), ownership=_ROOTS) for path, text in files.items())


def failed(said: str, status: int = 1, error: str = "") -> Capture:
    """Return the output of a command with a non-zero exit status; its source is filled in by its key."""
    return Capture("", "failed", said.encode(), error, status)


@dataclass(frozen=True, slots=True)
class Standing:
    """A node that answers probes."""

    node: Node
    asked: set[str] = field(default_factory=set)

    def run_probe(self, probe: Probe, /) -> Capture:
        """Return the node's answer to ``probe``."""
        self.asked.add(probe.key)
        return _capture(probe, self.node.get(probe.key))

    def read_live_distribution(self) -> None:
        """Do nothing: the evidence contains the distribution."""
        return

    def simulate(self, _: Sequence[PackageChange], /) -> Simulation | None:
        """Return None: nothing is installed here."""
        return None


def evidence(node: Node) -> Evidence:
    """Return the evidence that ``gpunode capture`` collects from ``node``."""
    host = Standing(node)
    found = collect_doctor_evidence(host)
    assert set(node) <= host.asked, f"nobody asks for {set(node) - host.asked}"
    return found


def _capture(probe: Probe, said: Said | None) -> Capture:
    if isinstance(said, Capture):
        return Capture(probe.source, said.outcome, said.data, said.error, said.exit_status, said.ownership)
    if probe.glob:
        return Capture(probe.source, "ok", encode_matches(iter(said if isinstance(said, tuple) else ())))
    assert not isinstance(said, tuple), probe.key
    if said is None:
        why = "No such file or directory" if probe.path else f"{probe.argv[0]}: command not found"
        return Capture(probe.source, "absent", error=why)
    if probe.path:
        return Capture(probe.source, "ok", said.encode(), ownership=_ROOTS)
    return Capture(probe.source, "ok", said.encode(), exit_status=0)


def journal(lines: Iterable[str], start: str = "2026-11-16T06:12", host: str = "gpu-node-17") -> str:
    """Return lines of the journal in the format of ``-o short-iso-precise``, a moment apart."""
    rows = enumerate(lines)
    return "".join(
        f"{start}:{at // 20 % 60:02}.{at % 20 * 50:03}{at % 997:03}+0000 {host} {line}\n" for at, line in rows
    )
