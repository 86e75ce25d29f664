"""A remedy fitted to what was found: its commands speak of the GPUs that are concerned, and of no other.

What a rule has to be done is the same on every node; on which GPU it is to be done, only its finding knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import ADDRESS, OfGpu, Shell, on_gpus
from gpunode.diagnoses.model import DISRUPTIONS, Disruption, Finding, Fix, FixKind, Proof, Rule
from gpunode.diagnoses.remedies import reboot, removes_packages, run
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import boards
from gpunode.diagnoses.views.recovery import Action, recovered

_WHICH: Final = "which GPU it is, is not known here: put its PCI address for ADDRESS"


def fitted(fixes: Iterable[Fix], gpus: tuple[str, ...]) -> tuple[Fix, ...]:
    """What is to be done on those GPUs; where none is known, the reader is told to put in which it is."""
    return tuple(_fitted(fix, gpus) for fix in fixes)


def _fitted(fix: Fix, gpus: tuple[str, ...]) -> Fix:
    commands = tuple(dict.fromkeys(one for typed in fix.commands for one in on_gpus(typed, gpus)))
    if any(isinstance(one, OfGpu) and ADDRESS in one for one in commands):
        return replace(fix, text=f"{fix.text} ({_WHICH})", commands=commands)
    return replace(fix, commands=commands)


# What a reboot does as well.
_BY_BOOT: Final = frozenset({"drain", "load", "restart", "reboot"})


def settled_together(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings; one that a reboot settles needs nothing of its own where the first has the node started again."""
    first = next(iter(findings), None)
    if first is None or not any(fix.kind == "reboot" and not fix.when for fix in first.remedy):
        return findings
    with_it = (Fix("reboot", f"nothing more: starting the node again, as for {first.cause}, settles this too"),)
    return tuple(
        replace(one, remedy=with_it) if one is not first and "reboot" in (kinds := _kinds(one)) and kinds <= _BY_BOOT
        else one for one in findings
    )  # fmt: skip


def _kinds(finding: Finding) -> frozenset[FixKind]:
    return frozenset(fix.kind for fix in finding.remedy)


def disturbing(fixes: Iterable[Fix], disruption: Disruption) -> Disruption:
    """What is disturbed at the least: nobody takes packages away without a service that stops."""
    removes = any(removes_packages(fix) for fix in fixes if not fix.when)
    return max(disruption, "restart-service", key=DISRUPTIONS.index) if removes else disruption


def concerned(snapshot: Snapshot, gpus: tuple[str, ...]) -> tuple[str, ...]:
    """The GPUs that a finding is about, else the only one of the node.

    An index may be another GPU's by now, where one was lost: then nobody knows which it is.
    """
    only = "" if gpus else snapshot.view(boards.only)
    if any(map(str.isdigit, gpus)) and snapshot.view(symptoms.GPU_LOST):
        return tuple(gpu for gpu in gpus if not gpu.isdigit())
    return (only,) if only else gpus


_BY_REBOOT: Final = (
    "move the work away from this node, then reboot it: the driver asks for that (Xid 154), and a reset of the GPU is "
    "not enough"
)


def obeyed(fixes: tuple[Fix, ...], disruption: Disruption, action: Action) -> tuple[tuple[Fix, ...], Disruption]:
    """What is to be done, and what it disturbs, where the driver asks for more than a reset of the GPU."""
    if action != "reboot" or not any(fix.kind == "reset" for fix in fixes):
        return fixes, disruption
    when = {fix.when for fix in fixes if fix.kind == "reset"} if disruption == "RMA" else {""}
    first = next(number for number, fix in enumerate(fixes) if fix.kind == "reset")
    others = (fix for fix in fixes[first:] if fix.kind != "reset" and "sudo systemctl reboot" not in fix.commands[:1])
    done = (*fixes[:first], reboot(_BY_REBOOT, when.pop()), *others)
    return done, max(disruption, "reboot", key=DISRUPTIONS.index)


# Of memory that waits to be mended, nvidia-smi's rows tell.
_NOT_BY_DRIVER: Final = frozenset(
    {"row-remap-pending", "page-retirement-pending-handles-held", "xid-154-recovery-action"}
)
_LOOK: Final = run("inspect", "see that it stays so", Shell("nvidia-smi -q"), Shell("sudo dmesg --ctime | grep -i xid"))


def since_recovered(rule: Rule, proof: Proof, snapshot: Snapshot) -> Proof:
    """The proof as that of something past, where the driver asks for no recovery of that GPU any more."""
    asks = (proof.disruption or rule.disruption) == "reset-gpu" and rule.cause not in _NOT_BY_DRIVER
    if not asks or proof.at is None or proof.gpu not in snapshot.view(recovered):
        return proof
    summary = f"{proof.summary}; the driver asks for no recovery of it any more"
    return replace(proof, summary=summary, severity="info", disruption="none", remedy=(_LOOK,))


def merged(proofs: Iterable[Proof]) -> tuple[Fix, ...]:
    """The remedy of the first proof, with the commands of all those that ask for the same things to be done."""
    given = [proof.remedy for proof in proofs]
    alike = [fixes for fixes in given if _steps(fixes) == _steps(given[0])]
    return tuple(
        replace(same[0], commands=tuple(dict.fromkeys(typed for fix in same for typed in fix.commands)))
        for same in zip(*alike, strict=True)
    )


def _steps(fixes: tuple[Fix, ...]) -> list[tuple[str, str, str]]:
    return [(fix.kind, fix.text, fix.when) for fix in fixes]


def of_all(first: Proof, gpus: tuple[str, ...]) -> str:
    """The summary, with the other GPUs that it holds for as well."""
    others = [gpu for gpu in gpus if gpu != first.gpu and gpu not in first.summary]
    if not first.gpu or not others:
        return first.summary
    named = " and ".join(part for part in (", ".join(others[:-1]), others[-1]) if part)
    return f"{first.summary}; {'GPU' if len(others) == 1 else 'GPUs'} {named} as well"
