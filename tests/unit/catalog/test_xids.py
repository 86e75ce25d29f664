from __future__ import annotations

from gpunode.catalog import tables, xids


def test_every_code_from_1_to_176_has_an_entry_with_words_of_its_own() -> None:
    for code in range(1, 177):
        entry = xids.lookup(code)
        assert entry is not None, code
        assert entry.code == code
        assert entry.meaning
    assert xids.lookup(177) is None
    assert xids.lookup(0) is None


def test_what_the_catalog_says_to_do_is_told_of_what_it_documents_only() -> None:
    for row in tables.rows("xids.csv"):
        assert row["source"] in {"catalog", "header"}
        assert row["source"] == "catalog" or not row["action"]


def test_known_codes_are_of_their_kind() -> None:
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
