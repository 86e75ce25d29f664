"""The mounts of a root, made by the real mount(8) in a mount namespace that ends with the test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpunode.host import chroot


def _may_mount() -> bool:
    return os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], check=False).returncode == 0


pytestmark = pytest.mark.skipif(not _may_mount(), reason="needs root and a mount namespace of its own")

SCRIPT = """
import json, os, subprocess, sys
from pathlib import Path
from gpunode.host import chroot

root, how = sys.argv[1:]

def look():
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = {line.split()[4][len(root):]: line.split()[5] for line in lines if line.split()[4].startswith(root)}
    policy = Path(root, "usr/sbin/policy-rc.d")
    return {
        "mounts": mounts,
        "policy": subprocess.run([policy]).returncode if os.access(policy, os.X_OK) else None,
        "resolver": Path(root, "etc/resolv.conf").exists(),
    }

seen = {"before": look(), "writable": None}
try:
    with chroot.mounted(root):
        seen["inside"] = look()
        try:
            Path(root, "sys/kernel/uevent_seqnum").open("w")
        except OSError as error:
            seen["writable"] = error.strerror
        if how == "nested":
            with chroot.mounted(root):
                pass
            seen["still"] = look()
        if how == "fails":
            raise RuntimeError
except RuntimeError:
    pass
seen["after"] = look()
print(json.dumps(seen))
"""


def enter(root: Path, how: str = "", before: str = "true") -> dict[str, dict[str, object]]:
    shell = f'{before} && exec "$0" -c "$1" "$2" "$3"'
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", shell, sys.executable, SCRIPT, str(root), how]
    done = subprocess.run(argv, check=True, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    result: dict[str, dict[str, object]] = json.loads(done.stdout)
    return result


def tree(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "image"
    for folder in ("bin", "usr/sbin", "proc", "sys", "dev", "etc"):
        (root / folder).mkdir(parents=True)
    (root / "bin/sh").write_text("")
    return root


@pytest.mark.parametrize("how", ["", "nested", "fails"])
def test_everything_is_mounted_and_everything_goes_again(root: Path, how: str) -> None:
    before = tree(root)
    seen = enter(root, how)
    mounts = seen["inside"]["mounts"]
    assert isinstance(mounts, dict)
    assert {"/proc", "/sys", "/dev", "/dev/pts", "/usr/sbin/policy-rc.d"} <= set(mounts)
    assert "ro" in mounts["/sys"].split(",")
    assert seen["writable"] is not None
    assert seen["inside"]["policy"] == 101
    assert seen["inside"]["resolver"] == Path("/etc/resolv.conf").exists()
    assert seen.get("still", seen["inside"]) == seen["inside"]
    assert seen["after"] == seen["before"]
    assert seen["after"]["mounts"] == {}
    assert tree(root) == before


def test_the_images_own_policy_and_the_users_own_mounts_stay(root: Path) -> None:
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 42\n")
    policy.chmod(0o755)
    seen = enter(root, before=f"mount -t proc proc {root}/proc")
    assert seen["inside"]["policy"] == 42
    assert set(seen["after"]["mounts"]) == {"/proc"}  # type: ignore[call-overload]
    assert policy.read_text() == "#!/bin/sh\nexit 42\n"


def test_a_resolver_by_way_of_a_folder_of_the_running_system_is_made_reachable(root: Path) -> None:
    (root / "etc/resolv.conf").symlink_to("../run/systemd/resolve/stub-resolv.conf")
    before = tree(root)
    seen = enter(root)
    assert seen["inside"]["resolver"] == Path("/etc/resolv.conf").exists()
    assert tree(root) == before
    assert os.readlink(root / "etc/resolv.conf") == "../run/systemd/resolve/stub-resolv.conf"


def test_links_of_the_image_lead_to_no_mount_outside_of_it(root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (root / "proc").rmdir()
    (root / "proc").symlink_to(tmp_path / "outside")
    enter(root)
    assert os.listdir(tmp_path / "outside") == []
    assert os.path.ismount(tmp_path / "outside") is False


def test_a_folder_without_a_system_is_refused(tmp_path: Path) -> None:
    from gpunode.errors import UsageError
    from gpunode.host.chroot import mounted

    with pytest.raises(UsageError, match="not the root of a system"), mounted(str(tmp_path)):
        pass


WHOLE = """
import json, os, sys
from gpunode.change import CommandChange, FileChange, FileState
from gpunode.errors import ChangeFailed
from gpunode.facts.evidence import Probe
from gpunode.host.local import LocalHost

host = LocalHost(sys.argv[1])
checks = "/usr/sbin/policy-rc.d x start; test $? = 101 && test -e /proc/self/stat && test -c /dev/null && echo fine"
host.apply([
    FileChange("/etc/gpunode-test", None, FileState(b"inside")),
    CommandChange(("sh", "-c", checks + " > /etc/gpunode-said"), "to see"),
])
try:
    host.apply([CommandChange(("sh", "-c", "echo broken >&2; exit 7"), "to fail")])
except ChangeFailed as error:
    why = error.why
said = host.look(Probe("said", path="/etc/gpunode-said")).text
run = host.look(Probe("cat", argv=("cat", "/etc/gpunode-test")))
print(json.dumps({"said": said, "cat": run.text, "why": why, "left": os.path.ismount(sys.argv[1] + "/proc")}))
"""


def test_a_whole_system_as_a_root(tmp_path: Path) -> None:
    """This machine's own system, beneath an overlay that takes all writes."""
    for folder in ("disk", "root"):
        (tmp_path / folder).mkdir()
    layers = f"lowerdir=/,upperdir={tmp_path}/disk/upper,workdir={tmp_path}/disk/work"
    shell = (
        f"mount -t tmpfs x {tmp_path}/disk && mkdir {tmp_path}/disk/upper {tmp_path}/disk/work && "
        f'mount -t overlay -o {layers} x {tmp_path}/root && exec "$0" -c "$1" {tmp_path}/root'
    )
    argv = ["unshare", "-m", "--propagation", "private", "sh", "-c", shell, sys.executable, WHOLE]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[3])
    if "overlay" in done.stderr and "mount" in done.stderr:
        pytest.skip(f"no overlay here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["said"], result["cat"], result["left"]) == ("fine\n", "inside", False)
    assert "exit status 7" in result["why"]
    assert "broken" in result["why"]
    assert not Path("/etc/gpunode-test").exists()


def test_what_a_killed_run_left_in_the_image_is_used_again_and_goes(root: Path) -> None:
    """A stand-in for policy-rc.d that stayed must not count as the image's own policy, which would start services."""
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text(chroot._STAND_IN)

    seen = enter(root)

    assert seen["inside"]["policy"] == 101
    assert not policy.exists()


def test_stand_ins_are_swept_and_the_images_own_files_stay(root: Path) -> None:
    policy, resolver = root / "usr/sbin/policy-rc.d", root / "etc/resolv.conf"
    policy.write_text(chroot._STAND_IN)
    resolver.write_text("")

    chroot.sweep(str(root))

    assert not policy.exists()
    assert resolver.exists()


def test_private_mounts_go_with_the_process_that_is_killed(root: Path) -> None:
    script = """
import os, signal, sys
from gpunode.host import chroot
chroot.keep_mounts_private()
with chroot.mounted(sys.argv[1]):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script, str(root)], check=False, cwd=Path(__file__).parents[3])
    assert killed.returncode == -9
    assert str(root) not in Path("/proc/self/mountinfo").read_text()
