"""Promises of the project about itself: one version, complete wheels, current pages, working links."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import pkgutil
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import gpunode

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("gpunode/**/*.md")])
SAMPLES = ROOT / "gpunode/samples"
# Markdown's inline links, outside of code: [text](target "title").
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


def tracked_files() -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout, so nobody knows which files are the project's")
    return [ROOT / name.decode() for name in listing.stdout.split(b"\0") if name]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_version_equals_the_installed_metadata() -> None:
    try:
        installed = importlib.metadata.version("gpunode")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("gpunode runs from its source tree here; it has no metadata to compare with")
    assert gpunode.__version__ == installed


def test_changelog_has_an_entry_for_this_version() -> None:
    heads = re.findall(r"^## \[?([^\]\s]+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert {gpunode.__version__, "Unreleased"} & set(heads)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    if importlib.util.find_spec("pip") is None:
        pytest.skip("pip is not installed here, so no wheel is built")
    folder = tmp_path_factory.mktemp("wheel")
    build = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    if importlib.util.find_spec("hatchling") is not None:
        build.insert(3, "--no-build-isolation")
    done = subprocess.run([sys.executable, *build], capture_output=True, text=True, check=False)
    if done.returncode and "--no-build-isolation" not in build:
        pytest.skip(f"hatchling could not be fetched: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return zipfile.ZipFile(next(folder.glob("*.whl")))


def test_wheel_contains_everything_needed_without_the_source_tree(wheel: zipfile.ZipFile) -> None:
    held = set(wheel.namelist())
    recipes = {f"gpunode/_recipes/{path.name}" for path in (ROOT / "recipes").iterdir() if path.is_file()}
    tables = {str(path.relative_to(ROOT)) for path in (ROOT / "gpunode/catalog").glob("*.csv")}
    samples = {str(path.relative_to(ROOT)) for path in SAMPLES.rglob("*") if path.is_file()}
    texts = {str(path.relative_to(ROOT)) for path in (ROOT / "gpunode/diagnoses").rglob("*.md")}
    assert recipes | tables | samples | texts | {"gpunode/py.typed"} <= held
    assert not [name for name in held if "ansible" in name], "the collection is built for itself: make collection"


def test_wheel_contains_the_notices_for_its_data(wheel: zipfile.ZipFile) -> None:
    held = {Path(name).name: name for name in wheel.namelist()}
    assert b"supported-gpus.json" in wheel.read(held["NOTICE"])
    assert "LICENSE" in held


def test_wheel_contains_no_tests_and_no_cache(wheel: zipfile.ZipFile) -> None:
    assert not [name for name in wheel.namelist() if "__pycache__" in name or name.startswith("tests/")]


def test_every_module_that_a_string_names_exists() -> None:
    packages = "|".join(path.parent.name for path in sorted(ROOT.glob("gpunode/*/__init__.py")))
    name = re.compile(rf"gpunode\.(?:{packages})(?:\.\w+)*")
    missing = []
    for path in sorted([*ROOT.glob("gpunode/**/*.py"), *ROOT.glob("tests/**/*.py")]):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and name.fullmatch(node.value):
                try:
                    pkgutil.resolve_name(node.value)
                except (ImportError, AttributeError):
                    missing.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.value}")
    assert missing == []


def test_generated_pages_are_current() -> None:
    pages: Callable[[], dict[Path, str]] = generator().render_pages
    stale = [path.name for path, text in pages().items() if not path.is_file() or path.read_text("utf-8") != text]
    assert not stale, f"run `make docs`: {', '.join(stale)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_internal_link_is_valid(page: Path) -> None:
    text = CODE.sub("", page.read_text("utf-8"))
    dead = []
    for target in LINK.findall(text):
        place, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", place):
            continue
        aim = (page.parent / place).resolve() if place else page
        if not aim.exists() or (anchor and aim.suffix == ".md" and anchor not in anchors(aim)):
            dead.append(target)
    assert not dead


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page."""
    heads = re.findall(r"^#{1,6} (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_page_is_linked_from_the_index() -> None:
    docs = ROOT / "docs"
    linked = {
        (index.parent / target.partition("#")[0]).resolve()
        for index in docs.glob("**/index.md")
        for target in LINK.findall(index.read_text("utf-8"))
    }
    pages = {page for page in docs.glob("**/*.md") if page != docs / "index.md"}
    assert not {page for page in pages if page not in linked and page.parent not in linked - {docs}}


def test_every_file_named_after_gpunode_is_in_the_list_of_changes() -> None:
    page = (ROOT / "docs/explanation/what-gpunode-changes.md").read_text("utf-8")
    sources = "".join(path.read_text("utf-8") for path in sorted((ROOT / "gpunode").rglob("*.py")))
    written = set(re.findall(r'"/etc/[^"{}]*/(gpunode-[a-z]+[^"{}/]*)"', sources))
    assert len(written) >= 9
    assert sorted(name for name in written if name not in page) == []


def machine_traces() -> list[str]:
    """Return patterns for the traces of this machine in a file: the checkout's path, or its top folder alone."""
    top = ROOT.parts[1] if len(ROOT.parts) > 1 else ""
    common = {"", "home", "root", "tmp", "usr", "var", "opt", "srv", "mnt", "media", "data", "builds", "Users"}
    # The checkout /tmp/new is not in the way of a file /tmp/new.xml.
    return [rf"{re.escape(str(ROOT))}(?![\w.-])", *([] if top in common else [f"/{re.escape(top)}/"])]


def test_no_path_of_the_development_machine_is_left() -> None:
    # A folder of that name deeper in a path does not count: reports quote paths of other machines.
    traces = re.compile("|".join(rf"(?<![\w.-]){trace}" for trace in machine_traces()))
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()[:80]}"
        for path in tracked_files()
        if path.is_file()
        for line in path.read_bytes().decode("utf-8", "replace").splitlines()
        if traces.search(line)
    ]
    assert not found


# doctor reads what any system prints; kind's node image is Debian's; hints for a machine that is not the node, or
# for a recipe, have no facts. The local host loads apt's adapter on use, and the session the one of images.
_KNOW_APT = (
    "packages/deb/",
    "host/apt",
    "host/image_apt.py",
    "host/local.py",
    "cli/session.py",
    "distros/",
    "catalog/",
    "diagnoses/",
    "host/cluster.py",
    "kubernetes/kind.py",
    "recipe/__init__.py",
    *(f"facts/{name}.py" for name in ("budget", "examination", "follow_ups", "items", "mends", "pasted", "sessions")),
    *(f"facts/{name}.py" for name in ("shares", "sources")),
)


def test_apt_and_dpkg_are_named_only_in_their_own_modules() -> None:
    words = re.compile(r"(?<![a-z])(?:apt|dpkg|update-initramfs|initrd)(?![a-z])", re.IGNORECASE)
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "gpunode").rglob("*.py"))
        if not path.relative_to(ROOT / "gpunode").as_posix().startswith(_KNOW_APT)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if words.search(re.sub(r"\.?dpkg-(?:\\w|\")", "", line))
    ]
    assert found == [], "say it through gpunode.packages.deb"


def test_make_venv_names_the_missing_package(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexit 0\n')
    bare.chmod(0o755)
    told: Any = subprocess.run(
        ["make", "-C", str(ROOT), "venv", f"PYTHON={bare}", f"VENV={tmp_path}/venv"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode != 0
    assert "apt-get install python3-venv" in told.stderr
