"""What system calls a block operation on a file takes.

An engine calls `first_step`, makes that call, hands its result to `next_step`, and so on until
the step is STEP_DONE. In the common case (a transfer that O_DIRECT accepts as it is and that the
kernel does in one go) nothing is allocated or copied.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t, uint8_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from vringd.block.ops cimport (
    FLAG_FUA, FLAG_HOLE, FLAG_UNMAP, OP_DISCARD, OP_EXTENT, OP_FLUSH, OP_READ, OP_WRITE,
    OP_WRITE_ZEROES)
from vringd.core.sys cimport (
    EAGAIN, EINTR, EINVAL, ENOMEM, ENOSPC, ENOTSUP, ENOTTY, ENXIO, EOPNOTSUPP, FALLOC_FL_KEEP_SIZE,
    FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE, RWF_DSYNC, SEEK_DATA, SEEK_HOLE, errno, fallocate,
    fdatasync, iovec, lseek, posix_memalign, preadv, pwritev2)
from vringd.core.vring cimport MAX_IOVECS

cdef enum:
    ZERO_BYTES = 1 << 16        # size of the buffer of zeros
    ZERO_VECTORS = 16           # of it in one write: 1 MiB
    BOUNCE_BYTES = 1 << 20      # most of a request that is copied at a time
    IOV_LIMIT = 1024            # IOV_MAX: what one system call takes


cdef enum Phase:                # Request.phase
    TRANSFER
    ALLOCATING
    ZEROING
    SYNCING


cdef struct Detour:             # Request.private of a transfer off the common path
    uint32_t count
    uint32_t first              # entries before it are finished
    uint8_t *bounce             # aligned stand-in for the guest's buffers, or NULL
    uint64_t bounce_size
    iovec bounce_iov
    iovec iov[MAX_IOVECS]       # what is left of the guest's buffers, from first on


# Aligned for any O_DIRECT. Never written to, so one serves all threads.
cdef uint8_t zeros[ZERO_BYTES + 4096]


cdef inline uint8_t *zero_buffer() noexcept nogil:
    return <uint8_t *> ((<uintptr_t> zeros + 4095) & ~<uintptr_t> 4095)


cdef inline void done(Step *step, int64_t result) noexcept nogil:
    step.kind = STEP_DONE
    step.result = <int> result


cdef inline bint aligned(Request *req, uint64_t alignment) noexcept nogil:
    cdef uint64_t bits = 0
    cdef uint32_t i
    for i in range(req.niov):
        bits |= <uint64_t> <uintptr_t> req.iov[i].iov_base | req.iov[i].iov_len
    return bits & (alignment - 1) == 0


cdef bint all_zeros(Request *req) noexcept nogil:
    cdef size_t here
    cdef uint64_t offset
    cdef uint32_t i
    for i in range(req.niov):
        offset = 0
        while offset < req.iov[i].iov_len:
            here = min(<uint64_t> ZERO_BYTES, req.iov[i].iov_len - offset)
            if memcmp(<uint8_t *> req.iov[i].iov_base + offset, zero_buffer(), here) != 0:
                return False
            offset += here
    return True


# ---- reads and writes ---------------------------------------------------------------------------

cdef void copy_bounce(Detour *detour, uint64_t nbytes, bint to_guest) noexcept nogil:
    """Copy nbytes between the bounce buffer and the front of what is left of the vectors."""
    cdef uint8_t *at = detour.bounce
    cdef uint32_t i = detour.first
    cdef size_t here
    while nbytes:
        here = min(nbytes, detour.iov[i].iov_len)
        if to_guest:
            memcpy(detour.iov[i].iov_base, at, here)
        else:
            memcpy(at, detour.iov[i].iov_base, here)
        at += here
        nbytes -= here
        i += 1


cdef inline void transfer_step(Request *req, Step *step) noexcept nogil:
    """What is left of the transfer, or as much of it as goes in one call."""
    cdef Detour *detour = <Detour *> req.private
    step.kind = STEP_READ if req.op == OP_READ else STEP_WRITE
    step.dsync = req.flags & FLAG_FUA
    step.offset = req.offset + req.progress
    step.length = req.length - req.progress
    if detour == NULL:
        step.iov, step.count = req.iov, req.niov
    elif detour.bounce == NULL:
        step.iov = &detour.iov[detour.first]
        step.count = detour.count - detour.first
    else:
        step.length = min(step.length, detour.bounce_size)
        if req.op == OP_WRITE:
            copy_bounce(detour, step.length, False)
        detour.bounce_iov.iov_base, detour.bounce_iov.iov_len = detour.bounce, step.length
        step.iov, step.count = &detour.bounce_iov, 1
    # The rest follows as after any short transfer.
    step.count = min(step.count, <uint32_t> IOV_LIMIT)


cdef bint take_detour(Request *req) noexcept nogil:
    """Give req vectors of its own, which may be changed."""
    cdef Detour *detour = <Detour *> malloc(sizeof(Detour))
    if detour == NULL:
        return False
    detour.count, detour.first = req.niov, 0        # niov <= MAX_IOVECS, as of every chain
    detour.bounce = NULL
    memcpy(detour.iov, req.iov, req.niov * sizeof(iovec))
    req.private = detour
    return True


cdef bint take_bounce(Request *req, uint64_t alignment) noexcept nogil:
    """Transfer through an aligned buffer, in pieces: a guest decides how long requests are."""
    cdef Detour *detour
    if not take_detour(req):
        return False
    detour = <Detour *> req.private
    # Pieces stay aligned: the length is a multiple of the disk's block, and BOUNCE_BYTES is too.
    detour.bounce_size = min(req.length, <uint64_t> BOUNCE_BYTES)
    if posix_memalign(<void **> &detour.bounce, max(alignment, <uint64_t> 4096),
                      detour.bounce_size) != 0:
        detour.bounce = NULL
        return False
    return True


cdef void skip(Request *req, uint64_t nbytes) noexcept nogil:
    """Take nbytes, which were transferred, off the vectors."""
    cdef Detour *detour = <Detour *> req.private
    cdef iovec *iov
    cdef size_t here
    while nbytes:
        iov = &detour.iov[detour.first]
        here = min(nbytes, iov.iov_len)
        iov.iov_base = <uint8_t *> iov.iov_base + here
        iov.iov_len -= here
        nbytes -= here
        if iov.iov_len == 0:
            detour.first += 1


cdef void clear_rest(Request *req) noexcept nogil:
    """A read met the end of the file: what lies beyond reads as zeros."""
    cdef Detour *detour = <Detour *> req.private
    cdef iovec *iov
    cdef uint32_t i
    cdef uint32_t first = 0
    cdef uint32_t count = req.niov
    iov = req.iov
    if detour != NULL:
        iov, first, count = detour.iov, detour.first, detour.count
    for i in range(first, count):
        memset(iov[i].iov_base, 0, iov[i].iov_len)


cdef void transfer_done(Request *req, int64_t result, Step *step) noexcept nogil:
    cdef Detour *detour = <Detour *> req.private
    if detour != NULL:
        free(detour.bounce)
        free(detour)
        req.private = NULL
    done(step, result)


cdef void transfer_result(FileTarget *target, Request *req, int64_t result,
                          Step *step) noexcept nogil:
    cdef Detour *detour = <Detour *> req.private
    if result == -EINTR or result == -EAGAIN:
        transfer_step(req, step)
        return
    if result < 0:
        transfer_done(req, result, step)
        return
    if detour != NULL and detour.bounce != NULL and req.op == OP_READ:
        copy_bounce(detour, <uint64_t> result, True)
    if req.progress + <uint64_t> result >= req.length:
        transfer_done(req, 0, step)
        return
    if result == 0 and req.op == OP_WRITE:
        transfer_done(req, -ENOSPC, step)
        return
    if req.private == NULL and not take_detour(req):
        transfer_done(req, -ENOMEM, step)
        return
    skip(req, <uint64_t> result)
    req.progress += <uint64_t> result
    # O_DIRECT ends a read off its alignment only at the end of the file, and would refuse to go
    # on from there.
    if req.op == OP_READ and (result == 0 or (target.memory_alignment > 1 and result % 512)):
        clear_rest(req)
        transfer_done(req, 0, step)
        return
    transfer_step(req, step)


# ---- discards and zeros -------------------------------------------------------------------------

cdef inline bint not_supported(int64_t result) noexcept nogil:
    # EINVAL: loop and some device drivers say so of a mode that they lack.
    return result in (-EOPNOTSUPP, -ENOTSUP, -ENOTTY, -EINVAL)


cdef void allocate_step(FileTarget *target, Request *req, Step *step) noexcept nogil:
    """The best way left to zero or discard the range."""
    step.kind = STEP_ALLOCATE
    step.offset, step.length = req.offset, req.length
    req.phase = ALLOCATING
    if req.op != OP_WRITE_ZEROES or (req.flags & FLAG_UNMAP and target.discard):
        if not target.no_punch:
            step.mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
            return
        if req.op != OP_WRITE_ZEROES:       # discarding is advice
            done(step, 0)
            return
    if not target.no_zero_range:
        step.mode = FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE
        return
    req.phase = ZEROING
    req.progress = 0
    zeroing_step(req, step)


cdef void allocate_result(FileTarget *target, Request *req, int64_t result,
                          Step *step) noexcept nogil:
    if result == -EINTR or result == -EAGAIN:
        allocate_step(target, req, step)
        return
    if not_supported(result):
        if req.op != OP_WRITE_ZEROES or (req.flags & FLAG_UNMAP and target.discard
                                         and not target.no_punch):
            target.no_punch = 1
        else:
            target.no_zero_range = 1
        allocate_step(target, req, step)
        return
    finish_or_sync(req, result, step)


cdef void zeroing_step(Request *req, Step *step) noexcept nogil:
    """Write a part of the range from the buffer of zeros."""
    cdef Detour *detour = <Detour *> req.private
    cdef uint64_t left = req.length - req.progress
    cdef uint32_t n = 0
    if detour == NULL:
        detour = <Detour *> malloc(sizeof(Detour))
        if detour == NULL:
            done(step, -ENOMEM)
            return
        detour.bounce = NULL
        req.private = detour
    while left and n < ZERO_VECTORS:
        detour.iov[n].iov_base = zero_buffer()
        detour.iov[n].iov_len = min(left, <uint64_t> ZERO_BYTES)
        left -= detour.iov[n].iov_len
        n += 1
    step.kind = STEP_WRITE
    step.dsync = 0
    step.iov, step.count = detour.iov, n
    step.offset = req.offset + req.progress
    step.length = req.length - left - req.progress


cdef void zeroing_result(Request *req, int64_t result, Step *step) noexcept nogil:
    if result > 0:
        req.progress += <uint64_t> result
    if req.progress < req.length and (result > 0 or result == -EINTR or result == -EAGAIN):
        zeroing_step(req, step)
        return
    free(req.private)
    req.private = NULL
    finish_or_sync(req, -ENOSPC if result == 0 else result if result < 0 else 0, step)


cdef void finish_or_sync(Request *req, int64_t result, Step *step) noexcept nogil:
    if result == 0 and req.flags & FLAG_FUA and req.op == OP_WRITE_ZEROES:
        req.phase = SYNCING
        step.kind = STEP_SYNC
    else:
        done(step, result)


# ---- extents ------------------------------------------------------------------------------------

cdef void find_extent(FileTarget *target, Request *req) noexcept nogil:
    """What the file system says about holes. lseek waits for metadata at worst: no engine can do
    it asynchronously, and it is asked for rarely."""
    cdef int64_t data = lseek(target.fd, <int64_t> req.offset, SEEK_DATA)
    cdef int64_t end
    if data < 0:
        if errno == ENXIO:      # nothing but a hole from here on
            req.flags |= FLAG_HOLE
        return                  # otherwise it cannot tell: all is data
    if data > <int64_t> req.offset:
        req.flags |= FLAG_HOLE
        req.length = min(req.length, <uint64_t> data - req.offset)
        return
    end = lseek(target.fd, <int64_t> req.offset, SEEK_HOLE)
    if end > <int64_t> req.offset:
        req.length = min(req.length, <uint64_t> end - req.offset)


# ---- what engines call --------------------------------------------------------------------------

cdef void first_step(FileTarget *target, Request *req, Step *step) noexcept nogil:
    """The first system call of req's operation, or its outcome."""
    req.private = NULL
    req.progress = 0
    req.phase = TRANSFER
    if req.op == OP_READ or req.op == OP_WRITE:
        if req.op == OP_WRITE and target.detect_zeroes != DETECT_OFF and all_zeros(req):
            req.op = OP_WRITE_ZEROES
            if target.detect_zeroes == DETECT_UNMAP:
                req.flags |= FLAG_UNMAP
            allocate_step(target, req, step)
            return
        # O_DIRECT wants whole blocks of each call, so a long list is not cut there.
        if target.memory_alignment > 1 and (req.niov > IOV_LIMIT
                                            or not aligned(req, target.memory_alignment)):
            if not take_bounce(req, target.memory_alignment):
                transfer_done(req, -ENOMEM, step)
                return
        transfer_step(req, step)
    elif req.op == OP_FLUSH:
        if target.ignore_flush:
            done(step, 0)
        else:
            req.phase = SYNCING
            step.kind = STEP_SYNC
    elif req.op == OP_EXTENT:
        find_extent(target, req)
        done(step, 0)
    elif req.op == OP_WRITE_ZEROES:
        allocate_step(target, req, step)
    elif req.op == OP_DISCARD:
        if target.discard:
            allocate_step(target, req, step)
        else:
            done(step, 0)
    else:
        done(step, -EOPNOTSUPP)


cdef void next_step(FileTarget *target, Request *req, int64_t result, Step *step) noexcept nogil:
    """What follows the step of req that had this result (as the system call's, or -errno)."""
    if req.phase == TRANSFER:
        transfer_result(target, req, result, step)
    elif req.phase == ALLOCATING:
        allocate_result(target, req, result, step)
    elif req.phase == ZEROING:
        zeroing_result(req, result, step)
    elif result == -EINTR or result == -EAGAIN:
        step.kind = STEP_SYNC
    else:
        done(step, result)


cdef int64_t perform_step(FileTarget *target, Step *step) noexcept nogil:
    """Make the step's system call and wait for it: for threads that may block."""
    cdef int64_t result
    if step.kind == STEP_READ:
        result = preadv(target.fd, step.iov, <int> step.count, <int64_t> step.offset)
    elif step.kind == STEP_WRITE:
        result = pwritev2(target.fd, step.iov, <int> step.count, <int64_t> step.offset,
                          RWF_DSYNC if step.dsync else 0)
    elif step.kind == STEP_SYNC:
        result = fdatasync(target.fd)
    else:
        result = fallocate(target.fd, step.mode, <int64_t> step.offset, <int64_t> step.length)
    return -errno if result < 0 else result
