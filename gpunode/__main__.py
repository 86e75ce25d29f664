"""``python -m gpunode`` and the entry point ``gpunode``: the one exception boundary, from error to exit code."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line and return the exit code."""
    if sys.argv[1:] in (["--version"], ["-V"]):
        # Before anything else is imported: must be quick.
        from gpunode import __version__, installed

        return installed.print_version(__version__)
    import gc

    # Nearly all that is made here lives to the end, so Python's search for dead circles finds nothing: to search
    # seldom, and not once more through everything at the end, takes 40 of 280 ms from a setup with nothing to do.
    gc.set_threshold(100_000)
    from gpunode.cli.boundary import run_cli

    try:
        return run_cli(sys.argv[1:])
    finally:
        gc.freeze()


if __name__ == "__main__":
    # `python -m` puts the working folder first among the places that modules come from: somebody else's, perhaps.
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
        del sys.path[0]
    sys.exit(main())
