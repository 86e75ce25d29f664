"""The OCI hook of the hook mode, which nvidia-ctk deprecates: what runs NVIDIA's hook before every container.

Source: nvidia-container-toolkit@v1.20.0, pkg/config/ocihook.
"""

from __future__ import annotations

import json
import posixpath

_PATH = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def hook(program: str) -> bytes:
    """The hook's file; it runs ``program``, an absolute path, whose folder is searched, too."""
    folder, name = posixpath.split(program)
    folders = _PATH if folder in _PATH else (*_PATH, folder)
    described = {
        "version": "1.0.0",
        "hook": {"path": program, "args": [name, "prestart"], "env": [f"PATH={':'.join(folders)}"]},
        "when": {"always": True, "commands": [".*"]},
        "stages": ["prestart"],
    }
    return f"{json.dumps(described, indent=2)}\n".encode()
