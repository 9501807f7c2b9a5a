"""Processes that serve rings in shared memory, one after the other, and may be killed anywhere.

Run as a program this makes the processes. It has imported everything already, so that takes
milliseconds. Its first line says what to serve, as JSON; all descriptors in that are inherited.
Then `next` makes a process, when the one before has been killed and is gone, and `amid` kills it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from vringd.block.backend import BlockBackend
from vringd.block.file import FileBackend
from vringd.block.null import NullBackend
from vringd.control.threads import ManagedThread
from vringd.core.inflight import InflightBuffer
from vringd.core.iothread import IOThread
from vringd.core.memory import GuestMemory, MemoryRegion
from vringd.core.virtqueue import Virtqueue
from vringd.devices.blk import BlkDevice
from vringd.devices.blk_config import BlkSettings
from vringd.testing.driver import DriverQueue

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    from stepping import Gone, find_thread, stepping
else:
    from .stepping import Gone, find_thread, stepping

PACKED = 1 << 34
MOST_STEPS = 20_000


@dataclass(frozen=True)
class Ring:
    """A ring whose driver is in another process; its regions as `MemoryRegion` takes them."""

    size: int
    features: int
    regions: list[tuple[int, int, int, int, int]]
    desc: int
    avail: int
    used: int
    base: int
    kick_fd: int
    call_fd: int
    err_fd: int

    @classmethod
    def of(cls, queue: DriverQueue) -> Self:
        layout = queue.layout
        regions = [
            (r.guest_addr, r.size, r.user_addr, r.fd, r.mmap_offset) for r in queue.ram.regions
        ]
        return cls(
            queue.size,
            queue.features,
            regions,
            layout.desc_user,
            layout.avail_user,
            layout.used_user,
            queue.base,
            queue.kick_fd,
            queue.call_fd,
            queue.err_fd,
        )

    @property
    def fds(self) -> list[int]:
        return [self.kick_fd, self.call_fd, self.err_fd, *(region[3] for region in self.regions)]


@dataclass(frozen=True)
class Job:
    """What each process serves, ring i with IOThread "ti". Without an image a disk of zeros."""

    rings: list[Ring]
    inflight_fd: int
    inflight_size: int
    image: str | None
    disk_size: int
    io_uring: bool

    @property
    def packed(self) -> bool:
        return bool(self.rings[0].features & PACKED)

    @property
    def fds(self) -> set[int]:
        return {self.inflight_fd, *(fd for ring in self.rings for fd in ring.fds)}


class KilledServer:
    """Serves a job until the end of `with`, in many lives. Raises AssertionError when a process
    ends by itself."""

    def __init__(
        self,
        rings: Sequence[Ring],
        inflight: InflightBuffer,
        *,
        image: str | None,
        disk_size: int,
        io_uring: bool,
    ) -> None:
        job = Job(list(rings), inflight.fd, inflight.mmap_size, image, disk_size, io_uring)
        self.pid = 0
        self._maker = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=sorted(job.fds),
            text=True,
            bufsize=1,
        )
        self._say(json.dumps(asdict(job)))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._maker.stdin is not None
        assert self._maker.stdout is not None
        self._maker.stdin.close()
        self.kill()
        status = self._maker.wait(20)
        self._maker.stdout.close()
        if error is None:
            assert status == 0, "a server ended by itself"

    def _say(self, line: str) -> None:
        assert self._maker.stdin is not None
        self._maker.stdin.write(line + "\n")

    def _ask(self, line: str) -> int:
        assert self._maker.stdout is not None
        self._say(line)
        answer = self._maker.stdout.readline()
        assert answer, "a server ended by itself"
        return int(answer)

    def start(self) -> None:
        """Begin the next life, when the one before is over."""
        self.pid = self._ask("next")

    def kill(self) -> None:
        """End this life, between two instructions of each thread."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
        self.pid = 0

    def kill_amid(self, stores: int, after: int) -> bool:
        """End this life `after` instructions behind the `stores`th of its next stores to ring 0's
        part of the inflight buffer; whether it came to that."""
        hit = bool(self._ask(f"amid {stores} {after}"))
        self.pid = 0
        return hit


# ---- the processes themselves -------------------------------------------------------------------


def open_disk(job: Job) -> BlockBackend:
    if job.image is None:
        return NullBackend("disk", size=job.disk_size, read_zeroes=True)
    return FileBackend("disk", job.image, locking_mode="off")


def broken(reason: str) -> None:
    print(f"a ring is broken: {reason}", file=sys.stderr)
    os._exit(1)


async def serve(job: Job) -> None:
    disk = open_disk(job)
    inflight = InflightBuffer.map(
        job.inflight_fd,
        job.inflight_size,
        0,
        len(job.rings),
        job.rings[0].size,
        job.packed,
    )
    device = BlkDevice(BlkSettings(disk.limits, num_queues=len(job.rings)), disk.size)
    for index, ring in enumerate(job.rings):
        queue = Virtqueue(
            index,
            size=ring.size,
            features=ring.features,
            memory=GuestMemory([MemoryRegion(*region) for region in ring.regions]),
            desc=ring.desc,
            avail=ring.avail,
            used=ring.used,
            base=ring.base,
            kick_fd=ring.kick_fd,
            call_fd=ring.call_fd,
            err_fd=ring.err_fd,
            inflight=inflight,
        )
        thread = ManagedThread(IOThread(f"t{index}", use_io_uring=job.io_uring, poll_max_ns=0))
        thread.start()
        channel = disk.open_channel(io_uring=job.io_uring)
        await thread.add_channel(channel)
        await thread.attach(queue, device, channel, broken)
        # As `Rings.reconcile` does: the last one may have died between used entry and interrupt.
        os.eventfd_write(ring.call_fd, 1)
    await asyncio.Event().wait()


def kill_amid(job: Job, pid: int, stores: int, after: int) -> bool:
    """See `KilledServer.kill_amid`."""
    size = InflightBuffer.region_size(job.rings[0].size, job.packed)
    with (
        mmap.mmap(job.inflight_fd, job.inflight_size, prot=mmap.PROT_READ) as buffer,
        stepping(find_thread(pid, "t0")) as thread,
    ):
        last = buffer[:size]
        with contextlib.suppress(Gone):  # the test has failed and ends all
            for _ in range(MOST_STEPS):
                thread.step()
                now = buffer[:size]
                stores -= now != last
                last = now
                if stores == 0:
                    break
            for _ in range(after):
                thread.step()
        os.kill(pid, signal.SIGKILL)
    return stores == 0


def main() -> None:
    fields = json.loads(sys.stdin.readline())
    job = Job(**fields | {"rings": [Ring(**ring) for ring in fields["rings"]]})
    child = 0
    # readline: with the iterator a child would have what the parent has read ahead.
    while line := sys.stdin.readline():
        command, *numbers = line.split()
        if command == "amid":
            print(int(kill_amid(job, child, *map(int, numbers))), flush=True)
            continue
        if child and not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
            sys.exit(1)
        child = os.fork()
        if child == 0:
            asyncio.run(serve(job))
        print(child, flush=True)
    if child and not os.WIFSIGNALED(os.waitpid(child, 0)[1]):
        sys.exit(1)


if __name__ == "__main__":
    main()
