"""`thread-pool-min` and `thread-pool-max` of an IOThread."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from vringd.control.daemon import Daemon
from vringd.control.errors import OptionError
from vringd.control.schema import ServeOptions

BuildLine = Callable[[str], ServeOptions]


def worker_count() -> int:
    tasks = Path("/proc/self/task")
    names = [(tasks / tid / "comm").read_text().strip() for tid in os.listdir(tasks)]
    return names.count("vringd-worker")


async def reaches(count: int) -> bool:
    """Threads name themselves, and vanish, a moment after they were started and joined."""
    for _ in range(200):
        if worker_count() == count:
            return True
        await asyncio.sleep(0.01)
    return False


@pytest.mark.parametrize("minimum", [0, 3])
async def test_smallest_pool_is_there_from_the_start(
    build_line: BuildLine, tmp_path: Path, minimum: int
) -> None:
    image = tmp_path / "disk.img"
    image.write_bytes(bytes(1 << 20))
    before = worker_count()
    daemon = Daemon(
        build_line(
            f"--object iothread,id=t0,thread-pool-min={minimum},thread-pool-max=4"
            f" --blockdev file,node-name=disk,filename={image},aio=threads"
            " --export type=vhost-user-blk,id=e0,node-name=disk,"
            f"addr.type=unix,addr.path={tmp_path}/e0.sock,iothread=t0"
        )
    )
    await daemon.start()
    assert await reaches(before + minimum)
    await daemon.stop()
    assert await reaches(before)


def test_pool_whose_minimum_exceeds_its_maximum_is_refused(build_line: BuildLine) -> None:
    with pytest.raises(OptionError, match="thread-pool-min=9 is more than thread-pool-max=4"):
        build_line("--object iothread,id=t0,thread-pool-min=9,thread-pool-max=4")
