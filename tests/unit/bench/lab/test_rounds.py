"""Rounds, retries, ratios and the noise that is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from vringd.bench.lab.rounds import Results, Work, run_rounds
from vringd.bench.lab.samples import Sample
from vringd.bench.lab.tables import compare_table, noise, ratio, spread


def sample(server: str, number: int, iops: float, **more: float | bool | str) -> Sample:
    return Sample("cell", server, number, iops=iops, requests=10, **more)  # type: ignore[arg-type]


def quiet(_sample: Sample, _done: int, _total: int) -> None:
    pass


def work(server: str, take: Callable[[int], Sample]) -> Work:
    return Work("cell", server, take)


def test_servers_alternate_round_by_round() -> None:
    seen: list[tuple[str, int, int, int]] = []
    results = Results()
    run_rounds(
        [work(name, lambda number, name=name: sample(name, number, 1.0)) for name in "ab"],  # type: ignore[misc]
        3,
        lambda s, done, total: seen.append((s.server_name, s.round, done, total)),
        results,
    )
    assert [(name, number) for name, number, _, _ in seen] == [
        *(("a", 1), ("b", 1), ("a", 2), ("b", 2), ("a", 3), ("b", 3))
    ]
    assert [done for _, _, done, _ in seen] == [1, 2, 3, 4, 5, 6]
    assert {total for _, _, _, total in seen} == {6}


def test_disturbed_sample_is_taken_again_and_the_least_disturbed_kept() -> None:
    shares = iter([0.5, 0.3, 0.4])
    results = Results()
    one = work("a", lambda number: sample("a", number, 1.0, foreign=next(shares)))
    run_rounds([one], 1, quiet, results, retries=2)
    assert [s.foreign for s in results.samples] == [0.3]


def test_what_failed_is_not_tried_again() -> None:
    results = Results()
    run_rounds([work("a", lambda n: sample("a", n, 0.0, error="died"))], 3, quiet, results)
    assert len(results.samples) == 1
    assert results.failed("cell", "a")
    assert results.done("cell", "a") == []


def test_ctrl_c_keeps_what_there_is() -> None:
    def take(number: int) -> Sample:
        if number == 2:
            raise KeyboardInterrupt
        return sample("a", number, 1.0)

    results = Results()
    assert not run_rounds([work("a", take)], 3, quiet, results)
    assert len(results.samples) == 1


def test_moved_samples_are_left_out_where_there_are_others() -> None:
    results = Results()
    results.samples = [sample("a", 1, 5.0, moved=True), sample("a", 2, 7.0)]
    assert [s.iops for s in results.good("cell", "a")] == [7.0]
    results.samples = results.samples[:1]
    assert [s.iops for s in results.good("cell", "a")] == [5.0]


def test_ratio_is_of_medians_and_of_cpu_time() -> None:
    fast = [sample("a", n, iops, cpu_us=1.0) for n, iops in enumerate([300.0, 200.0, 900.0])]
    slow = [sample("b", n, 100.0, cpu_us=4.0) for n in range(3)]
    assert ratio(fast, slow) == "3.00x, CPU 0.25x"
    assert ratio(fast, []) == "-"


def test_spread_shows_median_least_and_most() -> None:
    assert spread([3.0, 1.0, 2.0], "{:.0f}") == "2 [1-3]"
    assert spread([4.0], "{:.0f}") == "4"
    assert spread([], "{:.0f}") == ""


def test_noise_counts_disturbed_and_moved_samples() -> None:
    samples = [sample("a", 1, 1.0, foreign=0.5), sample("a", 2, 1.0, foreign=0.02, moved=True)]
    assert noise(samples) == "26%, 1 of 2 disturbed, 1 moved"


def test_table_has_a_ratio_of_the_reference_to_each_peer() -> None:
    results = Results()
    results.samples = [
        *(sample("a", 1, 30_000.0, cpu_us=1.0), sample("b", 1, 10_000.0, cpu_us=2.0)),
        sample("c", 1, 0.0, error="died"),
    ]
    header, _, row = compare_table(results, ["cell"], ["a", "b", "c"], ["a"])
    assert [cell.strip() for cell in header.split("|")[1:-1]] == [
        *("cell", "a", "b", "c", "a / b", "a / c", "noise")
    ]
    assert [cell.strip() for cell in row.split("|")[1:-1]] == [
        *("cell", "30 1.00µs", "10 2.00µs", "failed", "3.00x, CPU 0.50x", "-", "0%")
    ]


@pytest.mark.parametrize("error", ["", "server died"])
def test_sample_survives_json(error: str) -> None:
    one = sample("a", 1, 5.0, error=error)
    assert Sample(**one.as_json()) == one
