"""Numbers and structs of the vhost-user protocol, as they stand on the wire.

All numbers are in native byte order; sections named below are those of the vhost-user
protocol specification.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import ClassVar, Self

VERSION = 0x1
VERSION_MASK = 0x3
FLAG_REPLY = 0x4
FLAG_NEED_REPLY = 0x8

HEADER = struct.Struct("=III")
U64 = struct.Struct("=Q")

MAX_PAYLOAD = 4096
"""Bytes; several times what the largest message of a storage device needs."""

MAX_TABLE_REGIONS = 32
"""Regions of one SET_MEM_TABLE; larger memories need CONFIGURE_MEM_SLOTS."""

MAX_CONFIG_SIZE = 256
"""Bytes of device configuration space that a message can reach."""

LOG_PAGE = 4096
"""Bytes of guest memory per bit of the dirty log."""

VRING_INDEX_MASK = 0xFF
VRING_NO_FD = 0x100
VRING_F_LOG = 0x1

VHOST_F_LOG_ALL = 1 << 26
VHOST_USER_F_PROTOCOL_FEATURES = 1 << 30
VIRTIO_F_RING_PACKED = 1 << 34

STATUS_NEEDS_RESET = 0x40


class Request(IntEnum):
    """Messages from the front-end ("Front-end message types")."""

    GET_FEATURES = 1
    SET_FEATURES = 2
    SET_OWNER = 3
    RESET_OWNER = 4
    SET_MEM_TABLE = 5
    SET_LOG_BASE = 6
    SET_LOG_FD = 7
    SET_VRING_NUM = 8
    SET_VRING_ADDR = 9
    SET_VRING_BASE = 10
    GET_VRING_BASE = 11
    SET_VRING_KICK = 12
    SET_VRING_CALL = 13
    SET_VRING_ERR = 14
    GET_PROTOCOL_FEATURES = 15
    SET_PROTOCOL_FEATURES = 16
    GET_QUEUE_NUM = 17
    SET_VRING_ENABLE = 18
    SET_BACKEND_REQ_FD = 21
    GET_CONFIG = 24
    SET_CONFIG = 25
    GET_INFLIGHT_FD = 31
    SET_INFLIGHT_FD = 32
    RESET_DEVICE = 34
    GET_MAX_MEM_SLOTS = 36
    ADD_MEM_REG = 37
    REM_MEM_REG = 38
    SET_STATUS = 39
    GET_STATUS = 40


class BackendRequest(IntEnum):
    """Messages to the front-end over its own channel ("Back-end message types")."""

    CONFIG_CHANGE_MSG = 2


class ProtocolFeature(IntFlag):
    """Protocol features that the back-end may offer ("Protocol features").

    Bits 20 and above differ between drafts and releases of the specification (one of them
    changes what an address means), so none of them is here.
    """

    MQ = 1 << 0
    LOG_SHMFD = 1 << 1
    REPLY_ACK = 1 << 3
    BACKEND_REQ = 1 << 5
    CONFIG = 1 << 9
    BACKEND_SEND_FD = 1 << 10
    INFLIGHT_SHMFD = 1 << 12
    RESET_DEVICE = 1 << 13
    CONFIGURE_MEM_SLOTS = 1 << 15
    STATUS = 1 << 16


@dataclass(frozen=True, slots=True)
class VringState:
    """A vring state description; also carries the descriptor indices of a ring."""

    index: int
    num: int

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("=II")

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Raises struct.error unless the payload has 8 bytes."""
        return cls(*cls.LAYOUT.unpack(payload))

    def pack(self) -> bytes:
        """Exactly 8 bytes."""
        return self.LAYOUT.pack(self.index, self.num)


@dataclass(frozen=True, slots=True)
class VringAddress:
    """A vring address description: user addresses of the parts of a ring.

    In a packed ring `available` is the driver event area and `used` the device event area.
    `log` is the guest address under which writes to the used ring are logged.
    """

    index: int
    flags: int
    descriptor: int
    used: int
    available: int
    log: int

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("=IIQQQQ")

    @property
    def parts(self) -> tuple[int, int, int]:
        """Where the ring itself is."""
        return self.descriptor, self.used, self.available

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Raises struct.error unless the payload has 40 bytes."""
        return cls(*cls.LAYOUT.unpack(payload))

    def pack(self) -> bytes:
        """Exactly 40 bytes."""
        return self.LAYOUT.pack(
            self.index, self.flags, self.descriptor, self.used, self.available, self.log
        )


@dataclass(frozen=True, slots=True)
class RegionDescription:
    """A memory region description."""

    guest_addr: int
    size: int
    user_addr: int
    mmap_offset: int

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("=QQQQ")

    def pack(self) -> bytes:
        """Exactly 32 bytes."""
        return self.LAYOUT.pack(self.guest_addr, self.size, self.user_addr, self.mmap_offset)

    def pack_single(self) -> bytes:
        """The payload of ADD_MEM_REG and REM_MEM_REG: padding and the region, 40 bytes."""
        return bytes(8) + self.pack()

    @classmethod
    def unpack_single(cls, payload: bytes) -> Self:
        """Raises struct.error unless the payload has 40 bytes."""
        return cls(*cls.LAYOUT.unpack(payload[8:]))

    @classmethod
    def pack_table(cls, regions: list[RegionDescription]) -> bytes:
        """The payload of SET_MEM_TABLE."""
        return struct.pack("=II", len(regions), 0) + b"".join(region.pack() for region in regions)

    @classmethod
    def unpack_table(cls, payload: bytes) -> list[Self]:
        """Raises ValueError when the payload's size does not match its number of regions."""
        (count,) = struct.unpack_from("=I", payload)
        if len(payload) != 8 + count * cls.LAYOUT.size:
            raise ValueError(f"{len(payload)} bytes cannot hold exactly {count} regions")
        return [cls(*fields) for fields in cls.LAYOUT.iter_unpack(payload[8:])]


@dataclass(frozen=True, slots=True)
class LogDescription:
    """A log description: bytes, and where they start in the file."""

    size: int
    offset: int

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("=QQ")

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Raises struct.error unless the payload has 16 bytes."""
        return cls(*cls.LAYOUT.unpack(payload))

    def pack(self) -> bytes:
        """Exactly 16 bytes."""
        return self.LAYOUT.pack(self.size, self.offset)


@dataclass(frozen=True, slots=True)
class ConfigAccess:
    """A virtio device config space description: its header and the bytes that follow."""

    offset: int
    size: int
    flags: int
    data: bytes

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("=III")

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Raises ValueError when fewer or more bytes follow the header than it says."""
        offset, size, flags = cls.LAYOUT.unpack_from(payload)
        data = payload[cls.LAYOUT.size :]
        if len(data) != size:
            raise ValueError(f"{len(data)} bytes of data where the header says {size}")
        return cls(offset, size, flags, data)

    def pack(self) -> bytes:
        """12 bytes of header and the data."""
        return self.LAYOUT.pack(self.offset, self.size, self.flags) + self.data


@dataclass(frozen=True, slots=True)
class InflightDescription:
    """An inflight description.

    The struct ends in two 16-bit fields after 64-bit ones: C front-ends send 24 bytes with
    the compiler's padding, others 20, so a reply has to be as long as its request.
    """

    mmap_size: int
    mmap_offset: int
    num_queues: int
    queue_size: int

    LAYOUT: ClassVar[struct.Struct] = struct.Struct("=QQHH")
    PADDED_SIZE: ClassVar[int] = 24

    @classmethod
    def unpack(cls, payload: bytes) -> Self:
        """Raises struct.error when the payload has fewer than 20 bytes."""
        return cls(*cls.LAYOUT.unpack_from(payload))

    def pack(self, size: int = 24) -> bytes:
        """20 bytes, padded with zeros up to `size`."""
        return self.LAYOUT.pack(
            self.mmap_size, self.mmap_offset, self.num_queues, self.queue_size
        ).ljust(size, b"\0")


def request_name(number: int) -> str:
    """The name of a front-end message for people, e.g. "SET_OWNER" or "message 99"."""
    try:
        return Request(number).name
    except ValueError:
        return f"message {number}"
