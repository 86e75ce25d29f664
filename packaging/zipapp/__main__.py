"""The start of gpunode.pyz: gpunode's modules, unpacked once, run by a Python that can.

Every Python must be able to read this file, Python 2 too: it says what to install where Python is too old.
"""

import os
import stat
import sys

VERSION = "@VERSION@"
PAYLOAD_SHA256 = "@PAYLOAD_SHA256@"
GPUNODE_ZIPAPP = os.path.abspath(sys.path[0])
OLDEST = (3, 10)
NEWEST = 14


def start():
    """Run the command line and return the exit code."""
    if sys.version_info < OLDEST:
        return start_newer_python()
    if sys.argv[1:] in (["--version"], ["-V"]):
        import installed

        return installed.print_version(VERSION)
    sys.path[0] = find_or_unpack_modules()
    from gpunode.__main__ import main

    return main()


def start_newer_python():
    """Becomes the newest Python that stands beside an old ``python3``; returns when there is none."""
    for minor in range(NEWEST, OLDEST[1] - 1, -1):
        python = "/usr/bin/python3.%d" % minor
        if os.access(python, os.X_OK):
            os.execv(python, [python, "-I", GPUNODE_ZIPAPP] + sys.argv[1:])
    sys.stderr.write(
        "gpunode needs Python 3.10 or newer and this is %d.%d: install a newer one beside it"
        " (Enterprise Linux 8 and 9: dnf install python3.11), or use a newer release of this distribution"
        " (Debian 12, Ubuntu 22.04).\n" % sys.version_info[:2]
    )
    return 3


def find_or_unpack_modules():
    """Return the folder of gpunode's modules, unpacked if need be and kept while this process lives."""
    name = "%s-%s" % (VERSION, PAYLOAD_SHA256[:16])
    for cache in cache_folders():
        folder = os.path.join(cache, name)
        if nobody_else_writes(cache) and nobody_else_writes(folder) and hold_folder(folder):
            return folder
    import unpack

    return unpack.into(cache_folders(), name)


def cache_folders():
    """Yield the folders where this user's modules may be: root's serves everybody."""
    yield "/var/cache/gpunode"
    if os.geteuid():
        place = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        if os.path.isabs(place):  # "~" stays where this user has no home
            yield os.path.join(place, "gpunode")


def nobody_else_writes(folder):
    """Return whether only root or this user can have written to ``folder``."""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid in (0, os.geteuid()) and not found.st_mode & 0o022


def hold_folder(folder):
    """Return whether ``folder`` exists, and if so keep newer versions from removing it while this process runs.

    Who removes it has it locked for a moment. So can every user, who must not make root wait: then it is run unlocked.
    """
    import fcntl
    import time

    for _ in range(20):
        try:
            descriptor = os.open(folder, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            time.sleep(0.01)
            continue
        return is_still(folder, descriptor)
    return True


def is_still(folder, descriptor):
    """Return whether ``folder`` is still the folder that was opened."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(descriptor))
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(start())
