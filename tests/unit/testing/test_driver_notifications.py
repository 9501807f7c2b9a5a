"""Kicks, calls, their suppression, and how lost ones are noticed."""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from vringd.testing.driver import DriverError, DriverQueue
from vringd.testing.memory import GuestRam

from .model_device import EVENT_DESC, Model, model_device

IN = [(0x1_4000_2000, 512)]


@pytest.fixture(params=[False, True], ids=["split", "packed"])
def packed(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=[False, True], ids=["flags", "event_idx"])
def event_idx(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def q(ram: GuestRam, packed: bool, event_idx: bool) -> Iterator[DriverQueue]:
    """A ring of 8 entries, in each format and with each kind of suppression."""
    with DriverQueue(ram, 8, packed=packed, event_idx=event_idx) as q:
        yield q


@pytest.fixture
def device(q: DriverQueue) -> Model:
    return model_device(q)


def give(q: DriverQueue, n: int = 1) -> None:
    for _ in range(n):
        q.add((), IN)
    q.publish()


def use_one(device: Model) -> bool:
    chain = device.pop()
    assert chain is not None
    return device.push(chain, 1)


def lose_a_notification(q: DriverQueue, device: Model) -> None:
    """A buffer is used whose notification, which the driver had asked for, never comes."""
    give(q)
    assert not q.enable_callbacks()
    use_one(device)
    os.eventfd_read(q.call_fd)


def test_a_kick_is_written_once_for_what_was_published(q: DriverQueue) -> None:
    assert not q.kick()
    q.add((), IN)
    assert not q.kick()
    q.publish()
    assert q.kick()
    assert q.take_kicks() == 1
    assert not q.kick()
    assert q.take_kicks() == 0
    assert q.kick(force=True)
    assert q.take_kicks() == 1


def test_a_device_that_does_not_want_kicks_gets_none(q: DriverQueue, device: Model) -> None:
    give(q)
    assert q.kick_needed()
    assert device.pop() is not None
    device.disable_kicks()
    give(q)
    assert not q.kick_needed()
    assert device.pop() is not None
    assert not device.enable_kicks()
    give(q)
    assert q.kick_needed()


@pytest.mark.parametrize("flags", [EVENT_DESC, 3])
def test_a_packed_event_that_was_not_negotiated_suppresses_nothing(
    ram: GuestRam, flags: int
) -> None:
    with DriverQueue(ram, 8, packed=True, event_idx=False) as q:
        ram.write(q.layout.used, struct.pack("<HH", 0x8005, flags))
        give(q)
        assert q.kick_needed()


@pytest.mark.parametrize("event_idx", [True])
def test_an_event_index_within_a_batch_asks_for_a_kick(q: DriverQueue, device: Model) -> None:
    for published in (3, 5, 8, 2, 7):
        device.enable_kicks()
        give(q, published)
        assert q.kick_needed()
        give(q, 8 - published)
        assert not q.kick_needed()
        for _ in range(8):
            use_one(device)
            assert q.pop_used() is not None


def test_disabled_callbacks_silence_the_device(q: DriverQueue, device: Model) -> None:
    give(q, 4)
    q.disable_callbacks()
    for _ in range(3):
        assert not use_one(device)
    while q.pop_used() is not None:
        pass
    assert not q.enable_callbacks()
    assert use_one(device)
    assert q.take_notifications() == 1


def test_enabling_callbacks_reports_what_is_there_already(q: DriverQueue, device: Model) -> None:
    give(q, 2)
    assert not q.enable_callbacks()
    use_one(device)
    assert q.enable_callbacks()
    assert q.take_notifications() == 0  # enabling clears
    assert q.pop_used() is not None
    assert not q.enable_callbacks()


def test_wait_returns_at_once_for_what_is_there(q: DriverQueue, device: Model) -> None:
    q.disable_callbacks()
    give(q)
    assert not use_one(device)
    assert q.wait(0)
    assert q.pop_used() is not None
    assert not q.wait(0)


def test_wait_wakes_upon_a_notification(q: DriverQueue, device: Model) -> None:
    for _ in range(20):
        give(q)
        thread = threading.Timer(0.005, use_one, (device,))
        thread.start()
        assert q.wait(10)
        thread.join()
        assert q.pop_used() is not None
    assert q.spurious == 0


def test_wait_times_out_when_nothing_is_used(q: DriverQueue) -> None:
    give(q)
    start = time.monotonic()
    assert not q.wait(0.05)
    assert time.monotonic() - start >= 0.05


def test_a_lost_notification_is_an_error(q: DriverQueue, device: Model) -> None:
    lose_a_notification(q, device)
    with pytest.raises(DriverError, match="lost notification: there are used buffers"):
        q.wait(0.01, grace=0.01)


def test_a_lost_notification_is_an_error_though_the_buffer_was_polled(
    q: DriverQueue, device: Model
) -> None:
    lose_a_notification(q, device)
    assert q.pop_used() is not None
    with pytest.raises(DriverError, match="lost notification: a used buffer that had"):
        q.wait(0.01, grace=0.01)


def test_a_notification_that_comes_within_the_grace_is_not_lost(
    q: DriverQueue, device: Model
) -> None:
    lose_a_notification(q, device)
    thread = threading.Timer(0.05, os.eventfd_write, (q.call_fd, 1))
    thread.start()
    assert q.wait(0.01, grace=10)
    thread.join()


def test_no_notification_is_owed_for_what_came_before_the_request(
    q: DriverQueue, device: Model
) -> None:
    give(q, 2)
    q.disable_callbacks()
    assert not use_one(device)
    assert q.enable_callbacks()
    assert q.wait(0.01, grace=0.01)
    assert q.pop_used() is not None


def test_a_fresh_ring_asks_for_the_first_notification(q: DriverQueue, device: Model) -> None:
    give(q)
    assert use_one(device)
    assert q.wait(0)
    q.reset()
    device = model_device(q)
    give(q)
    use_one(device)
    q.take_notifications()
    with pytest.raises(DriverError, match="lost notification"):
        q.wait(0.01, grace=0.01)


def test_spurious_notifications_are_counted_and_survived(q: DriverQueue, device: Model) -> None:
    give(q)
    assert not q.enable_callbacks()
    os.eventfd_write(q.call_fd, 1)
    thread = threading.Timer(0.02, use_one, (device,))
    thread.start()
    assert q.wait(10)
    thread.join()
    assert q.spurious == 1


@pytest.mark.parametrize("in_order", [False, True])
def test_wait_is_ready_within_a_batch(ram: GuestRam, packed: bool, in_order: bool) -> None:
    with DriverQueue(ram, 8, packed=packed, in_order=in_order) as q:
        device = model_device(q)
        give(q, 3)
        chains = [device.pop() for _ in range(3)]
        for chain in chains[2:] if in_order else chains:
            assert chain is not None
            device.push(chain, 7)
        lengths = []
        for _ in range(3):
            assert q.has_used
            assert q.wait(0)
            used = q.pop_used()
            assert used is not None
            lengths.append(used[1])
        assert lengths == ([512, 512, 7] if in_order else [7, 7, 7])
        assert not q.wait(0)


def test_the_error_eventfd_is_read_once(q: DriverQueue) -> None:
    assert not q.take_error()
    os.eventfd_write(q.err_fd, 1)
    assert q.take_error()
    assert not q.take_error()


@pytest.mark.parametrize("action", [DriverQueue.enable_callbacks, DriverQueue.disable_callbacks])
def test_a_new_request_waives_the_notification_owed(
    q: DriverQueue, device: Model, action: Callable[[DriverQueue], object]
) -> None:
    lose_a_notification(q, device)
    assert q.pop_used() is not None
    action(q)
    assert not q.wait(0.01, grace=0.01)
