"""Facts from evidence. Pure and total: what cannot be told becomes Unknown, with the reason and the probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from gpunode.change import FileState, PackageState
from gpunode.facts import (
    apt_sources,
    dkms,
    dpkg,
    kernels,
    kmod,
    kubelet,
    layout,
    lspci,
    os_release,
    platform,
    provider,
    sysfs_pci,
    systemd,
)
from gpunode.facts.evidence import Capture, Evidence, Found, Ownership, decode_found
from gpunode.facts.layout import Layout
from gpunode.facts.model import (
    NOT_INSTALLED,
    AptSource,
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
from gpunode.facts.probes import FOLDERS, MODULE_KEYS, UNITS

T = TypeVar("T")
_IMAGE = "image"
_NOT_CAPTURED = "not captured"
_USUAL_MODE = Ownership(0o644, 0, 0)


class _Missing(ValueError):
    """A probe gave nothing to read; ``key`` is its name."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(reason)
        self.key = key


@dataclass(frozen=True, slots=True)
class _Reader:
    """Evidence, read by key; what is not there raises ``_Missing``."""

    evidence: Evidence

    def capture(self, key: str) -> Capture:
        capture = self.evidence.get(key)
        if capture is None:
            raise _Missing(key, _NOT_CAPTURED)
        return capture

    def data(self, key: str) -> bytes | None:
        """The content; None when the thing is not there."""
        capture = self.capture(key)
        if capture.outcome == "absent":
            return None
        if capture.outcome != "ok":
            raise _Missing(key, reason(capture))
        return capture.data

    def text(self, key: str) -> str:
        """The content, which must be there."""
        data = self.data(key)
        if data is None:
            raise _Missing(key, reason(self.capture(key)))
        return data.decode("utf-8", "replace")

    def optional(self, key: str) -> str:
        """The content; empty when the thing is not there."""
        return (self.data(key) or b"").decode("utf-8", "replace")

    def found(self, key: str) -> tuple[Found, ...]:
        """The matches of a glob; none when there is nothing."""
        return decode_found(self.data(key) or b"")


def reason(capture: Capture) -> str:
    """Why ``capture`` has nothing to read."""
    if capture.outcome == "absent" and not capture.source.startswith("/"):
        return f"{capture.source.partition(' ')[0]}{NOT_INSTALLED}"
    word = {"absent": "is not there", "denied": "may not be read", "timeout": "did not answer in time"}
    status = "" if capture.exit_status is None else f" (exit status {capture.exit_status})"
    said = capture.error.strip().split("\n")[0][:200]
    return f"{capture.source} {word.get(capture.outcome, 'failed')}{status}" + (f": {said}" if said else "")


def _fact(key: str, read: Callable[[], T]) -> Fact[T]:
    """What ``read`` returns, known from ``key``; whatever stops it is the reason for not knowing."""
    try:
        return Known(read(), key)
    except _Missing as missing:
        return Unknown(str(missing), missing.key)
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        return Unknown(f"not understood: {error}"[:500], key)


def derive(evidence: Evidence, *, image: bool = False) -> Facts:
    """The facts that ``evidence`` gives; every one that it does not give is Unknown.

    Args:
        evidence: what the probes returned, by key.
        image: whether the node is a mounted root, where kernel, devices and processes are somebody else's.
    """
    reader = _Reader(evidence)
    entries = _fact("dpkg-status", lambda: dpkg.entries(reader.text("dpkg-status")))
    facts = Facts(
        distro=_distro(reader),
        architecture=_architecture(entries),
        platform=_platform(reader, image=image),
        kernels=_kernels(reader, image=image),
        boot_id=_boot_id(reader, image=image),
        devices=_devices(reader, image=image),
        packages=_packages(reader, entries),
        dpkg_interrupted=_interrupted(reader, entries),
        sources=_fact("apt-sources", lambda: _sources(reader)),
        headers=_headers(reader),
        module_files=_module_files(reader),
        modules=_modules(reader, image=image),
        loaded_driver=_loaded_driver(reader, image=image),
        device_nodes=_device_nodes(reader, image=image),
        units=_units(reader, image=image),
        files=_files(evidence),
        changed_at=_changed_at(evidence),
        exposed=_exposed(evidence),
        dkms=_fact("dkms-installed", lambda: dkms.drivers(reader.found("dkms-installed"))),
        toolkit_program=_fact("toolkit-program", lambda: bool(reader.found("toolkit-program"))),
        rootless_docker=_fact("docker-rootless", lambda: not image and bool(reader.found("docker-rootless"))),
        run_installer=_fact("run-installer", lambda: bool(reader.found("run-installer"))),
        layout=_layout(reader, image=image),
        mig=_mig(evidence),
        folders={folder: key for key, folder in FOLDERS.items() if _is_read(evidence.get(key))},
    )
    running = _command_line(evidence.get(kubelet.COMMAND))
    return replace(
        facts,
        kubelet=kubelet.fact(facts, running, image=image),
        provider=_provider(reader, facts.distro, image=image),
    )


def _provider(reader: _Reader, distro: Fact[Distro], *, image: bool) -> Fact[Provider | None]:
    if image:
        return Known(None, _IMAGE)
    return provider.fact(lambda key: _fact(key, lambda: bool(reader.found(key))), distro)


def about_runtime(evidence: Evidence, *, image: bool = False) -> Facts:
    """The facts about units and files, and when these were changed; all others are Unknown. Cheaper than ``derive``."""
    units = _units(_Reader(evidence), image=image)
    return replace(derive({}), units=units, files=_files(evidence), changed_at=_changed_at(evidence))


def about_kubelet(evidence: Evidence, *, image: bool = False) -> Facts:
    """As ``about_runtime``, and which kubelet is here."""
    folders = {folder: key for key, folder in FOLDERS.items() if _is_read(evidence.get(key))}
    facts = replace(about_runtime(evidence, image=image), folders=folders)
    running = _command_line(evidence.get(kubelet.COMMAND))
    return replace(facts, kubelet=kubelet.fact(facts, running, image=image))


def about_devices(evidence: Evidence) -> Fact[tuple[PciDevice, ...]]:
    """The PCI devices of a machine that runs. Cheaper than ``derive``."""
    return _devices(_Reader(evidence), image=False)


def _command_line(capture: Capture | None) -> tuple[str, ...]:
    """The words of a process, as /proc has them; none where it was not looked at, or has ended meanwhile."""
    return tuple(capture.text.rstrip("\0").split("\0")) if capture and capture.outcome == "ok" and capture.data else ()


def _is_read(capture: Capture | None) -> bool:
    return capture is not None and capture.outcome in {"ok", "absent"}


def _distro(reader: _Reader) -> Fact[Distro]:
    first = _fact("os-release", lambda: os_release.distro(reader.text("os-release")))
    if isinstance(first, Known):
        return first
    vendor = _fact("os-release-vendor", lambda: os_release.distro(reader.text("os-release-vendor")))
    return vendor if isinstance(vendor, Known) else first


def _architecture(entries: Fact[tuple[dpkg.Entry, ...]]) -> Fact[str]:
    if isinstance(entries, Unknown):
        return entries
    found = entries.value
    return _fact(entries.probe, lambda: dpkg.native_architecture(found))


def _packages(reader: _Reader, entries: Fact[tuple[dpkg.Entry, ...]]) -> Fact[Mapping[str, PackageState]]:
    if isinstance(entries, Unknown):
        return entries
    found = entries.value
    return _fact(entries.probe, lambda: dpkg.packages(found, reader.optional("apt-extended-states")))


def _interrupted(reader: _Reader, entries: Fact[tuple[dpkg.Entry, ...]]) -> Fact[bool]:
    if isinstance(entries, Unknown):
        return entries
    found = entries.value
    return _fact("dpkg-updates", lambda: dpkg.interrupted(found, _paths(reader, "dpkg-updates")))


def _paths(reader: _Reader, *keys: str) -> frozenset[str]:
    return frozenset(found.path for key in keys for found in reader.found(key))


def _platform(reader: _Reader, *, image: bool) -> Fact[Platform]:
    if image:
        return Known(Platform("image"), _IMAGE)

    def read() -> Platform:
        found = platform.platform(
            _virt(reader),
            kernel=reader.capture("kernel-release").text.strip(),
            dxg=bool(reader.found("dev-dxg")),
            tegra=reader.optional("tegra-release"),
            compatible=reader.optional("device-tree"),
            manager=_manager(reader),
        )
        if found is None:
            raise _Missing("virt", _why_no_virt(reader))
        return found

    return _fact("virt", read)


def _virt(reader: _Reader) -> str:
    # It prints "none" and exits with 1 on bare metal, so the outcome of the command says nothing.
    capture = reader.capture("virt")
    if capture.outcome in {"timeout", "denied"}:
        raise _Missing("virt", reason(capture))
    return capture.text.strip()


def _why_no_virt(reader: _Reader) -> str:
    capture = reader.capture("virt")
    return reason(capture) if capture.outcome != "ok" else f"{capture.source} printed nothing"


def _manager(reader: _Reader) -> str:
    return reader.optional("container-manager").strip() or ("docker" if reader.found("dockerenv") else "")


def _kernels(reader: _Reader, *, image: bool) -> Fact[Kernels]:
    def read() -> Kernels:
        running = None if image else reader.text("kernel-release").strip()
        return Kernels(running, kernels.installed(reader.found("boot-images")))

    return _fact("boot-images", read)


def _boot_id(reader: _Reader, *, image: bool) -> Fact[str]:
    if image:
        return Unknown("an image is not booted", _IMAGE)
    return _fact("boot-id", lambda: reader.text("boot-id").strip())


def _devices(reader: _Reader, *, image: bool) -> Fact[tuple[PciDevice, ...]]:
    if image:
        return Unknown("an image has no PCI bus; name its GPUs with --gpu", _IMAGE)
    first = _fact("lspci", lambda: lspci.parse(reader.text("lspci")))
    if isinstance(first, Known):
        return first
    second = _fact("pci-modalias", lambda: _sysfs(reader))
    return second if isinstance(second, Known) else Unknown(f"{first.reason}; {second.reason}", first.probe)


def _sysfs(reader: _Reader) -> tuple[PciDevice, ...]:
    devices = sysfs_pci.devices(reader.found("pci-modalias"), reader.found("pci-driver"))
    if not devices:
        raise _Missing("pci-modalias", "/sys/bus/pci/devices lists nothing")
    return devices


def _sources(reader: _Reader) -> tuple[AptSource, ...]:
    path = "/etc/apt/sources.list"
    entries = [*apt_sources.parse(path, reader.optional("apt-sources"))]
    for found in reader.found("apt-sources-d"):
        if not apt_sources.is_source_list(found.path):
            continue
        if found.data is None:
            raise _Missing("apt-sources-d", f"{found.path} could not be read")
        entries.extend(apt_sources.parse(found.path, found.data.decode("utf-8", "replace")))
    return tuple(entries)


def _headers(reader: _Reader) -> Fact[frozenset[str]]:
    return _fact(
        "kernel-builds", lambda: kernels.with_headers(reader.found("kernel-builds"), reader.found("kernel-sources"))
    )


def _module_files(reader: _Reader) -> Fact[tuple[ModuleFile, ...]]:
    def read() -> tuple[ModuleFile, ...]:
        found = [one for key in MODULE_KEYS for one in reader.found(key)]
        return dkms.module_files(found, reader.found("dkms-installed"))

    return _fact(MODULE_KEYS[0], read)


def _modules(reader: _Reader, *, image: bool) -> Fact[frozenset[str]]:
    if image:
        return Known(frozenset(), _IMAGE)
    # A kernel without modules has no such file; a node without /proc would not tell its boot id either.
    has_proc = isinstance(_boot_id(reader, image=False), Known)
    return _fact("modules", lambda: kmod.loaded((reader.optional if has_proc else reader.text)("modules")))


def _loaded_driver(reader: _Reader, *, image: bool) -> Fact[LoadedDriver | None]:
    def read() -> LoadedDriver | None:
        data = reader.data("nvidia-version")
        return None if data is None else kmod.nvidia_version(data.decode("utf-8", "replace"))

    return Known(None, _IMAGE) if image else _fact("nvidia-version", read)


def _layout(reader: _Reader, *, image: bool) -> Fact[Layout | None]:
    def read() -> Layout | None:
        gpus = reader.found("nvidia-gpus")
        instances = (*reader.found("nvidia-gpu-instances"), *reader.found("nvidia-compute-instances"))
        return layout.layout(gpus, instances) if gpus else None

    return Known(None, _IMAGE) if image else _fact("nvidia-gpus", read)


def _mig(evidence: Evidence) -> Fact[tuple[MigGpu, ...]] | None:
    if (capture := evidence.get("nvml")) is None:
        return None
    from gpunode.facts import nvml  # only for a recipe that divides GPUs, and for captures

    try:
        return Known(nvml.mig_gpus(nvml.answer_of(capture)), "nvml")
    except ValueError as error:
        return Unknown(str(error), "nvml")


def _device_nodes(reader: _Reader, *, image: bool) -> Fact[frozenset[str]]:
    if image:
        return Known(frozenset(), _IMAGE)
    return _fact("dev-nvidia", lambda: _paths(reader, "dev-nvidia", "dev-nvidia-caps"))


def _units(reader: _Reader, *, image: bool) -> Mapping[str, Fact[Unit]]:
    capture = reader.evidence.get("units")
    names = _asked(capture)
    if image or (capture and (capture.outcome == "absent" or systemd.is_absent(capture.error))):
        keys = ("unit-wants", "unit-files-etc", "unit-files-lib")
        found = _fact(keys[0], lambda: systemd.offline(names, *(reader.found(key) for key in keys)))
    else:
        found = _fact("units", lambda: dict(systemd.units(_shown(reader))))
    if isinstance(found, Unknown):
        return dict.fromkeys(names, found)
    return {name: Known(unit, found.probe) for name, unit in found.value.items()}


def _shown(reader: _Reader) -> str:
    """What ``systemctl show`` printed; in a chroot it ends with 0, prints nothing, and says why elsewhere."""
    if text := reader.text("units").strip("\n"):
        return text + "\n"
    raise _Missing("units", reader.capture("units").error.strip() or "systemctl printed nothing")


def _asked(capture: Capture | None) -> tuple[str, ...]:
    words = capture.source.split() if capture else ()
    return tuple(dict.fromkeys((*UNITS, *(word for word in words if word.endswith((".service", ".path"))))))


def _files(evidence: Evidence) -> Files:
    files: dict[str, Known[FileState | None] | Unknown] = {}
    for key in FOLDERS:
        files.update(_folder(key, evidence.get(key)))
    for key in evidence:
        if key.startswith("files:"):
            files.update(_folder(key, evidence.get(key)))
    single = {key: key.removeprefix("file:") for key in evidence if key.startswith("file:")}
    single["apt-sources"] = "/etc/apt/sources.list"
    for key, path in single.items():
        files[path] = _file(key, evidence.get(key))
    return files


def _changed_at(evidence: Evidence) -> Mapping[str, float]:
    owned = {key.removeprefix("file:"): one.ownership for key, one in evidence.items() if key.startswith("file:")}
    return {path: own.changed for path, own in owned.items() if own is not None and own.changed is not None}


def _exposed(evidence: Evidence) -> Mapping[str, str]:
    single = {key.removeprefix("file:"): one.ownership for key, one in evidence.items() if key.startswith("file:")}
    folders = (one for key, one in evidence.items() if key in FOLDERS or key.startswith("files:"))
    found = (one for capture in folders if b'"exposed"' in capture.data for one in _matches(capture))
    owners = {**single, **{one.path: one.ownership for one in found}}
    return {path: owner.exposed for path, owner in owners.items() if owner is not None and owner.exposed}


def _matches(capture: Capture) -> tuple[Found, ...]:
    return known(_fact(capture.source, lambda: decode_found(capture.data)), ())


def _folder(key: str, capture: Capture | None) -> Files:
    if capture is None or capture.outcome != "ok":
        return {}
    found = _fact(key, lambda: decode_found(capture.data))
    return {} if isinstance(found, Unknown) else {one.path: _found_file(key, one) for one in found.value}


def _found_file(key: str, found: Found) -> Known[FileState | None] | Unknown:
    if found.data is None:
        return Unknown(f"{found.path} could not be read", key)
    return Known(_state(found.data, found.ownership), key)


def _file(key: str, capture: Capture | None) -> Known[FileState | None] | Unknown:
    if capture is None:
        return Unknown(_NOT_CAPTURED, key)
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
