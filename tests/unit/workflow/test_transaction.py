"""apt's plans, compared with gpunode's; the solver's answers are written here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpunode.change import KnownAfter, PackageChange, PackageState, Trigger
from gpunode.errors import Refused
from gpunode.facts.model import Known
from gpunode.package_id import PackageId
from gpunode.packages.deb.dependencies import InstalledRelations
from gpunode.packages.deb.status import DpkgEntry
from gpunode.packages.simulation import ANY_PROVIDER, Action, Simulation
from gpunode.workflow import plan
from gpunode.workflow.plan import Simulate, Transaction
from tests.ids import by_id, ids, names
from tests.unit.steps.machines import machine
from tests.unit.workflow.solver import Depends, Solver

OLD = PackageState("535.261.03-1")
DRIVER = KnownAfter("580.", "driver")
BRING = PackageChange(PackageId("nvidia-driver-cuda"), None, DRIVER)


def install(name: str, version: str = "580.95.05-1", former: str = "") -> Action:
    return Action("install", PackageId.of(name), version, former)


def resolve(
    changes: Sequence[PackageChange],
    installed: Mapping[str, PackageState],
    simulate: Simulate,
    locked: Mapping[str, str] | None = None,
) -> Transaction:
    facts = replace(machine(), packages=Known(by_id(installed), "dpkg-status"))
    return plan.resolve_versions(changes, facts, simulate, by_id(locked or {}))


def answers(*actions: Action) -> Callable[[Sequence[PackageChange]], Simulation]:
    return lambda _changes: Simulation(actions)


def test_resolved_versions_are_exact_and_dependencies_marked_auto() -> None:
    found = resolve(
        [BRING], {}, answers(install("nvidia-driver-cuda"), install("libcuda1"), install("dkms", "3.0.10-8"))
    )
    assert found.requested_changes == (
        PackageChange(PackageId("nvidia-driver-cuda"), None, PackageState("580.95.05-1")),
    )
    assert {str(change.id): change.after for change in found.dependencies} == {
        "libcuda1": PackageState("580.95.05-1", auto=True),
        "dkms": PackageState("3.0.10-8", auto=True),
    }


def test_virtual_dependency_resolves_to_its_provider() -> None:
    """apt-get, asked for default-logind, selects libpam-systemd, and its simulation names that alone."""
    virtual = PackageChange(PackageId("default-logind"), None, ANY_PROVIDER)
    found = resolve([virtual], {}, answers(install("libpam-systemd", "252.39-1~deb12u1")))
    provider = PackageChange(PackageId("libpam-systemd"), None, PackageState("252.39-1~deb12u1", auto=True))
    assert (found.requested_changes, found.dependencies) == ((), (provider,))


def test_manually_installed_dependency_stays_manual() -> None:
    installed = {"libcuda1": PackageState("580.82.07-1"), "dkms": PackageState("3.0.9", auto=True)}
    actions = (
        install("nvidia-driver-cuda"),
        install("libcuda1", former="580.82.07-1"),
        install("dkms", "3.0.10", "3.0.9"),
    )
    found = resolve([BRING], installed, answers(*actions))
    assert {str(change.id): getattr(change.after, "auto", None) for change in found.dependencies} == {
        "libcuda1": False,
        "dkms": True,
    }


def test_change_without_an_action_in_the_simulation_is_dropped() -> None:
    there = PackageState("580.95.05-1")
    changes = [BRING, PackageChange(PackageId("nvidia-persistenced"), there, DRIVER)]
    found = resolve(changes, {"nvidia-persistenced": there}, answers(install("nvidia-driver-cuda")))
    assert [str(change.id) for change in found.requested_changes] == ["nvidia-driver-cuda"]


def test_changes_are_unresolved_without_a_package_manager() -> None:
    assert resolve([BRING], {}, lambda _changes: None).requested_changes == (BRING,)


def test_solver_problem_is_passed_on() -> None:
    problem = "E: Unable to locate package nvidia-driver-cuda"
    found = resolve([BRING], {}, lambda _changes: Simulation((), problem))
    assert (found.problem, found.requested_changes) == (problem, (BRING,))


NEW = {"nvidia-driver-cuda": frozenset({"libcuda1"}), "libcuda1": frozenset({"libnvidia-ml1"})} | dict.fromkeys(
    ("libnvidia-ml1", "libglx-nvidia0"), frozenset[str]()
)
NEW |= {"nvidia-driver-libs": frozenset({"libglx-nvidia0"}), "nvidia-driver": frozenset({"nvidia-driver-libs"})}
DEBIANS = {name: needs for name, needs in NEW.items() if name != "nvidia-driver-cuda"}
DEBIANS |= {"nvidia-driver": frozenset({"nvidia-driver-libs", "libcuda1"}), "nvidia-alternative": frozenset()}


def purges(names: Iterable[str]) -> list[PackageChange]:
    return [PackageChange(PackageId.of(name), OLD, None) for name in sorted(names)]


def removed_names(found: Transaction) -> set[str]:
    return {str(change.id) for change in (*found.requested_changes, *found.dependencies) if change.after is None}


def test_old_driver_packages_needed_by_the_new_driver_are_upgraded() -> None:
    solver = Solver(DEBIANS, NEW)
    assert "nvidia-driver" in {str(action.id) for action in solver([BRING]).actions}, "apt would upgrade it unasked"

    found = resolve([BRING, *purges(DEBIANS)], solver.states(), solver)

    assert found.upgraded == by_id({"libcuda1": (), "libnvidia-ml1": ()})
    assert removed_names(found) == DEBIANS.keys() - names(found.upgraded)
    assert {change.id for change in found.dependencies} == found.upgraded.keys()


def test_old_package_needed_by_others_is_upgraded_and_names_them() -> None:
    solver = Solver(DEBIANS | {"player": frozenset({"nvidia-driver-libs"})}, NEW, frozenset({"player"}))

    found = resolve([BRING, *purges(DEBIANS)], solver.states(), solver)

    by_player = {package for package, needing in found.upgraded.items() if needing == (PackageId("player"),)}
    assert by_player >= ids("nvidia-driver-libs", "libglx-nvidia0")
    assert removed_names(found) == {"nvidia-driver", "nvidia-alternative"}
    assert not any(str(change.id) == "player" for change in (*found.requested_changes, *found.dependencies))


def test_package_that_loses_its_dependency_stops_the_run() -> None:
    solver = Solver(DEBIANS | {"player": frozenset({"nvidia-alternative"})}, NEW, frozenset({"player"}))
    with pytest.raises(Refused) as caught:
        resolve([BRING, *purges(DEBIANS)], solver.states(), solver)
    assert "apt would purge player" in caught.value.why


_NAMES = tuple(f"libcuda1{letter}" for letter in "abcdefgh")


@st.composite
def _solvers(draw: st.DrawFn) -> Solver:
    """Return an old driver, a new one with other relations and partly the same names, and packages that need them."""

    def needs(number: int) -> Depends:
        return (
            draw(st.frozensets(st.sampled_from(_NAMES[number + 1 :]), max_size=3))
            if _NAMES[number + 1 :]
            else Depends()
        )

    archive = {name: needs(number) for number, name in enumerate(_NAMES)}
    installed = {name: needs(number) for number, name in enumerate(_NAMES)}
    archive["nvidia-driver-cuda"] = draw(st.frozensets(st.sampled_from(_NAMES), min_size=1, max_size=3))
    others = {
        f"player{number}": draw(st.frozensets(st.sampled_from(_NAMES), min_size=1, max_size=2)) for number in (1, 2)
    }
    chosen = draw(st.sets(st.sampled_from(sorted(others))))
    extra = {name: others[name] for name in chosen}
    return Solver(installed | extra, archive, frozenset(chosen))


@given(solver=_solvers())
def test_announced_purges_are_what_apt_purges(solver: Solver) -> None:
    """Dependencies of the new driver or of a package that stays are upgraded, nothing else; all else is purged."""
    needs = {**solver.installed, **solver.archive}
    needed = _reachable([str(BRING.id), *solver.others], needs)
    # apt upgrades nothing for a package that accepts any version: such a node is refused.
    assume(needed <= {str(action.id) for action in solver([BRING]).actions})

    found = resolve([BRING, *purges(_NAMES)], solver.states(), solver)

    done = solver([*found.requested_changes, *found.dependencies])

    assert removed_names(found) == {str(action.id) for action in done.actions if action.verb == "purge"}
    assert removed_names(found) == set(_NAMES) - needed
    assert names(found.upgraded) == needed


def _reachable(roots: Iterable[str], needs: Mapping[str, Depends]) -> set[str]:
    found: set[str] = set()
    left = list(roots)
    while left:
        more = needs[left.pop()] - found
        found |= more
        left += more
    return found


@pytest.mark.parametrize("verb", ["remove", "purge"])
@pytest.mark.parametrize("name", ["openmpi-bin", "nvidia-container-toolkit", "nvidia-fabricmanager"])
def test_unplanned_removal_stops_the_run(verb: str, name: str) -> None:
    gone = Action(verb, PackageId(name), former="1.0")  # type: ignore[arg-type]
    with pytest.raises(Refused) as caught:
        resolve([BRING], {name: PackageState("1.0")}, answers(install("nvidia-driver-cuda"), gone))
    assert name in caught.value.why
    assert "no package was changed" in caught.value.what


def test_helper_packages_of_the_old_driver_are_removed_with_it() -> None:
    purge = PackageChange(PackageId("nvidia-driver-535"), OLD, None)
    helper = Action("remove", PackageId("nvidia-alternative"), former="2023")
    actions = (
        install("nvidia-driver-cuda"),
        Action("purge", PackageId("nvidia-driver-535"), former=OLD.version),
        helper,
    )
    found = resolve([BRING, purge], {"nvidia-driver-535": OLD}, answers(*actions))
    assert [(str(c.id), c.after) for c in found.dependencies] == [("nvidia-alternative", None)]


def test_refusal_names_what_a_package_that_must_stay_needs() -> None:
    """It names no command that would only be refused again."""
    other = PackageState("570.1.1-1")
    installed = by_id({"nvidia-utils-570": other, "site-tool": PackageState("1")})
    rows = (
        DpkgEntry("nvidia-utils-570", "install", False, "installed", "amd64", "570.1.1-1"),
        DpkgEntry("site-tool", "install", False, "installed", "amd64", "1", depends="nvidia-utils-570"),
    )
    facts = replace(machine(), packages=Known(installed, "x"), dependencies=Known(InstalledRelations(rows), "x"))
    gone = [Action("purge", one, former=state.version) for one, state in installed.items()]
    purge = PackageChange(PackageId("nvidia-utils-570"), other, None)
    with pytest.raises(Refused) as caught:
        plan.resolve_versions([purge], facts, answers(*gone))
    assert "would purge site-tool 1, which the plan keeps" in caught.value.why
    assert "site-tool needs nvidia-utils-570, which the plan purges" in caught.value.why
    assert "gpunode plan" not in caught.value.hint
    assert "choose the driver that it needs" in caught.value.hint


def test_refusal_of_a_package_that_needs_no_driver_blames_no_driver() -> None:
    """podman-docker conflicts with docker.io."""
    wrapper = PackageState("4.3.1")
    with pytest.raises(Refused) as caught:
        resolve(
            [BRING],
            {"podman-docker": wrapper},
            answers(
                install("nvidia-driver-cuda"), Action("remove", PackageId("podman-docker"), former=wrapper.version)
            ),
        )
    assert "if podman-docker may go" in caught.value.hint
    assert "the driver that it needs" not in caught.value.hint
    assert "runtime.name" in caught.value.hint


def test_package_of_another_driver_branch_is_refused() -> None:
    with pytest.raises(Refused, match="would not do what was planned"):
        resolve([BRING], {}, answers(install("nvidia-driver-cuda", "615.71.09-1")))
    mixed = (install("nvidia-driver-cuda"), install("libcuda1", "615.71.09-1"))
    with pytest.raises(Refused) as caught:
        resolve([BRING], {}, answers(*mixed))
    assert "libcuda1 615.71.09-1" in caught.value.why
    assert "gpunode plan" not in caught.value.hint, "which is refused alike"


def test_packages_with_their_own_versioning_pass_the_branch_check() -> None:
    own = (install("nvidia-driver-cuda"), install("nvlsm", "2025.03.1-1"), install("nvidia-modprobe", "580.95.05-1"))
    assert len(resolve([BRING], {}, answers(*own)).dependencies) == 2


def test_unplanned_downgrade_stops_the_run() -> None:
    lowered = replace(install("libc6", "2.35", "2.36"), downgrade=True)
    with pytest.raises(Refused, match="would not do what was planned"):
        resolve([BRING], {"libc6": PackageState("2.36")}, answers(install("nvidia-driver-cuda"), lowered))


def test_config_file_residue_is_purged_even_if_the_solver_omits_it() -> None:
    residue = PackageState("470.256.02-1", config_files_only=True)
    purge = PackageChange(PackageId("nvidia-kernel-support"), residue, None)
    gone = Action("purge", PackageId("nvidia-kernel-support"), former="470.256.02-1")
    found = resolve([BRING, purge], {"nvidia-kernel-support": residue}, answers(install("nvidia-driver-cuda"), gone))
    assert purge in found.requested_changes


def test_upgrade_of_the_newest_version_is_nothing() -> None:
    there = PackageState("580.95.05-1")
    found = resolve(
        [PackageChange(PackageId("nvidia-driver-cuda"), there, DRIVER)], {"nvidia-driver-cuda": there}, answers()
    )
    assert found.requested_changes == found.dependencies == ()


def test_locked_dependency_is_installed_in_its_version_and_marked_auto() -> None:
    locked = {"nvidia-driver-cuda": "580.95.05-1", "libnvidia-egl-gbm1": "1.1.2-1"}
    bring = PackageChange(PackageId("nvidia-driver-cuda"), None, PackageState("580.95.05-1"))
    asked: list[dict[str, object]] = []

    def solver(changes: Sequence[PackageChange]) -> Simulation:
        asked.append({str(change.id): change.after for change in changes})
        named = "libnvidia-egl-gbm1" in asked[-1]
        return Simulation(
            (install("nvidia-driver-cuda"), install("libnvidia-egl-gbm1", "1.1.2-1" if named else "1.1.3-1"))
        )

    found = resolve([bring], {}, solver, locked)
    assert [sorted(names) for names in asked] == [["nvidia-driver-cuda"], ["libnvidia-egl-gbm1", "nvidia-driver-cuda"]]
    assert found.requested_changes == (bring,)
    assert found.dependencies == (
        PackageChange(PackageId("libnvidia-egl-gbm1"), None, PackageState("1.1.2-1", auto=True)),
    )


def test_dependency_in_another_than_the_locked_version_stops_the_run() -> None:
    bring = PackageChange(PackageId("nvidia-driver-cuda"), None, PackageState("580.95.05-1"))
    actions = (install("nvidia-driver-cuda"), install("libcuda1", "580.119.02-1"))
    with pytest.raises(Refused) as caught:
        resolve([bring], {}, answers(*actions), {"libcuda1": "580.95.05-1"})
    assert "libcuda1" in caught.value.why
    assert "580.119.02-1" in caught.value.why


def test_lock_does_not_allow_packages_of_another_branch() -> None:
    bring = PackageChange(PackageId("nvidia-driver-cuda"), None, PackageState("580.95.05-1"))
    with pytest.raises(Refused, match="no package was changed"):
        resolve([bring], {}, answers(install("nvidia-driver-cuda"), install("libcuda1", "595.1.1-1")))


def test_triggers_survive_the_resolution_of_a_version() -> None:
    owing = replace(BRING, triggers=frozenset({Trigger("restart", "nvidia-fabricmanager.service")}))
    (asked,) = resolve([owing], {}, answers(install("nvidia-driver-cuda"))).requested_changes
    assert asked.triggers == owing.triggers


def _simulate_newest(fabric: str) -> Callable[[Sequence[PackageChange]], Simulation]:
    """Return an archive's answer whose fabric manager is newer than its driver; ``fabric`` is its other version."""

    def simulate(changes: Sequence[PackageChange]) -> Simulation:
        actions = []
        for change in changes:
            assert isinstance(change.after, KnownAfter)
            version = "595.91.07-1"
            if change.id.name == "nvidia-fabricmanager":
                offered = [one for one in ("595.91.08-1", fabric) if one.startswith(change.after.prefix)]
                if not offered:
                    return Simulation((), "Version '595.91.07-*' for 'nvidia-fabricmanager' was not found")
                version = offered[0]
            actions.append(Action("install", change.id, version))
        return Simulation(tuple(actions))

    return simulate


_WITH_FABRIC = [
    PackageChange(PackageId(name), None, KnownAfter("595.", "driver"))
    for name in ("nvidia-kernel-open-dkms", "nvidia-fabricmanager")
]


def test_fabric_manager_is_taken_in_the_drivers_version() -> None:
    found = resolve(_WITH_FABRIC, {}, _simulate_newest("595.91.07-1"))
    assert {
        str(change.id): change.known_final_state.version
        for change in found.requested_changes
        if change.known_final_state
    } == {
        "nvidia-kernel-open-dkms": "595.91.07-1",
        "nvidia-fabricmanager": "595.91.07-1",
    }


def test_fabric_manager_of_another_version_alone_is_refused() -> None:
    with pytest.raises(Refused, match="no archive has nvidia-fabricmanager") as caught:
        resolve(_WITH_FABRIC, {}, _simulate_newest("595.91.06-1"))
    assert "595.91.08" in caught.value.why
    assert "--driver 595.91.08" not in caught.value.hint, "no driver is there in that version"
