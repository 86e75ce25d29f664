"""The commands that are proposed: what was typed, reworded for what comes next. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from gpunode.command import Command, gpunode, sudo_gpunode

# Options that say how an answer is shown.
SHOWN_HOW = frozenset({"--json", "-v", "--verbose"})
_LEAVE = frozenset({"--yes", "-y", "--reboot", "--allow-disruption", "--allow-loss", "--upgrade", "--apply-cluster"})
# Of a setup, and of the other commands below k8s.
_NOT_OF_CLUSTER = frozenset(
    {"--only", "--root", "--gpu", "--lock", "--lock-timeout", "--runtime", "--driver", "--timeout", "--image"}
)


def setup_command(argv: Sequence[str]) -> Command:
    """Return the command that does what ``argv``, a plan's, a rehearsal's or a verify's, showed or looked for."""
    # A lock that was renewed holds what --upgrade asked for; only an image's GPUs are named.
    done = {"--upgrade"} if any(word.partition("=")[0] == "--lock" for word in argv) else set()
    elsewhere = {"--node"} if root_of(argv) else {"--node", "--gpu"}
    return sudo_gpunode("setup", *without(argv[1:], {"--check", "--cuda", "--container", *SHOWN_HOW, *done}, elsewhere))


def setup_place(argv: Sequence[str]) -> str:
    """Where that command is to be run, when not on this machine."""
    if value_of(argv, "--node"):
        return "  (on that node)"
    return "  (on a machine with that GPU)" if value_of(argv, "--gpu") and not root_of(argv) else ""


def verify_command(argv: Sequence[str]) -> Command:
    """The command that proves more of what ``argv``, a setup's, made; with its recipe, by which verify judges."""
    words = without(argv[1:], SHOWN_HOW | _LEAVE, {"--only", "--root", "--gpu", "--lock", "--lock-timeout"})
    return gpunode("verify", *words, "--cuda", "--container")


def cluster_apply_command(argv: Sequence[str]) -> Command:
    """``gpunode k8s apply`` for the recipe, nodes and cluster of ``argv``, a setup's or another of ``k8s``."""
    return gpunode("k8s", "apply", *_of_cluster(argv))


def cluster_verify_command(argv: Sequence[str]) -> Command:
    """Likewise ``gpunode k8s verify``."""
    return gpunode("k8s", "verify", *_of_cluster(argv))


def cluster_render_command(argv: Sequence[str], *words: str) -> Command:
    """Return ``gpunode k8s render`` for the recipe and nodes of ``argv``, with ``words``; it asks no cluster."""
    return gpunode("k8s", "render", *without(_of_cluster(argv), (), {"--context", "--kubeconfig"}), *words)


def _of_cluster(argv: Sequence[str]) -> Sequence[str]:
    words = argv[1:] if "setup" in argv[:1] else argv[2:]
    return without(words, SHOWN_HOW | _LEAVE | {"--check"}, _NOT_OF_CLUSTER)


def rollback_command(argv: Sequence[str], *words: str) -> Command:
    """The command that undoes a run that ``argv`` made; in the same root folder."""
    root = root_of(argv)
    return sudo_gpunode("rollback", *words, *(("--root", root) if root else ()))


def root_of(argv: Sequence[str]) -> str:
    """What ``--root`` says in ``argv``; empty for this machine."""
    return value_of(argv, "--root")


def value_of(argv: Sequence[str], option: str) -> str:
    """What ``option`` says in ``argv``; empty where it is not given."""
    for word, value in zip(argv, [*argv[1:], ""], strict=False):
        if word == option or word.startswith(f"{option}="):
            return word.partition("=")[2] or value
    return ""


def same_command(argv: Sequence[str]) -> Command:
    """The same command once more; on a cluster it needs no root."""
    of_cluster = "k8s" in argv[:1] or any(word.startswith("k") for word in argv[1:2] if argv[0] == "rollback")
    return gpunode(*argv) if of_cluster else sudo_gpunode(*argv)


def again_command(argv: Sequence[str]) -> Command:
    """The same command, agreeing to it."""
    return same_command((*argv, "--yes"))


def without(words: Sequence[str], flags: Collection[str], valued: Collection[str]) -> list[str]:
    """``words`` without those options; ``valued`` ones take the word after them along."""

    def kept() -> Iterator[str]:
        is_value = False
        for word in words:
            if is_value or word in flags or word.partition("=")[0] in valued:
                is_value = not is_value and word in valued
                continue
            yield word

    return list(kept())
