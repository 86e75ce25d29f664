# Copyright: gpunode contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""What a play learned of its nodes, as one JSON file."""

from __future__ import annotations

DOCUMENTATION = r"""
name: fleet
type: notification
short_description: Write what a play learned of its GPU nodes to one JSON file
version_added: "0.1.0"
description:
  - At the end of the play the results of M(gpunode.node.gpunode_doctor) and M(gpunode.node.gpunode) on all hosts are
    written to one file.
  - The file has the keys of C(gpunode doctor FOLDER --json) that a play can tell, with one row for each host in
    C(result.reports) and each cause with its hosts in C(result.causes). A row also has C(setup), the result of
    M(gpunode.node.gpunode), null where it did not run. Layers, versions, differences and the page take captures, which
    the playbook C(gpunode.node.doctor) fetches.
  - A host that was not reached has the status V(unreadable), with the reason in C(error).
requirements:
  - enabling it with C(callbacks_enabled = gpunode.node.fleet) in ansible.cfg
options:
  file:
    description: The file to write. Nothing is written when no host ran gpunode.
    type: path
    default: fleet.json
    env:
      - name: GPUNODE_FLEET_FILE
    ini:
      - section: callback_gpunode_fleet
        key: file
author:
  - gpunode contributors (!UNKNOWN)
"""

import binascii
import collections
import json
import os

from ansible.plugins.callback import CallbackBase

FORMAT = 1
DOCTOR = "gpunode.node.gpunode_doctor"
SETUP = "gpunode.node.gpunode"
OF_SETUP = ("status", "exit_code", "changed", "run", "reboot_required", "drain_required", "msg")
OF_CAUSE = ("cause", "title", "layer", "severity", "confidence", "summary")
# What a row holds for this plugin alone.
OURS = ("examined", "titles")
STATUS = {
    "healthy": ("ok", 0),
    "problem": ("problem-found", 8),
    "unknown": ("undetermined", 13),
}


class CallbackModule(CallbackBase):
    """Remember the last answer of each host, and write all of them at the end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "gpunode.node.fleet"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._rows = {}

    def v2_runner_on_ok(self, result):
        """A task went well."""
        self._learn(*_parts(result))

    def v2_runner_on_failed(self, result, ignore_errors=False):
        """A task failed; gpunode's answer says more."""
        self._learn(*_parts(result))

    def v2_runner_on_unreachable(self, result):
        """A host was not reached; whatever was known of it is no longer."""
        host, _action, answer = _parts(result)
        row = self._rows.setdefault(host, _row(host))
        known = {name: row[name] for name in ("setup", "examined")}
        row.update(_row(host), **known, status="unreadable", error=answer.get("msg") or "not reached")

    def v2_playbook_on_stats(self, stats):
        """The play is over: the file is written, whole."""
        if not any(row["setup"] or row["examined"] for row in self._rows.values()):
            return
        path = self.get_option("file")
        draft = "%s.%s.tmp" % (path, binascii.hexlify(os.urandom(6)).decode())
        # In a folder that others may write, nobody can have put a link in the draft's place.
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "w", encoding="utf-8") as file:
            json.dump(envelope(self._rows), file, indent=1)
            file.write("\n")
        os.replace(draft, path)
        self._display.display("gpunode: %d hosts written to %s" % (len(self._rows), path))

    def _learn(self, host, action, answer):
        if action not in (DOCTOR, SETUP) or "exit_code" not in answer:
            return
        row = self._rows.setdefault(host, _row(host))
        if action == SETUP:
            row["setup"] = {name: answer.get(name) for name in OF_SETUP}
        else:
            row.update(_row(host), setup=row["setup"], examined=True, **_diagnosed(answer))


def envelope(rows):
    """All rows as ``gpunode doctor FOLDER --json`` has them."""
    reports = [{key: row[key] for key in row if key not in OURS} for _host, row in sorted(rows.items())]
    found = {row["status"] for row in reports}
    worst = "problem" if "problem" in found else "healthy" if found == {"healthy"} else "unknown"
    status, code = STATUS[worst]
    return {
        "schema": FORMAT,
        "command": "doctor",
        "status": status,
        "exit_code": code,
        "changed": False,
        "changes": [],
        "diff": [],
        "notes": [],
        "findings": [],
        "unknown": [],
        "errors": [],
        "result": {"reports": reports, "causes": _causes(rows)},
    }


def _causes(rows):
    hosts, titles = collections.defaultdict(list), {}
    for host, row in sorted(rows.items()):
        for cause, title in row["titles"].items():
            hosts[cause].append(host)
            titles[cause] = title
    order = sorted(hosts, key=lambda cause: (-len(hosts[cause]), cause))
    return [{"cause": cause, "title": titles[cause], "reports": hosts[cause]} for cause in order]


def _row(host):
    nothing = {
        "status": "unknown",
        "other_causes": [],
        "unknown": [],
        "error": "",
        "setup": None,
        "examined": False,
        "titles": {},
    }
    return {"report": host, "path": "", "node": host, **dict.fromkeys(OF_CAUSE), "cause": "", **nothing}


def _diagnosed(answer):
    """What doctor told of a host; a root cause that is a mere remark is none."""
    told = (finding for finding in answer.get("findings", []) if finding.get("severity") != "info")
    # A node answers what it likes; what is no text names no cause.
    roots = [one for one in told if not one.get("explained_by") and isinstance(one.get("cause"), str)]
    return {
        **({name: roots[0].get(name) for name in OF_CAUSE} if roots else {}),
        "titles": {root["cause"]: root.get("title") for root in roots},
        "status": answer.get("verdict", "unknown"),
        "other_causes": [root["cause"] for root in roots[1:]],
        "unknown": [one.get("question") for one in answer.get("unknown", [])],
    }


def _parts(result):
    """The host's name, the module's and what it returned; ansible-core 2.19 gave the attributes public names."""
    host = getattr(result, "host", None) or result._host
    task = getattr(result, "task", None) or result._task
    answer = result.result if hasattr(result, "result") else result._result
    return host.get_name(), getattr(task, "resolved_action", None) or task.action, answer
