"""Find kubectl and Helm, and build the environment for them and their login plugins.

Why the environment is passed on whole, and the PATH is not: docs/decisions/0035-environment-of-kubectl.md.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import ClassVar, Final

from gpunode.errors import Refused
from gpunode.host.process import PATH

SEARCH_PATH: Final = f"{PATH}:/snap/bin"
# Their messages are parsed, so they are English; a terminal's codes are of no use.
_DROPPED_NAMES: Final = frozenset({"LANG", "LANGUAGE", "TERM"})
# HELM_KUBECONTEXT, HELM_KUBETOKEN and others point Helm at another cluster than kubectl.
_DROPPED_PREFIXES: Final = ("LC_", "HELM_KUBE")
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class ProgramMissing(Refused):
    """kubectl or Helm is not on this machine.

    Attributes:
        form: the form of ``k8s render`` whose files need no such program here.
    """

    meaning = Refused.meaning
    form: ClassVar[str] = "manifests"


class HelmMissing(ProgramMissing):
    """Helm is not on this machine: Argo CD installs charts without it."""

    form = "argocd"


def find_program(name: str) -> str | None:
    """Return the path of ``name``, or None.

    Root searches fixed folders only, never a PATH that another user may have set.
    """
    return shutil.which(name, path=SEARCH_PATH if os.geteuid() == 0 else os.environ.get("PATH", SEARCH_PATH))


def describe_install_location(name: str) -> str:
    """Return where to install ``name``; for root, with any copy that is not used."""
    if os.geteuid() != 0:
        return "a folder of your PATH"
    elsewhere = None if find_program(name) else shutil.which(name, path=os.environ.get("PATH", ""))
    return "/usr/local/bin" + (f" (as root, gpunode ignores {elsewhere})" if elsewhere else "")


def caller_environment() -> dict[str, str]:
    """Return the environment for kubectl, Helm and the login plugins that they start.

    It is the caller's, without variables that change their language or point Helm at another cluster. Root's PATH, in
    which the plugins are found, keeps only those of the caller's folders that nobody else can write to.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED_PREFIXES)}
    kept = {name: value for name, value in kept.items() if name not in _DROPPED_NAMES}
    if os.geteuid() == 0:
        theirs = [folder for folder in os.environ.get("PATH", "").split(":") if _is_root_only(folder)]
        kept["PATH"] = ":".join(dict.fromkeys((*SEARCH_PATH.split(":"), *theirs)))
    return kept


def _is_root_only(folder: str) -> bool:
    """Return whether only root can put a program into this absolute path."""
    if not folder.startswith("/"):
        return False
    try:
        real = Path(folder).resolve(strict=True)
        found = [one.stat() for one in (real, *real.parents)]
    except OSError:
        return False
    return all(one.st_uid == 0 and not one.st_mode & _WRITABLE_BY_OTHERS for one in found)
