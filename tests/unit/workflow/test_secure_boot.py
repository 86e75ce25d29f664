"""Setup under Secure Boot: the key first, its confirmation at the console, and only then the driver."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.errors import ChangeFailed, RebootRequired, Refused
from gpunode.facts.derive import derive
from gpunode.facts.model import Facts, Known, ModuleKey
from gpunode.facts.module_key import DKMS_KEY_FILES
from gpunode.facts.probes import ENROLMENT_REQUEST_FILE
from gpunode.journal.store import Store
from gpunode.recipe import Recipe
from gpunode.steps.kernel import NOUVEAU_BLACKLIST_FILE
from gpunode.steps.secure_boot import SECURE_BOOT_STEP
from gpunode.workflow.converge import StagePlan, project_stage
from gpunode.workflow.setup import SetupOptions, SetupResult, setup
from tests.fakes.firmware import Firmware, make_certificate
from tests.unit.steps.machines import machine, planned, recipe
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


class Machine:
    """A machine with a firmware that can run setup and boot."""

    def __init__(self, firmware: Firmware, folder: Path) -> None:
        self.firmware, self.store = firmware, Store(folder)
        self.facts = node(firmware)

    def setup(self, wanted: Recipe | None = None) -> SetupResult:
        machine_firmware = self.firmware

        class Obedient(Node):
            def apply(self, changes: object, /) -> None:
                super().apply(changes)  # type: ignore[arg-type]
                for change in changes:  # type: ignore[attr-defined]
                    machine_firmware.obey(change)

        def look_again(facts: Facts, stage: StagePlan) -> Facts:
            return replace(project_stage(facts, stage), module_key=key_of(machine_firmware))

        self.host = Obedient(self.facts)
        done = setup(
            wanted or recipe(),
            self.host,
            self.store,
            self.facts,
            advance=look_again,
            options=ASKED,
            on_event=lambda _: None,
        )
        self.facts = done.facts
        return done

    def boot(self, *, confirms: bool) -> None:
        self.firmware.boot(confirms=confirms)
        self.facts = replace(self.facts, module_key=key_of(self.firmware), boot_id=Known("later", "boot-id"))

    def made(self) -> list[str]:
        return [change.subject for change in self.host.made]


def test_driver_is_installed_only_after_its_key_is_confirmed(tmp_path: Path) -> None:
    one = Machine(Firmware(), tmp_path)

    first = one.setup()

    assert [wait.waits_for for wait in first.waits] == ["console"]
    assert one.firmware.queued == [make_certificate()]
    assert one.firmware.timeout_s == -1
    assert not [name for name in one.made() if "nvidia" in name and not name.startswith("/etc/apt")]
    assert NOUVEAU_BLACKLIST_FILE not in one.made(), "nouveau must stay able to drive the card"

    again = one.setup()
    assert not again.changed
    assert [wait.waits_for for wait in again.waits] == ["console"]

    one.boot(confirms=True)
    second = one.setup()
    assert "nvidia-kernel-dkms" in one.made() or "nvidia-kernel-open-dkms" in one.made()
    assert NOUVEAU_BLACKLIST_FILE in one.made()
    assert not [wait for wait in second.waits if wait.waits_for == "console"]
    assert one.firmware.timeout_s == 10, "the firmware waits as long as before"
    assert one.facts.file(ENROLMENT_REQUEST_FILE) == Known(None, "plan")


def test_missed_confirmation_is_said_and_queued_again(tmp_path: Path) -> None:
    one = Machine(Firmware(), tmp_path)
    one.setup()
    one.boot(confirms=False)
    assert "nobody has confirmed its enrolment" in planned(SECURE_BOOT_STEP.plan(recipe(), one.facts)).reason
    missed = one.setup()
    assert [wait.waits_for for wait in missed.waits] == ["console"]
    assert one.firmware.queued == [make_certificate()]
    assert NOUVEAU_BLACKLIST_FILE not in one.made()
    assert not any("make the key" in name for name in one.made()), "the key stays the same"


def test_request_that_no_boot_has_met_is_not_said_to_be_missed(tmp_path: Path) -> None:
    # As after `mokutil --revoke-import`, or a run that was killed before it queued the key.
    one = Machine(Firmware(), tmp_path)
    one.setup()
    one.firmware.queued.clear()
    one.facts = replace(one.facts, module_key=key_of(one.firmware))
    said = planned(SECURE_BOOT_STEP.plan(recipe(), one.facts)).reason
    assert "so it is queued again" in said
    assert "boot," not in said


def test_enrolled_key_is_used_and_never_replaced(tmp_path: Path) -> None:
    one = Machine(Firmware(enrolled=[make_certificate()]).with_key(), tmp_path)
    done = one.setup()
    assert not [wait for wait in done.waits if wait.waits_for == "console"]
    assert not [name for name in one.made() if "mokutil" in name or "make the key" in name]


def test_setup_stops_when_dkms_replaces_the_certificate(tmp_path: Path) -> None:
    one = Machine(Firmware(enrolled=[make_certificate()]).with_key(), tmp_path)
    obey = one.firmware.obey

    def replace_key(change: object) -> None:
        obey(change)  # type: ignore[arg-type]
        if getattr(change, "subject", "") in {"nvidia-kernel-dkms", "nvidia-kernel-open-dkms"}:
            one.firmware.with_key(certificate=make_certificate(7))

    one.firmware.obey = replace_key  # type: ignore[method-assign]
    with pytest.raises(ChangeFailed, match="was replaced during this run"):
        one.setup()


def test_console_wait_ends_with_exit_10(tmp_path: Path) -> None:
    from gpunode.cli.setup import blocked_setup_error

    failure = blocked_setup_error(Machine(Firmware(), tmp_path).setup().waits)
    assert isinstance(failure, RebootRequired)
    assert failure.exit_code == 10
    assert "Enroll MOK → Continue → Yes" in failure.hint
    assert "BMC" in failure.hint


@pytest.mark.parametrize("gone", DKMS_KEY_FILES)
def test_half_a_key_is_refused_before_any_change(gone: str, tmp_path: Path) -> None:
    firmware = Firmware().with_key()
    del firmware.files[gone]
    one = Machine(firmware, tmp_path)
    with pytest.raises(Refused, match="half of this machine's key"):
        one.setup()
    assert one.host.made == []
