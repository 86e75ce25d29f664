"""NVIDIA's two apt repositories, each with its key: CUDA for the driver, and the container toolkit's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpunode.catalog.openpgp import fingerprints
from gpunode.catalog.repositories import cuda_repository, is_old_toolkit_source, toolkit_repository
from gpunode.change import Change, FileChange, FileState, SigningKey, Trigger, subject
from gpunode.distros.family import repository_list
from gpunode.facts.model import AptSource, Facts, holds, known, need
from gpunode.recipe import Recipe
from gpunode.steps.outcome import Outcome, Planned, Refusal, Step
from gpunode.steps.selection import family_of, standing_driver, wants_driver

# apt reads keyrings as the user _apt.
_FOR_ALL = 0o004


@dataclass(frozen=True, slots=True)
class _Repository:
    """A flat repository as its list file names it; ``is_former`` tells addresses that it had before."""

    uri: str
    list_file: str
    keyring: str
    key: SigningKey
    is_former: Callable[[str], bool]
    architecture: str

    @property
    def archive(self) -> str:
        """The address as entries are compared by it."""
        return self.plain(self.uri)

    def plain(self, uri: str) -> str:
        """``uri`` as apt compares it: its architecture put in, the slash at its end left out."""
        return uri.replace("$(ARCH)", self.architecture).rstrip("/")

    @property
    def fingerprint(self) -> str:
        return next(iter(self.key.fingerprints))


def plan_cuda(recipe: Recipe, facts: Facts) -> Outcome:
    """The CUDA repository of this distribution is enabled, signed by the key with the pinned fingerprint."""
    if not wants_driver(recipe, facts):
        return Planned((), "the driver is not gpunode's here")
    # With it, apt's next upgrade would bring NVIDIA's packages over those of another maker.
    if standing := standing_driver(recipe, facts):
        return Planned((), standing.reason)
    found = family_of(facts)
    if isinstance(found, Refusal):
        return found
    distro = need(facts.distro, "which distribution this is")
    architecture = need(facts.architecture, "the architecture of this system")
    row = cuda_repository(distro, architecture, recipe.repositories.cuda, recipe.repositories.cuda_key)
    if row is None:
        return Refusal(
            what=f"NVIDIA has no driver repository for {distro.name} on {architecture}",
            why="the table of repositories (gpunode/catalog/cuda_repositories.csv) has no row for them",
            hint='use a release that has one, or set driver.version = "none" and install the driver by hand',
        )
    key = SigningKey(row.key_url, frozenset({row.fingerprint}))
    return _enabled(_Repository(row.base_url, row.list_file, row.keyring, key, _has_no_former, architecture), facts)


def plan_toolkit(recipe: Recipe, facts: Facts) -> Outcome:
    """The container toolkit's repository is enabled, signed by the key with the pinned fingerprint."""
    if not wants_toolkit(recipe):
        return Planned((), "no container runtime is asked for")
    architecture = need(facts.architecture, "the architecture of this system")
    row = toolkit_repository(recipe.repositories.toolkit, recipe.repositories.toolkit_key)
    key = SigningKey(row.key_url, frozenset({row.fingerprint}))
    return _enabled(_Repository(row.url, row.list_file, row.keyring, key, is_old_toolkit_source, architecture), facts)


def _has_no_former(uri: str) -> bool:
    del uri
    return False


def wants_toolkit(recipe: Recipe) -> bool:
    """Whether the container toolkit is gpunode's to install."""
    return recipe.runtime.name != "none" and recipe.toolkit.version != "none"


def _enabled(repository: _Repository, facts: Facts) -> Outcome:
    """The repository's list and keyring, and nothing else that names the same archive with another key."""
    sources = need(facts.sources, "which apt sources there are")
    rivals = tuple(source for source in sources if _is_rival(source, repository))
    if foreign := next((r for r in rivals if not _serves_nothing_else(r.file, repository, sources)), None):
        return _conflict(repository, foreign)
    leaving = {rival.file for rival in rivals}
    staying = tuple(source for source in sources if source.file not in leaving)
    if (written := _list(repository, staying, facts)) and _is_crowded(repository, sources):
        return _crowded(repository)
    refresh = frozenset({Trigger("index-refresh", _home(repository, staying))})
    changes = [
        *_removals(rivals, facts, refresh),
        *_keyring(repository, facts, refresh),
        *(replace(change, triggers=refresh) for change in written),
    ]
    signer = f"signed by the key …{repository.fingerprint[-16:]}"
    touched = {subject(change) for change in changes}
    mended = [change for change in _mended(repository, staying, facts) if change.path not in touched]
    if not changes and mended:
        paths = " and ".join(change.path for change in mended)
        return Planned(tuple(mended), f"apt must be able to read {paths}, and nobody but root may write there")
    if not changes:
        return Planned((), f"{repository.uri} is enabled, {signer}")
    return Planned((*changes, *mended), f"packages come from {repository.uri}")


def _removals(rivals: Sequence[AptSource], facts: Facts, refresh: frozenset[Trigger]) -> list[Change]:
    states = ((file, known(facts.file(file), None)) for file in dict.fromkeys(rival.file for rival in rivals))
    return [FileChange(file, state, None, refresh) for file, state in states if state is not None]


def _keyring(repository: _Repository, facts: Facts, refresh: frozenset[Trigger]) -> list[Change]:
    fact = facts.file(repository.keyring)
    if holds(fact, repository.key):
        return []
    present = need(fact, f"what {repository.keyring} holds")
    if present is not None and _trusts(present.content, repository.key):
        return []
    return [FileChange(repository.keyring, present, repository.key, refresh)]


def _mended(repository: _Repository, sources: Sequence[AptSource], facts: Facts) -> list[FileChange]:
    """Mode and owner of list and keyring put right, where only they are wrong; a list of somebody else's stays so."""
    own = [repository.list_file] if _home(repository, sources) == repository.list_file else []
    states = ((path, known(facts.file(path), None)) for path in (repository.keyring, *own))
    return [
        FileChange(path, state, FileState(state.content))
        for path, state in states
        if state is not None and not _is_sound(state)
    ]


def _is_sound(state: FileState) -> bool:
    """Whether apt's own user can read a file and nobody can write to it who is not root."""
    by_group = state.mode & 0o020 and state.gid != 0
    return bool(state.mode & _FOR_ALL) and state.uid == 0 and not by_group and not state.mode & 0o002


def _trusts(keyring: bytes, key: SigningKey) -> bool:
    """Whether a keyring holds the wanted keys and no other, in the binary form that apt wants of a ``.gpg``."""
    try:
        return keyring[:1] >= b"\x80" and frozenset(fingerprints(keyring)) == key.fingerprints
    except ValueError:
        return False


def _home(repository: _Repository, sources: Sequence[AptSource]) -> str:
    """The list file that names the repository as it should be: a hand-made one, or gpunode's own."""
    return next((s.file for s in sources if _is_right(s, repository)), repository.list_file)


def _is_right(source: AptSource, repository: _Repository) -> bool:
    return _names(source, repository) and source.signed_by == repository.keyring


def _list(repository: _Repository, sources: Sequence[AptSource], facts: Facts) -> list[FileChange]:
    """The list file, unless ``sources``, those that stay, name the archive rightly already."""
    own = [source for source in sources if source.file == repository.list_file]
    clashes = any(_names(source, repository) and not _is_right(source, repository) for source in own)
    if not clashes and any(_is_right(source, repository) for source in sources):
        return []
    present = need(facts.file(repository.list_file), f"what {repository.list_file} holds")
    text = repository_list(repository.uri, "/", repository.keyring)
    return [FileChange(repository.list_file, present, FileState(text))]


def _names(source: AptSource, repository: _Repository) -> bool:
    """Whether an enabled entry is for this repository's packages."""
    return repository.plain(source.uri) == repository.archive and source.enabled and not source.source_package


def _is_rival(source: AptSource, repository: _Repository) -> bool:
    """Whether an entry names the archive with another key, or a former address of it: apt refuses them together."""
    if not source.enabled or source.file == repository.list_file:
        return False
    other_key = _names(source, repository) and source.signed_by != repository.keyring
    return other_key or repository.is_former(source.uri)


def _serves_nothing_else(file: str, repository: _Repository, sources: Sequence[AptSource]) -> bool:
    """Whether removing a whole list file takes nothing else away."""
    entries = (source for source in sources if source.file == file and source.enabled)
    return file != "/etc/apt/sources.list" and all(
        source.source_package or _names(source, repository) or repository.is_former(source.uri) for source in entries
    )


def _conflict(repository: _Repository, rival: AptSource) -> Refusal:
    return Refusal(
        what=f"{rival.file}:{rival.line} names the same archive with another key",
        why=f"apt refuses two Signed-By values for {repository.uri}: {rival.signed_by or 'none'} there, "
        f"{repository.keyring} here; the file serves other archives too, so gpunode does not remove it",
        hint=f"take line {rival.line} out of {rival.file}, then run the command again",
    )


def _is_crowded(repository: _Repository, sources: Sequence[AptSource]) -> bool:
    """Whether the own list file names archives that have nothing to do with this one, such as by its key."""
    own = [
        source for source in sources if source.file == repository.list_file and source.signed_by != repository.keyring
    ]
    return not _serves_nothing_else(repository.list_file, repository, own)


def _crowded(repository: _Repository) -> Refusal:
    return Refusal(
        what=f"{repository.list_file} serves other archives, too",
        why=f"gpunode writes that file for {repository.uri} alone, and would take the others away",
        hint="move the other entries into a file of their own, then run the command again",
    )


CUDA_REPOSITORY = Step("cuda-repository", "driver repository", "sources", plan_cuda)
TOOLKIT_REPOSITORY = Step("toolkit-repository", "toolkit repository", "sources", plan_toolkit)
