"""Build steps on a cluster; objects are found by kind, since their names differ from site to site."""

from __future__ import annotations

from typing import Final

from gpunode.diagnoses.commands import Command, Shell, command, is_plain_name, join_commands
from gpunode.diagnoses.model import Fix
from gpunode.diagnoses.remedies import run_step
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import kubernetes_nodes
from gpunode.diagnoses.views.runtimes import container_engine


def kubectl_node_name(snapshot: Snapshot) -> str:
    """Return the node's name for kubectl: the only one shown, else the host's own name."""
    names = {node.name for node in snapshot.view(kubernetes_nodes.kube_nodes) if node.name}
    name = names.pop() if len(names) == 1 else ""
    return name if is_plain_name(name) else Shell('"$(hostname | tr A-Z a-z)"')


def restart_plugin(text: str = "restart the device plugin", when: str = "") -> Fix:
    """Return the step that restarts every device plugin of NVIDIA."""
    return run_step("restart", text, _for_each_plugin(Shell('rollout restart daemonset "$name"')), when=when)


def delete_refused_pods(text: str) -> Fix:
    """Return the step that deletes refused pods with a controller, which never run again."""
    columns = "S:.metadata.namespace,N:.metadata.name,R:.status.reason,O:.metadata.ownerReferences[0].kind"
    named = ("--field-selector", "status.phase=Failed", "--no-headers", "-o", f"custom-columns={columns}")
    failed = command("kubectl", "get", "pods", "-A", *named)
    owned = command("awk", '$3 == "UnexpectedAdmissionError" && $4 != "<none>" {print $1, $2}')
    delete = Shell('while read -r space name; do kubectl -n "$space" delete pod "$name"; done')
    return run_step("restart", text, join_commands(failed, Shell("|"), owned, Shell("|"), delete))


def show_plugin_logs(text: str) -> Fix:
    """Return the step that shows the logs of the device plugins."""
    command = Shell(
        "kubectl get pods -A --no-headers | awk '$2 ~ /nvidia.*device-plugin/ {print $1, $2}' | "
        'while read -r space name; do kubectl -n "$space" logs "$name" --all-containers --tail=50; done'
    )
    return run_step("inspect", text, command)


MAKE_RUNTIME_CLASS: Final = Shell(
    "printf 'apiVersion: node.k8s.io/v1\\nkind: RuntimeClass\\nmetadata:\\n  name: nvidia\\nhandler: nvidia\\n' | "
    "kubectl apply -f -"
)


def set_runtime_class(text: str) -> Fix:
    """Return the step that creates the runtime class and sets it for the device plugins."""
    patch = '{"spec":{"template":{"spec":{"runtimeClassName":"nvidia"}}}}'
    return run_step(
        "configure",
        text,
        MAKE_RUNTIME_CLASS,
        _for_each_plugin(join_commands(Shell('patch daemonset "$name"'), command("-p", patch))),
    )


def register_runtime_command(snapshot: Snapshot) -> Command:
    """Return the command that registers NVIDIA's runtime and restarts the container runtime."""
    return command(
        "sudo", "gpunode", "ctk", "runtime", "configure", f"--runtime={container_engine(snapshot)}", "--restart"
    )


def restart_rancher(product: str, why: str) -> Fix:
    """Return the step that restarts the k3s or RKE2 unit of this node."""
    units = ("rke2-server", "rke2-agent") if product == "rke2" else ("k3s", "k3s-agent")
    return run_step("restart", f"restart {product}, {why}", command("sudo", "systemctl", "try-restart", *units))


def _for_each_plugin(action: Command) -> Command:
    """Return the loop that runs ``action`` for each device plugin, whose name is in ``$name``."""
    return join_commands(
        Shell("kubectl get daemonsets -A --no-headers | awk '$2 ~ /nvidia.*device-plugin/ {print $1, $2}' |"),
        Shell('while read -r space name; do kubectl -n "$space"'),
        action,
        Shell("; done"),
    )
