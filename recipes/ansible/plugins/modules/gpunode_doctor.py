#!/usr/bin/python
# Copyright: gpunode contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Diagnose a GPU node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpunode_doctor
short_description: Diagnose a GPU node
version_added: "0.1.0"
description:
  - Runs C(gpunode doctor), which names the causes for which a node does not work. Nothing is changed.
  - It is a health gate. The module fails when a problem is found, unless O(fail_on) says otherwise.
options:
  fail_on:
    description:
      - What the module fails for.
      - V(problem) is a problem that was found; V(undetermined) also too little evidence to tell; V(never) neither.
    type: str
    choices: [problem, undetermined, never]
    default: problem
  capture:
    description:
      - Save what doctor looks at to this file on the target, too, with secrets removed. A file there is replaced.
      - P(gpunode.node.fleet#callback) and C(gpunode doctor FOLDER) on the controller read it.
    type: path
extends_documentation_fragment:
  - gpunode.node.program
attributes:
  check_mode:
    support: full
    description: It never changes the node. A capture is written in check mode, too.
  diff_mode:
    support: none
    description: There is no difference to show.
"""

EXAMPLES = r"""
- name: Stop the play where a node is not healthy
  gpunode.node.gpunode_doctor:

- name: Diagnose, and save a capture
  gpunode.node.gpunode_doctor:
    fail_on: never
    capture: "/var/tmp/{{ inventory_hostname }}.tar.gz"
  register: node
"""

RETURN = r"""
healthy:
  description: Whether the node is healthy. A node of which too little is known is not.
  returned: when gpunode ran
  type: bool
  sample: true
verdict:
  description: V(healthy), V(problem) or V(unknown).
  returned: when gpunode ran
  type: str
  sample: healthy
cause:
  description: The id of the root cause, empty when none was found.
  returned: when gpunode ran
  type: str
  sample: nouveau-bound
findings:
  description: All causes, the root cause first. C(remedy) says what to do.
  returned: when gpunode ran
  type: list
  elements: dict
  sample: []
unknown:
  description: What could not be told, and how to find out.
  returned: when gpunode ran
  type: list
  elements: dict
  sample: []
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
from ansible_collections.gpunode.node.plugins.module_utils.envelope import EXECUTABLE, finish, run

OPTIONS = {
    "fail_on": {"type": "str", "choices": ["problem", "undetermined", "never"], "default": "problem"},
    "capture": {"type": "path"},
}
PROBLEM_FOUND = 8
UNDETERMINED = 13
VERDICTS = {0: "healthy", PROBLEM_FOUND: "problem", UNDETERMINED: "unknown"}
FINE = {
    "problem": (0, UNDETERMINED),
    "undetermined": (0,),
    "never": (0, PROBLEM_FOUND, UNDETERMINED),
}


def main():
    """The node is diagnosed."""
    module = AnsibleModule(argument_spec={**OPTIONS, **EXECUTABLE}, supports_check_mode=True)
    if module.params["capture"]:
        captured = run(module, "capture", module.params["capture"], options={"force": True})
        if captured["exit_code"]:
            finish(module, captured)
    envelope = run(module, "doctor")
    code = envelope["exit_code"]
    roots = [finding for finding in envelope["findings"] if not finding["explained_by"]]
    finish(
        module,
        envelope,
        FINE[module.params["fail_on"]],
        healthy=code == 0,
        verdict=VERDICTS.get(code, "unknown"),
        cause=roots[0]["cause"] if roots else "",
        unknown=envelope["unknown"],
        msg=summary(envelope, roots),
    )


def summary(envelope, roots):
    """What doctor found, in a line for each cause."""
    if roots:
        return "\n".join("%s: %s" % (root["cause"], root["summary"] or root["title"]) for root in roots)
    if envelope["exit_code"] == UNDETERMINED:
        return "not enough evidence to call this node healthy: " + "; ".join(
            one["question"] for one in envelope["unknown"]
        )
    return "healthy"


if __name__ == "__main__":
    main()
