"""A disk in a bytearray behind the model device, served from a thread."""

from __future__ import annotations

import os
import select
import struct
import threading
from types import TracebackType
from typing import Self

from vringd.testing.blk import SECTOR, BlkStatus, BlkType
from vringd.testing.driver import DriverQueue

from .model_device import Chain, model_device


class BlkDevice:
    """Serves `queue` until the `with` block ends. Subclasses override `answer` to misbehave."""

    def __init__(self, queue: DriverQueue, sectors: int = 64) -> None:
        self.ram = queue.ram
        self.kick_fd = queue.kick_fd
        self.disk = bytearray(SECTOR * sectors)
        self.log: list[tuple[int, bytes]] = []
        self.failure: BaseException | None = None
        self._model = model_device(queue)
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        poller = select.poll()
        for fd in (self.kick_fd, self._stop):
            poller.register(fd, select.POLLIN)
        try:
            while True:
                self._model.disable_kicks()
                while (chain := self._model.pop()) is not None:
                    self.serve(chain)
                if self._model.enable_kicks():
                    continue
                if self._stop in {fd for fd, _ in poller.poll()}:
                    return
                os.eventfd_read(self.kick_fd)
        except BaseException as error:
            self.failure = error

    def serve(self, chain: Chain) -> None:
        sent = b"".join(self.ram.read(*segment) for segment in chain.out)
        answer, status = self.answer(sent, chain.writable - 1)
        self.reply(chain, answer + bytes([status]))

    def reply(self, chain: Chain, data: bytes) -> None:
        rest = data
        for addr, length in chain.in_:
            self.ram.write(addr, rest[:length])
            rest = rest[length:]
        self.push(chain, len(data))

    def push(self, chain: Chain, written: int) -> None:
        self._model.push(chain, written)

    def answer(self, sent: bytes, size: int) -> tuple[bytes, int]:
        """The reply's data (`size` bytes) and status."""
        kind, _, sector = struct.unpack("<IIQ", sent[:16])
        data = sent[16:]
        self.log.append((kind, data))
        at = sector * SECTOR
        if at + max(size, len(data)) > len(self.disk):
            return bytes(size), BlkStatus.IOERR
        if kind == BlkType.IN:
            return bytes(self.disk[at : at + size]), BlkStatus.OK
        if kind == BlkType.OUT:
            self.disk[at : at + len(data)] = data
        elif kind == BlkType.GET_ID:
            return b"model disk".ljust(size, b"\0"), BlkStatus.OK
        elif kind in (BlkType.DISCARD, BlkType.WRITE_ZEROES):
            for first, count, _flags in struct.iter_unpack("<QII", data):
                self.disk[first * SECTOR : (first + count) * SECTOR] = bytes(count * SECTOR)
        elif kind != BlkType.FLUSH:
            return bytes(size), BlkStatus.UNSUPP
        return bytes(size), BlkStatus.OK
