"""What a front-end has said about one ring so far. Specification: "Ring states"."""

from __future__ import annotations

from vringd.core.virtqueue import Virtqueue
from vringd.vhost_user.descriptors import Descriptor
from vringd.vhost_user.wire import VRING_F_LOG, VringAddress


class Vring:
    """State of one ring, kept while it is stopped or disabled and across restarts.

    `queue` is the ring in the hands of its IOThread and None while nothing processes it.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.size = 0
        self.address: VringAddress | None = None
        self.base = 0
        self.kick: Descriptor | None = None
        self.call: Descriptor | None = None
        self.err: Descriptor | None = None
        self.started = False
        self.enabled = False
        self.queue: Virtqueue | None = None

    @property
    def wanted(self) -> bool:
        """Whether the front-end wants the ring to be processed, and has said where it is."""
        return self.started and self.enabled and self.size > 0 and self.address is not None

    @property
    def log_addr(self) -> int | None:
        """Guest address under which writes to the used ring are logged; None for no logging."""
        if self.address is None or not self.address.flags & VRING_F_LOG:
            return None
        return self.address.log

    def stop(self) -> None:
        """Forget the kick descriptor: the ring starts with the next one."""
        self.started = False
        if self.kick is not None:
            self.kick.close()
            self.kick = None

    def reset(self) -> None:
        """Forget everything that a driver sets up anew.

        The call and err descriptors stay: front-ends send them once per connection.
        """
        self.stop()
        self.size = 0
        self.address = None
        self.base = 0
        self.enabled = False

    def set_err(self, err: Descriptor | None) -> None:
        """Use another err descriptor."""
        if self.err is not None:
            self.err.close()
        self.err = err

    def close(self) -> None:
        """Close every descriptor."""
        for descriptor in (self.kick, self.call, self.err):
            if descriptor is not None:
                descriptor.close()
        self.kick = self.call = self.err = None


def fd_of(descriptor: Descriptor | None) -> int:
    """The number that stands for a descriptor or for none, -1."""
    return -1 if descriptor is None else descriptor.fd
