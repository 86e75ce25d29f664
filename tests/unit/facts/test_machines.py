"""Which machine answered, by the prompt, by the command and by the lines of a log."""

from __future__ import annotations

import pytest

from gpunode.facts import pasted
from gpunode.facts.machines import HERE, called

LINE = "Nov 22 09:12:01 gpu1 kernel: NVRM: loading NVIDIA UNIX x86_64 Kernel Module"
SMI = "Failed to initialize NVML: Unknown Error"


def of_session(text: str) -> list[str]:
    return [capture.machine for capture in pasted.from_text(text).values()]


@pytest.mark.parametrize(
    ("prompt", "machine"),
    [
        ("root@gpu1:~# ", "gpu1"),
        ("[root@GPU1.example.com ~]# ", "gpu1"),
        ("(venv) me@gpu1:~/train$ ", "gpu1"),
        ("gpu1:~ # ", "gpu1"),
        ("gpu1# ", "gpu1"),
        ("me@10.0.0.5:~$ ", "10.0.0.5"),
        ("root@ubuntu:~# ", ""),
        ("root@localhost:~# ", ""),
        ("root@3f2a9c1b7d4e:/# ", ""),
        ("root@trainer-5f7d8:/workspace# ", ""),
        ("train$ ", ""),
        ("bash-5.1# ", ""),
        ("$ ", ""),
    ],
)
def test_a_prompt_names_its_machine(prompt: str, machine: str) -> None:
    assert of_session(f"{prompt}nvidia-smi\n{SMI}\n{prompt}lsmod\nModule  Size  Used by\n") == [machine, machine]


@pytest.mark.parametrize(
    ("source", "machine"),
    [
        ("ssh gpu1 nvidia-smi", "gpu1"),
        ("ssh -p 2222 -i ~/.ssh/key root@gpu1 'sudo dmesg | grep Xid'", "gpu1"),
        ("kubectl debug node/gpu1 -it --image=busybox -- chroot /host dmesg", "gpu1"),
        ("talosctl -n 10.0.0.5 dmesg", "10.0.0.5"),
        ("root@gpu1:~# nvidia-smi", "gpu1"),
        ("root@login:~# ssh gpu1 nvidia-smi", "gpu1"),
        ("nvidia-smi on the good node", "good node"),
        ("dmesg on node2", "node2"),
        ("nvidia-smi -q on GPU1", ""),
        ("ssh gpu1", ""),
        ("nvidia-smi", ""),
        ("kubectl describe node gpu1", ""),
    ],
)
def test_a_command_names_the_machine_that_it_asks(source: str, machine: str) -> None:
    (capture,) = pasted.evidence([(source, SMI)]).values()
    assert capture.machine == machine


def test_whoever_enters_a_machine_types_there_until_the_way_out() -> None:
    steps = ("$ ssh gpu1\nLast login\n", f"$ nvidia-smi\n{SMI}\n", "$ exit\nlogout\n", f"$ nvidia-smi\n{SMI}\n")
    assert of_session("".join(steps))[1] == "gpu1"
    assert of_session("".join(steps))[3] == ""
    assert of_session(f"$ ssh gpu1 nvidia-smi\n{SMI}\n$ nvidia-smi\n{SMI}\n") == ["gpu1", HERE]


def test_the_lines_of_a_log_name_its_machine() -> None:
    def of(*pieces: tuple[str, str]) -> list[str]:
        return [capture.machine for capture in pasted.evidence(pieces).values()]

    other = LINE.replace("gpu1", "gpu2")
    assert of(("journalctl -k", LINE)) == ["gpu1"]
    assert of(("journalctl -k", f"{LINE}\n{other}")) == [""]
    assert of(("root@loghost:~# cat /var/log/gpu1.log", LINE), ("ssh gpu1 nvidia-smi", SMI)) == ["gpu1", "gpu1"]
    assert of(("root@gpu1:~# journalctl -k", LINE.replace("gpu1", "node-17"))) == ["gpu1"]
    assert of(("kubectl describe node gpu1", "Name: gpu1"), ("ssh gpu1 nvidia-smi", SMI)) == ["gpu1", "gpu1"]


def test_a_name_without_its_domain_is_the_machines() -> None:
    assert [called(name) for name in ("GPU1.Example.com", "10.0.0.5", "ubuntu", "xxxx", "n")] == [
        *("gpu1", "10.0.0.5", "", "", ""),
    ]
