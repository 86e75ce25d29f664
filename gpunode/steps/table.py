"""The table of the steps: its order is the order of the plan.

An ordered tuple, not a graph: a reader sees what comes after what.
"""

from __future__ import annotations

from gpunode.outcome import Stage, Step
from gpunode.steps.cdi import CDI
from gpunode.steps.daemons import MPS, PERSISTENCE
from gpunode.steps.detect import DETECT
from gpunode.steps.driver import CONFLICTS, DRIVER, DRIVER_PIN, RUN_DRIVER
from gpunode.steps.fabric import FABRIC, FABRIC_BRIDGE, FABRIC_SERVICE
from gpunode.steps.gpudirect import GPUDIRECT, GPUDIRECT_MODULES
from gpunode.steps.kernel import HEADERS, MODULE_BUILD, MODULE_LOAD, NOUVEAU
from gpunode.steps.mig import MIG
from gpunode.steps.node_registration import NODE_REGISTRATION
from gpunode.steps.packages import CUDA_REPOSITORY, CUDA_TOOLKIT, MISSING_DEPENDENCIES, REPAIR, TOOLKIT_REPOSITORY
from gpunode.steps.runtime import RUNTIME_CONFIG, RUNTIME_INSTALL
from gpunode.steps.secure_boot import SECURE_BOOT
from gpunode.steps.toolkit import TOOLKIT

STAGES: tuple[Stage, ...] = ("sources", "packages", "kernel", "runtime")

STEPS: tuple[Step, ...] = (
    DETECT,
    REPAIR,
    CUDA_REPOSITORY,
    TOOLKIT_REPOSITORY,
    DRIVER_PIN,
    RUN_DRIVER,
    SECURE_BOOT,
    CONFLICTS,
    HEADERS,
    NOUVEAU,
    DRIVER,
    FABRIC,
    GPUDIRECT,
    CUDA_TOOLKIT,
    TOOLKIT,
    RUNTIME_INSTALL,
    MISSING_DEPENDENCIES,
    MODULE_BUILD,
    MODULE_LOAD,
    FABRIC_BRIDGE,
    PERSISTENCE,
    FABRIC_SERVICE,
    GPUDIRECT_MODULES,
    MPS,
    RUNTIME_CONFIG,
    MIG,
    CDI,
    NODE_REGISTRATION,
)

DRIVER_STEPS = frozenset(step.id for step in STEPS if step.for_driver)


def find_needed_steps(step: str) -> frozenset[str]:
    """Return the ids of the steps that ``step`` needs, directly or not; none for an unknown step."""
    direct = next((one.needs for one in STEPS if one.id == step), ())
    return frozenset(direct).union(*map(find_needed_steps, direct))
