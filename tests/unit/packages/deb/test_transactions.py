from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.change import KnownAfter, PackageChange, PackageState
from gpunode.package_id import PackageId
from gpunode.packages.deb.transactions import arguments, parse_simulation
from gpunode.packages.simulation import Action, Simulation, differences_from_plan
from gpunode.packages.version import has_prefix
from tests.ids import ids

RESIDUE = PackageState("470.1-1", config_files_only=True)
names = st.from_regex(r"\A[a-z][a-z0-9.+-]{0,10}[a-z0-9]\Z")
versions = st.from_regex(r"\A([0-9]:)?[0-9][0-9a-z.+~]{0,6}(-[0-9a-z.+~]{1,4})?\Z")
states = st.builds(PackageState, versions, st.booleans(), st.booleans(), st.booleans())
afters = st.one_of(st.none(), states, st.builds(KnownAfter, versions))
changes = st.lists(
    st.builds(PackageChange, names.map(PackageId), st.one_of(st.none(), states), afters),
    max_size=6,
    unique_by=lambda one: one.id,
)


def installed_state(version: str, *, auto: bool = False, held: bool = False) -> PackageState:
    return PackageState(version, auto, held)


@given(changes)
def test_apt_is_asked_only_for_planned_packages(plan: list[PackageChange]) -> None:
    words = arguments(plan, frozenset(change.id for change in plan))
    packages = [word for word in words if not word.startswith("--")]
    assert {word.split("=")[0].removesuffix("-") for word in packages} <= {str(change.id) for change in plan}
    assert set(words) - set(packages) <= {"--purge", "--allow-downgrades", "--allow-change-held-packages"}


@given(changes)
def test_permissive_options_need_a_reason_in_the_plan(plan: list[PackageChange]) -> None:
    words = arguments(plan, frozenset(change.id for change in plan))
    if "--allow-change-held-packages" in words:
        assert any(change.before and change.before.held for change in plan)
    if "--allow-downgrades" in words:
        assert any(change.before and change.after for change in plan)


def test_arguments_for_exact_versions_removals_and_residues() -> None:
    plan = [
        PackageChange(PackageId("driver"), None, installed_state("2:590.1-1")),
        PackageChange(PackageId("lib"), None, KnownAfter("590.")),
        PackageChange(PackageId("old"), installed_state("470.1-1"), None),
        PackageChange(PackageId("residue"), RESIDUE, None),
        PackageChange(PackageId("forgotten"), installed_state("1"), None),
    ]
    known = ids("old", "residue")
    assert arguments(plan, known) == ("--purge", "driver=2:590.1-1", "lib", "old-", "residue-")


def test_exact_version_is_an_argument_and_a_branch_is_left_to_the_pin() -> None:
    plan = [
        PackageChange(PackageId.of("libcuda1:i386"), installed_state("580.178.04-1"), KnownAfter("580.95.05-")),
        PackageChange(PackageId("driver"), installed_state("580.95.05-1"), KnownAfter("580.")),
    ]
    assert arguments(plan, frozenset()) == ("--allow-downgrades", "libcuda1:i386=580.95.05-*", "driver")


def test_package_that_keeps_its_conffiles_prevents_purge() -> None:
    plan = [
        PackageChange(PackageId("old"), installed_state("1"), RESIDUE),
        PackageChange(PackageId("other"), installed_state("1"), None),
    ]
    assert arguments(plan, frozenset({PackageId("old"), PackageId("other")})) == ("old-", "other-")


def test_empty_plan_has_no_arguments() -> None:
    assert arguments([PackageChange(PackageId("gone"), installed_state("1", held=True), None)], frozenset()) == ()
    assert arguments([PackageChange(PackageId("residue"), None, RESIDUE)], frozenset({PackageId("residue")})) == ()


@pytest.mark.parametrize(
    ("before", "after", "is_downgrade"),
    [
        ("2:590.1-1", installed_state("580.1-1"), True),
        ("580.1-1", installed_state("2:590.1-1"), False),
        ("2:590.1-1", KnownAfter("580."), True),
        ("580.95.05-1", KnownAfter("580."), False),
        ("580.1-1", KnownAfter("590."), False),
        ("580.1-1", KnownAfter(""), False),
    ],
)
def test_downgrade_is_allowed_only_where_the_version_falls(
    before: str, after: PackageState | KnownAfter, is_downgrade: bool
) -> None:
    words = arguments([PackageChange(PackageId("driver"), installed_state(before), after)], frozenset())
    assert ("--allow-downgrades" in words) == is_downgrade


def simulation(*actions: Action) -> Simulation:
    marked = (replace(one, downgrade=bool(one.version and one.former and one.version < one.former)) for one in actions)
    return Simulation(tuple(marked), manager="apt")


PLAN = (
    PackageChange(PackageId("driver"), None, KnownAfter("580.")),
    PackageChange(PackageId("old"), installed_state("470.1-1"), None),
)
GOOD = (Action("install", PackageId("driver"), "2:580.1-1"), Action("purge", PackageId("old"), former="470.1-1"))


def test_additional_dependencies_match_the_plan() -> None:
    assert differences_from_plan(PLAN, simulation(*GOOD, Action("install", PackageId("driver-lib"), "580.1-1"))) == ()


@pytest.mark.parametrize(
    ("actions", "says"),
    [
        (
            (*GOOD, Action("remove", PackageId("docker-ce"), former="5:28")),
            "apt would remove docker-ce 5:28, which the plan keeps",
        ),
        (
            (Action("install", PackageId("driver"), "615.1-1"), GOOD[1]),
            "the plan installs driver 580.*, apt would leave it at 615.1-1",
        ),
        ((GOOD[1],), "the plan installs driver, which apt would leave out"),
        ((GOOD[0],), "the plan removes old, which apt would keep"),
        (
            (*GOOD, Action("install", PackageId("libc6"), "2.35", former="2.36")),
            "apt would downgrade libc6 from 2.36 to 2.35",
        ),
        ((GOOD[0], Action("install", PackageId("old"), "580.2-1", former="470.1-1")), "apt would install old 580.2-1"),
        ((*GOOD, Action("remove", PackageId("driver"))), "apt would remove driver, which the plan installs"),
    ],
)
def test_unplanned_action_is_reported(actions: tuple[Action, ...], says: str) -> None:
    assert any(sentence.startswith(says) for sentence in differences_from_plan(PLAN, simulation(*actions)))


def test_installed_package_matches_only_in_the_right_version() -> None:
    right = PackageChange(PackageId("driver"), installed_state("580.1-1"), KnownAfter("580."))
    wrong = PackageChange(PackageId("driver"), installed_state("595.1-1"), KnownAfter("580."))
    assert differences_from_plan([right], simulation()) == ()
    assert differences_from_plan([wrong], simulation()) == (
        "the plan installs driver 580.*, apt would leave it at 595.1-1",
    )


def test_kept_conffiles_must_not_be_purged() -> None:
    plan = [PackageChange(PackageId("old"), installed_state("1"), RESIDUE)]
    assert differences_from_plan(plan, simulation(Action("remove", PackageId("old"), former="1"))) == ()
    assert differences_from_plan(plan, simulation(Action("purge", PackageId("old"), former="1")))


def test_refusal_never_matches_the_plan() -> None:
    assert differences_from_plan((), Simulation((), "E: Unable to locate package x", "apt")) == (
        "apt refuses: E: Unable to locate package x",
    )


def test_epoch_is_ignored_in_a_version_prefix() -> None:
    assert has_prefix("2:580.1-1", "580.")
    assert not has_prefix("580.1-1", "58.")


def test_unplanned_downgrade_follows_dpkg_version_order() -> None:
    line = "Inst libc6 [1:1.0] (2.0~rc1 Debian:12 [amd64])\n"
    assert differences_from_plan((), parse_simulation(line, "", ok=True)) == (
        "apt would downgrade libc6 from 1:1.0 to 2.0~rc1, which is not in the plan",
    )
