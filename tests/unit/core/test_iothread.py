"""IOThreads: queues that come, move and go, live changes, and what idling costs."""

from __future__ import annotations

import ctypes
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from vringd.block.null import NullBackend
from vringd.core.iothread import IOThread
from vringd.core.memory import GuestMemory
from vringd.devices.blk import BlkDevice
from vringd.devices.blk_config import BlkSettings
from vringd.testing.blk import BlkDriver, BlkStatus, BlkType
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import PAGE, GuestRam

from .rig import ENGINES, LAYOUTS, Worker, make_queue, map_ram, map_region

if TYPE_CHECKING:
    from vringd.core.snapshots import OpSnapshot, QueueSnapshot

MS = 1_000_000


def null_disk(latency_ns: int = 0, parallelism: int = 0) -> NullBackend:
    return NullBackend(
        "null", size=1 << 20, latency_ns=latency_ns, parallelism=parallelism, read_zeroes=True
    )


def device_for(disk: NullBackend) -> BlkDevice:
    return BlkDevice(BlkSettings(disk.limits), disk.size)


def all_kinds(snapshot: QueueSnapshot) -> list[OpSnapshot]:
    return [
        snapshot["read"],
        snapshot["write"],
        snapshot["flush"],
        snapshot["discard"],
        snapshot["other"],
    ]


def count_ops(snapshot: QueueSnapshot) -> int:
    return sum(kind["ops"] for kind in all_kinds(snapshot))


def count_latencies(snapshot: QueueSnapshot) -> int:
    return sum(sum(kind["histogram"]) for kind in all_kinds(snapshot))


@pytest.fixture(params=[False, True], ids=["split", "packed"])
def driver(ram: GuestRam, request: pytest.FixtureRequest) -> Iterator[DriverQueue]:
    with DriverQueue(ram, 64, packed=request.param) as driver:
        yield driver


# ---- attach and detach


@ENGINES
@LAYOUTS
@pytest.mark.parametrize("event_idx", [False, True])
def test_requests_are_served(ram: GuestRam, io_uring: bool, packed: bool, event_idx: bool) -> None:
    disk = null_disk()
    with (
        DriverQueue(ram, 16, packed=packed, event_idx=event_idx) as driver,
        Worker(io_uring=io_uring) as worker,
    ):
        queue = worker.serve(make_queue(driver), disk)
        blk = BlkDriver(driver)
        for sector in range(50):
            assert blk.read(sector, 1024) == bytes(1024)
            blk.write(sector, bytes(512))
        blk.flush()
        assert queue.stats.snapshot()["read"]["ops"] == 50


@ENGINES
def test_a_detach_is_answered_when_nothing_is_in_flight(
    driver: DriverQueue, io_uring: bool
) -> None:
    disk = null_disk(latency_ns=40 * MS)
    with Worker(io_uring=io_uring) as worker:
        queue = worker.serve(make_queue(driver), disk)
        blk = BlkDriver(driver)
        for sector in range(8):
            blk.submit_read(sector, 512)
        while not queue.stats.snapshot()["batches"]:  # until they have been popped
            time.sleep(0.001)
        time.sleep(0.002)
        worker.detach(queue)
        assert queue.in_flight == 0
        assert blk.poll() == 8  # published before the answer
        blk.submit_read(0, 512)
        base = queue.base
        time.sleep(0.02)
        assert queue.base == base  # nothing is popped any more
        assert not driver.has_used
        # It goes on from there in a new queue.
        other = make_queue(driver, base=base)
        channel = worker.add_channel(null_disk().open_channel(io_uring=True))
        worker.attach(other, device_for(disk), channel)
        while blk.in_flight:
            assert blk.complete().status == BlkStatus.OK


@ENGINES
@pytest.mark.parametrize("latency_ns", [0, 200_000])
def test_a_queue_moves_between_threads_under_load(
    driver: DriverQueue, io_uring: bool, latency_ns: int
) -> None:
    disk = null_disk(latency_ns)
    device = device_for(disk)
    stop = threading.Event()
    done = 0
    failure: list[BaseException] = []

    def load() -> None:
        nonlocal done
        try:
            blk = BlkDriver(driver)
            tokens: list[int] = []
            while not stop.is_set() or tokens:
                while len(tokens) < 16 and not stop.is_set():
                    tokens.append(blk.submit_read(done % 100, 512))
                result = blk.complete(timeout=10)
                tokens.remove(result.token)
                assert result.status == BlkStatus.OK
                assert result.data == bytes(512)
                done += 1
        except BaseException as error:
            failure.append(error)

    with Worker(io_uring=io_uring, name="a") as a, Worker(io_uring=io_uring, name="b") as b:
        channels = {
            worker: worker.add_channel(disk.open_channel(io_uring=io_uring)) for worker in (a, b)
        }
        queue = make_queue(driver)
        a.attach(queue, device, channels[a])
        thread = threading.Thread(target=load)
        thread.start()
        try:
            here, there = a, b
            for _ in range(40):
                time.sleep(0.003)
                here.detach(queue)
                assert queue.in_flight == 0
                there.attach(queue, device, channels[there])
                here, there = there, here
        finally:
            stop.set()
            thread.join()
        assert not failure, failure
        here.detach(queue)
        snapshot = queue.stats.snapshot()
        assert snapshot["read"]["ops"] == done > 40
        assert sum(snapshot["read"]["histogram"]) == done
        assert not a.broken
        assert not b.broken


@ENGINES
def test_a_queue_without_anything_to_do_attaches_and_detaches(
    driver: DriverQueue, io_uring: bool
) -> None:
    disk = null_disk()
    with Worker(io_uring=io_uring) as worker:
        channel = worker.add_channel(disk.open_channel(io_uring=io_uring))
        queue = make_queue(driver)
        for _ in range(20):
            worker.attach(queue, device_for(disk), channel)
            worker.detach(queue)
        with pytest.raises(ValueError, match="is not attached"):
            worker.thread.detach(queue)


@ENGINES
def test_a_kick_before_the_attach_is_not_lost(driver: DriverQueue, io_uring: bool) -> None:
    disk = null_disk()
    blk = BlkDriver(driver)
    blk.submit_read(0, 512)
    with Worker(io_uring=io_uring) as worker:
        worker.serve(make_queue(driver), disk)
        assert blk.complete().status == BlkStatus.OK


@ENGINES
def test_many_queues_of_one_device(io_uring: bool) -> None:
    disk = null_disk()
    device = device_for(disk)
    with GuestRam((8 << 20,)) as ram, Worker(io_uring=io_uring) as worker:
        channel = worker.add_channel(disk.open_channel(io_uring=io_uring))
        drivers = [DriverQueue(ram, 8, packed=bool(n % 2)) for n in range(40)]
        queues = [make_queue(driver, index=n) for n, driver in enumerate(drivers)]
        for queue in queues:
            worker.attach(queue, device, channel)
        blks = [BlkDriver(driver) for driver in drivers]
        for _ in range(3):
            tokens = [blk.submit_read(1, 512) for blk in blks]
            for blk, token in zip(blks, tokens, strict=True):
                assert blk.complete(token).status == BlkStatus.OK
        for queue in queues:
            worker.detach(queue)
            assert queue.stats.snapshot()["read"]["ops"] == 3
        for driver in drivers:
            driver.close()


# ---- changes while served


@ENGINES
def test_memory_can_be_added_live(driver: DriverQueue, io_uring: bool) -> None:
    ram = driver.ram
    disk = null_disk()
    regions = [map_region(region) for region in ram.regions]
    with Worker(io_uring=io_uring) as worker:
        queue = worker.serve(make_queue(driver, GuestMemory(regions)), disk)
        assert BlkDriver(driver).read(0, 512) == bytes(512)
        for _ in range(3):
            added = ram.add_region(1 << 20)
            regions.append(map_region(added))
            worker.update(queue, memory=GuestMemory(regions))
            header = ram.alloc(16, region=added)
            ram.fill(header, 16, 0)
            data, status = ram.alloc(512, region=added), ram.alloc(1, region=added)
            ram.fill(data, 512, 0xFF)
            token = driver.add([(header, 16)], [(data, 512), (status, 1)])
            driver.publish()
            driver.kick()
            assert driver.wait()
            assert driver.pop_used() == (token, 513)
            assert ram.read(data, 512) == bytes(512)


def test_look_ups_do_not_use_a_region_number_of_the_map_before(ram: GuestRam) -> None:
    """The last hit was region 40 of 41; the next map has 3 regions."""
    disk = null_disk()
    with DriverQueue(ram, 8) as driver, Worker() as worker:
        added = [ram.add_region(PAGE) for _ in range(38)]
        queue = worker.serve(make_queue(driver, map_ram(ram)), disk)
        last = added[-1].guest_addr
        ram.fill(last, 16, 0)
        for indirect in (False, True):
            token = driver.add(
                [(last, 16)], [(last + 512, 512), (last + 2048, 1)], indirect=indirect
            )
            driver.publish()
            driver.kick()
            assert driver.wait()
            assert driver.pop_used() == (token, 513)
        kept = GuestMemory([map_region(region) for region in ram.regions[:3]])
        worker.update(queue, memory=kept)
        blk = BlkDriver(driver, indirect=True)
        assert blk.read(3, 512) == bytes(512)
        driver.add([(last, 16)], [(last + 512, 512), (last + 2048, 1)])
        driver.publish()
        driver.kick()
        assert worker.wait_broken(queue) == "a buffer lies outside guest memory"


def test_memory_without_the_ring_is_refused_and_changes_nothing(driver: DriverQueue) -> None:
    disk = null_disk()
    with Worker() as worker:
        queue = worker.serve(make_queue(driver), disk)
        with pytest.raises(ValueError, match="outside the memory table"):
            worker.update(queue, memory=GuestMemory())
        assert BlkDriver(driver).read(0, 512) == bytes(512)


@ENGINES
def test_the_call_eventfd_can_be_replaced_live(driver: DriverQueue, io_uring: bool) -> None:
    disk = null_disk()
    with Worker(io_uring=io_uring) as worker:
        queue = worker.serve(make_queue(driver), disk)
        blk = BlkDriver(driver)
        blk.read(0, 512)
        other = os.eventfd(0, os.EFD_NONBLOCK)
        try:
            worker.update(queue, call_fd=other)
            # What the old one was told may be lost: the driver is told to look.
            assert os.eventfd_read(other) == 1
            driver.take_notifications()
            driver.enable_callbacks()
            token = blk.submit_read(0, 512)
            deadline = time.monotonic() + 5
            while not driver.has_used and time.monotonic() < deadline:
                time.sleep(0.001)
            time.sleep(0.02)
            assert os.eventfd_read(other) >= 1
            assert driver.take_notifications() == 0
            worker.update(queue, call_fd=driver.call_fd)
            assert blk.complete(token).status == BlkStatus.OK
        finally:
            os.close(other)


@ENGINES
def test_a_disabled_ring_is_not_served_until_it_is_enabled(
    driver: DriverQueue, io_uring: bool
) -> None:
    disk = null_disk()
    with Worker(io_uring=io_uring) as worker:
        queue = worker.serve(make_queue(driver), disk)
        worker.update(queue, enabled=False)
        blk = BlkDriver(driver)
        token = blk.submit_read(0, 512)
        time.sleep(0.05)
        assert not driver.has_used
        worker.update(queue, enabled=True)
        assert blk.complete(token).status == BlkStatus.OK


# ---- broken rings


@ENGINES
def test_a_broken_ring_is_reported_and_its_neighbours_go_on(
    driver: DriverQueue, io_uring: bool
) -> None:
    disk = null_disk(latency_ns=5 * MS)
    with DriverQueue(driver.ram, 8) as other, Worker(io_uring=io_uring) as worker:
        channel = worker.add_channel(disk.open_channel(io_uring=io_uring))
        device = device_for(disk)
        bad, good = make_queue(driver), make_queue(other, index=1)
        worker.attach(bad, device, channel)
        worker.attach(good, device, channel)
        blk = BlkDriver(driver)
        tokens = [blk.submit_read(0, 512) for _ in range(3)]
        driver.add([(1, 16)], [(2, 1)])  # nothing is mapped there
        driver.publish()
        driver.kick(force=True)
        assert worker.wait_broken(bad) == "a buffer lies outside guest memory"
        assert BlkDriver(other).read(0, 512) == bytes(512)
        for token in tokens:  # what was popped before is finished
            assert blk.complete(token).status == BlkStatus.OK
        bad.signal_error()
        assert driver.take_error()
        worker.detach(bad)
        assert bad.in_flight == 0
        assert worker.broken == [bad]
        assert BlkDriver(other).read(0, 512) == bytes(512)


@ENGINES
@pytest.mark.parametrize("out", [0, 1, 15])
def test_a_request_without_a_header_breaks_its_ring(
    driver: DriverQueue, io_uring: bool, out: int
) -> None:
    ram, disk = driver.ram, null_disk()
    with Worker(io_uring=io_uring) as worker:
        queue = worker.serve(make_queue(driver), disk)
        driver.add([(ram.alloc(out), out)] if out else [], [(ram.alloc(1), 1)])
        driver.publish()
        driver.kick()
        assert worker.wait_broken(queue).startswith("a request without a whole header")
        worker.detach(queue)
        assert queue.in_flight == 0


# ---- what it costs and counts


def cpu_ns(tid: int) -> int:
    return int(Path(f"/proc/self/task/{tid}/schedstat").read_text().split()[0])


@LAYOUTS
def test_an_idle_thread_uses_no_processor_time(ram: GuestRam, packed: bool) -> None:
    disk = null_disk()
    with (
        DriverQueue(ram, 8, packed=packed) as one,
        DriverQueue(ram, 8, packed=packed) as two,
        Worker(io_uring=False) as epoll,
        Worker(io_uring=True) as uring,
    ):
        for worker, driver in ((epoll, one), (uring, two)):
            worker.serve(make_queue(driver), disk)
            for sector in range(20):
                BlkDriver(driver).read(sector, 512)
        time.sleep(0.05)
        tids = [worker.thread.tid for worker in (epoll, uring)]
        before = [cpu_ns(tid) for tid in tids]
        time.sleep(1)
        for tid, start in zip(tids, before, strict=True):
            assert cpu_ns(tid) - start < 2.5 * MS


@ENGINES
def test_requests_complete_while_the_interpreter_lock_is_held(
    driver: DriverQueue, io_uring: bool
) -> None:
    """usleep through PyDLL keeps the GIL; the disk takes 30 ms, a fifth of that time."""
    hold = ctypes.PyDLL(None).usleep
    disk = null_disk(latency_ns=30 * MS)
    with Worker(io_uring=io_uring) as worker:
        queue = worker.serve(make_queue(driver), disk)
        blk = BlkDriver(driver)
        for sector in range(10):
            blk.submit_read(sector, 512)
        hold(200_000)
        assert blk.poll() == 10
        worker.detach(queue)
        histogram = queue.stats.snapshot()["read"]["histogram"]
        # Bucket 26 begins at 67 ms: everything was over long before the lock was released.
        assert sum(histogram[24:27]) == 10


@ENGINES
@pytest.mark.parametrize("latency_ns", [0, 300_000])
def test_latencies_and_counts_agree(driver: DriverQueue, io_uring: bool, latency_ns: int) -> None:
    disk = null_disk(latency_ns)
    with Worker(io_uring=io_uring) as worker:
        queue = worker.serve(make_queue(driver), disk)
        blk = BlkDriver(driver)
        for n in range(60):
            tokens = [blk.submit_read(0, 512), blk.submit_write(1, bytes(1024))]
            tokens += [blk.submit(BlkType.FLUSH), blk.submit(BlkType.GET_ID, read_size=20)]
            tokens.append(blk.submit(99))
            for token in tokens if n % 2 else reversed(tokens):
                blk.complete(token)
        worker.detach(queue)
        snapshot = queue.stats.snapshot()
        assert count_ops(snapshot) == count_latencies(snapshot) == 300
        assert snapshot["read"]["ops"] == snapshot["write"]["ops"] == 60
        assert snapshot["flush"]["ops"] == 60
        assert snapshot["other"]["ops"] == 120
        assert snapshot["other"]["errors"] == snapshot["invalid"] == 60
        assert snapshot["read"]["bytes"] == 60 * 512
        assert snapshot["write"]["bytes"] == 60 * 1024
        assert 0 < snapshot["batches"] <= 300
        assert 0 < snapshot["notifications"] <= 300
        if latency_ns:
            assert sum(snapshot["read"]["histogram"][:18]) == 0  # 2^18 ns < 300 us
        counters = worker.thread.counters()
        assert int(counters["turns"]) > 0
        assert int(counters["sleeps"]) > 0


@ENGINES
def test_kicks_are_counted_and_a_thread_that_does_not_spin_sleeps(
    driver: DriverQueue, io_uring: bool
) -> None:
    disk = null_disk()
    with Worker(io_uring=io_uring, poll_max_ns=0) as worker:
        queue = worker.serve(make_queue(driver), disk)
        blk = BlkDriver(driver)
        for _ in range(10):
            blk.read(0, 512)
            time.sleep(0.003)
        snapshot = queue.stats.snapshot()
        assert 9 <= snapshot["kicks"] <= 12
        assert 1 <= snapshot["notifications"] <= 10
        assert worker.thread.counters()["spins_won"] == 0


@ENGINES
def test_a_queue_without_a_kick_eventfd_is_polled(driver: DriverQueue, io_uring: bool) -> None:
    disk = null_disk()
    with Worker(io_uring=io_uring) as worker:
        queue = worker.serve(make_queue(driver, kick=False), disk)
        blk = BlkDriver(driver)
        for sector in range(5):
            token = blk.submit(BlkType.IN, sector, read_size=512, kick=False)
            driver.publish()  # no kick
            assert blk.complete(token).status == BlkStatus.OK
            time.sleep(0.01)
        worker.detach(queue)


# ---- life


def test_a_thread_starts_with_more_than_1024_open_files() -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1200:
        pytest.skip(f"the limit of open files is {soft}: raise it with `ulimit -n 1200`")
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        with Worker(io_uring=False) as worker:
            assert worker.thread.tid > 0
    finally:
        for fd in files:
            os.close(fd)


@ENGINES
def test_a_thread_has_its_name_and_its_processors(io_uring: bool) -> None:
    cpu = min(os.sched_getaffinity(0))
    thread = IOThread("blk-0-of-many-longer", cpu_affinity=[cpu], use_io_uring=io_uring)
    thread.start()
    try:
        assert thread.engine == ("io_uring" if io_uring else "epoll")
        assert os.sched_getaffinity(thread.tid) == {cpu}
        comm = Path(f"/proc/self/task/{thread.tid}/comm").read_text().strip()
        assert comm == "blk-0-of-many-l"
        with pytest.raises(RuntimeError, match="runs already"):
            thread.start()
    finally:
        thread.stop()
        thread.join()
    assert thread.error == 0


def test_processors_that_do_not_exist_are_an_error() -> None:
    thread = IOThread("nowhere", cpu_affinity=[4095], use_io_uring=False)
    with pytest.raises(OSError, match="IOThread nowhere: cannot run on CPUs 4095"):
        thread.start()


@ENGINES
def test_threads_leave_nothing_behind(io_uring: bool) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    with Worker(io_uring=io_uring):
        pass
    before, threads = open_files(), len(os.listdir("/proc/self/task"))
    for _ in range(5):
        with Worker(io_uring=io_uring) as worker:
            worker.add_channel(null_disk().open_channel(io_uring=io_uring))
        del worker
    assert open_files() == before
    assert len(os.listdir("/proc/self/task")) == threads
