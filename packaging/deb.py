"""The Debian package: gpunode.pyz with what belongs around it, built by dpkg-deb."""

from __future__ import annotations

import email.utils
import hashlib
import subprocess
from pathlib import Path

from tree import HERE, Release, environment, gzip_text, lay_out, put

_MAINTAINER_SCRIPTS = ("postinst", "prerm", "postrm")


def build(release: Release, folder: Path, target: Path) -> Path:
    """Build the package in ``target``, using the empty ``folder``, and return its path."""
    lay_out(release, folder, kind="deb", zsh="zsh/vendor-completions")
    documents = folder / "usr/share/doc/gpunode"
    put(documents / "copyright", (HERE / "debian/copyright").read_bytes())
    put(documents / "changelog.gz", gzip_text(_render_changelog(release)))
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    size_kib = sum(-(-path.stat().st_size // 1024) for path in files)
    sums = "".join(f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n" for path in files)  # noqa: S324 - dpkg's own checksum
    control = (HERE / "debian/control").read_text("utf-8")
    control = control.replace("@VERSION@", release.version).replace("@SIZE@", str(size_kib))
    put(folder / "DEBIAN/control", control.encode())
    put(folder / "DEBIAN/md5sums", sums.encode())
    put(folder / "DEBIAN/conffiles", b"/etc/logrotate.d/gpunode\n")
    for name in _MAINTAINER_SCRIPTS:
        put(folder / "DEBIAN" / name, (HERE / "debian" / name).read_bytes(), 0o755)
    made = target / f"gpunode_{release.version}_all.deb"
    # xz: dpkg of Debian 11 and older cannot unpack zstd, and shall say which Python is missing.
    argv = ("dpkg-deb", "--root-owner-group", "-Zxz", "--build", folder, made)
    subprocess.run(argv, check=True, env=environment(release), stdout=subprocess.DEVNULL)
    return made


def _render_changelog(release: Release) -> str:
    date = email.utils.formatdate(release.moment)
    maintainer = next(
        line.partition(": ")[2]
        for line in (HERE / "debian/control").read_text("utf-8").splitlines()
        if line.startswith("Maintainer: ")
    )
    return (
        f"gpunode ({release.version}) unstable; urgency=medium\n\n"
        f"  * Release {release.version}.\n\n -- {maintainer}  {date}\n"
    )
