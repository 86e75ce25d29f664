"""Helm, where a chart owns the objects: its releases, and the commands that change them."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from gpunode.command import command
from gpunode.errors import ChangeFailed, Refused
from gpunode.facts.helm import HelmRelease, parse_release, release_of_command
from gpunode.host.kubectl import (
    USER_FORBIDDEN,
    Forbidden,
    HelmMissing,
    caller_environment,
    describe_install_location,
    find_program,
    parse_version,
)
from gpunode.host.process import Runner

_READ_TIMEOUT_S: Final = 60.0
_MAX_OUTPUT_BYTES: Final = 64 << 20
# Releases in every state; only Helm 3 has --all, and Helm 4 lists all of them without it.
_ALL_RELEASES: Final = (
    *("list", "--all-namespaces", "--max", "0"),
    *("--deployed", "--failed", "--pending", "--superseded", "--uninstalled", "--uninstalling"),
)
# Helm's own default.
DEFAULT_WAIT_S: Final = 300.0
# Helm waits for its hooks before and after the chart's pods, each time as long, and loads the chart before that.
_WAITS, _LOADING_TIME_S = 3, 300.0
# Helm 3 and 4, for a repository and for an OCI registry; nothing was changed then.
_CHART_UNREACHABLE: Final = re.compile(
    r"valid chart repository or cannot be reached|failed to (?:fetch|perform|do request)"
)
# 3.13 added --labels (the release notes of Helm 3.13.0).
_MIN_HELM_VERSION: Final = (3, 13)


class ReleaseFailed(ChangeFailed):
    """Helm did not finish its change of a release."""

    meaning = ChangeFailed.meaning


class Helm:
    """Helm in the cluster of a context; its methods raise ChangeFailed if it fails.

    Args:
        wait_s: how long Helm waits for the pods of a release.

    Raises:
        HelmMissing: if Helm is not installed.
    """

    def __init__(self, context: str = "", kubeconfig: str = "", wait_s: float = DEFAULT_WAIT_S) -> None:
        program = find_program("helm")
        if program is None:
            raise HelmMissing(
                "helm was not found",
                why="these objects come from a chart, which Helm installs",
                hint=_install_hint(),
            )
        options = (("--kube-context", context) if context else ()) + (
            ("--kubeconfig", kubeconfig) if kubeconfig else ()
        )
        self.program = (program, *options)
        self._runner = Runner()
        self._wait_s = wait_s

    def list_releases(
        self, *, charts: Collection[str] = (), places: Collection[tuple[str, str]] = ()
    ) -> tuple[HelmRelease, ...]:
        """Return the cluster's releases, even failed ones, of these charts or with these namespaces and names.

        Raises:
            HelmMissing: if Helm is too old to install ``charts``.
        """
        if charts:
            self._refuse_old()
        return tuple(
            replace(
                release,
                values=self._run_for_json("get", "values", release.name, "--namespace", release.namespace) or {},
            )
            for release in self._list_all_releases()
            if release.chart in charts or (release.namespace, release.name) in places
        )

    def count_revisions(self) -> Mapping[tuple[str, str], int]:
        """Return the revision of each installed release, by its namespace and name."""
        installed = (release for release in self._list_all_releases() if release.status != "uninstalled")
        return {(release.namespace, release.name): release.revision for release in installed}

    def _list_all_releases(self) -> Iterator[HelmRelease]:
        return map(parse_release, self._run_for_json(*_ALL_RELEASES) or ())

    def _refuse_old(self) -> None:
        """Refuse a Helm that cannot label a release, before anything is changed."""
        found = self._run(("version", "--short"), "", only_reads=True).decode("utf-8", "replace").strip()
        version = parse_version(found)
        if version is not None and version < _MIN_HELM_VERSION:
            raise HelmMissing(
                f"helm {found.lstrip('v').partition('+')[0]} is too old: gpunode needs "
                f"{'.'.join(map(str, _MIN_HELM_VERSION))} or newer",
                why=f"{self.program[0]} has no --labels, and by a label gpunode finds its releases again",
                hint=_install_hint(),
            )

    def require_chart(self, chart_words: Sequence[str], version: str) -> None:
        """Refuse a chart that Helm cannot load: later, a device plugin that it replaces would be gone already."""
        hint = "see whether its repository has this version: it is the catalog's, or set in [kubernetes.versions]"
        try:
            self._run(("show", "chart", *chart_words, "--version", version), hint, only_reads=True)
        except ReleaseFailed as error:
            what = f"Helm cannot load the chart {chart_words[0].rpartition('/')[2]} {version}"
            raise Refused(what, why=error.why, hint=error.hint) from error

    def run(self, argv: tuple[str, ...]) -> None:
        """Run a Helm command, given without the program's name."""
        words, values = move_values_to_stdin(argv)
        namespace, name = release_of_command(("helm", *argv))
        look = command("helm", "history", name, "--namespace", namespace)
        self._run((*words, "--timeout", f"{self._wait_s:.0f}s"), f"see what became of it: {look}", values)

    def _run_for_json(self, *words: str) -> Any:
        hint = f"run it yourself: {command('helm', *words)}"
        return json.loads(self._run((*words, "--output", "json"), hint, only_reads=True) or b"null")

    def _run(self, words: Sequence[str], hint: str, stdin: bytes = b"", *, only_reads: bool = False) -> bytes:
        done = self._runner.run(
            (*self.program, *words),
            timeout_s=_READ_TIMEOUT_S if only_reads else _WAITS * self._wait_s + _LOADING_TIME_S,
            stdin=stdin,
            env=caller_environment(),
            limit_bytes=_MAX_OUTPUT_BYTES,
            only_reads=only_reads,
        )
        why = done.last_lines(6)
        if not done.ok and USER_FORBIDDEN.search(why):
            hint = f"ask for this right, or name another credential: {command('--kubeconfig', 'FILE')}"
            raise Forbidden("your credentials may not do this", why=why, hint=hint)
        if _CHART_UNREACHABLE.search(why):
            hint = "let Helm reach the chart's repository, by HTTPS_PROXY if need be; then run the same command again"
        if not done.ok:
            raise ReleaseFailed(f"helm {words[0]} failed", why=why, hint=hint)
        return done.stdout


def _install_hint() -> str:
    return f"install Helm (https://helm.sh/docs/intro/install) into {describe_install_location('helm')}"


def move_values_to_stdin(argv: Sequence[str]) -> tuple[tuple[str, ...], bytes]:
    """Return the command and its values for standard input: any user of the machine can read a command line."""
    options = [at for at, word in enumerate(argv) if word == "--set-json"]
    if not options:
        return tuple(argv), b""
    pairs = (argv[at + 1].partition("=") for at in options)
    values = {key: json.loads(value) for key, _, value in pairs}
    dropped = {place for at in options for place in (at, at + 1)}
    words = (word for at, word in enumerate(argv) if at not in dropped)
    return (*words, "--values", "-"), json.dumps(values).encode()
