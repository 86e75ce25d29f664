"""Optional checks of verify: ``[expect]`` of a recipe, the packages' files, CDI, and a container."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from gpunode.check import Check, CheckStatus
from gpunode.command import sudo_gpunode
from gpunode.container_runtimes import takes_only_cdi
from gpunode.distros.family import TOOLKIT_PACKAGES
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Facts, Known, value_or
from gpunode.facts.nvml import NvmlInventory
from gpunode.facts.patterns import Pattern
from gpunode.host.port import HostView
from gpunode.package_id import PackageId
from gpunode.packages import deb
from gpunode.recipe import Expect, Recipe
from gpunode.runtimes import ObservedConfig, Runtime, podman
from gpunode.steps import cdi
from gpunode.steps.installed_driver import is_at_version
from gpunode.steps.packages import wants_container_toolkit
from gpunode.wording import join_names
from gpunode.workflow.converge import run_probes
from gpunode.workflow.driver_checks import gpu_count_text

if TYPE_CHECKING:
    from gpunode.facts.cdi import CdiSpec
    from gpunode.host.container import ContainerCommands
    from gpunode.host.process import Runner


ReadEffectiveConfig: TypeAlias = Callable[[str], ObservedConfig | None]
CONTAINER_TITLE = "a container sees the same GPUs"
CDI_TITLE = "containers get the GPUs as CDI devices"
_check_cdi = partial(Check, "cdi", CDI_TITLE)
# How to resolve a difference, by the key of [expect].
_EXPECTATION_HINTS = {
    "gpus": "run gpunode doctor, then reseat or replace the missing GPU",
    "model": "find out which GPUs were put in",
    "driver": "set driver.version in the recipe and run `sudo gpunode setup`",
    "min_memory_mib": "find out which GPUs were put in",
    "ecc": "set ECC with nvidia-smi --ecc-config, then reset the GPUs",
}


def expectation_checks(expect: Expect, inventory: NvmlInventory | None) -> Iterator[Check]:
    """Yield a check for each key of ``[expect]``, compared with NVML's answer."""
    for name, wanted, seen, agrees in _comparisons(expect, inventory):
        status: CheckStatus = "skipped" if inventory is None else "passed" if agrees else "failed"
        detail = f"expected {wanted}, " + ("NVML does not answer" if inventory is None else f"found {seen}")
        yield Check(
            f"expect-{name}", f"expected {name}", status, detail, f"{_EXPECTATION_HINTS[name]}, or correct [expect]"
        )


def _comparisons(expect: Expect, inventory: NvmlInventory | None) -> Iterator[tuple[str, object, object, bool]]:
    gpus = inventory.gpus if inventory else ()
    if expect.gpus is not None:
        yield "gpus", expect.gpus, len(gpus), len(gpus) == expect.gpus
    if expect.model:
        names = sorted({str(gpu.name) for gpu in gpus})
        yield "model", expect.model, ", ".join(names), bool(names) and all(expect.model in name for name in names)
    if expect.driver:
        sizes_text = str(inventory.driver) if inventory else ""
        yield "driver", expect.driver, sizes_text, f"{sizes_text}.".startswith(f"{expect.driver}.")
    if expect.min_memory_mib is not None:
        sizes = [gpu.memory_mib if isinstance(gpu.memory_mib, int) else None for gpu in gpus]
        is_enough = bool(sizes) and all(size is not None and size >= expect.min_memory_mib for size in sizes)
        sizes_text = ", ".join("unknown" if size is None else str(size) for size in sizes)
        yield "min_memory_mib", f"at least {expect.min_memory_mib}", sizes_text, is_enough
    if expect.ecc is not None:
        modes = [gpu.ecc for gpu in gpus]
        yield "ecc", expect.ecc, modes, bool(modes) and all(mode is expect.ecc for mode in modes)


# The packages through which programs use the driver, by Debian's and NVIDIA's names, and Ubuntu's.
_DRIVER_LIBRARY_PACKAGE = Pattern(
    r"libcuda1|libnvidia-ml1|nvidia-smi|(?:libnvidia-compute|nvidia-utils)(?:-\d{3}(?:-server)?)?"
)
_EXECUTABLE_OR_LIBRARY_PATH = Pattern(r"/s?bin/[^/]+\Z|\.so(?:\.[\d.]+)?\Z")


def package_file_checks(recipe: Recipe, facts: Facts, host: HostView) -> Iterator[Check]:
    """Yield the check of the toolkit's programs and the driver's libraries against their packages' checksums.

    It finds a wrapper in place of the container runtime, or a library that somebody copied. Either may be intentional.
    """
    check = partial(Check, "package-files", "programs and libraries are those of their packages")
    packages = tuple(_packages_to_check(recipe, facts))
    if not packages:
        return
    probes = {package: deb.changed_files_probe(package) for package in packages}
    answers = run_probes(host, tuple(probes.values()))
    changed: dict[PackageId, list[str]] = {}
    for package, probe in probes.items():
        if (answer := answers[probe.key]).outcome != "ok":
            detail = f"{probe.source}: {answer.error or answer.outcome}"
            yield check("skipped", detail, f"see its output: {probe.source}")
            return
        if paths := list(filter(_EXECUTABLE_OR_LIBRARY_PATH.search, deb.parse_changed_files(answer.text))):
            changed[package] = paths
    if not changed:
        yield check("passed", f"by the checksums of {', '.join(map(str, packages))}")
        return
    named = ", ".join(path for paths in changed.values() for path in paths)
    installed = value_or(facts.packages, {})
    reinstall = deb.reinstall_command({package: installed[package] for package in changed})
    hint = f"look at them; if nobody changed them on purpose, reinstall the packages:\nsudo {reinstall}"
    yield check("failed", f"changed or missing: {named}", hint)


def _packages_to_check(recipe: Recipe, facts: Facts) -> Iterator[PackageId]:
    installed = value_or(facts.packages, {})
    for package in sorted(installed):
        is_of_toolkit = wants_container_toolkit(recipe) and package in TOOLKIT_PACKAGES
        is_of_driver = not package.arch and _DRIVER_LIBRARY_PACKAGE.fullmatch(package.name) is not None
        if (is_of_toolkit or is_of_driver) and is_at_version(installed[package], ""):
            yield package


_MAX_FILES_LISTED = 5


def cdi_checks(recipe: Recipe, facts: Facts, host: HostView) -> Iterator[Check]:
    """Yield the checks that the CDI devices of the recipe's containers exist, and stay up to date."""
    if not cdi.requests_cdi(recipe):
        return
    loaded = facts.loaded_driver.value if isinstance(facts.loaded_driver, Known) else None
    if loaded is None:
        yield _check_cdi("skipped", "no NVIDIA driver is loaded", "fix the driver first")
        return
    verdict = cdi.judge_specifications(recipe, facts, loaded)
    yield _check_cdi_devices(verdict, recipe, host)
    yield _check_refresh_units(facts)


def _check_cdi_devices(verdict: cdi.CdiVerdict, recipe: Recipe, host: HostView) -> Check:
    if verdict.spec is None or verdict.fault:
        return _check_cdi("failed", "; ".join(filter(None, (verdict.fault, *verdict.notes))), "sudo gpunode setup")
    if missing := [path for path in verdict.spec.paths if _is_file_missing(path, host)]:
        detail = f"{verdict.spec.path} names missing files: {join_names(missing, _MAX_FILES_LISTED)}"
        generate = f"nvidia-ctk cdi generate --output={verdict.spec.path}"
        return _check_cdi("failed", detail, f"systemctl restart {cdi.CDI_REFRESH_UNIT}, or {generate}")
    if takes_only_cdi(recipe.runtime.name) and (problem := _podman_problem(verdict.spec, host)):
        return _check_cdi("failed", *problem)
    return _check_cdi("passed", f"{cdi.describe_verdict(verdict)}; every file that it names exists")


def _is_file_missing(path: str, host: HostView) -> bool:
    pattern = re.sub(r"([*?[])", r"[\1]", path)
    capture = host.run_probe(Probe(f"listed:{path}", glob=pattern, contents=False))
    return capture.outcome == "ok" and not capture.data


def _podman_problem(spec: CdiSpec, host: HostView) -> tuple[str, str] | None:
    """Return why podman cannot use the specification and what to do; None if it can."""
    answer = host.run_probe(Probe("podman-version", argv=("podman", "--version")))
    numbers = re.search(r"\d+(?:\.\d+)+", answer.text)
    if answer.outcome == "absent":
        return "podman is not installed", "sudo gpunode setup"
    version = tuple(int(part) for part in numbers[0].split(".")) if numbers else None
    if version is not None and version < podman.MIN_PODMAN_VERSION:
        return f"{answer.text.strip()} does not support CDI devices", "install podman 4.1 or later"
    if not podman.supports_spec(version, spec.version):
        older = "gpunode ctk config --in-place --set features.no-additional-gids-for-device-nodes=true"
        what = f"{answer.text.strip()} cannot read {spec.path}: it has CDI version {spec.version}"
        restart = f"systemctl restart {cdi.CDI_REFRESH_UNIT}"
        return what, f"install a newer podman, or write an older CDI version:\n  {older}\n  {restart}"
    return None


def _check_refresh_units(facts: Facts) -> Check:
    """Check the units that write the specification at boot and when the driver changes."""
    check = partial(Check, "cdi-refresh", "the CDI specification is regenerated when the driver changes")
    service, path = (facts.unit(name) for name in (cdi.CDI_REFRESH_UNIT, cdi.REFRESH_PATH_UNIT))
    if not isinstance(service, Known) or not service.value.exists:
        detail = f"{cdi.CDI_REFRESH_UNIT} is missing; toolkit 1.18 and later have it"
        return check("skipped", detail, "after a change of the driver, or of MIG: sudo gpunode setup")
    if service.value.masked:
        return check("skipped", f"{cdi.CDI_REFRESH_UNIT} is masked", "after a change of the driver: sudo gpunode setup")
    units = {cdi.CDI_REFRESH_UNIT: service.value}
    units |= {cdi.REFRESH_PATH_UNIT: path.value} if isinstance(path, Known) else {}
    wrong = [f"{name} has failed" for name, unit in units.items() if unit.failed]
    wrong += [f"{name} is not enabled" for name, unit in units.items() if not unit.state.enabled]
    if wrong:
        both = f"{cdi.REFRESH_PATH_UNIT} {cdi.CDI_REFRESH_UNIT}"
        hint = f"systemctl reset-failed {cdi.CDI_REFRESH_UNIT}\nsystemctl enable --now {both}"
        return check("failed", "; ".join(wrong), hint)
    return check("passed", f"{', '.join(units)} enabled; a change of MIG instances needs gpunode setup")


def make_container_check(
    runner: Runner, read_effective_config: ReadEffectiveConfig
) -> Callable[[NvmlInventory, Runtime], Check]:
    """Return the check for ``verify.ExtraChecks``: a container with the node's configuration sees NVML's GPUs."""
    from gpunode.host import container  # loaded on use

    check = partial(Check, "container", CONTAINER_TITLE)

    def run(inventory: NvmlInventory, runtime: Runtime) -> Check:
        commands = _container_commands(runtime, read_effective_config)
        if commands is None:
            hint = "start a pod that requests nvidia.com/gpu"
            return check("skipped", f"{runtime.id} runs containers only for a kubelet", hint)
        result = container.check_container(runner, commands, inventory.uuids)
        seen = f"{gpu_count_text(len(inventory.uuids))}, by UUID, through {runtime.id}"
        leftover_notes = (f"left behind: {command_and_reason}" for command_and_reason in result.leftovers)
        detail = "; ".join((*(result.problems or (seen,)), *leftover_notes))
        return check("passed", detail) if result.passed else check("failed", detail, str(sudo_gpunode("doctor")))

    return run


def _container_commands(runtime: Runtime, read_effective_config: ReadEffectiveConfig) -> ContainerCommands | None:
    import secrets  # loaded on use, like the next

    from gpunode.host import container

    token = secrets.token_hex(4)  # so that concurrent checks do not remove each other's image
    match runtime.container_client:
        case "kubelet":
            return None
        case "docker run":
            return container.docker_commands(token)
        case "podman run":
            return container.podman_commands(token)
        case "ctr run":
            # Use the binary that the runtime's own configuration names, so that a wrong one shows.
            configured = read_effective_config(runtime.id)
            binary = configured.handlers.get("nvidia", "") if configured else ""
            return container.containerd_commands(token, **({"binary": binary} if binary else {}))
