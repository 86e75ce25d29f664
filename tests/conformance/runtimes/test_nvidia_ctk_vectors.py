"""Our in-place configuration against what the real nvidia-ctk made of the same files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import pytest

from gpunode.errors import Refused
from gpunode.runtimes import RUNTIMES, Wish, runtime, satisfies
from tests.unit.runtimes.docker_file import configure as configure_docker
from tests.unit.runtimes.one_file import configure as configure_containerd
from tests.unit.runtimes.one_file import inspect as inspect_containerd

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).parent
VECTORS = sorted((HERE / "vectors").iterdir())
INPUTS = sorted((HERE / "inputs").glob("*.toml"))

# Every vector of containerd and docker is run here, or waits for a stated reason. 001-062 are drop-in runs: where their
# input is of a schema that is edited in place, test_drop_in_inputs_* below configures it in place.
WAITS_FOR_DROP_INS = range(1, 63)
WAITS = {
    74: "schema 1: converted by nothing yet, refused with what to do (021-023 below)",
    75: "schema 1",
    76: "schema 1",
    105: "a flag of the nvidia-ctk front end: --drop-in-config with docker",
    108: "a flag of the nvidia-ctk front end: --dry-run",
    109: "a flag of the nvidia-ctk front end: --config-source",
    111: "a default of the nvidia-ctk front end: docker when --runtime is missing, --dry-run",
}
REFUSED_INPUTS = {
    "040": "not valid TOML",
    "041": "version is not a whole number",
    "054": "runc is not a table",
    "059": "not valid TOML",
}

EDITED = [file for file in INPUTS if file.name[:3] not in REFUSED_INPUTS]


def _number(path: Path) -> int:
    return int(path.name[:3])


def _vector(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "vector.json").read_text())
    return found


def _wish(vector: Mapping[str, Any]) -> Wish:
    """The wish that the vector's command line expresses."""
    flags: dict[str, str] = dict(argument.partition("=")[::2] for argument in vector["argv"])
    bare = "nvidia-container-runtime"  # nvidia-ctk's default; docker searches its PATH for it
    binary = flags.get("--nvidia-runtime-path", flags.get("--runtime-path", bare))
    return Wish(
        handler=flags.get("--nvidia-runtime-name", "nvidia"),
        binary=f"/usr/bin/{bare}" if binary == bare and vector["runtime"] == "containerd" else binary,
        default=not {"--set-as-default", "--nvidia-set-as-default"}.isdisjoint(flags),
        cdi=not {"--cdi.enabled", "--cdi.enable", "--enable-cdi"}.isdisjoint(flags),
    )


def _bytes(folder: Path, name: str) -> bytes | None:
    found = next(folder.glob(f"{name}.*"), None)
    return found.read_bytes() if found else None


def _parsed(kind: str, data: bytes) -> Any:
    return json.loads(data) if kind == "docker" else tomllib.loads(data.decode())


def _holds(ours: Any, theirs: Any) -> bool:
    """Whether ``ours`` has all of ``theirs``; nvidia-ctk takes numbers through floats."""
    if isinstance(theirs, dict):
        return isinstance(ours, dict) and all(key in ours and _holds(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, int | float) and not isinstance(theirs, bool):
        return float(ours) == float(theirs)
    return bool(ours == theirs)


def test_every_vector_is_run_or_waits_for_a_stated_reason() -> None:
    run = {_number(folder) for folder in VECTORS}
    assert run.isdisjoint(WAITS)
    assert run | set(WAITS) | set(WAITS_FOR_DROP_INS) == set(range(1, 120))


@pytest.mark.parametrize("folder", VECTORS, ids=lambda folder: folder.name)
def test_in_place_vectors(folder: Path) -> None:
    vector = _vector(folder)
    configure = configure_docker if vector["runtime"] == "docker" else configure_containerd
    data, wish = _bytes(folder, "input"), _wish(vector)
    if vector["gpunode_should"] == "refuse":
        with pytest.raises(Refused) as refused:
            configure(data, wish)
        assert refused.value.hint
        return
    out = configure(data, wish)
    assert configure(out, wish) == out
    row = runtime(vector["runtime"])
    assert satisfies(row.inspect({row.config: out}, wish), wish)
    if vector["gpunode_should"] == "deviate":
        return  # each has a test of its own below
    ours, theirs = (_parsed(vector["runtime"], text) for text in (out, _bytes(folder, "expected") or b""))
    if vector["gpunode_should"] == "match":
        assert ours == theirs
    else:
        assert _holds(ours, theirs)


def test_deviations_are_these() -> None:
    deviating = {_number(folder) for folder in VECTORS if _vector(folder)["gpunode_should"] == "deviate"}
    assert deviating == {89, 97, 104}


def test_089_an_empty_daemon_json_counts_as_an_empty_object() -> None:
    assert json.loads(configure_docker(b"", Wish())) == {
        "runtimes": {"nvidia": {"args": [], "path": "/usr/bin/nvidia-container-runtime"}}
    }


def test_097_other_features_survive_cdi() -> None:
    folder = next(folder for folder in VECTORS if _number(folder) == 97)
    features = json.loads(configure_docker(_bytes(folder, "input"), Wish(cdi=True)))["features"]
    assert features == {"buildkit": True, "containerd-snapshotter": True, "cdi": True}


def test_104_null_counts_as_absent() -> None:
    out = json.loads(configure_docker(b'{"runtimes": null, "features": null, "debug": true}', Wish(cdi=True)))
    assert out["debug"] is True
    assert out["features"] == {"cdi": True}
    assert list(out["runtimes"]) == ["nvidia"]


@pytest.mark.parametrize("version", [None, (1, 7, 24), (2, 1)], ids=["unknown", "1.7", "2.1"])
@pytest.mark.parametrize(
    "folder",
    [folder for folder in VECTORS if "ctd" in folder.name and _number(folder) != 82],
    ids=lambda folder: folder.name,
)
def test_the_cri_plugin_keeps_its_default_runtime(folder: Path, version: tuple[int, ...] | None) -> None:
    """nvidia-ctk's answer to 063 and 079 leaves containerd 1.6 and 1.7 without a CRI plugin."""
    for wish in (Wish(version=version), Wish(version=version, systemd_cgroup=True)):
        found = inspect_containerd(configure_containerd(_bytes(folder, "input"), wish))
        built_in = {"runc"} if version and version >= (2,) and not wish.systemd_cgroup else set()
        # A schema 3 file is containerd 2's, whatever is known of the daemon.
        built_in |= {"runc"} if found.schema == 3 and not wish.systemd_cgroup else set()
        assert (found.default or "runc") in {*found.handlers, *built_in}


def _outside_our_keys(document: dict[str, Any]) -> dict[str, Any]:
    """``document`` without what configuring may change."""
    plugins = {name: dict(table) for name, table in document.get("plugins", {}).items()}
    for name in ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"):
        cri = plugins.pop(name, {})
        containerd = dict(cri.pop("containerd", {}))
        runtimes = dict(containerd.pop("runtimes", {}))
        containerd.pop("default_runtime_name", None)
        cri.pop("enable_cdi", None)
        runtimes.pop("nvidia", None)
        if not {"snapshotter", "SystemdCgroup"} & {
            *runtimes.get("runc", {}),
            *runtimes.get("runc", {}).get("options", {}),
        }:
            runtimes.pop("runc", None)  # one that we may have added
        plugins[name] = {"cri": cri, "containerd": containerd, "runtimes": runtimes}
    rest = {key: value for key, value in document.items() if key not in {"plugins", "version"}}
    return {**rest, "plugins": plugins}


@pytest.mark.parametrize(
    "file", [file for file in INPUTS if file.name[:3] in REFUSED_INPUTS], ids=lambda file: file.stem
)
def test_drop_in_inputs_that_are_refused(file: Path) -> None:
    with pytest.raises(Refused, match=REFUSED_INPUTS[file.name[:3]]) as refused:
        configure_containerd(file.read_bytes(), Wish())
    assert refused.value.hint
    assert "/etc/containerd/config.toml" in refused.value.what


@pytest.mark.parametrize("wish", [Wish(), Wish(default=True, cdi=True)], ids=["plain", "default-cdi"])
@pytest.mark.parametrize("file", EDITED, ids=lambda file: file.stem)
def test_drop_in_inputs_in_place(file: Path, wish: Wish) -> None:
    data = file.read_bytes()
    out = configure_containerd(data, wish)
    assert configure_containerd(out, wish) == out
    assert satisfies(inspect_containerd(out), wish)
    before, after = (tomllib.loads(text.decode()) for text in (data, out))
    assert _outside_our_keys(after) == _outside_our_keys(before)
    assert after["version"] == before.get("version", 1 if before else 2)


# What a line may say that goes or changes when a handler is added and made the default.
OURS = (b"default_runtime_name", b"enable_cdi")
# A stale nvidia entry is replaced, and a document that stands on one line changes in that line.
STALE = {"012", "013", "018", "026", "034"}


@pytest.mark.parametrize("file", [file for file in EDITED if file.name[:3] not in STALE], ids=lambda file: file.stem)
def test_no_other_line_changes(file: Path) -> None:
    former = file.read_bytes().splitlines(keepends=True)
    new = configure_containerd(b"".join(former), Wish(default=True, cdi=True)).splitlines(keepends=True)
    edits = SequenceMatcher(None, former, new, autojunk=False).get_opcodes()
    lost = [line for kind, start, end, _, _ in edits if kind in {"replace", "delete"} for line in former[start:end]]
    assert all(any(key in line for key in OURS) for line in lost), lost


def test_the_rows_are_complete() -> None:
    assert [row.id for row in RUNTIMES] == ["containerd", "docker", "crio", "podman"]
    for row in RUNTIMES:
        assert row.config.startswith("/etc/") is bool(row.unit)  # podman registers no handler
        assert row.config_from <= set(row.packages)
