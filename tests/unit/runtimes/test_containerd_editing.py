"""containerd's configuration: nothing is lost, nothing is done twice, and unreadable files are refused."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from difflib import SequenceMatcher
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gpunode.errors import Refused
from gpunode.runtimes import DesiredConfig, ObservedConfig, apply_edits, containerd, find_runtime, satisfies, tomltext
from gpunode.runtimes.containerd_files import (
    CRI_PLUGIN_BY_SCHEMA,
    FIRST_VERSION_BY_SCHEMA,
    effective_cri_table,
    load_config_files,
)
from tests.unit.runtimes.one_file import configure, inspect

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
BINARY = "/usr/bin/nvidia-container-runtime"

all_desired = st.builds(
    DesiredConfig,
    default=st.booleans(),
    systemd_cgroup=st.booleans(),
    enable_cdi=st.booleans(),
    version=st.sampled_from([None, (1, 6, 20), (1, 7), (2, 1, 9)]),
)


# Documents, in every layout that TOML has for a table.

keys = st.sampled_from(["a", "b-c", "with.dot", "io.x/y", "ünï", "sp ace", "'q'", '"qq"'])
scalars = st.one_of(
    st.text(alphabet="aä \\\"'#[]={}\t🚀", max_size=6),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
    st.sampled_from(["§1979-05-27", "§1979-05-27T07:32:00Z", "§07:32:00", "§1e3", "§nan", "§'''raw # [x]\nline'''"]),
)
values = st.one_of(scalars, st.lists(scalars, max_size=3))
options = st.dictionaries(st.sampled_from(["Root", "ShimCgroup", "CriuPath"]), st.text("ab/", max_size=3), max_size=2)


@st.composite
def handlers(draw: st.DrawFn) -> dict[str, Any]:
    table: dict[str, Any] = {"runtime_type": draw(st.sampled_from(["io.containerd.runc.v2", "io.containerd.kata.v2"]))}
    table |= draw(st.dictionaries(keys, values, max_size=2))
    if draw(st.booleans()):
        table["options"] = draw(options)
        if draw(st.booleans()):
            table["options"]["SystemdCgroup"] = draw(st.booleans())
        if draw(st.booleans()):
            table["options"]["BinaryName"] = draw(st.sampled_from([BINARY, "/opt/old", ""]))
    return table


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    schema = draw(st.sampled_from([2, 3]))
    names = st.sampled_from(["runc", "crun", "kata", "nvidia", "nvidia-cdi", "x.y"])
    document: dict[str, Any] = {"version": schema, **draw(st.dictionaries(keys, values, max_size=2))}
    if not draw(st.booleans()):
        return document
    plugins: dict[str, Any] = draw(st.dictionaries(keys, st.dictionaries(keys, values, max_size=2), max_size=2))
    cri: dict[str, Any] = draw(st.dictionaries(keys, values, max_size=2))
    if draw(st.booleans()):
        cri["enable_cdi"] = draw(st.booleans())
    if draw(st.booleans()):
        cri["containerd"] = draw(st.dictionaries(keys, values, max_size=1))
        if draw(st.booleans()):
            cri["containerd"]["default_runtime_name"] = draw(st.sampled_from(["", "runc", "crun", "nvidia", "gone"]))
        if draw(st.booleans()):
            cri["containerd"]["runtimes"] = draw(st.dictionaries(names, handlers(), max_size=4))
    plugins[CRI[schema]] = cri
    return {**document, "plugins": plugins}


class Writer:
    """Writes a document with a random layout for each table, and a numbered comment wherever one is allowed."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.comments = draw, 0
        self.indent = draw(st.sampled_from(["", "  ", "\t"]))
        self.layouts = draw(st.sampled_from([("header",), ("header", "dotted"), ("header", "inline", "dotted")]))

    def comment(self) -> str:
        self.comments += 1
        return f"# [comment {self.comments}] = \"it's"

    def value(self, value: Any) -> str:
        if isinstance(value, str) and value.startswith("§"):
            return value[1:]
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list):
            return f"[{', '.join(map(self.value, value))}]"
        if isinstance(value, dict):
            inside = ", ".join(f"{self.key(key)} = {self.value(inner)}" for key, inner in value.items())
            return f"{{ {inside} }}"
        return self.key(value, bare=False) if isinstance(value, str) else str(value)

    def key(self, key: str, *, bare: bool = True) -> str:
        if bare and key.replace("-", "").isascii() and key.replace("-", "").isalnum():
            return key
        escaped = key.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t")
        return f'"{escaped}"'

    def statements(self, prefix: str, table: dict[str, Any], depth: int) -> tuple[list[str], list[str]]:
        """Return the table's own lines, and those of the headers below it."""
        own: list[str] = []
        below: list[str] = []
        pad = self.indent * depth
        for key, value in table.items():
            layout = self.draw(st.sampled_from(self.layouts)) if isinstance(value, dict) else "plain"
            if layout == "header":
                below += self.header(f"{prefix}.{self.key(key)}" if prefix else self.key(key), value, depth)
            elif layout == "dotted" and value:
                own += [pad + line for line in self.dotted(self.key(key), value)]
            else:
                if self.draw(st.booleans()):
                    own.append(pad + self.comment())
                tail = f"  {self.comment()}" if self.draw(st.booleans()) else self.draw(st.sampled_from(["", "  "]))
                own.append(f"{pad}{self.key(key)} = {self.value(value)}{tail}")
        return own, below

    def dotted(self, prefix: str, table: dict[str, Any]) -> list[str]:
        lines: list[str] = []
        for key, value in table.items():
            name = f"{prefix}.{self.key(key)}"
            lines += (
                self.dotted(name, value) if isinstance(value, dict) and value else [f"{name} = {self.value(value)}"]
            )
        return lines

    def header(self, name: str, table: dict[str, Any], depth: int) -> list[str]:
        own, below = self.statements(name, table, depth + 1)
        if not own and below and self.draw(st.booleans()):
            return below
        gap = self.draw(st.sampled_from([[], [""], [self.comment()], ["", self.comment()]]))
        return [*gap, f"{self.indent * depth}[{name}]", *own, *below]


@st.composite
def files(draw: st.DrawFn) -> bytes:
    writer = Writer(draw)
    own, below = writer.statements("", draw(documents()), 0)
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    text = newline.join([*own, *below, *draw(st.sampled_from([[], [""], [writer.comment(), ""]]))])
    return draw(st.sampled_from([b"", "\ufeff".encode()])) + text.replace("\r\n", "\n").replace("\n", newline).encode()


@st.composite
def cases(draw: st.DrawFn) -> tuple[bytes, DesiredConfig]:
    """Return a file, and the desired configuration of a containerd that reads its schema."""
    data, desired = draw(files()), draw(all_desired)
    # tomlkit 0.15.2 loses the space between a date and a following brace, so an edit is refused.
    assume(not re.search(rb"\{[^\n]*\d\d[-:]\d\d", data))
    is_too_old = desired.version is not None and desired.version < FIRST_VERSION_BY_SCHEMA[read(data)["version"]]
    return data, replace(desired, version=None) if is_too_old else desired


def read(data: bytes) -> dict[str, Any]:
    document: dict[str, Any] = tomllib.loads(data.decode().removeprefix("\ufeff"), parse_float=str)
    return document


def without_ours(document: dict[str, Any], desired: DesiredConfig) -> dict[str, Any]:
    """Return the document without the keys that configuring may change; independent of the code under test."""
    cri = dict(document.get("plugins", {}).get(CRI[document["version"]], {}))
    containerd = dict(cri.pop("containerd", {}))
    runtimes = {name: dict(table) for name, table in containerd.pop("runtimes", {}).items()}
    containerd.pop("default_runtime_name", None) if desired.default else None
    cri.pop("enable_cdi", None) if desired.enable_cdi else None
    runtimes.pop("nvidia", None)
    for name in ("runc", "crun"):
        if desired.systemd_cgroup and name in runtimes:
            kept = {key: value for key, value in runtimes[name].get("options", {}).items() if key != "SystemdCgroup"}
            runtimes[name]["options"] = kept
    other = {name: table for name, table in document.get("plugins", {}).items() if name != CRI[document["version"]]}
    rest = {key: value for key, value in document.items() if key != "plugins"}
    return {"rest": rest, "other": other, "cri": cri, "containerd": containerd, "runtimes": runtimes}


def added_runc(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return "runc" in after["runtimes"] and "runc" not in before["runtimes"]


@given(cases())
def test_desired_settings_are_present_and_the_rest_is_unchanged(case: tuple[bytes, DesiredConfig]) -> None:
    data, desired = case
    out = configure(data, desired)
    assert satisfies(inspect(out), desired)
    before, after = without_ours(read(data), desired), without_ours(read(out), desired)
    if added_runc(before, after):
        del after["runtimes"]["runc"]
    assert after == before


@given(cases())
def test_existing_runc_shim_entry_loses_no_key(case: tuple[bytes, DesiredConfig]) -> None:
    data, desired = case

    def entry(text: bytes) -> dict[str, Any]:
        cri = read(text).get("plugins", {}).get(CRI[read(text)["version"]], {})
        found: dict[str, Any] = cri.get("containerd", {}).get("runtimes", {}).get("nvidia", {})
        return found

    before, after = entry(data), entry(configure(data, desired))
    if before.get("runtime_type") != "io.containerd.runc.v2":
        return
    options = {key: value for key, value in before.get("options", {}).items() if key != "BinaryName"}
    if options.get("SystemdCgroup") is False:  # it joins the default runtime, or is asked to
        del options["SystemdCgroup"]
    assert {**after, **before, "options": {**after["options"], **options}} == after


@given(cases())
def test_configure_is_idempotent(case: tuple[bytes, DesiredConfig]) -> None:
    data, desired = case
    out = configure(data, desired)
    assert configure(out, desired) == out


@given(cases())
def test_only_a_satisfied_file_stays_byte_for_byte(case: tuple[bytes, DesiredConfig]) -> None:
    data, desired = case
    assert satisfies(inspect(data), desired) == (configure(data, desired) == data)


@given(cases())
def test_comments_on_their_own_line_stay_in_order(case: tuple[bytes, DesiredConfig]) -> None:
    data, desired = case

    def comments(text: bytes) -> list[bytes]:
        return [line.strip() for line in text.splitlines() if line.strip().startswith(b"# [comment")]

    assert comments(configure(data, desired)) == comments(data)


@given(cases())
def test_unrelated_lines_stay_byte_for_byte(case: tuple[bytes, DesiredConfig]) -> None:
    data, desired = case
    # Line ends have their own test; a last line without one gets one if something is appended.
    former, new = data.splitlines(), configure(data, desired).splitlines()
    edits = SequenceMatcher(None, former, new, autojunk=False).get_opcodes()
    lost = [line for kind, start, end, _, _ in edits if kind in {"replace", "delete"} for line in former[start:end]]
    stale = read(data).get("plugins", {}).get(CRI[read(data)["version"]], {}).get("containerd", {})
    words = [b"default_runtime_name", b"enable_cdi", b"SystemdCgroup", b"BinaryName"]
    # A stale entry is replaced; an inline table changes in its line, which can be any line.
    if "nvidia" not in stale.get("runtimes", {}) and b"= {" not in data:
        assert all(any(word in line for word in words) for line in lost), lost


@given(cases())
def test_line_ends_and_byte_order_mark_are_kept(case: tuple[bytes, DesiredConfig]) -> None:
    data, desired = case
    out = configure(data, desired)
    assert out.startswith("\ufeff".encode()) == data.startswith("\ufeff".encode())
    if b"\n" in data and b"\r\n" not in data:
        assert b"\r" not in out
    if b"\r\n" in data:
        assert out.count(b"\n") == out.count(b"\r\n")


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode), all_desired)
@example(
    b"A=0", DesiredConfig(version=(2, 1, 9))
)  # of schema 1, which containerd 2 reads under its own name for the plugin
def test_any_input_is_configured_or_refused(data: bytes, desired: DesiredConfig) -> None:
    try:
        out = configure(data, desired)
    except Refused as error:
        refused = error
    else:
        assert satisfies(inspect(out, desired), desired)
        return
    assert refused.hint
    assert "/etc/containerd/config.toml" in refused.what


# Cases.

V2 = b"version = 2\n"


@pytest.mark.parametrize("data", [None, b"", b"\n", b"# only a comment\n"])
def test_empty_file_becomes_schema_2(data: bytes | None) -> None:
    out = configure(data, DesiredConfig(version=(2, 1)))
    assert out.startswith(data or b"")
    assert tomllib.loads(out.decode()) == {
        "version": 2,
        "plugins": {
            CRI[2]: {
                "containerd": {
                    "runtimes": {
                        "nvidia": {
                            "runtime_type": "io.containerd.runc.v2",
                            "runtime_root": "",
                            "runtime_engine": "",
                            "privileged_without_host_devices": False,
                            "options": {"BinaryName": BINARY},
                        }
                    }
                }
            }
        },
    }


@pytest.mark.parametrize(
    ("version", "default", "there"),
    [((1, 7, 24), False, True), (None, False, True), ((2, 0), False, False), ((1, 7, 24), True, True)],
)
def test_runc_is_added_where_containerd_would_lose_it(
    version: tuple[int, ...] | None, default: bool, there: bool
) -> None:
    out = configure(V2, DesiredConfig(version=version, default=default))
    assert ("runc" in inspect(out).handlers) is there


@pytest.mark.parametrize(
    ("desired", "reason"),
    [
        (DesiredConfig(version=(1, 7)), "drops its built-in entry"),
        (DesiredConfig(version=(2, 0), systemd_cgroup=True), "uses cgroupfs"),
    ],
)
def test_added_runc_table_is_explained(desired: DesiredConfig, reason: str) -> None:
    edited = containerd.configure({containerd.CONFIG: V2}, desired)
    assert "also lists runc" in edited.how
    assert reason in edited.how
    again = containerd.configure(apply_edits({containerd.CONFIG: V2}, edited), desired)
    assert "runc" not in again.how


def test_missing_runc_left_by_nvidia_ctk_is_repaired() -> None:
    broken = configure(V2, DesiredConfig(version=(2, 1)))
    assert not satisfies(inspect(broken), DesiredConfig(version=(1, 7)))
    assert "runc" in inspect(configure(broken, DesiredConfig(version=(1, 7)))).handlers


def test_correct_entry_keeps_its_keys_and_gets_the_cgroup_driver() -> None:
    data = (
        V2
        + f"""
[plugins."{CRI[2]}".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
options = {{ SystemdCgroup = true }} # as kubelet
[plugins."{CRI[2]}".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
container_annotations = ["cdi.k8s.io/*"]
options = {{ BinaryName = "{BINARY}" }} # ours
""".encode()
    )
    changed = data.replace(b'runtime" } # ours', b'runtime", SystemdCgroup = true } # ours')
    assert changed != data
    assert configure(data, DesiredConfig()) == changed


def nvidia_in(data: bytes) -> dict[str, Any]:
    table: dict[str, Any] = read(data)["plugins"][CRI[2]]["containerd"]["runtimes"]["nvidia"]
    return table


@pytest.mark.parametrize(
    ("default", "copied"),
    [("", "runc"), ("crun", "crun"), ("kata", "runc"), ("nvidia-legacy", "runc"), ("gone", "runc")],
)
def test_new_handler_copies_the_default_runtime(default: str, copied: str) -> None:
    tables = "".join(
        f"""
[plugins."{CRI[2]}".containerd.runtimes.{name}]
runtime_type = "io.containerd.{"kata" if name == "kata" else "runc"}.v2"
[plugins."{CRI[2]}".containerd.runtimes.{name}.options]
Root = "/{name}"
"""
        for name in ("nvidia-legacy", "kata", "crun", "runc")
    )
    data = f"""version = 2
[plugins."{CRI[2]}".containerd]
default_runtime_name = "{default}"
{tables}"""
    assert nvidia_in(configure(data.encode(), DesiredConfig())) == {
        "runtime_type": "io.containerd.runc.v2",
        "options": {"Root": f"/{copied}", "BinaryName": BINARY},
    }


@pytest.mark.parametrize(
    ("runc", "nvidia", "after"),
    [
        ({}, {"SystemdCgroup": True}, True),
        ({"SystemdCgroup": False}, {"SystemdCgroup": True}, True),
        ({"SystemdCgroup": True}, {}, True),
        ({"SystemdCgroup": True}, {"SystemdCgroup": False}, True),
        ({}, {"Root": "/x"}, None),
    ],
)
@pytest.mark.parametrize(
    "desired", [DesiredConfig(enable_cdi=True), DesiredConfig(default=True)], ids=["plain", "default"]
)
def test_existing_entry_follows_runc_to_the_systemd_cgroup_driver(
    runc: dict[str, Any], nvidia: dict[str, Any], after: bool | None, desired: DesiredConfig
) -> None:
    def options(table: dict[str, Any]) -> str:
        return ", ".join(f"{key} = {json.dumps(value)}" for key, value in table.items())

    data = f"""version = 2
[plugins."{CRI[2]}".containerd.runtimes]
runc = {{ runtime_type = "io.containerd.runc.v2", options = {{ {options(runc)} }} }}
nvidia = {{ runtime_type = "io.containerd.runc.v2", options = {{ {options({"BinaryName": BINARY, **nvidia})} }} }}
"""
    joined = {} if after is None else {"SystemdCgroup": after}
    assert nvidia_in(configure(data.encode(), desired))["options"] == {"BinaryName": BINARY, **nvidia, **joined}


def test_comment_inside_a_string_is_no_place_for_a_table() -> None:
    text = b'version = 2\nx = """\n# no comment"""\n[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]\n'
    out = configure(text, DesiredConfig(default=True))
    assert read(out)["x"] == "# no comment"
    assert inspect(out).default == "nvidia"


def test_new_table_is_placed_and_indented_like_its_neighbours() -> None:
    data = b"""version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    sandbox_image = "pause" # ours
    [plugins."io.containerd.grpc.v1.cri".containerd]
      # the default
      default_runtime_name = "runc" # of all pods
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        # Root = "/run"

# Something else.
[proxy_plugins]
"""
    ours = b"""      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
        runtime_type = "io.containerd.runc.v2"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
          BinaryName = "/usr/bin/nvidia-container-runtime"
"""
    head, tail = data.split(b"\n# Something else.")
    changed = head.replace(b'name = "runc"', b'name = "nvidia"') + ours + b"\n# Something else." + tail
    assert configure(data, DesiredConfig(default=True)) == changed


def test_handler_without_a_type_is_not_configured() -> None:
    data = V2 + f'[plugins."{CRI[2]}".containerd.runtimes.nvidia.options]\nBinaryName = "{BINARY}"\n'.encode()
    assert not satisfies(inspect(data), DesiredConfig(version=(2, 1)))
    nvidia = read(configure(data, DesiredConfig(version=(2, 1))))["plugins"][CRI[2]]["containerd"]["runtimes"]["nvidia"]
    assert nvidia == {"runtime_type": "io.containerd.runc.v2", "options": {"BinaryName": BINARY}}


@pytest.mark.parametrize("name", ["cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"])
def test_disabled_cri_plugin_is_reported_and_left(name: str) -> None:
    data = f'version = 2\ndisabled_plugins = ["aufs", "{name}"]\n'.encode()
    assert inspect(data).cri_disabled
    assert configure(data, DesiredConfig()).startswith(data)


def test_empty_file_has_no_settings() -> None:
    assert inspect(None) == inspect(b"") == ObservedConfig(schema=2)


@pytest.mark.parametrize(
    ("data", "place", "why"),
    [
        (b"version = 2\nx = \n", ":2: not valid TOML", "line 2"),
        (b"version = 2\nx = '\xff'\n", ":2:6: not UTF-8", "0xff"),
        (b"\n# x\nx = '\xff'\ny = 1\nz = 1\n", ":3:6: not UTF-8", "0xff"),
        (b"\n\xff\n", ":2:1: not UTF-8", "0xff"),
        (b"version = '2'\n", ":1: version is not a whole number", "'2'"),
        (b"version = true\n", ":1: version is not a whole number", "True"),
        (b"version = [2]\n", ":1: version is not a whole number", "[2]"),
        (b"version = 2\nplugins = 3\n", ":2: plugins is not a table", "3"),
        (b"version = 2\n[plugins.'io.containerd.grpc.v1.cri'.containerd]\nruntimes = []\n", ":3: plugins.", "[]"),
        (
            b"version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = 1\n",
            ".cri.enable_cdi is not true or",
            "1",
        ),
        (b"version = 5\n", "version = 5", "1, 2, 3, 4"),
    ],
)
def test_refusals_say_where_and_why(data: bytes, place: str, why: str) -> None:
    with pytest.raises(Refused) as refused:
        configure(data, DesiredConfig())
    assert "/etc/containerd/config.toml" in refused.value.what
    assert place in refused.value.what
    assert why in refused.value.why
    assert "/etc/containerd/config.toml" in refused.value.hint


@pytest.mark.parametrize(
    ("body", "what", "why"),
    [
        ("containerd.default_runtime_name = 7", ":3: {}.containerd.default_runtime_name is not a string", "it is 7"),
        ("containerd.runtimes.x = 'y'", ":3: {}.containerd.runtimes.x is not a table", "it is 'y'"),
        ("containerd.runtimes.x.options = []", ":3: {}.containerd.runtimes.x.options is not a table", "it is []"),
        (
            "containerd.runtimes.x.options.SystemdCgroup = 'yes'",
            ":3: {}.containerd.runtimes.x.options.SystemdCgroup is not true or false",
            "it is 'yes'",
        ),
        ("enable_cdi = 0", ":3: {}.enable_cdi is not true or false", "it is 0"),
    ],
)
def test_value_of_the_wrong_type_is_named_with_path_and_line(body: str, what: str, why: str) -> None:
    with pytest.raises(Refused) as refused:
        inspect(f"version = 2\n[plugins.'{CRI[2]}']\n{body}\n".encode())
    assert refused.value.what == "/etc/containerd/config.toml" + what.format(f"plugins.{CRI[2]}")
    assert refused.value.why == why


def test_omitted_handler_keys_are_read_as_containerd_does() -> None:
    at = f"[plugins.'{CRI[2]}'.containerd.runtimes"
    text = f"version = 2\n{at}.bare]\nruntime_type = 'io.x.v2'\n{at}.untyped.options]\nBinaryName = '/b'\n"
    assert inspect(text.encode()).handlers == {"bare": "", "untyped": ""}
    assert inspect(b"root = '/x'\n").schema == 1


def test_newer_schema_is_read_as_the_last_known_one() -> None:
    assert inspect(f"version = 4\n[plugins.'{CRI[3]}']\nenable_cdi = true\n".encode()).cdi is True


def test_uneditable_file_is_refused_with_a_hint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tomltext, "parse_toml", lambda _: {})
    with pytest.raises(Refused, match=r"config\.toml: gpunode found no way to write plugins ") as refused:
        configure(V2, DesiredConfig())
    assert "would also change other lines or settings" in refused.value.why
    assert "keep the handler in another file: --mode=drop-in" in refused.value.hint
    assert "write the CRI plugin's section of /etc/containerd/config.toml with table headers" in refused.value.hint


def test_line_that_cannot_be_preserved_is_named_with_a_hint() -> None:
    with pytest.raises(Refused, match=r"config\.toml:2: gpunode found no way to write plugins") as refused:
        configure(b"version = 2\nx = { a = 1979-05-27 }\n", DesiredConfig())
    assert "write line 2 with headers" in refused.value.hint


def test_schema_1_refuses_a_drop_in_with_a_hint() -> None:
    data = b'\n# as shipped\ndisabled_plugins = ["cri"]\n[plugins.cri]\nversion = 2\n[x]\n'
    with pytest.raises(Refused, match="schema 1 supports no drop-ins") as refused:
        containerd.configure({containerd.CONFIG: data}, DesiredConfig(mode="drop-in"))
    assert refused.value.why.startswith("without `version = 2` containerd reads the file as schema 1")
    assert "; the version on line 5 is below a table header" in refused.value.why
    assert (
        refused.value.hint
        == "edit the file itself:\nsudo gpunode ctk runtime configure --runtime containerd --mode in-place"
    )


@pytest.mark.parametrize("data", [b"version = 2\nx = \n", b"version = 2\nx = '\xff'\n", b"version = 2\nplugins = 3\n"])
def test_unparsable_file_and_dump_are_named_in_the_error(data: bytes) -> None:
    with pytest.raises(Refused, match=r"^/etc/containerd/config\.toml:2") as refused:
        inspect(data)
    assert "/etc/containerd/config.toml" in refused.value.hint
    with pytest.raises(Refused, match=r"^the output of `containerd config dump`:2"):
        containerd.parse_config_dump(data)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(Refused, match="not valid TOML"):
        configure(b"version = 2\nx = " + b"[" * 100_000, DesiredConfig())


@pytest.mark.parametrize("row", ["containerd", "crio"])
def test_main_file_as_its_own_drop_in_is_refused(row: str) -> None:
    main = find_runtime(row).config
    for files in ({}, {main: b""}):
        with pytest.raises(Refused, match="is the configuration file itself"):
            find_runtime(row).configure(files, DesiredConfig(mode="drop-in", drop_in=main, exact=True))


def test_relative_runtime_binary_is_refused() -> None:
    with pytest.raises(Refused, match=r"config\.toml: the runtime binary .* is not an absolute path") as refused:
        configure(None, DesiredConfig(binary="bin/nvidia-container-runtime"))
    assert "does not search" in refused.value.why
    assert BINARY in refused.value.hint


@pytest.mark.parametrize(
    "desired",
    [
        DesiredConfig(),
        DesiredConfig(default=True),
        DesiredConfig(systemd_cgroup=True),
        DesiredConfig(enable_cdi=True),
        DesiredConfig(version=(2, 1)),
        DesiredConfig("gpu"),
    ],
)
def test_bare_toolkit_name_stands_for_its_absolute_path(desired: DesiredConfig) -> None:
    alone = configure(None, replace(desired, binary="nvidia-container-runtime"))
    assert alone == configure(None, desired)
    assert inspect(alone).handlers[desired.handler] == BINARY


def test_dump_is_read_like_a_configuration() -> None:
    found = containerd.parse_config_dump(
        configure(None, DesiredConfig(default=True, enable_cdi=True, systemd_cgroup=True))
    )
    assert found.default == "nvidia"
    assert found.cdi is True
    assert found.systemd_cgroup == {"nvidia": True, "runc": True}


def test_satisfied_file_is_recognized_without_the_editor(monkeypatch: pytest.MonkeyPatch) -> None:
    desired = DesiredConfig(default=True, enable_cdi=True, systemd_cgroup=True)
    out = configure(None, desired)
    monkeypatch.setitem(sys.modules, "gpunode.runtimes.tomltext", None)
    assert configure(out, desired) == out


def test_unknown_runtime_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        find_runtime("rkt")


V1 = b'disabled_plugins = ["cri"]\n'
LEGACY = b"""[plugins.cri.containerd]
  [plugins.cri.containerd.default_runtime]
    runtime_type = "io.containerd.runtime.v1.linux"
"""


@pytest.mark.parametrize("version", [None, (1, 6), (2, 1)])
def test_file_of_schema_1_is_edited_in_place_because_of_its_schema(version: tuple[int, ...] | None) -> None:
    how = find_runtime("containerd").configure({containerd.CONFIG: V1}, DesiredConfig(version=version)).how
    assert how.startswith("in place: /etc/containerd/config.toml has configuration schema 1")


def test_containerd_2_reads_schema_1_under_its_new_plugin_name() -> None:
    out = configure(V1, DesiredConfig(version=(2, 1, 9), exact=True))
    found = read(out)
    assert "version" not in found
    assert set(found["plugins"]) == {"io.containerd.cri.v1.runtime"}
    assert inspect(out, DesiredConfig(version=(2, 1, 9))).handlers == {"nvidia": "/usr/bin/nvidia-container-runtime"}
    assert set(read(configure(V1, DesiredConfig(version=(1, 7))))["plugins"]) == {"cri"}


def test_legacy_default_runtime_is_replaced_with_a_note() -> None:
    desired = DesiredConfig(default=True, version=(1, 7))
    edited = containerd.configure({containerd.CONFIG: LEGACY}, desired)
    (edit,) = edited.edits
    assert edit.after is not None
    assert "default_runtime" not in read(edit.after)["plugins"]["cri"]["containerd"]
    assert any("io.containerd.runtime.v1.linux" in note for note in edited.notes)
    kept = containerd.configure({containerd.CONFIG: LEGACY}, replace(desired, default=False))
    assert b"[plugins.cri.containerd.default_runtime]" in (kept.edits[0].after or b"")


def test_legacy_systemd_cgroup_key_is_removed_with_its_default() -> None:
    legacy = LEGACY.replace(
        b"[plugins.cri.containerd]", b"[plugins.cri]\n  systemd_cgroup = true\n[plugins.cri.containerd]", 1
    )
    plugin = read(configure(legacy, DesiredConfig(default=True, version=(1, 7))))["plugins"]["cri"]
    assert "systemd_cgroup" not in plugin
    assert plugin["containerd"]["runtimes"]["nvidia"]["options"]["SystemdCgroup"] is True
    assert read(configure(legacy, DesiredConfig(version=(1, 7))))["plugins"]["cri"]["systemd_cgroup"] is True


def test_unknown_containerd_version_follows_nvidia_ctk_with_notes() -> None:
    desired = DesiredConfig(default=True, enable_cdi=True, exact=True, mode="in-place")
    edited = containerd.configure({containerd.CONFIG: LEGACY}, desired)
    assert b"default_runtime]" in (edited.edits[0].after or b"")
    assert any("does not become the default" in note for note in edited.notes)
    assert any("nvidia-ctk puts enable_cdi there" in note for note in edited.notes)


def test_cri_plugin_is_enabled_on_request_with_a_note() -> None:
    edited = containerd.configure({containerd.CONFIG: V1}, DesiredConfig(enable_cri=True, version=(1, 7)))
    found = read(edited.edits[0].after or b"")
    assert found["disabled_plugins"] == []
    assert "runc" in found["plugins"]["cri"]["containerd"]["runtimes"]
    assert any("is enabled" in note for note in edited.notes)


# As on a node of EKS: NVIDIA's runtime is the default, and only its entry has the settings that pods need.
THEIRS = """[plugins."CRI".containerd]
default_runtime_name = "DEFAULT"
[plugins."CRI".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."CRI".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
base_runtime_spec = "/etc/spec.json"
container_annotations = ["cdi.k8s.io/*"]
[plugins."CRI".containerd.runtimes.nvidia.options]
BinaryName = "BINARY"
SystemdCgroup = true
"""


@pytest.mark.parametrize("exact", [False, True], ids=["setup", "ctk"])
@pytest.mark.parametrize("default", ["nvidia", "runc"])
@pytest.mark.parametrize("binary", [BINARY, "/opt/nvidia-container-runtime"])
@pytest.mark.parametrize(
    ("schema", "version"), [(1, (1, 6, 20)), (2, (1, 7, 24)), (2, (2, 1, 9)), (3, (2, 1, 9)), (4, (2, 3)), (2, None)]
)
def test_existing_entry_keeps_every_key(
    schema: int, version: tuple[int, ...] | None, binary: str, default: str, exact: bool
) -> None:
    text = THEIRS.replace("CRI", CRI_PLUGIN_BY_SCHEMA[schema]).replace("DEFAULT", default).replace("BINARY", binary)
    files = {containerd.CONFIG: (f"version = {schema}\n" if schema > 1 else "").encode() + text.encode()}
    former = effective_cri_table(load_config_files(files, DesiredConfig(version=version)), DesiredConfig())[
        "containerd"
    ]
    for is_default in (False, True, False):
        desired = DesiredConfig(version=version, default=is_default, exact=exact)
        edited = containerd.configure(files, desired)
        assert is_default or binary != BINARY or not edited.edits
        files = dict(apply_edits(files, edited))
        now = effective_cri_table(load_config_files(files, desired), desired)["containerd"]
        entry = now["runtimes"]["nvidia"]
        kept = {key: value for key, value in former["runtimes"]["nvidia"].items() if key != "options"}
        assert {**entry, **kept} == entry
        assert entry["options"].items() >= {"BinaryName": BINARY, "SystemdCgroup": True}.items()
        assert now["runtimes"]["runc"] == former["runtimes"]["runc"]
        assert now["default_runtime_name"] == ("nvidia" if is_default else default)
        default, binary = now["default_runtime_name"], BINARY


@pytest.mark.parametrize("schema", [1, 2])
@pytest.mark.parametrize(
    ("kind", "under"),
    [("io.containerd.runc.v2", ".default_runtime.options]\nSystemdCgroup = true"),
     ("io.containerd.runtime.v1.linux", "]\nx = 1\n[plugins.'CRI']\nsystemd_cgroup = true")],
    ids=["options", "top-level"],
)  # fmt: skip
@pytest.mark.parametrize("desired", [DesiredConfig(), DesiredConfig(default=True)], ids=["plain", "default"])
def test_legacy_cgroup_driver_is_carried_over(schema: int, kind: str, under: str, desired: DesiredConfig) -> None:
    text = f"""version = {schema}
[plugins.'CRI'.containerd.default_runtime]
runtime_type = "{kind}"
[plugins.'CRI'.containerd{under}
"""
    data = text.replace("CRI", CRI_PLUGIN_BY_SCHEMA[schema]).encode()
    desired = replace(desired, version=(1, 7, 24))
    out = configure(data, desired)
    found = inspect(out, desired)
    assert found.systemd_cgroup["nvidia"] is True
    assert found.handlers.keys() == {"nvidia", "runc"}
    assert configure(out, desired) == out
    entry = f'runtime_type = "io.containerd.runc.v2"\noptions.BinaryName = "{BINARY}"\n'
    header = f"[plugins.'{CRI_PLUGIN_BY_SCHEMA[schema]}'.containerd.runtimes.nvidia]\n"
    existing = data.replace(b"\n", f"\n{header}{entry}".encode(), 1)
    assert not satisfies(inspect(existing, desired), desired)
    assert inspect(configure(existing, desired), desired).systemd_cgroup["nvidia"] is True


@pytest.mark.parametrize(
    ("schema", "version", "since"),
    [(3, (1, 6, 20), "2.0"), (3, (1, 7, 24), "2.0"), (4, (1, 7), "2.3"), (4, (2, 1, 9), "2.3")],
)
@pytest.mark.parametrize("is_there", [False, True])
def test_unsupported_schema_version_is_refused_with_the_reason(
    schema: int, version: tuple[int, ...], since: str, is_there: bool
) -> None:
    data = f"version = {schema}\n".encode()
    data = configure(data, DesiredConfig()) if is_there else data
    with pytest.raises(Refused, match=rf"config\.toml: version = {schema} is a configuration schema") as refused:
        configure(data, DesiredConfig(version=version))
    assert f"containerd {'.'.join(map(str, version))} cannot read" in refused.value.what
    assert f"containerd {since} is the first" in refused.value.why
    assert configure(data, DesiredConfig(version=(2, 3))) != b""


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ("containerd.runtimes = []", "containerd.runtimes"),
        ("containerd.runtimes.nvidia = 3", "containerd.runtimes.nvidia"),
        ("containerd.runtimes.runc.options = 3", "containerd.runtimes.runc.options"),
        ("containerd.default_runtime.options = 3", "containerd.default_runtime.options"),
        ("systemd_cgroup = 'yes'", "systemd_cgroup"),
    ],
)
def test_unimported_drop_in_is_checked_for_wrong_types(body: str, key: str) -> None:
    files = {
        containerd.CONFIG: V2,
        containerd.CONTAINERD_DROP_IN: f"version = 2\n[plugins.'{CRI[2]}']\n{body}\n".encode(),
    }
    with pytest.raises(Refused) as refused:
        containerd.configure(files, DesiredConfig(mode="drop-in", exact=True))
    assert refused.value.what.startswith(f"{containerd.CONTAINERD_DROP_IN}:3: plugins.{CRI[2]}.{key} is not ")


def test_schema_mismatch_is_noted_even_without_an_edit() -> None:
    theirs = f"version = 3\n[plugins.'{CRI[3]}'.containerd.runtimes.x]\nruntime_type = 'y'\n".encode()
    root = f"version = 2\nimports = ['/x.toml']\n{THEIRS.replace('CRI', CRI[2])}".replace("DEFAULT", "runc").replace(
        "BINARY", BINARY
    )
    files = {containerd.CONFIG: root.encode(), "/x.toml": theirs}
    edited = containerd.configure(files, DesiredConfig(exact=True))
    assert edited.edits == ()
    assert any("/x.toml has schema 3" in note for note in edited.notes)
