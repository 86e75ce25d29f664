"""Records of apt's preferences, read as apt does, so that the overriding one is named correctly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.change import FileState
from gpunode.facts.model import Facts
from gpunode.packages.deb.preferences import Record, files_in_order, parse
from gpunode.steps.driver import DRIVER_PIN_STEP
from tests.unit.steps.machines import machine, planned, recipe

TEXT = """\
# ours
Explanation: the night shift
Package: nvidia-driver-cuda:any libcuda1
 libnvidia-ml1
Pin: version 580.*
Pin-Priority: 1001

Package: *
Pin: release o=Debian
Pin-Priority: 500

Package: /^nvidia-/
Pin: origin ""
"""


def test_records_are_parsed_with_lines_and_folded_names() -> None:
    assert parse("/x", TEXT) == (
        Record("/x", 2, ("nvidia-driver-cuda", "libcuda1", "libnvidia-ml1"), "version 580.*"),
        Record("/x", 8, ("*",), "release o=Debian"),
        Record("/x", 12, ("/^nvidia-/",), 'origin ""'),
    )


def test_record_matches_names_globs_and_expressions() -> None:
    exact, general, expression = parse("/x", TEXT)
    assert exact.names("libcuda1")
    assert not exact.names("libcuda1-dev")
    assert not general.names("libcuda1")
    assert expression.names("nvidia-smi")
    assert not expression.names("libnvidia-ml1")
    assert parse("/x", "Package: nvidia-*\nPin: version 1\n")[0].names("nvidia-smi")


@given(st.text())
def test_any_text_is_parsed(text: str) -> None:
    parse("/x", text)


def test_file_names_ignored_by_apt_are_not_read() -> None:
    folder = "/etc/apt/preferences.d"
    names = ("zz.pref", "00-site", "x.dpkg-old", "backup~", "a.b")
    paths = [*(f"{folder}/{name}" for name in names), "/etc/apt/preferences", "/etc/modprobe.d/a"]
    assert files_in_order(paths) == ("/etc/apt/preferences", f"{folder}/00-site", f"{folder}/zz.pref")


def site(text: str, name: str = "00-site") -> Facts:
    return machine(files={f"/etc/apt/preferences.d/{name}": FileState(text.encode())})


@pytest.mark.parametrize(
    "facts",
    [
        site("Package: nvidia-*\nPin: release o=NVIDIA\nPin-Priority: 600\n"),
        site("\n\nPackage: nvidia-driver-cuda\nPin: version 535.*\nPin-Priority: 1001\n"),
        machine(files={"/etc/apt/preferences": FileState(b"Package: /nvidia/\nPin: release *\nPin-Priority: 1\n")}),
    ],
)
def test_overriding_preference_record_is_noted(facts: Facts) -> None:
    (note,) = planned(DRIVER_PIN_STEP.plan(recipe(), facts)).notes
    assert "/etc/apt/preferences" in note.partition(":")[0]
    assert "nvidia-driver-cuda" in note or "nvidia-kernel" in note


@pytest.mark.parametrize(
    "facts",
    [
        site("Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 600\n", "cuda-repository-pin-600"),
        site("Package: nvidia-*\nPin: release o=NVIDIA\nPin-Priority: 600\n", "zz-site"),
        site("Package: firefox\nPin: release *\nPin-Priority: 1\n"),
        site("Package: nvidia-*\nPin: release o=NVIDIA\nPin-Priority: 600\n", "00-site.bak"),
    ],
    ids=["NVIDIA's own, for all packages", "read later", "another package", "not read by apt"],
)
def test_unrelated_preference_record_is_not_noted(facts: Facts) -> None:
    assert planned(DRIVER_PIN_STEP.plan(recipe(), facts)).notes == ()
