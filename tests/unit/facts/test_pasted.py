"""Pasted text as evidence."""

from __future__ import annotations

import json

import pytest

from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.diagnoses.views import kubernetes_nodes
from gpunode.errors import UsageError
from gpunode.facts import pasted
from gpunode.facts.items import split_items


@pytest.mark.parametrize("name", ["standard input", "paste.txt", "./paste.txt", "/home/u/paste.txt", "/etc/paste"])
def test_content_decides_the_kind_whatever_the_file_name(name: str) -> None:
    said = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
    (item,) = split_items(pasted.parse_text_report(said, name))
    assert item.kind == "container-run"


def test_log_file_name_decides_the_kind() -> None:
    (item,) = split_items(pasted.parse_text_report("nothing that would tell", "/var/log/kern.log"))
    assert item.kind == "kernel-log"


@pytest.mark.parametrize("prompt", ["gpu1 ~ # ", "host:~ # ", "host:/etc # ", "root@gpu1:~# ", "[root@gpu1 ~]# ", "$ "])
def test_prompts_of_every_shell_are_recognized(prompt: str) -> None:
    found = split_items(pasted.parse_text_report(f"{prompt}lsmod\nnouveau 1 0\n{prompt}uname -r\n6.1.0\n"))
    assert [item.kind for item in found] == ["lsmod", "uname"]


@pytest.mark.parametrize(
    "prompt",
    [
        *("gpu1 ~ # ", "host:~ # ", "n4:/etc# ", "root@gpu1:~# ", "[root@gpu1 ~]# ", "$ ", "❯ ", "PS C:\\Users\\me> "),
        *("admin@sles:~> ", "u@h /etc> ", "➜  ~ ", "➜  cuda git:(main) ✗ ", "host% ", "[12:01:33] root@h:~# "),
        *("┌──(kali㉿kali)-[~]\n└─$ ", "┌──(root㉿kali)-[/etc]\n└─# ", "╭─u@h ~ \n╰─$ ", "PS /home/u> "),
    ],
)
def test_session_is_split_at_known_and_unknown_commands(prompt: str) -> None:
    text = f"{prompt}lsmod\nnouveau 1 0\n{prompt}./ours --try\nfailed\n{prompt}uname -r\n6.1.0\n"
    found = split_items(pasted.collect_pieces([("what I saw on the node", text)]))
    assert [(item.written, item.text) for item in found] == [
        ("lsmod", "nouveau 1 0"),
        ("./ours --try", "failed"),
        ("uname -r", "6.1.0"),
    ]


@pytest.mark.parametrize("place", ["user@host:~> ", "user@host ~> ", "➜  ~ ", "[1:02] u@h:~$ "])
def test_prompts_in_a_pasted_file_are_recognized(place: str) -> None:
    found = split_items(pasted.parse_text_report(f"{place}lsmod\nnouveau 1 0\n{place}uname -r\n6.1.0\n{place}\n"))
    assert [(item.kind, item.text) for item in found] == [("lsmod", "nouveau 1 0"), ("uname", "6.1.0")]


@pytest.mark.parametrize("empty", ["root@n:~#", "[root@n ~]# ", "(venv) u@n:/etc$", "u@n:~>"])
def test_empty_prompt_line_is_no_output(empty: str) -> None:
    text = f"root@n:~# uname -r\n6.1.0\n{empty}\nroot@n:~# lsmod | grep nvidia\n{empty}\n"
    for found in (
        split_items(pasted.parse_text_report(text)),
        split_items(pasted.collect_pieces([("what I saw", text)])),
    ):
        assert [item.text for item in found] == ["6.1.0", ""]


@pytest.mark.parametrize(
    "line",
    [
        "/tmp/ccX1b.s: Assembler messages:",
        "/usr/bin/ld: nv.o: in function `f':",
        "/usr/src/nvidia-550/nv.c: In function 'f':",
        "/opt/x.cu:12: warning:",
    ],
)
def test_source_code_location_is_no_heading(line: str) -> None:
    said = f"{line}\nError! No space left on device"
    (item,) = split_items(pasted.parse_text_report(f"$ cat /var/lib/dkms/nvidia/550.127.05/build/make.log\n{said}\n"))
    assert (item.kind, item.text) == ("make-log", said)


@pytest.mark.parametrize("heading", ["/etc/docker/daemon.json:", "/var/log/kern.log (yesterday):"])
def test_lone_path_is_a_heading(heading: str) -> None:
    found = split_items(pasted.parse_text_report(f"$ uname -r\n6.1.0\n{heading}\none\n"))
    assert [item.text for item in found] == ["6.1.0", "one"]


def test_folder_above_a_long_listing_is_its_listing() -> None:
    missing = "ls: cannot access '/etc/cdi': No such file or directory"
    said = f"{missing}\n/var/run/cdi:\ntotal 12\n-rw-r--r-- 1 root root 9 nvidia.json\n"
    (_, listing) = split_items(pasted.parse_text_report(said))
    assert (listing.kind, listing.source.words) == ("listing", ("ls", "-l", "/var/run/cdi"))


@pytest.mark.parametrize(
    "line",
    [
        *("# cat", "[plugins] # lsmod", "a comment # dmesg", "cost $ 5", "50% $ lsmod", "user@host.org> uname"),
        *(
            "➜  Local:   http://localhost:5173/",
            "100% lsmod",
            "a -> lsmod",
            "└─nvidia",
            "└── lsmod",
            "me@h.org: > uname",
        ),
    ],
)
def test_hash_sign_in_a_file_is_no_prompt(line: str) -> None:
    (item,) = split_items(pasted.collect_pieces([("/etc/some.conf", f"one\n{line}\ntwo")]))
    assert item.written == "/etc/some.conf"


def test_many_pieces_take_linear_time_and_are_limited() -> None:
    pieces = [("dmesg", "NVRM: Xid (PCI:0000:01:00): 79, pid=1")] * pasted.MAX_REPORT_PIECES
    assert len(pasted.collect_pieces(pieces)) == pasted.MAX_REPORT_PIECES
    assert list(pasted.collect_pieces(pieces[:3])) == ["dmesg", "dmesg#2", "dmesg#3"]
    with pytest.raises(UsageError, match="the report is not read"):
        pasted.collect_pieces(piece for _ in range(1 << 40) for piece in pieces[:1])
    with pytest.raises(UsageError, match="the report is not read"):
        pasted.parse_text_report("$ dmesg\nx\n" * (pasted.MAX_REPORT_PIECES + 1))


def test_endless_log_line_is_cut_and_json_is_not() -> None:
    log = "[    1.0] NVRM: Xid (PCI:0000:01:00): 79, pid=1 " + "a" * 1_000_000 + "\nnext\n"
    (kept,) = pasted.collect_pieces([("dmesg", log)]).values()
    assert len(kept.data) < 70_000
    assert kept.text.startswith(log[:60_000])
    assert "more characters of this line were not read)\nnext" in kept.text
    assert pasted.collect_pieces([("dmesg", kept.text)])["dmesg"].data == kept.data
    whole = json.dumps({"items": ["a" * 1_000_000]})
    (node,) = pasted.collect_pieces([("kubectl get --raw /api/v1/pods", whole)]).values()
    assert node.text == whole


def test_shell_trace_is_a_session() -> None:
    found = split_items(pasted.collect_pieces([("the CI job", "+ lsmod\nnouveau 1 0\n+ uname -r\n6.1.0\n")]))
    assert [(item.kind, item.text) for item in found] == [("lsmod", "nouveau 1 0"), ("uname", "6.1.0")]


def test_commands_at_a_container_prompt_are_of_the_container() -> None:
    said = "root@gpu1:~# ls /dev\nnvidia0\nroot@gpu1:~# docker exec -it 3f2a bash\nroot@3f2a1b09c7de:/# ls /dev\nnull"
    assert [item.where for item in split_items(pasted.collect_pieces([("a terminal", said)]))] == [
        "host",
        "container",
        "container",
    ]


@pytest.mark.parametrize("prompt", ["#", "%"])
def test_hash_sign_is_a_root_prompt_without_another_prompt(prompt: str) -> None:
    said = f"{prompt} after three reboots:\n{prompt} lsmod\nnouveau 1 0\n{prompt} uname -r\n6.1.0"
    found = [(item.kind, item.text) for item in split_items(pasted.collect_pieces([("collected", said)]))]
    assert found == [("text", f"{prompt} after three reboots:"), ("lsmod", "nouveau 1 0"), ("uname", "6.1.0")]


def test_hash_sign_beside_another_prompt_is_a_comment() -> None:
    said = "$ lsmod\nnouveau 1 0\n# dmesg has nothing\n$ uname -r\n6.1.0"
    assert [item.kind for item in split_items(pasted.collect_pieces([("collected", said)]))] == ["lsmod", "uname"]


@pytest.mark.parametrize("source", ["/etc/modprobe.d/x.conf", "/root/setup.sh", "diff -u a b"])
def test_lines_of_a_file_are_not_commands(source: str) -> None:
    said = "one\n# modprobe nvidia\n+++ /etc/fstab\n"
    assert len(split_items(pasted.collect_pieces([(source, said)]))) == 1


@pytest.mark.parametrize(
    ("entry", "source", "text"),
    [
        ('{"source": "lsmod", "text": ["Module", "x 1 0"]}', "lsmod", "Module\nx 1 0"),
        ('{"command": "lsmod", "output": "x 1 0"}', "lsmod", "x 1 0"),
        ('{"path": "/etc/x", "content": ""}', "/etc/x", ""),
        ('"x 1 0"', "pasted text", "x 1 0"),
        (
            '{"source": "kubectl get node n -o json", "text": {"kind": "Node"}}',
            "kubectl get node n -o json",
            '{\n "kind": "Node"\n}',
        ),
    ],
)
def test_variants_of_a_json_entry_are_accepted(entry: str, source: str, text: str) -> None:
    (_, found) = pasted.parse_json_report(f'[{{"source": "uname -r", "text": "6.1"}}, {entry}]', "r.json").values()
    assert (found.source, found.text) == (source, text)


@pytest.mark.parametrize(
    "bad", ["7", "null", "{}", '{"source": "dmesg"}', '{"source": "dmesg", "text": null}', '{"text": "x"}']
)
def test_invalid_json_entry_is_named_with_its_line(bad: str) -> None:
    first = '{"source": "uname -r", "text": "6.1, [x],\\n"}'
    report = f'[\n  {first},\n  {{"source": "lsmod",\n   "text": "x"}},\n\n  {bad}\n]\n'
    with pytest.raises(UsageError, match=r"r\.json, line 6: entry 3 has no"):
        pasted.parse_json_report(report, "r.json")
    with pytest.raises(UsageError, match=r"r\.json, line 6: entry 3 has no"):
        pasted.parse_json_report(f'{{"evidence": {report}}}', "r.json")


def test_truncated_json_report_is_refused_with_its_line() -> None:
    with pytest.raises(UsageError) as refused:
        pasted.parse_json_report('[\n{"source": "dmesg", "text": "x"},\n{"source": "lsm', "r.json")
    assert "line 3" in refused.value.why


def test_truncated_kubectl_json_is_read_as_far_as_possible() -> None:
    node = {"kind": "Node", "metadata": {"name": "n"}, "status": {"capacity": {"nvidia.com/gpu": "8"}, "more": {}}}
    whole = json.dumps(node, indent=4)
    evidence = pasted.collect_pieces([("kubectl get node n -o json", whole[: whole.index("more") + 3])])
    (found,) = kubernetes_nodes.kube_nodes(take_snapshot(evidence))
    assert found.capacity["nvidia.com/gpu"].value == 8


def test_fence_of_markdown_is_no_part_of_a_file() -> None:
    post = 'I made the file:\n\n```\n{\n    "default-runtime": "nvidia"\n}\n```\nand it fails\n'
    node = take_snapshot(pasted.collect_pieces([("", post)]))
    (file,) = node.files("*daemon.json")
    assert json.loads(file.text) == {"default-runtime": "nvidia"}
    assert "and it fails" in [item.text.strip() for item in node.items]


def test_kernel_log_behind_the_answer_of_a_command_is_found() -> None:
    post = (
        "The card is dead?\n\n# lspci -nnk\n03:00.0 3D controller [0302]: NVIDIA GP104GL [Tesla P4] [10de:1bb3]\n"
        "\tKernel driver in use: nvidia\n\nand dmesg has\n\n"
        "[   87.358035] NVRM: The NVIDIA GPU 0000:03:00.0 (PCI ID: 10de:1bb3)\n"
        "               NVRM: installed in this system is not supported by open\n"
    )
    kinds = {item.kind: item.text for item in split_items(pasted.collect_pieces([("", post)]))}
    assert kinds["kernel-log"].startswith("[   87.358035] NVRM")
    assert "NVRM" not in kinds["lspci"]


def test_prompts_in_backticks_begin_commands() -> None:
    text = (
        "`(base) me@box:~$ docker --version`\nDocker version 27.4.1, build b9d17ea\n\n"
        '`(base) me@box:~$ cat /etc/docker/daemon.json`\n{\n  "runtimes": {}\n}\n\n'
        "`$ nvidia-smi`\nNo devices were found"
    )
    pieces = pasted.parse_text_report(text)
    assert [one.source for one in pieces.values()] == ["docker --version", "cat /etc/docker/daemon.json", "nvidia-smi"]
    assert b"`" not in b"".join(one.data for one in pieces.values())
