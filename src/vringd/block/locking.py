"""Locks on image files that exclude other programs as QEMU's do.

QEMU announces what it does with a file by open-file-description locks on single bytes: byte
100 + n is read-locked while permission n is used, byte 200 + n while permission n is denied to
others. Whoever opens the file tests the opposite byte of each. Taking part in this makes vringd
and QEMU refuse each other's images. (QEMU, docs/interop/../system/images, "image locking".)
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

_USED = 100
_DENIED = 200
_CONSISTENT_READ = 0
_WRITE = 1
_RESIZE = 3

_F_OFD_GETLK = 36
_F_OFD_SETLK = 37
_FLOCK = struct.Struct("hhqqi4x")


class InUseError(Exception):
    """The file is in use in a way that excludes ours; the message says how."""


def _flock(kind: int, byte: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, byte, 1, 0)


def _locked_by_another(fd: int, byte: int) -> bool:
    answer = fcntl.fcntl(fd, _F_OFD_GETLK, _flock(fcntl.F_WRLCK, byte))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def lock_image(fd: int, *, writable: bool) -> None:
    """Announce and check our use of the file behind fd, until fd is closed.

    Readers share the file with each other; a writer shares it with nobody. Raises InUseError, or
    OSError when the file system has no locks (errno EINVAL, ENOLCK or EOPNOTSUPP).
    """
    used = [_CONSISTENT_READ, _WRITE, _RESIZE] if writable else [_CONSISTENT_READ]
    denied = [_WRITE, _RESIZE]
    try:
        for permission in used:
            fcntl.fcntl(fd, _F_OFD_SETLK, _flock(fcntl.F_RDLCK, _USED + permission))
        for permission in denied:
            fcntl.fcntl(fd, _F_OFD_SETLK, _flock(fcntl.F_RDLCK, _DENIED + permission))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise InUseError("another program has locked it") from None
        raise
    # Announced first, tested second: of two that start at once, at least one sees the other.
    for permission in used:
        if _locked_by_another(fd, _DENIED + permission):
            raise InUseError("another program has it open and does not share it")
    for permission in denied:
        if _locked_by_another(fd, _USED + permission):
            raise InUseError("another program has it open for writing")
