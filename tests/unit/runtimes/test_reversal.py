"""A configuration without gpunode's changes: later edits stay, and nothing is guessed."""

from __future__ import annotations

import json
from collections.abc import Collection

import pytest

from gpunode.runtimes import DesiredConfig, Edit
from gpunode.runtimes.documents import parse_toml
from gpunode.runtimes.reversal import revert_edit
from tests.unit.runtimes.docker_file import configure as configure_docker
from tests.unit.runtimes.one_file import configure as configure_containerd

TOML, JSON = "/etc/containerd/config.toml", "/etc/docker/daemon.json"
RUNTIMES = ("plugins", "io.containerd.grpc.v1.cri", "containerd", "runtimes")
V2 = b"""version = 2
imports = ["/etc/containerd/conf.d/*.toml"]

# the CRI plugin
[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc" # ours

  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
"""
WITH = configure_containerd(V2, DesiredConfig(default=True, enable_cdi=True))
DAEMON = b'{\n  "log-level": "info"\n}\n'
DAEMON_WITH = configure_docker(DAEMON, DesiredConfig(default=True, enable_cdi=True))


def taken_back(
    before: bytes | None, after: bytes | None, now: bytes, path: str, whole: Collection[tuple[str, ...]] | None = None
) -> bytes | None:
    """Return the remaining configuration; None if gpunode's settings were changed or that is unknown."""
    reversal = revert_edit(Edit(path, before, after), now, whole)
    return None if reversal is None or reversal.changed else reversal.content


def removed_keys(before: bytes, after: bytes, now: bytes, path: str) -> tuple[tuple[str, ...], ...]:
    """Return foreign keys that are removed with gpunode's tables."""
    reversal = revert_edit(Edit(path, before, after), now)
    assert reversal is not None
    return reversal.removed


@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        (V2, WITH, TOML),
        (DAEMON, DAEMON_WITH, JSON),
        (None, configure_containerd(None, DesiredConfig()), TOML),
        (b"", b"x", TOML),
    ],
)
def test_unedited_file_is_restored_byte_for_byte(before: bytes | None, after: bytes, path: str) -> None:
    assert taken_back(before, after, after, path) == (before or b"")


def test_lines_added_beside_ours_stay_with_their_comments() -> None:
    now = WITH.replace(b"version = 2\n", b"version = 2\n# since\noom_score = -999 # ours\n") + b"\n[metrics]\n  x = 1\n"
    back = taken_back(V2, WITH, now, TOML)
    assert back == V2.replace(b"version = 2\n", b"version = 2\n# since\noom_score = -999 # ours\n") + (
        b"\n[metrics]\n  x = 1\n"
    )


def test_keys_added_to_our_table_are_removed_with_it_and_named() -> None:
    """containerd does not start with a handler without a type."""
    key = b"BinaryName"
    line = next(line for line in WITH.splitlines(keepends=True) if key in line)
    now = WITH.replace(line, line + b'      CriuPath = "/opt/criu"\n')
    back = taken_back(V2, WITH, now, TOML)
    assert back is not None
    assert parse_toml(back.decode()) == parse_toml(V2.decode())
    assert [line for line in back.splitlines() if b"#" in line] == [line for line in V2.splitlines() if b"#" in line]
    assert removed_keys(V2, WITH, now, TOML) == ((*RUNTIMES, "nvidia", "options", "CriuPath"),)


def test_values_changed_in_our_table_are_removed_with_it_and_named() -> None:
    now = DAEMON_WITH.replace(b'"args": []', b'"args": ["--debug"]')
    assert now != DAEMON_WITH
    assert removed_keys(DAEMON, DAEMON_WITH, now, JSON) == (("runtimes", "nvidia", "args"),)


def test_own_runc_table_that_was_edited_since_stays() -> None:
    """Pods without a GPU run with it: without the cgroup driver that somebody chose, the kubelet evicts them."""
    before = b"version = 2\n"
    after = configure_containerd(before, DesiredConfig())
    table = b'[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]\nSystemdCgroup = true\n'
    reversal = revert_edit(Edit(TOML, before, after), after + table)
    assert reversal is not None
    assert (reversal.kept, reversal.removed) == (((*RUNTIMES, "runc"),), ())
    left = parse_toml(reversal.content.decode())["plugins"]["io.containerd.grpc.v1.cri"]["containerd"]["runtimes"]
    assert left.keys() == {"runc"}
    assert left["runc"]["options"] == {"SystemdCgroup": True}


def test_keys_are_removed_from_a_reformatted_file() -> None:
    now = b"\n".join(b"  " + line.partition(b"#")[0].strip() for line in WITH.splitlines()) + b"\n"
    back = taken_back(V2, WITH, now, TOML)
    assert back is not None
    assert b"nvidia" not in back
    assert b"enable_cdi" not in back
    assert b'  default_runtime_name = "runc"\n' in back


@pytest.mark.parametrize("new", [b'"crun"', b"7"])
def test_our_value_changed_since_is_not_reverted(new: bytes) -> None:
    now = WITH.replace(b'default_runtime_name = "nvidia"', b"default_runtime_name = " + new)
    assert taken_back(V2, WITH, now, TOML) is None


def test_missing_or_already_restored_key_is_no_conflict() -> None:
    now = WITH.replace(b'default_runtime_name = "nvidia"', b'default_runtime_name = "runc"')
    assert taken_back(V2, WITH, now, TOML) == V2
    gone = WITH.replace(b"  enable_cdi = true\n", b"").replace(b"enable_cdi = true\n", b"")
    back = taken_back(V2, WITH, gone, TOML)
    assert back is not None
    assert parse_toml(back.decode()) == parse_toml(V2.decode())


def test_list_keeps_additions_and_regains_removed_items() -> None:
    before = b'imports = ["a"]\ndisabled_plugins = ["cri", "aufs"]\n'
    after = b'imports = ["a", "ours"]\ndisabled_plugins = ["aufs"]\n'
    now = b'imports = ["a", "ours", "b"]\ndisabled_plugins = ["aufs", "zfs"]\n'
    back = taken_back(before, after, now, TOML)
    assert back is not None
    assert parse_toml(back.decode()) == {"imports": ["a", "b"], "disabled_plugins": ["cri", "aufs", "zfs"]}
    assert taken_back(b"x = 1\n", b"x = 1\nl = [1]\n", b"x = 1\nl = [1, 2]\n", TOML) == b"x = 1\nl = [2]\n"
    assert taken_back(b"l = [1, 2]\n", b"l = [2, 1]\n", b"l = [2, 1, 3]\n", TOML) is None


# The result of `containerd config migrate` of 2.1.9 for a file with these entries, without other defaults.
MIGRATED = """\
version = 3

[plugins]
  [plugins.'io.containerd.cri.v1.runtime']
    enable_cdi = true

    [plugins.'io.containerd.cri.v1.runtime'.containerd]
      default_runtime_name = 'nvidia'

      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes]
        [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
          runtime_type = 'io.containerd.runc.v2'
          pod_annotations = []

          [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia.options]
            BinaryName = '/usr/bin/nvidia-container-runtime'

        [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
          runtime_type = 'io.containerd.runc.v2'

          [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
            SystemdCgroup = true

  [plugins.'io.containerd.grpc.v1.cri']
    disable_tcp_service = true
"""


@pytest.mark.parametrize("before", [b'version = 2\n[plugins."io.containerd.grpc.v1.cri".cni]\n', b"", None])
def test_handler_goes_from_a_file_migrated_to_another_schema(before: bytes | None) -> None:
    after = configure_containerd(before, DesiredConfig(default=True, enable_cdi=True))
    reversal = revert_edit(Edit(TOML, before, after), MIGRATED.encode())
    assert reversal is not None
    assert not reversal.changed
    assert not reversal.removed, "what the migration wrote out is nobody's"
    left = parse_toml(reversal.content.decode())
    runc = {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True}}
    cri = {"containerd": {"runtimes": {"runc": runc}}}
    assert left == {
        "version": 3,
        "plugins": {"io.containerd.cri.v1.runtime": cri, "io.containerd.grpc.v1.cri": {"disable_tcp_service": True}},
    }


def test_foreign_table_in_our_file_keeps_the_schema_version() -> None:
    after = configure_containerd(None, DesiredConfig(default=True))
    now = after + b"[plugins.'io.containerd.grpc.v1.cri'.registry]\n  config_path = '/etc/certs'\n"
    back = taken_back(None, after, now, TOML)
    assert back is not None
    assert back.split(b"\n", 1)[0] == b"version = 2"
    assert back.strip().endswith(b"\n[plugins.'io.containerd.grpc.v1.cri'.registry]\n  config_path = '/etc/certs'")


def test_own_file_with_only_blank_lines_added_is_empty() -> None:
    after = configure_containerd(None, DesiredConfig())
    assert taken_back(None, after, b"\n" + after.replace(b"\n", b"\r\n"), TOML) == b""
    assert taken_back(None, after, after + b"# mine\n", TOML) == b"# mine\n"


def test_own_file_whose_table_was_edited_leaves_no_header_of_gpunode() -> None:
    after = b"# Written by gpunode\n" + configure_containerd(None, DesiredConfig())
    edited = after.replace(b"BinaryName", b"SystemdCgroup = true\nBinaryName")
    assert taken_back(None, after, edited, TOML) == b""
    assert taken_back(None, after, edited + b"# mine\n", TOML) not in (b"", None)


def test_docker_features_are_removed_by_name_and_entries_whole() -> None:
    document = json.loads(DAEMON_WITH)
    document["features"]["buildkit"] = True
    document["runtimes"]["nvidia"]["runtimeArgs"] = ["--debug"]
    document["runtimes"]["kata"] = {"path": "/opt/kata"}
    now = json.dumps(document).encode()
    back = taken_back(DAEMON, DAEMON_WITH, now, JSON, whole=[("runtimes", "nvidia")])
    assert back is not None
    assert json.loads(back) == {
        "log-level": "info",
        "features": {"buildkit": True},
        "runtimes": {"kata": {"path": "/opt/kata"}},
    }
    assert removed_keys(DAEMON, DAEMON_WITH, now, JSON) == (("runtimes", "nvidia", "runtimeArgs"),)


def test_json_numbers_keep_their_spelling() -> None:
    before, after = b'{"a": 1.10, "b": 1}', b'{"b": 1}'
    assert taken_back(before, after, b'{"b": 1, "c": 9007199254740993}', JSON) == (
        b'{"b": 1, "c": 9007199254740993, "a": 1.10}'
    )


def test_lines_are_not_removed_where_the_rest_would_change_meaning() -> None:
    """Below our last table they belong to it: without its header they would belong to the table above."""
    before = b"[plugins]\n  a = 1\n"
    after = before + b'\n[plugins.nvidia]\n  path = "/usr/bin/nvidia"\n'
    assert taken_back(before, after, after + b"  debug = true\n", TOML) == before
    assert taken_back(before, after, after + b"  debug = true\n", TOML, whole=()) == (
        before + b"\n[plugins.nvidia]\n  debug = true\n"
    )


@pytest.mark.parametrize("now", [b"\xff\xfe\n", b"version = \n", b"[[[\n"])
def test_unparsable_file_is_restored_by_lines_or_not_at_all(now: bytes) -> None:
    assert taken_back(V2, WITH, now + WITH, TOML) == now + V2
    assert taken_back(DAEMON, DAEMON_WITH, now + DAEMON_WITH, JSON) is None


def test_file_in_another_format_is_restored_by_lines() -> None:
    before, after = b"{{ template }}\n", b"{{ template }}\nours\n"
    assert taken_back(before, after, b"theirs\n" + after, "/x/config.toml.tmpl") == b"theirs\n" + before
    assert taken_back(before, after, b"{{ template }}\nOURS\n", "/x/config.toml.tmpl") is None
    assert taken_back(b"{}", b'{"a": 1}', b'{"a": 1', JSON) is None


def test_foreign_file_in_place_of_a_deleted_one_is_kept() -> None:
    assert taken_back(b"a = 1\n", None, b"b = 1\n", TOML) == b"b = 1\n"


def test_table_replaced_by_others_is_kept_or_a_conflict() -> None:
    before, after = b"[a]\nx = 1\n", b"[a]\nx = 1\ny = 2\n"
    assert taken_back(before, after, b"a = 7\n", TOML) is None
    assert taken_back(before, after, b"b = 7\n", TOML) == b"b = 7\n"
    assert taken_back(before, b"[a]\nx = 2\n", b"b = 7\n", TOML) is None
    assert taken_back(b"", b"[a.b]\nx = 2\n", b"a = 7\n", TOML) == b"a = 7\n"
    # A value that we set in our table and the user changed since is the user's, unless the table is an entry.
    assert taken_back(b"", b"[a]\nx = 2\n[a.b.c]\ny = 1\n", b"[a]\nx = 3\n[a.b.c]\ny = 1\n", TOML) == b"[a]\nx = 3\n"


def test_byte_order_mark_and_line_ends_are_kept() -> None:
    bom = b"\xef\xbb\xbf"
    now = bom + b"y = 1\r\n" + WITH.replace(b"\n", b"\r\n")
    assert taken_back(bom + V2.replace(b"\n", b"\r\n"), bom + WITH.replace(b"\n", b"\r\n"), now, TOML) == (
        bom + b"y = 1\r\n" + V2.replace(b"\n", b"\r\n")
    )
