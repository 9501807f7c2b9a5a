"""The load generator's threads, also several on one queue, against a served device."""

from __future__ import annotations

from pathlib import Path

import pytest

from vringd.bench.options import make_job
from vringd.bench.runner import run_jobs
from vringd.bench.target import Target

from .engine import Engine


@pytest.mark.parametrize("packed", [False, True], ids=["split", "packed"])
@pytest.mark.parametrize("wait", ["eventfd", "polling"])
@pytest.mark.parametrize("queues", [1, 3])
def test_jobs_that_write_find_their_data_again(
    engine: Engine, folder: Path, wait: str, packed: bool, queues: int
) -> None:
    path = engine.serve_disk("file", folder, num_queues=queues)
    job, _ = make_job(
        "writers",
        {
            "rw": "randwrite",
            "bs": "4k",
            "iodepth": "16",
            "numjobs": "3",
            "size": "512k",
            "offset_increment": "1m",
            "verify": "crc32c",
        },
    )
    target = Target(path, num_queues=queues, wait=wait, packed=packed)  # type: ignore[arg-type]
    result = run_jobs(target, [job], watchdog=60)
    assert [each.directions["write"].bytes for each in result.jobs] == [512 << 10] * 3
    assert {queue for each in result.jobs for queue in each.queues} == set(range(queues))
