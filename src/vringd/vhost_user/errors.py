"""What can go wrong between a front-end and this process, by what follows from it.

    FrontendFault         the front-end did something that it must not
    ├── RefusedError      one message cannot be honoured: a negative acknowledgement, or the end
    └── ProtocolError     the byte stream cannot be trusted any more: always the end
    SocketError           the server's own socket cannot be had

Each carries one sentence for people; log that, not the exception, which keeps the frames alive
that it went through.
"""

from __future__ import annotations


class FrontendFault(Exception):
    """Base of everything that is a front-end's fault."""


class RefusedError(FrontendFault):
    """A well-formed message asks for something impossible; the next one may be fine."""


class ProtocolError(FrontendFault):
    """The connection no longer carries whole messages of a known version."""


class SocketError(Exception):
    """A socket path or descriptor is unusable; the user has to change something."""
