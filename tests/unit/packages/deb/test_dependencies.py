from __future__ import annotations

from gpunode.change import PackageState
from gpunode.facts.model import MissingDependency
from gpunode.package_id import PackageId
from gpunode.packages.deb.dependencies import InstalledRelations
from gpunode.packages.deb.status import packages, parse_status
from tests.ids import by_id, ids

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
    found = parse_status(DRIVER.format(libcuda1=libcuda1, more=more))
    return InstalledRelations(found).missing({**packages(found), **by_id(planned or {})}, [PackageId("driver")])


def test_missing_dependency_is_named_with_its_only_version() -> None:
    assert missing() == (
        MissingDependency(PackageId("ptxjit"), "580.2-1", PackageId("libcuda1"), "ptxjit (= 580.2-1)"),
    )
    assert missing(libcuda1="config-files") == (
        MissingDependency(PackageId("libcuda1"), "580.2-1", PackageId("driver"), "libcuda1 (= 580.2-1)"),
    )


def test_half_installed_package_is_left_to_the_repair() -> None:
    assert missing(libcuda1="half-installed") == ()
    assert [one.package.name for one in missing(libcuda1="unpacked") or ()] == ["ptxjit"]


def test_unmet_alternatives_are_named_with_any_version() -> None:
    found = missing(libcuda1="half-installed", more="gone (>= 2) | awk:any, nothing | nowhere")
    assert found is not None
    assert [(str(one.package), one.version, one.relation) for one in found] == [
        ("gone", "", "gone (>= 2) | awk"), ("nothing", "", "nothing | nowhere"),
    ]  # fmt: skip


def test_dependency_removed_by_the_plan_is_not_reported() -> None:
    found = parse_status(DRIVER.format(libcuda1="installed", more="awk"))
    left = {package: state for package, state in packages(found).items() if package.name != "libcuda1"}
    assert InstalledRelations(found).missing(left, [PackageId("driver")]) == ()


def test_planned_versions_satisfy_relations_within_their_branch() -> None:
    assert missing(planned={"ptxjit": PackageState("580.")}) == ()
    assert [one.version for one in missing(planned={"libcuda1": PackageState("580.")}) or ()] == [""]
    assert missing(planned={"libcuda1": PackageState("595.")}) == ()
    assert missing(planned={"driver": PackageState("595.")}) is None, "none of the roots is known"


def test_dependency_changed_by_the_plan_is_not_requested_again() -> None:
    """A package that does not declare ``Multi-Arch: allowed`` never satisfies ``libcuda1:any``."""
    more = "libcuda1:any"
    assert [str(one.package) for one in missing(more=more) or ()] == ["libcuda1", "ptxjit"]
    for after in (PackageState("580."), PackageState("580.2-1", config_files_only=True)):
        planned = {"libcuda1": after, "ptxjit": PackageState("580.")}
        assert missing(more=more, planned=planned) == (), after
    found = parse_status(DRIVER.format(libcuda1="installed", more=more))
    purged = {package: state for package, state in packages(found).items() if package.name != "libcuda1"}
    assert InstalledRelations(found).missing(purged, [PackageId("driver")]) == ()


def test_each_dependency_has_the_packages_that_meet_it() -> None:
    found = parse_status(DRIVER.format(libcuda1="installed", more="awk | dpkg"))
    driver, gone = PackageId("driver"), PackageId("gone")
    assert InstalledRelations(found).satisfying_packages(packages(found), [driver, gone]) == {
        driver: (ids("dpkg"), ids("libcuda1"), ids("mawk", "dpkg")),
    }
