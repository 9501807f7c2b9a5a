"""What a virtio-scsi device offers and what its configuration space says (virtio 1.3, 5.6)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from vringd.devices.ring_features import F_IN_ORDER, F_RING_PACKED, RING_FEATURES

# Queues (5.6.2).
CONTROL_QUEUE: Final = 0
EVENT_QUEUE: Final = 1
FIRST_COMMAND_QUEUE: Final = 2

# Feature bits (5.6.3; linux/virtio_scsi.h).
F_INOUT: Final = 0
F_HOTPLUG: Final = 1
F_CHANGE: Final = 2
F_T10_PI: Final = 3

EVENT_SIZE: Final = 16
SENSE_SIZE: Final = 96  # until the driver chooses others
CDB_SIZE: Final = 32
MOST_SENSE: Final = 252  # SPC-5, 4.4: what sense data can have at most
MOST_CDB: Final = 255
SENSE_SIZE_OFFSET: Final = 20
CDB_SIZE_OFFSET: Final = 24
MAX_TARGET: Final = 255
MAX_LUN: Final = 16383
CONFIG_SIZE: Final = 256  # beyond the structure there are zeros, as front-ends ask for round sizes

_LAYOUT: Final = struct.Struct("<IIIIIIIHHI")


@dataclass(frozen=True)
class ScsiSettings:
    """What the user decided about a virtio-scsi device.

    num_queues: command queues. seg_max: data segments of a command. max_sectors: of a transfer,
    512 bytes each. cmd_per_lun: commands that a driver should send to a unit at once.
    """

    num_queues: int = 1
    seg_max: int = 126
    max_sectors: int = 0xFFFF
    cmd_per_lun: int = 128
    packed: bool = True
    in_order: bool = False


def offered_features(settings: ScsiSettings) -> int:
    """The feature bits that the device offers, ring features included."""
    bits = RING_FEATURES | 1 << F_HOTPLUG | 1 << F_CHANGE
    if settings.packed:
        bits |= 1 << F_RING_PACKED
    if settings.in_order:
        bits |= 1 << F_IN_ORDER
    return bits


def pack_config(settings: ScsiSettings, sense_size: int, cdb_size: int) -> bytes:
    """The configuration space, CONFIG_SIZE bytes (5.6.4)."""
    body = _LAYOUT.pack(
        settings.num_queues,
        settings.seg_max,
        settings.max_sectors,
        settings.cmd_per_lun,
        EVENT_SIZE,
        sense_size,
        cdb_size,
        0,  # max_channel
        MAX_TARGET,
        MAX_LUN,
    )
    return body + bytes(CONFIG_SIZE - len(body))


def encode_lun(target: int, lun: int) -> bytes:
    """How a unit is addressed (5.6.6.1): one, the target, the LUN in flat space form, zeros."""
    return bytes((1, target, 0x40 | lun >> 8, lun & 0xFF, 0, 0, 0, 0))


def encode_reported_lun(target: int, lun: int) -> bytes:
    """The same as devices report it (SAM-6, 4.7.7): up to 255 in peripheral device form. Linux
    compares events with what REPORT LUNS said."""
    return encode_lun(target, lun) if lun > 255 else bytes((1, target, 0, lun, 0, 0, 0, 0))


def decode_lun(data: bytes) -> tuple[int, int] | None:
    """Target and LUN of an address, or None if it is none of this device's forms (which are those
    that `ScsiDevice` takes)."""
    if data[0] != 1:
        return None
    method = data[2] >> 6
    if method == 1:
        return data[1], (data[2] & 0x3F) << 8 | data[3]
    if data[2] == 0:
        return data[1], data[3]
    return data[1], MAX_LUN + 1
