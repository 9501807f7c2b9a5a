"""Feature bits: what is offered, what was acknowledged, and what cannot be."""

from __future__ import annotations

from vringd.vhost_user.errors import RefusedError
from vringd.vhost_user.wire import (
    VHOST_F_LOG_ALL,
    VHOST_USER_F_PROTOCOL_FEATURES,
    ProtocolFeature,
)

OFFERED_PROTOCOL_FEATURES = (
    ProtocolFeature.MQ
    | ProtocolFeature.LOG_SHMFD
    | ProtocolFeature.REPLY_ACK
    | ProtocolFeature.BACKEND_REQ
    | ProtocolFeature.CONFIG
    | ProtocolFeature.BACKEND_SEND_FD
    | ProtocolFeature.INFLIGHT_SHMFD
    | ProtocolFeature.RESET_DEVICE
    | ProtocolFeature.CONFIGURE_MEM_SLOTS
    | ProtocolFeature.STATUS
)

_VHOST_FEATURES = VHOST_F_LOG_ALL | VHOST_USER_F_PROTOCOL_FEATURES

# Bits 28 to 41 change the rings or the transport (virtio 1.3, section 6), whatever the device:
# a driver that uses one which is not implemented cannot be served.
_RING_FEATURES = ((1 << 42) - 1) & ~((1 << 28) - 1)


def offered(device_features: int) -> int:
    """The answer to GET_FEATURES."""
    return device_features | _VHOST_FEATURES


def accept(features: int, device_features: int) -> tuple[int, int]:
    """Split what SET_FEATURES acknowledges into (bits that count, bits to ignore).

    The second are bits of the device that were not offered: some front-ends decide about those
    without asking the back-end, and they only promise what the driver could cope with. Raises
    RefusedError for ring features that were not offered.
    """
    unknown = features & ~offered(device_features)
    if unknown & _RING_FEATURES:
        raise RefusedError(f"acknowledges features that are not offered: {bits(unknown)}")
    return features & ~unknown, unknown


def accept_protocol(features: int) -> ProtocolFeature:
    """What SET_PROTOCOL_FEATURES acknowledges. Raises RefusedError for bits not offered."""
    unknown = features & ~int(OFFERED_PROTOCOL_FEATURES)
    if unknown:
        raise RefusedError(f"acknowledges features that are not offered: {bits(unknown)}")
    return ProtocolFeature(features)


def driver_features(features: int) -> int:
    """The bits that are the device's business."""
    return features & ~_VHOST_FEATURES


def bits(mask: int) -> str:
    """A mask for people, e.g. "bits 33, 40"."""
    numbers = [str(n) for n in range(mask.bit_length()) if mask >> n & 1]
    return f"bit{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
