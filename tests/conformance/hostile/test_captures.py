"""Malicious captures, read by a process with little memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from gpunode.errors import GpunodeError
from gpunode.facts.derive import derive
from gpunode.host.capture import load_capture
from tests.conformance.hostile.image import TOP, gpunode

SAMPLE = TOP / "gpunode/samples/debian12-gtx1080"
INDEX = b'{"schema": 2, "probes":{"os-release":{"source":"/etc/os-release","outcome":"ok","file":"data/x"}}}'


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("real") / "node.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(SAMPLE, arcname=".")
    return path.read_bytes()


def is_capture(path: Path) -> bool:
    """True if there is a capture at ``path``; raises if there is no clear answer."""
    try:
        derive(load_capture(path))
    except GpunodeError as error:
        assert error.exit_code in {2, 3}  # noqa: PT017 -- either answer is right
        assert error.what  # noqa: PT017
        assert error.hint  # noqa: PT017
        return False
    return True


def test_truncated_capture_is_never_accepted(real: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.tar.gz"
    choose = random.Random(7)
    edges = {*range(64), *range(len(real) - 64, len(real))}
    for length in sorted(edges | {choose.randrange(len(real)) for _ in range(400)}):
        path.write_bytes(real[:length])
        assert not is_capture(path), length


@pytest.mark.parametrize("layer", ["packed", "unpacked", "index"])
def test_damaged_capture_is_accepted_or_refused(real: bytes, tmp_path: Path, layer: str) -> None:
    path, choose = tmp_path / "x.tar.gz", random.Random(7)
    whole = {"packed": real, "unpacked": gzip.decompress(real), "index": (SAMPLE / "capture.json").read_bytes()}[layer]
    for _ in range(200):
        spoilt = bytearray(whole)
        for _ in range(2):
            spoilt[choose.randrange(len(spoilt))] = choose.choice(b'"{}[]:,-09en\\ \0\xff')
        data = bytes(spoilt)
        if layer == "index":
            data = tar_of({"capture.json": data})
        path.write_bytes(gzip.compress(data, 1) if layer == "unpacked" else data)
        is_capture(path)


def tar_of(members: dict[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz", compresslevel=1) as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return data.getvalue()


def zeros(path: Path, first: tarfile.TarInfo) -> None:
    """Write a header and 320 MiB of zeros, in a third of a megabyte."""
    first.size = 320 << 20
    path.write_bytes(gzip.compress(first.tobuf(tarfile.GNU_FORMAT)) + gzip.compress(bytes(1 << 20)) * 320)


def header(kind: bytes) -> tarfile.TarInfo:
    member = tarfile.TarInfo("x")
    member.type = kind
    return member


def make_a_million_files(path: Path) -> None:
    first = (tarfile.TarInfo(f"data/f{number}").tobuf(tarfile.USTAR_FORMAT) for number in range(8192))
    more = gzip.compress(tarfile.TarInfo("data/f").tobuf(tarfile.USTAR_FORMAT) * 992)
    path.write_bytes(gzip.compress(b"".join(first)) + more * 1_000)


def folder(path: Path) -> Path:
    path.mkdir()
    (path / "data").mkdir()
    (path / "capture.json").write_bytes(INDEX)
    return path


def index(text: str | Callable[[], str]) -> Callable[[Path], None]:
    """Return a function that writes a capture with this index; a large one is built on demand."""

    def plant(path: Path) -> None:
        (folder(path) / "capture.json").write_text(text if isinstance(text, str) else text())

    return plant


def endless_index(path: Path) -> None:
    os.truncate(folder(path) / "capture.json", 20 << 30)


def pipe_for_index(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "capture.json")


ROW = '"{}":{{"source":"x","outcome":"ok"}}'
BOMBS: dict[str, tuple[Callable[[Path], object], int]] = {
    "a member of 320 MiB": (lambda path: zeros(path, header(tarfile.REGTYPE)), 3),
    "a pax header of 320 MiB": (lambda path: zeros(path, header(tarfile.XHDTYPE)), 3),
    "a name of 320 MiB": (lambda path: zeros(path, header(tarfile.GNUTYPE_LONGNAME)), 3),
    "a bomb in a bomb": (lambda path: path.write_bytes(gzip.compress(gzip.compress(bytes(64 << 20)))), 2),
    "a million files": (make_a_million_files, 3),
    "an index of 60 MiB": (index(lambda: "{" + ",".join(map(ROW.format, range(1_500_000))) + "}"), 3),
    "an index of 20 GiB": (endless_index, 3),
    "an index that goes deep": (index('{"a":' * 100_000), 3),
    "an endless number": (index(f'{{"schema":{"9" * 1_000_000}}}'), 3),
    "one file named a thousand times": (
        index(json.dumps({"schema": 2, "probes": {str(n): {"source": "x", "file": "data/x"} for n in range(5000)}})),
        3,
    ),
    "a pipe for an index": (pipe_for_index, 3),
    "a pipe for a file": (lambda path: os.mkfifo(folder(path) / "data/x"), 3),
    "a link to a secret": (lambda path: (folder(path) / "data/x").symlink_to("/etc/shadow"), 3),
    "a pipe": (lambda path: os.mkfifo(path), 2),
    "links in a circle": (lambda path: path.symlink_to(path.name), 2),
}


@pytest.mark.parametrize(("make", "exit_code"), BOMBS.values(), ids=BOMBS)
def test_harmful_capture_is_refused_within_little_memory(
    tmp_path: Path, make: Callable[[Path], object], exit_code: int
) -> None:
    path = tmp_path / "node.tar.gz"
    make(path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    done = gpunode("status", "--node", str(path), cwd=tmp_path, env={"TMPDIR": str(temporary)})
    assert (done.exit_code, "Traceback" in done.said) == (exit_code, False), done.said
    assert str(path) in done.err
    assert "next: " in done.err
    assert sorted(os.listdir(tmp_path)) == ["node.tar.gz", "temporary"]
    assert os.listdir(temporary) == []
