from __future__ import annotations

import pytest

from gpunode.catalog import tables, xids


def test_every_xid_from_1_to_176_has_an_entry() -> None:
    for code in range(1, 177):
        entry = xids.lookup(code)
        assert entry is not None, code
        assert entry.code == code
        assert entry.meaning
    assert xids.lookup(177) is None
    assert xids.lookup(0) is None


def test_only_documented_xids_have_an_action() -> None:
    for row in tables.rows("xids.csv"):
        assert row["source"] in {"catalog", "header"}
        assert row["source"] == "catalog" or not row["action"]


def test_known_xids_have_their_kind() -> None:
    kinds = {code: xids.lookup(code).kind for code in (13, 31, 45, 48, 79, 119, 149, 154)}  # type: ignore[union-attr]
    assert kinds == {
        13: "application",
        31: "application",
        45: "consequence",
        48: "memory",
        79: "bus",
        119: "firmware",
        149: "link",
        154: "information",
    }


@pytest.mark.parametrize(
    ("code", "unit", "words", "severity", "action", "follow_up"),
    [
        (149, "NETIR_LINK_EVT", (0x004505C6, 0), "link-fatal", "reset-gpu", "investigate-link-si"),
        (149, "NETIR_LINK_EVT", (0x025001C6, 0), "link-fatal", "reset-gpu", "investigate-peer-device"),
        (149, "NETIR_LINK_DOWN", (0x026001C6, 0), "link-fatal", "ignore", "investigate-sw-user"),
        (145, "RLW_REMAP", (0x00000082, 0x40), "fatal", "reset-gpu", "contact-support"),
        (145, "RLW_REMAP", (0x00000004, 0x40), "fatal", "reset-gpu", "contact-support"),
        (145, "RLW_RXPIPE", (0x0409A0C2, 0x8), "nonfatal", "ignore", "contact-support"),
        (144, "SAW_MVB", (0x00000001, 0x1), "nonfatal", "ignore", "contact-support"),
    ],
)
def test_nvlink5_error_is_decoded(
    code: int, unit: str, words: tuple[int, int], severity: str, action: str, follow_up: str
) -> None:
    found = xids.decode_nvlink5_fault(code, unit, *words)
    assert found is not None
    assert (found.severity, found.action, found.follow_up) == (severity, action, follow_up)


def test_worst_of_several_status_bits_counts() -> None:
    found = xids.decode_nvlink5_fault(145, "RLW_SRC_TRACK", 0x040988E2, 0x3)
    assert found is not None
    assert (found.status, found.severity) == (1, "fatal")


def test_unknown_nvlink5_error_is_not_decoded() -> None:
    assert xids.decode_nvlink5_fault(149, "NETIR_LINK_EVT", 0xFFFFFFFF, 0) is None
    assert xids.decode_nvlink5_fault(145, "NOBODY", 0x82, 1) is None
    assert xids.decode_nvlink5_fault(79, "RLW_REMAP", 0x82, 1) is None
    assert len(list(tables.rows("nvlink5.csv"))) == 91
