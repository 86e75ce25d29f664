"""Which files CRI-O reads. Apart from its rules, since that is asked on every node."""

from __future__ import annotations

from gpunode.runtimes.model import CRIO_CONFIG, CRIO_FOLDER, Files, Wish, as_installed

# nvidia-ctk 1.18.0 to 1.19.0 wrote its drop-in here, where CRI-O never looks (nvidia-container-toolkit PR 1829).
DEAD_FOLDER = "/etc/crio/conf.d"
located = as_installed


def reads(files: Files, wish: Wish) -> tuple[str, ...]:
    """Every path and pattern that CRI-O reads, and the folder that older toolkits took for one of them."""
    del files
    patterns = [config_of(wish), f"{CRIO_FOLDER}/*", f"{CRIO_FOLDER}/.*", f"{CRIO_FOLDER}/*/*", f"{DEAD_FOLDER}/*"]
    if wish.drop_in:
        patterns += [wish.drop_in, f"{folder_of(wish.drop_in)}/*"]
    return tuple(dict.fromkeys(patterns))


def config_of(wish: Wish) -> str:
    """The root file: the usual one, unless another is asked for."""
    return wish.config or CRIO_CONFIG


def folder_of(path: str) -> str:
    """The folder in which the file at ``path`` is."""
    return path.rpartition("/")[0]
