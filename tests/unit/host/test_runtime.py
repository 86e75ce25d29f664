"""The runtime's own parser checks a configuration before use; stand-ins print the real tools' messages."""

from __future__ import annotations

import tempfile
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from gpunode import runtimes
from gpunode.change import FileChange, FileState, RuntimeExpectation
from gpunode.errors import ChangeFailed, Refused
from gpunode.host import runtime
from gpunode.host.process import Runner

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
BINARY = "/usr/bin/nvidia-container-runtime"
HANDLERS = frozenset({("nvidia", BINARY)})
CONTAINERD = f"""\
version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "{BINARY}"
"""
DOCKER = f'{{"runtimes": {{"nvidia": {{"path": "{BINARY}", "args": []}}}}}}'


class Tools(Protocol):
    folder: Path

    def add(self, name: str, script: str) -> None: ...

    @property
    def calls(self) -> list[str]: ...


def change(tmp_path: Path, content: str, before: str | None = None) -> FileChange:
    (tmp_path / "etc").mkdir(exist_ok=True)
    former = None if before is None else FileState(before.encode())
    return FileChange(str(tmp_path / "etc/config"), former, FileState(content.encode()))


def check(name: str, candidate: FileChange, default: str | None = None) -> str:
    return runtime.check_candidate_files(
        Runner(), RuntimeExpectation(name, candidate.path, HANDLERS, default), (candidate,)
    )


def test_containerd_checks_the_candidate_without_changing_the_file(tools: Tools, tmp_path: Path) -> None:
    tools.add("containerd", 'cat "$2"')
    assert "containerd config dump" in check("containerd", change(tmp_path, CONTAINERD), default="runc")
    (call,) = tools.calls
    assert call.startswith(f"containerd --config {tmp_path}/etc/.gpunode-")
    assert list((tmp_path / "etc").iterdir()) == []


def test_configuration_rejected_by_containerd_is_quoted(tools: Tools, tmp_path: Path) -> None:
    tools.add("containerd", 'echo "containerd: failed to load TOML from $2: (3, 1): bare keys" >&2; exit 1')
    with pytest.raises(Refused, match="rejects /") as caught:
        check("containerd", change(tmp_path, CONTAINERD))
    assert f"failed to load TOML from {tmp_path}/etc/config: (3, 1)" in caught.value.why


@pytest.mark.parametrize(
    ("content", "default", "words"),
    [
        (CONTAINERD.replace(BINARY, "/elsewhere"), None, "it reads /elsewhere"),
        (CONTAINERD.replace("runtimes.nvidia", "runtimes.other"), None, "it reads none"),
        (CONTAINERD, "nvidia", "default runtime: expected nvidia, it reads runc"),
    ],
)
def test_configuration_misread_by_containerd_is_refused(
    tools: Tools, tmp_path: Path, content: str, default: str | None, words: str
) -> None:
    tools.add("containerd", 'cat "$2"')
    with pytest.raises(Refused, match="as intended") as caught:
        check("containerd", change(tmp_path, content), default)
    assert words in caught.value.why


def test_missing_runtime_is_reported_as_not_checked(tools: Tools, tmp_path: Path) -> None:
    assert check("containerd", change(tmp_path, CONTAINERD)) == "not checked: containerd is not installed"
    assert check("docker", change(tmp_path, DOCKER)) == "not checked: dockerd is not installed"


def test_hanging_parser_is_reported(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_RUNTIME_QUERY_TIMEOUT_S", 0.3)
    tools.add("containerd", "sleep 300")
    with pytest.raises(Refused) as caught:
        check("containerd", change(tmp_path, CONTAINERD))
    assert "did not answer" in caught.value.why


def test_docker_validates_the_candidate(tools: Tools, tmp_path: Path) -> None:
    tools.add("dockerd", "echo 'configuration OK'")
    assert "accepts it" in check("docker", change(tmp_path, DOCKER))
    assert tools.calls[0].startswith("dockerd --validate --config-file")


def test_keys_are_compared_for_docker_without_validate(tools: Tools, tmp_path: Path) -> None:
    tools.add("dockerd", "echo 'unknown flag: --validate' >&2; exit 125")
    assert "no --validate" in check("docker", change(tmp_path, DOCKER))
    with pytest.raises(Refused, match="as intended"):
        check("docker", change(tmp_path, '{"runtimes": {}}'))


def test_byte_order_mark_is_refused_for_docker_without_validate(tools: Tools, tmp_path: Path) -> None:
    tools.add("dockerd", "echo 'unknown flag: --validate' >&2; exit 125")
    with pytest.raises(Refused, match="byte order mark"):
        check("docker", change(tmp_path, f"\ufeff{DOCKER}"))


def test_key_unknown_to_docker_is_refused(tools: Tools, tmp_path: Path) -> None:
    complaint = "the following directives don't match any configuration option: bogus"
    tools.add("dockerd", f'if grep -q bogus "$3"; then echo "{complaint}" >&2; exit 1; fi')
    with pytest.raises(Refused) as caught:
        check("docker", change(tmp_path, DOCKER.replace("{", '{"bogus": 1, ', 1), before="{}"))
    assert complaint in caught.value.why


def test_error_already_in_the_present_docker_file_is_accepted(tools: Tools, tmp_path: Path) -> None:
    tools.add("dockerd", "echo 'invalid userland-proxy-path' >&2; exit 1")
    assert "rejects the old file, too" in check("docker", change(tmp_path, DOCKER, before="{}"))


def test_removal_needs_no_parser(tools: Tools, tmp_path: Path) -> None:
    removal = FileChange(str(tmp_path / "x"), FileState(b""), None)
    assert check("docker", removal).startswith("not checked")


def test_effective_docker_configuration_is_read_from_the_daemon(tools: Tools) -> None:
    answer = f'{{"runtimes":{{"nvidia":{{"path":"{BINARY}"}},"runc":{{"path":"runc"}}}},"default":"runc"}}'
    tools.add("docker", f"echo '{answer}'")
    configured = runtime.read_effective_config(Runner(), "docker")
    assert configured is not None
    assert (configured.handlers["nvidia"], configured.default) == (BINARY, "runc")


@pytest.mark.parametrize("said", ["exit 1", 'echo \'{"runtimes":null,"default":""}\'', "echo 'no JSON'"])
def test_unresponsive_docker_daemon_is_reported(tools: Tools, said: str) -> None:
    words = "echo 'Cannot connect to the Docker daemon' >&2; exit 1"
    tools.add("docker", f"if [ $1 = version ]; then {words}; fi; echo 'template: nil pointer' >&2; {said}")
    with pytest.raises(ChangeFailed) as caught:
        runtime.read_effective_config(Runner(), "docker")
    assert "Cannot connect" in caught.value.why


@pytest.mark.parametrize(("file", "verb"), [("there", "dump"), ("missing", "default")])
def test_effective_containerd_configuration_is_read_from_its_dump(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, verb: str
) -> None:
    (tmp_path / "there").write_text("version = 2")
    row = replace(runtimes.find_runtime("containerd"), config=str(tmp_path / file))
    monkeypatch.setattr("gpunode.host.runtime.find_runtime", lambda _name: row)
    (tools.folder / "toml").write_text(CONTAINERD)
    tools.add("containerd", f"test $2 = {verb} && cat $T/toml")
    configured = runtime.read_effective_config(Runner(), "containerd")
    assert configured is not None
    assert configured.handlers["nvidia"] == BINARY
    tools.add("containerd", "exit 1")
    with pytest.raises(ChangeFailed):
        runtime.read_effective_config(Runner(), "containerd")


def test_containerd_dump_uses_the_file_named_by_the_unit(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own.toml"
    own.write_text("version = 2")
    unit = tmp_path / "containerd.service"
    unit.write_text(f"[Service]\nExecStart=/usr/bin/containerd --config {own}\n")
    monkeypatch.setattr("gpunode.facts.systemd.unit_source_patterns", lambda *_: (str(unit),))
    monkeypatch.setattr("gpunode.facts.systemd.UNIT_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr("gpunode.facts.systemd.find_start_command.__defaults__", ((str(tmp_path),),))
    (tools.folder / "toml").write_text(CONTAINERD)
    tools.add("containerd", f"test \"$*\" = '--config {own} config dump' && cat $T/toml")
    configured = runtime.read_effective_config(Runner(), "containerd")
    assert configured is not None
    assert configured.handlers["nvidia"] == BINARY


def test_unset_default_runtime_is_runc(tools: Tools, tmp_path: Path) -> None:
    tools.add("dockerd", "")
    assert "accepts it" in check("docker", change(tmp_path, DOCKER), default="runc")
    with pytest.raises(Refused) as caught:
        check("docker", change(tmp_path, DOCKER), default="nvidia")
    assert "expected nvidia, it reads runc" in caught.value.why


def test_missing_runtime_has_no_effective_configuration(tools: Tools) -> None:
    assert runtime.read_effective_config(Runner(), "containerd") is None
    assert runtime.read_effective_config(Runner(), "docker") is None


def contradiction(default: str | None = None, patience_s: float = 0.3) -> str:
    expectation = RuntimeExpectation("docker", "/etc/docker/daemon.json", HANDLERS, default)
    return runtime.find_daemon_contradiction(Runner(), expectation, patience_s)


def test_daemon_with_its_former_configuration_contradicts(tools: Tools) -> None:
    tools.add("docker", 'echo \'{"runtimes":{"runc":{"path":"runc"}},"default":"runc"}\'')
    assert contradiction() == f"handler nvidia: expected {BINARY}, it reads none"
    assert "expected nvidia, it reads runc" in contradiction("nvidia")


def test_daemon_still_reloading_is_asked_again(tools: Tools) -> None:
    new = f'{{"runtimes":{{"nvidia":{{"path":"{BINARY}"}}}},"default":"runc"}}'
    old = '{"runtimes":{"runc":{"path":"runc"}},"default":"runc"}'
    tools.add("docker", f"if [ -e $T/asked ]; then echo '{new}'; else touch $T/asked; echo '{old}'; fi")
    assert contradiction(patience_s=60) == ""


def test_unreachable_daemon_does_not_contradict(tools: Tools) -> None:
    assert contradiction() == ""
    tools.add("docker", "exit 1")
    assert contradiction() == ""
    expectation = RuntimeExpectation("containerd", "/etc/containerd/config.toml", HANDLERS)
    assert runtime.find_daemon_contradiction(Runner(), expectation, 0.3) == ""


CRIO = f"""\
[crio.runtime.runtimes.nvidia]
runtime_path = "{BINARY}"
"""


def test_crio_reads_its_files_in_a_temporary_folder(tools: Tools, tmp_path: Path) -> None:
    tools.add("crio", 'test "$5" = config && test ! -e "$4/crio.conf" && test -d "$4" && cat "$2"')
    assert "`crio config` reads it as intended" in check("crio", change(tmp_path, CRIO))
    version, call = tools.calls
    assert version == "crio --version"
    assert "gpunode-crio-" in call
    assert list((tmp_path / "etc").iterdir()) == []


@pytest.mark.parametrize(("shown", "is_read"), [("# default_runtime", True), ("default_runtime", True), ("#", False)])
def test_default_that_crio_prints_as_a_comment_is_read(
    tools: Tools, tmp_path: Path, shown: str, *, is_read: bool
) -> None:
    """Since 1.24 its parser prints default values as comments, and since 1.31 the default is crun."""
    tools.add("crio", f'[ "$1" = --version ] || sed "s/^default_runtime/{shown}/" "$2"')
    wanted = RuntimeExpectation("crio", str(tmp_path / "etc/config"), frozenset(), "crun")
    candidate = change(tmp_path, f'[crio.runtime]\ndefault_runtime = "crun"\n{CRIO}')
    with nullcontext() if is_read else pytest.raises(Refused, match="would not read"):
        runtime.check_candidate_files(Runner(), wanted, [candidate])


def test_nothing_is_staged_without_crio(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    assert "crio is not installed" in check("crio", change(tmp_path, CRIO))
    assert tools.calls == []


def test_crio_error_about_a_candidate_names_the_real_file(tools: Tools, tmp_path: Path) -> None:
    tools.add("crio", 'grep -q bad "$2" || exit 0; echo "unable to decode configuration $2: bad" >&2; exit 1')
    candidate = change(tmp_path, CRIO + "bad = 1\n")
    with pytest.raises(Refused) as stopped:
        check("crio", candidate)
    assert f"unable to decode configuration {candidate.path}: bad" in stopped.value.why


def test_error_already_in_the_present_crio_file_is_accepted(tools: Tools, tmp_path: Path) -> None:
    tools.add("crio", 'echo "no such option: config" >&2; exit 1')
    assert "rejects the old ones, too: no such option" in check("crio", change(tmp_path, CRIO))


def test_settings_are_compared_without_crio(tmp_path: Path, tools: Tools) -> None:
    del tools
    assert "it has the intended settings (crio is not installed)" in check("crio", change(tmp_path, CRIO))
    with pytest.raises(Refused, match="as intended"):
        check("crio", change(tmp_path, CRIO.replace("nvidia]", "other]")))


def test_effective_crio_configuration_is_read_from_its_status(tools: Tools) -> None:
    tools.add("crio", f"printf '[crio.runtime]\\ndefault_runtime = \"crun\"\\n{CRIO}'")
    found = runtime.read_effective_config(Runner(), "crio")
    assert found is not None
    assert (found.default, found.handlers) == ("crun", {"nvidia": BINARY})


def test_older_crio_is_asked_by_crio_status(tools: Tools) -> None:
    tools.add("crio", "echo \"No help topic for 'status'\"; exit 3")
    tools.add("crio-status", 'echo "dial unix /var/run/crio/crio.sock: connect: no such file" >&2; exit 1')
    with pytest.raises(ChangeFailed) as stopped:
        runtime.read_effective_config(Runner(), "crio")
    assert "crio.sock" in stopped.value.why
    assert [call.split()[0] for call in tools.calls] == ["crio", "crio-status"]


def test_podman_reports_its_oci_runtime(tools: Tools) -> None:
    assert runtime.read_effective_config(Runner(), "podman") is None
    tools.add("podman", """echo '{"name":"crun","path":"/usr/bin/crun"}'""")
    found = runtime.read_effective_config(Runner(), "podman")
    assert found is not None
    assert (found.default, found.handlers) == ("crun", {"crun": "/usr/bin/crun"})
    tools.add("podman", "echo 'cannot find an OCI runtime' >&2; exit 125")
    with pytest.raises(ChangeFailed, match="cannot read how podman"):
        runtime.read_effective_config(Runner(), "podman")


@pytest.fixture
def written_config(tmp_path: Path) -> str:
    (tmp_path / "config.toml").write_text(CONTAINERD)
    return str(tmp_path / "config.toml")


def test_docker_error_with_another_order_of_names_is_the_same(tools: Tools, tmp_path: Path) -> None:
    complaint = "the following directives don't match any configuration option:"
    tools.add(
        "dockerd", f'if grep -q nvidia "$3"; then echo "{complaint} a, b"; else echo "{complaint} b, a"; fi >&2; exit 1'
    )
    assert "rejects the old file, too" in check("docker", change(tmp_path, DOCKER, before="{}"))


def test_written_files_are_read_back_with_their_imports(tools: Tools, written_config: str) -> None:
    expectation = RuntimeExpectation("containerd", written_config, HANDLERS)
    runtime.check_written_files(Runner(), expectation)  # containerd is not installed, so it cannot be queried
    tools.add("containerd", f"cat <<'E'\n{CONTAINERD}E")
    runtime.check_written_files(Runner(), expectation)
    assert tools.calls[-1] == f"containerd --config {written_config} config dump"
    with pytest.raises(ChangeFailed, match="does not read its new configuration") as caught:
        runtime.check_written_files(
            Runner(), RuntimeExpectation("containerd", written_config, frozenset({("nvidia", "/elsewhere")}))
        )
    assert "expected /elsewhere" in caught.value.why


def test_written_file_rejected_by_containerd_is_quoted(tools: Tools, written_config: str) -> None:
    tools.add("containerd", "echo 'containerd: config version `9` is not supported' >&2; exit 1")
    with pytest.raises(ChangeFailed) as caught:
        runtime.check_written_files(Runner(), RuntimeExpectation("containerd", written_config, HANDLERS))
    assert "version `9`" in caught.value.why
