"""What ``[expect]`` of a recipe states, compared with what NVML tells."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.check import Check, Status
from gpunode.facts.nvml import Inventory
from gpunode.recipe import Expect

_RESEAT = "replace or reseat the hardware"


def expected(expect: Expect, inventory: Inventory | None) -> Iterator[Check]:
    """What ``[expect]`` states, compared with what NVML tells."""
    for name, wanted, seen, agrees in _comparisons(expect, inventory):
        status: Status = "not run" if inventory is None else "passed" if agrees else "failed"
        detail = f"expected {wanted}, " + ("NVML does not answer" if inventory is None else f"found {seen}")
        cure = "set driver.version in the recipe and run gpunode setup" if name == "driver" else _RESEAT
        yield Check(f"expect-{name}", f"expected {name}", status, detail, f"{cure}, or correct [expect]")


def _comparisons(expect: Expect, inventory: Inventory | None) -> Iterator[tuple[str, object, object, bool]]:
    gpus = inventory.gpus if inventory else ()
    if expect.gpus is not None:
        yield "gpus", expect.gpus, len(gpus), len(gpus) == expect.gpus
    if expect.model:
        names = sorted({str(gpu.name) for gpu in gpus})
        yield "model", expect.model, ", ".join(names), bool(names) and all(expect.model in name for name in names)
    if expect.driver:
        seen = str(inventory.driver) if inventory else ""
        yield "driver", expect.driver, seen, f"{seen}.".startswith(f"{expect.driver}.")
    if expect.memory_mib is not None:
        sizes = [gpu.memory_mib if isinstance(gpu.memory_mib, int) else 0 for gpu in gpus]
        yield "memory_mib", f"at least {expect.memory_mib}", sizes, bool(sizes) and min(sizes) >= expect.memory_mib
    if expect.ecc is not None:
        modes = [gpu.ecc for gpu in gpus]
        yield "ecc", expect.ecc, modes, bool(modes) and all(mode is expect.ecc for mode in modes)
