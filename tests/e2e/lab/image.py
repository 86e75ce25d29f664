"""A container image without a registry: one static program."""

from __future__ import annotations

import os
from pathlib import Path

from tests.e2e.lab.commands import run
from tests.e2e.lab.node import Node
from tests.e2e.lab.tree import NATIVE


def import_image(node: Node, name: str = "lab") -> None:
    """Import image ``name`` into docker in ``node``; its program ``/hello`` prints a line; ``/hello wait`` stays."""
    write_archive(node.sandbox.scratch / "image", node.path("/root/image.tar"))
    node.run("docker", "import", "/root/image.tar", name)


def write_archive(folder: Path, archive: Path) -> None:
    """Write the image's files, which are made in ``folder``, to ``archive``."""
    folder.mkdir()
    run(["gcc", "-static", "-Os", "-o", os.fspath(folder / "hello"), os.fspath(NATIVE / "hello.c")])
    run(["tar", "-C", os.fspath(folder), "-cf", os.fspath(archive), "hello"])
