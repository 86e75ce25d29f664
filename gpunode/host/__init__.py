"""The only modules that access an operating system."""

from __future__ import annotations
