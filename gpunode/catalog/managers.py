"""Files that a comment near their top claims for a program.

Sources: ansible-core's DEFAULT_MANAGED_STR and the strings that roles set in its place; Puppet's HEADER lines and the
templates of its modules; templates of Chef's and Salt's cookbooks and formulas; CFEngine's masterfiles; cloud-init's
templates; curtin's apt_config; k3s' and RKE2's pkg/agent/templates. Collected 2026-11-21.
"""

from __future__ import annotations

import re

from gpunode.facts.patterns import Pattern

# Such a header is at the top, above or below a licence.
_MAX_LINES_READ = 40
_MAX_BYTES_READ = 8192
# Comments of TOML, apt, shell, INI, C and XML; the quote is for JSON, which has none and gets a key instead.
_COMMENT_LINE_START = Pattern(r"\s*(#|;|//|/?\*|<!--|\")")
# Compiled on use: only a change of a file needs it.
_MANAGER_CLAIM = (
    r"(?i)(managed|generated|maintained|controlled|rewritten|promised) (by|with|using)|[ -]managed\b"
    r"|(written|created) by (ansible|cloud-init|curtin)|manage_etc_hosts|do not (manually )?(edit|modify|change)"
    r"|auto(matically)?[ -]?generated"
)
_GPUNODE_FILE_MARK = "written by gpunode"


def find_manager_claim(content: bytes) -> tuple[int, str] | None:
    """Return the number, from 1, and the text of the comment that claims the file for a program; None if none does."""
    lines = content[:_MAX_BYTES_READ].decode("utf-8", "replace").split("\n")[:_MAX_LINES_READ]
    comments = [(number, line.strip()) for number, line in enumerate(lines, 1) if _COMMENT_LINE_START.match(line)]
    if any(_GPUNODE_FILE_MARK in line.lower() for _, line in comments):
        return None
    return next((comment for comment in comments if re.search(_MANAGER_CLAIM, comment[1])), None)
