"""Lock files: the exact versions of a node's packages as TOML, for all nodes of the same kind. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpunode.errors import LockFileError
from gpunode.fast_dataclass import dataclass
from gpunode.package_id import PackageId
from gpunode.recipe import MAX_RECIPE_BYTES, VersionLock
from gpunode.recipe.toml import line_of, read_toml, shorten_value

LOCK_SCHEMA_VERSION: Final = 1
_PACKAGES_TABLE: Final = "packages"
# Debian Policy 5.6.1 and 5.6.12; a foreign architecture follows the name.
_PACKAGE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9-]+)?")
_PACKAGE_VERSION: Final = re.compile(r"([0-9]+:)?[0-9][A-Za-z0-9.+~-]*")
_HEADER_VALUE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BARE_TOML_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_STRING_KEYS: Final = ("recipe", "distribution", "release", "architecture")
_TOP_LEVEL_KEYS: Final = ("schema", "gpunode", *_STRING_KEYS, _PACKAGES_TABLE)
LOCK_FILE_HEADER: Final = """\
# Written by `gpunode plan --lock`. `gpunode setup --lock` installs exactly these versions, on every node of this
# distribution and architecture. To renew it, upgrade one node (gpunode setup --upgrade), then write it again there
# (gpunode plan --upgrade --lock).
"""


@dataclass(frozen=True, slots=True)
class VersionDifference:
    """A package whose version differs between two locks; None if a lock does not name it."""

    name: str
    before: str | None
    after: str | None


def parse(text: str, file: str) -> VersionLock:
    """Parse the lock in ``text``, the content of ``file``.

    Raises:
        LockFileError: it is not a valid lock file; names file, line, key and the allowed values.
    """
    if len(text) > MAX_RECIPE_BYTES:
        raise LockFileError(f"longer than the {MAX_RECIPE_BYTES >> 20} MiB that a lock file may have", file=file)
    source = _LockText(text, file)
    values = read_toml(text, file, LockFileError)
    schema = values.get("schema")
    if not isinstance(values.get(_PACKAGES_TABLE), dict) or schema is None:
        raise LockFileError("not a lock file: it has no schema, or no table [packages]", file=file)
    if isinstance(schema, bool) or schema != LOCK_SCHEMA_VERSION:
        raise source.error(
            ("schema",),
            f"schema is {shorten_value(schema)}: a format unknown to this gpunode",
            str(LOCK_SCHEMA_VERSION),
        )
    if unknown := [key for key in values if key not in _TOP_LEVEL_KEYS]:
        raise source.error((unknown[0],), f"there is no key {shorten_value(unknown[0])}", *_TOP_LEVEL_KEYS)
    text_values = {key: source.word(values, key) for key in _STRING_KEYS}
    return VersionLock(file, packages=dict(source.packages(values[_PACKAGES_TABLE])), **text_values)


@dataclass(frozen=True, slots=True)
class _LockText:
    """A lock file's text, to locate errors."""

    text: str
    file: str

    def error(self, path: tuple[str, ...], what: str, *allowed: str) -> LockFileError:
        line = line_of(self.text, path)
        return LockFileError(what, file=self.file, line=line, key=shorten_value(path[-1]), allowed=allowed)

    def word(self, values: Mapping[str, Any], key: str) -> str:
        value = values.get(key)
        if not isinstance(value, str) or not (
            _HEADER_VALUE.fullmatch(value) or (key == "recipe" and value.isprintable())
        ):
            what = f"{key} is missing" if value is None else f"{key} is {shorten_value(value)}"
            raise self.error((key,), what, "a word in quotes, such as the one that gpunode wrote")
        return value

    def packages(self, table: Mapping[str, Any]) -> Iterator[tuple[PackageId, str]]:
        for name, version in table.items():
            if not _PACKAGE_NAME.fullmatch(name):
                raise self.error(
                    (_PACKAGES_TABLE, name),
                    f"{shorten_value(name)} is not a package name",
                    "libnvidia-container1",
                )
            if not isinstance(version, str) or not _PACKAGE_VERSION.fullmatch(version):
                what = f"{name} is {shorten_value(version)}, which is not a package version"
                raise self.error((_PACKAGES_TABLE, name), what, 'a whole version in quotes, such as "580.178.04-1"')
            yield PackageId.of(name), version


def render(lock: VersionLock, version: str) -> str:
    """Render ``lock`` as a file; the same versions give the same bytes.

    Law: ``parse(render(lock, version), lock.file) == lock``.

    Args:
        lock: the lock to write.
        version: the version of the gpunode that writes it.
    """
    told = {"schema": LOCK_SCHEMA_VERSION, "gpunode": version, **{key: getattr(lock, key) for key in _STRING_KEYS}}
    lines = [*(f"{key} = {json.dumps(value)}" for key, value in told.items()), "", f"[{_PACKAGES_TABLE}]"]
    versions = {str(package): version for package, version in lock.packages.items()}
    lines += [f"{_toml_key(name)} = {json.dumps(versions[name])}" for name in sorted(versions)]
    return LOCK_FILE_HEADER + "\n".join(lines) + "\n"


def _toml_key(name: str) -> str:
    return name if _BARE_TOML_KEY.fullmatch(name) else json.dumps(name)


def version_differences(before: VersionLock | None, after: VersionLock) -> tuple[VersionDifference, ...]:
    """Return the differences in ``after``, by package."""
    old: Mapping[PackageId, str] = before.packages if before else {}
    packages = sorted({*old, *after.packages}, key=str)
    pairs = (VersionDifference(str(package), old.get(package), after.packages.get(package)) for package in packages)
    return tuple(pair for pair in pairs if pair.before != pair.after)
