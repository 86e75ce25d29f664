"""Fingerprints and armor, compared with the real gpg."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunode.catalog.openpgp import dearmor, list_key_fingerprints
from tests.needs import lacking

pytestmark = pytest.mark.skipif(not shutil.which("gpg"), reason=lacking("gpg"))

# The smallest JPEG that gpg takes as a photo.
JPEG = bytes.fromhex(
    "ffd8ffe000104a46494600010100000100010000ffdb004300080606070605080707070909080a0c140d0c0b0b0c1912130f141d1a1f1e1d"
    "1a1c1c20242e2720222c231c1c2837292c30313434341f27393d38323c2e333432ffc0000b080001000101011100ffc40014000100000000"
    "00000000000000000000000009ffc40014100100000000000000000000000000000000ffda0008010100003f0054dfffd9"
)


class Gpg:
    """gpg with a keyring of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir(mode=0o700)

    def run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        command = ["gpg", "--homedir", str(self.home), "--batch", "--yes", "--quiet", "--passphrase", "", *arguments]
        return subprocess.run(command, input=stdin, check=True, capture_output=True).stdout

    def make(self, user: str, algorithm: str) -> None:
        self.run("--quick-gen-key", f"{user} <{user}@localhost>", algorithm, "sign", "never")

    def add_subkeys(self, user: str, *algorithms: str) -> None:
        for algorithm in algorithms:
            self.run("--quick-add-key", self.primaries(user)[0], algorithm, "default", "never")

    def add_photo(self, user: str) -> None:
        photo = self.home / "photo.jpg"
        photo.write_bytes(JPEG)
        command = ["gpg", "--homedir", str(self.home), "--no-tty", "--pinentry-mode", "loopback", "--passphrase", ""]
        dialogue = f"addphoto\n{photo}\nsave\n".encode()
        arguments = ["--command-fd", "0", "--status-fd", "2", "--edit-key", user]
        subprocess.run([*command, *arguments], input=dialogue, check=True, capture_output=True)

    def primaries(self, user: str) -> list[str]:
        return primaries(self.run("--with-colons", "--list-keys", user))

    def export(self, *users: str) -> bytes:
        return self.run("--export", *users)

    def armored(self, *users: str) -> bytes:
        return self.run("--armor", "--export", *users)


def primaries(colons: bytes) -> list[str]:
    """Return the fingerprints that follow a ``pub`` record."""
    found, of_a_primary = [], False
    for record in colons.decode().splitlines():
        fields = record.split(":")
        if fields[0] in {"pub", "sub"}:
            of_a_primary = fields[0] == "pub"
        elif fields[0] == "fpr" and of_a_primary:
            found.append(fields[9])
    return found


@pytest.fixture(scope="module")
def gpg(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpg]:
    home = tmp_path_factory.mktemp("g") / "h"
    gpg = Gpg(home)
    gpg.make("rsa", "rsa2048")
    gpg.make("edwards", "ed25519")
    gpg.add_subkeys("rsa", "rsa2048", "ed25519")
    gpg.add_subkeys("edwards", "cv25519")
    gpg.add_photo("edwards")
    yield gpg
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)


def packets_by_gpg(gpg: Gpg, data: bytes) -> tuple[str, ...]:
    return tuple(primaries(gpg.run("--show-keys", "--with-colons", stdin=data)))


@pytest.mark.parametrize("users", [("rsa",), ("edwards",), ("rsa", "edwards")])
def test_fingerprints_agree_with_gpg(gpg: Gpg, users: tuple[str, ...]) -> None:
    binary, armored = gpg.export(*users), gpg.armored(*users)

    assert len(list_key_fingerprints(binary)) == len(users)
    assert list_key_fingerprints(binary) == packets_by_gpg(gpg, binary)
    assert list_key_fingerprints(armored) == packets_by_gpg(gpg, armored)


def test_generated_keys_have_subkeys_and_a_photo(gpg: Gpg) -> None:
    packets = gpg.run("--list-packets", stdin=gpg.export("rsa", "edwards"))

    assert packets.count(b":public sub key packet:") == 3
    assert packets.count(b":attribute packet:") == 1


def test_dearmor_agrees_with_gpg(gpg: Gpg) -> None:
    armored = gpg.armored("rsa", "edwards")

    assert dearmor(armored) == gpg.run("--dearmor", stdin=armored) == gpg.export("rsa", "edwards")


def test_two_joined_armored_files_contain_both_keys(gpg: Gpg) -> None:
    joined = gpg.armored("rsa") + b"\n" + gpg.armored("edwards")

    assert list_key_fingerprints(joined) == (
        *list_key_fingerprints(gpg.armored("rsa")),
        *list_key_fingerprints(gpg.armored("edwards")),
    )


def test_secret_key_is_refused(gpg: Gpg) -> None:
    with pytest.raises(ValueError, match="secret key"):
        list_key_fingerprints(gpg.run("--pinentry-mode", "loopback", "--export-secret-keys", "edwards"))


def test_signed_message_is_refused(gpg: Gpg) -> None:
    with pytest.raises(ValueError, match="not belong in a public key"):
        list_key_fingerprints(gpg.run("-u", "edwards", "-z", "0", "--sign", stdin=b"deb"))


def test_key_in_a_compressed_packet_is_refused(gpg: Gpg) -> None:
    """gpg would import it."""
    wrapped = b"\xc8" + b"\xff" + (len(gpg.export("edwards")) + 1).to_bytes(4, "big") + b"\x00" + gpg.export("edwards")

    with pytest.raises(ValueError, match="not belong in a public key"):
        list_key_fingerprints(gpg.export("rsa") + wrapped)


def test_truncated_key_is_refused_or_ends_between_packets(gpg: Gpg) -> None:
    key = gpg.export("edwards")
    whole = list_key_fingerprints(key)

    for length in range(len(key)):
        try:
            assert list_key_fingerprints(key[:length]) == whole
        except ValueError:
            continue
