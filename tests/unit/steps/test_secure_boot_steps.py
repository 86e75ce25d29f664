"""Under Secure Boot the key comes first and is confirmed at the console; the driver follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.change import CommandChange, FileChange, ServiceState
from gpunode.errors import ChangeFailed
from gpunode.facts.derive import derive
from gpunode.facts.model import Facts, Known, LoadedDriver, ModuleKey, ModuleSignature, Unit, Unknown
from gpunode.facts.module_key import DKMS_CONFIG_FILE, DKMS_KEY_FILES
from gpunode.facts.probes import ENROLMENT_REQUEST_FILE, KERNEL_ARGUMENTS_FILE, LOCKDOWN, SIG_ENFORCE
from gpunode.outcome import Blocked, Planned
from gpunode.package_id import PackageId
from gpunode.recipe import CudaToolkit, GpuDirect
from gpunode.steps.daemons import PERSISTENCE_STEP
from gpunode.steps.detect import DETECT_STEP
from gpunode.steps.driver import CONFLICTS_STEP, DRIVER_PIN_STEP, DRIVER_STEP
from gpunode.steps.enrolment import KEY_BACKUP_FOLDER, describe_kept_key, require_same_key
from gpunode.steps.gpudirect import GPUDIRECT_MODULES_STEP
from gpunode.steps.kernel import HEADERS_STEP, MODULE_BUILD_STEP, MODULE_LOAD_STEP, NOUVEAU_STEP
from gpunode.steps.packages import CUDA_PROFILE_SCRIPT, REPAIR_STEP
from gpunode.steps.secure_boot import SECURE_BOOT_STEP
from gpunode.steps.table import STEPS
from gpunode.workflow.converge import plan_stage
from gpunode.workflow.recovery import Backlog
from gpunode.workflow.setup import SetupOptions
from gpunode.workflow.status import SecureBootStatus, status
from tests.fakes.firmware import SIGNERS_SERIAL, Firmware, make_certificate
from tests.unit.steps.machines import H100, KERNEL, gpu, machine, names, planned, recipe, refusal, with_driver
from tests.unit.workflow.nodes import Node

ASKED = SetupOptions()
SIGNED = "signer: DKMS module signing key\nsig_key: 5E:C0:DE\n"
TOOLS = {"mokutil": "0.6.0-2", "openssl": "3.0.17-1~deb12u1"}


def key_of(firmware: Firmware) -> Known[ModuleKey]:
    fact = derive(firmware.evidence()).module_key
    assert isinstance(fact, Known), fact
    return fact


def node(firmware: Firmware, facts: Facts | None = None, **more: object) -> Facts:
    """Return a machine that has the firmware."""
    there = facts or machine(packages=TOOLS, **more)  # type: ignore[arg-type]
    return replace(there, secure_boot=Known(True, "v"), module_key=key_of(firmware))


def commands(facts: Facts) -> list[tuple[str, ...]]:
    changes = planned(SECURE_BOOT_STEP.plan(recipe(), facts)).changes
    return [change.argv for change in changes if isinstance(change, CommandChange)]


def test_present_key_is_enrolled_as_it_is() -> None:
    shown = commands(node(Firmware().with_key()))
    assert [argv[:2] for argv in shown] == [("mokutil", "--timeout"), ("mokutil", "--import")]
    assert shown[-1][2] == DKMS_KEY_FILES[1]


def test_new_key_is_made_before_its_import() -> None:
    shown = commands(node(Firmware()))
    assert [argv[0] for argv in shown] == ["sh", "mokutil", "mokutil"]
    assert shown[0][-2:] == DKMS_KEY_FILES


def test_timeout_that_is_endless_already_is_left_alone() -> None:
    assert [argv[1] for argv in commands(node(Firmware(timeout_s=-1).with_key()))] == ["--import"]
    firmware = Firmware(timeout_s=-1, enrolled=[make_certificate()]).with_key()
    assert commands(node(firmware, files={ENROLMENT_REQUEST_FILE: b"-1\n"})) == []


def test_request_of_somebody_else_is_not_queued_twice() -> None:
    outcome = SECURE_BOOT_STEP.plan(recipe(), node(Firmware(queued=[make_certificate()]).with_key()))
    assert isinstance(outcome, Blocked)
    assert outcome.waits_for == "console"


def test_missing_tools_come_first() -> None:
    facts = node(Firmware(), machine())
    assert {"mokutil", "openssl"} <= {
        change.subject for change in planned(SECURE_BOOT_STEP.plan(recipe(), facts)).changes
    }


@pytest.mark.parametrize("gone", DKMS_KEY_FILES)
@pytest.mark.parametrize("empty", [False, True])
def test_half_a_key_is_refused(gone: str, *, empty: bool) -> None:
    firmware = Firmware().with_key()
    if empty:
        firmware.files[gone] = b""
    else:
        del firmware.files[gone]
    refused = refusal(SECURE_BOOT_STEP.plan(recipe(), node(firmware)))
    assert gone in refused.what
    assert "restore" in refused.hint


def test_key_whose_certificate_was_not_named_yet_is_finished() -> None:
    """A run was killed between the two renames; the key is no longer refused."""
    firmware = Firmware().with_key()
    firmware.files[f"{DKMS_KEY_FILES[1]}.new"] = firmware.files.pop(DKMS_KEY_FILES[1])
    assert commands(node(firmware))[0][-2:] == DKMS_KEY_FILES


def test_hardware_key_without_its_certificate_is_refused() -> None:
    firmware = Firmware(files={DKMS_CONFIG_FILE: b"mok_signing_key=pkcs11:token=x\nmok_certificate=/c\n"})
    assert "/c is missing" in refusal(SECURE_BOOT_STEP.plan(recipe(), node(firmware))).what


def test_certificate_in_pem_is_refused_with_the_conversion() -> None:
    pem = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    assert "-outform DER" in refusal(SECURE_BOOT_STEP.plan(recipe(), node(Firmware().with_key(certificate=pem)))).hint


@pytest.mark.parametrize(
    "step",
    [
        DRIVER_PIN_STEP,
        CONFLICTS_STEP,
        HEADERS_STEP,
        NOUVEAU_STEP,
        DRIVER_STEP,
        MODULE_BUILD_STEP,
        MODULE_LOAD_STEP,
        PERSISTENCE_STEP,
    ],
)
def test_driver_steps_change_nothing_until_the_key_is_enrolled(step: object) -> None:
    outcome = planned(step.plan(recipe(), node(Firmware().with_key())))  # type: ignore[attr-defined]
    assert outcome.changes == ()
    assert outcome.is_deferred


def test_steps_after_the_driver_wait_for_its_key_and_refuse_nothing() -> None:
    wanted = replace(recipe(), gpudirect=GpuDirect(gds=True, rdma="peermem"), cuda=CudaToolkit("auto"))
    old = {**TOOLS, "nvidia-kernel-open-dkms": "580.95.05-1", "libcuda1": "580.95.05-1"}
    # The driver may have been installed before its key; the toolkit is one that the later driver supports.
    for there, release in ((TOOLS, "13-2"), (old, "13-0")):
        facts = node(Firmware().with_key(), machine(packages=there, files={CUDA_PROFILE_SCRIPT: b""}))
        stage = plan_stage(wanted, facts, "packages")
        assert stage.refusal is None
        assert any(isinstance(change, CommandChange) for change in stage.ordered_changes)
        assert planned(GPUDIRECT_MODULES_STEP.plan(wanted, facts)).is_deferred
        assert f"cuda-toolkit-{release}" in names(stage.ordered_changes)


def test_fabric_manager_that_comes_after_the_key_is_not_called_missing() -> None:
    switch = replace(gpu("22a3"), address="0000:05:00.0", class_code="0680")
    absent = Unit(ServiceState(enabled=False, active=False), exists=False)
    board = machine(gpus=(gpu(H100), switch), packages=TOOLS, units={"nvidia-fabricmanager.service": absent})
    assert planned(DETECT_STEP.plan(recipe(), node(Firmware().with_key(), board))).notes == ()
    assert planned(DETECT_STEP.plan(recipe(version="none"), board)).notes


def test_old_module_that_does_not_build_keeps_no_key_from_being_enrolled() -> None:
    old = {"nvidia-kernel-dkms": "470.256.02-2"}
    cut = machine(packages={**TOOLS, **old}, packages_interrupted=Known(value=True, probe="x"))
    facts = node(Firmware().with_key(), replace(cut, unconfigured=frozenset(map(PackageId, old))))
    assert planned(REPAIR_STEP.plan(recipe(), facts)).changes == ()


def test_key_of_the_loaded_driver_needs_no_enrolment() -> None:
    """A kernel may trust a key by other ways than the firmware's lists."""
    signed = {f"/lib/modules/{KERNEL}/updates/dkms/nvidia.ko": SIGNED}
    key = replace(
        key_of(Firmware(modinfo=signed).with_key()).value,
        signatures={KERNEL: ModuleSignature("x", SIGNERS_SERIAL)},
    )
    facts = replace(with_driver(), secure_boot=Known(True, "v"), module_key=Known(key, "k"))
    assert [step.id for step in STEPS if planned(step.plan(recipe(), facts)).changes and step is SECURE_BOOT_STEP] == []
    assert planned(DRIVER_STEP.plan(recipe(), facts)).changes == ()
    other = replace(key, signatures={KERNEL: ModuleSignature("x", 7)})
    assert planned(SECURE_BOOT_STEP.plan(recipe(), replace(facts, module_key=Known(other, "k")))).changes


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        (ModuleSignature("", 0), "has no signature"),
        (ModuleSignature("another", 7), "signed with another key, of another"),
    ],
)
def test_modules_that_the_kernel_would_reject_stop_the_run(signature: ModuleSignature, words: str) -> None:
    key = replace(key_of(Firmware(enrolled=[make_certificate()]).with_key()).value, signatures={KERNEL: signature})
    facts = replace(with_driver(loaded_driver=None), secure_boot=Known(True, "v"), module_key=Known(key, "k"))
    refused = refusal(MODULE_BUILD_STEP.plan(recipe(), facts))
    assert words in refused.what
    assert KERNEL in refused.what
    good = replace(key, signatures={KERNEL: ModuleSignature("x", SIGNERS_SERIAL)})
    assert planned(MODULE_BUILD_STEP.plan(recipe(), replace(facts, module_key=Known(good, "k")))).changes == ()


def test_certificate_replaced_by_a_transaction_stops_the_run() -> None:
    before = key_of(Firmware(enrolled=[make_certificate()]).with_key())
    after = key_of(Firmware(enrolled=[make_certificate()]).with_key(certificate=make_certificate(7)))
    with pytest.raises(ChangeFailed, match="was replaced during this run") as caught:
        require_same_key(before, after)
    assert "Do not reboot yet" in caught.value.why
    require_same_key(before, before)
    require_same_key(None, after)
    require_same_key(key_of(Firmware()), after)


def test_secure_boot_that_is_off_asks_for_nothing() -> None:
    off = planned(SECURE_BOOT_STEP.plan(recipe(), machine(secure_boot=False)))
    assert (off.changes, off.notes, off.is_requested) == ((), (), False)


@pytest.mark.parametrize(
    ("path", "text", "why"),
    [
        (KERNEL_ARGUMENTS_FILE, "quiet module.sig_enforce", "started with module.sig_enforce"),
        (KERNEL_ARGUMENTS_FILE, "module.sig_enforce=1", "started with module.sig_enforce=1"),
        (SIG_ENFORCE, "Y\n", "sig_enforce says Y"),
        (LOCKDOWN, "none [integrity] confidentiality\n", "lockdown says integrity"),
        (KERNEL_ARGUMENTS_FILE, "quiet module.sig_enforce=0", ""),
        (SIG_ENFORCE, "N\n", ""),
        (LOCKDOWN, "[none] integrity confidentiality\n", ""),
    ],
)
def test_kernel_that_takes_no_key_of_this_machine_is_refused(path: str, text: str, why: str) -> None:
    outcome = SECURE_BOOT_STEP.plan(recipe(), machine(secure_boot=False, files={path: text.encode()}))
    assert (why in refusal(outcome).why) if why else isinstance(outcome, Planned)
    assert not why or 'skip = ["secure-boot"]' in refusal(outcome).hint


def test_driver_that_such_a_kernel_has_loaded_is_left_alone() -> None:
    facts = machine(secure_boot=False, files={SIG_ENFORCE: b"Y\n"}, loaded_driver=LoadedDriver("580.95.05", True))
    assert isinstance(SECURE_BOOT_STEP.plan(recipe(), facts), Planned)


def test_recipe_that_leaves_the_step_out_does_not_wait() -> None:
    skips = replace(recipe(), skip=("secure-boot",))
    outcome = planned(DRIVER_STEP.plan(skips, node(Firmware())))
    assert outcome.changes
    assert any("enrol that key before the next boot" in note for note in outcome.change_notes)
    assert planned(HEADERS_STEP.plan(skips, node(Firmware()))).changes


def test_module_whose_key_the_firmware_lacks_is_not_loaded() -> None:
    skips = replace(recipe(), skip=("secure-boot",))
    outcome = MODULE_LOAD_STEP.plan(skips, node(Firmware().with_key()))
    assert isinstance(outcome, Blocked)
    assert outcome.waits_for == "console"  # a reboot by setup is not enough for this
    enrolled = node(Firmware(enrolled=[make_certificate()]).with_key())
    assert planned(MODULE_LOAD_STEP.plan(skips, enrolled)).changes


def test_unreadable_key_is_no_missing_key() -> None:
    facts = replace(machine(), secure_boot=Known(True, "v"), module_key=Unknown("denied", "module-certificate"))
    with pytest.raises(Exception, match="which key signs kernel modules"):
        SECURE_BOOT_STEP.plan(recipe(), facts)


def test_no_driver_needs_no_key() -> None:
    outcome = planned(SECURE_BOOT_STEP.plan(recipe(version="none"), node(Firmware())))
    assert (outcome.changes, outcome.is_requested) == ((), False)


def test_image_is_told_what_its_first_boot_needs() -> None:
    from gpunode.facts.model import Platform

    facts = machine(platform=Platform("image"), packages={"shim-signed": "1.44~1+deb12u1"})
    outcome = planned(SECURE_BOOT_STEP.plan(recipe(), facts))
    assert outcome.changes == ()
    assert "console" in outcome.notes[0]


def test_image_that_secure_boot_does_not_start_gets_no_note() -> None:
    from gpunode.facts.model import Platform

    assert planned(SECURE_BOOT_STEP.plan(recipe(), machine(platform=Platform("image")))).notes == ()


def test_missing_half_is_told_where_the_copy_is() -> None:
    firmware = Firmware().with_key()
    del firmware.files[DKMS_KEY_FILES[0]]
    assert KEY_BACKUP_FOLDER in refusal(SECURE_BOOT_STEP.plan(recipe(), node(firmware))).hint


def test_no_change_of_the_enrolment_has_a_password() -> None:
    for change in planned(SECURE_BOOT_STEP.plan(recipe(), node(Firmware()))).changes:
        assert "password" not in repr(change).replace("gpunode-mok-password", "")


def test_request_file_keeps_the_former_timeout() -> None:
    changes = planned(SECURE_BOOT_STEP.plan(recipe(), node(Firmware(timeout_s=30).with_key()))).changes
    (request,) = [change for change in changes if isinstance(change, FileChange)]
    assert request.after is not None
    assert getattr(request.after, "content", b"") == b"30\n"


@pytest.mark.parametrize(
    ("firmware", "state"),
    [
        (Firmware(), "missing"),
        (Firmware().with_key(), "not enrolled"),
        (Firmware(queued=[make_certificate()]).with_key(), "queued"),
        (Firmware(enrolled=[make_certificate()]).with_key(), "enrolled"),
    ],
)
def test_status_shows_what_the_firmware_knows_of_the_key(firmware: Firmware, state: str) -> None:
    facts = node(firmware)
    found = status(facts, Node(facts), Backlog()).secure_boot
    assert found is not None
    assert (found.on, found.state, found.certificate) == (True, state, DKMS_KEY_FILES[1])


def test_status_tells_secure_boot_that_is_off_from_an_unknown_one() -> None:
    assert status(machine(secure_boot=False), Node(machine()), Backlog()).secure_boot == SecureBootStatus(False)
    assert status(machine(), Node(machine()), Backlog()).secure_boot is None


def test_undo_names_the_key_the_request_and_the_timeout_that_stay() -> None:
    firmware = Firmware(queued=[make_certificate()], timeout_s=-1).with_key()
    said = "\n".join(describe_kept_key(node(firmware, files={ENROLMENT_REQUEST_FILE: b"10\n"})))
    assert f"rm {DKMS_KEY_FILES[0]} {DKMS_KEY_FILES[1]}" in said
    assert "mokutil --revoke-import" in said
    assert "mokutil --timeout 10" in said
    assert "--delete" not in said
    enrolled = Firmware(enrolled=[make_certificate()]).with_key()
    assert f"mokutil --delete {DKMS_KEY_FILES[1]}" in "\n".join(describe_kept_key(node(enrolled)))
    assert list(describe_kept_key(machine())) == []
