"""Mutated configuration files for all that edits them: an answer that holds, or a refusal, in bounded time.

Run by hand (docs/verification.md says when it was): in an environment with atheris and gpunode,

    python tests/fuzz/fuzz_runtimes.py toml CORPUS -max_total_time=600 -timeout=10 -rss_limit_mb=1024 -max_len=4096

for ``toml``, ``containerd``, ``docker`` or ``crio``. CORPUS is a folder that gets what it finds; it begins with the
inputs of tests/conformance/runtimes. An input that breaks a promise is left as a file in the current folder.
"""

from __future__ import annotations

import copy
import random
import sys
import zlib
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["gpunode", "tomllib", "tomli", "json"]):
    from gpunode.errors import Refused
    from gpunode.runtimes import DesiredConfig, Files, containerd, crio, docker, find_runtime  # noqa: F401 - so they are watched
    from gpunode.runtimes.documents import Document, Uneditable, is_same_value, parse_toml
    from gpunode.runtimes.model import Edit, Removal, apply_edits, satisfies
    from gpunode.runtimes.removal import remove_handler
    from gpunode.runtimes.reversal import revert_edit
from gpunode.runtimes.tomltext import edit_toml

INPUTS = Path(__file__).parent.parent / "conformance/runtimes"
VALUES: list[Any] = [1, True, "x", "a\n'\"", [], [1, "b"], {}, {"k": 1}, {"k": {"l": "m"}}, [{"k": 1}]]
WISHES = [
    DesiredConfig(),
    DesiredConfig(default=True, enable_cdi=True),
    DesiredConfig(systemd_cgroup=True, version=(1, 7, 24)),
    DesiredConfig(handler="a.b", version=(2, 1, 9), enable_cri=True),
    DesiredConfig(mode="in-place", exact=True, default=True),
]


# What stands in lines of TOML and JSON, and is easily taken for something else.
PIECES = [
    b"[a]", b"[[a]]", b"[a.b]", b"[[a.b]]", b"a.b.c = 1", b"a = {b.c = 1, d = {}}", b"a = [", b"]", b'"""', b"'''",
    b"# [a]", b'"a.b" = 1', b"= {", b"}", b"k = [1, # ]", b"\r", b"\\", b'"\\u0061" = 1', b"[plugins]", b"version = 3",
    b'[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]', b"imports = []", b'"runtimes": {},',
    b'"runtimes": null,', b'"features": {"cdi": false},', b"[crio.runtime]", b'disabled_plugins = ["cri"]',
]  # fmt: skip


def by_line(data: bytes, max_size: int, seed: int) -> bytes:
    """``data`` with lines moved, doubled, dropped or indented, or a telling piece among them; or mutated blindly."""
    chance = random.Random(seed)
    if chance.random() < 0.3:
        return bytes(atheris.Mutate(data, max_size))
    lines = data.split(b"\n")
    for _ in range(chance.randint(1, 4)):
        at, other, piece = chance.randrange(len(lines)), chance.choice(lines), chance.choice(PIECES)
        if chance.random() < 0.4 and len(lines) > 1:
            del lines[at]
        else:
            lines[at:at] = chance.choice([[other], [piece], [b"", b"  " + other], [other.rstrip(b"\r") + piece]])
    return b"\n".join(lines)[:max_size]


def toml(data: bytes) -> None:
    """Assert that any edit of any document reads as meant and is made once, or is refused."""
    text = data.decode(errors="ignore")
    try:
        before = parse_toml(text)
    except ValueError:
        return
    chance = random.Random(zlib.crc32(data))  # the same input is the same edit
    after = copy.deepcopy(before)
    for _ in range(chance.randint(1, 3)):
        _alter(after, chance)
    try:
        edited = edit_toml(text, before, after)
    except Uneditable:
        return
    assert is_same_value(parse_toml(edited), after)
    assert edit_toml(edited, parse_toml(edited), after) == edited
    back = revert_edit(Edit("/x.toml", text.encode(), edited.encode()), edited.encode() + b"\n")
    assert back is None or back.changed or is_same_value(parse_toml(back.content.decode()), before)


def _alter(table: Document, chance: random.Random) -> None:
    """Change one key at some place: add, set or remove it."""
    inside = [value for value in table.values() if isinstance(value, dict)]
    if inside and chance.random() < 0.6:
        _alter(chance.choice(inside), chance)
    elif table and chance.random() < 0.6:
        key = chance.choice(list(table))
        if chance.random() < 0.5:
            table[key] = copy.deepcopy(chance.choice(VALUES))
        else:
            del table[key]
    else:
        table[chance.choice(["k", "new.key", "ü"])] = copy.deepcopy(chance.choice(VALUES))


def _runtime(name: str, data: bytes) -> None:
    row, desired = find_runtime(name), WISHES[zlib.crc32(data) % len(WISHES)]
    files: Files = {row.config: data}
    try:
        row.inspect(files, desired)
        edited = row.configure(files, desired)
    except Refused:
        return
    after = apply_edits(files, edited)
    assert satisfies(row.inspect(after, desired), desired), "the desired handler is not there"
    if not desired.exact:
        assert not row.configure(after, desired).edits, "twice is not once"
    try:
        remove_handler(row, desired, Removal(after, after, after), {})
    except Refused:
        return


def main() -> None:
    """Fuzz what the first argument names; the rest is libFuzzer's."""
    what, corpus = sys.argv[1:3]
    targets = {"toml": toml, **{name: lambda data: _runtime(what, data) for name in ("containerd", "docker", "crio")}}
    folder = Path(corpus)
    folder.mkdir(parents=True, exist_ok=True)
    kind = ".json" if what == "docker" else ".toml"
    for seed in INPUTS.rglob(f"*{kind}"):
        (folder / f"{seed.parent.name}-{seed.name}").write_bytes(seed.read_bytes())
    atheris.Setup([sys.argv[0], *sys.argv[2:]], targets[what], custom_mutator=by_line)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
