from __future__ import annotations

import pytest

from gpunode.change import ServiceState
from gpunode.facts import systemd
from gpunode.facts.evidence import GlobMatch
from gpunode.facts.machine import detect_platform
from gpunode.facts.model import Platform, Unit


def block(**values: str) -> str:
    usual = {"Id": "docker.service", "LoadState": "loaded", "ActiveState": "active", "UnitFileState": "enabled"}
    return "\n".join(f"{key}={value}" for key, value in {**usual, **values}.items())


def test_running_unit_has_its_start_time() -> None:
    text = block(MainPID="77", ExecMainStartTimestamp="Sat 2026-11-21 07:46:37.250000 UTC")
    assert systemd.parse_units(text) == {"docker.service": Unit(ServiceState(True, True), True, 1795247197.25)}


def test_reload_changes_the_state_change_time() -> None:
    text = block(
        MainPID="77",
        ExecMainStartTimestamp="Sat 2026-11-21 07:46:37.250000 UTC",
        StateChangeTimestamp="Sat 2026-11-21 07:46:38.500000 UTC",
    )
    assert systemd.parse_units(text)["docker.service"].changed_at == 1795247198.5


def test_stopped_unit_has_no_start_time() -> None:
    text = block(ActiveState="failed", MainPID="0", ExecMainStartTimestamp="Sat 2026-11-21 07:46:37.250000 UTC")
    assert systemd.parse_units(text)["docker.service"] == Unit(ServiceState(True, False), failed=True)


@pytest.mark.parametrize("state", ["auto-restart", "auto-restart-queued"])
def test_unit_waiting_for_a_restart_has_failed(state: str) -> None:
    text = block(ActiveState="activating", SubState=state, MainPID="0")
    assert systemd.parse_units(text)["docker.service"] == Unit(ServiceState(True, False), failed=True)


def test_starting_unit_has_not_failed() -> None:
    text = block(ActiveState="activating", SubState="start", MainPID="77")
    assert systemd.parse_units(text)["docker.service"] == Unit(ServiceState(True, True), starting=True)


def test_aliased_unit_is_found_under_both_names() -> None:
    found = systemd.parse_units(block(Id="dbus-broker.service", Names="dbus.service dbus-broker.service"))
    assert set(found) == {"dbus.service", "dbus-broker.service"}


@pytest.mark.parametrize(
    "text", ["LoadState=loaded", block(MainPID="7", ExecMainStartTimestamp="Sat 2026-11-21 08:46:37 CET")]
)
def test_malformed_systemctl_output_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"name|UTC"):
        systemd.parse_units(text)


def test_enabled_units_are_read_from_links_without_systemd() -> None:
    found = systemd.read_offline_units(
        ("containerd.service", "docker.service", "nvidia-persistenced.service"),
        [GlobMatch("/etc/systemd/system/multi-user.target.wants/containerd.service")],
        [GlobMatch("/etc/systemd/system/docker.service", link="/dev/null")],
        [GlobMatch("/lib/systemd/system/containerd.service"), GlobMatch("/lib/systemd/system/docker.service")],
    )
    assert found["containerd.service"] == Unit(ServiceState(True, False))
    assert found["docker.service"].masked
    assert not found["nvidia-persistenced.service"].exists


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        (detect_platform("none"), Platform("bare-metal")),
        (detect_platform("kvm"), Platform("vm", "kvm")),
        (detect_platform("systemd-nspawn"), Platform("container", "systemd-nspawn")),
        (detect_platform("", manager="lxc"), Platform("container", "lxc")),
        (detect_platform("wsl"), Platform("wsl2", "wsl")),
        (detect_platform("", kernel="microsoft-standard-WSL2"), Platform("wsl2", "microsoft-standard-WSL2")),
        (detect_platform("microsoft", dxg=True), Platform("wsl2", "/dev/dxg")),
        (detect_platform("none", tegra="# R36 (release)"), Platform("jetson", "/etc/nv_tegra_release")),
        (detect_platform("none", compatible="nvidia,p3768\0nvidia,tegra234\0"), Platform("jetson", "nvidia,tegra234")),
    ],
)
def test_platforms_are_detected(given: object, kind: object) -> None:
    assert given == kind


def test_unknown_platform_is_none() -> None:
    assert detect_platform("") is None
