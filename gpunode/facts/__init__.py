"""Probes of a node, the evidence they return, and the typed facts derived from it. Pure."""

from __future__ import annotations
