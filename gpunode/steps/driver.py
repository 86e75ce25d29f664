"""The NVIDIA driver's packages, of the chosen branch and module flavour."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpunode.catalog.conflicts import BY_THEMSELVES, upstream
from gpunode.catalog.driver import Choice
from gpunode.change import KnownAfter, PackageChange, PackageState
from gpunode.facts.model import Facts, Known, known, need
from gpunode.outcome import Outcome, Planned, Step, StepPackages
from gpunode.package_id import PackageId
from gpunode.packages import system
from gpunode.recipe import Recipe
from gpunode.steps.gpus import own_gpus
from gpunode.steps.installed_driver import matches, prefix
from gpunode.steps.locked import astray, beside_driver, held_elsewhere, wanted_state
from gpunode.steps.marks import set_manual, why_manual
from gpunode.steps.module import is_loaded
from gpunode.steps.selection import (
    WantedDriver,
    apart_from,
    built_for_ubuntu,
    kept_version,
    modules_version,
    moved_along,
    wanted_driver,
)

# In the paths of what a driver's packages bring.
_FILES = ("libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjit", "nvidia-smi", "nvidia-persistenced", "nvidia-modprobe")
_SHOWS = frozenset({"nvidia", "nouveau"})
_DESKTOP = ("gdm3", "lightdm", "sddm", "xserver-xorg-core", "xwayland")
_SIGNATURES = (
    "the installed modules come prebuilt and signed by their vendor; DKMS signs its own with this machine's key. "
    "{when}, the kernel refuses them until that key is "
    "enrolled: mokutil --import /var/lib/shim-signed/mok/MOK.der (Debian: /var/lib/dkms/mok.pub), confirmed at the "
    "console during the next boot (MOK manager)"
)


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Every driver package of the scope is installed in the chosen branch; a satisfied one is not upgraded unasked."""
    driver = wanted_driver(recipe, facts)
    if not isinstance(driver, WantedDriver):
        return driver
    chosen = driver.chosen
    packages = need(facts.packages, "which packages are installed")
    names = driver.packages(recipe)
    missing = names if recipe.upgrade else tuple(n for n in names if not matches(packages.get(n), prefix(chosen)))
    strays = apart_from(recipe, facts, driver)
    along = moved_along(strays, packages)
    # Of the same version by another build: named with its revision, because the installed one counts as newer.
    foreign = () if recipe.upgrade else built_for_ubuntu(facts, driver)
    rebuilt = [one for one in foreign if one in names or one.name in BY_THEMSELVES]
    # With a lock also what came along with them, each in its own version.
    locked = astray(recipe, packages, beside_driver(recipe))
    wanted = tuple(dict.fromkeys((*missing, *strays, *along, *rebuilt, *locked)))
    rival = packages.get(driver.rival)
    if held := [name for name in (*wanted, driver.rival) if name in packages and packages[name].held]:
        return held_elsewhere(facts, held, f"driver {prefix(chosen)}*")
    leaving = () if rival is None else (PackageChange(driver.rival, rival, None),)
    away = tuple(system(facts).diverted(facts, _FILES))
    marked = set_manual(packages, (name for name in names if name not in wanted))
    if not wanted and not leaving:
        installed = f"driver {packages[names[0]].version} is installed"
        reason = why_manual(marked, facts) if marked else chosen.reason
        return Planned(marked, f"{installed}; {reason}", away)
    # A driver that is there keeps its version: what it lacks, and what has strayed from it, comes in that one.
    version = kept_version(recipe, facts, driver)
    after = KnownAfter(f"{version}-" if version else prefix(chosen), "driver")
    states = ((one, packages.get(one)) for one in wanted)
    as_modules = PackageState(modules_version(facts, driver)) if rebuilt else after
    changes = tuple(
        PackageChange(one, now, _after(driver, recipe, one, now, as_modules if one in rebuilt else after))
        for one, now in states
    )
    is_new = any(not matches(packages.get(name), "") for name in wanted)
    signed = _signed(driver, facts) if is_new else ()
    about_changes = (*(_display(recipe, facts) if is_new else ()), *signed, *_until_reboot(chosen, facts))
    reason = _apart(strays, packages, version) if version and strays and not missing else _reason(chosen, recipe)
    return Planned((*leaving, *changes, *marked), reason, away, about_changes)


def _apart(strays: Sequence[PackageId], packages: Mapping[PackageId, PackageState], version: str) -> str:
    """Why what has strayed is brought back."""
    first = f"{strays[0]} is {upstream(packages[strays[0]].version)}"
    others = f", and {len(strays) - 1} more are not" if strays[1:] else ""
    return f"{first}{others} of the installed driver, which is {version}: all must have the same version"


def _after(
    driver: WantedDriver,
    recipe: Recipe,
    package: PackageId,
    before: PackageState | None,
    otherwise: PackageState | KnownAfter,
) -> PackageState | KnownAfter:
    """The state to bring about; what came along as a dependency goes on counting as one."""
    came_along = before is not None and before.auto and not before.config_files_only
    auto = came_along and package not in driver.packages(recipe)
    return replace(wanted_state(recipe, package, otherwise), auto=auto)


def _until_reboot(chosen: Choice, facts: Facts) -> tuple[str, ...]:
    """A warning when the libraries change under a loaded module of another version."""
    loaded = known(facts.loaded_driver, None)
    if loaded is None or is_loaded(loaded, chosen):
        return ()
    return (f"driver {loaded.version} stays loaded until the reboot; programs that start in between find no GPU",)


def _signed(driver: WantedDriver, facts: Facts) -> tuple[str, ...]:
    """A warning when modules that DKMS builds take the place of those that a distribution has signed."""
    dkms_package = PackageId(driver.family.dkms_package(driver.chosen))
    has_dkms = matches(known(facts.packages, {}).get(dkms_package), "")
    is_prebuilt = any(not file.dkms for file in known(facts.module_files, ()))
    secure_boot = facts.secure_boot
    if not is_prebuilt or has_dkms or (isinstance(secure_boot, Known) and not secure_boot.value):
        return ()
    is_on = isinstance(secure_boot, Known)
    when = "Because Secure Boot is on" if is_on else "If Secure Boot is on (mokutil --sb-state)"
    return (_SIGNATURES.format(when=when),)


def _display(recipe: Recipe, facts: Facts) -> tuple[str, ...]:
    """A warning when a display may hang on a card that gets a driver without display libraries."""
    if recipe.driver.scope == "full":
        return ()
    packages = known(facts.packages, {})
    cards = [d.address for d in own_gpus(known(facts.devices, ())) if d.class_code == "0300" and d.driver in _SHOWS]
    desktop = sorted(name for name in _DESKTOP if matches(packages.get(PackageId(name)), ""))
    if not cards or not desktop:
        return ()
    where, what = ", ".join(cards), ", ".join(desktop)
    return (f'{what}: a display on {where} may go dark; driver.scope = "full" in the recipe keeps it',)


def _reason(chosen: Choice, recipe: Recipe) -> str:
    display = {
        "compute": "without display, NVENC and NVDEC libraries",
        "media": "with video, without a display",
        "full": "with a display",
    }
    version = chosen.exact or f"branch {chosen.branch}"
    return f"{version}, {chosen.flavour} modules, {display[recipe.driver.scope]}"


def _wanted_packages(recipe: Recipe, facts: Facts) -> tuple[PackageId, ...]:
    driver = wanted_driver(recipe, facts)
    return driver.packages(recipe) if isinstance(driver, WantedDriver) else ()


DRIVER = Step(
    "driver",
    "NVIDIA driver",
    "packages",
    plan,
    needs=("cuda-repository",),
    for_driver=True,
    packages=StepPackages(_wanted_packages, frozenset[PackageId]().__contains__),
)
