"""capture: save doctor's evidence to a file, with secrets removed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.commands import own_gpunode
from gpunode.cli.screen.plans import note_line
from gpunode.cli.screen.text import STATE_MARK, Line, line, next_command_line, span
from gpunode.command import sudo_gpunode
from gpunode.facts.probes import PROBES
from gpunode.redaction.secrets import redact_text
from gpunode.wording import count_noun

if TYPE_CHECKING:
    from gpunode.facts.evidence import Capture, ContentKind, Evidence


def capture(file: str, output: OutputOptions, *, anonymize: bool, force: bool) -> None:
    """Save the evidence that doctor examines on this node."""
    from gpunode.host.capture import save_capture
    from gpunode.host.local import LocalHost
    from gpunode.redaction.anonymize import anonymize_evidence
    from gpunode.redaction.evidence import count_masked, redact
    from gpunode.workflow.doctor import collect_doctor_evidence

    path, screen = Path(file), output.open_screen()
    if path.is_file() and not force:
        screen.confirm_overwrite(file)
    evidence = collect_doctor_evidence(LocalHost("/"))
    saved = anonymize_evidence(evidence) if anonymize else evidence
    kept = redact(saved)
    contents = count_masked(saved, kept)
    screen.put(*capture_preview_lines(file, contents, anonymized=anonymize))
    save_capture(kept, path)
    size = path.stat().st_size
    missing = find_missing_probes(evidence)
    screen.put(*capture_result_lines(file, len(evidence), size, missing))
    kinds = {kind: {"probes": number, "masked": changed} for kind, (number, changed) in contents.items()}
    result = {"file": file, "probes": len(evidence), "bytes": size, "anonymized": anonymize, "content_kinds": kinds}
    output.emit(Envelope("capture", result={**result, "incomplete": missing}))


def find_missing_probes(evidence: Evidence) -> dict[str, str]:
    """Return the reason for each failed probe; a tool that answered has not failed, whatever its exit status."""
    from gpunode.workflow.doctor import denied_sources

    needed = {probe.key for probe in PROBES}
    return {
        key: _missing_reason(seen, is_denied=bool(denied_sources(seen)))
        for key, seen in evidence.items()
        if seen.outcome in {"denied", "timeout"}
        or denied_sources(seen)
        or (seen.outcome == "failed" and seen.exit_status in {None, 0})
        or (seen.outcome == "failed" and key in needed and (seen.error or not seen.text.strip()))
    }


def _missing_reason(capture: Capture, *, is_denied: bool) -> str:
    if capture.outcome == "timeout":
        return "timed out"
    if is_denied or capture.outcome == "denied":
        return "permission denied"
    messages = [one.strip() for one in (*capture.error.splitlines(), *capture.text.splitlines()[:1]) if one.strip()]
    return redact_text(messages[0]) if messages else f"exit status {capture.exit_status}"


_DESCRIPTION_BY_CONTENT_KIND: Mapping[ContentKind, str] = {
    "table": "system tables (/proc, /sys, package database, lspci): as they are",
    "config": "configuration files: known settings; every other value is masked",
    "log": "logs, command lines and answers of tools: secrets are masked",
}


def capture_preview_lines(
    file: str, contents: Mapping[ContentKind, tuple[int, int]], *, anonymized: bool
) -> Iterator[Line]:
    """Yield the contents of a capture by group, with the number of masked items."""
    yield line(span(f"{file} will contain", "bold"))
    for holds, about in _DESCRIPTION_BY_CONTENT_KIND.items():
        number, changed = contents.get(holds, (0, 0))
        masked = f" (in {changed} of them)" if changed else ""
        yield line(f"  {number:>4}  {about}{masked}", hang=8)
    if anonymized:
        yield line("        serial numbers, UUIDs, MAC and IP addresses, host and user names are replaced", hang=8)
    else:
        yield line("        host names, serial numbers and addresses stay: --anonymize replaces them", hang=8)


def capture_result_lines(file: str, number: int, size: int, missing: Mapping[str, str]) -> Iterator[Line]:
    """Yield the capture's file and size, and the unreadable probes by reason."""
    yield line(STATE_MARK["done"], f"{file}: {count_noun(number, 'probe')}, {size / 1024:.0f} KiB", hang=2)
    for why in dict.fromkeys(missing.values()):
        yield note_line(f"could not read {', '.join(key for key, one in missing.items() if one == why)}: {why}")
    if "permission denied" in missing.values():
        yield note_line(f"root sees more: {sudo_gpunode('capture', file)}")
    yield next_command_line(own_gpunode("doctor", file))  # only who wrote the file may read it
