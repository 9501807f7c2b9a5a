"""IOThreads come and go, and queues move between them, while a daemon runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from vringd.control.blk_export import BlkExport
from vringd.control.daemon import Daemon
from vringd.control.errors import OptionError
from vringd.control.schema import IOThreadOptions, ServeOptions
from vringd.control.scsi_export import ScsiExport
from vringd.control.threads import IOThreadError, ManagedThread
from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Frontend
from vringd.testing.memory import GuestRam

BuildLine = Callable[[str], ServeOptions]


@pytest.fixture
async def daemon(build_line: BuildLine, tmp_path: Path) -> AsyncIterator[Daemon]:
    daemon = Daemon(
        build_line(
            "--object iothread,id=t0 --object iothread,id=t1"
            " --blockdev null-co,node-name=disk,size=1M"
            " --export type=vhost-user-blk,id=e0,node-name=disk,num-queues=2,"
            f"addr.type=unix,addr.path={tmp_path}/e0.sock,iothread=t0"
        )
    )
    await daemon.start()
    yield daemon
    await daemon.stop()


@pytest.fixture
def export(daemon: Daemon) -> BlkExport:
    return daemon.exports["e0"]


def names(export: BlkExport) -> list[str]:
    return [thread.name for thread in export.threads]


async def test_queues_of_an_idle_device_move(daemon: Daemon, export: BlkExport) -> None:
    await export.move_queue(1, daemon.threads["t1"])
    assert names(export) == ["t0", "t1"]
    await export.set_mapping([daemon.threads["t1"]] * 2)
    assert names(export) == ["t1", "t1"]


async def test_unknown_queue_is_refused(daemon: Daemon, export: BlkExport) -> None:
    with pytest.raises(IndexError, match="no queue 2, the device has 2"):
        await export.move_queue(2, daemon.threads["t1"])


async def test_mapping_of_another_size_is_refused(daemon: Daemon, export: BlkExport) -> None:
    with pytest.raises(ValueError, match="1 IOThreads for 2 queues"):
        await export.set_mapping([daemon.threads["t1"]])


async def test_iothread_in_use_is_not_removed(daemon: Daemon, export: BlkExport) -> None:
    with pytest.raises(OptionError, match="'t0' serves queues of export 'e0'; move them first"):
        await daemon.remove_iothread("t0")
    assert "t0" in daemon.threads


async def test_iothread_is_removed_once_its_queues_have_moved(
    daemon: Daemon, export: BlkExport
) -> None:
    daemon.add_iothread(IOThreadOptions(id="t2"))
    await export.set_mapping([daemon.threads["t2"]] * 2)
    await daemon.remove_iothread("t0")
    await daemon.remove_iothread("t1")
    assert list(daemon.threads) == ["t2"]


async def test_unknown_iothread_is_not_removed(daemon: Daemon) -> None:
    with pytest.raises(OptionError, match="no IOThread 't9'"):
        await daemon.remove_iothread("t9")


async def test_second_iothread_of_one_name_is_refused(daemon: Daemon) -> None:
    with pytest.raises(OptionError, match="id=t1 is in use"):
        daemon.add_iothread(IOThreadOptions(id="t1"))


async def test_many_moves_at_once_leave_the_last_asked_for(
    daemon: Daemon, export: BlkExport
) -> None:
    threads = list(daemon.threads.values())
    await asyncio.gather(*(export.move_queue(i % 2, threads[i // 2 % 2]) for i in range(16)))
    assert names(export) == ["t1", "t1"]
    await daemon.remove_iothread("t0")  # its channel went with the last queue


async def test_queue_stays_when_the_new_iothread_refuses_it(
    daemon: Daemon, export: BlkExport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def serve_one() -> None:
        with GuestRam([1 << 20]) as ram, Frontend.connect(tmp_path / "e0.sock") as frontend:
            frontend.negotiate(features=~(1 << 34))
            frontend.add_ram(ram)
            with DriverQueue(ram, 16) as queue:
                frontend.attach(0, queue)
                moved = asyncio.run_coroutine_threadsafe(try_to_move(), loop)
                moved.result(10)
                frontend.get_vring_base(0)

    async def try_to_move() -> None:
        attach = ManagedThread.attach

        async def refuse(thread: ManagedThread, *arguments: object) -> None:
            if thread.name == "t1":
                raise IOThreadError(12, "no memory")
            await attach(thread, *arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(ManagedThread, "attach", refuse)
        with pytest.raises(IOThreadError):
            await export.move_queue(0, daemon.threads["t1"])

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(serve_one)
    assert names(export) == ["t0", "t0"]
    await daemon.remove_iothread("t1")


async def test_iothread_of_a_scsi_device_goes_when_its_queues_have_moved(
    build_line: BuildLine, tmp_path: Path
) -> None:
    daemon = Daemon(
        build_line(
            "--object iothread,id=t0 --object iothread,id=t1"
            " --blockdev null-co,node-name=disk,size=1M"
            " --export type=vhost-user-scsi,id=s0,devices.0.node-name=disk,num-queues=2,"
            f"addr.type=unix,addr.path={tmp_path}/s0.sock,iothread=t0"
        )
    )
    await daemon.start()
    try:
        export = daemon.exports["s0"]
        assert isinstance(export, ScsiExport)
        with pytest.raises(OptionError, match="'t0' serves queues of export 's0'"):
            await daemon.remove_iothread("t0")
        await export.set_mapping([daemon.threads["t1"]] * 2)
        await daemon.remove_iothread("t0")
        assert list(daemon.threads) == ["t1"]
    finally:
        await daemon.stop()
