"""A firmware with Secure Boot on, shim's variables, and MokManager: a boot confirms a request or discards it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from gpunode.change import Change, CommandChange
from gpunode.facts import module_key
from gpunode.facts.evidence import Capture, Evidence, GlobMatch, Probe, encode_matches
from gpunode.facts.machine import SECURE_BOOT_PROBE_KEY, SECURE_BOOT_VARIABLE, SHIM_VALIDATION_PROBE_KEY

ATTRIBUTES = b"\x07\x00\x00\x00"
_LIST_HEADER = bytes(44)
SIGNERS_SERIAL = 0x5EC0DE


def encode_value(tag: int, content: bytes) -> bytes:
    """Return a value in DER."""
    size = len(content)
    length = bytes([size]) if size < 128 else b"\x82" + size.to_bytes(2, "big")
    return bytes([tag]) + length + content


def make_certificate(serial: int = SIGNERS_SERIAL) -> bytes:
    """Return the beginning of a certificate, with its serial number."""
    number = encode_value(0x02, serial.to_bytes(21, "big").lstrip(b"\x00"))
    version = b"\xa0\x03\x02\x01\x02"
    return encode_value(0x30, encode_value(0x30, version + number + b"\x30\x00" + bytes(200)))


@dataclass
class Firmware:
    """The variables, and the files of the machine's key.

    Attributes:
        files: the files for the probes, by path; a private key's content is the word ``secret``.
        modinfo: the output of modinfo, by the module's path.
        makes: the certificate of the next new key.
    """

    on: bool = True
    enrolled: list[bytes] = field(default_factory=list)
    queued: list[bytes] = field(default_factory=list)
    timeout_s: int | None = None
    files: dict[str, bytes] = field(default_factory=dict)
    modinfo: dict[str, str] = field(default_factory=dict)
    makes: bytes = field(default_factory=make_certificate)

    def with_key(self, paths: tuple[str, str] = module_key.DKMS_KEY_FILES, certificate: bytes = b"") -> Firmware:
        """Put a key and its certificate there."""
        self.files.update({paths[0]: b"secret", paths[1]: certificate or make_certificate()})
        return self

    def obey(self, change: Change) -> None:
        """Act like mokutil and openssl."""
        match change:
            case CommandChange(argv=("mokutil", "--import", path, *_)):
                self.queued.append(self.files[path])
            case CommandChange(argv=("mokutil", "--timeout", seconds)):
                self.timeout_s = int(seconds)
            case CommandChange(argv=("sh", "-c", _, _, key, certificate)):
                self.files.update({key: b"secret", certificate: self.makes})
            case _:
                pass

    def boot(self, *, confirms: bool) -> None:
        """Boot, with or without confirming the request at the console."""
        self.enrolled += self.queued if confirms else []
        self.queued = []

    def _variables(self) -> Iterator[tuple[str, bytes]]:
        folder, shim = "/sys/firmware/efi/efivars", "605dab50-e046-4300-abb6-3dd810dd8b23"
        yield SECURE_BOOT_VARIABLE, bytes([self.on])
        yield f"{folder}/MokListRT-{shim}", b"".join(_LIST_HEADER + one for one in (b"the vendor's", *self.enrolled))
        yield f"{folder}/MokAuth-{shim}", b"a hash that nobody reads"
        if self.queued:
            yield f"{folder}/MokNew-{shim}", b"".join(_LIST_HEADER + one for one in self.queued)
        if self.timeout_s is not None:
            yield f"{folder}/MokTimeout-{shim}", self.timeout_s.to_bytes(2, "little", signed=True)

    def run_probe(self, probe: Probe) -> Capture:
        """Answer a probe."""
        files = {**self.files, **{path: ATTRIBUTES + data for path, data in self._variables()}}
        if probe.argv:
            text = self.modinfo.get(probe.argv[-1])
            return Capture(probe.source, "ok" if text is not None else "failed", (text or "").encode())
        if probe.glob:
            found = [(path, data) for path, data in files.items() if PurePosixPath(path).match(probe.glob)]
            rows = (GlobMatch(path, data=data if len(data) <= probe.limit_bytes else None) for path, data in found)
            return Capture(probe.source, "ok", encode_matches(rows))
        data = files.get(probe.path)
        return Capture(probe.source, "absent" if data is None else "ok", data or b"")

    def evidence(self, more: Evidence | None = None) -> Evidence:
        """Return the evidence of a node's probes."""
        seen = dict(more or {})
        seen[SECURE_BOOT_PROBE_KEY] = self.run_probe(Probe(SECURE_BOOT_PROBE_KEY, path=SECURE_BOOT_VARIABLE))
        seen[SHIM_VALIDATION_PROBE_KEY] = Capture("shim", "absent")

        def ask(probe: Probe) -> Capture:
            return seen.setdefault(probe.key, self.run_probe(probe))

        if self.on:
            module_key.probe_module_key(seen, ask)
        return seen
