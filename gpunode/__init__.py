"""gpunode turns a bare Linux host into a working NVIDIA GPU node."""

from __future__ import annotations

__version__ = "0.1.0"
