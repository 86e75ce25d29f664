"""Pastes as websites, mail programs and terminals change them, and what must stay as its program printed it."""

from __future__ import annotations

import textwrap

import pytest

from gpunode.facts import pasted
from gpunode.facts.markup import strip_markup

SESSION = "$ nvidia-smi\nNo devices were found\n\n$ cat /etc/containerd/config.toml\nversion = 2\n  [plugins]\n"


@pytest.mark.parametrize(
    "pasted_text",
    [
        textwrap.indent(SESSION, "    "),
        textwrap.indent(SESSION, "\t"),
        textwrap.indent(SESSION, "> ", lambda line: True),
        textwrap.indent(SESSION, ">> > ", lambda line: True),
        "".join(f"{number:6d}\t{line}\n" for number, line in enumerate(SESSION.splitlines(), 1)),
        "".join(f"{number:2d} | {line}\n" for number, line in enumerate(SESSION.splitlines(), 1)),
    ],
)
def test_marks_before_every_line_are_removed(pasted_text: str) -> None:
    assert strip_markup(pasted_text).removeprefix("```\n").removesuffix("```").rstrip("\n") == SESSION.rstrip("\n")


def test_indented_sessions_and_blocks_move_to_the_margin() -> None:
    post = "Fails:\n\n    me@gpu1:~$ lsmod\n    Module\n      x\n\nand\n\n    [   12.345678] NVRM: x\n\n"
    listed = "1. So:\n   ```\n   a\n     b\n   ```\nEnd."
    assert strip_markup(post) == (
        "Fails:\n\n```\nme@gpu1:~$ lsmod\nModule\n  x\n\n```\nand\n\n```\n[   12.345678] NVRM: x\n\n\n```"
    )
    assert strip_markup(listed) == "1. So:\n```\na\n  b\n```\nEnd."


@pytest.mark.parametrize("margin", ["", " ", "   ", "    "])
def test_block_within_indented_fences_keeps_its_shape(margin: str) -> None:
    block = "data:\n  config.yaml: |\n    version: v1\n    flags:\n      migStrategy: none\n"
    listed = f"1. So:\n\n   ```yaml\n{textwrap.indent(block, margin)}   ```\nEnd."
    assert textwrap.dedent(strip_markup(listed).split("```")[1].removeprefix("yaml\n")) == block


def test_html_becomes_markdown() -> None:
    post = (
        "<details><summary><b>Output of <code>dmesg</code></b></summary>\n<pre><code class='x'>a &lt;none&gt;"
        " &amp;&amp; b\n</code></pre></details><p>Thanks<br>\nme</p>"
    )
    assert [line for line in strip_markup(post).split("\n") if line] == [
        *("## Output of `dmesg`", "```", "a <none> && b", "```", "Thanks", "me"),
    ]


def test_headings_and_lists_keep_their_marks() -> None:
    post = "<h3>Seen?</h3><ul>\n<li>NVRM: Xid: no</li>\n<li><p>nouveau: no</p></li></ul>"
    assert [line for line in strip_markup(post).split("\n") if line] == [
        *("## Seen?", "- NVRM: Xid: no", "- nouveau: no"),
    ]


def test_comments_of_templates_become_quotations() -> None:
    post = "Log:\n<!-- Paste it here, e.g.\n[  1.000000] NVRM: Xid\n-->\nnone <!-- open"
    assert strip_markup(post) == "Log:\n\n> Paste it here, e.g.\n> [  1.000000] NVRM: Xid\n\n\nnone <!-- open"


@pytest.mark.parametrize("tag", ["[code]", "[/code]", "{code}", "{code:bash|title=x}", "{noformat}"])
def test_tags_of_forums_become_fences(tag: str) -> None:
    assert strip_markup(f"a\n{tag}\nb") == "a\n```\nb"


def test_lines_broken_by_a_terminal_are_joined() -> None:
    start = "NVRM: Xid (PCI:0000:01:00): 79, pid='<unknown>', name=<unknown>"
    log = "".join(f"[{seconds:5d}.000000] {start} {'x' * seconds}\n" for seconds in range(30, 60, 5))
    broken = "".join(f"{line[:80]}\n{line[80:]}\n" for line in log.splitlines())
    assert strip_markup(broken) == log


@pytest.mark.parametrize(
    "text",
    [
        # All lines of a table have the same length, and so have repeated messages.
        "".join(f"gpu-feature-discovery-{number:040d}   0/1   Running   {number}m\n" for number in range(10, 20)),
        "".join(f"[  100.00000{at}] NVRM: Xid (PCI:0000:01:00): 31, pid=1234, name=python, Ch 8\n" for at in range(9)),
        # Rows of nvidia-smi's CSV may differ in length.
        "".join(f"{at}, NVIDIA H100, GPU-{'8f6d' * 9}, 00000000:{at}8:00.0, {65 + at % 2 * 40} W\n" for at in range(8)),
        # Indentation of YAML, TOML and of messages that go on.
        "spec:\n\n    containers:\n    - name: x\n",
        "[plugins]\n\n    [plugins.a]\n\n    # sudo nvidia-ctk\n    b = 1\n",
        "[    1.000000] NVRM: The GPU\n               NVRM: (PCI ID: 10de:26b5) inst\n               NVRM: fell off\n",
        # Examples in a docstring, a commit and a manual.
        'def parse():\n    """Parse it.\n\n    $ lsmod\n    nouveau 2334720 4\n    """\n',
        "commit 3b2a\n\n    Reload it\n\n    [    1.000000] NVRM: Xid\n",
        "$ tool --help\nExamples:\n    $ lsmod\n    nouveau 2334720 4\n",
        # A quotation, and an outer shell's heredoc.
        "He wrote:\n> $ nvidia-smi\n> No devices were found\n",
        "> [    1.000000] NVRM: Xid\n",
        "$ cat <<EOF\n> a\n> EOF\n",
        # Numbers that are the program's own.
        "  411  sudo reboot\n  412  nvidia-smi\n  413  dmesg\n  414  ls\n",
        "1\n1\n2\n3\n4\n",
        "    1  ls\n    2  dmesg | grep Xid\n    3  sudo reboot\n    4  ls\n",
        # Numbers of a person's list.
        "1. NVRM: Xid\n2. NVRM: API mismatch\n3. No devices were found\n4. NVRM: RmInitAdapter failed!\n",
        "1: NVRM: Xid\n2: NVRM: API mismatch\n3: No devices were found\n4: NVRM: RmInitAdapter failed!\n",
        # XML, generics, redirections.
        "<nvidia_smi_log>\n<gpu id='0'>\n</gpu>\n",
        "Status: <none> && map<string> 2>&1 a&b;\n",
        '"dns": [“172.20.130.181”]\n',
    ],
)  # fmt: skip
def test_text_of_programs_and_persons_stays(text: str) -> None:
    assert strip_markup(text) == text


@pytest.mark.parametrize(
    ("line", "source"),
    [
        ("Output of nvidia-smi -L:", "nvidia-smi -L"),
        ("2. Run `lsmod | grep nvidia`", "lsmod | grep nvidia"),
        ("Here's the output of `dmesg`:", "dmesg"),
        ("**`uname -a` gives:**", "uname -a"),
        ("My /etc/docker/daemon.json:", "file:/etc/docker/daemon.json"),
        ("<summary>Logs of `journalctl -u kubelet`</summary>", "journalctl -u kubelet"),
    ],
)
def test_line_before_a_block_names_its_source(line: str, source: str) -> None:
    keys = pasted.parse_text_report(f"Help!\n\n{line}\n\n```\nsome output\n```\n")
    assert any(source in {key, capture.source} for key, capture in keys.items())


@pytest.mark.parametrize(
    "post",
    [
        # The fence ends the block of the line, and example outputs are no outputs.
        "```\n/usr/bin/x: line 8: nvidia-smi: command not found\n```\n\nIt is loaded.\n",
        "```\n/lib/modules/5.15.0/nvidia.ko\n```\n",
        "Expected output of `dmesg`:\n\n```\nsome output\n```\n",
        "Output of dmesg last year:\n\n```\n[    1.000000] NVRM: Xid\n```\n",
        "After `apt install x`:\n\n```\n[    1.000000] NVRM: Xid\n```\n",
    ],
)
def test_other_lines_name_none(post: str) -> None:
    assert all(capture.source == "pasted text" for capture in pasted.parse_text_report(post).values())


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("", ""),
        ("\n \n", "\n \n"),
        (">" * 150_000, ">" * 150_000),
        ("<summary>" * 20_000, ""),
        ("&lt;" * 40_000, "<" * 40_000),
        (" " * 150_000 + "$ x", "```\n$ x\n```"),
        ("?a=1&copy=2&lt=3", "?a=1&copy=2&lt=3"),
    ],
    ids=["empty", "blank", "quotations", "summaries", "entities", "margin", "link"],
)
def test_hostile_text_is_read_without_searching_it_again_and_again(text: str, plain: str) -> None:
    assert strip_markup(text) == plain
