from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.catalog import branches, gpus, tables
from gpunode.catalog.driver import DriverChoice, choose_driver
from gpunode.outcome import Refusal
from gpunode.recipe import Driver, KernelModuleType

GTX_1080, V100, K80, T4, A100, GH200, B200, RTX_5090 = "1b80", "1db1", "102d", "1eb8", "20b0", "2342", "2901", "2b85"
RUBIN, UNKNOWN, KNOWN_FROM_615 = "3002", "3ffe", "2909"


def ask(*device_ids: str, version: str = "auto", flavour: KernelModuleType = "auto") -> DriverChoice | Refusal:
    return choose_driver(
        [gpus.find_model(device_id) for device_id in device_ids], Driver(version=version, kernel_module_type=flavour)
    )


def driver_for(*device_ids: str, version: str = "auto", flavour: KernelModuleType = "auto") -> DriverChoice:
    answer = ask(*device_ids, version=version, flavour=flavour)
    assert isinstance(answer, DriverChoice), answer
    return answer


def refusal_of(*device_ids: str, version: str = "auto", flavour: KernelModuleType = "auto") -> Refusal:
    answer = ask(*device_ids, version=version, flavour=flavour)
    assert isinstance(answer, Refusal), answer
    return answer


@pytest.mark.parametrize(
    ("host", "branch", "flavour"),
    [
        ([GTX_1080], 580, "proprietary"),
        ([V100] * 8, 580, "proprietary"),
        ([T4], 595, "open"),
        ([B200] * 8, 595, "open"),
        ([RTX_5090], 595, "open"),
        ([UNKNOWN], 620, "open"),
        ([RUBIN], 620, "open"),
        ([KNOWN_FROM_615], 620, "open"),
        ([GTX_1080, T4], 580, "proprietary"),
        ([T4, B200], 595, "open"),
        ([A100, GH200], 595, "open"),
        ([T4, RUBIN], 620, "open"),
    ],
)
def test_host_gets_branch_and_flavour(host: list[str], branch: int, flavour: str) -> None:
    choice = driver_for(*host)

    assert (choice.branch, choice.flavour, choice.exact) == (branch, flavour, "")


def test_reason_is_readable() -> None:
    assert driver_for(GTX_1080).reason == (
        "GeForce GTX 1080 (Pascal): 580 is the last branch that supports it; open modules need Turing or newer"
    )
    assert driver_for(T4).reason == (
        "Tesla T4 (Turing): 595 is the production branch; open modules, NVIDIA's default from 560 on"
    )
    assert driver_for(*[B200] * 8).reason == (
        "B200 (Blackwell): 595 is the production branch; open modules, the only ones for it"
    )


def test_mixed_host_names_the_deciding_gpu() -> None:
    reason = driver_for(T4, GTX_1080).reason

    assert "580 is the last branch that supports GeForce GTX 1080 (Pascal)" in reason


def test_ordinary_gpus_have_no_warnings() -> None:
    assert driver_for(GTX_1080).warnings == driver_for(T4).warnings == driver_for(B200).warnings == ()


def test_unknown_gpu_has_a_warning() -> None:
    choice = driver_for(UNKNOWN)

    assert any("10de:3ffe" in warning and "not on any of NVIDIA's lists" in warning for warning in choice.warnings)
    assert "620 is the newest branch" in choice.reason


@pytest.mark.parametrize("host", [[K80], [K80, T4], [K80, B200], ["0fff"]])
def test_kepler_and_older_are_refused_with_a_hint(host: list[str]) -> None:
    answer = refusal_of(*host)

    assert "current repositories" in answer.what
    assert "470 is the last branch" in answer.why
    assert "--driver none" in answer.hint
    assert "tesla-470" not in answer.hint  # not usable on a Fermi, nor on Ubuntu


def test_pascal_beside_blackwell_is_refused() -> None:
    answer = refusal_of(GTX_1080, B200)

    assert "no kernel modules drive all GPUs" in answer.what
    assert "GTX 1080" in answer.why
    assert "B200" in answer.why
    assert refusal_of(GTX_1080, B200, version="580") == answer


def test_pascal_beside_rubin_has_no_common_branch() -> None:
    answer = refusal_of(GTX_1080, RUBIN)

    assert "no driver branch drives all GPUs" in answer.what
    assert "580 or older" in answer.why
    assert "615 or newer" in answer.why


def test_missing_gpu_is_refused() -> None:
    assert "no GPU" in refusal_of().what


@pytest.mark.parametrize("version", ["production", "595", "595.91.07", "615", "640"])
def test_branch_too_new_for_a_gpu_is_refused(version: str) -> None:
    answer = refusal_of(GTX_1080, version=version)

    assert "does not drive GeForce GTX 1080 (Pascal)" in answer.what
    assert "580 is the last branch" in answer.why


@pytest.mark.parametrize(("gpu", "version"), [(B200, "535"), (RUBIN, "595"), (UNKNOWN, "580"), (GH200, "515")])
def test_branch_too_old_for_a_gpu_is_refused(gpu: str, version: str) -> None:
    assert f"does not drive {gpus.find_model(gpu).label}" in refusal_of(T4, gpu, version=version).what


@pytest.mark.parametrize(
    ("host", "flavour", "branch", "words"),
    [
        ([T4], "auto", 620, "620 is the newest LTS branch;"),
        ([RUBIN], "auto", 620, "620 is the newest LTS branch;"),
        ([GTX_1080], "auto", 580, "580 is the newest LTS branch that supports it"),
        ([T4, V100], "auto", 580, "580 is the newest LTS branch that supports all of them"),
        ([T4], "proprietary", 580, "580 is the newest LTS branch that supports it"),
    ],
)
def test_lts_is_the_newest_that_drives_every_gpu(
    host: list[str], flavour: KernelModuleType, branch: int, words: str
) -> None:
    choice = driver_for(*host, version="lts", flavour=flavour)

    assert choice.branch == branch
    assert words in choice.reason


def test_requested_version_is_used() -> None:
    assert driver_for(T4, version="production").branch == 595
    assert (driver_for(T4, version="580").branch, driver_for(T4, version="580").exact) == (580, "")
    exact = driver_for(GTX_1080, version="580.178.04")
    assert (exact.branch, exact.exact) == (580, "580.178.04")


@pytest.mark.parametrize("version", ["", "58", "latest", "580.", "580.x", "580.1.2.3", "-580", "58000", "580 ", "٥٨٠"])
def test_invalid_version_is_refused(version: str) -> None:
    assert "branch" in refusal_of(T4, version=version).hint


@pytest.mark.parametrize("version", ["470", "470.256.02", "390", "599", "581"])
def test_branch_in_no_repository_is_refused(version: str) -> None:
    assert "not in NVIDIA's current repositories" in refusal_of(T4, version=version).what


def test_ended_unknown_or_short_lived_branch_has_a_warning() -> None:
    assert "no longer gets fixes" in driver_for(T4, version="570").warnings[0]
    assert "2026-02" in driver_for(T4, version="570").warnings[0]
    assert "newer than what gpunode knows" in driver_for(T4, version="640").warnings[0]
    assert "new-feature" in driver_for(T4, version="615").warnings[0]


def test_requested_flavour_is_used_or_refused() -> None:
    assert driver_for(T4, flavour="proprietary").flavour == "proprietary"
    assert "as requested" in driver_for(T4, flavour="proprietary").reason
    assert "do not drive GeForce GTX 1080" in refusal_of(GTX_1080, flavour="open").what
    assert "do not drive Tesla V100" in refusal_of(T4, V100, flavour="open").what
    assert "do not drive B200" in refusal_of(T4, B200, flavour="proprietary").what
    assert "615 has no proprietary" in refusal_of(T4, version="615", flavour="proprietary").what
    assert "640 has no proprietary" in refusal_of(T4, version="640", flavour="proprietary").what


def test_default_flavour_below_560_is_proprietary_where_allowed() -> None:
    assert driver_for(T4, version="550").flavour == "proprietary"
    assert driver_for(T4, GH200, version="550").flavour == "open"
    assert driver_for(T4, version="550", flavour="open").flavour == "open"


def test_last_branch_overrides_a_wrong_open_modules_claim() -> None:
    """NVIDIA's list of 590.48.01 wrongly marks Pascal ``kernelopen``: open modules do not drive it."""
    claimed = replace(gpus.find_model(GTX_1080), open_modules="yes")
    required = replace(gpus.find_model(V100), open_modules="required")

    answer = choose_driver([claimed, required], Driver())

    assert isinstance(answer, DriverChoice)
    assert (answer.branch, answer.flavour) == (580, "proprietary")
    assert isinstance(choose_driver([claimed], Driver(kernel_module_type="open")), Refusal)


def test_choice_without_a_wanted_driver_is_an_error() -> None:
    with pytest.raises(ValueError, match="no driver is requested"):
        ask(T4, version="none")


listed = st.sampled_from([row["device_id"] for row in tables.rows("gpus.csv")])
current = st.sampled_from([row["device_id"] for row in tables.rows("gpus.csv") if row["last_branch"] in {"", "580"}])
hosts = st.lists(listed | st.integers(0, 0xFFFF).map(lambda number: f"{number:04x}"), min_size=1, max_size=4)
versions = st.sampled_from(
    ["auto", "production", "lts", *(str(branch.number) for branch in branches.all_branches()), "640"]
)
flavours: st.SearchStrategy[KernelModuleType] = st.sampled_from(["auto", "open", "proprietary"])


@given(hosts | st.lists(current, min_size=1, max_size=4), versions, flavours)
def test_chosen_driver_supports_every_gpu(host: list[str], version: str, flavour: KernelModuleType) -> None:
    answer = ask(*host, version=version, flavour=flavour)
    if isinstance(answer, Refusal):
        return

    branch = branches.find(answer.branch)
    assert branch is not None
    assert answer.flavour in branch.flavours
    for model in map(gpus.find_model, host):
        assert model.first_branch <= answer.branch <= (model.last_branch or answer.branch)
        assert model.takes_open_modules if answer.flavour == "open" else not model.needs_open_modules


@given(hosts, versions, flavours)
def test_every_refusal_has_what_why_and_hint(host: list[str], version: str, flavour: KernelModuleType) -> None:
    answer = ask(*host, version=version, flavour=flavour)

    if isinstance(answer, Refusal):
        assert all((answer.what, answer.why, answer.hint))
    else:
        assert "\n" not in answer.reason


@given(st.lists(listed, min_size=1, max_size=4))
def test_choice_ignores_order_and_number_of_gpus(host: list[str]) -> None:
    one, other = ask(*host), ask(*reversed(host), *host)

    if isinstance(one, DriverChoice):
        assert isinstance(other, DriverChoice)
        assert (one.branch, one.flavour) == (other.branch, other.flavour)
    else:
        assert isinstance(other, Refusal)


@given(listed)
def test_auto_serves_every_gpu_after_kepler(device_id: str) -> None:
    last = gpus.find_model(device_id).last_branch

    assert isinstance(ask(device_id), Refusal if last is not None and last <= 470 else DriverChoice)
