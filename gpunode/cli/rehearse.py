"""rehearse: setup, verify and rollback of a captured node, in memory."""

from __future__ import annotations

import sys
import tempfile

from gpunode import __version__
from gpunode.cli.envelope import Envelope
from gpunode.cli.inputs import RecipeOptions, list_unknown_facts, view_node
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.resume import hash_recipe
from gpunode.cli.samples import DEFAULT_SAMPLE, default_sample
from gpunode.journal.store import Store
from gpunode.workflow.converge import step_ids_by_change, triggers_of_plans
from gpunode.workflow.rehearse import rehearse as make
from gpunode.workflow.setup import SetupOptions


def rehearse(recipe_options: RecipeOptions, output: OutputOptions, node: str, gpu_ids: str) -> None:
    """Rehearse setup, verify and rollback on a captured node."""
    recipe = recipe_options.load()
    view = view_node(node or str(default_sample()), "/", gpu_ids)
    screen = output.open_screen()
    with tempfile.TemporaryDirectory(prefix="gpunode-rehearsal-") as folder, screen:
        screen.begin_rehearsal(recipe, node or DEFAULT_SAMPLE)
        options = SetupOptions(version=__version__, argv=tuple(sys.argv[1:]), recipe_sha256=hash_recipe(recipe))
        rehearsal = make(recipe, view.facts, view.evidence, Store(folder), options=options, on_event=screen.show_event)
        screen.show_rehearsal(recipe, rehearsal)
    output.emit(
        Envelope(
            "rehearse",
            changes=[change for stage in rehearsal.setup.applied for change in stage.changes],
            steps=step_ids_by_change(rehearsal.setup.applied),
            unknown=list_unknown_facts(view.facts),
            result={
                "rehearsal": True,
                "node": node or DEFAULT_SAMPLE,
                "checks": rehearsal.checks,
                "restored": rehearsal.restored,
                "triggers": triggers_of_plans(rehearsal.setup.applied, image=view.facts.is_image),
            },
        )
    )
