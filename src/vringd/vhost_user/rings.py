"""Which rings of a device run, and with which memory, log and inflight buffer.

A ring runs (its queue is with an IOThread) exactly while the front-end wants it, all that it
needs is known, and the device is not broken. What cannot change under a running queue is
changed between a drain and a restart from the same position.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from vringd.core.inflight import InflightBuffer
from vringd.core.memory import DirtyLog, GuestMemory
from vringd.core.virtqueue import Virtqueue
from vringd.vhost_user.descriptors import Descriptor, signal_eventfd
from vringd.vhost_user.errors import RefusedError
from vringd.vhost_user.host import QueueHost
from vringd.vhost_user.patience import wait_patiently
from vringd.vhost_user.vring import Vring, fd_of
from vringd.vhost_user.wire import VHOST_F_LOG_ALL, VringAddress

if TYPE_CHECKING:
    Log = logging.LoggerAdapter[logging.Logger]
    Update = Callable[[Virtqueue], Coroutine[Any, Any, None]]

T = TypeVar("T")


class Rings:
    """All rings of one connection; `self[i]` is ring i.

    The attributes hold what new queues are made with; set them by the methods while queues run.
    Coroutines must not overlap: the session runs one at a time.
    """

    def __init__(self, host: QueueHost, log: Log, drain_report: float) -> None:
        self._host = host
        self._log = log
        self._drain_report = drain_report
        self._vrings = [Vring(index) for index in range(host.num_queues)]
        self.memory = GuestMemory()
        self.features = 0
        self.dirty_log: DirtyLog | None = None
        self.inflight: InflightBuffer | None = None
        self.broken: str | None = None

    def __getitem__(self, index: int) -> Vring:
        """Raises RefusedError for a ring that the device does not have."""
        if index >= len(self._vrings):
            raise RefusedError(f"there is no queue {index}, the device has {len(self._vrings)}")
        return self._vrings[index]

    def __iter__(self) -> Iterator[Vring]:
        return iter(self._vrings)

    @property
    def started(self) -> bool:
        """False while the device is suspended: every ring is stopped."""
        return any(vring.started for vring in self._vrings)

    @property
    def running(self) -> list[Vring]:
        """The rings that are being processed."""
        return [vring for vring in self._vrings if vring.queue is not None]

    @property
    def active_log(self) -> DirtyLog | None:
        """The log that writes to guest memory have to be recorded in."""
        return self.dirty_log if self.features & VHOST_F_LOG_ALL else None

    # ---- one ring ----

    async def reconcile(self, vring: Vring) -> None:
        """Start or stop the ring if it does not do what the front-end wants.

        Raises RefusedError when a wanted ring cannot be started.
        """
        if vring.wanted and self.broken is None:
            if vring.queue is None:
                await self._start(vring)
                # A back-end that went away may have left completions without telling: only a
                # signal now makes the driver look at them.
                if vring.call is not None:
                    signal_eventfd(vring.call)
        elif vring.queue is not None:
            await self._stop(vring)

    async def stop(self, vring: Vring) -> None:
        """Drain the ring, which then stays stopped until its next kick descriptor."""
        await self._stop(vring)
        vring.stop()

    async def set_address(self, vring: Vring, address: VringAddress) -> None:
        """Take the ring's addresses; on a running ring only the log address changes live."""
        old, vring.address = vring.address, address
        if vring.queue is None:
            return
        if old is not None and old.parts == address.parts:
            await self._wait(self._host.update_queue(vring.queue, log_addr=vring.log_addr), vring)
        else:
            await self._stop(vring)
            await self.reconcile(vring)

    async def set_kick(self, vring: Vring, kick: Descriptor | None) -> None:
        """Start the ring with this kick descriptor; None means that it has to be polled."""
        await self._stop(vring)
        vring.stop()
        vring.kick, vring.started = kick, True
        await self.reconcile(vring)

    async def set_call(self, vring: Vring, call: Descriptor | None) -> None:
        """Use another call descriptor; when this returns, the old one is not written any more."""
        old, vring.call = vring.call, call
        try:
            if vring.queue is not None:
                await self._wait(self._host.update_queue(vring.queue, call_fd=fd_of(call)), vring)
                if old is None and call is not None:
                    signal_eventfd(call)  # completions may have passed without a descriptor
        finally:
            if old is not None:
                old.close()

    # ---- all rings ----

    async def reconcile_all(self) -> None:
        """Reconcile every ring. Those that cannot start are reported and stay stopped."""
        for vring in self._vrings:
            try:
                await self.reconcile(vring)
            except RefusedError as error:
                self._log.warning("%s; it is not processed for now", str(error))

    async def stop_all(self) -> None:
        """Drain all running rings, together; they restart at the next `reconcile`."""
        await self._together([self._stop(vring) for vring in self.running])

    async def add_memory(self, memory: GuestMemory) -> None:
        """Use memory that has more regions than before, live; rings that lacked it start."""
        self.memory = memory
        await self._update_running(lambda queue: self._host.update_queue(queue, memory=memory))
        await self.reconcile_all()

    async def replace_memory(self, memory: GuestMemory) -> None:
        """Use any other memory: no request in flight may still refer to the old one."""
        await self.stop_all()
        self.memory = memory
        await self.reconcile_all()

    async def set_log(self, features: int, dirty_log: DirtyLog | None) -> None:
        """Take features and log; running queues start or stop logging live."""
        before = self.active_log
        self.features, self.dirty_log = features, dirty_log
        log = self.active_log
        if log is not before:
            await self._update_running(lambda queue: self._host.update_queue(queue, log=log))

    async def disable_all(self) -> None:
        """Disable and drain all rings."""
        for vring in self._vrings:
            vring.enabled = False
        await self.stop_all()

    async def reset(self) -> None:
        """Drain all rings and forget their set-up and the reason why the device is broken."""
        await self.stop_all()
        for vring in self._vrings:
            vring.reset()
        self.broken = None

    def signal_errors(self) -> None:
        """Tell the front-end through every err descriptor."""
        for vring in self._vrings:
            if vring.err is not None:
                signal_eventfd(vring.err)

    async def close(self) -> None:
        """Drain all rings, close their descriptors and unmap everything."""
        try:
            await self.stop_all()
        finally:
            for vring in self._vrings:
                vring.close()
            self.memory = GuestMemory()
            self.dirty_log = self.inflight = None

    # ---- below the wishes: queues ----

    async def _start(self, vring: Vring) -> None:
        try:
            queue = self._make_queue(vring)
        except (ValueError, OverflowError, OSError) as error:
            where = f"queue {vring.index}: "
            raise RefusedError(where + str(error).removeprefix(where)) from error
        # Set before the wait: were this task cancelled in it, the queue has to be stopped.
        vring.queue = queue
        try:
            await self._wait(self._host.start_queue(queue), vring)
        except Exception:
            vring.queue = None
            raise

    async def _stop(self, vring: Vring) -> None:
        queue = vring.queue
        if queue is None:
            return
        await self._wait(self._host.stop_queue(queue), vring)
        vring.base, vring.queue = queue.base, None

    def _make_queue(self, vring: Vring) -> Virtqueue:
        address = vring.address
        assert address is not None  # `wanted` implies it
        return Virtqueue(
            vring.index,
            size=vring.size,
            features=self.features,
            memory=self.memory,
            desc=address.descriptor,
            avail=address.available,
            used=address.used,
            base=vring.base,
            kick_fd=fd_of(vring.kick),
            call_fd=fd_of(vring.call),
            err_fd=-1,  # errors are told by `signal_errors`, for all rings at once
            log=self.active_log,
            log_addr=vring.log_addr,
            inflight=self._inflight_for(vring),
            stats=self._host.stats[vring.index],
        )

    def _inflight_for(self, vring: Vring) -> InflightBuffer | None:
        """The inflight buffer, if it has room for this ring.

        It may have not if another back-end has made it: QEMU asks for fewer entries than its
        rings then have.
        """
        inflight = self.inflight
        if inflight is None or vring.index >= inflight.num_queues:
            return None
        if inflight.queue_size < vring.size:
            self._log.info(
                "queue %d has %d entries, the inflight buffer is for %d: not tracked",
                vring.index,
                vring.size,
                inflight.queue_size,
            )
            return None
        return inflight

    async def _wait(self, work: Coroutine[Any, Any, T], vring: Vring) -> T:
        def report(waited: float) -> None:
            self._log.warning(
                "queue %d: the I/O thread has not finished after %g s, still waiting",
                vring.index,
                waited,
            )

        return await wait_patiently(work, self._drain_report, report)

    async def _update_running(self, update: Update) -> None:
        await self._together(
            [self._wait(update(vring.queue), vring) for vring in self._vrings if vring.queue]
        )

    async def _together(self, work: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Run all; the first error is raised when all have ended."""
        results = await asyncio.gather(*work, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
