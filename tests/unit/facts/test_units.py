"""The start of a service by systemd, read from unit files as systemd does."""

from __future__ import annotations

import pytest

from gpunode.facts.systemd import find_start_command, unit_source_patterns

UNIT = "docker.service"
LIB, ETC, RUN = (f"{folder}/systemd/system/{UNIT}" for folder in ("/lib", "/etc", "/run"))
# As in Debian's docker.io.
DEBIAN = b"""\
[Unit]
Description=Docker Application Container Engine

[Service]
Type=notify
EnvironmentFile=-/etc/default/docker
ExecStart=/usr/sbin/dockerd -H fd:// $DOCKER_OPTS
ExecReload=/bin/kill -s HUP $MAINPID

[Install]
WantedBy=multi-user.target
"""


def argv(files: dict[str, bytes]) -> list[str] | None:
    found = find_start_command(files, UNIT)
    return list(found.argv) if found else None


def service(*lines: str) -> bytes:
    return "\n".join(("[Service]", *lines, "")).encode()


def test_unit_files_to_read_are_discovered_step_by_step() -> None:
    first = unit_source_patterns({}, UNIT)
    assert {LIB, ETC} < set(first)
    assert not any(".conf" in place for place in first), "drop-ins alone start nothing"
    then = set(unit_source_patterns({LIB: DEBIAN}, UNIT))
    assert {*first, f"{ETC}.d/*.conf", f"{RUN}.d/*.conf", "/etc/default/docker"} < then
    assert find_start_command({}, UNIT) is None
    masked = {ETC: b"", LIB: DEBIAN, f"{ETC}.d/a.conf": service("ExecStart=/d")}
    assert find_start_command(masked, UNIT) is None


def test_bare_variable_expands_to_several_words() -> None:
    files = {LIB: DEBIAN}
    assert argv(files) == ["/usr/sbin/dockerd", "-H", "fd://"]
    files["/etc/default/docker"] = b'# DOCKER_OPTS="no"\nDOCKER_OPTS="--default-runtime=runc  --dns 9.9.9.9"\n'
    found = find_start_command(files, UNIT)
    assert found is not None
    assert found.argv == ("/usr/sbin/dockerd", "-H", "fd://", "--default-runtime=runc", "--dns", "9.9.9.9")
    assert found.sources == (LIB, "/etc/default/docker")


def test_empty_exec_start_resets_and_the_last_drop_in_wins() -> None:
    files = {
        LIB: DEBIAN,
        f"{ETC}.d/20-b.conf": service("ExecStart=", "ExecStart=-/usr/bin/dockerd --b"),
        f"{RUN}.d/10-a.conf": service("ExecStart=", "ExecStart=/usr/bin/dockerd --a"),
    }
    assert argv(files) == ["/usr/bin/dockerd", "--b"]
    files[f"{ETC}.d/10-a.conf"] = b"# masks the one in /run\n"
    del files[f"{ETC}.d/20-b.conf"]
    assert argv(files) == ["/usr/sbin/dockerd", "-H", "fd://"]
    files[ETC] = service("ExecStart=/opt/dockerd")
    assert argv(files) == ["/opt/dockerd"]


def test_files_that_are_no_drop_ins_are_ignored() -> None:
    other = service("ExecStart=", "ExecStart=/other")
    files = {LIB: DEBIAN, f"{ETC}.d/x.conf.bak": other, f"{ETC}.d/y/x.conf": other, f"{ETC}.dx.conf": other}
    assert argv(files) == ["/usr/sbin/dockerd", "-H", "fd://"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["ExecStart=/d \\", "  --a \\", "# between", "  --b"], ["/d", "--a", "--b"]),
        (["ExecStart = /d '--label=a b' \"--c=d e\""], ["/d", "--label=a b", "--c=d e"]),
        (["Environment=A=x 'B=y z'", "ExecStart=/d ${A}:${B} $B $A$B $$A $NONE ${NONE}"],
         ["/d", "x:y z", "y", "z", "$A", ""]),
        (["Environment=A=x", "Environment=", "ExecStart=/d --x=${A}"], ["/d", "--x="]),
        (["EnvironmentFile=/no", "EnvironmentFile=", "ExecStart=/d"], ["/d"]),
        (["ExecStart=/d 50%%"], ["/d", "50%"]),
        (["Environment=A=50%%", "ExecStart=/d ${A} a$A"], ["/d", "50%", "a$A"]),
        (["Environment=A=x B=z", "Environment=A=y 'B=open", "ExecStart=/d ${A}${B}"], ["/d", "xz"]),
        (["Environment=\"A=--a 'b c'\"", "ExecStart=/d $A"], ["/d", "--a", "b c"]),
        (["ExecStart=/d \\"], ["/d"]),
        (["; ExecStart=/c", "[Other]", "ExecStart=/e", "[Service]", "ExecStart=!/d"], ["/d"]),
    ],
)  # fmt: skip
def test_unit_lines_are_parsed_like_systemd(lines: list[str], expected: list[str]) -> None:
    assert argv({LIB: service(*lines)}) == expected


def test_unterminated_quote_gives_no_command() -> None:
    assert argv({LIB: service("ExecStart=/d --a 'open")}) is None
    files = {LIB: DEBIAN, f"{ETC}.d/a.conf": service("ExecStart=", "ExecStart=-/d 'open")}
    assert argv(files) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A=", ""),
        (" A = 3 ", "3"),
        ("A='a b' ", "a b"),
        ("A=--x='a b' --y=\"c\"", "--x='a b' --y=\"c\""),
        ("A=\"--x='a  b'\"", "--x='a  b'"),
        ("A='x\\y'", r"x\y"),
        ('A="x\\\\y\\"z"', 'x\\y"z'),
        ("A=a # b%%", "a # b%%"),
        ('A=--x="', '--x="'),
        ("A=a \\\nb", "a  b"),
        ("#A=1\n; A=2\nA\nA=3\r\n", "3"),
    ],
)
def test_environment_files_are_parsed_like_systemd(text: str, value: str) -> None:
    files = {LIB: service("EnvironmentFile=-/e", "ExecStart=/d ${A}"), "/e": text.encode() + b"\n"}
    assert argv(files) == ["/d", value]


def test_environment_file_globs_and_last_assignment_win() -> None:
    files = {
        LIB: service("EnvironmentFile=-/etc/sysconfig/docker*", "ExecStart=/d $OPTIONS"),
        "/etc/sysconfig/docker": b"OPTIONS=--a --b=1\nexport\n",
        "/etc/sysconfig/docker-storage": b"; OPTIONS=no\nOTHER=1\n",
    }
    assert argv(files) == ["/d", "--a", "--b=1"]
    files["/etc/sysconfig/docker-z"] = b"OPTIONS=\\\n--c\n"
    assert argv(files) == ["/d", "--c"]
