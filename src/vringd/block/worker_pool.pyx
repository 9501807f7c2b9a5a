"""A pool of blocking threads that belongs to one channel and grows on demand.

Only a slow path takes its lock: the IOThread to hand a request over, a worker to fetch one.
"""

from libc.stdlib cimport calloc, free

from vringd.block.file_steps cimport (
    STEP_DONE, FileTarget, Step, first_step, next_step, perform_step)
from vringd.core.channel cimport finish_remotely
from vringd.core.sys cimport (
    ENOMEM, PR_SET_NAME, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIG_SETMASK, prctl,
    pthread_cond_broadcast, pthread_cond_destroy, pthread_cond_init, pthread_cond_signal,
    pthread_cond_wait, pthread_create, pthread_join, pthread_mutex_destroy, pthread_mutex_init,
    pthread_mutex_lock, pthread_mutex_unlock, pthread_sigmask, sigdelset, sigfillset, sigset_t)


cdef int pool_start(WorkerPool *pool, FileTarget *target, ThreadState *thread,
                    int minimum, int limit) noexcept nogil:
    """Prepare a zeroed pool of minimum to limit threads; 0 or a negative errno."""
    cdef int rc
    pool.target, pool.thread, pool.limit = target, thread, limit
    pool.workers = <pthread_t *> calloc(<size_t> limit, sizeof(pthread_t))
    if pool.workers == NULL:
        return -ENOMEM
    pthread_mutex_init(&pool.lock, NULL)
    pthread_cond_init(&pool.wakeup, NULL)
    while pool.count < min(minimum, limit):
        rc = pthread_create(&pool.workers[pool.count], NULL, worker_main, pool)
        if rc != 0:
            pool_stop(pool)
            return -rc
        pool.count += 1
    return 0


cdef void execute(WorkerPool *pool, Request *req) noexcept nogil:
    cdef Step step
    first_step(pool.target, req, &step)
    while step.kind != STEP_DONE:
        next_step(pool.target, req, perform_step(pool.target, &step), &step)
    finish_remotely(pool.thread, req, step.result)


cdef void *worker_main(void *argument) noexcept nogil:
    cdef WorkerPool *pool = <WorkerPool *> argument
    cdef Request *req
    cdef sigset_t blocked
    sigfillset(&blocked)
    sigdelset(&blocked, SIGBUS)
    sigdelset(&blocked, SIGSEGV)
    sigdelset(&blocked, SIGFPE)
    sigdelset(&blocked, SIGILL)
    pthread_sigmask(SIG_SETMASK, &blocked, NULL)
    prctl(PR_SET_NAME, <char *> b"vringd-worker")
    pthread_mutex_lock(&pool.lock)
    while True:
        while pool.first == NULL and not pool.stopping:
            pool.idle += 1
            pthread_cond_wait(&pool.wakeup, &pool.lock)
            pool.idle -= 1
        req = pool.first
        if req == NULL:
            break
        pool.first = req.next
        pthread_mutex_unlock(&pool.lock)
        execute(pool, req)
        pthread_mutex_lock(&pool.lock)
    pthread_mutex_unlock(&pool.lock)
    return NULL


cdef void pool_submit(WorkerPool *pool, Request *req) noexcept nogil:
    """Run req's operation in some worker; its outcome reaches the IOThread."""
    cdef bint alone = False
    req.next = NULL
    pthread_mutex_lock(&pool.lock)
    if pool.first == NULL:
        pool.first = req
    else:
        pool.last.next = req
    pool.last = req
    if pool.idle == 0 and pool.count < pool.limit:
        if pthread_create(&pool.workers[pool.count], NULL, worker_main, pool) == 0:
            pool.count += 1
        alone = pool.count == 0
        if alone:
            pool.first = NULL
    pthread_cond_signal(&pool.wakeup)
    pthread_mutex_unlock(&pool.lock)
    if alone:                   # no thread can be had: slow is better than never
        execute(pool, req)


cdef void pool_stop(WorkerPool *pool) noexcept nogil:
    """End all workers; no request is in flight."""
    cdef int i
    if pool.workers == NULL:
        return
    pthread_mutex_lock(&pool.lock)
    pool.stopping = 1
    pthread_cond_broadcast(&pool.wakeup)
    pthread_mutex_unlock(&pool.lock)
    for i in range(pool.count):
        pthread_join(pool.workers[i], NULL)
    pthread_cond_destroy(&pool.wakeup)
    pthread_mutex_destroy(&pool.lock)
    free(pool.workers)
    pool.workers = NULL
