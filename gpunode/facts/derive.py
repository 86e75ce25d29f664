"""Facts from evidence. Pure and total: what cannot be told becomes Unknown, with the reason and the probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timezone
from typing import Final, TypeVar

from gpunode.change import FileState
from gpunode.facts import kernels, kubelet, layout, os_release, pci, platform, systemd
from gpunode.facts.evidence import NOT_CAPTURED, Capture, Evidence, Found, Ownership, decode_found
from gpunode.facts.layout import Layout
from gpunode.facts.model import (
    BROUGHT_BY,
    NOT_INSTALLED,
    Distro,
    Fact,
    Facts,
    Files,
    Kernels,
    Known,
    LoadedDriver,
    MigGpu,
    ModuleFile,
    PciDevice,
    Platform,
    Provider,
    Unit,
    Unknown,
    known,
)
from gpunode.facts.numbers import whole
from gpunode.facts.probes import DRIVER_LIBRARIES, FOLDERS, MODULE_KEYS, UNITS
from gpunode.facts.reader import Missing, Reader, fact, reason
from gpunode.packages import SYSTEMS, PackageSystem

T = TypeVar("T")
_IMAGE = "image"
_LAST_SECOND: Final = 253402300799
_USUAL_MODE = Ownership(0o644, 0, 0)


def derive(evidence: Evidence, *, image: bool = False, distribution: Distro | None = None) -> Facts:
    """The facts that ``evidence`` gives; every one that it does not give is Unknown.

    Args:
        evidence: what the probes returned, by key.
        image: whether the node is a mounted root, where kernel, devices and processes are somebody else's.
        distribution: as ``port.HostView.distribution`` names it; it counts more than the text in ``evidence``.
    """
    reader = Reader(evidence)
    system = _package_system(evidence)
    installed = system.read(reader)
    facts = Facts(
        distro=_distro(reader, distribution),
        architecture=installed.architecture,
        platform=_installable(_platform(reader, image=image), reader),
        kernels=_kernels(reader, image=image),
        boot_id=_boot_id(reader, image=image),
        devices=_installable(_devices(reader, image=image), reader),
        packages=installed.packages,
        packages_interrupted=installed.interrupted,
        sources=installed.sources,
        dependencies=installed.dependencies,
        headers=_headers(reader),
        module_files=_module_files(reader),
        modules=_modules(reader, image=image),
        loaded_driver=_loaded_driver(reader, image=image),
        device_nodes=_device_nodes(reader, image=image),
        units=_units(reader, image=image),
        files=_files(evidence),
        changed_at=_changed_at(evidence),
        modified_at=_modified_at(evidence),
        exposed=_exposed(evidence),
        folder_modes=installed.folder_modes,
        dkms=fact("dkms-installed", lambda: kernels.dkms_drivers(reader.found("dkms-installed"))),
        toolkit_program=fact("toolkit-program", lambda: bool(reader.found("toolkit-program"))),
        replaced_programs=fact("toolkit-programs", lambda: _replaced(reader, installed.toolkit_checksums)),
        rootless_docker=fact("docker-rootless", lambda: not image and bool(reader.found("docker-rootless"))),
        run_installer=fact("run-installer", lambda: bool(reader.found("run-installer"))),
        driver_libraries=fact("cuda-libraries", lambda: _paths(reader, *DRIVER_LIBRARIES, links=False)),
        secure_boot=Unknown("an image is not booted", _IMAGE) if image else platform.read_secure_boot(evidence),
        layout=_layout(reader, image=image),
        mig=_mig(evidence),
        observed_on=_observed_on(reader, image=image),
        package_system=system.id,
        folders={folder: key for key, folder in FOLDERS.items() if _is_read(evidence.get(key))},
    )
    running = _command_line(evidence.get(kubelet.COMMAND))
    return replace(
        facts,
        kubelet=kubelet.fact(facts, running, image=image),
        provider=_provider(reader, facts.distro, image=image),
    )


def _replaced(reader: Reader, checksums: Mapping[str, str]) -> tuple[str, ...]:
    small = {one.path: one.data for one in reader.found("toolkit-programs") if one.data is not None and not one.link}
    if not small:
        return ()
    from hashlib import md5  # loaded on use: no program that NVIDIA ships is so small

    return tuple(
        path
        for path, content in sorted(small.items())
        if path in checksums and md5(content, usedforsecurity=False).hexdigest() != checksums[path]
    )


def _provider(reader: Reader, distro: Fact[Distro], *, image: bool) -> Fact[Provider | None]:
    if image:
        return Known(None, _IMAGE)
    return platform.find_provider(lambda key: fact(key, lambda: bool(reader.found(key))), distro)


def about_runtime(evidence: Evidence, *, image: bool = False) -> Facts:
    """The facts about units and files, and when these were changed; all others are Unknown. Cheaper than ``derive``."""
    units = _units(Reader(evidence), image=image)
    return replace(derive({}), units=units, files=_files(evidence), changed_at=_changed_at(evidence))


def about_kubelet(evidence: Evidence, *, image: bool = False) -> Facts:
    """As ``about_runtime``, and which kubelet is here."""
    folders = {folder: key for key, folder in FOLDERS.items() if _is_read(evidence.get(key))}
    facts = replace(about_runtime(evidence, image=image), folders=folders)
    running = _command_line(evidence.get(kubelet.COMMAND))
    return replace(facts, kubelet=kubelet.fact(facts, running, image=image))


def about_devices(evidence: Evidence) -> Fact[tuple[PciDevice, ...]]:
    """The PCI devices of a machine that runs. Cheaper than ``derive``."""
    return _devices(Reader(evidence), image=False)


def _command_line(capture: Capture | None) -> tuple[str, ...]:
    """The words of a process, as /proc has them; none where it was not looked at, or has ended meanwhile."""
    return tuple(capture.text.rstrip("\0").split("\0")) if capture and capture.outcome == "ok" and capture.data else ()


def _is_read(capture: Capture | None) -> bool:
    return capture is not None and capture.outcome in {"ok", "absent"}


def _distro(reader: Reader, known: Distro | None) -> Fact[Distro]:
    first = fact("os-release", lambda: known or os_release.distro(reader.text("os-release")))
    if isinstance(first, Known):
        return first
    vendor = fact("os-release-vendor", lambda: os_release.distro(reader.text("os-release-vendor")))
    return vendor if isinstance(vendor, Known) else first


def _package_system(evidence: Evidence) -> PackageSystem:
    """The one whose database is there; the first of all where there is none."""
    read = {one.source for one in evidence.values() if one.outcome == "ok"}
    return next((one for one in SYSTEMS if one.database_file in read), SYSTEMS[0])


def _installable(found: Fact[T], reader: Reader) -> Fact[T]:
    """Return ``found`` with the command that installs the program whose absence keeps it unknown."""
    package = BROUGHT_BY.get(found.reason.removesuffix(NOT_INSTALLED)) if isinstance(found, Unknown) else None
    if isinstance(found, Unknown) and package:
        return replace(found, install=_package_system(reader.evidence).install((package,)))
    return found


def _paths(reader: Reader, *keys: str, links: bool = True) -> frozenset[str]:
    return frozenset(found.path for key in keys for found in reader.found(key) if links or found.link is None)


def _platform(reader: Reader, *, image: bool) -> Fact[Platform]:
    if image:
        return Known(Platform("image"), _IMAGE)

    def read() -> Platform:
        found = platform.detect_platform(
            _virt(reader),
            kernel=reader.capture("kernel-release").text.strip(),
            dxg=bool(reader.found("dev-dxg")),
            tegra=reader.optional("tegra-release"),
            compatible=reader.optional("device-tree"),
            manager=reader.optional("container-manager").strip() or ("docker" if reader.found("dockerenv") else ""),
        )
        if found is None:
            capture = reader.capture("virt")
            nothing = f"{capture.source} printed nothing"
            raise Missing("virt", nothing if capture.outcome == "ok" else reason(capture))
        return found

    return fact("virt", read)


def _virt(reader: Reader) -> str:
    # It prints "none" and exits with 1 on bare metal, so the outcome of the command says nothing.
    capture = reader.capture("virt")
    if capture.outcome in {"timeout", "denied"}:
        raise Missing("virt", reason(capture))
    return capture.text.strip()


def _kernels(reader: Reader, *, image: bool) -> Fact[Kernels]:
    def read() -> Kernels:
        running = None if image else reader.text("kernel-release").strip()
        return Kernels(running, kernels.installed_kernels(reader.found("boot-images")))

    return fact("boot-images", read)


def _boot_id(reader: Reader, *, image: bool) -> Fact[str]:
    if image:
        return Unknown("an image is not booted", _IMAGE)
    return fact("boot-id", lambda: reader.text("boot-id").strip())


def _observed_on(reader: Reader, *, image: bool) -> Fact[date]:
    if image:
        return Unknown("an image has no clock", _IMAGE)

    def read() -> date:
        text = reader.text("clock").strip()
        seconds = whole(text)
        # Python's calendar ends with the year 9999.
        if seconds is None or seconds > _LAST_SECOND:
            raise ValueError(f"{text[:40]!r} is no number of seconds")
        return datetime.fromtimestamp(seconds, tz=timezone.utc).date()

    return fact("clock", read)


def _devices(reader: Reader, *, image: bool) -> Fact[tuple[PciDevice, ...]]:
    if image:
        return Unknown("an image has no PCI bus; name its GPUs with --gpu", _IMAGE)
    first = fact("lspci", lambda: pci.parse_lspci(reader.text("lspci")))
    if isinstance(first, Known):
        return first
    second = fact("pci-modalias", lambda: _sysfs(reader))
    return second if isinstance(second, Known) else Unknown(f"{first.reason}; {second.reason}", first.probe)


def _sysfs(reader: Reader) -> tuple[PciDevice, ...]:
    devices = pci.devices_from_sysfs(reader.found("pci-modalias"), reader.found("pci-driver"))
    if not devices:
        raise Missing("pci-modalias", "/sys/bus/pci/devices lists nothing")
    return devices


def _headers(reader: Reader) -> Fact[frozenset[str]]:
    return fact(
        "kernel-builds",
        lambda: kernels.with_headers(reader.found("kernel-builds"), reader.found("kernel-sources")),
    )


def _module_files(reader: Reader) -> Fact[tuple[ModuleFile, ...]]:
    def read() -> tuple[ModuleFile, ...]:
        found = [one for key in MODULE_KEYS for one in reader.found(key)]
        return kernels.module_files(found, reader.found("dkms-installed"))

    return fact(MODULE_KEYS[0], read)


def _modules(reader: Reader, *, image: bool) -> Fact[frozenset[str]]:
    if image:
        return Known(frozenset(), _IMAGE)
    # A kernel without modules has no such file; a node without /proc would not tell its boot id either.
    has_proc = isinstance(_boot_id(reader, image=False), Known)
    return fact("modules", lambda: kernels.loaded_modules((reader.optional if has_proc else reader.text)("modules")))


def _loaded_driver(reader: Reader, *, image: bool) -> Fact[LoadedDriver | None]:
    def read() -> LoadedDriver | None:
        data = reader.data("nvidia-version")
        return None if data is None else kernels.loaded_driver(data.decode("utf-8", "replace"))

    return Known(None, _IMAGE) if image else fact("nvidia-version", read)


def _layout(reader: Reader, *, image: bool) -> Fact[Layout | None]:
    def read() -> Layout | None:
        gpus = reader.found("nvidia-gpus")
        instances = (*reader.found("nvidia-gpu-instances"), *reader.found("nvidia-compute-instances"))
        return layout.layout(gpus, instances) if gpus else None

    return Known(None, _IMAGE) if image else fact("nvidia-gpus", read)


def _mig(evidence: Evidence) -> Fact[tuple[MigGpu, ...]] | None:
    if (capture := evidence.get("nvml")) is None:
        return None
    from gpunode.facts import nvml  # only for a recipe that divides GPUs, and for captures

    try:
        return Known(nvml.mig_gpus(nvml.answer_of(capture)), "nvml")
    except ValueError as error:
        return Unknown(str(error), "nvml")


def _device_nodes(reader: Reader, *, image: bool) -> Fact[frozenset[str]]:
    if image:
        return Known(frozenset(), _IMAGE)
    return fact("dev-nvidia", lambda: _paths(reader, "dev-nvidia", "dev-nvidia-caps"))


def _units(reader: Reader, *, image: bool) -> Mapping[str, Fact[Unit]]:
    capture = reader.evidence.get("units")
    words = capture.source.split() if capture else ()
    names = dict.fromkeys((*UNITS, *(word for word in words if word.endswith((".service", ".path")))))
    if image or (capture and (capture.outcome == "absent" or systemd.is_absent(capture.error))):
        keys = ("unit-wants", "unit-files-etc", "unit-files-lib")
        found = fact(keys[0], lambda: systemd.offline(names, *(reader.found(key) for key in keys)))
    else:
        found = fact("units", lambda: dict(systemd.units(_shown(reader))))
    if isinstance(found, Unknown):
        return dict.fromkeys(names, found)
    return {name: Known(unit, found.probe) for name, unit in found.value.items()}


def _shown(reader: Reader) -> str:
    """What ``systemctl show`` printed; in a chroot it ends with 0, prints nothing, and says why elsewhere."""
    if text := reader.text("units").strip("\n"):
        return text + "\n"
    raise Missing("units", reader.capture("units").error.strip() or "systemctl printed nothing")


def _files(evidence: Evidence) -> Files:
    files: dict[str, Known[FileState | None] | Unknown] = {}
    for key in FOLDERS:
        files.update(_folder(key, evidence.get(key)))
    for key in evidence:
        if key.startswith("files:"):
            files.update(_folder(key, evidence.get(key)))
    single = {key: key.removeprefix("file:") for key in evidence if key.startswith("file:")}
    single.update({key: path for system in SYSTEMS for key, path in system.probed_files.items()})
    for key, path in single.items():
        files[path] = _file(key, evidence.get(key))
    return files


def _changed_at(evidence: Evidence) -> Mapping[str, float]:
    owned = {key.removeprefix("file:"): one.ownership for key, one in evidence.items() if key.startswith("file:")}
    return {path: own.changed for path, own in owned.items() if own is not None and own.changed is not None}


def _modified_at(evidence: Evidence) -> Mapping[str, float]:
    captures = (evidence.get(key) for key in ("modprobe-d", "initramfs-images"))
    found = (one for capture in captures if capture and capture.outcome == "ok" for one in _matches(capture))
    owners = ((one.path, one.ownership) for one in found)
    return {path: owner.modified for path, owner in owners if owner is not None and owner.modified is not None}


def _exposed(evidence: Evidence) -> Mapping[str, str]:
    single = {key.removeprefix("file:"): one.ownership for key, one in evidence.items() if key.startswith("file:")}
    folders = (one for key, one in evidence.items() if key in FOLDERS or key.startswith("files:"))
    found = (one for capture in folders if b'"exposed"' in capture.data for one in _matches(capture))
    owners = {**single, **{one.path: one.ownership for one in found}}
    return {path: owner.exposed for path, owner in owners.items() if owner is not None and owner.exposed}


def _matches(capture: Capture) -> tuple[Found, ...]:
    return known(fact(capture.source, lambda: decode_found(capture.data)), ())


def _folder(key: str, capture: Capture | None) -> Files:
    if capture is None or capture.outcome != "ok":
        return {}
    found = fact(key, lambda: decode_found(capture.data))
    return {} if isinstance(found, Unknown) else {one.path: _found_file(key, one) for one in found.value}


def _found_file(key: str, found: Found) -> Known[FileState | None] | Unknown:
    if found.data is None:
        return Unknown(f"{found.path} could not be read", key)
    return Known(_state(found.data, found.ownership), key)


def _file(key: str, capture: Capture | None) -> Known[FileState | None] | Unknown:
    if capture is None:
        return Unknown(NOT_CAPTURED, key)
    if capture.outcome == "absent":
        return Known(None, key)
    return (
        Known(_state(capture.data, capture.ownership), key)
        if capture.outcome == "ok"
        else Unknown(reason(capture), key)
    )


def _state(data: bytes, ownership: Ownership | None) -> FileState:
    own = ownership or _USUAL_MODE
    return FileState(data, own.mode, own.uid, own.gid)
