"""The state of Secure Boot: with it on, the kernel loads signed modules only.

Sources: UEFI specification 2.10, 3.3 (SecureBoot); shim's README.tpm and mok.c (MokSBStateRT: shim's own validation is
off); Documentation/filesystems/efivarfs.rst in the kernel's source: a variable's file begins with four bytes of
attributes.
"""

from __future__ import annotations

from typing import Final

from gpunode.facts.evidence import Evidence
from gpunode.facts.model import Fact, Known, Unknown
from gpunode.facts.patterns import Pattern
from gpunode.facts.reader import reason

VARIABLE: Final = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
SHIM_VARIABLE: Final = "/sys/firmware/efi/efivars/MokSBStateRT-605dab50-e046-4300-abb6-3dd810dd8b23"
KEY: Final = "secure-boot-variable"
SHIM_KEY: Final = "shim-validation-variable"
# The key of doctor's look: `mokutil --sb-state`.
_MOKUTIL: Final = "secure-boot"
_STATE: Final = Pattern(r"SecureBoot (enabled|disabled)")


def secure_boot(evidence: Evidence) -> Fact[bool]:
    """Return whether Secure Boot is on; a machine without the firmware's variable was started without it."""
    asked = evidence.get(_MOKUTIL)
    if asked is not None and (match := _STATE.search(asked.text)):
        is_validated = "validation is disabled in shim" not in asked.text
        return Known(match[1] == "enabled" and is_validated, _MOKUTIL)
    capture = evidence.get(KEY)
    if capture is None:
        return Unknown("not captured", KEY)
    if capture.outcome == "absent":
        return Known(False, KEY)
    if capture.outcome != "ok" or not capture.data:
        return Unknown(reason(capture), KEY)
    shim = evidence.get(SHIM_KEY)
    shim_is_off = shim is not None and shim.outcome == "ok" and shim.data[-1:] == b"\x01"
    return Known(capture.data[-1:] == b"\x01" and not shim_is_off, KEY)
