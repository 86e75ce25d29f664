from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from gpunode.errors import Busy, ChangeFailed
from gpunode.journal.store import Store

HOLDER = """
import sys
from gpunode.journal.store import Store
with Store(sys.argv[1]).lock():
    print("held", flush=True)
    sys.stdin.read()
"""


def holder(root: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLDER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


@pytest.mark.usefixtures("allow_subprocess")
def test_who_holds_the_lock_is_named_and_the_kernel_frees_it_when_it_dies(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        with (
            pytest.raises(Busy, match=rf"pid {process.pid} \(\S*python\S* -c import sys") as stopped,
            Store(tmp_path).lock(),
        ):
            pass
        assert stopped.value.exit_code == 12
        process.kill()
    with Store(tmp_path).lock():
        pass


@pytest.mark.usefixtures("allow_subprocess")
def test_a_lock_is_waited_for(tmp_path: Path) -> None:
    with holder(tmp_path) as process:
        assert process.stdin is not None
        process.stdin.close()
        with Store(tmp_path).lock(timeout_s=60):
            pass


@pytest.mark.parametrize("content", [b"", b"1\n", b"999999999\nold", b"-1\n", b"\xff\xfe" * 3000])
def test_what_a_dead_holder_left_is_harmless(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run/gpunode/lock"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with Store(tmp_path).lock():
        path.write_bytes(content)
        with pytest.raises(Busy), Store(tmp_path).lock():
            pass
    with Store(tmp_path).lock():
        pass


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    path = tmp_path / "run/gpunode/lock"
    path.parent.mkdir(parents=True)
    victim = tmp_path / "victim"
    victim.write_text("precious")
    path.symlink_to(victim)
    with pytest.raises(ChangeFailed, match="nothing was changed"), Store(tmp_path).lock():
        pass
    assert victim.read_text() == "precious"
