"""The commands ctk runtime configure, unconfigure and check."""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpunode.change import Change, short_unit_name
from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import require_root, unknown_value_error, validate_root
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.screen.changes import diff_lines
from gpunode.cli.screen.commands import DISPLAY_OPTIONS, drop_options, rollback_command
from gpunode.cli.screen.events import downtime_text, labelled_line
from gpunode.cli.screen.plans import note_line
from gpunode.cli.screen.printer import standard_error, standard_output
from gpunode.cli.screen.text import BLANK_LINE, STATE_MARK, Line, indent_lines, line, next_command_line, span
from gpunode.cli.session import LOCK_TIMEOUT_S, Session, exclusive_session, report_partial_run
from gpunode.command import Command, command, sudo_gpunode
from gpunode.container_runtimes import CONTAINER_RUNTIMES, takes_only_cdi
from gpunode.errors import ChangesPending, GpunodeError, Undetermined, UsageError, VerifyFailed
from gpunode.fast_dataclass import dataclass
from gpunode.host.local import LocalHost
from gpunode.host.port import HostView
from gpunode.journal.footprint import Footprint
from gpunode.journal.history import RunRecord
from gpunode.journal.store import Store
from gpunode.runtimes import RUNTIMES, DesiredConfig, Runtime, find_runtime
from gpunode.runtimes.model import INSTALLED_TOOLKIT_PROGRAM, TOOLKIT_PROGRAM_NAME, EditMode
from gpunode.steps.runtime import refuse_missing_default_program
from gpunode.wording import join_with_and
from gpunode.workflow import ctk, ctk_plan
from gpunode.workflow.ctk import ConfigStatus, CtkVerb, EditResult
from gpunode.workflow.ctk_plan import CtkPlan
from gpunode.workflow.recovery import describe_interrupted_run, note_other_run

_EDIT_MODES = ("auto", "in-place", "drop-in")
_CONFIG_SOURCES = ("file", "command")
_HOOK_CONFIG_MODES = frozenset({"hook", "oci-hook"})
_FILE_CONFIG_MODES = frozenset({"", "config", "config-file"})
# Commands that print each runtime's configuration; the first available one is used.
_DUMP_COMMANDS = {
    "containerd": (("containerd", "config", "dump"),),
    "crio": (("crio", "status", "config"), ("crio-status", "config")),
}


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """The options of configure, unconfigure and check.

    Attributes:
        drop_in: None if not given; empty to edit the configuration itself.
    """

    runtime: str = "docker"
    config: str = ""
    drop_in: str | None = None
    mode: str = "auto"
    name: str = "nvidia"
    path: str = "nvidia-container-runtime"
    default: bool = False
    cdi: bool = False
    enable_cri: bool = False
    source: str = "file"
    executable: str = ""
    config_mode: str = ""


@dataclass(frozen=True, slots=True)
class RuntimeRequest:
    """The parsed request.

    Attributes:
        dumps: commands that print the current configuration; the first available one is used. None to read the file.
        notes: warnings about the options.
    """

    runtime: Runtime
    desired: DesiredConfig
    dumps: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()


def parse_options(options: RuntimeOptions, root: str) -> RuntimeRequest:
    """Parse ``options`` for the system at ``root``.

    Raises:
        UsageError: a value is not allowed, or two options contradict each other.
    """
    _refuse_unknown("--runtime", options.runtime, [runtime.id for runtime in RUNTIMES])
    runtime = find_runtime(options.runtime)
    if not options.name:
        raise UsageError(
            "--nvidia-runtime-name is empty",
            why="containers ask for a runtime by its name",
            hint="leave it out for nvidia",
        )
    _refuse_unknown("--mode", options.mode, _EDIT_MODES)
    _refuse_unknown("--config-source", options.source, _CONFIG_SOURCES)
    if options.config_mode in _HOOK_CONFIG_MODES:
        raise UsageError(
            f"--config-mode={options.config_mode} is not supported: gpunode writes no OCI hooks",
            why="NVIDIA has deprecated them; CDI and the NVIDIA runtime have taken their place",
            hint="leave --config-mode out; podman and CRI-O use CDI: gpunode ctk runtime configure --runtime=podman",
        )
    mode, drop_in = _choose_mode(options, runtime)
    if not options.path:
        raise UsageError(
            "--nvidia-runtime-path is empty",
            why="a runtime without a program prevents docker from starting",
            hint="leave the option out, or name the program: --nvidia-runtime-path=/usr/bin/nvidia-container-runtime",
        )
    notes = tuple(_option_notes(options, runtime))
    desired = DesiredConfig(
        handler=options.name,
        binary=options.path,
        default=options.default,
        enable_cdi=options.cdi and runtime.cdi_support == "switch",
        mode=mode,
        config=resolve_file_option("--config", options.config, root),
        drop_in=drop_in,
        enable_cri=options.enable_cri,
        exact=True,
    )
    dumps = _DUMP_COMMANDS.get(options.runtime, ()) if options.source == "command" else ()
    if options.executable:
        dumps = tuple((options.executable, *words[1:]) for words in dumps[:1])
    return RuntimeRequest(runtime, desired, dumps, notes)


def _refuse_unknown(option: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise unknown_value_error(option, value, allowed)


def _choose_mode(options: RuntimeOptions, runtime: Runtime) -> tuple[EditMode, str]:
    """Return the mode and the drop-in file."""
    if not options.drop_in:
        return ("in-place" if options.drop_in == "" else options.mode), ""  # type: ignore[return-value]  # checked before
    if options.mode == "in-place":
        raise UsageError(
            f"--mode in-place and --drop-in-config={options.drop_in} contradict each other",
            why="the first edits the configuration itself, the second writes another file",
            hint="leave one of them out",
        )
    if not runtime.drop_in:
        raise UsageError(
            f"{runtime.id} reads no drop-ins",
            why=f"{runtime.config} is the only configuration that it reads, so --drop-in-config has no meaning for it",
            hint="leave --drop-in-config out",
        )
    if not options.drop_in.startswith("/"):
        raise UsageError(
            f"--drop-in-config={options.drop_in} is not an absolute path",
            why=f"the daemon that reads it has another working folder; {runtime.id}'s usual one is {runtime.drop_in}",
            hint=f"give the absolute path: --drop-in-config={runtime.drop_in}",
        )
    return "drop-in", options.drop_in


def _option_notes(options: RuntimeOptions, runtime: Runtime) -> Iterator[str]:
    """Yield a note for each option that has no effect."""
    if options.drop_in == "" and options.mode == "drop-in":
        yield "--drop-in-config is empty, so the configuration itself is edited, whatever --mode says"
    if options.config_mode not in _FILE_CONFIG_MODES:
        yield f"--config-mode={options.config_mode} is unknown and ignored; {options.runtime} is configured by its file"
    if options.cdi and runtime.cdi_support != "switch":
        yield f"--cdi.enabled is ignored: {options.runtime} already has CDI enabled"
    if options.enable_cri and not runtime.has_cri_plugin:
        yield f"--enable-cri is ignored: {options.runtime} has no CRI plugin"
    if runtime.cdi_support == "only" and (options.default or options.mode != "auto" or options.name != "nvidia"):
        yield f"{runtime.id} uses GPUs as CDI devices, so options about a runtime are ignored"
    if options.executable and (options.runtime not in _DUMP_COMMANDS or options.source == "file"):
        yield f"--executable-path={options.executable} is ignored: no command is asked for the configuration"
    if options.source == "command" and options.runtime not in _DUMP_COMMANDS:
        yield f"--config-source=command is ignored: {options.runtime} has no such command, so its file is read"


def resolve_file_option(option: str, path: str, root: str) -> str:
    """Return the absolute path; empty stays empty.

    Raises:
        UsageError: it is relative with another ``root``, or names a folder.
    """
    if path and not path.startswith("/") and root != "/":
        raise UsageError(
            f"{option}={path} is not an absolute path",
            why=f"with --root every path is inside {root}",
            hint=f"give the path as it is inside the image: {option}=/etc/…",
        )
    if path.endswith("/"):
        raise UsageError(
            f"{option}={path} names a folder",
            why="it takes a file",
            hint=f"name the file: {option}={path}99-nvidia.toml",
        )
    # POSIX gives two leading slashes a special meaning.
    return "/" + posixpath.normpath(Path.cwd() / path).lstrip("/") if path else ""


def edit_plan_lines(verb: CtkVerb, plan: CtkPlan, *, verbose: bool) -> Iterator[Line]:
    """Yield the planned edit as a diff of each file, with its reason; a single line if nothing has to be written."""
    if not plan.files:
        yield line(
            STATE_MARK["waits" if plan.missing_program else "nothing"],
            f"nothing to do: {_describe_unchanged(verb, plan)}",
            hang=2,
        )
    elif not plan.changed_files:
        yield line(
            span(plan.target_name, "bold"),
            f"  its files are correct, but {_config_reader_name(plan)} has not read them yet",
        )
    else:
        yield line(span(plan.target_name, "bold"), "  ", span(plan.planned.reason), hang=len(plan.target_name) + 2)
        for change in plan.changed_files:
            yield from indent_lines(diff_lines(change, whole=verbose), 4)
    yield from (note_line(text) for text in plan.planned.all_notes)


def _describe_unchanged(verb: CtkVerb, plan: CtkPlan) -> str:
    if verb == "unconfigure":
        return f"{plan.main_file or plan.target_name} has no such runtime"
    if takes_only_cdi(plan.target_name) or plan.registers_itself:
        return f"{plan.target_name}: {plan.planned.reason}"  # the runtime's own file does not mention it
    return f"{plan.target_name} is configured as requested ({_present_files(plan)})"


def _present_files(plan: CtkPlan) -> str:
    """Return the main file; if it does not exist, as with CRI-O, which needs none, the files used instead."""
    return plan.main_file if plan.main_file in plan.present else join_with_and(sorted(plan.present)) or plan.main_file


def _config_reader_name(plan: CtkPlan) -> str:
    return short_unit_name(plan.trigger.target) if plan.trigger else plan.target_name


def edit_result_lines(
    verb: CtkVerb, plan: CtkPlan, result: EditResult, argv: Sequence[str], next_step: str, *, is_unread: bool = False
) -> Iterator[Line]:
    """Yield the result: the written files, the command that reloads the daemon (``next_step``), and the undo command.

    ``is_unread``: the daemon could not be restarted, so only the writing is done.
    """
    yield BLANK_LINE
    outcome = (
        f"{join_with_and([change.path for change in plan.files])} written"
        if is_unread
        else _describe_outcome(verb, plan)
    )
    yield line(STATE_MARK["waits" if plan.missing_program else "done"], outcome, hang=2)
    if down := downtime_text(result.trigger_results):
        yield labelled_line("note", down)
    missing = [plan.missing_program.install or plan.missing_program.hint] if plan.missing_program else []
    for label, step in zip(("next", "then"), [*missing, *filter(None, [next_step])], strict=False):
        yield labelled_line(label, step)
    if next_step and plan.planned.stopped_workloads:
        yield labelled_line("", f"it stops all {plan.planned.stopped_workloads}, since live-restore is off")
    if any(not change.is_generated for change in plan.changed_files):
        yield labelled_line("undo", rollback_command(argv, result.run))


def _describe_outcome(verb: CtkVerb, plan: CtkPlan) -> str:
    if plan.planned.expectation is None and verb == "configure":
        # Podman has no configuration file of its own: the specification is written instead.
        what = "CDI specification" if takes_only_cdi(plan.target_name) else plan.target_name
        return f"{what} written: {join_with_and([change.path for change in plan.files])}"
    if verb == "unconfigure":
        return f"{plan.target_name}: removed what configure added"
    assert plan.planned.expectation is not None, "without an expectation it returned above"
    default = ", its default" if plan.planned.expectation.default else ""
    runs = join_with_and(
        [f"{name}{default}, which runs {binary}" for name, binary in sorted(plan.planned.expectation.handlers)]
    )
    return f"{plan.target_name} has the runtime {runs}{'; install that first' if plan.missing_program else ''}"


def reload_command(plan: CtkPlan, *, failed: bool, systemd: bool = True) -> str:
    """Return the command that makes the daemon reread its files, ``failed`` or not; empty if none is needed.

    ``systemd``: whether systemd runs here; without it, return a command that does not need it.
    """
    if plan.trigger is None:
        return ""
    if plan.target and not plan.target.is_default_config:
        return f"restart the {plan.target_name} that reads {plan.main_file}"
    kind, name = plan.trigger.kind, short_unit_name(plan.trigger.target)
    if systemd:
        return str(command("sudo", "systemctl", "restart" if failed else kind, name))
    return "sudo kill -HUP $(pidof dockerd)" if kind == "reload" else f"restart {name} the way it was started"


def verdict_lines(
    plan: CtkPlan, verdict: ConfigStatus, argv: Sequence[str], next_step: str, *, verbose: bool
) -> Iterator[Line]:
    """Yield whether files and daemon match the request; ``next_step`` reloads a daemon that does not match."""
    if verdict.differs_from_request:
        yield from edit_plan_lines("configure", plan, verbose=verbose)
        yield next_command_line(configure_command(plan, argv))
        return
    if plan.missing_program:
        yield line(
            STATE_MARK["failed"],
            f"{_present_files(plan)} names {plan.missing_program.program}, which is not installed",
            hang=2,
        )
        yield next_command_line(plan.missing_program.hint)
        return
    is_certain = not takes_only_cdi(plan.target_name) or not verdict.unverified
    yield line(STATE_MARK["passed" if is_certain else "skipped"], _describe_unchanged("configure", plan), hang=2)
    if verdict.difference:
        yield line(STATE_MARK["failed"], f"{_config_reader_name(plan)} does not have it: {verdict.difference}", hang=2)
        if next_step:
            yield next_command_line(next_step)
    elif verdict.unverified:
        yield line(STATE_MARK["skipped"], f"{_config_reader_name(plan)} was not checked: {verdict.unverified}", hang=2)
    else:
        yield line(STATE_MARK["passed"], f"{_config_reader_name(plan)} reads it as configured", hang=2)
    yield from (note_line(text) for text in plan.planned.all_notes)


def configure_command(plan: CtkPlan, argv: Sequence[str]) -> Command:
    """Return the configure command for ``argv``, a check; or that installs a program that it refuses to miss."""
    expectation = plan.planned.expectation
    if plan.missing_program and plan.missing_program.install and (expectation is None or expectation.default):
        return plan.missing_program.install
    words = ["configure" if word == "check" else word for word in drop_options(argv, DISPLAY_OPTIONS, ())]
    return sudo_gpunode(*words)


_ROOT_NEEDED_REASON = "it writes the configuration and keeps its journal in /var/lib/gpunode"
_WITHOUT_ROOT_HINT = "--dry-run shows what it would do, without root"


@dataclass(frozen=True, slots=True)
class EditPermissions:
    """The permissions of configure and unconfigure.

    Attributes:
        dry_run: only show the edit.
        restart: restart the daemon afterwards.
        allow_disruption: restart it even if containers are stopped.
        lock_timeout: seconds to wait for another gpunode.
    """

    dry_run: bool = False
    restart: bool = False
    allow_disruption: bool = False
    lock_timeout: float = LOCK_TIMEOUT_S


EditPlanner = Callable[[LocalHost, Footprint], CtkPlan]


def configure(options: RuntimeOptions, output: OutputOptions, root: str, permissions: EditPermissions) -> None:
    """Add NVIDIA's binary to the runtime's configuration."""
    root_folder = validate_root(root)
    request = parse_options(options, root_folder)

    def make_plan(host: LocalHost, footprint: Footprint) -> CtkPlan:
        plan = _plan_configure(host, request, footprint)
        if plan.target:
            refuse_missing_default_program(plan.target, plan.missing_program)
        ctk_plan.refuse_missing_specification_writer(plan)
        return plan

    run_edit("ctk runtime configure", "configure", make_plan, output, root_folder, permissions)


def _plan_configure(host: LocalHost, request: RuntimeRequest, footprint: Footprint) -> CtkPlan:
    if not request.runtime.unit:
        return ctk_plan.plan_cdi_specification(host, request.runtime, request.notes, image=host.root != "/")
    target = ctk_plan.find_target(host, request.runtime, request.desired, request.dumps, image=host.root != "/")
    target = replace(target, notes=(*request.notes, *target.notes))
    return ctk_plan.plan_configure_edit(host, target, footprint.files, host.root)


def unconfigure(options: RuntimeOptions, output: OutputOptions, root: str, permissions: EditPermissions) -> None:
    """Remove what configure added."""
    root_folder = validate_root(root)
    request = parse_options(options, root_folder)

    def make_plan(host: LocalHost, footprint: Footprint) -> CtkPlan:
        target = ctk_plan.find_target(host, request.runtime, request.desired, image=root_folder != "/")
        return ctk_plan.plan_unconfigure_edit(host, target, footprint.files)

    run_edit("ctk runtime unconfigure", "unconfigure", make_plan, output, root_folder, permissions)


def run_edit(
    command: str,
    verb: CtkVerb,
    plan_edit: EditPlanner,
    output: OutputOptions,
    root: str,
    permissions: EditPermissions,
    without_root: str = _WITHOUT_ROOT_HINT,
) -> None:
    """Write the edit that ``plan_edit`` returns, journaled; or only show it."""
    if permissions.dry_run:
        _show_dry_run(command, verb, plan_edit, output, root)
        return
    require_root(command, _ROOT_NEEDED_REASON, without_root)
    with exclusive_session("ctk", output, root, permissions.lock_timeout, wait_for_others=False) as node:
        if (cut := node.clean_up_after_interruption()) is not None:
            node.notify(describe_interrupted_run(cut, "this command only edits the runtime's files"))
        plan = _note_symlinks(plan_edit(node.host, node.store.footprint()), node.host)
        plan = ctk.with_restart_choice(plan, restart=permissions.restart)
        node.screen.put(*edit_plan_lines(verb, plan, verbose=output.verbose))
        if plan.files:
            answer = _apply_edit(command, verb, plan, node, output, permissions)
        else:
            ctk.conclude_interrupted_edit(node.store)
            answer = _edit_envelope(command, plan)
    output.emit(answer)


def _apply_edit(
    command: str, verb: CtkVerb, plan: CtkPlan, node: Session, output: OutputOptions, permissions: EditPermissions
) -> Envelope:
    """Apply the edit, show the result and return the answer."""
    host, restart = node.host, permissions.restart
    if restart and not permissions.allow_disruption:
        ctk.refuse_disruption(host, plan)
    check_interrupt, on_event = node.signals.raise_if_received, node.screen.show_event
    with report_partial_run(command, output, node.store, node.adapt_hint):
        done = ctk.apply_edit(plan, host, node.store, verb, on_event, restart=restart, check_interrupt=check_interrupt)
    node.notify(node.log.problem)
    failure = _not_restarted_failure(host, plan) if restart and ctk.reload_was_skipped(host, plan, done) else None
    is_read = (restart and failure is None) or host.root != "/" or ctk.explain_no_reload(plan)
    next_step = "" if is_read else local_reload_command(host, plan, failed=ctk.daemon_has_failed(plan))
    shown, unread = "" if failure else next_step, failure is not None
    node.screen.show_result(edit_result_lines(verb, plan, done, node.screen.argv, shown, is_unread=unread), failure)
    changes = RunRecord(node.store.read_with_contents(done.run)).changes("done")
    answer = _edit_envelope(command, plan, changes=changes).with_failure(failure)
    result = {
        **answer.result,
        "run": done.run,
        "triggers": done.trigger_results,
        "validation": done.validation,
        "reload_command": next_step,
    }
    return replace(answer, result=result)


def local_reload_command(host: HostView, plan: CtkPlan, *, failed: bool) -> str:
    """Return the command that reloads the daemon on this machine; empty if none runs or needs it."""
    systemd = ctk.has_systemd(host)
    if not systemd and not ctk.has_socket(host, plan):
        return ""  # no running daemon could reread the files
    return reload_command(plan, failed=failed, systemd=systemd)


def _not_restarted_failure(host: LocalHost, plan: CtkPlan) -> VerifyFailed | None:
    """Return the failure of a daemon that systemd could not restart; None if it has read its files."""
    verdict = ctk.compare_with_plan(plan.with_changes(()), host.read_effective_config, is_live=True)
    # For other runtimes, a tool prints the files instead of the configuration that the daemon has loaded.
    row = CONTAINER_RUNTIMES.get(plan.target_name)
    if row is not None and row.live_config_source == "docker info" and not verdict.difference:
        return None
    next_step = local_reload_command(host, plan, failed=False)
    return VerifyFailed(
        f"the files are written, but {plan.target_name} was not restarted: systemd is not running",
        why=verdict.difference or f"gpunode restarts {plan.target_name} only through systemd",
        hint=f"{next_step}\ngpunode ctk runtime check --runtime={plan.target_name}",
    )


def _edit_envelope(command: str, plan: CtkPlan, changes: Sequence[Change] = ()) -> Envelope:
    return Envelope(
        command,
        changed=bool(changes),
        changes=changes,
        steps=dict.fromkeys(changes, plan.step.id),
        notes=plan.planned.all_notes,
        result={"runtime": plan.target_name, "file": plan.main_file, "reason": plan.planned.reason},
    )


def _show_dry_run(command: str, verb: CtkVerb, plan_edit: EditPlanner, output: OutputOptions, root: str) -> None:
    """Print the new files to standard output, as nvidia-ctk does, and the diff to standard error."""
    store, host = Store(root), LocalHost(root)
    other = note_other_run(store)
    footprint, note = _read_footprint(store)
    plan = ctk.with_restart_choice(_note_symlinks(plan_edit(host, footprint), host), restart=False).with_notes(*other)
    if note and verb == "unconfigure":
        plan = plan.with_notes(note)
    if not output.json:
        standard_output().print_raw(b"\n".join(ctk_plan.preview_contents(plan)).decode("utf-8", "surrogateescape"))
        if not output.quiet:
            standard_error().put(edit_plan_lines(verb, plan, verbose=output.verbose))
    answer = _edit_envelope(command, plan, plan.files)
    output.emit(replace(answer, result={**answer.result, "run": ""}))


def _note_symlinks(plan: CtkPlan, host: LocalHost) -> CtkPlan:
    return plan.with_notes(*host.describe_symlinks(plan.files))


def _read_footprint(store: Store) -> tuple[Footprint, str]:
    """Return gpunode's footprint, and a note for a user who cannot read the journal."""
    try:
        return store.footprint(), ""
    except UsageError as error:
        return Footprint(), f"{error.what}, so this was planned without it; run it with sudo for the exact plan"


def check_runtime(options: RuntimeOptions, output: OutputOptions, root: str) -> None:
    """Check whether files and daemon match what configure would write."""
    root_folder = validate_root(root)
    request = parse_options(options, root_folder)
    store, host = Store(root_folder), LocalHost(root_folder)
    other = note_other_run(store)
    plan = _plan_check(host, request, _read_footprint(store)[0]).with_notes(*other)
    if request.runtime.unit or plan.changed_files:
        verdict = ctk.compare_with_plan(plan, host.read_effective_config, is_live=root_folder == "/")
    else:
        verdict = ctk.check_cdi_devices(host, request.runtime, image=root_folder != "/")
    next_step = local_reload_command(host, plan, failed=verdict.failed) if root_folder == "/" else ""
    screen = output.open_screen()
    screen.put(*verdict_lines(plan, verdict, screen.argv, next_step, verbose=output.verbose))
    output.emit(_check_envelope(plan, verdict, next_step))


def _plan_check(host: LocalHost, request: RuntimeRequest, footprint: Footprint) -> CtkPlan:
    """Return the plan; without changes if only the program's path differs, as setup writes it."""
    plan = _plan_configure(host, request, footprint)
    if plan.changed_files and request.desired.binary == TOOLKIT_PROGRAM_NAME:
        by_path = _plan_configure(
            host, replace(request, desired=replace(request.desired, binary=INSTALLED_TOOLKIT_PROGRAM)), footprint
        )
        return plan if by_path.changed_files else by_path
    return plan


def _check_envelope(plan: CtkPlan, verdict: ConfigStatus, next_step: str) -> Envelope:
    failure: GpunodeError | None = None
    has_daemon = bool(find_runtime(plan.target_name).unit)
    if verdict.differs_from_request:
        again = str(configure_command(plan, sys.argv[1:]))
        failure = ChangesPending(f"{plan.target_name} is not configured as requested", hint=again)
    elif plan.missing_program:
        what = f"{plan.target_name} is configured to run {plan.missing_program.program}, which is not installed"
        failure = VerifyFailed(what, hint=plan.missing_program.hint)
    elif verdict.difference:
        what = f"the files of {plan.target_name} are correct, but its daemon has another configuration"
        if not has_daemon:
            what = f"{plan.target_name} cannot expose GPUs to containers"
        failure = VerifyFailed(what, why=verdict.difference, hint=next_step)
    elif verdict.unverified and not has_daemon:
        what = f"cannot tell whether {plan.target_name} exposes GPUs to containers"
        failure = Undetermined(
            what, why=verdict.unverified, hint="install what is missing:\nsudo gpunode setup --runtime podman"
        )
    if verdict.unverified:
        plan = plan.with_notes(f"the daemon was not checked: {verdict.unverified}")
    return _edit_envelope("ctk runtime check", plan, plan.changed_files).with_failure(failure)
