"""What the shell offers behind an option: the values that gpunode knows. Asked for by the Tab key alone."""

from __future__ import annotations


def recipes() -> list[str]:
    """The shipped recipes; a recipe file is completed by the shell itself."""
    from gpunode import builtin

    return list(builtin.names())


def runtimes() -> list[str]:
    """What --runtime takes."""
    from typing import get_args

    from gpunode.recipe import RuntimeName

    return list(get_args(RuntimeName))


def drivers() -> list[str]:
    """What --driver takes, branches by number."""
    from gpunode.catalog import branches

    return ["auto", "production", "lts", "none", *(str(branch.number) for branch in branches.known() if branch.active)]


def steps() -> list[str]:
    """What --only takes."""
    from gpunode.steps.table import STEPS

    return [step.id for step in STEPS]


def nodes() -> list[str]:
    """The shipped samples; a capture's file is completed by the shell itself."""
    from gpunode.cli.samples import samples

    return list(samples())


def causes() -> list[str]:
    """What doctor explains."""
    from gpunode.diagnoses import rules_by_cause

    return sorted(rules_by_cause())
