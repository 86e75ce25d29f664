#!/usr/bin/python
# Copyright: gpunode contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Offer GPUs to a cluster's pods."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpunode_k8s
short_description: Offer the GPUs of nodes to the pods of a cluster
version_added: "0.1.0"
description:
  - Runs C(gpunode k8s apply), C(verify) or C(remove) through the kubectl of the host that it runs on, so run it once,
    where the cluster's
    credentials are. It needs no root.
  - In check mode C(gpunode k8s plan) is run in place of C(apply).
options:
  state:
    description:
      - V(present) applies the recipe's objects and waits until they are ready.
      - V(verified) checks that pods get the GPUs. It runs a pod on each GPU node and deletes it.
      - V(absent) takes back what gpunode applied, and nothing else. It is skipped in check mode.
    type: str
    choices: [present, verified, absent]
    default: present
  recipe:
    description: The name of a recipe that gpunode brings along, or the path of a recipe where the module runs.
    type: str
    default: k8s-containerd
  nodes:
    description:
      - Captures of the GPU nodes, or folders of captures, where the module runs.
      - C(NAME=CAPTURE) gives the Node another name. The machine itself when none is given.
    type: list
    elements: str
    default: []
  context:
    description: The context of kubectl's configuration.
    type: str
  kubeconfig:
    description: kubectl's configuration.
    type: path
  timeout:
    description: How many seconds to wait for each workload, or for the test pods.
    type: int
    default: 300
  image:
    description: The image of the test pods, for O(state=verified).
    type: str
extends_documentation_fragment:
  - gpunode.node.program
attributes:
  check_mode:
    support: partial
    description: Can run in check mode and predict what it would do.
    details: Full for V(present) and V(verified). V(absent) is skipped, since gpunode has no plan of a removal.
  diff_mode:
    support: full
    description: Shows each changed object.
"""

EXAMPLES = r"""
- name: Apply the cluster's part of the recipe
  gpunode.node.gpunode_k8s:
    recipe: k8s-time-slicing
    nodes: [captures/]
    context: admin@prod
  delegate_to: localhost
  run_once: true

- name: Check that pods get the GPUs
  gpunode.node.gpunode_k8s:
    state: verified
    recipe: k8s-time-slicing
    nodes: [captures/]
    context: admin@prod
  delegate_to: localhost
  run_once: true
"""

RETURN = r"""
objects:
  description: The objects, with C(kind), C(namespace), C(name) and C(state) each.
  returned: when gpunode ran
  type: list
  elements: dict
  sample: [{"kind": "RuntimeClass", "namespace": "", "name": "nvidia", "state": "create"}]
checks:
  description: The checks of O(state=verified), with C(id), C(title), C(status), C(detail) and C(hint) each.
  returned: when gpunode ran
  type: list
  elements: dict
  sample: []
cluster:
  description: The cluster, with C(context), C(server), C(user), C(version) and C(uid).
  returned: when gpunode ran
  type: dict
  sample: {"context": "admin@prod", "server": "https://10.0.0.1:6443", "version": "1.34.2"}
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
from ansible_collections.gpunode.node.plugins.module_utils.envelope import CHANGES_PENDING, EXECUTABLE, finish, run

OPTIONS = {
    "state": {"type": "str", "choices": ["present", "verified", "absent"], "default": "present"},
    "recipe": {"type": "str", "default": "k8s-containerd"},
    "nodes": {"type": "list", "elements": "str", "default": []},
    "context": {"type": "str"},
    "kubeconfig": {"type": "path"},
    "timeout": {"type": "int", "default": 300},
    "image": {"type": "str"},
}


def main():
    """The cluster is as ``state`` says."""
    module = AnsibleModule(argument_spec={**OPTIONS, **EXECUTABLE}, supports_check_mode=True)
    given = module.params
    where = {"context": given["context"], "kubeconfig": given["kubeconfig"]}
    what = {**where, "node": given["nodes"]}
    if given["state"] == "verified":
        options = {**what, "timeout": given["timeout"], "image": given["image"]}
        ended(module, run(module, "k8s", "verify", given["recipe"], options=options))
    if given["state"] == "absent":
        if module.check_mode:
            module.exit_json(changed=False, skipped=True, msg="gpunode k8s remove has no plan: nothing was looked at")
        ended(module, run(module, "k8s", "remove", options={**where, "yes": True}))
    if module.check_mode:
        ended(module, run(module, "k8s", "plan", given["recipe"], options={**what, "check": True}), CHANGES_PENDING)
    options = {**what, "timeout": given["timeout"], "yes": True}
    ended(module, run(module, "k8s", "apply", given["recipe"], options=options))


def ended(module, envelope, *fine):
    """The module ends with ``envelope``."""
    result = envelope["result"]
    objects = result.get("objects", [])
    diff = [{"prepared": one["diff"]} for one in objects if one.get("diff")] if module._diff else []
    more = {"diff": diff} if diff else {}
    if envelope["exit_code"] == CHANGES_PENDING:
        envelope = {**envelope, "errors": []}
    finish(
        module,
        envelope,
        (0, *fine),
        objects=objects,
        checks=result.get("checks", []),
        cluster=result.get("cluster", {}),
        **more,
    )


if __name__ == "__main__":
    main()
