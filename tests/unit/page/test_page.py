from __future__ import annotations

import html.parser
import re
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.command import command
from gpunode.diagnoses.model import Diagnosis
from gpunode.diagnoses.snapshot import cite, take_snapshot
from gpunode.facts.evidence import Evidence
from gpunode.page.markup import PageOrigin
from gpunode.page.report import node_page
from gpunode.redaction.evidence import redact
from gpunode.workflow.doctor import diagnose_evidence
from tests.unit.page import nodes

GOLDEN = Path(__file__).parent / "golden"
ABOUT = PageOrigin("gpu-17", "this machine", "2026-11-21 20:00 UTC", "0.1.0")
NOUVEAU = nodes.evidence(
    (
        "lspci -nnk",
        "5a:00.0 3D controller [0302]: NVIDIA Corporation GV100 [10de:1db6]\n\tKernel driver in use: nouveau\n",
    ),
    ("lsmod", "Module                  Size  Used by\nnouveau              2400256  4\n"),
    ("uname -r", "6.1.0-31-amd64"),
)


def render_node(evidence: Evidence, about: PageOrigin = ABOUT) -> str:
    return node_page(diagnose_evidence(redact(evidence)), about)


class Seen(html.parser.HTMLParser):
    """A page as a browser would parse it, and whether every element is closed."""

    VOID = frozenset({"meta", "link", "br", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if tag == "a" else []
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


PAGES = {
    "nouveau": NOUVEAU,
    "hostile": nodes.hostile(),
    "large": nodes.large(),
    "nothing": nodes.evidence(("true", "x")),
}
NEVER = frozenset({"script", "img", "iframe", "object", "embed", "base", "form", "image", "use", "foreignobject"})
FETCHING = frozenset({"src", "style", "srcset", "action", "data", "poster"})
every_page = pytest.mark.parametrize("name", PAGES)


@every_page
def test_every_element_is_closed_and_every_id_is_unique(name: str) -> None:
    seen = Seen(render_node(PAGES[name]))
    assert len(seen.ids) == len(set(seen.ids))
    inner = [link[1:] for link in seen.links if link.startswith("#")]
    assert set(inner) <= set(seen.ids)


@every_page
def test_page_runs_and_fetches_nothing(name: str) -> None:
    text = render_node(PAGES[name])
    for tag, given in Seen(text).tags:
        assert tag not in NEVER
        assert not any(key.startswith("on") or key in FETCHING for key in given), (tag, given)
        if "href" in given:
            assert re.match(r"https?://|#|data:,$", given["href"] or ""), given
    assert "url(" not in text
    assert "@import" not in text
    policies = [given["content"] for tag, given in Seen(text).tags if given.get("http-equiv")]
    assert [(policy or "").partition(";")[0] for policy in policies] == ["default-src 'none'"]


def test_external_links_are_only_our_sources() -> None:
    out = [link for link in Seen(render_node(nodes.hostile())).links if not link.startswith("#")]
    assert all("evil" not in link for link in out)


def test_hostile_evidence_is_escaped() -> None:
    text = render_node(nodes.hostile(), PageOrigin(nodes.HOSTILE, nodes.HOSTILE, nodes.HOSTILE, "0.1.0"))
    assert "<script" not in text
    assert "&lt;script&gt;" in text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]", text)
    assert "\\u202e" in text


def test_page_contains_no_secret() -> None:
    text = render_node(nodes.hostile())
    assert "hunter2" not in text
    assert "5ecret" not in text


def test_root_cause_is_on_top_with_layer_evidence_and_command() -> None:
    text = render_node(NOUVEAU)
    order = [
        "root cause",
        "<h1",
        "nouveau owns the GPU",
        "next: ",
        "sudo gpunode setup --only nouveau",
        'class="broken"',
        "<mark>",
    ]
    places = [text.index(part, text.index("<body")) for part in order]
    assert places == sorted(places)


def test_checks_of_the_only_fault_are_listed() -> None:
    likely = replace(
        nodes.examined().diagnosis.findings[0], confidence="likely", look_at=(command("dmesg"), command("lspci", "-vv"))
    )
    text = node_page(replace(nodes.examined(), diagnosis=Diagnosis((likely,), ())), ABOUT)
    assert "lspci -vv" in text[text.index("to be sure, look at") :]


def test_page_is_reproducible() -> None:
    assert render_node(nodes.large()) == render_node(nodes.large())


def test_endless_evidence_gives_a_page_of_limited_size() -> None:
    fault = f"NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus {'x' * 300}"
    log = "\n".join(f"[{number}.0] {fault}" for number in range(20_000))
    seen = take_snapshot(nodes.evidence(("dmesg", log)))
    citations = tuple(cite(seen.items[0], number) for number in range(1, 20_000, 20))
    lost = replace(nodes.examined().diagnosis.findings[0], citations=citations)
    examined = replace(nodes.examined(), snapshot=seen, diagnosis=Diagnosis((lost,), ()))
    text = node_page(examined, ABOUT)
    assert len(text) < 600_000
    assert "970 lines more of the same" in text


def test_page_of_many_findings_shows_less_of_each_piece() -> None:
    seen = take_snapshot(
        nodes.evidence(*((f"file{n}", "\n".join(f"line {i} {'x' * 90}" for i in range(999))) for n in range(20)))
    )
    lost = replace(nodes.examined().diagnosis.findings[0], citations=tuple(cite(item, 500) for item in seen.items))
    many = tuple(replace(lost, cause=f"cause-{number}") for number in range(20))
    assert len(node_page(replace(nodes.examined(), snapshot=seen, diagnosis=Diagnosis(many, ())), ABOUT)) < 2_000_000


def test_page_matches_its_golden_file() -> None:
    """``python -m tests.unit.page.test_page`` rewrites it; check it in a browser before you commit."""
    assert sample() == (GOLDEN / "sample.html").read_text()


def sample() -> str:
    """Return a page with every part, one element per line."""
    return node_page(nodes.examined(), ABOUT).replace("><", ">\n<")


def _luminance(colour: str) -> float:
    short = colour.lstrip("#")
    full = "".join(2 * c for c in short) if len(short) == 3 else short
    parts = [int(full[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


SHEET = (Path(__file__).parents[3] / "gpunode/page/style.css").read_text()
SCHEMES = [
    dict(re.findall(r"--([\w-]+): (#[0-9a-f]+)", block)) for block in re.findall(r":root \{(.*?)\}", SHEET, re.DOTALL)
]
INKS = [
    *(("ink", paper) for paper in ("paper", "card", "code", "bad-paper", "warn-paper")),
    *(("dim", paper) for paper in ("paper", "card", "code")),
    *(("link", paper) for paper in ("paper", "card")),
    *((ink, paper) for ink in ("bad", "warn") for paper in ("card", f"{ink}-paper")),
    *(("good", "card"), ("proof-ink", "proof"), ("warn", "bad-paper")),
]


@pytest.mark.parametrize("scheme", range(3), ids=["light", "dark", "print"])
@pytest.mark.parametrize(("ink", "paper"), INKS)
def test_text_colours_have_sufficient_contrast(scheme: int, ink: str, paper: str) -> None:
    """Contrast of WCAG 2.2, level AA: 4.5 to 1."""
    colours = SCHEMES[scheme]
    light, dark = sorted((_luminance(colours[ink]), _luminance(colours[paper])), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 4.5, (ink, paper)


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / "sample.html").write_text(sample())
