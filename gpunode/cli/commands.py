"""What the commands do that change no node: compose it, run the workflow, show the answer."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from gpunode import __version__, builtin
from gpunode.cli.compose import SAMPLES, Wanted, checked_root, recipe_at, see
from gpunode.cli.envelope import Envelope
from gpunode.cli.human import Screen
from gpunode.cli.output_options import OutputOptions as OutputOptions
from gpunode.cli.screen.commands import setup_command
from gpunode.errors import (
    ChangesPending,
    GpunodeError,
    UsageError,
    VerifyFailed,
)
from gpunode.facts.model import Facts, Unknown
from gpunode.recipe import Recipe
from gpunode.recipe.rendering import render
from gpunode.redaction.secrets import text as redacted
from gpunode.steps.table import STEPS
from gpunode.workflow.converge import notes_of, owed_by, raise_refusal, steps_of
from gpunode.workflow.events import Told

if TYPE_CHECKING:
    from gpunode.facts.evidence import Capture, Evidence
    from gpunode.host.port import HostView
    from gpunode.journal.chronicle import Chronicle
    from gpunode.workflow.converge import StagePlan
    from gpunode.workflow.recovery import Backlog
    from gpunode.workflow.verify import Report

SAMPLE = "debian12-gtx1080"


def plan(
    wanted: Wanted, how: OutputOptions, only: Sequence[str], node: str, root: str, gpu: str, *, check: bool
) -> None:
    """Shows what setup would do."""
    from gpunode.workflow.plan import pending
    from gpunode.workflow.plan import plan as make_plan

    check_steps(only)
    writing = _lock_to_write(wanted, only, check=check)
    recipe = (replace(wanted, lock="") if writing else wanted).read()
    seen = see(node, root, gpu, recipe)
    plans = make_plan(recipe, seen.facts, seen.host, only)
    raise_refusal(plans)
    screen = how.screen()
    left = _left_undone(node, root, seen.facts)
    screen.plan(recipe, seen.facts, plans, left)
    for text in () if node else _elsewhere(seen.host, plans):
        screen.tell(Told(text))
    lock = writing(recipe, seen.facts, plans, screen) if writing else {}
    todo = pending(plans, left)
    makes_them = str(setup_command(sys.argv[1:]))
    failure = ChangesPending("changes are pending", hint=makes_them) if todo and check else None
    how.answer(_planned("plan", plans, left, seen.facts, failure, lock))


def _elsewhere(host: HostView, plans: Sequence[StagePlan]) -> tuple[str, ...]:
    """See ``LocalHost.elsewhere``."""
    from gpunode.host.local import LocalHost

    changes = [change for stage in plans for change in stage.changes]
    return host.elsewhere(changes) if isinstance(host, LocalHost) else ()


Writing: TypeAlias = Callable[[Recipe, Facts, "Sequence[StagePlan]", Screen], Mapping[str, object]]


def _lock_to_write(wanted: Wanted, only: Sequence[str], *, check: bool) -> Writing | None:
    """What writes the lock file once there is a plan; None where one is only read, or none is named.

    A file that is there is read, as setup reads it, unless --upgrade asks for newer versions.
    """
    if not wanted.lock or check:
        return None
    from gpunode.cli.lockfiles import former_lock, refuse_part, there_is, write_lock

    if there_is(wanted.lock) and not wanted.upgrade:
        return None
    refuse_part(only)
    former = former_lock(wanted.lock)

    def write(recipe: Recipe, facts: Facts, plans: Sequence[StagePlan], screen: Screen) -> Mapping[str, object]:
        from gpunode.workflow.locking import lock_of

        lock = lock_of(recipe, facts, plans, wanted.lock)
        changed = write_lock(lock, former)
        screen.locked(lock, changed, renewed=former is not None)
        return {"lock": {"file": lock.file, "packages": lock.packages, "changed": changed}}

    return write


def _planned(
    command: str,
    plans: Sequence[StagePlan],
    left: Backlog,
    facts: Facts,
    failure: GpunodeError | None,
    more: Mapping[str, object],
) -> Envelope:
    steps = [
        {"id": step.step.id, "stage": stage.stage, "reason": step.outcome.reason, "changes": len(step.changes)}
        for stage in plans
        for step in stage.steps
        if not hasattr(step.outcome, "exit_code")
    ]
    return Envelope(
        command,
        status=failure.status if failure else "ok",
        exit_code=failure.exit_code if failure else 0,
        changed=bool(left) or any(stage.changes for stage in plans),
        changes=[*(change for stage in plans for change in stage.changes), *left.marks],
        steps=steps_of(plans),
        notes=notes_of(plans),
        unknown=[*unknown(facts), *unread(left)],
        errors=(failure,) if failure else (),
        result={
            "steps": steps,
            "waits": [wait.reason for stage in plans for wait in stage.waits],
            "triggers": owed_by(plans, image=facts.is_image),
            "owed": left.owed,
            **more,
        },
    )


def unknown(facts: Facts) -> list[dict[str, object]]:
    """Every fact that could not be told, with the reason."""
    rows = ((name, getattr(facts, name)) for name in Facts.__slots__)
    single = [(name, fact) for name, fact in rows if isinstance(fact, Unknown)]
    keyed = [(path, fact) for path, fact in {**facts.files, **facts.units}.items() if isinstance(fact, Unknown)]
    return [{"fact": name, "reason": fact.reason, "probe": fact.probe} for name, fact in (*single, *keyed)]


def _left_undone(node: str, root: str, facts: Facts) -> Backlog:
    """What earlier runs left undone; of a captured node nothing is known."""
    from gpunode.workflow.recovery import NOTHING_LEFT, visible_backlog

    if node:
        return NOTHING_LEFT
    from gpunode.journal.store import Store

    return visible_backlog(Store(checked_root(root)), facts)


def unread(left: Backlog) -> list[dict[str, object]]:
    """That nobody could tell what earlier runs left undone, as ``unknown`` says it."""
    return [{"fact": "owed", "reason": left.unread, "probe": "journal"}] if left.unread else []


def rehearse(wanted: Wanted, how: OutputOptions, node: str, gpu: str) -> None:
    """Rehearses setup, verify and rollback on a captured node."""
    import tempfile

    from gpunode.cli.resume import digest
    from gpunode.journal.store import Store
    from gpunode.workflow.rehearse import rehearse as make
    from gpunode.workflow.setup import Asked

    recipe = wanted.read()
    seen = see(node or str(sample()), "/", gpu)
    screen = how.screen()
    with tempfile.TemporaryDirectory(prefix="gpunode-rehearsal-") as folder, screen:
        screen.rehearsal_begins(recipe, node or SAMPLE)
        asked = Asked(version=__version__, argv=tuple(sys.argv[1:]), recipe_sha256=digest(recipe))
        done = make(recipe, seen.facts, seen.evidence, Store(folder), asked=asked, tell=screen.tell)
        screen.rehearsal(recipe, done)
    how.answer(
        Envelope(
            "rehearse",
            changes=[change for stage in done.setup.applied for change in stage.changes],
            steps=steps_of(done.setup.applied),
            unknown=unknown(seen.facts),
            result={
                "rehearsal": True,
                "node": node or SAMPLE,
                "checks": done.checks,
                "restored": done.restored,
                "triggers": owed_by(done.setup.applied, image=seen.facts.is_image),
            },
        )
    )


def sample() -> Path:
    """The shipped capture of a node."""
    return SAMPLES / SAMPLE


def verify(wanted: Wanted, how: OutputOptions, *, cuda: bool, container: bool) -> None:
    """Proves that the node works."""
    from gpunode.host.local import LocalHost
    from gpunode.workflow.container import container_check
    from gpunode.workflow.converge import survey
    from gpunode.workflow.verify import Extra
    from gpunode.workflow.verify import verify as look

    recipe, screen, host = wanted.read(), how.screen(), LocalHost("/")
    with screen:
        facts = survey(host, recipe=recipe)
        check = container_check(host.runner, host.effective) if container else None
        left = _left_undone("", "/", facts)
        report = look(recipe, facts, host, host.effective, Extra(cuda, check), left=left)
        screen.report(recipe, report)
    failure = shortcoming(report, "")
    how.answer(
        Envelope(
            "verify",
            status=failure.status if failure else "ok",
            exit_code=failure.exit_code if failure else 0,
            unknown=[*unknown(facts), *unread(left)],
            errors=(failure,) if failure else (),
            result={"checks": report.checks, "gpus": report.inventory.gpus if report.inventory else ()},
        )
    )


def shortcoming(report: Report, prefix: str) -> GpunodeError | None:
    """The error that a report amounts to: its first failed check, else what could not be told."""
    if not report.failed:
        return next(iter(report.untold), None)
    first = report.failed[0]
    return VerifyFailed(f"{prefix}{first.title}: {first.detail}", hint=first.hint)


def status(how: OutputOptions, node: str) -> None:
    """Shows the node."""
    from gpunode.workflow.status import status as look

    seen = see(node, "/", "")
    left = _left_undone(node, "/", seen.facts)
    found = look(seen.facts, seen.host, left)
    how.screen().status(seen.facts, found)
    how.answer(Envelope("status", unknown=[*unknown(seen.facts), *unread(left)], result={"status": found}))


def runs(how: OutputOptions, root: str, file: str) -> None:
    """Lists the recorded runs, or those that changed ``file``, with what others left beside it."""
    from gpunode.host.local import LocalHost
    from gpunode.journal.store import Store
    from gpunode.workflow.prospects import prospect

    place = checked_root(root)
    store, host = Store(place), LocalHost(place)
    found = [run for run in store.runs() if not file or file in run.subjects]
    left = beside(host, file) if file else ()
    prospects = {run.run: prospect(store, host, run) for run in found}
    screen = how.screen()
    screen.runs(found, prospects, str(store.folder), file)
    screen.leftovers(file, left)
    how.answer(Envelope("rollback", result={"runs": found, "undo": prospects, "leftovers": left}))


def beside(host: HostView, path: str) -> tuple[str, ...]:
    """The files beside ``path`` that other tools or people left there as its former versions."""
    from gpunode.facts.evidence import Probe, decode_found
    from gpunode.workflow.undo import leftovers

    looked = host.look(Probe("beside", glob=f"{path}*", contents=False))
    return tuple(leftovers(path, (one.path for one in decode_found(looked.data))))


def log(run: str, how: OutputOptions, root: str) -> None:
    """Shows the recorded runs, or all that is recorded of one."""
    from gpunode.cli import audit

    found = _told(run, root)
    logins = _logins({one.begin.loginuid for one in found})
    how.screen().log(found, logins, whole=bool(run))
    if run:
        result = {"schema": audit.SCHEMA, "run": audit.whole(found[0], logins)}
    else:
        result = {"schema": audit.SCHEMA, "runs": [audit.summary(one, logins) for one in found]}
    how.answer(Envelope("log", result=result))


def _told(run: str, root: str) -> tuple[Chronicle, ...]:
    """The runs on this node, and this user's in clusters; those that this user may read."""
    from gpunode.cli.compose import cluster_journal
    from gpunode.journal.store import Store
    from gpunode.workflow.log import told

    if run.startswith("k"):
        return told(cluster_journal(), run[1:])
    clusters = () if run or root != "/" else told(cluster_journal())
    try:
        return (*told(Store(checked_root(root)), run), *clusters)
    except UsageError:
        if run or not clusters:
            raise
        return clusters


def _logins(uids: Iterable[int | None]) -> dict[int, str]:
    """The names of those of ``uids`` that this machine knows, on which the runs were made, also those for an image."""
    import pwd
    from contextlib import suppress

    names: dict[int, str] = {}
    for uid in uids:
        with suppress(KeyError):
            if uid is not None:
                names[uid] = pwd.getpwuid(uid).pw_name
    return names


def capture(file: str, how: OutputOptions, *, anonymize: bool, force: bool) -> None:
    """Saves what gpunode sees of this node: all that doctor looks at."""
    from gpunode.host.capture import save
    from gpunode.host.local import LocalHost
    from gpunode.redaction.anonymize import anonymized
    from gpunode.redaction.evidence import masked, redact
    from gpunode.workflow.doctor import examine

    path, screen = Path(file), how.screen()
    if path.is_file() and not force:
        screen.confirm_overwrite(file)
    evidence = examine(LocalHost("/"))
    whole = anonymized(evidence) if anonymize else evidence
    kept = redact(whole)
    contents = masked(whole, kept)
    screen.capture_holds(file, contents, anonymized=anonymize)
    save(kept, path)
    size = sum(one.stat().st_size for one in (path, *path.rglob("*")) if one.is_file())
    missing = incomplete(evidence)
    screen.captured(file, len(evidence), size, missing)
    holds = {kind: {"probes": number, "masked": changed} for kind, (number, changed) in contents.items()}
    result = {"file": file, "probes": len(evidence), "bytes": size, "anonymized": anonymize, "holds": holds}
    how.answer(Envelope("capture", result={**result, "incomplete": list(missing), "why": missing}))


def incomplete(evidence: Evidence) -> dict[str, str]:
    """Why each probe could not be seen; a tool that answers with an exit status of its own has answered."""
    from gpunode.facts.probes import PROBES
    from gpunode.workflow.doctor import denied

    needed = {probe.key for probe in PROBES}
    return {
        key: _why_missing(seen, is_denied=bool(denied(seen)))
        for key, seen in evidence.items()
        if seen.outcome in {"denied", "timeout"}
        or denied(seen)
        or (seen.outcome == "failed" and (key in needed or seen.exit_status in {None, 0}))
    }


def _why_missing(seen: Capture, *, is_denied: bool) -> str:
    if seen.outcome == "timeout":
        return "timed out"
    if is_denied or seen.outcome == "denied":
        return "permission denied"
    said = [one.strip() for one in (*seen.error.splitlines(), *seen.text.splitlines()[:1]) if one.strip()]
    return redacted(said[0]) if said else f"exit status {seen.exit_status}"


def recipe_list(how: OutputOptions) -> None:
    """Lists the shipped recipes."""
    found = {name: builtin.read(name).description for name in builtin.names()}
    how.screen().recipes(found)
    how.answer(Envelope("recipe list", result={"recipes": found}))


def recipe_show(name: str, how: OutputOptions) -> None:
    """Prints a recipe and what it amounts to."""
    text, whole = builtin.load(name), builtin.read(name)
    how.screen().recipe(name, text, render(whole))
    how.answer(Envelope("recipe show", result={"text": text, "recipe": whole}))


def recipe_check(file: str, how: OutputOptions) -> None:
    """Says whether a recipe can be understood."""
    found = recipe_at(file)
    if found.kubernetes and found.kubernetes.stack != "none":
        from gpunode.kubernetes.checks import check

        check(found)
    how.screen().recipe_is_good(file, found)
    how.answer(Envelope("recipe check", result={"recipe": found}))


def recipe_from_node(node: str, output: str, how: OutputOptions) -> None:
    """Writes the recipe that a node already fulfils."""
    from gpunode.workflow.from_node import recipe_of

    seen = see(node, "/", "")
    text = render(recipe_of(seen.facts, seen.host))
    if output:
        _write_new(Path(output), text)
    how.screen().from_node(text, output)
    how.answer(Envelope("recipe from-node", result={"text": text, "file": output}))


def _write_new(path: Path, text: str) -> None:
    """Raises UsageError when there is a file already: a recipe may be somebody's work."""
    from gpunode.host.files import create

    try:
        create(path, text.encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written",
            why=error.strerror or str(error),
            hint="name a file that does not exist yet with -o",
        ) from error


def check_steps(only: Sequence[str]) -> None:
    """Raises UsageError when there is no such step."""
    from difflib import get_close_matches

    ids = [step.id for step in STEPS]
    if wrong := [step for step in only if step not in ids]:
        near = next((guess[0] for step in wrong if (guess := get_close_matches(step, ids, n=1))), "")
        raise UsageError(
            f"there is no step {', '.join(wrong)}",
            why=f"steps: {', '.join(ids)}",
            hint=f"did you mean --only {near}?" if near else "`gpunode plan -v` shows what each of them does",
        )
