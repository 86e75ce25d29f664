"""The libcuda that programs load instead of the driver's: a stub, another driver's copy, a compatibility package."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.addresses import CUDA_COMPATIBILITY, CUDA_DRIVER_API
from gpunode.diagnoses.commands import Command, Shell, edited, is_place
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import by_hand, driver_of_newer_cuda, run
from gpunode.diagnoses.snapshot import Snapshot, cite
from gpunode.diagnoses.views import cuda, driver, loader, pci
from gpunode.facts import library_path
from gpunode.facts.patterns import Pattern

_STUB_SAID: Final = Pattern(
    r"CUDA driver is a stub library|cudaErrorStubLibrary|CUDA_ERROR_STUB_LIBRARY|CudaAPIError: \[34\]"
    r"|CUDA error: error code 34"
    r"|lib(?:cuda|nvidia-ml)\.so[\w.]*: (?:file too short|invalid ELF header)"
    r"|Linked to libnvidia-ml library at wrong path|libnvidia-ml\.so in GDK package is a stub library"
)
_EMPTY: Final = Pattern(r"file too short|invalid ELF header")
_STUB_PATH: Final = Pattern(r"/\S{0,300}/stubs/lib(?:cuda|nvidia-ml)\.so\S*|/\S{0,300}/lib(?:64)?/stubs\b")


def _libcuda(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """Which library stands before the driver's: a stub, a copy of another driver, or CUDA's compatibility package."""
    found = snapshot.view(loader.loaded)
    front = snapshot.view(loader.folders)
    stub_said = snapshot.said(_STUB_SAID)
    places: tuple[loader.Library | loader.Folder, ...] = (*found, *front)
    stubs = [one for one in places if one.sort == "stub"]
    if stub_said or any(isinstance(one, loader.Library) for one in stubs):
        lines = (*(one.citation for one in stubs), *snapshot.said(_STUB_PATH))
        where = stubs[0].path if stubs else "the CUDA toolkit's stubs folder"
        what = f"programs load the stub of {where}, which is there for linking only, and not the driver's library"
        if not stubs and snapshot.says(_EMPTY):
            what = "programs load an empty or broken copy of the driver's library, left where the loader looks first"
        yield "library-path-shadows-libcuda", Proof(what, (*stub_said, *dict.fromkeys(lines)))
        return
    if shadow := _shadow(snapshot):
        yield "library-path-shadows-libcuda", shadow
        return
    if snapshot.says(cuda.NOT_ON_THIS_GPU):
        if not driver.at_two_versions(snapshot):
            yield "cuda-compat-not-supported-hw", _compat_not_here(snapshot)
        return
    yield from _other_copy(snapshot, places)


def _shadow(snapshot: Snapshot) -> Proof | None:
    """A library in a folder of LD_LIBRARY_PATH that is a stub, or of another version than the loaded driver's."""
    node = driver.loaded(snapshot)
    for folder, target, line in loader.in_front(snapshot):
        match = _VERSIONED.search(target)
        differs = match is not None and node is not None and match["version"] != node.version
        is_stub = "stub" in (folder.sort, loader.sort_of(target))
        if folder.sort == "compat" or not (is_stub or differs):
            continue
        of = "a stub, which is there for linking only" if is_stub else f"of {match['version'] if match else ''}"
        where = f" of {folder.set_in}" if folder.set_in else " that is set"
        what = f"programs with the LD_LIBRARY_PATH{where} load the driver's library from {folder.path}: it is {of}"
        cited = (folder.citation, line, *((node.citation,) if node and differs else ()))
        # A shell's program sets it for those alone who run it.
        return Proof(what, cited, "likely" if library_path.is_shell_program(folder.set_in) else "certain")
    return None


_VERSIONED: Final = Pattern(rf"\.so\.(?P<version>{driver.VERSION})$")
_LIBCUDA: Final = Pattern(rf"libcuda\.so\.(?P<version>{driver.VERSION})")


_DRIVEN: Final = Pattern(rf"Driver Version\s*:\s*(?P<version>{driver.VERSION})")


def _listed_compat(snapshot: Snapshot) -> Iterator[Citation]:
    """Where a command that looks into a folder of compatibility libraries shows libcuda of another driver."""
    node = driver.loaded(snapshot)
    for item in snapshot.items:
        if "/compat" not in item.written:
            continue
        told = _DRIVEN.search(item.text)
        if version := node.version if node else told["version"] if told else "":
            for match in _LIBCUDA.finditer(item.text):
                if match["version"] != version:
                    yield cite(item, item.number_at(match.start()))


def _other_copy(
    snapshot: Snapshot, places: tuple[loader.Library | loader.Folder, ...]
) -> Iterator[tuple[str, Verdict]]:
    said = snapshot.said(driver.UNFIT)
    compat = [one.citation for one in places if one.sort == "compat"] or [*_listed_compat(snapshot)]
    other, shown = _of_another_driver(snapshot, places)
    front = [one for one in places if isinstance(one, loader.Folder)]
    cured = _cured_by_unsetting(snapshot)
    wrong = snapshot.said(_WRONG)
    if (shown and wrong) or cured:
        path = other if shown else ", ".join(one.path for one in front) or "a folder in LD_LIBRARY_PATH"
        what = f"programs load {path} in place of the driver's own library"
        cited = (*wrong, *shown, *(one.citation for one in front), *cured)
        yield "library-path-shadows-libcuda", Proof(what, cited)
        return
    if not said or driver.at_two_versions(snapshot):
        return
    if driver.works(snapshot) and not compat and (unversioned := _of_no_known_version(snapshot, places)):
        what = (
            f"programs load {unversioned.path}, and error 803 says that it is not of the driver, which nvidia-smi uses"
        )
        yield "library-path-shadows-libcuda", Proof(what, (*said, unversioned.citation), "likely")
        return
    version = driver.loaded(snapshot)
    driven = f" {version.version}" if version else ""
    what = f"libcuda of a CUDA compatibility package is loaded, and it does not fit the node's driver{driven}"
    ruled_out = ("libraries of another version on the node: nvidia-smi works there",) if driver.works(snapshot) else ()
    if compat:
        yield "cuda-compat-lib-mismatch", Proof(what, (*said, *compat, *cuda.told_by(snapshot)), "certain", ruled_out)
    elif driver.works(snapshot):
        what = (
            "the program loads a libcuda of another version than the node's driver, as images with cuda-compat bring it"
        )
        yield "cuda-compat-lib-mismatch", Proof(what, (*said, *cuda.told_by(snapshot)), "likely", ruled_out)
    else:
        question = "is it a compatibility library in the image, or is the node's own driver at two versions?"
        look = (Shell("nvidia-smi  # on the node"), Shell("ldconfig -p | grep libcuda.so  # in the container"))
        causes = ("driver-library-mismatch-reboot-pending", "library-path-shadows-libcuda")
        yield "cuda-compat-lib-mismatch", Doubt(question, look, said, causes)


# What a libcuda or libnvidia-ml says that does not fit the driver. Any other error is of one that found its driver.
_WRONG: Final = Pattern(
    rf"{driver.UNFIT.pattern}|{cuda.INSUFFICIENT.pattern}|Driver/library version mismatch"
    r"|libcuda reported version[^\n]{0,80} does not match|does not match DSO version"
)


def _of_another_driver(
    snapshot: Snapshot, places: tuple[loader.Library | loader.Folder, ...]
) -> tuple[str, tuple[Citation, ...]]:
    """A library outside the usual places that is shown to be of another version than the node's driver."""
    node = driver.loaded(snapshot) or driver.smi_version(snapshot)
    for one, version, line in _elsewhere(snapshot, places):
        if node and version and version != node.version:
            return one.path, (one.citation, line, node.citation)
    return "", ()


def _of_no_known_version(
    snapshot: Snapshot, places: tuple[loader.Library | loader.Folder, ...]
) -> loader.Library | None:
    return next((one for one, version, _ in _elsewhere(snapshot, places) if not version), None)


def _elsewhere(
    snapshot: Snapshot, places: tuple[loader.Library | loader.Folder, ...]
) -> Iterator[tuple[loader.Library, str, Citation]]:
    """The libraries outside the usual places, each with its version, empty where nothing shows it, and the line."""
    listed = snapshot.view(loader.targets)
    for one in places:
        if one.sort == "other" and isinstance(one, loader.Library):
            target, line = listed.get(one.path, ("", one.citation))
            match = _VERSIONED.search(target) or _VERSIONED.search(one.path)
            yield one, match["version"] if match else "", line


def _cured_by_unsetting(snapshot: Snapshot) -> tuple[Citation, ...]:
    """nvidia-smi fails, and works where LD_LIBRARY_PATH is taken away from it."""
    bare = Pattern(r"env -u LD_LIBRARY_PATH|unset LD_LIBRARY_PATH|LD_LIBRARY_PATH=(?:''|\"\"|\s|$)")
    states = snapshot.view(driver.smi)
    works = [citation for state, citation in states if state == "works" and bare.search(citation.source)]
    fails = [citation for state, citation in states if state in {"mismatch", "failed"}]
    return (*works, *fails) if works and fails else ()


def _compat_not_here(snapshot: Snapshot) -> Proof:
    models = [gpu.model for gpu in snapshot.view(pci.gpus) if gpu.model is not None]
    named = next((model.label for model in models if not model.datacenter), "")
    version = driver.loaded(snapshot) or driver.smi_version(snapshot)
    driven = f"; the node's driver is {version.version}" if version else ""
    gpu = named or "this GPU"
    what = f"a newer CUDA's compatibility libcuda is loaded, which {gpu} is not the sort to take{driven}"
    return Proof(
        what,
        (*snapshot.said(cuda.NOT_ON_THIS_GPU), *cuda.told_by(snapshot)),
        ruled_out=("a mixed-up driver: that is error 803",),
    )


def _drop_compat(snapshot: Snapshot) -> Iterable[Fix]:
    on_node = any(one.where == "host" and one.sort == "compat" for one in snapshot.view(loader.loaded))
    if on_node:
        named = [one for one in snapshot.view(loader.folders) if one.file and one.sort == "compat"]
        text = "take the compatibility folder out of the loader's path"
        yield run("remove", text, *(_commented_out(named) or _COMPAT_COMMENTED_OUT), Shell("sudo ldconfig"))
    text = "in an image: build it without the package cuda-compat, and take its folder out of LD_LIBRARY_PATH"
    yield by_hand("remove", text)
    text = "or upgrade the node's driver to the CUDA of the image"
    yield from driver_of_newer_cuda(snapshot, text)


# The line alone: other folders stand in the same file, and it may be a package's.
_COMPAT_COMMENTED_OUT: Final = (
    Shell(
        "grep -rlsE --include='*.conf' '^[[:space:]]*/[^#]*/compat/*[[:space:]]*$' /etc/ld.so.conf.d | "
        "xargs -r -d '\\n' sudo sed -i.bak -E 's,^[[:space:]]*/[^#]*/compat/*[[:space:]]*$,#&,'"
    ),
)
_PLAIN: Final = Pattern(r"/[A-Za-z0-9/._+-]+")


def _commented_out(folders: Iterable[loader.Folder]) -> tuple[Command, ...]:
    """The commands that comment out the lines of these folders; none where a file or a folder is not named plainly."""
    found: list[Command] = []
    for one in folders:
        if not _PLAIN.fullmatch(one.path) or not is_place(one.file, "/etc/ld.so.conf.d"):
            return ()
        plain = one.path.rstrip("/").replace(".", r"\.").replace("+", r"\+")
        found.extend(edited(f"s,^[[:space:]]*{plain}/*[[:space:]]*$,#&,", one.file))
    return tuple(dict.fromkeys(found))


def _unshadow(snapshot: Snapshot) -> Iterable[Fix]:
    wrong = [one for one in snapshot.view(loader.folders) if one.where == "host" and _is_wrong(snapshot, one)]
    conf = [one for one in wrong if one.file]
    if commands := _commented_out(conf):
        yield run("configure", "take the folder out of the loader's path", *commands, Shell("sudo ldconfig"))
    elif conf:
        places = ", ".join(sorted({one.path for one in conf}))
        yield by_hand("configure", f"take {places} out of the files in /etc/ld.so.conf.d, then run ldconfig")
    paths = sorted({one.path for one in wrong if not one.file})
    if conf and not paths:
        return
    named = f" ({', '.join(paths)})" if paths else ""
    places = ", ".join(sorted({one.set_in for one in wrong if one.set_in}))
    where = f"in {places}" if places else "where it is set: a profile, a unit, an image"
    yield by_hand("configure", f"take the folder out of LD_LIBRARY_PATH{named}, {where}")
    find = Shell("grep -rsF LD_LIBRARY_PATH /etc/environment /etc/profile /etc/profile.d /etc/bash.bashrc /etc/systemd")
    yield run("inspect", "see where it is set", find)


def _is_wrong(snapshot: Snapshot, folder: loader.Folder) -> bool:
    """Whether the loader finds there what hides the driver's library."""
    hiding = {one.path.rpartition("/")[0] for one in snapshot.view(loader.loaded) if one.sort != "driver"}
    hiding |= {one.path.rstrip("/") for one, _, _ in loader.in_front(snapshot)}
    return folder.path.rstrip("/") in hiding if hiding else folder.sort != "other"


FAMILY: Final = Family(
    "libcuda",
    "the libcuda that is loaded",
    (
        Rule(
            cause="cuda-compat-lib-mismatch",
            layer="userspace",
            storey="libraries",
            severity="error",
            disruption="restart-container",
            title="a libcuda of another version than the driver is loaded",
            share=0.8,
            symptoms=(
                symptoms.MISMATCH,
                symptoms.CUDA_UNAVAILABLE,
                symptoms.CUDA_NOT_INITIALISED,
                symptoms.CUDA_TOO_NEW,
            ),
            look_at=(
                Shell("ldconfig -p | grep libcuda"),
                Shell("echo $LD_LIBRARY_PATH"),
            ),
            story=(
                "The cuda-compat packages bring a libcuda of a newer driver, so that a newer CUDA runs on an older "
                "one; which pairs work is listed. Where the folder stands in the loader's path although the node's "
                "driver is as new, or too far away, CUDA answers with error 803, «unsupported display driver / cuda "
                "driver combination». nvidia-smi works, since it uses another library."
            ),
            sources=("https://github.com/easydiffusion/easydiffusion/issues/379", CUDA_COMPATIBILITY),
            check=only("cuda-compat-lib-mismatch", _libcuda),
            remedy=_drop_compat,
        ),
        Rule(
            cause="cuda-compat-not-supported-hw",
            layer="userspace",
            storey="libraries",
            severity="error",
            disruption="restart-container",
            title="CUDA's compatibility libraries are used on a GPU that may not have them",
            symptoms=(
                symptoms.CUDA_NOT_INITIALISED,
                symptoms.CUDA_TOO_NEW,
                symptoms.MISMATCH,
                symptoms.CUDA_UNAVAILABLE,
            ),
            look_at=(Shell("ldconfig -p | grep libcuda"),),
            story=(
                "Forward compatibility, a newer libcuda on an older driver, is for data center GPUs only. An image "
                "that brings cuda-compat and puts it in front works on an A100 and fails on a GeForce with error 804. "
                "Without the compatibility library the image needs a driver that supports its CUDA."
            ),
            sources=(
                "https://github.com/gpustack/gpustack/issues/1254",
                "https://github.com/QuipNetwork/quip-miner/issues/24",
                CUDA_COMPATIBILITY,
            ),
            check=only("cuda-compat-not-supported-hw", _libcuda),
            remedy=_drop_compat,
        ),
        Rule(
            cause="library-path-shadows-libcuda",
            layer="userspace",
            storey="libraries",
            severity="error",
            disruption="restart-container",
            title="another library stands before the driver's libcuda",
            share=0.8,
            symptoms=(
                symptoms.CUDA_NOT_INITIALISED,
                symptoms.CUDA_TOO_NEW,
                symptoms.NO_NVML_LIBRARY,
                symptoms.CUDA_UNAVAILABLE,
                symptoms.CUDA_NO_DEVICE,
            ),
            look_at=(
                Shell("ldconfig -p | grep libcuda"),
                Shell("echo $LD_LIBRARY_PATH"),
            ),
            story=(
                "The CUDA toolkit has stubs of libcuda and libnvidia-ml for linking on machines without a driver. "
                "Where their folder, or one with another driver's copy, is in LD_LIBRARY_PATH or in /etc/ld.so.conf.d, "
                "the loader takes it before the driver's own. A stub answers every call with an error; a copy of "
                "another version does not fit the module."
            ),
            sources=(
                "https://github.com/numba/numba/issues/8985",
                "https://github.com/NVIDIA/warp/issues/219",
                "https://github.com/Syllo/nvtop/issues/225",
                CUDA_DRIVER_API,
            ),
            check=only("library-path-shadows-libcuda", _libcuda),
            remedy=_unshadow,
            explains=frozenset({"cuda-compat-lib-mismatch"}),
        ),
    ),
)
