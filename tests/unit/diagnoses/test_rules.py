"""Laws of all rules: ids are unique, explanations run one way, texts and addresses exist."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpunode import diagnoses
from gpunode.diagnoses import consequences, rule_families, rules_by_cause
from gpunode.diagnoses.cause_texts import parse_section
from gpunode.diagnoses.model import Rule, RuleFamily

ALL = [rule for family in rule_families() for rule in family.rules]
KNOWN = [
    line for line in (Path(__file__).parent / "known_causes.txt").read_text().splitlines() if not line.startswith("#")
]
PAGES = Path(diagnoses.__file__).with_name("causes")
GROUPS = {name: group for name, group in vars(consequences).items() if isinstance(group, frozenset)}


def by_section(rule: Rule) -> str:
    page = next(family.id for family in rule_families() if rule in family.rules)
    return f"{page}.md#{rule.cause}"


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


@pytest.mark.parametrize("family", rule_families(), ids=lambda family: family.id)
def test_page_of_a_family_has_one_section_for_each_cause(family: RuleFamily) -> None:
    causes = re.findall(r"^## (.*)$", (PAGES / f"{family.id}.md").read_text("utf-8"), re.MULTILINE)
    assert causes == [rule.cause for rule in family.rules]


def test_every_page_of_texts_belongs_to_a_family() -> None:
    assert {page.name for page in PAGES.iterdir()} == {f"{family.id}.md" for family in rule_families()}


@pytest.mark.parametrize("rule", ALL, ids=by_section)
def test_rule_has_a_well_formed_id_title_and_story(rule: Rule) -> None:
    assert re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)+", rule.cause)
    text = rule.text
    assert not text.title.endswith(".")
    assert len(text.story.split()) >= 20, "a story has two to four sentences"
    assert text.story.endswith((".", ")"))
    # Text that Markdown would treat as markup is in backticks.
    assert not re.search(r"[*<>|#\\]|\[\S*\]|(?<!\w)_|_(?!\w)", re.sub(r"`[^`]+`", "", f"{text.title} {text.story}"))


@pytest.mark.parametrize("rule", ALL, ids=by_section)
def test_rule_cites_public_sources(rule: Rule) -> None:
    assert all("." in urlsplit(source).netloc for source in rule.text.sources)


@pytest.mark.parametrize(
    "section",
    [
        "a title\n\nA story.\n\nSources: <https://a.example>",
        "**a title**\n\nSources: <https://a.example>",
        "**a title**\n\nA story.",
        "**a title**\n\nA story.\n\nSources: http://a.example",
        "**a title**\n\nA story.\n\nSources: <https://a.example>\n<https://b.example>",
    ],
)
def test_section_without_one_of_its_parts_is_refused(section: str) -> None:
    with pytest.raises(ValueError, match="a section has"):
        parse_section(section)


@pytest.mark.parametrize("name", sorted(GROUPS))
def test_group_names_existing_causes(name: str) -> None:
    assert GROUPS[name] <= {*KNOWN, *rules_by_cause()}
