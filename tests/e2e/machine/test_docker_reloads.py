"""docker on a booted machine: reloaded if that suffices, restarted with consent, never left with a broken file.

dockerd 20.10, 26 and 28: Debian 12's and 13's own, and sid's unpacked over 13's.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from gpunode.facts import systemd
from tests.e2e.chroot.scenario import DIRECTORIES, Answer
from tests.e2e.lab.bases import Bases
from tests.e2e.lab.image import import_image
from tests.e2e.lab.leftovers import leftovers, marks
from tests.e2e.lab.machine import Machine
from tests.e2e.lab.toolkit import CALLS
from tests.e2e.machine.scenario import (
    DOCKER,
    DOCKER_CONFIG,
    Machines,
    ask,
    impatient,
    is_up,
    make_fussy,
    make_tame,
    put_programs,
    restore,
    setup,
    setup_ok,
    show,
    start_of,
)

pytestmark = pytest.mark.e2e

OPTIONS = "/etc/default/docker"


DROP_IN = "/etc/systemd/system/docker.service.d/lab.conf"


@pytest.fixture(
    scope="module",
    params=["bookworm", pytest.param("trixie", marks=pytest.mark.long), pytest.param("sid", marks=pytest.mark.long)],
)
def machine(request: pytest.FixtureRequest, bases: dict[str, Bases], machines: Machines) -> Iterator[Machine]:
    suite = "bookworm" if request.param == "bookworm" else "trixie"
    with machines.make(bases[suite].runtime) as node:
        machines.furnish(node, DIRECTORIES[suite])
        if request.param == "sid":
            put_programs(node, request.getfixturevalue("runtime_bases")("sid"))
        setup_ok(node, "docker")
        import_image(node)
        yield node
        left = marks(node)
    assert leftovers(left) == []


@pytest.fixture
def node(machine: Machine) -> Machine:
    """Return the machine with its driver, and with docker as before gpunode."""
    machine.path(OPTIONS).unlink(missing_ok=True)
    if machine.path(DROP_IN).exists():
        machine.path(DROP_IN).unlink()
        machine.run("systemctl", "daemon-reload")
    # It fails together with a docker that reached its start limit.
    machine.run("systemctl", "reset-failed", "docker.socket")
    restore(machine, DOCKER, DOCKER_CONFIG, None)
    return machine


@dataclass(frozen=True, slots=True)
class Training:
    """A container with a user's work."""

    node: Machine
    since: str

    def goes_on(self) -> bool:
        """True if it is the same process as at the beginning, and docker knows it."""
        return self.since == _state_of_training(self.node)


def _state_of_training(node: Machine) -> str:
    asked = "{{.State.Running}} {{.State.Pid}} {{.State.StartedAt}}"
    return node.finish("docker", "inspect", f"--format={asked}", "training").stdout


@contextmanager
def running(node: Machine) -> Iterator[Training]:
    """Run a container within the context."""
    node.run("docker", "run", "--detach", "--stop-timeout=1", "--name=training", "lab", "/hello", "wait")
    state = _state_of_training(node)
    assert state.startswith("true")
    yield Training(node, state)
    node.run("docker", "rm", "--force", "training")


@pytest.fixture
def training(node: Machine) -> Iterator[Training]:
    """Yield a container that has run since before the test."""
    with running(node) as one:
        yield one


def start_with(node: Machine, options: str) -> None:
    """Start dockerd with ``options`` on its command line."""
    node.write(OPTIONS, f'DOCKER_OPTS="{options}"\n')
    node.run("systemctl", "restart", DOCKER)


def give_up(node: Machine) -> None:
    """Let dockerd fail until its unit's start limit is reached."""
    for _ in range(8):
        node.finish("systemctl", "restart", DOCKER)
        if show(node, DOCKER, "ActiveState") == ["failed"]:
            return
    raise AssertionError("docker runs, though it should not start")


def configure(node: Machine, *options: str, verb: str = "configure") -> Answer:
    """Return the answer to ``gpunode ctk runtime configure`` or ``unconfigure`` for docker."""
    return ask(node, "ctk", "runtime", verb, "--runtime=docker", "--restart", *options)


def runtimes(node: Machine) -> tuple[set[str], str]:
    """Return the runtimes that the running daemon has, and its default."""
    told = json.loads(node.run("docker", "info", "--format", "{{json .}}").stdout)
    return set(told["Runtimes"]), told["DefaultRuntime"]


def test_docker_gets_the_runtime_without_a_restart(node: Machine, training: Training) -> None:
    before = start_of(node, DOCKER)

    done = setup_ok(node, "docker")

    assert [one["trigger"]["kind"] for one in done.result["triggers"]] == ["reload"]
    names, default = runtimes(node)
    assert "nvidia" in names
    assert default == "runc"
    assert setup_ok(node, "docker").envelope["changed"] is False
    assert start_of(node, DOCKER) == before
    said = node.run("docker", "run", "--rm", "--runtime=nvidia", "lab", "/hello").stdout
    assert said == "hello from a container\n"
    assert " create " in node.read(CALLS)
    assert training.goes_on()


def test_nvidia_becomes_the_default_runtime_without_a_restart(node: Machine, training: Training) -> None:
    before = start_of(node, DOCKER)

    setup_ok(node, "docker-default")

    assert runtimes(node)[1] == "nvidia"
    assert start_of(node, DOCKER) == before
    assert training.goes_on()


@pytest.mark.long
def test_removed_default_runtime_needs_a_docker_restart(node: Machine, training: Training) -> None:
    node.write(DOCKER_CONFIG, '{"log-level": "warn"}\n')
    assert configure(node, "--set-as-default").exit_code == 0
    assert runtimes(node)[1] == "nvidia"
    written = node.read(DOCKER_CONFIG)

    refused = configure(node, verb="unconfigure")

    assert refused.exit_code == 11
    assert "training" in refused.error
    assert node.read(DOCKER_CONFIG) == written
    assert training.goes_on()

    # The new file has no effect without a restart: this dockerd keeps a default that is no longer named.
    node.write(DOCKER_CONFIG, '{"log-level": "warn"}\n')
    node.run("systemctl", "reload", DOCKER)
    assert runtimes(node)[1] == "nvidia"
    node.write(DOCKER_CONFIG, written)

    assert configure(node, "--allow-disruption", verb="unconfigure").exit_code == 0
    assert node.read(DOCKER_CONFIG) == '{"log-level": "warn"}\n'
    names, default = runtimes(node)
    assert "nvidia" not in names
    assert default == "runc"


@pytest.mark.long
def test_conflict_with_a_dockerd_flag_is_refused_untouched(node: Machine) -> None:
    start_with(node, "--default-runtime=runc")
    with running(node) as training:
        before = start_of(node, DOCKER)

        for answer in (setup(node, "docker-default"), configure(node, "--set-as-default")):
            assert answer.exit_code == 3
            assert "default-runtime cannot be set here" in answer.error
            assert OPTIONS in answer.error
            assert not node.path(DOCKER_CONFIG).exists()

        # A runtime may be in the file in addition to those on the command line.
        setup_ok(node, "docker")
        assert "nvidia" in runtimes(node)[0]
        assert start_of(node, DOCKER) == before
        assert training.goes_on()


@pytest.mark.long
def test_conflict_with_a_feature_flag_is_refused_untouched(node: Machine) -> None:
    if "--feature" not in node.run("dockerd", "--help").stdout:
        pytest.skip("this dockerd has no --feature")
    start_with(node, "--feature=containerd-snapshotter=false")
    before = start_of(node, DOCKER)

    refused = configure(node, "--cdi.enabled")

    assert refused.exit_code == 3
    assert "features cannot be set here" in refused.error
    assert not node.path(DOCKER_CONFIG).exists()
    assert start_of(node, DOCKER) == before


@pytest.mark.long
def test_config_file_named_by_a_flag_is_written(node: Machine) -> None:
    node.write("/srv/docker.json", '{"log-level": "warn"}\n')
    start_with(node, "--config-file /srv/docker.json")
    before = start_of(node, DOCKER)

    setup_ok(node, "docker-default")

    assert not node.path(DOCKER_CONFIG).exists()
    assert '"log-level": "warn"' in node.read("/srv/docker.json")
    assert runtimes(node)[1] == "nvidia"
    assert start_of(node, DOCKER) == before
    node.path("/srv/docker.json").unlink()


@pytest.mark.long
def test_systemd_and_gpunode_agree_on_a_command_line(node: Machine) -> None:
    node.write(OPTIONS, "# DOCKER_OPTS=no\nDOCKER_OPTS='--label=\"k=a b\"  --debug=false'\n")
    lines = (
        "[Service]",
        "Environment=LAB=x 'OTHER=y z'",
        "ExecStart=",
        "# a comment",
        "ExecStart=/usr/sbin/dockerd -H fd:// \\",
        "  $DOCKER_OPTS --label=lab=${LAB}:${OTHER} '--label=q=e w' $NOTHING",
    )
    node.write(DROP_IN, "\n".join(lines) + "\n")
    node.run("systemctl", "daemon-reload")
    node.run("systemctl", "restart", DOCKER)

    files: dict[str, bytes] = {}
    for _ in ("the unit", "its drop-ins", "its environment"):
        for place in systemd.unit_source_patterns(files, DOCKER):
            folder, _, name = place.rpartition("/")
            found = node.path(folder).glob(name) if node.path(folder).is_dir() else ()
            files |= {f"{folder}/{path.name}": path.read_bytes() for path in found if path.is_file()}
    read = systemd.find_start_command(files, DOCKER)

    assert read is not None
    ran = node.path(f"/proc/{start_of(node, DOCKER).pid}/cmdline").read_bytes().decode().rstrip("\0").split("\0")
    assert list(read.argv) == ran


def test_file_that_would_prevent_the_next_start_is_put_back(node: Machine) -> None:
    # dockerd continues if it cannot use the file on SIGHUP, and refuses the same file at its next start.
    start_with(node, "--default-runtime=runc")
    # No file contains its original configuration any more.
    node.path(OPTIONS).unlink()
    before = start_of(node, DOCKER)

    done = setup(node, "docker-default")

    assert done.exit_code == 6
    assert "specified both as a flag and in the configuration file: default-runtime" in done.error
    assert not node.path(DOCKER_CONFIG).exists()
    assert start_of(node, DOCKER) == before
    node.run("systemctl", "restart", DOCKER)
    assert is_up(node, DOCKER)


@pytest.mark.long
def test_rejected_reload_fails_until_the_file_is_accepted(node: Machine) -> None:
    setup_ok(node, "docker")
    typo = node.read(DOCKER_CONFIG).replace("{", '{"log-drvier": "json-file",', 1)
    node.write(DOCKER_CONFIG, typo)

    for _ in range(2):
        assert ask(node, "plan", "--check", "/root/docker.toml").exit_code == 4
        rejected = setup(node, "docker")
        assert rejected.exit_code == 6
        assert "log-drvier" in rejected.error
        assert DOCKER_CONFIG in rejected.error
        assert node.read(DOCKER_CONFIG) == typo

    node.write(DOCKER_CONFIG, typo.replace('"log-drvier": "json-file",', ""))
    setup_ok(node, "docker")
    assert ask(node, "plan", "--check", "/root/docker.toml").exit_code == 0


@pytest.mark.long
def test_rejected_change_beside_an_old_error_is_put_back(node: Machine) -> None:
    typo = '{"log-drvier": "json-file"}\n'
    node.write(DOCKER_CONFIG, typo)

    rejected = setup(node, "docker")

    assert rejected.exit_code == 6
    assert "log-drvier" in rejected.error
    assert node.read(DOCKER_CONFIG) == typo


@pytest.mark.long
def test_byte_order_mark_is_refused_where_docker_rejects_it(node: Machine) -> None:
    marked = "\ufeff{}\n"
    node.write(DOCKER_CONFIG, marked)
    takes_it = int(node.run("docker", "version", "--format={{.Server.Version}}").stdout.split(".")[0]) >= 23

    for answer in (setup(node, "docker"), configure(node)):
        if takes_it:
            assert answer.exit_code == 0, answer.error
            assert node.read(DOCKER_CONFIG).startswith("\ufeff")
        else:
            assert answer.exit_code == 3
            assert "byte order mark" in answer.error
            assert node.read(DOCKER_CONFIG) == marked


def test_restart_that_stops_containers_needs_consent(node: Machine, training: Training) -> None:
    before = start_of(node, DOCKER)

    refused = setup(node, "docker-cdi")

    assert refused.exit_code == 11
    assert "training" in refused.error
    assert start_of(node, DOCKER) == before
    assert not node.path(DOCKER_CONFIG).exists()
    assert training.goes_on()

    setup_ok(node, "docker-cdi", "--allow-disruption")
    assert start_of(node, DOCKER).starts == before.starts + 1
    assert "nvidia" in runtimes(node)[0]


@pytest.mark.long
def test_cdi_needs_a_restart_only_where_it_is_off_by_default(node: Machine, training: Training) -> None:
    version = node.run("docker", "version", "--format={{.Server.Version}}").stdout
    before = start_of(node, DOCKER)

    done = configure(node, "--cdi.enabled")

    if int(version.split(".")[0]) >= 28:
        assert done.exit_code == 0
        assert '"cdi": true' in node.read(DOCKER_CONFIG)
    else:
        assert done.exit_code == 11
        assert not node.path(DOCKER_CONFIG).exists()
    assert start_of(node, DOCKER) == before
    assert training.goes_on()


@pytest.mark.long
@pytest.mark.parametrize("how", ["in the file", "on the command line"])
def test_containers_with_live_restore_need_no_consent(node: Machine, how: str) -> None:
    if how == "in the file":
        restore(node, DOCKER, DOCKER_CONFIG, '{"live-restore": true}\n')
    else:
        start_with(node, "--live-restore")
    with running(node) as training:
        before = start_of(node, DOCKER)

        setup_ok(node, "docker-cdi")

        assert start_of(node, DOCKER).starts == before.starts + 1
        assert "nvidia" in runtimes(node)[0]
        assert training.goes_on()


@pytest.mark.long
def test_hanging_docker_gets_its_old_configuration_back(node: Machine) -> None:
    # As in docker's own unit: by default systemd would wait forever.
    make_fussy(node, DOCKER, "hangs", "TimeoutStartSec=0")
    node.run("systemctl", "restart", DOCKER)

    done = setup(node, "docker-cdi", program=impatient(node))

    assert done.exit_code == 6
    assert "no answer within" in done.error
    assert not node.path(DOCKER_CONFIG).exists()
    assert is_up(node, DOCKER)


@pytest.mark.long
def test_docker_failed_for_a_missing_runtime_is_started(node: Machine) -> None:
    # A user made nvidia the default but did not register it.
    node.write(DOCKER_CONFIG, '{"default-runtime": "nvidia"}\n')
    give_up(node)

    done = configure(node, "--set-as-default")

    assert done.exit_code == 0, done.error
    assert [one["had_failed"] for one in done.result["triggers"]] == [True]
    assert runtimes(node)[1] == "nvidia"
    assert ask(node, "ctk", "runtime", "check", "--set-as-default").exit_code == 0


@pytest.mark.long
def test_failed_docker_is_started_although_its_file_is_unchanged(node: Machine) -> None:
    assert configure(node).exit_code == 0
    written = node.read(DOCKER_CONFIG)
    make_fussy(node, DOCKER, "refuses")
    give_up(node)
    assert ask(node, "ctk", "runtime", "check").exit_code == 7

    refused = configure(node)
    assert refused.exit_code == 6
    assert "lab daemon: refuses because of nvidia" in refused.error
    assert node.read(DOCKER_CONFIG) == written

    make_tame(node, DOCKER)
    assert configure(node).exit_code == 0
    assert is_up(node, DOCKER)
    assert node.read(DOCKER_CONFIG) == written


@pytest.mark.long
def test_stopped_docker_stays_stopped_and_reads_the_file_later(node: Machine) -> None:
    node.run("systemctl", "stop", "docker.socket", DOCKER)

    done = configure(node)

    assert done.exit_code == 0, done.error
    assert [one["skipped"] for one in done.result["triggers"]] == [
        "docker.service is not running; it reads its configuration when it starts"
    ]
    assert show(node, DOCKER, "ActiveState") == ["inactive"]
    assert "nvidia" in node.read(DOCKER_CONFIG)
    node.run("systemctl", "start", "docker.socket", DOCKER)
    assert "nvidia" in runtimes(node)[0]


@pytest.mark.long
def test_setup_starts_a_docker_beyond_its_start_limit(node: Machine) -> None:
    node.write(DOCKER_CONFIG, '{"default-runtime": "nvidia"}\n')
    for _ in range(4):
        give_up(node)

    setup_ok(node, "docker-default")

    assert runtimes(node)[1] == "nvidia"


def test_verify_asks_the_daemon_itself(node: Machine) -> None:
    setup_ok(node, "docker")
    assert ask(node, "verify", "/root/docker.toml").exit_code == 0
    # The file has it, the daemon does not.
    written = node.read(DOCKER_CONFIG)
    restore(node, DOCKER, DOCKER_CONFIG, None)
    node.write(DOCKER_CONFIG, written)

    lost = ask(node, "verify", "/root/docker.toml")

    assert lost.exit_code == 7
    failed = {check["id"] for check in lost.result["checks"] if check["status"] == "failed"}
    assert failed == {"configuration", "runtime"}


@pytest.mark.long
def test_docker_reads_a_changed_file_without_a_restart(node: Machine) -> None:
    setup_ok(node, "docker")
    before = start_of(node, DOCKER)
    node.write(DOCKER_CONFIG, node.read(DOCKER_CONFIG) + "\n")

    found = ask(node, "plan", "/root/docker.toml", "--check")
    assert found.exit_code == 4
    done = setup_ok(node, "docker")

    assert [one["trigger"]["kind"] for one in done.result["triggers"]] == ["reload"]
    assert start_of(node, DOCKER) == before
    assert ask(node, "plan", "/root/docker.toml", "--check").exit_code == 0


@pytest.mark.long
@pytest.mark.parametrize("undo", [("rollback", "--yes"), ("ctk", "runtime", "unconfigure", "--runtime=docker")])
def test_undo_tells_that_dockerd_knows_the_runtime_until_it_restarts(node: Machine, undo: tuple[str, ...]) -> None:
    assert configure(node).exit_code == 0

    done = ask(node, *undo)

    assert any("keeps nvidia until its next restart" in note for note in done.envelope["notes"])
    node.finish("systemctl", "reload", DOCKER)
    assert "nvidia" in runtimes(node)[0]
    node.run("systemctl", "restart", DOCKER)
    assert "nvidia" not in runtimes(node)[0]


@pytest.mark.long
def test_containers_survive_a_reload_and_are_named_before_a_restart(node: Machine) -> None:
    before = start_of(node, DOCKER)
    node.run("docker", "run", "--detach", "--stop-timeout=1", "--name=training", "lab", "/hello", "wait")
    try:
        done = ask(node, "ctk", "runtime", "configure", "--set-as-default", "--restart")
        assert done.exit_code == 0, done.error
        assert [one["trigger"]["kind"] for one in done.result["triggers"]] == ["reload"]
        assert runtimes(node)[1] == "nvidia"
        assert ask(node, "ctk", "runtime", "check", "--set-as-default").exit_code == 0

        # dockerd would keep a default that its file no longer names, so a reload does not undo a reload.
        drain = ask(node, "rollback", "--yes")
        assert drain.exit_code == 11
        assert "training" in drain.error
        assert node.run("docker", "ps", "--format={{.Names}}").stdout == "training\n"
        assert start_of(node, DOCKER) == before
        assert ask(node, "rollback", "--yes", "--allow-disruption").exit_code == 0
        assert not node.path(DOCKER_CONFIG).exists()
        assert runtimes(node)[1] == "runc"
    finally:
        node.run("docker", "rm", "--force", "training")
