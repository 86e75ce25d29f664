"""The reference page of the exit codes; ``python -m tests.unit.cli.exit_codes_page`` writes it anew."""

from __future__ import annotations

from pathlib import Path

from gpunode.errors import exit_codes

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "exit-codes.md"
_HEAD = """# Exit codes

Every command ends with one of these. With `--json` the same number stands in the envelope as `exit_code`, and
`status` names it in one word.

<!-- Written by `python -m tests.unit.cli.exit_codes_page` from gpunode/errors.py; change it there. -->

| exit | meaning |
|---|---|
"""
_TAIL = """
141 is the shell's code for a reader that went away: `gpunode plan | head` ends with it.
"""


def page() -> str:
    """The page as it shall be."""
    rows = (f"| {code} | {meaning.replace('|', chr(92) + '|')} |\n" for code, meaning in exit_codes())
    return _HEAD + "".join(rows) + _TAIL


if __name__ == "__main__":
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page())
