"""What kubectl's failures mean. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gpunode.command import Command, command
from gpunode.errors import ChangeFailed, Conflict, GpunodeError, Refused, Undetermined, UsageError
from gpunode.host.process import Finished

# What kubectl says, and what it means.
_UNREACHABLE: Final = re.compile(
    r"connection refused|was refused - did you|no such host|i/o timeout|Unable to connect|context deadline exceeded"
    r"|TLS handshake timeout|no route to host|network is unreachable"
    r"|Client\.Timeout|ServiceUnavailable|etcdserver|INTERNAL_ERROR|EOF$",
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
_FORBIDDEN: Final = re.compile(r"\(Forbidden\)|is forbidden|cannot (?:get|list|patch|create|delete) resource")
_NO_KIND: Final = re.compile(
    r"no matches for kind \"?(\w+)\"? in version \"?([\w./]+)|doesn't have a resource type \"?(\w+)"
)
_CONFLICT: Final = re.compile(r"conflicts? with \"([^\"]+)\"")


class Forbidden(Refused):
    """The credential may not do this; what it may do is done."""

    meaning = Refused.meaning


def failure(done: Finished, typed: Callable[..., Command]) -> GpunodeError:
    """What kubectl's failure means, in a sentence, with its own words.

    Args:
        done: how it ended.
        typed: makes the kubectl command of words, as the user types it.
    """
    said = done.last_lines(6)
    if match := _NO_CONTEXT.search(said):
        hint = f"see which there are: {typed('config', 'get-contexts')}"
        return UsageError(
            f"there is no context {next(filter(None, match.groups())).strip()!r}",
            why="your kubeconfig lacks it",
            hint=hint,
        )
    if _NO_CLUSTER.search(said):
        return UsageError(
            "kubectl has no cluster configured",
            why=said.splitlines()[-1] if said else "there is no current context",
            hint="set KUBECONFIG, or name a file: --kubeconfig FILE",
        )
    if done.timed_out or _UNREACHABLE.search(said):
        return Undetermined(
            "the cluster does not answer",
            why=said.splitlines()[-1] if said else f"kubectl took longer than {done.seconds:.0f} s",
            hint=f"check that you reach it: {typed('cluster-info')}",
        )
    if _LOGIN.search(said):
        return Refused(
            "the cluster does not accept your credentials",
            why=said.splitlines()[-1],
            hint=f"log in again, then check with: {typed('auth', 'whoami')}",
        )
    return _of_request(done, said, typed)


def _of_request(done: Finished, said: str, typed: Callable[..., Command]) -> GpunodeError:
    """What the API server has against a request that reached it."""
    if match := _NO_KIND.search(said):
        kind = f"{match[1]} ({match[2]})" if match[1] else match[3]
        return Refused(
            f"this cluster does not know {kind}",
            why=said.splitlines()[-1],
            hint="its Kubernetes is too old for it, or a custom resource is missing; check with: "
            + typed("api-resources"),
        )
    if _FORBIDDEN.search(said):
        return Forbidden(
            "your credentials may not do this",
            why=said,
            hint=f"see what they may do: {typed('auth', 'can-i', '--list')}",
        )
    if match := _CONFLICT.search(said):
        return Conflict(
            f"another field manager, {match[1]}, owns a field that gpunode would set",
            why=said,
            hint="change the recipe to what is there, or have its owner give it up; gpunode does not force it",
        )
    return ChangeFailed(
        "kubectl failed: " + command(*done.argv[:2]),
        why=said or f"exit status {done.exit_status}",
        hint=f"run it yourself to see more: {typed('get', 'nodes')}",
    )


def is_about_objects(done: Finished) -> bool:
    """Whether the API server answered, and refused some of the objects."""
    said = done.stderr.decode("utf-8", "replace")
    return not (done.timed_out or _UNREACHABLE.search(said) or _LOGIN.search(said) or _NO_CLUSTER.search(said))


def errors(said: str) -> list[str]:
    """The errors that kubectl tells, one each; a conflict's fields, which stand on lines of their own, with it."""
    parts = re.split(r"\n(?=error: |Error from server|The [A-Z]\w+ )", said)
    return [part.strip() for part in parts if part.strip() and not part.startswith("Warning:")]
