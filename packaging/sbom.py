"""The bill of materials: what the zipapp carries, in CycloneDX's format, written by CycloneDX's own program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tree import ROOT, Release, environment, make_environment

_PYTHON = '#!/bin/sh\nPYTHONPATH={payload} exec {python} -S "$@"\n'


def write(release: Release, payload: Path, hashes: Mapping[str, str], folder: Path, target: Path) -> Path:
    """Write the bill of ``payload`` into ``target``, and return its path.

    Args:
        release: what is packaged.
        payload: laid out as pip installs.
        hashes: the SHA-256 of each component's wheel, by its name in lower case.
        folder: an empty one to work in.
        target: the folder of the release's files.
    """
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
    for component in found["components"]:
        component["hashes"] = [{"alg": "SHA-256", "content": hashes[component["name"].lower()]}]
    made.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n", "utf-8")
    return made
