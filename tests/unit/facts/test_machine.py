"""The product that provides Kubernetes on a node, recognised by files that only this product creates."""

from __future__ import annotations

import pytest

from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture, Evidence, GlobMatch, encode_matches
from gpunode.facts.machine import PROVIDER_MARK_PATHS
from gpunode.facts.model import Known, Unknown
from gpunode.facts.probes import PROBES


def node(mark: str = "", os_release: str = "ID=ubuntu\nVERSION_ID=24.04\n") -> Evidence:
    """Return the evidence of a node with only this mark."""
    looks = {key: Capture(place, "ok", b"") for key, (_, place) in PROVIDER_MARK_PATHS.items()}
    if mark:
        looks[mark] = Capture(
            PROVIDER_MARK_PATHS[mark][1], "ok", encode_matches(iter([GlobMatch(PROVIDER_MARK_PATHS[mark][1], None)]))
        )
    return {**looks, "os-release": Capture("/etc/os-release", "ok", os_release.encode())}


@pytest.mark.parametrize("mark", PROVIDER_MARK_PATHS)
def test_product_is_recognized_by_its_marker(mark: str) -> None:
    assert derive(node(mark)).provider == Known(PROVIDER_MARK_PATHS[mark][0], mark)


@pytest.mark.parametrize(("name", "provider"), [("bottlerocket", "bottlerocket"), ("rhcos", "openshift")])
def test_node_system_is_recognized_by_os_release(name: str, provider: str) -> None:
    assert derive(node(os_release=f"ID={name}\nVERSION_ID=1\n")).provider == Known(provider, "os-release")


def test_machine_without_a_marker_has_no_provider() -> None:
    assert isinstance(found := derive(node()).provider, Known)
    assert found.value is None


def test_old_capture_has_an_unknown_provider() -> None:
    assert isinstance(derive({}).provider, Unknown)


def test_marker_files_are_not_read() -> None:
    looks = {probe.key: probe for probe in PROBES}
    assert not [key for key in PROVIDER_MARK_PATHS if looks[key].contents]
