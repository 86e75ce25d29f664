from __future__ import annotations

import pytest

from gpunode.toml import loads


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n" + ".".join("a" * 20_000) + " = 1",
        "[" + ".".join(["'a'"] * 20_000) + "]",
        "x = {" + " . ".join("a" * 20_000) + " = 1}",
    ],
)
def test_key_of_many_parts_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(ValueError, match="A key of more than 200 parts") as stopped:
        loads(text)
    assert f"(at line {1 + text.count(chr(10))}, column 1)" in str(stopped.value)


def test_endless_nesting_is_refused() -> None:
    with pytest.raises(ValueError, match="Nested too deeply"):
        loads("a = " + "[" * 100_000)


def test_combined_nesting_depth_is_limited() -> None:
    key = ".".join(["k"] * 90)
    assert loads(f"[{key}]\n{key} = 1\n")
    with pytest.raises(ValueError, match="Nested too deeply"):
        loads(f"[{key}]\n{key} = {{ {key} = 1 }}\n")
    with pytest.raises(ValueError, match="Nested too deeply"):
        loads(f"[[{key}]]\n[{key}.{key}]\nx = {'[' * 100}{']' * 100}\n")


def test_long_list_of_addresses_is_accepted() -> None:
    addresses = [f"10.0.{number}.1" for number in range(250)]
    text = f'hosts = {addresses!r}\nno_proxy = "{",".join(addresses)}"\n# {"." * 400}\n'
    assert loads(text)["hosts"] == addresses
