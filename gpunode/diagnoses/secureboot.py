"""Secure Boot: the kernel rejects modules whose signature it does not trust.

The kernel's messages (kernel/module/signing.c): with enforced signatures it names the reason, an unsigned module or an
unavailable key, and the call fails with EKEYREJECTED, in older kernels with ENOKEY. With lockdown alone it fails with
EPERM, and the log says "unsigned module loading is restricted" for a module with an unknown key, too: that line never
decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import consequences, symptoms
from gpunode.diagnoses.build import rebuild_commands
from gpunode.diagnoses.commands import Shell, command
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import manual_step, reboot_node, run_step
from gpunode.diagnoses.signs import (
    all_of,
    any_line,
    any_of,
    command_run,
    custom_sign,
    file_line,
    kernel_line,
    message_line,
    unless,
)
from gpunode.diagnoses.snapshot import Snapshot, cite_fact
from gpunode.diagnoses.views import packages, system
from gpunode.facts.patterns import Pattern

# modprobe, insmod, systemd-modules-load and NVIDIA's installer print the text of errno.
_MODULE_REJECTED_MESSAGE: Final = Pattern(
    r"Key was rejected by service|Required key not available|[Kk]ernel module load error: Operation not permitted"
    r"|(?:insert(?: module)?|kernel module) ['‘\"]?\S*nvidia\S*:? ?(?:Operation not permitted|Key has expired)"
)
_MODULE_NAME: Final = Pattern(r"(?:insert(?: module)?|kernel module) ['‘\"]?(?:\S*/)?(?P<module>[a-zA-Z][\w-]*)")


def _module_rejection_lines(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the lines in which the kernel rejected NVIDIA's module, or a module without a name."""
    return tuple(line for line in snapshot.matching_lines(_MODULE_REJECTED_MESSAGE) if _names_nvidia(line) is not False)


def _names_nvidia(line: Citation) -> bool | None:
    match = _MODULE_NAME.search(line.line)
    return match["module"].startswith("nvidia") if match else None


def _other_modules_rejected(snapshot: Snapshot) -> tuple[Citation, ...]:
    """Return the lines of rejected modules if all of them name another vendor's."""
    said = snapshot.matching_lines(_MODULE_REJECTED_MESSAGE)
    return said if all(_names_nvidia(line) is False for line in said) else ()


# A reporter whose NVIDIA module fails like another one may show only the other module's line.
_NVIDIA_MODULE_REJECTED_TOO: Final = message_line(
    r"\bmodules?\b[^\n]{0,60}\bnvidia\b[^\n]{0,60}\b(?:fails?|failed|rejected|refused|(?:not|n't) load)"
)
SIGNATURE_REFUSED: Final = unless(custom_sign(_module_rejection_lines), custom_sign(_other_modules_rejected))
"""The kernel rejected NVIDIA's module because of its signature."""
_LOCKDOWN: Final = message_line(r"Lockdown: \S{1,20}: unsigned module loading is restricted")
_MODULE_LOADED_ANYWAY: Final = kernel_line(
    r"^loading NVIDIA UNIX|nvidia: module verification failed: signature and/or required key"
)
_SECURE_BOOT_ON: Final = any_of(
    any_line(
        r"SecureBoot enabled|[Ss]ecure [Bb]oot:?\s*(?:is )?(?:[✓✔]\s*)?[Ee]nabled|Kernel is locked down from EFI"
        r"|\[(?:integrity|confidentiality)\]|module\.sig_enforce(?!=0)"
    ),
    file_line("*/sig_enforce", r"^\s*[Y1]\s*$"),
)
SECURE_BOOT_OFF: Final = any_line(
    r"SecureBoot disabled|[Ss]ecure [Bb]oot:?\s*(?:is )?(?:[✗✘]\s*)?(?:[Dd]isabled|could not be determined)"
    r"|doesn't support Secure Boot|EFI variables are not supported on this system|validation is disabled in shim"
)
# Field by field; a field that was requested alone has no name, and these words occur in keys' names.
_MODULE_SIGNATURE_LINE: Final = Pattern(
    r"(?m)^[ \t]*(?:signer|sig_key|sig_id|signature|sig_hashalgo):[ \t]*\S|appended~|^[ \t]*(?:[0-9A-F]{2}:){7,}"
    r"|^(?!SecureBoot (?:en|dis)abled)[^\n:/]{0,80}"
    r"\b(?:[Kk]ey|[Ss]igning|[Ss]ecure ?[Bb]oot|MOK|CA|[Cc]ertificate|Canonical|Debian)\b"
)
_MODULE_SIGNED: Final = custom_sign(lambda snapshot: snapshot.matching_lines(_MODULE_SIGNATURE_LINE, "modinfo"))


def _unsigned_module_lines(snapshot: Snapshot) -> Iterator[Citation]:
    for item in snapshot.items_of("modinfo"):
        is_whole = not (item.source.pattern or item.source.is_part) and "vermagic:" in item.text
        if is_whole and "nvidia" in item.written and not _MODULE_SIGNATURE_LINE.search(item.text):
            yield cite_fact(item.written, "no signer, no sig_key", item.key)


_UNSIGNED: Final = any_of(
    custom_sign(_unsigned_module_lines),
    command_run(r"\bmodinfo\b[^|]*nvidia[^|]*(?:\|.*sig|-F sig)|modinfo -F sig\w* nvidia", empty=True),
    any_line(r"Answer: Install without signing|kernel module is not signed|(?:modules won't|will not) be signed"),
)
_NOT_ENROLLED: Final = message_line(r"is not enrolled|MokListRT is empty")


# The certificate of a machine's own key, and the command that generates a missing one.
_CREATE_KEY_BY_CERTIFICATE: Final = {
    "/etc/pki/akmods/certs/public_key.der": Shell("sudo kmodgenca -a"),
    "/var/lib/shim-signed/mok/MOK.der": Shell("sudo update-secureboot-policy --new-key"),
    "/var/lib/dkms/mok.pub": Shell("sudo dkms generate_mok"),
}


def _certificate_path(snapshot: Snapshot) -> str:
    """Return the path of the signing key's certificate, as named in the evidence, else the build tool's default."""
    akmods, ubuntus, dkms = _CREATE_KEY_BY_CERTIFICATE
    texts = [f"{item.written}\n{item.text}" for item in snapshot.items if not item.is_package_record]
    usual = (
        akmods if packages.matching_packages(snapshot, "akmod-nvidia*") else ubuntus if _is_ubuntu(snapshot) else dkms
    )
    return next((path for path in _CREATE_KEY_BY_CERTIFICATE if any(path in text for text in texts)), usual)


def _is_ubuntu(snapshot: Snapshot) -> bool:
    known = system.find_distro(snapshot)
    return "ubuntu" in {known.id, *known.like} if known else "-generic" in snapshot.view(system.running_kernel)


def _enroll_key(snapshot: Snapshot) -> Iterable[Fix]:
    text = "request the enrolment of the key; mokutil asks for a password for the next boot"
    certificate = _certificate_path(snapshot)
    show = ("openssl", "x509", "-inform", "DER", "-noout", "-subject", "-dates", "-fingerprint", "-sha256", "-in")
    yield run_step(
        "configure",
        f"check whose key it is and whether it is already enrolled, then {text}",
        command("sudo", *show, certificate),
        command("sudo", "mokutil", "--test-key", certificate),
        command("sudo", "mokutil", "--import", certificate),
    )
    yield reboot_node("reboot and watch the console: choose Enroll MOK in the blue screen and type that password")
    if _is_ubuntu(snapshot):
        flavour = snapshot.view(system.running_kernel).rpartition("-")[2] or "generic"
        text = "use modules signed by Canonical, which need no key of your own"
        names = f"linux-modules-nvidia-BRANCH-{flavour} of the installed driver's branch"
        yield manual_step("install", f"{text}: {names}", "nobody has access to the console")
    yield manual_step("firmware", "disable Secure Boot in the firmware", "your policy allows a node without it")


def _sign_module(snapshot: Snapshot) -> Iterable[Fix]:
    text = "create this machine's key for signing modules, if there is none yet"
    yield run_step("configure", text, _CREATE_KEY_BY_CERTIFICATE[_certificate_path(snapshot)])
    yield run_step("rebuild", "build the module again, so that it is signed", *rebuild_commands(snapshot))
    yield from _enroll_key(snapshot)


_REJECTION_SYMPTOMS: Final = (symptoms.MODULE_KEY_REJECTED, symptoms.NO_DRIVER, symptoms.NO_MODULE)
_SIGNS_AGAINST_REJECTION: Final = (
    symptoms.DRIVER_WORKS,
    symptoms.MODULE_LOADED,
    _MODULE_LOADED_ANYWAY,
    unless(custom_sign(_other_modules_rejected), _NVIDIA_MODULE_REJECTED_TOO),
    unless(SECURE_BOOT_OFF, SIGNATURE_REFUSED),
)
_UNSIGNED_REJECTED: Final = message_line(
    r"Loading of unsigned module is rejected|Secure boot is enabled on this system, so this is likely"
    r"|sign the kernel module when prompted"
)
_NO_SIGNATURE: Final = any_of(_UNSIGNED, _UNSIGNED_REJECTED, unless(_LOCKDOWN, _MODULE_SIGNED))
_LOOK_AT_COMMANDS: Final = (Shell("modinfo nvidia | grep -i sig"), Shell("mokutil --sb-state"))

RULES: Final = (
    Rule(
        cause="secure-boot-key-not-enrolled",
        layer="kernel",
        disruption="reboot",
        share=1.5,
        decisive=any_of(
            message_line(
                r"Loading of module with un(?:available|known) (?:key|crypto) is rejected"
                r"|signed kernel module failed to load|does not trust any key which is capable"
            ),
            all_of(
                any_of(SIGNATURE_REFUSED, _LOCKDOWN),
                any_of(_MODULE_SIGNED, message_line(r"PKCS#7 signature not signed with a trusted key"), _NOT_ENROLLED),
            ),
        ),
        typical=any_of(_NOT_ENROLLED, unless(SIGNATURE_REFUSED, _NO_SIGNATURE)),
        symptoms=_REJECTION_SYMPTOMS,
        context=any_of(_MODULE_SIGNED, SIGNATURE_REFUSED),
        against=_SIGNS_AGAINST_REJECTION,
        look_at=_LOOK_AT_COMMANDS,
        remedy=_enroll_key,
        explains=consequences.MODULE_NOT_ACCEPTED,
    ),
    Rule(
        cause="secure-boot-module-unsigned",
        layer="kernel",
        disruption="reboot",
        decisive=any_of(_UNSIGNED_REJECTED, all_of(any_of(SIGNATURE_REFUSED, _LOCKDOWN), _UNSIGNED)),
        typical=any_of(all_of(_UNSIGNED, _SECURE_BOOT_ON), unless(_LOCKDOWN, _MODULE_SIGNED)),
        symptoms=_REJECTION_SYMPTOMS,
        against=_SIGNS_AGAINST_REJECTION,
        look_at=_LOOK_AT_COMMANDS,
        remedy=_sign_module,
        explains=consequences.MODULE_NOT_ACCEPTED,
    ),
)
