# What a block request asks of its channel: Request.op and Request.flags.
#
# offset and length are bytes and multiples of the disk's logical block; reads and writes transfer
# iov[0:niov], whose lengths sum to length. The device has checked the range against the disk's
# size before it submits.

from libc.stdint cimport uint8_t


cdef enum Op:
    OP_READ
    OP_WRITE
    OP_FLUSH                    # all writes that completed before it become durable
    OP_DISCARD                  # contents become undefined; advice, never an error to ignore
    OP_WRITE_ZEROES
    OP_SECURE_ERASE
    OP_EXTENT                   # how many bytes from offset are alike: length is cut to them, and
    #                             FLAG_HOLE says that they are not stored and read as zeros. A
    #                             channel that cannot tell leaves both as they are


cdef enum OpFlag:
    FLAG_FUA = 1                # durable before it completes
    FLAG_UNMAP = 2              # of OP_WRITE_ZEROES: may deallocate
    FLAG_HOLE = 4               # the outcome of OP_EXTENT
