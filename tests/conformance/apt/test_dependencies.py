"""Unmet dependencies in dpkg's status, compared with ``apt-get check`` on the same status."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpunode.package_id import PackageId
from gpunode.packages.deb.dependencies import InstalledRelations
from gpunode.packages.deb.status import packages, parse_status
from tests.fakes.examples import examples
from tests.needs import lacking, program

pytestmark = pytest.mark.skipif(program("apt-get") is None, reason=lacking("apt-get"))

STATUS = Path("/var/lib/dpkg/status")
NAMES = ("aa", "bb", "cc", "dd")
VIRTUAL = ("vv", "ww")
VERSIONS = ("1", "1.0-1", "2~rc1", "2", "1:1")


def broken_by_apt(text: str) -> set[PackageId]:
    """Return the packages that ``apt-get check`` says have unmet dependencies."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        for name in ("lists/partial", "cache/archives/partial", "etc", "log"):
            (place / name).mkdir(parents=True)
        (place / "status").write_text(text)
        options = {
            "APT::Architecture": "amd64",
            "APT::Architectures": "amd64,i386",
            "Dir::State": place,
            "Dir::State::status": place / "status",
            "Dir::State::lists": place / "lists",
            "Dir::Cache": place / "cache",
            "Dir::Etc": place / "etc",
            "Dir::Log": place / "log",
            "Debug::NoLocking": "1",
        }
        words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        done = subprocess.run(
            ["apt-get", *words, "check"],
            capture_output=True, text=True, check=False, env={"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )  # fmt: skip
    assert done.returncode == 0 or "unmet dependencies" in done.stdout + done.stderr, done
    return {PackageId.of(name) for name in re.findall(r"(?m)^ (\S+) : (?:Pre)?Depends:", done.stdout)}


def broken_by_gpunode(text: str) -> set[PackageId]:
    """Return the packages with an unmet dependency, queried one by one."""
    found = parse_status(text)
    installed, relations = packages(found), InstalledRelations(found)
    roots = [package for package, state in installed.items() if not state.config_files_only]
    return {root for root in roots if any(one.needed_by == root for one in relations.missing(installed, [root]) or ())}


def paragraph(name: str, fields: Mapping[str, str]) -> str:
    usual = {"Status": "install ok installed", "Architecture": "amd64", "Version": "1", "Maintainer": "nobody"}
    rows = {"Package": name, **usual, **fields, "Description": "a package"}
    return "".join(f"{key}: {value}\n" for key, value in rows.items() if value) + "\n"


@pytest.mark.skipif(not STATUS.exists(), reason="needs a Debian machine")
@pytest.mark.parametrize("gone", ["", "libc6", "perl-base", "base-files", "mawk", "debconf"])
def test_missing_dependencies_of_this_machine_agree_with_apt(gone: str) -> None:
    kept = "\n\n".join(one for one in STATUS.read_text().split("\n\n") if not one.startswith(f"Package: {gone}\n"))
    installed, broken = packages(parse_status(kept)), broken_by_apt(kept)
    missing = InstalledRelations(parse_status(kept)).missing(installed, installed)
    assert missing is not None
    assert {one.needed_by for one in missing} <= broken
    assert bool(missing) == bool(broken) == bool(gone)
    assert not gone or {gone, "awk"} & {one.package.name for one in missing}  # mawk is all that provides awk


relation = st.builds(
    lambda name, qualifier, version: f"{name}{qualifier}{version}",
    st.sampled_from((*NAMES, *VIRTUAL)),
    st.sampled_from(("", "", "", ":any", ":i386", ":amd64")),
    st.sampled_from(
        ("", *(f" ({operator} {version})" for operator in ("<<", "<=", "=", ">=", ">>") for version in VERSIONS))
    ),
)
field = st.lists(st.lists(relation, min_size=1, max_size=2).map(" | ".join), max_size=2).map(", ".join)
provided = st.lists(
    st.builds(
        lambda name, version: f"{name}{version}", st.sampled_from(VIRTUAL), st.sampled_from(("", " (= 1)", " (= 2)"))
    ),
    max_size=1,
).map(", ".join)
row = st.fixed_dictionaries(
    {
        "Architecture": st.sampled_from(("amd64", "all", "i386")),
        "Version": st.sampled_from(VERSIONS),
        "Multi-Arch": st.sampled_from(("", "foreign", "allowed", "same")),
        "Depends": field,
        "Pre-Depends": field,
        "Provides": provided,
        "Status": st.sampled_from(("install ok installed", "install ok installed", "deinstall ok config-files")),
    }
).filter(lambda row: not (row["Architecture"] == "all" and row["Multi-Arch"] == "same"))


@given(st.dictionaries(st.sampled_from(NAMES), row, min_size=1))
@settings(max_examples=examples(40), deadline=None)
def test_missing_dependencies_of_any_packages_agree_with_apt(rows: dict[str, dict[str, str]]) -> None:
    text = paragraph("dpkg", {}) + "".join(paragraph(name, fields) for name, fields in rows.items())
    assert broken_by_gpunode(text) == broken_by_apt(text)
