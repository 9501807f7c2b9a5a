"""What the load generator itself can do: its rate against a device that completes at once."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from vringd.bench.lab import process
from vringd.bench.lab.errors import SampleError, log_tail
from vringd.bench.lab.setup import Cpus, Place

_PATIENCE_SECONDS: Final = 20.0


@dataclass(frozen=True)
class Ceiling:
    """Requests per second of one job on one CPU, and the part of that CPU that it got; 0 where
    that was not measured."""

    iops: float = 0.0
    share: float = 0.0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def describe(self) -> str:
        """One sentence."""
        if not self.iops:
            return "the load generator's own limit was not measured: that takes two CPUs"
        return (
            f"{self.iops / 1e6:.1f} million requests a second by one job on one CPU (of which it"
            f" got {100 * self.share:.0f} %), against a device that completes at once on another"
        )


def measure_ceiling(
    place: Place, cpus: Cpus, *, kind: str = "blk", runtime: float = 1.0
) -> Ceiling:
    """4 KiB reads, depth 64, polling, no latencies. Raises SampleError."""
    if len(cpus) < 2:
        return Ceiling()
    argv = [
        *(sys.executable, "-m", "vringd", "bench", "--echo", str(cpus[0]), "--device", kind),
        *("--wait", "polling", "--eta=never", "--output-format=json", "--name=ceiling"),
        *("--rw=randread", "--bs=4k", "--iodepth=64", "--iodepth_batch_submit=64"),
        *("--gtod_reduce=1", "--norandommap", "--time_based", f"--cpus_allowed={cpus[1]}"),
        *("--ramp_time=200ms", f"--runtime={round(runtime * 1000)}ms"),
    ]
    log, output = place.folder / "ceiling.log", place.folder / "ceiling.json"
    output.unlink(missing_ok=True)
    client = process.start(argv, (), log, nice=place.nice, stdout=output)
    deadline = time.monotonic() + runtime + _PATIENCE_SECONDS
    try:
        while client.poll() is None:
            if time.monotonic() > deadline:
                raise SampleError("the load generator's own limit: no result in time")
            time.sleep(0.02)
    finally:
        process.stop(client)
    if client.returncode:
        raise SampleError(f"the load generator's own limit:\n{log_tail(log)}")
    job = json.loads(output.read_text())["jobs"][0]
    return Ceiling(job["read"]["iops"], (job["usr_cpu"] + job["sys_cpu"]) / 100)
