"""Refuse the options that a command would ignore in one of its modes, such as ``rollback --list``."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from gpunode.errors import UsageError


def refuse_unused_options(ctx: Any, mode: str, used: Collection[str]) -> None:
    """Refuse the typed options that the command does not use in ``mode``; ``used`` names the parameters that it uses.

    Raises:
        UsageError: such an option was typed.
    """
    options = {param.name: param.opts[-1] for param in ctx.command.params if param.param_type_name == "option"}
    typed = [name for name in options if ctx.get_parameter_source(name).name == "COMMANDLINE"]
    if unused := ", ".join(options[name] for name in typed if name not in used):
        usable = ", ".join(option for name, option in options.items() if name in used)
        raise UsageError(
            f"{unused} cannot be used with {mode}", why=f"with that, {ctx.command.name} takes only {usable}",
            hint=f"leave out {unused}",
        )  # fmt: skip
