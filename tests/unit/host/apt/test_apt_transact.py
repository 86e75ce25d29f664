"""Commands of a transaction, and the reaction to each failure; the commands are scripted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from gpunode.change import KnownAfter, PackageChange, PackageState
from gpunode.errors import ChangeFailed
from gpunode.host.apt import Apt, plan_marks
from gpunode.host.port import Progress
from gpunode.host.process import FinishedCommand, OnLine, Runner
from gpunode.package_id import PackageId
from tests.fakes.skipped_time import SkippedTime

NETWORK = "E: Failed to fetch http://h.example/x.deb  Could not connect to h.example:80 (192.0.2.1), refused\n"
GONE = "E: Failed to fetch http://h.example/x.deb  404  Not Found\n"
DRIVER = PackageChange(PackageId("driver"), None, KnownAfter("580."))
INST = "Inst driver (580.1-1 Lab:1 [all])\n"


class Scripted(Runner):
    """Answers by the command's verb, one after the other; when none is left, the command succeeds."""

    def __init__(self, root: Path, **answers: list[tuple[int, str, str]]) -> None:
        super().__init__(str(root))
        self.answers = answers
        self.commands: list[tuple[str, ...]] = []
        self.environment: Mapping[str, str] = {}

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        stdin: bytes = b"",
        env: Mapping[str, str] = {},
        limit_bytes: int = 1 << 20,
        on_line: OnLine | None = None,
        status: OnLine | None = None,
        survives_gpunode: bool = False,
        only_reads: bool = False,
    ) -> FinishedCommand:
        self.commands.append(tuple(argv))
        verb = self._verb(argv)
        code, out, err = 0, "", ""
        if answers := self.answers.get(verb):
            code, out, err = answers.pop(0)
        elif verb == "config":
            out = "L='/lists/'\nA='/archives/'\nS='/dpkg/status'\nU='_apt'\n"
        if verb == "install":
            self.environment = env
            assert status is not None
            status("pmstatus:driver:50.0:Unpacking driver (amd64)")
        return FinishedCommand(tuple(argv), code, out.encode(), err.encode(), 1.0, code == 124)

    def _verb(self, argv: Sequence[str]) -> str:
        if argv[0] != "apt-get":
            return argv[0].removeprefix("apt-").replace("-", "_")
        return "simulate" if "--simulate" in argv else "update" if argv[-1] == "update" else "install"

    def made(self, verb: str) -> list[tuple[str, ...]]:
        return [argv for argv in self.commands if self._verb(argv) == verb]


class Bench:
    def __init__(self, root: Path, **answers: list[tuple[int, str, str]]) -> None:
        (root / "lists").mkdir(parents=True)
        self.progress: list[Progress] = []
        self.runner = Scripted(root, **answers)
        self.apt = Apt(self.runner, self.progress.append, 30)


def test_transaction_is_one_install_with_safe_options(tmp_path: Path) -> None:
    bench = Bench(tmp_path, dpkg_query=[(0, "old old installed\n", "")])
    bench.apt.transact((DRIVER, PackageChange(PackageId("old"), PackageState("1"), None)))
    (argv,) = bench.runner.made("install")
    assert argv[-3:] == ("--purge", "driver", "old-")
    assert {"-y", "--no-install-recommends", "APT::Get::AutomaticRemove=false", "DPkg::Lock::Timeout=30"} <= set(argv)
    assert "APT::Get::AllowUnauthenticated=false" in argv
    assert not {"--allow-unauthenticated", "--allow-remove-essential", "--force-yes", "--autoremove"} & set(argv)
    assert bench.runner.environment["DEBIAN_FRONTEND"] == "noninteractive"
    assert bench.runner.environment["NEEDRESTART_SUSPEND"] == "1"
    assert Progress("install", 50.0, "Unpacking driver (amd64)") in bench.progress


def test_dpkg_signature_check_is_not_disabled_by_the_host(tmp_path: Path) -> None:
    """dpkg uses the last of its options, and apt passes those of its own files first."""
    bench = Bench(tmp_path)
    bench.apt.transact((DRIVER,))
    (argv,) = bench.runner.made("install")
    assert "Dpkg::Options::=--refuse-bad-verify" in argv


def test_own_sources_are_fetched_with_tls_and_date_checks(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    own = tmp_path / "etc/apt/sources.list.d/nvidia.list"
    own.parent.mkdir(parents=True)
    own.write_text("deb [signed-by=/k.gpg] https://Mirror.example:8443/debian12/x86_64/ /\n")
    (tmp_path / "tmp").mkdir()
    bench.apt.refresh(["/etc/apt/sources.list.d/nvidia.list"])
    bench.apt.refresh(())
    listed, everything = bench.runner.made("update")
    dates = {"Acquire::Check-Valid-Until=true", "Acquire::Check-Date=true"}
    tls = {
        f"Acquire::https::{host}Verify-{what}=true" for host in ("", "mirror.example::") for what in ("Peer", "Host")
    }
    assert dates | tls <= {*listed}
    assert not (dates | tls) & {*everything}, "of others' archives the host's configuration decides"


BROKEN = "dpkg: error processing package {} (--configure):\nE: Sub-process /usr/bin/dpkg returned an error code (1)\n"
OLD, CHANGED = (PackageChange(PackageId("old"), PackageState("1"), after) for after in (None, PackageState("2")))


def write_status(root: Path, *rows: tuple[str, str, str]) -> None:
    """Write dpkg's database: names, architectures and states, and dpkg's own row."""
    (root / "dpkg").mkdir()
    text = "\n".join(
        f"Package: {name}\nStatus: install ok {state}\nArchitecture: {architecture}\nVersion: 1\n"
        for name, architecture, state in (*rows, ("dpkg", "amd64", "installed"))
    )
    (root / "dpkg/status").write_text(text)


def test_removal_succeeds_although_a_package_of_others_is_broken(tmp_path: Path) -> None:
    """apt configures it in the same transaction. dpkg refuses a bare name that two architectures have."""
    found, installed = (0, "old old installed\n", ""), [("old", one, "installed") for one in ("i386", "amd64")]
    write_status(tmp_path, *installed, ("others", "all", "half-configured"))
    bench = Bench(tmp_path, dpkg_query=[found], install=[(100, "", BROKEN.format("others"))])
    bench.apt.transact((PackageChange(PackageId("old"), PackageState("1", auto=True), None),))
    assert bench.runner.made("dpkg") == [("dpkg", "--remove", "old:amd64"), ("dpkg", "--purge", "old:amd64")]
    assert not bench.runner.made("mark"), "the mark would wait for a package that somebody installs with dpkg"


def test_purge_by_dpkg_names_the_architecture(tmp_path: Path) -> None:
    """The same package stays for i386; another one leaves its configuration, so that apt does not purge."""
    write_status(tmp_path, ("old", "i386", "installed"), ("old", "amd64", "installed"))
    bench = Bench(tmp_path, dpkg_query=[(0, "old old installed\nkeeps keeps installed\n", "")])
    residue = PackageState("1", config_files_only=True)
    bench.apt.transact((OLD, PackageChange(PackageId("keeps"), PackageState("1"), residue)))
    assert bench.runner.made("dpkg") == [("dpkg", "--purge", "old:amd64")]


@pytest.mark.parametrize(
    ("change", "broken", "state"),
    [
        (OLD, "old:amd64", "half-configured"),
        (CHANGED, "others", "half-configured"),
        pytest.param(OLD, "others", "installed", id="broken-by-this-removal"),
    ],
)
def test_broken_package_fails_what_it_has_part_in(
    change: PackageChange, broken: str, state: str, tmp_path: Path
) -> None:
    found = (0, "old old installed\n", "")
    write_status(tmp_path, ("old", "amd64", state), ("others", "all", state))
    bench = Bench(tmp_path, dpkg_query=[found], install=[(100, "", BROKEN.format(broken))])
    with pytest.raises(ChangeFailed, match=broken):
        bench.apt.transact((change,))
    assert bench.runner.made("dpkg") == []


def test_empty_transaction_runs_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.apt.transact(())
    assert bench.runner.commands == []


def test_network_failure_is_retried_and_then_reported(tmp_path: Path, skipped_time: SkippedTime) -> None:
    bench = Bench(tmp_path, install=[(100, "", NETWORK)] * 9)
    with pytest.raises(ChangeFailed, match="cannot be reached") as caught:
        bench.apt.transact((DRIVER,))
    assert len(bench.runner.made("install")) == 4
    assert skipped_time.total_s == pytest.approx(30)
    assert max(skipped_time.waits) <= 0.2, "a signal is heeded between two looks"
    assert "h.example" in caught.value.why
    assert "[repositories]" in caught.value.hint
    told = dict.fromkeys(progress.detail for progress in bench.progress if progress.phase == "wait")
    assert list(told) == [
        f"{pause} s, then trying again to change the packages: a server cannot be reached" for pause in (2, 8, 20)
    ]


def test_refused_connection_is_not_retried(tmp_path: Path, skipped_time: SkippedTime) -> None:
    said = (
        "E: Failed to fetch http://h.example/x.deb  Could not connect to h.example:80 (192.0.2.1). - connect (111: "
        "Connection refused)\n"
    )
    bench = Bench(tmp_path, install=[(100, "", said)] * 9)
    with pytest.raises(ChangeFailed, match="refuses the connection") as caught:
        bench.apt.transact((DRIVER,))
    assert skipped_time.waits == []
    assert "[repositories]" in caught.value.hint


def test_stale_index_is_refreshed_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, install=[(100, "", GONE)], simulate=[(0, INST, "")])
    bench.apt.transact((DRIVER,))
    assert [bench.runner._verb(argv) for argv in bench.runner.commands if argv[0] == "apt-get"] == [
        "install",
        "update",
        "simulate",
        "install",
    ]


def test_index_still_stale_after_a_refresh_is_reported(tmp_path: Path) -> None:
    bench = Bench(tmp_path, install=[(100, "", GONE)] * 9, simulate=[(0, INST, "")])
    with pytest.raises(ChangeFailed, match="are gone"):
        bench.apt.transact((DRIVER,))
    assert len(bench.runner.made("update")) == 1


def test_refreshed_index_must_not_change_the_plan(tmp_path: Path) -> None:
    bench = Bench(tmp_path, install=[(100, "", GONE)], simulate=[(0, INST + "Remv docker-ce [5:28]\n", "")])
    with pytest.raises(ChangeFailed, match="would no longer do what was planned") as caught:
        bench.apt.transact((DRIVER,))
    assert "docker-ce" in caught.value.why
    assert len(bench.runner.made("install")) == 1


def test_hold_is_restored_after_a_failed_transaction(tmp_path: Path) -> None:
    bench = Bench(tmp_path, install=[(100, "", "E: something\n")])
    with pytest.raises(ChangeFailed):
        bench.apt.transact(
            (PackageChange(PackageId("driver"), PackageState("1", held=True), PackageState("2", held=True)),)
        )
    assert bench.runner.made("mark")[-1][-2:] == ("hold", "driver")


def test_auto_mark_is_restored_after_a_failed_removal(tmp_path: Path) -> None:
    there = [(0, "driver driver installed\n", "")]
    bench = Bench(tmp_path, install=[(100, "", "E: something\n")], dpkg_query=there)
    with pytest.raises(ChangeFailed):
        bench.apt.transact((PackageChange(PackageId("driver"), PackageState("1", auto=True), None),))
    assert bench.runner.made("mark")[-1][-2:] == ("auto", "driver")


def test_dpkg_is_waited_for_after_apt_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It continues without apt: gpunode must record what it installed, and mark it as apt would have."""
    bench = Bench(tmp_path, install=[(137, "", "")])
    waits: list[int] = []
    monkeypatch.setattr("gpunode.host.apt.wait_until_free", lambda *_, **__: waits.append(len(bench.runner.commands)))
    with pytest.raises(ChangeFailed, match="was killed"):
        bench.apt.transact((DRIVER, PackageChange(PackageId("firmware"), None, PackageState("580.1-1", auto=True))))
    installed = bench.runner.commands.index(bench.runner.made("install")[0])
    assert waits[-1] == installed + 1
    assert bench.runner.made("mark")[-1][-2:] == ("auto", "firmware")


def test_hanging_apt_is_reported_and_not_retried(tmp_path: Path, skipped_time: SkippedTime) -> None:
    bench = Bench(tmp_path, install=[(124, "", NETWORK)])
    with pytest.raises(ChangeFailed, match="did not finish within") as caught:
        bench.apt.transact((DRIVER,))
    assert "dpkg --configure -a" in caught.value.hint
    assert skipped_time.waits == []


def test_warning_of_an_older_apt_fails_the_refresh(tmp_path: Path) -> None:
    warning = "W: Failed to fetch http://h.example/InRelease  503  Service Unavailable\n"
    bench = Bench(tmp_path, update=[(0, "", warning)] * 9)
    with pytest.raises(ChangeFailed, match="cannot be reached"):
        bench.apt.refresh(())


def test_password_in_an_address_is_not_shown(tmp_path: Path) -> None:
    bench = Bench(tmp_path, update=[(100, "", "E: Failed to fetch http://me:geheim@h.example/  404  Not Found\n")])
    with pytest.raises(ChangeFailed) as caught:
        bench.apt.refresh(())
    assert "geheim" not in f"{caught.value.what} {caught.value.why} {caught.value.hint}"


def test_dkms_build_log_is_read_inside_the_root(tmp_path: Path) -> None:
    log = tmp_path / "var/lib/dkms/nvidia/580/build/make.log"
    log.parent.mkdir(parents=True)
    log.write_text("make\nnv.c:1:1: error: no such thing\n")
    said = (
        "Error! Bad return status for module build on kernel: 6.1.0 (x86_64)\n"
        "Consult /var/lib/dkms/nvidia/580/build/make.log for more information.\n"
        "dpkg: error processing package nvidia-kernel-dkms (--configure):\n installed … exit status 10\n"
        "E: Sub-process /usr/bin/dpkg returned an error code (1)\n"
    )
    bench = Bench(tmp_path, install=[(100, "", said)])
    with pytest.raises(ChangeFailed, match="nvidia-kernel-dkms does not build") as caught:
        bench.apt.transact((DRIVER,))
    assert caught.value.why == "nv.c:1:1: error: no such thing"


def test_network_error_of_a_maintainer_script_is_not_retried(tmp_path: Path, skipped_time: SkippedTime) -> None:
    said = (
        "curl: (7) Failed to connect: Connection refused\n"
        "dpkg: error processing package x (--configure):\n installed x package post-installation script … 7\n"
        "E: Sub-process /usr/bin/dpkg returned an error code (1)\n"
    )
    bench = Bench(tmp_path, install=[(100, "", said)])
    with pytest.raises(ChangeFailed, match="package x could not be set up"):
        bench.apt.transact((DRIVER,))
    assert skipped_time.waits == []


def test_simulation_without_apt_is_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path, simulate=[(127, "", "apt-get: command not found")])
    assert bench.apt.simulate((DRIVER,)) is None


def test_marks_follow_the_package_states() -> None:
    plan = (
        PackageChange(PackageId("auto"), None, PackageState("1", auto=True)),
        PackageChange(PackageId("held"), PackageState("1"), PackageState("2", held=True)),
        PackageChange(PackageId("released"), PackageState("1", held=True), PackageState("2")),
        PackageChange(PackageId("kept"), PackageState("1", held=True), KnownAfter("2")),
        PackageChange(PackageId("purged"), PackageState("1", held=True), None),
        PackageChange(PackageId("asked-for"), PackageState("1", auto=True), PackageState("1")),
        PackageChange(PackageId("selected-for-removal"), PackageState("1"), PackageState("1")),
        PackageChange(PackageId("held-again"), PackageState("1"), PackageState("1", held=True)),
    )
    assert plan_marks(plan) == {
        "install": ("selected-for-removal",),
        "auto": ("auto",),
        "manual": ("asked-for",),
        "hold": ("held", "kept", "held-again"),
        "unhold": ("released",),
    }


@pytest.mark.parametrize("status", [124, 2])
def test_purge_is_asked_of_apt_where_dpkg_does_not_say_what_there_is(tmp_path: Path, status: int) -> None:
    bench = Bench(tmp_path, dpkg_query=[(status, "", "")], simulate=[(124, "", "")])
    bench.apt.transact([PackageChange(PackageId("driver"), PackageState("580.1-1"), None)])
    assert bench.runner.made("install")[0][-1] == "driver-"
    found = bench.apt.simulate([PackageChange(PackageId("driver"), None, PackageState("580.1-1"))])
    assert found is not None
    assert found.problem == "it gives no reason", "a simulation without an answer is no consent"


def test_mark_change_needs_no_transaction(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.apt.transact((PackageChange(PackageId("libcuda1"), PackageState("1", auto=True), PackageState("1")),))
    commands = [argv for argv in bench.runner.commands if argv[0] != "apt-config"]
    assert [(argv[0], *argv[-2:]) for argv in commands] == [("apt-mark", "manual", "libcuda1")]
