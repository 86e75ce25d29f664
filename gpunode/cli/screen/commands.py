"""The commands that are proposed: what was typed, reworded for what comes next. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence

# Options that say how an answer is shown.
SHOWN_HOW = frozenset({"--json", "-v", "--verbose"})
_LEAVE = frozenset({"--yes", "-y", "--reboot", "--allow-disruption", "--upgrade"})


def setup_command(argv: Sequence[str]) -> str:
    """The command that does what ``argv``, a plan's or a rehearsal's, showed."""
    # A lock that was renewed holds what --upgrade asked for.
    done = {"--upgrade"} if any(word.partition("=")[0] == "--lock" for word in argv) else set()
    return joined("sudo gpunode setup", without(argv[1:], {"--check", *SHOWN_HOW, *done}, {"--node"}))


def verify_command(argv: Sequence[str]) -> str:
    """The command that proves more of what ``argv``, a setup's, made; with its recipe, by which verify judges."""
    words = without(argv[1:], SHOWN_HOW | _LEAVE, {"--only", "--root", "--gpu", "--lock"})
    return joined("gpunode verify", [*words, "--cuda", "--container"])


def rollback_command(argv: Sequence[str], run: str) -> str:
    """The command that undoes ``run``, which ``argv`` made; in the same root folder."""
    root = root_of(argv)
    return joined("sudo gpunode rollback", [run, *(("--root", root) if root else ())])


def root_of(argv: Sequence[str]) -> str:
    """What ``--root`` says in ``argv``; empty for this machine."""
    for word, value in zip(argv, [*argv, ""][1:], strict=True):
        if word == "--root" or word.startswith("--root="):
            return word.partition("=")[2] or value
    return ""


def again_command(argv: Sequence[str]) -> str:
    """The same command, agreeing to it."""
    return joined("sudo gpunode", [*argv, "--yes"])


def joined(command: str, words: Sequence[str]) -> str:
    """``command`` with ``words``, quoted as a shell needs them."""
    return f"{command} {shlex.join(words)}".strip()


def without(words: Sequence[str], flags: Collection[str], valued: Collection[str]) -> list[str]:
    """``words`` without those options; ``valued`` ones take the word after them along."""

    def kept() -> Iterator[str]:
        is_value = False
        for word in words:
            if is_value or word in flags or word.partition("=")[0] in valued:
                is_value = not is_value and word in valued
                continue
            yield word

    return list(kept())
