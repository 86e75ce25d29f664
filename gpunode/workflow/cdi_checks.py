"""The CDI checks of verify: what a container engine finds when it looks for GPUs as CDI devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpunode.check import Check
from gpunode.command import sudo_gpunode
from gpunode.container_runtimes import takes_only_cdi
from gpunode.facts.evidence import Probe
from gpunode.facts.model import Facts, Known
from gpunode.host.port import HostView
from gpunode.recipe import Recipe
from gpunode.runtimes import podman
from gpunode.steps import cdi
from gpunode.workflow.verify import CDI_TITLE

if TYPE_CHECKING:
    from gpunode.facts.cdi import CdiSpec

_SHOWN = 5


def cdi_checks(recipe: Recipe, facts: Facts, host: HostView) -> Iterator[Check]:
    """Yield the checks that the CDI devices of the recipe's containers are offered, and regenerated when needed."""
    if not cdi.requests_cdi(recipe):
        return
    loaded = facts.loaded_driver.value if isinstance(facts.loaded_driver, Known) else None
    if loaded is None:
        yield Check("cdi", CDI_TITLE, "skipped", "no NVIDIA driver is loaded", "fix the driver first")
        return
    judged = cdi.judge_specifications(recipe, facts, loaded)
    yield _check_devices(judged, recipe, host)
    yield from _check_refresh_units(facts)


def _check_devices(judged: cdi.CdiVerdict, recipe: Recipe, host: HostView) -> Check:
    anew = str(sudo_gpunode("setup", "--runtime", recipe.runtime.name))
    if judged.spec is None or judged.fault:
        return Check("cdi", CDI_TITLE, "failed", "; ".join(filter(None, (judged.fault, *judged.notes))), anew)
    if missing := [path for path in judged.spec.paths if _is_missing(path, host)]:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        detail = f"{judged.spec.path} names missing files: {', '.join(missing[:_SHOWN])}{more}"
        again = f"systemctl restart {cdi.UNIT}, or nvidia-ctk cdi generate --output={judged.spec.path}"
        return Check("cdi", CDI_TITLE, "failed", detail, again)
    if takes_only_cdi(recipe.runtime.name) and (lack := _podman_too_old(judged.spec, host)):
        return Check("cdi", CDI_TITLE, "failed", *lack)
    return Check("cdi", CDI_TITLE, "passed", f"{cdi.describe_verdict(judged)}; every file that it names exists")


def _is_missing(path: str, host: HostView) -> bool:
    pattern = re.sub(r"([*?[])", r"[\1]", path)
    found = host.look(Probe(f"listed:{path}", glob=pattern, contents=False))
    return found.outcome == "ok" and not found.data


def _podman_too_old(spec: CdiSpec, host: HostView) -> tuple[str, str] | None:
    """Return what podman is too old for and what to do; None if it is not."""
    told = host.look(Probe("podman-version", argv=("podman", "--version")))
    numbers = re.search(r"\d+(?:\.\d+)+", told.text)
    if told.outcome == "absent":
        return "podman is not installed", "gpunode setup --runtime podman"
    version = tuple(int(part) for part in numbers[0].split(".")) if numbers else None
    if version is not None and version < podman.LEAST:
        return f"{told.text.strip()} does not support CDI devices", "install podman 4.1 or later"
    if not podman.takes(version, spec.version):
        older = "gpunode ctk config --in-place --set features.no-additional-gids-for-device-nodes=true"
        what = f"{told.text.strip()} cannot read {spec.path}: it has CDI version {spec.version}"
        return (
            what,
            f"install a newer podman, or write an older CDI version:\n  {older}\n  systemctl restart {cdi.UNIT}",
        )
    return None


def _check_refresh_units(facts: Facts) -> Iterator[Check]:
    """Yield the check of the units that write the specification at boot and when the driver changes."""
    title = "the CDI specification is written again when the driver changes"
    service, path = (facts.unit(name) for name in (cdi.UNIT, cdi.PATH_UNIT))
    if not isinstance(service, Known) or not service.value.exists:
        detail = f"{cdi.UNIT} is missing; toolkit 1.18 and later have it"
        yield Check("cdi-refresh", title, "skipped", detail, "after a change of the driver, or of MIG: gpunode setup")
        return
    if service.value.masked:
        yield Check(
            "cdi-refresh", title, "skipped", f"{cdi.UNIT} is masked", "after a change of the driver: gpunode setup"
        )
        return
    units = {cdi.UNIT: service.value, **({cdi.PATH_UNIT: path.value} if isinstance(path, Known) else {})}
    wrong = [f"{name} has failed" for name, unit in units.items() if unit.failed]
    wrong += [f"{name} is not enabled" for name, unit in units.items() if not unit.state.enabled]
    if wrong:
        hint = f"systemctl reset-failed {cdi.UNIT}\nsystemctl enable --now {cdi.PATH_UNIT} {cdi.UNIT}"
        yield Check("cdi-refresh", title, "failed", "; ".join(wrong), hint)
        return
    yield Check(
        "cdi-refresh", title, "passed", f"{', '.join(units)} enabled; a change of MIG instances needs gpunode setup"
    )
