"""What each message of the front-end does.

One method for each message; its shape has been checked by `rules`. A method returns its own
reply, or None for messages that are acknowledged when asked for, and raises RefusedError.
Specification: "Front-end message types".
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from vringd.core.inflight import InflightBuffer
from vringd.core.memory import MAX_REGIONS, DirtyLog
from vringd.vhost_user import memory_table, negotiation
from vringd.vhost_user.backend_channel import BackendChannel
from vringd.vhost_user.connection import Message
from vringd.vhost_user.descriptors import Descriptor, check_eventfd
from vringd.vhost_user.errors import RefusedError
from vringd.vhost_user.host import QueueHost
from vringd.vhost_user.rings import Rings
from vringd.vhost_user.vring import Vring
from vringd.vhost_user.wire import (
    MAX_CONFIG_SIZE,
    STATUS_NEEDS_RESET,
    U64,
    VHOST_USER_F_PROTOCOL_FEATURES,
    VIRTIO_F_RING_PACKED,
    VRING_F_LOG,
    VRING_INDEX_MASK,
    VRING_NO_FD,
    ConfigAccess,
    InflightDescription,
    LogDescription,
    ProtocolFeature,
    RegionDescription,
    Request,
    VringAddress,
    VringState,
)

if TYPE_CHECKING:
    Log = logging.LoggerAdapter[logging.Logger]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of a message's own; the descriptors stay the property of their owner."""

    payload: bytes
    fds: Sequence[int] = ()


class Messages:
    """The device's side of the conversation with one front-end.

    `protocol` holds the protocol features that were negotiated, `status` the virtio device
    status as the front-end last set it.
    """

    def __init__(self, host: QueueHost, rings: Rings, log: Log) -> None:
        self._host = host
        self._rings = rings
        self._log = log
        self._log_bytes = 0
        self.protocol = ProtocolFeature(0)
        self.status = 0
        self.channel: BackendChannel | None = None
        self._handlers: dict[Request, Callable[[Message], Awaitable[Reply | None]]] = {
            Request.GET_FEATURES: self._get_features,
            Request.SET_FEATURES: self._set_features,
            Request.SET_OWNER: self._set_owner,
            Request.RESET_OWNER: self._reset_owner,
            Request.SET_MEM_TABLE: self._set_mem_table,
            Request.SET_LOG_BASE: self._set_log_base,
            Request.SET_LOG_FD: self._set_log_fd,
            Request.SET_VRING_NUM: self._set_vring_num,
            Request.SET_VRING_ADDR: self._set_vring_addr,
            Request.SET_VRING_BASE: self._set_vring_base,
            Request.GET_VRING_BASE: self._get_vring_base,
            Request.SET_VRING_KICK: self._set_vring_kick,
            Request.SET_VRING_CALL: self._set_vring_call,
            Request.SET_VRING_ERR: self._set_vring_err,
            Request.GET_PROTOCOL_FEATURES: self._get_protocol_features,
            Request.SET_PROTOCOL_FEATURES: self._set_protocol_features,
            Request.GET_QUEUE_NUM: self._get_queue_num,
            Request.SET_VRING_ENABLE: self._set_vring_enable,
            Request.SET_BACKEND_REQ_FD: self._set_backend_req_fd,
            Request.GET_CONFIG: self._get_config,
            Request.SET_CONFIG: self._set_config,
            Request.GET_INFLIGHT_FD: self._get_inflight_fd,
            Request.SET_INFLIGHT_FD: self._set_inflight_fd,
            Request.RESET_DEVICE: self._reset_device,
            Request.GET_MAX_MEM_SLOTS: self._get_max_mem_slots,
            Request.ADD_MEM_REG: self._add_mem_reg,
            Request.REM_MEM_REG: self._rem_mem_reg,
            Request.SET_STATUS: self._set_status,
            Request.GET_STATUS: self._get_status,
        }

    async def handle(self, request: Request, message: Message) -> Reply | None:
        """Do what the message asks for. Raises RefusedError."""
        return await self._handlers[request](message)

    # ---- features and ownership ----

    async def _get_features(self, message: Message) -> Reply:
        return _reply_u64(negotiation.offered(self._host.device_features))

    async def _set_features(self, message: Message) -> None:
        rings = self._rings
        features, ignored = negotiation.accept(_u64(message), self._host.device_features)
        if ignored:
            self._log.info(
                "acknowledges device features that are not offered, %s: ignored",
                negotiation.bits(ignored),
            )
        changed = features ^ rings.features
        if rings.running and negotiation.driver_features(changed):
            raise RefusedError(f"changes features of running queues: {negotiation.bits(changed)}")
        self._host.set_driver_features(negotiation.driver_features(features))
        await rings.set_log(features, rings.dirty_log)
        if not features & VHOST_USER_F_PROTOCOL_FEATURES:
            # Such a front-end cannot send SET_VRING_ENABLE ("Ring states").
            for vring in rings:
                vring.enabled = True
                await rings.reconcile(vring)

    async def _get_protocol_features(self, message: Message) -> Reply:
        return _reply_u64(negotiation.OFFERED_PROTOCOL_FEATURES)

    async def _set_protocol_features(self, message: Message) -> None:
        self.protocol = negotiation.accept_protocol(_u64(message))

    async def _get_queue_num(self, message: Message) -> Reply:
        return _reply_u64(self._host.num_queues)

    async def _set_owner(self, message: Message) -> None:
        pass  # the connection itself is the session

    async def _reset_owner(self, message: Message) -> None:
        await self._rings.disable_all()

    # ---- memory ----

    async def _set_mem_table(self, message: Message) -> None:
        regions = _unpack(RegionDescription.unpack_table, message)
        if len(regions) != len(message.descriptors):
            raise RefusedError(
                f"has {len(regions)} regions but {len(message.descriptors)} descriptors"
            )
        memory = memory_table.map_table(regions, message.descriptors.fds())
        if self._rings.active_log is not None:
            self._check_log(self._log_bytes, memory_table.log_size(memory))
        await self._rings.replace_memory(memory)

    async def _get_max_mem_slots(self, message: Message) -> Reply:
        return _reply_u64(MAX_REGIONS)

    async def _add_mem_reg(self, message: Message) -> None:
        region = RegionDescription.unpack_single(message.payload)
        (fd,) = message.descriptors.fds()
        memory = memory_table.with_region(self._rings.memory, region, fd)
        if self._rings.active_log is not None:
            self._check_log(self._log_bytes, memory_table.log_size(memory))
        await self._rings.add_memory(memory)

    async def _rem_mem_reg(self, message: Message) -> None:
        region = RegionDescription.unpack_single(message.payload)
        await self._rings.replace_memory(memory_table.without_region(self._rings.memory, region))

    # ---- migration log ----

    async def _set_log_base(self, message: Message) -> Reply:
        area = LogDescription.unpack(message.payload)
        self._check_log(area.size, memory_table.log_size(self._rings.memory))
        (fd,) = message.descriptors.fds()
        try:
            log = DirtyLog(fd, area.size, area.offset)
        except (ValueError, OverflowError, OSError) as error:
            raise RefusedError(f"the dirty log cannot be mapped: {error}") from error
        await self._rings.set_log(self._rings.features, log)
        self._log_bytes = area.size
        return _reply_u64(0)

    async def _set_log_fd(self, message: Message) -> None:
        pass  # permission to announce changes of the log; front-ends look at it by themselves

    def _check_log(self, size: int, needed: int) -> None:
        if size < needed:
            raise RefusedError(f"the dirty log has {size} bytes, memory needs {needed}")

    # ---- rings ----

    async def _set_vring_num(self, message: Message) -> None:
        state = VringState.unpack(message.payload)
        vring = self._stopped(state.index)
        packed = self._rings.features & VIRTIO_F_RING_PACKED
        if not 0 < state.num <= self._host.max_queue_size:
            raise RefusedError(
                f"queue {state.index}: size {state.num} is not in 1 to {self._host.max_queue_size}"
            )
        if not packed and state.num & (state.num - 1):
            raise RefusedError(f"queue {state.index}: size {state.num} is not a power of two")
        vring.size = state.num

    async def _set_vring_addr(self, message: Message) -> None:
        address = VringAddress.unpack(message.payload)
        vring = self._rings[address.index]
        if address.flags & ~VRING_F_LOG:
            raise RefusedError(f"queue {address.index}: unknown flags {address.flags:#x}")
        await self._rings.set_address(vring, address)

    async def _set_vring_base(self, message: Message) -> None:
        state = VringState.unpack(message.payload)
        vring = self._stopped(state.index)
        if not self._rings.features & VIRTIO_F_RING_PACKED and state.num > 0xFFFF:
            raise RefusedError(f"queue {state.index}: index {state.num} does not fit in 16 bits")
        vring.base = state.num

    async def _get_vring_base(self, message: Message) -> Reply:
        state = VringState.unpack(message.payload)
        vring = self._rings[state.index]
        await self._rings.stop(vring)
        if not self._rings.started and ProtocolFeature.STATUS not in self.protocol:
            self._rings.broken = None  # without a status this is all of a reset that we can see
        return Reply(VringState(state.index, vring.base).pack())

    async def _set_vring_kick(self, message: Message) -> None:
        vring, kick = self._vring_fd(message, "kick")
        await self._rings.set_kick(vring, kick)

    async def _set_vring_call(self, message: Message) -> None:
        await self._rings.set_call(*self._vring_fd(message, "call"))

    async def _set_vring_err(self, message: Message) -> None:
        vring, err = self._vring_fd(message, "err")
        vring.set_err(err)

    async def _set_vring_enable(self, message: Message) -> None:
        state = VringState.unpack(message.payload)
        vring = self._rings[state.index]
        if state.num > 1:
            raise RefusedError(f"queue {state.index}: {state.num} is neither 0 nor 1")
        vring.enabled = bool(state.num)
        await self._rings.reconcile(vring)

    def _stopped(self, index: int) -> Vring:
        vring = self._rings[index]
        if vring.queue is not None:
            raise RefusedError(f"queue {index} is running")
        return vring

    def _vring_fd(self, message: Message, what: str) -> tuple[Vring, Descriptor | None]:
        value = _u64(message)
        if value & ~(VRING_INDEX_MASK | VRING_NO_FD):
            raise RefusedError(f"unknown bits in {value:#x}")
        vring = self._rings[value & VRING_INDEX_MASK]
        if bool(value & VRING_NO_FD) == bool(len(message.descriptors)):
            raise RefusedError(
                f"queue {vring.index}: comes with {len(message.descriptors)} descriptors, which "
                "contradicts its payload"
            )
        if value & VRING_NO_FD:
            return vring, None
        check_eventfd(message.descriptors.fds()[0], what)
        return vring, message.descriptors.take()

    # ---- inflight buffer ----

    async def _get_inflight_fd(self, message: Message) -> Reply:
        wanted = self._inflight(message)
        # Room for the largest rings: QEMU 10 asks for what its option queue-size says (128),
        # and its drivers make rings of 1024 entries all the same.
        entries = self._host.max_queue_size
        try:
            buffer = InflightBuffer.create(wanted.num_queues, entries, self._packed)
        except (ValueError, OverflowError, OSError) as error:
            raise RefusedError(str(error)) from error
        self._rings.inflight = buffer
        answer = InflightDescription(
            buffer.mmap_size, buffer.mmap_offset, wanted.num_queues, wanted.queue_size
        )
        return Reply(answer.pack(len(message.payload)), (buffer.fd,))

    async def _set_inflight_fd(self, message: Message) -> None:
        given = self._inflight(message)
        (fd,) = message.descriptors.fds()
        try:
            self._rings.inflight = InflightBuffer.map(
                fd,
                given.mmap_size,
                given.mmap_offset,
                given.num_queues,
                self._inflight_entries(given),
                self._packed,
            )
        except (ValueError, OverflowError, OSError) as error:
            raise RefusedError(f"the inflight buffer cannot be used: {error}") from error

    @property
    def _packed(self) -> bool:
        return bool(self._rings.features & VIRTIO_F_RING_PACKED)

    def _inflight_entries(self, given: InflightDescription) -> int:
        """Entries for each queue, by the size of the buffer: we make them larger than asked for.

        Another one's, of any other size, has as many as its description says. The first fit is
        the only one, since regions of different powers of two differ in size.
        """
        for entries in (1 << bits for bits in range(16)):
            region = InflightBuffer.region_size(entries, self._packed)
            if entries > given.queue_size and given.num_queues * region == given.mmap_size:
                return entries
        return given.queue_size

    def _inflight(self, message: Message) -> InflightDescription:
        inflight = InflightDescription.unpack(message.payload)
        if self._rings.running:
            raise RefusedError("queues are running")
        if not 0 < inflight.num_queues <= self._host.num_queues:
            raise RefusedError(
                f"{inflight.num_queues} queues are not in 1 to {self._host.num_queues}"
            )
        if not 0 < inflight.queue_size <= self._host.max_queue_size:
            raise RefusedError(
                f"queue size {inflight.queue_size} is not in 1 to {self._host.max_queue_size}"
            )
        return inflight

    # ---- configuration space ----

    async def _get_config(self, message: Message) -> Reply:
        access = _unpack(ConfigAccess.unpack, message)
        try:
            data = self._read_config(access)
        except RefusedError as error:
            self._log.warning("GET_CONFIG: %s", str(error))
            return Reply(b"")  # the specification's way to say no
        return Reply(replace(access, data=data).pack())

    async def _set_config(self, message: Message) -> None:
        access = _unpack(ConfigAccess.unpack, message)
        if access.flags > 1:
            raise RefusedError(f"unknown flags {access.flags:#x}")
        current = self._read_config(access)
        # A migration target is told even what nobody can write; it had better be true.
        if access.flags == 1 and current == access.data:
            return
        try:
            self._host.write_config(access.offset, access.data)
        except ValueError as error:
            raise RefusedError(str(error)) from error

    def _read_config(self, access: ConfigAccess) -> bytes:
        if access.offset + access.size > MAX_CONFIG_SIZE:
            raise RefusedError(
                f"offset {access.offset} and size {access.size} reach beyond the "
                f"configuration space of {MAX_CONFIG_SIZE} bytes"
            )
        try:
            return self._host.read_config(access.offset, access.size)
        except ValueError as error:
            raise RefusedError(str(error)) from error

    # ---- back-end channel ----

    async def _set_backend_req_fd(self, message: Message) -> None:
        channel = BackendChannel(
            message.descriptors.take(),
            acknowledged=ProtocolFeature.REPLY_ACK in self.protocol,
            log=self._log,
        )
        if self.channel is not None:
            self.channel.close()
        self.channel = channel

    # ---- reset and status ----

    async def _reset_device(self, message: Message) -> None:
        await self._reset()
        self._rings.inflight = None
        self._host.reset()

    async def _set_status(self, message: Message) -> None:
        status = _u64(message)
        if status > 0xFF:
            raise RefusedError(f"status {status:#x} does not fit in 8 bits")
        if status == 0:
            # Front-ends also do this when they only pause a machine, which must not change what
            # the driver has configured: so no reset of the host, RESET_DEVICE is for that.
            await self._reset()
        self.status = status

    async def _get_status(self, message: Message) -> Reply:
        return _reply_u64(self.status | (STATUS_NEEDS_RESET if self._rings.broken else 0))

    async def _reset(self) -> None:
        """Memory stays: front-ends with memory slots only ever send what has changed."""
        await self._rings.reset()
        self.status = 0


def _unpack(unpack: Callable[[bytes], T], message: Message) -> T:
    try:
        return unpack(message.payload)
    except ValueError as error:
        raise RefusedError(str(error)) from error


def _u64(message: Message) -> int:
    return int(U64.unpack(message.payload)[0])


def _reply_u64(value: int) -> Reply:
    return Reply(U64.pack(value))
