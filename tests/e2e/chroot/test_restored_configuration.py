"""rollback with a real containerd restores the configuration byte for byte, and so does its own rollback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.chroot.scenario import (
    COMMENTED,
    CONFIG,
    DIRECTORIES,
    Answer,
    Lab,
    as_machine,
    ask,
)
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.chroot import Chroot
from tests.e2e.lab.pci import T4

pytestmark = pytest.mark.e2e


@pytest.fixture(params=["bookworm", pytest.param("trixie", marks=pytest.mark.long)])
def node(request: pytest.FixtureRequest, bases: dict[str, Bases], chroots: Lab) -> Iterator[Chroot]:
    """Yield a node with toolkit and containerd set up; the driver, which takes longest, is covered elsewhere."""
    with chroots.node(bases[str(request.param)].runtime, [T4]) as made:
        as_machine(made)
        path = made.write(CONFIG, COMMENTED, 0o640)
        made.run("chown", "daemon:adm", CONFIG)
        assert path.read_text() == COMMENTED
        chroots.recipe(made, DIRECTORIES[made.base.codename], more='[driver]\nversion = "none"\n')
        # Without a driver the node does not verify; what is applied stays.
        done = ask(made, "setup", "/root/node.toml", "--yes")
        assert done.exit_code in {0, 7}, done.error
        assert state(made)[0] != COMMENTED
        yield made


def state(node: Chroot) -> tuple[str, int, int, int]:
    """Return every property of the configuration file that a rollback must restore."""
    path = node.path(CONFIG)
    status = path.stat()
    return path.read_text(), status.st_mode & 0o7777, status.st_uid, status.st_gid


def dump_config(node: Chroot) -> str:
    return node.run("containerd", "config", "dump").stdout


def roll_back(node: Chroot, *options: str) -> Answer:
    return ask(node, "rollback", "--yes", *options)


def test_rollback_restores_the_file_and_can_be_rolled_back(node: Chroot) -> None:
    configured = state(node)
    # No other user may own a file that root runs: setup takes the file from the user daemon, and a rollback returns it.
    assert configured[1:] == (0o640, 0, 4)
    assert "nvidia-container-runtime" in dump_config(node)

    back = roll_back(node)

    assert back.exit_code == 0, back.error
    assert state(node) == (COMMENTED, 0o640, 1, 4)
    assert "nvidia-container-runtime" not in dump_config(node)

    again = roll_back(node, str(back.result["run"]))

    assert again.exit_code == 0, again.error
    assert state(node) == configured
    assert "nvidia-container-runtime" in dump_config(node)


def test_runs_are_listed_with_what_undid_them(node: Chroot) -> None:
    roll_back(node)

    runs = ask(node, "rollback", "--list").result["runs"]

    assert [run["verb"] for run in runs] == ["setup", "rollback"]
    assert CONFIG in runs[0]["subjects"]
    assert runs[0]["undone_by"] == runs[1]["run"]
    text = node.gpunode("rollback", "--list").stdout
    assert CONFIG in text


def test_edited_file_is_shown_and_kept_unless_forced(node: Chroot) -> None:
    edited = state(node)[0] + "\n# ours, since yesterday\n"
    node.path(CONFIG).write_text(edited)

    refused = roll_back(node)

    assert refused.exit_code == 5
    assert "+# ours, since yesterday" in refused.error
    assert state(node)[0] == edited

    forced = roll_back(node, "--force")

    assert forced.exit_code == 0, forced.error
    assert state(node) == (COMMENTED, 0o640, 1, 4)

    returned = roll_back(node, str(forced.result["run"]))
    assert returned.exit_code == 0, returned.error
    assert state(node)[0] == edited, "the edit was backed up"


def test_setup_after_a_rollback_configures_again(node: Chroot) -> None:
    configured = state(node)
    roll_back(node)

    done = ask(node, "setup", "/root/node.toml", "--yes")

    assert done.exit_code in {0, 7}
    assert [change["subject"] for change in done.changes] == [CONFIG]
    assert state(node) == configured


def test_rollback_screen_names_the_restored_file(node: Chroot) -> None:
    done = node.gpunode("rollback", "--yes")

    assert done.returncode == 0, done.stderr
    assert CONFIG in done.stdout
