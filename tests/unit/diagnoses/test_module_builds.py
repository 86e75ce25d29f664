"""A failed build of the module: the error's own words tell the kernel's interface from its headers."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose, symptoms
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


FAILED = """==> dkms install --no-depmod nvidia/{0} -k {1}
Error! Bad return status for module build on kernel: {1} (x86_64)
Consult /var/lib/dkms/nvidia/{0}/build/make.log for more information.
{2}"""


@pytest.mark.parametrize(
    ("driver", "kernel", "more", "causes"),
    [
        ("470.256.02", "6.14.4-arch1-2", "", ["dkms-build-kernel-api"]),
        ("390.157", "6.12.1-arch1-1", "", ["dkms-build-kernel-api"]),
        ("470.256.02", "6.1.0-31-amd64", "", []),
        ("570.144", "6.14.4-arch1-2", "", []),
        ("470.256.02", "6.14.4-arch1-2", "No space left on device", ["dkms-build-no-space"]),
    ],
)
def test_legacy_driver_does_not_build_for_a_later_kernel(
    driver: str, kernel: str, more: str, causes: list[str]
) -> None:
    shown = FAILED.format(driver, kernel, more)
    roots = diagnose(take_snapshot(pasted.collect_pieces([("pacman -S nvidia-470xx-dkms", shown)]))).roots
    assert [root.cause for root in roots] == causes
    assert all(root.confidence == "likely" for root in roots)


@pytest.mark.parametrize(
    ("failed", "is_module"), [("Makefile:9: bandwidth", False), ("Makefile:82: modules", True), ("vector", True)]
)
def test_other_makefiles_are_no_module_builds(failed: str, is_module: bool) -> None:
    node = take_snapshot(pasted.collect_pieces([("make", f"make: *** [{failed}] Error 127")]))
    assert bool(node.view(symptoms.BUILD_FAILED)) == is_module
