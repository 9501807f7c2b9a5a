"""The disk of `vringd demo`: what serves it, how it grows and what it occupies."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from vringd.cli.demo_disk import NUM_QUEUES, SERIAL, DemoDisk
from vringd.cli.main import main
from vringd.control.errors import ResourceError
from vringd.control.mapping import plan_iothreads
from vringd.control.schema import FileOptions, UnixAddress

MIB = 1 << 20


@pytest.fixture
def disk(tmp_path: Path) -> DemoDisk:
    disk = DemoDisk(tmp_path)
    disk.create()
    return disk


def test_it_begins_empty_and_grows(disk: DemoDisk) -> None:
    assert disk.image.stat().st_size == disk.size == 256 * MIB
    assert disk.allocated() == 0
    disk.grow()
    assert disk.image.stat().st_size == disk.size == 320 * MIB
    assert disk.allocated() == 0


def test_what_is_written_counts_as_allocated(disk: DemoDisk) -> None:
    with disk.image.open("r+b") as file:
        file.write(os.urandom(MIB))
        os.fsync(file.fileno())
    assert MIB <= disk.allocated() < 2 * MIB


def test_its_options_serve_four_queues_on_two_iothreads(disk: DemoDisk) -> None:
    options = disk.options()
    (node,) = options.blockdevs
    assert isinstance(node, FileOptions)
    assert (node.filename, node.discard) == (str(disk.image), "unmap")
    (export,) = options.exports
    assert (export.id, export.node_name) == (disk.export_id, node.node_name)
    assert (export.num_queues, export.writable, export.serial) == (NUM_QUEUES, True, SERIAL)
    assert export.addr == UnixAddress(path=str(disk.socket))
    plan = plan_iothreads(options.iothreads, options.exports)
    assert plan.queues == {export.id: ("t0", "t1", "t0", "t1")}


@pytest.mark.parametrize(
    ("cpus", "pins"),
    [({5, 3, 7}, [(3,), (5,)]), ({2}, [None, None])],
    ids=["a CPU for each", "one CPU for all"],
)
def test_iothreads_are_pinned_where_each_can_have_a_cpu(
    disk: DemoDisk, monkeypatch: pytest.MonkeyPatch, cpus: set[int], pins: list[object]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: cpus)
    assert [thread.cpu_affinity for thread in disk.options().iothreads] == pins


@pytest.mark.parametrize("name", ["plain", "a comma, a space and 'quotes'"])
def test_the_command_line_shown_serves_the_same(daemon: Any, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    disk = DemoDisk(folder)
    disk.create()
    program, *arguments = shlex.split(disk.command_line().replace("\\\n", ""))
    assert program == "vringd"
    assert main(arguments) == 0
    assert daemon.options == disk.options()
    assert daemon.options.blockdevs[0].filename == str(disk.image)


def test_an_image_that_was_not_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"disk\.img: no such file or directory"):
        DemoDisk(tmp_path).options()
