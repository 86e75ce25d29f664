"""A system below another root, whose programs run in their own namespaces, with the real system calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpunode.errors import ChangeFailed
from gpunode.host import chroot
from gpunode.host.process import Runner


def _may_mount() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _may_mount(), reason="needs root and a mount namespace of its own")

TOP = Path(__file__).parents[3]
START = """
import json, os, subprocess, sys
from pathlib import Path
from gpunode.change import CommandChange, FileChange, FileState
from gpunode.errors import ChangeFailed, GpunodeError
from gpunode.facts.evidence import Probe
from gpunode.host import chroot
from gpunode.host.local import LocalHost
from gpunode.host.process import Runner

root = sys.argv[1]
Path(root, "usr/sbin/policy-rc.d").unlink(missing_ok=True)
def runner(): return Runner(root, consent=lambda: None)
def sh(runner, text): return runner.run(("sh", "-c", text), timeout_s=60).stdout.decode()
def mounts(): return Path("/proc/self/mountinfo").read_text()
"""


def in_image(tmp_path: Path, script: str, start: str = 'exec "$0" -c "$1" "$2"') -> Any:
    """Return the JSON that ``script`` prints; ``root`` is this machine's system, below an overlay for writes."""
    for folder in ("disk", "root"):
        (tmp_path / folder).mkdir()
    layers = f"lowerdir=/,upperdir={tmp_path}/disk/upper,workdir={tmp_path}/disk/work"
    shell = (
        f"mount -t tmpfs x {tmp_path}/disk && mkdir {tmp_path}/disk/upper {tmp_path}/disk/work && "
        f'mount -t overlay -o {layers} x {tmp_path}/root && set -- "$1" {tmp_path}/root && {start}'
    )
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", shell, sys.executable, START + script]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=TOP)
    if "overlay" in done.stderr and "mount" in done.stderr:
        pytest.skip(f"no overlay here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root without programs."""
    root = tmp_path / "image"
    for folder in ("bin", "usr/sbin", "proc", "sys", "dev", "etc"):
        (root / folder).mkdir(parents=True)
    (root / "bin/sh").write_text("")
    return root


def runner(root: Path) -> Runner:
    return Runner(str(root), consent=lambda: None)


def test_chroot_has_the_mounts_that_maintainer_scripts_need(tmp_path: Path) -> None:
    seen = in_image(
        tmp_path,
        """
before, one = mounts(), runner()
with chroot.prepare_root(one):
    inside = sh(one, "/usr/sbin/policy-rc.d x start; echo $?; cat /etc/resolv.conf | cksum; cat /proc/1/stat | wc -l; "
        "test -c /dev/null && test -c /dev/ptmx && echo x > /dev/null && ls /dev; touch /sys/x 2>&1")
    same = mounts() == before
    with chroot.prepare_root(one):
        nested = sh(one, "/usr/sbin/policy-rc.d x start; echo $?")
    after_nested = sh(one, "/usr/sbin/policy-rc.d x start; echo $?")
policy = os.path.lexists(root + "/usr/sbin/policy-rc.d")
print(json.dumps([inside, same, nested, after_nested, policy, mounts() == before]))
""",
    )
    inside, same, nested, after_nested, policy, at_the_end = seen
    resolver = subprocess.run(["cksum"], input=Path("/etc/resolv.conf").read_bytes(), capture_output=True, check=True)
    status, names, stat, *devices = str(inside).splitlines()
    assert (status, names, stat) == ("101", resolver.stdout.decode().strip(), "1")
    allowed = {*("fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom")}
    assert set(devices[:-1]) == {*allowed, "zero"}
    assert "Read-only" in devices[-1]
    assert (same, nested, after_nested, policy, at_the_end) == (True, "101\n", "101\n", False, True)


def test_chroot_works_on_a_machine_without_sys(tmp_path: Path) -> None:
    """The sandbox in which mkosi runs its scripts has none."""
    sandbox = (
        'mkdir "$2/../disk/other" "$2/../disk/others" && cd "$2/.." && mkdir image && '
        "mount -t overlay -o lowerdir=/,upperdir=disk/other,workdir=disk/others x image && "
        "rmdir root/sys && mount -t proc proc root/proc && mount --rbind /dev root/dev && "
        "mount --move image root/mnt && "
        f'exec chroot root sh -c \'cd {TOP} && exec "$0" -c "$1" /mnt\' "$0" "$1"'
    )
    seen = in_image(
        tmp_path,
        """
with chroot.prepare_root(runner()):
    print(json.dumps([os.path.exists("/sys"), sh(runner(), "ls -d /sys /proc/self; ls /sys | wc -l")]))
""",
        sandbox,
    )
    assert seen == [False, "/proc/self\n/sys\n0\n"]


def test_chroot_cannot_be_escaped(tmp_path: Path) -> None:
    """Try the ways out of chroot(8): another chroot, the disk's device, host processes, the kernel's files."""
    device, outside = os.stat("/").st_dev, str(tmp_path / "disk/upper")  # below a mount that is not in the image
    attempts = f"""
import ctypes, os, signal, stat
libc = ctypes.CDLL(None, use_errno=True)
def breakout():
    os.makedirs("/tmp/deep", exist_ok=True)
    os.chroot("/tmp/deep")
    for _ in range(64): os.chdir("..")
    os.chroot(".")
    assert os.path.exists("OUTSIDE")
def disk():
    os.mknod("/tmp/disk", stat.S_IFBLK | 0o600, {device})
    os.open("/tmp/disk", os.O_RDONLY)
def old_disk(): os.open("/planted", os.O_RDONLY)
def kill(): os.kill(HOST, 0)
def trace(): assert libc.ptrace(16, HOST, 0, 0) == 0
def first(): os.readlink("/proc/1/exe")
def first_root(): os.stat("/proc/1/root/.")
def core(): open("/proc/sys/kernel/core_pattern", "w").write("|/tmp/x")
def sysrq(): open("/proc/sysrq-trigger", "w").write("h")
def uevent(): open("/sys/kernel/uevent_helper", "w").write("/tmp/x")
def mount(): assert libc.mount(b"proc", b"/mnt", b"proc", 0, None) == 0
def setns(): assert libc.setns(os.open("/proc/1/ns/mnt", os.O_RDONLY), 0) == 0
def module():
    number = dict(x86_64=175, aarch64=105)[os.uname().machine]
    assert libc.syscall(number, b"", 0, b"") == 0 or ctypes.get_errno() not in {{1, 38}}  # EPERM, ENOSYS
def clock(): import time; time.clock_settime(time.CLOCK_REALTIME, time.time())
def hostname(): import socket; socket.sethostname("image")
def handle():
    import struct
    buffer = struct.pack("IiII", 8, 1, 2, 0)
    fd = os.open("/", os.O_RDONLY)
    assert libc.open_by_handle_at(fd, buffer, os.O_RDONLY) >= 0 or ctypes.get_errno() != 1
def null(): os.chmod("/dev/null", 0o600)
def abstract_socket():
    import socket
    socket.socket(socket.AF_UNIX).connect("\\0gpunode-HOST")
def keys():
    number = dict(x86_64=250, aarch64=219)[os.uname().machine]
    assert libc.syscall(number, 0, -4, 1) >= 0  # KEYCTL_GET_KEYRING_ID of root's own keyring, which holds his keys
def capable(): assert libc.unshare(0x10000000) == 0
def capable_child():
    number = dict(x86_64=56, aarch64=220)[os.uname().machine]
    made = libc.syscall(number, 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if made == 0: os._exit(0)
    assert made > 0
def capable_child_of_clone3():
    import struct
    arguments = struct.pack("11Q", 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    made = libc.syscall(435, arguments, len(arguments))
    if made == 0: os._exit(0)
    assert made > 0
"""
    seen = in_image(
        tmp_path,
        f"""
text = {attempts!r}.replace("HOST", str(os.getpid())).replace("OUTSIDE", {outside!r})
assert os.path.exists({outside!r})
names = [line.split("(")[0][4:] for line in text.splitlines() if line.startswith("def ")]
import ctypes, socket
daemon = socket.socket(socket.AF_UNIX)
daemon.bind(f"\\0gpunode-{{os.getpid()}}")
daemon.listen()
if ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) < 6:  # Landlock's scopes came with Linux 6.12
    names.remove("abstract_socket")
os.mknod(root + "/planted", 0o60600, {device})
Path(root, "escape.py").write_text(text + '''
import sys
try:
    globals()[sys.argv[1]]()
except (OSError, AssertionError):
    print("held")
else:
    print("ESCAPED")
''')
one = runner()
print(json.dumps({{name: one.run((sys.executable, "/escape.py", name), timeout_s=60).stdout.decode().strip()
                  for name in names}}))
""",
    )
    assert {name: said for name, said in seen.items() if said != "held"} == {}
    assert len(seen) > 10


def test_background_process_ends_with_its_command(tmp_path: Path) -> None:
    seen = in_image(
        tmp_path,
        """
one = runner()
sh(one, "sleep 4711 > /dev/null 2>&1 & echo")
left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"sleep\\x004711" in p.read_bytes()]
print(json.dumps([len(left)]))
""",
    )
    assert seen == [0]


def test_exit_statuses_are_those_of_the_command(tmp_path: Path) -> None:
    seen = in_image(
        tmp_path,
        """
one = runner()
argvs = (("sh", "-c", "exit 7"), ("sh", "-c", "kill -9 $$"), ("not-there",), ("/etc",), ("sh", "-c", "exit 125"))
print(json.dumps([one.run(argv, timeout_s=60).exit_status for argv in argvs]))
""",
    )
    assert seen == [7, 137, 127, 127, 125]


def test_timeout_ends_the_command_and_its_children(tmp_path: Path) -> None:
    seen = in_image(
        tmp_path,
        """
done = runner().run(("sh", "-c", "trap 'echo asked' TERM; sleep 4712 & wait; wait"), timeout_s=1)
left = [p for p in Path("/proc").glob("[0-9]*/cmdline") if b"sleep\\x004712" in p.read_bytes()]
print(json.dumps([done.timed_out, done.stdout.decode(), len(left)]))
""",
    )
    assert seen == [True, "asked\n", 0]


def test_probing_an_image_runs_none_of_its_programs(tmp_path: Path) -> None:
    seen = in_image(
        tmp_path,
        """
host = LocalHost(root, consent=lambda: None)
host.apply([
    FileChange("/etc/gpunode-test", None, FileState(b"inside")),
    CommandChange(("sh", "-c", "cat /etc/gpunode-test > /etc/gpunode-said"), "to see"),
])
try:
    host.apply([CommandChange(("sh", "-c", "echo broken >&2; exit 7"), "to fail")])
except ChangeFailed as error:
    why = error.why
said = host.run_probe(Probe("said", path="/etc/gpunode-said")).text
ran = host.run_probe(Probe("cat", argv=("touch", "/etc/gpunode-ran")))
denied = LocalHost(root).runner.run(("touch", "/etc/gpunode-ran"), timeout_s=5)
print(json.dumps([said, why, ran.outcome, denied.is_program_missing, os.path.exists(root + "/etc/gpunode-ran")]))
""",
    )
    said, why, outcome, is_missing, ran = seen
    assert (said, outcome, is_missing, ran) == ("inside", "absent", True, False)
    assert "exit status 7" in str(why)
    assert "broken" in str(why)
    assert not Path("/etc/gpunode-test").exists()


def test_policy_rc_d_of_the_image_is_kept(root: Path) -> None:
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 42\n")
    one = runner(root)
    with chroot.prepare_root(one):
        assert one.places.policy == ""
    assert policy.read_text() == "#!/bin/sh\nexit 42\n"


def test_resolver_symlink_into_run_is_made_reachable(root: Path) -> None:
    (root / "etc/resolv.conf").symlink_to("../run/systemd/resolve/stub-resolv.conf")
    before = tree(root)
    with chroot.prepare_root(runner(root)):
        assert (root / "run/systemd/resolve/stub-resolv.conf").exists() == Path("/etc/resolv.conf").exists()
    assert tree(root) == before
    assert os.readlink(root / "etc/resolv.conf") == "../run/systemd/resolve/stub-resolv.conf"


@pytest.mark.parametrize("place", ["proc", "sys", "dev", "usr/sbin", "etc"])
def test_symlinks_of_the_image_do_not_lead_outside(root: Path, tmp_path: Path, place: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (root / place).rmdir()
    (root / place).symlink_to(outside)
    one = runner(root)
    with suppress(ChangeFailed), chroot.prepare_root(one):
        one.run(("/bin/sh",), timeout_s=10)
    assert os.listdir(outside) == []


def test_folder_without_a_system_is_refused(tmp_path: Path) -> None:
    from gpunode.errors import UsageError

    with pytest.raises(UsageError, match="not the root of a system"), chroot.prepare_root(runner(tmp_path)):
        pass


def test_placeholder_of_a_killed_run_is_reused_and_removed(root: Path) -> None:
    """A leftover placeholder for policy-rc.d must not count as the image's own policy, which would start services."""
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_bytes(chroot._MOUNT_POINT_PLACEHOLDER)
    one = runner(root)

    with chroot.prepare_root(one):
        assert one.places.policy == "/usr/sbin/policy-rc.d"

    assert not policy.exists()


def test_placeholders_are_removed_and_files_of_the_image_kept(root: Path) -> None:
    policy, resolver = root / "usr/sbin/policy-rc.d", root / "etc/resolv.conf"
    policy.write_bytes(chroot._MOUNT_POINT_PLACEHOLDER)
    resolver.write_text("")

    chroot.remove_mount_points(str(root))

    assert not policy.exists()
    assert resolver.exists()


def test_nothing_stays_mounted_when_gpunode_is_killed(root: Path) -> None:
    script = """
import os, signal, sys
from gpunode.host import chroot
from gpunode.host.process import Runner
with chroot.prepare_root(Runner(sys.argv[1], consent=lambda: None)):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(root)], check=False, cwd=TOP)
    assert killed.returncode == -9
    assert str(root) not in Path("/proc/self/mountinfo").read_text()
    chroot.remove_mount_points(str(root))
    assert not (root / "usr/sbin/policy-rc.d").exists()
