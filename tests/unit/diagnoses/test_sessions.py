"""A fault that was mended in the session that shows it: what was asked again later holds, and nothing else."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted

WORKS = """Sat Nov 16 10:00:00 2024
| NVIDIA-SMI 550.127.05             Driver Version: 550.127.05     CUDA Version: 12.4     |
|   0  NVIDIA A100-PCIE-40GB          On  |   00000000:C1:00.0 Off |                    0 |
| N/A   34C    P0             37W /  250W |       1MiB /  40960MiB |      0%      Default |"""
NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running."
)
SMI = ("nvidia-smi", WORKS)
RUN = "docker run --rm --gpus all ubuntu nvidia-smi -L"
GPU = "GPU 0: NVIDIA A100-PCIE-40GB (UUID: GPU-11111111-aaaa-bbbb-cccc-333333333333)"
NO_RUNTIME = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
NO_CDI = "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all"
CDI = "podman run --rm --device nvidia.com/gpu=all ubuntu nvidia-smi -L"
TOOLKIT = ("apt-get install -y nvidia-container-toolkit", "Setting up nvidia-container-toolkit (1.17.3-1) ...")
LOCKED = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 2311 (unattended-upgr)"
INVALID = (
    "Nov 16 09:00:00 n dockerd[900]: failed to start daemon: unable to configure the Docker daemon with file "
    "/etc/docker/daemon.json: invalid character '}' looking for beginning of object key string"
)
NOT_STARTED = "Job for docker.service failed because the control process exited with error code."
VALID = '{\n  "runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}\n}'
REPOSITORY = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2204/x86_64"
NO_KEY = (
    f"W: GPG error: {REPOSITORY}  InRelease: The following signatures couldn't be verified because the public key is "
    "not available: NO_PUBKEY A4B469963BF863CC"
)
TWO_KEYS = (
    f"E: Conflicting values set for option Signed-By regarding source {REPOSITORY}/ /: "
    "/usr/share/keyrings/cuda-archive-keyring.gpg != \nE: The list of sources could not be read."
)
UPDATED = f"Hit:1 {REPOSITORY}  InRelease\nReading package lists... Done"
TORCH = ("python3 -c 'import torch;torch.zeros(1).cuda()'", "RuntimeError: CUDA error: system not yet initialized")
FABRIC = "systemctl is-active nvidia-fabricmanager"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.127"
NO_MODULE = "modprobe: FATAL: Module nvidia not found in directory /lib/modules/5.15.0-125-generic"

MENDED: dict[str, tuple[tuple[str, str], ...]] = {
    "toolkit": ((RUN, NO_RUNTIME), TOOLKIT, ("systemctl restart docker", ""), (RUN, GPU), SMI),
    "cdi": ((CDI, NO_CDI), ("nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml", ""), (CDI, GPU), SMI),
    "lock": (
        ("apt-get install -y cuda-drivers", LOCKED),
        ("sudo apt install cuda-drivers", "Setting up cuda-drivers (550.127.05-1) ..."),
        SMI,
    ),
    "lock, another package": (("apt-get install -y cuda-drivers", LOCKED), TOOLKIT, SMI),
    "container": (
        ("docker exec job nvidia-smi", "Failed to initialize NVML: Unknown Error"),
        ("docker restart job", "job"),
        ("docker exec job nvidia-smi", WORKS),
        SMI,
    ),
    "headers": (
        ("nvidia-smi", NO_DRIVER),
        ("modprobe nvidia", NO_MODULE),
        ("apt-get install -y linux-headers-5.15.0-125-generic", "Setting up linux-headers-5.15.0-125-generic"),
        ("modprobe nvidia", ""),
        SMI,
    ),
    "fabric manager": (
        (FABRIC, "failed"),
        TORCH,
        ("systemctl restart nvidia-fabricmanager", ""),
        (FABRIC, "active"),
        (TORCH[0], ""),
        SMI,
    ),
    "two keys": (
        ("apt-get update", TWO_KEYS),
        ("rm /etc/apt/sources.list.d/archive_uri.list", ""),
        ("sudo apt-get update", UPDATED),
        SMI,
    ),
    "daemon.json": (
        ("systemctl restart docker", NOT_STARTED),
        ("journalctl -u docker -n 1", INVALID),
        ("vi /etc/docker/daemon.json", ""),
        ("systemctl restart docker", ""),
        ("systemctl is-active docker", "active"),
        (RUN, GPU),
        SMI,
    ),
    "daemon.json, before the session": (
        ("journalctl -u docker | tail -1", INVALID),
        ("systemctl is-active docker", "active"),
        ("cat /etc/docker/daemon.json", VALID),
        (RUN, GPU),
        SMI,
    ),
}


def session(*steps: tuple[str, str], prompt: str = "root@n:~# ") -> str:
    return "".join(f"{prompt}{command}\n{said}\n" if said else f"{prompt}{command}\n" for command, said in steps)


def of_text(*steps: tuple[str, str]) -> Diagnosis:
    return diagnose(snapshot(pasted.from_text(session(*steps))))


def of_one_piece(*steps: tuple[str, str]) -> Diagnosis:
    return diagnose(snapshot(pasted.evidence([("what I did", session(*steps))])))


def is_left(said: str, *steps: tuple[str, str]) -> bool:
    """Whether the rules still see an answer that says this."""
    return any(said in capture.text for capture in pasted.from_text(session(*steps)).values())


def roots(found: Diagnosis) -> list[str]:
    return [root.cause for root in found.roots if root.severity != "info"]


@pytest.mark.parametrize("name", MENDED)
def test_what_works_at_the_end_of_a_session_is_no_fault(name: str) -> None:
    for found in (of_text(*MENDED[name]), of_one_piece(*MENDED[name])):
        assert (roots(found), found.unknown) == ([], ())


@pytest.mark.parametrize("name", ["toolkit", "cdi", "lock", "container", "two keys"])
def test_the_end_of_the_session_decides(name: str) -> None:
    first = MENDED[name][:1]
    last = (*MENDED[name][1:-1], *first, SMI)
    for steps in ((*first, SMI), last):
        found = of_text(*steps)
        assert roots(found) or found.unknown


def test_what_was_pasted_each_for_itself_has_no_order() -> None:
    steps = MENDED["two keys"]
    rows = [{"source": source, "text": text} for source, text in steps]
    assert roots(diagnose(snapshot(pasted.from_json(json.dumps(rows), "a report")))) == ["apt-signed-by-conflict"]
    fenced = "".join(f"```\n{session(step)}```\n" for step in steps)
    assert roots(diagnose(snapshot(pasted.from_text(fenced)))) == ["apt-signed-by-conflict"]


@pytest.mark.parametrize(
    "other",
    [
        ("apt-get install -y jq", "Setting up jq (1.6) ..."),
        ("docker run --rm hello-world", "Hello from Docker!"),
        ("docker run --rm --privileged ubuntu nvidia-smi -L", GPU),
        ("podman run --rm --device nvidia.com/gpu=all ubuntu nvidia-smi -L", GPU),
        SMI,
    ],
)
def test_a_success_of_something_else_ends_nothing(other: tuple[str, str]) -> None:
    found = of_text((RUN, NO_RUNTIME), TOOLKIT, other, SMI)
    assert roots(found) or found.unknown
    found = of_text(("apt-get update", TWO_KEYS), other, SMI)
    assert roots(found) == ["apt-signed-by-conflict"]


def test_another_host_and_another_program_of_the_name_say_nothing_of_this_one() -> None:
    steps = ((RUN, NO_RUNTIME), TOOLKIT, ("systemctl restart docker", ""))
    text = session(*steps) + session((RUN, GPU), SMI, prompt="root@other:~# ")
    found = diagnose(snapshot(pasted.from_text(text)))
    assert found.unknown or found.findings
    found = of_text(("nvidia-smi", MISMATCH), ("/usr/bin/nvidia-smi", WORKS))
    assert found.unknown or found.findings


def test_a_gpu_that_a_complaint_names_must_be_in_the_answer_that_ends_it() -> None:
    lost = "Unable to determine the device handle for GPU 0000:{}:00.0: GPU is lost.  Reboot the system to recover it"
    found = of_text(("nvidia-smi", lost.format("07")), SMI)
    assert roots(found) or found.unknown
    found = of_text(("nvidia-smi", lost.format("c1")), ("reboot", ""), SMI)
    assert (found.findings, found.unknown) == ((), ())


def test_an_experiment_mends_nothing() -> None:
    steps = (("nvidia-smi", NO_DRIVER), ("lsmod | grep nvidia", ""), ("sudo modprobe nvidia", ""), SMI)
    assert roots(of_text(*steps)) == ["driver-module-not-loaded"]
    assert roots(of_one_piece(*steps)) == ["driver-module-not-loaded"]


def test_what_is_wrong_now_stands_alone() -> None:
    found = of_text(
        ("sudo apt-get update", NO_KEY),
        ("sudo dpkg -i cuda-keyring_1.1-1_all.deb", "Setting up cuda-keyring (1.1-1) ..."),
        ("sudo apt-get update", UPDATED),
        ("nvidia-smi", MISMATCH),
        (
            "cat /proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.120  Fri Sep 13 10:10:01 UTC 2024",
        ),
        ("sudo reboot", "Connection to n closed."),
        SMI,
        ("docker run --rm --gpus all ubuntu nvidia-smi", NO_RUNTIME),
        ("dpkg -l | grep nvidia-container", "root@n:~#"),
    )
    assert roots(found) == ["toolkit-not-installed"]
    (root,) = found.roots
    assert [(one.source, one.line) for one in root.citations][1:] == [("dpkg -l | grep nvidia-container", "(nothing)")]


def test_a_failure_after_a_repair_stands_for_the_one_before_it() -> None:
    found = of_text(
        ("sudo docker run --rm --gpus all ubuntu nvidia-smi", NO_RUNTIME),
        TOOLKIT,
        ("nvidia-ctk runtime configure --runtime=docker", "INFO[0000] Wrote updated config to /etc/docker/daemon.json"),
        ("systemctl restart docker", ""),
        (
            "sudo docker run --rm --gpus all ubuntu nvidia-smi",
            "docker: Error response from daemon: nvidia-container-cli: nvml error: driver not loaded: unknown",
        ),
        ("modprobe nvidia", "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"),
        ("mokutil --sb-state", "SecureBoot enabled"),
        ("modinfo nvidia | grep signer", "signer:         n Secure Boot Module Signature key"),
    )
    assert roots(found) == ["secure-boot-key-not-enrolled"]


def test_a_start_of_docker_that_succeeded_ends_the_ones_that_failed_before_it() -> None:
    started = "Nov 16 09:10:00 n systemd[1]: Started docker.service - Docker Application Container Engine."

    def cause(*lines: str, command: str = "journalctl -u docker") -> list[str]:
        return roots(diagnose(snapshot(pasted.evidence([(command, "\n".join(lines))]))))

    assert cause(INVALID, started) == []
    assert cause(started, INVALID) == ["daemon-json-invalid"]
    assert cause(started, INVALID, command="journalctl -u docker -r") == ["daemon-json-invalid"]
    assert cause(INVALID, started, command="journalctl -u docker -r") == ["daemon-json-invalid"]


def test_what_root_may_do_shows_nothing_of_what_its_user_may_not() -> None:
    nodes = "crw-rw---- 1 root video 195, 0 Jan 21 08:11 /dev/nvidia0\ncrw-rw---- 1 root video 195, 255 /dev/nvidiactl"
    refused = ("nvidia-smi", "Failed to initialize NVML: Insufficient Permissions")
    asked = (refused, ("sudo nvidia-smi -L", GPU), ("ls -l /dev/nvidia*", nodes), ("id", "uid=1007(j) gid=1007(j)"))
    found = diagnose(snapshot(pasted.from_text(session(*asked, prompt="j@n:~$ "))))
    assert roots(found) == ["device-node-permissions"]
    assert roots(diagnose(snapshot(pasted.from_text(session(refused, ("nvidia-smi", WORKS), prompt="j@n:~$ "))))) == []


ECC = ("./train.sh", "RuntimeError: CUDA error: uncorrectable ECC error encountered")
REMAP = "    Remapped Rows\n        Remapping Failure Occurred        : Yes"
LOST = ("nvidia-smi", "Unable to determine the device handle for GPU 0003:00:00.0: GPU is lost.  Reboot the system.")
STILL_THERE: dict[str, tuple[tuple[tuple[str, str], ...], str]] = {
    "failed once, and nobody did anything": ((SMI, ECC, ("./train.sh", "epoch 1 loss 2.1")), "ecc-dbe-uncorrectable"),
    "another module was loaded": (
        (SMI, ("sudo modprobe nvidia-peermem", ""), ("nvidia-smi -q -d ROW_REMAPPER", REMAP), ("uptime", "up 2 days")),
        "row-remap-failure",
    ),
    "other GPUs, in other domains": (
        (LOST, ("sudo systemctl restart docker", ""), ("nvidia-smi", WORKS.replace("00000000:C1", "00000001:00"))),
        "gpu-fallen-off-bus",
    ),
    "on another machine": (
        (
            ("systemctl restart docker", NOT_STARTED),
            ("journalctl -u docker -n 1", INVALID),
            ("ssh gpu2 systemctl is-active docker", "active"),
            SMI,
        ),
        "daemon-json-invalid",
    ),
    "what fails later fails earlier": (
        (ECC, ("pip install rich", "Installed"), ("./train.sh", "ModuleNotFoundError: No module named 'x'"), SMI),
        "ecc-dbe-uncorrectable",
    ),
}


@pytest.mark.parametrize("name", STILL_THERE)
def test_what_nothing_mended_is_still_there(name: str) -> None:
    steps, cause = STILL_THERE[name]
    for found in (of_text(*steps), of_one_piece(*steps)):
        assert roots(found) == [cause]


def test_a_gpu_that_comes_and_goes_is_no_healthy_one() -> None:
    gone = ("nvidia-smi", "No devices were found")
    for found in (of_text(gone, SMI), of_text(gone, SMI, gone, SMI)):
        assert roots(found) == []
        assert "come and go" in found.unknown[0].question
    mended = of_text(gone, ("sudo rm /etc/modprobe.d/nvidia-blacklist.conf", ""), ("sudo reboot", ""), SMI)
    assert (roots(mended), mended.unknown) == ([], ())


@pytest.mark.parametrize(
    "typed", ["rm nohup.out", "vim notes.md", "apt-get install -y htop", "systemctl restart docker"]
)
def test_what_has_nothing_to_do_with_the_driver_is_no_mend_of_it(typed: str) -> None:
    said = "Setting up htop (3.2.2-2) ..." if "htop" in typed else ""
    lost = "Unable to determine the device handle for GPU0000:C1:00.0: Unknown Error"
    for fault in ("No devices were found", NO_DRIVER, lost):
        assert is_left(fault, ("nvidia-smi", fault), (typed, said), SMI)
        assert not is_left(fault, ("nvidia-smi", fault), ("reboot", ""), SMI)


UNREADY = "RuntimeError: CUDA error: system not yet initialized"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("python train.py", "epoch 1 device cpu loss 2.3\nepoch 2 device cpu loss 2.1"),
        ("python train.py", "Using device: cpu\nepoch 1"),
        ("python -c 'import torch; print(torch.cuda.is_available())'", "False"),
        ("python -c 'import torch; print(torch.cuda.device_count())'", "0"),
        ("python -c 'import jax; print(jax.devices())'", "[CpuDevice(id=0)]"),
        ("./llama-cli -m model.gguf", "load_tensors: offloaded 0/33 layers to GPU"),
        ("python train.py", "Num GPUs Available: 0\nepoch 1"),
    ],
)
def test_a_run_without_a_gpu_is_no_success_of_one(typed: str, said: str) -> None:
    done = ("sudo systemctl restart nvidia-fabricmanager", "")
    assert is_left(UNREADY, (typed, UNREADY), done, (typed, said), SMI)


@pytest.mark.parametrize(
    "said", ["0", "None", "epoch 1, GPU 0", "Using device: cuda:0", "on cuda 0", "on CPU affinity 0-15\nstep 1"]
)
def test_a_run_that_says_nothing_of_the_processor_is_a_success(said: str) -> None:
    done = ("sudo systemctl restart nvidia-fabricmanager", "")
    assert not is_left(UNREADY, ("python train.py", UNREADY), done, ("python train.py", said), SMI)


LOST_INSIDE = ("docker exec job nvidia-smi", "Failed to initialize NVML: Unknown Error")
BACK = (("docker restart job", "job"), ("docker exec job nvidia-smi", WORKS))


def test_a_fault_that_came_back_after_the_same_mend_will_come_back_again() -> None:
    found = of_text(LOST_INSIDE, *BACK, ("systemctl daemon-reload", ""), LOST_INSIDE, *BACK)
    assert roots(found) == ["cgroup-daemon-reload-loses-gpu"]
    once = of_text(LOST_INSIDE, *BACK, ("systemctl daemon-reload", ""), ("docker exec job nvidia-smi", WORKS), SMI)
    assert (roots(once), once.unknown) == ([], ())
    configured = ("nvidia-ctk system create-dev-char-symlinks --create-all", "")
    edited = ("vi /etc/docker/daemon.json", "")
    for mend in (configured, edited):
        lasting = of_text(LOST_INSIDE, *BACK, LOST_INSIDE, mend, *BACK, SMI)
        assert (roots(lasting), lasting.unknown) == ([], ())


REMAPPED = (
    "    Remapped Rows\n        Pending                           : {}\n        Remapping Failure Occurred        : No"
)
ASKED = "nvidia-smi -q -d ROW_REMAPPER | grep -A8 Remapped"
ALLOCATABLE = "  nvidia.com/gpu:     8\n  nvidia.com/gpu:     {}"
OF_NODE = "kubectl describe node gpu1 | grep nvidia.com/gpu"
READ_AGAIN = {
    "rows, reset": (ASKED, REMAPPED.format("Yes"), "nvidia-smi --gpu-reset -i 0", REMAPPED.format("No")),
    "rows, rebooted": (ASKED, REMAPPED.format("Yes"), "reboot", REMAPPED.format("No")),
    "plugin": (
        OF_NODE,
        ALLOCATABLE.format(7),
        "kubectl -n kube-system rollout restart ds nvidia-device-plugin-daemonset",
        ALLOCATABLE.format(8),
    ),
}


@pytest.mark.parametrize("name", READ_AGAIN)
def test_what_is_read_again_after_the_mend_holds(name: str) -> None:
    asked, earlier, mend, later = READ_AGAIN[name]
    found = of_text((asked, earlier), (mend, ""), (asked, later), SMI)
    assert (roots(found), found.unknown) == ([], ())
    for steps in (
        ((asked, earlier), ("uptime", "up 2 days"), (asked, later)),
        ((asked, later), (mend, ""), (asked, earlier)),
    ):
        assert roots(of_text(*steps, SMI))
    assert roots(of_text((asked, later), ("uptime", "up 2 days"), (asked, earlier), SMI))


def test_what_is_refused_for_another_reason_after_a_mend_was_refused_for_the_first_before_it() -> None:
    unsigned = ("modprobe nvidia", "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service")
    absent = ("modprobe nvidia", "modprobe: ERROR: could not insert 'nvidia': No such device")
    reboot = ("reboot", "")
    steps = (
        unsigned,
        ("mokutil --import MOK.der", ""),
        reboot,
        unsigned,
        ("mokutil --disable-validation", ""),
        reboot,
        absent,
    )
    assert not is_left("Key was rejected", *steps)
    assert is_left("Key was rejected", unsigned, ("vim notes.md", ""), absent)
    assert is_left("Key was rejected", unsigned, reboot, unsigned)
