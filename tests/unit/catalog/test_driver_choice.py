from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.catalog import branches, gpus, tables
from gpunode.catalog.driver import Choice, Impossible, choose
from gpunode.recipe import Driver, Flavour

GTX_1080, V100, K80, T4, A100, GH200, B200, RTX_5090 = "1b80", "1db1", "102d", "1eb8", "20b0", "2342", "2901", "2b85"
RUBIN, UNKNOWN, KNOWN_FROM_615 = "3002", "3ffe", "2909"


def ask(*device_ids: str, version: str = "auto", flavour: Flavour = "auto") -> Choice | Impossible:
    return choose([gpus.lookup(device_id) for device_id in device_ids], Driver(version=version, flavour=flavour))


def chosen(*device_ids: str, version: str = "auto", flavour: Flavour = "auto") -> Choice:
    answer = ask(*device_ids, version=version, flavour=flavour)
    assert isinstance(answer, Choice), answer
    return answer


def refused(*device_ids: str, version: str = "auto", flavour: Flavour = "auto") -> Impossible:
    answer = ask(*device_ids, version=version, flavour=flavour)
    assert isinstance(answer, Impossible), answer
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
def test_what_a_host_gets(host: list[str], branch: int, flavour: str) -> None:
    choice = chosen(*host)

    assert (choice.branch, choice.flavour, choice.exact) == (branch, flavour, "")


def test_the_reason_is_one_that_a_person_understands() -> None:
    assert chosen(GTX_1080).reason == (
        "GeForce GTX 1080 (Pascal): 580 is the last branch that supports it; open modules need Turing or newer"
    )
    assert chosen(T4).reason == (
        "Tesla T4 (Turing): 595 is the production branch; open modules, NVIDIA's default from 560 on"
    )
    assert chosen(*[B200] * 8).reason == (
        "B200 (Blackwell): 595 is the production branch; open modules, the only ones for it"
    )


def test_a_mixed_host_is_told_which_gpu_decides() -> None:
    reason = chosen(T4, GTX_1080).reason

    assert "580 is the last branch that supports GeForce GTX 1080 (Pascal)" in reason


def test_ordinary_gpus_bring_no_warnings() -> None:
    assert chosen(GTX_1080).warnings == chosen(T4).warnings == chosen(B200).warnings == ()


def test_an_unknown_gpu_is_warned_about_and_no_support_is_claimed() -> None:
    choice = chosen(UNKNOWN)

    assert any("10de:3ffe" in warning and "not on any of NVIDIA's lists" in warning for warning in choice.warnings)
    assert "620 is the newest branch" in choice.reason


@pytest.mark.parametrize("host", [[K80], [K80, T4], [K80, B200], ["0fff"]])
def test_kepler_and_older_are_refused_with_a_way_out(host: list[str]) -> None:
    answer = refused(*host)

    assert "current repositories" in answer.what
    assert "470 is the last branch" in answer.why
    assert "--driver none" in answer.hint


def test_pascal_beside_blackwell_is_refused_though_580_drives_both() -> None:
    answer = refused(GTX_1080, B200)

    assert "no kernel modules drive all GPUs" in answer.what
    assert "GTX 1080" in answer.why
    assert "B200" in answer.why
    assert refused(GTX_1080, B200, version="580") == answer


def test_pascal_beside_rubin_has_no_common_branch() -> None:
    answer = refused(GTX_1080, RUBIN)

    assert "no driver branch drives all GPUs" in answer.what
    assert "580 or older" in answer.why
    assert "615 or newer" in answer.why


def test_no_gpu_is_an_answer_not_a_crash() -> None:
    assert "no GPU" in refused().what


@pytest.mark.parametrize("version", ["production", "595", "595.91.07", "615", "640"])
def test_a_branch_too_new_for_a_gpu_is_refused_by_its_name(version: str) -> None:
    answer = refused(GTX_1080, version=version)

    assert "does not drive GeForce GTX 1080 (Pascal)" in answer.what
    assert "580 is the last branch" in answer.why


@pytest.mark.parametrize(("gpu", "version"), [(B200, "535"), (RUBIN, "595"), (UNKNOWN, "580"), (GH200, "515")])
def test_a_branch_too_old_for_a_gpu_is_refused_by_its_name(gpu: str, version: str) -> None:
    assert f"does not drive {gpus.lookup(gpu).label}" in refused(T4, gpu, version=version).what


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
def test_lts_is_the_newest_one_that_drives_every_gpu(
    host: list[str], flavour: Flavour, branch: int, words: str
) -> None:
    choice = chosen(*host, version="lts", flavour=flavour)

    assert choice.branch == branch
    assert words in choice.reason


def test_versions_that_are_asked_for_are_kept() -> None:
    assert chosen(T4, version="production").branch == 595
    assert (chosen(T4, version="580").branch, chosen(T4, version="580").exact) == (580, "")
    exact = chosen(GTX_1080, version="580.178.04")
    assert (exact.branch, exact.exact) == (580, "580.178.04")


@pytest.mark.parametrize("version", ["", "58", "latest", "580.", "580.x", "580.1.2.3", "-580", "58000", "580 ", "٥٨٠"])
def test_versions_that_mean_nothing_are_refused(version: str) -> None:
    assert "branch" in refused(T4, version=version).hint


@pytest.mark.parametrize("version", ["470", "470.256.02", "390", "599", "581"])
def test_branches_that_no_repository_has_are_refused(version: str) -> None:
    assert "not in NVIDIA's current repositories" in refused(T4, version=version).what


def test_a_branch_without_fixes_or_unknown_or_short_lived_is_warned_about() -> None:
    assert "no longer gets fixes" in chosen(T4, version="570").warnings[0]
    assert "2026-02" in chosen(T4, version="570").warnings[0]
    assert "newer than what gpunode knows" in chosen(T4, version="640").warnings[0]
    assert "new-feature" in chosen(T4, version="615").warnings[0]


def test_flavours_that_are_asked_for_are_kept_or_refused() -> None:
    assert chosen(T4, flavour="proprietary").flavour == "proprietary"
    assert "as requested" in chosen(T4, flavour="proprietary").reason
    assert "do not drive GeForce GTX 1080" in refused(GTX_1080, flavour="open").what
    assert "do not drive Tesla V100" in refused(T4, V100, flavour="open").what
    assert "do not drive B200" in refused(T4, B200, flavour="proprietary").what
    assert "615 has no proprietary" in refused(T4, version="615", flavour="proprietary").what
    assert "640 has no proprietary" in refused(T4, version="640", flavour="proprietary").what


def test_below_560_the_default_is_proprietary_where_a_gpu_allows_it() -> None:
    assert chosen(T4, version="550").flavour == "proprietary"
    assert chosen(T4, GH200, version="550").flavour == "open"
    assert chosen(T4, version="550", flavour="open").flavour == "open"


def test_a_last_branch_outweighs_a_claim_of_open_modules() -> None:
    """NVIDIA's list of 590.48.01 marks Pascal ``kernelopen``; who believes it installs modules that do not drive it."""
    claimed = replace(gpus.lookup(GTX_1080), open_modules="yes")
    required = replace(gpus.lookup(V100), open_modules="required")

    answer = choose([claimed, required], Driver())

    assert isinstance(answer, Choice)
    assert (answer.branch, answer.flavour) == (580, "proprietary")
    assert isinstance(choose([claimed], Driver(flavour="open")), Impossible)


def test_no_driver_wanted_is_not_a_question_for_the_catalog() -> None:
    with pytest.raises(ValueError, match="no driver is requested"):
        ask(T4, version="none")


listed = st.sampled_from([row["device_id"] for row in tables.rows("gpus.csv")])
current = st.sampled_from([row["device_id"] for row in tables.rows("gpus.csv") if row["last_branch"] in {"", "580"}])
hosts = st.lists(listed | st.integers(0, 0xFFFF).map(lambda number: f"{number:04x}"), min_size=1, max_size=4)
versions = st.sampled_from(
    ["auto", "production", "lts", *(str(branch.number) for branch in branches.all_branches()), "640"]
)
flavours: st.SearchStrategy[Flavour] = st.sampled_from(["auto", "open", "proprietary"])


@given(hosts | st.lists(current, min_size=1, max_size=4), versions, flavours)
def test_whatever_is_chosen_drives_every_gpu(host: list[str], version: str, flavour: Flavour) -> None:
    answer = ask(*host, version=version, flavour=flavour)
    if isinstance(answer, Impossible):
        return

    branch = branches.find(answer.branch)
    assert branch is not None
    assert answer.flavour in branch.flavours
    for model in map(gpus.lookup, host):
        assert model.first_branch <= answer.branch <= (model.last_branch or answer.branch)
        assert model.takes_open_modules if answer.flavour == "open" else not model.needs_open_modules


@given(hosts, versions, flavours)
def test_every_refusal_says_what_why_and_what_next(host: list[str], version: str, flavour: Flavour) -> None:
    answer = ask(*host, version=version, flavour=flavour)

    if isinstance(answer, Impossible):
        assert all((answer.what, answer.why, answer.hint))
    else:
        assert "\n" not in answer.reason


@given(st.lists(listed, min_size=1, max_size=4))
def test_the_order_and_number_of_equal_gpus_do_not_matter(host: list[str]) -> None:
    one, other = ask(*host), ask(*reversed(host), *host)

    if isinstance(one, Choice):
        assert isinstance(other, Choice)
        assert (one.branch, one.flavour) == (other.branch, other.flavour)
    else:
        assert isinstance(other, Impossible)


@given(listed)
def test_auto_serves_every_gpu_after_kepler(device_id: str) -> None:
    last = gpus.lookup(device_id).last_branch

    assert isinstance(ask(device_id), Impossible if last is not None and last <= 470 else Choice)
