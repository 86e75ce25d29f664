"""docker as installed and started: the file that counts, and settings already on its command line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from gpunode.change import FileState
from gpunode.errors import Refused
from gpunode.facts.evidence import Capture, Probe
from gpunode.facts.model import Unknown
from gpunode.runtimes import DesiredConfig, Edit, apply_edits, find_runtime
from gpunode.runtimes.containerd_files import is_pattern, match_pattern
from gpunode.runtimes.docker import applies_on_reload, configure, inspect, keeps_containers
from gpunode.runtimes.docker_nodes import adapt_to_node
from gpunode.runtimes.file_states import contents_of_states, gather_states, probe_states, states_from_facts
from tests.unit.runtimes.unconfigured import unconfigure
from tests.unit.steps.machines import machine

CONFIG = "/etc/docker/daemon.json"
UNIT = "/lib/systemd/system/docker.service"
DROP_IN = "/etc/systemd/system/docker.service.d/gpu.conf"
DEFAULTS = "/etc/default/docker"
BINARY = "/usr/bin/nvidia-container-runtime"
SNAP_UNIT = "/etc/systemd/system/snap.docker.dockerd.service"
SNAP = "/var/snap/docker/current/config/daemon.json"
DESKTOP_UNIT = "/usr/lib/systemd/user/docker-desktop.service"
HOME_CONFIG = "/home/ann/.config/docker/daemon.json"
HOME_UNIT = "/home/ann/.config/systemd/user/docker.service"
ROW = find_runtime("docker")


def service(line: str) -> bytes:
    return f"[Service]\nExecStart=\nExecStart={line}\n".encode()


def engine(flags: str = "", **more: bytes) -> dict[str, bytes]:
    """Return Debian's docker, with ``flags`` in its defaults."""
    defaults = f'DOCKER_OPTS="{flags}"\n'.encode()
    unit = b"[Service]\nEnvironmentFile=-/etc/default/docker\nExecStart=/usr/sbin/dockerd -H fd:// $DOCKER_OPTS\n"
    return {UNIT: unit, DEFAULTS: defaults, **more}


def with_config(files: dict[str, bytes], document: Any, path: str = CONFIG) -> dict[str, bytes]:
    return {**files, path: json.dumps(document).encode()}


def configure_one_file(files: dict[str, bytes], desired: DesiredConfig) -> tuple[str, Any]:
    """Return path and content of the only edited file."""
    (edit,) = configure(files, desired).edits
    assert edit.after is not None
    return edit.path, json.loads(edit.after)


def test_all_relevant_docker_files_are_read_in_few_rounds() -> None:
    disk = {
        **engine("--debug"),
        DROP_IN: service("/usr/bin/dockerd --config-file=/srv/docker.json $DOCKER_OPTS"),
        "/srv/docker.json": b"{}",
        CONFIG: b"{}",
        "/etc/passwd": b"",
    }

    def find(place: str) -> dict[str, FileState]:
        paths = match_pattern(place, dict.fromkeys(disk, b"")) if is_pattern(place) else [place]
        return {path: FileState(disk[path]) for path in paths if path in disk}

    files = contents_of_states(gather_states(ROW, DesiredConfig(), find))
    assert files == {path: data for path, data in disk.items() if path != "/etc/passwd"}
    assert adapt_to_node(ROW, files, DesiredConfig()).config == "/srv/docker.json"


def test_masked_unit_is_treated_as_empty() -> None:
    masked = "/etc/systemd/system/docker.service"

    def look(probe: Probe) -> Capture:
        if probe.path == masked:
            return Capture(probe.source, "failed", error="it is a character device")
        if probe.path == CONFIG:
            return Capture(probe.source, "ok", b"{}")
        return Capture(probe.source, "absent")

    assert contents_of_states(probe_states(look, ROW, DesiredConfig())) == {masked: b"", CONFIG: b"{}"}
    node = machine(files={CONFIG: b"{}"})
    unknown = Unknown("it is a character device", f"file:{masked}")
    facts = replace(node, files={**node.files, masked: unknown})
    assert contents_of_states(states_from_facts(facts, ROW, DesiredConfig())) == {masked: b"", CONFIG: b"{}"}


def test_file_named_by_the_config_file_flag_is_edited() -> None:
    files = with_config(engine("--config-file /srv/docker.json"), {"debug": True})
    path, document = configure_one_file(files, DesiredConfig(default=True))
    assert path == "/srv/docker.json"
    assert document["default-runtime"] == "nvidia"
    assert (adapt_to_node(ROW, files, DesiredConfig()).config, adapt_to_node(ROW, files, DesiredConfig()).unit) == (
        path,
        "docker.service",
    )
    assert adapt_to_node(ROW, engine(), DesiredConfig()) is ROW


@pytest.mark.parametrize("content", [None, b"", b'{"debug": true}\n', b'\xef\xbb\xbf\n{"debug": true}\n'])
def test_file_with_another_ending_than_json_is_written_as_json(content: bytes | None) -> None:
    path = "/srv/dockerd.conf"
    files = engine(f"--config-file={path}", **({} if content is None else {path: content}))
    edited = configure(files, DesiredConfig())
    written = apply_edits(files, edited)
    assert json.loads(written[path].decode("utf-8-sig"))["runtimes"]["nvidia"]["path"] == DesiredConfig().binary
    theirs = {**written, path: written[path].replace(b"\n", b" \n")}
    removed = unconfigure("docker", theirs, DesiredConfig(), edited.edits)
    assert not inspect(apply_edits(theirs, removed), DesiredConfig()).handlers


def test_unread_file_is_edited_if_named() -> None:
    files = with_config(engine("--default-runtime=runc"), {}, "/tmp/new.json")
    assert configure_one_file(files, DesiredConfig(config="/tmp/new.json", default=True))[0] == "/tmp/new.json"
    with pytest.raises(Refused):
        configure(files, DesiredConfig(config=CONFIG, default=True))


def test_flags_of_dockerd_count_as_configuration() -> None:
    files = engine(f"--add-runtime=nvidia={BINARY} --default-runtime=nvidia --feature=cdi=true")
    desired = DesiredConfig(default=True, enable_cdi=True)
    assert inspect(files, desired).handlers == {"nvidia": BINARY}
    assert (inspect(files, desired).default, inspect(files, desired).cdi) == ("nvidia", True)
    assert configure(files, desired).edits == configure(files, replace(desired, exact=True)).edits == ()


def test_runtime_in_the_file_overrides_one_in_the_flags() -> None:
    files = with_config(engine("--add-runtime=nvidia=/old"), {"runtimes": {"nvidia": {"path": BINARY}}})
    assert inspect(files, DesiredConfig()).handlers == {"nvidia": BINARY}
    assert configure(files, DesiredConfig()).edits == ()


@pytest.mark.parametrize(
    ("flags", "desired", "directive", "flag"),
    [
        ("--default-runtime=runc", DesiredConfig(default=True), "default-runtime", "--default-runtime"),
        ("--default-runtime runc", DesiredConfig(default=True, exact=True), "default-runtime", "--default-runtime"),
        ("--feature=containerd-snapshotter", DesiredConfig(enable_cdi=True), "features", "--feature"),
        ("--feature=cdi=false", DesiredConfig(enable_cdi=True), "features", "--feature"),
    ],
)
def test_directive_conflicting_with_a_flag_is_refused(
    flags: str, desired: DesiredConfig, directive: str, flag: str
) -> None:
    with pytest.raises(Refused) as refused:
        configure(engine(flags), desired)
    assert f"{CONFIG}: {directive} cannot be set here" in refused.value.what
    assert flag in refused.value.why
    assert DEFAULTS in refused.value.why
    assert "systemctl restart docker.service" in refused.value.hint
    assert configure(engine(flags), DesiredConfig()).edits  # the runtime alone may be in the file


def test_conflicting_flag_is_located_in_its_drop_in() -> None:
    files = {**engine(), DROP_IN: service("/usr/bin/dockerd --default-runtime=runc")}
    with pytest.raises(Refused) as refused:
        configure(files, DesiredConfig(default=True))
    assert f"({DROP_IN})" in refused.value.why


def test_existing_conflict_with_a_flag_is_noted() -> None:
    files = with_config(engine(), {"hosts": ["fd://"]})
    assert configure(files, DesiredConfig()).notes == (
        f"dockerd will not start with {CONFIG} as it is: hosts (--host) is on its command line too",
    )


def test_drop_in_for_docker_is_refused() -> None:
    for desired in (DesiredConfig(mode="drop-in"), DesiredConfig(drop_in="/etc/docker/daemon.d/nv.json")):
        with pytest.raises(Refused, match="reads no drop-ins"):
            configure({}, desired)


@pytest.mark.parametrize("handler", ["runc", "", "nv\udcff"])
def test_handler_name_that_dockerd_rejects_is_refused(handler: str) -> None:
    with pytest.raises(Refused):
        configure({}, DesiredConfig(handler=handler))


def test_docker_without_cdi_support_is_noted() -> None:
    assert configure({}, DesiredConfig(enable_cdi=True, version=(20, 10, 24))).notes
    assert not configure({}, DesiredConfig(enable_cdi=True, version=(25, 0))).notes


def test_docker_snap_has_its_own_file_and_unit() -> None:
    bare = DesiredConfig(binary="nvidia-container-runtime")
    files = with_config({SNAP_UNIT: service("/usr/bin/snap run docker.dockerd")}, {"log-level": "error"}, SNAP)
    assert configure_one_file(files, bare)[0] == SNAP
    assert adapt_to_node(ROW, files, bare).unit == "snap.docker.dockerd.service"
    masked = {"/etc/systemd/system/docker.service": b"", **engine()}
    assert configure_one_file({**files, **masked}, bare)[0] == SNAP
    del files[SNAP_UNIT]
    assert configure_one_file(files, bare)[0] == SNAP
    assert configure({**files, CONFIG: b"{}"}, bare).edits[0].path == CONFIG
    both = {**engine(), **files, SNAP_UNIT: b""}
    edited = configure(both, DesiredConfig())
    assert edited.edits[0].path == CONFIG
    assert any("also installed as a snap" in note for note in edited.notes)
    assert configure_one_file(both, replace(bare, config=SNAP))[0] == SNAP
    unread = configure({SNAP_UNIT: b"", CONFIG: b"{}"}, bare)
    assert unread.edits[0].path == SNAP
    assert any("does not read /etc/docker/daemon.json" in note for note in unread.notes)


def test_runtime_outside_the_snap_is_refused_for_the_snap() -> None:
    files = {SNAP_UNIT: b""}
    with pytest.raises(Refused) as refused:
        configure(files, DesiredConfig())
    assert "snap restart docker" in refused.value.hint
    assert configure(files, DesiredConfig(binary="/snap/docker/current/usr/bin/nvidia-container-runtime")).edits


def test_docker_desktop_is_refused_unless_an_engine_is_installed() -> None:
    with pytest.raises(Refused) as refused:
        configure({DESKTOP_UNIT: b""}, DesiredConfig())
    assert "Docker Desktop" in refused.value.what
    assert "docker context use default" in refused.value.hint
    with pytest.raises(Refused, match="Docker Desktop's"):
        configure(engine(), DesiredConfig(config="/home/ann/.docker/daemon.json"))
    edited = configure({DESKTOP_UNIT: b"", **engine()}, DesiredConfig())
    assert any("desktop-linux" in note for note in edited.notes)


def test_rootless_docker_is_recognized_by_its_file() -> None:
    desired = DesiredConfig(config=HOME_CONFIG, default=True)
    files = {**engine("--default-runtime=runc"), HOME_UNIT: service("/usr/bin/dockerd-rootless.sh")}
    edited = configure(files, desired)
    assert [(edit.path, edit.ownership_template) for edit in edited.edits] == [(HOME_CONFIG, HOME_UNIT)]
    assert "systemctl --user restart docker" in edited.notes[0]
    assert "no-cgroups" in edited.notes[1]
    assert adapt_to_node(ROW, files, desired).unit == ""
    assert {HOME_UNIT, "/etc/nvidia-container-runtime/config.toml"} <= set(ROW.list_read_paths(files, desired))
    files["/etc/nvidia-container-runtime/config.toml"] = b"[nvidia-container-cli]\nno-cgroups = true\n"
    assert len(configure(files, desired).notes) == 1
    files["/etc/nvidia-container-runtime/config.toml"] = b"nvidia-container-cli = 1\n["
    assert len(configure(files, desired).notes) == 2
    files[HOME_UNIT] = service("/usr/bin/dockerd-rootless.sh --default-runtime=runc")
    with pytest.raises(Refused):
        configure(files, desired)


@pytest.mark.parametrize(
    ("before", "after", "version", "takes"),
    [
        ({}, {"runtimes": {"nvidia": {"path": "/n"}}, "default-runtime": "nvidia"}, None, True),
        ({"default-runtime": "nvidia"}, {"default-runtime": "runc"}, None, True),
        ({"default-runtime": "nvidia"}, {}, None, False),  # SIGHUP leaves the former default
        ({"default-runtime": "runc"}, {}, None, True),
        ({}, {"features": {"cdi": True}}, None, False),
        ({}, {"features": {"cdi": True}}, (26, 1), False),
        ({}, {"features": {"cdi": True}}, (28, 5, 2), True),  # it is on there
        ({}, {"features": {"cdi": False}}, (28, 5, 2), False),
        ({"features": {"cdi": True}}, {"features": {"cdi": True, "buildkit": True}}, None, True),
    ],
)
def test_change_is_applied_by_a_reload_where_supported(
    before: Any, after: Any, version: tuple[int, ...] | None, takes: bool
) -> None:
    desired = DesiredConfig(version=version)
    assert applies_on_reload(with_config({}, before), with_config({}, after), desired) is takes


def test_live_restore_is_read_from_file_and_flags() -> None:
    assert not keeps_containers({}, DesiredConfig())
    assert keeps_containers(with_config({}, {"live-restore": True}), DesiredConfig())
    assert not keeps_containers(with_config({}, {"live-restore": False}), DesiredConfig())
    assert keeps_containers(engine("--live-restore"), DesiredConfig())
    assert not keeps_containers(engine("--live-restore=false"), DesiredConfig())


@pytest.mark.parametrize("exact", [False, True], ids=["setup", "ctk"])
@pytest.mark.parametrize("path", ["nvidia-container-runtime", BINARY])
@pytest.mark.parametrize("binary", ["nvidia-container-runtime", BINARY])
def test_equivalent_entry_is_not_rewritten(path: str, binary: str, exact: bool) -> None:
    """The package nvidia-docker2 wrote the bare name and runtimeArgs; dockerd finds the name in its PATH."""
    files = with_config({}, {"runtimes": {"nvidia": {"path": path, "runtimeArgs": []}, "kata": {"path": "/k"}}})
    assert configure(files, DesiredConfig(binary=binary, exact=exact)).edits == ()


@pytest.mark.parametrize("exact", [False, True], ids=["setup", "ctk"])
def test_entry_with_another_binary_keeps_its_arguments(exact: bool) -> None:
    entry = {"path": "/opt/old", "runtimeArgs": ["--log", "/var/log/x"]}
    document = configure_one_file(with_config({}, {"runtimes": {"nvidia": entry}}), DesiredConfig(exact=exact))[1]
    assert document["runtimes"] == {"nvidia": {**entry, "path": BINARY}}


def test_runtime_path_key_is_matched_in_any_case() -> None:
    files = with_config({}, {"runtimes": {"nvidia": {"path": "/old", "Path": BINARY}}})
    assert inspect(files, DesiredConfig()).handlers == {"nvidia": BINARY}


def test_new_daemon_json_belongs_to_root() -> None:
    assert [edit.ownership_template for edit in configure({}, DesiredConfig()).edits] == [""]
    assert configure({}, DesiredConfig()).edits[0] == Edit(CONFIG, None, configure({}, DesiredConfig()).edits[0].after)
