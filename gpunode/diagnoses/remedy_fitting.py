"""Fit a remedy to a finding by naming the affected GPUs in its commands.

A rule's remedy is the same on every node; only the finding knows the affected GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell, fill_in_gpus, lacks_gpu_address
from gpunode.diagnoses.model import DISRUPTIONS, Disruption, Finding, Fix, Proof, Rule
from gpunode.diagnoses.remedies import reboot_node, removes_packages, run_step
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import boards
from gpunode.diagnoses.views.recovery import RecoveryAction, recovered_gpus
from gpunode.facts.model import Known
from gpunode.facts.patterns import Pattern
from gpunode.packages import deb

_REPLACE_ADDRESS_HINT: Final = "the GPU is not known here: replace ADDRESS by its PCI address"


def fit_to_gpus(fixes: Iterable[Fix], gpus: tuple[str, ...]) -> tuple[Fix, ...]:
    """Insert the GPUs into the commands; if none is known, ask the reader to."""
    return tuple(_fit_fix(fix, gpus) for fix in fixes)


def _fit_fix(fix: Fix, gpus: tuple[str, ...]) -> Fix:
    commands = tuple(dict.fromkeys(in_gpu for typed in fix.commands for in_gpu in fill_in_gpus(typed, gpus)))
    if any(map(lacks_gpu_address, commands)):
        return replace(fix, text=f"{fix.text} ({_REPLACE_ADDRESS_HINT})", commands=commands)
    return replace(fix, commands=commands)


_SETUP_WITHOUT_RECIPE: Final = Pattern(r"sudo gpunode setup(?: -|$)")
_OWN_RECIPE_HINT: Final = "name this node's recipe behind setup: `sudo gpunode log` says which it was"


def ask_for_own_recipe(snapshot: Snapshot, fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """Ask for the recipe on a node that gpunode has set up: without it, setup uses NVIDIA's public repositories.

    No evidence names the recipe: only root can read a node's record, and captures do not contain it.
    """
    pins = snapshot.facts.file(deb.PIN_FILE)
    if not isinstance(pins, Known) or pins.value is None:
        return tuple(fixes)
    return tuple(
        replace(fix, text=f"{fix.text}; {_OWN_RECIPE_HINT}")
        if any(map(_SETUP_WITHOUT_RECIPE.match, fix.commands))
        else fix
        for fix in fixes
    )


# A reboot makes these steps unnecessary.
_FIX_KINDS_DONE_BY_REBOOT: Final = frozenset({"drain", "load", "restart", "reboot"})


def merge_reboot_fixes(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """Replace the remedies that a reboot covers if the first finding reboots the node anyway."""
    first = next(iter(findings), None)
    if first is None or not any(fix.kind == "reboot" and not fix.when for fix in first.remedy):
        return findings
    done_by_first = (Fix("reboot", f"nothing more: the restart of the node for {first.cause} fixes this too"),)
    return tuple(
        replace(finding, remedy=done_by_first)
        if finding is not first
        and "reboot" in (kinds := {fix.kind for fix in finding.remedy})
        and kinds <= _FIX_KINDS_DONE_BY_REBOOT
        else finding
        for finding in findings
    )


def minimum_disruption(fixes: Iterable[Fix], disruption: Disruption) -> Disruption:
    """Return ``disruption``, but at least a service restart if a fix removes packages."""
    removes = any(removes_packages(fix) for fix in fixes if not fix.when)
    return max(disruption, "restart-service", key=DISRUPTIONS.index) if removes else disruption


def gpus_for_commands(snapshot: Snapshot, finding_gpus: tuple[str, ...]) -> tuple[str, ...]:
    """Return the GPUs of a finding, else the node's only one.

    Indices shift when a GPU is lost, so they are dropped in that case.
    """
    only = "" if finding_gpus else snapshot.view(boards.only_gpu)
    if any(map(str.isdigit, finding_gpus)) and snapshot.view(symptoms.GPU_LOST):
        return tuple(gpu for gpu in finding_gpus if not gpu.isdigit())
    return (only,) if only else finding_gpus


def apply_driver_recovery(
    fixes: tuple[Fix, ...], disruption: Disruption, action: RecoveryAction
) -> tuple[tuple[Fix, ...], Disruption]:
    """Return remedy and disruption, raised to a reboot if the driver requires more than a reset."""
    if action != "reboot" or not any(fix.kind == "reset" for fix in fixes):
        return fixes, disruption
    when = {fix.when for fix in fixes if fix.kind == "reset"} if disruption == "RMA" else {""}
    first = next(number for number, fix in enumerate(fixes) if fix.kind == "reset")
    others = (fix for fix in fixes[first:] if fix.kind != "reset" and "sudo systemctl reboot" not in fix.commands[:1])
    why = "the driver asks for that (Xid 154), and a reset of the GPU is not enough"
    text = f"move the work away from this node, then reboot it: {why}"
    done = (*fixes[:first], reboot_node(text, when.pop()), *others)
    return done, max(disruption, "reboot", key=DISRUPTIONS.index)


# nvidia-smi's rows decide about pending memory repairs, not the driver's recovery action.
_CAUSES_NOT_CLEARED_BY_DRIVER: Final = frozenset(
    {"row-remap-pending", "page-retirement-pending-handles-held", "xid-154-recovery-action"}
)
_CHECK_FIX_LASTS: Final = run_step(
    "inspect", "check that the fix lasts", Shell("nvidia-smi -q"), Shell("sudo dmesg --ctime | grep -i xid")
)


def mark_recovered(rule: Rule, proof: Proof, snapshot: Snapshot) -> Proof:
    """Return the proof as info if the driver no longer asks to recover that GPU."""
    asks = (proof.disruption or rule.disruption) == "reset-gpu" and rule.cause not in _CAUSES_NOT_CLEARED_BY_DRIVER
    if not asks or proof.at is None or proof.gpu not in snapshot.view(recovered_gpus):
        return proof
    summary = f"{proof.summary}; the driver no longer asks for a recovery"
    return replace(proof, summary=summary, severity="info", disruption="none", remedy=(_CHECK_FIX_LASTS,))


def merge_remedies(proofs: Iterable[Proof]) -> tuple[Fix, ...]:
    """Return the first proof's remedy with the commands of every proof that needs the same steps."""
    remedies = [proof.remedy for proof in proofs]
    equal_steps = [fixes for fixes in remedies if _step_kinds_and_texts(fixes) == _step_kinds_and_texts(remedies[0])]
    return tuple(
        replace(same[0], commands=tuple(dict.fromkeys(typed for fix in same for typed in fix.commands)))
        for same in zip(*equal_steps, strict=True)
    )


def _step_kinds_and_texts(fixes: tuple[Fix, ...]) -> list[tuple[str, str, str]]:
    return [(fix.kind, fix.text, fix.when) for fix in fixes]


def summarize_gpus(first: Proof, gpus: tuple[str, ...]) -> str:
    """Return the first proof's summary, extended by the other affected GPUs."""
    others = [gpu for gpu in gpus if gpu != first.gpu and gpu not in first.summary]
    if not first.gpu or not others:
        return first.summary
    named = " and ".join(part for part in (", ".join(others[:-1]), others[-1]) if part)
    return f"{first.summary}; {'GPU' if len(others) == 1 else 'GPUs'} {named} as well"
