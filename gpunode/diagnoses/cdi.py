"""CDI: a device that no engine resolves, and a specification of a driver that is gone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Command, Shell, command, is_place
from gpunode.diagnoses.model import Citation, Doubt, Family, Fix, Proof, Rule, Verdict, only
from gpunode.diagnoses.remedies import run, upgrade
from gpunode.diagnoses.snapshot import Snapshot
from gpunode.diagnoses.views import cdi, docker, driver, packages, toolkit
from gpunode.diagnoses.views.cdi import Asked, Specification
from gpunode.facts.cdi_places import FOLDERS
from gpunode.facts.patterns import Pattern
from gpunode.runtimes import podman

_UNREADABLE: Final = Pattern(
    r"failed to (?:parse|unmarshal|load) CDI Spec"
    r"|unknown field \\?\"(?:additionalGids|hostPath|intelRdt|annotations|containerEdits)"
    r"|(?:invalid|unknown|unsupported) (?:CDI )?(?:spec )?(?:version|cdiVersion)|cdi: invalid spec|invalid CDI Spec",
    re.IGNORECASE,
)
_ABOUT_CDI: Final = Pattern(r"\bCDI\b|/cdi/", re.IGNORECASE)
_NO_DRIVER_CDI: Final = Pattern(r"could not select device driver [\\\"'`]*cdi[\\\"'`]* with capabilities")
_NO_CDI: Final = Pattern(
    r"stat nvidia\.com/gpu=\S+: no such file or directory|invalid device (?:mode|specification): nvidia\.com/gpu="
)
_GONE: Final = Pattern(
    r"(?:error stat'ing file|cannot stat|failed to stat CDI host device|failed to fulfil mount request:? open"
    r"|error mounting|failed to mount|stat|bind source path does not exist:|lstat|statfs)"
    r" [`'\"\\]*(?P<path>/[^\s`'\"\\:]*(?:nvidia|libcuda|libnv|/dri/(?:card|renderD))[^\s`'\"\\:]*)"
    r"[`'\"\\]*[^\n]{0,160}?[Nn]o such file",
)
_BY_CDI: Final = Pattern(
    r"\bCDI\b|\bpodman\b|\bcrun\b|\bdistrobox\b|\btoolbox\b|nvidia\.com/gpu=|\bramalama\b", re.IGNORECASE
)
_LIBRARY_VERSION: Final = Pattern(rf"\.so\.(?P<version>{driver.VERSION})$")
_RENDER: Final = "/dev/dri/"
_HAS_CDI: Final = (25,)
# From here on dockerd-rootless.sh brings CDI's folders into the daemon's own tree (moby PR 48541).
_MOUNTS_CDI: Final = (28,)
# From here on nvidia-ctk writes CDI 0.7 (its release notes), and docker reads that (moby PR 47706).
_WRITES_07, _DOCKER_READS_07 = (1, 19, 1), (27,)


def _decide(snapshot: Snapshot) -> Iterator[tuple[str, Verdict]]:
    """What keeps an engine from the CDI devices that it was asked for."""
    if driver.fails(snapshot):
        return  # no specification would help
    if verdict := _of_files(snapshot) or _of_docker(snapshot) or _unreadable(snapshot):
        yield verdict
        return
    asked = snapshot.view(cdi.unresolved)
    if asked and (verdict := _unresolved(snapshot, asked)):
        yield verdict


# A specification of a driver that is gone.


def _of_files(snapshot: Snapshot) -> tuple[str, Verdict] | None:
    gone, now = snapshot.match(_GONE), _driver(snapshot)
    said = snapshot.said(_GONE)
    specs = [spec for spec in snapshot.view(cdi.specifications) if spec.drivers and not spec.is_management]
    if now is not None and not _is_torn(snapshot) and (old := _of_another(specs, now[0])):
        summary = f"{old.path} is of driver {', '.join(sorted(old.drivers))}, and the driver is {now[0]}"
        return "cdi-spec-stale", Proof(summary, (old.citation, now[1], *said))
    if gone is None:
        return None
    path = gone["path"]
    of = _LIBRARY_VERSION.search(path)
    is_older = of is not None and now is not None and of["version"] != now[0]
    if not (is_older or snapshot.view(cdi.specifications) or any(_BY_CDI.search(c.words) for c in said)):
        return None
    if path.startswith("/dev/nvidia"):
        return None  # the driver has not made its nodes: not the specification's fault
    spec = next((one for one in specs if any(version in path for version in one.drivers)), None)
    cited = (*said, *((spec.citation,) if spec else ()), *((now[1],) if now else ()))
    what = "a device node that has another name now" if path.startswith(_RENDER) else "a file of a driver that is gone"
    summary = f"the CDI specification names {path}, {what}"
    return "cdi-spec-stale", Proof(summary, cited, "certain" if spec or now else "likely")


def _driver(snapshot: Snapshot) -> tuple[str, Citation] | None:
    """The version of the driver that containers are to have."""
    for seen in (driver.loaded(snapshot), driver.smi_version(snapshot), driver.on_disk(snapshot)):
        if seen is not None:
            return seen.version, seen.citation
    for item in snapshot.of("nvidia-smi"):
        for number, line in enumerate(item.lines, 1):
            if re.fullmatch(rf"\s*{driver.VERSION}\s*", line):
                return line.strip(), Citation(item.written, line, number, item.key)
    return None


def _is_torn(snapshot: Snapshot) -> bool:
    """Whether the driver is of one version in the kernel and of another on disk: which one counts is open then."""
    loaded, on_disk = driver.loaded(snapshot), driver.on_disk(snapshot)
    return loaded is not None and on_disk is not None and loaded.version != on_disk.version


def _of_another(specs: list[Specification], version: str) -> Specification | None:
    """The specification that counts, where it is of another driver; none where one of this driver is read after it."""
    if any(version in spec.drivers for spec in specs if spec.folder == FOLDERS[1]):
        return None
    return next((spec for spec in reversed(specs) if version not in spec.drivers), None)


# docker's switch.


def _of_docker(snapshot: Snapshot) -> tuple[str, Verdict] | None:
    said = snapshot.said(_NO_DRIVER_CDI)
    if not said:
        return None
    version = docker.version(snapshot)
    files = [file for file in snapshot.view(docker.files) if file.cdi is not True]
    cited = (*said, *(file.line("cdi", "features") for file in files))
    if version and version < _HAS_CDI:
        shown = ".".join(map(str, version))
        summary = f"docker {shown} has CDI as an experiment at most; docker 25 is the first with it"
        return "docker-cdi-feature-disabled", Proof(summary, cited, remedy=(_newer_docker(snapshot),))
    summary = "docker was asked for a CDI device, and its CDI support is not switched on (features.cdi)"
    return "docker-cdi-feature-disabled", Proof(summary, cited, remedy=tuple(_switch(snapshot)))


def _newer_docker(snapshot: Snapshot) -> Fix:
    held = (name for name in _DOCKERS if packages.installed(snapshot, name))
    return upgrade(snapshot, "bring docker to 25 or later", *(tuple(held) or ("docker-ce", "docker-ce-cli")))


_DOCKERS: Final = ("docker-ce", "docker-ce-cli", "docker.io", "moby-engine", "docker")


def _switch(snapshot: Snapshot) -> Iterable[Fix]:
    if docker.rootless(snapshot):
        yield run(
            "configure",
            "switch CDI on for that user's docker",
            Shell(
                "gpunode ctk runtime configure --runtime=docker --cdi.enabled "
                '--config="$HOME/.config/docker/daemon.json"'
            ),
        )
        yield run("restart", "restart that user's docker", Shell("systemctl --user restart docker"))
        return
    yield run(
        "configure",
        "switch docker's CDI support on",
        Shell("sudo gpunode ctk runtime configure --runtime=docker --cdi.enabled --restart"),
    )


# A specification that the engine cannot read.


_NOT_THERE: Final = Pattern(r"no such file or directory|permission denied", re.IGNORECASE)


def _unreadable(snapshot: Snapshot) -> tuple[str, Verdict] | None:
    told = (one for one in snapshot.said(_UNREADABLE) if _ABOUT_CDI.search(one.line))
    said = tuple(one for one in told if not _NOT_THERE.search(one.line))
    version = cdi.podman_version(snapshot)
    if said:
        name = f"podman {'.'.join(map(str, version[0]))}" if version else "the engine"
        summary = f"{name} cannot read the CDI specification: that is of a newer version of CDI than it knows"
        return "cdi-spec-version-unsupported", Proof(summary, (*said, *((version[1],) if version else ())))
    unresolved = tuple(one.citation for one in snapshot.view(cdi.unresolved))
    if version is not None and version[0] < podman.LEAST and (asked := (*snapshot.said(_NO_CDI), *unresolved)):
        shown = ".".join(map(str, version[0]))
        summary = f"podman {shown} does not know CDI as it is written today; 4.1 is the first that does"
        return "cdi-spec-version-unsupported", Proof(
            summary, (*asked, version[1]), remedy=(upgrade(snapshot, "bring podman to 4.1 or later", "podman"),)
        )
    if not unresolved:
        return None
    if version is None:
        return _docker_is_older(snapshot)
    return _too_new(snapshot, version, unresolved)


def _too_new(
    snapshot: Snapshot, version: tuple[podman.Version, Citation], unresolved: tuple[Citation, ...]
) -> tuple[str, Verdict] | None:
    """Podman does not know the version of the specification, by what that says or by who wrote it."""
    shown = ".".join(map(str, version[0]))
    specs = snapshot.view(cdi.specifications)
    for spec in specs:
        if spec.version and not podman.takes(version[0], spec.version):
            summary = f"{spec.path} is of CDI {spec.version}, which podman {shown} does not know"
            return "cdi-spec-version-unsupported", Proof(summary, (*unresolved, spec.citation, version[1]))
    writers = [one for one in toolkit.versions(snapshot) if one.numbers >= _WRITES_07]
    is_there = bool(snapshot.view(cdi.offered) or specs) and not any(spec.version for spec in specs)
    if writers and is_there and not podman.takes(version[0], "0.7.0"):
        summary = f"nvidia-ctk {writers[0]} writes CDI 0.7, which podman {shown} does not know"
        cited = (*unresolved, writers[0].citation, version[1])
        return "cdi-spec-version-unsupported", Proof(summary, cited, "likely")
    return None


def _docker_is_older(snapshot: Snapshot) -> tuple[str, Verdict] | None:
    version, unresolved = docker.version(snapshot), snapshot.view(cdi.unresolved)
    if not version or version >= _DOCKER_READS_07 or not unresolved:
        return None
    for spec in snapshot.view(cdi.specifications):
        if tuple(int(part) for part in re.findall(r"\d{1,6}", spec.version)) >= (0, 7):
            summary = (
                f"{spec.path} is of CDI {spec.version}, and docker {'.'.join(map(str, version))} knows 0.6 at most"
            )
            return "cdi-spec-version-unsupported", Proof(summary, (unresolved[0].citation, spec.citation), "likely")
    return None


def _older_specification(_: Snapshot) -> Iterable[Fix]:
    yield run(
        "configure",
        "have the toolkit write a specification that older engines read, then write it",
        Shell("sudo gpunode ctk config --in-place --set features.no-additional-gids-for-device-nodes=true"),
        Shell("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
    )
    yield run(
        "install",
        "or bring podman to a newer version",
        Shell("podman --version"),
        when="the specification is still not read",
    )


# A device that is not found.


def _unresolved(snapshot: Snapshot, asked: tuple[Asked, ...]) -> tuple[str, Verdict] | None:
    cited = tuple(dict.fromkeys(one.citation for one in asked))
    first = asked[0]
    if first.kind.startswith("management."):
        return _management(snapshot, first, cited)
    if first.kind.startswith("runtime."):
        question = f"{first} is made by the toolkit itself when a container starts, and could not be: does NVML work?"
        return "cdi-spec-missing", Doubt(
            question,
            (Shell("nvidia-smi -L"), Shell("nvidia-ctk cdi generate >/dev/null")),
            cited,
            ("driver-module-not-loaded",),
        )
    if not first.kind.endswith("nvidia.com/gpu"):
        return None  # the operator's driver and network devices have makers of their own
    specs = [spec for spec in snapshot.view(cdi.specifications) if not spec.is_management]
    offered = snapshot.view(cdi.offered)
    if verdict := _elsewhere(snapshot, first, cited, specs):
        return verdict
    return _offered_or_not(snapshot, asked, cited, specs, offered)


def _management(snapshot: Snapshot, first: Asked, cited: tuple[Citation, ...]) -> tuple[str, Verdict]:
    specs = [spec for spec in snapshot.view(cdi.specifications) if spec.is_management]
    what = "offers `all` alone" if specs else "is not there"
    summary = f"a pod asks for {first}, of the class that only operators use, and its specification {what}"
    return "cdi-management-spec-missing", Proof(summary, (*cited, *(spec.citation for spec in specs)))


def _elsewhere(
    snapshot: Snapshot, first: Asked, cited: tuple[Citation, ...], specs: list[Specification]
) -> tuple[str, Verdict] | None:
    """The specification lies where this engine does not look, or cannot."""
    if (told := cdi.works_with_option(snapshot)) is not None:
        summary = f"the engine finds {first} once it is told to look in {told[0]}, which it does not by itself"
        return "cdi-spec-dir-not-read", Proof(summary, (*cited, told[1]))
    folders, place = cdi.read_folders(snapshot)
    there = [spec for spec in specs if spec.folder in folders]
    outside = [spec for spec in specs if spec.folder not in folders]
    if there:
        return _not_seen_by_a_user(snapshot, cited, there)
    if not outside:
        return None
    why = (place,) if place is not None else ()
    summary = f"the specification is {outside[0].path}, and the engine looks in {', '.join(folders)} alone for {first}"
    remedy = _where_it_looks(folders[0])
    return "cdi-spec-dir-not-read", Proof(summary, (*cited, outside[0].citation, *why), remedy=remedy)


def _not_seen_by_a_user(
    snapshot: Snapshot, cited: tuple[Citation, ...], there: list[Specification]
) -> tuple[str, Verdict] | None:
    """A rootless dockerd has an /etc and a /run of its own, without the folders of CDI before docker 28."""
    signs, version = docker.rootless(snapshot), docker.version(snapshot)
    if not signs or version >= _MOUNTS_CDI:
        return None
    summary = f"docker runs as a user, in a tree of its own in which {there[0].folder} of the system is not seen"
    return "cdi-spec-dir-not-read", Proof(summary, (*cited, there[0].citation, *signs), "likely", remedy=_IN_THE_HOME)


_IN_THE_HOME: Final = (
    run(
        "configure",
        'write the specification into the home, and name the folder in ~/.config/docker/daemon.json: "cdi-spec-dirs"',
        Shell('mkdir -p "$HOME/.docker/cdi"'),
        Shell('nvidia-ctk cdi generate --output="$HOME/.docker/cdi/nvidia.yaml"'),
        Shell(
            'gpunode ctk runtime configure --runtime=docker --config="$HOME/.config/docker/daemon.json" --cdi.enabled'
        ),
        Shell(
            "python3 -c 'import json, pathlib; home = pathlib.Path.home(); "
            'file = home / ".config/docker/daemon.json"; whole = json.loads(file.read_text()); '
            'whole["cdi-spec-dirs"] = [str(home / ".docker/cdi")]; '
            "file.write_text(json.dumps(whole, indent=4))'"
        ),
    ),
    run("restart", "restart that user's docker", Shell("systemctl --user restart docker")),
)


_SPECIFICATIONS: Final = (*FOLDERS, "/run/cdi", "/usr/local/etc/cdi", "/opt/cdi")


def _written_to(folder: str) -> tuple[Command, ...]:
    if not is_place(folder, *_SPECIFICATIONS):
        return ()
    write = command("sudo", "nvidia-ctk", "cdi", "generate", f"--output={folder}/nvidia.yaml")
    return command("sudo", "mkdir", "-p", folder), write


def _where_it_looks(folder: str) -> tuple[Fix, ...]:
    return (
        run("configure", f"write the specification to {folder}, where this engine looks", *_written_to(folder)),
        run("configure", "or name both folders to podman", Shell("sudo mkdir -p /etc/containers/containers.conf.d"),
            Shell(
"printf '[engine]\\ncdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\\n'"
            " | sudo tee /etc/containers/containers.conf.d/50-cdi.conf"
), when="podman is 5.5 or later"),
    )  # fmt: skip


def _offered_or_not(
    snapshot: Snapshot,
    asked: tuple[Asked, ...],
    cited: tuple[Citation, ...],
    specs: list[Specification],
    offered: tuple[tuple[str, Citation], ...],
) -> tuple[str, Verdict] | None:
    names = {name for name, _ in offered} | {f"{spec.kind}={name}" for spec in specs for name in spec.devices or ()}
    empty = snapshot.view(cdi.looked_in)
    wanted = [str(one) for one in asked]
    if names and not names.intersection(wanted):
        places = (*(place for _, place in offered), *(spec.citation for spec in specs))
        has = ", ".join(sorted(names)[:4])
        summary = f"the specification offers {has}, and not {wanted[0]}: the GPUs have changed since"
        return "cdi-spec-stale", Proof(summary, (*cited, *places[:3]), "likely")
    if empty and not names and not specs:
        there = snapshot.view(toolkit.presence)
        lacking = (there.citation,) if there is not None and not there.is_there else ()
        summary = f"no CDI specification on this node offers {wanted[0]}"
        return "cdi-spec-missing", Proof(summary, (*cited, *empty, *lacking))
    return "cdi-spec-missing", _open_question(wanted[0], cited, is_offered=bool(names or specs))


def _open_question(wanted: str, cited: tuple[Citation, ...], *, is_offered: bool) -> Doubt:
    causes = ("cdi-spec-dir-not-read", "cdi-spec-version-unsupported")
    if is_offered:
        return Doubt(
            f"{wanted} is in a specification, and the engine does not find it: where does it look, what can it read?",
            (
                Shell("docker info | grep -A3 CDI"),
                Shell("podman --version"),
                Shell("grep cdiVersion /etc/cdi/* /var/run/cdi/*"),
            ),
            cited,
            (*causes, "docker-cdi-feature-disabled"),
        )
    return Doubt(
        f"the engine finds no {wanted}: is there a specification, and where?",
        (Shell("nvidia-ctk cdi list"), Shell("ls -l /etc/cdi /var/run/cdi"), Shell("nvidia-smi -L")),
        cited,
        (*causes, "cdi-spec-stale", "driver-module-not-loaded"),
    )


def _generate(_: Snapshot) -> Iterable[Fix]:
    yield run(
        "rebuild",
        "write the specification from the driver as it is now",
        Shell("sudo mkdir -p /etc/cdi"),
        Shell("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
        Shell("nvidia-ctk cdi list"),
    )
    yield run(
        "configure",
        "have it written again whenever the driver changes",
        Shell("sudo systemctl reset-failed nvidia-cdi-refresh.service"),
        Shell("sudo systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service"),
        when="the toolkit is 1.18 or later; its units then write /var/run/cdi/nvidia.yaml, which wins over /etc/cdi",
    )


def _generate_management(_: Snapshot) -> Iterable[Fix]:
    yield run(
        "rebuild",
        "write the specification of that class, then start the pod anew",
        Shell(
            "sudo nvidia-ctk cdi generate --mode=management --vendor=management.nvidia.com"
            " --output=/var/run/cdi/management.nvidia.com-gpu.yaml"
        ),
    )
    yield run(
        "application",
        "or have the pod ask for nvidia.com/gpu by its limits, as workloads do, and set no NVIDIA_VISIBLE_DEVICES",
        when="it is a workload, and no part of the GPU Operator",
    )


def _none(_: Snapshot) -> Iterable[Fix]:
    yield from _where_it_looks(FOLDERS[0])


FAMILY: Final = Family(
    "cdi",
    "CDI",
    (
        Rule(
            cause="cdi-spec-missing",
            layer="cdi",
            storey="toolkit",
            severity="error",
            disruption="none",
            title="there is no CDI specification",
            share=2,
            symptoms=(
                symptoms.CDI_UNRESOLVED,
                symptoms.CONTAINER_FAILED,
            ),
            look_at=(
                Shell("nvidia-ctk cdi list"),
                Shell("ls /etc/cdi /var/run/cdi"),
            ),
            story=(
                "An engine that is asked for nvidia.com/gpu=all looks the name up in the specifications below /etc/cdi "
                "and /var/run/cdi. Nothing writes one before toolkit 1.18, and of later ones the unit that does gives "
                "up when the driver is not ready. The engine then says that the CDI device is unresolvable."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-container-toolkit/issues/146",
                "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/cdi-support.html",
            ),
            check=only("cdi-spec-missing", _decide),
            remedy=_generate,
        ),
        Rule(
            cause="cdi-spec-stale",
            layer="cdi",
            storey="toolkit",
            severity="error",
            disruption="none",
            title="the CDI specification is of another driver, or of other GPUs",
            share=1,
            symptoms=(
                symptoms.CDI_UNRESOLVED,
                symptoms.CONTAINER_FAILED,
            ),
            look_at=(
                Shell("grep -h -m3 hostPath /etc/cdi/*.yaml /var/run/cdi/*.yaml"),
                Shell("cat /proc/driver/nvidia/version"),
            ),
            story=(
                "A specification names the driver's libraries with their version, and device nodes by their numbers. "
                "After an upgrade of the driver, a new card or a new division into MIG instances these are not there, "
                "and a container fails to start with `no such file` for a library of the old version."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-container-toolkit/issues/450",
                "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1828",
            ),
            check=only("cdi-spec-stale", _decide),
            remedy=_generate,
        ),
        Rule(
            cause="cdi-spec-dir-not-read",
            layer="cdi",
            storey="toolkit",
            severity="error",
            disruption="none",
            title="the CDI specification lies where the engine does not look",
            share=1,
            symptoms=(symptoms.CDI_UNRESOLVED,),
            look_at=(
                Shell("nvidia-ctk cdi list"),
                Shell("docker info | grep -A3 CDI"),
            ),
            story=(
                "The toolkit's unit writes to /var/run/cdi, people write to /etc/cdi, and each engine has its own list "
                "of folders: podman 5.5 looks in /etc/cdi alone, dockerd and containerd where they are told. "
                "`nvidia-ctk cdi list` finds the devices all the same."
            ),
            sources=(
                "https://github.com/containers/podman/issues/26569",
                "https://github.com/NixOS/nixpkgs/issues/420638",
            ),
            check=only("cdi-spec-dir-not-read", _decide),
            remedy=_none,
        ),
        Rule(
            cause="cdi-spec-version-unsupported",
            layer="cdi",
            storey="toolkit",
            severity="error",
            disruption="none",
            title="the engine is too old for the CDI specification",
            symptoms=(symptoms.CDI_UNRESOLVED,),
            look_at=(
                Shell("head -n 3 /etc/cdi/*.yaml /var/run/cdi/*.yaml"),
                Shell("podman --version"),
            ),
            story=(
                "A specification says in which version of CDI it is written, and an engine reads those that it knows. "
                "podman 4.9 of Ubuntu 24.04 knows CDI 0.6, toolkit 1.19 writes a newer one: the engine passes it over, "
                "says so in its debug log alone, and reports the device as unresolvable."
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1860",
                "https://github.com/NVIDIA/nvidia-container-toolkit/issues/38",
            ),
            check=only("cdi-spec-version-unsupported", _decide),
            remedy=_older_specification,
        ),
        Rule(
            cause="cdi-management-spec-missing",
            layer="cdi",
            storey="toolkit",
            severity="error",
            disruption="none",
            title="a pod asks for a management device that is in no specification",
            symptoms=(
                symptoms.CDI_UNRESOLVED,
                symptoms.CONTAINER_FAILED,
                symptoms.OPERATOR_WAITS,
            ),
            look_at=(Shell("ls /var/run/cdi"),),
            story=(
                "management.nvidia.com/gpu is a class for the GPU Operator's own pods, with the one device `all`. A "
                "workload that runs in the nvidia-cdi or default runtime and sets NVIDIA_VISIBLE_DEVICES by itself is "
                "taken for one of them, and asks for a device by number or UUID that the class does not have."
            ),
            sources=(
                "https://github.com/gpustack/gpustack/issues/4130",
                "https://github.com/NVIDIA/nvidia-container-toolkit/issues/1239",
            ),
            check=only("cdi-management-spec-missing", _decide),
            remedy=_generate_management,
        ),
        Rule(
            cause="docker-cdi-feature-disabled",
            layer="cdi",
            storey="runtime",
            severity="error",
            disruption="restart-service",
            title="docker's CDI support is switched off",
            symptoms=(
                symptoms.CDI_UNRESOLVED,
                symptoms.NO_DEVICE_DRIVER,
            ),
            look_at=(
                Shell("docker info | grep -i -A3 cdi"),
                Shell("docker --version"),
            ),
            story=(
                "docker 25 to 28.1 take CDI devices only with features.cdi in daemon.json; 28.2 has it on by itself. "
                'Without it docker says that it could not select a device driver "cdi", which is not the message of '
                'a missing toolkit: that one has an empty name, "".'
            ),
            sources=(
                "https://github.com/NVIDIA/nvidia-container-toolkit/issues/434",
                "https://docs.docker.com/build/building/cdi/",
            ),
            check=only("docker-cdi-feature-disabled", _decide),
            remedy=_switch,
        ),
    ),
)
