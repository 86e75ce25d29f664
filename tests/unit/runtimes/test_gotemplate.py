from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.errors import Refused
from gpunode.runtimes import DesiredConfig
from gpunode.runtimes.gotemplate import configure_template, holds, unconfigure_template

PATH = "config-v3.toml.tmpl"
BASE = b'{{ template "base" . }}\n'
LINES = [
    '{{ template "base" . }}',
    "# ä",
    "[debug]",
    '  level = "debug"',
    "{{ if .IsRunningInUserNS }}",
    "{{ end }}",
    "",
]
TEMPLATES = st.tuples(st.lists(st.sampled_from(LINES)), st.sampled_from(["\n", "\r\n"]), st.booleans()).map(
    lambda made: (made[1].join(made[0]) + (made[1] if made[2] else "")).encode()
)


@given(TEMPLATES | st.none(), st.sampled_from([2, 3]), st.sampled_from(["nvidia", "gpu.x-1"]))
def test_taking_out_gives_back_every_byte(template: bytes | None, schema: int, handler: str) -> None:
    desired = DesiredConfig(handler)
    ours = configure_template(template, desired, schema, PATH)
    assert ours.startswith(b"{{/* gpunode: made this file */}}" if template is None else template)
    assert configure_template(ours, desired, schema, PATH) == ours
    assert unconfigure_template(ours, PATH) == template


@given(TEMPLATES)
def test_other_wishes_take_the_place_of_the_former(template: bytes) -> None:
    former = configure_template(template, DesiredConfig(), 3, PATH)
    written_since = former + b"# since\n"
    now = configure_template(written_since, DesiredConfig(binary="/opt/nvidia-container-runtime"), 3, PATH)
    assert now.count(b"gpunode: begin") == 1
    assert b"/opt/nvidia-container-runtime" in now
    assert unconfigure_template(now, PATH) == template + b"# since\n"


def test_a_byte_order_mark_stays() -> None:
    template = b"\xef\xbb\xbf" + BASE
    ours = configure_template(template, DesiredConfig(), 3, PATH)
    assert ours.startswith(template)
    assert unconfigure_template(ours, PATH) == template


def test_the_tables_are_guarded_only_where_k3s_renders_what_it_finds() -> None:
    assert b"if not" in configure_template(BASE, DesiredConfig(), 3, PATH)
    assert b"if not" in configure_template(b"{{range $k, $v := .ExtraRuntimes}}{{end}}\n", DesiredConfig(), 3, PATH)
    assert b"if not" not in configure_template(b"version = 3\n{{ end }}\n", DesiredConfig(), 3, PATH)


@pytest.mark.parametrize(
    "table",
    [
        b"[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\n",
        b'[plugins."io.containerd.cri.v1.runtime".containerd.runtimes."nvidia".options]\n',
    ],
)
def test_a_second_table_of_the_name_is_never_written(table: bytes) -> None:
    with pytest.raises(Refused, match="already defines"):
        configure_template(BASE + table, DesiredConfig(), 3, PATH)


def test_a_comment_and_another_name_are_no_table_of_the_name() -> None:
    template = BASE + b"# runtimes.nvidia]\n[plugins.x.containerd.runtimes.nvidia-cdi]\n"
    assert configure_template(template, DesiredConfig(), 3, PATH).startswith(template)


@pytest.mark.parametrize(
    "desired",
    [DesiredConfig("n{{v"), DesiredConfig(binary='/usr/bin/"x'), DesiredConfig(""), DesiredConfig(binary="/a b")],
)
def test_what_a_template_would_take_for_its_own_is_refused(desired: DesiredConfig) -> None:
    with pytest.raises(Refused, match="cannot be written"):
        configure_template(BASE, desired, 3, PATH)


def test_another_runtime_does_not_take_the_place_of_the_first() -> None:
    first = configure_template(None, DesiredConfig(), 3, "/t")
    with pytest.raises(Refused, match="another runtime") as refused:
        configure_template(first, DesiredConfig("nv2"), 3, "/t")
    assert refused.value.hint.endswith("--nvidia-runtime-name nvidia")
    assert holds(first, "nvidia")
    assert not holds(first, "nv2")
