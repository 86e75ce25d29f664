"""Entries of the journal: what is written, how it is read back, what it undoes and owes. Pure."""

from __future__ import annotations
