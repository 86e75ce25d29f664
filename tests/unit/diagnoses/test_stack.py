"""Stack layer of each cause, and the stack of a broken node."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose, rules_by_cause
from gpunode.diagnoses.model import STACK_LAYERS
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.stack import LAYER_TITLES, LayerState, stack_layers
from gpunode.facts import pasted
from tests.scenarios.reports import Report, some_reports


def test_every_stack_layer_has_a_title_and_a_cause() -> None:
    assert list(LAYER_TITLES) == list(STACK_LAYERS)
    assert {rule.layer for rule in rules_by_cause().values()} == set(STACK_LAYERS)


def layer_states(rows: tuple[tuple[str, str], ...]) -> dict[str, LayerState]:
    """Return the stack of the node that these pieces show."""
    seen = take_snapshot(pasted.collect_pieces(rows))
    return {layer.id: layer for layer in stack_layers(seen, diagnose(seen))}


@pytest.mark.parametrize("report", some_reports("stack"), ids=lambda report: report.name)
def test_root_cause_breaks_only_its_own_layer(report: Report) -> None:
    layers = layer_states(tuple((piece["source"], piece["text"]) for piece in report.evidence))
    own = layers[rules_by_cause()[report.cause].layer]
    assert report.cause in own.findings
    assert [layer.id for layer in layers.values() if report.cause in layer.findings] == [own.id]
    assert {layer.state for layer in layers.values() if layer is not own} <= {
        *("affected", "works", "no-fault", "unknown", "absent")
    }


def test_package_layer_names_the_package_manager() -> None:
    listed = "ii  nvidia-driver-550  550.54.15-0ubuntu1  amd64  NVIDIA driver\nii  vim  2:9.0  amd64  editor\n"
    assert layer_states((("dpkg -l", listed),))["packages"].summary == "apt: 2 listed"


def test_base_package_alone_is_a_toolkit() -> None:
    """It has the runtime and nvidia-ctk; the other package only adds the legacy hook."""
    listed = "ii  nvidia-container-toolkit-base  1.17.8-1  amd64  base\nii  vim  2:9.0  amd64  editor\n"
    asked = "dpkg-query: no packages found matching nvidia-container-toolkit\n"
    layers = layer_states((("dpkg -l | grep -e nvidia -e vim", listed), ("dpkg -l nvidia-container-toolkit", asked)))
    assert (layers["toolkit"].state, layers["toolkit"].summary) == ("no-fault", "toolkit 1.17.8-1")
