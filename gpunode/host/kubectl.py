"""Meaning of kubectl's failures and versions. Pure."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import ClassVar, Final

from gpunode.errors import ChangeFailed, Conflict, GpunodeError, Refused, Undetermined, UsageError
from gpunode.host.process import PATH, FinishedCommand
from gpunode.redaction.secrets import redact_text as redact

# 1.21 added --show-managed-fields, which gpunode needs to tell its own fields from those of others (kubernetes issue
# 107947 names the change, number 96878). Debian 12 packages 1.20.
MIN_KUBECTL_VERSION: Final = (1, 21)
# kubectl supports API servers of one minor version to either side. Source: kubernetes.io, "Version Skew Policy".
_MAX_MINOR_VERSION_SKEW: Final = 1
_KUBERNETES_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(\.\d+)?")
# Log entries, which repeat the error for each retry; continuation lines are indented.
_KUBECTL_LOG_ENTRY: Final = re.compile(r"^[EWIF]\d{4} \d\d:\d\d:.*(?:\n[ \t].*)*\n?|^Warning: .*\n?", re.MULTILINE)
_MAX_ERROR_LINES: Final = 12
# Start of an error of kubectl's own, after those of a login plugin.
_KUBECTL_ERROR: Final = re.compile(r"(?:error: |Error from server|Unable to connect|The connection to|The [A-Z]\w+ \")")
# kubectl's error messages, as 1.20 and 1.36 print them.
_CREDENTIAL_PLUGIN_MISSING: Final = re.compile(
    r"exec: executable (\S+) not found|exec: fork/exec (\S+): (?:no such file or directory|permission denied)"
)
_CREDENTIAL_PLUGIN_FAILED: Final = re.compile(r"getting credentials, (?:exec: executable (\S+) failed)?")
_INSTALL_HINT_IN_OUTPUT: Final = re.compile(r"#client-go-credential-plugins\s+(.+)", re.DOTALL)
_CERTIFICATE_REJECTED: Final = re.compile(r"x509: |failed to verify certificate|certificate signed by")
_SERVER_UNREACHABLE: Final = re.compile(
    r"connection refused|was refused - did you|no such host|i/o timeout|Unable to connect|context deadline exceeded"
    r"|TLS handshake timeout|no route to host|network is unreachable|connection reset by peer"
    r"|Client\.Timeout|TooManyRequests|ServiceUnavailable|unable to handle the request|etcdserver|INTERNAL_ERROR|EOF$",
    re.MULTILINE,
)
_LOGIN_REJECTED: Final = re.compile(
    r"Unauthorized|must be logged in|asked for the client to provide credentials|token.* expired"
)
_CONTEXT_NOT_FOUND: Final = re.compile(
    r"context \"?([^\"\n]*)\"? does not exist|cannot locate context (\S+)"
    r"|no context exists with the name: \"?([^\"\n]*)"
)
_NO_CLUSTER_CONFIGURED: Final = re.compile(
    r"localhost:8080|127\.0\.0\.1:8080|\[::1\]:8080|current-context (?:is not set|must exist)|no configuration"
)
_KUBECONFIG_FILE_UNREADABLE: Final = re.compile(
    r"error loading config file \"([^\"\n]+)\"|unable to read (?:certificate|client)-\S+ (\S+)"
)
# The API server answered, but an aggregated API did not: each group with version and reason, after commas.
# Source: client-go discovery, ErrGroupDiscoveryFailed.
_INCOMPLETE_API_LIST_ERROR: Final = "unable to retrieve the complete list of server APIs: "
_FAILED_API_GROUP: Final = re.compile(r"(?:^|[ ,])([a-z0-9.-]+)/v\w+(?=[:, ]|$)")
# The API server answered, and quotes why it could not call a webhook.
_WEBHOOK_FAILED: Final = re.compile(r"failed (?:calling|to call) webhook \"([^\"]+)\"")
_REQUEST_FORBIDDEN: Final = re.compile(r"\(Forbidden\)|is forbidden|cannot (?:get|list|patch|create|delete) resource")
# A missing permission; admission plugins word their refusals differently.
USER_FORBIDDEN: Final = re.compile(r"is forbidden: User .+ cannot ")
_ADMISSION_REFUSED: Final = re.compile(r"is forbidden: (?!User )|denied (?:the )?request")
_KIND_NOT_FOUND: Final = re.compile(
    r"no matches for kind \"?(\w+)\"? in version \"?([\w./]+)|doesn't have a resource type \"?(\w+)"
)
FIELD_CONFLICT: Final = re.compile(r"conflicts? with \"([^\"]+)\"")
# Login plugins in the kubeconfigs of cloud providers, and how to install them, from the providers' documentation.
_PLUGIN_INSTALL_HINTS: Final = {
    "aws": "install the AWS CLI, version 2",
    "aws-iam-authenticator": "install aws-iam-authenticator, or have the AWS CLI write a kubeconfig that does not need "
    "it: aws eks update-kubeconfig --name CLUSTER",
    "gke-gcloud-auth-plugin": "install it: gcloud components install gke-gcloud-auth-plugin",
    "kubelogin": "install it: az aks install-cli",
}
# kubectl's advice on a conflict: force it.
_FIELD_CONFLICT_ADVICE: Final = re.compile(r"\nPlease review the fields above--.*?#conflicts", re.DOTALL)


class Forbidden(Refused):
    """The credential does not permit this request; others may still succeed."""

    meaning = Refused.meaning


def redacted_error_text(finished: FinishedCommand) -> str:
    """Return the errors that kubectl printed, without its log, at most ``_MAX_ERROR_LINES`` lines; secrets redacted."""
    output = _FIELD_CONFLICT_ADVICE.sub(
        "", _KUBECTL_LOG_ENTRY.sub("", (finished.stderr.strip() or finished.stdout.strip()).decode("utf-8", "replace"))
    )
    # Keep redact() from taking the reason for a secret. A plugin that is retried prints the same lines again.
    output = output.replace("getting credentials: ", "getting credentials, ")
    lines = dict.fromkeys(line for line in redact(output).splitlines() if line.strip())
    return "\n".join([*lines][:_MAX_ERROR_LINES])


def main_error_line(output: str) -> str:
    """Return the line of kubectl's output that gives the reason: its first own error, else the first line."""
    lines = output.splitlines()
    return next(filter(_KUBECTL_ERROR.match, lines), lines[0] if lines else "")


def explain_failure(finished: FinishedCommand) -> GpunodeError:
    """Return the error that explains why kubectl failed."""
    output = redacted_error_text(finished)
    return next(chain(_login_problems(output), _request_problems(finished, output)))


def find_failed_api_groups(finished: FinishedCommand) -> frozenset[str]:
    """Return the API groups that are missing from a list of kinds; empty if the list failed for another reason."""
    _, incomplete, groups = redacted_error_text(finished).partition(_INCOMPLETE_API_LIST_ERROR)
    return frozenset(_FAILED_API_GROUP.findall(groups)) if incomplete else frozenset()


def _login_problems(output: str) -> Iterator[GpunodeError]:
    """Yield what is wrong with the APIs, the kubeconfig and the login."""
    reason = main_error_line(output)
    if _INCOMPLETE_API_LIST_ERROR in output:
        yield ChangeFailed(
            "the cluster does not list all of its kinds of objects",
            why=reason,
            hint="repair the aggregated API that is not available, or delete its APIService:\nkubectl get apiservices",
        )
    if match := _CONTEXT_NOT_FOUND.search(output):
        yield UsageError(
            f"there is no context {next(filter(None, match.groups())).strip()!r}",
            why="your kubeconfig lacks it",
            hint="list them:\nkubectl config get-contexts",
        )
    if match := _KUBECONFIG_FILE_UNREADABLE.search(output):
        # The kubeconfig of k3s, k0s and kubeadm is readable by root only.
        repair = "run the same command with sudo" if "permission denied" in reason else "correct the file"
        yield UsageError(
            f"kubectl cannot read {match[1] or match[2]}",
            why=reason,
            hint=f"{repair}, or name another kubeconfig: --kubeconfig FILE",
        )
    if _NO_CLUSTER_CONFIGURED.search(output):
        yield UsageError(
            "kubectl has no cluster configured",
            why=reason,
            hint="set KUBECONFIG, or name a file: --kubeconfig FILE\n"
            "or see whether it has the cluster that its context names: kubectl config get-contexts",
        )
    check = "then check: kubectl auth whoami"
    if match := _CREDENTIAL_PLUGIN_MISSING.search(output):
        program = match[1] or match[2]
        advice = _INSTALL_HINT_IN_OUTPUT.search(output)
        install = advice[1] if advice else _PLUGIN_INSTALL_HINTS.get(program, f"install {program}")
        location = "" if "/" in program else f"\nit must be in {describe_install_location(program)}"
        yield Refused(
            f"your kubeconfig logs in by {program}, which cannot be run",
            why=reason,
            hint=f"{install}{location}\n{check}",
        )
    if match := _CREDENTIAL_PLUGIN_FAILED.search(output):
        yield Refused(
            f"the login by {match[1] or 'your kubeconfig'} failed",
            why=output,
            hint=f"log in again as your cluster's provider describes, {check}",
        )
    if _LOGIN_REJECTED.search(output):
        yield Refused(
            "the cluster does not accept your credentials",
            why=reason,
            hint=f"log in again, {check}",
        )


def _request_problems(finished: FinishedCommand, output: str) -> Iterator[GpunodeError]:
    """Yield why the API server cannot be reached, or why it, or kubectl itself, rejects the request."""
    reason = main_error_line(output)
    is_answered = _WEBHOOK_FAILED.search(output)
    if not is_answered and _CERTIFICATE_REJECTED.search(output):
        hint = (
            "download the kubeconfig of this cluster again: its certificate-authority-data is another cluster's, or "
            "older than the cluster's present one; or a proxy answers instead of the cluster"
        )
        if "expired" in output or "not yet valid" in output:
            hint = (
                "see whether this machine's clock is right: date\nif it is, renew the certificate on the control plane"
            )
        elif "valid for" in output:
            hint = "use the server name of its certificate in the kubeconfig, or set tls-server-name there"
        yield Undetermined(
            "the certificate of the API server is not one that your kubeconfig trusts",
            why=reason,
            hint=hint,
        )
    if not is_answered and (finished.timed_out or _SERVER_UNREACHABLE.search(output)):
        yield Undetermined(
            "the cluster does not answer",
            why=reason or f"kubectl took longer than {finished.seconds:.0f} s",
            hint="check that you can reach it:\nkubectl cluster-info",
        )
    if is_answered:
        yield _unanswered_webhook_error(is_answered[1], reason)
    if match := _KIND_NOT_FOUND.search(output):
        kind = f"{match[1]} ({match[2]})" if match[1] else match[3]
        yield Refused(
            f"this cluster does not know {kind}",
            why=reason,
            hint="its Kubernetes is too old for it, or a custom resource is missing; check with: kubectl api-resources",
        )
    if _ADMISSION_REFUSED.search(output):
        yield ChangeFailed(
            "the cluster's admission control refuses this",
            why=output,
            hint=_ADMISSION_HINT,
        )
    if _REQUEST_FORBIDDEN.search(output):
        more = len(output.splitlines()) - 1
        yield Forbidden(
            "your credentials may not do this",
            why=reason + (f"; and {more} more like this" if more else ""),
            hint="see what they may do:\nkubectl auth can-i --list",
        )
    if match := FIELD_CONFLICT.search(output):
        yield Conflict(
            f"another field manager, {match[1]}, owns a field that gpunode would set",
            why=output,
            hint="set the recipe to the present value, or have the owner release the field; gpunode does not force it",
        )
    yield ChangeFailed(
        f"kubectl {next((word for word in finished.argv if word in _ALLOWED_KUBECTL_VERBS), '')} failed",
        why=output or f"exit status {finished.exit_status}",
        hint="check that kubectl reaches the cluster:\nkubectl get nodes",
    )


_ADMISSION_HINT: Final = "ask its administrator for an exception to the policy or quota that is named there"


def _unanswered_webhook_error(webhook: str, reason: str) -> Refused:
    return Refused(
        f"the admission webhook {webhook} of this cluster does not answer",
        why=reason,
        hint="have its owner fix it; this shows whose it is: kubectl get "
        "validatingwebhookconfigurations,mutatingwebhookconfigurations",
    )


def explain_rejection(messages: str) -> Refused:
    """Return the error for objects that the API server rejected in a dry run."""
    if match := _WEBHOOK_FAILED.search(messages):
        return _unanswered_webhook_error(match[1], messages)
    is_policy = _ADMISSION_REFUSED.search(messages)
    return Refused(
        "the API server rejects what the recipe asks for",
        why=messages,
        hint=_ADMISSION_HINT if is_policy else "see the rendered objects:\ngpunode k8s render",
    )


_ALLOWED_KUBECTL_VERBS: Final = frozenset(
    {"api-resources", "apply", "config", "create", "delete", "get", "logs", "patch", "taint", "version"}
)


def parse_version(text: str) -> tuple[int, int] | None:
    """Return the major and minor version of ``v1.36.2``, ``v1.33.5-gke.1080000`` or ``v1.31.4+k3s1``."""
    match = _KUBERNETES_VERSION.match(text)
    return (int(match[1]), int(match[2])) if match else None


def refuse_old_kubectl(version_text: str, program: str, install: str) -> None:
    """Refuse a kubectl that lacks an option that gpunode needs; ``install`` says how to install another."""
    version = parse_version(version_text)
    if version is not None and version < MIN_KUBECTL_VERSION:
        needed = ".".join(map(str, MIN_KUBECTL_VERSION))
        raise Refused(
            f"kubectl {version_text.lstrip('v')} is too old: gpunode needs {needed} or newer",
            why=f"{program} has no --show-managed-fields, which gpunode needs to tell its own fields from those of "
            "others",
            hint=install,
        )


def version_skew_warning(client: str, server: str) -> str:
    """Return a warning if kubectl is too many versions away from the API server; otherwise empty."""
    ours, theirs = parse_version(client), parse_version(server)
    if ours is None or theirs is None or abs(ours[1] - theirs[1]) <= _MAX_MINOR_VERSION_SKEW:
        return ""
    return (
        f"kubectl {ours[0]}.{ours[1]} and this cluster's Kubernetes {theirs[0]}.{theirs[1]} are more than one minor "
        "version apart, which Kubernetes does not support: use a kubectl closer to the cluster's version"
    )


def is_object_rejection(finished: FinishedCommand) -> bool:
    """Return whether the API server answered, and rejected some of the objects."""
    output = redacted_error_text(finished)
    signs = (_SERVER_UNREACHABLE, _LOGIN_REJECTED, _NO_CLUSTER_CONFIGURED, _CERTIFICATE_REJECTED)
    return not finished.timed_out and (
        bool(_WEBHOOK_FAILED.search(output)) or not any(sign.search(output) for sign in signs)
    )


def split_errors(output: str) -> list[str]:
    """Return the separate errors in kubectl's output; a conflict with its fields, which are on lines of their own."""
    output = _FIELD_CONFLICT_ADVICE.sub("", _KUBECTL_LOG_ENTRY.sub("", output)).strip()
    parts = re.split(r"\n(?=error: |Error from server|Apply failed with |The [A-Z]\w+ )", output)
    return [part.strip() for part in parts if part.strip()]


SEARCH_PATH: Final = f"{PATH}:/snap/bin"
# Messages are parsed, so they must be in English and without terminal codes.
_DROPPED_VARIABLE_NAMES: Final = frozenset({"LANG", "LANGUAGE", "TERM"})
# HELM_KUBECONTEXT, HELM_KUBETOKEN and others point Helm at another cluster than kubectl.
_DROPPED_VARIABLE_PREFIXES: Final = ("LC_", "HELM_KUBE")
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class ProgramMissing(Refused):
    """kubectl or Helm is not on this machine.

    Attributes:
        form: the form of ``k8s render`` whose files need no such program here.
    """

    meaning = Refused.meaning
    form: ClassVar[str] = "manifests"


class HelmMissing(ProgramMissing):
    """Helm is not on this machine: Argo CD installs charts without it."""

    form = "argocd"


def find_program(name: str) -> str | None:
    """Return the path of ``name``, or None.

    Root searches fixed folders only, never a PATH that another user may have set.
    """
    return shutil.which(name, path=SEARCH_PATH if os.geteuid() == 0 else os.environ.get("PATH", SEARCH_PATH))


def describe_install_location(name: str) -> str:
    """Return where to install ``name``; for root, with any copy that is not used."""
    if os.geteuid() != 0:
        return "a folder of your PATH"
    elsewhere = None if find_program(name) else shutil.which(name, path=os.environ.get("PATH", ""))
    return "/usr/local/bin" + (f" (as root, gpunode ignores {elsewhere})" if elsewhere else "")


def caller_environment() -> dict[str, str]:
    """Return the environment for kubectl, Helm and the login plugins that they start.

    It is the caller's, without variables that change their language or point Helm at another cluster. Root's PATH, in
    which the plugins are found, keeps only those of the caller's folders that nobody else can write to.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED_VARIABLE_PREFIXES)}
    kept = {name: value for name, value in kept.items() if name not in _DROPPED_VARIABLE_NAMES}
    if os.geteuid() == 0:
        folders = [folder for folder in os.environ.get("PATH", "").split(":") if _only_root_writes(folder)]
        kept["PATH"] = ":".join(dict.fromkeys((*SEARCH_PATH.split(":"), *folders)))
    return kept


def _only_root_writes(folder: str) -> bool:
    """Return whether only root can put a program into this absolute path."""
    if not folder.startswith("/"):
        return False
    try:
        real = Path(folder).resolve(strict=True)
        statuses = [path.stat() for path in (real, *real.parents)]
    except OSError:
        return False
    return all(one.st_uid == 0 and not one.st_mode & _WRITABLE_BY_OTHERS for one in statuses)
