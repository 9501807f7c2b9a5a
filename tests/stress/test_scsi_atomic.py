"""Atomic SCSI commands of threads that overlap."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from vringd.block.backend import BlockLimits
from vringd.scsi.settings import UnitSettings
from vringd.scsi.unit import ScsiUnit
from vringd.testing import scsi_cdb as cdb
from vringd.testing.scsi_initiator import Initiator, MemoryDisk

ROUNDS = int(20_000 * float(os.environ.get("VRINGD_STRESS_SECONDS", "1.2")))


class Shared:
    """A unit with three initiators, one for each thread; the first two share a nexus."""

    def __init__(self) -> None:
        self.disk = MemoryDisk(64 * 512)
        self.disk.pause(2000)
        self.unit = ScsiUnit(UnitSettings(), BlockLimits(), 64 * 512)
        first = Initiator(self.unit, self.disk.open_channel(), "a")
        second = Initiator(self.unit, self.disk.open_channel(), nexus=first.nexus, lane=1)
        third = Initiator(self.unit, self.disk.open_channel(), "b")
        self.initiators = [first, second, third]
        for initiator in self.initiators:
            while initiator.execute(cdb.TEST_UNIT_READY).status:
                pass

    def run(self, *work: Callable[[Initiator], int]) -> list[int]:
        """Run each function in a thread of its own, with an initiator of its own."""
        results = [-1] * len(work)
        barrier = threading.Barrier(len(work))

        def main(index: int) -> None:
            barrier.wait()
            results[index] = work[index](self.initiators[index])

        threads = [threading.Thread(target=main, args=(i,)) for i in range(len(work))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def close(self) -> None:
        for initiator in self.initiators:
            initiator.close()
        assert self.disk.violations == 0


def test_no_compare_and_write_is_lost() -> None:
    shared = Shared()
    results = shared.run(*[lambda who: who.increment(7, ROUNDS)] * 3)
    assert min(results) >= 0
    assert int.from_bytes(shared.disk.data[7 * 512 : 7 * 512 + 8], "big") == 3 * ROUNDS
    shared.close()


def test_a_compare_and_write_never_undoes_a_write() -> None:
    shared = Shared()
    results = shared.run(
        lambda who: who.increment(7, ROUNDS // 4),
        lambda who: who.overwrite(7, 2 * ROUNDS),
        lambda who: who.increment(7, ROUNDS // 4),
    )
    assert results[1] == 0
    assert min(results) >= 0
    assert int.from_bytes(shared.disk.data[7 * 512 : 7 * 512 + 4], "big") == 2 * ROUNDS
    shared.close()


def test_no_bit_of_an_orwrite_is_lost() -> None:
    shared = Shared()
    assert shared.run(
        lambda who: who.set_bits(3, 8192, 0x01),
        lambda who: who.set_bits(3, 8192, 0x10),
        lambda who: who.set_bits(3, 8192, 0x80),
    ) == [0, 0, 0]
    assert shared.disk.data[3 * 512 : 4 * 512] == b"\x91" * 512
    shared.close()
