"""The control queue of virtio-scsi: task management and asynchronous notifications.

Requests run as coroutines, beside each other. A function is answered only when it is true: the
tasks have ended and their responses are visible to the driver.
(virtio 1.3, 5.6.6.2; SAM-6, 7; linux/virtio_scsi.h.)
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Final, Protocol

from vringd.devices.scsi import TaskQuestion
from vringd.devices.scsi_config import decode_lun
from vringd.scsi.unit import ScsiNexus

REQUEST_ROOM: Final = 24
_TMF: Final = struct.Struct("<II8sQ")
_NOTIFICATION: Final = struct.Struct("<I8sI")
_TYPE_TMF: Final = 0
_TYPE_QUERY: Final = 1
_TYPE_SUBSCRIBE: Final = 2

_FIRST_PAUSE: Final = 0.0005
_LONGEST_PAUSE: Final = 0.02


class Function(IntEnum):
    """Task management functions (virtio 1.3, 5.6.6.2.1)."""

    ABORT_TASK = 0
    ABORT_TASK_SET = 1
    CLEAR_ACA = 2
    CLEAR_TASK_SET = 3
    I_T_NEXUS_RESET = 4
    LOGICAL_UNIT_RESET = 5
    QUERY_TASK = 6
    QUERY_TASK_SET = 7


class Response(IntEnum):
    """What the device says to a control request."""

    FUNCTION_COMPLETE = 0  # also OK, of notifications
    BAD_TARGET = 3
    FAILURE = 9
    FUNCTION_SUCCEEDED = 10
    FUNCTION_REJECTED = 11
    INCORRECT_LUN = 12


class ManagedUnit(Protocol):
    """A unit as this initiator reaches it."""

    @property
    def nexus(self) -> ScsiNexus: ...

    @property
    def turn(self) -> asyncio.Lock:
        """Held while a function ends all tasks of some nexus; shared by all initiators."""


class TaskManager(Protocol):
    """The device around the control queue."""

    def unit_at(self, target: int, lun: int) -> ManagedUnit | None:
        """The unit at an address."""

    def units_of(self, target: int) -> Sequence[ManagedUnit]:
        """All units of a target; none: there is no such target."""

    async def settle(self) -> None:
        """Return when every command that was in a queue is in execution or has ended, and every
        response given so far is visible to the driver."""

    async def ask(
        self, nexus: ScsiNexus, make: Callable[[int], TaskQuestion]
    ) -> list[TaskQuestion]:
        """Settle, and have every IOThread answer the question about nexus made for its lane."""


class ScsiControl:
    """Answers control requests."""

    def __init__(self, manager: TaskManager) -> None:
        self._manager = manager

    async def answer(self, request: bytes) -> bytes | None:
        """The response to the first REQUEST_ROOM bytes of a request; None: it is none."""
        if len(request) < 4:
            return None
        kind = int.from_bytes(request[:4], "little")
        if kind == _TYPE_TMF and len(request) >= _TMF.size:
            _, function, address, tag = _TMF.unpack_from(request)
            return bytes([await self._manage(function, address, tag)])
        if kind in (_TYPE_QUERY, _TYPE_SUBSCRIBE) and len(request) >= _NOTIFICATION.size:
            _, address, _ = _NOTIFICATION.unpack_from(request)
            # No event is offered: what media do is told by GET EVENT STATUS NOTIFICATION.
            return struct.pack("<IB", 0, self._locate(address)[1])
        if kind in (_TYPE_TMF, _TYPE_QUERY, _TYPE_SUBSCRIBE):
            return None
        return bytes([Response.FAILURE])

    def _locate(self, address: bytes) -> tuple[ManagedUnit | None, Response]:
        place = decode_lun(address)
        if place is None or not self._manager.units_of(place[0]):
            return None, Response.BAD_TARGET
        unit = self._manager.unit_at(*place)
        return unit, Response.INCORRECT_LUN if unit is None else Response.FUNCTION_COMPLETE

    async def _manage(self, function: int, address: bytes, tag: int) -> Response:
        if function == Function.I_T_NEXUS_RESET:
            return await self._lose_nexus(address)
        unit, response = self._locate(address)
        if unit is None:
            return response
        nexus = unit.nexus
        if function == Function.ABORT_TASK:
            await self._manager.ask(nexus, lambda lane: TaskQuestion(nexus, lane, tag, aborts=True))
            # Not found: it had ended, or never was; either way it runs no more (SAM-6 7.2).
            return Response.FUNCTION_COMPLETE
        if function in (Function.QUERY_TASK, Function.QUERY_TASK_SET):
            wanted = tag if function == Function.QUERY_TASK else None
            answers = await self._manager.ask(nexus, lambda lane: TaskQuestion(nexus, lane, wanted))
            if any(answer.found for answer in answers):
                return Response.FUNCTION_SUCCEEDED
            return Response.FUNCTION_COMPLETE
        if function not in (
            Function.ABORT_TASK_SET,
            Function.CLEAR_TASK_SET,
            Function.LOGICAL_UNIT_RESET,
        ):
            return Response.FUNCTION_REJECTED  # CLEAR ACA too: NormACA is not supported
        async with unit.turn:
            await self._manager.settle()
            if function == Function.ABORT_TASK_SET:
                aborted = [(nexus, nexus.abort())]
            elif function == Function.CLEAR_TASK_SET:
                aborted = nexus.unit.clear_tasks(nexus)
            else:
                aborted = nexus.unit.reset()
            await self._ended(aborted)
        return Response.FUNCTION_COMPLETE

    async def _lose_nexus(self, address: bytes) -> Response:
        """The initiator's access to all units of the target is reset."""
        place = decode_lun(address)
        units = [] if place is None else self._manager.units_of(place[0])
        if not units:
            return Response.BAD_TARGET
        await self._manager.settle()
        for unit in units:
            async with unit.turn:
                await self._ended([(unit.nexus, unit.nexus.lose())])
        return Response.FUNCTION_COMPLETE

    async def _ended(self, aborted: Sequence[tuple[ScsiNexus, int]]) -> None:
        """Return when the tasks of these generations have ended and their ends are visible."""
        await wait_for_end(aborted)
        await self._manager.settle()


async def wait_for_end(aborted: Sequence[tuple[ScsiNexus, int]]) -> None:
    """Return when no task is in execution that an abort concerned. Other devices' IOThreads may
    run them, so nobody can be asked; it is over when the disk has done what it was doing."""
    pause = _FIRST_PAUSE
    while any(nexus.aborting(generation) for nexus, generation in aborted):
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)
