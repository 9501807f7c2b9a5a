"""The echo device in a real one's place: the same rings, no server (see `echo.pyx`)."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Self

from vringd.bench.device import ring_memory
from vringd.bench.echo import EchoServer
from vringd.bench.errors import JobOptionError
from vringd.bench.scsi_device import lun_bytes
from vringd.bench.target import Target
from vringd.core.memory import GuestMemory, MemoryRegion
from vringd.core.virtqueue import Virtqueue
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam

_VERSION_1 = 1 << 32


class EchoDevice:
    """A disk of a terabyte that forgets everything, until the end of `with`."""

    capacity = 1 << 40
    block_size = 512
    read_only = False
    has_discard = True
    indirect = True
    lun: bytes | None = None

    def __init__(self, target: Target, *, queues: int, memory: int) -> None:
        self.num_queues = target.num_queues or queues
        if target.kind == "scsi":
            self.lun = lun_bytes(*target.scsi_unit)
        size = (memory + ring_memory(self.num_queues, target.queue_size) + 4095) // 4096 * 4096
        self.ram = GuestRam([size], populate=True)
        try:
            self.queues = [
                DriverQueue(
                    self.ram,
                    target.queue_size,
                    packed=target.packed,
                    event_idx=target.event_idx,
                    max_indirect=3,
                    scramble=0,
                )
                for _ in range(self.num_queues)
            ]
        except ValueError as error:
            raise JobOptionError(f"--queue-size {target.queue_size}: {error}") from None
        self._server = EchoServer(
            [self._device_side(index) for index in range(self.num_queues)],
            target.echo_cpus,
            scsi=target.kind == "scsi",
        )
        try:
            self._server.start()
        except OSError as error:
            allowed = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            raise JobOptionError(
                f"--echo: its thread cannot run there: {error}; this process may use {allowed}"
            ) from None

    def _device_side(self, index: int) -> Virtqueue:
        driver = self.queues[index]
        regions = [
            MemoryRegion(r.guest_addr, r.size, r.user_addr, r.fd, r.mmap_offset)
            for r in self.ram.regions
        ]
        return Virtqueue(
            index,
            size=driver.size,
            features=driver.features | _VERSION_1,
            memory=GuestMemory(regions),
            desc=driver.layout.desc_user,
            avail=driver.layout.avail_user,
            used=driver.layout.used_user,
            base=driver.base,
            kick_fd=driver.kick_fd,
            call_fd=driver.call_fd,
            err_fd=-1,
        )

    def is_gone(self) -> bool:
        """Never."""
        return False

    def close(self) -> None:
        self._server.stop()
        for queue in self.queues:
            queue.close()
        self.queues.clear()
        self.ram.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
