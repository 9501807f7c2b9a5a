"""Driver and device at the same time: no buffer is lost, no notification is missed."""

from __future__ import annotations

import os
import random
import threading

import pytest

from vringd.testing.driver import DriverQueue
from vringd.testing.memory import GuestRam

from .model_device import model_device

REQUESTS = 1500


def serve(q: DriverQueue, shuffle: random.Random | None, failures: list[BaseException]) -> None:
    """Use REQUESTS buffers, sleeping on the kick eventfd; echo a number from out to in."""
    try:
        device = model_device(q)
        done = 0
        while done < REQUESTS:
            device.disable_kicks()
            chains = []
            while (chain := device.pop()) is not None:
                chains.append(chain)
            if shuffle is not None:
                shuffle.shuffle(chains)
            for chain in chains:
                (out,), (in_,) = chain.out, chain.in_
                q.ram.write(in_[0], q.ram.read(*out))
                device.push(chain, in_[1])
                done += 1
            if done < REQUESTS and not device.enable_kicks():
                os.eventfd_read(q.kick_fd)
    except BaseException as error:
        failures.append(error)
        os.eventfd_write(q.call_fd, 1)


@pytest.mark.parametrize("packed", [False, True], ids=["split", "packed"])
@pytest.mark.parametrize("event_idx", [False, True], ids=["flags", "event_idx"])
@pytest.mark.parametrize("in_order", [False, True], ids=["any_order", "in_order"])
def test_all_buffers_come_back_with_the_right_contents(
    ram: GuestRam, packed: bool, event_idx: bool, in_order: bool
) -> None:
    seed = packed + 2 * event_idx + 4 * in_order
    rng = random.Random(seed)
    with DriverQueue(ram, 16, packed=packed, event_idx=event_idx, in_order=in_order) as q:
        os.set_blocking(q.kick_fd, True)
        failures: list[BaseException] = []
        shuffle = None if in_order else random.Random(seed)
        thread = threading.Thread(target=serve, args=(q, shuffle, failures))
        thread.start()
        out, in_ = ram.alloc(8 * 16, 8), ram.alloc(8 * 16, 8)
        cells = list(range(16))
        waiting: dict[int, tuple[int, bytes]] = {}
        sent = received = 0
        while received < REQUESTS and not failures:
            for _ in range(rng.randint(1, 8)):
                if sent == REQUESTS or not cells or q.num_free < 2:
                    break
                cell, number = cells.pop(), sent.to_bytes(8, "little")
                ram.write(out + 8 * cell, number)
                segments = ([(out + 8 * cell, 8)], [(in_ + 8 * cell, 8)])
                waiting[q.add(*segments, indirect=rng.random() < 0.5)] = cell, number
                sent += 1
            q.publish()
            q.kick()
            while (used := q.pop_used()) is not None:
                cell, number = waiting.pop(used[0])
                assert used[1] == 8
                assert ram.read(in_ + 8 * cell, 8) == number
                cells.append(cell)
                received += 1
            if received < REQUESTS and (len(cells) < 8 or sent == REQUESTS):
                assert q.wait(20) or failures
        thread.join()
        assert failures == []
        assert not waiting
        assert q.num_free == 16
