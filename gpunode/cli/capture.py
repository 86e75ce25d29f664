"""capture: save doctor's evidence to a file, with secrets removed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.redaction.secrets import redact_text as redacted

if TYPE_CHECKING:
    from gpunode.facts.evidence import Capture, Evidence


def capture(file: str, output: OutputOptions, *, anonymize: bool, force: bool) -> None:
    """Save the evidence of this node that doctor examines."""
    from gpunode.cli.screen.results import capture_lines, captured_lines
    from gpunode.host.capture import save_capture
    from gpunode.host.local import LocalHost
    from gpunode.redaction.anonymize import anonymize_evidence
    from gpunode.redaction.evidence import count_masked, redact
    from gpunode.workflow.doctor import examine

    path, screen = Path(file), output.open_screen()
    if path.is_file() and not force:
        screen.confirm_overwrite(file)
    evidence = examine(LocalHost("/"))
    whole = anonymize_evidence(evidence) if anonymize else evidence
    kept = redact(whole)
    contents = count_masked(whole, kept)
    screen.put(*capture_lines(file, contents, anonymized=anonymize))
    save_capture(kept, path)
    size = sum(one.stat().st_size for one in (path, *path.rglob("*")) if one.is_file())
    missing = find_missing_probes(evidence)
    screen.put(*captured_lines(file, len(evidence), size, missing))
    kinds = {kind: {"probes": number, "masked": changed} for kind, (number, changed) in contents.items()}
    result = {"file": file, "probes": len(evidence), "bytes": size, "anonymized": anonymize, "content_kinds": kinds}
    output.emit(Envelope("capture", result={**result, "incomplete": missing}))


def find_missing_probes(evidence: Evidence) -> dict[str, str]:
    """Return the reason for each probe that failed; a tool's own non-zero exit status is no failure."""
    from gpunode.facts.probes import PROBES
    from gpunode.workflow.doctor import denied_sources

    needed = {probe.key for probe in PROBES}
    return {
        key: _why_missing(seen, is_denied=bool(denied_sources(seen)))
        for key, seen in evidence.items()
        if seen.outcome in {"denied", "timeout"}
        or denied_sources(seen)
        or (seen.outcome == "failed" and (key in needed or seen.exit_status in {None, 0}))
    }


def _why_missing(seen: Capture, *, is_denied: bool) -> str:
    if seen.outcome == "timeout":
        return "timed out"
    if is_denied or seen.outcome == "denied":
        return "permission denied"
    said = [one.strip() for one in (*seen.error.splitlines(), *seen.text.splitlines()[:1]) if one.strip()]
    return redacted(said[0]) if said else f"exit status {seen.exit_status}"
