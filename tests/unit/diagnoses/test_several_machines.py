"""A report of several machines: what works on one says nothing of another, and each finding names its machine."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses.model import Diagnosis
from gpunode.facts import pasted
from gpunode.facts.evidence import Evidence
from gpunode.workflow.doctor import Examined, diagnosed

XID = "NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FELL = f"[Sun Nov 22 09:12:01 2026] {XID}"
LINE = f"Nov 22 09:12:01 gpu1 kernel: {XID}"
WORKS = """Sun Nov 22 11:50:12 2026
| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
| N/A   31C    P0             62W /  400W |       0MiB /  81920MiB |      0%      Default |"""
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.90"
NO_DRIVER = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
NOUVEAU = "Module                  Size  Used by\nnouveau              2306048  4"


def of(evidence: Evidence) -> Examined:
    return diagnosed(evidence)


def typed(*steps: tuple[str, str, str]) -> Examined:
    return of(pasted.from_text("".join(f"{prompt}{command}\n{said}\n" for prompt, command, said in steps)))


def at(host: str) -> str:
    return f"[root@{host} ~]# "


def rows(*pieces: tuple[str, str]) -> Examined:
    return of(pasted.from_json(json.dumps([{"source": source, "text": text} for source, text in pieces]), "a report"))


def named(found: Diagnosis) -> list[tuple[str, str]]:
    return [(root.cause, root.machine) for root in found.roots]


def gpu1_has_fallen(seen: Examined) -> bool:
    (root,) = seen.diagnosis.roots
    summary = "On gpu1: GPU 0000:07:00.0 reported Xid 79: the GPU no longer answers on the PCI bus"
    return (root.cause, root.machine, root.confidence, root.summary) == (
        *("gpu-fallen-off-bus", "gpu1", "certain", summary),
    )


def test_a_machine_at_work_ends_no_fault_of_its_twin() -> None:
    login = "me@login:~$ "
    bare = (("$ ", "ssh gpu1", ""), ("$ ", "dmesg -T", FELL), ("$ ", "exit", ""), ("$ ", "ssh gpu2 nvidia-smi", WORKS))
    assert gpu1_has_fallen(typed((at("gpu1"), "dmesg -T", FELL), (at("gpu2"), "nvidia-smi", WORKS)))
    assert gpu1_has_fallen(
        typed((login, "ssh gpu1 'sudo dmesg -T | grep Xid'", FELL), (login, "ssh -p 22 root@gpu2 nvidia-smi", WORKS))
    )
    assert gpu1_has_fallen(typed(*bare))
    assert gpu1_has_fallen(rows(("ssh gpu1 dmesg -T", FELL), ("ssh gpu2 nvidia-smi", WORKS)))
    assert gpu1_has_fallen(rows(("journalctl -k", LINE), ("root@gpu2:~# nvidia-smi", WORKS)))
    assert gpu1_has_fallen(
        rows(
            ("kubectl debug node/gpu1 -it --image=busybox -- chroot /host dmesg -T", FELL),
            ("ssh gpu2 nvidia-smi", WORKS),
        )
    )


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("Our bad node is gpu1:", "And this is gpu2, which works:"),
        ("## gpu1 (broken)", "## gpu2 (works)"),
        ("=== gpu1 ===", "=== gpu2 ==="),
    ],
)
@pytest.mark.parametrize("fence", ["", "```\n"])
def test_headings_name_the_machines_of_what_is_below(bad: str, good: str, fence: str) -> None:
    text = f"{bad}\n\n{fence}$ dmesg -T\n{FELL}\n{fence}\n{good}\n\n{fence}$ nvidia-smi\n{WORKS}\n{fence}"
    assert gpu1_has_fallen(of(pasted.from_text(text)))


def test_headings_that_name_no_two_machines_part_nothing() -> None:
    for first, second in (("## Step 1", "## Step 2"), ("On the node:", "And then:"), ("boot1:", "boot2:")):
        text = f"{first}\n\n$ dmesg -T\n{FELL}\n\n{second}\n\n$ nvidia-smi\n{WORKS}\n"
        assert of(pasted.from_text(text)).verdict == "healthy"


@pytest.mark.parametrize(
    "on",
    ["srun -w {} ", "srun -N1 --nodelist={} --pty ", "gcloud compute ssh {} --zone=z --command ", "tsh ssh {} -- "],
)
def test_what_runs_a_command_elsewhere_names_the_machine(on: str) -> None:
    login = "me@login9:~$ "
    steps = (login, f"{on.format('gpu1')}dmesg -T", FELL), (login, f"{on.format('gpu2')}nvidia-smi", WORKS)
    assert gpu1_has_fallen(typed(*steps))


def test_a_folder_makes_no_container_of_a_machine() -> None:
    for folder in ("/data/llm", "/opt/models", "/"):
        prompt = f"root@gpu1:{folder}# "
        assert gpu1_has_fallen(typed((prompt, "dmesg -T", FELL), ("root@gpu2:~# ", "nvidia-smi", WORKS)))


def test_what_ssh_was_given_is_another_name_of_the_machine() -> None:
    gpus = "\n".join(f"{bus}:00.0 3D controller: NVIDIA Corporation AD102GL [L40S] (rev a1)" for bus in ("07", "0a"))
    me = "me@laptop9:~$ "
    seen = typed(
        (me, "ssh ubuntu@10.0.0.5 lspci", gpus),
        (me, "ssh ubuntu@10.0.0.5", ""),
        ("ubuntu@gpu1:~$ ", "nvidia-smi", WORKS),
    )
    assert named(seen.diagnosis) == [("gpu-missing-from-inventory", "gpu1")]


def test_a_pod_is_no_machine() -> None:
    entered = 'Defaulted container "vllm" out of: vllm, init (init)'
    pod = "root@vllm-7d9c5b7c4-x2k9p:/vllm-workspace# "
    seen = typed(
        ("root@gpu1:~# ", "nvidia-smi", WORKS),
        ("root@gpu1:~# ", "kubectl exec -it vllm-7d9c5b7c4-x2k9p -- bash", entered),
        (pod, "ls /dev/nvidia*", "ls: cannot access '/dev/nvidia*': No such file or directory"),
    )
    assert all(not finding.machine for finding in seen.diagnosis.findings)


def test_a_pod_that_is_asked_from_the_control_plane_shows_no_gpu_of_the_control_plane() -> None:
    seen = typed(
        ("root@cp1:~# ", "kubectl exec -n gpu-operator nvidia-driver-daemonset-x -- nvidia-smi", WORKS),
        ("root@gpu1:~# ", "lspci", "07:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4 80GB] (rev a1)"),
    )
    assert not any("cp1" in doubt.question for doubt in seen.diagnosis.unknown)
    assert not seen.snapshot.machines


def test_a_container_with_a_banner_and_a_name_is_no_machine() -> None:
    entered = "== PyTorch ==\nNVIDIA Release 25.03"
    seen = typed(
        ("root@gpu1:~# ", "nvidia-smi", WORKS),
        ("root@gpu1:~# ", "docker run -it --hostname trainer9 nvcr.io/nvidia/pytorch:25.03-py3 bash", entered),
        ("root@trainer9:~# ", "ls /dev/nvidia*", "ls: cannot access '/dev/nvidia*': No such file or directory"),
    )
    assert all(not finding.machine for finding in seen.diagnosis.findings)


def test_at_prompts_without_a_name_the_later_machine_answers_for_itself_alone() -> None:
    modules = "Module                  Size  Used by\nnvidia              56807424  4"
    seen = typed(
        *(("$ ", command, said) for command, said in (("ssh gpu1", ""), ("lsmod", NOUVEAU), ("exit", ""))),
        *(("$ ", command, said) for command, said in (("ssh gpu2", ""), ("lsmod", modules), ("nvidia-smi", WORKS))),
    )
    assert named(seen.diagnosis) == [("nouveau-bound", "gpu1")]


def test_a_machine_at_work_ends_its_own_fault() -> None:
    seen = typed((at("gpu1"), "dmesg -T", FELL), (at("gpu1"), "nvidia-smi", WORKS), (at("gpu2"), "nvidia-smi", WORKS))
    assert seen.verdict == "healthy"


def test_of_one_machine_nobody_need_say_which_it_is() -> None:
    for host in ("gpu1.example.com", "GPU1", "ubuntu", "localhost"):
        seen = typed((at("gpu1"), "dmesg -T", FELL), (at(host), "nvidia-smi", WORKS))
        assert seen.verdict == "healthy", host
    assert rows(("dmesg -T", FELL), ("ssh gpu2 nvidia-smi", WORKS)).verdict == "healthy"


def test_a_boot_is_of_one_machine() -> None:
    boots = ((at("gpu1"), "uptime -s", "2026-09-01 06:00:03"), (at("gpu2"), "uptime -s", "2026-11-22 11:40:03"))
    assert gpu1_has_fallen(typed((at("gpu1"), "journalctl -k", LINE), *boots))
    assert gpu1_has_fallen(typed((at("gpu1"), "journalctl -k", LINE), *boots, (at("gpu2"), "nvidia-smi", WORKS)))


def test_each_finding_names_its_machine() -> None:
    seen = typed(
        (at("gpu1"), "nvidia-smi", MISMATCH),
        (at("gpu2"), "nvidia-smi", NO_DRIVER),
        (at("gpu2"), "lsmod", NOUVEAU),
        (at("gpu1"), "cat /proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15"),
        (at("gpu1"), "modinfo -F version nvidia", "550.90.07"),
    )
    found = named(seen.diagnosis)
    assert found == [("driver-library-mismatch-reboot-pending", "gpu1"), ("nouveau-bound", "gpu2")]
    assert all(root.summary.startswith(f"On {root.machine}: ") for root in seen.diagnosis.roots)


def test_the_same_fault_of_two_machines_is_told_of_each() -> None:
    seen = typed((at("gpu1"), "dmesg -T", FELL), (at("gpu2"), "dmesg -T", FELL.replace(":07:", ":0a:")))
    found = [(root.machine, root.gpus) for root in seen.diagnosis.roots]
    assert found == [("gpu1", ("0000:07:00.0",)), ("gpu2", ("0000:0a:00.0",))]


def test_what_follows_is_put_below_the_fault_of_its_machine() -> None:
    both = tuple(
        (at(host), *step) for host in ("gpu1", "gpu2") for step in (("nvidia-smi", NO_DRIVER), ("lsmod", NOUVEAU))
    )
    found = typed(*both).diagnosis
    assert named(found) == [("nouveau-bound", "gpu1"), ("nouveau-bound", "gpu2")]
    for root in found.roots:
        assert {one.machine for one in found.below(root)} == {root.machine}


def test_the_machine_of_which_nothing_is_known_is_asked_about() -> None:
    seen = typed(
        (at("gpu1"), "lspci", "07:00.0 3D controller: NVIDIA Corporation GA100"), (at("gpu2"), "nvidia-smi", WORKS)
    )
    assert seen.verdict == "unknown"
    assert "gpu1" in seen.diagnosis.unknown[0].question


NODE = "Capacity:\n  nvidia.com/gpu:  8\nAllocatable:\n  nvidia.com/gpu:  7"


@pytest.mark.parametrize("command", ["kubectl describe node gpu1", "kubectl describe node"])
def test_what_the_cluster_says_is_put_together_with_the_node(command: str) -> None:
    seen = typed((at("gpu1"), "dmesg -T", FELL), ("me@cp1:~$ ", command, NODE), ("me@cp1:~$ ", "uptime", "up 1 day"))
    (root,) = seen.diagnosis.roots
    assert root.cause == "gpu-fallen-off-bus"
    assert [one.cause for one in seen.diagnosis.below(root)] == ["device-plugin-marked-unhealthy"]


def test_a_container_is_no_machine() -> None:
    inside = "root@trainer-5f7d8:/# "
    for into in ("kubectl exec -it trainer-5f7d8 -- bash", "docker exec -it trainer bash"):
        seen = typed((at("gpu1"), into, ""), (inside, "dmesg -T", FELL), (at("gpu1"), "nvidia-smi", WORKS))
        assert {one.machine for one in seen.snapshot.items} <= {"", "gpu1"}
