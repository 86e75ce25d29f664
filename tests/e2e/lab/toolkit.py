"""The container toolkit's four packages, with a runtime that records its calls and then executes runc."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from tests.e2e.lab.debs import Package

CALLS: Final = "/var/log/nvidia-container-runtime.calls"
RUNTIME: Final = f"""\
#!/bin/sh
echo "$*" >> {CALLS}
exec runc "$@"
"""
CTK: Final = """\
#!/bin/sh
{ echo "$*" >> /var/log/nvidia-ctk.calls; } 2>/dev/null
case "$1 $2" in
"--version "*) echo "NVIDIA Container Toolkit CLI version @VERSION@" ;;
"cdi generate")
  driver=$(sed -n 's/^NVRM version:.* \\([0-9][0-9.]*[0-9]\\)  .*/\\1/p' /proc/driver/nvidia/version 2>/dev/null)
  [ -n "$driver" ] || { echo "failed to initialize NVML: ERROR_LIBRARY_NOT_FOUND" >&2; exit 1; }
  out=/var/run/cdi/nvidia.yaml
  for word in "$@"; do case $word in --output=*) out=${word#--output=} ;; esac; done
  mkdir -p "${out%/*}"
  {
    printf -- '---\\ncdiVersion: 0.5.0\\nkind: nvidia.com/gpu\\ndevices:\\n    - name: all\\n      containerEdits:\\n'
    printf '        deviceNodes:\\n'
    for node in /dev/nvidia[0-9]*; do printf '            - path: %s\\n' "$node"; done
    printf 'containerEdits:\\n    mounts:\\n'
    for library in /usr/lib/*/libnvidia-ml.so."$driver"; do printf '        - hostPath: %s\\n' "$library"; done
  } >"$out" ;;
"cdi list") grep -qs "name: all" /var/run/cdi/nvidia.yaml && echo nvidia.com/gpu=all; echo "Found some" >&2 ;;
esac
"""
CONFIG: Final = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
supported-driver-capabilities = "compat32,compute,display,graphics,ngx,utility,video"

[nvidia-container-cli]
environment = []
ldconfig = "@/sbin/ldconfig"
load-kmods = true
#no-cgroups = false

[nvidia-container-runtime]
log-level = "info"
mode = "auto"
runtimes = ["docker-runc", "runc", "crun"]

[nvidia-container-runtime-hook]
path = "nvidia-container-runtime-hook"
skip-mode-detection = false

[nvidia-ctk]
path = "nvidia-ctk"
"""
REFRESH_UNIT: Final = """\
[Unit]
Description=Refresh NVIDIA CDI specification file
ConditionPathExists=|/usr/bin/nvidia-smi
ConditionPathExists=|/usr/sbin/nvidia-smi
ConditionPathExists=/usr/bin/nvidia-ctk

[Service]
Type=oneshot
ExecCondition=/usr/bin/grep -qE "/nvidia.ko" /lib/modules/%v/modules.dep
ExecStart=/usr/bin/nvidia-ctk cdi generate

[Install]
WantedBy=multi-user.target
"""
REFRESH_PATH: Final = """\
[Unit]
Description=Trigger CDI refresh on NVIDIA driver install / uninstall events

[Path]
PathChanged=/lib/modules/%v/modules.dep
PathChanged=/lib/modules/%v/modules.dep.bin

[Install]
WantedBy=multi-user.target
"""


def packages(version: str) -> Iterator[Package]:
    """Yield the toolkit at ``version``, all four of one version."""
    full = f"{version}-1"

    def package(name: str, *depends: str) -> Package:
        return Package(name, full, depends=depends)

    yield package("libnvidia-container1")
    yield package("libnvidia-container-tools", f"libnvidia-container1 (>= {full})")
    yield replace(
        package("nvidia-container-toolkit-base"),
        files={
            "/usr/bin/nvidia-container-runtime": RUNTIME,
            "/usr/bin/nvidia-ctk": CTK.replace("@VERSION@", version),
            "/usr/bin/nvidia-cdi-hook": CTK.replace("@VERSION@", version),
            "/etc/nvidia-container-runtime/config.toml": CONFIG,
            "/lib/systemd/system/nvidia-cdi-refresh.service": REFRESH_UNIT,
            "/lib/systemd/system/nvidia-cdi-refresh.path": REFRESH_PATH,
        },
    )
    tools = f"libnvidia-container-tools (= {full})"
    yield package("nvidia-container-toolkit", f"nvidia-container-toolkit-base (= {full})", tools)
