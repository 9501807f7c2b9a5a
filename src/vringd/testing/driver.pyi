"""Types of the driver side of virtqueues; see `DriverQueue`."""

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from vringd.testing.memory import GuestRam
from vringd.testing.ring_layout import RingLayout

class DriverError(Exception):
    """The device broke a rule of the ring; the message says which and where."""

class DriverQueue:
    """The guest's side of one virtqueue (virtio 1.3, 2.7 and 2.8); for one thread at a time.

    `size` entries (split: a power of two, at most 32768). `base` is the start index as in
    SET_VRING_BASE: split 0 to 65535, packed `position | wrap << 15` in both halves; None is a
    fresh ring (0, or 0x80008000 when packed). `layout` places the ring, by default with the least
    alignment that is allowed. `max_indirect` is the number of entries of each indirect table.
    `scramble` seeds the order in which descriptor indices (packed: buffer ids) are handed out, so
    that a device which assumes ascending ones fails; 0 is ascending, and split IN_ORDER rings
    always are.

    Fields that a device must ignore hold 0xFFFF: `next` of the last descriptor, and the id of
    all but the last descriptor of a packed chain.

    Raises ValueError for a bad size, base or layout; MemoryError when `ram` is full.
    """

    ram: GuestRam
    layout: RingLayout
    def __init__(
        self,
        ram: GuestRam,
        size: int,
        *,
        packed: bool = False,
        event_idx: bool = True,
        indirect: bool = True,
        in_order: bool = False,
        base: int | None = None,
        layout: RingLayout | None = None,
        max_indirect: int = 32,
        scramble: int = 1,
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...
    def close(self) -> None:
        """Give back memory and eventfds. GuestRamError if the device wrote behind the ring."""

    def reset(self, base: int | None = None) -> None:
        """Empty the ring as after a device reset and forget what was in flight."""

    @property
    def kick_fd(self) -> int:
        """Eventfd driver to device, owned by the queue; -1 once closed."""
    @property
    def call_fd(self) -> int:
        """Eventfd device to driver, owned by the queue; -1 once closed."""
    @property
    def err_fd(self) -> int:
        """Eventfd by which a vhost-user back-end reports a broken ring; -1 once closed."""
    @property
    def size(self) -> int:
        """Entries of the ring."""
    @property
    def packed(self) -> bool:
        """Whether the ring is packed."""
    @property
    def event_idx(self) -> bool:
        """Whether notifications are suppressed by index rather than by flag."""
    @property
    def indirect(self) -> bool:
        """Whether `add(..., indirect=True)` is allowed."""
    @property
    def in_order(self) -> bool:
        """Whether the device must use buffers in order and may do so in batches."""
    @property
    def max_indirect(self) -> int:
        """Entries of each indirect table; 0 without indirect descriptors."""
    @property
    def base(self) -> int:
        """The start index that the ring was made with."""
    @property
    def features(self) -> int:
        """The VIRTIO feature bits that must be negotiated for this ring (with VERSION_1)."""
    @property
    def num_free(self) -> int:
        """Free descriptors."""
    @property
    def in_flight(self) -> int:
        """Buffers added and not yet popped."""
    @property
    def avail_idx(self) -> int:
        """What is published: the 16-bit index; packed: next position | wrap counter << 15."""
    @property
    def last_used_idx(self) -> int:
        """What was popped: the 16-bit index; packed: next position | wrap counter << 15."""
    @property
    def has_used(self) -> bool:
        """Whether `pop_used` would find something."""
    @property
    def spurious(self) -> int:
        """Notifications that `wait` met without any used buffer (allowed, but wasteful)."""
    def add(
        self,
        out: Iterable[tuple[int, int]] = (),
        in_: Iterable[tuple[int, int]] = (),
        *,
        indirect: bool = False,
        direct: int = 0,
    ) -> int:
        """Add a buffer of device-readable `out` and device-writable `in_` segments.

        A segment is (guest address, bytes); nothing checks that it lies in guest memory. With
        `indirect` all but the first `direct` segments stand in an indirect table (`direct` > 0
        only in split rings, 2.7.5.3.2). Returns the token by which `pop_used` names the buffer;
        tokens ascend and never repeat until `reset`. Invisible to the device until `publish`.

        Raises BufferError when the ring is too full now, ValueError when the buffer can never
        be added.
        """

    def publish(self) -> int:
        """Make the added buffers visible to the device, in one store; returns how many."""

    def kick_needed(self) -> bool:
        """Whether the device wants to be told of the buffers published since the last call.

        A second call without `publish` in between returns False.
        """

    def kick(self, *, force: bool = False) -> bool:
        """Write the kick eventfd if `kick_needed` (or forced); returns whether it did."""

    def pop_used(self) -> tuple[int, int] | None:
        """Take back a buffer: (token, bytes written), or None.

        In a batch under IN_ORDER, buffers without a used element of their own count as written
        completely (2.7.9). Raises DriverError, again at each call until `reset`, when the used
        index jumped, an id is out of range, not in flight or not published, the length exceeds
        the writable bytes, the order is wrong under IN_ORDER, or packed flags make no sense.
        """

    def descriptors(self, token: int) -> tuple[int, ...]:
        """The ring's descriptors that buffer `token` takes, in order. KeyError: not in flight."""

    def buffer_id(self, token: int) -> int:
        """The head index (packed: buffer id) of buffer `token`. KeyError: not in flight."""

    def indirect_table(self, token: int) -> int:
        """Guest address of the indirect table of buffer `token`. KeyError: not in flight."""

    def enable_callbacks(self) -> bool:
        """Clear and ask for a notification; returns whether used buffers are there already."""

    def disable_callbacks(self) -> None:
        """Advise the device not to notify."""

    def wait(self, timeout: float = 5.0, *, grace: float = 1.0) -> bool:
        """Wait up to `timeout` seconds until there are used buffers; returns whether there are.

        Enables callbacks unless they are enabled already and unspent; in that case it insists on
        the notification even if the buffers can be seen. Raises DriverError when used buffers
        are there and a notification was due but did not come within `grace` seconds more.
        """

    def take_notifications(self) -> int:
        """Read and clear the call eventfd; 0 if it was clear."""

    def take_kicks(self) -> int:
        """Read and clear the kick eventfd, as a device does; 0 if it was clear."""

    def take_error(self) -> bool:
        """Read and clear the error eventfd."""

    def write_desc(self, index: int, addr: int, length: int, flags: int, next: int) -> None:
        """Overwrite a split descriptor. This and what follows tell the device lies: the queue's
        own books do not change."""

    def read_desc(self, index: int) -> tuple[int, int, int, int]:
        """(addr, len, flags, next) of a split descriptor as it stands in guest memory."""

    def write_avail(self, index: int, heads: Iterable[int]) -> None:
        """Overwrite available ring entries from `index` (modulo the size) on."""

    def set_avail_idx(self, index: int) -> None:
        """Store the available index, with release ordering."""

    def set_avail_flags(self, flags: int) -> None:
        """Store the available ring's flags."""

    def set_used_event(self, index: int) -> None:
        """Store used_event."""

    def set_driver_event(self, off_wrap: int, flags: int) -> None:
        """Store a packed ring's driver event suppression structure."""

    def write_packed_desc(self, index: int, addr: int, length: int, id: int, flags: int) -> None:
        """Overwrite a packed descriptor, the flags last and with release ordering."""

    def read_packed_desc(self, index: int) -> tuple[int, int, int, int]:
        """(addr, len, id, flags) of a packed descriptor as it stands in guest memory."""

    @property
    def used_idx(self) -> int:
        """The device's used index (split)."""
    @property
    def used_flags(self) -> int:
        """The used ring's flags (split)."""
    @property
    def avail_event(self) -> int:
        """The device's avail_event (split)."""
    @property
    def device_event(self) -> tuple[int, int]:
        """(off_wrap, flags) of the device event suppression structure (packed)."""
    def read_used(self, index: int) -> tuple[int, int]:
        """(id, len) of the used element at `index` modulo the size (split)."""
