"""Bare Debian systems to install a release into: no pip, no gpunode, no network."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.e2e.lab.archive import debian_archive, demand_archive, transport_options
from tests.e2e.lab.bases import cache_folder
from tests.e2e.lab.commands import Result, finish, run
from tests.e2e.lab.sandbox import Sandbox

if TYPE_CHECKING:
    from typing_extensions import Self

_USUAL: Final = ("python3", "bash-completion", "zsh", "fish", "man-db", "logrotate")
# Debian 11 has Python 3.9. A Debian archive has no Fedora or RHEL: Debian's own rpm installs the .rpm.
SUITES: Final[Mapping[str, tuple[str, ...]]] = {
    "bullseye": ("python3",),
    "bookworm": _USUAL,
    "trixie": (*_USUAL, "rpm"),
    "sid": (*_USUAL, "python3.14"),
}
# Mirrors keep sid for longer than its Release file is valid.
_APT: Final = (
    'APT::Install-Recommends "false"',
    'Acquire::Languages "none"',
    'Acquire::Check-Valid-Until "false"',
)
_ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}


def provide(suite: str, folder: Path) -> Path:
    """Return the file tree of ``suite`` below ``folder``, from the cache or made.

    Raises:
        NoArchive: there is nothing in the cache and no Debian archive that can be reached.
        LabError: making it failed.
    """
    folder.mkdir(parents=True)
    cached = cache_folder() / f"distribution-{suite}-{_recipe_hash(suite)}.tar.zst"
    if not cached.exists():
        cached.parent.mkdir(parents=True, exist_ok=True)
        _make(suite, cached)
    run(["tar", "-C", os.fspath(folder), "-I", "zstd", "-xf", os.fspath(cached)], timeout=300)
    return folder


def _make(suite: str, target: Path) -> None:
    transport = (f'{name} "{value}"' for name, _, value in (option.partition("=") for option in transport_options()))
    options = [f"--aptopt={option}" for option in (*_APT, *transport)]
    mirror = debian_archive()
    demand_archive(mirror, suite)
    partial = target.with_suffix(".partial")
    what = ["--variant=apt", "--format=tar", f"--include={','.join(SUITES[suite])}"]
    with partial.open("wb") as file:
        done = run(
            ["sh", "-c", 'exec "$@" | zstd -q -1 >"$0"', file.name, "mmdebstrap", *what, *options, suite, "-", mirror],
            timeout=900,
        )
    assert done.returncode == 0
    partial.rename(target)


def _recipe_hash(suite: str) -> str:
    return hashlib.sha256(repr((suite, SUITES[suite], _APT)).encode()).hexdigest()[:16]


class System:
    """A writable copy of a file tree, entered by chroot in namespaces without a network."""

    def __init__(self, tree: Path, scratch: Path) -> None:
        self._tree = tree
        self._sandbox = Sandbox(scratch)
        self.root = Path()

    def __enter__(self) -> Self:
        sandbox = self._sandbox
        sandbox.__enter__()
        upper, work, merged = (sandbox.scratch / name for name in ("upper", "work", "merged"))
        for folder in (upper, work, merged):
            folder.mkdir()
        sandbox.mount(
            "-t", "overlay", "-o", f"lowerdir={self._tree},upperdir={upper},workdir={work}", "overlay", merged
        )
        sandbox.mount("-t", "proc", "proc", merged / "proc")
        sandbox.mount("-t", "tmpfs", "tmpfs", merged / "run")
        sandbox.mount("--rbind", "/dev", merged / "dev")
        self._merged = merged
        self.root = sandbox.inside(merged)
        return self

    def __exit__(self, *_: object) -> None:
        self._sandbox.close()

    def put(self, file: Path, path: str, mode: int = 0o644) -> None:
        """Copy ``file`` to ``path`` inside, owned by root."""
        target = self.root / path.lstrip("/")
        target.write_bytes(file.read_bytes())
        target.chmod(mode)

    def finish(self, *command: str, user: str = "root", env: Mapping[str, str] | None = None) -> Result:
        """Return the output and the exit code of ``command``, run inside."""
        become = () if user == "root" else ("setpriv", f"--reuid={user}", "--regid=nogroup", "--clear-groups")
        argv = self._sandbox.argv("chroot", os.fspath(self._merged), *become, *command)
        return finish(argv, env={**_ENVIRONMENT, **(env or {})}, timeout=300)

    def run(self, *command: str, user: str = "root", env: Mapping[str, str] | None = None) -> str:
        """Return the standard output of ``command``, which must succeed."""
        done = self.finish(*command, user=user, env=env)
        assert done.returncode == 0, (
            f"{command}: status {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        )
        return done.stdout

    def files(self) -> frozenset[str]:
        """Return every file, link and folder on the system's own disk, except the records of dpkg, rpm and man."""
        others = ("/var/lib/dpkg*", "/var/lib/rpm*", "/var/cache/man*")
        found = self.run("find", "/", "-xdev", *(word for path in others for word in ("-not", "-path", path)))
        return frozenset(found.splitlines())
