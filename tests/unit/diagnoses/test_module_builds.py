"""A failed build of the module: the error's own words tell the kernel's interface from its headers."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted

LOG = """DKMS make.log for nvidia-current-525.116.04 for kernel 6.3.0-1-amd64 (x86_64)
make: Entering directory '/usr/src/linux-headers-6.3.0-1-amd64'
/var/lib/dkms/nvidia-current/525.116.04/build/{}
make: *** [/usr/src/linux-headers-6.3.0-1-common/Makefile:1967: modules] Error 2
"""


@pytest.mark.parametrize(
    ("error", "cause", "confidence"),
    [
        ("nvidia.mod.c:10:10: fatal error: asm/orc_header.h: No such file or directory", "headers", "likely"),
        ("nvidia.mod.c:8:2: error: unknown type name 'foo'", "headers", "likely"),
        ("nvidia/nv.c:10:10: fatal error: linux/nowhere.h: No such file or directory", "api", "likely"),
        (
            "nvidia/nv.c:10:10: schwerwiegender Fehler: l/x.h: Datei oder Verzeichnis nicht gefunden",
            "api",
            "likely",
        ),
        ("nvidia/nv.c:10:10: error: implicit declaration of function 'pfn_valid'", "api", "certain"),
    ],
)
def test_missing_header_does_not_prove_a_changed_kernel(error: str, cause: str, confidence: str) -> None:
    (root,) = diagnose(take_snapshot(pasted.collect_pieces([("make.log", LOG.format(error))]))).roots
    causes = {"headers": "kernel-headers-missing", "api": "dkms-build-kernel-api"}
    assert (root.cause, root.confidence) == (causes[cause], confidence)
    assert ("not of the same build" in root.summary) == (cause == "headers")
