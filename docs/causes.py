"""The pages of the causes that doctor knows, written from the rules themselves: a page a family, and an index."""

# ruff: noqa: INP001 - beside the script that calls it, not a package

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpunode.diagnoses.model import Fix, Rule, RuleFamily
    from gpunode.diagnoses.snapshot import Snapshot

_SPOKEN = re.compile(r"(`[^`\n]+`)")
_MOST_LINKS = 8
_SEVERITIES = {"error": "error", "warning": "warning: it works, and not as it could or not for long",
               "info": "not a fault, and known as such"}  # fmt: skip
_NODES = {
    "Debian and Ubuntu": "ID=ubuntu\nID_LIKE=debian\nVERSION_ID=24.04\n",
    "RHEL, Rocky Linux, Fedora": 'ID=rocky\nID_LIKE="rhel centos fedora"\nVERSION_ID=9.6\n',
}
_INDEX = """\
# Causes

Every cause that `gpunode doctor` can name, from the PCI bus up. `gpunode doctor CAUSE` tells the same in a terminal.
How one of them is chosen: [how doctor decides](../../explanation/how-doctor-decides.md).
"""


def pages(folder: Path, made: str) -> dict[Path, str]:
    """The pages in ``folder`` with their texts.

    Args:
        folder: of the pages.
        made: the line that says where a page comes from.
    """
    from gpunode.diagnoses import rule_families

    whole = {folder / f"{family.id}.md": _family(family, made) for family in rule_families() if family.rules}
    return whole | {folder / "index.md": _index(made)}


def _index(made: str) -> str:
    from gpunode.diagnoses import rule_families
    from gpunode.diagnoses.stack import TITLES

    rules = [(rule, family) for family in rule_families() for rule in family.rules]
    lines = [made, _INDEX]
    for layer, title in TITLES.items():
        here = ((rule, family) for rule, family in rules if rule.stack_layer == layer)
        found = sorted(here, key=lambda one: one[0].cause)
        if not found:
            continue
        lines += [
            f"## {title[:1].upper()}{title[1:]}",
            "",
            "| cause | what is wrong | severity |",
            "| --- | --- | --- |",
        ]
        lines += [
            f"| [`{rule.cause}`]({family.id}.md#{rule.cause}) | {_plain(rule.title)} | {rule.severity} |"
            for rule, family in found
        ]
        lines.append("")
    lines.append(f"{len(rules)} causes in {len({family.id for _, family in rules})} families.\n")
    return "\n".join(lines)


def _family(family: RuleFamily, made: str) -> str:
    title = f"{family.title[:1].upper()}{family.title[1:]}" if family.title.split()[0].islower() else family.title
    lines = [made, f"# {title}", "", "[All causes](index.md)", ""]
    lines += [f"- [`{rule.cause}`](#{rule.cause}): {_plain(rule.title)}" for rule in family.rules]
    for rule in family.rules:
        lines += ["", *_rule(rule)]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines).rstrip() + "\n")


def _rule(rule: Rule) -> Iterator[str]:
    from gpunode.diagnoses.stack import TITLES
    from gpunode.page.words import DISRUPTIONS

    yield from (f"## `{rule.cause}`", "", f"**{_plain(rule.title)}**", "")
    yield from ("| layer | severity | the fix |", "| --- | --- | --- |")
    yield f"| {TITLES[rule.stack_layer]} | {_SEVERITIES[rule.severity]} | {DISRUPTIONS[rule.disruption]} |"
    for paragraph in rule.story.split("\n\n"):
        yield from ("", _plain(" ".join(paragraph.split())))
    yield from _remedy(rule)
    if rule.explains:
        yield from ("", f"Known consequences: {_links(rule.explains)}.")
    if above := _explainers().get(rule.cause):
        yield from ("", f"Possible causes: {_links(above)}.")
    if rule.sources:
        yield from ("", f"Sources: {', '.join(f'<{source}>' for source in rule.sources)}")


def _remedy(rule: Rule) -> Iterator[str]:
    """What to do, once where every distribution does the same."""
    from gpunode.diagnoses import generic_remedy

    given = {node: generic_remedy(rule.cause, _node(text)) for node, text in _NODES.items()}
    if len(set(given.values())) == 1:
        given = {"": next(iter(given.values()))}
    for node, fixes in given.items():
        yield from ("", f"What to do{f' on {node}' if node else ''}:", "")
        yield from _fixes(fixes)


def _fixes(fixes: Iterable[Fix]) -> Iterator[str]:
    from gpunode.page.words import condition_suffix

    for number, fix in enumerate(fixes, 1):
        yield f"{number}. {_plain(fix.text)}{_plain(condition_suffix(fix.when))}"
        if fix.commands:
            yield from ("", "   ```sh", *(f"   {line}" for command in fix.commands for line in command.splitlines()))
            yield from ("   ```", "")


@cache
def _node(os_release: str) -> Snapshot:
    """A node of which nothing but its distribution is known."""
    from gpunode.diagnoses.snapshot import take_snapshot
    from gpunode.facts import pasted

    return take_snapshot(pasted.collect_pieces([("/etc/os-release", os_release)]))


@cache
def _explainers() -> Mapping[str, list[str]]:
    from gpunode.diagnoses import rules_by_cause

    found: dict[str, list[str]] = {}
    for rule in rules_by_cause().values():
        for cause in rule.explains:
            found.setdefault(cause, []).append(rule.cause)
    return found


@cache
def _places() -> Mapping[str, str]:
    from gpunode.diagnoses import rule_families

    return {rule.cause: family.id for family in rule_families() for rule in family.rules}


def _links(causes: Iterable[str]) -> str:
    places = _places()
    found = sorted(causes)
    shown = found if len(found) <= _MOST_LINKS + 1 else found[:_MOST_LINKS]
    links = [f"[`{cause}`]({places[cause]}.md#{cause})" if cause in places else f"`{cause}`" for cause in shown]
    more = f" and {len(found) - len(shown)} more (`gpunode doctor -v CAUSE` lists all)" if shown != found else ""
    return ", ".join(links) + more


def _plain(text: str) -> str:
    """``text`` as it stands in Markdown: what is not in backticks means nothing but itself."""
    parts = _SPOKEN.split(text)
    return "".join(part if part[:1] == "`" and number % 2 else _escaped(part) for number, part in enumerate(parts))


def _escaped(text: str) -> str:
    return re.sub(r"([*|\\\[\]])", r"\\\1", text).replace("<", "&lt;")
