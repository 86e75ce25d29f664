"""What NVIDIA's devices are called as CDI devices, and where their specifications lie.

Beside ``facts.cdi``, which reads them: every plan needs these names, few need to read a specification.
"""

from __future__ import annotations

KIND = "nvidia.com/gpu"
# In the order of their priority, the last one wins.
FOLDERS = ("/etc/cdi", "/var/run/cdi")
SPEC = "/var/run/cdi/nvidia.yaml"
