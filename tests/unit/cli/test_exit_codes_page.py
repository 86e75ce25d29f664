from __future__ import annotations

from tests.unit.cli.exit_codes_page import PAGE, page


def test_the_page_of_the_exit_codes_is_current() -> None:
    assert PAGE.read_text() == page()
