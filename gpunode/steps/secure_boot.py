"""Secure Boot: the kernel accepts the modules that DKMS builds only once their key is enrolled.

The driver is installed after its key. Its packages keep nouveau off the card, so a node rebooted with the driver and
without the key would have neither. Few nodes have Secure Boot on, so ``enrolment`` is loaded on use.
"""

from __future__ import annotations

from typing import Final

from gpunode.command import gpunode_command
from gpunode.distros.family import Family
from gpunode.facts.model import Facts, Known, value_or
from gpunode.facts.probes import ENROLMENT_REQUEST_FILE, KERNEL_ARGUMENTS_FILE, LOCKDOWN, SIG_ENFORCE, SIGNATURE_FILES
from gpunode.outcome import Planned, Refusal, Step, StepOutcome
from gpunode.package_id import PackageId
from gpunode.recipe import Recipe
from gpunode.steps.installed_driver import family_of, is_at_version, preexisting_driver, wants_driver

AWAITS_ENROLMENT_REASON: Final = "waits until the firmware has this machine's key, see Secure Boot"
_ENFORCEMENT_ARGUMENT: Final = "module.sig_enforce"


def driver_awaits_enrolment(recipe: Recipe, facts: Facts) -> bool:
    """Return whether the driver has to wait: modules that DKMS builds would not load until their key is enrolled.

    A recipe that skips the step does not wait: it says that somebody else takes care of the key.
    """
    return SECURE_BOOT_STEP.id not in recipe.skip and lacks_enrolment(recipe, facts)


def lacks_enrolment(recipe: Recipe, facts: Facts) -> bool:
    """Return whether the firmware does not have the key of the modules that DKMS builds."""
    if not isinstance(facts.module_key, Known) or _has_signed_modules(recipe, facts):
        return False
    from gpunode.steps.enrolment import is_trusted

    return not is_trusted(facts.module_key.value, facts)


def _has_signed_modules(recipe: Recipe, facts: Facts) -> bool:
    family = family_of(facts)
    return isinstance(family, Family) and family.has_signed_modules(recipe.driver.source)


def plan(recipe: Recipe, facts: Facts) -> StepOutcome:
    """Plan the enrolment of the key with which DKMS signs modules; see ``enrolment``."""
    if not wants_driver(recipe, facts):
        return Planned((), "this driver is not managed by gpunode", is_requested=False)
    if preexisting := preexisting_driver(recipe, facts):
        return Planned((), preexisting.reason)
    if _has_signed_modules(recipe, facts):
        state = "off" if not value_or(facts.secure_boot, True) else "no key of this machine is needed"
        return Planned((), f"{state}: the distribution has signed the driver's modules", is_requested=False)
    if facts.is_image:
        # Without shim only firmware with Secure Boot off boots the image.
        has_shim = is_at_version(value_or(facts.packages, {}).get(PackageId("shim-signed")), "")
        notes = (_IMAGE_ENROLMENT_NOTE,) if has_shim else ()
        return Planned((), "whether it is on is known only once the image boots", notes, is_deferred=True)
    if facts.module_key is None and value_or(facts.secure_boot, False):
        notes = () if value_or(facts.loaded_driver, None) else (_ENROLMENT_NOTE,)
        return Planned((), "on; which key signs modules was not captured", notes, is_deferred=True)
    if facts.module_key is None:
        if isinstance(facts.secure_boot, Known):
            return _find_unsignable_kernel_refusal(facts) or Planned((), "off", is_requested=False)
        return Planned((), f"unknown: {facts.secure_boot.reason}", is_requested=False)
    from gpunode.steps.enrolment import plan_enrolment

    return plan_enrolment(facts)


def _find_unsignable_kernel_refusal(facts: Facts) -> Refusal | None:
    """Return the refusal of a kernel that requires signed modules without Secure Boot: it trusts no key of DKMS'.

    Without Secure Boot the kernel does not trust shim's keys. Source: security/integrity/platform_certs/
    load_uefi.c, ``load_uefi_certs``.
    """
    why = _explain_signature_policy(facts)
    if not why or value_or(facts.loaded_driver, None):
        return None
    return Refusal(
        what="this kernel would reject the NVIDIA driver's modules, and the next boot would have no nouveau either",
        why=f"{why}, and Secure Boot is off: the kernel takes only modules whose key is built into it, and trusts no "
        "key of this machine's own",
        hint="turn that off (module.sig_enforce and lockdown are kernel arguments), or turn Secure Boot on in the "
        "firmware, then run the same command again\n"
        'or, where DKMS signs with a key that is built into this kernel, leave the step out: skip = ["secure-boot"]',
    )


def _explain_signature_policy(facts: Facts) -> str:
    """Return what makes the kernel require signed modules; empty if nothing does."""
    arguments = facts.text(KERNEL_ARGUMENTS_FILE).split()
    enforcing_words = [
        word
        for word in arguments
        if word in {_ENFORCEMENT_ARGUMENT, *(f"{_ENFORCEMENT_ARGUMENT}={on}" for on in "1yY")}
    ]
    if enforcing_words:
        return f"it was started with {enforcing_words[0]}"
    if facts.text(SIG_ENFORCE).strip() in {"Y", "1"}:
        return f"{SIG_ENFORCE} says Y"
    mode = facts.text(LOCKDOWN).partition("[")[2].partition("]")[0]
    return f"it is locked down ({LOCKDOWN} says {mode})" if mode in {"integrity", "confidentiality"} else ""


_ENROLMENT_NOTE: Final = (
    "Secure Boot is on: the kernel loads the modules that DKMS builds only after this machine's key is enrolled, which "
    f"somebody must confirm at the console during a reboot; "
    f"`{gpunode_command('doctor', 'secure-boot-key-not-enrolled')}` "
    "shows the commands"
)
_IMAGE_ENROLMENT_NOTE: Final = (
    "a machine that boots this image with Secure Boot on does not load the driver until its key is enrolled: run "
    "`gpunode setup` on it once, with somebody at its console"
)

SECURE_BOOT_STEP: Final = Step(
    "secure-boot",
    "Secure Boot",
    "packages",
    plan,
    serves=("driver",),
    for_driver=True,
    files=(KERNEL_ARGUMENTS_FILE, ENROLMENT_REQUEST_FILE, *SIGNATURE_FILES),
)
