from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from gpunode.change import KnownAfter, PackageChange, PackageState
from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.model import Facts, Known
from gpunode.outcome import Planned
from gpunode.package_id import PackageId
from gpunode.packages.deb.apt_output import parse_archives
from gpunode.packages.deb.sources import parse
from gpunode.packages.simulation import Simulation
from gpunode.steps.daemons import PERSISTENCE_STEP
from gpunode.workflow.converge import StagePlan, StepPlan
from gpunode.workflow.origins import with_origins
from tests.unit.steps.machines import machine

_BODY = b"\x04" + b"\x65\x00\x00\x00" + b"\x16" + bytes(40)
KEY = bytes([0xC6, len(_BODY)]) + _BODY
FINGERPRINT = hashlib.sha1(b"\x99" + len(_BODY).to_bytes(2, "big") + _BODY).hexdigest().upper()
CUDA = "http://mirror/compute/cuda/repos/debian12/x86_64"
# As apt-cache 2.6.1 prints it: a flat repository has neither suite nor architecture.
TABLE = f"""\
nvidia-driver | 595.91.07-1 | {CUDA}  Packages
nvidia-driver | 580.178.04-1 | {CUDA}  Packages
nvidia-driver | 535.309.01-1 | http://deb.example/debian bookworm/non-free amd64 Packages
      dkms | 3.0.10-8 | http://deb.example/debian bookworm/main amd64 Packages
      dkms | 3.0.10-8 | http://deb.example/debian bookworm/main Sources
      dkms | 3.0.10-8 | http://deb.example/debian-security bookworm-security/updates/main amd64 Packages
"""
SOURCES = """\
deb [signed-by=/keys/cuda.gpg] http://user:secret@mirror/compute/cuda/repos/debian12/x86_64/ /
deb http://deb.example/debian/ bookworm main non-free
# deb [signed-by=/keys/other.gpg] http://deb.example/debian bookworm main
deb [trusted=yes] http://deb.example/debian-security bookworm-security/updates main
"""


class Node:
    """Returns given answers and counts the queries."""

    def __init__(self, table: str = TABLE, files: Mapping[str, bytes] = {}) -> None:
        self.table, self.files = table, files
        self.asked: list[Probe] = []

    def run_probe(self, probe: Probe, /) -> Capture:
        self.asked.append(probe)
        if probe.argv:
            return Capture(probe.source, "ok" if self.table else "absent", self.table.encode(), "")
        if probe.path in self.files:
            return Capture(probe.source, "ok", self.files[probe.path], "")
        return Capture(probe.source, "absent", b"", "")

    def read_live_distribution(self) -> None:
        return None

    def simulate(self, changes: Sequence[PackageChange], /) -> Simulation | None:
        raise AssertionError("it is not asked again")


def stage(*changes: PackageChange, dependencies: Sequence[PackageChange] = ()) -> StagePlan:
    return StagePlan(
        "packages", (StepPlan(PERSISTENCE_STEP, Planned(changes, "because"), changes),), tuple(dependencies)
    )


def facts(sources: str) -> Facts:
    return replace(machine(), sources=Known(parse("/etc/apt/sources.list", sources), "apt-sources"))


def origin(change: PackageChange) -> str:
    assert isinstance(change.after, PackageState)
    return change.after.origin


def origin_of(name: str, version: str, node: Node, sources: str = SOURCES) -> str:
    change = PackageChange(PackageId.of(name), None, PackageState(version))
    (found,) = with_origins(stage(change), node, facts(sources)).packages
    return origin(found)


def test_origins_are_not_queried_when_nothing_is_installed() -> None:
    node = Node()
    plan = stage(
        PackageChange(PackageId("x"), PackageState("1"), None), PackageChange(PackageId("y"), None, KnownAfter())
    )
    assert with_origins(plan, node, facts("")) is plan
    assert node.asked == []


def test_origins_take_one_madison_call_and_one_read_per_keyring() -> None:
    node = Node(f"a | 1 | {CUDA}  Packages\nb | 2 | {CUDA}  Packages\n")
    changes = [
        PackageChange(PackageId.of(name), None, PackageState(version)) for name, version in (("a", "1"), ("b", "2"))
    ]
    plan = with_origins(stage(changes[0], dependencies=changes[1:]), node, facts(SOURCES))
    assert [bool(origin(change)) for change in plan.packages] == [True, True]
    assert [probe.argv for probe in node.asked if probe.argv] == [("apt-cache", "madison", "a", "b")]
    assert len(node.asked) == 2


def test_origin_names_the_archive_and_key_fingerprint() -> None:
    node = Node(files={"/keys/cuda.gpg": KEY})
    assert origin_of("nvidia-driver", "595.91.07-1", node) == f"{CUDA}, signed by {FINGERPRINT}"


def test_unreadable_keyring_is_named_without_a_fingerprint() -> None:
    assert origin_of("nvidia-driver", "595.91.07-1", Node()) == f"{CUDA}, signed by a key of /keys/cuda.gpg"
    spoilt = Node(files={"/keys/cuda.gpg": b"no key"})
    assert origin_of("nvidia-driver", "595.91.07-1", spoilt) == f"{CUDA}, signed by a key of /keys/cuda.gpg"


def test_keyring_with_several_keys_lists_them_all() -> None:
    node = Node(files={"/keys/cuda.gpg": KEY + KEY})
    expected = f"{CUDA}, signed by a key of /keys/cuda.gpg ({FINGERPRINT} {FINGERPRINT})"
    assert origin_of("nvidia-driver", "595.91.07-1", node) == expected


def test_origin_without_signed_by_names_the_trusted_keys_folder() -> None:
    trusted = "http://deb.example/debian bookworm/non-free, signed by a key of /etc/apt/trusted.gpg.d"
    assert origin_of("nvidia-driver", "535.309.01-1", Node()) == trusted


def test_arch_placeholder_in_a_source_address_is_expanded() -> None:
    node = Node("toolkit | 1 | http://mirror/stable/deb/amd64  Packages\n")
    sources = "deb [trusted=yes] http://mirror/$(ARCH)/deb/amd64 /\ndeb http://mirror/stable/deb/$(ARCH) /\n"
    found = origin_of("toolkit", "1", node, sources)
    assert found == (
        "http://mirror/stable/deb/amd64, signature not required (trusted=yes in /etc/apt/sources.list) "
        "or signed by a key of /etc/apt/trusted.gpg.d"
    )


def test_version_in_two_archives_names_both_with_their_trust() -> None:
    assert origin_of("dkms", "3.0.10-8", Node()) == (
        "http://deb.example/debian bookworm/main, signed by a key of /etc/apt/trusted.gpg.d; or "
        "http://deb.example/debian-security bookworm-security/updates/main, "
        "signature not required (trusted=yes in /etc/apt/sources.list)"
    )


@pytest.mark.parametrize("word", ["3BF863CC" * 5, f"0x{'3bf863cc' * 5}", f"{'3BF863CC' * 5}!"])
def test_signed_by_may_be_a_fingerprint(word: str) -> None:
    sources = f"deb [signed-by={word}] {CUDA} /\n"
    assert origin_of("nvidia-driver", "595.91.07-1", Node(), sources) == f"{CUDA}, signed by {'3BF863CC' * 5}"


def test_unknown_origin_is_left_empty() -> None:
    assert origin_of("nvidia-driver", "595.91.07-1", Node(table="")) == ""
    assert origin_of("nvidia-driver", "1.0", Node()) == ""
    assert "from an unknown entry" in origin_of("nvidia-driver", "595.91.07-1", Node(), "")


@pytest.mark.parametrize("text", ["", "\n", "no table", "a | b", "a | b |", "a | b | Packages", "N: Unable to locate"])
def test_madison_parser_ignores_other_text(text: str) -> None:
    assert parse_archives(text) == {}
