from __future__ import annotations

from gpunode.diagnoses.snapshot import take_snapshot
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
