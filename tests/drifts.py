"""Changes that people and other tools make to a configured node, and the step that must find each: data.

The node is a Debian 12 with a GTX 1080, set up with a lock and the recipe of ``e2e/chroot/test_drifts.py``: containerd,
nvidia as the default runtime, driver 580, toolkit 1.19.1. ``docs/reference/drift.md`` shows this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from gpunode.change import FileState, PackageState
from gpunode.facts.model import Facts, Kernels, Known, PackageSource
from gpunode.facts.project import PLAN_PROBE_KEY
from tests.ids import by_id, by_name

CONFIG: Final = "/etc/containerd/config.toml"
CUDA_LIST: Final = "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
TOOLKIT_LIST: Final = "/etc/apt/sources.list.d/nvidia-container-toolkit.list"
CUDA_KEYRING: Final = "/usr/share/keyrings/cuda-archive-keyring.gpg"
TOOLKIT_KEYRING: Final = "/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg"
PIN: Final = "/etc/apt/preferences.d/gpunode-nvidia"
BLACKLIST: Final = "/etc/modprobe.d/gpunode-nouveau.conf"

NEW_KERNEL: Final = "9.9.9-amd64"
FOREIGN_NVCC: Final = "/usr/local/cuda-11.8/bin/nvcc"
STALE_SOURCE: Final = "/usr/src/nvidia-535.54.03"
FOREIGN_LIBRARY: Final = "/usr/lib/x86_64-linux-gnu/libcuda.so.535.54.03"
LOCAL_LIBRARY: Final = "/usr/local/lib/libnvidia-ml.so.1"
TOOLKIT_CONFIG: Final = "/etc/nvidia-container-runtime/config.toml"

Answer: TypeAlias = Literal["healed", "refused", "noted"]
Inject: TypeAlias = Callable[[Facts], Facts]


@dataclass(frozen=True, slots=True)
class Drift:
    """A way in which a node drifts.

    Attributes:
        what: its description in the documentation.
        shell: makes a node drift; ``/root/drift`` holds the files that it needs.
        step: the step whose plan must name it.
        answer: setup repairs it; plan and setup refuse to continue and say what to do; or plan names it in a note.
        facts: makes the same change to the facts of a node; None if only a real node shows it.
        booted: whether only a booted machine shows it, because systemd reports no units in a chroot.
        undo: what a person does if setup repairs nothing.
        says: the text that the refusal or the note must contain; empty for the last word of ``undo``.
        core: whether the short test runs include it: at least one for each step and answer, security first.
    """

    id: str
    what: str
    shell: str
    step: str
    answer: Answer = "healed"
    facts: Inject | None = None
    undo: str = ""
    says: str = ""
    booted: bool = False
    core: bool = False

    @property
    def named(self) -> str:
        """The text by which plan must name it if setup repairs nothing."""
        return self.says or self.undo.split()[-1]


def _file(path: str, change: Callable[[FileState], FileState | None]) -> Inject:
    def inject(facts: Facts) -> Facts:
        fact = facts.file(path)
        assert isinstance(fact, Known)
        assert fact.value is not None
        files = {**facts.files, path: Known(change(fact.value), f"file:{path}")}
        return replace(facts, files=files)

    return inject


def _gone(path: str) -> Inject:
    return _file(path, lambda _state: None)


def _mode(path: str, mode: int) -> Inject:
    return _file(path, lambda state: replace(state, mode=mode))


def _packages(change: Callable[[Mapping[str, PackageState]], Mapping[str, PackageState]]) -> Inject:
    def inject(facts: Facts) -> Facts:
        assert isinstance(facts.packages, Known)
        return replace(facts, packages=Known(by_id(change(by_name(facts.packages.value))), PLAN_PROBE_KEY))

    return inject


def _without(name: str) -> Inject:
    return _packages(lambda packages: {other: state for other, state in packages.items() if other != name})


def _state(name: str, **more: object) -> Inject:
    return _packages(lambda packages: {**packages, name: replace(packages[name], **more)})  # type: ignore[arg-type]


def _unit(name: str, **more: bool) -> Inject:
    def inject(facts: Facts) -> Facts:
        fact = facts.unit(name)
        assert isinstance(fact, Known)
        own = {key: value for key, value in more.items() if key in {"masked", "exists"}}
        state = {key: value for key, value in more.items() if key not in own}
        unit = replace(fact.value, state=replace(fact.value.state, **state), **own)
        return replace(facts, units={**facts.units, name: Known(unit, "units")})

    return inject


def _sources(facts: Facts) -> tuple[PackageSource, ...]:
    assert isinstance(facts.sources, Known)
    return facts.sources.value


def _entry(file: str, **more: tuple[str, ...]) -> Inject:
    def inject(facts: Facts) -> Facts:
        entries = (replace(one, **more) if one.file == file else one for one in _sources(facts))  # type: ignore[arg-type]
        return replace(facts, sources=Known(tuple(entries), PLAN_PROBE_KEY))

    return inject


def _copied_source(file: str, spelling: tuple[str, str], **more: tuple[str, ...]) -> Inject:
    """Add a list with the driver repository's entry, its address spelled differently."""

    def inject(facts: Facts) -> Facts:
        copies = tuple(
            replace(one, file=file, uri=one.uri.replace(*spelling), **more)  # type: ignore[arg-type]
            for one in _sources(facts)
            if one.file == CUDA_LIST
        )
        return replace(_with(file, b"deb")(facts), sources=Known((*_sources(facts), *copies), PLAN_PROBE_KEY))

    return inject


def _with(path: str, content: bytes, mode: int = 0o644) -> Inject:
    state = FileState(content, mode)
    return lambda facts: replace(facts, files={**facts.files, path: Known(state, PLAN_PROBE_KEY)})


def _libraries(path: str) -> Inject:
    return lambda facts: replace(facts, driver_libraries=Known(frozenset({path}), "cuda-libraries"))


def _leftover(path: str) -> Inject:
    return lambda facts: replace(facts, leftovers=Known(frozenset({path}), "dkms-tree"))


def _new_kernel(facts: Facts) -> Facts:
    assert isinstance(facts.kernels, Known)
    former = facts.kernels.value
    return replace(facts, kernels=Known(Kernels(former.running, (*former.installed, NEW_KERNEL)), "boot-images"))


DRIFTS: Final = (
    Drift("handler-removed", "NVIDIA's handler is removed from containerd's configuration",
          f"cp /root/drift/config.toml {CONFIG}", "runtime-config",
          facts=_file(CONFIG, lambda state: replace(state, content=b"version = 2\n")), core=True),
    Drift("default-changed", "another default runtime is set",
          f"sed -i 's/default_runtime_name = .*/default_runtime_name = \"runc\"/' {CONFIG}", "runtime-config",
          facts=_file(CONFIG, lambda state: replace(
              state, content=state.content.replace(b'default_runtime_name = "nvidia"',
                                                   b'default_runtime_name = "runc"')))),
    Drift("binary-changed", "the handler runs another program",
          f"sed -i 's,/usr/bin/nvidia-container-runtime,/usr/local/bin/runc,' {CONFIG}", "runtime-config",
          facts=_file(CONFIG, lambda state: replace(
              state, content=state.content.replace(b"/usr/bin/nvidia-container-runtime", b"/usr/local/bin/runc")))),
    Drift("configuration-deleted", "containerd's configuration file is deleted",
          f"rm {CONFIG}", "runtime-config", facts=_gone(CONFIG)),
    Drift("keyring-unreadable", "apt's own user cannot read a keyring",
          f"chmod 600 {CUDA_KEYRING}", "cuda-repository"),
    Drift("keyring-folder-closed", "apt's own user cannot enter the keyring folder",
          "chmod 700 /usr/share/keyrings", "repair", "noted",
          facts=lambda facts: replace(facts, folder_modes={"/usr/share/keyrings": 0o700}),
          undo="chmod 0755 /usr/share/keyrings"),
    Drift("keyring-writable", "a keyring is world-writable",
          f"chmod 666 {TOOLKIT_KEYRING}", "toolkit-repository"),
    Drift("keyring-replaced", "a keyring has another key",
          f"cp /root/drift/stranger.gpg {TOOLKIT_KEYRING}", "toolkit-repository", core=True),
    Drift("keyring-extended", "a keyring has an extra key",
          f"cat /root/drift/stranger.gpg >> {CUDA_KEYRING}", "cuda-repository"),
    Drift("keyring-deleted", "a keyring is deleted", f"rm {CUDA_KEYRING}", "cuda-repository"),
    Drift("list-deleted", "a sources list is deleted", f"rm {TOOLKIT_LIST}", "toolkit-repository",
          facts=lambda facts: replace(_gone(TOOLKIT_LIST)(facts), sources=Known((), PLAN_PROBE_KEY))),
    Drift("list-commented", "the entry in a sources list is commented out",
          f"sed -i 's/^deb/#deb/' {CUDA_LIST}", "cuda-repository",
          facts=lambda facts: replace(facts, sources=Known(tuple(
              replace(one, enabled=one.file != CUDA_LIST) for one in _sources(facts)), PLAN_PROBE_KEY))),
    Drift("list-edited", "a sources list has another address",
          f"sed -i 's,/x86_64,/sbsa,' {CUDA_LIST}", "cuda-repository",
          facts=lambda facts: replace(facts, sources=Known(tuple(
              replace(one, uri="https://example.com/") if one.file == CUDA_LIST else one
              for one in _sources(facts)), PLAN_PROBE_KEY))),
    Drift("list-writable", "a sources list belongs to a user", f"chown 1000 {TOOLKIT_LIST}", "toolkit-repository",
          facts=_file(TOOLKIT_LIST, lambda state: replace(state, uid=1000))),
    Drift("list-unreadable", "a sources list is readable by root only", f"chmod 600 {CUDA_LIST}",
          "cuda-repository", facts=_mode(CUDA_LIST, 0o600)),
    Drift("second-source", "a second list has the same repository with another key",
          f"sed 's,signed-by=[^]]*,signed-by=/root/drift/stranger.gpg,' {TOOLKIT_LIST} > "
          "/etc/apt/sources.list.d/copied.list", "toolkit-repository",
          facts=lambda facts: replace(facts, sources=Known((*_sources(facts), *(
              replace(one, file="/etc/apt/sources.list.d/copied.list", signed_by="/root/drift/stranger.gpg")
              for one in _sources(facts) if one.file == TOOLKIT_LIST)), PLAN_PROBE_KEY),
              files={**facts.files, "/etc/apt/sources.list.d/copied.list": Known(FileState(b"deb"), PLAN_PROBE_KEY)})),
    Drift("source-trusted", "a sources list has trusted=yes, so apt requires no signature",
          f"sed -i 's/\\[signed-by/[trusted=yes signed-by/' {CUDA_LIST}", "cuda-repository",
          facts=_entry(CUDA_LIST, relaxed=("trusted=yes",)), core=True),
    Drift("source-insecure", "a sources list has allow-insecure=yes",
          f"sed -i 's/\\[signed-by/[allow-insecure=yes signed-by/' {TOOLKIT_LIST}", "toolkit-repository",
          facts=_entry(TOOLKIT_LIST, relaxed=("allow-insecure=yes",))),
    Drift("source-stale", "a sources list has check-valid-until=no, so apt accepts an outdated index",
          f"sed -i 's/\\[signed-by/[check-valid-until=no signed-by/' {CUDA_LIST}", "cuda-repository",
          facts=_entry(CUDA_LIST, relaxed=("check-valid-until=no",))),
    Drift("source-for-others", "a sources list is for another architecture only",
          f"sed -i 's/\\[signed-by/[arch=arm64 signed-by/' {CUDA_LIST}", "cuda-repository",
          facts=_entry(CUDA_LIST, architectures=("arm64",))),
    Drift("source-renamed", "a sources list has a name that apt ignores",
          f"mv {TOOLKIT_LIST} {TOOLKIT_LIST}.off", "toolkit-repository"),
    Drift("source-copied", "a second list has the same repository in another spelling, with trusted=yes",
          f"sed 's,\\[[^]]*\\],[trusted=yes],; s, /$,/ /,' {CUDA_LIST} > /etc/apt/sources.list.d/copied.list",
          "cuda-repository"),
    Drift("source-of-another-system", "a second list has the repository for another distribution",
          f"sed 's,debian12,ubuntu2204,' {CUDA_LIST} > /etc/apt/sources.list.d/other.list", "cuda-repository",
          facts=_copied_source("/etc/apt/sources.list.d/other.list", ("debian12", "ubuntu2204"))),
    Drift("source-encoded", "a second list has the same repository in percent-encoded letters, with trusted=yes",
          f"sed 's,\\[[^]]*\\],[trusted=yes],; s,x86_64,%78%38%36_64,' {CUDA_LIST} > "
          "/etc/apt/sources.list.d/copied.list", "cuda-repository",
          facts=_copied_source("/etc/apt/sources.list.d/copied.list", ("x86_64", "%78%38%36_64"),
                               relaxed=("trusted=yes",))),
    Drift("source-as-mirrors", "a second list has the same repository as an apt mirror, with allow-insecure=yes",
          f"sed 's,\\[[^]]*\\] http,[allow-insecure=yes] mirror+http,' {CUDA_LIST} > "
          "/etc/apt/sources.list.d/copied.list", "cuda-repository",
          facts=_copied_source("/etc/apt/sources.list.d/copied.list", ("http", "mirror+http"),
                               relaxed=("allow-insecure=yes",))),
    Drift("source-hidden", "a list of other sources also has the same repository, with trusted=yes",
          f"(sed 's,\\[[^]]*\\],[trusted=yes],' {CUDA_LIST}; echo 'deb http://127.0.0.1:9/other ./') > "
          "/etc/apt/sources.list.d/mixed.list", "cuda-repository", "refused",
          undo="rm /etc/apt/sources.list.d/mixed.list"),
    Drift("source-former", "a list has a former address of the toolkit's repository",
          "echo 'deb https://nvidia.github.io/nvidia-docker/debian10/amd64 /' > "
          "/etc/apt/sources.list.d/nvidia-docker.list", "toolkit-repository"),
    Drift("keyring-emptied", "a keyring is emptied", f": > {CUDA_KEYRING}", "cuda-repository"),
    Drift("apt-unauthenticated", "apt is configured to install without signatures",
          "echo 'APT::Get::AllowUnauthenticated \"true\";' > /etc/apt/apt.conf.d/99site", "repair", "noted",
          facts=_with("/etc/apt/apt.conf.d/99site", b'APT::Get::AllowUnauthenticated "true";\n'),
          undo="rm /etc/apt/apt.conf.d/99site", core=True),
    Drift("apt-insecure", "apt is configured to read archives without signatures",
          "echo 'Acquire { AllowInsecureRepositories yes; };' > /etc/apt/apt.conf.d/99site", "repair",
          "noted", facts=_with("/etc/apt/apt.conf.d/99site", b"Acquire { AllowInsecureRepositories yes; };\n"),
          undo="rm /etc/apt/apt.conf.d/99site"),
    Drift("pin-deleted", "the file that pins the driver's version is deleted", f"rm {PIN}", "driver-pin",
          facts=_gone(PIN)),
    Drift("pin-edited", "that file is edited", f"sed -i 's/^Pin-Priority: -1/Pin-Priority: 500/' {PIN}", "driver-pin",
          facts=_file(PIN, lambda state: replace(state, content=state.content.replace(b": -1", b": 500"))), core=True),
    Drift("pin-unreadable", "that file is readable by root only", f"chmod 600 {PIN}", "driver-pin",
          facts=_mode(PIN, 0o600)),
    Drift("pin-overruled", "a preferences file that apt reads earlier overrides the driver's pin",
          "printf 'Package: nvidia-*\\nPin: release o=NVIDIA\\nPin-Priority: 600\\n' > "
          "/etc/apt/preferences.d/00-site", "driver-pin", "noted",
          facts=lambda facts: replace(facts, files={**facts.files, "/etc/apt/preferences.d/00-site": Known(
              FileState(b"Package: nvidia-*\nPin: release o=NVIDIA\nPin-Priority: 600\n"), PLAN_PROBE_KEY)}),
          undo="rm /etc/apt/preferences.d/00-site"),
    Drift("blacklist-deleted", "the file that blacklists nouveau is deleted", f"rm {BLACKLIST}", "nouveau",
          facts=_gone(BLACKLIST)),
    Drift("blacklist-edited", "that file is edited", f"sed -i '/nouveau/d' {BLACKLIST}", "nouveau",
          facts=_file(BLACKLIST, lambda state: replace(state, content=b"# nothing\n"))),
    Drift("driver-removed", "a package of the driver is purged",
          "dpkg --purge --force-depends nvidia-driver-cuda", "driver", facts=_without("nvidia-driver-cuda")),
    Drift("driver-half-removed", "a package of the driver is removed, but not purged",
          "dpkg --remove --force-depends nvidia-persistenced", "driver",
          facts=_state("nvidia-persistenced", config_files_only=True)),
    Drift("library-purged", "the driver's libraries that its packages depend on are purged",
          "dpkg --purge --force-depends libcuda1 libnvidia-ml1 nvidia-smi libnvidia-encode1", "missing-dependencies",
          facts=_without("libnvidia-ptxjitcompiler1"), core=True),
    Drift("module-support-purged", "a dependency of the kernel modules' package is removed",
          "dpkg --remove --force-depends nvidia-kernel-support firmware-nvidia-gsp nvidia-modprobe",
          "missing-dependencies", facts=_without("nvidia-kernel-support")),
    Drift("headers-part-purged", "a dependency of the kernel headers is purged",
          "dpkg --purge --force-depends $(dpkg-query -W -f '${Package} ' 'linux-kbuild-*')", "missing-dependencies",
          facts=_without("linux-kbuild-6.1")),
    Drift("driver-of-another-system", "an upgrade from another distribution's repository mixed driver packages",
          f"sed 's,debian12,ubuntu2204,' {CUDA_LIST} > /etc/apt/sources.list.d/other.list; apt-get -q update; "
          "apt-get -y install nvidia-persistenced", "conflicts",
          facts=_packages(lambda packages: {
              **{name: state for name, state in packages.items() if name != "nvidia-driver-cuda"},
              "nvidia-persistenced": PackageState("580.178.04-1ubuntu1"),
              "libnvidia-cfg1-580": PackageState("580.178.04-1ubuntu1", auto=True)})),
    Drift("library-replaced", "a library of the driver has another version",
          "dpkg -i --force-depends --force-downgrade /root/drift/libcuda1_*.deb", "driver",
          facts=_state("libcuda1", version="580.65.06-1")),
    Drift("driver-automatic", "the driver's packages are marked as dependencies, so autoremove would remove them",
          "apt-mark auto nvidia-driver-cuda nvidia-kernel-dkms", "driver",
          facts=_state("nvidia-driver-cuda", auto=True), core=True),
    Drift("driver-replaced", "the complete driver has another branch",
          "apt-get -y -o Dir::Etc::PreferencesParts=/root/drift/preferences install nvidia-driver-cuda "
          "nvidia-kernel-dkms", "driver",
          facts=_packages(lambda packages: {
              name: replace(state, version="595.91.07-1") if state.version.startswith("580.") else state
              for name, state in packages.items()})),
    Drift("toolkit-removed", "a package of the toolkit is removed",
          "apt-get -y remove libnvidia-container-tools", "toolkit", facts=_without("libnvidia-container-tools")),
    Drift("toolkit-automatic", "the toolkit is marked as a dependency, so autoremove would remove it",
          "apt-mark auto nvidia-container-toolkit", "toolkit", facts=_state("nvidia-container-toolkit", auto=True)),
    Drift("program-wrapped", "a program of the toolkit is replaced by a shell wrapper",
          "printf '#!/bin/sh\\nexec /usr/bin/runc \"$@\"\\n' > /usr/bin/nvidia-container-runtime", "toolkit", "noted",
          facts=lambda facts: replace(
              facts, replaced_programs=Known(("/usr/bin/nvidia-container-runtime",), PLAN_PROBE_KEY)),
          undo="apt-get -y install --reinstall nvidia-container-toolkit-base=1.19.1-1"),
    Drift("program-deleted", "a program of the toolkit is deleted",
          "rm /usr/bin/nvidia-container-runtime", "toolkit",
          facts=lambda facts: replace(
              facts, lost_programs=Known(("/usr/bin/nvidia-container-runtime",), PLAN_PROBE_KEY))),
    Drift("runtime-automatic", "the container runtime is marked as a dependency, so autoremove would remove it",
          "apt-mark auto containerd", "runtime-install", facts=_state("containerd", auto=True), core=True),
    Drift("headers-automatic", "the metapackage for kernel headers is marked as a dependency",
          "apt-mark auto linux-headers-amd64", "headers", facts=_state("linux-headers-amd64", auto=True)),
    Drift("toolkit-upgraded", "the toolkit is upgraded",
          "apt-get -y install nvidia-container-toolkit", "toolkit",
          facts=_state("libnvidia-container1", version="1.20.1-1")),
    Drift("runtime-removed", "the container runtime's package is removed",
          "dpkg --remove --force-depends containerd", "runtime-install",
          facts=lambda facts: _unit("containerd.service", exists=False)(_without("containerd")(facts))),
    Drift("headers-removed", "the kernel headers are removed",
          'dpkg --purge --force-depends "linux-headers-$(uname -r)"', "headers",
          facts=lambda facts: replace(_without("linux-headers-6.1.0-37-amd64")(facts),
                                      headers=Known(frozenset(), PLAN_PROBE_KEY))),
    Drift("headers-deleted", "the kernel headers are deleted, but their package is installed",
          'mv "/usr/src/linux-headers-$(uname -r)" /root/drift/headers', "headers", "refused",
          facts=lambda facts: replace(facts, headers=Known(frozenset(), PLAN_PROBE_KEY)),
          undo='mv /root/drift/headers "/usr/src/linux-headers-$(uname -r)"', says="--reinstall linux-headers-"),
    Drift("source-deleted", "the driver's source for DKMS is deleted, but its package is installed",
          "mv /usr/src/nvidia-580.178.04 /root/drift/", "module-build", "noted",
          facts=lambda facts: replace(facts, leftovers=Known(frozenset[str](), "dkms-tree")),
          undo="mv /root/drift/nvidia-580.178.04 /usr/src/", says="--reinstall nvidia-kernel-dkms"),
    Drift("module-deleted", "the built kernel module is deleted",
          'rm "/lib/modules/$(uname -r)/updates/dkms/"nvidia.ko*', "module-build",
          facts=lambda facts: replace(facts, module_files=Known((), PLAN_PROBE_KEY))),
    Drift("module-unloaded", "the kernel module is unloaded", "modprobe -r nvidia", "module-load",
          facts=lambda facts: replace(facts, loaded_driver=Known(None, PLAN_PROBE_KEY)), core=True),
    Drift("new-kernel", "a new kernel has no headers, but the sources have them",
          f"touch /boot/vmlinuz-{NEW_KERNEL}", "headers", facts=_new_kernel, undo=f"rm /boot/vmlinuz-{NEW_KERNEL}",
          core=True),
    Drift("unit-disabled", "nvidia-persistenced is disabled", "systemctl disable nvidia-persistenced.service",
          "persistence", facts=_unit("nvidia-persistenced.service", enabled=False), booted=True, core=True),
    Drift("unit-stopped", "nvidia-persistenced is stopped", "systemctl stop nvidia-persistenced.service",
          "persistence", facts=_unit("nvidia-persistenced.service", active=False), booted=True),
    Drift("runtime-stopped", "the container runtime is stopped", "systemctl stop containerd.service",
          "runtime-config", facts=_unit("containerd.service", active=False), booted=True, core=True),
    Drift("runtime-disabled", "the container runtime is disabled", "systemctl disable containerd.service",
          "runtime-config", facts=_unit("containerd.service", enabled=False), booted=True),
    Drift("unit-masked", "nvidia-persistenced is masked",
          "systemctl mask nvidia-persistenced.service", "persistence", "noted",
          facts=_unit("nvidia-persistenced.service", masked=True),
          undo="systemctl unmask nvidia-persistenced.service", booted=True),
    Drift("pin-overruled-early", "the main preferences file overrides the driver's pin",
          "printf 'Package: libcuda1\\nPin: release o=NVIDIA\\nPin-Priority: 600\\n' > /etc/apt/preferences",
          "driver-pin", "noted", undo="rm /etc/apt/preferences",
          facts=_with("/etc/apt/preferences", b"Package: libcuda1\nPin: release o=NVIDIA\nPin-Priority: 600\n")),
    Drift("pin-a-users", "the file that pins the driver's version belongs to a user", f"chown 1000 {PIN}",
          "driver-pin", facts=_file(PIN, lambda state: replace(state, uid=1000))),
    Drift("blacklist-writable", "the file that blacklists nouveau is world-writable",
          f"chmod 666 {BLACKLIST}", "nouveau", facts=_mode(BLACKLIST, 0o666), core=True),
    Drift("driver-switched-off", "modprobe runs another program instead of loading the driver",
          "echo 'install nvidia /bin/false' > /etc/modprobe.d/site.conf", "nouveau", "noted",
          facts=_with("/etc/modprobe.d/site.conf", b"install nvidia /bin/false\n"),
          undo="rm /etc/modprobe.d/site.conf"),
    Drift("driver-blacklisted", "the driver's module is blacklisted",
          "echo 'blacklist nvidia-drm' > /etc/modprobe.d/site.conf", "nouveau", "noted",
          facts=_with("/etc/modprobe.d/site.conf", b"blacklist nvidia-drm\n"), undo="rm /etc/modprobe.d/site.conf"),
    Drift("nouveau-beside", "nouveau is loaded along with another module",
          "echo 'softdep drm post: nouveau' > /etc/modprobe.d/site.conf", "nouveau", "noted",
          facts=_with("/etc/modprobe.d/site.conf", b"softdep drm post: nouveau\n"),
          undo="rm /etc/modprobe.d/site.conf"),
    Drift("nouveau-at-boot", "nouveau is loaded by name at boot",
          "echo nouveau > /etc/modules-load.d/site.conf", "nouveau", "noted",
          facts=_with("/etc/modules-load.d/site.conf", b"nouveau\n"), undo="rm /etc/modules-load.d/site.conf"),
    Drift("nouveau-in-initramfs", "nouveau is loaded by name in the initramfs",
          "mkdir -p /etc/initramfs-tools && echo nouveau >> /etc/initramfs-tools/modules", "nouveau", "noted",
          facts=_with("/etc/initramfs-tools/modules", b"nouveau\n"),
          undo="sed -i /^nouveau/d /etc/initramfs-tools/modules"),
    Drift("headers-held", "the metapackage for kernel headers is held",
          "apt-mark hold linux-headers-amd64", "headers", "noted", facts=_state("linux-headers-amd64", held=True),
          undo="apt-mark unhold linux-headers-amd64"),
    Drift("tool-diverted", "a file of the driver is diverted with dpkg-divert",
          "dpkg-divert --local --rename --add /usr/bin/nvidia-smi", "driver", "noted",
          facts=_with("/var/lib/dpkg/diversions", b"/usr/bin/nvidia-smi\n/usr/bin/nvidia-smi.distrib\n:\n"),
          undo="dpkg-divert --local --rename --remove /usr/bin/nvidia-smi"),
    Drift("toolkit-configured", "the toolkit's configuration sets no-cgroups, so containers may not use the devices",
          "mkdir -p /etc/nvidia-container-runtime && "
          f"printf '[nvidia-container-cli]\\nno-cgroups = true\\n' > {TOOLKIT_CONFIG}", "toolkit", "noted",
          facts=_with(TOOLKIT_CONFIG, b"[nvidia-container-cli]\nno-cgroups = true\n"), undo=f"rm {TOOLKIT_CONFIG}"),
    Drift("toolkit-configuration-writable", "the toolkit's configuration is world-writable",
          f"mkdir -p /etc/nvidia-container-runtime && touch {TOOLKIT_CONFIG} && chmod 666 {TOOLKIT_CONFIG}",
          "runtime-config", facts=_with(TOOLKIT_CONFIG, b"", 0o666)),
    Drift("configuration-writable", "containerd's configuration is world-writable",
          f"chmod 666 {CONFIG}", "runtime-config", facts=_mode(CONFIG, 0o666)),
    Drift("configuration-a-users", "containerd's configuration belongs to a user", f"chown nobody {CONFIG}",
          "runtime-config", facts=_file(CONFIG, lambda state: replace(state, uid=65534))),
    Drift("configuration-linked", "containerd's configuration is a link into a user's folder",
          f"install -d -o 1000 /srv/user && mv {CONFIG} /srv/user/ && ln -s /srv/user/config.toml {CONFIG}",
          "runtime-config", "noted", undo=f"mv -f /srv/user/config.toml {CONFIG}",
          facts=lambda facts: replace(facts, exposed={CONFIG: "/srv/user belongs to uid 1000"})),
    Drift("configuration-folder", "the folder of containerd's configuration is world-writable",
          "chmod 777 /etc/containerd", "runtime-config", "noted", undo="chmod 755 /etc/containerd",
          facts=lambda facts: replace(facts, exposed={CONFIG: "others can write to /etc/containerd (mode 0777)"})),
    Drift("configuration-broken", "containerd's configuration is not valid TOML", f"echo 'version = ' >> {CONFIG}",
          "runtime-config", "refused", undo=f"sed -i '$d' {CONFIG}",
          facts=_file(CONFIG, lambda state: replace(state, content=state.content + b"version = \n")), core=True),
    Drift("configuration-emptied", "containerd's configuration is emptied", f": > {CONFIG}", "runtime-config",
          facts=_file(CONFIG, lambda state: replace(state, content=b""))),
    Drift("cri-disabled", "containerd's CRI plugin is disabled",
          f"sed -i '1i disabled_plugins = [\"cri\"]' {CONFIG}", "runtime-config", "noted",
          facts=_file(CONFIG, lambda state: replace(state, content=b'disabled_plugins = ["cri"]\n' + state.content)),
          undo=f"sed -i 1d {CONFIG}"),
    Drift("module-uninstalled", "the module is removed with dkms uninstall",
          'dkms uninstall -m nvidia -v "$(ls /var/lib/dkms/nvidia | grep ^5)" -k "$(uname -r)"', "module-build",
          core=True),
    Drift("runtime-masked", "the container runtime is masked",
          "systemctl mask containerd.service", "runtime-config", "noted",
          facts=_unit("containerd.service", masked=True), undo="systemctl unmask containerd.service", booted=True),
    Drift("dpkg-interrupted", "dpkg was interrupted", "dpkg --unpack /root/drift/lab-drift_*.deb", "repair",
          facts=lambda facts: replace(facts, packages_interrupted=Known(value=True, probe=PLAN_PROBE_KEY)), core=True),
    Drift("held", "a package is held at another version",
          "apt-get -y install nvidia-container-toolkit && apt-mark hold libnvidia-container1", "toolkit", "refused",
          facts=_state("libnvidia-container1", version="1.20.1-1", held=True),
          undo="apt-mark unhold libnvidia-container1", core=True),
    Drift("run-installer", "NVIDIA's .run installer has installed a driver over the packages",
          "touch /usr/bin/nvidia-uninstall", "conflicts", "refused",
          facts=lambda facts: replace(facts, run_installer=Known(value=True, probe=PLAN_PROBE_KEY)),
          undo="rm /usr/bin/nvidia-uninstall"),
    Drift("run-leftovers", "libraries of a .run driver are left, and its uninstaller is gone",
          f"touch {FOREIGN_LIBRARY}", "conflicts", "refused", facts=_libraries(FOREIGN_LIBRARY),
          undo=f"rm {FOREIGN_LIBRARY}", core=True),
    Drift("library-local", "a library of a driver in /usr/local/lib hides the installed one",
          f"touch {LOCAL_LIBRARY}", "conflicts", "noted", facts=_libraries(LOCAL_LIBRARY),
          undo=f"rm {LOCAL_LIBRARY}"),
    Drift("toolkit-of-run-file", "a CUDA toolkit of a .run installer belongs to no package",
          f"install -D /bin/true {FOREIGN_NVCC}", "conflicts", "noted", facts=_leftover(FOREIGN_NVCC),
          undo="rm -r /usr/local/cuda-11.8", says="/usr/local/cuda-11.8"),
    Drift("dkms-stale", "DKMS still has the sources of a removed driver",
          f"mkdir {STALE_SOURCE}", "conflicts", "noted", facts=_leftover(STALE_SOURCE),
          undo=f"rmdir {STALE_SOURCE}", says=STALE_SOURCE),
    Drift("stubs", "a folder of CUDA's stub libraries is in /etc/ld.so.conf.d",
          "echo /usr/local/cuda/lib64/stubs > /etc/ld.so.conf.d/stubs.conf", "conflicts", "noted",
          facts=_with("/etc/ld.so.conf.d/stubs.conf", b"/usr/local/cuda/lib64/stubs\n"),
          undo="rm /etc/ld.so.conf.d/stubs.conf", says="/usr/local/cuda/lib64/stubs"),
    Drift("nouveau-argument", "the boot loader's configuration switches nouveau on",
          "cp -a /etc/default/grub /root/drift/ 2>&- ; "
          "echo 'GRUB_CMDLINE_LINUX=\"quiet nouveau.modeset=1\"' >> /etc/default/grub", "nouveau", "noted",
          facts=_with("/etc/default/grub", b'# grub\nGRUB_CMDLINE_LINUX="quiet nouveau.modeset=1"\n'),
          undo="mv /root/drift/grub /etc/default/ 2>&- || rm /etc/default/grub", says="nouveau.modeset=1"),
    Drift("driver-blacklisted-in-lib", "the driver's module is blacklisted in /lib/modprobe.d, as by prime-select",
          "echo 'blacklist nvidia' > /lib/modprobe.d/blacklist-nvidia.conf", "nouveau", "noted",
          facts=_with("/lib/modprobe.d/blacklist-nvidia.conf", b"blacklist nvidia\n"),
          undo="rm /lib/modprobe.d/blacklist-nvidia.conf"),
    Drift("grub-d-nouveau", "a file in /etc/default/grub.d enables nouveau",
          "mkdir -p /etc/default/grub.d; echo 'GRUB_CMDLINE_LINUX=nouveau.modeset=1' > /etc/default/grub.d/x.cfg",
          "nouveau", "noted", facts=_with("/etc/default/grub.d/x.cfg", b"GRUB_CMDLINE_LINUX=nouveau.modeset=1\n"),
          undo="rm -r /etc/default/grub.d", says="/etc/default/grub.d/x.cfg:1 has nouveau.modeset=1"),
    Drift("initramfs-old", "the initramfs was made before the file that blacklists nouveau",
          'touch -d 2020-01-01 "/boot/initrd.img-$(uname -r)"', "nouveau", "noted",
          facts=lambda facts: replace(facts, modified_at={BLACKLIST: 2.0, "/boot/initrd.img-6.1.0-37-amd64": 1.0}),
          undo='touch "/boot/initrd.img-$(uname -r)"', says="update-initramfs -u -k"),
    Drift("toolkit-configuration-deleted", "the toolkit's configuration is deleted",
          f"mv {TOOLKIT_CONFIG} /root/drift/toolkit.toml", "toolkit", "noted",
          facts=lambda facts: replace(facts, files={**facts.files, TOOLKIT_CONFIG: Known(None, TOOLKIT_CONFIG)}),
          undo=f"mv /root/drift/toolkit.toml {TOOLKIT_CONFIG}"),
)  # fmt: skip
