"""The present state of a node, exact to the byte, for changes that depend on it: files, packages, GPUs, GPU users."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final

from gpunode.change import Change, FileChange, FileState, MigChange
from gpunode.command import command
from gpunode.errors import Undetermined
from gpunode.facts import nvml as nvml_facts
from gpunode.facts.evidence import OTHER_FILE_KIND_ERROR_PREFIX, Probe, decode_matches
from gpunode.facts.model import MigGpu
from gpunode.facts.reader import make_file_state
from gpunode.host import nvml
from gpunode.host.port import HostView
from gpunode.packages import deb

_MAX_FILE_BYTES = 64 << 20


class NotAFileError(Undetermined):
    """Something that is not a file, such as a folder, is at this path. Package managers leave it alone."""


def read_file_state(host: HostView, path: str, limit_bytes: int = _MAX_FILE_BYTES) -> FileState | None:
    """Return the file as it is; None if there is none.

    Raises:
        Undetermined: it cannot be read; NotAFileError if something else is at the path.
    """
    capture = host.run_probe(Probe(path, path=path, limit_bytes=limit_bytes))
    if capture.outcome == "absent":
        return None
    if capture.outcome != "ok" or capture.ownership is None:
        kind = NotAFileError if capture.error.startswith(OTHER_FILE_KIND_ERROR_PREFIX) else Undetermined
        raise kind(
            f"{path} cannot be read, so gpunode cannot tell whether it was edited",
            why=capture.error or capture.outcome,
            hint=f"look at it with `{command('ls', '-l', path)}`, then run the command again",
        )
    return make_file_state(capture.data, capture.ownership)


def read_regular_file_state(host: HostView, path: str) -> FileState | None:
    """Return the file as it is; None if there is none, or something else is at the path. Raises Undetermined."""
    with suppress(NotAFileError):
        return read_file_state(host, path)
    return None


def has_empty_folder(host: HostView, folders: Collection[str], going: Collection[str] = ()) -> bool:
    """Return whether one of ``folders`` exists and contains nothing but ``going``.

    They were made for a file that is gone: an undo was stopped before it removed them. If somebody else uses one,
    nothing is left to do.
    """
    return any(
        host.run_probe(Probe(folder, glob=folder, contents=False)).data
        and _list_paths_in(host, folder) <= {*going, *folders}
        for folder in folders
    )


def _list_paths_in(host: HostView, folder: str) -> frozenset[str]:
    """Return all paths in ``folder``; for a folder that cannot be listed, those that could be seen."""
    patterns = (f"{folder}/{name}" for name in ("*", ".*"))
    captures = [host.run_probe(Probe(pattern, glob=pattern, contents=False)) for pattern in patterns]
    return frozenset(match.path for capture in captures for match in decode_matches(capture.data))


def read_package_database(host: HostView) -> deb.Database:
    """Return the package database; empty if there is none.

    Raises:
        Undetermined: it exists and cannot be read.
    """
    # The same probe that facts come from, so that a rehearsal finds its answer in the capture.
    capture = host.run_probe(next(probe for probe in deb.PROBES if probe.path == deb.DATABASE_FILE))
    if capture.outcome not in {"ok", "absent"}:
        raise _unreadable_database_error(deb.DATABASE_FILE, capture.error or capture.outcome)
    return deb.Database(capture.text if capture.outcome == "ok" else "")


def _unreadable_database_error(file: str, why: str) -> Undetermined:
    return Undetermined(
        "cannot tell what belongs to which package",
        why=f"{file}: {why}",
        hint=f"look at it with `{command('ls', '-l', file)}`, then run the command again",
    )


def list_journaled_packages(host: HostView) -> frozenset[str]:
    """Return the names of packages that a stopped transaction changed, and that the database does not list yet.

    Raises:
        Undetermined: the journal cannot be read.
    """
    looked = host.run_probe(Probe("package-journal", glob=deb.JOURNAL_GLOB, content_kind="table"))
    if looked.outcome not in {"ok", "absent"}:
        raise _unreadable_database_error(deb.JOURNAL_GLOB, looked.error or looked.outcome)
    texts = ((match.data or b"").decode("utf-8", "replace") for match in decode_matches(looked.data))
    return frozenset().union(*map(deb.list_journaled, texts))


_LOADED_DRIVER_PROBE = Probe("nvidia-version", path="/proc/driver/nvidia/version", content_kind="table")


def list_gpus(host: HostView) -> dict[str, MigGpu]:
    """Return the GPUs as NVML shows them now, by UUID.

    Raises:
        ValueError: NVML does not report them.
    """
    if host.run_probe(_LOADED_DRIVER_PROBE).outcome != "ok":
        raise ValueError("the driver is not loaded")
    return {
        gpu.uuid: gpu
        for gpu in nvml_facts.list_mig_gpus(nvml_facts.read_nvml_answer(host.run_probe(nvml.make_probe())))
    }


def find_gpu_users(host: HostView, gpus: Collection[str] = ()) -> tuple[frozenset[int], tuple[str, ...]]:
    """Return the pids that NVML shows on ``gpus``, and a phrase for each pod that holds one of the GPUs.

    Empty ``gpus`` means all GPUs. Both results are empty if NVML does not answer; the driver then refuses the change.
    """
    try:
        present = list_gpus(host)
    except ValueError:
        return frozenset(), ()
    pids = (pid for uuid, gpu in present.items() if not gpus or uuid in gpus for pid in gpu.clients)
    return frozenset(pids), find_gpu_pods(host, gpus or present)


def pending_mig_switch(host: HostView, changes: Collection[Change]) -> str:
    """Return why a reboot is needed after ``changes``; empty if it is not."""
    switched = {change.gpu: change.after.enabled for change in MigChange.of_kind(changes)}
    if not switched:
        return ""
    try:
        present = list_gpus(host)
    except ValueError:
        return ""
    layouts = {uuid: gpu.layout for uuid, gpu in present.items() if gpu.layout is not None}
    late = [uuid for uuid, on in switched.items() if uuid in layouts and layouts[uuid].enabled != on]
    switch = "on" if late and switched[late[0]] else "off"
    return f"MIG is switched {switch} on {', '.join(late)} at the next boot" if late else ""


# kubeadm, k3s and RKE2; microk8s; k0s.
_KUBELET_ROOTS: Final = ("/var/lib/kubelet", "/var/snap/microk8s/common/var/lib/kubelet", "/var/lib/k0s/kubelet")


def find_gpu_pods(host: HostView, gpus: Collection[str]) -> tuple[str, ...]:
    """Return a phrase for each pod that holds one of ``gpus`` or any MIG instance."""
    return tuple(dict.fromkeys(pod for root in _KUBELET_ROOTS for pod in _pods_of_kubelet(host, root, gpus)))


def _pods_of_kubelet(host: HostView, root: str, gpus: Collection[str]) -> Iterator[str]:
    path = f"{root}/device-plugins/kubelet_internal_checkpoint"
    checkpoint = host.run_probe(Probe("pod-devices", path=path, content_kind="table"))
    if checkpoint.outcome == "absent":
        return
    if checkpoint.outcome != "ok":
        yield f"unknown pods, because {path} cannot be read ({checkpoint.error or checkpoint.outcome})"
        return
    folders = host.run_probe(Probe("pod-folders", glob=f"{root}/pods/*", contents=False, content_kind="table"))
    running = (
        {match.path.rpartition("/")[2] for match in decode_matches(folders.data)} if folders.outcome == "ok" else None
    )
    try:
        entries: Any = json.loads(checkpoint.data)["Data"]["PodDeviceEntries"] or ()
        for entry in entries:
            pod, resource = str(entry["PodUID"]), str(entry["ResourceName"])
            if running is None or pod in running:
                devices = [
                    one for one in _device_ids(entry["DeviceIDs"]) if one.startswith("MIG-") or _is_device_of(one, gpus)
                ]
                if devices:
                    yield f"pod {pod} ({resource})"
    except (ValueError, LookupError, TypeError, AttributeError):
        yield f"unknown pods, because {path} cannot be understood"


def _is_device_of(device: str, gpus: Collection[str]) -> bool:
    """Return whether the device is one of ``gpus``, or a share of one in HAMi's numbering (``GPU-…-3``)."""
    return device in gpus or device.rpartition("-")[0] in gpus


def _device_ids(ids: Any) -> Iterator[str]:
    """Yield the device ids, grouped by NUMA node since Kubernetes 1.20, without the number of a share."""
    groups = ids.values() if isinstance(ids, dict) else [ids]
    yield from (str(one).partition("::")[0] for group in groups for one in group)


# Where driver packages install files, except firmware and modules with a version in their name.
_DRIVER_FILE_PATTERNS: Final = (
    "/etc/OpenCL/vendors/nvidia*",
    "/usr/bin/nvidia-*",
    "/usr/lib/*-linux-gnu/lib*cuda*",
    "/usr/lib/*-linux-gnu/lib*nv*",
    "/usr/share/egl/egl_external_platform.d/*nvidia*",
    "/usr/share/glvnd/egl_vendor.d/*nvidia*",
    "/usr/share/nvidia/*",
    "/usr/share/vulkan/*/nvidia*",
)


def find_unpackaged_driver_files(host: HostView) -> tuple[str, ...]:
    """Return the regular files that no package installed, in places where driver packages install files.

    Raises:
        Undetermined: the package database cannot be read.
    """
    paths = sorted(path for pattern in _DRIVER_FILE_PATTERNS for path in _list_regular_files(host, pattern))
    owners = find_owners(host, paths)
    return tuple(path for path in paths if path not in owners)


def find_packaged_files(
    host: HostView, files: Mapping[str, FileState], leaving: Collection[str] = ()
) -> dict[str, str]:
    """Return the ``files`` that are as installed packages shipped them, each with the names of these packages.

    A packaged file that was edited since is omitted; one without a recorded checksum is included.

    Packages in ``leaving`` do not count.

    Raises:
        Undetermined: the package database cannot be read.
    """
    owners = find_owners(host, files)
    if not owners:
        return {}
    database = read_package_database(host)
    try:
        installed = database.packages()
    except ValueError as error:
        raise _unreadable_database_error(deb.DATABASE_FILE, str(error)) from error
    shipped = database.shipped_conffiles()
    staying = {package.name for package, state in installed.items() if not state.config_files_only}.difference(leaving)
    package_by_path: dict[str, str] = {}
    for path, packages in owners.items():
        names = [package for package in packages if package.partition(":")[0] in staying]
        known_sums = {shipped.get(path) or _read_checksum(host, package, path) for package in names}
        if known_sums & {"", package_checksum(files[path].content)}:
            package_by_path[path] = " and ".join(dict.fromkeys(name.partition(":")[0] for name in names))
    return package_by_path


def read_set_aside_files(host: HostView) -> dict[str, FileState] | None:
    """Return the files that the package manager put beside edited configuration; None if they cannot be read."""
    globs = (Probe(place, glob=place, limit_bytes=_MAX_FILE_BYTES) for place in deb.SET_ASIDE_FILE_GLOBS)
    captures = [host.run_probe(glob) for glob in globs]
    if any(looked.outcome not in {"ok", "absent"} for looked in captures):
        return None
    return {
        match.path: make_file_state(match.data, match.ownership)
        for looked in captures
        for match in decode_matches(looked.data)
        if match.data is not None and match.ownership is not None
    }


def find_set_aside_changes(host: HostView, former: Mapping[str, FileState] | None) -> list[FileChange]:
    """Return the changes of these files since ``former``; none if either state is unknown."""
    present = read_set_aside_files(host)
    if former is None or present is None:
        return []
    return [FileChange(path, former.get(path), state) for path, state in present.items() if former.get(path) != state]


def package_checksum(content: bytes) -> str:
    """Return the MD5 sum with which a package database records a file."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def _read_checksum(host: HostView, package: str, path: str) -> str:
    """Return the checksum of a file as its package shipped it; empty if the package records none."""
    checksums = deb.parse_checksums(host.run_probe(Probe(package, path=deb.checksums_path(package))).text)
    return checksums.get(path) or checksums.get(path.removeprefix("/usr"), "")


def find_owners(host: HostView, paths: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Return the packages that own files among ``paths``, by path.

    Reads the package database's own files, which also works for an image.

    Raises:
        Undetermined: a file of the database exists and cannot be read.
    """
    if not paths:
        return {}
    list_pattern = deb.file_list_path("*")
    listed = host.run_probe(Probe("file-lists", glob=list_pattern, limit_bytes=_MAX_FILE_BYTES, content_kind="table"))
    diverted = host.run_probe(Probe("diversions", path=deb.DIVERSIONS_FILE))
    lists = {match.path: match.data for match in decode_matches(listed.data)}
    unread = [path for path, data in lists.items() if data is None]
    for file, capture in ((list_pattern, listed), (deb.DIVERSIONS_FILE, diverted)):
        if capture.outcome not in {"ok", "absent"} or unread:
            raise _unreadable_database_error(unread[0] if unread else file, capture.error or "it was not read")
    prefix, suffix = list_pattern.split("*")
    named = {path.removeprefix(prefix).removesuffix(suffix): data for path, data in lists.items() if data is not None}
    return deb.find_owners(paths, named, diverted.text)


def _list_regular_files(host: HostView, pattern: str) -> Iterator[str]:
    capture = host.run_probe(Probe(f"foreign-{pattern}", glob=pattern, contents=False))
    yield from (
        (match.path for match in decode_matches(capture.data) if match.link is None) if capture.outcome == "ok" else ()
    )
