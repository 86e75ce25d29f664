"""The likeliest causes if no sign decides, the answer if only one is likely, and what a found fault leaves open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.diagnoses import diagnose, rules_by_cause, suspects
from gpunode.diagnoses.model import Diagnosis, Suspect
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.suspects import is_command_answered
from gpunode.diagnoses.views.modules import is_module_loaded
from gpunode.facts import pasted

LOST = ("dmesg", "[ 100.1] NVRM: Xid (PCI:0000:01:00): 79, pid=1204, name=python, GPU has fallen off the bus.")
NO_DRIVER_OF_DOCKER = (
    "docker run --rm --gpus all ubuntu nvidia-smi",
    'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
)
MISMATCH = ("nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 535.161")
LOADED = (
    "cat /proc/driver/nvidia/version",
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.154.05  Thu Dec 28 15:37:48 UTC 2023",
)


def of(*pieces: tuple[str, str]) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces(pieces)))


@pytest.mark.parametrize(
    ("other", "cause"),
    [(NO_DRIVER_OF_DOCKER, "toolkit-not-installed"), (MISMATCH, "driver-library-mismatch-reboot-pending")],
)
def test_failure_beside_a_decided_root_is_listed(other: tuple[str, str], cause: str) -> None:
    found = of(LOST, other)
    assert [one.cause for one in found.roots] == ["gpu-fallen-off-bus"]
    (left,) = found.unexplained
    assert left.cause == cause
    assert left.next_step.command
    assert all(citation.line in other[1] for citation in left.citations)
    assert other[1].split("\n")[0] not in str(found.roots[0].ruled_out)


def test_file_that_shows_no_failure_makes_no_suspect_beside_a_likely_fault() -> None:
    registered = ("cat /etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}')
    toolkit = ("dpkg -l | grep nvidia-container-toolkit", "ii  nvidia-container-toolkit  1.17.3-1  amd64  toolkit")
    found = of(NO_DRIVER_OF_DOCKER, registered, toolkit)
    assert [(one.cause, one.confidence) for one in found.roots] == [("docker-not-restarted", "likely")]
    assert found.suspects
    assert all(any("Error" in line.line for line in one.citations) for one in found.suspects)


def test_second_fault_that_a_person_tells_of_stays_a_suspect() -> None:
    told = ("post", "And my second card has fallen off the bus with Xid 79 each night.")
    found = of(MISMATCH, LOADED, ("modinfo -F version nvidia", "535.161"), told)
    assert [one.confidence for one in found.roots] == ["likely"]
    assert "gpu-fallen-off-bus" in {one.cause for one in (*found.suspects, *found.unexplained)}


def test_consequence_of_a_root_is_not_listed_as_unexplained() -> None:
    assert of(LOST, ("nvidia-smi", "No devices were found")).unexplained == ()
    assert of(LOST).unexplained == ()


@pytest.mark.parametrize("image", ["ubuntu", "nvidia/cuda:12.4.1-base-ubuntu22.04"])
def test_missing_toolkit_is_suspected_before_a_snap(image: str) -> None:
    found = of((f"docker run --rm --gpus all {image} nvidia-smi", NO_DRIVER_OF_DOCKER[1]))
    assert found.suspects[0].cause == "toolkit-not-installed"


def test_refused_key_of_another_vendor_is_not_nvidias() -> None:
    hit = "Hit:1 https://developer.download.nvidia.com/compute/cuda/repos/debian13/x86_64  InRelease\n"
    refused = (
        "Err:2 https://deb.example.com/node_22.x nodistro InRelease\n  Sub-process /usr/bin/sqv returned an error code "
        "(1), error message is: Signing key on 6F71F525282841EEDAF851B42F59B5F99B1BE0B4 is not bound: because: Policy "
        "rejected non-revocation signature because: SHA1 is not considered secure since 2026-02-01T00:00:00Z"
    )
    keys = {"apt-nvidia-key-sha1", "apt-nvidia-key-rotated"}
    assert not keys & {one.cause for one in of(("apt update", hit + refused)).suspects}
    assert keys & {one.cause for one in of(("apt update", refused)).suspects}


def test_module_that_a_filtered_table_names_as_user_is_loaded() -> None:
    table = ("lsmod | grep '^nvidia '", "nvidia              17633280  41 nvidia_uvm,nvidia_modeset")
    assert is_module_loaded(take_snapshot(pasted.collect_pieces([table])), "nvidia_uvm")


def test_suspects_with_the_same_first_steps_print_them() -> None:
    found = of(MISMATCH, LOADED)
    assert not found.roots
    assert [fix.kind for fix in found.shared_steps][:1] == ["drain"]
    assert found.next_step is not None
    assert found.next_step.command == "modinfo -F version nvidia"


def test_pasted_answer_is_never_asked_for() -> None:
    found = of(MISMATCH, LOADED)
    assert LOADED[0] not in [command for one in found.suspects for command in one.look_at]
    node = take_snapshot(pasted.collect_pieces([LOADED, ("sudo dmesg -T | grep -i nvrm", "NVRM: loading")]))
    assert is_command_answered(node, "dmesg | grep -i nvrm | grep Xid")
    assert not is_command_answered(node, "dmesg | grep -i pcie")
    assert not is_command_answered(node, "nvidia-smi")


NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA "
    "driver is installed and running."
)
TOLD = "With the older kernel from the menu it works."


def test_suspect_that_stands_alone_is_likely_and_is_looked_at_first() -> None:
    found = of(("nvidia-smi", NO_DRIVER), ("post", TOLD))
    (root,) = found.roots
    assert (root.cause, root.confidence, root.basis) == ("module-built-for-other-kernel", "likely", "ranking")
    assert root.look_at
    assert root.next_step.command == root.look_at[0]
    assert root.cause not in [one.cause for one in found.suspects]


@pytest.mark.parametrize(
    ("told", "cause"),
    [
        ("If I boot the older kernel it works.", "module-built-for-other-kernel"),
        ("The old kernel works, is that normal?", "module-built-for-other-kernel"),
        ("It is a laptop.", ""),
        ("Secure boot is enabled since the new BIOS.", ""),
    ],
)
def test_words_of_people_part_the_causes_of_one_error(told: str, cause: str) -> None:
    found = of(("nvidia-smi", NO_DRIVER), ("post", told))
    assert [one.cause for one in found.roots] == [cause] * bool(cause)


@pytest.mark.parametrize(
    "told",
    [
        "Does it work with the older kernel?",
        "Or could it be the older kernel, and is that the reason?",
        "It is not the older kernel.",
        "If it were the older kernel, I would have seen it.",
        "I guess that it is the older kernel.",
        "A colleague has the older kernel.",
        'The wiki has "boot the older kernel" as its first line.',
        "> the older kernel works",
        "According to the FAQ the older kernel works.",
        "On my other machine the older kernel works.",
        "It is not that the older kernel works.",
        "Before the reinstall the older kernel worked; I removed it.",
        "I have no older kernel here.",
        "The older kernel was there until I removed it.",
        "Two years ago the older kernel worked.",
        "I will go back to the older kernel tomorrow.",
        "Without the older kernel it was the same.",
    ],
)
def test_doubtful_words_let_no_suspect_stand_alone(told: str) -> None:
    assert not of(("nvidia-smi", NO_DRIVER), ("post", told)).roots


def test_words_for_two_causes_decide_for_neither() -> None:
    rules, words = rules_by_cause(), (True, True)
    first = suspects.RankedSuspect(Suspect("module-built-for-other-kernel", "x", (), ()), 0.9, *words)
    other = suspects.RankedSuspect(Suspect("gpu-memory-taken", "x", (), ()), 0.1, *words)
    assert suspects.standalone_probability((first, replace(other, has_user_phrase=False)), rules) == 0.9
    assert suspects.standalone_probability((first, other), rules) == 0.0


def test_version_of_the_driver_tells_nothing_beside_another_failure() -> None:
    found = of(NO_DRIVER_OF_DOCKER, ("post", "The box has driver 470 and the image is a new one."))
    assert [one.cause for one in found.roots] == ["toolkit-not-installed"]
    assert "driver-too-old-for-image" not in [one.cause for one in found.suspects]


def test_words_of_programs_or_without_a_failure_decide_nothing() -> None:
    assert not of(("post", TOLD)).roots
    assert not of(("nvidia-smi", f"{NO_DRIVER} The older kernel works.")).roots


def test_nothing_is_suspected_where_nobody_tells_of_a_failure() -> None:
    node = ("kubectl get node n -o yaml", 'allocatable:\n  nvidia.com/gpu: "1"\ncapacity:\n  nvidia.com/gpu: "1"')
    pods = "NAME       READY   STATUS    RESTARTS   AGE\ncuda-one   1/1     {}   0          12m"
    assert not of(node, ("kubectl get pods", pods.format("Running"))).suspects
    assert of(node, ("kubectl get pods", pods.format("Pending"))).suspects


def test_packages_named_one_below_the_other_are_no_runtime_class() -> None:
    make_log = ("make.log", "make: *** [Makefile:80: modules] Error 2")
    listed = of(("xbps-query -l", "nvidia470-470.239.06_1\nnvidia470-dkms-470.239.06_1"), make_log)
    assert "nvidia-runtime-not-default-no-runtimeclass" not in {suspect.cause for suspect in listed.suspects}


def test_slurmd_that_finds_no_mig_instance_is_believed() -> None:
    said = "slurmd: fatal: MIG mode is enabled, but no MIG devices were found. Please either create MIG instances"
    assert [root.cause for root in of(("slurmd log", said)).roots] == ["mig-enabled-no-instances"]


def test_no_suspect_is_promoted_beside_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = (("nvidia-smi", NO_DRIVER), ("post", TOLD))
    manager = (
        "systemctl status nvidia-fabricmanager",
        "Active: failed\nnv-fabricmanager[1]: NVSwitch devices not found",
    )
    assert [one.basis for one in of(*alone).findings] == ["ranking"]
    assert [one.basis for one in of(*alone, manager).findings] == ["signs"]
    monkeypatch.setattr(suspects, "MIN_STAND_ALONE_PROBABILITY", 0.0)
    for pieces in ((LOST,), (LOST, NO_DRIVER_OF_DOCKER)):
        assert all(one.basis == "signs" for one in of(*pieces).findings)


@pytest.mark.parametrize(
    ("looked", "confidence"),
    [((), "likely"), ((("ls /etc/modprobe.d", "tuned.conf"),), "certain")],
)
def test_nouveau_is_certain_where_no_blacklist_may_have_missed_it(
    looked: tuple[tuple[str, str], ...], confidence: str
) -> None:
    bound = ("lsmod | grep nouveau", "nouveau              2306048  4"), ("nvidia-smi", "No devices were found")
    (root,) = of(*bound, *looked).roots
    assert (root.cause, root.confidence) == ("nouveau-bound", confidence)


@pytest.mark.parametrize(
    "said",
    [
        'msg="failed to load plugin io.containerd.snapshotter.v1.devmapper" error="devmapper not configured"',
        'msg="skip loading plugin io.containerd.snapshotter.v1.btrfs" error="must be a btrfs filesystem"',
    ],
)
def test_snapshotter_that_a_host_has_no_use_for_is_no_symptom(said: str) -> None:
    """Every containerd of Debian logs this at its start."""
    found = of(
        ("journalctl -u containerd", f'Nov 29 10:00:00 node containerd[700]: time="2026-11-29T10:00:00Z" {said}')
    )
    assert [line for one in found.suspects for line in one.citations] == []
    assert found.findings == ()


SXM = ("nvidia-smi -L", "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-2)")
NO_LINKS = (
    "nvidia-smi nvlink -s",
    "\n".join(f"GPU {at}: NVIDIA H100 80GB HBM3\n\t Link 0: <inactive>" for at in (0, 1)),
)
PCIE_PATHS = ("nvidia-smi topo -m", "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tSYS\t0-47\nGPU1\tSYS\t X \t48-95")
BANNER = ("nvidia-smi", "| NVIDIA-SMI 560.28.03   Driver Version: 560.28.03   CUDA Version: 12.6 |")
SUSPENDED = ("journalctl -b", "Aug 08 09:29:57 nas kernel: PM: suspend exit")
LICENSED = (
    "Driver Version : 580.95.05\n    vGPU Software Licensed Product\n        License Status : Licensed (Expiry: N/A)"
)
BRIDGED = ("nvidia-smi nvlink -s", "GPU 0: NVIDIA RTX A6000\n\t Link 0: 14.062 GB/s\n\t Link 1: 14.062 GB/s")
NVML_UNKNOWN = "Failed to initialize NVML: Unknown Error"
COOL = ("nvidia-smi -q -d PERFORMANCE", "SW Thermal Slowdown : Not Active\nHW Thermal Slowdown : Not Active")


def test_baseboard_without_links_is_not_called_normal() -> None:
    causes = [one.cause for one in of(SXM, NO_LINKS, PCIE_PATHS).suspects]
    assert causes[:2] == ["nvlink-link-inactive", "nvlink-all-links-inactive-gpu"]
    assert "nvlink-not-present-false-positive" not in causes


@pytest.mark.parametrize(
    ("pieces", "cause"),
    [
        ((("nvidia-smi -q", LICENSED), ("python train.py", "training is slow")), "vgpu-unlicensed"),
        ((("post", "/var/cache/akmods/v4l2loopback/0.12.7-1-for-6.5.6.x86_64.failed.log"),), "dkms-build-kernel-api"),
        ((BANNER, SUSPENDED), "nvidia-uvm-wedged"),
        ((BANNER, ("dmesg", "nvidia: Unknown symbol ipmi_create_user (err -2)")), "module-built-for-other-kernel"),
        ((("systemctl status nvidia-fallback", "Active: inactive (dead)"),), "nvlink-link-inactive"),
        ((BRIDGED, ("bench", "NCCL WARN timeout")), "nvlink-link-inactive"),
        ((BRIDGED,), "nvlink-not-present-false-positive"),
        (
            (("getenforce", "Permissive"), ("docker run --gpus all cuda nvidia-smi", NVML_UNKNOWN)),
            "selinux-denies-gpu",
        ),
        ((COOL, ("python train.py", "training is slow")), "thermal-slowdown"),
    ],
)  # fmt: skip
def test_suspect_contradicts_nothing_in_the_report(pieces: tuple[tuple[str, str], ...], cause: str) -> None:
    found = of(*pieces)
    assert cause not in [one.cause for one in found.roots] + [one.cause for one in found.suspects if one.citations]


def test_error_999_of_another_program_names_no_cause() -> None:
    assert not of(BANNER, SUSPENDED, ("./scrape.sh", "the server returned HTTP status 999")).roots


@pytest.mark.parametrize(("comment", "confidence"), [("", "certain"), ("# ", "likely")])
def test_only_a_registered_runtime_makes_a_missing_toolkit_certain(comment: str, confidence: str) -> None:
    absent = "dpkg -l nvidia-container-toolkit", "dpkg-query: no packages found matching nvidia-container-toolkit\n"
    line = f'version = 2\n  {comment}BinaryName = "nvidia-container-runtime"\n'
    (one,) = of(absent, ("cat /etc/containerd/config.toml", line)).findings
    assert (one.cause, one.confidence) == ("toolkit-not-installed", confidence)


def test_missing_runtime_of_cri_o_is_not_called_containerds() -> None:
    said = "Failed to create pod sandbox: failed to find runtime handler nvidia from runtime list map[runc:0xc1]"
    (one,) = of(("kubectl describe pod", said), ("crio --version", "crio version 1.30.1\n")).findings
    assert one.cause == "containerd-nvidia-runtime-missing"
    assert "CRI-O" in one.summary
    assert "--runtime=crio" in str(one.remedy)


def test_pod_of_a_user_is_not_called_the_device_plugins() -> None:
    (one,) = of(
        ("kubectl describe pod my-app", "Failed: nvidia-smi: executable file not found in $PATH\n"),
        ("docker info", " Runtimes: nvidia runc\n Default Runtime: runc\n"),
        ("kubectl get pod my-app -o yaml", "runtimeClassName: null\n"),
    ).findings
    assert one.cause == "nvidia-runtime-not-default-no-runtimeclass"
    assert "device plugin" not in one.summary


KEY_REFUSED = (
    "apt-get update",
    (
        "Err:5 https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2004/x86_64  InRelease\n"
        "  The following signatures couldn't be verified because the public key is not available: "
        "NO_PUBKEY A4B469963BF863CC"
    ),
)
HALF_A_GPU = (
    "kubectl apply -f x.yaml",
    (
        'The Pod "x" is invalid: spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value: '
        'resource.MustParse("500m"): must be an integer'
    ),
)
BROKEN_JSON = (
    "sudo dockerd --validate",
    (
        "unable to configure the Docker daemon with file /etc/docker/daemon.json: invalid character '}' looking for "
        "beginning of object key string"
    ),
)


@pytest.mark.parametrize("fault", [KEY_REFUSED, HALF_A_GPU, BROKEN_JSON], ids=lambda fault: fault[0])
@pytest.mark.parametrize(
    ("source", "failure"),
    [
        ("nvidia-smi", "No devices were found"),
        ("sudo nvidia-smi --gpu-reset -i 0", "1 device is currently being used by one or more other processes"),
        ("kubectl get pods", "NAME  READY STATUS RESTARTS AGE\nt1 0/1 UnexpectedAdmissionError 0 11s"),
        ("nvidia-smi -q -d ECC", "    ECC Errors\n        Volatile\n            SRAM Uncorrectable Parity     : 1"),
    ],
)
def test_failure_that_the_fault_cannot_cause_is_listed(fault: tuple[str, str], source: str, failure: str) -> None:
    found = of(fault, (source, failure))
    assert len(found.roots) == 1
    assert [line.line for one in found.unexplained for line in one.citations] == failure.split("\n")[-1:]


@pytest.mark.parametrize("fault", [LOST, KEY_REFUSED, HALF_A_GPU, BROKEN_JSON], ids=lambda fault: fault[0])
def test_error_that_no_rule_reads_is_asked_about(fault: tuple[str, str]) -> None:
    failure = 'level=error msg="unable to flush config: open /etc/docker/daemon.json: read-only file system"'
    (question,) = of(fault, ("nvidia-ctk runtime configure --runtime=docker", failure)).open_questions
    assert [line.line for line in question.citations] == [failure]
    assert of(fault).open_questions == ()


@pytest.mark.parametrize("code", [74, 149])
def test_line_that_names_an_xid_suspects_no_cause_of_another_xid(code: int) -> None:
    found = of(("training log", f"worker 3 exited: Xid {code} on GPU 0"))
    causes = {one.cause for one in found.findings} | {one.cause for one in found.suspects}
    assert causes & {"xid-74-nvlink-error", "xid-145-149-nvlink5-fault"} == {
        "xid-74-nvlink-error" if code == 74 else "xid-145-149-nvlink5-fault"
    }


def test_command_that_was_only_run_makes_no_suspect() -> None:
    told = "Other people get error 802 with H100. Mine are H100 NVL.\n\n"
    ran = "$ nvidia-smi -L\nGPU 0: NVIDIA H100 NVL (UUID: GPU-1)\n$ nvidia-smi topo -m | head -1\n\tGPU0\n"
    assert diagnose(take_snapshot(pasted.parse_text_report(told + ran))).suspects == ()


PLUGIN_RETRIES = (
    "kubectl logs nvidia-device-plugin-x2wqf",
    """E0516 10:04:31.320012 1 main.go:301] Failed to start plugin: error waiting for MPS daemon: exit 1
I0516 10:05:01.320040 1 server.go:1] Registered device plugin for 'nvidia.com/gpu' with Kubelet
""",
)
CDI_WRITTEN = (
    "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
    "WARN[0000] Could not locate libnvidia-gtk3.so.550.54.14: pattern libnvidia-gtk3.so.550.54.14 not found\n",
)
OTHER_HEADERS = (
    "ls -d /usr/src/linux-headers-6.8.0-40-generic",
    "ls: cannot access '/usr/src/linux-headers-6.8.0-40-generic': No such file or directory",
)
NO_CRI = ("cat /etc/containerd/config.toml", 'disabled_plugins = ["cri"]')
CONFIGURED = ("sudo nvidia-ctk runtime configure --runtime=containerd", "")
DOCKER_WORKS = ("docker run --rm --gpus all ubuntu nvidia-smi -L", "GPU 0: NVIDIA A100 (UUID: GPU-1)")


@pytest.mark.parametrize(
    ("pieces", "cause"),
    [
        ((PLUGIN_RETRIES,), "mps-control-daemon-missing"),
        ((CDI_WRITTEN,), "cdi-spec-stale"),
        ((("uname -r", "6.8.0-45-generic"), OTHER_HEADERS), "kernel-headers-missing"),
        ((NO_CRI, CONFIGURED, DOCKER_WORKS), "containerd-cri-disabled"),
    ],
    ids=["MPS after a retry", "a warning of nvidia-ctk", "another kernel's headers", "docker works without CRI"],
)
def test_line_that_something_refutes_is_no_finding(pieces: tuple[tuple[str, str], ...], cause: str) -> None:
    assert cause not in {one.cause for one in of(*pieces).findings}


PULLED = "Unable to find image 'nvidia/cuda:latest' locally"
A100 = (
    "nvidia-smi",
    """| NVIDIA-SMI 580.95.05              Driver Version: 580.95.05      CUDA Version: 13.0     |
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
| N/A   31C    P0             62W /  400W |       4MiB /  81920MiB |      0%      Default |
|                                         |                        |             Disabled |
""",
)


@pytest.mark.parametrize(
    ("pieces", "cause"),
    [
        ((NO_DRIVER_OF_DOCKER, ("post", "Only my rootless docker says so.")), "docker-rootless-config"),
        ((NO_DRIVER_OF_DOCKER, ("post", "Ubuntu 22.04\nGraphics: Mesa Intel Xe Graphics")), "no-gpu-present"),
        ((("gpu_burn", "[HAMI-core ERROR (allocator.c:121)]: cuMemoryAllocate failed res=2"),), "gpu-memory-taken"),
        ((("post", "The library libnvidia-encode.so.1 is not injected."),), "video-libraries-missing"),
        ((("post", "Hardware encoder probe failed for ['-c:v', 'h264_nvenc']"),), "video-libraries-missing"),
        (
            (("nccl-tests", "net_ib.cu:788 NCCL WARN NET/IB : Got completion with error 4, opcode 1, len 21938"),),
            "iommu-blocks-p2p",
        ),
    ],
)
def test_first_answer_to_words_of_a_user_is_their_cause(pieces: tuple[tuple[str, str], ...], cause: str) -> None:
    found = of(*pieces)
    assert [*(one.cause for one in found.findings), *(one.cause for one in found.suspects)][0] == cause


@pytest.mark.parametrize(
    ("pieces", "cause"),
    [
        ((("job log", "CUDA error: device doesn't have valid Grid license"),), "vgpu-unlicensed"),
        (
            (
                ("vllm", "RuntimeError: CUDA error: system not yet initialized"),
                ("dpkg -l | grep -c fabricmanager", "0"),
            ),
            "fabric-manager-not-installed",
        ),
        (
            (
                (
                    "kubectl logs job",
                    "[4pdvGPU ERROR (pid:9 limit.c:277)]: device OOM encountered: usage=9502195712 limit=8388608000",
                ),
            ),
            "hami-memory-limit",
        ),
        (
            (("train.log", "Error while creating shared memory segment /dev/shm/nccl-pZ (size 7340384)"),),
            "shared-memory-too-small",
        ),
        (
            (("apt install nvidia-driver-580", "E: Version '580.126.09' for 'nvidia-driver-580' was not found"),),
            "driver-not-installed",
        ),
        (
            (
                (
                    "kubectl logs installer",
                    "++ uname -r\n+ KERNEL=5.3.0-1029\nE: Unable to locate package linux-headers-5.3.0-1029",
                ),
            ),
            "kernel-headers-missing",
        ),
        (
            (("ls /sys/kernel/mm/memory_peers/", "ls: cannot access '/sys/kernel/mm/memory_peers/': No such file"),),
            "gpudirect-rdma-disabled",
        ),
        (
            (("dmesg", "[ 7.1] NVRM: nvidia.ko because it does not include the required GPU"),),
            "open-module-on-pre-turing",
        ),
        (
            (
                ("post", "gpu-operator on an RKE2 cluster"),
                (
                    "kubectl logs toolkit",
                    "nvidia-toolkit Error: unable to load config: (6, 21): keys cannot contain { character",
                ),
            ),
            "k3s-runtime-config-overwritten",
        ),
        (
            (
                (
                    "kubectl logs plugin",
                    "could not load NVML library: libnvidia-ml.so.1: cannot open shared object file",
                ),
                ("post", "AMI amazon-eks-node-al2023-x86_64-standard-1.29-v20240514"),
            ),
            "driver-not-installed",
        ),
        (
            (
                ("kubectl describe pod p", "2 node(s) had taints that the pod didn't tolerate."),
                (
                    "kubectl describe node n",
                    "Taints:             nvidia.com/gpu=present:NoSchedule\nAllocatable:\n  nvidia.com/gpu:  1",
                ),
            ),
            "pod-missing-gpu-toleration",
        ),
        (
            (
                (
                    "apt search nvidia-container-toolkit",
                    "nvidia-container-toolkit/buster,now 1.0.3-1 amd64 [installed]",
                ),
                ("docker run --runtime=nvidia cuda", "docker: Error response: Unknown runtime specified nvidia."),
            ),
            "nvidia-runtime-not-registered",
        ),
    ],
)
def test_message_of_a_program_is_an_answer(pieces: tuple[tuple[str, str], ...], cause: str) -> None:
    assert [one.cause for one in of(*pieces).roots][:1] == [cause]


@pytest.mark.parametrize(
    "piece",
    [
        ("docker run --rm --gpus all nvidia/cuda nvidia-smi", f"{PULLED}\n{A100[1]}"),
        ("kubectl logs plugin", "W1204 1 devices.go:131] Ignoring error getting device memory: Not Supported"),
        ("values.yaml", "mig-configs:\n  all-disabled:\n    - devices: all\n      mig-enabled: false\nmigManager:"),
    ],
    ids=["a pulled image", "an ignored error", "a setting that is false"],
)
def test_words_of_failures_in_healthy_output_make_no_suspect(piece: tuple[str, str]) -> None:
    assert of(piece).suspects == ()


def test_mig_that_is_off_is_suspected_for_no_complaint() -> None:
    assert of(("post", "We see wrong results from GEMM."), A100).suspects == ()


def test_module_newer_than_the_loaded_one_awaits_a_reboot() -> None:
    upgraded = ("dmesg", "[ 99.1] nvidia-modeset: Version mismatch: nvidia.ko(535.183.01) nvidia-modeset.ko(550.54.14)")
    on_disk = ("modinfo -F version nvidia", "550.54.14")
    found = of(("cat /proc/driver/nvidia/version", LOADED[1].replace("535.154.05", "535.183.01")), on_disk, upgraded)
    assert [one.cause for one in found.roots] == ["driver-library-mismatch-reboot-pending"]


def test_list_of_xids_suspects_the_causes_of_each() -> None:
    found = of(("training log", "worker 3 exited: Xid 149 and 74 in turn, NVLink failure"))
    causes = {one.cause for one in found.findings} | {one.cause for one in found.suspects}
    assert {"xid-74-nvlink-error", "xid-145-149-nvlink5-fault"} <= causes
