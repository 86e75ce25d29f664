"""Whole captures: every probe that `gpunode capture` asks, with what it returns where a thing is not there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from gpunode.facts.evidence import Capture, Evidence, Found, Ownership, Probe, encode_found
from gpunode.facts.examination import EXAMINATION, UNITS, follow_ups
from gpunode.facts.probes import probes
from gpunode.host import nvml

# By probe key: what was said, the files that a glob found, or the whole capture where a command failed.
Said: TypeAlias = "str | tuple[Found, ...] | Capture"
Node: TypeAlias = "Mapping[str, Said]"

PROBES: Final[Mapping[str, Probe]] = {probe.key: probe for probe in (*probes(UNITS), *EXAMINATION, nvml.probe())}
_ROOTS: Final = Ownership(0o644, 0, 0)


def listed(*paths: str) -> tuple[Found, ...]:
    """What a glob without contents found; ``path -> target`` is a link."""
    parted = (path.partition(" -> ") for path in paths)
    return tuple(Found(path, target or None) for path, _, target in parted)


def held(files: Mapping[str, str]) -> tuple[Found, ...]:
    """What a glob with contents found."""
    return tuple(Found(path, data=text.encode(), ownership=_ROOTS) for path, text in files.items())


def failed(said: str, status: int = 1, error: str = "") -> Capture:
    """What a command said that did not end with 0; its source is filled in by its key."""
    return Capture("", "failed", said.encode(), error, status)


def evidence(node: Node) -> Evidence:
    """What ``gpunode capture`` takes of ``node``."""
    first = {key: _capture(probe, node.get(key)) for key, probe in PROBES.items()}
    later = {probe.key: _capture(probe, node.get(probe.key)) for probe in follow_ups(first)}
    more = {key: Probe(key, path=key.removeprefix("file:")) for key in node if key.startswith("file:/")}
    read = {key: _capture(probe, node[key]) for key, probe in more.items()}
    found = {**first, **later, **read}
    unknown = {key for key in node if key not in found and key not in _UNASKED}
    assert not unknown, unknown
    # As the examination does it: told twice, one error would count as two.
    if found["kernel-journal"].outcome == "ok":
        del found["dmesg"]
    return found


# What a node would say if it were asked, which it only is where something has failed.
_UNASKED: Final = frozenset({"initramfs", "make-logs", "make-logs-kept", "kubernetes-node", "kubernetes-pods"})


def _capture(probe: Probe, said: Said | None) -> Capture:
    if isinstance(said, Capture):
        return Capture(probe.source, said.outcome, said.data, said.error, said.exit_status, said.ownership)
    if probe.glob:
        return Capture(probe.source, "ok", encode_found(iter(said if isinstance(said, tuple) else ())))
    assert not isinstance(said, tuple), probe.key
    if said is None:
        why = "No such file or directory" if probe.path else f"{probe.argv[0]}: command not found"
        return Capture(probe.source, "absent", error=why)
    if probe.path:
        return Capture(probe.source, "ok", said.encode(), ownership=_ROOTS)
    return Capture(probe.source, "ok", said.encode(), exit_status=0)


def journal(lines: Iterable[str], start: str = "2026-11-16T06:12", host: str = "gpu-node-17") -> str:
    """Lines of the journal as ``-o short-iso-precise`` has them, a moment apart."""
    rows = enumerate(lines)
    return "".join(
        f"{start}:{at // 20 % 60:02}.{at % 20 * 50:03}{at % 997:03}+0000 {host} {line}\n" for at, line in rows
    )
