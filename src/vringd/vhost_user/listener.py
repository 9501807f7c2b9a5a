"""Getting the server's socket: a path that is ours alone, or a descriptor from outside.

Specification: "Back-end program conventions".
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from vringd.vhost_user.errors import SocketError

_BACKLOG = 16
_MAX_PATH = 107  # bytes in sockaddr_un, without the final zero
_LOCK_SECONDS = 5.0


class BoundPath:
    """A listening socket at a path, with mode 0600 whatever the umask says.

    Raises SocketError when the path is in use or impossible.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        if len(os.fsencode(self._path)) > _MAX_PATH:
            raise SocketError(f"socket path {self._path} is longer than {_MAX_PATH} bytes")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # The kernel gives the path the mode of the socket's inode, less the umask: it is
            # never wider than this, not even between bind and listen.
            os.fchmod(self.socket.fileno(), 0o600)
            with _exclusive(self._path.parent):
                self._bind()
            self._identity = _identity(self._path)
            self._path.chmod(0o600)  # the umask may have taken bits of the owner
            self.socket.listen(_BACKLOG)
        except OSError as error:
            self.socket.close()
            raise SocketError(f"socket {self._path}: {error.strerror or error}") from error
        except SocketError:
            self.socket.close()
            raise

    def close(self) -> None:
        """Remove the path, if it is still this socket, and close the socket."""
        # In this order: the inode number cannot be reused while the socket is open.
        try:
            if _identity(self._path) == self._identity:
                self._path.unlink()
        except OSError:
            pass  # somebody else has removed it, or its directory
        self.socket.close()

    def _bind(self) -> None:
        try:
            self.socket.bind(os.fspath(self._path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return
        if not stat.S_ISSOCK(self._path.lstat().st_mode):
            raise SocketError(f"{self._path} exists and is not a socket")
        if _is_live(self._path):
            raise SocketError(f"socket {self._path} is in use by a running server")
        self._path.unlink()
        self.socket.bind(os.fspath(self._path))


def adopt(fd: int) -> tuple[socket.socket, bool]:
    """The socket of an inherited descriptor, now owned, and whether it is a listening one.

    Raises SocketError, without closing it, when it is neither that nor a connected one.
    """
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise SocketError(f"descriptor {fd} is not a socket: {error.strerror}") from error
    if sock.family == socket.AF_UNIX and sock.type == socket.SOCK_STREAM:
        sock.set_inheritable(False)
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return sock, True
        try:
            sock.getpeername()
        except OSError:
            pass
        else:
            return sock, False
    sock.detach()
    raise SocketError(f"descriptor {fd} is not a listening or connected unix stream socket")


def _is_live(path: Path) -> bool:
    """Whether a process has a socket at the path.

    Asked with a socket of another type, which the kernel refuses differently in both cases and
    which the running server does not notice.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(os.fspath(path))
        except ConnectionRefusedError:
            return False
        except OSError as error:
            if error.errno != errno.EPROTOTYPE:
                raise
        return True


def _identity(path: Path) -> tuple[int, int]:
    status = path.lstat()
    return status.st_dev, status.st_ino


@contextmanager
def _exclusive(directory: Path) -> Iterator[None]:
    """Keep out other servers that look at the same stale socket at the same time."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise SocketError(f"directory {directory} is locked by another process") from (
                        None
                    )
                time.sleep(0.01)
            else:
                break
        yield
    finally:
        os.close(fd)
