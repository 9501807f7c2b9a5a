"""Feature bits of rings and transport that every device offers (virtio 1.3, 6)."""

from __future__ import annotations

from typing import Final

F_NOTIFY_ON_EMPTY: Final = 24
F_INDIRECT_DESC: Final = 28
F_EVENT_IDX: Final = 29
F_VERSION_1: Final = 32
F_RING_PACKED: Final = 34
F_IN_ORDER: Final = 35
F_RING_RESET: Final = 40

RING_FEATURES: Final = (
    (1 << F_INDIRECT_DESC) | (1 << F_EVENT_IDX) | (1 << F_VERSION_1) | (1 << F_RING_RESET)
)
