# What an IOThread runs: thread_main(ThreadState *), for pthread_create.

cdef void *thread_main(void *argument) noexcept nogil
