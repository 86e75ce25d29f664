"""The probes behind a node's facts. Few are processes, since a converged run must be cheap."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from gpunode.change import GPU_SERVICES
from gpunode.container_runtimes import CONTAINER_RUNTIMES
from gpunode.facts import kernels, kubelet, machine, systemd
from gpunode.facts.evidence import Capture, ContentKind, Probe
from gpunode.facts.patterns import Pattern
from gpunode.packages import deb

# The service in which AKS with managed GPUs runs NVIDIA's device plugin (Azure/AgentBaker, cse_config.sh).
DEVICE_PLUGIN_SERVICE: Final = "nvidia-device-plugin.service"
RESUME_SERVICE_FILE: Final = "/etc/systemd/system/gpunode-resume.service"
RESUME_SERVICE: Final = RESUME_SERVICE_FILE.rpartition("/")[2]
PROBED_UNITS: Final = (
    *(row.unit for row in CONTAINER_RUNTIMES.values() if row.unit),
    *GPU_SERVICES,
    "gdrdrv.service",
    "nvidia-cdi-refresh.service",
    "nvidia-cdi-refresh.path",
    DEVICE_PLUGIN_SERVICE,
    "nvidia-mig-manager.service",
    RESUME_SERVICE,
    *(unit for units in kubelet.UNITS.values() for unit in units),
)
MIG_UNIT_FILE: Final = "/etc/systemd/system/gpunode-mig.service"
MIG_BOOT_DROP_IN_FILE: Final = "/etc/systemd/system/multi-user.target.d/gpunode-mig.conf"
MPS_UNIT_FILE: Final = "/etc/systemd/system/gpunode-mps.service"
KERNEL_ARGUMENTS_FILE: Final = "/proc/cmdline"
GRUB_DEFAULTS_FILE: Final = "/etc/default/grub"
GRUB_DEFAULTS_FOLDER: Final = "/etc/default/grub.d"
# While an enrolment is queued: the former time in seconds that the firmware waits for somebody at the console.
ENROLMENT_REQUEST_FILE: Final = "/var/lib/gpunode/secure-boot-request"
# One folder per line, in which ld.so looks for libraries.
LD_SO_CONFIG_FILE: Final = "/etc/ld.so.conf"
LD_SO_CONFIG_FOLDER: Final = "/etc/ld.so.conf.d"
# The folders with depmod's search order, the first one first: depmod.d(5).
DEPMOD_FOLDERS: Final = ("/etc/depmod.d", "/run/depmod.d", "/usr/local/lib/depmod.d", "/lib/depmod.d")
DRIVER_PARAMETERS_FILE: Final = "/proc/driver/nvidia/params"
# Wrappers are small, NVIDIA's programs have some megabytes: the content of a longer file is not read.
_MAX_WRAPPER_SCRIPT_BYTES: Final = 64 << 10
# The program that every runtime is configured to run.
TOOLKIT_PROGRAM: Final = "/usr/bin/nvidia-container-runtime"
TOOLKIT_FILE_LIST: Final = deb.file_list_path("nvidia-container-toolkit-base")
# Whether the kernel loads only signed modules: Documentation/admin-guide/module-signing.rst, kernel_lockdown(7).
SIG_ENFORCE, LOCKDOWN = SIGNATURE_FILES = ("/sys/module/module/parameters/sig_enforce", "/sys/kernel/security/lockdown")
# Files that steps read outside the folders below. Each step's row names its own, and a test compares the two.
STEP_FILES: Final = (
    "/etc/profile.d/gpunode-cuda.sh",
    MIG_UNIT_FILE,
    MIG_BOOT_DROP_IN_FILE,
    MPS_UNIT_FILE,
    "/etc/nvidia-imex/nodes_config.cfg",
    "/etc/nvidia-container-runtime/config.toml",
    "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env",
    "/usr/share/keyrings/cuda-archive-keyring.gpg",
    "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg",
    KERNEL_ARGUMENTS_FILE,
    GRUB_DEFAULTS_FILE,
    ENROLMENT_REQUEST_FILE,
    *SIGNATURE_FILES,
)
FILES: Final = (
    *STEP_FILES,
    DRIVER_PARAMETERS_FILE,
    RESUME_SERVICE_FILE,
    TOOLKIT_FILE_LIST,
    LD_SO_CONFIG_FILE,
    *deb.OTHER_READ_FILES,
    *kernels.MODULE_LISTS,
    *(row.config for row in CONTAINER_RUNTIMES.values() if row.config),
    *kubelet.FILES,
)
# The CDI kind of NVIDIA's devices, and the folders of their specifications; the last folder wins.
CDI_KIND: Final = "nvidia.com/gpu"
CDI_FOLDERS: Final = ("/etc/cdi", "/var/run/cdi")
CDI_SPEC: Final = "/var/run/cdi/nvidia.yaml"
# Settings of the toolkit's unit that writes the specification, such as another path for it.
CDI_REFRESH_ENVIRONMENT_FILE: Final = "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env"
_CDI_OUTPUT_PATH: Final = Pattern(
    r"^[ \t]*NVIDIA_CTK_CDI_OUTPUT_FILE_PATH=[\"']?(/[^\"'\n]*?)[\"']?[ \t]*$", re.MULTILINE
)
# Folders of which every file is read, by probe key: a file that the glob did not find there does not exist.
FOLDERS: Final = {
    **deb.READ_FOLDERS,
    **kernels.MODPROBE_FOLDERS,
    "grub-d": GRUB_DEFAULTS_FOLDER,
    "modules-to-load": kernels.MODULES_LOAD_FOLDER,
    "ld-so-conf-d": LD_SO_CONFIG_FOLDER,
    **{f"depmod-d:{folder}": folder for folder in DEPMOD_FOLDERS},
    **dict(zip(("cdi-etc", "cdi-run"), CDI_FOLDERS, strict=True)),
    **kubelet.FOLDERS,
}
# Places of a built nvidia.ko below /lib/modules/<kernel>/: of distributions, DKMS, NVIDIA's installer and people.
_MODULE_FILE_GLOBS: Final = {
    "modules-dkms": "updates/*/nvidia*.ko*",  # DKMS' is updates/dkms
    "modules-prebuilt": "kernel/nvidia-*/nvidia*.ko*",  # Ubuntu's linux-modules-nvidia-*
    "modules-video": "kernel/drivers/video/nvidia*.ko*",  # NVIDIA's .run installer without DKMS
    "modules-updates": "updates/nvidia*.ko*",
    "modules-updates-below": "updates/*/*/nvidia*.ko*",
    "modules-extra": "extra/nvidia*.ko*",
    "modules-extra-below": "extra/*/nvidia*.ko*",
}
MODULE_FILE_PROBE_KEYS: Final = tuple(_MODULE_FILE_GLOBS)
# The libraries through which programs reach a GPU, where packages and NVIDIA's .run installer put them, and where ld.so
# looks before that: Debian's /etc/ld.so.conf.d/libc.conf names /usr/local/lib.
DRIVER_LIBRARY_GLOBS: Final = {
    "cuda-libraries": "/usr/lib/*-linux-gnu/libcuda*.so*",
    "nvml-files": "/usr/lib/*-linux-gnu/libnvidia-ml.so.*",
    "libcuda-files-local": "/usr/local/lib/libcuda.so*",
    "nvml-files-local": "/usr/local/lib/libnvidia-ml.so*",
}
# NVIDIA's .run installer installs itself, and a link to itself.
RUN_INSTALLER_PROGRAMS: Final = ("/usr/bin/nvidia-installer", "/usr/bin/nvidia-uninstall")
# Possible leftovers of .run toolkits and of removed drivers; current packages use the same places.
LEFTOVER_GLOBS: Final = {
    "cuda-compilers": "/usr/local/cuda-*/bin/nvcc",
    "cuda-uninstallers": "/usr/local/cuda-*/bin/*uninstall*",
    "dkms-tree": "/var/lib/dkms/*/*",
    "kernel-sources": "/usr/src/*",
}
UNIT_PROPERTY_NAMES: Final = (
    "Id",
    "Names",
    "LoadState",
    "ActiveState",
    "SubState",
    "UnitFileState",
    "MainPID",
    "ExecMainStartTimestamp",
    "StateChangeTimestamp",
)
_FOLDERS_IN_IMAGE: Final = ("/etc/", "/boot/", "/lib/", "/usr/", "/var/")


# Line-based files that people edit, and that can hold a secret only in a URL.
_COMMENTED_CONFIG_PATHS: Final = (
    *deb.CONFIG_FOLDERS,
    *kernels.MODPROBE_FOLDERS.values(),
    *DEPMOD_FOLDERS,
    LD_SO_CONFIG_FILE,  # and the folder of that name
    "/etc/modules",
    "/etc/initramfs-tools/",
    "/etc/profile.d/gpunode-",
    KERNEL_ARGUMENTS_FILE,
    GRUB_DEFAULTS_FILE,  # and the folder whose name begins so
)
# Names of files, and public keys.
_TABLE_PATHS: Final = (
    *deb.TABLE_FOLDERS,
    "/usr/share/keyrings/",
    DRIVER_PARAMETERS_FILE,
    ENROLMENT_REQUEST_FILE,
)


def _listing_probe(key: str, pattern: str) -> Probe:
    return _table_probe(key, glob=pattern, contents=False)


def _table_probe(key: str, **what: Any) -> Probe:
    """Return a probe of a system table, which no person edits."""
    return Probe(key, content_kind="table", **what)


def _classify_file(path: str) -> ContentKind:
    """Return the kind of content of a file that a step or runtime needs."""
    if path.startswith(_TABLE_PATHS):
        return "table"
    return "log" if path.startswith(_COMMENTED_CONFIG_PATHS) else "config"


_COMMON_PROBES: Final = (
    _table_probe("os-release", path="/etc/os-release"),
    _table_probe("os-release-vendor", path="/usr/lib/os-release"),
    _table_probe("kernel-release", argv=("uname", "-r")),
    _table_probe("clock", argv=("date", "--utc", "+%s")),
    _table_probe("boot-id", path="/proc/sys/kernel/random/boot_id"),
    _listing_probe("boot-images", "/boot/vmlinuz-*"),
    _listing_probe("kernel-builds", "/lib/modules/*/build"),
    *(_listing_probe(key, f"/lib/modules/*/{place}") for key, place in _MODULE_FILE_GLOBS.items()),
    _listing_probe("run-installer", "/usr/bin/nvidia-*install*"),
    *(_listing_probe(key, place) for key, place in DRIVER_LIBRARY_GLOBS.items()),
    *(_listing_probe(key, place) for key, place in LEFTOVER_GLOBS.items()),
    _listing_probe("initramfs-images", "/boot/init*"),
    _table_probe(machine.SECURE_BOOT_PROBE_KEY, path=machine.SECURE_BOOT_VARIABLE),
    _table_probe(machine.SHIM_VALIDATION_PROBE_KEY, path=machine.SHIM_VALIDATION_VARIABLE),
    _listing_probe("toolkit-program", TOOLKIT_PROGRAM),
    Probe("toolkit-programs", glob="/usr/bin/nvidia-c*", limit_bytes=_MAX_WRAPPER_SCRIPT_BYTES, content_kind="log"),
    _listing_probe("dkms-installed", "/var/lib/dkms/*/kernel-*"),
    *deb.PROBES,
    *(Probe(key, glob=f"{folder}/*", content_kind=_classify_file(folder)) for key, folder in FOLDERS.items()),
    _table_probe("pci-modalias", glob="/sys/bus/pci/devices/*/modalias"),
    _listing_probe("pci-driver", "/sys/bus/pci/devices/*/driver"),
    _table_probe("modules", path="/proc/modules"),
    _table_probe("nvidia-version", path="/proc/driver/nvidia/version"),
    _table_probe("nvidia-gpus", glob="/proc/driver/nvidia/gpus/*/information"),
    _table_probe("nvidia-gpu-instances", glob="/proc/driver/nvidia/capabilities/gpu*/mig/gi*/access"),
    _table_probe("nvidia-compute-instances", glob="/proc/driver/nvidia/capabilities/gpu*/mig/gi*/ci*/access"),
    _listing_probe("dev-nvidia", "/dev/nvidia*"),
    _listing_probe("dev-nvidia-caps", "/dev/nvidia-caps/*"),
    _table_probe("virt", argv=("systemd-detect-virt",)),
    _listing_probe("dev-dxg", "/dev/dxg"),
    _table_probe("tegra-release", path="/etc/nv_tegra_release"),
    _table_probe("device-tree", path="/proc/device-tree/compatible"),
    _table_probe("container-manager", path="/run/systemd/container"),
    _listing_probe("dockerenv", "/.dockerenv"),
    _listing_probe("docker-rootless", "/run/user/*/docker.sock"),
    *(_listing_probe(key, place) for key, (_, place) in machine.PROVIDER_MARK_PATHS.items()),
    _listing_probe("unit-wants", "/etc/systemd/system/*.wants/*"),
    _listing_probe("unit-files-etc", "/etc/systemd/system/*.service"),
    _listing_probe("unit-files-lib", "/lib/systemd/system/*.service"),
)


def list_probes(units: Iterable[str] = (), *, image: bool = False) -> tuple[Probe, ...]:
    """Return the probes for everything in ``Facts``, and for additional ``units`` of systemd.

    Of a node that is a mounted root (``image``), only files are read, and nothing is run.
    """
    every = (
        *_COMMON_PROBES,
        unit_probe(*dict.fromkeys((*PROBED_UNITS, *units))),
        *(Probe(f"file:{path}", path=path, content_kind=_classify_file(path)) for path in dict.fromkeys(FILES)),
    )
    return tuple(probe for probe in every if not image or probe.source.startswith(_FOLDERS_IN_IMAGE))


def kubelet_probes(*, image: bool = False) -> tuple[Probe, ...]:
    """Return the probes that identify the kubelet and its settings."""
    units = {unit for units in kubelet.UNITS.values() for unit in units}
    keys = {"unit-wants", "unit-files-etc", "unit-files-lib", *kubelet.FOLDERS, *(f"file:{at}" for at in kubelet.FILES)}
    unit_probes = () if image else (unit_probe(*sorted(units)),)
    return (*unit_probes, *(probe for probe in list_probes(image=image) if probe.key in keys))


def standalone_kubelet_probe(units: Capture | None) -> Probe | None:
    """Return the probe of the running standalone kubelet's command line; None if ``units`` shows none."""
    pid = systemd.find_main_pid(units.text, "kubelet.service") if units and units.outcome == "ok" else 0
    return Probe(kubelet.KUBELET_COMMAND_PROBE_KEY, path=f"/proc/{pid}/cmdline", content_kind="log") if pid else None


def unit_probe(*names: str) -> Probe:
    """Return the probe of these units' state in systemd."""
    properties = ",".join(UNIT_PROPERTY_NAMES)
    # Microseconds and UTC: whether a daemon is older than its file must not depend on a time zone or on rounding.
    return _table_probe("units", argv=("systemctl", "show", "--timestamp=us+utc", "-p", properties, *names))


# It also reads sysfs and the names of all known devices, which takes 10 ms; only doctor shows names.
LSPCI_PROBE: Final = _table_probe("lspci", argv=("lspci", "-Dvmmnnk"))
PROBES: Final = (*list_probes(), LSPCI_PROBE)


def find_cdi_output_path(settings: str) -> str:
    """Return where the toolkit's unit writes the specification with these ``settings`` of its environment file."""
    return [CDI_SPEC, *(match[1] for match in _CDI_OUTPUT_PATH.finditer(settings))][-1]
