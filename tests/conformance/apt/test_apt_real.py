"""The real apt of this machine with its own root: it neither reads nor changes the machine's packages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpunode.change import KnownAfter, PackageChange, PackageState
from gpunode.errors import Busy, ChangeFailed
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Action, differences_from_plan
from tests.conformance.apt.conftest import Archive, Keys, World, index

CUDA, TOOLKIT = "debian12/x86_64", "toolkit"


@pytest.fixture
def ready(world: World, archive: Archive) -> World:
    """Return a private apt with the CUDA repository's index."""
    world.apt().refresh([world.source("cuda.list", archive.lists(CUDA))])
    archive.asked.clear()
    return world


def test_refresh_updates_only_the_named_lists(world: World, archive: Archive) -> None:
    cuda = world.source("cuda.list", archive.lists(CUDA))
    toolkit = world.source("toolkit.list", archive.lists(TOOLKIT))
    world.apt().refresh([cuda, toolkit])
    before = world.indexes()
    archive.asked.clear()
    world.apt().refresh([toolkit])
    assert {path.split("/")[1] for path in archive.asked} == {TOOLKIT}
    assert world.indexes() == before
    assert any(name.endswith("x86%5f64_Packages") for name in before)


def test_refresh_without_names_updates_all_lists(world: World, archive: Archive) -> None:
    world.source("cuda.list", archive.lists(CUDA))
    world.source("toolkit.list", archive.lists(TOOLKIT))
    world.apt().refresh(())
    assert len([name for name in world.indexes() if name.endswith("Packages")]) == 2


def test_missing_list_is_not_refreshed(world: World) -> None:
    world.apt().refresh([str(world.folder / "etc/apt/sources.list.d/gone.list")])
    assert world.runner.commands == []


def test_broken_other_list_does_not_prevent_a_refresh(world: World, archive: Archive) -> None:
    world.source("broken.list", "deb this is not a source\n")
    world.apt().refresh([world.source("cuda.list", archive.lists(CUDA))])
    assert world.indexes()


def test_recovering_server_is_retried(world: World, archive: Archive) -> None:
    archive.falsified[f"/{CUDA}/InRelease"] = [503] * 5
    world.apt().refresh([world.source("cuda.list", archive.lists(CUDA))])
    assert world.indexes()
    assert len(world.waited) >= 1


def test_refused_connection_is_reported_at_once(ready: World) -> None:
    before = ready.indexes()
    path = ready.source("cuda.list", "deb [trusted=no] http://127.0.0.1:9/debian12 /\n")
    with pytest.raises(ChangeFailed, match="server refuses the connection") as caught:
        ready.apt().refresh([path])
    assert "127.0.0.1:9" in caught.value.why
    assert "proxy" in caught.value.hint
    assert ready.waited == []
    assert ready.indexes() == before


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "refuses access"), (403, "refuses access"), (407, "refuses access"), (404, "nothing at that address")],
)
def test_mirror_that_gives_nothing_has_no_bad_signature(
    world: World, archive: Archive, status: int, said: str, known: bool
) -> None:
    path = world.source("cuda.list", archive.lists(CUDA))
    if known:
        world.apt().refresh([path])
    archive.falsified = {f"/{CUDA}/{name}": [status] * 50 for name in ("InRelease", "Release", "Release.gpg")}
    with pytest.raises(ChangeFailed, match=said):
        world.apt().refresh([path])


@pytest.mark.parametrize("known", [False, True])
def test_repository_without_a_signature_is_told_as_such(world: World, archive: Archive, known: bool) -> None:
    path = world.source("cuda.list", archive.lists(CUDA))
    if known:
        world.apt().refresh([path])
    release = (archive.folder / CUDA / "InRelease").read_bytes().split(b"\n\n", 1)[1].split(b"-----BEGIN")[0]
    archive.falsified = {f"/{CUDA}/InRelease": [404] * 50, f"/{CUDA}/Release": [release] * 50}
    with pytest.raises(ChangeFailed, match="signature"):
        world.apt().refresh([path])


def test_short_mirror_sync_is_retried(world: World, archive: Archive) -> None:
    wrong = b"Package: x\n" * 100
    archive.falsified[f"/{CUDA}/Packages.gz"] = [wrong]
    archive.falsified[f"/{CUDA}/Packages"] = [wrong]
    world.apt().refresh([world.source("cuda.list", archive.lists(CUDA))])
    assert any(name.endswith("Packages") for name in world.indexes())


def test_lasting_mirror_sync_is_reported_and_the_old_index_kept(ready: World, archive: Archive) -> None:
    before = ready.indexes()
    # The server's package list does not match its InRelease, as in the middle of a push.
    archive.falsified = {f"/{CUDA}/{name}": [b"Package: x\n" * 100] * 50 for name in ("Packages", "Packages.gz")}
    (ready.folder / "var/lib/apt/lists" / next(name for name in before if name.endswith("Packages"))).unlink()
    before = ready.indexes()
    with pytest.raises(ChangeFailed, match=f"mid-sync.*{CUDA}") as caught:
        ready.apt().refresh([ready.source("cuda.list", archive.lists(CUDA))])
    assert ready.indexes() == before
    assert "[weak]" not in caught.value.why
    assert not list((ready.folder / "var/lib/apt").glob("gpunode-*"))


def test_wrong_key_fails_although_an_index_exists(ready: World, archive: Archive, keys: Keys) -> None:
    before = ready.indexes()
    other = keys.make("other@localhost")
    with pytest.raises(ChangeFailed, match="signature cannot be verified"):
        ready.apt().refresh([ready.source("cuda.list", archive.lists(CUDA, other))])
    assert ready.waited == []
    assert ready.indexes() == before


def test_simulation_agrees_with_the_plan(ready: World) -> None:
    ready.installed("old-driver 470.1-1", "old-lib 470.1-1 rc")
    changes = (
        PackageChange(PackageId("driver"), None, PackageState("580.1-1")),
        PackageChange(PackageId("driver-lib"), None, KnownAfter("")),
        PackageChange(PackageId("old-driver"), PackageState("470.1-1"), None),
        PackageChange(PackageId("old-lib"), PackageState("470.1-1", config_files_only=True), None),
        PackageChange(PackageId("gone-already"), PackageState("1"), None),
    )
    exact = (*changes[:1], PackageChange(PackageId("driver-lib"), None, PackageState("580.1-1")), *changes[2:4])
    simulation = ready.apt().simulate(exact)
    assert simulation is not None
    assert simulation.problem == ""
    assert set(simulation.actions) == {
        Action("purge", PackageId("old-driver"), former="470.1-1"),
        Action("purge", PackageId("old-lib")),
        Action("install", PackageId("driver-lib"), "580.1-1"),
        Action("install", PackageId("driver"), "580.1-1"),
    }
    assert differences_from_plan(exact, simulation) == ()
    # driver alone at 580 is impossible: apt would take the newest library.
    refused = ready.apt().simulate(changes)
    assert refused is not None
    assert "driver : Depends: driver-lib (= 580.1-1)" in refused.problem
    assert "Reading package lists" not in refused.problem


def test_package_unknown_to_dpkg_is_not_passed_to_apt(ready: World) -> None:
    simulation = ready.apt().simulate((PackageChange(PackageId("gone-already"), PackageState("1"), None),))
    assert simulation is not None
    assert simulation.actions == ()
    assert simulation.problem == ""


def test_removal_of_a_dependent_package_is_unplanned(ready: World) -> None:
    ready.installed("old-driver 470.1-1")
    status = ready.folder / "var/lib/dpkg/status"
    status.write_text(
        status.read_text()
        + "Package: user-of-old\nStatus: install ok installed\nMaintainer: L <l@localhost>\nArchitecture: all\n"
        "Version: 1\nDepends: old-driver\nDescription: lab\n\n"
    )
    changes = (
        PackageChange(PackageId("driver"), None, KnownAfter("590.")),
        PackageChange(PackageId("old-driver"), PackageState("470.1-1"), None),
    )
    simulation = ready.apt().simulate(changes)
    assert simulation is not None
    assert differences_from_plan(changes, simulation) == ("apt would purge user-of-old 1, which the plan keeps",)


def test_simulation_waits_for_no_lock(ready: World) -> None:
    with locked(ready.folder / "var/lib/dpkg/lock-frontend"):
        simulation = ready.apt().simulate((PackageChange(PackageId("driver"), None, KnownAfter("590.")),))
    assert simulation is not None
    assert {str(action.id) for action in simulation.actions} == {"driver", "driver-lib"}


def test_fetch_returns_the_bytes(world: World, archive: Archive) -> None:
    content = (archive.folder / CUDA / "InRelease").read_bytes()
    assert world.apt().fetch(f"{archive.url}/{CUDA}/InRelease", 1 << 20) == content
    assert world.apt().fetch(f"file:{archive.folder}/{CUDA}/InRelease", len(content)) == content
    assert {progress.phase for progress in world.progress} <= {"download"}


def test_fetch_stops_at_its_limit(world: World, archive: Archive) -> None:
    (archive.folder / "large").write_bytes(b"x" * 300_000)
    for url in (f"{archive.url}/large", f"file:{archive.folder}/large"):
        with pytest.raises(ChangeFailed, match="larger than 1000 bytes"):
            world.apt().fetch(url, 1000)


def test_fetch_names_a_missing_file(world: World, archive: Archive) -> None:
    with pytest.raises(ChangeFailed, match="nothing at that address") as caught:
        world.apt().fetch(f"{archive.url}/none.pub", 1000)
    assert "404" in caught.value.why
    assert world.waited == []


class locked:  # noqa: N801
    """Let another process hold the lock within the context."""

    def __init__(self, path: Path) -> None:
        code = f"import fcntl,sys; f=open({str(path)!r},'a'); fcntl.lockf(f,2); print(1,flush=True); sys.stdin.read()"
        self._argv = [sys.executable, "-c", code]

    def __enter__(self) -> locked:
        self._child = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._child.stdout is not None
        self._child.stdout.readline()
        self.pid = self._child.pid
        return self

    def release(self) -> None:
        self._child.communicate()

    def __exit__(self, *_: object) -> None:
        if self._child.returncode is None:
            self.release()


def test_holder_of_the_lists_lock_is_named(world: World, archive: Archive) -> None:
    path = world.source("cuda.list", archive.lists(CUDA))
    with locked(world.folder / "var/lib/apt/lists/lock") as other, pytest.raises(Busy) as caught:
        world.apt().refresh([path])
    assert f"process {other.pid}" in caught.value.what
    assert f"({sys.executable} -c import fcntl" in caught.value.what
    assert archive.asked == []


def test_released_lock_is_waited_for(world: World, archive: Archive) -> None:
    path = world.source("cuda.list", archive.lists(CUDA))
    with locked(world.folder / "var/lib/apt/lists/lock") as other:
        world.on_wait = other.release
        world.apt(lock_timeout_s=600).refresh([path])
    assert world.indexes()
    assert f"process {other.pid}" in world.progress[0].detail


@pytest.mark.parametrize("lock", ["var/lib/dpkg/lock-frontend", "var/lib/dpkg/lock", "var/cache/apt/archives/lock"])
def test_transaction_does_not_start_while_a_lock_is_held(ready: World, lock: str) -> None:
    change = PackageChange(PackageId("driver"), None, KnownAfter("590."))
    with locked(ready.folder / lock) as other, pytest.raises(Busy, match=f"process {other.pid}"):
        ready.apt().transact((change,))
    assert not any("install" in command for command in ready.runner.commands)


def test_unsigned_repository_is_refused_whatever_the_host_allows(world: World, archive: Archive) -> None:
    loose = world.folder / "etc/apt/apt.conf.d/99loose"
    loose.write_text('Acquire::AllowInsecureRepositories "true";\nAcquire::AllowWeakRepositories "true";\n')
    path = world.source("cuda.list", archive.lists(CUDA))
    archive.falsified[f"/{CUDA}/InRelease"] = [404] * 9
    with pytest.raises(ChangeFailed):
        world.apt().refresh([path])
    assert world.indexes() == {}


def test_expired_own_index_is_refused_whatever_the_host_allows(world: World, archive: Archive, keys: Keys) -> None:
    """An attacker may replay it. For other archives, such as frozen mirrors, the host's configuration decides."""
    expired = {"Valid-Until": "Sun, 02 Jan 2022 00:00:00 UTC"}
    index(archive.folder / CUDA, keys.folder, "archive@localhost", **expired)
    (world.folder / "etc/apt/apt.conf.d/99loose").write_text('Acquire::Check-Valid-Until "0";\n')
    path = world.source("cuda.list", archive.lists(CUDA))
    with pytest.raises(ChangeFailed) as refused:
        world.apt().refresh([path])
    assert "expired" in refused.value.why
    world.apt().refresh(())
    assert world.indexes()
