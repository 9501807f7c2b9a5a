"""What a client's report and the CPU clocks tell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from vringd.bench.lab.cpu_time import ProcessClock, Sampler
from vringd.bench.lab.errors import SampleError, UsageError
from vringd.bench.lab.load import Job, read_load


def direction(iops: float, size: int = 4096, **percentiles: float) -> dict[str, Any]:
    return {
        "iops": iops,
        "bw_bytes": iops * size,
        "total_ios": int(iops * 0.2),
        "runtime": 200,
        "clat_ns": {"percentile": {f"{int(k[1:])}.000000": v for k, v in percentiles.items()}},
    }


def report(*jobs: dict[str, Any], start: float, error: int = 0) -> str:
    for job in jobs:
        job.update(job_start=round(start * 1000), ctx=3, error=error)
    return "note: something\n" + json.dumps({"jobs": jobs})


@pytest.fixture
def sampler() -> Sampler:
    """Has looked at this process, as both server and client, for 0.4 s."""
    sampler = Sampler(os.getpid(), os.getpid(), {0})
    time.sleep(0.4)
    sampler.stop()
    return sampler


def test_rates_of_jobs_and_directions_add_up(sampler: Sampler) -> None:
    start = time.time() - 0.4
    text = report(
        {"read": direction(1000.0, p50=10.0, p99=30.0), "write": direction(500.0, 8192)},
        {"read": direction(3000.0, p50=20.0, p99=70.0), "trim": direction(0.0)},
        start=start,
    )
    load = read_load(text, sampler, ramp=0.0)
    assert load.iops == 4500
    assert load.requests == 900
    assert load.read_bytes == 4000 * 4096
    assert load.write_bytes == 500 * 8192
    assert load.p50_ns == pytest.approx(17.5)
    assert load.p99_ns == pytest.approx(60)
    assert load.context_switches == 6
    assert 0.05 < load.usage.seconds < 0.2


@pytest.mark.parametrize("text", ["", "no report", "{}", '{"jobs": 5'])
def test_output_that_is_no_report_is_told(sampler: Sampler, text: str) -> None:
    with pytest.raises(SampleError, match="no report"):
        read_load(text, sampler, 0.0)


def test_run_without_a_request_is_no_result(sampler: Sampler) -> None:
    text = report({"read": direction(0.0)}, start=time.time() - 0.4)
    with pytest.raises(SampleError, match="without a request"):
        read_load(text, sampler, 0.0)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--rw=read",), "--time_based"),
        (("--rw=read", "--time_based", "--runtime=1", "--stonewall"), "stonewall"),
        (("--rw=reed",), "not one of read"),
        ((), "no job"),
    ],
)
def test_job_that_cannot_be_compared_is_refused(words: tuple[str, ...], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Job(words).specs()


def test_cpu_time_of_threads_that_ended_stays_counted() -> None:
    code = (
        "import sys,threading,time\n"
        "def burn():\n"
        "    end = time.thread_time() + 0.15\n"
        "    while time.thread_time() < end: pass\n"
        "    print('burnt', flush=True); sys.stdin.readline()\n"
        "t = threading.Thread(target=burn); t.start(); t.join()\n"
        "print('joined', flush=True); sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        clock = ProcessClock(process.pid)
        assert process.stdout.readline() == "burnt\n"
        burnt = clock.total_ns()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "joined\n"
        after = clock.total_ns()
        process.stdin.write("\n")
    assert burnt >= 100_000_000
    assert after >= burnt
