from collections.abc import Sequence

from vringd.core.snapshots import QueueSnapshot

KINDS: tuple[str, ...]

class QueueStats:
    def snapshot(self) -> QueueSnapshot: ...

def percentile(histogram: Sequence[int], fraction: float) -> int | None: ...
