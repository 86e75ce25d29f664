"""verify: check that the node works, by asking the node itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from gpunode.change import subject
from gpunode.check import Check, Status
from gpunode.command import sudo_gpunode
from gpunode.errors import GpunodeError, Undetermined
from gpunode.facts import nvml as nvml_facts
from gpunode.facts.model import Facts, Known, Unknown, known
from gpunode.facts.nvml import Gpu, Inventory, NoAnswer, NvmlAnswer, NvmlFailure, Unread
from gpunode.host import nvml
from gpunode.host.port import HostView
from gpunode.outcome import Planned, Step, Waits
from gpunode.package_id import PackageId
from gpunode.recipe import Expect, Recipe
from gpunode.runtimes import DesiredConfig, ObservedConfig, Runtime, runtime
from gpunode.runtimes.found import contents, in_facts
from gpunode.runtimes.installations import placed
from gpunode.steps.cdi import CDI
from gpunode.steps.installed_driver import matches
from gpunode.steps.mig import MIG
from gpunode.steps.mig import is_wanted as mig_is_wanted
from gpunode.steps.module import MODULE_LOAD
from gpunode.steps.runtime_config import RUNTIME_CONFIG
from gpunode.steps.selection import WantedDriver, apart_from, wanted_driver
from gpunode.workflow.converge import StagePlan, partial
from gpunode.workflow.plan import plan
from gpunode.workflow.recovery import NOTHING_LEFT, Backlog

if TYPE_CHECKING:
    from gpunode.facts.cuda import CudaAnswer

Effective: TypeAlias = Callable[[str], ObservedConfig | None]


_WANTED = "matches the recipe"
_NOTHING_LEFT = "planned again: nothing left to do"
_READS = "the container runtime reads the runtime nvidia"
_SEES = "a container sees the same GPUs"
_DIVIDED = "the GPUs have the MIG layout"
OFFERED = "containers get the GPUs as CDI devices"


@dataclass(frozen=True, slots=True)
class Report:
    """What verify found.

    Attributes:
        inventory: what NVML told, when it did.
        untold: why checks could not be made for want of evidence, such as root's rights.
    """

    checks: tuple[Check, ...]
    inventory: Inventory | None = None
    untold: tuple[Undetermined, ...] = ()

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that say that the node does not work."""
        return tuple(check for check in self.checks if check.status == "failed")


@dataclass(frozen=True, slots=True)
class Extra:
    """Checks that start something on the node, so they are made only when asked for.

    Attributes:
        cuda: whether a vector addition runs on every GPU.
        container: runs a container and compares its GPUs with NVML's; None leaves it out.
    """

    cuda: bool = False
    container: Callable[[Inventory, Runtime], Check] | None = None


def verify(
    recipe: Recipe,
    facts: Facts,
    host: HostView,
    effective: Effective,
    extra: Extra | None = None,
    planned: Sequence[StagePlan] | None = None,
    left: Backlog = NOTHING_LEFT,
    only: Collection[str] = (),
) -> Report:
    """What the node answers, check by check; a check that cannot be made says so and is never passed.

    Args:
        recipe: the wanted state.
        facts: of the node now.
        host: the node.
        effective: what a runtime, by its id, has read; None where it is not there.
        extra: checks that start something.
        planned: the plan of the whole recipe for these very facts, where there is one already.
        left: what earlier runs left undone.
        only: ids of the steps whose work is checked; empty checks everything.
    """
    extra = extra or Extra()
    untold: list[Undetermined] = []
    # NVML and the runtime are asked side by side; each takes about 30 ms.
    with ThreadPoolExecutor(max_workers=1) as pool:
        asked = pool.submit(host.look, nvml.probe()) if _concerns(only, MODULE_LOAD) else None
        checks = [
            *_told(lambda: [configuration(recipe, facts, host, planned, left, only)], "configuration", _WANTED, untold)
        ]
        of_runtime: Sequence[Check] = ()
        if _concerns(only, RUNTIME_CONFIG):
            of_runtime = _told(lambda: [*runtime_checks(recipe, facts, effective)], "runtime", _READS, untold)
        answer = nvml_facts.answer_of(asked.result()) if asked else None
    inventory = answer if isinstance(answer, Inventory) else None
    if _concerns(only, MIG):
        checks += _mig_layout(recipe, facts)
    if answer is not None:
        checks += [*_driver(answer), *_versions(recipe, facts, answer), *_device_nodes(facts, inventory)]
    checks += of_runtime
    if _concerns(only, CDI):
        checks += _told(lambda: [*_cdi(recipe, facts, host)], "cdi", OFFERED, untold)
    if answer is not None:
        checks += _expected(recipe.expect, inventory)
    if extra.cuda:
        checks.append(_vector_addition(_cuda_answer(host)))
    if extra.container is not None:
        run = extra.container
        checks += _told(lambda: [_container(recipe, facts, inventory, run)], "container", _SEES, untold)
    return Report(tuple(checks), inventory, tuple(untold))


def _concerns(only: Collection[str], step: Step) -> bool:
    return not only or step.id in only


def _told(ask: Callable[[], Sequence[Check]], id: str, title: str, untold: list[Undetermined]) -> Sequence[Check]:  # noqa: A002 - the check's own word
    """The checks that ``ask`` makes; where evidence is missing, one that was not run, and why in ``untold``."""
    try:
        return ask()
    except Undetermined as error:
        untold.append(error)
        return [Check(id, title, "not run", _because(error.what, error.why), error.hint)]


def gpus(number: int) -> str:
    """``1 GPU``, ``8 GPUs``."""
    return "1 GPU" if number == 1 else f"{number} GPUs"


def configuration(
    recipe: Recipe,
    facts: Facts,
    host: HostView,
    planned: Sequence[StagePlan] | None = None,
    left: Backlog = NOTHING_LEFT,
    only: Collection[str] = (),
) -> Check:
    """Whether every step, planned again, finds nothing to do; what only a reboot can show is not run."""
    title = f"matches recipe {recipe.name}"
    try:
        plans = plan(recipe, facts, host, only) if planned is None else planned
    except Undetermined:
        raise
    except GpunodeError as error:
        return Check("configuration", title, "failed", _because(error.what, error.why), error.hint)
    if refusal := next((stage.refusal for stage in plans if stage.refusal), None):
        return Check("configuration", title, "failed", _because(refusal.what, refusal.why), refusal.hint)
    if todo := [*(step.step.title for stage in plans for step in stage.steps if step.changes), *left.left]:
        hint = "gpunode plan shows what, gpunode setup does it"
        return Check("configuration", title, "failed", f"still to do: {', '.join(todo)}", hint)
    if waits := [wait.reason for stage in plans for wait in stage.waits]:
        return Check("configuration", title, "not run", f"known after a reboot: {'; '.join(waits)}", "reboot")
    if left.unread:
        what = f"nothing left to do, but gpunode cannot tell whether an earlier run left work undone: {left.unread}"
        return Check("configuration", title, "not run", what, "run it as root")
    found = f"{', '.join(scope)}: nothing left to do" if (scope := partial(recipe, plans)) else _NOTHING_LEFT
    return Check("configuration", title, "passed", found)


def _mig_layout(recipe: Recipe, facts: Facts) -> Iterator[Check]:
    """Whether NVML shows the layout that the recipe asks for."""
    if not mig_is_wanted(recipe):
        return
    match MIG.plan(recipe, facts):
        case Planned(changes=(), later=False) as found:
            yield Check("mig", _DIVIDED, "passed", found.reason)
        case Planned(changes=()) as found:
            yield Check("mig", _DIVIDED, "not run", found.reason)
        case Planned() as found:
            todo = ", ".join(map(subject, found.changes))
            yield Check(
                "mig", _DIVIDED, "failed", f"still to do: {todo}", "gpunode plan shows what, gpunode setup does it"
            )
        case Waits() as wait:
            yield Check("mig", _DIVIDED, "not run", wait.reason, "reboot")
        case refusal:
            yield Check("mig", _DIVIDED, "failed", _because(refusal.what, refusal.why), refusal.hint)


def _because(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


def _driver(answer: NvmlAnswer) -> Iterator[Check]:
    title = "the driver answers (NVML)"
    if isinstance(answer, NoAnswer):
        status: Status = "not run" if answer.kind == "not asked" else "failed"
        yield Check("nvml", title, status, answer.reason, "read `dmesg | grep -iE 'nvrm|xid'`")
        return
    if isinstance(answer, NvmlFailure):
        yield Check("nvml", title, "failed", f"{answer.name} ({answer.code}): {answer.meaning}", answer.remedy)
        return
    if not answer.gpus:
        yield Check("nvml", title, "failed", f"driver {answer.driver} sees no GPU", "read `dmesg | grep -i nvrm`")
        return
    yield Check("nvml", title, "passed", f"driver {answer.driver}, CUDA {answer.cuda}, {gpus(len(answer.gpus))}")
    for gpu in answer.gpus:
        yield _gpu(gpu)


def _gpu(gpu: Gpu) -> Check:
    id, title = f"gpu-{gpu.index}", f"GPU {gpu.index}"  # noqa: A001 - the check's own word
    if gpu.faults:
        name, fault = gpu.faults[0]
        return Check(id, title, "failed", f"{name}: {fault.meaning}", fault.remedy)
    traits = [
        str(gpu.name),
        f"{gpu.memory_mib} MiB" if isinstance(gpu.memory_mib, int) else "",
        str(gpu.uuid),
        _switch("persistence", gpu.persistence),
        _switch("ECC", gpu.ecc),
    ]
    return Check(id, title, "passed", ", ".join(trait for trait in traits if trait))


def _switch(name: str, value: bool | Unread) -> str:
    if isinstance(value, Unread):
        return ""
    return f"{name} {'on' if value else 'off'}"


def _versions(recipe: Recipe, facts: Facts, answer: NvmlAnswer) -> Iterator[Check]:
    """The loaded module, the library in use and the installed package are one driver."""
    title = "module, library, package: one version"
    loaded = facts.loaded_driver.value if isinstance(facts.loaded_driver, Known) else None
    module = loaded.version if loaded else None
    library = None if isinstance(answer, NoAnswer) else str(answer.nvml or "")
    driver = _driver_here(recipe, facts)
    package = _package_version(recipe, facts, driver)
    problems = nvml_facts.compare(module, library, package)
    for problem in problems:
        yield Check("versions", title, "failed", problem.what, problem.hint)
    # For an upgrade every installed version is one to be replaced; here it is what the upgrade has led to.
    strays = apart_from(replace(recipe, upgrade=False), facts, driver) if driver else ()
    for stray in strays:
        what = f"{stray} is {known(facts.packages, {})[stray].version}, the installed package {package}"
        yield Check("versions", title, "failed", what, "gpunode setup brings it to the driver's version")
    if not problems and not strays and module:
        seen = nvml_facts.driver_version(library or "") or "not reported by NVML"
        yield Check("versions", title, "passed", f"module {module}, library {seen}, package {package or 'none'}")


def _driver_here(recipe: Recipe, facts: Facts) -> WantedDriver | None:
    """The driver that the node is to have; None where none is gpunode's, or nobody can tell which it should be."""
    try:
        driver = wanted_driver(recipe, facts)
    except Undetermined:
        return None
    return driver if isinstance(driver, WantedDriver) else None


def _package_version(recipe: Recipe, facts: Facts, driver: WantedDriver | None) -> str | None:
    """The installed driver's, of its kernel modules, else of the first of its packages; None where there is none."""
    if driver is None:
        return None
    packages = known(facts.packages, {})
    named = (PackageId(driver.family.dkms_package(driver.chosen)), *driver.packages(recipe))
    return next((packages[one].version for one in named if matches(packages.get(one), "")), None)


def _device_nodes(facts: Facts, inventory: Inventory | None) -> Iterator[Check]:
    """/dev/nvidiactl and one /dev/nvidiaN for every GPU, without which no process reaches the driver."""
    if inventory is None or isinstance(facts.device_nodes, Unknown):
        return
    wanted = {"/dev/nvidiactl", *(f"/dev/nvidia{gpu.index}" for gpu in inventory.gpus)}
    if missing := sorted(wanted - facts.device_nodes.value):
        yield Check(
            "device-nodes", "device nodes", "failed", f"missing: {', '.join(missing)}", "nvidia-modprobe -c 0 -u"
        )
        return
    yield Check("device-nodes", "device nodes", "passed", f"{len(wanted)} under /dev")


def runtime_checks(recipe: Recipe, facts: Facts, effective: Effective) -> Iterator[Check]:
    """The runtime itself reads NVIDIA's handler, whatever gpunode wrote."""
    if recipe.runtime.name == "none":
        return
    row = placed(runtime(recipe.runtime.name), facts)
    title = f"{row.id} reads the runtime nvidia"
    if row.product:
        # Its containerd is part of it and is not asked.
        says = row.inspect(contents(in_facts(facts, row, DesiredConfig())), DesiredConfig())
        yield _handler(row, recipe, says, f"{row.product} registers the runtime nvidia with its {row.id}")
        return
    try:
        found = effective(row.id)
    except Undetermined:
        raise
    except GpunodeError as error:
        yield Check("runtime", title, "failed", _because(error.what, error.why), f"systemctl status {row.unit}")
        return
    if found is None:
        yield Check(
            "runtime",
            title,
            "not run",
            f"{row.id} is not installed",
            str(sudo_gpunode("setup", "--runtime", row.id)),
        )
        return
    yield _handler(row, recipe, found, title)


def _handler(row: Runtime, recipe: Recipe, found: ObservedConfig, title: str) -> Check:
    if not row.unit:
        return Check("runtime", f"{row.id} starts containers", "passed", f"by {found.default}")
    binary = found.handlers.get("nvidia")
    if binary is None:
        hint = f"{sudo_gpunode('setup', '--runtime', row.id)}\nsudo systemctl restart {row.unit}"
        return Check("runtime", title, "failed", f"it knows: {', '.join(sorted(found.handlers)) or 'none'}", hint)
    if recipe.runtime.default and found.default != "nvidia":
        hint = f"systemctl restart {row.unit}; `gpunode plan` shows whether the file has it"
        return Check("runtime", title, "failed", f"the default runtime is {found.default}", hint)
    return Check(
        "runtime", title, "passed", f"nvidia runs {binary or 'its default'}; default runtime {found.default or 'runc'}"
    )


def _cdi(recipe: Recipe, facts: Facts, host: HostView) -> Iterator[Check]:
    from gpunode.workflow.cdi_checks import cdi_checks

    return cdi_checks(recipe, facts, host)


def _expected(expect: Expect, inventory: Inventory | None) -> Iterator[Check]:
    from gpunode.workflow.expectations import expected

    return expected(expect, inventory)


def _cuda_answer(host: HostView) -> CudaAnswer:
    from gpunode.facts.cuda import answer_of
    from gpunode.host import cuda

    return answer_of(host.look(cuda.probe()))


def _vector_addition(answer: CudaAnswer) -> Check:
    from gpunode.facts.cuda import CudaRun

    title = "vector addition on every GPU (CUDA)"
    if isinstance(answer, NoAnswer):
        return Check("cuda", title, "failed", answer.reason, "read `dmesg | grep -iE 'nvrm|xid'`")
    if not isinstance(answer, CudaRun):
        return Check("cuda", title, "failed", str(answer), answer.remedy)
    if answer.passed:
        elements = sum(gpu.elements for gpu in answer.gpus)
        return Check("cuda", title, "passed", f"Test PASSED: {elements} sums right on {gpus(len(answer.gpus))}")
    wrong = "; ".join(
        f"GPU {gpu.index} {gpu.name}: {gpu.error or f'{gpu.mismatches} of {gpu.elements} sums wrong'}"
        for gpu in answer.gpus
        if not gpu.passed
    )
    return Check("cuda", title, "failed", wrong or "CUDA sees no GPU", "take the GPU out of service and read `dmesg`")


def _container(
    recipe: Recipe, facts: Facts, inventory: Inventory | None, run: Callable[[Inventory, Runtime], Check]
) -> Check:
    title = _SEES
    if recipe.runtime.name == "none":
        return Check("container", title, "not run", "the recipe has no container runtime", "name one with --runtime")
    if inventory is None:
        return Check("container", title, "not run", "NVML does not answer on the host", "fix the driver first")
    row = placed(runtime(recipe.runtime.name), facts)
    if row.product:
        hint = "start a pod with runtimeClassName: nvidia"
        return Check("container", title, "not run", f"its {row.id} is part of {row.product}, which manages it", hint)
    try:
        return run(inventory, row)
    except Undetermined:
        raise
    except GpunodeError as error:
        return Check("container", title, "failed", _because(error.what, error.why), error.hint)
