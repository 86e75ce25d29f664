"""Meaning of kubectl's failures and versions. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from gpunode.command import Command
from gpunode.errors import ChangeFailed, Conflict, GpunodeError, Refused, Undetermined, UsageError
from gpunode.host.process import Finished
from gpunode.redaction.secrets import text as redact

Typed: TypeAlias = Callable[..., Command]
# --show-managed-fields, by which gpunode tells its own fields from those of others, came with it: kubernetes issue
# 107947 names the change, number 96878. Debian 12 packages 1.20.
MINIMUM: Final = (1, 21)
# kubectl supports API servers of one minor version to either side. Source: kubernetes.io, "Version Skew Policy".
_SUPPORTED_SKEW: Final = 1
_VERSION: Final = re.compile(r"v?(\d+)\.(\d+)(\.\d+)?")
# Its log, which repeats the error for each try; further lines of an entry are indented.
_LOG: Final = re.compile(r"^[EWIF]\d{4} \d\d:\d\d:.*(?:\n[ \t].*)*\n?|^Warning: .*\n?", re.MULTILINE)
_SHOWN: Final = 12
# Where its own words begin, after those of a login plugin.
_OWN: Final = re.compile(r"(?:error: |Error from server|Unable to connect|The connection to|The [A-Z]\w+ \")")
# What kubectl says, and what it means; seen with 1.20 and 1.36.
_PLUGIN_MISSING: Final = re.compile(
    r"exec: executable (\S+) not found|exec: fork/exec (\S+): (?:no such file or directory|permission denied)"
)
_PLUGIN_FAILED: Final = re.compile(r"getting credentials, (?:exec: executable (\S+) failed)?")
_INSTALL_HINT: Final = re.compile(r"#client-go-credential-plugins\s+(.+)", re.DOTALL)
_CERTIFICATE: Final = re.compile(r"x509: |failed to verify certificate|certificate signed by")
_UNREACHABLE: Final = re.compile(
    r"connection refused|was refused - did you|no such host|i/o timeout|Unable to connect|context deadline exceeded"
    r"|TLS handshake timeout|no route to host|network is unreachable|connection reset by peer"
    r"|Client\.Timeout|ServiceUnavailable|unable to handle the request|etcdserver|INTERNAL_ERROR|EOF$",
    re.MULTILINE,
)
_LOGIN: Final = re.compile(
    r"Unauthorized|must be logged in|asked for the client to provide credentials|token.* expired"
)
_NO_CONTEXT: Final = re.compile(
    r"context \"?([^\"\n]*)\"? does not exist|cannot locate context (\S+)"
    r"|no context exists with the name: \"?([^\"\n]*)"
)
_NO_CLUSTER: Final = re.compile(
    r"localhost:8080|127\.0\.0\.1:8080|\[::1\]:8080|current-context (?:is not set|must exist)|no configuration"
)
_UNREADABLE: Final = re.compile(
    r"error loading config file \"([^\"\n]+)\"|unable to read (?:certificate|client)-\S+ (\S+)"
)
# The API server answered, and an aggregated API behind it did not: each group with its version and why, after commas.
# Source: client-go discovery, ErrGroupDiscoveryFailed.
_INCOMPLETE: Final = "unable to retrieve the complete list of server APIs: "
_FAILED_GROUP: Final = re.compile(r"(?:^|[ ,])([a-z0-9.-]+)/v\w+(?=[:, ]|$)")
# The API server answered, and quotes why it could not reach somebody else.
_WEBHOOK: Final = re.compile(r"failed (?:calling|to call) webhook \"([^\"]+)\"")
_FORBIDDEN: Final = re.compile(r"\(Forbidden\)|is forbidden|cannot (?:get|list|patch|create|delete) resource")
_NO_KIND: Final = re.compile(
    r"no matches for kind \"?(\w+)\"? in version \"?([\w./]+)|doesn't have a resource type \"?(\w+)"
)
_NOT_GONE: Final = re.compile(r"timed out waiting for the condition on (\S+)")
_CONFLICT: Final = re.compile(r"conflicts? with \"([^\"]+)\"")
# The login programs of kubeconfigs that clouds write, and what brings them, as their documentation says.
_INSTALL: Final = {
    "aws": "install the AWS CLI, version 2",
    "aws-iam-authenticator": "install aws-iam-authenticator, or have the AWS CLI write a kubeconfig that does not need "
    "it: aws eks update-kubeconfig --name CLUSTER",
    "gke-gcloud-auth-plugin": "install it: gcloud components install gke-gcloud-auth-plugin",
    "kubelogin": "install it: az aks install-cli",
}


# What kubectl advises at a conflict: to force it.
_ADVICE: Final = re.compile(r"\nPlease review the fields above--.*?#conflicts", re.DOTALL)


class Forbidden(Refused):
    """The credential may not do this; what it may do is done."""

    meaning = Refused.meaning


def words_of(done: Finished) -> str:
    """Return what kubectl told its user, and not its log; secrets redacted."""
    said = _ADVICE.sub("", _LOG.sub("", (done.stderr.strip() or done.stdout.strip()).decode("utf-8", "replace")))
    # Why there are none follows, and no secret. A login plugin that is tried again says the same again.
    said = said.replace("getting credentials: ", "getting credentials, ")
    lines = dict.fromkeys(line for line in redact(said).splitlines() if line.strip())
    return "\n".join([*lines][:_SHOWN])


def reason(said: str) -> str:
    """Return the line of kubectl's words that tells why: the first of its own, or else the first."""
    lines = said.splitlines()
    return next(filter(_OWN.match, lines), lines[0] if lines else "")


def failure(done: Finished, typed: Typed, where: Callable[[str], str] = lambda _: "your PATH") -> GpunodeError:
    """Return the error that kubectl's failure means.

    Args:
        done: how it ended.
        typed: makes the kubectl command of words, as the user types it.
        where: says where a program is to be put, by the program's name.
    """
    said = words_of(done)
    return (
        _of_incomplete_list(said, typed)
        or _of_configuration(said, typed)
        or _of_login(said, typed, where)
        or _of_connection(done, said, typed)
        or _of_request(done, said, typed)
    )


def failed_groups(done: Finished) -> frozenset[str]:
    """Return the API groups that are missing from a list of kinds; none where the list failed for another reason."""
    _, incomplete, said = words_of(done).partition(_INCOMPLETE)
    return frozenset(_FAILED_GROUP.findall(said)) if incomplete else frozenset()


def _of_incomplete_list(said: str, typed: Typed) -> ChangeFailed | None:
    """Return which aggregated API keeps kinds of objects from being listed; None where that is not the reason."""
    if _INCOMPLETE not in said:
        return None
    return ChangeFailed(
        "the cluster does not list all of its kinds of objects",
        why=reason(said),
        hint=f"mend the aggregated API that is not available, or delete its APIService:\n{typed('get', 'apiservices')}",
    )


def _of_configuration(said: str, typed: Typed) -> UsageError | None:
    """Return what is wrong with the kubeconfig; None where nothing is."""
    if match := _NO_CONTEXT.search(said):
        hint = f"see which there are:\n{typed('config', 'get-contexts')}"
        return UsageError(
            f"there is no context {next(filter(None, match.groups())).strip()!r}",
            why="your kubeconfig lacks it",
            hint=hint,
        )
    if match := _UNREADABLE.search(said):
        return UsageError(
            f"kubectl cannot read {match[1] or match[2]}",
            why=reason(said),
            hint="correct the file or its permissions, or name another kubeconfig: --kubeconfig FILE",
        )
    if _NO_CLUSTER.search(said):
        return UsageError(
            "kubectl has no cluster configured",
            why=reason(said),
            hint="set KUBECONFIG, or name a file: --kubeconfig FILE",
        )
    return None


def _of_login(said: str, typed: Typed, where: Callable[[str], str]) -> GpunodeError | None:
    """Return why kubectl could not log in; None where it could, or never came so far."""
    check = f"then check: {typed('auth', 'whoami')}"
    if match := _PLUGIN_MISSING.search(said):
        program = match[1] or match[2]
        advice = _INSTALL_HINT.search(said)
        brought = advice[1] if advice else _INSTALL.get(program, f"install {program}")
        place = "" if "/" in program else f"\nit has to be in {where(program)}"
        return Refused(
            f"your kubeconfig logs in by {program}, which cannot be run",
            why=reason(said),
            hint=f"{brought}{place}\n{check}",
        )
    if match := _PLUGIN_FAILED.search(said):
        return Refused(
            f"the login by {match[1] or 'your kubeconfig'} failed",
            why=said,
            hint=f"log in again as your cluster's provider says, {check}",
        )
    if _LOGIN.search(said):
        return Refused(
            "the cluster does not accept your credentials",
            why=reason(said),
            hint=f"log in again, {check}",
        )
    return None


def _of_connection(done: Finished, said: str, typed: Typed) -> GpunodeError | None:
    """Return why the API server cannot be asked; None where it answered."""
    if _WEBHOOK.search(said):
        return None
    if _CERTIFICATE.search(said):
        return Undetermined(
            "the certificate of the API server is not one that your kubeconfig trusts",
            why=reason(said),
            hint=_of_certificate(said),
        )
    if done.timed_out or _UNREACHABLE.search(said):
        return Undetermined(
            "the cluster does not answer",
            why=reason(said) or f"kubectl took longer than {done.seconds:.0f} s",
            hint=f"check that you reach it:\n{typed('cluster-info')}",
        )
    return None


def _of_certificate(said: str) -> str:
    """Return what to do about a certificate that is not accepted."""
    if "expired" in said or "not yet valid" in said:
        return "see whether this machine's clock is right: date\nif it is, renew the certificate on the control plane"
    if "valid for" in said:
        return "name the server in the kubeconfig as its certificate does, or set tls-server-name there"
    return (
        "fetch the kubeconfig of this cluster anew: its certificate-authority-data is another cluster's, or older than "
        "the cluster's present one; or a proxy answers in the cluster's place"
    )


def _of_request(done: Finished, said: str, typed: Typed) -> GpunodeError:
    """Return what the API server, or kubectl itself, has against the request."""
    if match := _WEBHOOK.search(said):
        kinds = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
        return Refused(
            f"the admission webhook {match[1]} of this cluster does not answer",
            why=reason(said),
            hint=f"have its owner mend it; see to whom it belongs: {typed('get', kinds)}",
        )
    if match := _NO_KIND.search(said):
        kind = f"{match[1]} ({match[2]})" if match[1] else match[3]
        return Refused(
            f"this cluster does not know {kind}",
            why=reason(said),
            hint="its Kubernetes is too old for it, or a custom resource is missing; check with: "
            + typed("api-resources"),
        )
    if _FORBIDDEN.search(said):
        more = len(said.splitlines()) - 1
        return Forbidden(
            "your credentials may not do this",
            why=reason(said) + (f"; and {more} more like this" if more else ""),
            hint=f"see what they may do:\n{typed('auth', 'can-i', '--list')}",
        )
    if match := _CONFLICT.search(said):
        return Conflict(
            f"another field manager, {match[1]}, owns a field that gpunode would set",
            why=said,
            hint="change the recipe to what is there, or have its owner give it up; gpunode does not force it",
        )
    if match := _NOT_GONE.search(said):
        return ChangeFailed(
            f"{match[1]} is still being deleted",
            why="it goes when all of it has ended: a node whose kubelet is away ends no pod, and a finalizer may wait",
            hint=f"see what has not ended:\n{typed('get', 'pods', '--all-namespaces', '--output', 'wide')}",
        )
    return ChangeFailed(
        f"kubectl {next((word for word in done.argv if word in _VERBS), '')} failed",
        why=said or f"exit status {done.exit_status}",
        hint=f"see whether kubectl reaches the cluster at all:\n{typed('get', 'nodes')}",
    )


_VERBS: Final = frozenset(
    {"api-resources", "apply", "auth", "config", "create", "delete", "get", "logs", "patch", "taint", "version"}
)


def version_of(written: str) -> tuple[int, int] | None:
    """Return the major and minor version of ``v1.36.2``, ``v1.33.5-gke.1080000`` or ``v1.31.4+k3s1``."""
    match = _VERSION.match(written)
    return (int(match[1]), int(match[2])) if match else None


def refuse_old(written: str, program: str, install: str) -> None:
    """Refuse a kubectl that lacks what gpunode asks of it.

    Args:
        written: its version, as it writes it; empty where it did not say.
        program: where it is.
        install: what to do instead.
    """
    version = version_of(written)
    if version is not None and version < MINIMUM:
        needed = ".".join(map(str, MINIMUM))
        raise Refused(
            f"kubectl {written.lstrip('v')} is too old: gpunode needs {needed} or newer",
            why=f"{program} has no --show-managed-fields, by which gpunode tells its own fields from those of others",
            hint=install,
        )


def skew(client: str, server: str) -> str:
    """Return a warning, in a sentence, where kubectl is too far from the API server's version; else nothing."""
    ours, theirs = version_of(client), version_of(server)
    if ours is None or theirs is None or abs(ours[1] - theirs[1]) <= _SUPPORTED_SKEW:
        return ""
    return (
        f"kubectl {ours[0]}.{ours[1]} and this cluster's Kubernetes {theirs[0]}.{theirs[1]} are more than one minor "
        "version apart, which Kubernetes does not support: use a kubectl nearer to the cluster's version"
    )


def is_about_objects(done: Finished) -> bool:
    """Return whether the API server answered, and refused some of the objects."""
    said = words_of(done)
    signs = (_UNREACHABLE, _LOGIN, _NO_CLUSTER, _CERTIFICATE)
    return not done.timed_out and (bool(_WEBHOOK.search(said)) or not any(sign.search(said) for sign in signs))


def errors(said: str) -> list[str]:
    """Return the errors that kubectl tells, one each; with a conflict its fields, which are lines of their own."""
    said = _ADVICE.sub("", _LOG.sub("", said)).strip()
    parts = re.split(r"\n(?=error: |Error from server|Apply failed with |The [A-Z]\w+ )", said)
    return [part.strip() for part in parts if part.strip()]
