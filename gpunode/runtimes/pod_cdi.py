"""CDI devices for pods: which container runtimes read them, and where setup switches that on. Pure.

Sources: containerd pkg/cri/config (1.6.20 has no ``enable_cdi``; 1.7.0 to 1.7.27: off by default) and
internal/cri/config (2.0.0: on by default); CRI-O always reads them.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from gpunode.runtimes.model import ObservedConfig, Runtime

Version: TypeAlias = "tuple[int, ...] | None"
_HAS_CDI, _ON_BY_DEFAULT = (1, 7), (2,)
# Only containerd 2 reads it.
_SCHEMA_OF_CONTAINERD_2: Final = 3


def reads_cdi(row: Runtime, observed: ObservedConfig, version: Version) -> bool:
    """Return whether pods of the runtime get the CDI devices that the kubelet names.

    Args:
        row: the runtime as it is installed.
        observed: what its files say.
        version: the daemon's; None where nobody knows, and then only what tells containerd 2 counts.
    """
    if not row.has_cri_plugin:
        return row.cdi == "always"
    if observed.cdi is None:
        return _is_on_by_default(observed, version)
    return observed.cdi and (_is_on_by_default(observed, version) or (version or ()) >= _HAS_CDI)


def should_enable_cdi(row: Runtime, observed: ObservedConfig, version: Version) -> bool:
    """Return whether setup has to, and may, write ``enable_cdi = true`` so that pods get CDI devices.

    A line ``enable_cdi = false`` that somebody wrote stands. In schema 2 beside ``cdi_spec_dirs`` it is the default as
    containerd 1.7's ``config default`` prints it, which is how most people make their file.
    """
    if not row.has_cri_plugin or reads_cdi(row, observed, version):
        return False
    has_cdi = _is_on_by_default(observed, version) or (version or ()) >= _HAS_CDI
    return has_cdi and (observed.cdi is None or observed.has_default_cdi)


def explain_no_cdi(row: Runtime, observed: ObservedConfig, version: Version) -> str:
    """Return why pods get no CDI devices, a clause; for a runtime that does not read them."""
    shown = f"{row.id} {'.'.join(map(str, version))}" if version else row.id
    if row.has_cri_plugin and version and version < _HAS_CDI:
        return f"{shown} has no CDI for pods, 1.7 is the first that has"
    if row.has_cri_plugin and observed.cdi is False:
        return f"{row.config} says enable_cdi = false, which somebody chose"
    if row.has_cri_plugin and not version:
        return f"no package tells the version of {shown}, so its CDI support is unknown"
    return f"{shown} does not read the kubelet's CDI devices"


def _is_on_by_default(observed: ObservedConfig, version: Version) -> bool:
    return (version or ()) >= _ON_BY_DEFAULT or (observed.schema or 0) >= _SCHEMA_OF_CONTAINERD_2
