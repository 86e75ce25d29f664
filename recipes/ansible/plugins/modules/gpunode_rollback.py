#!/usr/bin/python
# Copyright: gpunode contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Take back a run of gpunode."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpunode_rollback
short_description: Take back what a run of gpunode changed
version_added: "0.1.0"
description:
  - Runs C(gpunode rollback). The configuration of the container runtime comes back byte for byte; with O(packages)
    everything else that
    the run changed, too.
  - It refuses to overwrite a file that somebody edited since, unless O(force) is set.
options:
  run:
    description:
      - The number of the run, RV(gpunode.node.gpunode#module:run). The newest run when it is not given.
    type: str
  packages:
    description: Whether to take back packages, repositories, keys, pins and units, too.
    type: bool
    default: false
  force:
    description: Whether to put back also files that were edited since. The edit is backed up.
    type: bool
    default: false
  allow_disruption:
    description: Whether to continue even if running containers are stopped.
    type: bool
    default: false
  lock_timeout:
    description: How many seconds to wait for another apt, dpkg, cloud-init or gpunode.
    type: int
    default: 600
extends_documentation_fragment:
  - gpunode.node.program
attributes:
  check_mode:
    support: none
    description: gpunode has no plan of a rollback. The task is skipped in check mode.
  diff_mode:
    support: full
    description: Shows each changed file.
notes:
  - It runs as root.
"""

EXAMPLES = r"""
- name: Take back the whole of the newest run
  gpunode.node.gpunode_rollback:
    packages: true
"""

RETURN = r"""
changes:
  description: What was changed; C(kind), C(action), C(subject) and C(step) each.
  returned: when gpunode ran
  type: list
  elements: dict
  sample: []
reboot_required:
  description: Whether the node must be rebooted, so that the former driver is loaded.
  returned: when gpunode ran
  type: bool
  sample: false
drain_required:
  description: Whether containers or programs on the GPU run that continuing would stop.
  returned: when gpunode ran
  type: bool
  sample: false
status:
  description: The outcome in one word, V(ok) or an error's own, such as V(reboot-required).
  returned: when gpunode ran
  type: str
  sample: ok
exit_code:
  description: The program's exit code; gpunode's documentation has the table.
  returned: when gpunode ran
  type: int
  sample: 0
errors:
  description: What went wrong, with C(what), C(why) and C(hint) each.
  returned: when gpunode ran
  type: list
  elements: dict
  sample: []
result:
  description: The command's own answer, RV(ignore:result) of gpunode's JSON output.
  returned: when gpunode ran
  type: dict
  sample: {}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpunode.node.plugins.module_utils.envelope import (
    EXECUTABLE,
    REBOOT_REQUIRED,
    finish,
    run,
)

OPTIONS = {
    "run": {"type": "str"},
    "packages": {"type": "bool", "default": False},
    "force": {"type": "bool", "default": False},
    "allow_disruption": {"type": "bool", "default": False},
    "lock_timeout": {"type": "int", "default": 600},
}


def main():
    """The run is taken back."""
    module = AnsibleModule(argument_spec={**OPTIONS, **EXECUTABLE}, supports_check_mode=False)
    given = module.params
    options = {name: given[name] for name in ("packages", "force", "allow_disruption", "lock_timeout")}
    words = [given["run"]] if given["run"] else []
    envelope = run(module, "rollback", *words, options={**options, "yes": True})
    shown = {"diff": envelope["diff"]} if module._diff else {}
    finish(module, envelope, (0, REBOOT_REQUIRED), **shown)


if __name__ == "__main__":
    main()
