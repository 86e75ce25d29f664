"""What is to be done on a cluster: the commands find the objects by what they are, since every site names them anew."""

from __future__ import annotations

from gpunode.diagnoses.commands import Command, Shell, command, is_name, joined
from gpunode.diagnoses.model import Fix, FixKind
from gpunode.diagnoses.remedies import run
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import kube
from gpunode.diagnoses.views.engine import engine


def node_word(snapshot: Snapshot) -> str:
    """The node in a command: the only one that is shown, else what this one calls itself, as kubelets register."""
    names = {node.name for node in snapshot.view(kube.nodes) if node.name}
    name = names.pop() if len(names) == 1 else ""
    return name if is_name(name) else Shell('"$(hostname | tr A-Z a-z)"')


def restart_plugin(text: str = "restart the device plugin", when: str = "") -> Fix:
    """Restarts every daemon set that is a device plugin of NVIDIA's, wherever it lives."""
    return run("restart", text, _each_plugin(Shell('rollout restart daemonset "$name"')), when=when)


def restart_failed_pods(text: str, reason: str = "UnexpectedAdmissionError") -> Fix:
    """Deletes the pods that the kubelet refused, which never run again: those alone that have a controller."""
    columns = "S:.metadata.namespace,N:.metadata.name,R:.status.reason,O:.metadata.ownerReferences[0].kind"
    named = ("--field-selector", "status.phase=Failed", "--no-headers", "-o", f"custom-columns={columns}")
    failed = command("kubectl", "get", "pods", "-A", *named)
    owned = command("awk", f'$3 == "{reason}" && $4 != "<none>" {{print $1, $2}}')
    delete = Shell('while read -r space name; do kubectl -n "$space" delete pod "$name"; done')
    return run("restart", text, joined(failed, Shell("|"), owned, Shell("|"), delete))


def plugin_logs(text: str, kind: FixKind = "inspect") -> Fix:
    """Shows what the device plugins say."""
    command = Shell(
        "kubectl get pods -A --no-headers | awk '$2 ~ /nvidia.*device-plugin/ {print $1, $2}' | "
        'while read -r space name; do kubectl -n "$space" logs "$name" --all-containers --tail=50; done'
    )
    return run(kind, text, command)


def set_runtime_class(text: str) -> Fix:
    """Makes the runtime class, and NVIDIA's device plugins ask for it."""
    make = Shell(
        "printf 'apiVersion: node.k8s.io/v1\\nkind: RuntimeClass\\nmetadata:\\n  name: nvidia\\nhandler: nvidia\\n' | "
        "kubectl apply -f -"
    )
    patch = '{"spec":{"template":{"spec":{"runtimeClassName":"nvidia"}}}}'
    return run("configure", text, make, _each_plugin(joined(Shell('patch daemonset "$name"'), command("-p", patch))))


def register_runtime(snapshot: Snapshot) -> Command:
    """Registers NVIDIA's runtime with the container runtime of the node, and has that read it."""
    return command("sudo", "gpunode", "ctk", "runtime", "configure", f"--runtime={engine(snapshot)}", "--restart")


def restart_rancher(product: str, why: str) -> Fix:
    """Restarts k3s or RKE2, whichever unit of it this node runs."""
    units = ("rke2-server", "rke2-agent") if product == "rke2" else ("k3s", "k3s-agent")
    return run("restart", f"restart {product}, {why}", command("sudo", "systemctl", "try-restart", *units))


def _each_plugin(action: Command) -> Command:
    """What kubectl does with each daemon set that is a device plugin of NVIDIA's; ``action`` calls it ``$name``."""
    return joined(
        Shell("kubectl get daemonsets -A --no-headers | awk '$2 ~ /nvidia.*device-plugin/ {print $1, $2}' |"),
        Shell('while read -r space name; do kubectl -n "$space"'),
        action,
        Shell("; done"),
    )
