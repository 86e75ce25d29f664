"""Turn command-line arguments into a node, its facts, its journal and a recipe."""

from __future__ import annotations

import json
import os
import pwd
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from gpunode import builtin
from gpunode.catalog.gpus import LIST_GPUS, non_gpu_kind_and_name
from gpunode.cli.samples import SAMPLES_FOLDER, sample_capture_names
from gpunode.command import gpunode_command, sudo_gpunode
from gpunode.errors import RecipeError, UsageError
from gpunode.facts.derive import derive
from gpunode.facts.evidence import Evidence
from gpunode.facts.model import Facts, Known, PciDevice, Unknown
from gpunode.facts.patterns import Pattern
from gpunode.fast_dataclass import dataclass
from gpunode.host.port import HostView
from gpunode.recipe import Recipe, RuntimeName
from gpunode.recipe.toml import line_of, parse

if TYPE_CHECKING:
    from gpunode.journal.announce import Journald
    from gpunode.journal.run import Announce
    from gpunode.journal.store import Store
    from gpunode.workflow.recovery import Backlog

PCI_ID = Pattern(r"([0-9a-fA-F]{4}):([0-9a-fA-F]{4})")
_BARE_METAL_RECIPE_NAME = "bare-metal"
# Each runtime has a recipe of the same name.
_DEFAULT_RECIPE_BY_RUNTIME = {
    **{name: name for name in get_args(RuntimeName)},
    "none": _BARE_METAL_RECIPE_NAME,
    "": _BARE_METAL_RECIPE_NAME,
}


@dataclass(frozen=True, slots=True)
class RecipeOptions:
    """The options that choose the desired state."""

    recipe: str = ""
    runtime: str = ""
    driver: str = ""
    upgrade: bool = False
    lock: str = ""
    cuda_toolkit: str = ""
    remove_runfile_driver: bool = False
    driver_source: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """The command-line words that choose the same state, without --lock and --upgrade, which choose versions."""
        chosen = {name: getattr(self, name) for name in self.__slots__ if name not in {"recipe", "lock", "upgrade"}}
        options = ((f"--{name.replace('_', '-')}", value) for name, value in chosen.items() if value)
        return (*filter(None, [self.recipe]), *(word for pair in options for word in pair if word is not True))

    def load(self) -> Recipe:
        """Return the recipe with the overrides of the command line.

        Raises:
            RecipeError, UsageError: the recipe or the lock is invalid.
        """
        if self.lock and self.upgrade:
            raise UsageError(
                "--lock and --upgrade contradict each other",
                why="one pins the versions of a file, the other takes the newest",
                hint="upgrade one node without --lock, then renew the lock there:\n"
                f"{gpunode_command('plan', *self.words, '--upgrade', '--lock', self.lock)}",
            )
        name_or_path = self.recipe or _DEFAULT_RECIPE_BY_RUNTIME.get(self.runtime, _BARE_METAL_RECIPE_NAME)
        base = load_recipe(name_or_path, self.cuda_toolkit)
        recipe = replace(base, upgrade=self.upgrade, remove_runfile_driver=self.remove_runfile_driver)
        if self.runtime:
            name = _parse_option("--runtime", "runtime", "name", self.runtime).runtime.name
            recipe = replace(recipe, runtime=replace(recipe.runtime, name=name))
        if self.driver:
            version = _parse_option("--driver", "driver", "version", self.driver).driver.version
            recipe = replace(recipe, driver=replace(recipe.driver, version=version))
        if self.driver_source:
            source = _parse_option("--driver-source", "driver", "source", self.driver_source).driver.source
            recipe = replace(recipe, driver=replace(recipe.driver, source=source))
        if self.cuda_toolkit:
            version = _parse_option("--cuda-toolkit", "cuda", "version", self.cuda_toolkit).cuda.version
            recipe = replace(recipe, cuda=replace(recipe.cuda, version=version))
        if self.lock:
            from gpunode.cli.lockfiles import read_lock

            recipe = replace(recipe, lock=read_lock(self.lock, self.words))
        return recipe


def explain_default_recipe(recipe_options: RecipeOptions) -> str:
    """Return a sentence that names the default recipe; empty if a recipe or a runtime was given."""
    if recipe_options.recipe or recipe_options.runtime:
        return ""
    description = builtin.read_recipe(_BARE_METAL_RECIPE_NAME).description
    listed = gpunode_command("recipe", "list")
    return f"no recipe was named, so this is {_BARE_METAL_RECIPE_NAME} ({description}); `{listed}` shows the others"


def load_recipe(name_or_path: str, cuda_toolkit: str = "") -> Recipe:
    """Load the recipe at ``name_or_path``; its ``skip`` must name steps, and parts of CUDA need a release.

    Args:
        name_or_path: names the recipe.
        cuda_toolkit: the release given on the command line, if any.

    Raises:
        RecipeError, UsageError: it is invalid.
    """
    recipe = builtin.read_recipe(name_or_path)
    if recipe.cuda.parts and recipe.cuda.version == "none" and not cuda_toolkit:
        raise RecipeError(
            "cuda.parts names parts of a toolkit, but cuda.version names no release",
            file=name_or_path,
            line=line_of(builtin.load_recipe_text(name_or_path), ("cuda", "parts")),
            key="cuda.version",
            allowed=("auto", "a release such as 12.9", "none without parts"),
        )
    if not recipe.skip:
        return recipe
    from gpunode.steps.detect import DETECT_STEP
    from gpunode.steps.table import STEPS

    ids = tuple(step.id for step in STEPS if step.id != DETECT_STEP.id)
    if wrong := [step for step in recipe.skip if step not in ids]:
        what = f"skip names {', '.join(dict.fromkeys(wrong))[:200]}: no such step, or one that cannot be skipped"
        raise RecipeError(
            what,
            file=name_or_path,
            line=line_of(builtin.load_recipe_text(name_or_path), ("skip",)),
            key="skip",
            allowed=ids,
        )
    return recipe


def _parse_option(option: str, section: str, key: str, value: str) -> Recipe:
    """Parse one option as a recipe key, so that options and files accept the same values."""
    try:
        return parse(f"schema = 1\n[{section}]\n{key} = {json.dumps(value)}\n", option, builtin.load_recipe_text)
    except RecipeError as error:
        raise unknown_value_error(option, value, error.allowed) from error


def unknown_value_error(option: str, value: str, allowed: Sequence[str]) -> UsageError:
    """Return the refusal of a value that ``option`` does not accept."""
    return UsageError(
        f"{option} cannot be {json.dumps(value)}",
        why=f"it takes: {', '.join(allowed)}",
        hint=f"name one of these: {option} {allowed[0]}",
    )


@dataclass(frozen=True, slots=True)
class NodeView:
    """A read-only view of a node: this machine, or a capture of another."""

    host: HostView
    facts: Facts
    evidence: Evidence


def parse_gpu_ids(text: str) -> tuple[PciDevice, ...]:
    """Return the PCI devices that ``--gpu`` names for an image, with the device class of each id.

    Audio functions, USB controllers and NVSwitches are kept: the plan names them, but they get no driver.

    Raises:
        UsageError: it is not a list of PCI ids, or contains no GPU.
    """
    from gpunode.steps.gpus import CLASS_CODE_BY_DEVICE_KIND, UNKNOWN_CLASS_CODE, find_own_gpus

    devices: list[PciDevice] = []
    for index, part in enumerate(filter(None, text.split(","))):
        match = PCI_ID.fullmatch(part.strip())
        if match is None or match[1].lower() != "10de":
            raise UsageError(
                f"--gpu {text}: {part!r} is not the PCI id of an NVIDIA GPU",
                hint=f"write vendor:device in hex, as this shows them: --gpu 10de:1b80,10de:1eb8\n{LIST_GPUS}",
            )
        device = match[2].lower()
        other = non_gpu_kind_and_name(device)
        class_code = CLASS_CODE_BY_DEVICE_KIND.get(other[0], UNKNOWN_CLASS_CODE) if other else "0302"
        devices.append(PciDevice(f"image:{index:02x}", "10de", device, class_code, name=other[1] if other else ""))
    if text and not find_own_gpus(tuple(devices)):
        raise UsageError(
            f"--gpu {text} names no GPU",
            why="; ".join(f"10de:{device.device} is the {device.name}" for device in devices) or "it lists nothing",
            hint=f"name only GPUs, as this lists them:\n{LIST_GPUS}",
        )
    return tuple(devices)


def parse_setup_gpus(text: str, *, image: bool) -> tuple[PciDevice, ...]:
    """Return the GPUs that ``--gpu`` names for setup.

    Raises:
        UsageError: if it is not a list of PCI ids, or setup is not for an image.
    """
    gpus = parse_gpu_ids(text)
    if gpus and not image:
        raise UsageError(
            "--gpu is for an image",
            why="on a running machine gpunode uses the GPUs it finds, and the named ones might differ",
            hint="leave --gpu out, or name the image's root folder with --root",
        )
    return gpus


def view_node(node: str, root: str, gpu_ids: str, recipe: Recipe | None = None) -> NodeView:
    """Return a view of the node for plan, status and rehearse.

    Args:
        node: a capture's path, or the name of a shipped one; empty for this machine.
        root: a mounted root; ``/`` for this machine itself.
        gpu_ids: the value of ``--gpu``.
        recipe: the recipe, whose steps may need additional facts.

    Raises:
        UsageError: if both ``node`` and ``root`` are named.
    """
    if node and is_image_root(root):
        why = "each names another node to look at"
        raise UsageError("--node cannot be used with --root", why=why, hint="leave one out")
    if node:
        from gpunode.host.capture import CaptureHost, load_capture

        evidence = load_capture(_find_capture(node))
        return NodeView(CaptureHost(evidence), _override_gpus(derive(evidence), gpu_ids), evidence)
    from gpunode.host.local import LocalHost
    from gpunode.workflow.converge import collect_evidence

    host = LocalHost(validate_root(root))
    evidence = collect_evidence(host, recipe, image=is_image_root(root))
    facts = derive(evidence, image=is_image_root(root), distribution=host.read_live_distribution())
    return NodeView(host, _override_gpus(facts, gpu_ids), evidence)


def _find_capture(node: str) -> Path:
    """Return the path of the capture or sample that ``--node`` names.

    Raises:
        UsageError: if there is neither.
    """
    if Path(node).exists() or "/" in node:
        return Path(node)
    if node in sample_capture_names():
        return SAMPLES_FOLDER / node
    raise UsageError(
        f"--node {node}: no such file, and no sample of that name",
        why=f"samples: {', '.join(sample_capture_names())}",
        hint=f"name a sample, or a capture that this makes on a node:\n{sudo_gpunode('capture', 'node.tar.gz')}",
    )


def _override_gpus(facts: Facts, gpu_ids: str) -> Facts:
    from gpunode.steps.gpus import GPU_OPTION

    gpus = parse_gpu_ids(gpu_ids)
    return replace(facts, devices=Known(gpus, GPU_OPTION)) if gpus else facts


def is_image_root(root: str) -> bool:
    """Return whether ``root`` is a mounted image and not the running system."""
    return _resolve_root(root) != Path("/")


def _resolve_root(root: str) -> Path:
    try:
        return Path(root).resolve()
    except OSError as error:
        why, hint = f"the folder that it is relative to: {error.strerror}", "give the root folder as an absolute path"
        raise UsageError(f"--root {root} cannot be resolved", why=why, hint=hint) from error
    except RuntimeError as error:  # before Python 3.13
        why = "a symbolic link on its way leads to itself"
        raise UsageError(f"--root {root} cannot be resolved", why=why, hint="name another folder") from error


def validate_root(root: str) -> str:
    """Return the absolute path of ``root``.

    Raises:
        UsageError: if it contains no system.
    """
    if is_image_root(root) and not Path(root, "etc").is_dir():
        raise UsageError(
            f"--root {root} contains no system",
            why="it has no etc folder",
            hint="mount the image first, then name its root folder",
        )
    return str(_resolve_root(root))


def require_root(command: str, why: str = "it writes under /etc and changes packages", instead: str = "") -> None:
    """Refuse to run as any user but root.

    Raises:
        UsageError: the user is not root; with ``why`` and, if given, an alternative (``instead``).
    """
    if os.geteuid() != 0:
        again = str(sudo_gpunode(*(sys.argv[1:] or command.split())))
        raise UsageError(f"{command} needs root", why=why, hint=f"{again}\n({instead})" if instead else again)


def create_announcer(root: str) -> Announce:
    """Return a function that reports runs to systemd's journal; for an image it does nothing."""

    @cache
    def connect() -> Journald:
        from gpunode.journal.announce import Journald

        return Journald()

    return (lambda *_: None) if is_image_root(root) else lambda entries, entry: connect().announce(entries, entry)


def open_cluster_journal() -> Store:
    """Open the journal of this user's cluster changes; the node's own journal belongs to root."""
    from gpunode.host.ownership import explain_writable_by_others
    from gpunode.journal.store import Store

    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    # After `su` without a dash, HOME is another user's, who could redirect root's writes by a link.
    if os.geteuid() == 0 and explain_writable_by_others(state):
        state = Path(pwd.getpwuid(0).pw_dir) / ".local/state"
    return Store("/", announce=create_announcer("/"), folder=state / "gpunode")


def list_unknown_facts(facts: Facts, backlog: Backlog | None = None) -> list[dict[str, object]]:
    """Return the facts, and the backlog, that could not be determined, with the reasons."""
    rows = ((name, getattr(facts, name)) for name in Facts.__slots__)
    single = [(name, fact) for name, fact in rows if isinstance(fact, Unknown)]
    keyed = [(path, fact) for path, fact in {**facts.files, **facts.units}.items() if isinstance(fact, Unknown)]
    unread = Unknown(backlog.unread_reason, "journal") if backlog and backlog.unread_reason else None
    unknown_facts = (*single, *keyed, *([("pending_triggers", unread)] if unread else []))
    return [{"fact": name, "reason": fact.reason, "probe": fact.probe} for name, fact in unknown_facts]


def load_backlog(node: str, root: str, facts: Facts) -> Backlog:
    """Return the work that earlier runs left pending; none for a capture."""
    from gpunode.workflow.recovery import NO_BACKLOG, read_backlog

    if node:
        return NO_BACKLOG
    from gpunode.journal.store import Store

    return read_backlog(Store(validate_root(root)), facts)


def validate_steps(only: Sequence[str]) -> None:
    """Refuse step ids that do not exist.

    Raises:
        UsageError: names the nearest existing ids.
    """
    from difflib import get_close_matches

    from gpunode.steps.table import STEPS

    ids = [step.id for step in STEPS]
    if wrong := [step for step in only if step not in ids]:
        parts = [part for step in wrong for part in map(str.strip, step.split(","))]
        guesses = [guess for part in parts for guess in get_close_matches(part, ids, n=1)]
        hint = f"did you mean --only {' --only '.join(guesses)}?"
        if len(guesses) < len(parts):
            hint = "name steps of this list, each with its own --only; `gpunode plan -v` shows what each of them does"
        raise UsageError(
            f"there is no step {', '.join([part for part in parts if part not in ids] or wrong)}",
            why=f"steps: {', '.join(ids)}",
            hint=hint,
        )
