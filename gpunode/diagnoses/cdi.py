"""CDI: devices that no engine resolves, and specifications for another driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from gpunode.diagnoses import symptoms
from gpunode.diagnoses.commands import Shell, command, is_path_below
from gpunode.diagnoses.docker import ROOTLESS
from gpunode.diagnoses.model import Citation, Fix, Rule
from gpunode.diagnoses.remedies import make_fixed_remedy, manual_step, run_step, upgrade_packages
from gpunode.diagnoses.signs import (
    all_of,
    any_line,
    any_of,
    command_run,
    custom_sign,
    file_line,
    message_line,
    predicate,
    unless,
)
from gpunode.diagnoses.snapshot import Snapshot, cite, find_all
from gpunode.diagnoses.views import cdi, driver, runtimes, toolkit
from gpunode.facts.patterns import Pattern
from gpunode.facts.probes import CDI_FOLDERS
from gpunode.runtimes import podman

_NODE_DRIVER_BROKEN: Final = predicate(driver.is_broken, "the driver itself does not work")
# Devices that the toolkit generates itself (runtime.nvidia.com) fail for other reasons.
_UNRESOLVED_CDI_DEVICES: Final = r"(?:unresolvable|(?:could not|cannot) resolve)[^\n]{0,20} CDI devices?:?\s+"
_UNRESOLVED_DEVICE: Final = message_line(
    rf"{_UNRESOLVED_CDI_DEVICES}(?!management\.|runtime\.)(?:[\w-]+\.)*nvidia\.com/"
)
_UNRESOLVED_MANAGEMENT: Final = message_line(rf"{_UNRESOLVED_CDI_DEVICES}management\.nvidia\.com/")
_NO_SPECIFICATION_FOUND: Final = custom_sign(cdi.empty_listings)
_SPECIFICATION_SEEN: Final = any_of(
    custom_sign(lambda node: (one.citation for one in node.view(cdi.cdi_specifications))),
    message_line(r"^[ \t]*(?:[\w-]+\.)*nvidia\.com/[\w-]+=\S+[ \t]*$", "nvidia-ctk", "text"),
    message_line(r"\bcdi: [\w.-]*nvidia\.com/[\w-]+=", "docker-info"),
)

# A specification for a driver that is gone, or for other GPUs.

_MOUNT_SOURCE_MISSING: Final = message_line(
    r"(?:error stat'ing file|cannot stat|failed to stat CDI host device|failed to fulfil mount request:? open"
    r"|error mounting|failed to mount|stat|bind source path does not exist:|lstat|statfs)"
    r" [`'\"\\]*/(?!dev/nvidia|usr/bin/nvidia-container-runtime)"
    r"[^\s`'\"\\:]*(?:nvidia|libcuda|libnv|/dri/(?:card|renderD))[^\s`'\"\\:]*"
    r"[`'\"\\]*[^\n]{0,160}?[Nn]o such file"
)
# A file of a former driver, or of the libraries beside it, which only a specification still names. nvidia-ctk warns of
# optional ones.
_VERSIONED_LIBRARY_MISSING: Final = unless(
    any_line(
        r"^(?![^\n]*(?:WARN|ocate|cannot access|pattern))[^\n]*libnvidia-[a-z-]+\.so\.(?:\d{3}\.\d[\d.]*|1\.1\.\d+)"
        r"[`'\"]?:?\s(?:was )?(?:not found|No such file)"
    ),
    symptoms.CONTAINER_WORKS,
)
_CDI_MENTION: Final = r"\bCDI\b|\bpodman\b|\bcrun\b|\bdistrobox\b|\btoolbox\b|nvidia\.com/gpu=|\bramalama\b"
_VERSIONED_LIBRARY: Final = Pattern(rf"(?m)nvidia[\w-]*\.so\.(?P<version>{driver.VERSION})(?=[`'\"\\: ]|$)")


def _current_driver_versions(snapshot: Snapshot) -> tuple[tuple[str, Citation], ...]:
    """Return the driver's versions according to the module, nvidia-smi and the listed libraries."""
    seen = (driver.loaded_version(snapshot), driver.smi_version(snapshot), driver.on_disk_version(snapshot))
    libraries = (
        (match["version"], cite(item, item.line_number_at(match.start())))
        for item in snapshot.items_of("listing")
        for match in find_all(item, _VERSIONED_LIBRARY)
    )
    return (*((version.version, version.citation) for version in seen if version), *libraries)


def _specifications_of_other_driver(snapshot: Snapshot) -> Iterator[Citation]:
    """Yield a specification in use for another driver, or a missing file that one names."""
    now = snapshot.view(_current_driver_versions)
    versions = {version for version, _ in now}
    if len(versions) != 1:
        return
    specs = [specification for specification in snapshot.view(cdi.cdi_specifications) if specification.drivers]
    is_newer = any(versions & spec.drivers for spec in specs if spec.folder == CDI_FOLDERS[1])
    old = [spec.citation for spec in reversed(specs) if not (is_newer or versions & spec.drivers)]
    gone = (
        (one, match) for one in snapshot.view(_MOUNT_SOURCE_MISSING) if (match := _VERSIONED_LIBRARY.search(one.line))
    )
    old += [one for one, match in gone if match["version"] not in versions]
    yield from (old[0], now[0][1]) if old else ()


_SPECIFICATION_OF_OTHER_DRIVER: Final = custom_sign(_specifications_of_other_driver)
_SPECIFICATION_NAMES_DRIVER: Final = custom_sign(
    lambda node: (one.citation for one in node.view(cdi.cdi_specifications) if one.drivers)
)
_GENERATE_SPECIFICATION: Final = make_fixed_remedy(
    run_step(
        "rebuild",
        "write the specification for the current driver",
        Shell("sudo mkdir -p /etc/cdi"),
        Shell("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
        Shell("nvidia-ctk cdi list"),
    ),
    run_step(
        "configure",
        "keep it up to date when the driver changes",
        Shell("sudo systemctl reset-failed nvidia-cdi-refresh.service"),
        Shell("sudo systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service"),
        when="the toolkit is 1.18 or later; its units then write /var/run/cdi/nvidia.yaml, which takes precedence "
        "over /etc/cdi",
    ),
)

# A specification in another folder.


def _specifications_not_searched(snapshot: Snapshot) -> Iterator[Citation]:
    folders, place = snapshot.view(cdi.search_folders)
    specs = snapshot.view(cdi.cdi_specifications)
    if specs and not any(spec.folder in folders for spec in specs):
        yield from (*(spec.citation for spec in specs), *((place,) if place else ()))


# Since docker 28 dockerd-rootless.sh mounts CDI's folders into the daemon's own tree (moby PR 48541).
_ROOTLESS_DOCKER_HIDES_CDI: Final = custom_sign(
    lambda node: node.view(ROOTLESS) if runtimes.docker_version(node) < (28,) else ()
)
_SPECIFICATION_NOT_SEARCHED: Final = any_of(
    custom_sign(_specifications_not_searched),
    all_of(_ROOTLESS_DOCKER_HIDES_CDI, _SPECIFICATION_SEEN),
    command_run(r"--cdi-spec-dirs?[= ]/"),
)
_UNUSUAL_SEARCH_FOLDERS: Final = any_of(
    custom_sign(lambda node: (place,) if (place := node.view(cdi.search_folders)[1]) else ()),
    _ROOTLESS_DOCKER_HIDES_CDI,
)
_SPECIFICATION_FOLDERS: Final = (*CDI_FOLDERS, "/run/cdi", "/usr/local/etc/cdi", "/opt/cdi")


def _write_to_searched_folder(snapshot: Snapshot) -> Iterable[Fix]:
    folder = snapshot.view(cdi.search_folders)[0][0]
    make = command("sudo", "mkdir", "-p", folder)
    write = command("sudo", "nvidia-ctk", "cdi", "generate", f"--output={folder}/nvidia.yaml")
    text = f"write the specification to {folder}, which this engine reads"
    yield run_step("configure", text, *((make, write) if is_path_below(folder, *_SPECIFICATION_FOLDERS) else ()))
    yield run_step(
        "configure",
        "or configure both folders in podman",
        Shell("sudo mkdir -p /etc/containers/containers.conf.d"),
        Shell(
            r"printf '[engine]\ncdi_spec_dirs = [\"/etc/cdi\", \"/var/run/cdi\"]\n' "
            "| sudo tee /etc/containers/containers.conf.d/50-cdi.conf"
        ),
        when="podman is 5.5 or later",
    )
    yield run_step(
        "configure",
        "or write it to the home directory, and set that folder as cdi-spec-dirs in the user's daemon.json",
        Shell('mkdir -p "$HOME/.docker/cdi"'),
        Shell('nvidia-ctk cdi generate --output="$HOME/.docker/cdi/nvidia.yaml"'),
        when="docker runs without root",
    )


# A specification that the engine cannot read. nvidia-ctk writes CDI 0.7 since 1.19.1 (its release notes), and docker
# reads that version since 27 (moby PR 47706).

_SPECIFICATION_UNREADABLE: Final = message_line(
    r"(?i)(?:\bCDI\b|/cdi/)[^\n]{0,400}?(?:unknown field \\?\"|(?:invalid|unknown|unsupported) (?:CDI )?"
    r"(?:spec )?version)|(?:failed to (?:parse|unmarshal|load) CDI Spec|cdi: invalid spec|invalid CDI Spec)"
    r"(?![^\n]*(?:no such file|permission denied))"
)
# podman before 4.1 treats a CDI device as a path.
_PODMAN_TAKES_CDI_NAME_AS_PATH: Final = message_line(r"stat nvidia\.com/gpu=\S+: no such file or directory")


def _old_podman(snapshot: Snapshot, *, with_cdi: bool) -> Iterator[Citation]:
    """Yield a podman without support for CDI 0.7, or for CDI at all."""
    found = cdi.podman_version(snapshot)
    if found and not (podman.supports_spec(found[0], "0.7.0") if with_cdi else found[0] >= podman.MIN_PODMAN_VERSION):
        yield found[1]


_SPECIFICATION_IS_CDI_0_7: Final = custom_sign(
    lambda node: (one.citation for one in node.view(cdi.cdi_specifications) if one.version >= (0, 7))
)
_SPECIFICATION_MAY_BE_CDI_0_7: Final = any_of(
    _SPECIFICATION_IS_CDI_0_7,
    custom_sign(
        lambda node: (one.citation for one in node.view(toolkit.toolkit_versions) if one.numbers >= (1, 19, 1))
    ),
)
_DOCKER_BEFORE_CDI_0_7: Final = predicate(
    lambda node: () < runtimes.docker_version(node) < (27,), "docker reads CDI 0.7 from version 27 on"
)
_PODMAN_WITHOUT_CDI: Final = custom_sign(lambda snapshot: _old_podman(snapshot, with_cdi=False))
_PODMAN_WITHOUT_CDI_0_7: Final = custom_sign(lambda snapshot: _old_podman(snapshot, with_cdi=True))
_SPECIFICATION_TOO_NEW: Final = all_of(_SPECIFICATION_MAY_BE_CDI_0_7, _PODMAN_WITHOUT_CDI_0_7)
_SPEC_TOO_NEW: Final = any_of(
    _SPECIFICATION_TOO_NEW,
    all_of(_UNRESOLVED_DEVICE, _SPECIFICATION_SEEN, any_of(_SPECIFICATION_MAY_BE_CDI_0_7, _PODMAN_WITHOUT_CDI_0_7)),
)
# The specification exists but was not found, or the engine searches unusual folders.
_SPECIFICATION_NOT_FOUND_BY_ENGINE: Final = any_of(
    all_of(_UNRESOLVED_DEVICE, _SPECIFICATION_SEEN),
    unless(all_of(_UNRESOLVED_DEVICE, _UNUSUAL_SEARCH_FOLDERS), _NO_SPECIFICATION_FOUND),
)


def _write_older_specification(snapshot: Snapshot) -> Iterable[Fix]:
    if snapshot.view(_PODMAN_WITHOUT_CDI) or snapshot.view(_PODMAN_TAKES_CDI_NAME_AS_PATH):
        yield upgrade_packages(snapshot, "upgrade podman to 4.1 or later", "podman")
        return
    yield run_step(
        "configure",
        "configure the toolkit for a specification that older engines read, then write it",
        Shell("sudo gpunode ctk config --in-place --set features.no-additional-gids-for-device-nodes=true"),
        Shell("sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"),
    )
    yield manual_step("install", "or upgrade podman", when="the specification is still not read")


# The cdi feature in docker's daemon.json.

# Other features say nothing about CDI, and docker 28.2 enables it without an entry in the file.
_CDI_DISABLED: Final = file_line("*daemon.json", r"\"cdi\"\s*:\s*false")
_CDI_DEVICE_DRIVER_UNKNOWN: Final = message_line(
    r"could not select device driver [\\\"'`]*cdi[\\\"'`]* with capabilities"
)


_rule = partial(Rule, layer="toolkit")

RULES: Final = (
    _rule(
        cause="cdi-spec-missing",
        decisive=unless(all_of(_UNRESOLVED_DEVICE, _NO_SPECIFICATION_FOUND), _SPECIFICATION_SEEN),
        typical=unless(
            any_of(_NO_SPECIFICATION_FOUND, _UNRESOLVED_DEVICE),
            *(
                _SPECIFICATION_SEEN,
                _UNUSUAL_SEARCH_FOLDERS,
                _PODMAN_WITHOUT_CDI,
                _SPECIFICATION_TOO_NEW,
                _UNRESOLVED_MANAGEMENT,
            ),
        ),
        symptoms=(symptoms.CDI_UNRESOLVED,),
        against=(_NODE_DRIVER_BROKEN,),
        may_be_normal=True,
        look_at=(Shell("nvidia-ctk cdi list"), Shell("ls /etc/cdi /var/run/cdi")),
        share=2,
        remedy=_GENERATE_SPECIFICATION,
    ),
    _rule(
        cause="cdi-spec-stale",
        decisive=any_of(_SPECIFICATION_OF_OTHER_DRIVER, all_of(_MOUNT_SOURCE_MISSING, _SPECIFICATION_NAMES_DRIVER)),
        typical=all_of(
            any_of(_MOUNT_SOURCE_MISSING, _VERSIONED_LIBRARY_MISSING),
            any_of(_SPECIFICATION_SEEN, command_run(_CDI_MENTION), any_line(_CDI_MENTION)),
        ),
        symptoms=(symptoms.CDI_UNRESOLVED, symptoms.CONTAINER_FAILED, _SPECIFICATION_OF_OTHER_DRIVER),
        context=_SPECIFICATION_NAMES_DRIVER,
        against=(_NODE_DRIVER_BROKEN,),
        look_at=(
            Shell("grep -h -m3 hostPath /etc/cdi/*.yaml /var/run/cdi/*.yaml"),
            Shell("cat /proc/driver/nvidia/version"),
        ),
        remedy=_GENERATE_SPECIFICATION,
        explains=frozenset({"cdi-spec-missing", "cdi-spec-dir-not-read"}),
    ),
    _rule(
        cause="cdi-spec-dir-not-read",
        decisive=all_of(_SPECIFICATION_NOT_SEARCHED, _UNRESOLVED_DEVICE),
        typical=any_of(_SPECIFICATION_NOT_SEARCHED, unless(_SPECIFICATION_NOT_FOUND_BY_ENGINE, _SPEC_TOO_NEW)),
        symptoms=(symptoms.CDI_UNRESOLVED,),
        against=(_NODE_DRIVER_BROKEN,),
        may_be_normal=True,
        look_at=(Shell("nvidia-ctk cdi list"), Shell("docker info | grep -A3 CDI")),
        remedy=_write_to_searched_folder,
        explains=frozenset({"cdi-spec-missing"}),
    ),
    _rule(
        cause="cdi-spec-version-unsupported",
        decisive=any_of(
            _SPECIFICATION_UNREADABLE,
            all_of(_SPECIFICATION_IS_CDI_0_7, any_of(_PODMAN_WITHOUT_CDI_0_7, _DOCKER_BEFORE_CDI_0_7)),
            all_of(_PODMAN_WITHOUT_CDI, any_of(_PODMAN_TAKES_CDI_NAME_AS_PATH, _UNRESOLVED_DEVICE)),
        ),
        typical=any_of(
            _SPEC_TOO_NEW,
            _PODMAN_TAKES_CDI_NAME_AS_PATH,
            all_of(_PODMAN_WITHOUT_CDI, command_run(r"\bpodman (?:--)?version")),
        ),
        context=any_of(_PODMAN_WITHOUT_CDI, _SPECIFICATION_MAY_BE_CDI_0_7),
        symptoms=(symptoms.CDI_UNRESOLVED, _PODMAN_TAKES_CDI_NAME_AS_PATH, _SPECIFICATION_UNREADABLE),
        against=(_NODE_DRIVER_BROKEN,),
        may_be_normal=True,
        look_at=(Shell("head -n 3 /etc/cdi/*.yaml /var/run/cdi/*.yaml"), Shell("podman --version")),
        remedy=_write_older_specification,
        explains=frozenset({"cdi-spec-missing", "cdi-spec-dir-not-read"}),
    ),
    _rule(
        cause="cdi-management-spec-missing",
        decisive=_UNRESOLVED_MANAGEMENT,
        context=any_line(r"CDI_ENABLED|Skipping CDI|management\.nvidia\.com"),
        symptoms=(symptoms.CDI_UNRESOLVED,),
        look_at=(Shell("ls /var/run/cdi"),),
        remedy=make_fixed_remedy(
            run_step(
                "rebuild",
                "write the specification of that class, then restart the pod",
                Shell(
                    "sudo nvidia-ctk cdi generate --mode=management --vendor=management.nvidia.com"
                    " --output=/var/run/cdi/management.nvidia.com-gpu.yaml"
                ),
            ),
            manual_step(
                "application",
                "or request nvidia.com/gpu in the pod's limits, and do not set NVIDIA_VISIBLE_DEVICES",
                when="it is a workload, not a part of the GPU Operator",
            ),
        ),
    ),
    _rule(
        cause="docker-cdi-feature-disabled",
        disruption="restart-service",
        decisive=_CDI_DEVICE_DRIVER_UNKNOWN,
        symptoms=(_CDI_DEVICE_DRIVER_UNKNOWN, symptoms.CDI_UNRESOLVED),
        look_at=(Shell("docker info | grep -i -A3 cdi"), Shell("docker --version")),
        typical=_CDI_DISABLED,
        remedy=make_fixed_remedy(
            run_step(
                "configure",
                "enable docker's CDI support",
                Shell("sudo gpunode ctk runtime configure --runtime=docker --cdi.enabled --restart"),
            ),
            manual_step("install", "or upgrade docker to 25 or later", when="it is older and has no CDI support"),
            run_step(
                "configure",
                "or enable it for a rootless docker",
                Shell(
                    "gpunode ctk runtime configure --runtime=docker --cdi.enabled"
                    ' --config="$HOME/.config/docker/daemon.json"'
                ),
                Shell("systemctl --user restart docker"),
                when="docker runs without root",
            ),
        ),
    ),
)
