"""Histograms, random numbers, checksums, and the two forms of the report."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vringd.bench import report_json, report_text
from vringd.bench.native import bucket_bounds, crc32c, zipf_ranks
from vringd.bench.result import DirectionResult, JobResult, LatencyHistogram, RunResult
from vringd.bench.spec import JobSpec


def histogram(*latencies: int) -> LatencyHistogram:
    buckets: Counter[int] = Counter()
    for latency in latencies:
        bucket = next(b for b in range(2560) if bucket_bounds(b)[1] > latency)
        buckets[bucket] += 1
    return LatencyHistogram(
        len(latencies),
        min(latencies),
        max(latencies),
        float(sum(latencies)),
        float(sum(n * n for n in latencies)),
        dict(buckets),
    )


def test_buckets_follow_each_other_and_are_narrow() -> None:
    end = 0
    for bucket in range(2559):
        begin, following = bucket_bounds(bucket)
        assert begin == end
        assert following - begin <= max(1, begin / 64)
        end = following


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50), st.floats(0.1, 100))
def test_percentile_is_within_a_bucket_of_the_exact_one(latencies: list[int], p: float) -> None:
    exact = sorted(latencies)[max(1, math.ceil(p / 100 * len(latencies))) - 1]
    assert histogram(*latencies).percentile(p) == pytest.approx(exact, rel=1 / 64)


@given(
    st.lists(st.integers(1, 10**6), min_size=1, max_size=20),
    st.lists(st.integers(1, 10**6), min_size=1, max_size=20),
)
def test_added_histograms_are_those_of_all(a: list[int], b: list[int]) -> None:
    merged = histogram(*a)
    merged.add(histogram(*b))
    assert merged == histogram(*a, *b)


def test_spread() -> None:
    latency = histogram(100, 200, 300)
    assert (latency.mean, latency.stddev) == (200, 100)
    assert LatencyHistogram().stddev == 0


@pytest.mark.parametrize("theta", [0.6, 1.2])
def test_zipf_prefers_low_ranks_by_its_law(theta: float) -> None:
    ranks = Counter(zipf_ranks(1000, theta, 7, 40_000))
    weights = [1 / (rank + 1) ** theta for rank in range(1000)]
    whole = sum(weights)
    assert min(ranks) >= 0
    assert max(ranks) < 1000
    for rank in (0, 1, 4):
        expected = 40_000 * weights[rank] / whole
        assert ranks[rank] == pytest.approx(expected, abs=6 * math.sqrt(expected))


def test_zipf_repeats_with_its_seed() -> None:
    assert zipf_ranks(100, 1.1, 3, 50) == zipf_ranks(100, 1.1, 3, 50)
    assert zipf_ranks(100, 1.1, 3, 50) != zipf_ranks(100, 1.1, 4, 50)


def test_checksum_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # RFC 3720 and others: the check value
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, B.4


@given(st.binary(min_size=1, max_size=200))
def test_both_ways_to_the_checksum_agree(data: bytes) -> None:
    assert crc32c(data) == crc32c(data, portable=True)


def result() -> RunResult:
    spec = JobSpec("a", group_reporting=True, options={"rw": "read"}, iodepth=8)
    jobs = []
    for queue in range(2):
        job = JobResult(spec, 0, queues=frozenset({queue}), runtime=2.0, user=1.0, system=0.5)
        job.directions["read"] = DirectionResult(
            1000, 4_096_000, 2.0, histogram(*[100] * 1000), histogram(*[5000] * 1000)
        )
        jobs.append(job)
    return RunResult(jobs, 1 << 30, 2, 1.0)


def test_groups_are_merged_where_asked_for() -> None:
    (merged,) = result().reported
    assert (merged.jobs, merged.queues) == (2, {0, 1})
    assert merged.directions["read"].ios == 2000
    assert merged.directions["read"].iops == 1000


def test_json_has_the_fields_that_readers_of_fio_use() -> None:
    document = json.loads(json.dumps(report_json.report(result(), {}, {})))
    (job,) = document["jobs"]
    assert job["jobname"] == "a"
    assert job["job options"]["rw"] == "read"
    assert job["read"]["total_ios"] == 2000
    assert job["read"]["iops"] == 1000
    assert job["read"]["bw"] == 4000
    assert job["read"]["clat_ns"]["percentile"]["99.000000"] == pytest.approx(5000, rel=1 / 64)
    assert job["read"]["lat_ns"]["mean"] == 5100
    assert job["usr_cpu"] == 50
    assert job["iodepth_level"]["8"] == 100
    assert sum(job["latency_us"].values()) == 100


def test_text_shows_rates_and_latencies() -> None:
    text = report_text.report(result())
    assert "a: (groupid=0, jobs=2): err= 0: queues=0,1:" in text
    assert "read: IOPS=1000, BW=3.9MiB/s (4.1MB/s)(7.8MiB/2000msec)" in text
    assert "clat (nsec): min=5000, max=5000, avg=5000.00" in text
    assert "READ: bw=3.9MiB/s" in text


@pytest.mark.parametrize(
    ("number", "text"), [(999, "999"), (12_345, "12.3k"), (123_456, "123k"), (12_345_678, "12.3M")]
)
def test_short_numbers(number: int, text: str) -> None:
    assert report_text.short(number) == text
