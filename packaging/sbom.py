"""The bill of materials: what the zipapp carries, in CycloneDX's format, written by CycloneDX's own program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tree import ROOT, Release, environment, make_environment

_PYTHON = '#!/bin/sh\nPYTHONPATH={payload} exec {python} -S "$@"\n'


def write(release: Release, payload: Path, folder: Path, target: Path) -> Path:
    """The file in ``target``, made in the empty ``folder``; ``payload`` is laid out as pip installs."""
    tools = make_environment("sbom.txt", folder / "cyclonedx").parent
    # The program looks at a Python's environment: this one has the payload and nothing else.
    python = folder / "python"
    python.write_text(_PYTHON.format(payload=payload, python=sys.executable))
    python.chmod(0o755)
    made = target / "gpunode.cdx.json"
    options = ("--output-reproducible", "--mc-type", "application", "--pyproject", os.fspath(ROOT / "pyproject.toml"))
    program = os.fspath(tools / "cyclonedx-py")
    argv = (program, "environment", "--output-file", os.fspath(made), os.fspath(python), *options)
    subprocess.run(argv, check=True, env=environment(release), stderr=subprocess.DEVNULL)
    found = json.loads(made.read_text("utf-8"))
    # pyproject.toml leaves it to gpunode/__init__.py.
    found["metadata"]["component"]["version"] = release.version
    made.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", "utf-8")
    return made
