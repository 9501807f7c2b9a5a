"""The whole load generator against the device that completes at once."""

from __future__ import annotations

import time

import pytest

from vringd.bench.errors import JobOptionError
from vringd.bench.options import make_job
from vringd.bench.runner import Progress, run_jobs
from vringd.bench.target import Target


@pytest.mark.parametrize("packed", [False, True], ids=["split", "packed"])
@pytest.mark.parametrize("wait", ["eventfd", "polling"])
@pytest.mark.parametrize("event_idx", [False, True])
@pytest.mark.parametrize("kind", ["blk", "scsi"])
def test_every_request_comes_back(packed: bool, wait: str, event_idx: bool, kind: str) -> None:
    target = Target(None, packed=packed, wait=wait, event_idx=event_idx, kind=kind)  # type: ignore[arg-type]
    job, _ = make_job("j", {"rw": "randrw", "iodepth": "32", "number_ios": "2000", "numjobs": "2"})
    result = run_jobs(target, [job])
    assert [each.ios for each in result.jobs] == [2000, 2000]
    assert [each.queues for each in result.jobs] == [{0}, {1}]
    for each in result.jobs:
        assert each.directions["read"].clat.count == each.directions["read"].ios > 0


def test_jobs_share_a_queue() -> None:
    job, _ = make_job("j", {"rw": "read", "iodepth": "32", "number_ios": "5000", "numjobs": "3"})
    result = run_jobs(Target(None, num_queues=1), [job])
    assert [each.ios for each in result.jobs] == [5000] * 3


def test_depth_beyond_direct_descriptors_uses_indirect_ones() -> None:
    job, _ = make_job("j", {"rw": "read", "iodepth": "256", "number_ios": "3000"})
    assert run_jobs(Target(None), [job]).jobs[0].ios == 3000


def test_ramp_is_not_measured() -> None:
    job, _ = make_job("j", {"rw": "read", "runtime": "200ms", "ramp_time": "200ms"})
    begin = time.monotonic()
    result = run_jobs(Target(None), [job])
    assert result.jobs[0].runtime <= time.monotonic() - begin - 0.2


def test_progress_is_told_while_jobs_run() -> None:
    job, _ = make_job("j", {"rw": "read", "runtime": "1200ms", "time_based": "1"})
    told: list[Progress] = []
    run_jobs(Target(None), [job], progress=told.append)
    assert told[0].running == 1
    assert told[0].iops > 0
    assert told[0].remaining is not None


def test_same_seed_makes_the_same_requests() -> None:
    job, _ = make_job(
        "j", {"rw": "randrw", "bssplit": "4k/50:8k/50", "number_ios": "500", "randseed": "9"}
    )
    first, second = (run_jobs(Target(None), [job]).jobs[0] for _ in range(2))
    assert first.directions["read"].bytes == second.directions["read"].bytes
    assert first.directions["write"].bytes == second.directions["write"].bytes


def test_cpu_that_does_not_exist_is_refused() -> None:
    job, _ = make_job("j", {"rw": "read", "number_ios": "1"})
    with pytest.raises(JobOptionError, match="--echo: its thread cannot run there"):
        run_jobs(Target(None, echo_cpus=(1000,)), [job])
