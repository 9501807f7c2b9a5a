"""`file` and `host_device`: a raw image in a regular file, or a block device of the host."""

from __future__ import annotations

import errno
import os
import stat

from vringd.block import locking, probe
from vringd.block.aio_channel import AioFileChannel
from vringd.block.backend import DEFAULT_WORKERS, BlockBackend, BlockLimits, WorkerLimits
from vringd.block.file_channel import UringFileChannel
from vringd.block.pool_channel import PoolFileChannel
from vringd.core.channel import Channel

_DETECT_ZEROES = {"off": 0, "on": 1, "unmap": 2}
_NO_LOCKS_HERE = (errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class OpenFile:
    """A descriptor that lives as long as somebody refers to it."""

    def __init__(self, path: str, flags: int) -> None:
        self.fd = os.open(path, flags | os.O_CLOEXEC)

    def close(self) -> None:
        """Close it now. Again does nothing."""
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


class FileBackend(BlockBackend):
    """A raw image.

    aio: "io_uring", "native" (Linux AIO; needs cache_direct), "threads", or None for io_uring
    where it is allowed and threads elsewhere. cache_direct: O_DIRECT. cache_no_flush: flushes do
    nothing. discard: "unmap" or "ignore". detect_zeroes: "off", "on" or "unmap". locking: "on",
    "off" or "auto" (on where the file system can). auto_read_only: open for reading when
    writing is not permitted. registered_buffers: register guest memory with io_uring, which
    pins it.

    Raises OSError, ValueError (not a disk image, or options that exclude each other) or
    `locking.InUseError`.
    """

    def __init__(
        self,
        node_name: str,
        filename: str,
        *,
        driver: str = "file",
        aio: str | None = None,
        cache_direct: bool = False,
        cache_no_flush: bool = False,
        discard: str = "ignore",
        detect_zeroes: str = "off",
        read_only: bool = False,
        auto_read_only: bool = False,
        locking_mode: str = "auto",
        registered_buffers: bool = False,
    ) -> None:
        if aio == "native" and not cache_direct:
            raise ValueError(
                "aio=native needs cache.direct=on (Linux AIO blocks on the page cache); add it or"
                " use aio=io_uring"
            )
        if registered_buffers and aio not in (None, "io_uring"):
            raise ValueError(f"registered-buffers=on needs aio=io_uring, not aio={aio}")
        self.node_name = node_name
        self.read_only = read_only
        self._path = filename
        self._aio = aio
        self._discard = discard == "unmap"
        self._detect_zeroes = _DETECT_ZEROES[detect_zeroes]
        self._no_flush = cache_no_flush
        self._registered_buffers = registered_buffers
        self._flags = os.O_DIRECT if cache_direct else 0
        try:
            self._file = self._open()
        except OSError as error:
            if not auto_read_only or error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM):
                raise
            self.read_only = True
            self._file = self._open()
        self._check_kind(driver)
        facts = probe.examine(self._file.fd, direct=cache_direct)
        self._size = facts.size
        self._memory_alignment = facts.memory_alignment
        self.limits = BlockLimits(
            block_size=facts.block_size,
            physical_block_size=facts.physical_block_size,
            optimal_io_size=facts.optimal_io_size,
            discard=facts.discard and self._discard,
            discard_alignment=facts.discard_alignment,
            write_zeroes=True,
            rotational=facts.rotational,
        )
        if locking_mode != "off" and not facts.is_device:
            self._lock(locking_mode)

    def _open(self) -> OpenFile:
        return OpenFile(self._path, self._flags | (os.O_RDONLY if self.read_only else os.O_RDWR))

    def _check_kind(self, driver: str) -> None:
        is_device = stat.S_ISBLK(os.fstat(self._file.fd).st_mode)
        if driver == "host_device" and not is_device:
            raise ValueError("is not a block device; use driver=file")
        if driver == "file" and is_device:
            raise ValueError("is a block device; use driver=host_device")

    def _lock(self, mode: str) -> None:
        try:
            locking.lock_image(self._file.fd, writable=not self.read_only)
        except OSError as error:
            if mode == "on" or error.errno not in _NO_LOCKS_HERE:
                raise

    @property
    def size(self) -> int:
        return self._size

    def refresh_size(self) -> int:
        self._size = probe.file_size(self._file.fd)
        return self._size

    def open_channel(self, *, io_uring: bool, workers: WorkerLimits = DEFAULT_WORKERS) -> Channel:
        # Each channel has an open file of its own, so that no IOThread waits for another one's
        # lock on the file position or on io_uring's registered file.
        own = self._open()
        aio = self._aio or ("io_uring" if io_uring else "threads")
        if aio == "io_uring":
            if not io_uring:
                raise ValueError(
                    "aio=io_uring: io_uring is forbidden here (seccomp or"
                    " kernel.io_uring_disabled); use aio=threads, or aio=native with"
                    " cache.direct=on"
                )
            return UringFileChannel(
                own,
                own.fd,
                memory_alignment=self._memory_alignment,
                ignore_flush=self._no_flush,
                discard=self._discard,
                detect_zeroes=self._detect_zeroes,
                registered_buffers=self._registered_buffers,
            )
        if aio == "native":
            return AioFileChannel(
                own,
                own.fd,
                memory_alignment=self._memory_alignment,
                ignore_flush=self._no_flush,
                discard=self._discard,
                detect_zeroes=self._detect_zeroes,
            )
        return PoolFileChannel(
            own,
            own.fd,
            memory_alignment=self._memory_alignment,
            ignore_flush=self._no_flush,
            discard=self._discard,
            detect_zeroes=self._detect_zeroes,
            min_workers=workers.minimum,
            max_workers=workers.maximum,
        )

    def close(self) -> None:
        # Closing the locked description gives the lock back; channels hold files of their own.
        self._file.close()
