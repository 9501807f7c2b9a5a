"""The queueing model: limits that it must keep, and cases with a known answer."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vringd.bench.experiments.published import load
from vringd.bench.experiments.virtio_blk_mq import NAME
from vringd.bench.predict import text
from vringd.bench.predict.model import Costs, Shape, holds, predict
from vringd.bench.predict.validation import Check, mean_error, shapes

FREE = Costs(0.1, 0.1, 0, 0, 0, 0, 0, 0, 0)
COSTS = Costs(0.05, 0.06, 14.0, 15.0, 1.0, 3.0, 8.0, 10.0, 7.0)

costs = st.builds(Costs, *[st.floats(0.01, 50.0)] * 9)
machines = st.builds(
    Shape,
    threads=st.integers(1, 16),
    queues=st.integers(1, 16),
    jobs=st.integers(1, 16),
    cpus=st.integers(1, 32),
    depth=st.sampled_from([1, 8, 64]),
    batch=st.sampled_from([1, 8, 64]),
    backend_us=st.floats(0, 100),
    pinning=st.sampled_from(["none", "halves", "one-to-one"]),
    polling=st.booleans(),
)


def test_one_job_and_one_thread_take_turns() -> None:
    """One customer waits for nobody: the rate is one over the sum of all demands."""
    shape = Shape(1, 1, 1, 2, depth=1, batch=1, backend_us=2.0)
    given_costs = dataclasses.replace(FREE, wake_polling=3.0)
    assert predict(given_costs, shape).rate == pytest.approx(1e6 / (0.1 + 2.0 + 0.1 + 3.0))


def test_busy_thread_is_the_limit() -> None:
    shape = Shape(1, 8, 8, 64, backend_us=4.0)
    assert predict(FREE, shape).rate == pytest.approx(1e6 / 4.1, rel=0.01)


def test_threads_scale_until_cpus_run_out() -> None:
    rates = {
        threads: predict(FREE, Shape(threads, threads, 8, 4, backend_us=4.0))
        for threads in (1, 2, 4, 8)
    }
    assert rates[2].rate == pytest.approx(2 * rates[1].rate, rel=0.02)
    assert rates[8].rate == pytest.approx(4e6 / 4.2)
    assert rates[8].limit == "CPU time"


def test_halves_limit_each_side_by_its_own_cpus() -> None:
    shape = Shape(4, 4, 4, 4, backend_us=4.0, pinning="halves")
    assert predict(FREE, shape).rate == pytest.approx(2e6 / 4.1)


def test_small_ring_holds_back_jobs_that_share_it() -> None:
    slow_client = dataclasses.replace(FREE, client=10.0)
    wide = predict(slow_client, Shape(1, 1, 8, 64, queue_size=1024)).rate
    narrow = predict(slow_client, Shape(1, 1, 8, 64, queue_size=64)).rate
    assert narrow < wide / 4


def test_notifications_cost_less_to_whoever_is_awake() -> None:
    always = dataclasses.replace(COSTS, server_notify_busy=14.0, client_notify_busy=15.0)
    alone, many = (Shape(1, jobs, jobs, 64, polling=False) for jobs in (1, 8))
    assert predict(COSTS, many).rate > predict(always, many).rate * 1.05
    assert predict(COSTS, alone).rate == predict(always, alone).rate


@given(costs, machines)
def test_rate_never_exceeds_what_cpus_and_threads_can_do(found: Costs, shape: Shape) -> None:
    rate = predict(found, shape).rate
    assert rate > 0
    assert rate <= shape.threads * 1e6 / (found.server + shape.backend_us) * 1.0001
    assert rate <= shape.cpus * 1e6 / (found.server + shape.backend_us + found.client) * 1.0001


@given(costs, machines)
def test_more_cpus_never_hurt_where_nothing_is_pinned(found: Costs, shape: Shape) -> None:
    shape = dataclasses.replace(shape, pinning="none")
    more = dataclasses.replace(shape, cpus=shape.cpus + 1)
    assert predict(found, more).rate >= predict(found, shape).rate * 0.9999


def test_model_is_silent_where_jobs_do_not_sleep() -> None:
    assert not holds(COSTS, Shape(1, 1, 1, 2, depth=1, batch=1))
    assert holds(COSTS, Shape(1, 1, 1, 2, depth=1, batch=1, backend_us=4.0))
    assert holds(COSTS, Shape(1, 1, 1, 2, depth=1, batch=1, polling=False))
    assert holds(COSTS, Shape(1, 1, 1, 2))


def test_every_cpu_count_has_cells_to_check() -> None:
    assert all(shape.threads == 1 for shape in shapes(2))
    assert max(shape.threads for shape in shapes(8)) == 4


def test_errors_are_shown_with_their_sign() -> None:
    checks = [
        Check(Shape(1, 1, 1, 2), 110_000.0, 100_000.0, ""),
        Check(Shape(1, 1, 1, 2), 60_000.0, 100_000.0, ""),
    ]
    assert mean_error(checks) == pytest.approx(0.25)
    told = "\n".join(text.checks_table(checks))
    assert "+10 %" in told
    assert "mean error 25 %, largest -40 %" in told


def test_published_cells_are_overlaid() -> None:
    publication = load(NAME)
    lines = text.series_table(COSTS, publication, publication.series[0], 8, 4.0)
    row = next(line for line in lines if line.startswith("| 4 thr 4 mq"))
    cells = [cell.strip() for cell in row.split("|")[1:-1]]
    assert cells[1:3] == ["2187", "1.79"]
    assert float(cells[4]) == pytest.approx(4, rel=0.1)
    assert text.mean_size(publication) == pytest.approx(10_685, rel=0.01)
