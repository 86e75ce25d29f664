"""Ways to make the many forks of the tests' process that become gpunode cheap."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from gpunode.host.process import PATH, Runner


def warm_up(arguments: Sequence[str]) -> None:
    """Run ``gpunode ARGUMENTS`` here, so that a fork loads no module and compiles no pattern; it must succeed."""
    from gpunode.cli.boundary import run_cli

    umask = os.umask(0o022)
    try:
        with (
            open(os.devnull, "w") as nowhere,
            redirect_stdout(nowhere),
            redirect_stderr(nowhere),
            patch.object(sys, "argv", ["gpunode", *arguments]),
        ):
            assert run_cli(list(arguments)) == 0, arguments
    finally:
        os.umask(umask)


def start_no_isolation_for_missing_programs() -> None:
    """Have this process, a fork, tell by a look that an image lacks a program: isolating one starts another Python."""
    isolate = Runner._isolate

    def isolate_program(self: Runner, argv: tuple[str, ...]) -> tuple[str, ...]:
        is_there = any(Path(f"{self.root}{folder}", argv[0]).exists() for folder in PATH.split(":"))
        return isolate(self, argv) if is_there else (f"/nonexistent/{argv[0]}",)

    Runner._isolate = isolate_program  # type: ignore[method-assign]
