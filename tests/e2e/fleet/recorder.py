"""An Ansible callback that writes every result, and the final statistics, as one JSON document per line."""

from __future__ import annotations

import json
import os
import time
from typing import Any

from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Writes to the file that LAB_RESULTS names."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "recorder"
    CALLBACK_NEEDS_ENABLED = True

    def v2_runner_on_ok(self, result: Any) -> None:
        self._record("ok", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        self._record("failed", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._record("unreachable", result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        self._record("skipped", result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        figures = {host: stats.summarize(host) for host in stats.processed}
        # The main process only, without its workers.
        self._write({"stats": figures, "main_s": time.process_time()})

    def _record(self, status: str, result: Any) -> None:
        task = result._task
        row = {
            "host": result._host.get_name(),
            "task": task.get_name(),
            "action": task.action,
            "status": status,
            "result": result._result,
        }
        self._write({"task": row})

    @staticmethod
    def _write(row: dict[str, Any]) -> None:
        with open(os.environ["LAB_RESULTS"], "a") as log:
            log.write(json.dumps(row, default=str) + "\n")
