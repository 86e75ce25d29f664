"""crio.conf and crio.conf.d: read as CRI-O merges them, edited where it takes effect, and undone."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpunode import runtimes
from gpunode.errors import Refused
from gpunode.runtimes import ConfigEdit, DesiredConfig, apply_edits, crio
from gpunode.runtimes.model import CRIO_CONFIG, CRIO_DROP_IN, CRIO_FOLDER
from tests.unit.runtimes.unconfigured import unconfigure

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CONF, DROP_IN, PACKAGED = CRIO_CONFIG, CRIO_DROP_IN, "/etc/crio/crio.conf.d/10-crio.conf"
BINARY = "/usr/bin/nvidia-container-runtime"
# As the CRI-O project's packages ship it.
TEN = b"""\
[crio.image]
signature_policy = "/etc/crio/policy.json"

[crio.runtime]
default_runtime = "crun"

[crio.runtime.runtimes.crun]
runtime_path = "/usr/libexec/crio/crun"
runtime_root = "/run/crun"
monitor_path = "/usr/libexec/crio/conmon"
allowed_annotations = [
    "io.containers.trace-syscall",
]

[crio.runtime.runtimes.runc]
runtime_path = "/usr/libexec/crio/runc"
runtime_root = "/run/runc"
monitor_path = "/usr/libexec/crio/conmon"
"""
OF_CRUN = {
    "runtime_path": BINARY,
    "runtime_type": "oci",
    "runtime_root": "/run/crun",
    "monitor_path": "/usr/libexec/crio/conmon",
    "allowed_annotations": ["io.containers.trace-syscall"],
}
BARE = {"runtime_path": BINARY, "runtime_type": "oci"}
DEFAULT = DesiredConfig(default=True)
CTK = DesiredConfig(exact=True)


def configure(files: dict[str, bytes], desired: DesiredConfig = DesiredConfig()) -> dict[str, bytes]:  # noqa: B008 - frozen
    """Return the files after configure; assert that a second one finds nothing to do."""
    after = dict(apply_edits(files, crio.configure(files, desired)))
    assert crio.configure(after, desired).edits == ()
    return after


def runtime(data: bytes) -> dict[str, Any]:
    return tomllib.loads(data.decode())["crio"]["runtime"]  # type: ignore[no-any-return]


def undone(
    before: dict[str, bytes],
    edited: ConfigEdit,
    now: dict[str, bytes],
    desired: DesiredConfig = DesiredConfig(),  # noqa: B008
) -> dict[str, bytes]:
    """Return ``now`` after unconfigure, with ``edited`` in the journal."""
    return dict(apply_edits(now, unconfigure("crio", now, desired, edited.edits)))


def test_drop_in_may_be_in_the_root_folder() -> None:
    (edit,) = crio.configure({}, DesiredConfig(drop_in="/nvidia.conf")).edits
    assert edit.path == "/nvidia.conf"


def test_options_of_the_default_runtime_in_crio_conf_d_are_inherited() -> None:
    after = configure({PACKAGED: TEN})
    assert after[PACKAGED] == TEN
    assert runtime(after[DROP_IN]) == {"runtimes": {"nvidia": OF_CRUN}}


@pytest.mark.parametrize("desired", [DesiredConfig(), CTK, DEFAULT, DesiredConfig(default=True, exact=True)])
def test_default_in_the_drop_in_does_not_change_the_inherited_options(desired: DesiredConfig) -> None:
    after = configure({PACKAGED: TEN}, desired)
    assert runtime(after[DROP_IN])["runtimes"]["nvidia"] == OF_CRUN
    assert runtime(after[DROP_IN]).get("default_runtime") == ("nvidia" if desired.default else None)


def test_later_file_replaces_a_whole_runtime_table() -> None:
    files = {
        CONF: b'[crio.runtime]\ndefault_runtime = "crun"\n',
        "/etc/crio/crio.conf.d/50-z/a.conf": b'[crio.runtime]\ndefault_runtime = "runc"\n',
        "/etc/crio/crio.conf.d/50-y": b'[crio.runtime.runtimes.runc]\nruntime_path = "/opt/runc"\n',
        PACKAGED: TEN,
    }
    assert crio.files_in_order(files, DesiredConfig()) == (CONF, PACKAGED, *sorted(files)[2:4])
    assert runtime(configure(files)[DROP_IN])["runtimes"]["nvidia"] == BARE
    found = crio.inspect(files, DesiredConfig())
    assert (found.default, found.handlers, found.cdi) == (
        "runc",
        {"crun": "/usr/libexec/crio/crun", "runc": "/opt/runc"},
        True,
    )


@pytest.mark.parametrize("kind", ["vm", "pod"])
def test_vm_runtime_is_not_inherited_from(kind: str) -> None:
    files = {CONF: f'[crio.runtime]\ndefault_runtime = "kata"\n[crio.runtime.runtimes.kata]\nruntime_type = "{kind}"\n'
             'runtime_config_path = "/etc/kata.toml"\n'.encode()}  # fmt: skip
    edited = crio.configure(files, DesiredConfig())
    assert runtime(apply_edits(files, edited)[DROP_IN])["runtimes"]["nvidia"] == BARE
    assert any("kata cannot run plain containers" in note for note in edited.notes)
    with_runc = {**files, PACKAGED: b'[crio.runtime.runtimes.runc]\nmonitor_path = "/m"\n'}
    assert runtime(configure(with_runc)[DROP_IN])["runtimes"]["nvidia"] == {**BARE, "monitor_path": "/m"}


def test_keys_that_select_another_binary_are_not_inherited() -> None:
    table = b'[crio.runtime.runtimes.runc]\ninherit_default_runtime = true\nmonitor_path = "/m"\n'
    more = b'[crio.runtime.runtimes.runc.platform_runtime_paths]\n"linux/amd64" = "/usr/bin/runc"\n'
    entry = runtime(configure({CONF: table + more})[DROP_IN])["runtimes"]["nvidia"]
    assert entry == {**BARE, "monitor_path": "/m"}


def test_other_settings_in_the_drop_in_are_kept() -> None:
    former = (
        b'[crio.runtime]\nhooks_dir = ["/etc/hooks"] # ours\n[crio.runtime.runtimes.nvidia]\nruntime_path = "/old"\n'
    )
    after = configure({PACKAGED: TEN, DROP_IN: former}, CTK)
    assert runtime(after[DROP_IN]) == {"hooks_dir": ["/etc/hooks"], "runtimes": {"nvidia": OF_CRUN}}
    assert b'hooks_dir = ["/etc/hooks"] # ours\n' in after[DROP_IN]


def test_existing_entry_keeps_its_keys() -> None:
    own = f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{BINARY}"\nallowed_annotations = ["mine"]\n'.encode()
    files = {PACKAGED: TEN, DROP_IN: own}
    assert crio.configure(files, DesiredConfig()).edits == crio.configure(files, CTK).edits == ()
    files[DROP_IN] = own.replace(BINARY.encode(), b"/opt/old")
    for desired in (DesiredConfig(), CTK):
        entry = runtime(configure(files, desired)[DROP_IN])["runtimes"]["nvidia"]
        assert entry == {**OF_CRUN, "allowed_annotations": ["mine"]}


def test_existing_entry_that_runs_another_binary_is_repaired() -> None:
    own = f'[crio.runtime.runtimes.nvidia]\nruntime_path = "{BINARY}"\ninherit_default_runtime = true\n'.encode()
    assert runtime(configure({DROP_IN: own})[DROP_IN])["runtimes"]["nvidia"] == BARE


@pytest.mark.parametrize("desired", [DesiredConfig(), CTK], ids=["setup", "ctk"])
def test_later_run_without_the_default_option_keeps_the_default(desired: DesiredConfig) -> None:
    after = configure({PACKAGED: TEN}, replace(desired, default=True))
    assert crio.configure(after, desired).edits == ()


def test_in_place_edit_keeps_other_lines_byte_for_byte() -> None:
    conf = b'# mine\r\n[crio]\r\nlog_dir = "/l" # there\r\n\r\n[crio.runtime]\r\ncgroup_manager = "cgroupfs"\r\n'
    after = configure({CONF: conf}, DesiredConfig(mode="in-place", default=True))
    assert [*after] == [CONF]
    new = after[CONF].splitlines(keepends=True)
    old = conf.splitlines(keepends=True)
    assert [line for line in new if line in old and line.strip()] == [line for line in old if line.strip()]
    assert all(line.endswith(b"\r\n") for line in new)
    assert runtime(after[CONF])["default_runtime"] == "nvidia"


def test_replaced_default_is_still_inherited_from_in_place() -> None:
    desired = DesiredConfig(mode="in-place", default=True, exact=True)
    conf = TEN.replace(b"[crio.runtime.runtimes.runc]", b"[crio.runtime.runtimes.fast]").replace(b"crun", b"swift")
    assert runtime(configure({CONF: conf}, desired)[CONF])["runtimes"]["nvidia"]["runtime_root"] == "/run/swift"


def test_file_that_would_override_ours_is_edited() -> None:
    later = "/etc/crio/crio.conf.d/99-site.conf"
    files = {PACKAGED: TEN, later: b'[crio.runtime]\ndefault_runtime = "runc"\n'}
    edited = crio.configure(files, DEFAULT)
    assert [edit.path for edit in edited.edits] == [later]
    assert later in edited.how
    assert crio.inspect(apply_edits(files, edited), DesiredConfig()).default == "nvidia"
    assert [edit.path for edit in crio.configure(files, DesiredConfig()).edits] == [DROP_IN]


@pytest.mark.parametrize(
    "desired",
    [
        DesiredConfig(mode="in-place", default=True),
        DesiredConfig(default=True, drop_in="/etc/crio/crio.conf.d/05-gpu.conf"),
    ],
)
def test_edit_without_effect_is_refused_with_the_overriding_file(desired: DesiredConfig) -> None:
    with pytest.raises(Refused) as stopped:
        crio.configure({PACKAGED: TEN}, desired)
    assert f"{PACKAGED} sets crio.runtime.default_runtime" in stopped.value.why
    assert "no effect" in stopped.value.what


def test_unread_drop_in_of_an_older_toolkit_is_noted() -> None:
    dead = "/etc/crio/conf.d/99-nvidia.toml"
    files = {dead: b'[crio.runtime.runtimes.nvidia]\nruntime_path = "/usr/bin/nvidia-container-runtime"\n'}
    edited = crio.configure(files, DesiredConfig())
    assert [edit.path for edit in edited.edits] == [DROP_IN]
    assert any(f"CRI-O never reads {dead}" in note for note in edited.notes)
    with pytest.raises(Refused, match="CRI-O does not read"):
        crio.configure({}, DesiredConfig(drop_in=dead))


def test_backup_files_that_crio_reads_are_noted() -> None:
    files = {PACKAGED: TEN, f"{PACKAGED}.bak": TEN}
    assert any(f"{PACKAGED}.bak looks like a leftover" in note for note in crio.configure(files, DesiredConfig()).notes)


@pytest.mark.parametrize(
    ("path", "data", "what"),
    [
        (CONF, b"[crio\n", f"{CONF}:1: not valid TOML"),
        (f"{CRIO_FOLDER}/.99.swp", b"b0VIM 9.0\x00", "not valid TOML"),
        (CONF, b"[crio]\nruntime = 1\n", f"{CONF}:2: crio.runtime is not a table"),
        (CONF, b"[crio.runtime.runtimes]\nrunc = 'x'\n", f"{CONF}:2: crio.runtime.runtimes.runc is not a table"),
        (CONF, b"[crio.runtime]\ndefault_runtime = 1\n", f"{CONF}:2: crio.runtime.default_runtime is not a string"),
        (CONF, b"\xff", "not UTF-8"),
    ],
)
def test_invalid_crio_configuration_is_refused_with_its_line(path: str, data: bytes, what: str) -> None:
    for ask in (crio.configure, crio.inspect):
        with pytest.raises(Refused) as stopped:
            ask({path: data}, DesiredConfig())
        assert what in stopped.value.what


def test_relative_binary_other_than_the_toolkits_is_refused() -> None:
    assert (
        runtime(configure({}, DesiredConfig(binary="nvidia-container-runtime"))[DROP_IN])["runtimes"]["nvidia"] == BARE
    )
    with pytest.raises(Refused, match="not an absolute path"):
        crio.configure({}, DesiredConfig(binary="bin/nvidia-container-runtime"))


def test_options_are_inherited_from_the_dump_of_the_daemon() -> None:
    dump = b'[crio.runtime]\ndefault_runtime = "crun"\n[crio.runtime.runtimes.crun]\nmonitor_path = "/dumped"\n'
    after = configure({PACKAGED: TEN}, DesiredConfig(source=dump, exact=True))
    assert runtime(after[DROP_IN])["runtimes"]["nvidia"] == {**BARE, "monitor_path": "/dumped"}


def test_cgroup_manager_is_changed_only_on_request() -> None:
    files = {CONF: b'[crio.runtime]\ncgroup_manager = "cgroupfs"\n'}
    assert "cgroup_manager" not in runtime(configure(files)[DROP_IN])
    assert runtime(configure(files, DesiredConfig(systemd_cgroup=True))[DROP_IN])["cgroup_manager"] == "systemd"


def test_other_main_file_is_read_instead() -> None:
    other = "/opt/crio.conf"
    assert other in runtimes.find_runtime("crio").list_read_paths({}, DesiredConfig(config=other))
    after = configure({other: TEN, CONF: b"not read"}, DesiredConfig(config=other))
    assert runtime(after[DROP_IN])["runtimes"]["nvidia"] == OF_CRUN


def test_hidden_files_and_subfolders_of_crio_conf_d_are_read() -> None:
    patterns = runtimes.find_runtime("crio").list_read_paths({}, DesiredConfig(drop_in="/srv/gpu/50.toml"))
    assert {CONF, f"{CRIO_FOLDER}/*", f"{CRIO_FOLDER}/.*", f"{CRIO_FOLDER}/*/*", "/srv/gpu/*"} <= {*patterns}
    assert any(
        "--config-dir /srv/gpu" in n for n in crio.configure({}, DesiredConfig(drop_in="/srv/gpu/50.toml")).notes
    )


# Undone.


def test_unconfigure_keeps_later_edits() -> None:
    before = {CONF: b'[crio.runtime]\ndefault_runtime = "runc" # why\n'}
    desired = DesiredConfig(mode="in-place", default=True)
    edited = crio.configure(before, desired)
    now = {CONF: apply_edits(before, edited)[CONF] + b'\n[crio.image]\npause_image = "p"\n'}
    back = undone(before, edited, now)
    assert tomllib.loads(back[CONF].decode()) == {
        "crio": {"runtime": {"default_runtime": "runc"}, "image": {"pause_image": "p"}}
    }
    assert b"# why" in back[CONF]


def test_default_chosen_since_is_kept() -> None:
    before = {PACKAGED: TEN}
    edited = crio.configure(before, DEFAULT)
    now = dict(apply_edits(before, edited))
    now[DROP_IN] = now[DROP_IN].replace(b'default_runtime = "nvidia"', b'default_runtime = "runc"')
    assert runtime(undone(before, edited, now)[DROP_IN]) == {"default_runtime": "runc"}


def test_former_entry_is_restored() -> None:
    before = {DROP_IN: b'[crio.runtime.runtimes.nvidia]\nruntime_path = "/old"\n', PACKAGED: TEN}
    edited = crio.configure(before, CTK)
    now = dict(apply_edits(before, edited))
    assert undone(before, edited, now) == before
    now[DROP_IN] += b"# touched\n"
    assert runtime(undone(before, edited, now)[DROP_IN]) == {"runtimes": {"nvidia": {"runtime_path": "/old"}}}


def test_unconfigure_without_a_record_removes_entry_and_default() -> None:
    now = configure({PACKAGED: TEN}, DEFAULT)
    edited = unconfigure("crio", now, DesiredConfig(), ())
    assert dict(apply_edits(now, edited)) == {PACKAGED: TEN}
    assert f"gpunode has no record of it in {DROP_IN}" in edited.how
    assert unconfigure("crio", {PACKAGED: TEN}, DesiredConfig(), ()).edits == ()


def test_default_without_a_runtime_is_removed() -> None:
    before = {PACKAGED: TEN}
    edited = crio.configure(before, DesiredConfig())
    now = {**apply_edits(before, edited), CONF: b'# by hand\n[crio.runtime]\ndefault_runtime = "nvidia"\n'}
    taken_back = unconfigure("crio", now, DesiredConfig(), edited.edits)
    after = apply_edits(now, taken_back)
    assert DROP_IN not in after
    assert "default_runtime" not in after[CONF].decode()
    assert after[CONF].startswith(b"# by hand\n")
    assert any("would not start with it" in note for note in taken_back.notes)


NAMES = st.sampled_from(["runc", "crun", "kata", "nvidia", "x.y"])
VALUES = st.sampled_from(['"a"', "1", "true", '["x", "y"]', "{ k = 1 }"])


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Return a manually written file of CRI-O's: comments, either line end, any order, inline tables."""
    lines = [draw(st.sampled_from(["", "# top\n", "[crio]\nlog_dir = '/l'\n"]))]
    if draw(st.booleans()):
        lines.append(f"[crio.runtime] # here\ndefault_runtime = '{draw(NAMES)}'\n")
    for name in draw(st.lists(NAMES, unique=True, max_size=3)):
        kind = draw(st.sampled_from(["oci", "vm", ""]))
        lines.append(f"[crio.runtime.runtimes.'{name}']\nruntime_path = '/bin/{name}'\nruntime_type = '{kind}'\n")
        lines.append(f"more = {draw(VALUES)}\n")
    lines.append(draw(st.sampled_from(["", "[crio.image]\npause_image = 'p'\n", "# end"])))
    text = "\n".join(lines)
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"]))).encode()


PATHS = (CONF, PACKAGED, DROP_IN)
# crio.conf makes a VM runtime the default; it has the same options as the runc from which the handler is derived.
LIKE_A_VM = {
    CONF: b"[crio.runtime]\ndefault_runtime = 'x.y'\n",
    DROP_IN: b"""\
[crio.runtime]
default_runtime = 'runc'
[crio.runtime.runtimes.crun]
more = "a"
[crio.runtime.runtimes.'x.y']
runtime_type = 'vm'
more = 1
[crio.runtime.runtimes.runc]
more = 1
""",
}


@pytest.mark.parametrize("kind", ["vm", "pod"])
def test_vm_runtime_is_not_inherited_as_default_either(kind: str) -> None:
    files = {path: data.replace(b"'vm'", f"'{kind}'".encode()) for path, data in LIKE_A_VM.items()}
    assert runtime(configure(files, DesiredConfig(default=True, exact=True))[DROP_IN])["runtimes"]["nvidia"] == {
        **BARE,
        "more": 1,
    }


@given(
    st.dictionaries(st.sampled_from(PATHS), documents()),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["auto", "in-place", "drop-in"]),
)
@example(LIKE_A_VM, True, True, "auto")
def test_configure_is_idempotent_and_unconfigure_restores(
    files: dict[str, bytes], default: bool, exact: bool, mode: Any
) -> None:
    desired = DesiredConfig(default=default, exact=exact, mode=mode)
    try:
        edited = crio.configure(files, desired)
    except Refused:
        assert mode == "in-place"  # a drop-in would win
        return
    after = dict(apply_edits(files, edited))
    found = crio.inspect(after, desired)
    assert found.handlers["nvidia"] == BINARY
    assert not default or found.default == "nvidia"
    assert crio.configure(after, desired).edits == ()
    assert crio.configure(after, replace(desired, exact=False)).edits == ()
    back = undone(files, edited, after, desired)
    had_default = "nvidia" in {runtime(d).get("default_runtime") for d in files.values() if b"crio.runtime" in d}
    assert back == files or had_default


@given(
    st.dictionaries(st.sampled_from(PATHS), documents()), st.lists(st.tuples(st.booleans(), st.booleans()), max_size=4)
)
@example(
    {
        PACKAGED: b"[crio.runtime]\ndefault_runtime = 'crun'\n",
        DROP_IN: b"[crio.runtime]\ndefault_runtime = 'runc'\n[crio.runtime.runtimes]\nrunc.more = 'a'\ncrun.more = 1\n",
    },
    [(True, False), (False, True)],
)
def test_each_of_several_requests_is_satisfied_at_once(
    files: dict[str, bytes], all_desired: list[tuple[bool, bool]]
) -> None:
    for default, exact in all_desired:
        files = configure(files, DesiredConfig(default=default, exact=exact))
