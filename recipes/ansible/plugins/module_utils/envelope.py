# Copyright: gpunode contributors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Run gpunode with --json and read the one object that it prints."""

from __future__ import annotations

import json
import os
import typing as t

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.text.converters import to_bytes, to_native

FORMAT = 1
REBOOT_REQUIRED = 10
DRAIN_REQUIRED = 11
CHANGES_PENDING = 4

EXECUTABLE: dict[str, t.Any] = {"executable": {"type": "path", "default": "gpunode"}}

# Options of a module that become options of the same name of the program; a list is given again for each item.
Options = t.Mapping[str, t.Any]


def run(module: AnsibleModule, *words: str, options: Options | None = None) -> dict[str, t.Any]:
    """The envelope that ``gpunode WORDS OPTIONS --json`` prints. The module fails where it prints none.

    A file that ``written`` made is called by its name alone.
    """
    argv = [_program(module), *words, *_flags(options or {}), "--json"]
    code, out, err = module.run_command(argv, environ_update={"NO_COLOR": "1"})
    out = out.replace(_place(module, ""), "")
    try:
        envelope = json.loads(out)
    except ValueError:
        envelope = None
    if not isinstance(envelope, dict) or "schema" not in envelope:
        said = (err.strip() or out.strip() or "nothing")[-2000:]
        module.fail_json(
            msg="%s printed no JSON and ended with %d: %s" % (" ".join(argv[:2]), code, said),
            cmd=argv, rc=code, stdout=out, stderr=err,
        )  # fmt: skip
    if envelope["schema"] != FORMAT:
        module.fail_json(
            msg="gpunode on this host prints JSON of format %s, and this collection reads format %d: "
            "install the collection of the same release" % (envelope["schema"], FORMAT),
            cmd=argv, rc=code,
        )  # fmt: skip
    return envelope


def answer(envelope: dict[str, t.Any], **more: t.Any) -> dict[str, t.Any]:
    """What every module returns of an envelope."""
    told = {name: envelope[name] for name in ("status", "exit_code", "changed", "changes", "findings", "errors")}
    told["reboot_required"] = envelope["exit_code"] == REBOOT_REQUIRED
    told["drain_required"] = envelope["exit_code"] == DRAIN_REQUIRED
    told["result"] = envelope["result"]
    told.update(more)
    return told


def message(envelope: dict[str, t.Any]) -> str:
    """What happened, why, and what to do next, of every error."""
    lines = []
    for error in envelope["errors"]:
        lines.append(": ".join(part for part in (error.get("what"), error.get("why")) if part))
        if error.get("hint"):
            lines.append("next: %s" % error["hint"])
    return "\n".join(lines) or "gpunode %s: %s" % (envelope["command"], envelope["status"])


def version(module: AnsibleModule) -> str:
    """The program's version."""
    words = module.run_command([_program(module), "--version"])[1].split()
    return to_native(words[1]) if len(words) > 1 else ""


def finish(
    module: AnsibleModule, envelope: dict[str, t.Any], fine: t.Container[int] = (0,), **more: t.Any
) -> t.NoReturn:
    """The module ends: well with an exit code of ``fine``, else it fails with gpunode's own words."""
    for note in envelope["notes"]:
        module.warn(note)
    told = answer(envelope, **more)
    if envelope["errors"]:
        told["msg"] = message(envelope)
    if envelope["exit_code"] in fine:
        module.exit_json(**told)
    told.setdefault("msg", message(envelope))
    module.fail_json(**told)
    raise AssertionError  # fail_json has ended the process


def written(module: AnsibleModule, option: str, name: str = "") -> str:
    """The path of a file that holds what ``option`` gives; it goes when the module ends, and root alone reads it.

    It has the name of the option, or the given one.
    """
    path = _place(module, os.path.basename(name) or option)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(to_bytes(module.params[option]))
    module.add_cleanup_file(path)
    return path


def _place(module: AnsibleModule, name: str) -> str:
    return os.path.join(to_native(module.tmpdir), name)


def _program(module: AnsibleModule) -> str:
    named = module.params["executable"]
    if os.path.sep in named:
        if os.access(named, os.X_OK):
            return to_native(named)
        module.fail_json(msg="%s is not there or cannot be run: name the gpunode of this host with executable" % named)
    found = module.get_bin_path(named, opt_dirs=["/usr/local/bin", "/usr/local/sbin"])
    if found is None:
        module.fail_json(
            msg="gpunode is not installed on this host: install it, or set gpunode_file of the role gpunode.node.node "
            "to a copy of gpunode.pyz on the controller"
        )
    return to_native(found)


def _flags(options: Options) -> list[str]:
    """``{"only": ["driver"], "upgrade": True}`` as ``--only driver --upgrade``; what is not set is left out."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif isinstance(value, list):
            words += ["%s=%s" % (flag, item) for item in value]
        elif value is not None and value is not False and value != "":
            words.append("%s=%s" % (flag, value))
    return words
