from __future__ import annotations

from gpunode.diagnoses.snapshot import cite, take_snapshot
from gpunode.diagnoses.views import fabric, system
from gpunode.facts import pasted
from gpunode.facts.patterns import Pattern


def test_package_logs_contain_no_kernel_messages() -> None:
    evidence = pasted.collect_pieces(
        [("/var/log/dpkg.log", "NVRM: GPU is lost\n"), ("journalctl -u x", "all is well\n")]
    )
    seen = take_snapshot(evidence)
    assert [one.is_package_record for one in seen.items] == [True, False]
    assert not seen.contains(Pattern("GPU is lost"))
    assert seen.contains(Pattern("all is well"))


def test_file_that_is_not_there_shows_no_machine() -> None:
    paths = ("/usr/lib/wsl/lib/nvidia-smi", "/etc/nv_tegra_release", "/proc/driver/nvidia-nvswitch/permissions")
    seen = take_snapshot(pasted.collect_pieces([(path, f"cat: {path}: No such file or directory\n") for path in paths]))
    assert [item.outcome for item in seen.items] == ["absent"] * 3
    assert (system.is_wsl(seen), system.is_jetson(seen), fabric.switch_lines(seen)) == (False, False, ())


def test_line_that_stands_for_a_separator_is_the_same_citation() -> None:
    """A stripped copy was a second line of the proof, and no line of the current boot."""
    seen = take_snapshot(pasted.collect_pieces([("cat daemon.json", '{\n  "log-driver": "json-file"\n}\n')]))
    assert cite(seen.items[0], 1) == cite(seen.items[0], 2)
