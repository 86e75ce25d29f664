from __future__ import annotations

import pytest

from gpunode.errors import Undetermined
from gpunode.facts.model import Unknown, need


def test_what_cannot_be_told_is_named_once_and_as_a_person_would() -> None:
    with pytest.raises(Undetermined) as stopped:
        need(Unknown("/etc/x may not be read: Permission denied", "file:/etc/x"), "what /etc/x holds")
    assert stopped.value.why == "/etc/x may not be read: Permission denied"
    assert stopped.value.hint.startswith("look at it with `ls -ld /etc/x`")
    with pytest.raises(Undetermined, match="cannot tell") as stopped:
        need(Unknown("not captured", "virt"), "what kind of machine this is")
    assert stopped.value.why == "virt: not captured"
