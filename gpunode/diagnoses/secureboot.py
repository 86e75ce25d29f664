"""Secure Boot: the kernel takes no module whose signature it does not know.

What the kernel says (kernel/module/signing.c): with signatures enforced it names the reason, an unsigned module or one
with an unavailable key, and the call ends with EKEYREJECTED, in older kernels with ENOKEY. With lockdown alone it ends
with EPERM, and the log says "unsigned module loading is restricted" of a module with an unknown key, too: that line
never decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpunode.diagnoses import chains, symptoms
from gpunode.diagnoses.addresses import DRIVER_README
from gpunode.diagnoses.build import built_anew
from gpunode.diagnoses.commands import Shell, command, is_place
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import by_hand, install, reboot, run
from gpunode.diagnoses.snapshot import Snapshot, cite, lines_with, stated
from gpunode.diagnoses.views import driver, kernel, modules, packages, system
from gpunode.facts.items import Item
from gpunode.facts.patterns import Pattern

# modprobe, insmod, systemd-modules-load and NVIDIA's installer say it in the words of errno.
_REFUSED: Final = Pattern(
    r"Key was rejected by service|Required key not available|[Kk]ernel module load error: Operation not permitted"
    r"|(?:insert(?: module)?|kernel module) '?\S*nvidia\S*:? ?(?:Operation not permitted|Key has expired)"
)
_NAMED: Final = Pattern(r"(?:insert(?: module)?|kernel module) ['‘\"]?(?:\S*/)?(?P<module>[a-zA-Z][\w-]*)")
_IN_LOG: Final = Pattern(
    r"Loading of (?:unsigned module|module with un\w+ (?:key|crypto)) is rejected"
    r"|Lockdown: \S{1,20}: unsigned module loading is restricted"
)
_LOCKED: Final = Pattern(r"Lockdown: \S{1,20}: unsigned module loading is restricted")
_UNSIGNED: Final = Pattern(
    r"Loading of unsigned module is rejected|Secure boot is enabled on this system, so this is likely"
    r"|sign the kernel module when prompted|Answer: Install without signing"
    r"|kernel module is not signed|modules won't be signed|will not be signed"
)
_UNKNOWN_KEY: Final = Pattern(
    r"Loading of module with un(?:available|known) key is rejected|PKCS#7 signature not signed with a trusted key"
    r"|signed kernel module failed to load|does not trust any key which is capable"
)
_INSTALLER: Final = Pattern(
    r"Secure boot is enabled on this system, so this is likely|sign the kernel module when prompted"
    r"|signed kernel module failed to load|does not trust any key which is capable"
)
_ACCEPTED: Final = Pattern(r"^loading NVIDIA UNIX|module verification failed: signature and/or required key missing")
_IS_ON: Final = Pattern(
    r"SecureBoot enabled|[Ss]ecure [Bb]oot:?\s*(?:is )?(?:[✓✔]\s*)?[Ee]nabled|Kernel is locked down from EFI"
    r"|\[(?:integrity|confidentiality)\]|module\.sig_enforce(?!=0)"
)
# The firmware's variable, as od and xxd print it: four bytes of attributes, then the value.
_VARIABLE: Final = Pattern(r"\b0*6(?:\s+0+){3}\s+0*1\s*$|\b0600\s?0000\s?01\b", re.MULTILINE)
_IS_OFF: Final = Pattern(
    r"SecureBoot disabled|[Ss]ecure [Bb]oot:?\s*(?:is )?(?:[✗✘]\s*)?(?:[Dd]isabled|could not be determined)"
    r"|doesn't support Secure Boot|EFI variables are not supported on this system|validation is disabled in shim"
)
# Who signs: DKMS 3, Ubuntu's and Fedora's tools each have a key of the machine's own.
_SIGNS: Final = Pattern(
    r"/var/lib/dkms/mok\.(?:pub|key)|/var/lib/shim-signed/mok/MOK\.|/etc/pki/akmods/|mok_signing_key|mok_certificate"
    r"|Signing module |Sign command: |Signing key: |Secure Boot Module Signature key|DKMS module signing key"
)
_NOT_ENROLLED: Final = Pattern(r"is not enrolled|MokListRT is empty")
_PENDING: Final = Pattern(r"is already in the enrollment request")
_CERTIFICATE: Final = Pattern(
    r"(?P<path>/var/lib/dkms/mok\.pub|/var/lib/shim-signed/mok/MOK\.der|/etc/pki/akmods/certs/\S+\.der)"
    r"|^[ \t]*mok_certificate=\"?(?P<set>/[^\s\"]+)",
    re.MULTILINE,
)
_TABLES: Final = frozenset({"packages", "lsmod", "lspci", "nvml", "initramfs"})


@dataclass(frozen=True, slots=True)
class _Signature:
    """Whether NVIDIA's module has a signature, and whether that was seen or is what its builder usually does."""

    is_there: bool
    is_seen: bool
    citations: tuple[Citation, ...]


def _decide(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Whether the module has no signature, or one by a key that the firmware does not know."""
    if driver.works(snapshot) or modules.loaded(snapshot, "nvidia"):
        return
    refusals, enforced = tuple(_refusals(snapshot)), tuple(_enforced(snapshot))
    signature = _signature(snapshot)
    if refusals and signature is None:
        question = "Has the NVIDIA module no signature, or one by a key that is not enrolled?"
        other = ("secure-boot-module-unsigned",)
        yield "secure-boot-key-not-enrolled", Doubt(question, (Shell("modinfo nvidia | grep -i sig"),), refusals, other)
    elif signature is not None and (refusals or _will_be_refused(snapshot, signature, enforced)):
        cited = (*refusals, *signature.citations, *enforced, *snapshot.said(_NOT_ENROLLED))
        yield _verdict(signature, cited, is_sure=bool(refusals) and signature.is_seen)


def is_undecided(snapshot: Snapshot) -> bool:
    """Whether the kernel refused the module for its signature, and nothing tells what is wrong with that."""
    return any(isinstance(verdict, Doubt) for _, verdict in _decide(snapshot))


def _verdict(signature: _Signature, citations: tuple[Citation, ...], *, is_sure: bool) -> tuple[str, Verdict]:
    if signature.is_there:
        summary = "the NVIDIA module is signed with a key that the firmware does not know, so the kernel refuses it"
        return "secure-boot-key-not-enrolled", Proof(summary, citations, "certain" if is_sure else "likely")
    summary = "the NVIDIA module has no signature, and this kernel takes none without one"
    return "secure-boot-module-unsigned", Proof(summary, citations, "certain" if is_sure else "likely")


def _enforced(snapshot: Snapshot) -> Iterator[Citation]:
    """Where it is seen that Secure Boot, a lockdown or the command line asks for signatures."""
    yield from _anywhere(snapshot, _IS_ON)
    for item in snapshot.items:
        if "SecureBoot-" in item.written:
            yield from lines_with(item, _VARIABLE)
        elif item.subject.endswith("/sig_enforce") and item.text.strip() in {"Y", "1"}:
            yield cite(item, 1)


def _will_be_refused(snapshot: Snapshot, signature: _Signature, enforced: tuple[Citation, ...]) -> bool:
    """Whether the facts alone say that this kernel refuses the module, before anybody has tried to load it."""
    if not enforced or not signature.is_seen or modules.loaded(snapshot, "nvidia") is not False:
        return False
    return not tuple(_anywhere(snapshot, _IS_OFF)) and (not signature.is_there or snapshot.says(_NOT_ENROLLED))


def _refusals(snapshot: Snapshot) -> Iterator[Citation]:
    """The lines that say that the kernel refused NVIDIA's module, or a module that nobody names."""
    # SUSE's modprobe does not ask the kernel at all for a module that SUSE does not support.
    said = () if snapshot.says(modules.UNSUPPORTED) else snapshot.said(_REFUSED)
    named = {match["module"].replace("-", "_") for line in said if (match := _NAMED.search(line.line))}
    if named and not any(name.startswith("nvidia") for name in named):
        return
    yield from (line for line in said if (m := _NAMED.search(line.line)) is None or "nvidia" in m["module"])
    if not kernel.said(snapshot, _ACCEPTED):
        yield from snapshot.said(_IN_LOG)
        yield from (line for item in snapshot.of("installer-log", "text") for line in lines_with(item, _INSTALLER))


def _signature(snapshot: Snapshot) -> _Signature | None:
    """Whether the module is signed: by the kernel's own words, by modinfo, else by who builds modules here."""
    if found := snapshot.said(_UNSIGNED):
        return _Signature(is_there=False, is_seen=True, citations=found)
    if found := snapshot.said(_UNKNOWN_KEY):
        return _Signature(is_there=True, is_seen=True, citations=found)
    for item in snapshot.items:
        if item.is_seen and (is_there := _ends_signed(item)) is not None:
            return _Signature(is_there=is_there, is_seen=True, citations=(cite(item),))
    for item in snapshot.of("modinfo"):
        if (is_there := _shows_signature(item)) is not None:
            return _Signature(is_there=is_there, is_seen=True, citations=(_signature_line(item, is_there=is_there),))
    if found := (*snapshot.said(_NOT_ENROLLED), *_anywhere(snapshot, _SIGNS)):
        return _Signature(is_there=True, is_seen=False, citations=found)
    # DKMS 3 writes "module/version" and signs what it builds, with a key that it makes where there is none.
    builds = tuple(row.citation for row in snapshot.view(modules.driver_builds) if "/" in row.citation.line)
    if builds:
        return _Signature(is_there=True, is_seen=False, citations=builds)
    # A lockdown says so of a signature that it does not know, too; but nothing here signs modules.
    locked = snapshot.said(_LOCKED)
    return _Signature(is_there=False, is_seen=False, citations=locked) if locked else None


def _shows_signature(item: Item) -> bool | None:
    """What modinfo's answer tells; None where it is of another module, or would not have shown a signature."""
    if "nvidia" not in item.written or (item.outcome != "ok" and item.text.strip()):
        return None
    asks = any(word in {"signer", "sig_key", "sig_id", "sig_hashalgo"} for word in item.source.words)
    if re.search(r"^[ \t]*(?:signer|sig_key|sig_id|signature):\s*\S", item.text, re.MULTILINE):
        return True
    if asks and item.source.is_mixed and item.text.strip():
        # Beside other commands' answers a signer has to look like one, and silence tells nothing.
        return True if _SIGNER.search(item.text) else None
    if asks:
        return bool(item.text.strip())
    if re.search(r"sig", item.source.only, re.IGNORECASE):
        return False
    is_whole = not item.source.only and not item.source.is_part and "vermagic:" in item.text
    return False if is_whole else None


# The names that keys have: of a machine's own, of distributions, of NVIDIA; and the hex of a key's number.
_SIGNER: Final = Pattern(
    r"^[ \t]*(?:[^\n/]{0,80}\b(?:[Kk]ey|[Ss]ign\w*|[Ss]ecure ?[Bb]oot|MOK|CA|[Cc]ertificate|Canonical|Debian)\b"
    r"|(?:[0-9A-F]{2}:){7,}|sha(?:1|256|384|512)\s*$)",
    re.MULTILINE,
)
_SHOWS_TEXT: Final = Pattern(r"\b(?:xxd|strings|hexdump -C|od -\w*c|cat -v|grep)\b|^tail -c ?\d+ \S+$")


def _ends_signed(item: Item) -> bool | None:
    """What the end of the module's file tells: a signed one ends with a line that says so."""
    if not re.search(r"\btail -c ?-?\d+ \S*nvidia\S*\.ko(?![.\w])", item.written):
        return None
    if "appended~" in item.text:
        return True
    return False if _SHOWS_TEXT.search(item.written) and item.text.strip() else None


def _signature_line(item: Item, *, is_there: bool) -> Citation:
    number = next((n for n, line in enumerate(item.lines, 1) if re.match(r"\s*sig(?:ner|_key|nature)", line)), None)
    return cite(item, number) if is_there else stated(item.written, "no signer, no sig_key", item.key)


def _anywhere(snapshot: Snapshot, pattern: Pattern) -> Iterator[Citation]:
    """The lines with ``pattern`` wherever they stand, files included."""
    for item in snapshot.items:
        if item.kind not in _TABLES and item.is_seen and not item.is_register:
            yield from lines_with(item, pattern)


# Where a key of the machine's own is kept; one of anywhere else may be somebody else's.
_CERTIFICATES: Final = ("/var/lib/dkms", "/var/lib/shim-signed", "/etc/pki", "/etc/dkms", "/root")


def _named(snapshot: Snapshot) -> str:
    """The certificate that something names as that of the key that modules are signed with; empty where none does."""
    for item in snapshot.items:
        if item.kind not in _TABLES and (match := _CERTIFICATE.search(item.text) or _CERTIFICATE.search(item.written)):
            return match["path"] or match["set"]
    return ""


def _certificate(snapshot: Snapshot) -> str:
    """The certificate of the key that modules are signed with here."""
    if is_place(named := _named(snapshot), *_CERTIFICATES):
        return named
    if packages.matching(snapshot, "akmod-nvidia*"):
        return "/etc/pki/akmods/certs/public_key.der"
    return _UBUNTUS if _is_ubuntu(snapshot) else "/var/lib/dkms/mok.pub"


_LOCAL_BUILD: Final = Pattern(r"\bLocal build for nvidia-\w+-G0\d")
_UBUNTUS: Final = "/var/lib/shim-signed/mok/MOK.der"


def _is_ubuntu(snapshot: Snapshot) -> bool:
    known = system.distro(snapshot)
    if known is not None:
        return "ubuntu" in {known.id, *known.like}
    return "-generic" in snapshot.view(system.running_kernel) or "ubuntu" in snapshot.view(system.running_kernel)


# SUSE's packages make a key for each version of the driver when they are installed (openSUSE's SDB:NVIDIA_drivers).
_SUSES: Final = "/var/lib/nvidia-pubkeys"


def _enrol(snapshot: Snapshot) -> Iterable[Fix]:
    if not snapshot.says(_PENDING):
        text = "ask for the key to be enrolled; mokutil has you choose a password for the next boot"
        if packages.matching(snapshot, "nvidia*-kmp-*") or snapshot.says(_LOCAL_BUILD):
            where = f"the newest file below {_SUSES}, or below /usr/share/nvidia-pubkeys on older releases"
            yield by_hand("configure", f"{text}: sudo mokutil --import FILE, {where}")
        else:
            yield from _imported(text, _named(snapshot), _certificate(snapshot))
    text = "reboot with the console in view: choose Enroll MOK in the blue screen and type that password"
    yield reboot(text)
    yield from _instead(snapshot)


def _imported(text: str, named: str, certificate: str) -> Iterator[Fix]:
    """The import of a key that was looked at first: the firmware takes whatever it signs from then on."""
    if named and named != certificate:
        where = f"{named} is not where a machine's own signing key is kept: find out whose it is before you enroll it"
        yield by_hand("configure", f"{text}; {where}")
        return
    show = ("openssl", "x509", "-inform", "DER", "-noout", "-subject", "-dates", "-fingerprint", "-sha256", "-in")
    yield run(
        "configure",
        f"see whose key it is and whether it is enrolled already, then {text}",
        command("sudo", *show, certificate),
        command("sudo", "mokutil", "--test-key", certificate),
        command("sudo", "mokutil", "--import", certificate),
    )


def _instead(snapshot: Snapshot) -> Iterator[Fix]:
    if _is_ubuntu(snapshot):
        text = "take modules that Canonical has signed, which need no key of your own"
        flavour = snapshot.view(system.running_kernel).rpartition("-")[2] or "generic"
        branch = _branch(snapshot)
        # Of another branch than the libraries they would load, and nothing would work with them.
        names = (f"linux-modules-nvidia-{branch}-{flavour}",) if branch else ()
        text += "" if branch else f": linux-modules-nvidia-BRANCH-{flavour} of the installed driver's branch"
        yield install(snapshot, text, *names, when="nobody can reach the console")
    yield by_hand("firmware", "switch Secure Boot off in the firmware", "your rules allow a node without it")


def _branch(snapshot: Snapshot) -> str:
    """The branch of the driver that is installed; empty where nothing tells."""
    told = [info.version for info in snapshot.view(modules.driver_info)]
    told += [one.version for one in (driver.on_disk(snapshot), driver.library(snapshot)) if one is not None]
    told += [one.upstream for one in driver.packaged(snapshot) if one.is_installed]
    return next((version.partition(".")[0] for version in told if version), "")


def _sign(snapshot: Snapshot) -> Iterable[Fix]:
    certificate = _certificate(snapshot)
    makers = {
        _UBUNTUS: Shell("sudo update-secureboot-policy --new-key"),
        "/var/lib/dkms/mok.pub": Shell("sudo dkms generate_mok"),
    }
    other = Shell("sudo kmodgenca -a") if "akmods" in certificate else Shell("sudo dkms generate_mok")
    maker = makers.get(certificate, other)
    yield run("configure", "make a key of this machine for signing modules, where there is none yet", maker)
    yield run("rebuild", "build the module again, so that it is signed", *built_anew(snapshot))
    yield from _enrol(snapshot)


_KERNEL: Final = "https://www.kernel.org/doc/html/latest/admin-guide/module-signing.html"
_DEBIAN: Final = "https://wiki.debian.org/SecureBoot"

FAMILY: Final = Family(
    "secureboot",
    "Secure Boot",
    (
        Rule(
            cause="secure-boot-key-not-enrolled",
            layer="kernel",
            storey="kernel",
            severity="error",
            disruption="reboot",
            title="the key that signed the module is not enrolled",
            share=1.5,
            symptoms=(
                symptoms.KEY_REJECTED,
                symptoms.NO_DRIVER,
                symptoms.NO_MODULE,
            ),
            look_at=(
                Shell("mokutil --sb-state"),
                Shell("modinfo nvidia | grep -i sig"),
            ),
            story=(
                "With Secure Boot on, the kernel loads a module only when it knows the key of its signature. DKMS and "
                "akmods sign what they build with a key of the machine, but the firmware learns that key only when a "
                "person confirms it in the blue MokManager screen at the next boot; skipped, or asked for over the "
                "network, that step is missing. modprobe then says that the key was rejected by service, and "
                "everything above finds no driver although the module is built and in place."
            ),
            sources=(_KERNEL, _DEBIAN, "https://github.com/awesometic/realtek-r8126-dkms/issues/3"),
            check=only("secure-boot-key-not-enrolled", _decide),
            remedy=_enrol,
            explains=chains.NOT_ACCEPTED,
        ),
        Rule(
            cause="secure-boot-module-unsigned",
            layer="kernel",
            storey="kernel",
            severity="error",
            disruption="reboot",
            title="the module is not signed, and Secure Boot asks for it",
            share=1,
            symptoms=(
                symptoms.KEY_REJECTED,
                symptoms.NO_DRIVER,
                symptoms.NO_MODULE,
            ),
            look_at=(
                Shell("mokutil --sb-state"),
                Shell("modinfo nvidia | grep -i sig"),
            ),
            story=(
                "With Secure Boot on, or with module.sig_enforce or a kernel lockdown, the kernel loads no module "
                "without a signature. NVIDIA's installer signs only when told to, older versions of DKMS not at all, "
                "and a key that was not there at build time leaves the module without one: modinfo shows neither "
                "signer nor sig_key. The module has to be built again with a key, and that key be enrolled."
            ),
            sources=(
                _KERNEL,
                "https://man7.org/linux/man-pages/man7/kernel_lockdown.7.html",
                "https://github.com/lcp/mokutil/issues/69",
                f"{DRIVER_README}installdriver.html",
            ),
            check=only("secure-boot-module-unsigned", _decide),
            remedy=_sign,
            explains=chains.NOT_ACCEPTED,
        ),
    ),
)
