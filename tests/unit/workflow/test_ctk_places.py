"""ctk on a node whose containerd is part of a product: what is owed, and what is asked of whom."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import FileChange, Trigger
from gpunode.facts.model import Known, Kubelet
from gpunode.journal.store import Store
from gpunode.runtimes import Runtime, Wish, runtime
from gpunode.runtimes.installations import chosen
from gpunode.workflow import ctk, edits
from gpunode.workflow.ctk import Asked
from gpunode.workflow.events import silent
from tests.unit.steps.machines import machine
from tests.unit.workflow.editing import Machine

VECTORS = Path(__file__).parents[2] / "conformance" / "runtimes" / "vectors"
FOLDER = "/var/lib/rancher/k3s/agent/etc/containerd"
CONFIG, DROP_IN = f"{FOLDER}/config.toml", f"{FOLDER}/config-v3.toml.d/99-nvidia.toml"
WITH_FOLDER = (VECTORS / "019-ctd-k3s-v3" / "input.toml").read_bytes()
OLDER = WITH_FOLDER.replace(b"imports = ", b"# imports = ")
K0S = b'# k0s_managed=true\nversion = 3\nimports = ["/etc/k0s/containerd.d/*.toml"]\n'
WISH = Wish(exact=True)


def row_of(kubelet: Kubelet, files: dict[str, bytes]) -> Runtime:
    return chosen(runtime("containerd"), replace(machine(files=files), kubelet=Known(kubelet, "units"))).row


def k3s() -> Runtime:
    return row_of(Kubelet("k3s", "k3s.service", "/run/k3s/containerd/containerd.sock", data="/var/lib/rancher/k3s"), {})


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_the_products_unit_is_what_reads_it_and_no_parser_on_the_path_is_asked(store: Store) -> None:
    host = Machine({CONFIG: WITH_FOLDER})
    draft = edits.configuring(host, k3s(), WISH)
    assert draft.trigger == Trigger("restart", "k3s.service")
    done = ctk.carry_out(draft, host, store, Asked("configure", "test"), silent)
    assert set(host.contents) >= {CONFIG, DROP_IN}
    assert done.checked == ""
    assert edits.configuring(host, k3s(), WISH).changes == ()


def test_what_the_product_generates_makes_no_daemon_older_than_its_files() -> None:
    draft = edits.configuring(Machine({CONFIG: WITH_FOLDER}), k3s(), WISH)
    assert CONFIG not in draft.own
    assert DROP_IN in draft.own


def test_a_product_that_finds_the_runtime_itself_is_only_restarted() -> None:
    draft = edits.configuring(Machine({CONFIG: OLDER}), k3s(), WISH)
    assert draft.changes == ()
    assert draft.overlooked
    (change,) = ctk.reread(draft).changes
    assert isinstance(change, FileChange)
    assert change.before == change.after
    assert change.triggers == {Trigger("restart", "k3s.service")}


def test_a_product_that_watches_its_files_owes_nothing() -> None:
    files = {"/etc/k0s/containerd.toml": K0S}
    row = row_of(Kubelet("k0s", "k0sworker.service", "/run/k0s/containerd.sock"), files)
    draft = edits.configuring(Machine(files), row, WISH)
    assert draft.trigger is None
    assert [change.path for change in draft.changes] == ["/etc/k0s/containerd.d/99-nvidia.toml"]


def test_check_asks_nobody() -> None:
    files = {CONFIG: WITH_FOLDER}
    host = Machine(files)
    first = edits.configuring(host, k3s(), WISH)
    after = dict(first.after)
    draft = edits.configuring(Machine(after), k3s(), WISH)
    verdict = ctk.verdict(Machine(after), draft, lambda _: pytest.fail("asked"), is_live=True)
    assert "generated when it starts" in verdict.untold
