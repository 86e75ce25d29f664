"""What differs between distributions: names of packages and addresses of repositories. Pure."""

from __future__ import annotations
