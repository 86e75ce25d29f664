from __future__ import annotations

import pytest

from gpunode.facts import pasted

AT = "root@gpu1:~# "
FAILS = ("nvidia-smi", "No devices were found")
WORKS = ("nvidia-smi", "GPU 0: NVIDIA A100")


def said(*steps: tuple[str, str], prompts: tuple[str, ...] = ()) -> list[str]:
    prompts = prompts or (AT,) * len(steps)
    text = "".join(f"{prompt}{command}\n{said}\n" for prompt, (command, said) in zip(prompts, steps, strict=True))
    return [capture.text.strip() for capture in pasted.from_text(text).values()]


def test_of_the_same_command_the_later_answer_holds() -> None:
    assert said(FAILS, ("apt install nvidia-driver", "Setting up"), WORKS)[-1] == WORKS[1]
    assert FAILS[1] not in said(FAILS, ("sudo nvidia-smi", WORKS[1]))


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
def test_both_stand_where_the_later_one_may_not_replace_it(first: tuple[str, str], later: tuple[str, str]) -> None:
    assert first[1] in said(first, later)


def test_at_another_machine_s_prompt_it_is_another_answer() -> None:
    assert FAILS[1] in said(FAILS, WORKS, prompts=(AT, "root@gpu2:~# "))
    assert FAILS[1] in said(FAILS, ("ssh gpu2", ""), WORKS, prompts=("$ ", "$ ", "$ "))
