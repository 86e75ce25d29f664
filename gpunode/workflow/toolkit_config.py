"""The container toolkit's own configuration: what is to be written, as a plan of ``workflow.edits``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gpunode.change import FileChange, FileState, closed
from gpunode.facts import os_release
from gpunode.facts.evidence import Probe
from gpunode.host.port import HostView
from gpunode.outcome import Planned
from gpunode.runtimes import toolkit
from gpunode.runtimes.found import one_by_looking
from gpunode.runtimes.toolkit import Machine, Setting
from gpunode.workflow.edits import CtkPlan

_ABOUT = "toolkit configuration"
_REAL_LDCONFIG = "/sbin/ldconfig.real"


def configuring(host: HostView, path: str, desired: Sequence[Setting], target: str = "") -> CtkPlan:
    """What makes ``target``, or ``path`` itself, the file at ``path`` with all that is ``desired``.

    Raises:
        Refused: the file cannot be read or edited; see ``toolkit.configure``.
        Undetermined: only root may read it.
    """
    present = one_by_looking(host.look, path).get(path)
    content = toolkit.configure(present.content if present else None, desired, machine(host), path)
    how = "in place" if target in {"", path} else f"made of {path}"
    return _plan(host, target or path, content, present, how)


def anew(host: HostView, target: str) -> CtkPlan:
    """What makes ``target`` the file that a new installation has.

    Raises:
        Refused, Undetermined: what is there cannot be read.
    """
    return _plan(host, target, toolkit.default(machine(host)).encode(), None, "made anew")


def _plan(host: HostView, path: str, content: bytes, source: FileState | None, how: str) -> CtkPlan:
    """A file that is new is root's, for no more readers than the one that it is made of, which may hold secrets."""
    present = one_by_looking(host.look, path)
    before = present.get(path)
    after = replace(before or closed(source or FileState(b"")), content=content)
    changes = () if before == after else (FileChange(path, before, after),)
    reason = f"{how}; every container start reads it, so no daemon has to"
    return CtkPlan(_ABOUT, path, Planned(changes, reason), present=present)


def machine(host: HostView) -> Machine:
    """What the usual values hang on."""
    found = (host.look(Probe(path, path=path)) for path in os_release.PATHS)
    text = next((capture.text for capture in found if capture.outcome == "ok"), "")
    like = os_release.parse(text).get("ID_LIKE", "").split()
    real = host.look(Probe(_REAL_LDCONFIG, glob=_REAL_LDCONFIG, contents=False))
    return Machine(suse=not {"suse", "opensuse"}.isdisjoint(like), real_ldconfig=bool(real.data))
