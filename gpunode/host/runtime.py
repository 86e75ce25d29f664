"""Checks of configurations with a container runtime's own parser, and of the running configuration."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from gpunode.change import FileChange, FileState, RuntimeExpectation
from gpunode.command import command
from gpunode.errors import ChangeFailed, Refused, Undetermined
from gpunode.fast_dataclass import dataclass
from gpunode.host import files, globs
from gpunode.host.process import FinishedCommand, Runner
from gpunode.runtimes import DesiredConfig, Files, ObservedConfig, Runtime, find_runtime
from gpunode.runtimes.file_states import contents_of_states, probe_states
from gpunode.runtimes.model import CRIO_CONFIG

_RUNTIME_QUERY_TIMEOUT_S = 30.0
# The default of a daemon whose configuration names none.
_BUILT_IN_DEFAULT_RUNTIME = "runc"
# dockerd below 23.
_VALIDATE_OPTION_UNKNOWN = b"unknown flag: --validate"


@dataclass(frozen=True, slots=True)
class _Trial:
    """The candidates of a runtime's files, to be read by its own parser; messages are about the first."""

    runner: Runner
    expectation: RuntimeExpectation
    changes: Sequence[FileChange]
    desired: DesiredConfig
    files_before: Files
    after: Files

    def run(self, *argv: str) -> FinishedCommand:
        return _run_read_only(self.runner, *argv)

    def run_on_candidate(self, content: bytes, *argv: str) -> tuple[FinishedCommand, str]:
        """Run the command on a candidate main file, whose path replaces ``{}``; return that path, too."""
        with files.candidate_file(self.expectation.path, content, root=self.runner.root) as there:
            return self.run(*(there if word == "{}" else word for word in argv)), there

    def refuse_differences(self, observed: ObservedConfig) -> None:
        if wrong := list_differences(self.expectation, observed):
            raise Refused(
                f"{self.expectation.runtime} would not read the new {self.changes[0].path} as intended",
                why="\n".join(wrong) + "\nnothing was changed",
                hint="`gpunode plan`, or ctk's --dry-run, shows the candidate; another imported file may override it",
            )

    def rejected_error(self, program: str, message: str) -> Refused:
        return Refused(
            f"{program} rejects {self.changes[0].path}",
            why=f"{message}\nnothing was changed",
            hint="fix what the message names; `gpunode plan`, or ctk's --dry-run, shows what gpunode would write",
        )

    def explain_missing(self, program: str) -> str:
        """Explain why the program could not be run."""
        root = self.runner.root
        if root == "/" or self.runner.consent:
            return f"{program} is not installed{'' if root == '/' else f' in {root}'}"
        return f"only setup runs programs of {root}"


def check_candidate_files(runner: Runner, expectation: RuntimeExpectation, changes: Sequence[FileChange]) -> str:
    """Check the candidates in ``changes`` against ``expectation``; return a description of the check.

    Each candidate is a temporary root-only file beside the real one.

    Raises:
        Refused: if the runtime's parser rejects it, or reads something unexpected.
    """
    if any(not isinstance(change.after, FileState) and change.path == expectation.path for change in changes):
        return f"not checked: {expectation.path} will not exist"
    runtime, desired = find_runtime(expectation.runtime), DesiredConfig(config=expectation.path)
    present = _read_files(runner, runtime, desired)
    states = {change.path: change.after for change in changes}
    written = {path: state.content for path, state in states.items() if isinstance(state, FileState)}
    kept = {path: content for path, content in present.items() if path not in states}
    trial = _Trial(runner, expectation, changes, desired, present, {**kept, **written})
    if runtime.config_validator == "containerd config dump":
        return _validate_containerd_candidates(trial)
    trial.refuse_differences(runtime.inspect(trial.after, desired))
    match runtime.config_validator:
        case "dockerd --validate":
            return _validate_docker_candidate(trial)
        case "crio config":
            return _validate_crio_candidates(trial)
        case "none":
            return f"checked: it has the intended settings (gpunode knows no parser of {runtime.id})"


def _validate_containerd_candidates(trial: _Trial) -> str:
    from gpunode.runtimes import containerd, containerd_editing

    main, desired = trial.expectation.path, trial.desired
    new = {change.path for change in trial.changes if change.before is None}
    with ExitStack() as stack:
        imported = containerd_editing.staged_imports(trial.after, desired, [change.path for change in trial.changes])
        staged = {
            # A new file's folder may not exist yet, and a killed run would leave it behind.
            path: stack.enter_context(
                files.candidate_file(main if path in new else path, content, root=trial.runner.root)
            )
            for path, content in imported.items()
        }
        root = containerd_editing.staged_root(trial.after, desired, staged)
        dumped, path = trial.run_on_candidate(root, "containerd", "--config", "{}", "config", "dump")
    if dumped.is_program_missing:
        return f"not checked: {trial.explain_missing('containerd')}"
    if not dumped.ok:
        output = _quote_last_lines(dumped, path, main)
        for real, candidate in staged.items():
            output = output.replace(candidate, real)
        raise trial.rejected_error("containerd", output)
    observed = containerd.parse_config_dump(dumped.stdout)
    if observed.cri_disabled:
        return "checked: containerd accepts it, but does not check the CRI plugin, which is disabled"
    trial.refuse_differences(observed)
    return "checked: `containerd config dump` reads it as intended"


def _read_files(runner: Runner, runtime: Runtime, desired: DesiredConfig) -> Files:
    return contents_of_states(probe_states(partial(globs.read_probe, root=runner.root), runtime, desired))


def _run_read_only(runner: Runner, *argv: str) -> FinishedCommand:
    return runner.run(argv, timeout_s=_RUNTIME_QUERY_TIMEOUT_S, limit_bytes=16 << 20, only_reads=True)


def _quote_last_lines(finished: FinishedCommand, candidate: str = "", path: str = "") -> str:
    """Return the command's last lines, with the real path instead of the candidate's."""
    if finished.timed_out:
        return f"{finished.argv[0]} did not answer within {_RUNTIME_QUERY_TIMEOUT_S:.0f} s"
    return finished.last_lines(6).replace(candidate, path) if candidate else finished.last_lines(6)


def _validate_docker_candidate(trial: _Trial) -> str:
    from gpunode.runtimes import docker, docker_nodes

    main, content = trial.expectation.path, trial.after.get(trial.expectation.path, b"")
    # Pass the daemon's own flags: dockerd rejects a directive that is given both as a flag and in the file.
    flags = docker_nodes.find_docker(trial.files_before, trial.desired).flags
    words = ("dockerd", *flags.command_words, "--validate", "--config-file", "{}")
    validated, path = trial.run_on_candidate(content, *words)
    if validated.is_program_missing:
        return f"not checked: {trial.explain_missing('dockerd')}"
    if _VALIDATE_OPTION_UNKNOWN in validated.stderr:
        if docker.has_byte_order_mark(content):
            raise docker.bom_refusal(main)
        return "checked: it has the intended settings (this dockerd has no --validate)"
    if validated.ok:
        return "checked: `dockerd --validate` accepts it"
    output = _quote_last_lines(validated, path, main)
    former, former_path = trial.run_on_candidate(trial.files_before.get(main, b"{}"), *words)
    former_output = _quote_last_lines(former, former_path, main)
    # dockerd lists unknown directives in any order.
    was, now = (sorted(text.replace(",", " ").split()) for text in (former_output, output))
    if not former.ok and was == now:
        # The error is not due to this change; for example, dockerd does not find its proxy binary.
        return f"checked: it has the intended settings (`dockerd --validate` rejects the old file, too: {output})"
    raise trial.rejected_error("dockerd", output)


def list_differences(expectation: RuntimeExpectation, observed: ObservedConfig) -> list[str]:
    """Return the differences between a runtime's configuration and the intended one, a line each."""
    wrong = [
        f"handler {name}: expected {binary}, it reads {observed.handlers.get(name) or 'none'}"
        for name, binary in sorted(expectation.handlers)
        if observed.handlers.get(name) != binary
    ]
    default = observed.default or _BUILT_IN_DEFAULT_RUNTIME
    if expectation.default not in {None, default}:
        wrong.append(f"default runtime: expected {expectation.default}, it reads {default}")
    return wrong


def _validate_crio_candidates(trial: _Trial) -> str:
    # Check before anything is staged: an image without CRI-O may have no temporary folder either.
    if trial.run("crio", "--version").is_program_missing:
        return f"checked: it has the intended settings ({trial.explain_missing('crio')})"
    read, last_line = _run_crio_config(trial.runner, trial.after, trial.desired)
    if read.ok:
        # A value that is CRI-O's own default is printed as a comment (cri-o v1.24.0 and later, pkg/config/template.go).
        shown = re.sub(r'(?m)^# (?=default_runtime = ")', "", read.stdout.decode("utf-8", "surrogateescape"))
        settings = {CRIO_CONFIG: shown.encode("utf-8", "surrogateescape")}
        trial.refuse_differences(find_runtime("crio").inspect(settings, DesiredConfig()))
        return "checked: `crio config` reads it as intended"
    if _run_crio_config(trial.runner, trial.files_before, trial.desired)[1] != last_line:
        raise trial.rejected_error("crio", last_line)
    return f"checked: it has the intended settings (`crio config` rejects the old ones, too: {last_line})"


def _run_crio_config(runner: Runner, configs: Files, desired: DesiredConfig) -> tuple[FinishedCommand, str]:
    """Run ``crio config`` on the candidates; return it and its last line.

    The candidates are in a temporary folder: from its own folder, CRI-O would read the current files, too.
    """
    import tempfile

    from gpunode.runtimes import crio

    place = Path(tempfile.gettempdir())
    if runner.is_image:
        # Use the folder of gpunode's lock: an image's /tmp may be missing, another user's, or a link out of it.
        place = Path(runner.root + files.make_parents("/run/gpunode/crio", root=runner.root)[0]).parent
    with tempfile.TemporaryDirectory(prefix="gpunode-crio-", dir=place) as folder:
        staged = {path: f"{folder}/crio.conf.d/{n:04d}" for n, path in enumerate(crio.files_in_order(configs, desired))}
        staged[desired.config] = f"{folder}/crio.conf"
        Path(folder, "crio.conf.d").mkdir()
        for path, name in staged.items():
            Path(name).write_bytes(configs.get(path, b""))
        inside = "/" + str(Path(folder).relative_to(runner.root))
        read = _run_read_only(
            runner, "crio", "--config", f"{inside}/crio.conf", "--config-dir", f"{inside}/crio.conf.d", "config"
        )
        last_line = _quote_last_lines(read)
        for path, name in staged.items():
            # The main file's name is also a prefix of its folder's name.
            last_line = path.join(re.split(rf"{re.escape(name.replace(folder, inside))}(?!\.d)", last_line))
    return read, last_line


def check_written_files(runner: Runner, expectation: RuntimeExpectation) -> None:
    """Check with the runtime's parser, if any, that its written files mean what was intended.

    containerd's candidates were read with the imports that gpunode assumed; now containerd follows its own.

    Raises:
        ChangeFailed: if they do not.
    """
    from gpunode.runtimes import containerd

    is_there = files.read_file(expectation.path, root=runner.root).outcome != "absent"
    if find_runtime(expectation.runtime).config_validator != "containerd config dump" or not is_there:
        return
    argv = ("containerd", "--config", expectation.path, "config", "dump")
    dumped = _run_read_only(runner, *argv)
    if dumped.is_program_missing:
        return
    differences = "" if dumped.ok else _quote_last_lines(dumped)
    observed = containerd.parse_config_dump(dumped.stdout) if dumped.ok else None
    if observed is not None and not observed.cri_disabled:
        differences = "\n".join(list_differences(expectation, observed))
    if differences:
        raise ChangeFailed(
            f"containerd does not read its new configuration ({expectation.path}) as intended",
            why=differences,
            hint=f"`{command(*argv)}` shows what it reads: a broken link or a folder among the files that it imports "
            "stops it, and a later file overrides an earlier one",
        )


def find_daemon_contradiction(runner: Runner, expectation: RuntimeExpectation, patience_s: float) -> str:
    """Return how the running daemon still differs from the intended configuration after ``patience_s``; empty if not.

    A daemon that cannot be queried contradicts nothing. dockerd keeps its former configuration if it cannot use the
    file on SIGHUP, reports that only in its log, and would not start with that file again. CRI-O drops a handler whose
    binary it does not find. containerd cannot be queried: its parser was, before the file was written.
    """
    if find_runtime(expectation.runtime).live_config_source not in {"docker info", "crio status"}:
        return ""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            observed = read_effective_config(runner, expectation.runtime)
        except (ChangeFailed, Undetermined):
            return ""
        wrong = list_differences(expectation, observed) if observed else []
        if not wrong or time.monotonic() >= deadline:
            return "\n".join(wrong)
        time.sleep(0.2)


def read_effective_config(runner: Runner, name: str) -> ObservedConfig | None:
    """Return the runtime's configuration: docker's and CRI-O's by the daemon, containerd's by its parser.

    podman registers no NVIDIA runtime; this is the runtime with which it starts containers.

    Returns:
        None if the runtime is not installed.

    Raises:
        ChangeFailed: if it does not answer.
        Undetermined: if it answers only root.
    """
    runtime = find_runtime(name)
    match runtime.live_config_source:
        case "containerd config dump":
            return _effective_containerd(runner)
        case "docker info":
            return _effective_docker(runner)
        case "crio status":
            return _effective_crio(runner)
        case "podman info":
            return _effective_podman(runner)
        case "files":
            return runtime.inspect(_read_files(runner, runtime, DesiredConfig()), DesiredConfig())


def _effective_containerd(runner: Runner) -> ObservedConfig | None:
    from gpunode.runtimes import containerd, containerd_files

    usual = find_runtime("containerd")
    unit = replace(usual, list_read_paths=lambda found, _: containerd_files.unit_patterns(found))
    runtime = usual.adapt_to_node(usual, _read_files(runner, unit, DesiredConfig()), DesiredConfig())
    # Without a file the daemon runs on its defaults, but `config dump` fails (1.6).
    verb = "dump" if files.read_file(runtime.config, root=runner.root).outcome != "absent" else "default"
    config_option = ("--config", runtime.config) if runtime is not usual else ()
    dumped = _run_read_only(runner, "containerd", *config_option, "config", verb)
    if dumped.is_program_missing:
        return None
    if not dumped.ok:
        raise _no_answer_error("containerd", dumped)
    return containerd.parse_config_dump(dumped.stdout)


def _effective_docker(runner: Runner) -> ObservedConfig | None:
    question = '{"runtimes":{{json .Runtimes}},"default":{{json .DefaultRuntime}}}'
    finished = _run_read_only(runner, "docker", "info", "--format", question)
    if finished.is_program_missing:
        return None
    try:
        answer = json.loads(finished.stdout)
        handlers = {name: str(entry.get("path", "")) for name, entry in (answer["runtimes"] or {}).items()}
    except (ValueError, KeyError, AttributeError, TypeError):
        handlers = {}
    if not finished.ok or not handlers:
        # If the daemon cannot be reached, `docker info` prints errors of its template (20.10).
        raise _no_answer_error("docker", _run_read_only(runner, "docker", "version"))
    return ObservedConfig(handlers, str(answer["default"]) or None)


def _effective_crio(runner: Runner) -> ObservedConfig | None:
    finished = _run_read_only(runner, "crio", "status", "config")
    if finished.is_program_missing or b"o help topic" in finished.stdout + finished.stderr:
        # Before 1.29 it was a separate program.
        finished = _run_read_only(runner, "crio-status", "config")
    if finished.is_program_missing:
        return None
    if not finished.ok:
        raise _no_answer_error("crio", finished)
    return find_runtime("crio").inspect({CRIO_CONFIG: finished.stdout}, DesiredConfig())


def _effective_podman(runner: Runner) -> ObservedConfig | None:
    question = '{"name":{{json .Host.OCIRuntime.Name}},"path":{{json .Host.OCIRuntime.Path}}}'
    finished = _run_read_only(runner, "podman", "info", "--format", question)
    if finished.is_program_missing:
        return None
    try:
        answer = json.loads(finished.stdout) if finished.ok else {}
        name, path = str(answer["name"]), str(answer["path"])
    except (ValueError, KeyError, TypeError):
        raise _no_answer_error("podman", finished) from None
    return ObservedConfig({name: path}, name, cdi=True)


def _no_answer_error(name: str, finished: FinishedCommand) -> ChangeFailed | Undetermined:
    last_lines = finished.last_lines(6)
    if "permission denied" in last_lines.lower():
        return Undetermined(f"cannot tell how {name} is configured", why=last_lines, hint="run the command as root")
    return ChangeFailed(
        f"cannot read how {name} is configured",
        why=last_lines or f"{finished.argv[0]} exited with {finished.exit_status}",
        hint=f"systemctl status {name}",
    )
