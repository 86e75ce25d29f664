from __future__ import annotations

from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted
from gpunode.facts.patterns import Pattern


def test_registers_of_packages_have_no_messages() -> None:
    evidence = pasted.evidence([("/var/log/dpkg.log", "NVRM: GPU is lost\n"), ("journalctl -u x", "all is well\n")])
    seen = snapshot(evidence)
    assert [one.is_register for one in seen.items] == [True, False]
    assert not seen.says(Pattern("GPU is lost"))
    assert seen.says(Pattern("all is well"))
