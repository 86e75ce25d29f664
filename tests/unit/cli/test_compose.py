from __future__ import annotations

import pytest

from gpunode.cli.compose import gpus_to_set_up
from gpunode.errors import UsageError


def test_gpus_are_named_for_images_only() -> None:
    (device,) = gpus_to_set_up("10de:1B80", image=True)
    assert device.device == "1b80"
    with pytest.raises(UsageError, match="--gpu is for an image"):
        gpus_to_set_up("10de:1b80", image=False)
    assert gpus_to_set_up("", image=False) == ()
