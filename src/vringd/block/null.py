"""`null-co` and `null-aio`: a disk of a given size that forgets what is written to it."""

from __future__ import annotations

from vringd.block.backend import DEFAULT_WORKERS, BlockBackend, BlockLimits, WorkerLimits
from vringd.block.null_channel import NullChannel, ServiceSlots
from vringd.core.channel import Channel


class NullBackend(BlockBackend):
    """size in bytes; latency_ns and cpu_ns for each request; parallelism 0: unlimited.

    read_zeroes: reads fill the buffer with zeros instead of leaving it as it is.
    """

    def __init__(
        self,
        node_name: str,
        *,
        size: int = 1 << 30,
        latency_ns: int = 0,
        cpu_ns: int = 0,
        parallelism: int = 0,
        read_zeroes: bool = False,
        read_only: bool = False,
        block_size: int = 512,
    ) -> None:
        self.node_name = node_name
        self.read_only = read_only
        self.limits = BlockLimits(
            block_size=block_size,
            physical_block_size=block_size,
            discard=True,
            discard_alignment=block_size,
            secure_erase=True,
        )
        self._size = size
        self._latency_ns = latency_ns
        self._cpu_ns = cpu_ns
        self._read_zeroes = read_zeroes
        self._slots = ServiceSlots(parallelism) if parallelism else None

    @property
    def size(self) -> int:
        return self._size

    def resize(self, size: int) -> None:
        """Pretend to have become size bytes long."""
        self._size = size

    def open_channel(self, *, io_uring: bool, workers: WorkerLimits = DEFAULT_WORKERS) -> Channel:
        return NullChannel(
            latency_ns=self._latency_ns,
            cpu_ns=self._cpu_ns,
            read_zeroes=self._read_zeroes,
            slots=self._slots,
        )

    def close(self) -> None:
        """Nothing is held."""
