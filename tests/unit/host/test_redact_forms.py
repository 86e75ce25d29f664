"""The forms in which text reaches a capture: other ends of lines, text within text, and text that was made to be slow."""

from __future__ import annotations

import pytest

from gpunode.host.redact import text


@pytest.mark.parametrize(
    "written",
    [
        "password: >-\n  hunter two\nimage: cuda\n",
        "- name: DB_PASSWORD\n  value: hunter2\n- name: X\n",
        "kind: Secret\ndata:\n  foo: hunter\n  bar: hunter\n",
        "key: |\n-----BEGIN RSA PRIVATE KEY-----\nhunter\n-----END RSA PRIVATE KEY-----\nimage: cuda\n",
    ],
)
def test_lines_that_end_as_on_windows_hide_no_secret_and_end_so_afterwards(written: str) -> None:
    kept = text(written.replace("\n", "\r\n"))
    assert "hunt" not in kept
    assert kept == text(written).replace("\n", "\r\n")
    assert text(kept) == kept


def test_each_line_keeps_its_own_end() -> None:
    assert text("password: hunter2\r\nimage: cuda\nx: y\r\n") == "password: redacted\r\nimage: cuda\nx: y\r\n"
    plain = "token:   # rotated\r\nx\n\r\r\n"
    assert text(plain) == plain
