from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from gpunode.cli import completing
from gpunode.cli.compose import checked_root, cluster_journal, gpus_to_set_up, samples, see
from gpunode.errors import UsageError


def test_gpus_are_named_for_images_only() -> None:
    (device,) = gpus_to_set_up("10de:1B80", image=True)
    assert device.device == "1b80"
    with pytest.raises(UsageError, match="--gpu is for an image"):
        gpus_to_set_up("10de:1b80", image=False)
    assert gpus_to_set_up("", image=False) == ()


def test_the_shipped_samples_are_named_completed_and_listed_for_a_name_that_is_none() -> None:
    assert samples() == ("debian12-gtx1080",)
    assert completing.nodes() == list(samples())
    assert see("debian12-gtx1080", "/", "").evidence
    for wrong in ("debian12", "README.md-of-samples"):
        with pytest.raises(UsageError, match="no sample of that name") as caught:
            see(wrong, "/", "")
        assert "debian12-gtx1080" in caught.value.why


def test_a_relative_root_in_a_folder_that_is_gone_is_a_usage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(UsageError, match="cannot be resolved"):
        checked_root(".")


@pytest.mark.parametrize("others", [True, False])
def test_root_keeps_no_journal_where_another_user_can_lead_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    """With the HOME of another user, as after ``su`` without a dash, a link there leads root's writes elsewhere."""
    risks = {tmp_path: "alice"} if others else {tmp_path: ""}
    monkeypatch.setattr("gpunode.host.ownership.why_others_write", risks.__getitem__)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    root_home = Path(pwd.getpwuid(0).pw_dir)
    expected = root_home / ".local/state/gpunode" if others else tmp_path / "gpunode"
    assert cluster_journal().folder == expected
