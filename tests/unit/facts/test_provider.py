"""Whose Kubernetes node it is: told by files that only one product makes."""

from __future__ import annotations

import pytest

from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture, Evidence, Found, encode_found
from gpunode.facts.model import Known, Unknown
from gpunode.facts.platform import PROVIDER_MARKS
from gpunode.facts.probes import PROBES


def node(mark: str = "", os_release: str = "ID=ubuntu\nVERSION_ID=24.04\n") -> Evidence:
    """What a node shows that has the one mark."""
    looks = {key: Capture(place, "ok", b"") for key, (_, place) in PROVIDER_MARKS.items()}
    if mark:
        looks[mark] = Capture(PROVIDER_MARKS[mark][1], "ok", encode_found(iter([Found(PROVIDER_MARKS[mark][1], None)])))
    return {**looks, "os-release": Capture("/etc/os-release", "ok", os_release.encode())}


@pytest.mark.parametrize("mark", PROVIDER_MARKS)
def test_each_product_is_known_by_its_mark(mark: str) -> None:
    assert derive(node(mark)).provider == Known(PROVIDER_MARKS[mark][0], mark)


@pytest.mark.parametrize(("name", "provider"), [("bottlerocket", "bottlerocket"), ("rhcos", "openshift")])
def test_a_system_that_is_made_for_nodes_says_so_itself(name: str, provider: str) -> None:
    assert derive(node(os_release=f"ID={name}\nVERSION_ID=1\n")).provider == Known(provider, "os-release")


def test_a_machine_without_any_mark_is_its_owner_s() -> None:
    assert isinstance(found := derive(node()).provider, Known)
    assert found.value is None


def test_an_older_capture_tells_nothing_of_it() -> None:
    assert isinstance(derive({}).provider, Unknown)


def test_no_mark_is_read() -> None:
    looks = {probe.key: probe for probe in PROBES}
    assert not [key for key in PROVIDER_MARKS if looks[key].contents]
