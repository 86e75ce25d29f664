"""Cloud machines: Debian's own cloud-init, with user data on the disk for its data source NoCloud."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.e2e.lab.commands import run
from tests.e2e.lab.layers import add_packages, download, provide_layer
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.lab.pci import GTX_1080
from tests.e2e.lab.repositories import Repositories
from tests.e2e.lab.tree import Base

_PACKAGES: Final = ("cloud-init", "openssh-server")
# Packages that user data may request: apt takes them from a folder of the machine, as from a cloud's mirror.
_OFFERED: Final = ("curl",)
_OFFERED_AT: Final = "srv/debs"
# cloud-init asks whether this is a container, which it is; gpunode asks what the machine is.
_BARE_METAL: Final = '#!/bin/sh\n[ $# = 0 ] || exec /usr/bin/systemd-detect-virt "$@"\necho none\nexit 1\n'
_NUMBERS: Final = itertools.count(1)


def provide_cloud(base: Base, folder: Path) -> Base:
    """Return ``base`` with cloud-init and an SSH server, made in ``folder`` from the cache or from the Debian archive.

    Raises:
        NoArchive: there is nothing in the cache and no Debian archive that can be reached.
        LabError: building failed.
    """
    return provide_layer("cloud", Path(__file__).read_text(), base, folder, _add)


def _add(base: Base, layer: Path) -> None:
    add_packages(base, layer, _PACKAGES)
    offered = layer / _OFFERED_AT
    offered.parent.mkdir(exist_ok=True)
    download(replace(base, layers=(layer, *base.layers)), layer.with_name("offered"), _OFFERED)
    layer.with_name("offered").rename(offered)
    index = run(["env", f"--chdir={offered}", "apt-ftparchive", "packages", "."]).stdout
    _write(offered / "Packages", index)
    _write(layer / "etc/apt/sources.list.d/cloud.list", f"deb [trusted=yes] file:/{_OFFERED_AT} /\n")
    # Otherwise it would write the addresses of Debian's archive, which no machine of the lab reaches, and generate a
    # locale, whose sources the lab's packages lack.
    _write(layer / "etc/cloud/cloud.cfg.d/90_lab.cfg", "apt: {preserve_sources_list: true}\nlocale: C.UTF-8\n")
    _write(layer / "usr/local/bin/systemd-detect-virt", _BARE_METAL, 0o755)


class CloudMachine(Machine):
    """A machine whose boot lasts until cloud-init has processed its user data."""

    patience_s = 300


@dataclass(frozen=True, slots=True)
class Cloud:
    """Starts machines with a GTX 1080."""

    folder: Path
    repositories: Repositories

    @contextmanager
    def start(self, base: Base, user_data: str) -> Iterator[CloudMachine]:
        """Yield a machine of ``base`` that has booted for the first time; it is removed afterwards."""
        name = f"{self.folder.name}-cloud-{next(_NUMBERS)}"
        seed = self.folder / f"{name}-seed"
        nocloud = seed / "var/lib/cloud/seed/nocloud"
        _write(nocloud / "meta-data", f"instance-id: {name}\nlocal-hostname: lab\n")
        _write(nocloud / "user-data", user_data)
        layered = replace(base, layers=(seed, *base.layers))
        with CloudMachine(layered, self.folder / name, devices=[GTX_1080], archives=self.repositories) as node:
            left = marks(node)
            yield node
        assert leftovers(left) == []


def status(node: Machine) -> dict[str, Any]:
    """Return cloud-init's status of this boot, once it is done."""
    return dict(json.loads(node.finish("cloud-init", "status", "--wait", "--format=json").stdout))


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
