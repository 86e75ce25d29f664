"""rehearse: setup, verify and rollback of a captured node, in memory."""

from __future__ import annotations

import sys
import tempfile

from gpunode import __version__
from gpunode.cli.compose import Wanted, see, unknown
from gpunode.cli.envelope import Envelope
from gpunode.cli.output_options import OutputOptions
from gpunode.cli.resume import digest
from gpunode.cli.samples import SAMPLE, sample
from gpunode.journal.store import Store
from gpunode.workflow.converge import step_ids_by_change, triggers_of_plans
from gpunode.workflow.rehearse import rehearse as make
from gpunode.workflow.setup import SetupOptions


def rehearse(wanted: Wanted, how: OutputOptions, node: str, gpu: str) -> None:
    """Rehearses setup, verify and rollback on a captured node."""
    recipe = wanted.read()
    seen = see(node or str(sample()), "/", gpu)
    screen = how.screen()
    with tempfile.TemporaryDirectory(prefix="gpunode-rehearsal-") as folder, screen:
        screen.rehearsal_begins(recipe, node or SAMPLE)
        asked = SetupOptions(version=__version__, argv=tuple(sys.argv[1:]), recipe_sha256=digest(recipe))
        done = make(recipe, seen.facts, seen.evidence, Store(folder), options=asked, on_event=screen.tell)
        screen.rehearsal(recipe, done)
    how.answer(
        Envelope(
            "rehearse",
            changes=[change for stage in done.setup.applied for change in stage.changes],
            steps=step_ids_by_change(done.setup.applied),
            unknown=unknown(seen.facts),
            result={
                "rehearsal": True,
                "node": node or SAMPLE,
                "checks": done.checks,
                "restored": done.restored,
                "triggers": triggers_of_plans(done.setup.applied, image=seen.facts.is_image),
            },
        )
    )
