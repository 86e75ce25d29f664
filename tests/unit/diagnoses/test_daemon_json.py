"""A paste of docker's file is not the file: omissions and surrounding text are no fault of docker's."""

from __future__ import annotations

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from gpunode.facts.evidence import Capture
from tests.scenarios.healthy.captures import evidence
from tests.scenarios.healthy.nodes import HEALTHY

WHOLE = '{\n  "runtimes": {\n    "nvidia": {\n      "path": "nvidia-container-runtime"\n    }\n  }\n}'
COMMA = '{\n  "live-restore": true,\n}'
CAT = "cat /etc/docker/daemon.json"
ACTIVE = ("systemctl is-active docker", "active")
RUN = ("docker run --rm --gpus all ubuntu nvidia-smi -L", "GPU 0: NVIDIA L40S (UUID: GPU-1)")
SAID = (
    "journalctl -u docker",
    "dockerd[8]: unable to configure the Docker daemon with file /etc/docker/daemon.json: invalid character '}'",
)
EDITED = {
    "dots": WHOLE.replace('"\n    }', '"\n    },\n    ...'),
    "brackets": '{\n  "registry-mirrors": <our mirrors>,\n  "live-restore": true\n}',
    "numbers of lines": "\n".join(f"{n:6}\t{line}" for n, line in enumerate(WHOLE.split("\n"), 1)),
    "numbers by grep": "\n".join(f"{n}:{line}" for n, line in enumerate(WHOLE.split("\n"), 1)),
}


def diagnose_pieces(*pieces: tuple[str, str]) -> Diagnosis:
    return diagnose(take_snapshot(pasted.collect_pieces(pieces)))


def causes(found: Diagnosis) -> list[str]:
    return [one.cause for one in found.findings]


@pytest.mark.parametrize("text", EDITED.values(), ids=EDITED)
def test_edited_paste_of_daemon_json_proves_nothing(text: str) -> None:
    assert "daemon-json-invalid" not in causes(diagnose_pieces((CAT, text)))
    for beside in ((ACTIVE, RUN), (ACTIVE,), (RUN,)):
        found = diagnose_pieces(*beside, (CAT, text))
        assert (found.findings, found.open_questions) == ((), ())


@pytest.mark.parametrize("text", EDITED.values(), ids=EDITED)
def test_dockerd_error_about_daemon_json_counts(text: str) -> None:
    assert causes(diagnose_pieces(SAID, (CAT, text))) == ["daemon-json-invalid"]


@pytest.mark.parametrize("text", [COMMA, WHOLE + "\n}", '{"a": 1}\n{"b": 2}', "{ // ours\n}"])
def test_invalid_daemon_json_is_found(text: str) -> None:
    assert causes(diagnose_pieces((CAT, text))) == ["daemon-json-invalid"]


@pytest.mark.parametrize("beside", [ACTIVE, RUN])
def test_working_docker_outweighs_a_pasted_daemon_json(beside: tuple[str, str]) -> None:
    assert not diagnose_pieces(beside, (CAT, COMMA)).findings


def test_invalid_daemon_json_on_the_node_is_found_while_docker_runs() -> None:
    nodes = (evidence(HEALTHY[name]()) for name in HEALTHY)
    node = next(node for node in nodes if "docker.service" in str(node.get("units")))
    path = "/etc/docker/daemon.json"
    key = next((key for key, capture in node.items() if capture.source == path), f"file:{path}")
    found = diagnose(take_snapshot({**node, key: Capture(path, "ok", COMMA.encode())}))
    (finding,) = (one for one in found.findings if one.cause == "daemon-json-invalid")
    assert finding.confidence == "likely"
