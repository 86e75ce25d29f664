"""The RPM package: gpunode.pyz with what belongs around it, built by rpmbuild."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path

from tree import HERE, ROOT, Release, environment, lay_out, put

# Dates and host names are not the build's; nothing is changed in what was laid out; every rpm since EL 8 reads gzip.
_MACROS = {
    "_buildhost": "reproducible",
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
    "__os_install_post": "%{nil}",
    "_binary_payload": "w9.gzdio",
    "_build_id_links": "none",
}


def build(release: Release, folder: Path, target: Path) -> Path:
    """Build the package in ``target``, using the empty ``folder``, and return its path."""
    tree, top = folder / "tree", folder / "top"
    lay_out(release, tree, kind="rpm", zsh="zsh/site-functions")
    for name in ("LICENSE", "NOTICE"):
        put(tree / "usr/share/licenses/gpunode" / name, (ROOT / name).read_bytes())
    put(tree / "usr/share/doc/gpunode/CHANGELOG.md", (ROOT / "CHANGELOG.md").read_bytes())
    (tree / "var/log/gpunode").mkdir(parents=True)
    spec = (HERE / "gpunode.spec").read_text("utf-8")
    date = time.strftime("%a %b %d %Y", time.gmtime(release.moment))
    for name, value in {"VERSION": release.version, "TREE": os.fspath(tree), "DATE": date}.items():
        spec = spec.replace(f"@{name}@", value)
    put(folder / "gpunode.spec", spec.encode())
    for path in (path for path in tree.rglob("*") if not path.is_symlink()):
        os.utime(path, (release.moment, release.moment))
    macros = {**_MACROS, "_topdir": os.fspath(top), "_rpmdir": os.fspath(top / "RPMS")}
    defines = [f"--define={name} {value}" for name, value in macros.items()]
    argv = ("rpmbuild", "-bb", "--quiet", "--target=noarch", *defines, os.fspath(folder / "gpunode.spec"))
    done = subprocess.run(argv, check=False, env=environment(release), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"rpmbuild failed:\n{done.stderr}")
    made = next((top / "RPMS").rglob("*.rpm"))
    return Path(shutil.copy(made, target))
