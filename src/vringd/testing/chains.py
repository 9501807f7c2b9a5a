"""What drivers of a fake guest have in common: chains cut at will, and answers collected.

Every piece of a chain lies in an allocation of its own, filled with a pattern beforehand, so that
a device which takes neighbouring descriptors for one buffer, forgets its answer or writes into
what it should only read is found out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from vringd.testing.driver import DriverError, DriverQueue

POISON: Final = 0xA5


@dataclass(frozen=True)
class Split:
    """How a request is cut into descriptors (VIRTIO_F_ANY_LAYOUT; 2.7.4).

    `out` are the sizes in bytes of the device-readable descriptors, `in_` those of the
    device-writable ones. What the sizes leave over goes into one more descriptor, sizes beyond
    the end are ignored. None is the device's classic cut.
    """

    out: Sequence[int] | None = None
    in_: Sequence[int] | None = None


def cut(total: int, sizes: Sequence[int]) -> list[int]:
    """Cut `total` bytes into pieces of `sizes`, the rest being the last piece."""
    pieces = []
    for size in sizes:
        if total == 0:
            break
        pieces.append(min(size, total))
        total -= pieces[-1]
    if total:
        pieces.append(total)
    return pieces


@dataclass(frozen=True)
class Returned:
    """A chain that the device has returned; `received` are all its writable bytes, `written` the
    used length."""

    token: int
    received: bytes
    written: int


@dataclass(frozen=True)
class _Pending:
    out: list[tuple[int, int]]
    in_: list[tuple[int, int]]
    sent: bytes


class ChainDriver:
    """Chains of a queue in flight, for one thread at a time.

    `timeout` is in seconds and applies to each wait that says no other.

    Methods raise TimeoutError, DriverError for what the device must not do, BufferError when the
    ring is full, MemoryError when guest memory is.
    """

    def __init__(self, queue: DriverQueue, *, timeout: float = 10.0) -> None:
        self.queue = queue
        self.ram = queue.ram
        self.timeout = timeout
        self._pending: dict[int, _Pending] = {}
        self._returned: dict[int, Returned] = {}

    def send(
        self,
        data: bytes,
        out_sizes: Sequence[int],
        room: int,
        in_sizes: Sequence[int],
        *,
        indirect: bool = False,
        kick: bool = True,
    ) -> int:
        """Add a chain with `data` to read and `room` bytes to write, each cut by its sizes;
        returns its token. With `kick=False` it is only added: the caller publishes and kicks, or
        whoever sends next does."""
        out: list[tuple[int, int]] = []
        in_: list[tuple[int, int]] = []
        try:
            at = 0
            for size in cut(len(data), out_sizes):
                out.append((self.ram.alloc(size), size))
                self.ram.write(out[-1][0], data[at : at + size])
                at += size
            for size in cut(room, in_sizes):
                in_.append((self.ram.alloc(size), size))
                self.ram.fill(*in_[-1], POISON)
            token = self.queue.add(out, in_, indirect=indirect)
        except BaseException:
            self._free(out + in_)
            raise
        self._pending[token] = _Pending(out, in_, data)
        if kick:
            self.queue.publish()
            self.queue.kick()
        return token

    @property
    def in_flight(self) -> int:
        """Chains sent and not yet seen to be returned."""
        return len(self._pending)

    def writable(self, token: int) -> list[tuple[int, int]]:
        """Guest address and size of each piece that the device may write of a chain in flight."""
        return list(self._pending[token].in_)

    def receive(self, token: int | None = None, timeout: float | None = None) -> Returned:
        """Wait for the chain `token`, or for whichever is returned first; `timeout` is in seconds.

        Raises KeyError for a token that is not in flight (LookupError: None, and nothing is).
        """
        if token is None and not (self._pending or self._returned):
            raise LookupError("no request is in flight")
        if token is not None and token not in self._pending and token not in self._returned:
            raise KeyError(f"no request with token {token} is in flight")
        timeout = self.timeout if timeout is None else timeout
        deadline = time.monotonic() + timeout
        while True:
            self.poll()
            if token is None and self._returned:
                return self._returned.pop(next(iter(self._returned)))
            if token is not None and token in self._returned:
                return self._returned.pop(token)
            if not self.queue.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError(
                    f"no answer within {timeout} s; in flight: {sorted(self._pending)}"
                )

    def poll(self) -> int:
        """Take back what is returned, without waiting; returns how many chains."""
        count = 0
        while (used := self.queue.pop_used()) is not None:
            token, written = used
            chain = self._pending.pop(token)
            received = b"".join(self.ram.read(*segment) for segment in chain.in_)
            sent = b"".join(self.ram.read(*segment) for segment in chain.out)
            self._free(chain.out + chain.in_)
            if sent != chain.sent:
                raise DriverError(f"chain {token}: the device wrote into device-readable memory")
            self._returned[token] = Returned(token, received, written)
            count += 1
        return count

    def _free(self, segments: list[tuple[int, int]]) -> None:
        for addr, _ in segments:
            self.ram.free(addr)
