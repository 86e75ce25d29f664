"""containerd as its unit starts it: the configuration named there counts."""

from __future__ import annotations

import pytest

from gpunode.change import FileState
from gpunode.errors import Refused
from gpunode.facts.model import Unknown
from gpunode.runtimes import DesiredConfig, apply_edits, find_runtime
from gpunode.runtimes.containerd_files import CONFIG, find_config_argument, is_pattern, match_pattern
from gpunode.runtimes.file_states import contents_of_states, gather_states, states_from_facts
from gpunode.runtimes.installations import resolve_runtime
from tests.unit.runtimes.unconfigured import unconfigure
from tests.unit.steps.machines import machine

ROW = find_runtime("containerd")
ETC = "/etc/systemd/system/containerd.service"
LIB = "/lib/systemd/system/containerd.service"
DROP_IN = f"{ETC}.d/10-own.conf"
OWN = "/srv/containerd.toml"
USUAL = b"[Service]\nExecStart=/usr/bin/containerd\n"
POINTED = b"[Service]\nExecStart=\nExecStart=/usr/bin/containerd --config /srv/containerd.toml\n"
ROOT = b"version = 2\n"


def node(**more: bytes) -> dict[str, bytes]:
    """Return a node whose unit's drop-in names another file than the usual one, which also exists."""
    return {LIB: USUAL, DROP_IN: POINTED, OWN: ROOT, CONFIG: ROOT, **more}


def read_on(disk: dict[str, bytes], desired: DesiredConfig) -> dict[str, bytes]:
    def find(place: str) -> dict[str, FileState]:
        paths = match_pattern(place, dict.fromkeys(disk, b"")) if is_pattern(place) else [place]
        return {path: FileState(disk[path]) for path in paths if path in disk}

    return dict(contents_of_states(gather_states(ROW, desired, find)))


@pytest.mark.parametrize(
    ("line", "config"),
    [
        ("/usr/bin/containerd", ""),
        ("/usr/bin/containerd --config /a.toml", "/a.toml"),
        ("/usr/bin/containerd -c /a.toml", "/a.toml"),
        ("/usr/bin/containerd -config=/a.toml --log-level debug", "/a.toml"),
        ("/usr/bin/containerd --log-level debug -c=/a.toml", "/a.toml"),
        ("/usr/bin/containerd --config /a.toml --config /b.toml", "/b.toml"),
        ("/usr/bin/containerd --root /srv/containerd --config /a.toml", "/a.toml"),
        ("/usr/bin/containerd --log-level -c", ""),
        ("/usr/bin/containerd --config", ""),
        ("/usr/bin/containerd --config etc/a.toml", "/etc/a.toml"),
        ("/usr/bin/env PATH=/opt/containerd /opt/bin/containerd --config /a.toml", "/a.toml"),
        ("/bin/sh -c /opt/start.sh", ""),
    ],
)
def test_last_config_option_of_the_command_line_wins(line: str, config: str) -> None:
    assert find_config_argument(line.split()) == config


def test_config_option_behind_a_shell_is_found() -> None:
    assert find_config_argument(["/bin/sh", "-c", "exec containerd -c /a.toml"]) == "/a.toml"


def test_file_named_by_the_unit_is_edited_and_restored() -> None:
    disk = node()
    files = read_on(disk, DesiredConfig())
    edited = ROW.configure(files, DesiredConfig())
    assert [edit.path for edit in edited.edits] == [OWN]
    assert edited.how.endswith(f"; {DROP_IN} makes containerd read {OWN} instead of {CONFIG}")
    after = dict(apply_edits(files, edited))
    assert "nvidia" in ROW.inspect(after, DesiredConfig()).handlers
    assert not ROW.configure(after, DesiredConfig()).edits
    (back,) = unconfigure(ROW, after, DesiredConfig(), edited.edits).edits
    assert (back.path, back.after) == (OWN, ROOT)
    assert [edit.path for edit in unconfigure(ROW, after, DesiredConfig(), ()).edits] == [OWN]


def test_config_option_overrides_the_file_of_the_unit() -> None:
    files = read_on(node(), DesiredConfig())
    assert ROW.adapt_to_node(ROW, files, DesiredConfig()).config == OWN
    assert ROW.adapt_to_node(ROW, files, DesiredConfig(config=CONFIG)) is ROW
    assert ROW.adapt_to_node(ROW, {LIB: USUAL}, DesiredConfig()) is ROW
    (edit,) = ROW.configure(read_on(node(), DesiredConfig(config=CONFIG)), DesiredConfig(config=CONFIG)).edits
    assert edit.path == CONFIG


def test_environment_variable_of_the_unit_is_expanded() -> None:
    unit = b"[Service]\nEnvironment=TOML=/a.toml\nExecStart=/usr/bin/containerd --config ${TOML}\n"
    own = b"[Service]\nEnvironment=TOML=/srv/containerd.toml\n"
    files = read_on(node(**{LIB: unit, DROP_IN: own}), DesiredConfig())
    assert ROW.adapt_to_node(ROW, files, DesiredConfig()).config == OWN


def test_unit_file_is_not_parsed_as_configuration() -> None:
    unit = b'imports = ["/etc/shadow"]\n'
    assert "/etc/shadow" not in ROW.list_read_paths({LIB: unit, CONFIG: ROOT}, DesiredConfig())


def test_file_replaced_by_updates_is_refused() -> None:
    vendors = "/usr/share/containerd/config.toml"
    unit = f"[Service]\nExecStart=/usr/bin/containerd --config {vendors}\n".encode()
    files = {LIB: unit, vendors: ROOT}
    with pytest.raises(Refused) as caught:
        ROW.configure(files, DesiredConfig())
    assert LIB in caught.value.what
    assert CONFIG in caught.value.hint
    (edit,) = ROW.configure(files, DesiredConfig(config=vendors)).edits
    assert edit.path == vendors


def test_few_paths_are_read_without_containerd() -> None:
    assert not [place for place in ROW.list_read_paths({}, DesiredConfig()) if "service.d" in place]


def test_setup_edits_the_file_named_by_the_unit() -> None:
    facts = machine(files=node())
    row = resolve_runtime(ROW, facts).runtime
    assert row.config == OWN
    assert {LIB, DROP_IN, OWN} < set(contents_of_states(states_from_facts(facts, row, DesiredConfig())))


def test_masked_unit_names_no_file() -> None:
    facts = machine(files=node())
    facts.files[ETC] = Unknown("it is a character device", f"file:{ETC}")  # type: ignore[index]  # a dict here
    assert resolve_runtime(ROW, facts).runtime is ROW
