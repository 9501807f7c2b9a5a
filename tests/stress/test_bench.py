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


@pytest.mark.parametrize("complete", ["1", "16"], ids=["one by one", "whole batches"])
@pytest.mark.parametrize("packed", [False, True], ids=["split", "packed"])
@pytest.mark.parametrize("wait", ["eventfd", "polling"])
def test_every_job_gets_its_turn_in_a_ring_that_is_too_small_for_all(
    engine: Engine, folder: Path, wait: str, packed: bool, complete: str
) -> None:
    """Six jobs of 16 requests each on a ring of 32: without turns, those that hold the ring
    would refill it at once, for as long as they run."""
    path = engine.serve_disk("file", folder, num_queues=1)
    job, _ = make_job(
        "crowd",
        {
            "rw": "randread",
            "iodepth": "16",
            "iodepth_batch_submit": "16",
            "iodepth_batch_complete_min": complete,
            "numjobs": "6",
            "number_ios": "2000",
            "size": "1m",
            "time_based": "1",
            "runtime": "60",
        },
    )
    target = Target(path, num_queues=1, queue_size=32, wait=wait, packed=packed)  # type: ignore[arg-type]
    result = run_jobs(target, [job], watchdog=60)
    assert [each.directions["read"].ios for each in result.jobs] == [2000] * 6


def test_job_that_pauses_leaves_the_listening_to_another(engine: Engine, folder: Path) -> None:
    """Only one of the jobs listens for the device's signals; others go on while it thinks."""
    path = engine.serve_disk("file", folder, num_queues=1)
    common = {"rw": "randread", "size": "1m", "time_based": "1", "runtime": "60"}
    idler, _ = make_job("idler", {**common, "thinktime": "200ms", "number_ios": "5"})
    worker, _ = make_job("worker", {**common, "number_ios": "20000", "iodepth": "4"})
    target = Target(path, num_queues=1)
    result = run_jobs(target, [idler, worker], watchdog=60)
    assert [each.directions["read"].ios for each in result.jobs] == [5, 20000]
    # A worker whose signals nobody heard would take 100 ms for each request.
    assert result.jobs[1].directions["read"].clat.mean < 20_000_000
