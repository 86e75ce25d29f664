"""The table of the steps: its order is the order of the plan.

An ordered tuple, not a graph: a reader sees what comes after what.
"""

from __future__ import annotations

from gpunode.outcome import Stage, Step
from gpunode.steps.blacklist import NOUVEAU
from gpunode.steps.cdi import CDI
from gpunode.steps.conflicts import CONFLICTS
from gpunode.steps.detect import DETECT
from gpunode.steps.driver import DRIVER
from gpunode.steps.gpudirect import GPUDIRECT, GPUDIRECT_MODULES
from gpunode.steps.headers import HEADERS
from gpunode.steps.mig import MIG
from gpunode.steps.missing_dependencies import MISSING_DEPENDENCIES
from gpunode.steps.module import MODULE_BUILD, MODULE_LOAD
from gpunode.steps.mps import MPS
from gpunode.steps.node_registration import NODE_REGISTRATION
from gpunode.steps.persistence import PERSISTENCE
from gpunode.steps.pin import DRIVER_PIN
from gpunode.steps.repair import REPAIR
from gpunode.steps.repositories import CUDA_REPOSITORY, TOOLKIT_REPOSITORY
from gpunode.steps.runtime_config import RUNTIME_CONFIG
from gpunode.steps.runtime_install import RUNTIME_INSTALL
from gpunode.steps.toolkit import TOOLKIT

STAGES: tuple[Stage, ...] = ("sources", "packages", "kernel", "runtime")

STEPS: tuple[Step, ...] = (
    DETECT,
    REPAIR,
    CUDA_REPOSITORY,
    TOOLKIT_REPOSITORY,
    DRIVER_PIN,
    CONFLICTS,
    HEADERS,
    NOUVEAU,
    DRIVER,
    GPUDIRECT,
    TOOLKIT,
    RUNTIME_INSTALL,
    MISSING_DEPENDENCIES,
    MODULE_BUILD,
    MODULE_LOAD,
    PERSISTENCE,
    GPUDIRECT_MODULES,
    MPS,
    RUNTIME_CONFIG,
    MIG,
    CDI,
    NODE_REGISTRATION,
)

DRIVER_STEPS = frozenset(step.id for step in STEPS if step.for_driver)


def needed(step: str) -> frozenset[str]:
    """The ids of the steps that ``step`` needs, directly or through another; none for a step that is unknown here."""
    direct = next((one.needs for one in STEPS if one.id == step), ())
    return frozenset(direct).union(*map(needed, direct))
