"""The machine's key and password hash, made by the real openssl; a stand-in for mokutil takes the request."""

from __future__ import annotations

import hashlib
import os
import pty
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from gpunode.change import CommandChange
from gpunode.errors import ChangeFailed, Refused
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture, GlobMatch, Probe, encode_matches
from gpunode.facts.model import Known, ModuleSignature
from gpunode.facts.module_key import read_serial
from gpunode.host import mok
from gpunode.host.local import LocalHost
from gpunode.host.process import Runner
from gpunode.steps.enrolment import KEY_BACKUP_FOLDER
from gpunode.steps.secure_boot import SECURE_BOOT_STEP
from tests.fakes.firmware import Firmware
from tests.unit.steps.machines import planned, recipe
from tests.unit.steps.test_secure_boot_steps import node

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl (apt-get install openssl)")

# Keeps the given hash, and refuses a hash file that others can read.
MOKUTIL = """#!/bin/sh
[ "$(stat -c %a "$4")" = 600 ] || { echo "others can read the hash" >&2; exit 1; }
cat "$4" > "@FOLDER@/hash"
cp "$2" "@FOLDER@/queued"
echo "$@" > "@FOLDER@/argv"
"""


def make_key(key: Path, certificate: Path) -> subprocess.CompletedProcess[str]:
    """Run the plan's command for a new key, with these paths."""
    changes = planned(SECURE_BOOT_STEP.plan(recipe(), node(Firmware()))).changes
    (command,) = [one for one in changes if isinstance(one, CommandChange) and one.argv[0] == "sh"]
    script = command.argv[2].replace(KEY_BACKUP_FOLDER, str(key.parent / "copy"))
    argv = [*command.argv[:2], script, command.argv[3], str(key), str(certificate)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def openssl(*arguments: str) -> str:
    return subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    key, certificate = tmp_path / "dkms" / "mok.key", tmp_path / "dkms" / "mok.pub"
    done = make_key(key, certificate)
    assert done.returncode == 0, done.stderr
    return key, certificate


def test_new_key_is_as_dkms_makes_it(pair: tuple[Path, Path]) -> None:
    key, certificate = pair
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(certificate.stat().st_mode) == 0o644
    shown = openssl("x509", "-inform", "DER", "-in", str(certificate), "-noout", "-text")
    assert re.search("CN ?= ?DKMS module signing key", shown), "openssl 3.4 and newer write no blanks"
    assert "Code Signing" in shown
    assert "Public-Key: (2048 bit)" in shown
    of_key = openssl("pkey", "-in", str(key), "-pubout")
    assert of_key == openssl("x509", "-inform", "DER", "-in", str(certificate), "-noout", "-pubkey")
    assert sorted(path.name for path in key.parent.iterdir()) == ["copy", "mok.key", "mok.pub"]


def test_new_key_has_a_copy_that_root_alone_can_read(pair: tuple[Path, Path]) -> None:
    folder = pair[0].parent / "copy"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "mok.key").stat().st_mode) == 0o600
    assert [(folder / path.name).read_bytes() for path in pair] == [path.read_bytes() for path in pair]


def test_copy_of_an_earlier_key_stays(tmp_path: Path) -> None:
    for number in (1, 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "copy").symlink_to(tmp_path / "kept")
        (tmp_path / "kept").mkdir(exist_ok=True)
        assert make_key(folder / "mok.key", folder / "mok.pub").returncode == 0
    made = {path.read_bytes() for path in tmp_path.glob("[12]/mok.*")}
    assert len(made) == 4
    assert {path.read_bytes() for path in (tmp_path / "kept").iterdir()} == made


def test_serial_number_is_the_one_that_openssl_shows(pair: tuple[Path, Path]) -> None:
    shown = openssl("x509", "-inform", "DER", "-in", str(pair[1]), "-noout", "-serial")
    assert read_serial(pair[1].read_bytes()) == int(shown.strip().partition("=")[2], 16)


def test_pair_that_is_there_stays_as_it_is(pair: tuple[Path, Path]) -> None:
    before = [hashlib.sha256(path.read_bytes()).digest() for path in pair]
    assert make_key(*pair).returncode == 0
    assert [hashlib.sha256(path.read_bytes()).digest() for path in pair] == before


@pytest.mark.parametrize("gone", [0, 1])
def test_half_a_pair_is_never_completed(pair: tuple[Path, Path], gone: int) -> None:
    pair[gone].unlink()
    kept = pair[1 - gone].read_bytes()
    assert make_key(*pair).returncode != 0
    assert not pair[gone].exists()
    assert pair[1 - gone].read_bytes() == kept


@pytest.mark.parametrize("empty", [False, True])
def test_key_without_its_certificate_is_finished_by_the_new_one_of_its_own(
    pair: tuple[Path, Path], *, empty: bool
) -> None:
    certificate = pair[1].read_bytes()
    pair[1].rename(f"{pair[1]}.new")
    if empty:
        pair[1].touch()
    assert make_key(*pair).returncode == 0
    assert pair[1].read_bytes() == certificate


def test_new_certificate_of_another_key_is_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    assert make_key(tmp_path / "other.key", tmp_path / "other.pub").returncode == 0
    (tmp_path / "other.pub").rename(f"{pair[1]}.new")
    pair[1].write_bytes(b"")
    done = make_key(*pair)
    assert done.returncode != 0
    assert f"{pair[1]}.new, if it exists, belongs to another key: remove it" in done.stderr
    assert pair[1].read_bytes() == b""


def test_two_empty_files_are_no_key(pair: tuple[Path, Path]) -> None:
    for path in pair:
        path.write_bytes(b"")
    assert make_key(*pair).returncode == 0
    assert all(path.stat().st_size for path in pair)


def test_key_cut_short_by_a_kill_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "mok.key.new").write_text("half")
    (tmp_path / "mok.pub.new").write_text("half")
    assert make_key(tmp_path / "mok.key", tmp_path / "mok.pub").returncode == 0
    assert (tmp_path / "mok.key").stat().st_size > 1000


@pytest.fixture
def request_change(tmp_path: Path) -> CommandChange:
    program, certificate = tmp_path / "mokutil", tmp_path / "mok.pub"
    program.write_text(MOKUTIL.replace("@FOLDER@", str(tmp_path)))
    program.chmod(0o755)
    certificate.write_bytes(b"certificate")
    argv = (str(program), "--import", str(certificate), "--hash-file", str(tmp_path / "password"))
    return CommandChange(argv, "test")


@pytest.fixture
def screen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file in the place of the terminal, which does not exist yet."""
    monkeypatch.setattr(mok, "_TERMINAL", str(tmp_path / "screen"))
    return tmp_path / "screen"


def read_password(screen: str) -> str:
    return screen.partition("next boot: ")[2].partition("\n")[0].strip()


def test_password_is_on_the_terminal_alone_and_its_hash_fits(
    tmp_path: Path, request_change: CommandChange, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = pty.openpty()
    monkeypatch.setattr(mok, "_TERMINAL", os.ttyname(follower))
    try:
        mok.queue_enrolment(Runner(), request_change)
        password = read_password(os.read(leader, 4096).decode())
    finally:
        os.close(leader)
        os.close(follower)
    assert 8 <= len(password) <= 12
    assert not set(password) - set("bcdefghijklnoprstuvx23456789")
    kept = (tmp_path / "hash").read_text().strip()
    salt = kept.split("$")[2]
    assert kept == openssl("passwd", "-6", "-salt", salt, password).strip()
    assert not (tmp_path / "password").exists()
    assert (tmp_path / "queued").read_bytes() == b"certificate"
    for path in tmp_path.rglob("*"):
        assert path.is_dir() or password.encode() not in path.read_bytes(), path


def test_refused_request_says_why_and_leaves_no_hash(
    tmp_path: Path, request_change: CommandChange, screen: Path
) -> None:
    program = Path(request_change.argv[0])
    program.write_text("#!/bin/sh\necho 'Failed to enroll new keys' >&2\nexit 255\n")
    screen.touch()
    with pytest.raises(ChangeFailed, match="did not queue") as caught:
        mok.queue_enrolment(Runner(), request_change)
    assert "Failed to enroll new keys" in caught.value.why
    assert not (tmp_path / "password").exists()


def test_password_is_on_the_terminal_before_the_request_is_queued(
    tmp_path: Path, request_change: CommandChange, screen: Path
) -> None:
    screen.touch()
    program = Path(request_change.argv[0])
    program.write_text(program.read_text() + f'cp "{screen}" "{tmp_path}/seen"\n')
    mok.queue_enrolment(Runner(), request_change)
    assert hashes(read_password((tmp_path / "seen").read_text()), (tmp_path / "hash").read_text().strip())


def test_hash_is_not_written_into_a_file_of_somebody_else(
    tmp_path: Path, request_change: CommandChange, screen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = tmp_path / "theirs"
    theirs.touch()
    screen.touch()

    def plant_link(path: Path, *, missing_ok: bool = False) -> None:
        assert missing_ok
        os.symlink(theirs, path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", plant_link)
        with pytest.raises(ChangeFailed, match="File exists"):
            mok.queue_enrolment(Runner(), request_change)
    assert not theirs.read_bytes()
    assert not (tmp_path / "queued").exists()


@pytest.mark.usefixtures("screen")
def test_nothing_is_queued_if_nobody_can_see_the_password(tmp_path: Path, request_change: CommandChange) -> None:
    with pytest.raises(ChangeFailed):
        mok.queue_enrolment(Runner(), request_change)
    assert not (tmp_path / "queued").exists()
    assert not (tmp_path / "password").exists()


def test_request_without_a_terminal_is_refused_before_any_change(screen: Path) -> None:
    changes = planned(SECURE_BOOT_STEP.plan(recipe(), node(Firmware()))).changes
    with pytest.raises(Refused, match="no terminal") as caught:
        mok.read_chosen_password(changes)
    assert "ssh -t" in caught.value.hint
    assert not mok.read_chosen_password(())
    screen.touch()
    assert not mok.read_chosen_password(changes)


def write_password(folder: Path, text: str = "chosen2026\n", mode: int = 0o600) -> Path:
    path = folder / "chosen"
    path.write_text(text)
    path.chmod(mode)
    return path


def hashes(password: str, kept: str) -> bool:
    return kept == openssl("passwd", "-6", "-salt", kept.split("$")[2], password).strip()


IMPORT = CommandChange(("mokutil", "--import", "x"), "test")


@pytest.mark.usefixtures("screen")
def test_chosen_password_is_used_once_and_its_file_removed(tmp_path: Path, request_change: CommandChange) -> None:
    path = write_password(tmp_path)
    chosen = mok.read_chosen_password([IMPORT], str(path))
    mok.queue_enrolment(Runner(), request_change, password=chosen)
    assert hashes("chosen2026", (tmp_path / "hash").read_text().strip())
    assert path.exists()
    mok.remove_password_file(str(path), chosen)
    assert not path.exists()


def test_run_without_an_enrolment_leaves_the_password_file_unread(tmp_path: Path) -> None:
    assert not mok.read_chosen_password((), str(tmp_path / "gone"))


def test_password_file_goes_and_the_link_to_it_stays(tmp_path: Path) -> None:
    link, path = tmp_path / "link", write_password(tmp_path)
    link.symlink_to(path)
    mok.remove_password_file(str(link), mok.read_chosen_password([IMPORT], str(link)))
    assert link.is_symlink()
    assert not path.exists()


def test_file_behind_a_link_in_the_password_files_place_stays(tmp_path: Path) -> None:
    """The folder's owner could otherwise make root remove any file."""
    path, other = write_password(tmp_path), tmp_path / "shadow"
    other.write_text("root:*:1::::::\n")
    chosen = mok.read_chosen_password([IMPORT], str(path))
    path.unlink()
    path.symlink_to(other)
    mok.remove_password_file(str(path), chosen)
    assert other.exists()


def test_password_file_behind_standard_input_stays(tmp_path: Path) -> None:
    with write_password(tmp_path).open() as file:
        name = f"/dev/fd/{file.fileno()}"
        chosen = mok.read_chosen_password([IMPORT], name)
        mok.remove_password_file(name, chosen)
    assert chosen == "chosen2026"
    assert (tmp_path / "chosen").exists()


def test_chosen_password_may_come_through_a_pipe() -> None:
    reader, writer = os.pipe()
    try:
        os.write(writer, b"through9pipe\n")
        os.close(writer)
        assert mok.read_chosen_password([IMPORT], f"/dev/fd/{reader}") == "through9pipe"
    finally:
        os.close(reader)


def test_password_file_that_others_may_read_is_refused_before_any_change(tmp_path: Path) -> None:
    for path in (str(write_password(tmp_path, mode=0o640)), str(tmp_path / "gone"), str(tmp_path), "/dev/null"):
        with pytest.raises(Refused, match="nothing was changed") as caught:
            mok.read_chosen_password([IMPORT], path)
        assert "0600" in caught.value.hint


@pytest.mark.parametrize("text", ["short1\n", "with blank 12\n", "", "pässword12\n", "x" * 17])
def test_password_that_cannot_be_typed_is_refused_before_any_change(tmp_path: Path, text: str) -> None:
    path = write_password(tmp_path, text)
    with pytest.raises(Refused, match="cannot be used; nothing was changed"):
        mok.read_chosen_password([IMPORT], str(path))
    assert path.exists()


def test_passwords_differ() -> None:
    assert len({mok.make_password() for _ in range(50)}) == 50


def find_sign_file() -> str | None:
    """Return the kernel's program that signs modules."""
    found = sorted(Path("/usr/lib").glob("linux-kbuild-*/scripts/sign-file"))
    return shutil.which("sign-file") or (str(found[-1]) if found else None)


MODULE = """
#define INFO(name, text) static const char name[] __attribute__((section(".modinfo"), used)) = text
INFO(license, "license=GPL");
INFO(vermagic, "vermagic=6.1.0-37-amd64 SMP");
"""


@pytest.mark.skipif(find_sign_file() is None, reason="needs the kernel's sign-file (apt-get install linux-kbuild-6.1)")
@pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("modinfo")), reason="needs gcc and modinfo (kmod)")
@pytest.mark.parametrize("compressed", [False, True])
def test_signature_of_a_real_module_is_the_one_of_its_key(
    tmp_path: Path, pair: tuple[Path, Path], *, compressed: bool
) -> None:
    kernel = "6.1.0-37-amd64"
    module = tmp_path / "lib/modules" / kernel / "updates/dkms/nvidia.ko"
    module.parent.mkdir(parents=True)
    (tmp_path / "module.c").write_text(MODULE)
    subprocess.run(["gcc", "-c", "-o", str(module), str(tmp_path / "module.c")], check=True)
    unsigned = module.read_bytes()

    def read(content: bytes) -> ModuleSignature:
        module.write_bytes(content)
        if compressed:
            subprocess.run(["xz", "-kf", str(module)], check=True)
        shown = module.with_suffix(".ko.xz") if compressed else module
        host = LocalHost()
        seen = {"modules-dkms": Capture("m", "ok", encode_matches(iter([GlobMatch(str(shown))])))}
        # The path below the root contains the kernel's release.
        asked = host.run_probe(Probe(f"module-signature:{kernel}", argv=("modinfo", str(shown))))
        evidence = Firmware().evidence({**seen, f"module-signature:{kernel}": asked})
        fact = derive(evidence).module_key
        assert isinstance(fact, Known), fact
        return fact.value.signatures[kernel]

    assert read(unsigned) == ModuleSignature("", 0)
    sign_file = find_sign_file()
    assert sign_file is not None
    module.write_bytes(unsigned)
    subprocess.run([sign_file, "sha256", str(pair[0]), str(pair[1]), str(module)], check=True)
    signed = read(module.read_bytes())
    assert signed == ModuleSignature("DKMS module signing key", read_serial(pair[1].read_bytes()))


def test_kill_between_the_two_renames_is_finished(pair: tuple[Path, Path]) -> None:
    key, certificate = pair
    before = key.read_bytes(), certificate.read_bytes()
    certificate.rename(f"{certificate}.new")
    assert make_key(*pair).returncode == 0
    assert (key.read_bytes(), certificate.read_bytes()) == before
    assert not Path(f"{certificate}.new").exists()


@pytest.mark.parametrize("left", [b"", b"no certificate"])
def test_unnamed_certificate_of_another_key_is_not_taken(pair: tuple[Path, Path], left: bytes) -> None:
    _, certificate = pair
    certificate.unlink()
    Path(f"{certificate}.new").write_bytes(left)
    refused = make_key(*pair)
    assert (refused.returncode, "only one of" in refused.stderr) == (1, True)
    assert not certificate.exists()
