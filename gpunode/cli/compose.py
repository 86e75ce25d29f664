"""The composition root: from what was typed to a node, its facts, its journal and a recipe."""

from __future__ import annotations

import json
import os
import pwd
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from gpunode import builtin
from gpunode.cli.samples import SAMPLES, samples
from gpunode.command import gpunode, sudo_gpunode
from gpunode.errors import RecipeError, UsageError
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Evidence
from gpunode.facts.model import Facts, Known, PciDevice, Unknown
from gpunode.host.port import HostView
from gpunode.recipe import Recipe, RuntimeName
from gpunode.recipe.toml import line_of, parse

if TYPE_CHECKING:
    from gpunode.journal.run import Announce
    from gpunode.journal.store import Store
    from gpunode.workflow.recovery import Backlog

_PCI_ID = re.compile(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{4})")
_BARE_METAL = "bare-metal"
# Each runtime has a recipe of its name.
_DEFAULT_RECIPES = {**{name: name for name in get_args(RuntimeName)}, "none": _BARE_METAL, "": _BARE_METAL}


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was typed about the wanted state."""

    recipe: str = ""
    runtime: str = ""
    driver: str = ""
    upgrade: bool = False
    lock: str = ""

    def read(self) -> Recipe:
        """The recipe, with what the command line overrides.

        Raises:
            RecipeError, UsageError: it cannot be understood, or the lock cannot.
        """
        if self.lock and self.upgrade:
            raise UsageError(
                "--lock and --upgrade contradict each other",
                why="one pins the versions of a file, the other takes the newest",
                hint="upgrade one node without --lock, then renew the lock there:\n"
                f"{gpunode('plan', '--upgrade', '--lock', self.lock)}",
            )
        base = recipe_at(self.recipe or _DEFAULT_RECIPES.get(self.runtime, _BARE_METAL))
        wanted = replace(base, upgrade=self.upgrade)
        if self.runtime:
            name = _option("--runtime", "runtime", "name", self.runtime).runtime.name
            wanted = replace(wanted, runtime=replace(wanted.runtime, name=name))
        if self.driver:
            version = _option("--driver", "driver", "version", self.driver).driver.version
            wanted = replace(wanted, driver=replace(wanted.driver, version=version))
        if self.lock:
            from gpunode.cli.lockfiles import read_lock

            wanted = replace(wanted, lock=read_lock(self.lock))
        return wanted


def explain_default_recipe(wanted: Wanted) -> str:
    """Return which recipe is taken where none was named, and why; empty where one was, or a runtime."""
    if wanted.recipe or wanted.runtime:
        return ""
    description = builtin.read(_BARE_METAL).description
    listed = gpunode("recipe", "list")
    return f"no recipe was named, so this is {_BARE_METAL} ({description}); `{listed}` shows the others"


def recipe_at(place: str) -> Recipe:
    """The recipe at ``place``, whose ``skip`` names steps that there are.

    Raises:
        RecipeError, UsageError: it cannot be understood.
    """
    found = builtin.read(place)
    if not found.skip:
        return found
    from gpunode.steps.detect import DETECT
    from gpunode.steps.table import STEPS

    ids = tuple(step.id for step in STEPS if step.id != DETECT.id)
    if wrong := [step for step in found.skip if step not in ids]:
        what = f"skip names {', '.join(dict.fromkeys(wrong))[:200]}: no such step, or one that cannot be skipped"
        raise RecipeError(what, file=place, line=line_of(builtin.load(place), ("skip",)), key="skip", allowed=ids)
    return found


def _option(option: str, section: str, key: str, value: str) -> Recipe:
    """A recipe with that one value, checked as a file's would be, so that options and files take the same words."""
    try:
        return parse(f"schema = 1\n[{section}]\n{key} = {json.dumps(value)}\n", option, builtin.load)
    except RecipeError as error:
        why = f"it takes: {', '.join(error.allowed)}"
        hint = f"name one of these: {option} {error.allowed[0]}"
        raise UsageError(f"{option} cannot be {json.dumps(value)}", why=why, hint=hint) from error


@dataclass(frozen=True, slots=True)
class Seen:
    """A node that is only looked at: this machine, or a capture of another."""

    host: HostView
    facts: Facts
    evidence: Evidence


def gpus(text: str) -> tuple[PciDevice, ...]:
    """Return the devices that ``--gpu`` names for an image, each with the class that its id tells.

    Ids of audio functions, USB controllers and NVSwitches are kept as what they are: the plan names them, and they get
    no driver.

    Raises:
        UsageError: it is not a list of PCI ids, or none of them is a GPU's.
    """
    from gpunode.catalog.gpus import LIST_GPUS, other_device  # loaded on use: most commands name no GPU
    from gpunode.steps.gpus import CLASSES, UNKNOWN_CLASS, own_gpus

    found: list[PciDevice] = []
    for index, part in enumerate(filter(None, text.split(","))):
        match = _PCI_ID.fullmatch(part.strip())
        if match is None or match[1].lower() != "10de":
            raise UsageError(
                f"--gpu {text}: {part!r} is not the PCI id of an NVIDIA GPU",
                hint=f"write vendor:device in hex, as this shows them: --gpu 10de:1b80,10de:1eb8\n{LIST_GPUS}",
            )
        device = match[2].lower()
        other = other_device(device)
        class_code = CLASSES.get(other[0], UNKNOWN_CLASS) if other else "0302"
        found.append(PciDevice(f"image:{index:02x}", "10de", device, class_code, name=other[1] if other else ""))
    if found and not own_gpus(tuple(found)):
        raise UsageError(
            f"--gpu {text} names no GPU",
            why="; ".join(f"10de:{one.device} is the {one.name}" for one in found),
            hint=f"name the GPUs alone, as this shows them:\n{LIST_GPUS}",
        )
    return tuple(found)


def gpus_to_set_up(text: str, *, image: bool) -> tuple[PciDevice, ...]:
    """The GPUs that ``--gpu`` names for setup.

    Raises:
        UsageError: it is not a list of PCI ids, or no image is built.
    """
    named = gpus(text)
    if named and not image:
        raise UsageError(
            "--gpu is for an image",
            why="on a running machine gpunode uses the GPUs it finds, and the named ones might differ",
            hint="leave --gpu out, or name the image's root folder with --root",
        )
    return named


def see(node: str, root: str, gpu: str, recipe: Recipe | None = None) -> Seen:
    """The node that plan, status and rehearse look at.

    Args:
        node: a capture's path, or the name of a shipped one; empty for this machine.
        root: a mounted root; ``/`` for this machine itself.
        gpu: what ``--gpu`` says.
        recipe: what may ask for more than the usual facts.
    """
    if node:
        from gpunode.host.capture import CaptureHost, load

        evidence = load(_capture_at(node))
        return Seen(CaptureHost(evidence), _with_gpus(derive(evidence), gpu), evidence)
    from gpunode.host.local import LocalHost
    from gpunode.workflow.converge import collect_evidence

    host = LocalHost(checked_root(root))
    evidence = collect_evidence(host, recipe, image=is_image(root))
    facts = derive(evidence, image=is_image(root), distribution=host.distribution())
    return Seen(host, _with_gpus(facts, gpu), evidence)


def _capture_at(node: str) -> Path:
    """The file or folder that ``--node`` names.

    Raises:
        UsageError: there is none, and no sample of that name.
    """
    if Path(node).exists() or "/" in node:
        return Path(node)
    if node in samples():
        return SAMPLES / node
    raise UsageError(
        f"--node {node}: no such file, and no sample of that name",
        why=f"samples: {', '.join(samples())}",
        hint=f"name a sample, or a capture that this makes on a node:\n{sudo_gpunode('capture', 'node.tar.gz')}",
    )


def _with_gpus(facts: Facts, gpu: str) -> Facts:
    from gpunode.steps.gpus import GPU_OPTION

    named = gpus(gpu)
    return replace(facts, devices=Known(named, GPU_OPTION)) if named else facts


def is_image(root: str) -> bool:
    """Whether ``root`` is a mounted root and not the system that runs."""
    return _resolved(root) != Path("/")


def _resolved(root: str) -> Path:
    try:
        return Path(root).resolve()
    except OSError as error:
        raise UsageError(
            f"--root {root} cannot be resolved",
            why=f"the folder that it is relative to: {error.strerror}",
            hint="name the root folder by its whole path",
        ) from error


def checked_root(root: str) -> str:
    """``root``, if it holds a system.

    Raises:
        UsageError: it does not.
    """
    if is_image(root) and not Path(root, "etc").is_dir():
        raise UsageError(
            f"--root {root} contains no system",
            why="it has no etc folder",
            hint="mount the image first, then name its root folder",
        )
    return str(_resolved(root))


def need_root(
    command: str,
    why: str = "it writes under /etc and changes packages",
    instead: str = "",
) -> None:
    """Nothing, for root.

    Raises:
        UsageError: for anybody else; says ``why``, and what can be done ``instead``, if anything can.
    """
    if os.geteuid() != 0:
        again = str(sudo_gpunode(*(sys.argv[1:] or [command])))
        raise UsageError(f"{command} needs root", why=why, hint=f"{again}\n({instead})" if instead else again)


def announcer(root: str) -> Announce:
    """What tells systemd's journal of the runs on this machine; those of an image are none of its business."""

    @cache
    def teller() -> Announce:
        from gpunode.host.journald import Journald
        from gpunode.journal import announce

        return announce.announcer((lambda _: None) if is_image(root) else Journald().send)

    return lambda entries, entry: teller()(entries, entry)


def cluster_journal() -> Store:
    """The journal of this user's changes to clusters; that of the node itself is root's."""
    from gpunode.host.ownership import why_others_write
    from gpunode.journal.store import Store

    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    # As after `su` without a dash: HOME is another user's, who could lead root's writes elsewhere by a link.
    if os.geteuid() == 0 and why_others_write(state):
        state = Path(pwd.getpwuid(0).pw_dir) / ".local/state"
    return Store("/", announce=announcer("/"), folder=state / "gpunode")


def unknown(facts: Facts) -> list[dict[str, object]]:
    """Every fact that could not be told, with the reason."""
    rows = ((name, getattr(facts, name)) for name in Facts.__slots__)
    single = [(name, fact) for name, fact in rows if isinstance(fact, Unknown)]
    keyed = [(path, fact) for path, fact in {**facts.files, **facts.units}.items() if isinstance(fact, Unknown)]
    return [{"fact": name, "reason": fact.reason, "probe": fact.probe} for name, fact in (*single, *keyed)]


def left_undone(node: str, root: str, facts: Facts) -> Backlog:
    """What earlier runs left undone; of a captured node nothing is known."""
    from gpunode.workflow.recovery import NO_BACKLOG, visible_backlog

    if node:
        return NO_BACKLOG
    from gpunode.journal.store import Store

    return visible_backlog(Store(checked_root(root)), facts)


def unread(left: Backlog) -> list[dict[str, object]]:
    """That nobody could tell what earlier runs left undone, as ``unknown`` says it."""
    return [{"fact": "owed", "reason": left.unread, "probe": "journal"}] if left.unread else []


def check_steps(only: Sequence[str]) -> None:
    """Raises UsageError when there is no such step."""
    from difflib import get_close_matches

    from gpunode.steps.table import STEPS

    ids = [step.id for step in STEPS]
    if wrong := [step for step in only if step not in ids]:
        near = next((guess[0] for step in wrong if (guess := get_close_matches(step, ids, n=1))), "")
        raise UsageError(
            f"there is no step {', '.join(wrong)}",
            why=f"steps: {', '.join(ids)}",
            hint=f"did you mean --only {near}?" if near else "`gpunode plan -v` shows what each of them does",
        )
