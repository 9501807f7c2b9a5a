"""Front-ends that break the rules: no trace, no leak, and the next one is served."""

from __future__ import annotations

import logging
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vringd.testing.frontend import Disconnected, Frontend, FrontendError, RefusedByBackend
from vringd.vhost_user.wire import (
    FLAG_NEED_REPLY,
    FLAG_REPLY,
    HEADER,
    MAX_PAYLOAD,
    U64,
    VERSION,
    VRING_NO_FD,
    ConfigAccess,
    InflightDescription,
    LogDescription,
    RegionDescription,
    Request,
    VringAddress,
    VringState,
)

from .fake_device import PACKED, FakeDevice
from .server_thread import ServerThread, open_fds, until


@pytest.fixture
def open_server(device: FakeDevice, path: Path) -> Iterator[tuple[ServerThread, Path]]:
    with ServerThread(device, path=path) as server:
        yield server, path


def is_dropped(frontend: Frontend) -> bool:
    try:
        frontend.receive()
    except Disconnected:
        return True
    return False


@pytest.mark.parametrize(
    "data",
    [
        b"\1",
        HEADER.pack(1, VERSION, 0)[:11],
        HEADER.pack(2, VERSION, 8) + bytes(7),
        HEADER.pack(2, VERSION, 8),
    ],
)
def test_message_cut_short_by_the_end_is_reported(
    frontend: Frontend, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    frontend.send_bytes(data)
    frontend._socket.shutdown(socket.SHUT_WR)
    assert is_dropped(frontend)
    assert "the connection ended inside" in caplog.text


@pytest.mark.parametrize("flags", [0, 2, 3, VERSION | FLAG_REPLY])
def test_wrong_version_or_direction_ends_the_connection(frontend: Frontend, flags: int) -> None:
    frontend.send(Request.GET_FEATURES, flags=flags)
    assert is_dropped(frontend)


def test_oversized_message_ends_the_connection_before_it_is_read(frontend: Frontend) -> None:
    frontend.send(Request.SET_MEM_TABLE, size=MAX_PAYLOAD + 1)
    assert is_dropped(frontend)


@pytest.mark.parametrize("request_id", list(Request))
def test_wrong_payload_size_is_refused(negotiated: Frontend, request_id: Request) -> None:
    negotiated.send(request_id, bytes(4000), flags=VERSION | FLAG_NEED_REPLY)
    try:
        assert negotiated.receive().payload == U64.pack(1)
        assert negotiated.get_queue_num() == 4
    except Disconnected:
        pass  # a message with a reply of its own, which cannot say no


@pytest.mark.parametrize(
    "request_id", [Request.SET_VRING_KICK, Request.SET_VRING_CALL, Request.SET_VRING_ERR]
)
@pytest.mark.parametrize(
    ("value", "fds"),
    [(0, 0), (VRING_NO_FD, 1), (0, 2), (4, 1), (255, 1), (0x200, 1), (1 << 63, 1)],
)
def test_ring_descriptor_message_that_contradicts_itself_is_refused(
    negotiated: Frontend, request_id: Request, value: int, fds: int
) -> None:
    event = os.eventfd(0)
    try:
        with pytest.raises(RefusedByBackend):
            negotiated.tell(request_id, U64.pack(value), [event] * fds)
    finally:
        os.close(event)


@pytest.mark.parametrize(
    "request_id", [Request.SET_VRING_KICK, Request.SET_VRING_CALL, Request.SET_VRING_ERR]
)
def test_descriptor_that_is_no_eventfd_is_refused(
    negotiated: Frontend, request_id: Request, tmp_path: Path
) -> None:
    with (
        open(tmp_path / "precious", "w+b") as file,
        socket.socket() as sock,
    ):
        for fd in (file.fileno(), sock.fileno()):
            with pytest.raises(RefusedByBackend):
                negotiated.tell(request_id, U64.pack(0), [fd])


@pytest.mark.parametrize("index", [4, 255, 256, 0xFFFFFFFF])
def test_ring_that_does_not_exist_is_refused(negotiated: Frontend, index: int) -> None:
    attempts: list[Callable[[], None]] = [
        lambda: negotiated.set_vring_num(index, 16),
        lambda: negotiated.set_vring_base(index, 0),
        lambda: negotiated.set_vring_addr(VringAddress(index, 0, 0, 0, 0, 0)),
        lambda: negotiated.set_vring_enable(index),
    ]
    for attempt in attempts:
        with pytest.raises(RefusedByBackend):
            attempt()
    with pytest.raises(Disconnected):
        negotiated.get_vring_base(index)


def test_too_many_descriptors_end_the_connection(
    open_server: tuple[ServerThread, Path], caplog: pytest.LogCaptureFixture
) -> None:
    _, path = open_server
    before = len(open_fds())
    with Frontend.connect(path) as frontend:
        event = os.eventfd(0)
        frontend.send(Request.SET_OWNER, fds=[event] * 200)
        assert is_dropped(frontend)
        os.close(event)
    assert "more than 64 descriptors" in caplog.text
    assert until(lambda: len(open_fds()) == before)


def test_descriptors_inside_a_payload_are_not_lost(
    open_server: tuple[ServerThread, Path],
) -> None:
    _, path = open_server
    before = len(open_fds())
    with Frontend.connect(path) as frontend:
        event = os.eventfd(0)
        frontend.send_bytes(HEADER.pack(Request.SET_FEATURES, VERSION, 8), [event])
        frontend.send_bytes(bytes(4), [event])
        frontend.send_bytes(bytes(4), [event, event])
        assert is_dropped(frontend)
        os.close(event)
    assert until(lambda: len(open_fds()) == before)


def test_full_eventfd_does_not_block_the_server(negotiated: Frontend) -> None:
    full = os.eventfd(0)  # a blocking one
    try:
        os.eventfd_write(full, (1 << 64) - 2)
        negotiated.set_vring_err(0, full)
        negotiated.set_vring_call(0, full)
        assert negotiated.get_queue_num() == 4
    finally:
        os.close(full)


u64 = st.one_of(
    st.sampled_from([0, 1, 4, 255, 256, 4096, 1 << 32, 1 << 63, (1 << 64) - 1]),
    st.integers(0, (1 << 64) - 1),
)
u32 = st.one_of(st.integers(0, 5), st.integers(0, (1 << 32) - 1))
u16 = st.one_of(st.integers(0, 5), st.integers(0, (1 << 16) - 1))

state = st.builds(lambda *f: VringState(*f).pack(), u32, u32)
region = st.builds(lambda *f: RegionDescription(*f).pack(), u64, u64, u64, u64)
inflight = st.builds(lambda *f: InflightDescription(*f).pack(), u64, u64, u16, u16)
config = st.builds(
    lambda offset, flags, data: ConfigAccess(offset, len(data), flags, data).pack(),
    u32,
    u32,
    st.binary(max_size=64),
)
number = st.builds(U64.pack, u64)
PAYLOADS = {
    Request.SET_FEATURES: number,
    Request.SET_PROTOCOL_FEATURES: number,
    Request.SET_STATUS: number,
    Request.SET_VRING_KICK: number,
    Request.SET_VRING_CALL: number,
    Request.SET_VRING_ERR: number,
    Request.SET_VRING_NUM: state,
    Request.SET_VRING_BASE: state,
    Request.GET_VRING_BASE: state,
    Request.SET_VRING_ENABLE: state,
    Request.SET_VRING_ADDR: st.builds(
        lambda *f: VringAddress(*f).pack(), u32, st.integers(0, 2), u64, u64, u64, u64
    ),
    Request.SET_LOG_BASE: st.builds(lambda *f: LogDescription(*f).pack(), u64, u64),
    Request.GET_INFLIGHT_FD: inflight,
    Request.SET_INFLIGHT_FD: inflight,
    Request.GET_CONFIG: config,
    Request.SET_CONFIG: config,
    Request.ADD_MEM_REG: st.builds(lambda r: bytes(8) + r, region),
    Request.REM_MEM_REG: st.builds(lambda r: bytes(8) + r, region),
    Request.SET_MEM_TABLE: st.builds(
        lambda regions: struct.pack("=II", len(regions), 0) + b"".join(regions),
        st.lists(region, max_size=3),
    ),
}
kinds = st.sampled_from(["event", "memory", "pipe", "socket"])
# Mostly of the right shape, so that a conversation lasts; and anything at all.
right = st.sampled_from(list(Request)).flatmap(
    lambda request: st.tuples(
        st.just(int(request)),
        PAYLOADS.get(request, st.just(b"")),
        st.lists(kinds, max_size=2),
        st.sampled_from([True, True, True, False]),
    )
)
wrong = st.tuples(
    st.one_of(st.sampled_from(list(Request)), st.integers(0, 60), u32),
    st.binary(max_size=80),
    st.lists(kinds, max_size=10),
    st.booleans(),
)
messages = st.one_of(right, right, right, wrong)


@pytest.fixture(scope="module")
def any_fds() -> Iterator[dict[str, int]]:
    memory = os.memfd_create("hostile")
    os.ftruncate(memory, 1 << 20)
    reader, writer = os.pipe()
    left, right = socket.socketpair()
    event = os.eventfd(0)
    yield {"event": event, "memory": memory, "pipe": writer, "socket": left.fileno()}
    for fd in (memory, reader, writer, event):
        os.close(fd)
    left.close()
    right.close()


@settings(
    max_examples=int(os.environ.get("VRINGD_HOSTILE_EXAMPLES", "150")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    talk=st.lists(messages, min_size=1, max_size=12),
    negotiate=st.sampled_from(["nothing", "everything", "no packed rings"]),
    tail=st.binary(max_size=20),
)
def test_any_conversation_leaves_nothing_behind(
    any_fds: dict[str, int],
    open_server: tuple[ServerThread, Path],
    caplog: pytest.LogCaptureFixture,
    talk: list[tuple[int, bytes, list[str], bool]],
    negotiate: str,
    tail: bytes,
) -> None:
    server, path = open_server
    assert until(lambda: not server.server.connected)
    before = sorted(open_fds().values())
    caplog.clear()
    with Frontend.connect(path, timeout=5) as frontend:
        try:
            if negotiate != "nothing":
                frontend.negotiate(features=~0 if negotiate == "everything" else ~PACKED)
            for request, payload, kinds, need_reply in talk:
                flags = VERSION | (FLAG_NEED_REPLY if need_reply else 0)
                frontend.send(request, payload, [any_fds[kind] for kind in kinds], flags=flags)
            frontend.send_bytes(tail)
            frontend._socket.shutdown(socket.SHUT_WR)
            while True:  # until the server has had enough
                for fd in frontend.receive().fds:
                    os.close(fd)
        except Disconnected:
            pass
        except FrontendError as error:
            pytest.fail(f"the server hangs: {error}")
    assert until(lambda: not server.server.connected)
    assert [r for r in caplog.records if r.exc_info or r.levelno > logging.WARNING] == []
    assert sorted(open_fds().values()) == before
    assert server.device.queues == {}
    with Frontend.connect(path) as frontend:
        assert frontend.get_queue_num() == 4
