# Every external declaration of the data plane: the C library, the kernel, io_uring, the virtio
# ring layouts and our memory-ordering operations.

from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libc.string cimport memset


cdef extern from "atomics.h" nogil:
    uint16_t vr_load_acquire_u16(const void *p) noexcept
    uint16_t vr_load_relaxed_u16(const void *p) noexcept
    void vr_store_release_u16(void *p, uint16_t v) noexcept
    void vr_store_relaxed_u16(void *p, uint16_t v) noexcept
    uint8_t vr_load_relaxed_u8(const void *p) noexcept
    void vr_store_relaxed_u8(void *p, uint8_t v) noexcept
    uint32_t vr_load_acquire_u32(const void *p) noexcept
    uint32_t vr_load_relaxed_u32(const void *p) noexcept
    void vr_store_relaxed_u32(void *p, uint32_t v) noexcept
    void vr_store_release_u32(void *p, uint32_t v) noexcept
    uint32_t vr_exchange_u32(void *p, uint32_t v) noexcept
    uint32_t vr_fetch_add_u32(void *p, uint32_t v) noexcept
    uint32_t vr_fetch_or_u32(void *p, uint32_t bits) noexcept
    uint32_t vr_fetch_and_u32(void *p, uint32_t bits) noexcept
    uint64_t vr_load_acquire_u64(const void *p) noexcept
    uint64_t vr_load_relaxed_u64(const void *p) noexcept
    uint64_t vr_fetch_add_u64(void *p, uint64_t v) noexcept
    void vr_store_relaxed_u64(void *p, uint64_t v) noexcept
    void vr_store_release_u64(void *p, uint64_t v) noexcept
    void vr_count_u64(void *p, uint64_t n) noexcept
    void vr_or_relaxed_u8(void *p, uint8_t bits) noexcept
    void vr_store_release_ptr(void **p, void *v) noexcept
    void *vr_exchange_ptr(void **p, void *v) noexcept
    void *vr_load_relaxed_ptr(void **p) noexcept
    void *vr_load_acquire_ptr(void **p) noexcept
    void vr_push_ptr(void **head, void *entry, void **next_of_entry) noexcept
    void vr_fence_full() noexcept
    void vr_fence_compiler() noexcept
    void vr_relax() noexcept


cdef extern from "<errno.h>" nogil:
    int errno
    int EAGAIN, EBADF, EBUSY, ECANCELED, EFAULT, EINTR, EINVAL, EIO, ENODEV, ENOENT, ENOMEM
    int ENOSPC, ENOSYS, ENOTSUP, ENOTTY, ENXIO, EOPNOTSUPP, EOVERFLOW, EPERM, ERANGE, ETIME
    int ETIMEDOUT


cdef extern from "<sys/types.h>" nogil:
    ctypedef int64_t off_t
    ctypedef int64_t ssize_t


cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t preadv(int fd, const iovec *iov, int iovcnt, off_t offset)
    ssize_t pwritev(int fd, const iovec *iov, int iovcnt, off_t offset)
    ssize_t pwritev2(int fd, const iovec *iov, int iovcnt, off_t offset, int flags)
    int RWF_DSYNC


cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **memory, size_t alignment, size_t size)


cdef extern from "<unistd.h>" nogil:
    ssize_t read(int fd, void *buf, size_t n)
    ssize_t write(int fd, const void *buf, size_t n)
    int close(int fd)
    int dup(int fd)
    int fdatasync(int fd)
    off_t lseek(int fd, off_t offset, int whence)
    int SEEK_DATA, SEEK_HOLE
    long syscall(long number, ...)
    long sysconf(int name)
    int _SC_PAGESIZE


cdef extern from "<sys/syscall.h>" nogil:
    long SYS_io_setup, SYS_io_destroy, SYS_io_submit, SYS_io_getevents


cdef extern from "<fcntl.h>" nogil:
    int fcntl(int fd, int cmd, ...)
    int fallocate(int fd, int mode, off_t offset, off_t length)
    int F_DUPFD_CLOEXEC
    int FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE


cdef extern from "<sys/ioctl.h>" nogil:
    int ioctl(int fd, unsigned long request, ...)


cdef extern from "<linux/fs.h>" nogil:
    unsigned long BLKDISCARD, BLKSECDISCARD, BLKZEROOUT


cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *addr, size_t length, int prot, int flags, int fd, off_t offset)
    int munmap(void *addr, size_t length)
    int madvise(void *addr, size_t length, int advice)
    int PROT_READ, PROT_WRITE
    int MAP_SHARED, MAP_PRIVATE, MAP_ANONYMOUS, MAP_FIXED, MAP_NORESERVE
    int MADV_DONTFORK, MADV_DONTDUMP
    void *MAP_FAILED


cdef extern from "<sys/eventfd.h>" nogil:
    int eventfd(unsigned int initval, int flags)
    int EFD_CLOEXEC, EFD_NONBLOCK


cdef extern from "<poll.h>" nogil:
    struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd *fds, unsigned long count, int timeout_ms)
    int POLLIN, POLLOUT


cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec *ts)
    int CLOCK_MONOTONIC, CLOCK_THREAD_CPUTIME_ID


cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout_ms)
    int epoll_pwait2(int epfd, epoll_event *events, int maxevents, const timespec *timeout,
                     const void *sigmask)
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_DEL
    uint32_t EPOLLIN, EPOLLET


cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_t:
        pass
    ctypedef struct pthread_attr_t:
        pass
    ctypedef struct pthread_mutex_t:
        pass
    ctypedef struct pthread_cond_t:
        pass
    int pthread_create(pthread_t *thread, const pthread_attr_t *attr,
                       void *(*start)(void *) noexcept nogil, void *arg)
    int pthread_join(pthread_t thread, void **result)
    int pthread_mutex_init(pthread_mutex_t *mutex, void *attr)
    int pthread_mutex_lock(pthread_mutex_t *mutex)
    int pthread_mutex_unlock(pthread_mutex_t *mutex)
    int pthread_mutex_destroy(pthread_mutex_t *mutex)
    int pthread_cond_init(pthread_cond_t *cond, void *attr)
    int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
    int pthread_cond_signal(pthread_cond_t *cond)
    int pthread_cond_broadcast(pthread_cond_t *cond)
    int pthread_cond_destroy(pthread_cond_t *cond)


cdef extern from "<signal.h>" nogil:
    ctypedef struct siginfo_t:
        void *si_addr
    ctypedef struct sigset_t:
        pass
    struct sigaction_t "sigaction":
        void (*sa_sigaction)(int, siginfo_t *, void *) noexcept nogil
        int sa_flags
        sigset_t sa_mask
    int sigaction(int signum, const sigaction_t *act, sigaction_t *old)
    int sigfillset(sigset_t *set)
    int sigemptyset(sigset_t *set)
    int pthread_sigmask(int how, const sigset_t *set, sigset_t *old)
    int raise_signal "raise"(int signum)
    int sigdelset(sigset_t *set, int signum)
    int SIGSEGV, SIGFPE, SIGILL, SIGURG
    int SIGBUS, SA_SIGINFO, SA_NODEFER, SA_ONSTACK, SIG_BLOCK, SIG_SETMASK


cdef extern from "<linux/virtio_ring.h>" nogil:
    # Fields are little-endian; vringd supports little-endian hosts only (x86-64, arm64).
    struct vring_desc:
        uint64_t addr
        uint32_t len
        uint16_t flags
        uint16_t next
    struct vring_used_elem:
        uint32_t id
        uint32_t len
    struct vring_packed_desc:
        uint64_t addr
        uint32_t len
        uint16_t id
        uint16_t flags
    struct vring_packed_desc_event:
        uint16_t off_wrap
        uint16_t flags
    int VRING_DESC_F_NEXT, VRING_DESC_F_WRITE, VRING_DESC_F_INDIRECT
    int VRING_PACKED_DESC_F_AVAIL, VRING_PACKED_DESC_F_USED
    int VRING_USED_F_NO_NOTIFY, VRING_AVAIL_F_NO_INTERRUPT
    int VRING_PACKED_EVENT_FLAG_ENABLE, VRING_PACKED_EVENT_FLAG_DISABLE
    int VRING_PACKED_EVENT_FLAG_DESC, VRING_PACKED_EVENT_F_WRAP_CTR
    int VIRTIO_RING_F_INDIRECT_DESC, VIRTIO_RING_F_EVENT_IDX


cdef extern from "<linux/virtio_config.h>" nogil:
    int VIRTIO_F_VERSION_1, VIRTIO_F_RING_PACKED, VIRTIO_F_IN_ORDER


cdef extern from "<liburing.h>" nogil:
    struct io_uring_sq:
        unsigned *kflags
    struct io_uring_cq:
        unsigned *khead
        unsigned *ktail
        unsigned *kflags
    struct io_uring:
        io_uring_sq sq
        io_uring_cq cq
        unsigned flags
        int ring_fd
        unsigned features
    struct io_uring_sqe:
        uint8_t opcode
        uint8_t flags
        uint16_t ioprio
        int32_t fd
        uint64_t off
        uint64_t addr
        uint32_t len
        int rw_flags
        uint64_t user_data
        uint16_t buf_index
    struct io_uring_cqe:
        uint64_t user_data
        int32_t res
        uint32_t flags
    struct io_uring_params:
        uint32_t flags
        uint32_t cq_entries
        uint32_t features
    struct __kernel_timespec:
        int64_t tv_sec
        long long tv_nsec

    int io_uring_queue_init_params(unsigned entries, io_uring *ring, io_uring_params *p)
    void io_uring_queue_exit(io_uring *ring)
    io_uring_sqe *io_uring_get_sqe(io_uring *ring)
    int io_uring_submit(io_uring *ring)
    int io_uring_submit_and_get_events(io_uring *ring)
    int io_uring_submit_and_wait_timeout(io_uring *ring, io_uring_cqe **cqe, unsigned wait_nr,
                                         __kernel_timespec *ts, sigset_t *sigmask)
    int io_uring_submit_and_wait(io_uring *ring, unsigned wait_nr)
    int io_uring_get_events(io_uring *ring)
    unsigned io_uring_peek_batch_cqe(io_uring *ring, io_uring_cqe **cqes, unsigned count)
    void io_uring_cq_advance(io_uring *ring, unsigned count)
    unsigned io_uring_sq_ready(const io_uring *ring)
    unsigned io_uring_cq_ready(const io_uring *ring)
    int io_uring_register_ring_fd(io_uring *ring)
    int io_uring_register_files_sparse(io_uring *ring, unsigned nr)
    int io_uring_register_files_update(io_uring *ring, unsigned off, const int *files,
                                       unsigned nr)
    int io_uring_register_buffers_sparse(io_uring *ring, unsigned nr)
    int io_uring_register_buffers_update_tag(io_uring *ring, unsigned off, const iovec *iovecs,
                                             const unsigned long long *tags, unsigned nr)
    void io_uring_prep_poll_multishot(io_uring_sqe *sqe, int fd, unsigned mask)
    void io_uring_prep_poll_remove(io_uring_sqe *sqe, uint64_t user_data)
    void io_uring_prep_cancel64(io_uring_sqe *sqe, uint64_t user_data, int flags)
    void io_uring_prep_read(io_uring_sqe *sqe, int fd, void *buf, unsigned n, uint64_t offset)
    void io_uring_prep_write(io_uring_sqe *sqe, int fd, const void *buf, unsigned n,
                             uint64_t offset)
    void io_uring_prep_readv(io_uring_sqe *sqe, int fd, const iovec *iov, unsigned n,
                             uint64_t offset)
    void io_uring_prep_writev(io_uring_sqe *sqe, int fd, const iovec *iov, unsigned n,
                              uint64_t offset)
    void io_uring_prep_read_fixed(io_uring_sqe *sqe, int fd, void *buf, unsigned n,
                                  uint64_t offset, int index)
    void io_uring_prep_write_fixed(io_uring_sqe *sqe, int fd, const void *buf, unsigned n,
                                   uint64_t offset, int index)
    void io_uring_prep_fsync(io_uring_sqe *sqe, int fd, unsigned flags)
    void io_uring_prep_fallocate(io_uring_sqe *sqe, int fd, int mode, off_t offset, off_t length)
    void io_uring_sqe_set_data64(io_uring_sqe *sqe, uint64_t data)
    int IORING_SETUP_SINGLE_ISSUER, IORING_SETUP_DEFER_TASKRUN, IORING_SETUP_COOP_TASKRUN
    int IORING_SETUP_TASKRUN_FLAG, IORING_SETUP_CQSIZE, IORING_SETUP_CLAMP
    int IORING_SQ_TASKRUN, IORING_SQ_CQ_OVERFLOW
    int IORING_CQE_F_MORE
    int IORING_FEAT_RSRC_TAGS
    int IORING_FSYNC_DATASYNC
    int IOSQE_FIXED_FILE


cdef extern from "<linux/aio_abi.h>" nogil:
    ctypedef unsigned long aio_context_t
    struct iocb:
        uint64_t aio_data
        uint32_t aio_rw_flags
        uint16_t aio_lio_opcode
        uint32_t aio_fildes
        uint64_t aio_buf
        uint64_t aio_nbytes
        int64_t aio_offset
        uint32_t aio_flags
        uint32_t aio_resfd
    struct io_event:
        uint64_t data
        uint64_t obj
        int64_t res
        int64_t res2
    int IOCB_CMD_PREADV, IOCB_CMD_PWRITEV, IOCB_CMD_FDSYNC, IOCB_FLAG_RESFD


cdef extern from * nogil:
    """
    #include <sys/prctl.h>
    #include <sys/syscall.h>
    #include <unistd.h>
    #include <time.h>
    #include <stdint.h>

    static inline uint64_t vr_now_ns(void)
    {
        struct timespec ts;
        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
    }
    #define vr_likely(x) __builtin_expect(!!(x), 1)
    #define vr_unlikely(x) __builtin_expect(!!(x), 0)
    #define vr_log2(x) (63 - __builtin_clzll((x) | 1))
    #define vr_gettid() ((int)syscall(SYS_gettid))
    #define vr_tgkill(tid, number) ((int)syscall(SYS_tgkill, getpid(), tid, number))
    #define vr_prefetch(p) __builtin_prefetch(p)
    """
    uint64_t vr_now_ns() noexcept            # CLOCK_MONOTONIC, nanoseconds
    bint vr_likely(bint x) noexcept
    bint vr_unlikely(bint x) noexcept
    int vr_log2(uint64_t x) noexcept         # floor(log2(x)), 0 for 0
    void vr_prefetch(const void *p) noexcept
    int vr_gettid() noexcept
    int vr_tgkill(int tid, int number) noexcept
    int prctl(int option, ...)
    int PR_SET_NAME


cdef inline uint64_t align_up(uint64_t value, uint64_t alignment) noexcept nogil:
    """Round up to a power of two; wraps only if value > 2^64 - alignment."""
    return (value + alignment - 1) & ~(alignment - 1)


cdef enum:
    CACHE_LINE = 128            # two lines of 64: the prefetcher fetches them in pairs


cdef inline void *alloc_lines(size_t size) noexcept nogil:
    """Zeroed memory that shares no cache line with anything else; NULL if there is none."""
    cdef void *memory = NULL
    size = <size_t> align_up(size, CACHE_LINE)
    if posix_memalign(&memory, CACHE_LINE, size) != 0:
        return NULL
    memset(memory, 0, size)
    return memory
