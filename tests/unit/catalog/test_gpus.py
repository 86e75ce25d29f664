from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.catalog import branches, gpus, tables

ids = st.integers(0, 0xFFFF).map(lambda number: f"{number:04x}")


def test_gtx_1080_is_a_pascal_gpu_last_driven_by_580() -> None:
    model = gpus.find_model("1b80")

    assert (model.name, model.architecture, model.compute_capability) == ("NVIDIA GeForce GTX 1080", "Pascal", "6.1")
    assert (model.last_branch, model.open_modules, model.listed) == (580, "no", True)
    assert model.label == "GeForce GTX 1080 (Pascal)"


@pytest.mark.parametrize(
    ("device_id", "modules", "board"),
    [
        ("1eb8", "yes", "no"),  # T4
        ("20b0", "yes", "possible"),  # A100 SXM
        ("2342", "required", "external"),  # GH200
        ("2901", "required", "possible"),  # B200
        ("2b85", "required", ""),  # RTX 5090
    ],
)
def test_current_gpus_have_their_properties(device_id: str, modules: str, board: str) -> None:
    model = gpus.find_model(device_id)

    assert model.last_branch is None
    assert (model.open_modules, model.nvswitch_board) == (modules, board)


def test_uppercase_ids_are_the_same_gpu() -> None:
    assert gpus.find_model("1EB8") == gpus.find_model("1eb8")


@pytest.mark.parametrize("text", ["", "1b8", "01b80", "0x1b", "1b8g", "1b8\n", "1b,8", "²b80"])
def test_invalid_device_id_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a PCI device id"):
        gpus.find_model(text)
    with pytest.raises(ValueError, match="not a PCI device id"):
        gpus.is_nvswitch(text)


def test_id_newer_than_all_lists_is_treated_as_the_newest() -> None:
    model = gpus.find_model("3ffe")

    assert (model.last_branch, model.open_modules, model.listed) == (None, "required", False)
    assert model.first_branch == branches.newest_maintained_branch().number
    assert "10de:3ffe" in model.name


@pytest.mark.parametrize(
    ("device_id", "last"), [("1341", 580), ("1dff", 580), ("1de0", 580), ("1001", 470), ("0001", 470)]
)
def test_unlisted_id_among_old_gpus_is_old(device_id: str, last: int) -> None:
    model = gpus.find_model(device_id)

    assert (model.last_branch, model.open_modules) == (last, "no")


@given(ids)
def test_every_id_is_classified_by_its_range(device_id: str) -> None:
    model = gpus.find_model(device_id)

    assert model.device_id == device_id
    if device_id >= "1e00":
        assert model.last_branch is None
        assert model.takes_open_modules
    elif device_id >= "1340":
        assert model.last_branch == 580
    else:
        assert model.last_branch is not None
        assert model.last_branch <= 470
    assert not (model.needs_open_modules and not model.takes_open_modules)


def test_every_row_of_the_table_can_be_looked_up() -> None:
    rows = list(tables.rows("gpus.csv"))

    assert len(rows) == 1445
    for row in rows:
        model = gpus.find_model(row["device_id"])
        assert (model.device_id, model.name) == (row["device_id"], row["name"])


def test_no_gpu_with_a_last_branch_takes_open_modules() -> None:
    """NVIDIA's list is wrong about all Maxwell, Pascal and Volta parts."""
    models = [gpus.find_model(row["device_id"]) for row in tables.rows("gpus.csv")]

    assert not [model for model in models if model.last_branch is not None and model.takes_open_modules]


def test_every_branch_named_by_a_gpu_is_in_the_branch_table() -> None:
    named = {int(row[key]) for row in tables.rows("gpus.csv") for key in ("last_branch", "first_branch") if row[key]}

    assert {number for number in named if number and branches.find(number) is None} == set()


@pytest.mark.parametrize("device_id", ["1af1", "1ae8", "1aff", "22a0", "22a3", "22a7", "1ac2", "22A3"])
def test_nvswitches_are_recognized(device_id: str) -> None:
    assert gpus.is_nvswitch(device_id)


@pytest.mark.parametrize("device_id", ["1b00", "1aef", "22a8", "229f", "2330", "1ac3"])
def test_bridges_and_gpus_are_no_nvswitches(device_id: str) -> None:
    assert not gpus.is_nvswitch(device_id)


def test_no_device_is_both_a_gpu_and_something_else() -> None:
    others = {row["device_id"] for row in tables.rows("other_devices.csv")}
    assert not others & {row["device_id"] for row in tables.rows("gpus.csv")}
    assert gpus.non_gpu_kind_and_name("10F0") == ("audio function", "GP104 High Definition Audio Controller")
    assert gpus.non_gpu_kind_and_name("1b80") is None
    assert gpus.non_gpu_kind_and_name("ffff") is None  # newer than every list: it may be a GPU


def test_vgpu_guest_is_recognized_by_its_subsystem() -> None:
    assert gpus.vgpu_profile("13bd", ("10de", "11cc")) == "GRID M10-0B"
    assert gpus.vgpu_profile("13BD", ("10DE", "11CC")) == "GRID M10-0B"


@pytest.mark.parametrize("subsystem", [None, ("1458", "11cc"), ("10de", "ffff"), ("10de", ""), ("10de", "11cc,GRID")])
def test_whole_gpu_has_no_vgpu_profile(subsystem: tuple[str, str] | None) -> None:
    assert gpus.vgpu_profile("13bd", subsystem) is None


def test_lookup_key_must_match_a_whole_field() -> None:
    assert tables.find("gpus.csv", "1b80,NVIDIA GeForce GTX 1080") is None
    assert tables.find("gpus.csv", "\n1b80") is None
    assert tables.find("gpus.csv", "") is None


@pytest.mark.parametrize("name", ["GeForce GT 1030", "NVIDIA GeForce GT 1030", "geforce gt 1030"])
def test_gpu_is_found_by_name(name: str) -> None:
    found = gpus.find_by_name(name)
    assert found is not None
    assert (found.architecture, found.last_branch) == ("Pascal", 580)
    assert gpus.find_by_name(f"{name} of another maker") is None


@pytest.mark.parametrize(
    ("chip", "last", "needs_open"),
    [
        ("GP104", 580, False),
        ("GK210GL", 470, False),
        ("GF119", 390, False),
        ("TU102", None, False),
        ("GB202", None, True),
    ],
)
def test_gpu_is_found_by_chip(chip: str, last: int | None, needs_open: bool) -> None:
    found = gpus.model_of_chip(chip, "some card")
    assert found is not None
    assert (found.name, found.last_branch, found.needs_open_modules) == ("some card", last, needs_open)
    assert gpus.model_of_chip("Navi 31", "some card") is None
