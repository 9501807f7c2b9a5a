"""Features, and which messages are acknowledged: "Feature bits", "REPLY_ACK"."""

from __future__ import annotations

import pytest

from vringd.testing.driver import DriverQueue
from vringd.testing.frontend import Disconnected, Frontend, FrontendError, RefusedByBackend
from vringd.testing.memory import GuestRam
from vringd.vhost_user.wire import (
    FLAG_NEED_REPLY,
    FLAG_REPLY,
    U64,
    VERSION,
    VHOST_F_LOG_ALL,
    VHOST_USER_F_PROTOCOL_FEATURES,
    Request,
)

from .fake_device import INDIRECT, PACKED, VERSION_1, FakeDevice
from .test_rings import echo


def test_device_features_are_offered_with_those_of_vhost(
    frontend: Frontend, device: FakeDevice
) -> None:
    assert frontend.get_features() == (
        device.device_features | VHOST_F_LOG_ALL | VHOST_USER_F_PROTOCOL_FEATURES
    )


def test_device_sees_its_own_features_only(frontend: Frontend, device: FakeDevice) -> None:
    frontend.set_features(VERSION_1 | VHOST_F_LOG_ALL | VHOST_USER_F_PROTOCOL_FEATURES)
    frontend.get_features()
    assert device.driver_features == VERSION_1


def test_offered_protocol_features_are_the_implemented_ones(frontend: Frontend) -> None:
    offered = frontend.get_protocol_features()
    assert [bit for bit in range(64) if offered >> bit & 1] == [
        0, 1, 3, 5, 9, 10, 12, 13, 15, 16,
    ]  # fmt: skip


@pytest.mark.parametrize("bit", [33, 35, 38, 40])
def test_ring_feature_that_was_not_offered_is_refused(negotiated: Frontend, bit: int) -> None:
    with pytest.raises(RefusedByBackend):
        negotiated.set_features(VERSION_1 | 1 << bit)


def test_device_feature_that_was_not_offered_is_ignored(
    negotiated: Frontend, device: FakeDevice
) -> None:
    negotiated.set_features(VERSION_1 | 1 << 10 | VHOST_USER_F_PROTOCOL_FEATURES)
    assert device.driver_features == VERSION_1


@pytest.mark.parametrize("bit", [2, 8, 14, 19, 20, 21, 22, 63])
def test_protocol_feature_that_was_not_offered_is_refused(frontend: Frontend, bit: int) -> None:
    frontend.send(Request.SET_PROTOCOL_FEATURES, U64.pack(1 << bit))
    with pytest.raises(Disconnected):
        frontend.get_features()


def test_features_of_running_rings_cannot_change(
    negotiated: Frontend, ram: GuestRam, running: DriverQueue
) -> None:
    with pytest.raises(RefusedByBackend):
        negotiated.set_features(negotiated.features & ~INDIRECT)
    negotiated.set_features(negotiated.features)
    assert echo(ram, running) == b"hello"


def test_packed_ring_of_any_size_only_when_negotiated(frontend: Frontend) -> None:
    frontend.negotiate()
    assert frontend.features & PACKED
    frontend.set_vring_num(0, 100)
    frontend.set_features(frontend.features & ~PACKED)
    with pytest.raises(RefusedByBackend):
        frontend.set_vring_num(0, 100)


def test_need_reply_without_negotiation_brings_no_reply(frontend: Frontend) -> None:
    frontend.send(Request.SET_OWNER, flags=VERSION | FLAG_NEED_REPLY)
    assert frontend.ask(Request.GET_QUEUE_NUM).payload == U64.pack(4)


def test_message_without_need_reply_brings_no_reply(negotiated: Frontend) -> None:
    negotiated.send(Request.SET_OWNER)
    assert negotiated.ask(Request.GET_QUEUE_NUM).payload == U64.pack(4)


def test_need_reply_does_not_change_messages_with_a_reply_of_their_own(
    negotiated: Frontend,
) -> None:
    negotiated.send(Request.GET_QUEUE_NUM, flags=VERSION | FLAG_NEED_REPLY)
    reply = negotiated.receive()
    assert (reply.request, reply.flags, reply.payload) == (
        Request.GET_QUEUE_NUM,
        VERSION | FLAG_REPLY,
        U64.pack(4),
    )
    negotiated.set_owner()  # nothing else was in the stream


def test_refused_message_is_acknowledged_with_an_error_and_the_session_goes_on(
    negotiated: Frontend, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(RefusedByBackend):
        negotiated.set_vring_num(9, 16)
    assert negotiated.get_queue_num() == 4
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert record.name == "vringd.vhost_user"
    assert "export e0: front-end (pid " in record.getMessage()
    assert "SET_VRING_NUM: there is no queue 9, the device has 4" in record.getMessage()


def test_refused_message_that_wants_no_reply_ends_the_connection(
    negotiated: Frontend, caplog: pytest.LogCaptureFixture
) -> None:
    negotiated.send(Request.SET_VRING_NUM, bytes(8))
    with pytest.raises(Disconnected):
        negotiated.get_queue_num()
    (record,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert "is not in 1 to 256; the connection is closed" in record.getMessage()


def test_unknown_message_is_refused(negotiated: Frontend) -> None:
    negotiated.send(99, b"data", flags=VERSION | FLAG_NEED_REPLY)
    assert negotiated.receive().payload == U64.pack(1)
    negotiated.send(99)
    with pytest.raises(Disconnected):
        negotiated.get_queue_num()


def test_endless_refusals_end_the_connection(negotiated: Frontend) -> None:
    for _ in range(31):
        with pytest.raises(RefusedByBackend):
            negotiated.set_vring_num(0, 0)
    with pytest.raises(FrontendError):
        negotiated.set_vring_num(0, 0)
    with pytest.raises(Disconnected):
        negotiated.get_queue_num()
