"""What people paste, as evidence."""

from __future__ import annotations

import pytest

from gpunode.facts import pasted
from gpunode.facts.items import items


@pytest.mark.parametrize("name", ["standard input", "paste.txt", "./paste.txt", "/home/u/paste.txt", "/etc/paste"])
def test_what_a_text_is_does_not_hang_on_the_file_that_it_stands_in(name: str) -> None:
    said = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
    (item,) = items(pasted.from_text(said, name))
    assert item.kind == "container-run"


def test_the_name_of_a_log_says_what_it_is() -> None:
    (item,) = items(pasted.from_text("nothing that would tell", "/var/log/kern.log"))
    assert item.kind == "kernel-log"


@pytest.mark.parametrize("prompt", ["gpu1 ~ # ", "host:~ # ", "host:/etc # ", "root@gpu1:~# ", "[root@gpu1 ~]# ", "$ "])
def test_every_shell_has_its_prompt(prompt: str) -> None:
    found = items(pasted.from_text(f"{prompt}lsmod\nnouveau 1 0\n{prompt}uname -r\n6.1.0\n"))
    assert [item.kind for item in found] == ["lsmod", "uname"]
