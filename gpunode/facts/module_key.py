"""The key with which DKMS signs modules, and whether the firmware knows it. Read only if Secure Boot is on.

Sources: /usr/sbin/dkms 3.0.10 and 3.2.2 (``prepare_signing``): the order of its settings, and that it recreates both
files if one is missing. shim's mok.c and mokutil.c 0.6: the variables. UEFI specification 2.10, 32.4.1: lists of
signatures contain certificates as plain DER. kernel/scripts/sign-file.c: a signature names its certificate by the
serial number.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from gpunode.facts import kernels
from gpunode.facts.evidence import Capture, Evidence, Probe
from gpunode.facts.machine import parse_distro
from gpunode.facts.model import MOK_TIMEOUT_S, Fact, Known, ModuleKey, ModuleSignature, Unknown
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import MODULE_FILE_PROBE_KEYS
from gpunode.facts.reader import EvidenceReader, derive_fact, find_matches, read_text

DKMS_CONFIG_FILE: Final = "/etc/dkms/framework.conf"
DKMS_KEY_FILES: Final = ("/var/lib/dkms/mok.key", "/var/lib/dkms/mok.pub")
UBUNTU_KEY_FILES: Final = ("/var/lib/shim-signed/mok/MOK.priv", "/var/lib/shim-signed/mok/MOK.der")
PKCS11_KEY_PREFIX: Final = "pkcs11:"

_SHIM_VARIABLE_GUID: Final = "605dab50-e046-4300-abb6-3dd810dd8b23"
_EFIVARS: Final = "/sys/firmware/efi/efivars"
_DKMS_CONFIG_FOLDER_PROBE_KEY: Final = "dkms-framework"
_PRIVATE_KEY_PROBE_KEY: Final = "module-key"
_CERTIFICATE_PROBE_KEY: Final = "module-certificate"
_UNNAMED_CERTIFICATE_PROBE_KEY: Final = "module-certificate-new"
_QUEUED_ENROLMENT_PROBE_KEY: Final = "mok-new"
_MOK_TIMEOUT_PROBE_KEY: Final = "mok-timeout"
_MODULE_SIGNATURE_KEY_PREFIX: Final = "module-signature:"
# MokAuth is never read: it holds the hash of the one-time password.
_ENROLLED_KEYS_GLOBS: Final = {
    "mok-list": f"{_EFIVARS}/MokListRT*-{_SHIM_VARIABLE_GUID}",
    # The complete list, if the variable is too small for it (Linux 5.10).
    "mok-list-table": "/sys/firmware/efi/mok-variables/MokListRT*",
    "firmware-keys": f"{_EFIVARS}/db-d719b2cb-3d3a-11d3-a0d8-00c04fc2d0d2",
}
_KEY_PATH_SETTING: Final = Pattern(
    r"^[ \t]*(mok_signing_key|mok_certificate)=(?:\"([^\"\n]*)\"|'([^'\n]*)'|([^\s#;]*))", re.MULTILINE
)
_PEM_CERTIFICATE: Final = Pattern(r"-----BEGIN CERTIFICATE-----(.*?)-----END", re.DOTALL)
_MODINFO_SIGNATURE_FIELD: Final = Pattern(r"^(signer|sig_key):[ \t]*(.*?)[ \t]*$", re.MULTILINE)


def probe_module_key(evidence: Evidence, run_probe: Callable[[Probe], Capture]) -> None:
    """Have ``run_probe`` read everything that ``derive_module_key`` needs.

    ``run_probe`` adds the answers to ``evidence``, which has those of the usual probes.
    """
    run_probe(Probe(f"file:{DKMS_CONFIG_FILE}", path=DKMS_CONFIG_FILE, content_kind="log"))
    run_probe(Probe(_DKMS_CONFIG_FOLDER_PROBE_KEY, glob=f"{DKMS_CONFIG_FILE}.d/*.conf", content_kind="log"))
    key, certificate = find_key_files(evidence)
    if not key.startswith(PKCS11_KEY_PREFIX):
        # With a limit of 0, no content of a private key is read, only whether it is empty.
        run_probe(Probe(_PRIVATE_KEY_PROBE_KEY, glob=key, limit_bytes=0, content_kind="table"))
    run_probe(Probe(_CERTIFICATE_PROBE_KEY, path=certificate, content_kind="table"))
    run_probe(Probe(_UNNAMED_CERTIFICATE_PROBE_KEY, glob=f"{certificate}.new", contents=False, content_kind="table"))
    for name, pattern in _ENROLLED_KEYS_GLOBS.items():
        run_probe(Probe(name, glob=pattern, content_kind="table"))
    run_probe(Probe(_QUEUED_ENROLMENT_PROBE_KEY, path=f"{_EFIVARS}/MokNew-{_SHIM_VARIABLE_GUID}", content_kind="table"))
    run_probe(Probe(_MOK_TIMEOUT_PROBE_KEY, path=f"{_EFIVARS}/MokTimeout-{_SHIM_VARIABLE_GUID}", content_kind="table"))
    for kernel, path in _built_modules(evidence):
        run_probe(Probe(f"{_MODULE_SIGNATURE_KEY_PREFIX}{kernel}", argv=("modinfo", path), content_kind="table"))


def _built_modules(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """Yield the kernel and the path of every main module that DKMS has built."""
    matches = [match for key in MODULE_FILE_PROBE_KEYS for match in find_matches(evidence, key)]
    for file in kernels.find_module_files(matches, ()):
        if file.dkms:
            yield file.kernel, file.path


def find_key_files(evidence: Evidence) -> tuple[str, str]:
    """Return the paths of the private key and of the certificate that DKMS uses."""
    settings: dict[str, str] = {}
    texts = [read_text(evidence, f"file:{DKMS_CONFIG_FILE}")]
    texts += [
        (one.data or b"").decode("utf-8", "replace") for one in find_matches(evidence, _DKMS_CONFIG_FOLDER_PROBE_KEY)
    ]
    for text in texts:
        settings.update(
            (match[1], match[2] or match[3] or match[4] or "") for match in _KEY_PATH_SETTING.finditer(text)
        )
    key, certificate = settings.get("mok_signing_key", ""), settings.get("mok_certificate", "")
    # Ubuntu's pair is used only if no key is set; a certificate that is set is then ignored.
    distro = derive_fact("os-release", lambda: parse_distro(read_text(evidence, "os-release")))
    # DKMS compares only the id: Ubuntu's derivatives do not count.
    if not key and isinstance(distro, Known) and distro.value.id == "ubuntu":
        return UBUNTU_KEY_FILES
    return key or DKMS_KEY_FILES[0], certificate or DKMS_KEY_FILES[1]


def derive_module_key(evidence: Evidence) -> Fact[ModuleKey] | None:
    """Return the key's state; None if Secure Boot is off, as it is not probed then."""
    if _CERTIFICATE_PROBE_KEY not in evidence:
        return None
    return derive_fact(_CERTIFICATE_PROBE_KEY, lambda: _read_module_key(evidence))


def _read_module_key(evidence: Evidence) -> ModuleKey:
    reader = EvidenceReader(evidence)
    key, path = find_key_files(evidence)
    certificate = reader.data(_CERTIFICATE_PROBE_KEY) or b""
    pem = _PEM_CERTIFICATE.search(certificate.decode("latin-1"))
    der = base64.b64decode(pem[1]) if pem else certificate
    lists = b"".join(match.data or b"" for name in _ENROLLED_KEYS_GLOBS for match in reader.matches(name))
    queued, timeout = reader.data(_QUEUED_ENROLMENT_PROBE_KEY) or b"", reader.data(_MOK_TIMEOUT_PROBE_KEY)
    return ModuleKey(
        key,
        path,
        has_key=key.startswith(PKCS11_KEY_PREFIX)
        or any(match.data != b"" for match in reader.matches(_PRIVATE_KEY_PROBE_KEY)),
        der=der,
        is_half_named=bool(find_matches(evidence, _UNNAMED_CERTIFICATE_PROBE_KEY)),  # older captures have none
        is_der=der == certificate,
        enrolled=bool(der) and der in lists,
        queued=bool(der) and der in queued,
        # Four bytes of attributes come first.
        timeout_s=int.from_bytes(timeout[4:], "little", signed=True) if timeout else MOK_TIMEOUT_S,
        signatures=dict(_read_signatures(evidence)),
    )


def _read_signatures(evidence: Evidence) -> Iterator[tuple[str, ModuleSignature]]:
    for name, capture in evidence.items():
        if name.startswith(_MODULE_SIGNATURE_KEY_PREFIX) and capture.outcome == "ok":
            fields = {match[1]: match[2] for match in _MODINFO_SIGNATURE_FIELD.finditer(capture.text)}
            serial = fields.get("sig_key", "").replace(":", "")
            yield (
                name.removeprefix(_MODULE_SIGNATURE_KEY_PREFIX),
                ModuleSignature(fields.get("signer", ""), int(serial or "0", 16)),
            )


def read_serial(der: bytes) -> int:
    """Return a certificate's serial number; 0 if it is not a certificate. Source: RFC 5280, 4.1."""
    inner = _read_der_content(_read_der_content(der, 0x30), 0x30)
    if inner[:1] == b"\xa0":  # the version comes first, except in a certificate of version 1
        inner = inner[2 + int.from_bytes(inner[1:2], "big") :]
    return int.from_bytes(_read_der_content(inner, 0x02), "big")


def _read_der_content(der: bytes, tag: int) -> bytes:
    """Return the content of the first value; empty if its tag differs."""
    if len(der) < 2 or der[0] != tag:
        return b""
    size, start = der[1], 2
    if size & 0x80:
        start += size & 0x7F
        size = int.from_bytes(der[2:start], "big")
    return der[start : start + size]


def project_key_command(fact: Fact[ModuleKey], argv: tuple[str, ...]) -> Fact[ModuleKey]:
    """Return the key's state after a command of the step ``secure-boot``; others leave it as it is."""
    if isinstance(fact, Unknown):
        return fact
    key = fact.value
    match argv:
        case ("mokutil", "--import", *_):
            return replace(fact, value=replace(key, queued=True))
        case ("mokutil", "--timeout", seconds):
            return replace(fact, value=replace(key, timeout_s=int(seconds)))
        case ("sh", "-c", _, _, path, _) if path == key.key:
            return replace(fact, value=replace(key, has_key=True, is_made=True))
        case _:
            return fact
