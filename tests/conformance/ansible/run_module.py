"""Runs one module of the collection with the arguments that Ansible would give it."""

from __future__ import annotations

import importlib
import json
import sys

from ansible.module_utils import basic

name, arguments = sys.argv[1], json.loads(sys.argv[2])
module = importlib.import_module(f"ansible_collections.gpunode.node.plugins.modules.{name}")
try:
    from ansible.module_utils.testing import patch_module_args
except ImportError:  # before ansible-core 2.19
    basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": arguments}).encode()
    module.main()
else:
    with patch_module_args(arguments):
        module.main()
