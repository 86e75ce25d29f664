#!/usr/bin/python
# Copyright: gpunode contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Set up a GPU node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpunode
short_description: Set up a GPU node as a recipe wants it
version_added: "0.1.0"
description:
  - Runs C(gpunode setup), which installs the NVIDIA driver and the container toolkit, configures the container
    runtime, and checks that
    the node works.
  - Running it again changes nothing on a node that is as the recipe wants it.
  - In check mode C(gpunode plan) is run in its place. With C(--diff) every changed file is shown.
  - Nothing that runs in containers is stopped, and the node is not rebooted. RV(drain_required) and
    RV(reboot_required) tell that one or
    the other is needed. The role P(gpunode.node.node#role) drains and reboots.
options:
  recipe:
    description:
      - The name of a recipe that gpunode brings along, or the path of a recipe on the target.
      - Mutually exclusive with O(recipe_content).
    type: str
  recipe_content:
    description:
      - A recipe as text. It may extend a recipe that gpunode brings along, but no file of its own.
      - Mutually exclusive with O(recipe).
    type: str
  recipe_name:
    description: The name of the recipe in O(recipe_content), as gpunode shows and records it.
    type: str
    default: recipe_content
  runtime:
    description: The container runtime, in place of the recipe's.
    type: str
    choices: [containerd, docker, crio, podman, none]
  driver:
    description:
      - The driver, in place of the recipe's. V(auto), V(production), V(lts), a branch such as V(580), a version, or
        V(none).
    type: str
  lock:
    description:
      - A lock file on the target. Exactly its package versions are installed.
      - Mutually exclusive with O(lock_content).
    type: path
  lock_content:
    description:
      - A lock file's text, so that one file on the controller serves all hosts.
      - Mutually exclusive with O(lock).
    type: str
  upgrade:
    description: Whether to upgrade driver and toolkit to the newest version of their branch.
    type: bool
    default: false
  only:
    description: Run these steps only. C(gpunode plan -v) shows their names.
    type: list
    elements: str
    default: []
  allow_disruption:
    description:
      - Whether to continue even if running containers are stopped.
      - Otherwise the module fails with RV(drain_required) before it changes anything.
    type: bool
    default: false
  allow_loss:
    description:
      - Whether to purge packages of an old driver that no archive of the node has; no rollback could restore them.
      - Otherwise the module fails before it changes anything, and names them.
    type: bool
    default: false
  lock_timeout:
    description: How many seconds to wait for another apt, dpkg, cloud-init or gpunode.
    type: int
    default: 600
  download_only:
    description:
      - Download the packages for a later run, and change nothing else. It is skipped in check mode.
    type: bool
    default: false
extends_documentation_fragment:
  - gpunode.node.program
attributes:
  check_mode:
    support: full
    description: Can run in check mode and predict what it would do.
  diff_mode:
    support: full
    description: Shows each changed file.
seealso:
  - module: gpunode.node.gpunode_verify
  - module: gpunode.node.gpunode_rollback
notes:
  - It runs as root.
"""

EXAMPLES = r"""
- name: Set up the node with containerd
  gpunode.node.gpunode:
    recipe: containerd
  register: node

- name: Reboot if the driver needs it
  ansible.builtin.reboot:
  when: node.reboot_required

- name: Set up the node with the versions of one lock file of the controller
  gpunode.node.gpunode:
    recipe_content: "{{ lookup('ansible.builtin.file', 'inference.toml') }}"
    lock_content: "{{ lookup('ansible.builtin.file', 'fleet.lock') }}"
"""

RETURN = r"""
changes:
  description: What was changed, or in check mode would be; C(kind), C(action), C(subject) and C(step) each.
  returned: when gpunode ran
  type: list
  elements: dict
  sample: [{"kind": "file", "action": "edit", "subject": "/etc/containerd/config.toml", "step": "runtime-config"}]
reboot_required:
  description: Whether the node must be rebooted. Everything that can be done before is done. Run the module again
    after the reboot.
  returned: when gpunode ran
  type: bool
  sample: false
drain_required:
  description: Whether containers or programs on the GPU run that continuing would stop. RV(errors) names them. Known
    only after a real run.
  returned: when gpunode ran
  type: bool
  sample: false
run:
  description: The number of the run in gpunode's journal, for M(gpunode.node.gpunode_rollback). Empty when nothing
    was changed.
  returned: when gpunode ran
  type: str
  sample: "0001"
findings:
  description: Causes that were diagnosed.
  returned: when gpunode ran
  type: list
  elements: dict
  sample: []
checks:
  description: The checks at the end, with C(id), C(title), C(status), C(detail) and C(hint) each.
  returned: when gpunode checked the node
  type: list
  elements: dict
  sample: [{"id": "nvml", "title": "the driver answers (NVML)", "status": "passed", "detail": "", "hint": ""}]
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

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpunode.node.plugins.module_utils.envelope import (
    EXECUTABLE,
    REBOOT_REQUIRED,
    finish,
    run,
    written,
)

OPTIONS = {
    "recipe": {"type": "str"},
    "recipe_content": {"type": "str"},
    "recipe_name": {"type": "str", "default": "recipe_content"},
    "runtime": {"type": "str", "choices": ["containerd", "docker", "crio", "podman", "none"]},
    "driver": {"type": "str"},
    "lock": {"type": "path"},
    "lock_content": {"type": "str"},
    "upgrade": {"type": "bool", "default": False},
    "only": {"type": "list", "elements": "str", "default": []},
    "allow_disruption": {"type": "bool", "default": False},
    "allow_loss": {"type": "bool", "default": False},
    "lock_timeout": {"type": "int", "default": 600},
    "download_only": {"type": "bool", "default": False},
}


def main():
    """The node is set up, or in check mode planned."""
    module = AnsibleModule(
        argument_spec={**OPTIONS, **EXECUTABLE},
        mutually_exclusive=[("recipe", "recipe_content"), ("lock", "lock_content")],
        supports_check_mode=True,
    )
    words, options = request(module)
    if module.check_mode and module.params["download_only"]:
        module.exit_json(changed=False, skipped=True, msg="a download changes nothing of the node")
    if module.check_mode:
        envelope = run(module, "plan", *words, options=options)
        finish(module, envelope, **predicted(envelope), **shown(module, envelope))
    own = {name: module.params[name] for name in ("allow_disruption", "lock_timeout", "download_only")}
    envelope = run(module, "setup", *words, options={**options, **own, "yes": True})
    result = envelope["result"]
    more = {"run": result.get("run", ""), "checks": result.get("checks", [])}
    finish(module, envelope, (0, REBOOT_REQUIRED), **more, **shown(module, envelope))


def request(module):
    """The recipe, and the options that plan and setup share."""
    given = module.params
    recipe, lock = given["recipe"], given["lock"]
    if given["recipe_content"] is not None:
        recipe = written(module, "recipe_content", given["recipe_name"] + ".toml")
    if given["lock_content"] is not None:
        lock = written(module, "lock_content")
    elif lock is not None and not os.path.exists(lock):
        # gpunode plan would write it.
        module.fail_json(msg="there is no lock file %s on this host" % lock)
    options = {name: given[name] for name in ("runtime", "driver", "upgrade", "only", "allow_loss")}
    return [recipe] if recipe else [], {**options, "lock": lock}


def predicted(envelope):
    """What setup would return, as far as a plan knows it."""
    result = envelope["result"]
    return {"reboot_required": bool(result.get("blocked")), "run": "", "checks": []}


def shown(module, envelope):
    """The diff where Ansible asks for it."""
    return {"diff": envelope["diff"]} if module._diff else {}


if __name__ == "__main__":
    main()
