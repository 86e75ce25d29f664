"""The table of the steps: its order is the order of the plan.

An ordered tuple, not a graph: a reader sees what comes after what.
"""

from __future__ import annotations

from collections.abc import Collection

from gpunode.catalog.conflicts import is_deb_driver_package
from gpunode.outcome import Stage, Step
from gpunode.package_id import PackageId
from gpunode.steps.cdi import CDI_STEP
from gpunode.steps.daemons import MPS_STEP, PERSISTENCE_STEP
from gpunode.steps.detect import DETECT_STEP
from gpunode.steps.driver import CONFLICTS_STEP, DRIVER_PIN_STEP, DRIVER_STEP, RUN_DRIVER_STEP
from gpunode.steps.fabric import FABRIC_BRIDGE_STEP, FABRIC_SERVICE_STEP, FABRIC_STEP
from gpunode.steps.gpudirect import GPUDIRECT_MODULES_STEP, GPUDIRECT_STEP
from gpunode.steps.kernel import HEADERS_STEP, MODULE_BUILD_STEP, MODULE_LOAD_STEP, NOUVEAU_STEP
from gpunode.steps.mig import MIG_STEP
from gpunode.steps.node_registration import NODE_REGISTRATION_STEP
from gpunode.steps.packages import (
    CUDA_REPOSITORY_STEP,
    CUDA_TOOLKIT_STEP,
    MISSING_DEPENDENCIES_STEP,
    REPAIR_STEP,
    TOOLKIT_REPOSITORY_STEP,
)
from gpunode.steps.runtime import RUNTIME_CONFIG_STEP, RUNTIME_INSTALL_STEP
from gpunode.steps.secure_boot import SECURE_BOOT_STEP
from gpunode.steps.toolkit import TOOLKIT_STEP

STAGES: tuple[Stage, ...] = ("sources", "packages", "kernel", "runtime")

STEPS: tuple[Step, ...] = (
    DETECT_STEP,
    REPAIR_STEP,
    CUDA_REPOSITORY_STEP,
    TOOLKIT_REPOSITORY_STEP,
    DRIVER_PIN_STEP,
    RUN_DRIVER_STEP,
    SECURE_BOOT_STEP,
    CONFLICTS_STEP,
    HEADERS_STEP,
    NOUVEAU_STEP,
    DRIVER_STEP,
    FABRIC_STEP,
    GPUDIRECT_STEP,
    CUDA_TOOLKIT_STEP,
    TOOLKIT_STEP,
    RUNTIME_INSTALL_STEP,
    MISSING_DEPENDENCIES_STEP,
    MODULE_BUILD_STEP,
    MODULE_LOAD_STEP,
    FABRIC_BRIDGE_STEP,
    PERSISTENCE_STEP,
    FABRIC_SERVICE_STEP,
    GPUDIRECT_MODULES_STEP,
    MPS_STEP,
    RUNTIME_CONFIG_STEP,
    MIG_STEP,
    CDI_STEP,
    NODE_REGISTRATION_STEP,
)


def find_needed_step_ids(step: str) -> frozenset[str]:
    """Return the ids of the steps that ``step`` needs, directly or not; none for an unknown step."""
    direct = next((one.needs for one in STEPS if one.id == step), ())
    return frozenset(direct).union(*map(find_needed_step_ids, direct))


def list_served_packages(step: str, packages: Collection[PackageId]) -> list[PackageId]:
    """Return those of ``packages`` that need what ``step`` leaves on a node; none for an unknown step."""
    served = next((one.serves for one in STEPS if one.id == step), ())
    owners = [one for one in STEPS if one.id in served]
    return [package for owner in owners for package in sorted(packages) if _owns(owner, package)]


def _owns(step: Step, package: PackageId) -> bool:
    if step is DRIVER_STEP:  # its row owns none, so that a lock treats a driver's packages and dependencies alike
        return is_deb_driver_package(package.name)
    return step.packages is not None and step.packages.is_owned(package)
