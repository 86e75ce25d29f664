"""Which files CRI-O reads. Apart from its rules, since that is asked on every node."""

from __future__ import annotations

from gpunode.runtimes.model import CRIO_CONFIG, CRIO_FOLDER, DesiredConfig, Files, keep_row

# nvidia-ctk 1.18.0 to 1.19.0 wrote its drop-in here, where CRI-O never looks (nvidia-container-toolkit PR 1829).
UNREAD_FOLDER = "/etc/crio/conf.d"
locate_row = keep_row


def reads(files: Files, desired: DesiredConfig) -> tuple[str, ...]:
    """Every path and pattern that CRI-O reads, and the folder that older toolkits took for one of them."""
    del files
    patterns = [
        root_file_of(desired),
        f"{CRIO_FOLDER}/*",
        f"{CRIO_FOLDER}/.*",
        f"{CRIO_FOLDER}/*/*",
        f"{UNREAD_FOLDER}/*",
    ]
    if desired.drop_in:
        patterns += [desired.drop_in, f"{folder_of(desired.drop_in)}/*"]
    return tuple(dict.fromkeys(patterns))


def root_file_of(desired: DesiredConfig) -> str:
    """Return the root file: the usual one, unless another is requested."""
    return desired.config or CRIO_CONFIG


def folder_of(path: str) -> str:
    """The folder in which the file at ``path`` is."""
    return path.rpartition("/")[0]
