"""The child program that reads and sets a GPU's MIG layout through NVML; a driver call may never return.

``main`` reads one request from standard input, ``{"gpu": UUID, "before": LAYOUT, "after": LAYOUT}``, and prints one
answer; a layout is ``{"enabled": bool, "instances": [INSTANCE]}``, and INSTANCE what ``read_instances`` returns.
"""

from __future__ import annotations

import json
import sys

from gpunode.host.child import TYPE_CHECKING, child_command, print_json_answer_and_exit

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# nvidia-smi sets no limit for a GPU reset; NVIDIA's own mig-manager unit allows 480 s for all GPUs.
TIMEOUT_S = 240.0
_NO_SUCH_PROFILE_ERROR_CODES = frozenset({2, 3})  # InvalidArgument, NotSupported: mig-parted ignores both, too


def child_argv() -> tuple[str, ...]:
    """Return the command of the child program."""
    return child_command("gpunode.host.mig", packages=("pynvml",))


def read_instances(nvml: Any, device: Any) -> list[dict[str, object]]:
    """Return a GPU's GPU instances, by first slice, with the slices of their compute instances.

    Raises:
        NVMLError: if the driver fails.
    """
    return sorted((row for row, _ in _gpu_instances(nvml, device)), key=lambda row: str(row["start"]))


def _gpu_instances(nvml: Any, device: Any) -> Iterator[tuple[dict[str, object], Any]]:
    for profile in _gpu_profiles(nvml, device):
        handles = _list_instances(nvml, nvml.c_nvmlGpuInstance_t, profile, nvml.nvmlDeviceGetGpuInstances, device)
        for handle in handles:
            place = nvml.nvmlGpuInstanceGetInfo(handle).placement
            compute = sorted(slices for slices, _ in _compute_instances(nvml, handle))
            yield (
                {"profile": _short_profile_name(profile), "start": place.start, "size": place.size, "compute": compute},
                handle,
            )


def _compute_instances(nvml: Any, instance: Any) -> Iterator[tuple[int, Any]]:
    for profile in _compute_profiles(nvml, instance):
        kind = nvml.c_nvmlComputeInstance_t
        for handle in _list_instances(nvml, kind, profile, nvml.nvmlGpuInstanceGetComputeInstances, instance):
            yield profile.sliceCount, handle


def _gpu_profiles(nvml: Any, device: Any) -> Iterator[Any]:
    for number in range(nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        yield from _get_profile(nvml, lambda: nvml.nvmlDeviceGetGpuInstanceProfileInfo(device, number))  # noqa: B023


def _compute_profiles(nvml: Any, instance: Any) -> Iterator[Any]:
    for number in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        for engine in range(nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_COUNT):
            yield from _get_profile(
                nvml,
                lambda: nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, engine),  # noqa: B023
            )


def _get_profile(nvml: Any, call: Any) -> Iterator[Any]:
    """Yield the profile, if the GPU has it."""
    try:
        yield call()
    except nvml.NVMLError as error:
        if error.value not in _NO_SUCH_PROFILE_ERROR_CODES:
            raise


def _list_instances(nvml: Any, kind: Any, profile: Any, call: Any, parent: Any) -> list[Any]:
    from ctypes import byref

    instances = (kind * max(profile.instanceCount, 1))()
    count = nvml.c_uint(len(instances))
    call(parent, profile.id, instances, byref(count))
    return list(instances[: count.value])


def _short_profile_name(profile: Any) -> str:
    """Return ``1g.10gb`` for ``MIG 1g.10gb``."""
    name = profile.name
    text = name.decode("ascii", "replace") if isinstance(name, bytes) else str(name)
    return text.removeprefix("MIG ")


def main() -> None:
    """Set the requested layout and print the result."""
    print_json_answer_and_exit(lambda: apply_layout(json.load(sys.stdin)))


def apply_layout(request: dict[str, Any]) -> dict[str, object]:
    """Set the GPU's layout to ``after``; on a failure, ``doing`` names the step.

    Returns:
        ``result``: done; pending if MIG mode changes at the GPU's next reset; changed if the layout was neither
        ``before`` nor ``after``; failed, with NVML's error.
    """
    import pynvml

    doing = ["start NVML"]
    try:
        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByUUID(request["gpu"])
        enabled = bool(pynvml.nvmlDeviceGetMigMode(device)[0])
        now = {"enabled": enabled, "instances": read_instances(pynvml, device) if enabled else []}
        if now not in (request["before"], request["after"]):
            return {"result": "changed", "now": now}
        return {"result": _set_layout(pynvml, device, now, request["after"], doing)}
    except pynvml.NVMLError as error:
        return {"result": "failed", "doing": doing[-1], "code": error.value, "text": str(error)}


def _set_layout(nvml: Any, device: Any, current: dict[str, object], after: dict[str, Any], doing: list[str]) -> str:
    wanted = int(after["enabled"])
    if current != after and current["enabled"]:
        doing.append("remove its MIG instances")
        _destroy_instances(nvml, device)
    modes = nvml.nvmlDeviceGetMigMode(device)
    if modes != [wanted, wanted]:
        doing.append(f"switch MIG {'on' if wanted else 'off'}")
        nvml.nvmlDeviceSetMigMode(device, wanted)
        modes = nvml.nvmlDeviceGetMigMode(device)
    if modes[0] != wanted:
        return "pending"
    if current != after:
        by_name = (
            {_short_profile_name(profile): profile for profile in _gpu_profiles(nvml, device)}
            if after["instances"]
            else {}
        )
        for row in after["instances"]:
            doing.append(f"make the instance {row['profile']} at slice {row['start']}")
            _create_instance(nvml, device, by_name.get(row["profile"]), row)
    return "done"


def _destroy_instances(nvml: Any, device: Any) -> None:
    for _, instance in list(_gpu_instances(nvml, device)):
        for _, compute in list(_compute_instances(nvml, instance)):
            nvml.nvmlComputeInstanceDestroy(compute)
        nvml.nvmlGpuInstanceDestroy(instance)


def _create_instance(nvml: Any, device: Any, profile: Any, row: dict[str, Any]) -> None:
    from ctypes import byref

    if profile is None:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    place = nvml.c_nvmlGpuInstancePlacement_t(row["start"], row["size"])
    instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(device, profile.id, byref(place))
    compute = {profile.sliceCount: profile for profile in reversed(list(_compute_profiles(nvml, instance)))}
    for slices in row["compute"]:
        if slices not in compute:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        nvml.nvmlGpuInstanceCreateComputeInstance(instance, compute[slices].id)


if __name__ == "__main__":
    main()
