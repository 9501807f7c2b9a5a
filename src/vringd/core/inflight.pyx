"""The inflight buffer of a device: what a killed daemon's successor resubmits.

The front-end keeps the file and hands it to the next back-end; entries change in the order that
the specification prescribes, so that a kill between any two stores loses and repeats nothing
that the driver could notice. (vhost-user specification, "Inflight I/O tracking".)
"""

from libc.stdint cimport uint64_t

from vringd.core.memory cimport map_file, unmap_file
from vringd.core.sys cimport close

import os

cdef enum:
    REGION_ALIGNMENT = 64       # queues of different IOThreads share no cache line


cdef class InflightBuffer:
    """One region for each queue; make one with `create` or `map`."""

    def __cinit__(self, *args, **kwargs):
        self.fd = -1

    def __init__(self):
        raise TypeError("use InflightBuffer.create or InflightBuffer.map")

    @staticmethod
    def region_size(int queue_size, bint packed):
        """Bytes of one queue's region."""
        if packed:
            size = sizeof(InflightPacked) + queue_size * sizeof(DescStatePacked)
        else:
            size = sizeof(InflightSplit) + queue_size * sizeof(DescStateSplit)
        return (size + REGION_ALIGNMENT - 1) // REGION_ALIGNMENT * REGION_ALIGNMENT

    @classmethod
    def create(cls, int num_queues, int queue_size, bint packed):
        """A zeroed buffer in a new memory file. Raises ValueError or OSError."""
        check_shape(num_queues, queue_size)
        cdef InflightBuffer self = InflightBuffer.__new__(InflightBuffer)
        self.num_queues, self.queue_size, self.packed = num_queues, queue_size, packed
        self.mmap_size = num_queues * InflightBuffer.region_size(queue_size, packed)
        self.mmap_offset = 0
        self.fd = os.memfd_create("vringd-inflight", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, self.mmap_size)
        self.map_buffer()
        return self

    @classmethod
    def map(cls, int fd, mmap_size, mmap_offset, int num_queues, int queue_size, bint packed):
        """A front-end's buffer; fd is duplicated. Raises ValueError (too small) or OSError."""
        check_shape(num_queues, queue_size)
        cdef InflightBuffer self = InflightBuffer.__new__(InflightBuffer)
        self.num_queues, self.queue_size, self.packed = num_queues, queue_size, packed
        self.mmap_size, self.mmap_offset = mmap_size, mmap_offset
        needed = num_queues * InflightBuffer.region_size(queue_size, packed)
        if mmap_size < needed:
            raise ValueError(
                f"an inflight buffer of {mmap_size} bytes; {num_queues} queues of {queue_size} "
                f"entries need {needed}")
        if os.fstat(fd).st_size < mmap_offset + mmap_size:
            raise ValueError("an inflight buffer that ends beyond its file")
        if mmap_offset % os.sysconf("SC_PAGESIZE"):
            raise ValueError(f"an inflight buffer at offset {mmap_offset}, not at a page")
        self.fd = os.dup(fd)
        self.map_buffer()
        return self

    cdef int map_buffer(self) except -1:
        map_file(&self.mapping, self.fd, self.mmap_offset, self.mmap_size)
        self.stride = InflightBuffer.region_size(self.queue_size, self.packed)
        return 0

    def __dealloc__(self):
        unmap_file(&self.mapping)
        if self.fd >= 0:
            close(self.fd)

    cdef void *region(self, int index) noexcept nogil:
        return self.mapping.start + <uint64_t> index * self.stride


cdef int check_shape(int num_queues, int queue_size) except -1:
    if not 1 <= num_queues <= 65535 or not 1 <= queue_size <= 32768:
        raise ValueError(
            f"an inflight buffer for {num_queues} queues of {queue_size} entries")
    return 0
