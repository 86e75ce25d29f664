"""Checks of a runtime's state: the handler, the default, and one cgroup driver for all pods of a node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.runtimes.model import DesiredConfig, ObservedConfig, cgroup_handlers, needs_runc, satisfies

WISH = DesiredConfig(version=(1, 7))
AS_WISHED = ObservedConfig({"nvidia": WISH.binary, "runc": ""}, schema=2)


def test_handler_without_or_with_another_binary_does_not_satisfy() -> None:
    assert satisfies(AS_WISHED, WISH)
    for handlers in ({"runc": ""}, {"nvidia": "", "runc": ""}, {"nvidia": "/opt/other", "runc": ""}):
        assert not satisfies(replace(AS_WISHED, handlers=handlers), WISH)


def test_default_and_cdi_only_matter_if_desired() -> None:
    for desired, configured in (
        (replace(WISH, default=True), replace(AS_WISHED, default="nvidia")),
        (replace(WISH, enable_cdi=True), replace(AS_WISHED, cdi=True)),
    ):
        assert satisfies(configured, desired)
        assert satisfies(configured, WISH)
        assert not satisfies(AS_WISHED, desired)
    assert not satisfies(replace(AS_WISHED, default="runc"), replace(WISH, default=True))
    assert not satisfies(replace(AS_WISHED, cdi=False), replace(WISH, enable_cdi=True))


@pytest.mark.parametrize(
    ("cgroup", "sound"),
    [
        ({}, False),
        ({"nvidia": True}, False),
        ({"runc": True}, False),
        ({"nvidia": True, "runc": False}, False),
        ({"nvidia": True, "runc": True}, True),
    ],
)
def test_systemd_cgroup_driver_must_hold_for_all_runc_handlers(cgroup: dict[str, bool], sound: bool) -> None:
    assert satisfies(replace(AS_WISHED, systemd_cgroup=cgroup), replace(WISH, systemd_cgroup=True)) is sound


@pytest.mark.parametrize(
    ("cgroup", "sound"),
    [
        ({}, True),
        ({"nvidia": False}, True),
        ({"nvidia": True}, True),
        ({"runc": True}, False),
        ({"nvidia": True, "runc": True}, True),
    ],
)
def test_handler_must_use_the_cgroup_driver_of_the_default_runtime(cgroup: dict[str, bool], sound: bool) -> None:
    assert satisfies(replace(AS_WISHED, systemd_cgroup=cgroup), WISH) is sound


def test_vm_default_runtime_does_not_decide_the_cgroup_driver() -> None:
    kata = replace(
        AS_WISHED, handlers={**AS_WISHED.handlers, "kata": ""}, default="kata", systemd_cgroup={"kata": True}
    )
    assert satisfies(kata, WISH)
    crun = replace(AS_WISHED, default="crun", handlers={**AS_WISHED.handlers, "crun": ""})
    assert satisfies(replace(crun, systemd_cgroup={"nvidia": True}), WISH)
    assert not satisfies(replace(crun, systemd_cgroup={"crun": True}), WISH)


def test_docker_handler_has_no_cgroup_driver_of_its_own() -> None:
    assert satisfies(ObservedConfig({"nvidia": WISH.binary}), replace(WISH, systemd_cgroup=True))


def test_cgroup_driver_is_set_for_the_handler_and_existing_runc_kind() -> None:
    there = {"kata": "", "crun": "", "runc": "", "nvidia": ""}
    assert cgroup_handlers(WISH, there) == ("nvidia", "runc", "crun")
    assert cgroup_handlers(replace(WISH, handler="runc"), there) == ("runc", "crun")
    assert cgroup_handlers(WISH, {}) == ("nvidia",)


@pytest.mark.parametrize(
    ("default", "schema", "version", "systemd", "needed"),
    [
        ("runc", 2, None, False, True),
        ("runc", 2, (1, 7, 24), False, True),
        ("runc", 2, (2,), False, False),
        ("runc", 2, (2,), True, True),
        ("runc", 3, None, False, False),
        ("runc", 3, None, True, True),
        ("nvidia", 2, (1, 7), True, False),
    ],
)
def test_missing_runc_matters_by_containerd_version(
    default: str, schema: int, version: tuple[int, ...] | None, systemd: bool, needed: bool
) -> None:
    desired = DesiredConfig(version=version, systemd_cgroup=systemd)
    assert needs_runc(default, {"nvidia": ""}, schema, desired) is needed
    assert not needs_runc(default, {"nvidia": "", "runc": ""}, schema, desired)
