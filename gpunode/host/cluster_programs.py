"""Find kubectl and Helm, and give them the environment that they and their login plugins read.

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

FOLDERS: Final = f"{PATH}:/snap/bin"
# Their messages are parsed, so they are English; a terminal's codes are of no use.
_FIXED: Final = frozenset({"LANG", "LANGUAGE", "TERM"})
# HELM_KUBECONTEXT, HELM_KUBETOKEN and the like lead Helm to another cluster than kubectl.
_LEFT_OUT: Final = ("LC_", "HELM_KUBE")
_OTHERS_MAY_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH


class ProgramMissing(Refused):
    """kubectl or Helm is not on this machine.

    Attributes:
        form: the form of ``k8s render`` whose files need no such program here.
    """

    meaning = Refused.meaning
    form: ClassVar[str] = "manifests"


class HelmMissing(ProgramMissing):
    """As ``ProgramMissing``, for Helm: Argo CD installs charts without it."""

    form = "argocd"


def find_program(name: str) -> str | None:
    """Return the path of ``name``, or None.

    Root looks into fixed folders only, never into those of a PATH that may be somebody else's.
    """
    return shutil.which(name, path=FOLDERS if os.geteuid() == 0 else os.environ.get("PATH", FOLDERS))


def where_to_install(name: str) -> str:
    """Return where ``name`` is to be put, and for root where one is that is not used."""
    if os.geteuid() != 0:
        return "a folder of your PATH"
    elsewhere = None if find_program(name) else shutil.which(name, path=os.environ.get("PATH", ""))
    return "/usr/local/bin" + (f" (as root gpunode passes over {elsewhere})" if elsewhere else "")


def caller_environment() -> dict[str, str]:
    """Return the environment for kubectl, Helm and the login plugins that they start.

    It is the caller's, without what would change their language or lead Helm to another cluster. Root's PATH, by which
    the plugins are found, has of the caller's folders only those that root alone may write.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_LEFT_OUT)}
    kept = {name: value for name, value in kept.items() if name not in _FIXED}
    if os.geteuid() == 0:
        theirs = [folder for folder in os.environ.get("PATH", "").split(":") if _is_only_roots(folder)]
        kept["PATH"] = ":".join(dict.fromkeys((*FOLDERS.split(":"), *theirs)))
    return kept


def _is_only_roots(folder: str) -> bool:
    """Return whether nobody but root can put a program at this absolute path."""
    if not folder.startswith("/"):
        return False
    try:
        real = Path(folder).resolve(strict=True)
        found = [one.stat() for one in (real, *real.parents)]
    except OSError:
        return False
    return all(one.st_uid == 0 and not one.st_mode & _OTHERS_MAY_WRITE for one in found)
