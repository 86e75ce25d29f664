"""The parsers, compared with the tools of this machine as oracles."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpunode.catalog.gpus import LIST_GPUS
from gpunode.facts import kernels, machine
from gpunode.facts.evidence import GlobMatch
from gpunode.packages.deb import sources as apt_sources
from gpunode.packages.deb import status as dpkg
from tests.fakes.examples import examples
from tests.needs import lacking, program


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(program(tool) is None, reason=lacking(tool))


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, env={"LC_ALL": "C", "PATH": PATH}).stdout


if TYPE_CHECKING:
    from distro import LinuxDistribution

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
DEVICES = (
    ("0000:00:00.0", 0x8086, 0x29C0, 0x060000, 0, 0),
    ("0000:17:00.0", 0x10DE, 0x2330, 0x030200, 0x10DE, 0x16C1),
    ("0000:18:00.0", 0x10DE, 0x1B80, 0x030000, 0x1043, 0x85AA),
    ("10000:e1:00.0", 0x10DE, 0x22A3, 0x068000, 0x10DE, 0x1796),
)


@pytest.fixture(name="sysfs")
def sysfs_tree(tmp_path: Path) -> Path:
    for address, vendor, device, class_code, board_vendor, board in DEVICES:
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        config = bytearray(256)
        struct.pack_into("<HH", config, 0, vendor, device)
        config[8:12] = bytes([0xA1, class_code & 255, class_code >> 8 & 255, class_code >> 16])
        struct.pack_into("<HH", config, 0x2C, board_vendor, board)
        (folder / "config").write_bytes(config)
        numbers = {"vendor": vendor, "device": device, "subsystem_vendor": board_vendor, "subsystem_device": board}
        for name, number in numbers.items():
            (folder / name).write_text(f"0x{number:04x}\n")
        (folder / "class").write_text(f"0x{class_code:06x}\n")
        (folder / "irq").write_text("0\n")
        (folder / "resource").write_text("0x0000000000000000 0x0000000000000000 0x0000000000000000\n" * 13)
        (folder / "modalias").write_text(
            f"pci:v{vendor:08X}d{device:08X}sv{board_vendor:08X}sd{board:08X}"
            f"bc{class_code >> 16:02X}sc{class_code >> 8 & 255:02X}i{class_code & 255:02X}\n"
        )
        (folder / "driver").symlink_to("../../../bus/pci/drivers/vfio-pci")
    return tmp_path


@needs("lspci")
def test_lspci_and_sysfs_agree(sysfs: Path) -> None:
    text = run("lspci", "-A", "linux-sysfs", "-O", f"sysfs.path={sysfs}/bus/pci", "-Dvmmnnk")
    folders = sorted((sysfs / "bus/pci/devices").iterdir())
    aliases = [GlobMatch(f"{one}/modalias", data=(one / "modalias").read_bytes()) for one in folders]
    drivers = [GlobMatch(f"{one}/driver", link=str((one / "driver").readlink())) for one in folders]
    ours = machine.read_sysfs_devices(aliases, drivers)
    assert {(one.address, one.vendor, one.device, one.class_code, one.subsystem) for one in ours} == {
        (one.address, one.vendor, one.device, one.class_code, one.subsystem) for one in machine.parse_lspci(text)
    }
    assert {one.driver for one in ours} == {"vfio-pci"}


@needs("lspci")
def test_lspci_filter_lists_only_gpus(sysfs: Path) -> None:
    commands = [command.split() for command in LIST_GPUS.split("; ")]
    tree = ("-A", "linux-sysfs", "-O", f"sysfs.path={sysfs}/bus/pci")
    lines = [line for lspci_, *options in commands for line in run(lspci_, *tree, *options).splitlines()]
    assert sorted(re.findall(r"\[10de:([0-9a-f]{4})\]", "\n".join(lines))) == ["1b80", "2330"]


@needs("dpkg-query")
def test_packages_of_this_machine_agree_with_dpkg_query() -> None:
    found = dpkg.packages(dpkg.parse_status(Path("/var/lib/dpkg/status").read_text()))
    rows = (
        line.split("\t")
        for line in run("dpkg-query", "-W", "-f", r"${Package}\t${db:Status-Status}\t${Version}\n").splitlines()
    )
    assert {(package.name, state.version) for package, state in found.items()} == {
        (name, version) for name, status, version in rows if status != "not-installed"
    }


@needs("dpkg")
@settings(max_examples=examples(60), deadline=None)
@given(st.tuples(*[st.from_regex(r"\A[0-9][0-9a-z.+~-]{0,8}\Z")] * 2))
def test_kernel_versions_sort_like_dpkg(pair: tuple[str, str]) -> None:
    # Without a revision: dpkg compares the part before the last hyphen first.
    one, two = (version.replace("-", "+") for version in pair)
    lower = subprocess.run(["dpkg", "--compare-versions", one, "lt", two], check=False).returncode == 0
    assert lower == (kernels.version_key(one) < kernels.version_key(two))


LISTS = [
    ("x.list", "deb [arch=amd64 trusted=yes] http://h/x/ /\n"),
    ("x.list", "# prose\n#deb http://off/x s main\ndeb http://h/d  s   main contrib # tail\n"),
    ("x.list", 'deb [ trusted=yes ] "http://h/d" s/updates main\n'),
    ("x.list", "deb cdrom:[Disc 1 #2]/ s main\ndeb http://h/$(ARCH) ./\n"),
    ("x.sources", "Types: deb\nURIs: http://h/a http://h/b\nSuites: s s-updates\nComponents: main\n"),
    (
        "x.sources",
        "# c\n\nTypes: deb\nURIs: http://h\nSuites: x/\n\nTypes: deb\nEnabled: no\nURIs: http://o\nSuites: y/\n",
    ),
    ("x.sources", "types: deb\nuris:\n http://h/a\n http://h/b\nsuites: s\n# between\ncomponents: main\n contrib\n"),
]


def fetched_by_apt(path: Path) -> tuple[set[str], set[str]]:
    """Return the release files and the components that apt would fetch for the one list at ``path``."""
    parts = path.parent
    options = ("-o", "Dir::Etc::SourceList=/dev/null", "-o", f"Dir::Etc::SourceParts={parts}", "--print-uris")
    state = ("-o", f"Dir::State={parts.parent}", "-o", f"Dir::Cache={parts.parent}")
    uris = re.findall(r"^'([^']+)'", run("apt-get", "update", *options, *state), re.MULTILINE)
    components = {found[1] for uri in uris if (found := re.match(r"http.*/([^/]+)/binary-[^/]+/Packages", uri))}
    return {uri.removesuffix("/InRelease") for uri in uris if re.fullmatch(r"http.*/InRelease", uri)}, components


@needs("apt-get")
@pytest.mark.parametrize(("name", "text"), LISTS)
def test_apt_fetches_from_the_parsed_sources(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / "parts" / name
    path.parent.mkdir()
    (tmp_path / "lists/partial").mkdir(parents=True)
    path.write_text(text)
    ours = [one for one in apt_sources.parse(str(path), text) if one.enabled and one.uri.startswith("http")]
    releases, components = fetched_by_apt(path)
    assert {_release(one.uri, one.suite) for one in ours} == releases
    assert {component for one in ours for component in one.components} == components


def _release(uri: str, suite: str) -> str:
    uri = uri.replace("$(ARCH)", run("dpkg", "--print-architecture").strip()).rstrip("/")
    return f"{uri}/{suite.strip('/')}".rstrip("/") if suite.endswith("/") else f"{uri}/dists/{suite}"


MALFORMED = [
    ("x.list", "deb http://h\n"),
    ("x.list", "rpm http://h s main\n"),
    ("x.list", "deb http://h s\n"),
    ("x.list", "deb http://h / main\n"),
    ("x.sources", "Types: deb\nSuites: s\nComponents: main\n"),
    ("x.sources", "Types: deb\nURIs: http://h\nSuites: s\n"),
]


@needs("apt-get")
@pytest.mark.parametrize(("name", "text"), MALFORMED)
def test_sources_that_we_refuse_are_refused_by_apt(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / "parts" / name
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(subprocess.CalledProcessError):
        fetched_by_apt(path)
    with pytest.raises(ValueError, match=re.escape(str(path))):
        apt_sources.parse(str(path), text)


@needs("dkms")
def test_dkms_status_agrees_with_its_links(tmp_path: Path) -> None:
    kernel, version = "6.1.0-25-amd64", "550.163.01"
    tree = tmp_path / "dkms"
    for number, module in enumerate(("nvidia-current", "nvidia-only-built")):
        source = tmp_path / f"{module}-{version}"
        source.mkdir()
        (tree / module / version).mkdir(parents=True)
        (tree / module / version / "source").symlink_to(source)  # dkms 3.2 skips a folder
        (source / "dkms.conf").write_text(
            f'PACKAGE_NAME="{module}"\nPACKAGE_VERSION="{version}"\nBUILT_MODULE_NAME[0]="nvidia"\n'
            'DEST_MODULE_LOCATION[0]="/updates/dkms"\n'
        )
        built = tree / module / version / kernel / "x86_64" / "module"
        built.mkdir(parents=True)
        (built / "nvidia.ko").write_bytes(b"")
        if number == 0:
            (tree / module / f"kernel-{kernel}-x86_64").symlink_to(f"{version}/{kernel}/x86_64")
    printed = run("dkms", "status", "--dkmstree", str(tree))
    said = re.findall(r"^([\w-]+)/([\d.]+), ([^,]+), x86_64: installed", printed, re.MULTILINE)
    links = [GlobMatch(str(link), link=str(link.readlink())) for link in tree.glob("*/kernel-*")]
    assert kernels.read_dkms_links(links) == {(module, kernel): version for module, version, kernel in said}
    assert said


RELEASES = [
    'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nNAME="Debian GNU/Linux"\nVERSION_ID="12"\nID=debian\n',
    "NAME='Ubuntu'\nVERSION_ID=24.04\nID=ubuntu\nID_LIKE=debian\nPRETTY_NAME=\"Ubuntu 24.04 LTS\"\n",
    'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.4"\nNAME="Rocky Linux"\n# comment\n',
]


def known_to_distro(folder: Path, text: str) -> LinuxDistribution:
    import distro

    file = folder / "os-release"
    file.write_text(text)
    return distro.LinuxDistribution(
        include_lsb=False, include_uname=False, os_release_file=str(file), distro_release_file="/nonexistent"
    )


@pytest.mark.parametrize("text", RELEASES)
def test_os_release_parser_agrees_with_distro(tmp_path: Path, text: str) -> None:
    ours, theirs = machine.parse_distro(text), known_to_distro(tmp_path, text)
    assert (ours.id, ours.version_id) == (theirs.id(), theirs.version())
    assert " ".join(ours.like) == theirs.like()
    assert ours.name == (theirs.name(pretty=True) if "PRETTY_NAME" in text else theirs.name())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(codec="utf-8", exclude_characters="\"'\\$`", exclude_categories=["Cc", "Cs", "Zl", "Zp"])))
def test_quoted_values_agree_with_distro(tmp_path: Path, name: str) -> None:
    text = f'ID=x\nNAME="{name}"\n'
    assert machine.parse_variables(text)["NAME"] == known_to_distro(tmp_path, text).os_release_attr("name")
