"""File descriptors that front-ends send: each is owned by exactly one object, always."""

from __future__ import annotations

import os
import select
import stat
from types import TracebackType

from vringd.core import watchdog
from vringd.vhost_user.errors import RefusedError


class Descriptor:
    """The owner of one descriptor: closed by `close`, at the latest with this object."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    @property
    def fd(self) -> int:
        """The descriptor, -1 once closed."""
        return self._fd

    def close(self) -> None:
        """Close it now; again does nothing."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def release(self) -> int:
        """Give up ownership; the caller must close what it gets."""
        fd, self._fd = self._fd, -1
        return fd

    def __del__(self) -> None:
        self.close()


class ReceivedDescriptors:
    """The descriptors of one message; those that nobody takes are closed at the end of `with`."""

    def __init__(self) -> None:
        self._descriptors: list[Descriptor] = []

    def __len__(self) -> int:
        return len(self._descriptors)

    def __enter__(self) -> ReceivedDescriptors:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def adopt(self, fds: list[int]) -> None:
        """Become the owner of descriptors that have just arrived."""
        self._descriptors.extend(map(Descriptor, fds))

    def take(self) -> Descriptor:
        """Hand over the first one left."""
        return self._descriptors.pop(0)

    def fds(self) -> list[int]:
        """The descriptors left, for use during the call; this object keeps owning them."""
        return [descriptor.fd for descriptor in self._descriptors]

    def close(self) -> None:
        """Close all that are left."""
        for descriptor in self._descriptors:
            descriptor.close()
        self._descriptors.clear()


def check_eventfd(fd: int, what: str) -> None:
    """Raise RefusedError unless the descriptor is an eventfd.

    The data plane writes eight bytes to it: into anything else that could be a file of the
    person who runs this process.
    """
    try:
        target = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:  # no /proc here; anonymous inodes have no file type
        is_eventfd = stat.S_IFMT(os.fstat(fd).st_mode) == 0
    else:
        is_eventfd = target == "anon_inode:[eventfd]"
    if not is_eventfd:
        raise RefusedError(f"the {what} descriptor is not an eventfd")


def signal_eventfd(descriptor: Descriptor) -> None:
    """Add 1 to an eventfd, unless that would block.

    Front-ends may use blocking eventfds, and the flag is shared with them; so ask first. One that
    fills it in between holds us up for a second. A counter at its limit is readable anyway, which
    is all that a signal achieves.
    """
    poller = select.poll()
    poller.register(descriptor.fd, select.POLLOUT)
    if poller.poll(0):
        watchdog.signal_eventfd(descriptor.fd)
