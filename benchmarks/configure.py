"""How configuring containerd grows with its file, beside what others take to do no more than read it.

The file is what ``containerd config default`` prints, with as many registry mirrors as large sites have.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import row, title

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
DEFAULT = ROOT / "tests/conformance/runtimes/vectors/007-ctd-default-1.7-systemd-cdi/input.toml"
TABLE = '      [plugins."io.containerd.grpc.v1.cri".registry.mirrors]\n'
MIRROR = """
        [plugins."io.containerd.grpc.v1.cri".registry.mirrors."r{0}.example.com"]
          endpoint = ["https://m{0}.example.com"]
"""


def configuring(times: int = 5) -> None:
    """Processor time of each, best of ``times`` in turns; the exponent says how it grows (1.0: linear)."""
    title(f"Configuring containerd: processor time as a multiple of the standard library's reading, best of {times}")
    row("", "300 lines", "1200 lines", "6300 lines", "grows as")
    sizes = [_measured(with_mirrors(mirrors), times) for mirrors in (0, 300, 2000)]
    for name in sizes[0][1]:
        ratios = [costs[name] / costs[_READ] for _, costs in sizes]
        (small, first), (large, last) = ((lines, costs[name]) for lines, costs in (sizes[0], sizes[-1]))
        growth = math.log(last / first) / math.log(large / small)
        row(name, *(f"{ratio:.1f}×" for ratio in ratios), f"size^{growth:.2f}")
    row("in all, for the largest", *("" for _ in sizes), f"{sizes[-1][1][_CONFIGURE] * 1000:.0f} ms")


_READ = "tomllib reads it"
_CONFIGURE = "gpunode configures it"


def _measured(data: bytes, times: int) -> tuple[int, dict[str, float]]:
    """The file's lines, and what each takes."""
    import tomlkit

    from gpunode.runtimes import DesiredConfig, runtime
    from gpunode.runtimes.documents import parse_toml

    text, containerd, desired = data.decode(), runtime("containerd"), DesiredConfig(default=True, mode="in-place")
    done = containerd.configure({containerd.config: data}, desired).edits[0].after or b""

    def configured(content: bytes) -> Callable[[], object]:
        def work() -> object:
            parse_toml.cache_clear()  # it is another run's file
            return containerd.configure({containerd.config: content}, desired)

        return work

    works: dict[str, Callable[[], object]] = {
        _READ: lambda: tomllib.loads(text),
        "gpunode finds nothing to do": configured(done),
        _CONFIGURE: configured(data),
        "tomlkit reads and writes it": lambda: tomlkit.dumps(tomlkit.parse(text)),
    }
    rounds = [{name: _timed(work) for name, work in works.items()} for _ in range(times)]
    return text.count("\n"), {name: min(one[name] for one in rounds) for name in works}


def with_mirrors(mirrors: int) -> bytes:
    """The default configuration of containerd 1.7 with that many registry mirrors."""
    before, header, after = DEFAULT.read_text().partition(TABLE)
    return (before + header + "".join(map(MIRROR.format, range(mirrors))) + after).encode()


def _timed(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started
