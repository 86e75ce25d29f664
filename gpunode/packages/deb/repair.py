"""Repair of a dpkg that was stopped in the middle of its work."""

from __future__ import annotations

import shlex
from typing import Final

from gpunode.change import CommandChange

# A configuration file that the user changed stays: nobody is there to be asked, and dpkg would give up. Where a package
# was unpacked before one that it needs, dpkg cannot finish it, and apt gets what is missing; it may take nothing away.
_KEEP_CONFFILES_OPTIONS = ("--force-confdef", "--force-confold")
_CONFIGURE_COMMAND = ("dpkg", *_KEEP_CONFFILES_OPTIONS, "--configure", "-a")
_APT_COMMAND_START = (
    *("apt-get", "-q", "-y", "--no-install-recommends", "--no-remove"),
    *(word for option in _KEEP_CONFFILES_OPTIONS for word in ("-o", f"Dpkg::Options::={option}")),
)
_FIX_BROKEN_COMMAND = (*_APT_COMMAND_START, "--fix-broken", "install")
# dpkg neither configures nor removes a package that may have lost some of its files (half-installed, or unpacked and to
# be reinstalled), and apt sees nothing broken in it: it has to be told to install it anew, together with what it needs.
# Which these are is known only once dpkg has read what it noted before it ended.
_LIST_HALF_INSTALLED_SCRIPT = (
    r"dpkg-query -W -f '${db:Status-Eflag} ${db:Status-Status} ${binary:Package}\n' | "
    r"sed -n -e 's/^reinstreq [a-z-]* //p' -e 's/^ok half-installed //p'"
)
_REINSTALL_COMMAND = shlex.join((*_APT_COMMAND_START, "--fix-broken", "--reinstall", "install"))
_REINSTALL_HALF_INSTALLED_SCRIPT = f'set -- $({_LIST_HALF_INSTALLED_SCRIPT}); [ $# -eq 0 ] || {_REINSTALL_COMMAND} "$@"'
_BEGIN, _END = shlex.join(_CONFIGURE_COMMAND), f"{shlex.join(_CONFIGURE_COMMAND)} || {shlex.join(_FIX_BROKEN_COMMAND)}"
# The last word is the script's name, which is what people read of it.
_SCRIPT_NAME = "dpkg --configure -a, apt-get --reinstall install, apt-get --fix-broken install"
_REPAIR_ARGV = ("sh", "-c", f"{_BEGIN}; {{ {_REINSTALL_HALF_INSTALLED_SCRIPT}; }} && {{ {_END}; }}", _SCRIPT_NAME)

REPAIR_COMMAND: Final = CommandChange(
    _REPAIR_ARGV, "dpkg was interrupted and left packages half-installed or not configured"
)
"""Makes every package that dpkg began with whole, or fails."""
