from __future__ import annotations

from gpunode.change import PackageState
from gpunode.facts.model import MissingDependency
from gpunode.package_id import PackageId
from gpunode.packages.deb.dependencies import InstalledRelations
from gpunode.packages.deb.status import entries, packages
from tests.ids import by_id

DRIVER = """\
Package: dpkg
Status: install ok installed
Architecture: amd64
Version: 1.21.22

Package: driver
Status: install ok installed
Architecture: amd64
Version: 580.2-1
Pre-Depends: dpkg (>= 1.17)
Depends: libcuda1 (= 580.2-1), {more}

Package: libcuda1
Status: install ok {libcuda1}
Architecture: amd64
Version: 580.2-1
Depends: ptxjit (= 580.2-1), awk

Package: mawk
Status: install ok installed
Architecture: amd64
Version: 1.3.4
Provides: awk

"""


def missing(
    libcuda1: str = "installed", more: str = "awk", planned: dict[str, PackageState] | None = None
) -> tuple[MissingDependency, ...] | None:
    found = entries(DRIVER.format(libcuda1=libcuda1, more=more))
    return InstalledRelations(found).missing({**packages(found), **by_id(planned or {})}, [PackageId("driver")])


def test_what_a_dependency_needs_is_found_and_named_with_the_only_version_that_will_do() -> None:
    assert missing() == (
        MissingDependency(PackageId("ptxjit"), "580.2-1", PackageId("libcuda1"), "ptxjit (= 580.2-1)"),
    )
    assert missing(libcuda1="config-files") == (
        MissingDependency(PackageId("libcuda1"), "580.2-1", PackageId("driver"), "libcuda1 (= 580.2-1)"),
    )


def test_what_dpkg_left_half_installed_is_the_work_of_the_repair() -> None:
    assert missing(libcuda1="half-installed") == ()
    assert [one.package.name for one in missing(libcuda1="unpacked") or ()] == ["ptxjit"]


def test_alternatives_are_named_as_they_stand_and_any_version_of_them_will_do() -> None:
    found = missing(libcuda1="half-installed", more="gone (>= 2) | awk:any, nothing | nowhere")
    assert found is not None
    assert [(str(one.package), one.version, one.relation) for one in found] == [
        ("gone", "", "gone (>= 2) | awk"), ("nothing", "", "nothing | nowhere"),
    ]  # fmt: skip


def test_what_a_plan_takes_away_is_left_to_the_transaction() -> None:
    found = entries(DRIVER.format(libcuda1="installed", more="awk"))
    left = {package: state for package, state in packages(found).items() if package.name != "libcuda1"}
    assert InstalledRelations(found).missing(left, [PackageId("driver")]) == ()


def test_a_plan_meets_every_relation_and_its_own_are_known_for_a_version_of_the_same_branch_only() -> None:
    assert missing(planned={"ptxjit": PackageState("580.")}) == ()
    assert [one.version for one in missing(planned={"libcuda1": PackageState("580.")}) or ()] == [""]
    assert missing(planned={"libcuda1": PackageState("595.")}) == ()
    assert missing(planned={"driver": PackageState("595.")}) is None, "none of the roots is known"


def test_what_a_plan_changes_is_not_asked_for_again_though_its_architecture_does_not_do() -> None:
    """``libcuda1:any`` stays unmet by a package that does not say that it is for every architecture."""
    more = "libcuda1:any"
    assert [str(one.package) for one in missing(more=more) or ()] == ["libcuda1", "ptxjit"]
    for after in (PackageState("580."), PackageState("580.2-1", config_files_only=True)):
        planned = {"libcuda1": after, "ptxjit": PackageState("580.")}
        assert missing(more=more, planned=planned) == (), after
    found = entries(DRIVER.format(libcuda1="installed", more=more))
    purged = {package: state for package, state in packages(found).items() if package.name != "libcuda1"}
    assert InstalledRelations(found).missing(purged, [PackageId("driver")]) == ()
