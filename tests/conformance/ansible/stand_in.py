"""Answers like ``gpunode --json``; see conftest.StandIn."""

from __future__ import annotations

import json
import sys
from pathlib import Path

here = Path(__file__).parent
words = sys.argv[1:]
calls = here / "calls"
earlier = [json.loads(line) for line in calls.read_text().splitlines()] if calls.exists() else []
with calls.open("a") as file:
    file.write(json.dumps(words) + "\n")
if words == ["--version"]:
    print("gpunode 0.1.0")
    sys.exit(0)
verb = words[0] if words[0] != "k8s" else "_".join(words[:2])
if verb == "capture":
    Path(words[1]).write_text("captured")
answers = json.loads((here / "answers.json").read_text())[verb]
before = sum(1 for call in earlier if call[0] == words[0] and (verb == words[0] or call[1] == words[1]))
answer = answers[min(before, len(answers) - 1)]
sys.stdout.write(answer + "\n")
sys.exit(json.loads(answer)["exit_code"] if answer.startswith("{") else 3)
