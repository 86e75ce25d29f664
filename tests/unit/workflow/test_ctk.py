"""A runtime's configuration by itself: journaled, all of it or nothing, and undone in every way there is."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.change import Change, FileChange, FileState, RuntimeExpectation, Trigger
from gpunode.errors import ChangeFailed, Conflict, DrainRequired, Interrupted, Refused, UsageError
from gpunode.facts.evidence import Capture, Found, Ownership, Probe, encode_found
from gpunode.facts.probes import unit_probe
from gpunode.journal.footprint import FileTrail
from gpunode.journal.store import Store
from gpunode.runtimes import Configured, Edit, Edited, Files, Former, Wish, runtime
from gpunode.workflow import ctk, rollback
from gpunode.workflow.ctk import Asked, CtkVerb, Done, Draft
from gpunode.workflow.events import silent
from tests.unit.steps.machines import CONTAINERD, DAEMON_JSON, machine
from tests.unit.workflow.nodes import Node

DROP_IN = "/etc/containerd/conf.d/99-nvidia.toml"
RESTART = Trigger("restart", "containerd.service")
RELOAD_DOCKER, RESTART_DOCKER = Trigger("reload", "docker.service"), Trigger("restart", "docker.service")
PLAIN = b"""version = 2 # ours

[plugins."io.containerd.grpc.v1.cri".containerd]
  default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
"""
IN_DROP_IN = Wish(binary="nvidia-container-runtime", mode="drop-in", exact=True)
IN_PLACE = replace(IN_DROP_IN, mode="in-place")
DOCKER = Wish(binary="nvidia-container-runtime", exact=True)


class Machine(Node):
    """A node in memory whose patterns find files, and whose commands print what a test says."""

    def __init__(self, files: Mapping[str, FileState | bytes], says: Mapping[str, str] | None = None) -> None:
        states = {path: FileState(file) if isinstance(file, bytes) else file for path, file in files.items()}
        super().__init__(machine(files=states))
        self.says = dict(says or {})
        self.full: set[str] = set()

    def look(self, probe: Probe, /) -> Capture:
        if probe.argv and (said := self.says.get(" ".join(probe.argv))) is not None:
            return Capture(probe.source, "ok", said.encode())
        if probe.glob:
            return Capture(probe.source, "ok", encode_found(self._found(probe.glob)))
        return super().look(probe)

    def _found(self, pattern: str) -> Iterator[Found]:
        for path, state in self.files.items():
            if state is not None and fnmatch.fnmatchcase(path, pattern):
                yield Found(path, data=state.content, ownership=Ownership(state.mode, state.uid, state.gid))

    def apply(self, changes: Sequence[Change], /) -> None:
        if any(isinstance(change, FileChange) and change.path in self.full for change in changes):
            raise ChangeFailed("no room", why="the test says so")
        super().apply(changes)

    @property
    def contents(self) -> dict[str, bytes]:
        return {path: state.content for path, state in self.files.items() if state is not None}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def draft_of(host: Machine, wish: Wish = IN_DROP_IN, row: str = "containerd") -> Draft:
    return ctk.configuring(host, runtime(row), wish)


def made(host: Machine, store: Store, draft: Draft, verb: CtkVerb = "configure", *, restart: bool = False) -> Done:
    return ctk.carry_out(draft, host, store, Asked(verb, "test", restart=restart), silent)


def configured(host: Machine, store: Store, wish: Wish = IN_DROP_IN, row: str = "containerd") -> Done:
    return made(host, store, draft_of(host, wish, row))


def unconfigured(host: Machine, store: Store, wish: Wish = IN_DROP_IN, row: str = "containerd") -> Draft:
    draft = ctk.unconfiguring(host, runtime(row), wish, store.footprint().files)
    made(host, store, draft, "unconfigure")
    return draft


def test_a_run_of_its_own_verb_is_recorded_and_nothing_is_restarted_or_owed(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    done = configured(host, store)
    (run,) = store.runs()
    assert (run.run, run.verb, run.subjects) == (done.run, "configure", (DROP_IN, CONTAINERD))
    assert run.commit is not None
    assert run.commit.result == "done"
    assert host.triggered == []
    assert store.owed() == {}


def test_a_second_time_there_is_nothing_to_do(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    configured(host, store)
    assert draft_of(host).changes == ()


def test_files_keep_their_mode_and_owner_and_a_new_one_is_no_more_readable(store: Store) -> None:
    host = Machine({CONTAINERD: FileState(PLAIN, 0o600, 3, 4)})
    configured(host, store)
    for path in (CONTAINERD, DROP_IN):
        state = host.files[path]
        assert state is not None
        assert (state.mode, state.uid, state.gid) == (0o600, 3, 4), path


def test_a_rollback_without_a_name_takes_it_back_and_has_the_daemon_read_it(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    done = configured(host, store)
    chosen = rollback.choose(store)
    assert chosen.run == done.run
    back = rollback.undoing(store, host, chosen.run)
    rollback.rollback(back, host, store, version="test", argv=(), tell=silent)
    assert host.contents == {CONTAINERD: PLAIN}
    assert host.triggered == [RESTART]


def test_what_it_wrote_is_gpunodes_for_a_removal(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    configured(host, store)
    assert set(store.footprint().files) == {CONTAINERD, DROP_IN}
    unconfigured(host, store)
    assert store.footprint().files == {}


@pytest.mark.parametrize("wish", [IN_DROP_IN, IN_PLACE, replace(IN_PLACE, default=True, cdi=True)])
def test_unconfigure_brings_an_untouched_file_back_to_the_byte(wish: Wish, store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    configured(host, store, wish)
    draft = unconfigured(host, store, wish)
    assert host.contents == {CONTAINERD: PLAIN}
    assert draft.trigger == RESTART
    assert [run.verb for run in store.runs()] == ["configure", "unconfigure"]


def test_a_file_that_was_written_between_two_runs_goes_back_through_both() -> None:
    """Byte for byte from the last of them, else what was written in between would be lost."""
    asked: list[tuple[bytes | None, Former]] = []

    def unconfigure(files: Files, _: Wish, former: Mapping[str, Former]) -> Edited:
        now, was = files.get(CONTAINERD), former[CONTAINERD]
        asked.append((now, was))
        return Edited((Edit(CONTAINERD, now, was.before if now == was.after else b"A, theirs"),))

    a, b, c, d = (FileState(text) for text in (b"A", b"B", b"B, theirs", b"D, theirs"))
    trail = FileTrail((FileChange(CONTAINERD, a, b), FileChange(CONTAINERD, c, d)), "runtime")
    row = replace(runtime("containerd"), unconfigure=unconfigure, inspect=lambda _files, _wish: Configured())
    draft = ctk.unconfiguring(Machine({CONTAINERD: d}), row, IN_PLACE, {CONTAINERD: trail})
    assert asked == [
        (b"D, theirs", Former(b"B, theirs", b"D, theirs")),
        (b"B, theirs", Former(b"A", b"B")),
    ]
    assert [(change.before, change.after) for change in draft.changes] == [(d, FileState(b"A, theirs"))]


def test_what_is_forgotten_is_no_former_state() -> None:
    forgotten = FileTrail((FileChange(CONTAINERD, None, FileState(b"")),), "runtime", forgotten=True)
    seen: list[Mapping[str, Former]] = []

    def unconfigure(_files: Files, _: Wish, former: Mapping[str, Former]) -> Edited:
        seen.append(former)
        return Edited(())

    row = replace(runtime("containerd"), unconfigure=unconfigure)
    ctk.unconfiguring(Machine({CONTAINERD: PLAIN}), row, IN_PLACE, {CONTAINERD: forgotten})
    assert seen == [{}]


def test_the_folder_that_was_made_for_a_drop_in_goes_with_it() -> None:
    span = FileChange(DROP_IN, None, FileState(b"x"), folders=("/etc/containerd/conf.d",))
    host = Machine({CONTAINERD: PLAIN})
    host.files[DROP_IN] = FileState(b"x")
    trails = {DROP_IN: FileTrail((span,), "runtime")}
    row = replace(
        runtime("containerd"), unconfigure=lambda _files, _wish, _former: Edited((Edit(DROP_IN, b"x", None),))
    )
    (change,) = ctk.unconfiguring(host, row, IN_DROP_IN, trails).changes
    assert change.folders == ("/etc/containerd/conf.d",)


def test_a_write_that_fails_leaves_no_half(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    host.full = {CONTAINERD}
    with pytest.raises(ChangeFailed) as stopped:
        configured(host, store)
    assert host.contents == {CONTAINERD: PLAIN}
    assert f"put back: {DROP_IN}" in stopped.value.why
    (run,) = store.runs()
    assert run.commit is not None
    assert run.commit.result == "failed"
    assert store.owed() == {}


def test_somebody_who_edits_meanwhile_is_not_overwritten_and_sees_no_half(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    draft = draft_of(host)
    host.files[CONTAINERD] = FileState(PLAIN + b"# theirs\n")
    with pytest.raises(Conflict):
        made(host, store, draft)
    assert host.contents == {CONTAINERD: PLAIN + b"# theirs\n"}


def test_what_the_runtimes_parser_refuses_is_not_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Machine({CONTAINERD: PLAIN})

    def check(expectation: RuntimeExpectation, changes: Sequence[FileChange]) -> str:
        assert [change.path for change in changes] == [DROP_IN, CONTAINERD]
        assert expectation.handlers == {("nvidia", "/usr/bin/nvidia-container-runtime")}
        raise Refused("containerd does not take it")

    monkeypatch.setattr(host, "check", check)
    with pytest.raises(Refused):
        configured(host, store)
    assert host.contents == {CONTAINERD: PLAIN}
    (run,) = store.runs()
    assert (run.subjects, run.commit and run.commit.result) == ((), "failed")
    with pytest.raises(UsageError, match="nothing to roll back"):
        rollback.choose(store)


def test_a_signal_that_came_before_the_first_write_leaves_nothing(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})

    def stop() -> None:
        raise Interrupted("stopped")

    with pytest.raises(Interrupted):
        ctk.carry_out(draft_of(host), host, store, Asked("configure", "test", pause=stop), silent)
    assert store.runs() == ()


def test_a_restart_that_was_asked_for_is_made_and_the_daemon_asked(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    done = made(host, store, draft_of(host), restart=True)
    assert host.triggered == [RESTART]
    assert [one.trigger for one in done.settled] == [RESTART]


def test_a_daemon_that_does_not_come_back_gets_both_files_back(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    host.accepts = lambda _trigger, node: DROP_IN not in node.files or node.files[DROP_IN] is None
    with pytest.raises(ChangeFailed) as stopped:
        made(host, store, draft_of(host), restart=True)
    assert host.contents == {CONTAINERD: PLAIN}
    assert "runs with it again" in stopped.value.why


def test_docker_reloads_for_a_runtime_and_restarts_for_a_feature(store: Store) -> None:
    host = Machine({DAEMON_JSON: b"{}\n"})
    assert draft_of(host, DOCKER, "docker").trigger == RELOAD_DOCKER
    assert draft_of(host, DOCKER, "docker").stops == ""
    feature = draft_of(host, replace(DOCKER, cdi=True), "docker")
    assert (feature.trigger, feature.stops) == (RESTART_DOCKER, "docker containers")


def test_running_containers_that_a_restart_would_stop_are_named() -> None:
    host = Machine({DAEMON_JSON: b"{}\n"})
    host.docker_ps = Capture("docker ps", "ok", b"abc web\ndef db\n")
    ctk.refuse_disruption(host, draft_of(host, DOCKER, "docker"))
    with pytest.raises(DrainRequired, match="2 running docker containers") as stopped:
        ctk.refuse_disruption(host, draft_of(host, replace(DOCKER, cdi=True), "docker"))
    assert "web, db" in stopped.value.why


def test_an_earlier_debt_is_not_paid_by_a_run_that_restarts_nothing(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    cut = store.begin("setup", version="test")
    cut.done(cut.intend("runtime", "step", FileChange("/etc/other", None, FileState(b""), frozenset({RESTART}))))
    cut.close()
    configured(host, store)
    assert set(store.owed()) == {RESTART}
    still = store.cut_short()
    assert still is not None
    assert still.begin.verb == "setup"


def test_an_edit_that_was_cut_short_is_over_when_nothing_is_left_to_do(store: Store) -> None:
    store.begin("configure", version="test").close()
    ctk.conclude(store)
    assert store.cut_short() is None
    cut = store.begin("setup", version="test")
    cut.close()
    ctk.conclude(store)
    assert store.cut_short() is not None


UNIT = " ".join(unit_probe("containerd.service").argv)
RUNS = """Id=containerd.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled
MainPID=1
ExecMainStartTimestamp=Fri 2026-05-01 00:00:00.000000 UTC
StateChangeTimestamp=Fri 2026-05-01 00:00:00.000000 UTC
"""
STARTED = 1777593600.0


@pytest.mark.parametrize(("changed", "unread"), [(STARTED - 1, False), (STARTED + 1, True), (None, False)])
def test_a_daemon_older_than_its_file_has_not_read_it(changed: float | None, unread: bool, store: Store) -> None:
    class Dated(Machine):
        def look(self, probe: Probe, /) -> Capture:
            capture = super().look(probe)
            owner = capture.ownership
            return replace(capture, ownership=replace(owner, changed=changed)) if owner else capture

    host = Dated({CONTAINERD: PLAIN}, {UNIT: RUNS})
    configured(host, store)
    draft = draft_of(host)
    assert ctk.unread(host, draft) is unread
    made(host, store, ctk.reread(draft), restart=True)
    assert host.triggered == [RESTART]


def effective(handlers: Mapping[str, str]) -> ctk.Effective:
    return lambda _: Configured(handlers)


def test_the_verdict_looks_at_the_files_first_and_then_at_the_daemon(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN}, {UNIT: RUNS})
    assert ctk.verdict(host, draft_of(host), effective({}), is_live=True).pending
    configured(host, store)
    draft = draft_of(host)
    good = effective({"nvidia": "/usr/bin/nvidia-container-runtime"})
    assert ctk.verdict(host, draft, good, is_live=True) == ctk.Verdict()
    assert "handler nvidia" in ctk.verdict(host, draft, effective({}), is_live=True).otherwise
    assert "image" in ctk.verdict(host, draft, effective({}), is_live=False).untold
    assert "no containerd" in ctk.verdict(host, draft, lambda _: None, is_live=True).untold


def test_a_daemon_that_does_not_run_or_reads_another_file_is_not_asked(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN}, {UNIT: RUNS.replace("ActiveState=active", "ActiveState=inactive")})
    configured(host, store)
    assert "does not run" in ctk.verdict(host, draft_of(host), effective({}), is_live=True).untold
    elsewhere = replace(IN_PLACE, config="/opt/config.toml")
    configured(host, store, elsewhere)
    assert "/opt/config.toml" in ctk.verdict(host, draft_of(host, elsewhere), effective({}), is_live=True).untold


def test_a_daemon_whose_parser_cannot_read_its_files_has_something_else(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN}, {UNIT: RUNS})
    configured(host, store)

    def broken(_: str) -> Configured | None:
        raise ChangeFailed("containerd does not say", why="toml: line 3")

    assert "toml: line 3" in ctk.verdict(host, draft_of(host), broken, is_live=True).otherwise


@pytest.mark.parametrize(
    ("printed", "version"),
    [
        ("containerd github.com/containerd/containerd v1.7.24 88bf19b2105c8b17560993bee28a01ddc2f97182\n", (1, 7, 24)),
        ("containerd github.com/containerd/containerd/v2 2.1.9~ds1 \n", (2, 1, 9)),
        ("containerd containerd.io 1.7.25 bcc810d6b9066471b0b6fa75f557a15a1cbf31bb\n", (1, 7, 25)),
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1\n", (1, 6, 20)),
        ("", None),
    ],
)
def test_the_version_is_as_the_program_tells_it(printed: str, version: tuple[int, ...] | None) -> None:
    host = Machine({}, {"containerd --version": printed})
    assert ctk.place(host, runtime("containerd"), Wish()).wish.version == version


def test_dockers_version_is_asked_for_where_cdi_hangs_on_it() -> None:
    host = Machine({}, {"dockerd --version": "Docker version 28.5.2+dfsg4, build 3ef3c07c\n"})
    assert ctk.place(host, runtime("docker"), Wish(cdi=True)).wish.version == (28, 5, 2)
    assert ctk.place(host, runtime("docker"), Wish()).wish.version is None


def test_the_first_dump_that_is_there_is_the_source() -> None:
    dumps = (("crio", "status", "config"), ("crio-status", "config"))
    host = Machine({}, {"crio-status config": "[crio]\n"})
    assert ctk.place(host, runtime("containerd"), Wish(), dumps).wish.source == b"[crio]\n"


def test_a_dump_that_fails_is_told_in_the_programs_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Machine({})
    with pytest.raises(Refused, match="containerd config dump"):
        ctk.place(host, runtime("containerd"), Wish(), (("containerd", "config", "dump"),))


def test_a_dry_run_shows_the_drop_in_first_and_what_counts_last(store: Store) -> None:
    host = Machine({CONTAINERD: PLAIN})
    draft = draft_of(host)
    assert ctk.shown(draft) == (draft.after[DROP_IN], draft.after[CONTAINERD])
    configured(host, store)
    assert ctk.shown(draft_of(host)) == (draft.after[CONTAINERD],)


def test_a_hook_is_a_file_that_no_daemon_of_ours_reads(store: Store) -> None:
    path, host = "/usr/share/containers/oci/hooks.d/nvidia.json", Machine({})
    host.files[path] = None
    draft = ctk.hooking(host, path, b"{}\n", "deprecated")
    done = made(host, store, draft, restart=True)
    assert (done.checked, done.settled) == ("", ())
    assert host.contents[path] == b"{}\n"
    assert ctk.hooking(host, path, b"{}\n", "deprecated").changes == ()


CRICTL = "/var/lib/rancher/k3s/agent/etc/crictl.yaml"
K3S = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"


def test_the_containerd_that_the_kubelet_uses_is_the_one_that_is_meant() -> None:
    host = Machine({CONTAINERD: PLAIN, CRICTL: b"runtime-endpoint: unix:///run/k3s/containerd/containerd.sock\n"})
    where = ctk.place(host, runtime("containerd"), IN_PLACE, image=True)
    assert (where.row.product, where.row.config) == ("k3s", K3S)
    named = ctk.place(host, runtime("containerd"), replace(IN_PLACE, config=CONTAINERD), image=True)
    assert named.row.product == ""
    assert ctk.place(host, runtime("docker"), DOCKER, image=True).row is runtime("docker")


KUBELET = {
    "/lib/systemd/system/kubelet.service": b"[Service]\nExecStart=/usr/bin/kubelet --cgroup-driver=systemd\n",
    "/var/lib/kubelet/config.yaml": b"cgroupDriver: systemd\n",
}


@pytest.mark.parametrize(("text", "systemd"), [(b"version = 2\n", True), (PLAIN, False)])
def test_a_kubelet_gets_its_cri_plugin_and_its_cgroup_driver_where_there_is_none_to_inherit(
    text: bytes, systemd: bool
) -> None:
    host = Machine({CONTAINERD: text, **KUBELET})
    wish = ctk.place(host, runtime("containerd"), IN_PLACE, image=True).wish
    assert (wish.enable_cri, wish.systemd_cgroup) == (True, systemd)
    bare = ctk.place(Machine({CONTAINERD: text}), runtime("containerd"), IN_PLACE, image=True).wish
    assert (bare.enable_cri, bare.systemd_cgroup) == (False, False)
