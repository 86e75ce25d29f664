"""Suggested commands, derived from the command that was typed."""

from __future__ import annotations

import os
import pwd
from collections.abc import Collection, Sequence

from gpunode.command import Command, command, gpunode_command, sudo_gpunode

# Options for display only.
DISPLAY_OPTIONS = frozenset({"--json", "-v", "--verbose"})
_STATE_OPTIONS = frozenset({"--runtime", "--driver", "--driver-source", "--cuda-toolkit"})
_CLUSTER_OPTIONS = frozenset({"--node", "--context", "--kubeconfig"})
# Options of setup and the k8s commands whose value is the next word.
_OPTIONS_WITH_VALUE = (
    _STATE_OPTIONS
    | _CLUSTER_OPTIONS
    | {"--only", "--root", "--gpu", "--lock", "--lock-timeout", "--mok-password-file"}
    | {"--timeout", "--image", "--output", "-o", "--format"}
)


def own_sudo() -> Sequence[str]:
    """Return sudo, if the user typed it, with the variables that kubectl needs to find the same cluster."""
    if os.geteuid() != 0 or "SUDO_UID" not in os.environ:
        return ()
    usual = {"HOME": pwd.getpwuid(0).pw_dir, "KUBECONFIG": ""}
    return (
        "sudo",
        *(f"{name}={os.environ[name]}" for name in usual if os.environ.get(name, "") not in ("", usual[name])),
    )


def own_gpunode(*words: str) -> Command:
    """Return the gpunode command for the same user's kubeconfig and journal."""
    return command(*own_sudo(), "gpunode", *words)


def setup_command(argv: Sequence[str]) -> Command:
    """Return the setup command for ``argv``, which is a plan's, a rehearsal's or a verify's."""
    # A renewed lock already contains what --upgrade requested; --gpu is kept only for an image.
    done = {"--upgrade"} if any(word.partition("=")[0] == "--lock" for word in argv) else set()
    elsewhere = {"--node"} if root_option(argv) else {"--node", "--gpu"}
    return sudo_gpunode(
        "setup", *drop_options(argv[1:], {"--check", "--cuda", "--container", *DISPLAY_OPTIONS, *done}, elsewhere)
    )


def setup_machine_note(argv: Sequence[str]) -> str:
    """Return a note on where to run the setup command, if not on this machine."""
    if option_value(argv, "--node"):
        return "  (on that node)"
    return "  (on a machine with that GPU)" if option_value(argv, "--gpu") and not root_option(argv) else ""


def verify_command(argv: Sequence[str]) -> Command:
    """Return the verify command for ``argv``, a setup, with the same recipe."""
    return gpunode_command("verify", *_keep_options(argv[1:], _STATE_OPTIONS), "--cuda", "--container")


def cluster_apply_command(argv: Sequence[str]) -> Command:
    """Return ``gpunode k8s apply`` for the recipe, nodes and cluster of ``argv``, a setup or k8s command."""
    make = gpunode_command if "setup" in argv[:1] else own_gpunode
    return make("k8s", "apply", *_words_for_cluster(argv, _CLUSTER_OPTIONS))


def cluster_plan_command(argv: Sequence[str]) -> Command:
    """Return ``gpunode k8s plan`` for the same recipe, nodes and cluster."""
    return own_gpunode("k8s", "plan", *_words_for_cluster(argv, _CLUSTER_OPTIONS))


def cluster_verify_command(argv: Sequence[str]) -> Command:
    """Return ``gpunode k8s verify`` for the same recipe, nodes and cluster."""
    return own_gpunode("k8s", "verify", *_words_for_cluster(argv, _CLUSTER_OPTIONS))


def cluster_render_command(argv: Sequence[str], *words: str) -> Command:
    """Return ``gpunode k8s render`` for the recipe and nodes of ``argv``, with ``words``; it needs no cluster."""
    return gpunode_command("k8s", "render", *_words_for_cluster(argv, {"--node"}), *words)


def _words_for_cluster(argv: Sequence[str], options: Collection[str]) -> Sequence[str]:
    return _keep_options(argv[1:] if "setup" in argv[:1] else argv[2:], options)


def rollback_command(argv: Sequence[str], *words: str) -> Command:
    """Return the command that undoes the run of ``argv``, in the same root folder."""
    root = root_option(argv)
    return sudo_gpunode("rollback", *words, *(("--root", root) if root else ()))


def root_option(argv: Sequence[str]) -> str:
    """Return the value of ``--root``; empty for this machine."""
    return option_value(argv, "--root")


def option_value(argv: Sequence[str], option: str) -> str:
    """Return the value of ``option``; empty if not given."""
    for word, value in zip(argv, [*argv[1:], ""], strict=False):
        if word == option or word.startswith(f"{option}="):
            return word.partition("=")[2] or value
    return ""


def repeat_command(argv: Sequence[str]) -> Command:
    """Return the same command, with sudo if it needs root or was typed with it."""
    of_cluster = "k8s" in argv[:1] or any(word.startswith("k") for word in argv[1:2] if argv[0] == "rollback")
    return own_gpunode(*argv) if of_cluster else sudo_gpunode(*argv)


def drop_options(words: Sequence[str], flags: Collection[str], valued: Collection[str]) -> list[str]:
    """Return ``words`` without these options; ``valued`` ones are dropped with their values."""
    kept, is_value = list[str](), False
    for word in words:
        if is_value or word in flags or word.partition("=")[0] in valued:
            is_value = not is_value and word in valued
        else:
            kept.append(word)
    return kept


def _keep_options(words: Sequence[str], options: Collection[str]) -> list[str]:
    """Return ``words`` without all options but these, which take a value."""
    kept = list[str]()
    for before, word in zip(["", *words], words, strict=False):
        is_named = word.partition("=")[0] in options or not word.startswith("-")
        if before in options if before in _OPTIONS_WITH_VALUE else is_named:
            kept.append(word)
    return kept
