"""What a file or block device is like: alignment, size, features."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path

_BLKSSZGET = 0x1268  # linux/fs.h: logical block size
_BLKPBSZGET = 0x127B  # physical block size
_BLKIOOPT = 0x1279  # optimal I/O size
_PAGE = mmap.PAGESIZE

_AT_EMPTY_PATH = 0x1000
_STATX_DIOALIGN = 0x2000  # linux/stat.h
_STATX_SIZE = 256
_STATX_DIO_MEM_ALIGN = 152  # offset; stx_dio_offset_align follows


@dataclass(frozen=True)
class FileFacts:
    """Sizes in bytes. block_size: what offsets and lengths must be multiples of;
    memory_alignment: what buffers must be aligned to (1: nothing)."""

    size: int
    is_device: bool
    block_size: int = 512
    physical_block_size: int = 512
    optimal_io_size: int = 0
    memory_alignment: int = 1
    discard: bool = True
    discard_alignment: int = 512
    rotational: bool = False


def file_size(fd: int) -> int:
    """Bytes of a regular file or a block device. Raises OSError."""
    return os.lseek(fd, 0, os.SEEK_END)


def _ioctl_u32(fd: int, request: int, default: int) -> int:
    try:
        answer = fcntl.ioctl(fd, request, struct.pack("I", 0))
    except OSError:
        return default
    return int(struct.unpack("I", answer)[0]) or default


def _sysfs_queue(device: int, name: str, default: int) -> int:
    base = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for folder in (base / "queue", base / ".." / "queue"):  # a partition's is its disk's
        with contextlib.suppress(OSError, ValueError):
            return int((folder / name).read_text())
    return default


def _direct_read_works(fd: int, buffer: mmap.mmap, start: int, length: int, offset: int) -> bool:
    try:
        os.preadv(fd, [memoryview(buffer)[start : start + length]], offset)
    except OSError:
        return False
    return True


def _direct_alignment(fd: int) -> tuple[int, int] | None:
    """(block size, memory alignment) as statx(2) tells them; None before Linux 6.1 and for file
    systems that do not say."""
    statx = getattr(ctypes.CDLL(None), "statx", None)
    answer = ctypes.create_string_buffer(_STATX_SIZE)
    if statx is None or statx(fd, b"", _AT_EMPTY_PATH, _STATX_DIOALIGN, answer) != 0:
        return None
    (mask,) = struct.unpack_from("I", answer.raw)
    memory, block = struct.unpack_from("II", answer.raw, _STATX_DIO_MEM_ALIGN)
    return (block, memory) if mask & _STATX_DIOALIGN and block and memory else None


def _probe_direct(fd: int) -> tuple[int, int]:
    """(block size, memory alignment) that O_DIRECT needs on fd.

    Where statx does not say, blocks are found by trying. Memory cannot be tried: reads of a hole
    or of less than a file system's block succeed at any address, others on the same file do not.
    """
    told = _direct_alignment(fd)
    if told is not None:
        block, memory = max(told[0], 512), told[1]
        # Tiny alignments are real on some drivers, but the gain is nil for guests' buffers.
        return block, max(memory, 4)
    with mmap.mmap(-1, 4 * _PAGE) as buffer:
        sizes = (512, 1024, 2048, 4096)
        block = next((n for n in sizes if _direct_read_works(fd, buffer, 0, n, 0)), 4096)
        # An offset that is a block, not a page, too.
        while block < 4096 and not _direct_read_works(fd, buffer, 0, block, block):
            block *= 2
    return block, block


def examine(fd: int, *, direct: bool) -> FileFacts:
    """Look at an open file. Raises OSError, or ValueError if it is no disk image."""
    status = os.fstat(fd)
    is_device = stat.S_ISBLK(status.st_mode)
    if not is_device and not stat.S_ISREG(status.st_mode):
        raise ValueError("is neither a regular file nor a block device")
    block, memory = _probe_direct(fd) if direct else (512, 1)
    size = file_size(fd)
    if not is_device:
        return FileFacts(
            size=size,
            is_device=False,
            block_size=block,
            physical_block_size=max(block, 4096 if status.st_blksize >= 4096 else 512),
            memory_alignment=memory,
            discard_alignment=max(block, status.st_blksize),
        )
    device = status.st_rdev
    logical = _ioctl_u32(fd, _BLKSSZGET, 512)
    return FileFacts(
        size=size,
        is_device=True,
        block_size=logical,
        physical_block_size=_ioctl_u32(fd, _BLKPBSZGET, logical),
        optimal_io_size=_ioctl_u32(fd, _BLKIOOPT, 0),
        memory_alignment=memory,
        discard=_sysfs_queue(device, "discard_max_bytes", 0) > 0,
        discard_alignment=max(logical, _sysfs_queue(device, "discard_granularity", logical)),
        rotational=bool(_sysfs_queue(device, "rotational", 0)),
    )
