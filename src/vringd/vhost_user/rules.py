"""What a message must look like before anyone reads it: payload size, descriptors, negotiation."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from vringd.vhost_user.connection import Message
from vringd.vhost_user.errors import RefusedError
from vringd.vhost_user.wire import (
    MAX_CONFIG_SIZE,
    MAX_TABLE_REGIONS,
    ConfigAccess,
    InflightDescription,
    LogDescription,
    ProtocolFeature,
    RegionDescription,
    Request,
    VringAddress,
    VringState,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """The shape of one kind of message."""

    sizes: Container[int] = (0,)
    fds: Container[int] = (0,)
    needs: ProtocolFeature | None = None
    replies: bool = False
    """Whether it has a reply of its own, for which need_reply changes nothing ("REPLY_ACK")."""


_STATE = (VringState.LAYOUT.size,)
_INFLIGHT = (InflightDescription.LAYOUT.size, InflightDescription.PADDED_SIZE)
_CONFIG = range(ConfigAccess.LAYOUT.size, ConfigAccess.LAYOUT.size + MAX_CONFIG_SIZE + 1)
_REGION = (8 + RegionDescription.LAYOUT.size,)
_TABLE = range(8, 8 + MAX_TABLE_REGIONS * RegionDescription.LAYOUT.size + 1)

RULES = {
    Request.GET_FEATURES: Rule(replies=True),
    Request.SET_FEATURES: Rule(sizes=(8,)),
    Request.SET_OWNER: Rule(),
    Request.RESET_OWNER: Rule(),
    Request.SET_MEM_TABLE: Rule(sizes=_TABLE, fds=range(MAX_TABLE_REGIONS + 1)),
    Request.SET_LOG_BASE: Rule(
        sizes=(LogDescription.LAYOUT.size,),
        fds=(1,),
        needs=ProtocolFeature.LOG_SHMFD,
        replies=True,
    ),
    Request.SET_LOG_FD: Rule(sizes=(0, 8), fds=(0, 1)),
    Request.SET_VRING_NUM: Rule(sizes=_STATE),
    Request.SET_VRING_ADDR: Rule(sizes=(VringAddress.LAYOUT.size,)),
    Request.SET_VRING_BASE: Rule(sizes=_STATE),
    Request.GET_VRING_BASE: Rule(sizes=_STATE, replies=True),
    Request.SET_VRING_KICK: Rule(sizes=(8,), fds=(0, 1)),
    Request.SET_VRING_CALL: Rule(sizes=(8,), fds=(0, 1)),
    Request.SET_VRING_ERR: Rule(sizes=(8,), fds=(0, 1)),
    Request.GET_PROTOCOL_FEATURES: Rule(replies=True),
    Request.SET_PROTOCOL_FEATURES: Rule(sizes=(8,)),
    Request.GET_QUEUE_NUM: Rule(replies=True),
    Request.SET_VRING_ENABLE: Rule(sizes=_STATE),
    Request.SET_BACKEND_REQ_FD: Rule(fds=(1,), needs=ProtocolFeature.BACKEND_REQ),
    Request.GET_CONFIG: Rule(sizes=_CONFIG, needs=ProtocolFeature.CONFIG, replies=True),
    Request.SET_CONFIG: Rule(sizes=_CONFIG, needs=ProtocolFeature.CONFIG),
    Request.GET_INFLIGHT_FD: Rule(
        sizes=_INFLIGHT, needs=ProtocolFeature.INFLIGHT_SHMFD, replies=True
    ),
    Request.SET_INFLIGHT_FD: Rule(sizes=_INFLIGHT, fds=(1,), needs=ProtocolFeature.INFLIGHT_SHMFD),
    Request.RESET_DEVICE: Rule(needs=ProtocolFeature.RESET_DEVICE),
    Request.GET_MAX_MEM_SLOTS: Rule(needs=ProtocolFeature.CONFIGURE_MEM_SLOTS, replies=True),
    Request.ADD_MEM_REG: Rule(sizes=_REGION, fds=(1,), needs=ProtocolFeature.CONFIGURE_MEM_SLOTS),
    # A descriptor is needless here, but some front-ends send one (specification, REM_MEM_REG).
    Request.REM_MEM_REG: Rule(sizes=_REGION, fds=(0, 1), needs=ProtocolFeature.CONFIGURE_MEM_SLOTS),
    Request.SET_STATUS: Rule(sizes=(8,), needs=ProtocolFeature.STATUS),
    Request.GET_STATUS: Rule(needs=ProtocolFeature.STATUS, replies=True),
}


def check(message: Message, negotiated: ProtocolFeature) -> tuple[Request, Rule]:
    """The message's kind and rule. Raises RefusedError when it breaks the rule or has none."""
    try:
        request = Request(message.request)
    except ValueError:
        raise RefusedError("there is no such message") from None
    rule = RULES[request]
    if rule.needs is not None and rule.needs not in negotiated:
        raise RefusedError(f"needs the protocol feature {rule.needs.name}, not negotiated")
    if len(message.payload) not in rule.sizes:
        raise RefusedError(f"cannot have a payload of {len(message.payload)} bytes")
    if len(message.descriptors) not in rule.fds:
        raise RefusedError(f"cannot come with {len(message.descriptors)} descriptors")
    return request, rule
