"""Signing keys, made for the tests and deleted afterwards."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.lab.commands import run


@dataclass(frozen=True, slots=True)
class Key:
    """An OpenPGP key pair in a GNUPGHOME of the tests.

    Attributes:
        fingerprint: 40 upper-case hex digits.
    """

    home: Path
    fingerprint: str

    @property
    def armored(self) -> str:
        """The public key as NVIDIA serves it."""
        return self._gpg("--armor", "--export", self.fingerprint)

    def clearsigned(self, text: str) -> str:
        """Return ``text`` in a clearsigned form (InRelease)."""
        return self._gpg("--local-user", self.fingerprint, "--clearsign", text=text)

    def signature(self, text: str) -> str:
        """Return the detached signature of ``text`` (Release.gpg)."""
        return self._gpg("--local-user", self.fingerprint, "--armor", "--detach-sign", text=text)

    def write_keyring(self, path: Path) -> None:
        """Write the public key to ``path``, binary, as apt's signed-by takes it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._gpg("--yes", "--output", os.fspath(path), "--export", self.fingerprint)

    def _gpg(self, *arguments: str, text: str = "") -> str:
        return _gpg(self.home, *arguments, text=text)


def make_key(home: Path, owner: str) -> Key:
    """Make a new key of ``owner``; several may share one ``home``, whose path must be short for gpg's sockets."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = f"{owner} (gpunode's tests)"
    _gpg(home, "--passphrase", "", "--quick-generate-key", name, "rsa3072", "sign", "never")
    listing = _gpg(home, "--with-colons", "--list-keys", f"={name}")
    fingerprints = [line.split(":")[9] for line in listing.splitlines() if line.startswith("fpr:")]
    return Key(home, fingerprints[0])


def stop_agent(home: Path) -> None:
    """Stop every gpg-agent that serves ``home``."""
    run(["gpgconf", "--homedir", os.fspath(home), "--kill", "all"])


def _gpg(home: Path, *arguments: str, text: str = "") -> str:
    argv = ["gpg", "--homedir", os.fspath(home), "--batch", "--quiet", "--no-tty", *arguments]
    return run(argv, stdin=text).stdout
