"""Configuration files in a setup and its undo, changed by dpkg itself: the user's files stay, nothing else does."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import pytest

from gpunode.change import Change, PackageChange, PackageState
from gpunode.host.local import LocalHost
from gpunode.journal.store import Store
from gpunode.package_id import PackageId
from gpunode.packages.simulation import Simulation
from gpunode.workflow.apply import Applier
from gpunode.workflow.converge import survey
from gpunode.workflow.events import ignore_event
from gpunode.workflow.remove import plan_removal
from gpunode.workflow.rollback import execute_undo, plan_rollback
from tests.needs import lacking

pytestmark = pytest.mark.skipif(bool(lacking("dpkg-deb")), reason=lacking("dpkg-deb"))
LAB, BASE = PackageId("nvidia-lab"), PackageId("base")


class Image(LocalHost):
    """An image with packages built here, which only dpkg changes."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder / "root"))
        self.folder = folder
        for name in ("var/lib/dpkg/updates", "etc/lab"):
            Path(self.root, name).mkdir(parents=True)
        for name in ("var/lib/dpkg/status", "etc/keep"):
            Path(self.root, name).touch()
        self.install(BASE, "1")

    def file(self, name: str) -> Path:
        return Path(self.root, "etc/lab", name)

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.file("").iterdir()} if self.file("").exists() else {}

    def install(self, package: PackageId, version: str) -> None:
        """Install the package, whose ``lab.conf`` contains its version."""
        tree = self.folder / f"{package}-{version}"
        (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
        control = f"Package: {package}\nVersion: {version}\nArchitecture: amd64\nMaintainer: m <m@x>\nDescription: d\n"
        (tree / "DEBIAN/control").write_text(control)
        if package == LAB:
            (tree / "etc/lab").mkdir(parents=True, exist_ok=True)
            (tree / "etc/lab/lab.conf").write_text(f"of version {version}")
            (tree / "DEBIAN/conffiles").write_text("/etc/lab/lab.conf\n")
        subprocess.run(("dpkg-deb", "--root-owner-group", "--build", tree), check=True)
        self._dpkg("--install", f"{tree}.deb")

    def _dpkg(self, *words: str) -> None:
        keep = "--force-not-root,bad-path,architecture,downgrade,confdef,confold"
        subprocess.run(("dpkg", f"--root={self.root}", "--log=/dev/null", keep, *words), check=True)

    def apply(self, changes: Sequence[Change], /) -> None:
        for change in changes:
            if not isinstance(change, PackageChange):
                super().apply([change])
            elif isinstance(change.after, PackageState):
                self.install(change.id, change.after.version)
            else:
                self._dpkg("--purge", str(change.id))

    def simulate(self, changes: Sequence[PackageChange], /) -> Simulation | None:
        return None

    def list_offered_versions(self, packages: Collection[PackageId], /) -> Mapping[PackageId, frozenset[str]]:
        return {one: frozenset({"1", "2"}) for one in packages}


Undo = Callable[[], None]


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


@pytest.fixture(params=["rollback", "remove"])
def undo(image: Image, request: pytest.FixtureRequest) -> Undo:
    def carry_out() -> None:
        store, facts = Store(image.root), survey(image, image=True)
        is_removal = request.param == "remove"
        plan = plan_removal(store, image, facts) if is_removal else plan_rollback(store, image, store.ids()[-1], facts)
        execute_undo(plan, image, store, on_event=ignore_event)

    return carry_out


def set_up(image: Image, before: PackageState | None, version: str) -> None:
    run = Store(image.root).begin("setup")
    change = PackageChange(LAB, before, PackageState(version))
    Applier(image, run, ignore_event, lambda: None).apply_packages("packages", (change,), lambda _: "driver")
    run.commit("done")


@pytest.mark.parametrize("edited", ["", "by hand, later"])
def test_users_own_file_outlives_a_package_that_ships_it(image: Image, undo: Undo, edited: str) -> None:
    image.file("lab.conf").write_text("by hand")
    set_up(image, None, "1")
    assert image.files() == {"lab.conf": "by hand", "lab.conf.dpkg-dist": "of version 1"}
    if edited:
        image.file("lab.conf").write_text(edited)
    undo()
    assert image.files() == {"lab.conf": edited or "by hand"}


def test_file_that_an_upgrade_put_beside_an_edited_one_goes_with_it(image: Image, undo: Undo) -> None:
    image.install(LAB, "1")
    image.file("lab.conf").write_text("by hand")
    image.file("theirs.conf.dpkg-dist").write_text("of another package")
    set_up(image, PackageState("1"), "2")
    assert image.files()["lab.conf.dpkg-dist"] == "of version 2"
    undo()
    assert image.files() == {"lab.conf": "by hand", "theirs.conf.dpkg-dist": "of another package"}


def test_unedited_file_of_a_package_goes_with_it(image: Image, undo: Undo) -> None:
    set_up(image, None, "1")
    undo()
    assert image.files() == {}
