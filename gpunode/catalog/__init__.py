"""Tables of the field, each with its source: GPUs, driver branches, repositories, conflicting packages. Pure."""

from __future__ import annotations
