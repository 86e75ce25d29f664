"""Lock files: what is written is read back unchanged, and errors are named with their place."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.errors import LockFileError
from gpunode.lockfile import VersionDifference, parse, render, version_differences
from gpunode.recipe import VersionLock
from gpunode.recipe.keys import known_keys
from tests.ids import by_id

LOCK = VersionLock(
    "fleet.lock",
    "containerd",
    "debian",
    "12",
    "amd64",
    by_id(
        {"nvidia-driver-cuda": "580.178.04-1", "libnvidia-egl-wayland1": "1:1.1.13-1", "libcuda1:i386": "580.178.04-1"}
    ),
)
TEXT = render(LOCK, "0.1.0")
NAMES = st.from_regex(r"[a-z0-9][a-z0-9+.-]{1,20}(:[a-z0-9]{2,5})?", fullmatch=True)
VERSIONS = st.from_regex(r"([0-9]:)?[0-9][A-Za-z0-9.+~-]{0,12}", fullmatch=True)


@given(st.dictionaries(NAMES, VERSIONS, max_size=6))
def test_lock_file_round_trips(packages: dict[str, str]) -> None:
    lock = VersionLock("f", "my recipe", "ubuntu", "24.04", "arm64", by_id(packages))
    assert parse(render(lock, "1.2.3"), "f") == lock


def test_lock_file_does_not_depend_on_the_package_order() -> None:
    other = replace(LOCK, packages=dict(reversed([*LOCK.packages.items()])))
    assert render(other, "0.1.0") == TEXT


def test_header_names_the_command_and_the_recipe() -> None:
    assert "gpunode plan --lock" in TEXT.partition("schema")[0]
    assert 'recipe = "containerd"' in TEXT


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        (TEXT.replace("schema = 1", "schema = 2"), 4, ("schema is 2", "allowed: 1")),
        (TEXT.replace("schema = 1\n", ""), 0, ("not a lock file",)),
        ("[driver]\nversion = '580'\n", 0, ("not a lock file",)),
        ("just words\n", 1, ("not TOML",)),
        (TEXT.replace("[packages]", "[packges]"), 0, ("not a lock file",)),
        (TEXT.replace("release =", "realease ="), 8, ("no key", "realease", "release")),
        (TEXT.replace('release = "12"\n', ""), 0, ("release is missing",)),
        (TEXT.replace('"debian"', "12"), 7, ("distribution is 12",)),
        (TEXT.replace('"580.178.04-1"\n', "580\n"), 12, ("libcuda1:i386 is 580", "not a package version")),
        (TEXT.replace("nvidia-driver-cuda", "NVIDIA"), 14, ("NVIDIA", "not a package name")),
        (TEXT.replace("580.178.04-1", "580.178.04-1 -o Foo=bar"), 12, ("not a package version",)),
        (TEXT.replace("nvidia-driver-cuda", "-o-y"), 14, ("not a package name",)),
    ],
)
def test_invalid_lock_is_reported_with_file_and_line(text: str, line: int, words: tuple[str, ...]) -> None:
    with pytest.raises(LockFileError) as caught:
        parse(text, "fleet.lock")
    said = f"{caught.value.what}\n{caught.value.why}"
    assert said.startswith(f"fleet.lock:{line}:" if line else "fleet.lock:")
    assert all(word in said for word in words), said
    assert "gpunode plan --lock fleet.lock" in caught.value.hint


def test_huge_lock_file_is_refused() -> None:
    with pytest.raises(LockFileError, match="longer than"):
        parse("#" * (1 << 21), "fleet.lock")


def test_version_differences_are_listed() -> None:
    packages = by_id({"nvidia-driver-cuda": "580.200.01-1", "libnew1": "1-1"})
    newer = VersionLock("f", "r", "debian", "12", "amd64", packages)
    assert version_differences(LOCK, newer) == (
        VersionDifference("libcuda1:i386", "580.178.04-1", None),
        VersionDifference("libnew1", None, "1-1"),
        VersionDifference("libnvidia-egl-wayland1", "1:1.1.13-1", None),
        VersionDifference("nvidia-driver-cuda", "580.178.04-1", "580.200.01-1"),
    )


def test_recipe_cannot_set_a_lock() -> None:
    assert "lock" not in {key.path for key in known_keys()}
