"""Hostile things in place of a configuration file: a clear answer, and nothing is changed."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.hostile.image import (
    CONFIG_TOML,
    DAEMON_JSON,
    Image,
    command,
    gpunode,
    make_image,
    needs_root,
    shell,
)

pytestmark = needs_root
FILES = {"docker": DAEMON_JSON, "containerd": CONFIG_TOML}


@pytest.fixture
def image(tmp_path: Path) -> Iterator[Image]:
    made = make_image(tmp_path)
    yield made
    assert [str(path) for path in made.root.rglob(".gpunode-*")] == []


def node(kind: int, number: tuple[int, int] = (0, 0)) -> Callable[[Path], None]:
    return lambda path: os.mknod(path, kind | 0o600, os.makedev(*number))


def make_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # its address must be short
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
    finally:
        os.chdir(here)


def text(content: str | bytes) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(data)


def endless(path: Path) -> None:
    path.touch()
    os.truncate(path, 20 << 30)


# The object in place of the file, the exit code and the answer's words.
ANY = {
    "a pipe": (node(stat.S_IFIFO), 13, "it is a named pipe"),
    "a device": (node(stat.S_IFCHR, (1, 5)), 13, "it is a character device"),
    "a disk": (node(stat.S_IFBLK, (7, 99)), 13, "it is a block device"),
    "a socket": (make_socket, 13, "it is a socket"),
    "a folder": (Path.mkdir, 13, "it is a folder"),
    "links in a circle": (lambda path: path.symlink_to(path.name), 13, "Too many levels of symbolic links"),
    "50 MiB": (text(b" " * (50 << 20)), 13, "longer than"),
    "20 GiB": (endless, 13, "longer than"),
    "no text": (text(bytes(range(128, 256))), 3, ":1:1: not UTF-8 text"),
    "NUL": (text(b"\n\0"), 3, ":2"),
}
DOCKER = {
    "no JSON": (text('{\n  "a" = 1\n}'), 3, "daemon.json:2:7: not valid JSON"),
    "more after it": (text("{}\n{}"), 3, "daemon.json:2:1: not valid JSON"),
    "a key twice": (text('{"runtimes": {},\n"runtimes": {}}'), 3, "daemon.json:2:"),
    "endless nesting": (text("[" * 200_000), 3, "nested too deeply"),
    "another shape": (text('{\n"runtimes": [1]}'), 3, "daemon.json:2:13: runtimes is not an object"),
    "no object": (text("[]"), 3, "daemon.json"),
}
CONTAINERD = {
    "no TOML": (text("version = 2\n[plugins\n"), 3, "config.toml:2: not valid TOML"),
    "a key twice": (text("version = 2\nversion = 2\n"), 3, "config.toml:2: not valid TOML"),
    "endless nesting": (text("a = " + "[" * 200_000), 3, "Nested too deeply"),
    "an endless key": (text("version = 2\n" + ".".join("a" * 20_000) + " = 1\n"), 3, "config.toml:2: not valid TOML"),
    "a number without an end": (text("version = " + "9" * 5000), 3, "not valid TOML"),
    "another shape": (text("version = 2\nplugins = 3\n"), 3, "config.toml:2: plugins is not a table"),
}
CASES = [
    pytest.param(runtime, *case, id=f"{runtime}: {name}")
    for runtime, own in (("docker", DOCKER), ("containerd", CONTAINERD))
    for name, case in {**ANY, **own}.items()
]


@pytest.mark.parametrize(("runtime", "plant", "exit_code", "says"), CASES)
def test_invalid_configuration_file_stops_before_any_change(
    image: Image, runtime: str, plant: Callable[[Path], object], exit_code: int, says: str
) -> None:
    path = image.path(FILES[runtime])
    path.unlink()
    plant(path)
    before = image.tree()
    done = image.setup(runtime)
    assert (done.exit_code, "Traceback" in done.said) == (exit_code, False), done.said
    assert f"/{FILES[runtime]}" in done.err
    assert says in done.err
    assert "next: " in done.err
    assert image.tree() == before
    assert not image.path("var/lib/gpunode/runs").exists()


@pytest.mark.parametrize(
    ("name", "exit_code"), [("var/lib/dpkg/status", 13), ("etc/apt/preferences.d/x", 0), ("etc/apt/sources.list", 0)]
)
@pytest.mark.parametrize(
    "plant", [ANY["a pipe"][0], ANY["a device"][0], ANY["links in a circle"][0], ANY["no text"][0]]
)
def test_special_package_file_does_not_block(
    image: Image, name: str, exit_code: int, plant: Callable[[Path], object]
) -> None:
    """Without dpkg's status nothing can be decided; an unreadable source matters only if a source is added."""
    path = image.path(name)
    path.unlink(missing_ok=True)
    plant(path)
    done = gpunode("plan", str(image.recipe()), "--root", str(image.root))
    assert done.exit_code == exit_code, done.said
    assert "Traceback" not in done.said


def test_symlink_out_of_an_image_is_resolved_inside(image: Image) -> None:
    outside = image.folder / "outside"
    outside.mkdir()
    (outside / "daemon.json").write_text("{}")
    for target in (f"{outside}/daemon.json", "../../../outside/daemon.json"):
        path = image.path(DAEMON_JSON)
        path.unlink()
        path.symlink_to(target)
        assert image.setup().exit_code == 0
        assert (outside / "daemon.json").read_text() == "{}"
        assert os.readlink(path) == target
    assert [path.name for path in outside.iterdir()] == ["daemon.json"]


def test_unreadable_file_is_reported(image: Image) -> None:
    """A file system such as NFS treats even root as another user."""
    os.chown(image.path(DAEMON_JSON), 1234, 1234)
    image.path(DAEMON_JSON).chmod(0o600)
    powerless = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
    done = shell((*powerless, *command(), "plan", str(image.recipe()), "--root", str(image.root)))
    assert done.exit_code == 13, done.said
    assert "daemon.json is not readable" in done.err
