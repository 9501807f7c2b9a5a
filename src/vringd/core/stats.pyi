from collections.abc import Sequence
from typing import TypedDict

KINDS: tuple[str, ...]

class OpSnapshot(TypedDict):
    ops: int
    bytes: int
    errors: int
    histogram: list[int]

class QueueSnapshot(TypedDict):
    read: OpSnapshot
    write: OpSnapshot
    flush: OpSnapshot
    discard: OpSnapshot
    other: OpSnapshot
    kicks: int
    notifications: int
    batches: int
    invalid: int

class QueueStats:
    def snapshot(self) -> QueueSnapshot: ...

def percentile(histogram: Sequence[int], fraction: float) -> int | None: ...
