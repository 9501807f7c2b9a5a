"""A virtio-blk device of a server (virtio 1.3, 5.2)."""

from __future__ import annotations

from typing import Final

from vringd.bench.device import VhostDevice

_RO, _BLK_SIZE, _FLUSH, _MQ, _DISCARD = (1 << bit for bit in (5, 6, 9, 12, 13))

# Offsets in struct virtio_blk_config (5.2.4).
_CAPACITY, _BLOCK_SIZE, _NUM_QUEUES = 0, 20, 34
_CONFIG_BYTES: Final = 60
SECTOR: Final = 512


class BlkDevice(VhostDevice):
    """The device; everything is in its configuration space."""

    wanted_features = _RO | _BLK_SIZE | _FLUSH | _MQ | _DISCARD

    def count_queues(self) -> int:
        return self._config(_NUM_QUEUES, 2, _CONFIG_BYTES) if self.features & _MQ else 1

    def discover(self) -> None:
        self.capacity = self._config(_CAPACITY, 8, _CONFIG_BYTES) * SECTOR
        self.block_size = SECTOR
        if self.features & _BLK_SIZE:
            self.block_size = self._config(_BLOCK_SIZE, 4, _CONFIG_BYTES)
        self.read_only = bool(self.features & _RO)
        self.has_discard = bool(self.features & _DISCARD)
