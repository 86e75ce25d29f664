# Copyright: gpunode contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""What the modules have in common, as ansible-doc shows it."""

from __future__ import annotations


class ModuleDocFragment:
    """The option that names the program, and what it needs."""

    DOCUMENTATION = r"""
options:
  executable:
    description:
      - The program on the target, by name or by path.
      - The role P(gpunode.node.node#role) puts it there.
    type: path
    default: gpunode
requirements:
  - gpunode on the target, with Python 3.10 or newer for it to run
author:
  - gpunode contributors (!UNKNOWN)
"""
