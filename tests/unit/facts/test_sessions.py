from __future__ import annotations

import pytest

from gpunode.facts import pasted
from gpunode.facts.items import split_items
from gpunode.facts.pasted import split_session

AT = "root@gpu1:~# "
FAILS = ("nvidia-smi", "No devices were found")
WORKS = ("nvidia-smi", "GPU 0: NVIDIA A100")


def session_outputs(*steps: tuple[str, str], prompts: tuple[str, ...] = ()) -> list[str]:
    prompts = prompts or (AT,) * len(steps)
    text = "".join(f"{prompt}{command}\n{said}\n" for prompt, (command, said) in zip(prompts, steps, strict=True))
    return [capture.text.strip() for capture in pasted.parse_text_report(text).values()]


def test_later_answer_of_the_same_command_replaces_the_earlier() -> None:
    assert session_outputs(FAILS, ("apt install nvidia-driver", "Setting up"), WORKS)[-1] == WORKS[1]
    assert FAILS[1] not in session_outputs(FAILS, ("sudo nvidia-smi", WORKS[1]))


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (FAILS, ("nvidia-smi", "bash: nvidia-smi: Permission denied")),
        (("dmesg", "[ 1.0] NVRM: one"), ("dmesg", "[ 9.0] NVRM: other")),
        (("python3 train.py", "CUDA error"), ("python3 train.py", "epoch 1")),
        (("nvidia-smi -L", FAILS[1]), WORKS),
    ],
    ids=["refused", "a log", "a program", "another command"],
)
def test_both_answers_are_kept_where_neither_replaces_the_other(first: tuple[str, str], later: tuple[str, str]) -> None:
    assert first[1] in session_outputs(first, later)


def test_answer_at_another_machines_prompt_is_separate() -> None:
    assert FAILS[1] in session_outputs(FAILS, WORKS, prompts=(AT, "root@gpu2:~# "))
    assert FAILS[1] in session_outputs(FAILS, ("ssh gpu2", ""), WORKS, prompts=("$ ", "$ ", "$ "))


def kinds(text: str) -> list[str]:
    return [item.kind for item in split_items(pasted.parse_text_report(text))]


LSMOD = "Module                  Size  Used by\nnouveau 2306048 4"
LOST = "[   12.3] unrelated\n[   99.123456] NVRM: GPU 0000:07:00.0: GPU has fallen off the bus."
FAILED = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'


@pytest.mark.parametrize("head", ["{}\n", "```\n{}\n", "## {}\n", "**{}**\n", "`{}`:\n", "== {} ==\n"])
def test_command_above_its_output_is_recognized(head: str) -> None:
    blocks = (("lsmod", "nouveau 1 0"), ("sudo dmesg | grep -i nvrm", "fell"), ("cat /proc/cmdline", "quiet"))
    text = "".join(f"{head.format(command)}{said}\n\n" for command, said in blocks)
    assert kinds(f"My GPU does not work.\n\n{text}") == ["text", "lsmod", "kernel-log", "file"]


@pytest.mark.parametrize("line", ["find the log below", "which driver is right?", "Docker version 27", "mount failed."])
def test_sentence_is_no_command(line: str) -> None:
    assert len(kinds(f"{line}\nfell\n\n{line}\nfell\n")) == 1


@pytest.mark.parametrize(
    "line",
    [
        'nvidia-container-toolkit-ctr time="2026-10-01T10:00:00Z" level=error msg="no config"',
        "kubelet E1001 10:00:00.000000       1 server.go:1] no GPU",
        "dockerd failed to start daemon: unable to configure",
    ],
)
def test_line_of_a_log_in_a_block_is_no_command(line: str) -> None:
    assert {step.source for step in split_session("pasted text", f"```sh\n{line}\nmore\n```\n")} == {"pasted text"}


@pytest.mark.parametrize(
    "line", ["systemctl status nvidia-fabricmanager failed", "kubectl logs --since-time 2026-11-30T10:00:00Z plugin"]
)
def test_command_in_a_block_with_a_word_or_a_time_of_a_log_is_a_command(line: str) -> None:
    assert [step.source for step in split_session("pasted text", f"```sh\n{line}\nmore\n```\n")][-1] == line


def test_recognizable_paragraph_begins_a_piece() -> None:
    text = f"It fails since the update.\n\n{LSMOD}\n\n{LOST}\n\nand then\n\n{FAILED}\n\n6.8.0-45-generic\n"
    assert kinds(text) == ["text", "lsmod", "kernel-log", "container-run", "uname"]


def test_root_shell_within_a_session_is_split() -> None:
    text = "$ uname -r\n6.8.0\n$ sudo -i\n# lsmod | grep nvidia\n# # all of it\n# cat /proc/cmdline\nquiet\n"
    assert kinds(text) == ["uname", "text", "lsmod", "file"]


def test_shell_history_lines_have_no_output() -> None:
    assert len(pasted.collect_pieces([("/root/.bash_history", "lsmod\n\nmodprobe nvidia\n")])) == 1


def test_block_of_markdown_ends_the_output() -> None:
    text = (
        "`/etc/docker/daemon.json`:\n```json\n{}\n```\n\nThe node works.\n\n```\n$ uname -r\n6.8.0-90-generic\n```\nBye"
    )
    assert [(step.source, step.text) for step in split_session("pasted text", text)] == [
        ("/etc/docker/daemon.json", "{}"),
        ("pasted text", "The node works."),
        ("uname -r", "6.8.0-90-generic"),
        ("pasted text", "Bye"),
    ]
