from __future__ import annotations

import gzip
import io
import json
import os
import stat
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpunode.errors import GpunodeError, Refused, UsageError
from gpunode.facts.evidence import Capture, Evidence, GlobMatch, Ownership, Probe, decode_matches, encode_matches
from gpunode.host import capture
from gpunode.host.capture import CaptureHost, load_capture, save_capture
from gpunode.redaction.evidence import redact

EVIDENCE: Evidence = {
    "os-release": Capture(
        "/etc/os-release", "ok", b"ID=debian\n", ownership=Ownership(0o644, 0, 0), content_kind="table"
    ),
    "virt": Capture("systemd-detect-virt", "failed", b"none\n", exit_status=1, content_kind="log"),
    "file:/etc/docker/daemon.json": Capture("/etc/docker/daemon.json", "absent"),
    "FILE:/etc/docker/daemon_json": Capture("/x", "ok", b"\xff\x00\n", content_kind="table"),
    "apt-sources-d": Capture(
        "/etc/apt/sources.list.d/*",
        "ok",
        encode_matches(iter([GlobMatch("/a", data=b"x\n"), GlobMatch("/b", link="/c")])),
        content_kind="log",
    ),
    "modules": Capture("/proc/modules", "denied", error="Permission denied"),
}
INDEX = {"schema": 2, "probes": {"x": {"source": "/x", "outcome": "ok", "file": "data/x"}}}


@pytest.mark.parametrize("name", ["node.tar.gz", "node"])
def test_capture_round_trips(tmp_path: Path, name: str) -> None:
    save_capture(EVIDENCE, tmp_path / name)
    assert load_capture(tmp_path / name) == EVIDENCE
    assert [one.name for one in tmp_path.iterdir()] == [name]


def test_capture_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    save_capture(EVIDENCE, tmp_path / "node.tgz")
    assert stat.S_IMODE((tmp_path / "node.tgz").stat().st_mode) == 0o600
    with tarfile.open(tmp_path / "node.tgz") as archive:
        assert {member.mode for member in archive} == {0o600}


def test_captures_of_the_same_state_are_byte_identical(tmp_path: Path) -> None:
    save_capture(EVIDENCE, tmp_path / "one.tgz")
    save_capture(dict(sorted(EVIDENCE.items(), reverse=True)), tmp_path / "two.tgz")
    assert (tmp_path / "one.tgz").read_bytes() == (tmp_path / "two.tgz").read_bytes()


def test_folder_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis").write_text("x")
    with pytest.raises(UsageError, match="cannot be written"):
        save_capture(EVIDENCE, tmp_path / "home")
    assert [one.name for one in (tmp_path / "home").iterdir()] == ["thesis"]


def test_failed_save_leaves_the_former_capture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "node.tgz"
    save_capture(EVIDENCE, path)

    def no_space(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(UsageError, match="cannot be written") as caught:
        save_capture({}, path)
    assert "No space left" in caught.value.why
    assert load_capture(path) == EVIDENCE
    assert [one.name for one in tmp_path.iterdir()] == ["node.tgz"]


def test_captured_node_is_probed_like_a_node() -> None:
    host = CaptureHost(EVIDENCE)
    assert host.run_probe(Probe("virt", argv=("systemd-detect-virt",))) == EVIDENCE["virt"]
    missing = host.run_probe(Probe("lspci", argv=("lspci",)))
    assert (missing.outcome, missing.error) == ("failed", "not captured")


def archive(path: Path, members: Mapping[str, bytes], *more: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as file:
        for member in more:
            file.addfile(member)
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            file.addfile(member, io.BytesIO(data))
    return path


def index(**row: object) -> bytes:
    return json.dumps({"schema": 2, "probes": {"x": {"source": "/x", "outcome": "ok", **row}}}).encode()


@pytest.mark.parametrize("top", ["", "./", "node-17/", "./a/b/"])
def test_hand_packed_capture_is_read(tmp_path: Path, top: str) -> None:
    members = {f"{top}capture.json": json.dumps(INDEX).encode(), f"{top}data/x": b"content"}
    assert load_capture(archive(tmp_path / "x.tgz", members))["x"].data == b"content"


def odd(kind: bytes, name: str = "data/x", link: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    return member


@pytest.mark.parametrize(
    ("member", "named"),
    [
        (odd(tarfile.SYMTYPE, link="/etc/shadow"), "data/x"),
        (odd(tarfile.LNKTYPE, link="capture.json"), "data/x"),
        (odd(tarfile.CHRTYPE), "data/x"),
        (odd(tarfile.FIFOTYPE), "data/x"),
        (odd(tarfile.REGTYPE, "/etc/cron.d/x"), "/etc/cron.d/x"),
        (odd(tarfile.REGTYPE, "data/../../x"), "data/../../x"),
        (odd(tarfile.DIRTYPE, "../x"), "../x"),
        (odd(tarfile.REGTYPE, "capture.json"), "capture.json"),
    ],
)
def test_harmful_archive_member_is_refused_by_name(tmp_path: Path, member: tarfile.TarInfo, named: str) -> None:
    path = archive(tmp_path / "x.tgz", {"capture.json": index(file="data/x")}, member)
    with pytest.raises(Refused) as caught:
        load_capture(path)
    assert caught.value.why.startswith(f"{named}: ")


def with_extended_headers(path: Path, body: bytes, number: int = 1) -> Path:
    """Write a capture whose index has ``number`` extended headers with this ``body``."""
    extended = odd(tarfile.XHDTYPE, "x")
    extended.size = len(body)
    own = extended.tobuf(tarfile.USTAR_FORMAT) + body + bytes(-len(body) % tarfile.BLOCKSIZE)
    packed = gzip.decompress(archive(path, {"capture.json": index()}).read_bytes())
    members = b"".join(odd(tarfile.DIRTYPE, f"d{one}").tobuf(tarfile.USTAR_FORMAT) for one in range(number - 1))
    rows = [own + members[at : at + tarfile.BLOCKSIZE] for at in range(0, len(members), tarfile.BLOCKSIZE)]
    path.write_bytes(gzip.compress(b"".join(rows) + own + packed))
    return path


@pytest.mark.parametrize(("size", "number"), [(80_000, 1), (2_000, 400)])
def test_long_extended_headers_are_refused_unread(tmp_path: Path, size: int, number: int) -> None:
    """Pythons without the fix for CVE-2024-6232 need time quadratic in the length of such a header.

    Those with it, such as Debian's, reject such a header themselves.
    """
    with pytest.raises(Refused) as caught:
        load_capture(with_extended_headers(tmp_path / "x.tgz", b"1" * size, number))
    assert caught.value.why.endswith((": has too long an extended header", "invalid header"))


def test_capture_packed_with_extended_headers_is_read(tmp_path: Path) -> None:
    """Read what bsdtar and ``tar --format=pax`` write."""
    packed = with_extended_headers(tmp_path / "x.tgz", b"30 mtime=1764403200.123456789\n", 200)
    assert "x" in load_capture(packed)


@pytest.mark.parametrize("twin", ["./data/x", "data//x", "data/./x"])
def test_duplicate_archive_member_is_refused_in_any_spelling(tmp_path: Path, twin: str) -> None:
    path = archive(tmp_path / "x.tgz", {"capture.json": index(file="data/x"), "data/x": b"1", twin: b"2"})
    with pytest.raises(Refused) as caught:
        load_capture(path)
    assert caught.value.why == f"{twin}: appears twice"


@pytest.mark.parametrize(
    "row", [{"source": 5}, {"source": "/x", "error": []}, {"source": "/x", "exit_status": "1"}, {"source": None}]
)
def test_index_row_with_wrong_types_is_refused(tmp_path: Path, row: dict[str, object]) -> None:
    with pytest.raises(Refused, match="is damaged"):
        load_capture(archive(tmp_path / "x.tgz", {"capture.json": index(**row)}))


def test_oversized_index_is_refused(tmp_path: Path) -> None:
    rows = ",".join(f'"{number}":{{"source":"x","outcome":"ok"}}' for number in range(capture.MAX_ARCHIVE_MEMBERS + 1))
    many = f'{{"schema": 2, "probes":{{{rows}}}}}'.encode()
    for members, why in (({"capture.json": many}, "lists more"), ({"capture.json": many.ljust(9 << 20)}, "is larger")):
        with pytest.raises(Refused) as caught:
            load_capture(archive(tmp_path / "x.tgz", members))
        assert why in caught.value.why


def test_oversized_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_PACKED_BYTES", 1 << 10)
    path = archive(tmp_path / "x.tgz", {"data/x": b""})
    os.truncate(path, (1 << 10) + 1)
    with pytest.raises(Refused) as caught:
        load_capture(path)
    assert caught.value.why == "the archive: is larger than 0 MiB"


def test_too_many_members_are_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.tgz", {f"data/{number}": b"" for number in range(capture.MAX_ARCHIVE_MEMBERS + 1)})
    with pytest.raises(Refused, match="an invalid member"):
        load_capture(path)


def test_decompression_bomb_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_UNPACKED_BYTES", 1 << 16)
    monkeypatch.setattr(capture, "MAX_ARCHIVE_MEMBERS", 4)
    path = archive(tmp_path / "x.tgz", {f"data/{number}": bytes(1 << 16) for number in range(3)})
    with pytest.raises(Refused) as caught:
        load_capture(path)
    assert "unpacks to more" in caught.value.why


def test_member_header_with_a_huge_size_is_refused(tmp_path: Path) -> None:
    huge = tarfile.TarInfo("data/x")
    huge.size = capture.MAX_UNPACKED_BYTES + 1
    path = tmp_path / "x.tgz"
    path.write_bytes(gzip.compress(huge.tobuf() + bytes(4096)))
    with pytest.raises(Refused) as caught:
        load_capture(path)
    assert "data/x: is larger" in caught.value.why


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b'{"schema": 1}',
        b'{"schema": 2}',
        b'{"schema": 2, "captures": {}}',
        b'{"schema": true, "probes": []}',
        b'{"schema": 2, "probes": {"x": 3}}',
        index(outcome="perhaps"),
        index(file="data/missing"),
        index(exit_status="no"),
        index(mode="9", uid=0, gid=0),
        b"[" * 100_000,
    ],
)
def test_damaged_index_is_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(Refused, match="is damaged"):
        load_capture(archive(tmp_path / "x.tgz", {"capture.json": content}))


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "data/../../x", "data/.hidden", "data/a/b", 7])
def test_index_cannot_point_outside(tmp_path: Path, name: object) -> None:
    folder = tmp_path / "node"
    folder.mkdir()
    (folder / "capture.json").write_bytes(index(file=name))
    with pytest.raises(Refused, match="an invalid member"):
        load_capture(folder)


def test_symlinks_in_a_capture_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    for name, link in (("one/data/x", tmp_path / "secret"), ("two/data", tmp_path)):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.symlink_to(link)
    for folder, file in (("one", "data/x"), ("two", "data/secret")):
        (tmp_path / folder / "capture.json").write_bytes(index(file=file))
        with pytest.raises(Refused, match="an invalid member"):
            load_capture(tmp_path / folder)


def test_pipe_in_a_capture_folder_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "capture.json").write_bytes(index(file="data/x"))
    os.mkfifo(tmp_path / "data/x")
    with pytest.raises(Refused, match="an invalid member"):
        load_capture(tmp_path)


def test_pipe_as_an_archive_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "node.tar.gz")
    with pytest.raises(UsageError, match="is not a capture"):
        load_capture(tmp_path / "node.tar.gz")


def test_newer_schema_is_refused_with_an_upgrade_hint(tmp_path: Path) -> None:
    path = archive(tmp_path / "x.tgz", {"capture.json": b'{"schema": 3, "probes": "anything"}'})
    with pytest.raises(Refused, match="newer gpunode") as caught:
        load_capture(path)
    assert caught.value.why == "its schema is 3; this gpunode reads 1 and 2"
    assert "upgrade" in caught.value.hint


def test_schema_1_is_read(tmp_path: Path) -> None:
    """It has other names for the probes, the content kind and a file's times."""
    owner = {"mode": "0644", "uid": 0, "gid": 0}
    rows = {
        "file:/etc/x": {
            "source": "/etc/x",
            "outcome": "ok",
            "holds": "config",
            **owner,
            "changed": 7.5,
            "file": "data/x",
        },
        "found": {"source": "/etc/y*", "outcome": "ok", "holds": "table", "file": "data/y"},
    }
    found = json.dumps({"path": "/etc/y1", **owner, "modified": 8.5}).encode()
    index = json.dumps({"schema": 1, "captures": rows}).encode()
    path = archive(tmp_path / "x.tgz", {"capture.json": index, "data/x": b"x", "data/y": found + b"\n"})
    read = load_capture(path)
    assert read == {
        "file:/etc/x": Capture("/etc/x", "ok", b"x", ownership=Ownership(0o644, 0, 0), content_kind="config"),
        "found": Capture("/etc/y*", "ok", found + b"\n", content_kind="table"),
    }
    assert read["file:/etc/x"].ownership is not None
    assert read["file:/etc/x"].ownership.ctime == 7.5
    assert [one.ownership and one.ownership.mtime for one in decode_matches(read["found"].data)] == [8.5]


def test_schema_2_is_written(tmp_path: Path) -> None:
    save_capture(EVIDENCE, tmp_path / "node")
    with tarfile.open(tmp_path / "node") as archive:
        index = json.loads(archive.extractfile("capture.json").read())  # type: ignore[union-attr]
    assert (index["schema"], set(index)) == (2, {"schema", "probes"})
    assert index["probes"]["os-release"]["content_kind"] == "table"


@pytest.mark.parametrize("cut", [1, 30, 200, -9])
def test_truncated_archive_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "x.tgz"
    save_capture(EVIDENCE, path)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(GpunodeError, match=r"damaged|not a capture"):
        load_capture(path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'[{"source": "dmesg", "text": "x"}]', "JSON list"),
        (
            gzip.compress(b"_" * 44 + b"\n\nStart of NVIDIA bug report log file.", mtime=0),
            "bug-rep",
        ),
        (b"PK\x03\x04", "neither"),
        (gzip.compress(b"just text", mtime=0), "text"),
        (b"$ sudo nvidia-bug-report.sh\n$ nvidia-smi\nNo devices were found\n", "text"),
        (b"", "neither"),
    ],
)
def test_file_that_is_no_capture_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(UsageError, match="not a capture") as caught:
        load_capture(path)
    assert said in caught.value.why


def test_missing_file_and_empty_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_capture(tmp_path / "nothing")
    with pytest.raises(UsageError, match="not a capture"):
        load_capture(tmp_path)


def test_saved_capture_is_redacted(tmp_path: Path) -> None:
    secret = {"file:/etc/docker/daemon.json": Capture("/etc/docker/daemon.json", "ok", b'{"token": "hunter2hunter2"}')}
    save_capture(secret, tmp_path / "x.tgz")
    assert load_capture(tmp_path / "x.tgz") == redact(secret) != secret
    assert b"hunter2" not in gzip.decompress((tmp_path / "x.tgz").read_bytes())


def test_named_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a capture"):
        load_capture(tmp_path / "pipe")


def test_capture_keeps_the_change_time_of_configuration_files(tmp_path: Path) -> None:
    """This shows that a daemon is older than its file; for other files it would only be noise."""
    own = Ownership(0o644, 0, 0, 1795247197.25)
    evidence = {
        "file:/etc/docker/daemon.json": Capture("/etc/docker/daemon.json", "ok", b"{}", ownership=own),
        "os-release": Capture("/etc/os-release", "ok", b"ID=debian\n", ownership=own),
    }
    save_capture(evidence, tmp_path / "node")
    found = {key: one.ownership.ctime for key, one in load_capture(tmp_path / "node").items() if one.ownership}
    assert found == {"file:/etc/docker/daemon.json": 1795247197.25, "os-release": None}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"source": "x", "outcome": "ok", "mode": "0644", "gid": 0}, "uid or gid is not a number"),
        ({"source": "x", "outcome": "ok", "mode": "zz", "uid": 0, "gid": 0}, "octal"),
        ({"source": "x", "outcome": "ok", "mode": 420, "uid": 0, "gid": 0}, "octal"),
        ({"source": "x", "outcome": "ok", "file": "data/lspci"}, "there is no data/lspci in it"),
        ({"outcome": "ok"}, "source or error is not text"),
        ({"source": "x"}, "unknown outcome"),
    ],
)
def test_damaged_index_is_explained(tmp_path: Path, row: dict[str, object], said: str) -> None:
    """Python's own message was only 'uid', with the quotes."""
    index = tmp_path / "capture.json"
    index.write_text(json.dumps({"schema": 2, "probes": {"x": row}}))
    with pytest.raises(Refused, match="is damaged") as caught:
        load_capture(tmp_path)
    assert said in caught.value.why
    index.write_text('{"schema": 2}')
    with pytest.raises(Refused, match="is damaged") as caught:
        load_capture(tmp_path)
    assert caught.value.why == "capture.json does not list probes by name"


@pytest.mark.parametrize("line", ['{"path": 5}', "{", '{"path": "/x", "base64": 3}'])
def test_files_of_a_glob_that_nobody_understands_are_damage(tmp_path: Path, line: str) -> None:
    """They would count as files that are not there, and prove what is wrong or right with the node."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x").write_text(line)
    rows = {"x": {"source": "/etc/modprobe.d/*", "outcome": "ok", "file": "data/x"}}
    (tmp_path / "capture.json").write_text(json.dumps({"schema": 2, "probes": rows}))
    with pytest.raises(Refused, match="is damaged"):
        load_capture(tmp_path)


def test_missing_target_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        save_capture(EVIDENCE, tmp_path / "none/c.tgz")
    assert caught.value.why == f"the folder {tmp_path}/none does not exist, or you may not write to it"
