"""Configurations of the device plugin, and whether it obeys all of them.

Source: NVIDIA/k8s-device-plugin 0.20.0, api/config/v1, and its issue 1433.
"""

from __future__ import annotations

from typing import Any, Final

_SHARED: Final = [{"name": "nvidia.com/gpu", "replicas": 4}]

OBEYED: Final[dict[str, Any]] = {
    "whole": {"version": "v1", "flags": {"migStrategy": "none"}},
    "time slicing": {
        "version": "v1",
        "sharing": {"timeSlicing": {"failRequestsGreaterThanOne": True, "resources": _SHARED}},
    },
    "time slicing of MIG": {
        "version": "v1",
        "flags": {"migStrategy": "mixed"},
        "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/mig-1g.10gb", "replicas": 2}]}},
    },
    "MPS": {"version": "v1", "flags": {"mpsRoot": "/run/nvidia/mps"}, "sharing": {"mps": {"resources": _SHARED}}},
    "CDI": {"version": "v1", "flags": {"plugin": {"deviceListStrategy": ["cdi-cri", "envvar"]}}},
}
NOT_OBEYED: Final[dict[str, Any]] = {
    "rename in flags": {"version": "v1", "flags": {"renameByDefault": True}},
    "one replica": {
        "version": "v1",
        "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 1}]}},
    },
    "no resources": {"version": "v1", "sharing": {"timeSlicing": {"renameByDefault": True}}},
    "both kinds": {
        "version": "v1",
        "sharing": {
            "timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]},
            "mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]},
        },
    },
    "a typo": {
        "version": "v1",
        "sharing": {
            "timeSlicing": {"failRequestsGreaterThan1": True, "resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}
        },
    },
    "another version": {"version": "v2"},
    "no version": {"flags": {}},
    "another strategy": {"version": "v1", "flags": {"migStrategy": "both"}},
    "a channel": {"version": "v1", "imex": {"channelIDs": [7]}},
    "no table": ["version"],
    "a text for a table": {"version": "v1", "sharing": "none"},
}
