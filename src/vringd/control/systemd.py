"""The readiness protocol of systemd (`Type=notify`): datagrams to $NOTIFY_SOCKET."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Sends a state such as `READY=1`; does nothing when nobody asked for it.

    A failure to tell is no reason not to serve, so it is ignored.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as handle,
    ):
        handle.connect(address)
        handle.send(state.encode())
