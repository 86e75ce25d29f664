"""Canaries: a secret in every place where nodes have one, searched for in every byte that gpunode prints or writes."""

from __future__ import annotations

import base64
import json
import stat
import tarfile
from pathlib import Path

import pytest

from gpunode.facts.probes import list_probes
from gpunode.host.capture import save_capture
from gpunode.host.local import LocalHost
from gpunode.workflow.converge import run_probes
from tests.conformance.hostile.image import CONFIG_TOML, DAEMON_JSON, OWN, Done, Image, gpunode, make_image, needs_root

pytestmark = needs_root
CANARY = "c4n4ry"
BASIC = base64.b64encode(f"robot:{CANARY}".encode()).decode()
MARKS = (CANARY, BASIC.rstrip("=")[:12], CANARY.encode().hex())
PEM = f"-----BEGIN EC PRIVATE KEY-----\n{CANARY}\n{CANARY}\n-----END EC PRIVATE KEY-----\n"
DOCKER = {
    "registry-mirrors": [f"https://robot:{CANARY}@mirror.example/"],
    "proxies": {"http-proxy": f"http://robot:{CANARY}@proxy.example:3128"},
    "log-opts": {"splunk-token": CANARY, "gelf-address": f"udp://robot:{CANARY}@h:1"},
    "auths": {"reg.example": {"auth": BASIC, "identitytoken": CANARY}},
    "HttpHeaders": {"X-Meta-Team": CANARY},
}
CONTAINERD = f'''version = 2
[proxy_plugins.x]
  address = "https://h/?access_token={CANARY}&sig={CANARY}"
[plugins."io.containerd.grpc.v1.cri".registry.mirrors."docker.io"]
  endpoint = ["https://robot:{CANARY}@mirror.example"]
[plugins."io.containerd.grpc.v1.cri".registry.configs."reg.example".auth]
  username = "robot"
  password = "{CANARY}"
  auth = "{BASIC}"
  identitytoken = """
{CANARY}
"""
[plugins."io.containerd.grpc.v1.cri".registry.headers]
  X-Team = [
    "{CANARY}",
  ]
  Authorization = ["Bearer {CANARY}.{CANARY}"]
# {PEM.replace(chr(10), chr(10) + "# ")}
'''
SOURCES = f"deb https://robot:{CANARY}@mirror.example/debian bookworm main\n"
ENVIRONMENT = dict.fromkeys(("http_proxy", "HTTPS_PROXY", "all_proxy"), f"http://robot:{CANARY}@proxy.example:3128")
MIRRORS = (
    f"https://robot:{CANARY}@mirror.example/cuda",
    f"https://{CANARY}@mirror.example",
    f"https://mirror.example/?token={CANARY}",
)


@pytest.fixture
def image(tmp_path: Path) -> Image:
    made = make_image(tmp_path)
    made.path(DAEMON_JSON).write_text(json.dumps(DOCKER, indent=2))
    made.path(CONFIG_TOML).write_text(CONTAINERD)
    made.path("etc/apt/sources.list").write_text(SOURCES)
    made.path("etc/apt/sources.list.d/own.list").write_text(SOURCES)
    for name in (DAEMON_JSON, CONFIG_TOML, "etc/apt/sources.list.d/own.list"):
        made.path(name).chmod(0o600)
    return made


def silent(done: Done) -> Done:
    assert [mark for mark in MARKS if mark in done.said] == [], done.said
    return done


def unspoken(image: Image) -> None:
    """Assert that gpunode wrote no canary, except into backups, which root alone can read."""
    for path in sorted(path for name in OWN for path in image.path(name).rglob("*") if path.is_file()):
        content = path.read_bytes()
        if any(mark.encode() in content for mark in MARKS):
            assert "objects" in path.parts, path
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for name in OWN:
        for folder in image.path(name).rglob("gpunode"):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


@pytest.mark.parametrize("runtime", ["docker", "containerd"])
@pytest.mark.parametrize("more", [(), ("--json",), ("-v",)], ids=["plain", "json", "verbose"])
def test_no_secret_is_printed_or_stored_over_all_commands(image: Image, runtime: str, more: tuple[str, ...]) -> None:
    config = image.path({"docker": DAEMON_JSON, "containerd": CONFIG_TOML}[runtime])
    before, recipe, root = config.read_bytes(), str(image.recipe(runtime)), ("--root", str(image.root))
    said = [
        gpunode("plan", recipe, *root, *more, env=ENVIRONMENT),
        image.setup(runtime, *more, env=ENVIRONMENT),
        image.rollback("--list", *[word for word in more if word == "--json"]),
        gpunode("log", *root, *[word for word in more if word == "--json"]),
        image.rollback("--yes", *more),
        image.setup(runtime, *more, env=ENVIRONMENT),
    ]
    for done in said:
        assert silent(done).exit_code == 0, done.said
    assert CANARY.encode() in config.read_bytes()
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    # Edited since, among secrets: the conflict shows the edit and nothing else.
    config.write_bytes(
        config.read_bytes().replace(CANARY.encode(), f"{CANARY}new".encode(), 3).replace(b"\n", b"\n\n", 1)
    )
    assert silent(image.rollback("--yes", *more)).exit_code == 5
    unspoken(image)
    assert before != config.read_bytes()


@pytest.mark.parametrize(
    ("runtime", "damage"),
    [
        ("docker", f'{{"auths": {{"r": {{"auth": "{BASIC}" "x"}}}}}}'),
        ("docker", f'{{"runtimes": "https://robot:{CANARY}@h"}}'),
        ("containerd", f'version = 2\npassword = "{CANARY}'),
        ("containerd", f'version = 2\nplugins = "https://robot:{CANARY}@h"\n'),
        ("containerd", f'version = 2\n[a]\ntoken = "{CANARY}"\ntoken = "{CANARY}"\n'),
    ],
)
@pytest.mark.parametrize("more", [(), ("--json",)], ids=["plain", "json"])
def test_error_quotes_no_secret(image: Image, runtime: str, damage: str, more: tuple[str, ...]) -> None:
    image.path({"docker": DAEMON_JSON, "containerd": CONFIG_TOML}[runtime]).write_text(damage)
    assert silent(image.setup(runtime, *more, env=ENVIRONMENT)).exit_code == 3
    unspoken(image)


@pytest.mark.parametrize("mirror", MIRRORS)
@pytest.mark.parametrize("words", [("check",), ("check", "--json"), ("show",)])
def test_password_in_a_mirror_address_is_refused(image: Image, mirror: str, words: tuple[str, ...]) -> None:
    """Every user can read apt's lists and the arguments of its downloader: both would show it."""
    recipe = image.recipe()
    recipe.write_text(f'[repositories]\ncuda = "{mirror}"\n')
    done = silent(gpunode("recipe", words[0], str(recipe), *words[1:]))
    assert done.exit_code == 2
    assert "repositories.cuda" in done.said
    assert "/etc/apt/auth.conf.d" in done.said


def test_remote_recipe_is_refused_without_its_password(image: Image) -> None:
    recipe = image.recipe()
    recipe.write_text(f'extends = "https://robot:{CANARY}@example.org/x.toml"\n')
    assert silent(gpunode("plan", str(recipe))).exit_code == 2
    assert silent(gpunode("plan", f"https://robot:{CANARY}@example.org/x.toml")).exit_code == 2


def test_shown_recipe_contains_no_secret(image: Image) -> None:
    recipe = image.recipe()
    recipe.write_text(f'description = "see https://robot:{CANARY}@wiki.example" # password = {CANARY}\n')
    for more in ((), ("--json",)):
        assert silent(gpunode("recipe", "show", str(recipe), *more)).exit_code == 0


def test_capture_contains_no_secret(image: Image, tmp_path: Path) -> None:
    save_capture(run_probes(LocalHost(str(image.root)), list_probes(image=True)), tmp_path / "node.tgz")
    with tarfile.open(tmp_path / "node.tgz") as archive:
        files = {one.name: archive.extractfile(one).read() for one in archive}  # type: ignore[union-attr]
    assert len(files) > 5
    for name, data in files.items():
        assert [mark for mark in MARKS if mark.encode() in data] == [], name
    assert stat.S_IMODE((tmp_path / "node.tgz").stat().st_mode) == 0o600
