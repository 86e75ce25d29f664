"""The enrolment of the key with which DKMS signs modules: made if missing, queued, confirmed at the console."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Final

from gpunode.change import Change, CommandChange, FileChange, FileState, KnownAfter, PackageChange
from gpunode.command import command, sudo_gpunode
from gpunode.errors import ChangeFailed
from gpunode.facts.model import MOK_TIMEOUT_S, Fact, Facts, Kernels, Known, ModuleKey, Unknown, require, value_or
from gpunode.facts.module_key import DKMS_KEY_FILES, PKCS11_KEY_PREFIX, UBUNTU_KEY_FILES, read_serial
from gpunode.facts.probes import ENROLMENT_REQUEST_FILE
from gpunode.outcome import Blocked, Planned, Refusal, StepOutcome
from gpunode.package_id import PackageId
from gpunode.steps.installed_driver import is_at_version

ENROLMENT_HASH_FILE: Final = "/run/gpunode-mok-password"
"""Holds the hash of the one-time password while mokutil reads it."""
KEY_BACKUP_FOLDER: Final = "/var/lib/gpunode/module-key"
"""Holds a copy of a key that gpunode generated."""
_MODULE_KEY_NOT_PROBED: Final = Unknown("not captured", "module-certificate")
_ENDLESS: Final = -1
_REQUIRED_TOOL_PACKAGES: Final = ("mokutil", "openssl")
# As DKMS 3.2.2 makes it. Both files are complete before either gets its name, since DKMS would replace half a pair. A
# pair that something else has made meanwhile is kept, and one of which only the key has its name is completed; an empty
# file counts as missing, as it does in the plan.
_MAKE_KEY_SCRIPT: Final = """\
set -eu
umask 077
if [ -s "$1" ] && [ -s "$2" ]; then exit 0; fi
if [ -s "$1" ] && [ ! -s "$2" ] && key=$(openssl pkey -in "$1" -pubout) &&
[ "$(openssl x509 -inform DER -in "$2.new" -noout -pubkey)" = "$key" ]; then mv "$2.new" "$2"; exit 0; fi
if [ -s "$1" ] || [ -s "$2" ]; then
echo "only one of $1 and $2 exists, and $2.new, if it exists, belongs to another key: remove it" >&2; exit 1; fi
for folder in "${1%/*}" "${2%/*}"; do [ -d "$folder" ] || install -d -m 0755 "$folder"; done
rm -f "$1.new" "$2.new"
openssl req -new -x509 -nodes -days 36500 -subj "/CN=DKMS module signing key" -newkey rsa:2048 \
-addext extendedKeyUsage=codeSigning -keyout "$1.new" -outform DER -out "$2.new"
chmod 0600 "$1.new"
chmod 0644 "$2.new"
sync "$1.new" "$2.new"
install -d -m 0700 @BACKUP@
cp -p --backup=numbered "$1.new" "@BACKUP@/${1##*/}"
cp -p --backup=numbered "$2.new" "@BACKUP@/${2##*/}"
sync @BACKUP@/*
mv "$1.new" "$1"
mv "$2.new" "$2"
""".replace("@BACKUP@", KEY_BACKUP_FOLDER)


def plan_enrolment(facts: Facts) -> StepOutcome:
    """Plan to make the key and to queue its enrolment; wait for the console until the firmware has it."""
    key = require(facts.module_key or _MODULE_KEY_NOT_PROBED, "which key signs kernel modules")
    if refused := _find_unusable_key_refusal(key):
        return refused
    request = require(facts.file(ENROLMENT_REQUEST_FILE), f"what {ENROLMENT_REQUEST_FILE} holds")
    if is_trusted(key, facts):
        return Planned(tuple(_plan_timeout_restore(key, request)), f"on; {_describe_key(key)} is enrolled")
    if key.queued:
        return Blocked("console", f"Secure Boot is on, and the next boot asks whether to enrol {_describe_key(key)}")
    packages = require(facts.packages, "which packages are installed")
    tools = tuple(
        PackageChange(package, packages.get(package), KnownAfter(why="Secure Boot"))
        for package in map(PackageId, _REQUIRED_TOOL_PACKAGES)
        if not is_at_version(packages.get(package), "")
    )
    again = "nobody has confirmed its enrolment at the console, so it is queued again"
    reason = again if request is not None else "the kernel loads the driver only once the firmware has this key"
    return Planned(
        (*tools, *_plan_enrolment_request(key, request)),
        f"on; {_describe_key(key)}: {reason}",
        change_notes=(_KEY_BEFORE_DRIVER_NOTE,),
    )


_KEY_BEFORE_DRIVER_NOTE: Final = (
    "Secure Boot is on, so the key comes first and the driver after it: setup shows a one-time password, which "
    "somebody has to type at the machine's console during the next boot; the driver is installed by the run after that"
)


def _describe_key(key: ModuleKey) -> str:
    if not key.der:
        return f"the key {key.key}"
    return f"the key of {key.certificate} (SHA-256 {certificate_fingerprint(key)[:16]}…)"


def certificate_fingerprint(key: ModuleKey) -> str:
    """Return the certificate's SHA-256 fingerprint; empty if there is none."""
    return sha256(key.der).hexdigest() if key.der else ""


def is_trusted(key: ModuleKey, facts: Facts) -> bool:
    """Return whether the kernel accepts this key's modules: it is enrolled, or has signed the loaded driver."""
    if key.enrolled:
        return True
    kernels, loaded = value_or(facts.kernels, Kernels(None, ())), value_or(facts.loaded_driver, None)
    signature = key.signatures.get(kernels.running or "")
    return bool(loaded and signature and signature.serial and signature.serial == read_serial(key.der))


def _find_unusable_key_refusal(key: ModuleKey) -> Refusal | None:
    if not key.der and not key.has_key:
        return None
    if key.is_made or (key.has_key and not key.der and key.is_half_named):
        return None
    if not key.der or not key.has_key:
        gone, there = (key.key, key.certificate) if key.der else (key.certificate, key.key)
        export = "\n`mokutil --export` writes the enrolled certificates to files, MOK-0001.der and so on"
        # Another path comes from a file, perhaps of a capture, so it must not be copied into a shell unread.
        is_usual = there in {*DKMS_KEY_FILES, *UBUNTU_KEY_FILES}
        give_up = command("sudo", "mv", there, f"{there}.old") if is_usual else f"move {there} away"
        return Refusal(
            what=f"half of this machine's key for kernel modules is gone: {gone} is missing or empty",
            why="DKMS silently creates both files again as soon as one is missing: modules that it then signs do "
            "not load under Secure Boot until the new key is enrolled at the console",
            hint=f"restore {gone} from a backup (if gpunode made the key, one is in {KEY_BACKUP_FOLDER})"
            f"{export if key.has_key else ''}\n"
            f"or discard the key, and enrol a new one:\n{give_up}\n"
            "then run the same command again",
        )
    if not key.is_der:
        convert = command(
            "sudo", "openssl", "x509", "-in", key.certificate, "-outform", "DER", "-out", f"{key.certificate}.der"
        )
        return Refusal(
            what=f"{key.certificate} cannot be enrolled: it is in PEM format",
            why="the firmware accepts only certificates in DER format",
            hint=f"{convert}\nthen name that file as mok_certificate in /etc/dkms/framework.conf",
        )
    return None


def _plan_enrolment_request(key: ModuleKey, request: FileState | None) -> Iterator[Change]:
    """Yield the changes that queue the enrolment: a missing key, the firmware's timeout, and the request itself."""
    if request is None:
        yield FileChange(ENROLMENT_REQUEST_FILE, None, FileState(f"{key.timeout_s}\n".encode(), 0o600))
    if not key.has_key or not key.der:
        argv = ("sh", "-c", _MAKE_KEY_SCRIPT, f"make the key {key.key} and its certificate", key.key, key.certificate)
        yield CommandChange(argv, "DKMS signs modules with it")
    if key.timeout_s != _ENDLESS:
        undo = ("mokutil", "--timeout", str(key.timeout_s))
        yield CommandChange(("mokutil", "--timeout", str(_ENDLESS)), "the next boot waits for the console", undo)
    queue = ("mokutil", "--import", key.certificate, "--hash-file", ENROLMENT_HASH_FILE)
    yield CommandChange(queue, "the next boot asks whether to enrol the key", ("mokutil", "--revoke-import"))


def _plan_timeout_restore(key: ModuleKey, request: FileState | None) -> Iterator[Change]:
    """Yield the changes that restore the firmware's timeout from before the request."""
    if request is None:
        return
    yield FileChange(ENROLMENT_REQUEST_FILE, request, None)
    seconds = _read_saved_timeout(request)
    if key.timeout_s == _ENDLESS and seconds != _ENDLESS:
        yield CommandChange(("mokutil", "--timeout", str(seconds)), "as it was before the key was enrolled")


def describe_kept_key(facts: Facts) -> Iterator[str]:
    """Yield what an undo leaves of the key and of its enrolment, each with the command that removes it."""
    if not isinstance(facts.module_key, Known):
        return
    key, request = facts.module_key.value, value_or(facts.file(ENROLMENT_REQUEST_FILE), None)
    if key.has_key and not key.key.startswith(PKCS11_KEY_PREFIX):
        remove = command("sudo", "rm", key.key, key.certificate)
        yield (
            f"the key {key.key} stays: DKMS signs every module with it; `{remove}` removes it (if gpunode made it, a "
            f"copy is in {KEY_BACKUP_FOLDER}); before it builds the next module, DKMS creates a new key, which has to "
            "be enrolled again"
        )
    if key.enrolled:
        delete = command("sudo", "mokutil", "--delete", key.certificate)
        yield (
            f"{key.certificate} stays enrolled for Secure Boot; `{delete}`, a reboot and the password on the console "
            "remove it"
        )
    if key.queued:
        yield "the next boot still asks whether to enrol this key; `sudo mokutil --revoke-import` cancels the request"
    if request is not None and key.timeout_s == _ENDLESS and (seconds := _read_saved_timeout(request)) != _ENDLESS:
        yield f"MokManager still waits indefinitely; `sudo mokutil --timeout {seconds}` restores its former timeout"


def _read_saved_timeout(request: FileState) -> int:
    before = request.content.decode("utf-8", "replace").strip()
    return int(before) if before.lstrip("-").isdecimal() else MOK_TIMEOUT_S


def find_module_signature_refusal(facts: Facts) -> Refusal | None:
    """Return the refusal of modules that the kernel would reject: unsigned ones, and those of another key."""
    if not isinstance(facts.module_key, Known):
        return None
    key = facts.module_key.value
    kernels = require(facts.kernels, "which kernels are installed")
    loaded = kernels.running if value_or(facts.loaded_driver, None) else None
    for kernel in kernels.wanted:
        signature = key.signatures.get(kernel)
        if signature is None or kernel == loaded or signature.serial == read_serial(key.der):
            continue
        state = f"is signed with another key, of {signature.signer}" if signature.serial else "has no signature"
        return Refusal(
            what=f"the NVIDIA module for kernel {kernel} {state}",
            why=f"Secure Boot is on, and {_describe_key(key)} signs what DKMS builds: the kernel would reject this "
            "module, and the next boot would have no driver. DKMS leaves a module unsigned where the kernel's "
            "sign-file is missing, and says so in its build log alone",
            hint="\n".join(_rebuild_commands(kernel, facts)),
        )
    return None


def _rebuild_commands(kernel: str, facts: Facts) -> Iterator[str]:
    yield str(sudo_gpunode("setup", "--only", "headers"))
    if build := value_or(facts.dkms, {}).get(kernel):
        which = f"{build.module}/{build.version}"
        yield command("sudo", "dkms", "unbuild", which, "-k", kernel)
        yield command("sudo", "dkms", "install", "--force", which, "-k", kernel)
    yield "then run the same command again"


def require_same_key(before: Fact[ModuleKey] | None, after: Fact[ModuleKey] | None) -> None:
    """Stop if the certificate was replaced between two probes, as DKMS does if half of a pair is gone.

    Raises:
        ChangeFailed: if it was.
    """
    if not isinstance(before, Known) or not isinstance(after, Known):
        return
    old, new = before.value, after.value
    if not old.der or (old.certificate, old.der) == (new.certificate, new.der):
        return
    raise ChangeFailed(
        f"the key that signs kernel modules was replaced during this run: {new.certificate} is another certificate",
        why=f"SHA-256 {certificate_fingerprint(old)} before, {certificate_fingerprint(new) or 'none'} now; the "
        "firmware does not have the new "
        "one, so modules that it signs do not load under Secure Boot. Do not reboot yet",
        hint=f"restore both files from a backup (if gpunode made the key: {KEY_BACKUP_FOLDER}), or run the same "
        "command again: it enrols the new key",
    )
