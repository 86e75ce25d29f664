"""Whether the program that a runtime is configured to run is installed."""

from __future__ import annotations

from dataclasses import replace

from gpunode.command import sudo_gpunode
from gpunode.errors import Refused
from gpunode.facts.evidence import Probe
from gpunode.host.port import HostView
from gpunode.workflow.edits import Draft

# systemd's own PATH for services, in which dockerd looks for a bare name (systemd.exec(5)).
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def looked_for(host: HostView, draft: Draft, root: str) -> Draft:
    """``draft`` with the program that its handler is to run and that is not installed, and a note that says so."""
    handlers = draft.expectation.handlers if draft.expectation else ()
    missing = next((binary for _, binary in sorted(handlers) if binary and _is_missing(host, binary)), "")
    if not missing:
        return draft
    steps = ("--only=toolkit-repository", "--only=toolkit")
    where = () if root == "/" else (f"--root={root}",)
    install = sudo_gpunode("setup", f"--runtime={draft.about}", *steps, *where)
    note = f"{missing} is not installed, so its containers cannot start; `{install}` installs it"
    return replace(draft, missing=missing, install=install, notes=(*draft.notes, note))


def refuse_default(draft: Draft) -> None:
    """Nothing, unless every container would be started by a program that is not installed.

    Raises:
        Refused: it would.
    """
    default = draft.expectation.default if draft.expectation else None
    if draft.missing and default and draft.is_usual:
        raise Refused(
            f"{default} cannot be the default runtime of {draft.about}: {draft.missing} is not installed",
            why=f"{draft.about} could not start any container",
            hint=f"install it first, or leave --set-as-default out:\n{draft.install}",
        )


def _is_missing(host: HostView, binary: str) -> bool:
    places = (binary,) if "/" in binary else tuple(f"{folder}/{binary}" for folder in _FOLDERS)
    # One byte is enough to see that there is a file; what cannot be looked at is not called missing.
    looked = (host.look(Probe(f"program:{place}", path=place, limit_bytes=1)) for place in places)
    return all(one.outcome == "absent" for one in looked)
