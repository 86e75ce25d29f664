"""YAML by PyYAML, which is loaded when a document is read or written; no other module imports it. Pure.

Anchors and aliases are refused: with them, a short text can expand to any size.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from yaml import Node

# A CDI file takes some 250 bytes per device: 60 KiB for 16 GPUs with 7 MIG instances each, by index and by UUID.
# Without its C library, PyYAML reads 200 KiB per second.
MAX_YAML_BYTES: Final = 1 << 18
_COMMENT_WIDTH: Final = 110
# Begins with a letter, / or _, so no parser reads it as a number or a date.
_PLAIN_SCALAR: Final = r"[A-Za-z/_](?:[A-Za-z0-9 ./:=@_+-]*[A-Za-z0-9/_])?"
_READABLE_TAG: Final = r"tag:yaml\.org,2002:(?:str|int|float|bool|null|timestamp|value|merge|seq|map)"
# kubectl and Helm read parts of YAML 1.1, where these are not strings; PyYAML itself does not treat y and n specially.
_NON_STRING_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


class YamlError(ValueError):
    """The text is not YAML, or uses YAML features that gpunode does not read.

    Attributes:
        line: where that was noticed, from 1; 0 if unknown.
    """

    def __init__(self, reason: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {reason}" if line else reason)
        self.reason = reason
        self.line = line


def load(text: str) -> Any:
    """Return the only document of ``text``: mappings, lists, strings and None; text that begins with { is read as JSON.

    YAML's numbers, dates and booleans stay strings as written, as Kubernetes' parser passes them to a string field
    (sigs.k8s.io/yaml v1.4, ``convertToJSONableObject``).

    Raises:
        ValueError: the text is not such a document, or too long.
    """
    try:
        if text.lstrip().startswith("{"):  # JSON allows tabs between tokens, YAML does not
            return json.loads(_require_short_text(text))
        node = compose(text)
        return None if node is None else _node_to_value(node)
    except RecursionError:
        raise YamlError("nested too deeply") from None


def compose(text: str) -> Node | None:
    """Return the nodes of the only document of ``text``, each with its line; None if there is none.

    Raises:
        YamlError: the text is not such a document, or too long.
    """
    import yaml

    try:
        return yaml.compose(_require_short_text(text), Loader=_loader())
    except RecursionError:
        raise YamlError("nested too deeply") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise YamlError(f"not YAML: {getattr(error, 'problem', None) or error}", mark.line + 1 if mark else 0) from None


def render_document(value: Mapping[str, Any], comment: str = "") -> str:
    """Return ``value`` as a document in block style below ``comment``, with its keys in the given order."""
    import textwrap

    import yaml

    lines = (f"# {part}\n" for line in comment.splitlines() for part in textwrap.wrap(line, _COMMENT_WIDTH))
    written: str = yaml.dump(value, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=MAX_YAML_BYTES)
    return "".join(lines) + written


def _require_short_text(text: str) -> str:
    if len(text) > MAX_YAML_BYTES:
        raise YamlError(f"longer than {MAX_YAML_BYTES >> 10} KiB")
    return text


def _node_to_value(node: Node) -> Any:
    line = node.start_mark.line + 1
    if not re.fullmatch(_READABLE_TAG, node.tag):
        raise YamlError(f"the tag {node.tag[:60]}, which gpunode does not read", line)
    if node.id == "scalar":
        return None if node.tag.endswith(":null") else node.value
    if node.id == "sequence":
        return [_node_to_value(item) for item in node.value]
    members: dict[str, Any] = {}
    for name, value in node.value:
        if name.id != "scalar" or name.tag.endswith(":merge"):
            raise YamlError("a key that is not a plain text", name.start_mark.line + 1)
        if name.value in members:
            raise YamlError(f"{name.value[:60]} stands there twice", name.start_mark.line + 1)
        members[name.value] = _node_to_value(value)
    return members


@cache
def _loader() -> type:
    import yaml

    class Loader(yaml.SafeLoader):  # type: ignore[misc]
        def compose_node(self, parent: object, index: object) -> Any:
            event = self.peek_event()
            if getattr(event, "anchor", None) is not None:
                raise YamlError("anchors and aliases are not read: write the values out", event.start_mark.line + 1)
            return super().compose_node(parent, index)

    return Loader


@cache
def _dumper() -> type:
    import yaml

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        def ignore_aliases(self, _: object) -> bool:
            return True

        def represent_text(self, text: str) -> Any:
            is_plain = re.fullmatch(_PLAIN_SCALAR, text) and text.lower() not in _NON_STRING_WORDS
            # Unless escaped, PyYAML reads the other line ends of YAML 1.1 back as "\n".
            is_block = "\n" in text and not re.search("[\x85\u2028\u2029]", text)
            style = "|" if is_block else None if is_plain else '"'
            return self.represent_scalar("tag:yaml.org,2002:str", text, style)

    Dumper.add_representer(str, Dumper.represent_text)
    return Dumper
