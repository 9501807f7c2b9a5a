"""Memory regions come and go while queues are busy."""

from __future__ import annotations

import random
from pathlib import Path

from vringd.testing.blk import BlkDriver, BlkType
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import PAGE, RamRegion, RegionSpec

from .engine import Engine
from .machine import Machine
from .traffic import SECTORS_PER_DRIVER, guest_ram, repeat

HEADER = 16


def read_into(driver: BlkDriver, region: RamRegion, at: int, sector: int, size: int) -> bytes:
    """Have the device read from the disk into a region that holds nothing else."""
    queue, ram = driver.queue, driver.ram
    header, status = ram.alloc(HEADER), ram.alloc(1)
    try:
        ram.write(
            header, BlkType.IN.to_bytes(4, "little") + bytes(4) + sector.to_bytes(8, "little")
        )
        ram.write(status, b"\xff")
        target = region.guest_addr + at
        token = queue.add([(header, HEADER)], [(target, size), (status, 1)])
        queue.publish()
        queue.kick()
        while (used := queue.pop_used()) is None:
            assert queue.wait(20)
        assert used == (token, size + 1)
        assert ram.read(status, 1) == b"\0"
        return ram.read(target, size)
    finally:
        ram.free(header)
        ram.free(status)


def test_a_running_queue_uses_regions_that_come_and_go(
    engine: Engine, folder: Path, seconds: float
) -> None:
    path = engine.serve_disk("file", folder)
    pick = random.Random(3)
    with Machine(path, queues=3) as machine, guest_ram(9) as ram:
        frontend = machine.frontend
        frontend.add_ram(ram)
        with DriverQueue(ram, 16) as queue:
            frontend.attach(3, queue)
            driver = BlkDriver(queue)
            sector = 3 * SECTORS_PER_DRIVER
            content = pick.randbytes(64 << 10)
            driver.write(sector, content)

            def plug_and_unplug() -> None:
                size = pick.randint(1, 16) * PAGE
                number = pick.randint(20, 40)
                region = ram.add_region(
                    RegionSpec(size, guest_addr=number << 32, user_addr=0x6000_0000_0000)
                )
                frontend.add_region(
                    region.guest_addr, size, region.user_addr, region.fd, region.mmap_offset
                )
                length = pick.randint(1, size // 512) * 512
                assert read_into(driver, region, size - length, sector, length) == content[:length]
                frontend.remove_region(region.guest_addr, size, region.user_addr)
                ram.remove_region(region)

            repeat(seconds, plug_and_unplug)
            frontend.get_vring_base(3)
            ram.check()


def test_a_queue_lives_only_as_long_as_its_region(
    engine: Engine, folder: Path, seconds: float
) -> None:
    path = engine.serve_disk("file", folder)
    pick = random.Random(4)
    with Machine(path, queues=3) as machine:
        frontend = machine.frontend

        def live_and_die() -> None:
            with guest_ram(pick.randint(3, 30)) as ram, DriverQueue(ram, 32) as queue:
                (region,) = ram.regions
                frontend.add_ram(ram)
                frontend.attach(3, queue)
                driver = BlkDriver(queue)
                data = pick.randbytes(8192)
                driver.write(3 * SECTORS_PER_DRIVER, data)
                assert driver.read(3 * SECTORS_PER_DRIVER, 8192) == data
                frontend.get_vring_base(3)
                frontend.remove_region(region.guest_addr, region.size, region.user_addr)

        repeat(seconds, live_and_die, least=10)
