"""What doctor found as one page that stands for itself: one file, no script, nothing fetched. Pure."""

from __future__ import annotations
