#!/usr/bin/python
# Copyright: gpunode contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Gather facts about a GPU node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpunode_facts
short_description: Gather facts about GPUs, driver, toolkit and runtimes
version_added: "0.1.0"
description:
  - Runs C(gpunode status) and returns what it shows as C(ansible_facts). Nothing is changed.
extends_documentation_fragment:
  - gpunode.node.program
attributes:
  check_mode:
    support: full
    description: It never changes anything.
  diff_mode:
    support: none
    description: There is no difference to show.
  facts:
    support: full
    description: Returns C(ansible_facts).
"""

EXAMPLES = r"""
- name: Gather facts
  gpunode.node.gpunode_facts:

- name: Stop where the driver is too old
  ansible.builtin.assert:
    that: gpunode.driver is version('580', '>=')
"""

RETURN = r"""
ansible_facts:
  description: Facts to add to C(ansible_facts).
  returned: success
  type: dict
  contains:
    gpunode:
      description: The node in one look. A value is empty where nothing is installed, and null where it could not be
        told.
      returned: success
      type: dict
      contains:
        version:
          description: gpunode's own version.
          type: str
          sample: "0.1.0"
        gpus:
          description: The NVIDIA GPUs on the PCI bus, C(address) and C(name) each.
          type: list
          elements: dict
          sample: [{"address": "0000:01:00.0", "name": "NVIDIA GeForce GTX 1080"}]
        driver:
          description: The version of the installed driver.
          type: str
          sample: "580.178.04"
        loaded_driver:
          description: The version of the driver that the kernel runs.
          type: str
          sample: "580.178.04"
        toolkit:
          description: The version of the container toolkit.
          type: str
          sample: "1.20.1"
        kernels:
          description: The C(running) kernel, and those C(installed).
          type: dict
          sample: {"running": "6.1.0-56-amd64", "installed": ["6.1.0-56-amd64"]}
        runtimes:
          description: The container runtimes, and how they are configured.
          type: list
          elements: dict
          sample: [{"id": "containerd", "version": "1.7.24", "active": true}]
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
from ansible_collections.gpunode.node.plugins.module_utils.envelope import EXECUTABLE, finish, run, version


def main():
    """The facts are returned."""
    module = AnsibleModule(argument_spec=dict(EXECUTABLE), supports_check_mode=True)
    envelope = run(module, "status")
    status = dict(envelope["result"].get("status", {}))
    finish(module, envelope, ansible_facts={"gpunode": {**status, "version": version(module)}})


if __name__ == "__main__":
    main()
