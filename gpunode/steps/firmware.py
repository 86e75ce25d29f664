"""What a driver alone does not make work: modules under Secure Boot, and GPUs that are joined by NVSwitches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpunode.catalog.gpus import lookup
from gpunode.command import gpunode
from gpunode.facts.model import Facts, Known, PciDevice, known
from gpunode.steps.gpus import nvswitches, own_gpus

_FABRIC_MANAGER: Final = "nvidia-fabricmanager.service"
# Their switches are managed through a ConnectX bridge and are not on the PCI bus themselves: NVIDIA's fabric manager
# user guide, "NVLink5 Switches"; the start script of NVIDIA's gpu-driver-container looks for that bridge.
_SWITCHES_OFF_THE_BUS: Final = "Blackwell"


def secure_boot_note(facts: Facts) -> Iterator[str]:
    """Yield that modules which DKMS builds do not load until a key is enrolled; nothing once a driver is loaded."""
    if known(facts.secure_boot, False) and known(facts.loaded_driver, None) is None:
        how = gpunode("doctor", "secure-boot-key-not-enrolled")
        yield (
            "Secure Boot is on: the kernel loads the modules that DKMS builds only after this machine's key is "
            "enrolled, which a person confirms at the console during a reboot and gpunode does not do yet; "
            f"`{how}` shows the commands"
        )


def fabric_notes(devices: tuple[PciDevice, ...], facts: Facts) -> Iterator[str]:
    """Yield what GPUs that are joined by NVSwitches need beside the driver, unless the fabric manager runs."""
    unit = facts.unit(_FABRIC_MANAGER)
    manager = unit.value if isinstance(unit, Known) and unit.value.exists else None
    if manager is not None and manager.state.active:
        return
    if switches := nvswitches(devices):
        found = "1 NVSwitch" if len(switches) == 1 else f"{len(switches)} NVSwitches"
        needs = "nvidia-fabricmanager of the driver's exact version"
    elif boards := sorted({model.name for model in map(lookup, _own_ids(devices)) if _is_on_hgx(model.device_id)}):
        found = f"{', '.join(boards)} on an HGX board, whose NVSwitches do not show on the PCI bus"
        needs = "nvidia-fabricmanager of the driver's exact version, and nvlsm"
    else:
        return
    if manager is not None:
        how = gpunode("doctor", "fabric-manager-not-running")
        yield f"{found}: CUDA on these GPUs needs nvidia-fabricmanager, which does not run; `{how}` shows the commands"
        return
    how = gpunode("doctor", "fabric-manager-not-installed")
    needs = f"also needs {needs}, which gpunode does not install yet"
    yield f"{found}: CUDA on these GPUs {needs}; `{how}` shows the commands"


def _own_ids(devices: tuple[PciDevice, ...]) -> list[str]:
    return [device.device for device in own_gpus(devices)]


def _is_on_hgx(device_id: str) -> bool:
    model = lookup(device_id)
    return model.nvswitch_board == "possible" and model.architecture == _SWITCHES_OFF_THE_BUS
