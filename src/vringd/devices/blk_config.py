"""What a virtio-blk device offers and what its configuration space says (virtio 1.3, 5.2.4)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from vringd.block.backend import BlockLimits
from vringd.devices.ring_features import F_IN_ORDER, F_RING_PACKED, RING_FEATURES

SECTOR = 512

# Feature bits (virtio 1.3, 5.2.3; linux/virtio_blk.h).
F_SIZE_MAX = 1
F_SEG_MAX = 2
F_GEOMETRY = 4
F_RO = 5
F_BLK_SIZE = 6
F_FLUSH = 9
F_TOPOLOGY = 10
F_CONFIG_WCE = 11
F_MQ = 12
F_DISCARD = 13
F_WRITE_ZEROES = 14
F_SECURE_ERASE = 16

SIZE_MAX = 0x7FFFF000  # bytes of one segment: what one read(2) transfers at most
MAX_RANGE_SECTORS = 1 << 22  # of one discard or write-zeroes segment: 2 GiB
MAX_RANGE_SEGMENTS = 32

CONFIG_SIZE = 256  # beyond the structure there are zeros, as front-ends ask for round sizes
WCE_OFFSET = 32

_LAYOUT = struct.Struct("<QIIHBBIBBHIBxHIIIIIB3xIII")


@dataclass
class BlkSettings:
    """What the user or the back-end decided about a virtio-blk device; sizes in bytes."""

    limits: BlockLimits
    num_queues: int = 1
    seg_max: int = 126
    writable: bool = True
    writethrough: bool = False
    packed: bool = True
    in_order: bool = False
    physical_block_size: int | None = None
    opt_io_size: int = 0
    serial: bytes = b""


def offered_features(settings: BlkSettings) -> int:
    """The feature bits that the device offers, ring features included."""
    bits = RING_FEATURES
    for bit in (F_SIZE_MAX, F_SEG_MAX, F_GEOMETRY, F_BLK_SIZE, F_FLUSH, F_TOPOLOGY, F_CONFIG_WCE):
        bits |= 1 << bit
    if settings.num_queues > 1:
        bits |= 1 << F_MQ
    if settings.packed:
        bits |= 1 << F_RING_PACKED
    if settings.in_order:
        bits |= 1 << F_IN_ORDER
    if not settings.writable:
        bits |= 1 << F_RO
        return bits
    if settings.limits.discard:
        bits |= 1 << F_DISCARD
    if settings.limits.write_zeroes:
        bits |= 1 << F_WRITE_ZEROES
    if settings.limits.secure_erase:
        bits |= 1 << F_SECURE_ERASE
    return bits


def _geometry(sectors: int) -> tuple[int, int, int]:
    """The usual translation: 16 heads of 63 sectors, at most 16383 cylinders (ATA)."""
    cylinders = min(16383, max(2, sectors // (16 * 63))) if sectors else 0
    return cylinders, 16, 63


def pack_config(settings: BlkSettings, capacity: int, writeback: bool) -> bytes:
    """The configuration space, CONFIG_SIZE bytes; capacity in bytes."""
    limits = settings.limits
    block = limits.block_size
    physical = max(block, settings.physical_block_size or limits.physical_block_size)
    physical_exp = (physical // block).bit_length() - 1
    sectors = capacity // SECTOR
    cylinders, heads, track = _geometry(sectors)
    range_sectors = MAX_RANGE_SECTORS if settings.writable else 0
    segments = MAX_RANGE_SEGMENTS if settings.writable else 0
    alignment = max(block, limits.discard_alignment) // SECTOR
    optimal = settings.opt_io_size or limits.optimal_io_size
    body = _LAYOUT.pack(
        sectors,
        SIZE_MAX,
        settings.seg_max,
        cylinders,
        heads,
        track,
        block,
        physical_exp,
        0,  # alignment_offset
        1 << physical_exp,  # min_io_size, in logical blocks
        optimal // block,
        1 if writeback else 0,
        settings.num_queues,
        range_sectors,
        segments,
        alignment,
        range_sectors,
        segments,
        1 if limits.discard else 0,  # write_zeroes_may_unmap
        range_sectors,
        segments,
        alignment,
    )
    return body + bytes(CONFIG_SIZE - len(body))
