"""Packages that have to be reinstalled because somebody deleted one of their programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from gpunode.change import PackageState
from gpunode.facts.model import Facts, known
from gpunode.host.port import HostView
from gpunode.package_id import PackageId
from gpunode.workflow.converge import StagePlan
from gpunode.workflow.plan import INDEX_SAMPLE_SIZE, make_version_lookup


def explain_lost_versions(
    reinstalled: Sequence[tuple[PackageId, str]], exact: StagePlan, host: HostView, facts: Facts
) -> str:
    """Return the reinstalled packages whose version no archive of ``host`` has; empty if none is known.

    The package manager only says that it cannot reinstall such a package, and exits successfully.

    Args:
        reinstalled: the packages with their versions; "" for the installed or a newer one.
        exact: the stage; packages that it changes get their new version.
        host: the node.
        facts: the node's packages.
    """
    installed: Mapping[PackageId, PackageState] = known(facts.packages, {})
    beside = islice(sorted(installed), INDEX_SAMPLE_SIZE)
    offered = make_version_lookup(host, facts)(dict.fromkeys((*(package for package, _ in reinstalled), *beside)))
    changed = {change.id for change in exact.packages}
    lost = (
        (package, version)
        for package, version in reinstalled
        if package not in changed and (version or installed[package].version) not in offered.get(package, ())
    )
    return "\n".join(
        f"Version '{version}' for '{package}' was not found"
        if version
        else f"no source has {package} {installed[package].version}, which is installed, or a newer version"
        for package, version in (lost if offered else ())
    )
