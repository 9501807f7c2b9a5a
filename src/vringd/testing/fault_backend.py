"""A disk that goes wrong on demand: wrap any back-end, then set `rules`."""

from __future__ import annotations

from vringd.block.backend import DEFAULT_WORKERS, BlockBackend, WorkerLimits
from vringd.core.channel import Channel
from vringd.testing.faults import FaultChannel, FaultRules


class FaultBackend(BlockBackend):
    """Passes everything on to `inner`, except what `rules` delays or lets fail.

    >>> from vringd.block.null import NullBackend
    >>> disk = FaultBackend(NullBackend("disk"))
    >>> disk.rules.set(["write"], error=28, every=10)  # every tenth write: ENOSPC
    """

    def __init__(self, inner: BlockBackend, rules: FaultRules | None = None) -> None:
        self.inner = inner
        self.rules = rules or FaultRules()
        self.node_name = inner.node_name
        self.read_only = inner.read_only
        self.limits = inner.limits

    @property
    def size(self) -> int:
        return self.inner.size

    def refresh_size(self) -> int:
        return self.inner.refresh_size()

    def open_channel(self, *, io_uring: bool, workers: WorkerLimits = DEFAULT_WORKERS) -> Channel:
        return FaultChannel(self.inner.open_channel(io_uring=io_uring, workers=workers), self.rules)

    def close(self) -> None:
        self.inner.close()
