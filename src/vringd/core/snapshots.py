"""The shape of what `QueueStats.snapshot` returns."""

from __future__ import annotations

from typing import TypedDict


class OpSnapshot(TypedDict):
    """Requests of one kind; bucket b of the histogram: those of [2^b, 2^(b+1)) nanoseconds."""

    ops: int
    bytes: int
    errors: int
    histogram: list[int]


class QueueSnapshot(TypedDict):
    """What one queue has done in its life."""

    read: OpSnapshot
    write: OpSnapshot
    flush: OpSnapshot
    discard: OpSnapshot
    other: OpSnapshot
    kicks: int
    notifications: int
    batches: int
    invalid: int
