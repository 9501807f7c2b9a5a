"""The VMM's side of a vhost-user connection, for tests and benchmarks of any back-end.

`Frontend` has one method for each message and blocks like a VMM does; it waits no longer than
its timeout. It knows nothing about rings and memory but addresses and descriptors, so it goes
with any driver. Received descriptors are owned by whoever calls; those that a `Frontend` makes
itself, by it.

    with Frontend.connect("/run/vm.sock") as frontend:
        frontend.negotiate(features=VIRTIO_F_VERSION_1)
        frontend.add_ram(ram)
        frontend.attach(0, DriverQueue(ram, 128))
        ...
        base = frontend.get_vring_base(0)
"""

from __future__ import annotations

import array
import os
import select
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from vringd.vhost_user.wire import (
    FLAG_NEED_REPLY,
    FLAG_REPLY,
    HEADER,
    U64,
    VERSION,
    VHOST_F_LOG_ALL,
    VHOST_USER_F_PROTOCOL_FEATURES,
    VRING_F_LOG,
    VRING_NO_FD,
    ConfigAccess,
    InflightDescription,
    LogDescription,
    ProtocolFeature,
    RegionDescription,
    Request,
    VringAddress,
    VringState,
    request_name,
)

if TYPE_CHECKING:
    from vringd.testing.driver import DriverQueue
    from vringd.testing.memory import GuestRam
    from vringd.testing.ring_layout import RingLayout

_MAX_FDS = 8


class FrontendError(Exception):
    """The back-end did not answer as the protocol prescribes, or not in time."""


class RefusedByBackend(FrontendError):
    """The back-end acknowledged a message with an error."""


class Disconnected(FrontendError):
    """The back-end has closed the connection."""


class Reply(NamedTuple):
    """One message from the back-end."""

    request: int
    flags: int
    payload: bytes
    fds: list[int]


@dataclass(frozen=True)
class RingSpec:
    """Where a ring is: size in entries, user addresses of its parts, and the index to go on at.

    In a packed ring `avail` is the driver event area and `used` the device event area. With
    `log_addr` writes to the used ring are to be logged there.
    """

    index: int
    size: int
    desc: int
    avail: int
    used: int
    base: int = 0
    log_addr: int | None = None

    @classmethod
    def of(cls, index: int, layout: RingLayout, base: int = 0) -> Self:
        """A fake guest's ring as queue `index`; writes to its used ring are not logged."""
        return cls(index, layout.size, layout.desc_user, layout.avail_user, layout.used_user, base)

    def address(self) -> VringAddress:
        """The payload of SET_VRING_ADDR."""
        flags = 0 if self.log_addr is None else VRING_F_LOG
        return VringAddress(self.index, flags, self.desc, self.used, self.avail, self.log_addr or 0)


@dataclass
class FrontendRing:
    """A ring that was given to the back-end, with its eventfds; -1 stands for none."""

    spec: RingSpec
    kick: int | None = None
    call: int | None = None
    err: int | None = None
    owned: set[int] = field(default_factory=set)

    def choose(self, present: int | None, wanted: int | None) -> int:
        """The eventfd to use: the wanted one, else the present one, else a new one."""
        if wanted is not None:
            return wanted
        if present is not None:
            return present
        fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.owned.add(fd)
        return fd

    def ring_kick(self) -> None:
        """Tell the back-end that there are new requests."""
        assert self.kick is not None
        os.eventfd_write(self.kick, 1)

    def wait_call(self, timeout: float) -> bool:
        """Wait for a completion signal and take it; False when none came in `timeout` seconds."""
        return _take_signal(self.call, timeout)

    def wait_err(self, timeout: float) -> bool:
        """Wait for an error signal and take it; False when none came in `timeout` seconds."""
        return _take_signal(self.err, timeout)

    def close(self) -> None:
        """Close the eventfds that were made here."""
        for fd in self.owned:
            os.close(fd)
        self.owned.clear()
        self.kick = self.call = self.err = None


@dataclass
class InflightArea:
    """The inflight buffer as both sides describe it; owns `fd`."""

    fd: int
    description: InflightDescription

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class Frontend:
    """One connection to a back-end. Owns its socket, its rings' eventfds and the back-end channel.

    Every method raises Disconnected when the back-end has closed the connection and
    FrontendError when it answers wrongly or not within `timeout` seconds; those that are
    acknowledged raise RefusedByBackend when the back-end says no. Acknowledgements are asked
    for once REPLY_ACK is negotiated.
    """

    def __init__(self, sock: socket.socket, timeout: float = 10.0) -> None:
        sock.settimeout(timeout)
        self._timeout = timeout
        self._socket = sock
        self.features = 0
        self.protocol = ProtocolFeature(0)
        self.rings: dict[int, FrontendRing] = {}
        self.channel: socket.socket | None = None

    @classmethod
    def connect(cls, path: str | os.PathLike[str], timeout: float = 10.0) -> Self:
        """Connect to a back-end that listens at `path`. Raises OSError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            sock.connect(os.fspath(path))
        except BaseException:
            sock.close()
            raise
        return cls(sock, timeout)

    def fileno(self) -> int:
        """The connection's descriptor."""
        return self._socket.fileno()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect and close every descriptor of this object."""
        self._socket.close()
        if self.channel is not None:
            self.channel.close()
            self.channel = None
        for ring in self.rings.values():
            ring.close()
        self.rings.clear()

    # ---- raw messages ----

    def send(
        self,
        request: int,
        payload: bytes = b"",
        fds: Sequence[int] = (),
        *,
        flags: int = VERSION,
        size: int | None = None,
    ) -> None:
        """Send any message, also a wrong one: `size` is what the header claims."""
        header = HEADER.pack(request, flags, len(payload) if size is None else size)
        self.send_bytes(header + payload, fds)

    def send_bytes(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send bytes that need not be a message."""
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            sent = self._socket.sendmsg([data], ancillary)
            if sent < len(data):
                self._socket.sendall(data[sent:])
        except TimeoutError as error:
            raise FrontendError("the back-end does not read") from error
        except OSError as error:
            raise Disconnected(f"the connection is gone: {error}") from error

    def receive(self) -> Reply:
        """The next message of the back-end; its descriptors belong to the caller."""
        fds: list[int] = []
        try:
            request, flags, size = HEADER.unpack(self._read(HEADER.size, fds))
            return Reply(request, flags, self._read(size, fds), fds)
        except BaseException:
            for fd in fds:
                os.close(fd)
            raise

    def _read(self, size: int, fds: list[int]) -> bytes:
        data = b""
        while len(data) < size:
            try:
                more, received, _, _ = socket.recv_fds(
                    self._socket, size - len(data), _MAX_FDS, socket.MSG_CMSG_CLOEXEC
                )
            except TimeoutError as error:
                raise FrontendError(f"no answer within {self._timeout:g} s") from error
            except OSError as error:
                raise Disconnected(f"the connection is gone: {error}") from error
            fds.extend(received)
            if not more:
                raise Disconnected("the back-end has closed the connection")
            data += more
        return data

    def ask(self, request: Request, payload: bytes = b"", fds: Sequence[int] = ()) -> Reply:
        """Send a message that has a reply of its own, and return that."""
        self.send(request, payload, fds)
        return self._reply_to(request)

    def tell(self, request: Request, payload: bytes = b"", fds: Sequence[int] = ()) -> None:
        """Send a message that has no reply of its own; wait for its acknowledgement if there
        is one."""
        if ProtocolFeature.REPLY_ACK not in self.protocol:
            self.send(request, payload, fds)
            return
        self.send(request, payload, fds, flags=VERSION | FLAG_NEED_REPLY)
        if self._u64(self._reply_to(request)) != 0:
            raise RefusedByBackend(f"{request_name(request)} was refused")

    def _reply_to(self, request: Request) -> Reply:
        reply = self.receive()
        if reply.request != request or reply.flags != VERSION | FLAG_REPLY:
            for fd in reply.fds:
                os.close(fd)
            raise FrontendError(
                f"{request_name(request)} was answered by {request_name(reply.request)} with "
                f"flags {reply.flags:#x}"
            )
        return reply

    def _u64(self, reply: Reply) -> int:
        for fd in reply.fds:
            os.close(fd)
        if len(reply.payload) != U64.size:
            raise FrontendError(
                f"{request_name(reply.request)} was answered with {len(reply.payload)} bytes, not 8"
            )
        return int(U64.unpack(reply.payload)[0])

    # ---- negotiation ----

    def negotiate(
        self,
        features: int = ~0,
        protocol: int = ~0,
        *,
        protocol_features: bool = True,
    ) -> None:
        """SET_OWNER and the negotiation: everything offered that is also in the masks.

        The default takes all that is offered, except logging, which VMMs turn on later.
        `protocol_features=False` plays a front-end from before protocol features.
        """
        self.set_owner()
        offered = self.get_features()
        wanted = offered & features & ~VHOST_F_LOG_ALL & ~VHOST_USER_F_PROTOCOL_FEATURES
        if protocol_features and offered & VHOST_USER_F_PROTOCOL_FEATURES:
            wanted |= VHOST_USER_F_PROTOCOL_FEATURES
            known = ProtocolFeature(0)
            for feature in ProtocolFeature:
                known |= feature
            self.set_protocol_features(self.get_protocol_features() & protocol & known)
        self.set_features(wanted)

    def get_features(self) -> int:
        """GET_FEATURES: virtio and vhost feature bits."""
        return self._u64(self.ask(Request.GET_FEATURES))

    def set_features(self, features: int) -> None:
        """SET_FEATURES."""
        self.tell(Request.SET_FEATURES, U64.pack(features))
        self.features = features

    def get_protocol_features(self) -> int:
        """GET_PROTOCOL_FEATURES."""
        return self._u64(self.ask(Request.GET_PROTOCOL_FEATURES))

    def set_protocol_features(self, features: int) -> None:
        """SET_PROTOCOL_FEATURES; acknowledgements start with the message after it."""
        self.send(Request.SET_PROTOCOL_FEATURES, U64.pack(features))
        self.protocol = ProtocolFeature(features)

    def set_owner(self) -> None:
        """SET_OWNER."""
        self.tell(Request.SET_OWNER)

    def reset_owner(self) -> None:
        """RESET_OWNER, which disables all rings."""
        self.tell(Request.RESET_OWNER)

    def get_queue_num(self) -> int:
        """GET_QUEUE_NUM: how many queues the device has."""
        return self._u64(self.ask(Request.GET_QUEUE_NUM))

    # ---- memory ----

    def set_mem_table(self, regions: Iterable[tuple[RegionDescription, int]]) -> None:
        """SET_MEM_TABLE: descriptions with their files."""
        table = list(regions)
        payload = RegionDescription.pack_table([region for region, _ in table])
        self.tell(Request.SET_MEM_TABLE, payload, [fd for _, fd in table])

    def get_max_mem_slots(self) -> int:
        """GET_MAX_MEM_SLOTS."""
        return self._u64(self.ask(Request.GET_MAX_MEM_SLOTS))

    def add_region(
        self, guest_addr: int, size: int, user_addr: int, fd: int, mmap_offset: int = 0
    ) -> None:
        """ADD_MEM_REG."""
        region = RegionDescription(guest_addr, size, user_addr, mmap_offset)
        self.tell(Request.ADD_MEM_REG, region.pack_single(), [fd])

    def add_ram(self, ram: GuestRam) -> None:
        """Share a fake guest's memory, region by region or, without memory slots, as a table."""
        if ProtocolFeature.CONFIGURE_MEM_SLOTS in self.protocol:
            for r in ram.regions:
                self.add_region(r.guest_addr, r.size, r.user_addr, r.fd, r.mmap_offset)
        else:
            self.set_mem_table(
                (RegionDescription(r.guest_addr, r.size, r.user_addr, r.mmap_offset), r.fd)
                for r in ram.regions
            )

    def remove_region(
        self, guest_addr: int, size: int, user_addr: int, fd: int | None = None
    ) -> None:
        """REM_MEM_REG; some front-ends send a descriptor along, the specification says none."""
        region = RegionDescription(guest_addr, size, user_addr, 0)
        self.tell(Request.REM_MEM_REG, region.pack_single(), [] if fd is None else [fd])

    # ---- migration log ----

    def set_log_base(self, fd: int, size: int, offset: int = 0) -> None:
        """SET_LOG_BASE: `size` bytes of bitmap at `offset`; returns when it is in use."""
        reply = self.ask(Request.SET_LOG_BASE, LogDescription(size, offset).pack(), [fd])
        for received in reply.fds:
            os.close(received)

    def set_logging(self, on: bool) -> None:
        """What a VMM does when migration begins or ends: LOG_ALL, then each ring's log flag."""
        features = self.features & ~VHOST_F_LOG_ALL
        self.set_features(features | VHOST_F_LOG_ALL if on else features)
        for ring in self.rings.values():
            spec = ring.spec if on else replace(ring.spec, log_addr=None)
            self.set_vring_addr(spec.address())

    # ---- rings ----

    def set_vring_num(self, index: int, size: int) -> None:
        """SET_VRING_NUM."""
        self.tell(Request.SET_VRING_NUM, VringState(index, size).pack())

    def set_vring_addr(self, address: VringAddress) -> None:
        """SET_VRING_ADDR."""
        self.tell(Request.SET_VRING_ADDR, address.pack())

    def set_vring_base(self, index: int, base: int) -> None:
        """SET_VRING_BASE."""
        self.tell(Request.SET_VRING_BASE, VringState(index, base).pack())

    def get_vring_base(self, index: int) -> int:
        """GET_VRING_BASE: stops the ring; where it has to go on."""
        reply = self.ask(Request.GET_VRING_BASE, VringState(index, 0).pack())
        try:
            state = VringState.unpack(reply.payload)
        except struct.error as error:
            raise FrontendError("GET_VRING_BASE was answered with another size") from error
        if state.index != index:
            raise FrontendError(f"GET_VRING_BASE of queue {index} was answered for {state.index}")
        return state.num

    def set_vring_kick(self, index: int, fd: int = -1) -> None:
        """SET_VRING_KICK; -1 asks the back-end to poll."""
        self._vring_fd(Request.SET_VRING_KICK, index, fd)

    def set_vring_call(self, index: int, fd: int = -1) -> None:
        """SET_VRING_CALL; -1 means that the driver polls."""
        self._vring_fd(Request.SET_VRING_CALL, index, fd)

    def set_vring_err(self, index: int, fd: int = -1) -> None:
        """SET_VRING_ERR."""
        self._vring_fd(Request.SET_VRING_ERR, index, fd)

    def set_vring_enable(self, index: int, enabled: bool = True) -> None:
        """SET_VRING_ENABLE."""
        self.tell(Request.SET_VRING_ENABLE, VringState(index, int(enabled)).pack())

    def _vring_fd(self, request: Request, index: int, fd: int) -> None:
        if fd < 0:
            self.tell(request, U64.pack(index | VRING_NO_FD))
        else:
            self.tell(request, U64.pack(index), [fd])

    def prepare_ring(
        self,
        spec: RingSpec,
        *,
        kick: int | None = None,
        call: int | None = None,
        err: int | None = None,
    ) -> FrontendRing:
        """Describe a ring and hand over its eventfds; it runs once it is enabled.

        Eventfds that are not given are made, or taken over from the last ring of this index;
        -1 is none: without `kick` the back-end has to poll, without `call` the driver does.
        """
        ring = self.rings.get(spec.index)
        if ring is None:
            ring = self.rings[spec.index] = FrontendRing(spec)
        ring.spec = spec
        ring.kick = ring.choose(ring.kick, kick)
        ring.call = ring.choose(ring.call, call)
        ring.err = ring.choose(ring.err, err)
        self.set_vring_num(spec.index, spec.size)
        self.set_vring_base(spec.index, spec.base)
        self.set_vring_addr(spec.address())
        self.set_vring_err(spec.index, ring.err)
        self.set_vring_kick(spec.index, ring.kick)
        self.set_vring_call(spec.index, ring.call)
        return ring

    def start_ring(
        self,
        spec: RingSpec,
        *,
        kick: int | None = None,
        call: int | None = None,
        err: int | None = None,
    ) -> FrontendRing:
        """`prepare_ring`, and enable it where both sides know how."""
        ring = self.prepare_ring(spec, kick=kick, call=call, err=err)
        if self.features & VHOST_USER_F_PROTOCOL_FEATURES:
            self.set_vring_enable(spec.index)
        return ring

    def attach(self, index: int, queue: DriverQueue, *, base: int | None = None) -> FrontendRing:
        """Start a driver's queue with its own eventfds, by default from its start index."""
        spec = RingSpec.of(index, queue.layout, queue.base if base is None else base)
        return self.start_ring(spec, kick=queue.kick_fd, call=queue.call_fd, err=queue.err_fd)

    def start_rings(self, specs: Iterable[RingSpec]) -> list[FrontendRing]:
        """Start many rings as VMMs do: describe all, then enable all."""
        rings = [self.prepare_ring(spec) for spec in specs]
        if self.features & VHOST_USER_F_PROTOCOL_FEATURES:
            for ring in rings:
                self.set_vring_enable(ring.spec.index)
        return rings

    def stop_rings(self) -> dict[int, int]:
        """Stop every ring, as for a pause or at the end of a migration; their bases by index."""
        return {index: self.get_vring_base(index) for index in self.rings}

    # ---- inflight buffer ----

    def get_inflight(self, num_queues: int, queue_size: int) -> InflightArea:
        """GET_INFLIGHT_FD: a new buffer of the back-end's."""
        wanted = InflightDescription(0, 0, num_queues, queue_size)
        reply = self.ask(Request.GET_INFLIGHT_FD, wanted.pack())
        if len(reply.fds) != 1 or len(reply.payload) != InflightDescription.PADDED_SIZE:
            for fd in reply.fds:
                os.close(fd)
            raise FrontendError(
                f"GET_INFLIGHT_FD was answered with {len(reply.payload)} bytes and "
                f"{len(reply.fds)} descriptors"
            )
        return InflightArea(reply.fds[0], InflightDescription.unpack(reply.payload))

    def set_inflight(self, area: InflightArea) -> None:
        """SET_INFLIGHT_FD: give a buffer to the back-end, perhaps one from an earlier life."""
        self.tell(Request.SET_INFLIGHT_FD, area.description.pack(), [area.fd])

    # ---- configuration, status, reset ----

    def get_config(self, offset: int, size: int) -> bytes:
        """GET_CONFIG. Raises RefusedByBackend when the answer is the empty one."""
        reply = self.ask(Request.GET_CONFIG, ConfigAccess(offset, size, 0, bytes(size)).pack())
        if not reply.payload:
            raise RefusedByBackend("GET_CONFIG was refused")
        try:
            access = ConfigAccess.unpack(reply.payload)
        except (ValueError, struct.error) as error:
            raise FrontendError("GET_CONFIG was answered with another size") from error
        if (access.offset, access.size) != (offset, size):
            raise FrontendError("GET_CONFIG was answered for another range")
        return access.data

    def set_config(self, offset: int, data: bytes, *, migration: bool = False) -> None:
        """SET_CONFIG."""
        access = ConfigAccess(offset, len(data), int(migration), data)
        self.tell(Request.SET_CONFIG, access.pack())

    def get_status(self) -> int:
        """GET_STATUS: the virtio device status."""
        return self._u64(self.ask(Request.GET_STATUS))

    def set_status(self, status: int) -> None:
        """SET_STATUS; 0 resets."""
        self.tell(Request.SET_STATUS, U64.pack(status))

    def reset_device(self) -> None:
        """RESET_DEVICE."""
        self.tell(Request.RESET_DEVICE)

    # ---- back-end channel ----

    def open_backend_channel(self) -> None:
        """SET_BACKEND_REQ_FD with a new socket pair; see `receive_from_backend`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.settimeout(self._timeout)
        try:
            with theirs:
                self.tell(Request.SET_BACKEND_REQ_FD, fds=[theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        if self.channel is not None:
            self.channel.close()
        self.channel = ours

    def receive_from_backend(self, timeout: float, *, acknowledge: int = 0) -> int | None:
        """The number of the back-end's next message, or None when none comes in time.

        A message that wants an acknowledgement gets this one.
        """
        if self.channel is None:
            raise FrontendError("there is no back-end channel")
        self.channel.settimeout(timeout)
        try:
            header = self.channel.recv(HEADER.size, socket.MSG_WAITALL)
        except TimeoutError:
            return None
        if len(header) != HEADER.size:
            raise Disconnected("the back-end has closed its channel")
        request, flags, size = HEADER.unpack(header)
        if size:
            self.channel.recv(size, socket.MSG_WAITALL)
        if flags & FLAG_NEED_REPLY:
            self.channel.sendall(
                HEADER.pack(request, VERSION | FLAG_REPLY, U64.size) + U64.pack(acknowledge)
            )
        return int(request)


def _take_signal(fd: int | None, timeout: float) -> bool:
    assert fd is not None
    poller = select.poll()  # not select(2), which ends at descriptor 1023
    poller.register(fd, select.POLLIN)
    if not poller.poll(timeout * 1000):
        return False
    os.eventfd_read(fd)
    return True
