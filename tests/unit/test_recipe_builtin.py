from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gpunode import builtin
from gpunode.errors import RecipeError, UsageError
from gpunode.recipe import Recipe, RuntimeSettings, Toolkit
from gpunode.recipe.keys import known_keys

TOP = Path(__file__).parents[2]
SHIPPED = tuple(sorted(path.stem for path in (TOP / "recipes").glob("*.toml")))


def test_shipped_recipes_are_found_in_a_source_tree() -> None:
    assert builtin.shipped_recipe_names() == SHIPPED


@pytest.mark.parametrize(
    ("name", "toolkit", "runtime"),
    [
        ("bare-metal", Toolkit("none"), RuntimeSettings("none")),
        ("docker", Toolkit("auto"), RuntimeSettings("docker")),
        ("containerd", Toolkit("auto"), RuntimeSettings("containerd")),
        ("k8s-containerd", Toolkit("auto"), RuntimeSettings("containerd", cgroup_driver="systemd")),
        ("crio", Toolkit("auto"), RuntimeSettings("crio", install="never")),
        ("podman", Toolkit("auto"), RuntimeSettings("podman")),
        ("k3s", Toolkit("auto"), RuntimeSettings("containerd", install="never")),
        ("kind", Toolkit("auto", volume_mounts=True), RuntimeSettings("docker", set_as_default=True)),
    ],
)
def test_shipped_recipes_have_their_settings(name: str, toolkit: Toolkit, runtime: RuntimeSettings) -> None:
    got = builtin.read_recipe(name)
    assert got == Recipe(name, got.description, toolkit=toolkit, runtime=runtime, kubernetes=got.kubernetes)
    assert got.description


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipe_names_its_schema_and_is_commented(name: str) -> None:
    text = builtin.shipped_recipe_text(name)
    assert text.startswith("#:schema ./gpunode.schema.json\nschema = 1\n")
    assert text.count("\n# ") >= 2
    assert max(map(len, text.splitlines())) <= 120


def test_shipped_recipes_set_no_default_runtime_but_kind() -> None:
    for name in SHIPPED:
        # kind can only use docker's default runtime.
        assert builtin.read_recipe(name).runtime.set_as_default is (True if name == "kind" else None)
        assert builtin.read_recipe(name).expect == Recipe("x").expect


def test_own_recipe_extends_a_shipped_one(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "k8s-containerd"\n[driver]\nversion = "580"\n')
    got = builtin.read_recipe(str(path))
    assert (got.name, got.driver.version, got.runtime.cgroup_driver) == ("mine", "580", "systemd")


def test_unknown_name_is_guessed_and_known_ones_listed() -> None:
    with pytest.raises(UsageError, match="did you mean k8s-containerd") as stopped:
        builtin.read_recipe("k8s-containrd")
    assert ", ".join(SHIPPED) in stopped.value.why


@pytest.mark.parametrize("name", ["", "..", "containerd.", "CONTAINERD"])
def test_recipe_name_is_no_path(name: str) -> None:
    with pytest.raises(UsageError, match="there is no recipe"):
        builtin.read_recipe(name)


def test_unreadable_recipe_is_a_usage_error_with_its_reason(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the recipe") as stopped:
        builtin.read_recipe(f"{tmp_path}/gone.toml")
    assert stopped.value.hint.startswith("name a file that exists, or ")
    assert stopped.value.why == "No such file or directory"
    with pytest.raises(UsageError) as stopped:
        builtin.read_recipe(f"{tmp_path}/")
    assert stopped.value.why == "Is a directory"


@pytest.mark.parametrize(
    ("data", "line", "says"),
    [
        (b"# fine\n\xff\xfe\0binary", 2, "not text in UTF-8"),
        (b"\x1f\x8b\x08" + bytes(100), 1, "not text in UTF-8"),
        (b"\0" * 100, 1, "not TOML"),
        (b"#" * (10 << 20), 0, "longer than the 1 MiB"),
        ("driver = 'utf-16'".encode("utf-16"), 1, "not text in UTF-8"),
    ],
)
def test_invalid_recipe_file_is_refused(tmp_path: Path, data: bytes, line: int, says: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(data)
    with pytest.raises(RecipeError, match=says) as stopped:
        builtin.read_recipe(str(path))
    assert (stopped.value.file, stopped.value.line) == (str(path), line)


def test_keys_named_in_comments_exist() -> None:
    names = {key.name for key in known_keys()} | {"expect", "driver"}
    for line in builtin.shipped_recipe_text("bare-metal").splitlines():
        if line.startswith("#   ") and "=" in line:
            assert line.removeprefix("#   ").split(" ")[0] in names


@pytest.mark.usefixtures("allow_subprocess")
def test_shipped_recipes_are_found_in_a_zipapp(tmp_path: Path) -> None:
    packed = tmp_path / "gpunode.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted((TOP / "gpunode").rglob("*.py")):
            archive.write(path, path.relative_to(TOP))
        for path in sorted((TOP / "recipes").iterdir()):
            archive.write(path, f"gpunode/_recipes/{path.name}")
    said = "b.__file__, *b.shipped_recipe_names(), b.read_recipe('docker').runtime.name"
    code = f"from gpunode import builtin as b; print({said})"
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command,
        env={"PYTHONPATH": os.pathsep.join([str(packed), *sys.path])},
        cwd=tmp_path,
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode().split() == [f"{packed}/gpunode/builtin.py", *SHIPPED, "docker"]


def test_named_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.toml")
    with pytest.raises(UsageError, match="cannot read the recipe") as stopped:
        builtin.read_recipe(str(tmp_path / "x.toml"))
    assert stopped.value.why == "it is a named pipe, not a file"


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/null"])
def test_device_is_refused(place: str) -> None:
    with pytest.raises(UsageError) as stopped:
        builtin.read_recipe(place)
    assert "device" in stopped.value.why


def test_process_substitution_is_read() -> None:
    """The shell makes such a file for ``gpunode plan <(make-recipe)``."""
    reader, writer = os.pipe()
    os.write(writer, b'[driver]\nversion = "580"\n')
    os.close(writer)
    try:
        assert builtin.read_recipe(f"/dev/fd/{reader}").driver.version == "580"
    finally:
        os.close(reader)
