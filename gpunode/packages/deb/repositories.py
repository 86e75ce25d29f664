"""Enabling an NVIDIA repository in apt's source lists: one entry, one key, no foreign entry beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpunode.catalog.repositories import Repository
from gpunode.change import Change, FileChange, FileState, SigningKey, Trigger
from gpunode.facts.access import describe_nonroot_writers, explain_restriction, note_replaceable_files
from gpunode.facts.model import Facts, PackageSource, file_matches, require, value_or
from gpunode.outcome import Planned, Refusal, StepOutcome
from gpunode.packages.deb.sources import explain_closed_keyring_folder

# apt reads keyrings as the user _apt.
_OTHERS_READ_MODE_BIT = 0o004
# apt-transport-mirror(1), apt-transport-tor(1): the transport before the plus fetches through the one after it. apt
# reads a port as a number: 08443 is 8443.
_ARCHIVE_URI_START = re.compile(
    r"\A(?:mirror|(?:[a-z0-9.-]+\+)*https?)://(?:[^/@]*@)?([^/:@]+)(?::0*(?:80|443)(?=/|\Z)|(:)0*(?=\d))?",
    re.IGNORECASE,
)
_PERCENT_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")


def have_contradicting_checks(source: PackageSource, other: PackageSource, architecture: str) -> bool:
    """Return whether two entries are for one archive and disagree on its key, or on what apt checks.

    apt then reads no source at all ("Conflicting values set for option Signed-By"). For apt, entries are for one
    archive if it would store their lists in one file: the scheme, the border between path and suite, and whether an
    entry is for source packages do not matter. Source: apt 2.6, ``debReleaseIndex``;
    tests/conformance/apt/test_contradicting_sources.py compares with apt itself.
    """
    if not (source.enabled and other.enabled) or (source.signed_by, source.relaxed) == (other.signed_by, other.relaxed):
        return False
    return _comparable_address(source, architecture) == _comparable_address(other, architecture)


def _comparable_address(source: PackageSource, architecture: str) -> tuple[str, str]:
    """Return the address and suite by which entries are compared; the suite is empty if it is a path."""
    if source.suite.endswith("/"):
        return _normalize_uri(f"{source.uri}/{source.suite}", architecture), ""
    return _normalize_uri(source.uri, architecture), source.suite


def _normalize_uri(uri: str, architecture: str) -> str:
    """Return ``uri`` normalized: its architecture put in, the host in lower case, no scheme."""
    unescaped = _PERCENT_ESCAPE.sub(lambda match: chr(int(match[1], 16)), uri.replace("$(ARCH)", architecture))
    parts: list[str] = []
    for part in _ARCHIVE_URI_START.sub(lambda match: match[1].lower().rstrip(".") + (match[2] or ""), unescaped).split(
        "/"
    ):
        if part == ".." and parts[1:]:
            parts.pop()
        elif part not in {"", ".", ".."}:
            parts.append(part)
    return "/".join(parts)


def plan(repository: Repository, facts: Facts) -> StepOutcome:
    """Plan the repository's list and keyring, and remove entries that name the same archive with another key."""
    sources = require(facts.sources, "which apt sources there are")
    # Entries of other files that name the archive differently, or by another address of it.
    others = (source for source in sources if source.file != repository.list_file)
    rivals = tuple(source for source in others if _describe_key_bypass(source, repository))
    if foreign := next((r for r in rivals if not _serves_nothing_else(r.file, repository, sources)), None):
        return Refusal(
            what=f"{foreign.file}:{foreign.line} names the same archive {_describe_key_bypass(foreign, repository)}",
            why=f"only what the key in {repository.keyring} signs may come from {repository.uri}; "
            "the file lists other archives too, so gpunode does not remove it",
            hint=f"remove line {foreign.line} of {foreign.file}, then run the command again",
        )
    leaving = {rival.file for rival in rivals}
    staying = tuple(source for source in sources if source.file not in leaving)
    if (written := _plan_list_file(repository, staying, facts)) and _has_unrelated_entries(repository, sources):
        return Refusal(
            what=f"{repository.list_file} lists other archives, too",
            why=f"gpunode writes only {repository.uri} to that file, and would remove the others",
            hint="move the other entries to a separate file, then run the command again",
        )
    refresh = frozenset({Trigger("index-refresh", _choose_list_file(repository, staying))})
    changes = [
        *_plan_duplicate_removals(rivals, facts, refresh),
        *_plan_keyring(repository, facts, refresh),
        *(replace(change, triggers=refresh) for change in written),
    ]
    folder = repository.keyring.rpartition("/")[0]
    if changes and (closed := explain_closed_keyring_folder(folder, facts)):
        return Refusal(
            what=f"apt could not read the index of {repository.uri}",
            why=closed,
            hint=f"sudo chmod 0755 {folder}\nthen run the same command again",
        )
    keys = [f"…{fingerprint[-16:]}" for fingerprint in sorted(repository.key.fingerprints)]
    signer = f"signed by the key {' or '.join(keys)}"
    touched = {change.subject for change in changes}
    corrected = [change for change in _restore_modes(repository, staying, facts) if change.path not in touched]
    notes = tuple(note_replaceable_files(facts, (repository.keyring, _choose_list_file(repository, staying))))
    if not changes and corrected:
        return Planned(tuple(corrected), _explain_mode_repairs(corrected), notes)
    if not changes:
        return Planned((), f"{repository.uri} is enabled, {signer}", notes)
    faults = ((source, _describe_key_bypass(source, repository)) for source in sources)
    entries = (f"{source.file}:{source.line} names it {fault}" for source, fault in faults if fault)
    wrong = "; ".join((*entries, *_wrong_keys(repository, facts)))
    reason = f"packages come from {repository.uri}"
    return Planned((*changes, *corrected), f"{reason}; {wrong}" if wrong else reason, notes)


def _wrong_keys(repository: Repository, facts: Facts) -> Iterator[str]:
    """Return the keys in the keyring that it should not hold."""
    if (present := value_or(facts.file(repository.keyring), None)) is None:
        return
    from gpunode.catalog.openpgp import list_key_fingerprints  # loaded on use: a new node has no keyring yet

    try:
        present_fingerprints = list_key_fingerprints(present.content)
    except ValueError as error:
        yield f"{repository.keyring} is not a keyring: {error}"
        return
    if strangers := sorted(set(present_fingerprints) - repository.key.fingerprints):
        yield f"{repository.keyring} holds {' and '.join(f'the key {key}' for key in strangers)}"


def _explain_mode_repairs(mended: Sequence[FileChange]) -> str:
    closing = [change for change in mended if change.before and describe_nonroot_writers(change.before)]
    hidden = [change.path for change in mended if change not in closing]
    unread = f"apt's own user cannot read {' and '.join(hidden)}" if hidden else ""
    return "; ".join(filter(None, (unread, explain_restriction(closing) if closing else "")))


def _plan_duplicate_removals(
    rivals: Sequence[PackageSource], facts: Facts, refresh: frozenset[Trigger]
) -> list[Change]:
    states = ((file, value_or(facts.file(file), None)) for file in dict.fromkeys(rival.file for rival in rivals))
    return [FileChange(file, state, None, refresh) for file, state in states if state is not None]


def _plan_keyring(repository: Repository, facts: Facts, refresh: frozenset[Trigger]) -> list[Change]:
    fact = facts.file(repository.keyring)
    if file_matches(fact, repository.key):
        return []
    present = require(fact, f"what {repository.keyring} holds")
    if present is not None and _is_exact_keyring(present.content, repository.key):
        return []
    return [FileChange(repository.keyring, present, repository.key, refresh)]


def _restore_modes(repository: Repository, sources: Sequence[PackageSource], facts: Facts) -> list[FileChange]:
    """Return the corrections of mode and owner of list and keyring; somebody else's list is left as it is."""
    own = [repository.list_file] if _choose_list_file(repository, sources) == repository.list_file else []
    states = ((path, value_or(facts.file(path), None)) for path in (repository.keyring, *own))
    return [
        FileChange(path, state, FileState(state.content))
        for path, state in states
        if state and (not state.mode & _OTHERS_READ_MODE_BIT or describe_nonroot_writers(state))
    ]


def _is_exact_keyring(keyring: bytes, key: SigningKey) -> bool:
    """Return whether a keyring has exactly the wanted keys, in the binary form that apt requires of a ``.gpg``."""
    from gpunode.catalog.openpgp import list_key_fingerprints  # loaded on use: a new node has no keyring yet

    try:
        return keyring[:1] >= b"\x80" and frozenset(list_key_fingerprints(keyring)) == key.fingerprints
    except ValueError:
        return False


def _choose_list_file(repository: Repository, sources: Sequence[PackageSource]) -> str:
    """Return the list file that names the repository as it should be: a hand-made one, or gpunode's own."""
    return next((s.file for s in sources if _is_correct_entry(s, repository)), repository.list_file)


def _is_correct_entry(source: PackageSource, repository: Repository) -> bool:
    is_read = not source.architectures or repository.architecture in source.architectures
    return (
        is_read
        and not source.source_package
        and _is_for_repository(source, repository)
        and not _describe_key_bypass(source, repository)
    )


def _describe_key_bypass(source: PackageSource, repository: Repository) -> str:
    """Return how an entry bypasses the desired key of the archive; empty if it does not."""
    if not source.enabled:
        return ""
    address, _ = _comparable_address(source, repository.architecture)
    if not source.source_package and (alias := repository.describe_alias(address)):
        return alias
    if not _is_for_repository(source, repository):
        return ""
    if source.relaxed:
        return f"with {' '.join(source.relaxed)}"
    method = source.uri.partition(":")[0].lower()
    if "mirror" in method.split("+"):
        return f"by the method {method}, which reads it as a list of mirrors"
    if source.signed_by != repository.keyring:
        return f"with the keyring {source.signed_by}" if source.signed_by else "without signed-by"
    return ""


def _plan_list_file(repository: Repository, sources: Sequence[PackageSource], facts: Facts) -> list[FileChange]:
    """Return the change of the list file; none if the remaining ``sources`` name the archive correctly."""
    own = [source for source in sources if source.file == repository.list_file]
    clashes = any(source.enabled and _describe_key_bypass(source, repository) for source in own)
    if not clashes and any(_is_correct_entry(source, repository) for source in sources):
        return []
    present = require(facts.file(repository.list_file), f"what {repository.list_file} holds")
    text = source_list(repository.uri, repository.keyring)
    return [FileChange(repository.list_file, present, FileState(text))]


def _is_for_repository(source: PackageSource, repository: Repository) -> bool:
    """Return whether an enabled entry is for this repository, or for its source packages."""
    address, _ = _comparable_address(source, repository.architecture)
    return source.enabled and address == _normalize_uri(repository.uri, repository.architecture)


def _serves_nothing_else(file: str, repository: Repository, sources: Sequence[PackageSource]) -> bool:
    """Return whether removing a list file disables no other archive."""
    entries = (source for source in sources if source.file == file and source.enabled)
    return file != "/etc/apt/sources.list" and all(
        source.source_package or _is_for_repository(source, repository) or _describe_key_bypass(source, repository)
        for source in entries
    )


def _has_unrelated_entries(repository: Repository, sources: Sequence[PackageSource]) -> bool:
    """Return whether gpunode's own list file also names archives that are unrelated to this one, as by their key."""
    own = [
        source for source in sources if source.file == repository.list_file and source.signed_by != repository.keyring
    ]
    return not _serves_nothing_else(repository.list_file, repository, own)


def source_list(uri: str, signed_by: str) -> bytes:
    """Return a one-line source list of a flat repository, in the form that NVIDIA's own packages use."""
    return f"deb [signed-by={signed_by}] {uri} /\n".encode()
