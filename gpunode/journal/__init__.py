"""A write-ahead record of every run, and the backups that undo it."""

from __future__ import annotations
