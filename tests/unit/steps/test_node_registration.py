"""The labels and the taint with which a kubelet registers its Node."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpunode import builtin
from gpunode.change import FileChange, FileState
from gpunode.facts.kubelet import parse_flags
from gpunode.facts.model import Facts, Known, Kubelet
from gpunode.facts.project import project_changes
from gpunode.kubernetes.render import render_cluster
from gpunode.recipe import Recipe
from gpunode.recipe.toml import parse
from gpunode.steps.node_registration import KUBELET_ENVIRONMENT_FILE, NODE_REGISTRATION_STEP
from tests.unit.kubernetes.clusters import CLUSTERS
from tests.unit.steps.machines import machine, planned, refusal

DROP_IN = "/lib/systemd/system/kubelet.service.d/10-kubeadm.conf"
KUBEADM = (
    b"[Service]\nEnvironmentFile=-/etc/default/kubelet\nExecStart=\nExecStart=/usr/bin/kubelet $KUBELET_EXTRA_ARGS\n"
)
OWN = Kubelet("kubelet", "kubelet.service", "/run/containerd/containerd.sock", "systemd")
K3S = Kubelet("k3s", "k3s.service", "/run/k3s/containerd/containerd.sock", data="/var/lib/rancher/k3s")
TAINT = '[kubernetes.taint]\nkey = "nvidia.com/gpu"\nvalue = "present"\n'


def recipe_of(text: str = "", register: str = "kubelet", base: str = "k8s-containerd") -> Recipe:
    return parse(
        f'schema = 1\nextends = "{base}"\nkubernetes.node_registration = "{register}"\n{text}',
        "r.toml",
        builtin.load_recipe_text,
    )


def node(environment: bytes | None, *, kubelet: Kubelet | None = OWN, joined: bool = False) -> Facts:
    files = {DROP_IN: KUBEADM} | ({KUBELET_ENVIRONMENT_FILE: environment} if environment is not None else {})
    files |= {"/var/lib/kubelet/config.yaml": b"kind: KubeletConfiguration\n"} if joined else {}
    facts = machine(files=files, kubelet=kubelet)
    absent = {"/etc/default": "x", "/etc/rancher/k3s/config.yaml.d": "x", "/var/lib/kubelet": "x"}
    return replace(facts, folders={**facts.folders, **absent})


def flags(content: bytes) -> dict[str, str]:
    """Return the kubelet's flags, as passed by systemd and kubeadm's unit file."""
    last = [line for line in content.decode().splitlines() if line.startswith("KUBELET_EXTRA_ARGS=")][-1]
    words = shlex.split(shlex.split(last.partition("=")[2])[0])
    return dict(word.partition("=")[::2] for word in words)


def registration_file(recipe: Recipe, facts: Facts) -> FileState:
    (change,) = planned(NODE_REGISTRATION_STEP.plan(recipe, facts)).changes
    assert isinstance(change, FileChange)
    assert isinstance(change.after, FileState)
    return change.after


@pytest.mark.parametrize("before", [None, b"", b"KUBELET_EXTRA_ARGS=\n", b"# mine", b'KUBELET_EXTRA_ARGS=""\n'])
def test_kubelet_registers_with_the_labels_that_apply_would_set(before: bytes | None) -> None:
    recipe = recipe_of(TAINT)
    state = registration_file(recipe, node(before))
    edit = render_cluster(recipe, CLUSTERS["one"]).nodes[0]
    assert flags(state.content) == {
        "--node-labels": ",".join(f"{key}={value}" for key, value in edit.labels.items()),
        "--register-with-taints": edit.taint,
    }
    assert state.content.startswith(b"# mine\n") == (before == b"# mine")


def test_foreign_kubelet_flags_are_kept_and_ours_merged() -> None:
    before = b"KUBELET_EXTRA_ARGS='--v=2 --node-labels=a=b --register-with-taints=x=y:NoSchedule'\nOTHER=1\n"
    state = registration_file(recipe_of(TAINT), node(before))
    assert flags(state.content) == {
        "--v": "2",
        "--node-labels": "a=b,nvidia.com/gpu.present=true",
        "--register-with-taints": "x=y:NoSchedule,nvidia.com/gpu=present:NoSchedule",
    }
    assert state.content.endswith(b"OTHER=1\n")


def test_other_value_of_our_label_or_taint_is_replaced() -> None:
    before = (
        b"KUBELET_EXTRA_ARGS=--node-labels=nvidia.com/gpu.present=no --register-with-taints=nvidia.com/gpu:NoExecute"
    )
    assert flags(registration_file(recipe_of(TAINT), node(before)).content) == {
        "--node-labels": "nvidia.com/gpu.present=true",
        "--register-with-taints": "nvidia.com/gpu=present:NoSchedule",
    }


@given(
    st.lists(st.from_regex(r"--[a-z-]{1,9}=[A-Za-z0-9./:=,-]{0,9}", fullmatch=True), max_size=4),
    st.sampled_from(["", '"', "'"]),
)
def test_second_run_changes_nothing_and_loses_no_flag(words: list[str], quote: str) -> None:
    facts = node(f"KUBELET_EXTRA_ARGS={quote}{' '.join(words)}{quote}\n".encode())
    outcome = planned(NODE_REGISTRATION_STEP.plan(recipe_of(TAINT), facts))
    after = project_changes(facts, outcome.changes)
    assert planned(NODE_REGISTRATION_STEP.plan(recipe_of(TAINT), after)).changes == ()
    (change,) = outcome.changes
    assert isinstance(change, FileChange)
    assert isinstance(change.after, FileState)
    assert set(words) <= set(shlex.split(change.after.content.decode().partition("=")[2])[0].split())
    assert parse_flags(shlex.split(change.after.content.decode().partition("=")[2])[0].split())["node-labels"]


@pytest.mark.parametrize(
    "content",
    [
        b'KUBELET_EXTRA_ARGS="--v=2 \\\n  --v=3"\n',
        b"KUBELET_EXTRA_ARGS=\"--a='b c'\"\n",
        b"KUBELET_EXTRA_ARGS=--node-labels a=b\n",
        b"export KUBELET_EXTRA_ARGS=--v=2\n",
    ],
)
def test_unparsable_kubelet_environment_is_refused_with_the_flags(content: bytes) -> None:
    refused = refusal(NODE_REGISTRATION_STEP.plan(recipe_of(), node(content)))
    assert "--node-labels=nvidia.com/gpu.present=true" in refused.hint


def test_registration_waits_for_a_kubelet() -> None:
    facts = machine(files={KUBELET_ENVIRONMENT_FILE: b""}, kubelet=None)
    outcome = planned(NODE_REGISTRATION_STEP.plan(recipe_of(), facts))
    assert (outcome.changes, outcome.is_deferred) == ((), True)
    assert "waits for a kubelet" in outcome.reason


def test_node_that_already_joined_is_noted_with_kubectl_commands() -> None:
    assert planned(NODE_REGISTRATION_STEP.plan(recipe_of(), node(b""))).change_notes == ()
    (note,) = planned(NODE_REGISTRATION_STEP.plan(recipe_of(TAINT), node(b"", joined=True))).change_notes
    assert "kubectl label node NODE nvidia.com/gpu.present=true" in note
    assert "kubectl taint node NODE nvidia.com/gpu=present:NoSchedule" in note


def test_k3s_gets_its_own_config_file() -> None:
    for kubelet in (K3S, None):
        recipe = recipe_of(TAINT, "k3s", "k3s")
        facts = node(None, kubelet=kubelet)
        state = registration_file(recipe, facts)
        assert yaml.safe_load(state.content) == {
            "node-label+": ["nvidia.com/gpu.present=true"],
            "node-taint+": ["nvidia.com/gpu=present:NoSchedule"],
        }
        after = project_changes(facts, planned(NODE_REGISTRATION_STEP.plan(recipe, facts)).changes)
        assert planned(NODE_REGISTRATION_STEP.plan(recipe, after)).changes == ()


K3S_FILE = "/etc/rancher/k3s/config.yaml.d/99-gpunode-node.yaml"


def with_k3s_file(content: bytes) -> Facts:
    facts = node(None, kubelet=K3S)
    return replace(facts, files={**facts.files, K3S_FILE: Known(FileState(content), "x")})


def test_label_that_left_the_recipe_leaves_the_file_of_k3s() -> None:
    """So do lines of a user: other files of that folder are theirs."""
    labels = '[kubernetes.labels]\na = "1"\n'
    both, one = (recipe_of(labels + more, "k3s", "k3s") for more in ('b = "1"\n', ""))
    facts = node(None, kubelet=K3S)
    for edited in ("", "node-name: one\n"):
        content = registration_file(both, facts).content + edited.encode()
        state = registration_file(one, with_k3s_file(content))
        assert yaml.safe_load(state.content) == {"node-label+": ["a=1", "nvidia.com/gpu.present=true"]}


def test_file_of_k3s_goes_with_the_last_label() -> None:
    """The GPU Operator finds the nodes by itself."""
    asked = recipe_of(register="k3s", base="gpu-operator")
    assert planned(NODE_REGISTRATION_STEP.plan(asked, node(None, kubelet=K3S))).changes == ()
    (change,) = planned(NODE_REGISTRATION_STEP.plan(asked, with_k3s_file(b"node-label+:\n- a=1\n"))).changes
    assert isinstance(change, FileChange)
    assert (change.path, change.after) == (K3S_FILE, None)


def test_kubelet_other_than_the_recipe_names_is_refused() -> None:
    assert (
        'node_registration = "k3s"' in refusal(NODE_REGISTRATION_STEP.plan(recipe_of(), node(None, kubelet=K3S))).hint
    )


def test_registration_is_written_only_if_requested_and_needed() -> None:
    assert not planned(NODE_REGISTRATION_STEP.plan(builtin.read_recipe("k8s-containerd"), node(b""))).is_requested
    assert planned(NODE_REGISTRATION_STEP.plan(recipe_of(base="gpu-operator"), node(b""))).changes == ()
    hami = registration_file(recipe_of(base="hami"), node(b""))
    assert flags(hami.content)["--node-labels"] == "gpu=on,nvidia.com/gpu.present=true"


@pytest.mark.parametrize("register", ["kubelet", "k3s"])
def test_label_that_a_kubelet_may_not_set_is_refused(register: str) -> None:
    asked = recipe_of(
        '[kubernetes.labels]\n"node-role.kubernetes.io/gpu" = ""\n', register=register, base="k8s-containerd"
    )
    assert (
        "cannot set node-role.kubernetes.io/gpu"
        in refusal(NODE_REGISTRATION_STEP.plan(asked, node(b"KUBELET_EXTRA_ARGS=\n"))).what
    )


@pytest.mark.parametrize(
    ("path", "content"),
    [
        (
            "/var/lib/kubelet/kubeadm-flags.env",
            b'KUBELET_KUBEADM_ARGS="--register-with-taints=a=b:NoSchedule"\n',
        ),
        ("/var/lib/kubelet/config.yaml", b"registerWithTaints:\n- effect: NoSchedule\n  key: dedicated\n"),
    ],
)
def test_taints_set_by_kubeadm_are_not_replaced(path: str, content: bytes) -> None:
    facts = node(b"KUBELET_EXTRA_ARGS=\n")
    facts = replace(facts, files={**facts.files, path: Known(FileState(content), f"file:{path}")})
    assert "taints already" in refusal(NODE_REGISTRATION_STEP.plan(recipe_of(TAINT), facts)).what
