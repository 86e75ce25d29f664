"""A restart in a session parts boots: what was seen before it is past, and holds no longer once it was asked again."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import snapshot
from gpunode.facts import pasted

WORKS = """Sun Nov 22 11:50:12 2026
| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |
|   0  NVIDIA A100-SXM4-80GB          On  |   00000000:07:00.0 Off |                    0 |
| N/A   31C    P0             62W /  400W |       0MiB /  81920MiB |      0%      Default |"""
SMI = ("nvidia-smi", WORKS)
NO_DRIVER = (
    "nvidia-smi",
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the driver runs.",
)
MISMATCH = ("nvidia-smi", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 550.90")
OLD_MODULE = (
    "cat /proc/driver/nvidia/version",
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024",
)
NEW_DISK = ("modinfo nvidia | grep ^version", "version:        550.90.07")
XID = "[176000.123456] NVRM: Xid (PCI:0000:07:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
FELL = ("sudo dmesg | grep -i xid", XID)
QUIET = ("sudo dmesg | grep -i xid", "")
NOUVEAU = ("lsmod | grep -i nouveau", "nouveau              2306048  4\nmxm_wmi                16384  1 nouveau")
REJECTED = ("modprobe nvidia", "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service")
SECURE = ("mokutil --sb-state", "SecureBoot enabled")
REBOOT = ("sudo reboot", "")


def session(*steps: tuple[str, str], prompt: str = "root@gpu1:~# ") -> str:
    return "".join(f"{prompt}{command}\n{said}\n" if said else f"{prompt}{command}\n" for command, said in steps)


def of_text(text: str) -> Diagnosis:
    return diagnose(snapshot(pasted.from_text(text)))


def seen(*steps: tuple[str, str]) -> Diagnosis:
    return of_text(session(*steps))


def roots(found: Diagnosis) -> list[str]:
    return [root.cause for root in found.roots if root.severity != "info"]


RESTARTS = (
    "sudo reboot",
    "reboot -f",
    "sudo poweroff",
    "sudo shutdown -r now",
    "shutdown -h +0",
    "systemctl reboot",
    "sudo systemctl kexec",
    "sync && sudo reboot",
    "init 6",
    "sudo kexec -e",
    "echo b > /proc/sysrq-trigger",
    "sudo ipmitool chassis power cycle",
)


@pytest.mark.parametrize("restart", RESTARTS)
def test_the_kernels_log_before_a_restart_is_of_an_earlier_boot(restart: str) -> None:
    assert seen(FELL, (restart, ""), QUIET, SMI).is_healthy
    (root,) = seen(FELL, (restart, ""), QUIET, NO_DRIVER).roots
    assert (root.cause, root.confidence) == ("gpu-fallen-off-bus", "likely")
    assert root.summary.startswith("In an earlier boot: ")


NO_RESTARTS = {
    "refused": ("reboot", "Call to Reboot failed: Interactive authentication required."),
    "no right": ("sudo reboot", "ubuntu is not in the sudoers file.  This incident will be reported."),
    "later": (
        "sudo shutdown -r 23:00",
        "Shutdown scheduled for Sun 2026-11-22 23:00:00 UTC",
    ),
    "taken back": ("sudo shutdown -c", ""),
    "of the user's part alone": ("systemctl soft-reboot", ""),
    "of a daemon": ("systemctl restart docker", ""),
    "of another machine": ("ssh gpu2 sudo reboot", ""),
    "of another machine's power": ("ipmitool -H gpu2-bmc -U admin chassis power cycle", ""),
    "asked for": ("ipmitool chassis power status", "Chassis Power is on"),
    "read": ("man reboot", ""),
}


@pytest.mark.parametrize("name", NO_RESTARTS)
def test_what_restarts_nothing_parts_no_boots(name: str) -> None:
    (root,) = seen(FELL, NO_RESTARTS[name], QUIET, ("uptime", " 11:50:12 up 2 days")).roots
    assert (root.cause, root.confidence) == ("gpu-fallen-off-bus", "certain")


def test_a_restart_after_which_nothing_was_seen_ends_nothing() -> None:
    for found in (seen(FELL, REBOOT), seen(REBOOT, FELL)):
        (root,) = found.roots
        assert (root.cause, root.confidence) == ("gpu-fallen-off-bus", "certain")


CONSOLES = (
    "ssh root@gpu1 reboot",
    "ssh -p 2222 gpu1 'sudo systemctl reboot'",
    "ipmitool -I lanplus -H gpu1-bmc -U admin -P x chassis power cycle",
    "gcloud compute instances reset gpu1",
    "aws ec2 reboot-instances --instance-ids i-0123456789abcdef0",
    "virsh reset gpu1",
)


@pytest.mark.parametrize("restart", CONSOLES)
def test_a_machine_may_be_restarted_from_another(restart: str) -> None:
    text = session(FELL) + session((restart, ""), prompt="me@laptop:~$ ") + session(QUIET, SMI)
    assert of_text(text).is_healthy


def test_a_restart_of_one_machine_ends_nothing_on_another() -> None:
    text = session(FELL) + session(REBOOT, ("uptime", " 11:50:12 up 1 min"), prompt="root@gpu2:~# ") + session(QUIET)
    (root,) = of_text(text).roots
    assert (root.cause, root.confidence) == ("gpu-fallen-off-bus", "certain")


def test_who_comes_back_after_a_restart_is_at_the_same_machine() -> None:
    login, closed = ("ssh ubuntu@gpu1", "Welcome to Ubuntu 22.04.4 LTS"), "Connection to gpu1 closed by remote host."
    for prompt, own in (("ubuntu@gpu1:~$ ", "me@laptop:~$ "), ("$ ", "$ ")):
        before = session(login, prompt=own) + session(MISMATCH, ("sudo reboot", closed), prompt=prompt)
        found = of_text(before + session(login, prompt=own) + session(SMI, prompt=prompt))
        assert (roots(found), found.unknown) == ([], ())
    # Some shells say nothing when they end.
    before = session(login, prompt="$ ") + session(MISMATCH, REBOOT, prompt="$ ")
    found = of_text(before + session(login, prompt="$ ") + session(SMI, prompt="$ "))
    assert (roots(found), found.unknown) == ([], ())


def test_the_fault_after_a_restart_is_named_and_not_the_one_before() -> None:
    found = seen(
        *(MISMATCH, OLD_MODULE, NEW_DISK, REBOOT, NO_DRIVER, ("lsmod | grep nvidia", "")),
        ("dkms status", "nvidia/550.90.07, 5.15.0-105-generic, x86_64: installed"),
        ("uname -r", "5.15.0-119-generic"),
        (
            "sudo modprobe nvidia",
            "modprobe: FATAL: Module nvidia not found in directory /lib/modules/5.15.0-119-generic",
        ),
    )
    assert roots(found) == ["module-built-for-other-kernel"]


def test_the_kernel_that_ran_before_is_not_the_running_one() -> None:
    built = ("dkms status", "nvidia/550.90.07, 5.15.0-105-generic, x86_64: installed")
    found = seen(("uname -r", "5.15.0-105-generic"), SMI, REBOOT, ("uname -r", "5.15.0-119-generic"), built, NO_DRIVER)
    assert roots(found) == ["module-built-for-other-kernel"]


ASKED_AGAIN = (
    ("lsmod | grep -E 'nouveau|nvidia'", ""),
    ("lsmod", "Module                  Size  Used by\next4                 999424  1"),
    ("lsmod | grep -i nouveau", ""),
)


@pytest.mark.parametrize("again", ASKED_AGAIN, ids=[command for command, _ in ASKED_AGAIN])
def test_a_module_is_asked_about_in_other_words(again: tuple[str, str]) -> None:
    for between in (REBOOT, ("update-initramfs -u", "update-initramfs: Generating /boot/initrd.img")):
        found = seen(NO_DRIVER, NOUVEAU, between, again, NO_DRIVER, REJECTED, SECURE)
        assert "nouveau-bound" not in roots(found)
        assert any("signature" in doubt.question for doubt in found.unknown)


def test_a_narrower_question_overtakes_nothing() -> None:
    found = seen(NO_DRIVER, NOUVEAU, ("lsmod | grep nvidia", ""))
    assert roots(found) == ["nouveau-bound"]


BOUND = (
    "lspci -nnk -s 07:00.0",
    (
        "07:00.0 3D controller [0302]: NVIDIA Corporation GA100 [A100 SXM4 80GB] [10de:20b2] (rev a1)\n"
        "\tKernel driver in use: nouveau\n\tKernel modules: nvidiafb, nouveau"
    ),
)
UNBOUND = (
    "lspci -k | grep -A3 NVIDIA",
    (
        "07:00.0 3D controller: NVIDIA Corporation GA100 [A100 SXM4 80GB] (rev a1)\n"
        "\tKernel modules: nvidiafb, nouveau, nvidia"
    ),
)


def test_a_devices_driver_is_asked_about_in_other_words() -> None:
    for between in (
        REBOOT,
        ("apt install -y nvidia-driver-550", "Setting up nvidia-driver-550 (550.90.07-0ubuntu1) ..."),
    ):
        found = seen(BOUND, between, UNBOUND, NO_DRIVER, REJECTED, SECURE)
        assert "nouveau-bound" not in roots(found)
    other = UNBOUND[0], UNBOUND[1].replace("07:00.0", "0a:00.0")
    assert roots(seen(BOUND, other, NO_DRIVER)) == ["nouveau-bound"]


def test_which_devices_there_are_outlives_a_restart() -> None:
    found = snapshot(pasted.from_text(session(BOUND, REBOOT, NO_DRIVER)))
    (bus,) = (item for item in found.items if item.kind == "lspci")
    assert "[10de:20b2]" in bus.text
    assert "nouveau" not in bus.text


def test_what_was_seen_before_and_never_again_is_told_as_past() -> None:
    (root,) = seen(NOUVEAU, NO_DRIVER, REBOOT, ("uptime", " 11:50:12 up 1 min")).roots
    assert (root.cause, root.confidence) == ("nouveau-bound", "likely")
    assert root.summary.startswith("In an earlier boot: ")


def test_a_setting_outlives_a_restart() -> None:
    broken = ("cat /etc/docker/daemon.json", '{\n  "runtimes": {"nvidia": {"path": "nvidia-container-runtime"}},\n}')
    assert roots(seen(broken, REBOOT, SMI)) == ["daemon-json-invalid"]


def test_a_gpu_that_is_missing_after_a_restart_stays_in_the_evidence() -> None:
    two = WORKS + WORKS[WORKS.index("|   0") :].replace("   0 ", "   1 ", 1).replace(":07:00.0", ":0A:00.0").join(
        "\n\n"
    )
    said = [item.text for item in snapshot(pasted.from_text(session(("nvidia-smi", two), REBOOT, SMI))).items]
    assert any("0A:00.0" in text for text in said)


def test_a_gpu_whose_start_fails_in_the_same_way_again_has_no_past() -> None:
    failed = "NVRM: GPU 0000:41:00.0: RmInitAdapter failed! (0x62:0x65:{})"
    why = "[    7.1] NVRM: kgspWaitForGfwBootOk_TU102: failed to wait for GFW boot complete: 0x65 VBIOS version 00.00\n"
    before = ("dmesg | grep NVRM", f"{why}[    7.2] {failed.format(1860)}")
    after = f"[    9.2] {failed.format(2405)}"
    for found in (
        seen(before, REBOOT, ("dmesg | grep RmInit", after)),
        seen(before, REBOOT, ("modinfo -F license nvidia; dmesg | grep RmInit", f"NVIDIA\n{after}")),
    ):
        assert [(root.cause, root.confidence) for root in found.roots] == [("gpu-firmware-boot-failed", "certain")]


def test_of_several_commands_in_a_line_each_is_of_its_boot() -> None:
    both = ("cat /etc/os-release; dmesg | grep -i xid", f'ID=ubuntu\nVERSION_ID="22.04"\n{XID}')
    assert seen(both, REBOOT, QUIET, SMI).is_healthy
    kept = snapshot(pasted.from_text(session(both, REBOOT, QUIET))).items
    assert any("ID=ubuntu" in item.text for item in kept if item.subject == "/etc/os-release")


def test_a_mismatch_that_a_restart_left_is_not_mended_by_another() -> None:
    for before in (MISMATCH, ("uname -r", "5.15.0-105-generic")):
        found = seen(before, REBOOT, MISMATCH, OLD_MODULE, NEW_DISK)
        assert roots(found) == []
    refused = ("reboot", "Call to Reboot failed: Access denied")
    for restart in ((), (refused, MISMATCH)):
        found = seen(MISMATCH, OLD_MODULE, NEW_DISK, *restart)
        assert roots(found) == ["driver-library-mismatch-reboot-pending"]


def test_what_was_installed_since_the_restart_waits_for_the_next() -> None:
    installed = ("apt-get install -y nvidia-driver-550", "Setting up nvidia-driver-550 (550.90.07-0ubuntu1) ...")
    found = seen(REBOOT, ("uptime -p", "up 5 hours"), installed, MISMATCH, OLD_MODULE, NEW_DISK)
    assert roots(found) == ["driver-library-mismatch-reboot-pending"]


def test_a_restart_is_seen_behind_every_prompt() -> None:
    for prompt in ("# ", "$ ", "[root@gpu1 ~]# ", "┌──(kali㉿gpu1)-[~]\n└─$ ", "me@gpu1 ~ % ", "gpu1:~ # "):
        for found in (
            of_text(session(FELL, ("reboot", ""), QUIET, SMI, prompt=prompt)),
            diagnose(snapshot(pasted.evidence([("what I did", session(FELL, ("reboot", ""), SMI, prompt=prompt))]))),
        ):
            assert found.is_healthy


def test_who_leaves_the_shell_of_a_machine_that_goes_down_has_seen_nothing_after_it() -> None:
    (root,) = seen(FELL, REBOOT, ("exit", "logout")).roots
    assert (root.cause, root.confidence) == ("gpu-fallen-off-bus", "certain")


UNCONTAINED = (
    "sudo dmesg | grep -i xid",
    "[176000.123456] NVRM: Xid (PCI:0000:07:00): 95, pid=8812, name=python, Uncontained: LTC TAG (0x5,0x0).",
)


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("sudo reboot", "[sudo] password for op: ^C"),
        ("sudo reboot", "W: molly-guard: SSH session detected!\nGood thing I asked; I won't reboot gpu1 ..."),
        (
            "sudo reboot",
            "User alice is logged in.\nPlease retry operation after closing inhibitors and logging out.",
        ),
        ("sudo apt-get install nvidia-driver-550 && sudo reboot", "Do you want to continue? [Y/n] n\nAbort."),
        ("sudo make install && sudo reboot", "make: *** [Makefile:12: install] Error 1"),
    ],
)
def test_a_restart_that_did_not_happen_ends_nothing(typed: str, said: str) -> None:
    assert roots(seen(UNCONTAINED, (typed, said), SMI)) == ["xid-95-uncontained-ecc"]
    assert roots(seen(UNCONTAINED, REBOOT, SMI)) == []


def test_what_the_gpu_keeps_itself_outlives_a_restart() -> None:
    log = "[176000.1] NVRM: Xid (PCI:0000:07:00): 64, pid=1, name=python, Failed to remap row 0x12 (row remap failure)"
    failed = ("sudo dmesg | grep -i xid", f"{XID}\n{log}")
    assert roots(seen(failed, REBOOT, SMI)) == ["row-remap-failure"]
    rows = ("nvidia-smi -q -d ROW_REMAPPER", "    Remapped Rows\n        Remapping Failure Occurred        : No")
    assert roots(seen(failed, REBOOT, SMI, rows)) == []
