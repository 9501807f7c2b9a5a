"""The driver against the model device, over whatever sequence of calls Hypothesis thinks of."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam

from .model_device import Chain, model_device

segments = st.lists(
    st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**20)), min_size=0, max_size=5
)


class DriverAgainstModel(RuleBasedStateMachine):
    @initialize(
        order=st.integers(0, 5),
        odd_size=st.integers(1, 40),
        packed=st.booleans(),
        event_idx=st.booleans(),
        indirect=st.booleans(),
        in_order=st.booleans(),
        scramble=st.integers(0, 3),
        base=st.one_of(st.just(0), st.integers(0xFFF0, 0xFFFF), st.integers(0, 0xFFFF)),
    )
    def start(
        self,
        order: int,
        odd_size: int,
        packed: bool,
        event_idx: bool,
        indirect: bool,
        in_order: bool,
        scramble: int,
        base: int,
    ) -> None:
        size = odd_size if packed else 1 << order
        if packed:
            half = base % size | base & 0x8000
            base = half | half << 16
        self.ram = GuestRam((1 << 18,) * 3)
        self.queue = DriverQueue(
            self.ram,
            size,
            packed=packed,
            event_idx=event_idx,
            indirect=indirect,
            in_order=in_order,
            scramble=scramble,
            base=base,
            max_indirect=10,
        )
        self.device = model_device(self.queue)
        self.added: deque[tuple[int, Chain]] = deque()  # (token, what the device must find)
        self.visible = 0  # how many of `added` are published
        self.popped: list[tuple[int, Chain]] = []  # in the device's hands, in order
        self.expected: deque[tuple[int, int, Chain]] = deque()  # (token, written, chain)
        self.free = size
        # Positions as the model counts them
        self.position = self.checked = self.device.next_avail
        self.added_position = self.position
        self.kick_event: int | None = self.position if event_idx and not packed else None
        self.kicks_on = True
        self.armed = True  # the next used buffer must be announced

    def teardown(self) -> None:
        if hasattr(self, "queue"):
            self.queue.close()
            self.ram.close()

    @rule(out=segments, in_=segments, table=st.booleans(), direct=st.integers(0, 3))
    def add(
        self, out: list[tuple[int, int]], in_: list[tuple[int, int]], table: bool, direct: int
    ) -> None:
        n = len(out) + len(in_)
        if n == 0:
            return
        table = table and self.queue.indirect
        direct = direct if table and not self.queue.packed and direct < n else 0
        count = direct + 1 if table else n
        if count > self.queue.size:
            with pytest.raises(ValueError, match="never fit"):
                self.queue.add(out, in_, indirect=table, direct=direct)
            return
        if count > self.free:
            with pytest.raises(BufferError):
                self.queue.add(out, in_, indirect=table, direct=direct)
            return
        token = self.queue.add(out, in_, indirect=table, direct=direct)
        assert len(self.queue.descriptors(token)) == count
        chain = Chain(self.queue.buffer_id(token), count, tuple(out), tuple(in_))
        self.added.append((token, chain))
        self.free -= count
        self.added_position += count if self.queue.packed else 1

    @rule()
    def publish(self) -> None:
        assert self.queue.publish() == len(self.added) - self.visible
        self.visible = len(self.added)
        self.position = self.added_position

    @rule()
    def ask_for_kick(self) -> None:
        new = range(self.checked, self.position)
        circle = 2 * self.queue.size if self.queue.packed else 65536
        if self.kick_event is None:
            wanted = self.kicks_on and len(new) > 0
        else:
            wanted = any((p - self.kick_event) % circle == 0 for p in new)
        assert self.queue.kick_needed() == wanted
        self.checked = self.position

    @rule(keep=st.integers(0, 3))
    def device_pops(self, keep: int) -> None:
        while self.visible > keep:
            chain = self.device.pop()
            token, expected = self.added.popleft()
            self.visible -= 1
            assert chain == expected
            self.popped.append((token, expected))
        if self.visible == 0:
            assert self.device.pop() is None

    @precondition(lambda self: self.popped)
    @rule(data=st.data())
    def device_pushes(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.popped) - 1))
        _, chain = self.popped[at]
        written = data.draw(st.integers(0, chain.writable))
        notified = self.device.push(chain, written)
        if self.queue.in_order:
            done = self.popped[: at + 1]
            del self.popped[: at + 1]
            self.expected.extend((t, c.writable, c) for t, c in done[:-1])
        else:
            done = [self.popped.pop(at)]
        self.expected.append((done[-1][0], written, chain))
        if self.armed:
            assert notified
            assert self.queue.take_notifications() == 1
            self.armed = False

    @rule(limit=st.sampled_from([1, 2, 50]))
    def driver_pops(self, limit: int) -> None:
        for _ in range(limit):
            got = self.queue.pop_used()
            if not self.expected:
                assert got is None
                break
            token, written, chain = self.expected.popleft()
            assert got == (token, written)
            self.free += chain.count
            self.armed = False

    @rule()
    def enable_callbacks(self) -> None:
        more = self.queue.enable_callbacks()
        assert more == bool(self.expected)
        self.armed = not more

    @rule()
    def disable_callbacks(self) -> None:
        self.queue.disable_callbacks()
        self.armed = False

    @rule()
    def device_enables_kicks(self) -> None:
        assert self.device.enable_kicks() == (self.visible > 0)
        self.kicks_on = True
        self.kick_event = self.device.next_avail if self.queue.event_idx else None

    @rule()
    def device_disables_kicks(self) -> None:
        self.device.disable_kicks()
        if self.queue.packed or not self.queue.event_idx:
            self.kicks_on = False
            self.kick_event = None

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "queue"):
            in_flight = len(self.added) + len(self.popped) + len(self.expected)
            assert self.queue.in_flight == in_flight
            assert self.queue.has_used == bool(self.expected)
            assert self.queue.num_free == self.free
            self.ram.check()


DriverAgainstModel.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestDriverAgainstModel = DriverAgainstModel.TestCase
