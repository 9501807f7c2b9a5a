"""The device side of both ring formats against the driver, in any sequence of calls.

The driver is a test of its own for what the device writes: it raises DriverError for a wrong id,
length, order or flag, and `wait` for a notification that did not come.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vringd.core.inflight import InflightBuffer
from vringd.core.virtqueue import Chain, Virtqueue
from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam

from .rig import make_queue, map_ram

SIZES = st.lists(st.integers(1, 40), min_size=0, max_size=7)


@dataclass
class Buffer:
    """A buffer that the driver added, and what must become of it."""

    token: int
    sent: bytes
    out: list[tuple[int, int]]
    in_: list[tuple[int, int]]
    chain: Chain | None = None
    data: bytes = b""
    written: int = 0
    popped_as: int = -1  # the how-manyth chain that was popped; -1: none yet
    done: bool = False  # pushed
    again: bool = False  # in flight when a device died
    room: int = field(init=False)

    def __post_init__(self) -> None:
        self.room = sum(size for _, size in self.in_)


class RingAgainstDriver(RuleBasedStateMachine):
    @initialize(
        packed=st.booleans(),
        event_idx=st.booleans(),
        split_size=st.sampled_from([1, 2, 4, 8, 1024]),
        packed_size=st.one_of(st.integers(1, 9), st.sampled_from([100, 255, 1000, 1024])),
        base=st.one_of(st.integers(0, 3), st.integers(0xFFF8, 0xFFFF), st.integers(0, 0xFFFF)),
        scramble=st.integers(0, 3),
        tracked=st.booleans(),
        in_order=st.booleans(),
    )
    def start(
        self,
        packed: bool,
        event_idx: bool,
        split_size: int,
        packed_size: int,
        base: int,
        scramble: int,
        tracked: bool,
        in_order: bool,
    ) -> None:
        size = packed_size if packed else split_size
        if packed:
            half = base % size | base & 0x8000
            base = half | half << 16
        self.ram = GuestRam((1 << 20,) * 2)
        self.driver = DriverQueue(
            self.ram,
            size,
            packed=packed,
            event_idx=event_idx,
            base=base,
            scramble=scramble,
            in_order=in_order,
            max_indirect=20,
        )
        self.memory = map_ram(self.ram)
        self.inflight = InflightBuffer.create(1, size, packed) if tracked else None
        self.queue = self.new_queue(base)
        self.added: deque[Buffer] = deque()  # not published
        self.visible: deque[Buffer] = deque()  # for the device to pop
        self.popped: list[Buffer] = []
        self.held: list[Buffer] = []  # IN_ORDER: popped or pushed out of turn, as popped
        self.pushed: list[Buffer] = []
        self.used: deque[Buffer] = deque()  # published, for the driver to take
        self.may_undo = False
        self.count = 0  # chains popped
        self.undecided = False  # something was published and `publish` not yet called
        self.told = False  # a first notification is unconditional
        self.quiet = False  # the driver asked not to be notified and has not taken it back
        self.sleepy = False  # the device asked for a kick, which has not come

    def new_queue(self, base: int) -> Virtqueue:
        return make_queue(self.driver, self.memory, base=base, inflight=self.inflight)

    def teardown(self) -> None:
        if hasattr(self, "driver"):
            self.ram.check()
            self.driver.close()
            self.ram.close()

    @rule(out=SIZES, in_=SIZES, indirect=st.booleans(), direct=st.integers(0, 3), seed=st.binary())
    def add(self, out: list[int], in_: list[int], indirect: bool, direct: int, seed: bytes) -> None:
        count = len(out) + len(in_)
        if count == 0:
            return
        direct = direct if indirect and not self.driver.packed and direct < count else 0
        if (direct + 1 if indirect else count) > self.driver.num_free:
            return
        segments = [(self.ram.alloc(size), size) for size in out + in_]
        reads, writes = segments[: len(out)], segments[len(out) :]
        total = sum(out)
        sent = (seed * (total // max(1, len(seed)) + 1) + bytes(total))[:total]
        at = 0
        for addr, size in reads:
            self.ram.write(addr, sent[at : at + size])
            at += size
        token = self.driver.add(reads, writes, indirect=indirect, direct=direct)
        self.added.append(Buffer(token, sent, reads, writes))

    @rule()
    def make_available(self) -> None:
        published = self.driver.publish()
        assert published == len(self.added)
        wanted = self.driver.kick_needed()
        if self.sleepy and published:
            assert wanted, "the device waits for a kick that it did not ask for"
            self.sleepy = False
        self.visible += self.added
        self.added.clear()

    def commit(self) -> None:
        """A packed ring's inflight buffer holds one batch: it is published before a pop."""
        if self.inflight is not None and self.driver.packed and self.pushed:
            self.used += self.pushed
            self.pushed.clear()
            self.undecided = True

    @rule(limit=st.sampled_from([1, 2, 100]))
    def pop(self, limit: int) -> None:
        for _ in range(limit):
            self.commit()
            chain = self.queue.pop()
            assert self.queue.broken is None
            if not self.visible:
                assert chain is None
                return
            assert chain is not None
            buffer = self.visible.popleft()
            assert chain.head == self.driver.buffer_id(buffer.token)
            assert chain.readable() == buffer.sent
            assert chain.writable_size() == buffer.room
            assert chain.segments() == ([n for _, n in buffer.out], [n for _, n in buffer.in_])
            buffer.chain = chain
            if buffer.popped_as < 0:
                buffer.popped_as = self.count
                self.count += 1
            buffer.done = False
            self.popped.append(buffer)
            if self.driver.in_order:
                self.held.append(buffer)
            self.may_undo = True

    @precondition(lambda self: self.may_undo)
    @rule()
    def undo(self) -> None:
        buffer = self.popped.pop()
        assert buffer.chain is not None
        if not buffer.again:
            self.commit()
        self.queue.undo_pop(buffer.chain)
        if self.driver.in_order:
            self.held.pop()
        self.visible.appendleft(buffer)
        # In one row from the last pop backwards only.
        self.may_undo = False

    @precondition(lambda self: self.popped)
    @rule(data=st.data(), fill=st.integers(0, 255))
    def push(self, data: st.DataObject, fill: int) -> None:
        at = data.draw(st.integers(0, len(self.popped) - 1))
        if at == len(self.popped) - 1:
            self.may_undo = False
        buffer = self.popped.pop(at)
        assert buffer.chain is not None
        buffer.written = data.draw(st.integers(0, buffer.room))
        buffer.data = bytes([fill]) * buffer.written
        assert buffer.chain.write(buffer.data) == buffer.written
        self.queue.push(buffer.chain, buffer.written)
        buffer.done = True
        if not self.driver.in_order:
            self.pushed.append(buffer)
        while self.held and self.held[0].done:
            self.pushed.append(self.held.pop(0))

    @rule()
    def publish(self) -> None:
        fresh = len(self.pushed) or self.undecided
        self.undecided = False
        notify = self.queue.publish()
        if fresh and not self.told:
            assert notify
            self.told = True
        elif self.quiet and not self.driver.event_idx:
            assert not notify
        if notify:
            self.queue.notify()
        self.used += self.pushed
        self.pushed.clear()

    @rule(limit=st.sampled_from([1, 3, 100]))
    def take_used(self, limit: int) -> None:
        for _ in range(limit):
            if not self.used and not self.pushed:
                assert self.driver.pop_used() is None
                return
            if not self.used:
                return
            self.check(self.used.popleft(), self.driver.pop_used())

    def check(self, buffer: Buffer, used: tuple[int, int] | None) -> None:
        assert used == (buffer.token, buffer.written)
        received = b"".join(self.ram.read(*segment) for segment in buffer.in_)
        assert received[: buffer.written] == buffer.data
        for addr, _ in buffer.out + buffer.in_:
            self.ram.free(addr)

    @rule()
    def sleep_until_notified(self) -> None:
        """With something published the driver wakes up: `wait` raises if it is not told."""
        if self.used and not self.undecided:
            assert self.driver.wait(0.0, grace=0.0)
        self.quiet = False

    @rule()
    def want_no_notification(self) -> None:
        self.driver.disable_callbacks()
        self.driver.take_notifications()
        self.quiet = True

    @rule()
    def want_notification(self) -> None:
        self.driver.enable_callbacks()
        self.quiet = False

    @rule()
    def ask_for_kick(self) -> None:
        assert self.queue.enable_notification() == bool(self.visible)
        self.sleepy = not self.visible

    @rule()
    def want_no_kick(self) -> None:
        self.queue.disable_notification()
        if self.driver.packed or not self.driver.event_idx:
            self.sleepy = False

    @precondition(lambda self: not self.popped)
    @rule()
    def move(self) -> None:
        """A drained queue goes on at its base, as after GET_VRING_BASE and SET_VRING_BASE."""
        self.publish()
        self.queue = self.new_queue(self.queue.base)
        self.told = self.may_undo = self.sleepy = False

    @precondition(lambda self: self.inflight is not None)
    @rule()
    def kill(self) -> None:
        """The device dies; its successor gets the inflight buffer from the front-end."""
        old = self.inflight
        assert old is not None
        size, packed = self.driver.size, self.driver.packed
        self.inflight = InflightBuffer.map(old.fd, old.mmap_size, 0, 1, size, packed)
        del self.queue
        open_ones = self.unpublished()
        for buffer in open_ones:
            buffer.again = True
        begun = [b for b in self.visible if b.popped_as >= 0] + open_ones
        begun.sort(key=lambda buffer: buffer.popped_as)
        self.visible = deque(begun + [b for b in self.visible if b.popped_as < 0])
        self.popped.clear()
        self.held.clear()
        self.pushed.clear()
        self.queue = self.new_queue(0)
        self.told = self.may_undo = self.sleepy = self.undecided = False
        if self.used:
            # The interrupt may have died with the device; the front-end looks again.
            self.queue.notify()

    def unpublished(self) -> list[Buffer]:
        """What was popped and the driver cannot see to be used."""
        return self.popped + [buffer for buffer in self.held if buffer.done] + self.pushed

    @invariant()
    def books_balance(self) -> None:
        if not hasattr(self, "driver"):
            return
        assert self.queue.broken is None
        assert self.queue.in_flight == len(self.unpublished()) - len(self.pushed)
        total = len(self.added) + len(self.visible) + len(self.unpublished())
        assert self.driver.in_flight == total + len(self.used)
        published = len(self.visible) + len(self.unpublished()) + len(self.used)
        if not self.driver.packed:
            assert (self.driver.avail_idx - self.driver.last_used_idx) & 0xFFFF == published
            waiting = sum(not buffer.again for buffer in self.visible)
            assert self.queue.base == (self.driver.avail_idx - waiting) & 0xFFFF


RingAgainstDriver.TestCase.settings = settings(
    max_examples=250,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestRingAgainstDriver = RingAgainstDriver.TestCase
