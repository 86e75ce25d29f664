#!/usr/bin/python
# Copyright: gpunode contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Check that a GPU node works."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpunode_verify
short_description: Check that a GPU node works
version_added: "0.1.0"
description:
  - Runs C(gpunode verify). The driver, the device files, the container runtime and what the recipe expects are
    checked. Nothing is changed.
  - The module fails when a check does.
options:
  recipe:
    description: The name of a recipe that gpunode brings along, or the path of a recipe on the target.
    type: str
  recipe_content:
    description: A recipe as text. Mutually exclusive with O(recipe).
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
    description: The driver, in place of the recipe's.
    type: str
  cuda:
    description: Whether to run a small CUDA computation on every GPU, too.
    type: bool
    default: false
  container:
    description: Whether to run a container, too, and check that it sees the same GPUs.
    type: bool
    default: false
extends_documentation_fragment:
  - gpunode.node.program
attributes:
  check_mode:
    support: full
    description: It never changes anything.
  diff_mode:
    support: none
    description: There is no difference to show.
"""

EXAMPLES = r"""
- name: Check the node, and compute on every GPU
  gpunode.node.gpunode_verify:
    recipe: containerd
    cuda: true
"""

RETURN = r"""
checks:
  description: The checks, with C(id), C(title), C(status), C(detail) and C(hint) each.
  returned: when gpunode ran
  type: list
  elements: dict
  sample: [{"id": "nvml", "title": "the driver answers (NVML)", "status": "passed", "detail": "", "hint": ""}]
gpus:
  description: The GPUs as the driver tells of them.
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
from ansible_collections.gpunode.node.plugins.module_utils.envelope import EXECUTABLE, finish, run, written

OPTIONS = {
    "recipe": {"type": "str"},
    "recipe_content": {"type": "str"},
    "recipe_name": {"type": "str", "default": "recipe_content"},
    "runtime": {"type": "str", "choices": ["containerd", "docker", "crio", "podman", "none"]},
    "driver": {"type": "str"},
    "cuda": {"type": "bool", "default": False},
    "container": {"type": "bool", "default": False},
}


def main():
    """The node works, or the module fails."""
    module = AnsibleModule(
        argument_spec={**OPTIONS, **EXECUTABLE},
        mutually_exclusive=[("recipe", "recipe_content")],
        supports_check_mode=True,
    )
    given = module.params
    recipe = given["recipe"]
    if given["recipe_content"] is not None:
        recipe = written(module, "recipe_content", given["recipe_name"] + ".toml")
    options = {name: given[name] for name in ("runtime", "driver", "cuda", "container")}
    envelope = run(module, "verify", *([recipe] if recipe else []), options=options)
    result = envelope["result"]
    finish(module, envelope, checks=result.get("checks", []), gpus=result.get("gpus", []))


if __name__ == "__main__":
    main()
