"""Helm, where a chart owns the objects: what is released, and the commands that release."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpunode.command import command
from gpunode.errors import ChangeFailed
from gpunode.facts.helm import Released, released
from gpunode.host.cluster_programs import HelmMissing, caller_environment, find_program, where_to_install
from gpunode.host.process import Runner

_READ_S: Final = 60.0
_LARGEST_ANSWER: Final = 64 << 20
# Images are pulled, and controllers made ready, before it answers.
_RELEASE_S: Final = 1800.0


class Helm:
    """Helm in the cluster of a context.

    Raises:
        HelmMissing: there is none on this machine.
    """

    def __init__(self, context: str = "", kubeconfig: str = "") -> None:
        program = find_program("helm")
        if program is None:
            raise HelmMissing(
                "helm was not found",
                why="a chart owns these objects, and Helm installs charts",
                hint=f"install Helm (https://helm.sh/docs/intro/install) into {where_to_install('helm')}",
            )
        options = (("--kube-context", context) if context else ()) + (
            ("--kubeconfig", kubeconfig) if kubeconfig else ()
        )
        self.program = (program, *options)
        self._runner = Runner()

    def releases(self, charts: Collection[str]) -> tuple[Released, ...]:
        """The releases of these charts that the cluster has, also those that failed.

        Raises:
            ChangeFailed: Helm cannot say.
        """
        return tuple(replace(one, values=self._values(one)) for one in self._listed() if one.chart in charts)

    def releases_at(self, places: Collection[tuple[str, str]]) -> tuple[Released, ...]:
        """The releases at these namespaces and names.

        Raises:
            as ``releases``.
        """
        found = (one for one in self._listed() if (one.namespace, one.name) in places)
        return tuple(replace(one, values=self._values(one)) for one in found)

    def revisions(self) -> Mapping[tuple[str, str], int]:
        """How often each release was released, by its namespace and name.

        Raises:
            as ``releases``.
        """
        return {(one.namespace, one.name): one.revision for one in self._listed()}

    def _listed(self) -> Iterator[Released]:
        return map(released, self._json("list", "--all-namespaces", "--all", "--max", "0") or ())

    def _values(self, release: Released) -> Mapping[str, Any]:
        found: Mapping[str, Any] | None = self._json("get", "values", release.name, "--namespace", release.namespace)
        return found or {}

    def run(self, argv: tuple[str, ...]) -> None:
        """The command of Helm, without its program, has been carried out.

        Raises:
            ChangeFailed: it was not.
        """
        words, values = values_as_input(argv)
        done = self._runner.run((*self.program, *words), timeout_s=_RELEASE_S, stdin=values, env=caller_environment())
        if not done.ok:
            raise ChangeFailed(
                f"helm {argv[0]} failed",
                why=done.last_lines(6),
                hint=f"see what became of it: {command('helm', 'list', '--all-namespaces', '--all')}",
            )

    def _json(self, *words: str) -> Any:
        done = self._runner.run(
            (*self.program, *words, "--output", "json"),
            timeout_s=_READ_S,
            env=caller_environment(),
            limit_bytes=_LARGEST_ANSWER,
            only_reads=True,
        )
        if not done.ok:
            raise ChangeFailed(
                f"helm {words[0]} failed", why=done.last_lines(6), hint=f"run it yourself: {command('helm', *words)}"
            )
        return json.loads(done.stdout or b"null")


def values_as_input(argv: Sequence[str]) -> tuple[tuple[str, ...], bytes]:
    """The same command with its values on standard input: every user of the machine can read a command's words."""
    given = [at for at, word in enumerate(argv) if word == "--set-json"]
    if not given:
        return tuple(argv), b""
    pairs = (argv[at + 1].partition("=") for at in given)
    values = {key: json.loads(value) for key, _, value in pairs}
    of_values = {place for at in given for place in (at, at + 1)}
    words = (word for at, word in enumerate(argv) if at not in of_values)
    return (*words, "--values", "-"), json.dumps(values).encode()
