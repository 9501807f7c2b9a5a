"""The experiments about SCSI: their data and their cells."""

from __future__ import annotations

import pytest

from vringd.bench.experiments import vhost_scsi_workers, virtio_scsi_iothreads
from vringd.bench.experiments.cells import Backend, Cell, Plan
from vringd.bench.experiments.published import load

PLAN = Plan(1.0, (0, 1, 2, 3), [Backend("disk", "null-co,size=1G", "for a test")])
WORKERS = vhost_scsi_workers.experiment(PLAN)
IOTHREADS = virtio_scsi_iothreads.experiment(PLAN)


def cells_of(series: str) -> list[Cell]:
    found = [cell for cell in WORKERS.cells if cell.series == series]
    assert found
    return found


def test_published_figures_are_those_of_the_mailing_lists() -> None:
    workers = {each.id: each.figures["total"] for each in load("vhost-scsi-workers").series}
    assert workers["one-worker-8"] == {
        "1 VQ": 404,
        "2 VQ": 478,
        "4 VQ": 482,
        "8 VQ": 490,
        "12 VQ": 490,
        "16 VQ": 486,
    }
    assert workers["worker-per-vq-16"]["16 VQ"] == 1426
    assert workers["worker-per-vq-8"]["12 VQ"] == 1172
    assert len(workers) == 12
    (unpinned, halves) = load("virtio-scsi-iothreads").series
    assert unpinned.figures["total"] == halves.figures["total"]
    assert unpinned.figures["total"]["2 IOThreads"] == 312698


def test_workers_are_one_or_one_for_each_queue() -> None:
    one = [(cell.threads, cell.queues) for cell in cells_of("one-worker-4")]
    assert one == [(1, 1), (1, 2), (1, 4), (1, 8), (1, 12), (1, 16)]
    per = [(cell.threads, cell.queues) for cell in cells_of("worker-per-vq-4")]
    assert per == [(2, 2), (4, 4), (8, 8), (12, 12), (16, 16)]


@pytest.mark.parametrize(("jobs", "depth"), [(1, 128), (8, 128), (12, 85), (16, 64)])
def test_1024_commands_are_in_flight_at_most(jobs: int, depth: int) -> None:
    for cell in cells_of(f"worker-per-vq-{jobs}"):
        (spec,) = cell.job.specs()
        assert (spec.iodepth, spec.numjobs) == (depth, jobs)
        assert cell.job.queue_size == 1024
        assert cell.setup.kind == "scsi"


def test_own_cpus_and_shared_ones_are_cells_of_their_own() -> None:
    (own,), (shared,) = cells_of("own-cpus-8"), cells_of("shared-cpus-8")
    assert own.setup.server_cpus == (2, 3)
    assert own.job.cpus == (0, 1)
    assert shared.setup.server_cpus == ()
    assert shared.key in {cell.key for cell in cells_of("worker-per-vq-8")}


def test_iothreads_share_four_command_queues() -> None:
    shapes = [(cell.threads, cell.queues, cell.jobs) for cell in IOTHREADS.cells]
    assert shapes == [(1, 4, 4), (2, 4, 4), (4, 4, 4)] * 2
    assert IOTHREADS.kind == WORKERS.kind == "scsi"
    assert len(IOTHREADS.unique()) == 6
