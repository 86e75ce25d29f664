"""gpunode's reading of the output of apt 2.6 (Debian 12) and 3.0 (Debian 13), kept as printed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode.errors import Busy, ChangeFailed
from gpunode.host.apt import parse_apt_progress
from gpunode.host.apt_failures import (
    AptFailureKind,
    classify_failure,
    explain_failure,
    find_build_log,
    find_failed_packages,
)
from gpunode.package_id import PackageId
from gpunode.packages.deb.transactions import failed_fetches, index_file_prefix, is_update_incomplete, parse_simulation
from gpunode.packages.simulation import Action

FOLDER = Path(__file__).parent / "samples"
VERSIONS = ("apt-2.6.2", "apt-3.0.4")

KINDS: dict[str, AptFailureKind] = {
    "disk-full-archives": "disk",
    "disk-full-lists": "disk",
    "disk-full-unpack": "disk",
    "dkms-fails": "dkms",
    "dkms-other-fails": "dkms",
    "dpkg-interrupted": "interrupted",
    "hook-after-fails": "hook",
    "hook-before-fails": "hook",
    "install-404": "stale-index",
    "install-hash-mismatch": "mid-sync",
    "lock-archives": "lock",
    "lock-dpkg": "lock",
    "lock-frontend": "lock",
    "lock-lists": "lock",
    "read-only-archives": "read-only",
    "read-only-dpkg": "read-only",
    "read-only-lists": "read-only",
    "script-fails": "script",
    "simulate-downgrade-refused": "unmet",
    "simulate-essential": "unmet",
    "simulate-held-named": "held",
    "simulate-held-needed": "unmet",
    "simulate-held-needed-leave": "unmet",
    "simulate-nothing": "held",
    "simulate-unknown": "unmet",
    "simulate-unknown-version": "unmet",
    "simulate-unmet-exact": "unmet",
    "simulate-unmet-missing": "unmet",
    "update-503": "network",
    "update-503-warns": "network",
    "update-clock-behind": "clock",
    "update-hash-mismatch": "mid-sync",
    "update-hook-fails": "hook",
    "update-keyring-missing": "signature",
    "update-label-changed": "release-changed",
    "update-login-page": "network",
    "update-no-packages-file": "mid-sync",
    "update-no-pubkey": "signature",
    "update-no-pubkey-cached-warns": "signature",
    "update-no-release": "missing",
    "update-refused": "refused",
    "update-tls-handshake": "network",
    "update-tmp-closed": "temporary",
    "update-tmp-full": "temporary",
    "update-unexpected-size": "mid-sync",
    "update-unresolved": "network",
    "update-unsigned": "signature",
    "update-valid-until": "release-date",
}
# Samples that fail in one version only: apt 2.6 uses gpgv, apt 3.0 uses sqv, and they judge these differently.
ONLY: dict[tuple[str, str], AptFailureKind] = {
    ("apt-2.6.2", "update-certificate"): "certificate",
    ("apt-2.6.2", "update-expired-key"): "signature",
    ("apt-2.6.2", "update-certificate-early"): "clock",
    ("apt-3.0.4", "update-certificate-early"): "certificate",
    ("apt-3.0.4", "update-sha1-key"): "signature",
    ("apt-3.0.4", "dkms-source-gone"): "script",
}


@dataclass(frozen=True)
class Sample:
    stdout: str
    stderr: str
    exit_status: int


def sample(version: str, name: str) -> Sample:
    text = (FOLDER / version / f"{name}.txt").read_text()
    found = re.fullmatch(r"\$ .*?\n--- stdout\n(.*)--- stderr\n(.*)--- exit (\d+)\n", text, re.DOTALL)
    assert found
    return Sample(found[1], found[2], int(found[3]))


FAILURES = [(version, name, kind) for version in VERSIONS for name, kind in KINDS.items()]
FAILURES += [(version, name, kind) for (version, name), kind in ONLY.items()]


def test_every_sample_is_used_by_a_test() -> None:
    fine = {
        "update-good",
        "dkms-source-gone",
        "update-certificate",
        "update-certificate-early",
        "update-expired-key",
        "update-sha1-key",
        "simulate-install-purge",
        "install-purge-status",
    }
    fine |= {"simulate-dependent-removed", "simulate-downgrade", "simulate-held-leave"}
    assert {path.stem for path in FOLDER.rglob("*.txt")} == KINDS.keys() | fine


@pytest.mark.parametrize(("version", "name", "kind"), FAILURES)
def test_failure_is_classified_by_its_cause(version: str, name: str, kind: AptFailureKind) -> None:
    said = sample(version, name)
    assert classify_failure(said.stdout, said.stderr) == kind


@pytest.mark.parametrize(("version", "name", "kind"), FAILURES)
def test_failure_has_what_why_and_hint(version: str, name: str, kind: AptFailureKind) -> None:
    said = sample(version, name)
    error = explain_failure("do it", said.stdout, said.stderr)
    assert isinstance(error, Busy if kind == "lock" else ChangeFailed)
    assert error.what.startswith("could not do it: ")
    assert error.why.strip()
    assert error.hint
    assert len(error.why.splitlines()) <= 25
    for noise in ("[weak]", "Reading package lists", "Reading database"):
        assert noise not in error.why


@pytest.mark.parametrize("how", ["exited unexpectedly", "received signal 9.", "received a segmentation fault."])
def test_killed_dpkg_is_told_from_a_failed_package(how: str) -> None:
    """The kernel kills it when memory runs out; apt's own words (apt 2.6.2)."""
    error = explain_failure(
        "do it", "Selecting previously unselected package x.\n", f"E: Sub-process /usr/bin/dpkg {how}\n"
    )
    assert error.what == "could not do it: apt, or a program that it started, was killed or crashed"
    assert how in error.why
    assert "run the same command again" in error.hint
    itself = explain_failure("do it", "Unpacking x (1) ...\n", "", exit_status=137)
    assert itself.what == error.what
    assert itself.why.startswith("signal 9 ended apt")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["update-503-warns", "update-no-pubkey-cached-warns", "disk-full-lists"])
def test_update_with_warnings_is_no_success(version: str, name: str) -> None:
    said = sample(version, name)
    assert said.exit_status == 0
    assert is_update_incomplete(f"{said.stdout}\n{said.stderr}")


@pytest.mark.parametrize("version", VERSIONS)
def test_good_update_is_complete(version: str) -> None:
    said = sample(version, "update-good")
    assert not is_update_incomplete(f"{said.stdout}\n{said.stderr}")


@pytest.mark.parametrize("version", VERSIONS)
def test_simulation_is_parsed(version: str) -> None:
    said = sample(version, "simulate-install-purge")
    simulation = parse_simulation(said.stdout, said.stderr, ok=True)
    assert simulation.problem == ""
    assert simulation.actions == (
        Action("purge", PackageId("user-of-old"), former="1"),
        Action("purge", PackageId("old-driver"), former="470.1-1"),
        Action("purge", PackageId("old-lib")),
        Action("install", PackageId("driver-lib"), "580.1-1"),
        Action("install", PackageId("driver"), "580.1-1"),
    )


@pytest.mark.parametrize("version", VERSIONS)
def test_downgrade_has_both_versions(version: str) -> None:
    said = sample(version, "simulate-downgrade")
    first, _ = parse_simulation(said.stdout, said.stderr, ok=True).actions
    assert (str(first.id), first.former, first.version) == ("driver", "2:590.1-1", "580.1-1")


@pytest.mark.parametrize("version", VERSIONS)
def test_refusal_is_quoted(version: str) -> None:
    said = sample(version, "simulate-unmet-missing")
    problem = parse_simulation(said.stdout, said.stderr, ok=False).problem
    assert problem.startswith("The following packages have unmet dependencies:\n needs-missing : Depends: nosuch")
    assert problem.count("E: Unable to correct problems") == 1


def test_reason_from_the_newer_solver_is_kept() -> None:
    said = sample("apt-3.0.4", "simulate-unmet-missing")
    assert "none of the choices are installable" in parse_simulation(said.stdout, said.stderr, ok=False).problem


@pytest.mark.parametrize("version", VERSIONS)
def test_progress_of_a_whole_transaction_is_parsed(version: str) -> None:
    lines = sample(version, "install-purge-status").stdout.splitlines()
    progress = [found for line in lines if (found := parse_apt_progress(line))]
    phases = [found.phase for found in progress]
    assert phases == sorted(phases)
    assert set(phases) == {"download", "install"}
    percents = [found.percent for found in progress if found.phase == "install"]
    assert percents == sorted(percents)
    assert any(found.detail == "Unpacking driver (amd64)" for found in progress)


@pytest.mark.parametrize("version", VERSIONS)
def test_failed_package_is_named_with_its_last_output(version: str) -> None:
    said = sample(version, "script-fails")
    error = explain_failure("do it", said.stdout, said.stderr)
    assert "badscript" in error.what
    assert "something is wrong: disk on fire" in error.why
    assert "exit status 3" in error.why


@pytest.mark.parametrize("version", VERSIONS)
def test_failed_dkms_build_names_its_log(version: str) -> None:
    said = sample(version, "dkms-fails")
    assert find_build_log(said.stderr) == "/var/lib/dkms/nv/1/make.log"
    log = "  CC [M]  nv.o\nnv.c:12:5: error: implicit declaration of 'f'\nmake[1]: *** [nv.o] Error 1\n"
    error = explain_failure("do it", said.stdout, said.stderr, make_log=log)
    assert error.why == "nv.c:12:5: error: implicit declaration of 'f'"
    assert "/var/lib/dkms/nv/1/make.log" in error.hint
    assert "baddkms" in error.what


@pytest.mark.parametrize("version", VERSIONS)
def test_another_module_that_does_not_build_is_named(version: str) -> None:
    """The kernel's package builds it; another branch of the driver would not help."""
    said = sample(version, "dkms-other-fails")
    log = "zfs.c:1:10: fatal error: linux/gone.h: No such file or directory"
    error = explain_failure("change the packages", said.stdout, said.stderr, make_log=log)
    assert "package linux-headers-6" in error.what
    assert "DKMS cannot build zfs 2.3" in error.what
    assert error.why == log
    assert "dkms remove -m zfs -v 2.3 --all" in error.hint
    assert "branch" not in error.hint


def test_module_whose_source_is_gone_is_named_with_its_tree() -> None:
    said = sample("apt-3.0.4", "dkms-source-gone")
    error = explain_failure("change the packages", said.stdout, said.stderr)
    assert "nvidia-kernel-open-dkms" in error.what
    assert "its source has been deleted" in error.what
    assert "rm -r /var/lib/dkms/nvidia/595.91.07" in [line.strip() for line in error.hint.splitlines()]


def test_package_that_fails_to_unpack_is_named() -> None:
    said = sample("apt-2.6.2", "disk-full-unpack")
    assert find_failed_packages(said.stderr) == ("bigopt",)


UNPACKING = """\
dpkg: error processing archive /tmp/apt-dpkg-install-6ZWML7/17-nvidia-kernel-open-dkms_595.91.07-1_amd64.deb (--unpack):
 unable to clean up mess surrounding './usr/src/nvidia-595.91.07' before installing another version: {}
"""


def test_package_among_many_is_named_without_its_number() -> None:
    """apt makes numbered links to the archives if there are many."""
    said = UNPACKING.format("Input/output error")
    assert find_failed_packages(said) == ("nvidia-kernel-open-dkms",)
    assert find_failed_packages("dpkg: error processing archive /srv/7-zip_1_all.deb (--unpack):\n") == ("7-zip",)


def test_read_only_file_system_is_told_with_its_place() -> None:
    error = explain_failure("change the packages", UNPACKING.format("Read-only file system"), "")
    assert error.what == "could not change the packages: a file system is mounted read-only"
    assert "./usr/src/nvidia-595.91.07" in error.why
    assert "findmnt -O ro" in error.hint
    of_script = f"sysctl: setting key: Read-only file system\n{UNPACKING.format('Input/output error')}"
    assert classify_failure(of_script, "") == "script"


@pytest.mark.parametrize("version", VERSIONS)
def test_repository_in_sync_is_named(version: str) -> None:
    said = sample(version, "update-hash-mismatch")
    assert failed_fetches(said.stderr) == ("http://127.0.0.1:8099/nohash/./Packages",)
    assert "http://127.0.0.1:8099/nohash" in explain_failure("do it", said.stdout, said.stderr).what


@pytest.mark.parametrize(
    ("uri", "prefix"),
    [
        ("http://127.0.0.1:8099/nohash/./Packages", "127.0.0.1:8099_nohash_._"),
        ("https://h.example/cuda/debian12/x86_64/Packages.gz", "h.example_cuda_debian12_x86%5f64_"),
        ("https://me:secret@h.example/a/InRelease", "h.example_a_"),
        (
            "http://mirror.example.org/debian/dists/bookworm/main/binary-amd64/Packages.xz",
            "mirror.example.org_debian_dists_bookworm_",
        ),
        (
            "http://mirror.example.org/debian-security/dists/bookworm-security/InRelease",
            "mirror.example.org_debian-security_dists_bookworm-security_",
        ),
        ("http://h.example/x/dists/stable/updates/main/i18n/Translation-en.xz", "h.example_x_dists_stable_updates_"),
    ],
)
def test_index_file_prefix_of_a_repository(uri: str, prefix: str) -> None:
    assert index_file_prefix(uri) == prefix
