"""Container runtimes: configuration bytes in, configuration bytes out. Pure."""

from __future__ import annotations
