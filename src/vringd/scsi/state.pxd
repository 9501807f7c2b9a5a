# What SCSI commands work with: the logical unit, who reaches it, and the command itself.
# Terms are SAM-6's. Nothing here knows a transport.
#
# A command runs in one IOThread from execute_task to TaskOwner.complete and takes no lock, with
# the exceptions that locks.pxd names. What threads share is in single words:
#   - words of UnitState and NexusState that are marked "word": loaded relaxed by commands, stored
#     (release) under UnitState.lock;
#   - Lane: written by its IOThread only, looked at by others that wait for its tasks to end.

from libc.stdint cimport int32_t, uint16_t, uint32_t, uint64_t, uint8_t

from vringd.core.sys cimport iovec, pthread_mutex_t
from vringd.core.vring cimport Request


cdef enum:
    CDB_ROOM = 32               # longer CDBs (7Fh) are kept cut: no such command is supported
    SENSE_ROOM = 64             # most that is ever made: descriptor format with four descriptors
    MAX_LANES = 64              # IOThreads of one nexus
    NAME_ROOM = 224             # of an initiator port, with the final zero


cdef enum UnitType:             # peripheral device type
    TYPE_DISK = 0x00
    TYPE_CDROM = 0x05


cdef enum TaskStatus:           # SAM status codes
    STATUS_GOOD = 0x00
    STATUS_CHECK_CONDITION = 0x02
    STATUS_CONDITION_MET = 0x04
    STATUS_BUSY = 0x08
    STATUS_RESERVATION_CONFLICT = 0x18
    STATUS_TASK_SET_FULL = 0x28
    STATUS_TASK_ABORTED = 0x40


cdef enum TaskAttribute:
    ATTRIBUTE_SIMPLE
    ATTRIBUTE_ORDERED
    ATTRIBUTE_HEAD_OF_QUEUE
    ATTRIBUTE_ACA               # not supported: INVALID MESSAGE is the transport's to say


cdef enum Gate:                 # NexusState.gate: 0 for the common case, so one load decides
    GATE_ATTENTIONS = 0x0000ffff        # a bit for each unit attention condition (attention.pxd)
    GATE_NO_WRITES = 0x00010000         # a persistent reservation keeps this nexus from writing
    GATE_NO_ACCESS = 0x00020000         # ... and from reading
    GATE_RESERVED = 0x00040000          # another nexus holds a RESERVE(6/10) reservation


cdef enum Medium:               # UnitState.medium
    MEDIUM_READY
    MEDIUM_ABSENT               # removable: nothing is inserted
    MEDIUM_EJECTED              # removable: the tray is open, with the medium in it


ctypedef void (*TaskStep)(ScsiTask *task) noexcept nogil


cdef struct OpEntry:            # of opcodes.pyx: one operation that REPORT SUPPORTED OPCODES lists
    uint8_t opcode
    uint8_t has_action
    uint16_t action
    uint8_t length              # of the CDB
    uint8_t types               # bits: 1 disk, 2 CD-ROM
    uint16_t flags              # OpFlags of opcodes.pxd
    uint8_t usage[16]           # CDB usage data: bits that may be set, but for byte 0
    uint64_t refused[2]         # the same, ready to test: bits that must not be set
    TaskStep run
    OpEntry *next               # the same opcode, another service action


cdef struct Identity:           # what INQUIRY tells; never changes while the unit exists
    char vendor[8]              # padded with blanks, as on the wire
    char product[16]
    char revision[4]
    uint8_t serial[64]
    uint8_t serial_length
    uint8_t device_id[64]       # T10 vendor specific or SCSI name, as given
    uint8_t device_id_length
    uint64_t wwn                # NAA identifier, 0: none
    uint16_t rotation_rate      # VPD B1: 0 not reported, 1 non-rotating, otherwise rpm


cdef struct UnitState:
    # ---- read by every command; words
    uint64_t blocks             # word: capacity in logical blocks
    uint32_t medium             # word: Medium
    uint32_t writeback          # word: caching page's WCE
    uint32_t write_protected    # word: read-only backend, or control page's SWP
    uint32_t waiters            # word: tasks that wait for tasks of other threads (locks.pxd)
    uint32_t exclusive          # word: atomic commands (COMPARE AND WRITE, ORWRITE) in progress
    uint32_t descriptor_sense   # word: control page's D_SENSE
    uint8_t block_shift
    uint8_t type                # UnitType
    uint8_t removable
    uint8_t read_only           # the backend is
    uint8_t thin                # UNMAP deallocates (LBPME)
    uint8_t can_zero            # deallocated blocks read as zeros (LBPRZ)
    uint8_t runners_fence       # membarrier is refused: see fence_of_runner in locks.pxd
    OpEntry **operations        # [256]: by opcode; NULL: not supported
    # ---- limits of Block Limits VPD, in blocks; never change
    uint32_t max_transfer
    uint32_t optimal_transfer
    uint32_t transfer_granularity
    uint32_t max_unmap
    uint32_t max_unmap_descriptors
    uint32_t unmap_granularity
    uint64_t max_write_same
    uint8_t max_compare         # COMPARE AND WRITE
    uint8_t physical_exponent   # log2 of logical blocks in a physical one
    Identity identity
    # ---- shared state that changes seldom: under lock
    pthread_mutex_t lock
    NexusState *nexuses
    uint32_t prevents           # word: nexuses that prevent the removal of the medium
    uint32_t swp                # word: control page's SWP
    uint8_t default_writeback   # WCE after a reset
    NexusState *reserved_by     # RESERVE(6/10)
    void *reservations          # Reservations of reservations.pxd; NULL: none so far
    void *store                 # ReservationStore (borrowed); NULL: nothing can be kept
    ScsiTask *atomic            # atomic tasks, oldest first: active ones and those that wait
    ScsiTask *slow_writes       # writes that began while there was an atomic task
    ScsiTask *waiting           # tasks that wait for these, or for tasks that are being aborted
    uint64_t ticket             # given to tasks in the order in which they ask for a range
    uint32_t media_events       # GET EVENT STATUS NOTIFICATION: what is new
    int change_fd               # eventfd: mode_changes of some nexus has grown
    void *object                # the ScsiUnit


cdef struct NexusState:
    # An I_T_L nexus: one initiator's access to one logical unit. On cache lines of its own.
    uint32_t gate               # word: Gate bits; attentions are set and cleared atomically
    uint32_t generation         # word: tasks that began in an earlier one are aborted
    uint32_t ended              # the generation that the control plane's last abort ended
    uint32_t reset_generation   # word: the last generation that a reset ended; none: its own + 1
    uint32_t mode_changes       # word: how often others have changed mode parameters
    uint32_t prevents           # this nexus prevents the removal of the medium
    ScsiTask *aborter           # PREEMPT AND ABORT that waits for tasks of this nexus
    uint32_t awaited            # which of Lane.running counts them
    UnitState *unit
    Lane *lanes[MAX_LANES]      # word: by the owner's numbers for its IOThreads
    NexusState *next
    uint16_t port               # relative target port identifier
    uint8_t protocol            # of the TransportID
    char name[NAME_ROOM]        # of the initiator port: iqn..., unique among initiators
    void *object                # the ScsiNexus


cdef struct Lane:
    # One IOThread's way from a nexus to the back-end; written by that IOThread only.
    void *channel               # Channel of that IOThread (borrowed)
    NexusState *nexus
    ScsiTask *first             # tasks in execution, newest first: for that IOThread only
    uint32_t running[2]         # word: tasks in execution, by NexusState.generation & 1
    uint32_t writes             # word: of those, writes that began without a lock


cdef struct ScsiTask:
    # A command, from execute_task to TaskOwner.complete. One preallocated beside each Request.
    # ---- the owner sets these before execute_task
    void *owner                 # TaskOwner (borrowed)
    UnitState *unit
    NexusState *nexus
    Lane *lane
    void *target                # ScsiTarget (borrowed) for REPORT LUNS; NULL: there is LUN 0 only
    Request *req                # for operations of lane.channel; req.device_data leads to the task
    iovec *out_iov              # Data-Out buffer. Both lists may be trimmed by the command
    iovec *in_iov               # Data-In buffer
    uint32_t out_niov
    uint32_t in_niov
    uint64_t out_length         # bytes; the sum of the list
    uint64_t in_length
    uint64_t tag                # the owner's
    uint8_t attribute           # TaskAttribute
    uint8_t cdb_length
    uint8_t cdb[CDB_ROOM]       # zeros after cdb_length
    # ---- the outcome
    uint8_t status              # TaskStatus
    uint8_t sense_length        # autosense; 0: none
    uint8_t overrun             # the CDB asks for more than the buffers hold: nothing was
    #                             transferred. CHECK CONDITION, unless the owner has a word for it
    uint8_t aborted             # by a reset, a TMF or PREEMPT AND ABORT: no status is to be sent
    uint64_t transferred        # bytes put into the Data-In buffer, or taken from Data-Out
    uint64_t given              # bytes put into the Data-In buffer: what the initiator may look at
    uint64_t residual           # bytes of the buffer that the command had no use for
    uint8_t sense[SENSE_ROOM]
    # ---- while it runs: the device server's
    ScsiTask *next              # Lane.first
    ScsiTask *previous
    TaskStep step               # what goes on when req's operation is done
    OpEntry *command
    uint32_t generation         # of the nexus when it began
    uint8_t counted             # locks.pxd: how this write is known to atomic commands
    uint8_t waits               # it is in UnitState.waiting
    uint8_t phase               # the command's
    uint8_t looping             # submit_in_loop is on the stack: a completion is noted only
    uint8_t looped              # the completion came
    uint8_t parity              # which of Lane.running counts it
    uint64_t ticket             # its turn among tasks that want the same range
    uint64_t lba                # of the range that it transfers, verifies or changes
    uint64_t blocks
    uint64_t cursor             # the command's: how far it is
    uint64_t end
    uint8_t *work               # memory of the command's own, freed when it is finished
    uint64_t work_size
    iovec work_iov              # for operations that transfer to or from work
    ScsiTask *link              # in a list of ranges of UnitState, or of tasks to be stored
    ScsiTask *wait_link         # in UnitState.waiting


cdef class TaskOwner:
    cdef void complete(self, ScsiTask *task) noexcept nogil
