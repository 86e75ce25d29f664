"""Growth of configuring containerd with the file size, compared with parsers that only read the file.

The file is the output of ``containerd config default``, with as many registry mirrors as large sites have.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import print_row, print_title

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
DEFAULT_CONFIG = ROOT / "tests/conformance/runtimes/vectors/007-ctd-default-1.7-systemd-cdi/input.toml"
MIRRORS_TABLE = '      [plugins."io.containerd.grpc.v1.cri".registry.mirrors]\n'
MIRROR_TEMPLATE = """
        [plugins."io.containerd.grpc.v1.cri".registry.mirrors."r{0}.example.com"]
          endpoint = ["https://m{0}.example.com"]
"""


def measure_configuring(times: int = 5) -> None:
    """Print each one's processor time, best of ``times`` in turns, and the exponent of its growth (1.0: linear)."""
    print_title(
        f"Configuring containerd: processor time as a multiple of the standard library's reading, best of {times}"
    )
    print_row("", "300 lines", "1200 lines", "6300 lines", "grows as")
    sizes = [_measure_size(add_mirrors(mirrors), times) for mirrors in (0, 300, 2000)]
    for name in sizes[0][1]:
        ratios = [costs[name] / costs[_READ] for _, costs in sizes]
        (small, first), (large, last) = ((lines, costs[name]) for lines, costs in (sizes[0], sizes[-1]))
        growth = math.log(last / first) / math.log(large / small)
        print_row(name, *(f"{ratio:.1f}×" for ratio in ratios), f"size^{growth:.2f}")
    print_row("in all, for the largest", *("" for _ in sizes), f"{sizes[-1][1][_CONFIGURE] * 1000:.0f} ms")


_READ = "tomllib reads it"
_CONFIGURE = "gpunode configures it"


def _measure_size(data: bytes, times: int) -> tuple[int, dict[str, float]]:
    """Return the number of lines, and the processor time of each program."""
    import tomlkit

    from gpunode.runtimes import DesiredConfig, find_runtime
    from gpunode.runtimes.documents import parse_toml

    text, containerd, desired = data.decode(), find_runtime("containerd"), DesiredConfig(default=True, mode="in-place")
    configured_data = containerd.configure({containerd.config: data}, desired).edits[0].after or b""

    def make_run(content: bytes) -> Callable[[], object]:
        def run() -> object:
            parse_toml.cache_clear()  # a real run has not parsed the file before
            return containerd.configure({containerd.config: content}, desired)

        return run

    runs: dict[str, Callable[[], object]] = {
        _READ: lambda: tomllib.loads(text),
        "gpunode finds nothing to do": make_run(configured_data),
        _CONFIGURE: make_run(data),
        "tomlkit reads and writes it": lambda: tomlkit.dumps(tomlkit.parse(text)),
    }
    rounds = [{name: _measure_cpu_time(run) for name, run in runs.items()} for _ in range(times)]
    return text.count("\n"), {name: min(times_by_name[name] for times_by_name in rounds) for name in runs}


def add_mirrors(mirrors: int) -> bytes:
    """Return the default configuration of containerd 1.7 with ``mirrors`` registry mirrors."""
    before, header, after = DEFAULT_CONFIG.read_text().partition(MIRRORS_TABLE)
    return (before + header + "".join(map(MIRROR_TEMPLATE.format, range(mirrors))) + after).encode()


def _measure_cpu_time(run: Callable[[], object]) -> float:
    started = time.process_time()
    run()
    return time.process_time() - started
