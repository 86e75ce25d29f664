from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.facts.model import EMBEDDED_KEY_PLACEHOLDER, PackageSource
from gpunode.packages.deb.sources import is_source_list, parse

LIST = "/etc/apt/sources.list.d/x.list"
DEB822 = "/etc/apt/sources.list.d/x.sources"


def test_one_line_entry_with_options_is_parsed() -> None:
    line = "deb [ arch=amd64,arm64 signed-by=/usr/share/keyrings/k.gpg ] https://r/x/ /  # NVIDIA\n"
    entry = PackageSource(
        LIST, 1, "https://r/x/", "/", (), "/usr/share/keyrings/k.gpg", architectures=("amd64", "arm64")
    )
    assert parse(LIST, line) == (entry,)


def test_disabled_entry_is_parsed_and_prose_is_not() -> None:
    text = "# deb packages are described below\n#deb https://r/experimental/deb/$(ARCH) /\n# See deb https\n"
    assert [(one.line, one.suite, one.enabled) for one in parse(LIST, text)] == [(2, "/", False)]


@pytest.mark.parametrize(
    "comment", ["# deb http://example.com/repo stable", "# deb file: x y", "#deb [ http://x / main"]
)
def test_comment_that_is_no_valid_entry_stops_nothing(comment: str) -> None:
    assert [one.line for one in parse(LIST, f"{comment}\ndeb http://a b c\n")] == [2]


def test_cdrom_uri_with_spaces_is_parsed() -> None:
    (disc,) = parse(LIST, "deb cdrom:[Debian GNU/Linux 12 _Bookworm_ - #1]/ bookworm main\n")
    assert (disc.uri, disc.suite) == ("cdrom:[Debian GNU/Linux 12 _Bookworm_ - #1]/", "bookworm")


def test_deb822_paragraph_expands_to_every_combination() -> None:
    text = (
        "# a comment\n\nTypes: deb deb-src\nURIs: https://a/d https://b/d\nSuites: s\n# between\n s-updates\n"
        "Components: main\n contrib\nsigned-by: /k.gpg\n"
    )
    found = parse(DEB822, text)
    assert len(found) == 8
    assert {(one.line, one.components, one.signed_by) for one in found} == {(3, ("main", "contrib"), "/k.gpg")}
    assert {(one.uri, one.suite, one.source_package) for one in found} >= {("https://b/d", "s-updates", True)}


def test_embedded_key_is_marked() -> None:
    text = "Types: deb\nURIs: https://a\nSuites: ./\nEnabled: no\nSigned-By:\n -----BEGIN PGP PUBLIC KEY\n .\n x\n"
    (one,) = parse(DEB822, text)
    assert (one.signed_by, one.enabled) == (EMBEDDED_KEY_PLACEHOLDER, False)


@pytest.mark.parametrize(
    ("path", "text", "line"),
    [
        (LIST, "\ndeb https://r\n", 2),
        (LIST, "rpm https://r x y\n", 1),
        (LIST, "deb r stable main\n", 1),
        (LIST, "deb https://r stable\n", 1),
        (LIST, "deb https://r / main\n", 1),
        (DEB822, "Types: deb\nSuites: x\n", 1),
        (DEB822, "\nTypes: deb\nnonsense\n", 3),
        (DEB822, "Types: rpm\nURIs: https://r\nSuites: /\n", 1),
    ],
)
def test_malformed_entry_is_named_by_file_and_line(path: str, text: str, line: int) -> None:
    with pytest.raises(ValueError, match=f"{path}:{line}: "):
        parse(path, text)


def test_file_names_ignored_by_apt_are_no_source_lists() -> None:
    assert is_source_list("/etc/apt/sources.list")
    assert is_source_list("/etc/apt/sources.list.d/cuda-debian12-x86_64.list")
    for name in ("x.list.save", "x.list.distUpgrade", "a b.list", "sub/x.list"):
        assert not is_source_list(f"/etc/apt/sources.list.d/{name}")


@given(st.sampled_from([LIST, DEB822]), st.text(alphabet="deb-src https://[]=#\n\tTypes:URISuites\"'"))
def test_hostile_text_raises_only_value_error(path: str, text: str) -> None:
    try:
        parse(path, text)
    except ValueError:
        return
