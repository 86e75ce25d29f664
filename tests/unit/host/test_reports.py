from __future__ import annotations

import errno
import gzip
import io
import json
import os
import random
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpunode.errors import Refused, UsageError
from gpunode.facts.evidence import TRUNCATION_KEY, Capture, Evidence
from gpunode.host import capture, reports
from gpunode.host.capture import save_capture
from gpunode.host.reports import find_fleet_reports, is_fleet, read_report
from gpunode.workflow.doctor import diagnose_evidence

ROWS = [
    {"source": "sudo dmesg | tail", "text": "NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."},
    {"source": "cat /proc/modules", "text": "nouveau 2433024 1 - Live 0x0"},
]
TERMINAL = f"root@gpu1:~# {ROWS[0]['source']}\n{ROWS[0]['text']}\nroot@gpu1:~# {ROWS[1]['source']}\n{ROWS[1]['text']}\n"
RULE = "_" * 44
BUG_REPORT = [
    ("Start of NVIDIA bug report log file.  Please include this file, along\nnvidia-bug-report.sh Version: 35145183\n"
    "Date: Fri Nov 20 10:00:00 UTC 2026\nuname: Linux gpu1 6.1.0-18-amd64 #1 SMP x86_64 GNU/Linux\n"),
    (f"{RULE}\n\n*** /proc/driver/nvidia/version\n*** ls: -r--r--r-- 1 root root 0 2026-11-20 /proc/x\n"
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01\n"),
    f"{RULE}\n\n*** /etc/X11/xorg.conf does not exist\n",
    f"{RULE}\n\ndmesg:\n\n[    5.0] NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.\n",
    f"{RULE}\n\nSkipping acpidump output (acpidump not found)\n",
]  # fmt: skip


def texts(evidence: Evidence) -> dict[str, str]:
    return {capture.source: capture.text for capture in evidence.values()}


def write(path: Path, data: bytes | str) -> str:
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)


def test_json_list_and_terminal_paste_are_equivalent(tmp_path: Path) -> None:
    listed = read_report(write(tmp_path / "x.json", json.dumps(ROWS)))
    typed = read_report(write(tmp_path / "x.txt", TERMINAL))
    assert texts(listed) == texts(typed)
    assert list(listed) == list(typed)


def test_json_list_may_be_nested_in_an_object(tmp_path: Path) -> None:
    whole = json.dumps({"source": "https://example.org/thread", "evidence": ROWS})
    assert texts(read_report(write(tmp_path / "x.json", whole))) == texts(
        read_report(write(tmp_path / "y.json", json.dumps(ROWS)))
    )


@pytest.mark.parametrize("text", ['{"a": 1}', '{"evidence": 1}', "{ nouveau 1", "[[registry]]", '"a" is no JSON'])
def test_unrelated_json_object_is_read_as_text(text: str, tmp_path: Path) -> None:
    assert text[:80] in next(iter(texts(read_report(write(tmp_path / "x", text))).values()))


def test_nvidia_bug_report_is_read_from_its_gzip_members(tmp_path: Path) -> None:
    members = b"".join(gzip.compress(f"{section}\n".encode()) for section in BUG_REPORT)
    packed = read_report(write(tmp_path / "nvidia-bug-report.log.gz", members))
    plain = read_report(write(tmp_path / "nvidia-bug-report.log", "\n".join(BUG_REPORT)))
    assert texts(packed) == texts(plain)
    assert packed["nvidia-version"].text == "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01"
    assert "fallen off the bus" in packed["dmesg"].text
    assert packed["file:/etc/X11/xorg.conf"].outcome == "absent"
    assert not [source for source in texts(packed) if "acpidump" in source]


@pytest.mark.parametrize(
    "start", ["[root@gpu1 ~]# dmesg\nNVRM: x\n", "[    5.0] NVRM: x\n", "[ ] rebooted\n[x] searched\n"]
)
def test_text_beginning_with_a_bracket_is_no_json(start: str, tmp_path: Path) -> None:
    assert read_report(write(tmp_path / "x", start))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_byte_order_mark_selects_the_encoding(encoding: str, tmp_path: Path) -> None:
    mark = "\ufeff" if encoding[-3:] in {"-le", "-be"} else ""
    for text in (json.dumps(ROWS), TERMINAL):
        marked = read_report(write(tmp_path / "marked", (mark + text).encode(encoding)))
        assert texts(marked) == texts(read_report(write(tmp_path / "plain", text)))


def test_report_is_read_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(TERMINAL.encode())))
    assert [*texts(read_report("-"))] == [row["source"] for row in ROWS]


def from_pipe(monkeypatch: pytest.MonkeyPatch, data: bytes) -> io.BytesIO:
    stream = io.BytesIO(data)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=stream))
    return stream


NODE: Evidence = {
    "virt": Capture("systemd-detect-virt", "failed", b"none\n", exit_status=1),
    "dmesg": Capture("dmesg", "ok", random.Random(5).randbytes(1 << 20).hex().encode()),
}


def test_capture_is_read_from_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_capture(NODE, tmp_path / "node.tgz")
    from_pipe(monkeypatch, (tmp_path / "node.tgz").read_bytes())
    assert read_report("-") == read_report(str(tmp_path / "node.tgz"))


def harmful(*, link: bool = False, padding: int = 0) -> bytes:
    """Return a packed capture, optionally with a link as its first member, or followed by zeros."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        if link:
            first = tarfile.TarInfo("data/x")
            first.type, first.linkname = tarfile.SYMTYPE, "/etc/shadow"
            archive.addfile(first)
        for name, data in (("data/y", random.Random(5).randbytes(1 << 20)), ("capture.json", b'{"schema": 1}')):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return packed.getvalue() + bytes(padding)


def test_symlink_in_a_piped_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from_pipe(monkeypatch, harmful(link=True))
    with pytest.raises(Refused, match="standard input was not read") as caught:
        read_report("-")
    assert caught.value.why == "data/x: is a link or a device, not a file"


def test_piped_capture_has_the_same_size_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "MAX_PACKED_BYTES", 2 << 20)
    monkeypatch.setattr(reports, "MAX_REPORT_BYTES", 2 << 20)
    stream = from_pipe(monkeypatch, harmful(padding=3 << 20))
    with pytest.raises(Refused) as caught:
        read_report("-")
    assert caught.value.why == "the archive: is larger than 2 MiB"
    assert stream.tell() == (2 << 20) + 1
    monkeypatch.setattr(capture, "MAX_UNPACKED_BYTES", 1 << 16)
    monkeypatch.setattr(capture, "MAX_ARCHIVE_MEMBERS", 4)
    from_pipe(monkeypatch, harmful())
    with pytest.raises(Refused, match="an invalid member"):
        read_report("-")


def test_truncated_piped_capture_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from_pipe(monkeypatch, harmful()[: 1 << 19])
    with pytest.raises(Refused, match="standard input is damaged"):
        read_report("-")


@pytest.mark.parametrize("folder", ["/dev/fd", "/proc/self/fd"])
def test_report_is_read_from_a_process_substitution(folder: str, tmp_path: Path) -> None:
    """<(cat node.tgz), and <(cat paste.txt)."""
    small: Evidence = {"virt": NODE["virt"]}
    save_capture(small, tmp_path / "node.tgz")
    for data, keys in (((tmp_path / "node.tgz").read_bytes(), small.keys()), (TERMINAL.encode(), None)):
        reading, writing = os.pipe()
        os.write(writing, data)
        os.close(writing)
        found = read_report(f"{folder}/{reading}")
        os.close(reading)
        assert found.keys() == keys if keys else texts(found)
    with pytest.raises(UsageError, match="is not a report"):
        read_report(f"{folder}/{reading}")


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", UsageError),
        (b" \n\n", UsageError),
        (b'[{"source": 5}]', UsageError),
        (b'[{"source": "dmesg"}', UsageError),
        (b'{"evidence": [{"source": "dmesg", "te', UsageError),
        (b'{"evidence": ' + b"[" * 100_000, UsageError),
        (b"[" * 100_000, UsageError),
        (b"[[[[", UsageError),
        (b"[" + b"1" * 5_000 + b"]", UsageError),
        (b"null\n", UsageError),
        (b'"a report"', UsageError),
        (gzip.compress(TERMINAL.encode(), mtime=0)[:12], Refused),
        (b"\x1f\x8b" + b"\0" * 40, Refused),
        (gzip.compress(b"a" * (reports.MAX_REPORT_BYTES + 1), 1, mtime=0), Refused),
    ],
    ids=[
        *("empty", "blank", "no text", "cut list", "cut object", "deep object", "deep list", "brackets", "digits"),
        *("null", "a word", "cut gzip", "no gzip", "bomb"),
    ],
)
def test_unusable_report_is_refused(data: bytes, error: type[Exception], tmp_path: Path) -> None:
    path = write(tmp_path / "x", data)
    with pytest.raises(error):
        read_report(path)


def test_pipe_or_missing_report_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="is not a report"):
        read_report(str(tmp_path / "pipe"))
    with pytest.raises(UsageError, match="is not a report"):
        read_report(str(tmp_path / "missing"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = tmp_path / "rack"
    (top / "row1" / "deep").mkdir(parents=True)
    save_capture({"x": Capture("dmesg", "ok", b"x")}, top / "row1/n2.tgz")
    save_capture({"x": Capture("dmesg", "ok", b"x")}, top / "n1")
    for name in ("n3.json", "row1/deep/n4.txt", ".hidden.json", "README.md"):
        write(top / name, "[]" if name.endswith("json") else "text")
    write(top / "without-suffix", gzip.compress(b"x"))
    return top


def test_folder_of_reports_is_a_fleet_and_a_capture_is_not(folder: Path) -> None:
    assert is_fleet(str(folder))
    assert not is_fleet(str(folder / "n1"))
    assert not is_fleet(str(folder / "n3.json"))
    assert not is_fleet("-")


def test_fleet_lists_every_report_below_its_folder_once(folder: Path) -> None:
    names = [one.name for one in find_fleet_reports([str(folder), str(folder / "n3.json")])]
    assert names == ["n1", "n3.json", "without-suffix", "row1/n2.tgz", "row1/deep/n4.txt"]


def test_symlinks_in_a_fleet_folder_are_reported_and_not_followed(folder: Path) -> None:
    (folder / "shadow.txt").symlink_to("/etc/shadow")
    (folder / "around").symlink_to(folder)
    problems = {one.name: one.problem for one in find_fleet_reports([str(folder)]) if one.problem}
    assert set(problems) == {"shadow.txt", "around"}
    assert "not followed" in problems["around"]


def test_pipe_named_like_a_report_is_reported(folder: Path) -> None:
    os.mkfifo(folder / "live.log")
    os.mkfifo(folder / "socket")
    assert [one.name for one in find_fleet_reports([str(folder)]) if one.problem] == ["live.log"]


def test_unreadable_subfolder_is_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = folder / "row1"
    scandir = os.scandir

    def refusing(path: Path) -> object:
        if path == closed:
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    (told,) = [one for one in find_fleet_reports([str(folder)]) if one.problem]
    assert (told.name, told.problem) == ("row1", "it cannot be read: Permission denied")
    monkeypatch.setattr(os, "scandir", lambda _: refusing(closed))
    with pytest.raises(UsageError, match="cannot be read"):
        find_fleet_reports([str(folder)])


def test_symlink_given_by_name_is_followed(folder: Path) -> None:
    (folder / "link.json").symlink_to(folder / "n3.json")
    (one,) = find_fleet_reports([str(folder / "link.json")])
    assert not one.problem


def test_too_deep_folder_is_reported(tmp_path: Path) -> None:
    deep = tmp_path / "x"
    deep.joinpath(*"abcdefghijkl").mkdir(parents=True)
    (one,) = find_fleet_reports([str(deep)])
    assert (one.name, one.problem) == ("a/b/c/d/e/f/g", "too many folders deep")


def test_mounted_image_is_no_fleet_and_its_plan_is_named(tmp_path: Path) -> None:
    for name in ("etc", "usr/bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "etc/hosts.txt").write_text("127.0.0.1 localhost\n")
    with pytest.raises(UsageError, match="is a root file system") as refused:
        find_fleet_reports([str(tmp_path)])
    assert f"gpunode plan --root {tmp_path}" in refused.value.hint


def test_empty_or_oversized_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="contains no report"):
        find_fleet_reports([str(tmp_path)])
    monkeypatch.setattr(reports, "_MAX_ENTRIES", 3)
    for number in range(5):
        write(tmp_path / f"{number}.txt", "x")
    with pytest.raises(Refused, match="not read"):
        find_fleet_reports([str(tmp_path)])


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_json_list_in_a_windows_encoding_is_read(encoding: str, tmp_path: Path) -> None:
    plain = read_report(write(tmp_path / "x.json", json.dumps(ROWS)))
    assert texts(read_report(write(tmp_path / "y.json", json.dumps(ROWS).encode(encoding)))) == texts(plain)


def deny_even_root(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deny root access to ``folder``, as its mode denies it to other users."""
    folder.chmod(0)
    scandir, look_up = os.scandir, Path.stat

    def refuse_listing(path: Path) -> Any:
        return scandir(refuse(path) if path == folder else path)

    def refuse_look_up(path: Path, **options: Any) -> os.stat_result:
        return look_up(refuse(path) if folder in path.parents else path, **options)

    def refuse(path: Path) -> Path:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse_listing)
    monkeypatch.setattr(Path, "stat", refuse_look_up)


def test_unreadable_folder_does_not_hide_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("open", "shut"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "x.json", json.dumps(ROWS))
    os.mkfifo(tmp_path / "pipe.json")
    deny_even_root(tmp_path / "shut", monkeypatch)
    found = {one.name: one.problem for one in find_fleet_reports([str(tmp_path)])}
    assert found == {
        "open/x.json": "",
        "pipe.json": "it is neither a file nor a folder",
        "shut": "it cannot be read: Permission denied",
    }
    assert not is_fleet(str(tmp_path / "shut" / "x.json"))
    with pytest.raises(UsageError, match="cannot be read"):
        read_report(str(tmp_path / "shut" / "x.json"))
    with pytest.raises(UsageError, match="cannot be read"):
        find_fleet_reports([str(tmp_path / "shut")])


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\xfd7zXZ\x00" + bytes(range(100)), "packed with xz"),
        (b"\x28\xb5\x2f\xfd" + bytes(range(100)), "packed with zstd"),
        (b"PK\x03\x04" + bytes(range(100)), "a zip archive"),
        (b"\x89PNG\r\n\x1a\n" + bytes(range(100)), "a PNG picture"),
        (b"%PDF-1.4\n" + bytes(range(100)), "a PDF document"),
        (gzip.compress(gzip.compress(TERMINAL.encode(), mtime=0), mtime=0), "packed with gzip twice"),
        (TERMINAL.encode("utf-16-le"), "UTF-16 with its mark"),
        (TERMINAL.encode("utf-32"), "text in UTF-32"),
        (b"\0" * 1000, "many zero bytes"),
    ],
)
def test_unreadable_report_is_explained_with_a_hint(data: bytes, what: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        read_report(write(tmp_path / "x", data))
    assert what in caught.value.why
    assert "unpack it, or copy the text out of it" in caught.value.hint


@pytest.mark.parametrize(
    "text", ["caf\u00e9 \u00fcber " * 30, "\u9a71\u52a8\u7a0b\u5e8f\u9519\u8bef " * 30, "a\0b" * 40]
)
@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_text_in_other_encodings_is_read(text: str, encoding: str, tmp_path: Path) -> None:
    assert read_report(write(tmp_path / "x", f"$ dmesg\n[ 1.0] NVRM: loading NVIDIA module\n{text}".encode(encoding)))


@pytest.mark.parametrize(
    "packed", [gzip.compress(TERMINAL.encode(), mtime=0)[:-6], gzip.compress(TERMINAL.encode(), mtime=0) + b"rest"]
)
def test_truncated_gzip_report_is_read_and_noted(packed: bytes, tmp_path: Path) -> None:
    found = read_report(write(tmp_path / "x.log.gz", packed))
    assert found[TRUNCATION_KEY].outcome == "failed"
    assert "truncated or damaged" in found[TRUNCATION_KEY].error
    assert "Xid" in found["sudo dmesg | tail"].text
    examined = diagnose_evidence(found)
    assert examined.diagnosis.roots[0].cause == "gpu-fallen-off-bus"
    assert "rest of the report" in examined.diagnosis.open_questions[-1].question
