"""Derivation of facts from evidence. Pure and total: missing facts become Unknown, with a reason and the probe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, datetime, timezone
from typing import Any, Final, TypeVar

from gpunode.change import FileState
from gpunode.facts import kernels, kubelet, layout, machine, systemd
from gpunode.facts.evidence import NOT_CAPTURED_REASON, Capture, Evidence, decode_matches
from gpunode.facts.layout import GpuLayout
from gpunode.facts.model import (
    NOT_INSTALLED_ENDING,
    PACKAGE_OF_PROGRAM,
    Distro,
    Fact,
    Facts,
    Files,
    Kernels,
    Known,
    Kubelet,
    LoadedDriver,
    MigGpu,
    ModuleFile,
    ModuleKey,
    PciDevice,
    Platform,
    Unit,
    Unknown,
)
from gpunode.facts.patterns import parse_int
from gpunode.facts.probes import (
    DRIVER_LIBRARY_GLOBS,
    FOLDERS,
    LEFTOVER_GLOBS,
    MODULE_FILE_PROBE_KEYS,
    PROBED_UNITS,
    RUN_INSTALLER_PROGRAMS,
)
from gpunode.facts.reader import (
    EvidenceMissing,
    EvidenceReader,
    derive_fact,
    explain_missing,
    find_matches,
    make_file_state,
)
from gpunode.packages import deb

T = TypeVar("T")
_IMAGE_PROBE_KEY = "image"
_MAX_TIMESTAMP: Final = 253402300799
_NOT_BOOTED: Final = Unknown("an image is not booted", _IMAGE_PROBE_KEY)
# Kernel, devices and processes visible from a mounted root belong to another system.
_IMAGE_FACTS: Final[dict[str, Any]] = {
    "platform": Known(Platform("image"), _IMAGE_PROBE_KEY),
    "boot_id": _NOT_BOOTED,
    "devices": Unknown("an image has no PCI bus", _IMAGE_PROBE_KEY),
    "modules": Known(frozenset(), _IMAGE_PROBE_KEY),
    "loaded_driver": Known(None, _IMAGE_PROBE_KEY),
    "device_nodes": Known(frozenset(), _IMAGE_PROBE_KEY),
    "rootless_docker": Known(False, _IMAGE_PROBE_KEY),
    "secure_boot": _NOT_BOOTED,
    "layout": Known(None, _IMAGE_PROBE_KEY),
    "observed_on": Unknown("an image has no clock", _IMAGE_PROBE_KEY),
    "provider": Known(None, _IMAGE_PROBE_KEY),
}


def derive(evidence: Evidence, *, image: bool = False, distribution: Distro | None = None) -> Facts:
    """Derive all facts from ``evidence``; those without evidence are Unknown.

    For an ``image`` (a mounted root), kernel, devices and processes are unknown. ``distribution``, from
    ``port.HostView.read_live_distribution``, takes precedence over ``evidence``.
    """
    reader = EvidenceReader(evidence)
    installed = deb.read_package_facts(reader)
    facts = Facts(
        distro=_read_distro(reader, distribution),
        architecture=installed.architecture,
        platform=_with_install_hint(_read_platform(reader)),
        kernels=_read_kernels(reader, image=image),
        boot_id=_read_boot_id(reader),
        devices=_with_install_hint(_read_devices(reader)),
        packages=installed.packages,
        packages_interrupted=installed.interrupted,
        unconfigured=installed.unconfigured,
        selected_for_removal=installed.selected_for_removal,
        sources=installed.sources,
        dependencies=installed.dependencies,
        headers=derive_fact(
            "kernel-builds",
            lambda: kernels.kernels_with_headers(reader.matches("kernel-builds"), reader.matches("kernel-sources")),
        ),
        module_files=_read_module_files(reader),
        modules=_read_loaded_modules(reader),
        loaded_driver=derive_fact("nvidia-version", lambda: _read_loaded_driver(reader)),
        device_nodes=derive_fact("dev-nvidia", lambda: _read_paths(reader, "dev-nvidia", "dev-nvidia-caps")),
        units=_read_units(reader, image=image),
        files=_read_files(evidence),
        changed_at=_read_ctimes(evidence),
        modified_at=_read_mtimes(evidence),
        exposed=_find_exposed_files(evidence),
        folder_modes=installed.folder_modes,
        dkms=derive_fact("dkms-installed", lambda: kernels.find_dkms_drivers(reader.matches("dkms-installed"))),
        toolkit_program=derive_fact("toolkit-program", lambda: bool(reader.matches("toolkit-program"))),
        lost_programs=derive_fact("toolkit-programs", lambda: _find_lost_programs(reader, installed.toolkit_checksums)),
        replaced_programs=derive_fact(
            "toolkit-programs", lambda: _find_replaced_programs(reader, installed.toolkit_checksums)
        ),
        rootless_docker=derive_fact("docker-rootless", lambda: bool(reader.matches("docker-rootless"))),
        run_installer=derive_fact(
            "run-installer", lambda: any(one.path in RUN_INSTALLER_PROGRAMS for one in reader.matches("run-installer"))
        ),
        driver_libraries=derive_fact("cuda-libraries", lambda: _read_paths(reader, *DRIVER_LIBRARY_GLOBS, links=False)),
        leftovers=derive_fact("dkms-tree", lambda: _read_leftovers(reader)),
        secure_boot=machine.read_secure_boot(evidence),
        layout=derive_fact("nvidia-gpus", lambda: _read_gpu_layout(reader)),
        mig=_read_mig(evidence),
        module_key=_read_module_key(evidence),
        switch_bridges=_read_switch_bridges(evidence),
        observed_on=derive_fact("clock", lambda: _read_clock(reader)),
        folders={folder: key for key, folder in FOLDERS.items() if _was_read(evidence.get(key))},
    )
    provider = machine.find_provider(lambda key: derive_fact(key, lambda: bool(reader.matches(key))), facts.distro)
    complete = replace(facts, kubelet=_find_kubelet(facts, evidence, image=image), provider=provider)
    return replace(complete, **_IMAGE_FACTS) if image else complete


def _find_kubelet(facts: Facts, evidence: Evidence, *, image: bool) -> Fact[Kubelet | None]:
    capture = evidence.get(kubelet.KUBELET_COMMAND_PROBE_KEY)
    has_command = capture is not None and capture.outcome == "ok" and capture.data  # a process that has exited has none
    words = capture.text.rstrip("\0").split("\0") if capture and has_command else ()
    return kubelet.find_kubelet(facts, words, image=image)


def _read_leftovers(reader: EvidenceReader) -> frozenset[str]:
    places = ("/usr/local/", "/usr/src/nvidia-", "/var/lib/dkms/nvidia")
    return frozenset(path for path in _read_paths(reader, *LEFTOVER_GLOBS, links=False) if path.startswith(places))


def _find_lost_programs(reader: EvidenceReader, checksums: Mapping[str, str]) -> tuple[str, ...]:
    existing = {one.path for key in ("toolkit-program", "toolkit-programs") for one in reader.matches(key)}
    return tuple(sorted(path for path in checksums if path.startswith("/usr/bin/nvidia-c") and path not in existing))


def _find_replaced_programs(reader: EvidenceReader, checksums: Mapping[str, str]) -> tuple[str, ...]:
    small = {one.path: one.data for one in reader.matches("toolkit-programs") if one.data is not None and not one.link}
    if not small:
        return ()
    from hashlib import md5  # loaded on use: no program that NVIDIA ships is so small

    return tuple(
        path
        for path, content in sorted(small.items())
        if path in checksums and md5(content, usedforsecurity=False).hexdigest() != checksums[path]
    )


def derive_runtime_facts(evidence: Evidence, *, image: bool = False) -> Facts:
    """Derive only the facts about units and files, which is cheaper than ``derive``; all others are Unknown."""
    units = _read_units(EvidenceReader(evidence), image=image)
    return replace(derive({}), units=units, files=_read_files(evidence), changed_at=_read_ctimes(evidence))


def derive_kubelet_facts(evidence: Evidence, *, image: bool = False) -> Facts:
    """Derive the facts of ``derive_runtime_facts`` and the kubelet."""
    folders = {folder: key for key, folder in FOLDERS.items() if _was_read(evidence.get(key))}
    facts = replace(derive_runtime_facts(evidence, image=image), folders=folders)
    return replace(facts, kubelet=_find_kubelet(facts, evidence, image=image))


def derive_devices(evidence: Evidence) -> Fact[tuple[PciDevice, ...]]:
    """Derive only the PCI devices of a booted machine, which is cheaper than ``derive``."""
    return _read_devices(EvidenceReader(evidence))


def _was_read(capture: Capture | None) -> bool:
    return capture is not None and capture.outcome in {"ok", "absent"}


def _read_distro(reader: EvidenceReader, known_distro: Distro | None) -> Fact[Distro]:
    first = derive_fact("os-release", lambda: known_distro or machine.parse_distro(reader.text("os-release")))
    if isinstance(first, Known):
        return first
    vendor = derive_fact("os-release-vendor", lambda: machine.parse_distro(reader.text("os-release-vendor")))
    return vendor if isinstance(vendor, Known) else first


def _with_install_hint(fact: Fact[T]) -> Fact[T]:
    """Add to an unknown fact the command that installs the program whose absence made it unknown."""
    package = (
        PACKAGE_OF_PROGRAM.get(fact.reason.removesuffix(NOT_INSTALLED_ENDING)) if isinstance(fact, Unknown) else None
    )
    if isinstance(fact, Unknown) and package:
        return replace(fact, install=deb.install_command((package,)))
    return fact


def _read_paths(reader: EvidenceReader, *keys: str, links: bool = True) -> frozenset[str]:
    return frozenset(found.path for key in keys for found in reader.matches(key) if links or found.link is None)


def _read_platform(reader: EvidenceReader) -> Fact[Platform]:
    def read() -> Platform:
        platform = machine.detect_platform(
            _read_virtualization(reader),
            kernel=reader.capture("kernel-release").text.strip(),
            dxg=bool(reader.matches("dev-dxg")),
            tegra=reader.text_or_empty("tegra-release"),
            compatible=reader.text_or_empty("device-tree"),
            manager=reader.text_or_empty("container-manager").strip()
            or ("docker" if reader.matches("dockerenv") else ""),
        )
        if platform is None:
            capture = reader.capture("virt")
            nothing = f"{capture.source} printed nothing"
            raise EvidenceMissing("virt", nothing if capture.outcome == "ok" else explain_missing(capture))
        return platform

    return derive_fact("virt", read)


def _read_virtualization(reader: EvidenceReader) -> str:
    # On bare metal it prints "none" and exits with 1, so its exit status says nothing.
    capture = reader.capture("virt")
    if capture.outcome in {"timeout", "denied"}:
        raise EvidenceMissing("virt", explain_missing(capture))
    return capture.text.strip()


def _read_kernels(reader: EvidenceReader, *, image: bool) -> Fact[Kernels]:
    def read() -> Kernels:
        running = None if image else reader.text("kernel-release").strip()
        return Kernels(running, kernels.installed_kernels(reader.matches("boot-images")))

    return derive_fact("boot-images", read)


def _read_boot_id(reader: EvidenceReader) -> Fact[str]:
    return derive_fact("boot-id", lambda: reader.text("boot-id").strip())


def _read_clock(reader: EvidenceReader) -> date:
    text = reader.text("clock").strip()
    seconds = parse_int(text)
    # Python's calendar ends with the year 9999.
    if seconds is None or seconds > _MAX_TIMESTAMP:
        raise ValueError(f"{text[:40]!r} is not a number of seconds")
    return datetime.fromtimestamp(seconds, tz=timezone.utc).date()


def _read_devices(reader: EvidenceReader) -> Fact[tuple[PciDevice, ...]]:
    first = derive_fact("lspci", lambda: machine.parse_lspci(reader.text("lspci")))
    if isinstance(first, Known):
        return first
    second = derive_fact("pci-modalias", lambda: _read_sysfs_devices(reader))
    return second if isinstance(second, Known) else Unknown(f"{first.reason}; {second.reason}", first.probe)


def _read_sysfs_devices(reader: EvidenceReader) -> tuple[PciDevice, ...]:
    devices = machine.read_sysfs_devices(reader.matches("pci-modalias"), reader.matches("pci-driver"))
    if not devices:
        raise EvidenceMissing("pci-modalias", "/sys/bus/pci/devices lists nothing")
    return devices


def _read_module_files(reader: EvidenceReader) -> Fact[tuple[ModuleFile, ...]]:
    def read() -> tuple[ModuleFile, ...]:
        found = [match for key in MODULE_FILE_PROBE_KEYS for match in reader.matches(key)]
        return kernels.find_module_files(found, reader.matches("dkms-installed"))

    return derive_fact(MODULE_FILE_PROBE_KEYS[0], read)


def _read_loaded_modules(reader: EvidenceReader) -> Fact[frozenset[str]]:
    # A kernel without modules has no such file; without /proc, the boot id would be missing, too.
    has_proc = isinstance(_read_boot_id(reader), Known)
    return derive_fact(
        "modules", lambda: kernels.parse_proc_modules((reader.text_or_empty if has_proc else reader.text)("modules"))
    )


def _read_loaded_driver(reader: EvidenceReader) -> LoadedDriver | None:
    data = reader.data("nvidia-version")
    return None if data is None else kernels.parse_nvrm_version(data.decode("utf-8", "replace"))


def _read_gpu_layout(reader: EvidenceReader) -> GpuLayout | None:
    gpus = reader.matches("nvidia-gpus")
    instances = (*reader.matches("nvidia-gpu-instances"), *reader.matches("nvidia-compute-instances"))
    return layout.read_layout(gpus, instances) if gpus else None


def _read_mig(evidence: Evidence) -> Fact[tuple[MigGpu, ...]] | None:
    if (capture := evidence.get("nvml")) is None:
        return None
    from gpunode.facts import nvml  # only for a recipe that divides GPUs, and for captures

    try:
        return Known(nvml.list_mig_gpus(nvml.read_nvml_answer(capture)), "nvml")
    except ValueError as error:
        return Unknown(str(error), "nvml")


def _read_module_key(evidence: Evidence) -> Fact[ModuleKey] | None:
    if "module-certificate" not in evidence:
        return None
    from gpunode.facts import module_key  # only where Secure Boot is on

    return module_key.derive_module_key(evidence)


def _read_switch_bridges(evidence: Evidence) -> Fact[tuple[str, ...]] | None:
    if "switch-bridges" not in evidence:
        return None
    from gpunode.facts.bridges import derive_switch_bridges  # only beside GPUs of Blackwell or newer

    return derive_switch_bridges(evidence)


def _read_units(reader: EvidenceReader, *, image: bool) -> Mapping[str, Fact[Unit]]:
    capture = reader.evidence.get("units")
    words = capture.source.split() if capture else ()
    names = dict.fromkeys((*PROBED_UNITS, *(word for word in words if word.endswith((".service", ".path")))))
    if image or (capture and (capture.outcome == "absent" or systemd.reports_no_systemd(capture.error))):
        keys = ("unit-wants", "unit-files-etc", "unit-files-lib")
        found = derive_fact(keys[0], lambda: systemd.read_offline_units(names, *(reader.matches(key) for key in keys)))
    else:
        found = derive_fact("units", lambda: dict(systemd.parse_units(_require_systemctl_output(reader))))
    if isinstance(found, Unknown):
        return dict.fromkeys(names, found)
    return {name: Known(unit, found.probe) for name, unit in found.value.items()}


def _require_systemctl_output(reader: EvidenceReader) -> str:
    """Return the output of ``systemctl show``, which in a chroot exits with 0 and prints only an error."""
    if text := reader.text("units").strip("\n"):
        return text + "\n"
    raise EvidenceMissing("units", reader.capture("units").error.strip() or "systemctl printed nothing")


def _read_files(evidence: Evidence) -> Files:
    files: dict[str, Known[FileState | None] | Unknown] = {}
    for key in FOLDERS:
        files.update(_read_folder(key, evidence.get(key)))
    for key in evidence:
        if key.startswith("files:"):
            files.update(_read_folder(key, evidence.get(key)))
    single = {key: key.removeprefix("file:") for key in evidence if key.startswith("file:")}
    single.update(deb.PROBED_FILES)
    for key, path in single.items():
        files[path] = _read_file(key, evidence.get(key))
    return files


def _read_ctimes(evidence: Evidence) -> Mapping[str, float]:
    owned = {key.removeprefix("file:"): one.ownership for key, one in evidence.items() if key.startswith("file:")}
    return {path: own.ctime for path, own in owned.items() if own is not None and own.ctime is not None}


def _read_mtimes(evidence: Evidence) -> Mapping[str, float]:
    matches = (match for key in ("modprobe-d", "initramfs-images") for match in find_matches(evidence, key))
    owners = ((match.path, match.ownership) for match in matches)
    return {path: owner.mtime for path, owner in owners if owner is not None and owner.mtime is not None}


def _find_exposed_files(evidence: Evidence) -> Mapping[str, str]:
    single = {key.removeprefix("file:"): one.ownership for key, one in evidence.items() if key.startswith("file:")}
    folders = (key for key in evidence if key in FOLDERS or key.startswith("files:"))
    listed = (key for key in folders if b'"exposed"' in evidence[key].data)
    owners = {**single, **{match.path: match.ownership for key in listed for match in find_matches(evidence, key)}}
    return {path: owner.exposed for path, owner in owners.items() if owner is not None and owner.exposed}


def _read_folder(key: str, capture: Capture | None) -> Files:
    if capture is None or capture.outcome != "ok":
        return {}
    found = derive_fact(key, lambda: decode_matches(capture.data))
    return {
        match.path: Unknown(f"{match.path} could not be read", key)
        if match.data is None
        else Known(make_file_state(match.data, match.ownership), key)
        for match in ([] if isinstance(found, Unknown) else found.value)
    }


def _read_file(key: str, capture: Capture | None) -> Known[FileState | None] | Unknown:
    if capture is None:
        return Unknown(NOT_CAPTURED_REASON, key)
    if capture.outcome == "absent":
        return Known(None, key)
    return (
        Known(make_file_state(capture.data, capture.ownership), key)
        if capture.outcome == "ok"
        else Unknown(explain_missing(capture), key)
    )
