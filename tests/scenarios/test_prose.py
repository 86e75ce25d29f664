"""Negative twins: the messages that prove each cause prove nothing if they are denied, asked or quoted."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from gpunode.diagnoses import diagnose
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import take_snapshot
from gpunode.facts import pasted
from tests.fakes.examples import examples
from tests.scenarios.reports import diagnosed_reports

SENTENCES = (
    "We never saw {} on this node.",
    "Is it normal that a friend has read {} in a forum? My own GPU works.",
    'A colleague got "{}" last year.',
    "If a node shows {}, what does it mean?",
    "The article says that {} is a common problem.",
    "There is no {} in the log.",
    "It's not {}.",
    "The build fails. It is not a {} here.",
)
# Texts around a message or a line of a log.
EXCERPTS = (
    "# {}",
    "Checked:\n- {}: no\n- nouveau: no",
    "| symptom | here |\n|---|---|\n| {} | no |",
    "```bash\n# reboot if it says {}\ndmesg\n```",
    '- alert: Gpu\n  annotations:\n    summary: "{}"',
    'Nein, "{}" steht bei uns nicht im Log.',
    "Wir haben {} nie gesehen.",
    "Nous n'avons jamais vu {} sur ce noeud.",
    "Aquí no hay ningún {} en los registros.",
    "Qui non abbiamo mai visto {}.",
    "Aqui não temos nenhum {} nos logs.",
    "У нас никогда не было {}.",
    "我们从来没有见过 {}。",
    "このノードでは {} は出ていません。",
    "Fixed an issue where {}.",
    "Driver 580.65 release notes: fixed a hang. {} during suspend.",
    "People say {} when a riser is bad.",
    "There is no\n{}\nin the log.",
    "We looked at all nodes, and on none of them is there a line like\n[ 1234.5] {}\nSo that is not it.",
    "Last year dmesg said:\n{}",
    "Last year dmesg said:\n\n```\n[ 1234.567890] {}\n```\nIt is fine now.",
    "The docs say:\n\n[ 12.345678] {}",
    "Runbook: if {}, reset the GPU",
    "Troubleshooting: {}: power cycle the node",
    "2. Step 3: {}: reboot",
    "- {} -> drain the node",
    "Reset the GPU when it prints {}",
)
_STAMP = re.compile(r"^[ \t>]*(?:\[[^\]]{1,40}\]|\w{3}\s+\d{1,2} [\d:]{8} \S+|[\dTZ:.+-]{12,40})?\s*(?:kernel:)?\s*")
# Further lines of a cause repeat the same in other words: three in the long run of the tests.
_MAX_MESSAGES = min(3, examples(1))


def messages() -> Iterator[tuple[str, str]]:
    """Yield the causes of all reports, each with messages that prove it."""
    found: dict[str, list[str]] = {}
    for one in diagnosed_reports():
        for finding in one.diagnosis.roots:
            seen = found.setdefault(finding.cause, [])
            for citation in finding.citations:
                message = _STAMP.sub("", citation.line, count=1).strip().rstrip(".?!:")
                is_sentence = citation.line_number and message.count(" ") > 1 and 12 < len(message) < 200
                if is_sentence and '"' not in message and message not in seen and len(seen) < _MAX_MESSAGES:
                    seen.append(message)
    return ((cause, message) for cause, of_cause in found.items() for message in of_cause)


def read(text: str) -> Diagnosis:
    """Return the diagnosis of a pasted text."""
    return diagnose(take_snapshot(pasted.parse_text_report(text)))


def test_message_that_is_denied_asked_or_quoted_proves_no_cause() -> None:
    proving = list(messages())
    assert len({cause for cause, _ in proving}) > 120
    wrong = {
        message: [(one.cause, one.confidence) for one in found.findings]
        for _, message in proving
        if (found := read("\n\n".join(sentence.format(message) for sentence in SENTENCES))).findings
    }
    assert wrong == {}


def test_message_in_heading_list_comment_or_old_log_proves_no_cause() -> None:
    between = "\n\nThe next one is unrelated.\n\n"
    wrong = {
        message: [(one.cause, one.confidence) for one in found.findings]
        for _, message in messages()
        # On a line of its own a path or a command is the source of what follows it.
        if not message.startswith(("/etc/", "podman version"))
        and (found := read(between.join(one.format(message) for one in EXCERPTS))).findings
    }
    assert wrong == {}


@pytest.mark.parametrize("excerpt", EXCERPTS)
def test_excerpt_proves_nothing_by_itself(excerpt: str) -> None:
    """The others in the same text hide nothing."""
    assert read(excerpt.format("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus")).findings == ()


@pytest.mark.parametrize("sentence", SENTENCES)
def test_prose_makes_a_suspect_with_its_line(sentence: str) -> None:
    text = sentence.format("GPU has fallen off the bus")
    found = read(text)
    assert not found.findings
    suspect = next(one for one in found.suspects if one.cause == "gpu-fallen-off-bus")
    assert text in {one.line for one in suspect.citations}


@pytest.mark.parametrize(
    "text",
    [
        "GPU has fallen off the bus",
        "NVRM: GPU at PCI:0000:01:00: GPU has fallen off the bus.",
        "> [ 12.345678] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "I see this:\n\n```\nGPU has fallen off the bus\n```",
        "My GPU is gone. It says:\nUnable to determine the device handle for GPU 0000:01:00.0: GPU is lost",
        "Since last year I get:\n[ 12.345678] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "The docs say:\nit works.\n\n[ 12.345678] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        '{"level": "error", "msg": "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."}',
    ],
)
def test_message_that_is_pasted_is_evidence(text: str) -> None:
    assert [one.cause for one in read(text).roots] == ["gpu-fallen-off-bus"]


def test_log_below_a_line_of_any_length_is_evidence() -> None:
    for long_line in ("1. " * 20_000, "before we fixed " * 4_000):
        assert [one.cause for one in read(f"{long_line}\n{XID}").roots] == ["gpu-fallen-off-bus"]


XID = "[ 12.345678] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
INTRODUCTIONS = (
    "Please check for errors:",
    "Can you look for the cause? This is what I have",
    "Below you will see the kernel log:",
    "For example:",
    "A user reported the following error:",
    "Our users see:",
    "A colleague sent me this log of the node:",
    "My colleague rebooted the node, then we saw:",
    "The docs say to run dmesg:",
    "If you need more logs, tell me.",
    "If you want to see the log, here it is:",
    "It used to work, until this appeared:",
    "It started two months ago:",
    "Two months ago we updated the driver, it still says:",
    "The GPU is not detected, and dmesg is full of lines like:",
    "It does not work with messages like",
    "Видеокарты нет:",
    "Der Node startet nie:",
    "我们看到：",
    "On the other node all is well, but on this one:",
    "I have never seen this error before:",
    "nvidia-smi does not show the GPU, and dmesg shows this:",
    "nvidia-smi hangs and the log has:",
)


@pytest.mark.parametrize("introduction", INTRODUCTIONS)
def test_log_below_its_introduction_is_evidence(introduction: str) -> None:
    for text in (f"{introduction}\n{XID}", f"{introduction}\n\n```\n{XID}\n```", f"{introduction}\n\n$ dmesg\n{XID}"):
        assert [(one.cause, one.confidence) for one in read(text).roots] == [("gpu-fallen-off-bus", "certain")]


@pytest.mark.parametrize("above", ["", "我们的节点今天出现了问题\n", "Der Node ist seit gestern nicht mehr da\n"])
@pytest.mark.parametrize(
    "stamp",
    ["12. Okt 10:11:12", " 1月 12 10:11:12", "11월 12 10:11:12", "нояб. 12 10:11:12", "nov. 12 10:11:12"],
)
def test_journal_with_a_translated_month_is_evidence(stamp: str, above: str) -> None:
    text = f"{above}{stamp} gpu1 kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
    assert [one.cause for one in read(text).roots] == ["gpu-fallen-off-bus"]


KEY_REJECTED = "modprobe: ОШИБКА: не удалось вставить 'nvidia': Key was rejected by service"
NO_KERNEL_IMAGE = "CUDA error: no kernel image is available for execution on the device"
PROGRAM_TABLE = """\
+-----------------+---------+
| Overall Health  | Failure |
+-----------------+---------+
| GPU 2 | Fail: Detected uncorrectable memory errors and row remapping failed on GPU 2 |
+-----------------+---------+
"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (f"Das ist bei uns\n{NO_KERNEL_IMAGE}", "framework-without-this-architecture"),
        (f"`{KEY_REJECTED}`", "secure-boot-key-not-enrolled"),
        (f"<pre>{KEY_REJECTED}</pre>", "secure-boot-key-not-enrolled"),
        (f'"{XID}"', "gpu-fallen-off-bus"),
        (f"[FIRING:1] GPU alert\nSummary: {XID}", "gpu-fallen-off-bus"),
        (f"Title: {XID}", "gpu-fallen-off-bus"),
        (PROGRAM_TABLE, "row-remap-failure"),
    ],
)
def test_message_in_a_usual_frame_is_evidence(text: str, cause: str) -> None:
    assert [one.cause for one in read(text).roots] == [cause]


@pytest.mark.parametrize(
    "text",
    [
        "We never saw\nGPU has fallen off the bus on this node.",
        "- Question: is it bad?\n- Is a GPU that has fallen off the bus broken for good?",
        "The kernel says that the GPU has fallen off the bus:",
        "Note: we never had Xid (PCI:0000:01:00): 79, GPU has fallen off the bus, on this node.",
        "Nobody here has a GPU that has fallen off the bus.",
        'Unsere Doku: "NVRM: Xid (PCI:0000:01:00): 48, Double Bit ECC Error" bedeutet Defekt. Bei uns kam das nie vor.',
        "NVIDIA driver 580.65 release notes: Fixed an issue where the GPU has fallen off the bus during suspend.",
        "error codes: Xid 48 = double bit ECC, Xid 79 = fallen off the bus",
        "| NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus | no |",
        '"GPU has fallen off the bus"',
        "Somebody told me that NVRM: GPU has fallen off the bus would be logged, but nvidia-smi works:",
        f"1. Look for lines such as\n   {XID}\n2. Drain the node.",
        f"Search the kernel log:\n\n    {XID}\n\nThen tell the data centre.",
        f"For example, you might see:\n{XID}",
        f"What does the line look like?\n{XID}",
        f"Typical lines look like:\n{XID}",
        "rules:\n  - fail:\n      msg: GPU has fallen off the bus",
        "[FILTER]\n    Name    grep\n    Regex   log GPU has fallen off the bus",
        "My GPU has fallen off the bus",
        "nvidia-smi works, no GPU has fallen off the bus",
        "Nothing about GPU has fallen off the bus.",
        f"On the other cluster:\n{XID}",
        f"Example output of a broken node:\n{XID}",
        f"This was the log before we replaced the card:\n{XID}",
        "- [ ] GPU has fallen off the bus",
        "/* GPU has fallen off the bus */",
        "logger 'GPU has fallen off the bus'",
        "if dmesg | grep -q 'GPU has fallen off the bus'; then reboot; fi",
        "On Monday ann wrote:\n> hi,\n> [ 12.345678] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.\n",
    ],
)
def test_summary_never_reports_what_only_prose_says(text: str) -> None:
    assert read(text).findings == ()


@pytest.mark.parametrize(
    "text",
    [
        "GPU has fallen off the bus",
        "GPU has fallen off the bus = Hardwaredefekt",
        "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus = Hardwaredefekt",
        'pr_err("NVRM: GPU has fallen off the bus");',
        'patterns: ["GPU has fallen off the bus"]',
        '["GPU has fallen off the bus", "nouveau"]',
        'MESSAGE="GPU has fallen off the bus"',
        '"description": "GPU has fallen off the bus"',
        "Before the repair: GPU has fallen off the bus",
        "| GPU has fallen off the bus |",
        "```c\nGPU has fallen off the bus\n```",
        "[09:12] <ann> NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "[30.11.26, 09:12:02] Ann: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        "[SOLVED] GPU has fallen off the bus",
        "Subject: GPU has fallen off the bus",
        "xids:\n  79: GPU has fallen off the bus",
        "79     GPU has fallen off the bus  power cycle",
        "  501  sudo dmesg | grep 'GPU has fallen off the bus'",
        "+Nov 29 10:11:12 node1 kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
        '  "pattern": "GPU has fallen off the bus"',
        '{"name": "79", "input": "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."}',
        '2026-11-29T10:11:12Z     xid_test.go:3: parsing "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."',
        "tests/test_xid.py::test_parse[NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.] PASSED",
        'Laptop: all works. Is it from "GPU has fallen off the bus"?',
        "$ git log --oneline\nb2c3d4e xid: parse NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus",
        f"$ echo '{XID}'\n{XID}",
        f"$ pytest -q\n{XID}",
        f"$ jq -r .body issue.json\n{XID}",
        f"Imagine this:\n{XID}",
        f"Suppose dmesg shows this:\n{XID}",
        f"I made this line up:\n{XID}",
        f"Here is a fake line for the parser:\n{XID}",
        f"Found on the internet:\n{XID}",
        f"We have never seen this line:\n{XID}",
        f"None of our nodes ever printed this:\n{XID}",
        f"This is NOT what I see:\n{XID}",
        f"This no longer appears after the RMA:\n{XID}",
        f"Before we swapped the riser:\n{XID}",
        f"Non abbiamo mai visto questa riga:\n{XID}",
        f"$ cat tests/fixtures/xid79.log\n{XID}",
        f"$ grep -rn Xid src tests/\n{XID}",
        f"+{XID}",
        "10:03:11 <@bob-x> NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.",
    ],
)
def test_message_that_somebody_may_have_typed_is_never_certain(text: str) -> None:
    assert [one.cause for one in read(text).findings if one.confidence == "certain"] == []


@pytest.mark.parametrize(
    "text",
    [
        f"<pre><code>{XID}\n</code></pre>",
        f"<p>dmesg:</p><pre>{XID}</pre>",
        f"* {XID}",
        f"512:{XID}",
        "Nov 29, 2026 @ 10:11:12.123\tnode1\tkernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
        "node1 kernel: NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus.",
        f"0: RuntimeError: {NO_KERNEL_IMAGE}",
        f"(RayWorker pid=123, ip=10.0.0.1) RuntimeError: {NO_KERNEL_IMAGE}",
        f"ERROR 11-29 10:11:12 engine.py:366] {NO_KERNEL_IMAGE}",
    ],
)
def test_message_in_the_frame_of_a_program_is_certain(text: str) -> None:
    assert [one.confidence for one in read(text).roots] == ["certain"]


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "/home/me/a.c:3:1: fatal error: generated/config.h: No such file or directory\nmake: *** [main.o] Error 1",
            "kernel-headers-missing",
        ),
        ("cuda_service: request to billing failed with code 804", "cuda-compat-not-supported-hw"),
        ("CudaWrapper: http error 804 from server", "cuda-compat-not-supported-hw"),
    ],
)
def test_look_alike_of_another_program_makes_nothing_certain(text: str, cause: str) -> None:
    assert cause not in [one.cause for one in read(text).findings if one.confidence == "certain"]


def test_source_that_is_no_command_or_file_makes_nothing_certain() -> None:
    found = diagnose(take_snapshot(pasted.collect_pieces([("what the user wrote", "GPU has fallen off the bus")])))
    assert [one.confidence for one in found.roots] == ["likely"]


def test_quote_of_unknown_author_is_never_certain() -> None:
    (found,) = read("> [ 12.345678] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.").roots
    assert found.confidence == "likely"
    assert found.next_step.command == "sudo dmesg | grep -iE 'xid|nvrm|fallen'"


@pytest.mark.parametrize(
    "heading",
    ["## dmesg of another node", "dmesg from the other machine:", "**Expected output of dmesg**", "## Expected dmesg"],
)
def test_heading_of_another_machine_makes_nothing_certain(heading: str) -> None:
    line = "[   12.345678] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
    found = read(f"My GPU is slow.\n\n{heading}\n\n```\n{line}\n```\n")
    assert "certain" not in [one.confidence for one in found.roots]


def test_example_in_a_template_is_never_certain() -> None:
    example = "[   12.345678] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
    found = read(f"### Kernel log\n<!--\n{example}\n-->\nnothing special\n")
    assert "certain" not in [one.confidence for one in found.roots]


def test_loss_without_a_number_is_not_reported_as_xid() -> None:
    text = "[    4.5] NVRM: The NVIDIA GPU 0000:01:00.0\n               NVRM: (PCI ID: 10de:134b) installed in this "
    (found,) = read(
        f"{text}system has\n               NVRM: fallen off the bus and is not responding to commands."
    ).roots
    assert found.summary == "GPU 0000:01:00.0 has fallen off the bus"


@pytest.mark.parametrize(
    ("source", "text", "cause"),
    [
        (
            "dcgmi health -c",
            "| GPU 2 | Fail: Detected uncorrectable memory errors and row remapping failed on GPU 2 |",
            "row-remap-failure",
        ),
        ("pasted text", "E: 无法定位软件包 linux-headers-6.1.0-13-amd64", "kernel-headers-missing"),
    ],
)
def test_translated_or_tabled_output_is_evidence(source: str, text: str, cause: str) -> None:
    found = diagnose(take_snapshot(pasted.collect_pieces([(source, text)])))
    assert cause in {one.cause for one in found.roots}
