"""dockerd's command line: its settings, which a file must not repeat."""

from __future__ import annotations

import pytest

from gpunode.runtimes.docker_nodes import Flags, ReloadOutcome, conflicts, parse_flags, parse_reload_log


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/usr/bin/dockerd", {}),
        ("/usr/sbin/dockerd -H fd:// --containerd=/run/c.sock", {"host": ("fd://",), "containerd": ("/run/c.sock",)}),
        ("dockerd --default-runtime nvidia --debug", {"default-runtime": ("nvidia",), "debug": ("true",)}),
        ("dockerd -H=tcp://a -Hfd:// -D", {"host": ("tcp://a", "fd://"), "debug": ("true",)}),
        ("dockerd -D --add-runtime=a=/a --add-runtime b=/b", {"debug": ("true",), "add-runtime": ("a=/a", "b=/b")}),
        ("dockerd -D lost", {"debug": ("true",)}),
        ("/usr/local/sbin/wrap --its own /usr/sbin/dockerd --icc=false", {"icc": ("false",)}),
        ("/bin/sh -c 'exec /usr/bin/dockerd --iptables=false'", {"iptables": ("false",)}),
        ("dockerd-rootless.sh --experimental", {"experimental": ("true",)}),
        ("dockerd -x --", {}),
        ("dockerd --data-root /srv/dockerd --icc=false", {"data-root": ("/srv/dockerd",), "icc": ("false",)}),
    ],
)
def test_flags_are_parsed_as_dockerd_parses_them(line: str, expected: dict[str, tuple[str, ...]]) -> None:
    import shlex

    assert parse_flags(shlex.split(line)).given == expected


def test_flag_values_are_extracted() -> None:
    argv = ("/usr/bin/dockerd", "--config-file=/srv/d.json", "--add-runtime", "nv=/usr/bin/nv", "--feature", "cdi")
    given = parse_flags(argv, ("/lib/systemd/system/docker.service",))
    assert given.config == "/srv/d.json"
    assert parse_flags(["dockerd", "--config-file", "srv/d.json"]).config == "/srv/d.json"
    assert given.runtimes == {"nv": "/usr/bin/nv"}
    assert given.cdi is True
    assert given.live_restore is None
    assert given.source_files == ("/lib/systemd/system/docker.service",)
    assert parse_flags(["dockerd", "--feature=cdi=false", "--live-restore"]).cdi is False
    assert parse_flags(["dockerd", "--live-restore"]).live_restore is True
    assert parse_flags(["dockerd", "--live-restore=false", "--add-runtime=broken"]).live_restore is False
    assert parse_flags(["dockerd", "--add-runtime=broken"]).runtimes == {}
    line = "dockerd -H fd:// --config-file /a --debug --config-file=/b -D --mtu 9000"
    assert parse_flags(line.split()).command_words == ("-H", "fd://", "--debug", "-D", "--mtu", "9000")
    nothing = Flags()
    assert (nothing.config, nothing.last_value("default-runtime"), nothing.cdi) == ("", None, None)


def test_directive_in_both_file_and_flags_conflicts_unless_a_runtime() -> None:
    line = ["dockerd", "-H", "fd://", "--default-runtime=runc", "--add-runtime=a=/a", "--feature=cdi=true", "--debug"]
    given = parse_flags(line)
    document = ["hosts", "default-runtime", "runtimes", "features", "live-restore"]
    assert conflicts(given, document) == (
        "hosts (--host)",
        "default-runtime (--default-runtime)",
        "features (--feature)",
    )
    assert conflicts(Flags(), document) == ()


# As dockerd 20.10.24 writes them.
BEGUN = 'time="x" level=info msg="Got signal to reload configuration, reloading from: /etc/docker/daemon.json"'
TAKEN = 'time="x" level=info msg="Reloaded configuration: {\\"pidfile\\":\\"/var/run/docker.pid\\"}"'
REJECTED = (
    'time="x" level=error msg="unable to configure the Docker daemon with file /etc/docker/daemon.json: the following '
    "directives don't match any configuration option: log-drvier\""
)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ((), ReloadOutcome("", ended=True)),
        (("level=warning msg=other",), ReloadOutcome("", ended=True)),
        ((BEGUN,), ReloadOutcome("", ended=False)),
        ((BEGUN, TAKEN), ReloadOutcome("", ended=True)),
        ((BEGUN, "other", REJECTED), ReloadOutcome(REJECTED, ended=True)),
        ((REJECTED,), ReloadOutcome(REJECTED, ended=True)),
    ],
)
def test_outcome_of_a_reload_is_read_from_the_log(lines: tuple[str, ...], told: ReloadOutcome) -> None:
    assert parse_reload_log("\n".join(lines)) == told
