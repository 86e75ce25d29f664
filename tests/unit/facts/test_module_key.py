"""The key that DKMS signs modules with, and its state in the firmware, from evidence alone."""

from __future__ import annotations

import base64

import pytest

from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture, Evidence, GlobMatch, encode_matches
from gpunode.facts.model import Known, ModuleKey, ModuleSignature
from gpunode.facts.module_key import DKMS_CONFIG_FILE, DKMS_KEY_FILES, UBUNTU_KEY_FILES, read_serial
from tests.fakes.firmware import Firmware, make_certificate

UBUNTU = {"os-release": Capture("/etc/os-release", "ok", b'ID=ubuntu\nVERSION_ID="24.04"\nNAME=Ubuntu\n')}
MINT = {"os-release": Capture("/etc/os-release", "ok", b"ID=linuxmint\nID_LIKE=ubuntu\nNAME=Mint\nVERSION_ID=22\n")}
MODULE = "/lib/modules/6.1.0-37-amd64/updates/dkms/nvidia-current.ko.xz"
BUILT = {"modules-dkms": Capture("m", "ok", encode_matches(iter([GlobMatch(MODULE)])))}


def read(firmware: Firmware, more: Evidence | None = None) -> ModuleKey:
    fact = derive(firmware.evidence(more)).module_key
    assert isinstance(fact, Known), fact
    return fact.value


def test_key_is_not_looked_for_without_secure_boot() -> None:
    assert derive(Firmware(on=False).with_key().evidence()).module_key is None


@pytest.mark.parametrize(
    ("config", "system", "paths"),
    [
        ("", {}, DKMS_KEY_FILES),
        ("", UBUNTU, UBUNTU_KEY_FILES),
        ("", MINT, DKMS_KEY_FILES),
        ("# mok_signing_key=/root/commented\n", {}, DKMS_KEY_FILES),
        (
            'mok_signing_key="/etc/keys/m.key"\nmok_certificate=/etc/keys/m.der\n',
            {},
            ("/etc/keys/m.key", "/etc/keys/m.der"),
        ),
        ("mok_signing_key='/etc/keys/m.key' # ours\n", UBUNTU, ("/etc/keys/m.key", DKMS_KEY_FILES[1])),
        ("mok_certificate=/etc/keys/m.der\n", UBUNTU, UBUNTU_KEY_FILES),
        ("mok_certificate=/etc/keys/m.der\n", {}, (DKMS_KEY_FILES[0], "/etc/keys/m.der")),
    ],
)
def test_key_is_the_one_that_dkms_takes(config: str, system: Evidence, paths: tuple[str, str]) -> None:
    firmware = Firmware(files={DKMS_CONFIG_FILE: config.encode()}).with_key(paths)
    found = read(firmware, system)
    assert (found.key, found.certificate) == paths
    assert found.has_key
    assert found.der == make_certificate()


def test_later_configuration_files_of_dkms_count() -> None:
    files = {
        DKMS_CONFIG_FILE: b"mok_signing_key=/a\n",
        f"{DKMS_CONFIG_FILE}.d/10.conf": b"mok_signing_key=/b\nmok_certificate=/c\n",
    }
    found = read(Firmware(files=files))
    assert (found.key, found.certificate, found.has_key, found.der) == ("/b", "/c", False, b"")


def test_private_key_is_never_captured() -> None:
    seen = Firmware().with_key().evidence()
    assert not any(b"secret" in capture.data for capture in seen.values())
    assert not any(b"nobody reads" in capture.data for capture in seen.values())


@pytest.mark.parametrize("empty", DKMS_KEY_FILES)
def test_empty_file_counts_as_missing(empty: str) -> None:
    firmware = Firmware().with_key()
    firmware.files[empty] = b""
    found = read(firmware)
    assert (found.has_key, bool(found.der)) == (empty != DKMS_KEY_FILES[0], empty != DKMS_KEY_FILES[1])


def test_key_in_hardware_has_no_file() -> None:
    firmware = Firmware(
        files={DKMS_CONFIG_FILE: b'mok_signing_key="pkcs11:token=x"\nmok_certificate=/c\n', "/c": make_certificate()}
    )
    assert read(firmware).has_key


def test_enrolled_queued_and_forgotten_keys_are_told_apart() -> None:
    firmware = Firmware().with_key()
    assert (read(firmware).enrolled, read(firmware).queued) == (False, False)
    firmware.queued.append(make_certificate())
    assert (read(firmware).enrolled, read(firmware).queued) == (False, True)
    firmware.boot(confirms=False)
    assert (read(firmware).enrolled, read(firmware).queued) == (False, False)
    firmware.queued.append(make_certificate())
    firmware.boot(confirms=True)
    assert (read(firmware).enrolled, read(firmware).queued) == (True, False)


def test_enrolment_of_another_key_does_not_count() -> None:
    other = make_certificate(7)
    found = read(Firmware(enrolled=[other], queued=[other]).with_key())
    assert (found.enrolled, found.queued) == (False, False)


@pytest.mark.parametrize(("stored", "seconds"), [(None, 10), (-1, -1), (0, 0), (300, 300)])
def test_console_timeout_is_read(stored: int | None, seconds: int) -> None:
    assert read(Firmware(timeout_s=stored).with_key()).timeout_s == seconds


def test_certificate_in_pem_is_compared_as_der() -> None:
    der = make_certificate()
    pem = b"-----BEGIN CERTIFICATE-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE-----\n"
    found = read(Firmware(enrolled=[der]).with_key(certificate=pem))
    assert found.enrolled
    assert not found.is_der


@pytest.mark.parametrize(
    ("printed", "signature"),
    [
        (
            "signer:         DKMS module signing key\nsig_key:        5E:C0:DE\nsig_hashalgo:   sha256\n",
            ModuleSignature("DKMS module signing key", 0x5EC0DE),
        ),
        ("license:        NVIDIA\nvermagic:       6.1.0-37-amd64\n", ModuleSignature("", 0)),
        ("sig_id:         PKCS#7\nsigner:         \nsig_key:        \n", ModuleSignature("", 0)),
    ],
)
def test_signature_of_a_built_module_is_read(printed: str, signature: ModuleSignature) -> None:
    found = read(Firmware(modinfo={MODULE: printed}).with_key(), BUILT)
    assert found.signatures == {"6.1.0-37-amd64": signature}


@pytest.mark.parametrize("serial", [1, 127, 128, 0x5EC0DE, 2**159 - 1])
def test_serial_number_of_a_certificate_is_read(serial: int) -> None:
    assert read_serial(make_certificate(serial)) == serial


@pytest.mark.parametrize(
    "data", [b"", b"\x30", b"\x30\x82", b"-----BEGIN", b"\x30\x00", bytes(40), b"\x30\x03\x30\x01\xa0"]
)
def test_no_certificate_has_no_serial_number(data: bytes) -> None:
    assert read_serial(data) == 0
