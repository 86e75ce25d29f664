"""The libcuda that programs load instead of the driver's: a stub, another driver's copy, a compatibility package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Command, Shell, edit_files, is_path_below
from gpunode.diagnoses.evaluation import is_examined
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import manual_step, run_step, upgrade_driver_for_cuda
from gpunode.diagnoses.signs import all_of, any_of, custom_sign, message_line, predicate, unless
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import cuda, driver, loader
from gpunode.facts.patterns import Pattern

_STUB_SAID: Final = message_line(
    r"CUDA driver is a stub library|cudaErrorStubLibrary|CUDA_ERROR_STUB_LIBRARY|CudaAPIError: \[34\]"
    r"|CUDA error: error code 34|Linked to libnvidia-ml library at wrong path"
    r"|libnvidia-ml\.so in GDK package is a stub library"
    r"|lib(?:cuda|nvidia-ml)\.so[\w.]*: (?:file too short|invalid ELF header)"
)
_NOT_HERE: Final = message_line(cuda.NOT_ON_THIS_GPU.pattern)
# What a libcuda or libnvidia-ml says that does not fit the driver. Any other error is of one that found its driver.
_WRONG: Final = any_of(
    symptoms.CUDA_UNFIT,
    symptoms.MISMATCH,
    message_line(rf"{cuda.INSUFFICIENT.pattern}|libcuda reported version[^\n]{{0,80}} does not match"),
)
_VERSIONED: Final = Pattern(rf"\.so\.(?P<version>{driver.VERSION})$")
_LIBCUDA: Final = Pattern(rf"libcuda\.so\.(?P<version>{driver.VERSION})")
_DRIVEN: Final = Pattern(rf"Driver Version\s*:\s*(?P<version>{driver.VERSION})")


def _library_places(snapshot: Snapshot) -> tuple[loader.Library | loader.Folder, ...]:
    return (*snapshot.view(loader.loaded_libraries), *snapshot.view(loader.search_folders))


def _stub_lines(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield folders and files with stubs that a report shows."""
    return (one.citation for one in _library_places(snapshot) if one.sort == "stub" and not is_examined(snapshot))


def _opened_stubs(snapshot: Snapshot) -> Iterator[Citation]:
    return (one.citation for one in snapshot.view(loader.loaded_libraries) if one.sort == "stub")


def _library_copies(snapshot: Snapshot) -> Iterator[tuple[str, Citation]]:
    """Yield the libraries outside the usual places, each with its version, empty where its name has none."""
    for one in snapshot.view(loader.loaded_libraries):
        if one.sort == "other":
            match = _VERSIONED.search(one.path)
            yield match["version"] if match else "", one.citation


def _foreign_copies(snapshot: Snapshot) -> Iterator[Citation]:
    node = driver.loaded_version(snapshot) or driver.smi_version(snapshot)
    for version, one in _library_copies(snapshot):
        if node and version and version != node.version:
            yield from (one, node.citation)


def _unversioned_copies(snapshot: Snapshot) -> Iterator[Citation]:
    return (one for version, one in _library_copies(snapshot) if not version)


def _compat_lines(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield compatibility libraries that are loaded or of another driver."""
    yield from (one.citation for one in _library_places(snapshot) if one.sort == "compat")
    node = driver.loaded_version(snapshot)
    for item in snapshot.items:
        told = _DRIVEN.search(item.text) if "/compat" in item.written else None
        version = node.version if node else told["version"] if told else ""
        if version and "/compat" in item.written:
            for match in _LIBCUDA.finditer(item.text):
                if match["version"] != version:
                    yield cite(item, item.number_at(match.start()))


_STUBS: Final = custom_sign(_stub_lines)
_COMPAT: Final = custom_sign(_compat_lines)
_FOREIGN: Final = any_of(
    all_of(_WRONG, custom_sign(_foreign_copies)),
    all_of(symptoms.CUDA_UNFIT, symptoms.DRIVER_WORKS, unless(custom_sign(_unversioned_copies), _COMPAT)),
)
_SHADOWED: Final = any_of(_STUB_SAID, custom_sign(_opened_stubs), _FOREIGN)
_AT_TWO_VERSIONS: Final = predicate(driver.has_two_versions, "the node's own driver is at two versions")


def _summarize_shadow(snapshot: Snapshot) -> str:
    path = next(
        (one.path for one in _library_places(snapshot) if one.sort in {"stub", "other"}), "a stub or another copy"
    )
    return f"programs load {path} in place of the driver's own library"


def _drop_compat(snapshot: Snapshot) -> Iterable[Fix]:
    named = [
        one for one in snapshot.view(loader.search_folders) if one.file and one.sort == "compat" and one.where == "host"
    ]
    if commands := _comment_out(named):
        yield run_step(
            "remove", "remove the compatibility folder from the loader's path", *commands, Shell("sudo ldconfig")
        )
    text = "in an image: build it without the package cuda-compat, and remove its folder from LD_LIBRARY_PATH"
    yield manual_step("remove", text)
    yield from upgrade_driver_for_cuda(snapshot, "or upgrade the node's driver to one for the image's CUDA")


_PLAIN: Final = Pattern(r"/[A-Za-z0-9/._+-]+")


def _comment_out(folders: Iterable[loader.Folder]) -> tuple[Command, ...]:
    """Return the commands that comment out these folders; none if a name is not plain."""
    found: list[Command] = []
    for one in folders:
        if not _PLAIN.fullmatch(one.path) or not is_path_below(one.file, "/etc/ld.so.conf.d"):
            return ()
        plain = one.path.rstrip("/").replace(".", r"\.").replace("+", r"\+")
        found.extend(edit_files(f"s,^[[:space:]]*{plain}/*[[:space:]]*$,#&,", one.file))
    return tuple(dict.fromkeys(found))


def _unshadow(snapshot: Snapshot) -> Iterable[Fix]:
    wrong = [
        one for one in snapshot.view(loader.search_folders) if one.where == "host" and _hides_driver(snapshot, one)
    ]
    conf = [one for one in wrong if one.file]
    if conf:
        text = f"remove {', '.join(sorted({one.path for one in conf}))} from /etc/ld.so.conf.d, then run ldconfig"
        commands = _comment_out(conf)
        yield run_step("configure", text, *((*commands, Shell("sudo ldconfig")) if commands else ()))
    paths = sorted({one.path for one in wrong if not one.file})
    if conf and not paths:
        return
    named = f" ({', '.join(paths)})" if paths else ""
    places = ", ".join(sorted({one.set_in for one in wrong if one.set_in}))
    where = f"in {places}" if places else "where it is set: a profile, a unit, an image"
    yield manual_step("configure", f"remove the folder from LD_LIBRARY_PATH{named}, {where}")
    find = Shell("grep -rsF LD_LIBRARY_PATH /etc/environment /etc/profile /etc/profile.d /etc/bash.bashrc /etc/systemd")
    yield run_step("inspect", "find where it is set", find)


def _hides_driver(snapshot: Snapshot, folder: loader.Folder) -> bool:
    """Return whether the folder contains a library that hides the driver's."""
    hiding = {one.path.rpartition("/")[0] for one in snapshot.view(loader.loaded_libraries) if one.sort != "driver"}
    return folder.path.rstrip("/") in hiding if hiding else folder.sort != "other"


_FIRST: Final = custom_sign(
    lambda node: (one.citation for one in node.view(loader.loaded_libraries) if one.sort == "compat")
)
_GEFORCE: Final = message_line(r"\bGeForce\b|\b[GR]TX \d{3,4}\b")


RULES: Final = (
    Rule(
        cause="cuda-compat-lib-mismatch",
        layer="userspace",
        disruption="restart-container",
        share=0.8,
        decisive=all_of(symptoms.CUDA_UNFIT, _COMPAT),
        typical=any_of(symptoms.CUDA_UNFIT, unless(_FIRST, _GEFORCE)),
        may_be_normal=True,
        symptoms=(symptoms.CUDA_UNFIT, symptoms.CUDA_UNAVAILABLE, symptoms.CUDA_NOT_INITIALISED),
        context=_COMPAT,
        against=(_AT_TWO_VERSIONS, symptoms.MISMATCH, _NOT_HERE, _SHADOWED),
        look_at=(Shell("ldconfig -p | grep libcuda  # in the container"), Shell("nvidia-smi  # on the node")),
        summary="the libcuda of a CUDA compatibility package is loaded, and it does not fit the node's driver",
        remedy=_drop_compat,
    ),
    Rule(
        cause="cuda-compat-not-supported-hw",
        layer="userspace",
        disruption="restart-container",
        decisive=_NOT_HERE,
        typical=all_of(_FIRST, _GEFORCE),
        may_be_normal=True,
        symptoms=(_NOT_HERE, symptoms.CUDA_NOT_INITIALISED, symptoms.CUDA_TOO_NEW, symptoms.CUDA_UNAVAILABLE),
        context=_COMPAT,
        against=(_AT_TWO_VERSIONS, _SHADOWED),
        look_at=(Shell("ldconfig -p | grep libcuda"),),
        summary="the compatibility libcuda of a newer CUDA is loaded on a GPU that does not support it",
        remedy=_drop_compat,
    ),
    Rule(
        cause="library-path-shadows-libcuda",
        layer="userspace",
        disruption="restart-container",
        share=0.8,
        decisive=_SHADOWED,
        typical=_STUBS,
        symptoms=(
            _STUB_SAID,
            symptoms.CUDA_UNFIT,
            symptoms.MISMATCH,
            symptoms.CUDA_NOT_INITIALISED,
            symptoms.NO_NVML_LIBRARY,
            symptoms.CUDA_UNAVAILABLE,
            symptoms.CUDA_NO_DEVICE,
        ),
        look_at=(Shell("ldconfig -p | grep libcuda"), Shell("echo $LD_LIBRARY_PATH")),
        summary=_summarize_shadow,
        remedy=_unshadow,
        explains=frozenset({"cuda-compat-lib-mismatch"}),
    ),
)
