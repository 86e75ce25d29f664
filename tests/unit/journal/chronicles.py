"""Journals as runs leave them, for the tests of reports about them."""

from __future__ import annotations

from gpunode.change import (
    Change,
    CommandChange,
    FileChange,
    FileState,
    ModuleChange,
    PackageChange,
    PackageState,
    ServiceChange,
    ServiceState,
    Trigger,
)
from gpunode.journal.record import Begin, Commit, Done, Entry, Failed, Intent, TriggerCompleted
from gpunode.package_id import PackageId

RUN = "000003-20261121T081932Z"
AT = 1795249172.0
CUDA = "http://mirror/cuda, signed by 3BF863CC"
CONFIG = "/etc/containerd/config.toml"
RESTART = Trigger("restart", "containerd.service")
RELOAD = Trigger("reload", "containerd.service")
REFRESH = Trigger("index-refresh", "/etc/apt/sources.list.d/cuda.list")
SECRET = "hunter2"

BEGIN = Begin(
    run=RUN,
    at=AT,
    verb="setup",
    version="0.1.0",
    recipe="containerd",
    recipe_sha256="ab" * 32,
    boot_id="b00t",
    user="alice",
    argv=("setup", f"https://me:{SECRET}@host/node.toml", "--yes"),
    uid=0,
    loginuid=1000,
)


def state(content: bytes, mode: int = 0o644) -> FileState:
    return FileState(content, mode)


def entries(*, ended: bool = True) -> tuple[Entry, ...]:
    """Return a run of six kinds of changes: one fails, and one is only intended if the run did not end."""
    changes: tuple[Change, ...] = (
        FileChange(CONFIG, state(b"old"), state(b"new", 0o600), frozenset({RESTART}), ("/etc/containerd",)),
        PackageChange(PackageId("nvidia-driver"), PackageState("470"), PackageState("595", auto=True, origin=CUDA)),
        PackageChange(PackageId("libcuda1"), None, PackageState("595", origin=CUDA)),
        ServiceChange("nvidia-persistenced.service", ServiceState(False, False), ServiceState(True, True)),
        CommandChange(("dpkg", "--configure", "-a"), "it was interrupted"),
        ModuleChange("nvidia", False, True),
    )
    intents = [Intent(n, "runtime", f"step-{n}", change, "because", AT + n) for n, change in enumerate(changes, 1)]
    made: list[Entry] = [part for n, intent in enumerate(intents[:4], 1) for part in (intent, Done(n, AT + n + 0.5))]
    rest: list[Entry] = [intents[4], Failed(5, f"dpkg said token={SECRET}", AT + 6), intents[5]]
    settled = TriggerCompleted(RESTART, "with the former configuration", AT + 8)
    end: list[Entry] = [Done(6, AT + 7), settled, Commit("done", "", AT + 9)]
    return (BEGIN, *made, *rest, *(end if ended else []))
