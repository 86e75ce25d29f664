"""APT's configuration files, as apt.conf(5) describes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpunode.packages.deb.configuration import is_always_overridden, is_apt_conf_file, parse, relaxes_archive_checks


def test_apt_conf_scopes_comments_and_lines_are_parsed() -> None:
    text = """// Acquire::AllowInsecureRepositories "true";
# APT::Get::AllowUnauthenticated "true";
/* APT::Get::AllowUnauthenticated
   "true"; */
APT::Get::AllowUnauthenticated "true"; // on
Acquire {
  https::Verify-Peer "false";
  AllowWeakRepositories yes;
};
Dpkg::Options { "--force-confdef"; };
"""
    assert [(option.line, option.name, option.value) for option in parse("x", text)] == [
        (5, "apt::get::allowunauthenticated", "true"),
        (7, "acquire::https::verify-peer", "false"),
        (8, "acquire::allowweakrepositories", "yes"),
        (10, "dpkg::options", "--force-confdef"),
    ]
    assert all(relaxes_archive_checks(option.name, option.value) for option in parse("x", text)[:-1])


@pytest.mark.parametrize(
    ("text", "overridden"),
    [
        ('APT::Get::AllowUnauthenticated "1";', True),
        ('Dpkg::Options { "--force-confold"; "--force-bad-verify"; };', True),
        ('DPkg::Options:: "--force-all";', True),
        ('Acquire::Check-Valid-Until "0";', False),
        ('Acquire { Check-Date "no"; };', False),
        ('Acquire::https::Verify-Host "false";', False),
        ('Acquire::https::developer.download.nvidia.com::Verify-Peer "false";', False),
        ("Acquire::http { developer.download.nvidia.com { Verify-Peer off; }; };", False),
    ],
)
def test_relaxed_option_is_found_per_host_and_in_a_list(text: str, overridden: bool) -> None:
    (relaxed,) = [option for option in parse("x", text) if relaxes_archive_checks(option.name, option.value)]
    assert is_always_overridden(relaxed.name) is overridden


@pytest.mark.parametrize(
    "text",
    [
        'APT::Get::AllowUnauthenticated "false";',
        'Dpkg::Options { "--force-confdef"; };',
        'Acquire::Check-Valid-Until "true";',
        'Acquire::Retries "3";',
        "}{;",
    ],
)
def test_default_options_are_not_relaxed(text: str) -> None:
    assert not [option for option in parse("x", text) if relaxes_archive_checks(option.name, option.value)]


def test_file_names_ignored_by_apt_are_not_read() -> None:
    assert is_apt_conf_file("/etc/apt/apt.conf.d/99site")
    assert is_apt_conf_file("/etc/apt/apt.conf")
    assert not is_apt_conf_file("/etc/apt/apt.conf.d/99site.dpkg-old")
    assert not is_apt_conf_file("/etc/apt/preferences")


@given(st.text(alphabet='Aa:{}";#/* \n\\'))
def test_any_text_is_parsed(text: str) -> None:
    assert all(option.line <= text.count("\n") + 1 for option in parse("x", text))
