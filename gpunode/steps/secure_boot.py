"""Secure Boot: the kernel takes the modules that DKMS builds only once their key is enrolled.

The driver comes after its key. Its packages keep nouveau off the card, so a node that was rebooted with the driver and
without the key would have neither. Few nodes have Secure Boot on, so what enrols a key is loaded on use.
"""

from __future__ import annotations

from typing import Final

from gpunode.command import gpunode
from gpunode.distros.family import Family
from gpunode.facts.model import Facts, Known, known
from gpunode.facts.probes import ENROLMENT_REQUEST, KERNEL_ARGUMENTS
from gpunode.outcome import Outcome, Planned, Step
from gpunode.recipe import Recipe
from gpunode.steps.installed_driver import family_of, preexisting_driver, wants_driver

WAITS: Final = "waits until the firmware has this machine's key, see Secure Boot"
_SIGNATURES: Final = "module.sig_enforce"


def awaits_enrolment(recipe: Recipe, facts: Facts) -> bool:
    """Return whether the driver has to wait: modules that DKMS builds would not load, as their key is not enrolled.

    A recipe that leaves the step out waits for nobody: it says that somebody else sees to the key.
    """
    return SECURE_BOOT.id not in recipe.skip and lacks_enrolment(recipe, facts)


def lacks_enrolment(recipe: Recipe, facts: Facts) -> bool:
    """Return whether the firmware does not have the key of the modules that DKMS builds."""
    if not isinstance(facts.module_key, Known) or _brings_signed_modules(recipe, facts):
        return False
    from gpunode.steps.enrolment import is_trusted

    return not is_trusted(facts.module_key.value, facts)


def _brings_signed_modules(recipe: Recipe, facts: Facts) -> bool:
    found = family_of(facts)
    return isinstance(found, Family) and found.brings_signed_modules(recipe.driver.source)


def plan(recipe: Recipe, facts: Facts) -> Outcome:
    """Plan the key enrolled that DKMS signs modules with; see ``enrolment``."""
    if not wants_driver(recipe, facts):
        return Planned((), "this driver is not managed by gpunode", asked=False)
    if preexisting := preexisting_driver(recipe, facts):
        return Planned((), preexisting.reason)
    if _brings_signed_modules(recipe, facts):
        state = "off" if not known(facts.secure_boot, True) else "no key of this machine is needed"
        return Planned((), f"{state}: the distribution has signed the driver's modules", asked=False)
    if facts.is_image:
        return Planned((), "whether it is on, the first boot of the image tells", (_IN_IMAGE,), later=True)
    if facts.module_key is None and known(facts.secure_boot, False):
        notes = () if known(facts.loaded_driver, None) else (_UNREAD,)
        return Planned((), "on; which key signs modules was not captured", notes, later=True)
    if facts.module_key is None:
        notes = (_ENFORCED,) if _requires_signatures(facts) else ()
        off = "off" if isinstance(facts.secure_boot, Known) else f"unknown: {facts.secure_boot.reason}"
        return Planned((), off, notes, asked=False)
    from gpunode.steps.enrolment import plan_enrolment

    return plan_enrolment(facts)


def _requires_signatures(facts: Facts) -> bool:
    """Return whether the kernel was told to take signed modules alone, whatever the firmware says."""
    arguments = known(facts.file(KERNEL_ARGUMENTS), None)
    words = arguments.content.decode("utf-8", "replace").split() if arguments else ()
    return any(word in {_SIGNATURES, f"{_SIGNATURES}=1", f"{_SIGNATURES}=y", f"{_SIGNATURES}=Y"} for word in words)


_ENFORCED: Final = (
    f"the kernel was started with {_SIGNATURES} and without Secure Boot: it takes only modules whose key is built into "
    "it, so the driver's will not load; remove that argument, or turn Secure Boot on and enrol a key"
)
_UNREAD: Final = (
    "Secure Boot is on: the kernel loads the modules that DKMS builds only after this machine's key is enrolled, which "
    f"somebody must confirm at the console during a reboot; `{gpunode('doctor', 'secure-boot-key-not-enrolled')}` "
    "shows the commands"
)
_IN_IMAGE: Final = (
    "a machine that boots this image with Secure Boot on does not load the driver until its key is enrolled: run "
    "`gpunode setup` on it once, with somebody at its console"
)

SECURE_BOOT: Final = Step(
    "secure-boot",
    "Secure Boot",
    "packages",
    plan,
    for_driver=True,
    files=(KERNEL_ARGUMENTS, ENROLMENT_REQUEST),
)
