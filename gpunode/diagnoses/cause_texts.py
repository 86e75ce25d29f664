"""Read the texts about causes: ``causes/FAMILY.md``, also published as the reference, has a section for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from gpunode.fast_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class CauseText:
    """The text of a cause.

    Attributes:
        title: what is wrong, in a few words.
        story: what happens, why, and what users see; paragraphs separated by empty lines.
        sources: URLs of the public documents behind the facts.
    """

    title: str
    story: str
    sources: tuple[str, ...]


def parse_section(section: str) -> CauseText:
    """Return the text of a section without its heading; ValueError if a part is missing."""
    title, *story, sources = section.strip().split("\n\n")
    bold = re.fullmatch(r"\*\*(.+)\*\*", title)
    urls = re.fullmatch(r"Sources: (<https://\S+>(?:,\n<https://\S+>)*)", sources)
    if bold is None or urls is None or not story:
        raise ValueError("a section has a title in bold, paragraphs, and 'Sources: <URL>', a line each")
    return CauseText(
        bold[1], "\n\n".join(" ".join(one.split()) for one in story), tuple(re.findall(r"<(\S+)>", urls[1]))
    )


@cache
def read_sections() -> Mapping[str, str]:
    """Return the section of every cause, unparsed, without its heading."""
    pages = (page.read_text("utf-8") for page in Path(__file__).with_name("causes").iterdir())
    sections = (section.partition("\n") for page in pages for section in page.split("\n## ")[1:])
    return {cause: text for cause, _, text in sections}


@cache
def find_text(cause: str) -> CauseText:
    """Return the text of a cause; KeyError if there is none."""
    return parse_section(read_sections()[cause])
