"""Values for shell completion; called on Tab only."""

from __future__ import annotations


def recipe_names() -> list[str]:
    """Return the shipped recipes; the shell completes files."""
    from gpunode import builtin

    return list(builtin.names())


def runtime_names() -> list[str]:
    """Return the values of --runtime."""
    from typing import get_args

    from gpunode.recipe import RuntimeName

    return list(get_args(RuntimeName))


def driver_choices() -> list[str]:
    """Return the values of --driver, branches by number."""
    from gpunode.catalog import branches

    return [
        "auto",
        "production",
        "lts",
        "none",
        *(str(branch.number) for branch in branches.all_branches() if branch.active),
    ]


def step_ids() -> list[str]:
    """Return the values of --only."""
    from gpunode.steps.table import STEPS

    return [step.id for step in STEPS]


def sample_nodes() -> list[str]:
    """Return the shipped samples; the shell completes files."""
    from gpunode.cli.samples import sample_names

    return list(sample_names())


def cause_names() -> list[str]:
    """Return the causes that doctor explains."""
    from gpunode.diagnoses import rules_by_cause

    return sorted(rules_by_cause())
