from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.change import PackageState
from gpunode.package_id import PackageId
from gpunode.packages.deb import status as dpkg
from tests.ids import by_name, ids


def paragraph(name: str, status: str = "install ok installed", arch: str = "amd64", version: str = "1.0-1") -> str:
    return (
        f"Package: {name}\nStatus: {status}\nPriority: optional\nArchitecture: {arch}\nVersion: {version}\n"
        f"Conffiles:\n /etc/{name} 00\nDescription: about {name}\n Package: not a field\n Version: 9\n\n"
    )


DPKG = paragraph("dpkg")


def packages(text: str, auto: str = "") -> dict[str, PackageState]:
    return by_name(dpkg.packages(dpkg.parse_status(DPKG + text), auto))


def test_package_states_are_distinguished() -> None:
    found = packages(
        paragraph("kept", "hold ok installed")
        + paragraph("residue", "deinstall ok config-files")
        + paragraph("gone", "purge ok not-installed")
        + paragraph("half", "install ok half-configured")
    )
    assert found["kept"].held
    assert found["residue"].config_files_only
    assert "gone" not in found
    assert found["half"] == PackageState("1.0-1")


def test_foreign_architecture_is_part_of_the_name() -> None:
    found = packages(paragraph("libc6") + paragraph("libc6", arch="i386") + paragraph("tzdata", arch="all"))
    assert set(found) == {"dpkg", "libc6", "libc6:i386", "tzdata"}


def test_auto_marks_belong_to_their_architecture() -> None:
    auto = (
        "Package: libc6\nArchitecture: i386\nAuto-Installed: 1\n\n"
        "Package: tzdata\nArchitecture: amd64\nAuto-Installed: 1\n\n"
        "Package: kept\nArchitecture: amd64\nAuto-Installed: 0\n"
    )
    found = packages(
        paragraph("libc6") + paragraph("libc6", arch="i386") + paragraph("tzdata", arch="all") + paragraph("kept"), auto
    )
    assert {name for name, state in found.items() if state.auto} == {"libc6:i386", "tzdata"}


def test_half_installed_package_is_not_installed() -> None:
    found = dpkg.parse_status(
        paragraph("dpkg") + paragraph("nvidia-container-toolkit", "install reinstreq half-installed")
    )
    assert set(dpkg.packages(found)) == ids("dpkg")


@pytest.mark.parametrize(
    "status", ["half-configured", "unpacked", "triggers-pending", "triggers-awaited", "half-installed"]
)
def test_unfinished_package_means_dpkg_was_interrupted(status: str) -> None:
    assert dpkg.was_interrupted(dpkg.parse_status(paragraph("nvidia-dkms-580", f"install ok {status}")), [])


@pytest.mark.parametrize(
    ("status", "updates", "expected"),
    [
        ("half-configured", [], ("nvidia-dkms-580",)),
        ("unpacked", [], ("nvidia-dkms-580",)),
        ("triggers-pending", [], ()),
        ("half-installed", [], ()),
        ("half-configured", ["/var/lib/dpkg/updates/0001"], ()),
    ],
)
def test_only_what_dpkg_can_remove_as_it_is_counts_as_unconfigured(
    status: str, updates: list[str], expected: tuple[str, ...]
) -> None:
    found = dpkg.parse_status(paragraph("dpkg") + paragraph("nvidia-dkms-580", f"install ok {status}"))
    assert dpkg.find_unconfigured(found, updates) == ids(*expected)


@pytest.mark.parametrize("status", ["install reinstreq half-installed", "install reinstreq unpacked"])
def test_package_that_lost_files_leaves_nothing_unconfigured(status: str) -> None:
    broken = paragraph("nvidia-smi", status)
    found = dpkg.parse_status(paragraph("dpkg") + paragraph("nvidia-dkms-580", "install ok half-configured") + broken)
    assert dpkg.find_unconfigured(found, []) == frozenset()


def test_only_what_apt_cannot_leave_as_it_is_is_an_obstacle() -> None:
    """A kernel that waits for the builder of its initramfs must not be among what people are told to remove."""
    kernel, lacking = (paragraph(name, "install ok unpacked") for name in ("linux-image-6.1.0", "lacking"))
    text = (
        DPKG
        + paragraph("initramfs-tools", "install ok half-configured")
        + kernel.replace("Conffiles", "Depends: initramfs-tools\nConffiles")
        + lacking.replace("Conffiles", "Depends: nowhere\nConffiles")
        + paragraph("libnvidia-gl")
        + paragraph("libnvidia-gl", "install reinstreq half-installed", arch="i386")
        + paragraph("waiting", "install ok triggers-pending")
    )
    assert dpkg.Database(text).list_obstacles() == {"lacking", "libnvidia-gl:i386"}


def test_only_numbered_update_files_mean_an_interruption() -> None:
    assert dpkg.was_interrupted((), ["/var/lib/dpkg/updates/0001"])
    assert not dpkg.was_interrupted((), ["/var/lib/dpkg/updates/tmp.i"])


@pytest.mark.parametrize("text", ["Package: x\n", "Status: install ok installed\n", "Package: x\nStatus: installed\n"])
def test_damaged_paragraph_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="without name or status"):
        dpkg.parse_status(text)


def test_native_architecture_is_unknown_without_dpkg() -> None:
    with pytest.raises(ValueError, match="native architecture"):
        dpkg.packages(dpkg.parse_status(paragraph("libc6") + paragraph("libc6", arch="i386")))


def test_single_architecture_is_native_without_dpkg() -> None:
    found = dpkg.packages(dpkg.parse_status(paragraph("containerd") + paragraph("tzdata", arch="all")))
    assert set(found) == {PackageId("containerd"), PackageId("tzdata")}


@given(st.text(alphabet="Package: Status\n okVersion"))
def test_hostile_text_raises_only_value_error(text: str) -> None:
    try:
        dpkg.parse_status(text)
    except ValueError:
        return


INSTALLED = "Status: install ok installed\nArchitecture: amd64\nVersion: 1\n"
RELATED = "\n".join(
    f"Package: {name}\n{INSTALLED}{relations}"
    for name, relations in (
        ("driver", "Depends: module (= 1), libcuda1:amd64 (>= 1) | libcuda.so.1\nPre-Depends: dpkg (>= 1.17)\n"),
        ("module", "Depends: dkms | builder\n"),
        ("dkms", "Conffiles:\n /etc/dkms/framework.conf 0123\n /etc/dkms/old.conf 4567 obsolete\n"),
        ("libcuda1", "Provides: libcuda.so.1 (= 1), cuda\n"),
        ("zfs-dkms", "Depends: dkms (>= 1), libc6\nRecommends: module\n"),
        ("app", "Depends: cuda, libc6 [amd64] <!nocheck>\n"),
    )
)


def still_needed(text: str, leaving: list[str], changing: Sequence[str] = ()) -> dict[str, str]:
    found = dpkg.Database(text).find_needed([*map(PackageId, leaving)], [*map(PackageId, changing)])
    return {str(package): by for package, by in found.items()}


def test_unneeded_packages_may_be_removed() -> None:
    assert still_needed(RELATED, ["driver"]) == {}
    assert still_needed(RELATED, ["driver", "module"]) == {}, "a recommendation is no need"


def test_needed_package_is_named_with_a_dependent() -> None:
    assert still_needed(RELATED, ["driver", "module", "dkms"]) == {"dkms": "zfs-dkms"}
    assert still_needed(RELATED, ["libcuda1", "driver"]) == {"libcuda1": "app"}, "a provided name counts"


def test_need_is_transitive_through_remaining_packages() -> None:
    assert still_needed(RELATED, ["module", "dkms"]) == {"module": "driver", "dkms": "zfs-dkms"}
    everything = ["driver", "module", "dkms", "libcuda1", "zfs-dkms", "app"]
    assert still_needed(RELATED, everything) == {}


def test_dependencies_of_a_changing_package_are_ignored() -> None:
    assert still_needed(RELATED, ["module"], ["driver"]) == {}


def test_remaining_alternative_satisfies_a_dependency() -> None:
    other = f"{RELATED}\n\nPackage: builder\n{INSTALLED}"
    assert still_needed(other, ["dkms", "zfs-dkms"]) == {}


def test_provider_that_stays_takes_the_place_of_the_package_itself() -> None:
    other = f"{RELATED}\n\nPackage: dkms-ng\n{INSTALLED}Provides: dkms (= 1)\n"
    assert still_needed(other, ["dkms"]) == {}
    assert still_needed(other, ["dkms", "dkms-ng"]).keys() == {"dkms", "dkms-ng"}


def test_library_of_another_architecture_stays_for_its_program() -> None:
    other = f"{DPKG}{RELATED}\n\nPackage: libold\n{INSTALLED.replace('amd64', 'i386')}"
    other += f"\n\nPackage: game\n{INSTALLED.replace('amd64', 'i386')}Depends: libold\n"
    assert still_needed(other, ["libold"]) == {}, "nobody needs one of this architecture"
    foreign = PackageId.of("libold:i386")
    assert dpkg.Database(other).find_needed([foreign], []) == {foreign: "game"}


def test_purge_removes_shipped_and_unshared_obsolete_conffiles() -> None:
    assert dpkg.Database(RELATED).config_files([PackageId("dkms"), PackageId("app")]) == {
        "dkms": ("/etc/dkms/framework.conf", "/etc/dkms/old.conf")
    }
    other = f"{RELATED}\n\nPackage: heir\n{INSTALLED}Conffiles:\n /etc/dkms/old.conf 89ab\n"
    assert dpkg.Database(other).config_files([PackageId("dkms")]) == {"dkms": ("/etc/dkms/framework.conf",)}
    assert dpkg.Database(other).obsolete_conffiles() == {}


def test_conffiles_belong_to_their_architecture() -> None:
    foreign = RELATED.replace("Architecture: amd64", "Architecture: i386")
    assert set(dpkg.Database(foreign).config_files([PackageId.of("dkms:i386")])) == {"dkms"}
    assert dpkg.Database(foreign).config_files([PackageId.of("dkms:arm64")]) == {}


def test_obsolete_conffiles_are_listed() -> None:
    assert dpkg.Database(RELATED).obsolete_conffiles() == {"/etc/dkms/old.conf": "4567"}


def test_name_at_the_end_of_a_cut_journal_counts_for_nothing() -> None:
    assert dpkg.list_journaled("Package: nvidia-alternative\nStatus: x\n\nPackage: nvid") == {"nvidia-alternative"}


def test_installed_packages_selected_for_removal_are_found() -> None:
    wants = {"purged": "purge ok installed", "removed": "deinstall ok unpacked", "gone": "deinstall ok config-files"}
    text = "".join(f"\n\nPackage: {name}\nStatus: {words}\nArchitecture: amd64\n" for name, words in wants.items())
    assert dpkg.find_selected_for_removal(dpkg.parse_status(DPKG + text)) == ids("purged", "removed")
