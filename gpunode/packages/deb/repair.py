"""Repair of a dpkg that was stopped in the middle of its work."""

from __future__ import annotations

import shlex
from typing import Final

from gpunode.change import CommandChange

# A configuration file that the user changed stays: nobody is there to be asked, and dpkg would give up. Where a package
# was unpacked before one that it needs, dpkg cannot finish it, and apt gets what is missing; it may take nothing away.
_KEEP = ("--force-confdef", "--force-confold")
_CONFIGURE = ("dpkg", *_KEEP, "--configure", "-a")
_APT = (
    *("apt-get", "-q", "-y", "--no-install-recommends", "--no-remove"),
    *(word for option in _KEEP for word in ("-o", f"Dpkg::Options::={option}")),
)
_COMPLETE = (*_APT, "--fix-broken", "install")
# dpkg neither configures nor removes a package that may have lost some of its files (half-installed, or unpacked and to
# be reinstalled), and apt sees nothing broken in it: it has to be told to install it anew, together with what it needs.
# Which these are is known only once dpkg has read what it noted before it ended.
_HALF = (
    r"dpkg-query -W -f '${db:Status-Eflag} ${db:Status-Status} ${binary:Package}\n' | "
    r"sed -n -e 's/^reinstreq [a-z-]* //p' -e 's/^ok half-installed //p'"
)
_ANEW = f'set -- $({_HALF}); [ $# -eq 0 ] || {shlex.join((*_APT, "--fix-broken", "--reinstall", "install"))} "$@"'
_BEGIN, _END = shlex.join(_CONFIGURE), f"{shlex.join(_CONFIGURE)} || {shlex.join(_COMPLETE)}"
# The last word is the script's name, which is what people read of it.
_NAME = "dpkg --configure -a, apt-get --reinstall install, apt-get --fix-broken install"
_FINISH = ("sh", "-c", f"{_BEGIN}; {{ {_ANEW}; }} && {{ {_END}; }}", _NAME)

REPAIR_COMMAND: Final = CommandChange(
    _FINISH, "dpkg was interrupted and left packages half-installed or not configured"
)
"""Makes every package that dpkg began with whole, or fails."""
