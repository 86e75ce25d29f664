"""Secrets that commands are given: each goes, wherever it stands among the words, and other options stay."""

from __future__ import annotations

import pytest

from gpunode.facts.evidence import Capture
from gpunode.host.command_secrets import ARGUMENTS, OPTIONS, Argument, Option, secrets
from gpunode.host.process import may_hold_secret
from gpunode.host.redact import redact, text

SECRET = "Zq7xK2mW9p"


def hidden(written: str) -> str:
    kept = text(written)
    assert text(kept) == kept
    return kept


def test_each_secret_goes_with_several_in_a_line() -> None:
    for written in (
        "docker login -u x -p {} && docker run -p 8000:8000 --gpus all llm",
        "sudo docker login -u x -p {} r.io && mkdir -p /opt/x && docker pull y",
        "docker login -p {} x; docker login -p {} y",
        "curl -u bob:{} -x http://proxy:3128 https://x/y",
        "curl -u bob:{} --proxy proxy.corp:3128 https://x/y",
        "curl --user bob:{} --proxy-user eve:{} https://x/y",
        "curl -u bob:{} -U eve:{} https://x/y",
        "curl -x bob:{}@h:3128 -u bob:{} https://x/y",
        "skopeo copy --src-creds bob:{} --dest-creds eve:{} docker://a docker://b",
        "ipmitool -H h -U x -P {} -p 623 sel",
        "ctr i pull -u bob:{} a; docker run -u 1000:1000 b",
        "crictl pull --creds bob:{} x && podman run --user 1000:1000 b",
        "useradd -m -p {} bob && mkdir -p /home/bob",
        "sshpass -p {} ssh -p 22 x",
        "[app, --db-password, {}, --token, {}, -v]",
        "docker login -p {};docker login -p {}&&docker run -p 80:80 x",
        "docker exec db mysql -uroot -p{} -P 3306 -e x",
    ):
        assert hidden(written.replace("{}", SECRET)) == written.replace("{}", "redacted" * 4)


@pytest.mark.parametrize(
    "written",
    [
        "curl -u bob:'{}' https://x",
        'curl -u bob:"{}" https://x',
        "curl -u 'bob:{}' https://x",
        "curl -u \"bob:a {} b\" https://x",
        "curl -su bob:'{}' https://x",
        "mysql -u root -p'{}' db -e 'show tables'",
        'mysql -u root -p"a {}" db',
        "kubectl create secret generic x --from-literal=foo='a {}' --from-literal=\"bar={}\"",
        "crictl pull --creds bob:'{}' x",
        "ctr -n k8s.io i pull -u $oauthtoken:'{}' x",
        "sshpass -p 'a {}' ssh x",
        "ExecStart=/bin/sh -c 'curl -u \"deploy:{}\" https://x'",
        "ExecStart=/bin/sh -c \"curl -u 'deploy:{}' https://x\"",
        "don't ask: curl -u bob:'a {}' https://x",
        'msg="exec: docker login -p \\"a {}\\" x" code=1',
        "ipmitool -H x -U x -P \"a {}\" chassis",
        "CRON[1]: (root) CMD (mysqldump -uroot -p'{}' x)",
    ],
)  # fmt: skip
def test_no_quote_keeps_a_secret(written: str) -> None:
    kept = hidden(written.replace("{}", SECRET))
    assert SECRET not in kept
    assert kept.partition("redacted")[0] == written.replace("a {}", "{}").partition("{}")[0]
    assert kept.rpartition("redacted")[2] == written.replace("{} b", "{}").rpartition("{}")[2]


@pytest.mark.parametrize(
    "written",
    [
        "docker login r \\\n  -u x \\\n  -p {}\n",
        "curl -k \\\n  -u bob:{} \\\n  https://x\n",
        "curl -fsSL --retry 5 --retry-delay 3 --connect-timeout 10 -o f -H 'A: b' -X POST -u bob:{} https://x",
        "ipmitool -I lanplus -C 17 -L ADMINISTRATOR -H h -U ADMIN -P {} sel",
        "ctr -a /run/x.sock -n k8s.io images pull --platform linux/amd64 --hosts-dir /x --all-platforms -u bob:{} x",
        "ExecStartPre=-/usr/bin/docker login nvcr.io \\\n    -u $$oauthtoken \\\n    -p {}\nExecStart=/x\n",
        "curl -o $(basename x) -u bob:{} y",
        "ssh gpu1 'docker login -u x -p '\"'\"'{}'\"'\"' r' && docker run -p 80:80 x",
        "ssh gpu1 'curl -u '\\''bob:{}'\\'' r'; docker run -p 80:80 x",
        'type=EXECVE msg=audit(1.1:1): argc=5 a0="docker" a1="login" a2="-p" a3="{}" a4="x"',
        '["curl",\n "-fsSL",\n "-u", "bob:{}"\n]',
        "command:\n- docker\n- login\n- -p # rotated\n- {}\n- -u\n",
        "    Args:\n      --model\n      llama\n      --api-key\n      {}\n      --port\n      8000\n",
        '{"cmd":"docker login -u x -p {}\\ndocker run -p 80:80 x","y":"z"}',
    ],
)
def test_a_command_goes_on_to_its_end(written: str) -> None:
    assert hidden(written.replace("{}", SECRET)) == written.replace("{}", "redacted" * 4)


@pytest.mark.parametrize(
    "written",
    [
        "htpasswd -Bbc /opt/registry/auth/htpasswd bob {}",
        "htpasswd -bc htpasswd bob {}",
        "docker login -u docker -p {}",
        "$IPMITOOL -I lanplus -H h -U admin -P {} sel",
        "$CURL -fsSL -u bob:{} https://x",
        "$MYSQL -uroot -p{}",
        "SuseConnect -r {}",
        "docker Login -u bob -p {}",
        "k create secret generic hf --from-literal=HF={}",
        "smbmap -U bob%{}",
        "snmpping -c {} host",
        "mc alias set lab http://minio:9000 admin {}",
        "echo {} | sudo -kS apt-get update",
        "echo {} | sudo --stdin apt-get update",
        "echo {} | docker login nvcr.io \\\n  --password-stdin",
    ],
)
def test_a_program_is_known_however_it_is_written_and_whatever_its_files_are_called(written: str) -> None:
    assert SECRET not in hidden(written.replace("{}", SECRET))


def test_what_was_pasted_below_a_log_or_a_table_is_no_part_of_it() -> None:
    secret = f"apiVersion: v1\nkind: Secret\nstringData:\n  hf: {SECRET}\n"
    for source, said in (("dmesg", "[   12.5] NVRM: Xid (PCI:0000:07:00): 79, gone\n"), ("uname -a", "Linux n1 6.8\n")):
        shown = redact({source: Capture(source, "ok", f"{said}{secret}".encode())})[source].data.decode()
        assert SECRET not in shown
        assert shown.startswith(said)


def test_an_empty_value_in_a_list_leaves_the_list_as_it_is() -> None:
    for written in ('{"labels": ["rack=7", "join_token=", "zone=a"]}', '"Env": ["NGC_API_KEY=", "X=y"]'):
        assert hidden(written) == written


@pytest.mark.parametrize("option", ["--s3-secret-access-key", "--api-key", "--token", "--password", "-password"])
@pytest.mark.parametrize(
    "secret",
    [
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "ab/cd",
        "The-SECRET",
        "No.SECRET",
        "on!SECRET",
        "set-SECRET",
        "no-SECRET",
        "-SE7CRET9",
    ],
)
def test_no_secret_is_taken_for_a_file_or_a_word_of_a_sentence(option: str, secret: str) -> None:
    for written in ("x {} {} --v", "- {}\n- {}\n- --v\n", '["{}","{}","--v"]', "x {} \\\n  '{}' --v"):
        kept = hidden(written.format(option, secret))
        assert kept == written.format(
            option, "redacted" * (4 if len(secret) < 33 else 16) if len(secret) > 8 else "redacted"
        )


@pytest.mark.parametrize(
    "written",
    [
        "docker run -it -p 8080:80 -u 1000:1000 --gpus all nvcr.io/nvidia/cuda:12.4.1-base nvidia-smi",
        "podman run -u 1000:1000 x; nerdctl run --user 1000:1000 x; crictl inspect --user 0:0 x",
        "curl -L -x http://proxy:3128 https://x; curl --proxy 10.0.0.1:3128 https://x; curl -x proxy:3128 x",
        "docker login nvcr.io; docker run -p 8000:8000 --gpus all x",
        "k3s ctr images ls -t 5; k3s kubectl run -it --rm -t x",
        "mkdir -p /etc/x; login bob -p 22; kubectl login -pretty; ssh -p 2222 login@gpu1; mysql -u root -p slurm",
        "kubectl create configmap x --from-literal=a=b; kubectl patch node x -p '{\"spec\":{}}'",
        "docker login -u \"$NGC_USER\" -p $NGC_API_KEY nvcr.io; curl -u ${USER}:$PASS x; x --token $(cat key)",
        "x --token /run/key --api-key ./key --password ~/key --token ../key --password-file ab/cd --auth https://h:80",
        "WARNING! Using --password via the CLI is insecure. Use --password-stdin.",
        "the option --password is required; --api-key or --token, or --password",
        "aws configure set region eu; vault login -method=userpass username=x; openssl passwd -6; wandb login",
        "packages:\n- curl\n- docker\n- mysql\n",
        "curl: (22) The requested URL returned error: 404; docker login: error; pro attach <token>",
        "echo 'foo' | sudo tee x && curl -u bob: https://x 2>&1 | tee y",
        "apt-get install -y curl mysql-client docker.io openssl snmp",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays_as_it_is(written: str) -> None:
    assert secrets(written) == []
    assert text(written) == written


def test_the_words_of_a_process_are_words_whatever_they_hold() -> None:
    words = [
        "curl",
        "-u",
        f"bob:a {SECRET}; b",
        "-x",
        "http://h:80",
        "#",
        "docker",
        "login",
        "-p",
        f"-x {SECRET}",
        "-p",
    ]
    kept = redact({"x": Capture("/proc/4711/cmdline", "ok", "\0".join(words).encode())})["x"].text.split("\0")
    assert kept == [*words[:2], "bob:" + "redacted" * 4, *words[3:9], "redacted" * 4, "-p"]


def example(row: Option | Argument) -> str:
    program = row.programs.split()[0]
    if isinstance(row, Argument):
        flags = f" -{row.flags}" if row.flags else ""
        return " ".join((program + flags, *row.path, *["x"] * row.skipped, "{}"))
    needed = " ".join(need.split("|")[0] for need in row.needs)
    value = {"": "{}", "@": "bob:{}@h:80"}.get(row.behind, f"bob{row.behind}{{}}")
    option = row.names.split()[0]
    return f"{program} {needed} {option}{'' if row.is_glued else ' '}{value} x"


@pytest.mark.parametrize("row", [*OPTIONS, *ARGUMENTS], ids=example)
def test_each_row_of_the_table_is_looked_for(row: Option | Argument) -> None:
    for program in row.programs.split():
        written = example(row).replace(row.programs.split()[0], program, 1)
        assert may_hold_secret(written.format(SECRET))
        assert hidden(written.format(SECRET)) == written.format("redacted" * 4)


@pytest.mark.parametrize(
    "written",
    [
        "{",
        "'",
        '"',
        "\\",
        "curl -u '",
        'docker login -p "',
        "x --token",
        "--token,",
        "[--token,",
        '"--token","',
        "$(curl -u",
    ],
)
def test_text_that_ends_anywhere_is_read_to_its_end(written: str) -> None:
    assert secrets(written) == []


@pytest.mark.parametrize(
    "unit",
    [
        "curl ",
        "curl -u x:' ",
        'curl"";',
        "'curl';",
        "curl '\"",
        '\\"curl \\\\\\"',
        "curl \\\n",
        '"--token",',
        "[--token, x ",
        "- --token\n",
        "  --token\n",
        'a;"curl b"',
        "curl $( ",
        '"curl x" ',
    ],
)
def test_a_line_that_was_made_to_cost_the_square_of_its_length_is_answered(unit: str) -> None:
    secrets("curl -u " + unit * (100_000 // len(unit)))
