"""The real apt reads lists that name one archive twice, and lists that a setup and its undo leave."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings

from gpunode.packages.deb import sources
from gpunode.packages.deb.repositories import have_contradicting_checks
from tests.fakes.examples import examples
from tests.laws.source_lists import Undone, lists_of, undone
from tests.needs import lacking

pytestmark = pytest.mark.skipif(bool(lacking("apt-get")), reason=lacking("apt-get"))

URL = "https://host.example/r/x86_64"
ONE, OTHER = "signed-by=/etc/keyrings/one.gpg", "signed-by=/etc/keyrings/other.gpg"
DEB822 = f"Types: deb\nURIs: {URL}/\nSuites: /\nSigned-By: /etc/keyrings/one.gpg\n"
# The order of two entries does not matter to gpunode, but it does to apt if one of them names no key.
CONTRADICTING = {
    "another key": (f"deb [{ONE}] {URL}/ /", f"deb [{OTHER}] {URL}/ /"),
    "no key": (f"deb [{ONE}] {URL}/ /", f"deb {URL}/ /"),
    "no slash": (f"deb [{ONE}] {URL} /", f"deb [{OTHER}] {URL}/ /"),
    "source packages": (f"deb [{ONE}] {URL}/ /", f"deb-src [{OTHER}] {URL}/ /"),
    "another architecture": (f"deb [{ONE}] {URL}/ /", f"deb [{OTHER} arch=arm64] {URL}/ /"),
    "no TLS": (f"deb [{ONE}] {URL}/ /", f"deb [{OTHER}] {URL.replace('https', 'http')}/ /"),
    "a zero before the port": (
        f"deb [{ONE}] {URL.replace('.example', '.example:8443')}/ /",
        f"deb [{OTHER}] {URL.replace('.example', '.example:08443')}/ /",
    ),
    "another suite": (f"deb [{ONE}] {URL}/ /", f"deb [{OTHER}] {URL.rpartition('/')[0]} x86_64/"),
    "trusted": (f"deb [{ONE}] {URL}/ /", f"deb [{ONE} trusted=yes] {URL}/ /"),
    "weak": (f"deb [{ONE}] {URL}/ /", f"deb [{ONE} allow-weak=yes] {URL}/ /"),
    "not checked for its age": (f"deb [{ONE}] {URL}/ /", f"deb [{ONE} check-valid-until=no] {URL}/ /"),
    "deb822": (f"deb [{OTHER}] {URL}/ /", DEB822),
}
AGREEING = {
    "the same": (f"deb [{ONE}] {URL}/ /", f"deb [{ONE}] {URL}/ /"),
    "another archive": (f"deb [{ONE}] {URL}/ /", f"deb [{OTHER}] {URL}x/ /"),
    "switched off": (f"deb [{OTHER}] {URL}/ /", f"{DEB822}Enabled: no\n"),
    "a suite": (f"deb [{ONE}] {URL}/ one main", f"deb [{OTHER}] {URL}/ other main"),
}


def refusal(folder: Path, lists: Mapping[str, bytes]) -> str:
    """Return why an apt that has only these ``lists`` refuses them; empty if it reads them."""
    for name in ("parts", "lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for old in (folder / "parts").iterdir():
        old.unlink()
    for path, content in lists.items():
        (folder / "parts" / Path(path).name.replace("sources.list", "debian.list")).write_bytes(content)
    places = {"etc::sourcelist": "none", "etc::sourceparts": "parts", "state::lists": "lists", "cache": "cache"}
    options = [word for key, name in places.items() for word in ("-o", f"Dir::{key}={folder / name}")]
    (folder / "status").touch()
    argv = ["apt-get", *options, "-o", f"Dir::State::status={folder / 'status'}", "indextargets"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr


@pytest.mark.parametrize("case", [*CONTRADICTING, *AGREEING])
def test_apt_refuses_contradicting_entries(case: str, tmp_path: Path) -> None:
    pair = {**CONTRADICTING, **AGREEING}[case]
    names = [
        f"{place}.{'sources' if text.startswith('Types') else 'list'}" for place, text in zip("ab", pair, strict=True)
    ]
    one, other = (
        entry
        for name, text in zip(names, pair, strict=True)
        for entry in sources.parse(f"/etc/apt/sources.list.d/{name}", text)
    )

    said = refusal(tmp_path, {name: f"{text}\n".encode() for name, text in zip(names, pair, strict=True)})

    assert have_contradicting_checks(one, other, "amd64") == (case in CONTRADICTING)
    # apt 3.0 of Debian 13 reads an entry with a key beside one without; apt 2.6 of Debian 12 refuses them.
    if case != "no key":
        assert ("Conflicting values set" in said) == (case in CONTRADICTING), said


@settings(max_examples=examples(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(node=undone())
def test_apt_reads_its_sources_after_a_setup_and_its_undo(node: Undone, tmp_path: Path) -> None:
    if node.set_up != node.before:
        assert refusal(tmp_path, lists_of(node.set_up)) == ""
        assert refusal(tmp_path, lists_of(node.after)) == ""
