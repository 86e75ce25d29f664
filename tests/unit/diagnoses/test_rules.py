"""Laws of all rules: ids are unique, explanations run one way, texts and addresses exist."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpunode.diagnoses import consequences, rule_families, rules_by_cause
from gpunode.diagnoses.model import Rule

ALL = [rule for family in rule_families() for rule in family.rules]
KNOWN = [
    line for line in (Path(__file__).parent / "known_causes.txt").read_text().splitlines() if not line.startswith("#")
]
GROUPS = {name: group for name, group in vars(consequences).items() if isinstance(group, frozenset)}


def by_cause(rule: Rule) -> str:
    return rule.cause


def test_cause_and_family_ids_are_unique() -> None:
    causes = [rule.cause for rule in ALL]
    assert sorted(causes) == sorted(set(causes))
    assert len({family.id for family in rule_families()}) == len(rule_families())


def test_explanations_have_no_cycle() -> None:
    done: set[str] = set()
    way: list[str] = []

    def walk(cause: str) -> None:
        assert cause not in way, f"a circle: {' > '.join([*way[way.index(cause) :], cause])}"
        if cause in done or cause not in rules_by_cause():
            return
        way.append(cause)
        for consequence in sorted(rules_by_cause()[cause].explains):
            walk(consequence)
        way.pop()
        done.add(cause)

    for rule in ALL:
        walk(rule.cause)


@pytest.mark.parametrize("cause", KNOWN)
def test_every_known_cause_has_a_rule(cause: str) -> None:
    if cause not in rules_by_cause():
        pytest.skip("no rule yet")
    assert rules_by_cause()[cause].cause == cause


@pytest.mark.parametrize("rule", ALL, ids=by_cause)
def test_rule_has_a_well_formed_id_title_and_story(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)+", rule.cause)
    assert rule.title.strip()
    assert not rule.title.endswith(".")
    assert len(rule.story.split()) >= 20, "a story has two to four sentences"
    assert rule.story.rstrip().endswith((".", ")"))


@pytest.mark.parametrize("rule", ALL, ids=by_cause)
def test_rule_cites_public_https_sources(rule: Rule) -> None:
    assert rule.sources
    for source in rule.sources:
        address = urlsplit(source)
        assert address.scheme == "https", source
        assert "." in address.netloc, source


@pytest.mark.parametrize("name", sorted(GROUPS))
def test_group_names_existing_causes(name: str) -> None:
    assert GROUPS[name] <= {*KNOWN, *rules_by_cause()}
