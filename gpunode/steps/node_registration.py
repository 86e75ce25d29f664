"""The kubelet registers its Node with the labels and the taint of the GPU stack, so that nobody has to set them later.

Sources: Kubernetes, "kubelet" (``--node-labels``, ``--register-with-taints``: only when the Node is made; a Node that
exists keeps its labels), "NodeRestriction" (a kubelet may set labels outside of kubernetes.io and k8s.io),
"Customizing the kubelet" (kubeadm's 10-kubeadm.conf puts KUBELET_EXTRA_ARGS of /etc/default/kubelet last); k3s,
"Configuration File" (config.yaml.d, a ``+`` adds to the values of other files), "Node Labels and Taints for Agents".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from gpunode.change import FileChange, FileState
from gpunode.command import command
from gpunode.errors import Refused
from gpunode.facts.kubelet import has_joined_cluster
from gpunode.facts.model import Facts, Known, KubeletKind, require, value_or
from gpunode.facts.patterns import Pattern
from gpunode.outcome import Planned, Refusal, Step, StepOutcome
from gpunode.recipe import Recipe

if TYPE_CHECKING:
    from gpunode.recipe.kubernetes import Kubernetes

KUBELET_ENVIRONMENT_FILE: Final = "/etc/default/kubelet"
_EXTRA_ARGS_VARIABLE: Final = "KUBELET_EXTRA_ARGS"
# The last assignment counts; one with escapes or inner quotes is not edited.
_EXTENDABLE_EXTRA_ARGS_LINE: Final = Pattern(rf"""^{_EXTRA_ARGS_VARIABLE}=(["']?)([^"'\\\n]*)\1[ \t]*$""", re.MULTILINE)
_ANY_EXTRA_ARGS_LINE: Final = Pattern(rf"^[ \t]*(?:export[ \t]+)?{_EXTRA_ARGS_VARIABLE}[ \t]*=", re.MULTILINE)

# The taints that kubeadm writes from nodeRegistration.taints and from a KubeletConfiguration.
_TAINT_SETTING_BY_FILE: Final = {
    "/var/lib/kubelet/kubeadm-flags.env": Pattern(r"--register-with-taints[= ]\S"),
    "/var/lib/kubelet/config.yaml": Pattern(r"^registerWithTaints:[ \t]*(?:\n[ \t]*-|\[[ \t]*\{)", re.MULTILINE),
}


def plan(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Return the change of the file from which the kubelet takes its labels and taints."""
    wanted = recipe.kubernetes
    if wanted is None or wanted.node_registration == "none":
        return Planned((), "not requested", is_requested=False)
    from gpunode.recipe.kubernetes import refuse_foreign_labels  # loaded on use: most recipes have no such table

    try:
        refuse_foreign_labels(wanted)
    except Refused as refused:
        return Refusal.of(refused)
    register: KubeletKind = wanted.node_registration
    labels = [f"{key}={value}" for key, value in sorted(registration_labels(wanted).items())]
    taints = [f"{wanted.taint.key}={wanted.taint.value}:{wanted.taint.effect}"] if wanted.taint.key else []
    path = f"/etc/rancher/{register}/config.yaml.d/99-gpunode-node.yaml"
    if not labels and not taints:
        own_file = None if register == "kubelet" else value_or(facts.file(path), None)
        changes = (FileChange(path, own_file, None),) if own_file else ()
        return Planned(changes, f"the stack {wanted.stack} finds the nodes by itself, and the recipe has no taint")
    kubelet = value_or(facts.kubelet, None)
    if kubelet and kubelet.kind != register:
        return Refusal(
            f"node_registration is {register}, and this node has {kubelet.kind}",
            "every kind of kubelet reads its labels from a different file",
            f'set node_registration = "{kubelet.kind}" in [kubernetes]'
            if kubelet.kind in {"kubelet", "k3s", "rke2"}
            else 'set node_registration = "none" in [kubernetes], and label the node with `gpunode k8s apply`',
        )
    if register == "kubelet":
        if obstacle := _find_flags_obstacle(taints, facts):
            return obstacle
        path = KUBELET_ENVIRONMENT_FILE
    before = require(facts.file(path), f"what {path} holds")
    content = before.content if before else b""
    is_kubeadm = register == "kubelet"
    after = _add_kubelet_flags(content, labels, taints) if is_kubeadm else _render_rancher_file(labels, taints)
    if after is None:
        return _unextendable_file_refusal(labels, taints)
    reason = f"the kubelet registers its Node with {', '.join(labels + taints)}"
    if after == content:
        return Planned((), reason)
    change = FileChange(path, before, replace(before, content=after) if before else FileState(after))
    return Planned((change,), reason, change_notes=_joined_node_notes(facts, register, labels, taints))


def _find_flags_obstacle(taints: Sequence[str], facts: Facts) -> Planned | Refusal | None:
    """Return why ``/etc/default/kubelet`` cannot have them, now or ever; None if it can."""
    if not _reads_environment_file(facts):
        return Planned(
            (), f"waits for a kubelet that reads {KUBELET_ENVIRONMENT_FILE}, as kubeadm's does", is_deferred=True
        )
    settings = _TAINT_SETTING_BY_FILE.items()
    elsewhere = next((path for path, setting in settings if setting.search(facts.text(path))), "")
    if not taints or not elsewhere:
        return None
    return Refusal(
        f"{elsewhere} has the kubelet register its Node with taints already",
        f"--register-with-taints in {KUBELET_ENVIRONMENT_FILE} would replace them, not add to them",
        'set node_registration = "none" in [kubernetes]; gpunode k8s apply sets the taint then',
    )


def _unextendable_file_refusal(labels: Sequence[str], taints: Sequence[str]) -> Refusal:
    flags = [f"--node-labels={','.join(labels)}"] if labels else []
    flags += [f"--register-with-taints={','.join(taints)}"] if taints else []
    return Refusal(
        f"{KUBELET_ENVIRONMENT_FILE} has a {_EXTRA_ARGS_VARIABLE} that gpunode cannot extend",
        "it contains quotes or escapes, or separates a flag and its value by a blank",
        f'write it as one line, {_EXTRA_ARGS_VARIABLE}="--flag=value …", or add there: {" ".join(flags)}',
    )


def registration_labels(kubernetes: Kubernetes) -> dict[str, str]:
    """Return the labels that do not depend on the node's GPUs."""
    from gpunode.recipe.kubernetes import stack_labels  # loaded on use: most recipes have no such table

    return {**kubernetes.labels, **stack_labels(kubernetes.stack)}


def _joined_node_notes(
    facts: Facts, kind: KubeletKind, labels: Sequence[str], taints: Sequence[str]
) -> tuple[str, ...]:
    """Return what is left to do for a node that joined before: the kubelet does not change an existing Node."""
    if not has_joined_cluster(facts, kind):
        return ()
    name = (kubelet.node_name if (kubelet := value_or(facts.kubelet, None)) else "") or "NODE"
    commands = [str(command("kubectl", "label", "node", name, *labels))] if labels else []
    commands += [str(command("kubectl", "taint", "node", name, *taints))] if taints else []
    return (f"this node has joined a cluster before, and only a new Node gets them; once: {' && '.join(commands)}",)


def _reads_environment_file(facts: Facts) -> bool:
    """Return whether a unit file of the kubelet passes on ``KUBELET_EXTRA_ARGS`` of ``/etc/default/kubelet``."""
    texts = [
        state.value.content
        for path, state in facts.files.items()
        if "/kubelet.service" in path and isinstance(state, Known) and state.value
    ]
    text = b"\n".join(texts)
    return KUBELET_ENVIRONMENT_FILE.encode() in text and _EXTRA_ARGS_VARIABLE.encode() in text


def _add_kubelet_flags(content: bytes, labels: Sequence[str], taints: Sequence[str]) -> bytes | None:
    """Return the environment file with these among the kubelet's flags; None if its syntax is not understood."""
    text = content.decode("utf-8", "surrogateescape")
    matches = list(_EXTENDABLE_EXTRA_ARGS_LINE.finditer(text))
    if len(matches) != len(_ANY_EXTRA_ARGS_LINE.findall(text)):
        return None
    words = matches[-1][2].split() if matches else []
    for flag, items in (("--node-labels", labels), ("--register-with-taints", taints)):
        if flag in words:
            return None
        at = next((n for n, word in reversed([*enumerate(words)]) if word.startswith(f"{flag}=")), None)
        present = words[at].partition("=")[2].split(",") if at is not None else []
        missing = [item for item in items if item not in present]
        if missing and at is None:
            words.append(f"{flag}={','.join(missing)}")
        elif missing and at is not None:
            # A later flag would replace the taints of this one.
            keys = {re.split("[=:]", item)[0] for item in missing}
            kept = [item for item in present if item and re.split("[=:]", item)[0] not in keys]
            words[at] = f"{flag}={','.join([*kept, *missing])}"
    if matches and words == matches[-1][2].split():
        return content
    line = f'{_EXTRA_ARGS_VARIABLE}="{" ".join(words)}"'
    if matches:
        text = text[: matches[-1].start()] + line + text[matches[-1].end() :]
    else:
        text += ("" if not text or text.endswith("\n") else "\n") + line + "\n"
    return text.encode("utf-8", "surrogateescape")


def _render_rancher_file(labels: Sequence[str], taints: Sequence[str]) -> bytes:
    """Return gpunode's own file of config.yaml.d."""
    lines = ["# Written by gpunode: this node registers with these, beside those of other files."]
    for key, items in (("node-label+", labels), ("node-taint+", taints)):
        lines += [f"{key}:", *(f'- "{item}"' for item in items)] if items else []
    return "".join(f"{line}\n" for line in lines).encode()


NODE_REGISTRATION_STEP = Step("node-registration", "node registration", "runtime", plan, serves=())
