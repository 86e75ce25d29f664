"""``python -m gpunode`` and the entry point ``gpunode``: the one exception boundary, from error to exit code."""

from __future__ import annotations

import sys


def main() -> int:
    """Runs the command line; returns the exit code."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        from gpunode import __version__

        print(f"gpunode {__version__}")  # noqa: T201 - before anything else is imported: this must be quick
        return 0
    from gpunode.cli.boundary import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
