"""podman: its own files stay; the folders of CDI specifications, and the ones that it accepts."""

from __future__ import annotations

import pytest

from gpunode.runtimes import DesiredConfig, find_runtime, podman
from tests.unit.runtimes.unconfigured import unconfigure

BOTH = ("/etc/cdi", "/var/run/cdi")
CONF = "/etc/containers/containers.conf"


def folders(text: str) -> dict[str, bytes]:
    return {CONF: f"[engine]\ncdi_spec_dirs = {text}\n".encode()}


def test_podman_files_are_not_edited() -> None:
    files = {CONF: b"[engine]\n"}
    row = find_runtime("podman")
    edited = row.configure(files, DesiredConfig(default=True, enable_cdi=True))
    assert edited.edits == ()
    assert "--device nvidia.com/gpu=all" in edited.how
    removed = unconfigure(row, files, DesiredConfig(), ())
    assert removed.edits == ()
    assert removed.how == "no file of podman that gpunode edits has nvidia"
    assert row.inspect(files, DesiredConfig()).cdi is True


@pytest.mark.parametrize(
    ("version", "files", "where"),
    [
        ((4, 3, 1), {}, BOTH),
        ((5, 4, 2), folders('["/opt/cdi"]'), BOTH),  # not in effect yet
        ((5, 5, 1), {}, ("/etc/cdi",)),
        ((5, 5, 1), folders('["/etc/cdi", "/var/run/cdi"]'), BOTH),
        ((5, 6, 0), {}, BOTH),
        ((5, 6, 0), folders('["/opt/cdi"]'), ("/opt/cdi",)),
        ((5, 6, 0), folders("1"), BOTH),
        ((5, 6, 0), folders('["/opt/cdi", {append = true}]'), (*BOTH, "/opt/cdi")),
        ((5, 5, 1), folders('[{append = true}, "/opt/cdi"]'), ("/etc/cdi", "/opt/cdi")),
        ((5, 6, 0), folders('["/opt/cdi", {append = false}]'), ("/opt/cdi",)),
        ((5, 6, 0), {CONF: b"[engine\n"}, BOTH),
        (None, folders('["/opt/cdi"]'), BOTH),
    ],
)
def test_cdi_folders_of_podman_depend_on_version_and_files(
    version: tuple[int, ...] | None, files: dict[str, bytes], where: tuple[str, ...]
) -> None:
    assert podman.spec_folders(files, version) == where


def test_podman_config_files_override_in_order() -> None:
    files = {
        "/etc/containers/containers.conf.d/1.conf": b'[engine]\ncdi_spec_dirs = ["/three"]\n',
        CONF: b'[engine]\ncdi_spec_dirs = ["/two"]\n',
        "/usr/share/containers/containers.conf": b'[engine]\ncdi_spec_dirs = ["/one"]\n',
    }
    said: list[str] = []
    while files:
        said += podman.spec_folders(files, (5, 6))
        files.pop(next(iter(files)))
    assert said == ["/three", "/two", "/one"]


def test_podman_goes_on_appending_in_the_files_behind() -> None:
    first = {CONF: b'[engine]\ncdi_spec_dirs = ["/two", {append = true}]\n'}
    second = "/etc/containers/containers.conf.d/1.conf"
    appended = {**first, second: b'[engine]\ncdi_spec_dirs = ["/three"]\n'}
    assert podman.spec_folders(appended, (5, 6)) == (*BOTH, "/two", "/three")
    replaced = {**first, second: b'[engine]\ncdi_spec_dirs = ["/three", {append = false}]\n'}
    assert podman.spec_folders(replaced, (5, 6)) == ("/three",)


@pytest.mark.parametrize(
    ("version", "spec", "taken"),
    [
        ((4, 3, 1), "0.5.0", True),
        ((4, 3, 1), "0.6.0", False),
        ((4, 9, 3), "0.6.0", True),
        ((4, 9, 3), "0.7.0", False),
        ((5, 4, 2), "0.7.0", True),
        (None, "1.0.0", True),
    ],
)
def test_cdi_versions_that_podman_reads(version: tuple[int, ...] | None, spec: str, taken: bool) -> None:
    assert podman.supports_spec(version, spec) is taken
