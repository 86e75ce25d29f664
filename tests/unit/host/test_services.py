"""Units: a restart is done if the daemon still runs a while later; otherwise its log is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pytest

from gpunode.change import ServiceChange, ServiceState, Trigger
from gpunode.errors import ChangeFailed
from gpunode.host import services
from gpunode.host.process import Runner
from gpunode.host.services import Services

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
RESTART = Trigger("restart", "containerd.service")
START = Trigger("start", "nvidia-dcgm.service")
RELOAD = Trigger("reload", "docker.service")
# The unit's properties are in a file, which another replaces after a read; a verb runs the script of that name.
SYSTEMCTL = """
for last; do :; done
verb=$1
case $verb in
show)
  cat $T/unit 2>/dev/null || echo LoadState=not-found
  if [ -e $T/after-show ]; then mv $T/after-show $T/unit; fi;;
*) if [ -e $T/on-$verb ]; then . $T/on-$verb; fi;;
esac
"""


class Tools(Protocol):
    folder: Path

    def add(self, name: str, script: str) -> None: ...

    @property
    def calls(self) -> list[str]: ...


def unit(active: str = "active", pid: int = 1, load: str = "loaded", reload: str = "yes", sub: str = "running") -> str:
    names = ("LoadState", "ActiveState", "SubState", "MainPID", "NRestarts", "Result", "CanReload")
    values = (load, active, sub, str(pid), "0", "exit-code", reload)
    return "\n".join(f"{name}={value}" for name, value in zip(names, values, strict=True))


@pytest.fixture
def systemd(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tools:
    tools.add("systemctl", SYSTEMCTL)
    # As with ``-r``: newest line first.
    tools.add("journalctl", "echo 'containerd: exiting'; echo 'containerd: failed to load plugin'")
    (tools.folder / "unit").write_text(unit())
    monkeypatch.setattr(services, "_SYSTEMD_RUN_FOLDER", tmp_path)
    for name in ("_RESTART_WATCH_S", "_WATCH_S"):
        monkeypatch.setattr(services, name, 0.0)
    return tools


def settle(*triggers: Trigger) -> list[tuple[float, str]]:
    return [(one.seconds, one.skipped) for one in map(Services(Runner()).run_trigger, triggers)]


def test_unit_is_restarted_once_with_its_downtime(systemd: Tools) -> None:
    (systemd.folder / "on-restart").write_text("sleep 0.2")
    ((seconds, skipped),) = settle(RESTART)
    assert seconds >= 0.2
    assert skipped == ""
    assert [call for call in systemd.calls if "restart" in call] == ["systemctl restart containerd.service"]


def test_unit_that_fails_to_restart_is_reported_with_its_log(systemd: Tools) -> None:
    (systemd.folder / "on-restart").write_text("echo 'Job for containerd.service failed' >&2; exit 1")
    with pytest.raises(ChangeFailed, match=r"containerd.service did not start again") as caught:
        settle(RESTART)
    assert "containerd: failed to load plugin\ncontainerd: exiting" in caught.value.why
    assert RESTART.target in caught.value.why
    assert "journalctl -u containerd.service" in caught.value.hint


def test_hanging_unit_fails_after_the_timeout(systemd: Tools, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_START_TIMEOUT_S", 0.3)
    (systemd.folder / "on-restart").write_text("sleep 300")
    with pytest.raises(ChangeFailed, match="did not start") as caught:
        settle(RESTART)
    assert "no answer within" in caught.value.why


@pytest.mark.parametrize("later", [unit("failed", 0), unit("active", 99), unit("activating", 0)])
def test_unit_that_dies_shortly_after_its_start_fails(
    systemd: Tools, later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_RESTART_WATCH_S", 60.0)
    (systemd.folder / "later").write_text(later)
    (systemd.folder / "on-restart").write_text("cp $T/later $T/after-show")
    with pytest.raises(ChangeFailed, match="did not stay up"):
        settle(RESTART)


def test_unit_status_is_shown_without_a_journal(systemd: Tools) -> None:
    systemd.add("journalctl", "exit 1")
    (systemd.folder / "on-restart").write_text("exit 1")
    (systemd.folder / "on-status").write_text("echo 'Main PID: 7 (code=exited, status=1/FAILURE)'; exit 3")
    with pytest.raises(ChangeFailed) as caught:
        settle(RESTART)
    assert "status=1/FAILURE" in caught.value.why


@pytest.mark.parametrize(
    ("state", "why"),
    [
        (unit("inactive", 0), "is not running"),
        (unit(load="masked"), "is masked here"),
        (unit(load="not-found"), "is not-found here"),
    ],
)
def test_stopped_unit_is_left_alone_and_reported(systemd: Tools, state: str, why: str) -> None:
    (systemd.folder / "unit").write_text(state)
    for trigger in (RESTART, RELOAD):
        ((_, skipped),) = settle(trigger)
        assert why in skipped
    assert all(call.startswith("systemctl show") for call in systemd.calls)


@pytest.mark.parametrize(("can_reload", "verb"), [("yes", "systemctl reload"), ("no", "systemctl kill")])
def test_reload_falls_back_to_sighup(systemd: Tools, can_reload: str, verb: str) -> None:
    (systemd.folder / "unit").write_text(unit(reload=can_reload))
    settle(RELOAD)
    assert any(call.startswith(verb) for call in systemd.calls)
    assert not any("restart" in call for call in systemd.calls)


def test_reload_rejected_by_dockerd_fails_with_its_log_line(systemd: Tools) -> None:
    line = 'level=error msg="unable to configure the Docker daemon with file /etc/docker/daemon.json: bad"'
    # Lines before the reload are unrelated, and the rejection may be delayed.
    systemd.add(
        "journalctl",
        f"case $* in *--since=@*) ;; *--sync*) exit;; *) echo '{line}'; exit;; esac\n"
        "echo 'level=info msg=\"Got signal to reload configuration, reloading from: x\"'\n"
        f"if [ -e $T/asked ]; then echo '{line}'; fi; touch $T/asked",
    )
    with pytest.raises(ChangeFailed, match=r"docker\.service rejected its configuration") as caught:
        settle(RELOAD)
    assert line in caught.value.why


@pytest.mark.parametrize(
    "state",
    [unit("failed", 0, sub="failed"), unit("activating", 0, sub="auto-restart")],
    ids=["given up", "about to be tried again"],
)
@pytest.mark.parametrize("trigger", [RELOAD, RESTART])
def test_failed_unit_is_started_instead_of_reloaded(systemd: Tools, state: str, trigger: Trigger) -> None:
    (systemd.folder / "unit").write_text(state)
    (systemd.folder / "now").write_text(unit())
    (systemd.folder / "on-restart").write_text("cp $T/now $T/unit")
    settled = Services(Runner()).run_trigger(trigger)
    assert (settled.trigger, settled.skipped, settled.had_failed) == (trigger, "", True)
    assert [call for call in systemd.calls if "show" not in call] == [
        f"systemctl reset-failed {trigger.target}",
        f"systemctl restart {trigger.target}",
    ]


def test_failed_unit_that_does_not_start_is_explained(systemd: Tools) -> None:
    (systemd.folder / "unit").write_text(unit("failed", 0))
    (systemd.folder / "on-restart").write_text("exit 1")
    with pytest.raises(ChangeFailed, match=r"docker.service did not start again") as caught:
        settle(RELOAD)
    assert "containerd: failed to load plugin" in caught.value.why


@pytest.mark.parametrize(("ends", "does"), [("active", "systemctl reload docker.service"), ("inactive", "")])
def test_starting_or_stopping_unit_is_waited_for(systemd: Tools, ends: str, does: str) -> None:
    begins = "activating" if ends == "active" else "deactivating"
    (systemd.folder / "unit").write_text(unit(begins, 7, sub="start"))
    (systemd.folder / "after-show").write_text(unit(ends, 7))
    ((_, skipped),) = settle(RELOAD)
    assert bool(skipped) is not bool(does)
    told = [call for call in systemd.calls if call.startswith("systemctl") and "show" not in call]
    assert told == ([does] if does else [])


def test_cdi_refresh_resets_the_start_limit(systemd: Tools) -> None:
    (systemd.folder / "unit").write_text(unit().replace("exit-code", "success"))
    systemd.add("nvidia-ctk", "echo nvidia.com/gpu=all; echo Found 1 CDI devices >&2")
    ((_, skipped),) = settle(Trigger("cdi"))
    assert skipped == ""
    assert [call for call in systemd.calls if "show" not in call] == [
        "systemctl reset-failed nvidia-cdi-refresh.service",
        "systemctl restart nvidia-cdi-refresh.service",
        "nvidia-ctk cdi list",
    ]


@pytest.mark.parametrize("why", ["Result=exec-condition", "ConditionResult=no"])
def test_unmet_unit_conditions_make_nvidia_ctk_generate_cdi(systemd: Tools, why: str) -> None:
    shown = (systemd.folder / "unit").read_text()
    name = why.partition("=")[0]
    kept = [line for line in shown.splitlines() if not line.startswith(name)]
    (systemd.folder / "unit").write_text("\n".join([*kept, why, ""]))
    systemd.add("nvidia-ctk", "echo nvidia.com/gpu=all")
    settle(Trigger("cdi"))
    assert "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml" in systemd.calls


def test_specification_is_written_where_the_refresh_unit_would_write_it(
    systemd: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "nvidia-cdi-refresh.env"
    settings.write_text('NVIDIA_CTK_CDI_OUTPUT_FILE_PATH="/etc/cdi/nvidia.yaml"\n')
    monkeypatch.setattr("gpunode.host.services.CDI_REFRESH_ENVIRONMENT_FILE", str(settings))
    (systemd.folder / "unit").unlink()
    systemd.add("nvidia-ctk", "echo nvidia.com/gpu=all")
    settle(Trigger("cdi"))
    assert "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml" in systemd.calls


def test_specification_is_looked_for_where_the_refresh_unit_writes_it(
    systemd: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvidia-ctk lists only /etc/cdi and /var/run/cdi unless it is told otherwise."""
    settings = tmp_path / "nvidia-cdi-refresh.env"
    settings.write_text("NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=/opt/cdi/nvidia.yaml\n")
    monkeypatch.setattr("gpunode.host.services.CDI_REFRESH_ENVIRONMENT_FILE", str(settings))
    (systemd.folder / "unit").write_text(unit().replace("exit-code", "success"))
    systemd.add("nvidia-ctk", 'case "$*" in *--spec-dir=/opt/cdi) echo nvidia.com/gpu=all;; esac')
    ((_, skipped),) = settle(Trigger("cdi"))
    assert skipped == ""


def test_missing_refresh_unit_makes_nvidia_ctk_generate_cdi(systemd: Tools) -> None:
    (systemd.folder / "unit").unlink()
    assert settle(Trigger("cdi")) == [(0.0, "nvidia-ctk is not installed")]
    systemd.add("nvidia-ctk", "echo nvidia.com/gpu=all")
    ((_, skipped),) = settle(Trigger("cdi"))
    assert skipped == ""
    assert "nvidia-ctk cdi generate --output=/var/run/cdi/nvidia.yaml" in systemd.calls


def test_cdi_specification_without_devices_fails(systemd: Tools) -> None:
    systemd.add("nvidia-ctk", "echo 'Found 0 CDI devices' >&2")
    with pytest.raises(ChangeFailed) as caught:
        settle(Trigger("cdi"))
    assert "wrote no CDI specification" in caught.value.what
    ((_, skipped),) = settle(Trigger("cdi", "if-possible"))
    assert "nothing required it" in skipped


def test_driver_error_from_nvidia_ctk_is_reported(systemd: Tools) -> None:
    (systemd.folder / "unit").unlink()
    systemd.add("nvidia-ctk", "echo 'failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND' >&2; exit 1")
    with pytest.raises(ChangeFailed) as caught:
        settle(Trigger("cdi"))
    assert "ERROR_LIBRARY_NOT_FOUND" in caught.value.why


def test_failed_daemon_reload_is_reported(systemd: Tools) -> None:
    settle(Trigger("daemon-reload"))
    (systemd.folder / "on-daemon-reload").write_text("echo 'Failed to reload daemon: Access denied' >&2; exit 1")
    with pytest.raises(ChangeFailed) as caught:
        settle(Trigger("daemon-reload"))
    assert "Access denied" in caught.value.why


def test_triggers_are_skipped_without_systemd(systemd: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "_SYSTEMD_RUN_FOLDER", tmp_path / "nothing")
    for trigger in (RESTART, RELOAD, Trigger("daemon-reload")):
        assert settle(trigger) == [(0.0, "systemd is not running here")]
    assert systemd.calls == []
    systemd.add("nvidia-ctk", "echo nvidia.com/gpu=all")
    settle(Trigger("cdi"))
    assert systemd.calls[0].startswith("nvidia-ctk cdi generate")


def test_cdi_is_not_generated_for_an_image(systemd: Tools, tmp_path: Path) -> None:
    settled = Services(Runner(str(tmp_path))).run_trigger(Trigger("cdi"))
    assert "after the image has booted" in settled.skipped
    assert systemd.calls == []


def test_unit_is_enabled_started_disabled_and_stopped(systemd: Tools) -> None:
    off, on = ServiceState(enabled=False, active=False), ServiceState(enabled=True, active=True)
    Services(Runner()).apply(ServiceChange("x.service", off, on))
    Services(Runner()).apply(ServiceChange("x.service", on, off))
    Services(Runner()).apply(ServiceChange("x.service", on, on))
    # Otherwise a unit at its start limit could not start, and a failed unit would mark the system as degraded.
    verbs = ("enable", "reset-failed", "start", "disable", "stop", "reset-failed")
    assert systemd.calls == [f"systemctl {verb} x.service" for verb in verbs]


def test_unit_that_cannot_be_enabled_or_started_is_reported(systemd: Tools) -> None:
    off = ServiceState(enabled=False, active=False)
    (systemd.folder / "on-enable").write_text("echo 'Unit x.service does not exist' >&2; exit 1")
    with pytest.raises(ChangeFailed, match="could not be enabled") as caught:
        Services(Runner()).apply(ServiceChange("x.service", off, ServiceState(enabled=True, active=False)))
    assert "does not exist" in caught.value.why
    (systemd.folder / "on-start").write_text("exit 1")
    with pytest.raises(ChangeFailed, match="did not start"):
        Services(Runner()).apply(ServiceChange("x.service", off, ServiceState(enabled=False, active=True)))


def put_driver(root: Path, installed: str, loaded: str = "") -> Services:
    if installed:
        library = root / f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{installed}"
        library.parent.mkdir(parents=True)
        library.write_text("")
    if loaded:
        version = root / "proc/driver/nvidia/version"
        version.parent.mkdir(parents=True)
        version.write_text(f"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {loaded}  Release Build\n")
    started = Services(Runner())
    started.root = root
    return started


@pytest.mark.parametrize(
    ("installed", "loaded", "state", "is_started", "skipped"),
    [
        ("595.91.07", "595.91.07", "inactive", True, ""),
        ("595.91.07", "", "failed", True, ""),
        ("595.91.07", "", "active", False, "nvidia-dcgm.service runs already"),
        ("595.91.07", "580.95.05", "inactive", False, "driver 580.95.05 stays loaded until the reboot; it starts"),
        ("", "580.95.05", "inactive", False, "no driver is installed; it starts with the next boot"),
    ],
)
def test_paused_service_starts_with_a_fitting_driver(
    systemd: Tools, tmp_path: Path, installed: str, loaded: str, state: str, is_started: bool, skipped: str
) -> None:
    (systemd.folder / "unit").write_text(f"{unit(state, sub='dead')}\nUnitFileState=enabled\n")
    (systemd.folder / "on-start").write_text(f"cat > $T/unit <<END\n{unit()}\nEND\n")
    done = put_driver(tmp_path / "root", installed, loaded).run_trigger(START)
    assert ("systemctl start nvidia-dcgm.service" in systemd.calls) is is_started
    assert done.skipped.startswith(skipped)
    assert bool(done.skipped) is bool(skipped)
