"""What a disk is to the rest of vringd.

A back-end is a page of code: a `BlockBackend` that knows its size and opens channels, and a
`Channel` (Cython) that performs the operations of `ops.pxd` for one IOThread.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass

from vringd.core.channel import Channel


@dataclass(frozen=True)
class BlockLimits:
    """What a device should tell the guest about the disk.

    Sizes in bytes: block_size is the smallest addressable unit (a power of two, 512 at least),
    physical_block_size and optimal_io_size are hints (optimal 0: unknown). discard, write_zeroes
    and secure_erase say which operations exist; discard_alignment is their natural unit.
    """

    block_size: int = 512
    physical_block_size: int = 512
    optimal_io_size: int = 0
    discard: bool = False
    discard_alignment: int = 512
    write_zeroes: bool = True
    secure_erase: bool = False
    rotational: bool = False


@dataclass(frozen=True)
class WorkerLimits:
    """Threads of a channel that makes blocking calls: minimum are there from the start, load
    brings more, up to maximum."""

    minimum: int = 0
    maximum: int = 64


DEFAULT_WORKERS = WorkerLimits()


class BlockBackend(abc.ABC):
    """A disk, opened. node_name: the user's name for it. read_only: writes are refused."""

    node_name: str
    read_only: bool
    limits: BlockLimits

    @property
    @abc.abstractmethod
    def size(self) -> int:
        """Bytes, as last seen."""

    def refresh_size(self) -> int:
        """Look at the size again (a disk may have grown); the new size in bytes."""
        return self.size

    @abc.abstractmethod
    def open_channel(self, *, io_uring: bool, workers: WorkerLimits = DEFAULT_WORKERS) -> Channel:
        """A new channel for one IOThread; io_uring says whether that thread has a ring, workers
        how many threads a channel may use that needs some.

        Raises OSError, or ValueError when the options need io_uring and there is none.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of everything; all channels have been stopped."""
