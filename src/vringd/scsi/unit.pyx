"""Logical units: making them, and what happens to them that is not a command."""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from vringd.core.channel cimport Channel
from vringd.core.sys cimport (
    EFD_CLOEXEC, EFD_NONBLOCK, alloc_lines, close, errno, eventfd, pthread_mutex_destroy,
    pthread_mutex_init, pthread_mutex_lock, pthread_mutex_unlock, vr_load_acquire_u32,
    vr_load_relaxed_u32, vr_load_relaxed_u64, vr_store_release_ptr, vr_store_release_u32,
    vr_store_release_u64)
from vringd.scsi.attention cimport (
    ATTENTION_CAPACITY, ATTENTION_CLEARED, ATTENTION_EJECT, ATTENTION_MEDIUM, ATTENTION_NEXUS_LOSS,
    ATTENTION_POWER_ON, ATTENTION_RESET, raise_attention, raise_attentions)
from vringd.scsi.locks cimport begin_abort, pass_fence_everywhere, register_fences
from vringd.scsi.opcodes cimport operations_of
from vringd.scsi.readiness cimport (
    MEDIA_EJECT_REQUEST, MEDIA_NEW, MEDIA_REMOVED, allow_removal)
from vringd.scsi.reservation_store cimport ReservationStore
from vringd.scsi.reservations cimport (
    Registration, Reservations, add_registration, drop_reserve, find_name, find_registration,
    set_gates)
from vringd.scsi.state cimport (
    MAX_LANES, MEDIUM_ABSENT, MEDIUM_EJECTED, MEDIUM_READY, NAME_ROOM, TYPE_CDROM, TYPE_DISK,
    Lane, NexusState)

import os

import vringd
from vringd.scsi.reservation_file import load_reservations

cdef enum:
    CDROM_BLOCK = 2048
    MOST_COMPARED = 1 << 20             # bytes of a COMPARE AND WRITE
    MOST_UNMAPPED = 1 << 20             # blocks of one UNMAP
    MOST_WRITTEN_SAME = 1 << 30         # bytes of one WRITE SAME

_TYPES = {"disk": TYPE_DISK, "cdrom": TYPE_CDROM}
_MEDIA = {MEDIUM_READY: "ready", MEDIUM_ABSENT: "absent", MEDIUM_EJECTED: "ejected"}


# ---- resets and aborts, in any thread -----------------------------------------------------------

cdef inline void end_generation(NexusState *nexus) noexcept nogil:
    """Under the lock."""
    nexus.ended = nexus.generation
    begin_abort(nexus)


cdef inline void begin_reset(NexusState *nexus) noexcept nogil:
    """Under the lock."""
    vr_store_release_u32(&nexus.reset_generation, nexus.generation)
    end_generation(nexus)


cdef void abort_nexus(NexusState *nexus) noexcept nogil:
    """Abort all tasks of the nexus. They have ended when Lane.running of NexusState.ended's parity
    is 0 in all its lanes."""
    pthread_mutex_lock(&nexus.unit.lock)
    end_generation(nexus)
    pthread_mutex_unlock(&nexus.unit.lock)
    # After this no task counts itself with the former generation and goes on.
    pass_fence_everywhere()


cdef void lose_nexus(NexusState *nexus) noexcept nogil:
    """I_T NEXUS RESET, or the initiator went away: what belonged to the nexus ends (SAM-6 6.3.4).
    Registrations stay."""
    cdef UnitState *unit = nexus.unit
    pthread_mutex_lock(&unit.lock)
    begin_reset(nexus)
    raise_attention(nexus, ATTENTION_NEXUS_LOSS)
    allow_removal(nexus)
    if unit.reserved_by == nexus:
        drop_reserve(unit)
    pthread_mutex_unlock(&unit.lock)
    pass_fence_everywhere()


cdef void reset_unit(UnitState *unit, int attention) noexcept nogil:
    """LOGICAL UNIT RESET (SAM-6 6.3.3): all tasks are aborted, mode parameters become the
    defaults, everybody is told. Persistent reservations stay."""
    cdef NexusState *nexus
    pthread_mutex_lock(&unit.lock)
    nexus = unit.nexuses
    while nexus != NULL:
        begin_reset(nexus)
        allow_removal(nexus)
        nexus = nexus.next
    drop_reserve(unit)
    vr_store_release_u32(&unit.writeback, unit.default_writeback)
    vr_store_release_u32(&unit.descriptor_sense, 0)
    vr_store_release_u32(&unit.swp, 0)
    vr_store_release_u32(&unit.write_protected, unit.read_only)
    raise_attentions(unit, <uint32_t> attention, NULL)
    pthread_mutex_unlock(&unit.lock)
    pass_fence_everywhere()


cdef void clear_task_set(UnitState *unit, NexusState *by) noexcept nogil:
    """CLEAR TASK SET (SAM-6 7.5): the tasks of all initiators are aborted, the others are told."""
    cdef NexusState *nexus
    pthread_mutex_lock(&unit.lock)
    nexus = unit.nexuses
    while nexus != NULL:
        end_generation(nexus)
        nexus = nexus.next
    raise_attentions(unit, ATTENTION_CLEARED, by)
    pthread_mutex_unlock(&unit.lock)
    pass_fence_everywhere()


cdef list ended_generations(UnitState *unit):
    """A list of (ScsiNexus, NexusState.ended). Only the control plane adds and removes nexuses,
    so no lock is needed."""
    cdef NexusState *nexus = unit.nexuses
    found = []
    while nexus != NULL:
        found.append((<ScsiNexus> nexus.object, nexus.ended))
        nexus = nexus.next
    return found


# ---- checks -------------------------------------------------------------------------------------

cdef bytes ascii_field(str name, str value, int most):
    """value, which INQUIRY data tell. Raises ValueError."""
    if len(value) > most or not all(0x20 <= ord(c) < 0x7f for c in value):
        raise ValueError(f"{name} {value!r} is not at most {most} printable ASCII characters")
    return value.encode("ascii")


cdef void pad(char *field, bytes value, int size):
    memset(field, 0x20, size)
    memcpy(field, <char *> value, len(value))


# ---- the unit -----------------------------------------------------------------------------------

cdef class ScsiUnit:
    """A logical unit. Several initiators may reach it, in this process, through a nexus each.

    settings: `vringd.scsi.settings.UnitSettings`; limits: of the back-end; size: bytes, or None if
    nothing is in a removable unit. Raises ValueError, and what reading pr_file raises.
    """

    def __cinit__(self, *args, **kwargs):
        self.state = <UnitState *> alloc_lines(sizeof(UnitState))
        if self.state == NULL:
            raise MemoryError
        pthread_mutex_init(&self.state.lock, NULL)
        self.state.change_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if self.state.change_fd < 0:
            raise OSError(errno, os.strerror(errno))

    def __dealloc__(self):
        if self.state != NULL:
            if self.state.change_fd >= 0:
                close(self.state.change_fd)
            pthread_mutex_destroy(&self.state.lock)
            free(self.state.reservations)
            free(self.state)

    def __init__(self, settings, limits, size):
        cdef UnitState *unit = self.state
        self.settings = settings
        if settings.type not in _TYPES:
            raise ValueError(f"type {settings.type!r} is neither disk nor cdrom")
        unit.type = _TYPES[settings.type]
        unit.removable = settings.removable or unit.type == TYPE_CDROM
        unit.read_only = not settings.writable or unit.type == TYPE_CDROM
        self.set_geometry(limits)
        self.set_identity()
        unit.default_writeback = not settings.writethrough and unit.type == TYPE_DISK
        unit.thin = limits.discard if settings.thin is None else settings.thin
        if unit.type == TYPE_CDROM:
            unit.thin = False
        unit.writeback, unit.write_protected = unit.default_writeback, unit.read_only
        unit.operations = operations_of(unit.type, unit.thin)
        unit.runners_fence = not register_fences()
        unit.object = <void *> self
        if size is None and not unit.removable:
            raise ValueError("a unit that is not removable has no medium")
        unit.medium = MEDIUM_ABSENT if size is None else MEDIUM_READY
        unit.blocks = 0 if size is None else size >> unit.block_shift
        if settings.pr_file is not None:
            self.restore_reservations(settings.pr_file)

    cdef object set_geometry(self, object limits):
        cdef UnitState *unit = self.state
        block = CDROM_BLOCK if unit.type == TYPE_CDROM else limits.block_size
        if block % limits.block_size:
            raise ValueError(
                f"a CD-ROM has blocks of {CDROM_BLOCK} bytes, its disk of {limits.block_size}")
        unit.block_shift = block.bit_length() - 1
        unit.physical_exponent = max(limits.physical_block_size // block, 1).bit_length() - 1
        unit.max_transfer = min(self.settings.max_transfer // block, 0xffffffff)
        if self.settings.max_transfer and unit.max_transfer == 0:
            raise ValueError(f"max-transfer {self.settings.max_transfer} is less than a block")
        unit.optimal_transfer = min(limits.optimal_io_size // block, 0xffffffff)
        unit.transfer_granularity = 1 << unit.physical_exponent
        unit.max_unmap, unit.max_unmap_descriptors = MOST_UNMAPPED, 255
        unit.unmap_granularity = max(limits.discard_alignment // block, 1)
        unit.max_write_same = <uint64_t> MOST_WRITTEN_SAME >> unit.block_shift
        unit.max_compare = min(255, max(1, MOST_COMPARED >> unit.block_shift))

    cdef object set_identity(self):
        cdef UnitState *unit = self.state
        product = self.settings.product or ("CD-ROM" if unit.type == TYPE_CDROM else "DISK")
        pad(unit.identity.vendor, ascii_field("vendor", self.settings.vendor, 8), 8)
        pad(unit.identity.product, ascii_field("product", product, 16), 16)
        revision = self.settings.revision or vringd.__version__[:4]
        pad(unit.identity.revision, ascii_field("revision", revision, 4), 4)
        serial = ascii_field("serial", self.settings.serial, 63)
        unit.identity.serial_length = len(serial)
        memcpy(unit.identity.serial, <char *> serial, len(serial))
        device_id = ascii_field("device-id", self.settings.device_id, 63) or serial
        unit.identity.device_id_length = len(device_id)
        memcpy(unit.identity.device_id, <char *> device_id, len(device_id))
        if not 0 <= self.settings.wwn < 1 << 64:
            raise ValueError(f"wwn {self.settings.wwn:#x} has more than 64 bits")
        unit.identity.wwn = self.settings.wwn
        if self.settings.rotation_rate not in (0, 1) and not (
                0x401 <= self.settings.rotation_rate <= 0xfffe):
            raise ValueError(
                f"rotation-rate {self.settings.rotation_rate} is not 0 (not reported), 1 (does"
                f" not rotate) or 1025 to 65534 rpm")
        unit.identity.rotation_rate = self.settings.rotation_rate

    cdef object restore_reservations(self, object path):
        cdef Reservations *reservations
        cdef Registration *made
        cdef bytes name
        kept = load_reservations(path)
        reservations = <Reservations *> calloc(1, sizeof(Reservations))
        if reservations == NULL:
            raise MemoryError
        self.state.reservations = reservations
        for one in kept.registrations:
            name = ascii_field("initiator", one.initiator, NAME_ROOM - 1)
            made = add_registration(reservations, name, one.port, one.key)
            if made == NULL:
                raise ValueError(f"{path} has too many registrations")
            made.holder = one.holder
        reservations.type = kept.type
        reservations.persists = len(kept.registrations) > 0
        self.store = ReservationStore(path)
        self.state.store = <void *> self.store

    # ---- facts --------------------------------------------------------------------------------

    @property
    def block_size(self):
        """Bytes of a logical block."""
        return 1 << self.state.block_shift

    @property
    def capacity(self):
        """Bytes, as an initiator sees them."""
        return vr_load_relaxed_u64(&self.state.blocks) << self.state.block_shift

    @property
    def writeback(self):
        """Whether writes may sit in a volatile cache until a SYNCHRONIZE CACHE."""
        return bool(vr_load_relaxed_u32(&self.state.writeback))

    @property
    def medium(self):
        """"ready", "absent" or "ejected"."""
        return _MEDIA[vr_load_relaxed_u32(&self.state.medium)]

    @property
    def prevents_removal(self):
        """Whether some initiator prevents the removal of the medium."""
        return vr_load_relaxed_u32(&self.state.prevents) != 0

    @property
    def change_fd(self):
        """An eventfd, readable when `mode_changes` of some nexus has grown."""
        return self.state.change_fd

    # ---- what happens to it -------------------------------------------------------------------

    def set_capacity(self, uint64_t size):
        """The disk has size bytes now; initiators are told if that is a change."""
        cdef uint64_t blocks = size >> self.state.block_shift
        with nogil:
            pthread_mutex_lock(&self.state.lock)
            if blocks != self.state.blocks:
                vr_store_release_u64(&self.state.blocks, blocks)
                raise_attentions(self.state, ATTENTION_CAPACITY, NULL)
            pthread_mutex_unlock(&self.state.lock)

    def set_medium(self, size):
        """Insert a medium of size bytes, or take it out (None), whoever prevents it: ask
        `prevents_removal` first, and request_eject. Raises ValueError if it is not removable."""
        cdef UnitState *unit = self.state
        if not unit.removable:
            raise ValueError("the medium of this unit is not removable")
        pthread_mutex_lock(&unit.lock)
        if size is None:
            vr_store_release_u32(&unit.medium, MEDIUM_ABSENT)
            unit.media_events = MEDIA_REMOVED
        else:
            vr_store_release_u64(&unit.blocks, size >> unit.block_shift)
            vr_store_release_u32(&unit.medium, MEDIUM_READY)
            unit.media_events = MEDIA_NEW
            raise_attentions(unit, ATTENTION_MEDIUM, NULL)
        pthread_mutex_unlock(&unit.lock)

    def request_eject(self):
        """Somebody pressed the eject button of a medium whose removal is prevented."""
        pthread_mutex_lock(&self.state.lock)
        self.state.media_events |= MEDIA_EJECT_REQUEST
        raise_attentions(self.state, ATTENTION_EJECT, NULL)
        pthread_mutex_unlock(&self.state.lock)

    def reset(self, *, bint power_on=False):
        """A logical unit reset; power_on: it looks like a new one to initiators. A list of
        (nexus, generation): tasks are being aborted, and `nexus.aborting(generation)` tells when
        they have ended."""
        with nogil:
            reset_unit(self.state, ATTENTION_POWER_ON if power_on else ATTENTION_RESET)
        return ended_generations(self.state)

    def clear_tasks(self, ScsiNexus by not None):
        """Abort the tasks of all initiators, on behalf of one of them; as `reset`."""
        with nogil:
            clear_task_set(self.state, by.state)
        return ended_generations(self.state)

    def open_nexus(self, initiator, *, port=1):
        """A `ScsiNexus` for an initiator port (its name, without blanks) through the target port
        with that relative identifier. Raises ValueError if it has one already."""
        return ScsiNexus(self, initiator, port)

    def close(self):
        """Let go of everything; all nexuses have been closed. Again does nothing."""
        if self.store is not None:
            self.store.close()


# ---- the nexus ----------------------------------------------------------------------------------

cdef class ScsiNexus:
    """An initiator's access to a unit: made by `ScsiUnit.open_nexus`."""

    def __cinit__(self, *args, **kwargs):
        self.state = <NexusState *> alloc_lines(sizeof(NexusState))
        if self.state == NULL:
            raise MemoryError
        self.channels = [None] * MAX_LANES

    def __init__(self, ScsiUnit unit not None, initiator, port):
        cdef bytes name = ascii_field("initiator", initiator, NAME_ROOM - 1)
        cdef NexusState *state = self.state
        cdef NexusState *other
        cdef Registration *registration
        if not name or b" " in name:
            raise ValueError(f"initiator {initiator!r} is empty or has blanks")
        if not 1 <= port <= 0xffff:
            raise ValueError(f"port {port} is not between 1 and 65535")
        other = unit.state.nexuses
        while other != NULL:
            if other.port == port and <bytes> other.name == name:
                raise ValueError(f"initiator {initiator} has a nexus through port {port} already")
            other = other.next
        self.unit = unit
        state.unit = unit.state
        state.port = port
        memcpy(state.name, <char *> name, len(name))
        state.gate = ATTENTION_POWER_ON
        state.reset_generation = state.generation - 1
        state.object = <void *> self
        pthread_mutex_lock(&unit.state.lock)
        state.next = unit.state.nexuses
        unit.state.nexuses = state
        if unit.state.reservations != NULL:
            registration = find_name(<Reservations *> unit.state.reservations, state.name,
                                     state.port)
            if registration != NULL:
                registration.nexus = state
        set_gates(unit.state)
        pthread_mutex_unlock(&unit.state.lock)
        self.opened = True

    def __dealloc__(self):
        cdef int i
        if self.state == NULL:
            return
        if self.opened:
            if self.count_running():    # dropped with tasks in execution: they use it still
                return
            self.unlink()
        for i in range(MAX_LANES):
            free(self.state.lanes[i])
        free(self.state)

    cdef uint64_t count_running(self):
        cdef uint64_t count = 0
        cdef int i
        for i in range(MAX_LANES):
            if self.state.lanes[i] != NULL:
                count += vr_load_acquire_u32(&self.state.lanes[i].running[0])
                count += vr_load_acquire_u32(&self.state.lanes[i].running[1])
        return count

    cdef object unlink(self):
        cdef UnitState *unit = self.state.unit
        cdef NexusState **at = &unit.nexuses
        cdef Registration *registration
        pthread_mutex_lock(&unit.lock)
        while at[0] != self.state:
            at = &at[0].next
        at[0] = self.state.next
        allow_removal(self.state)
        if unit.reservations != NULL:
            registration = find_registration(<Reservations *> unit.reservations, self.state)
            if registration != NULL:
                registration.nexus = NULL
        if unit.reserved_by == self.state:
            drop_reserve(unit)
        pthread_mutex_unlock(&unit.lock)
        self.opened = False

    @property
    def initiator(self):
        """The initiator port's name."""
        return (<bytes> self.state.name).decode("ascii")

    @property
    def port(self):
        """Relative target port identifier."""
        return self.state.port

    @property
    def mode_changes(self):
        """How often other initiators have changed mode parameters, modulo 2^32."""
        return vr_load_acquire_u32(&self.state.mode_changes)

    def open_lane(self, index, Channel channel not None):
        """Let the IOThread of channel execute tasks, through lane number index (0 to 63). Raises
        ValueError if the lane is open."""
        cdef Lane *lane
        cdef int number = index
        if not 0 <= number < MAX_LANES:
            raise ValueError(f"lane {number} is not between 0 and {MAX_LANES - 1}")
        if self.state.lanes[number] != NULL:
            raise ValueError(f"lane {number} is open already")
        lane = <Lane *> alloc_lines(sizeof(Lane))
        if lane == NULL:
            raise MemoryError
        lane.channel, lane.nexus = <void *> channel, self.state
        self.channels[number] = channel
        pthread_mutex_lock(&self.state.unit.lock)
        vr_store_release_ptr(<void **> &self.state.lanes[number], lane)
        pthread_mutex_unlock(&self.state.unit.lock)

    def close_lane(self, index):
        """The IOThread executes no more. Raises ValueError if the lane is not open, RuntimeError
        if a task is in execution."""
        cdef int number = index
        cdef Lane *lane
        if not 0 <= number < MAX_LANES or self.state.lanes[number] == NULL:
            raise ValueError(f"lane {number} is not open")
        lane = self.state.lanes[number]
        if vr_load_acquire_u32(&lane.running[0]) or vr_load_acquire_u32(&lane.running[1]):
            raise RuntimeError(f"lane {number} has tasks in execution")
        pthread_mutex_lock(&self.state.unit.lock)
        vr_store_release_ptr(<void **> &self.state.lanes[number], NULL)
        pthread_mutex_unlock(&self.state.unit.lock)
        free(lane)
        self.channels[number] = None

    def running(self):
        """How many tasks are in execution."""
        return self.count_running()

    def aborting(self, uint32_t generation):
        """How many tasks are in execution that an abort concerned; generation: what it returned.
        After a second abort this counts newer tasks as well."""
        cdef uint64_t count = 0
        cdef int i
        for i in range(MAX_LANES):
            if self.state.lanes[i] != NULL:
                count += vr_load_acquire_u32(&self.state.lanes[i].running[generation & 1])
        return count

    def abort(self):
        """Abort all tasks (ABORT TASK SET); the argument for `aborting`, which tells when that is
        done."""
        with nogil:
            abort_nexus(self.state)
        return self.state.ended

    def lose(self, *, bint power_on=False):
        """The I_T nexus is lost or reset; as abort. power_on: the initiator comes back as one that
        knows nothing of the unit."""
        with nogil:
            lose_nexus(self.state)
        if power_on:
            raise_attention(self.state, ATTENTION_POWER_ON)
        return self.state.ended

    def close(self):
        """The initiator is gone for good; a registration stays. Raises RuntimeError if a task is
        in execution. Again does nothing."""
        if not self.opened:
            return
        if self.count_running():
            raise RuntimeError("tasks are in execution")
        self.unlink()
