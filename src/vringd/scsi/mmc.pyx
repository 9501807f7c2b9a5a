"""Multi-media commands of a read-only drive with one closed session of one data track."""

from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.string cimport memset

from vringd.core.sys cimport (
    pthread_mutex_lock, pthread_mutex_unlock, vr_load_relaxed_u32, vr_load_relaxed_u64)
from vringd.scsi.bytes cimport get16, put16, put32
from vringd.scsi.readiness cimport MEDIA_EJECT_REQUEST, MEDIA_NEW, MEDIA_REMOVED
from vringd.scsi.state cimport MEDIUM_EJECTED, MEDIUM_READY, ScsiTask, UnitState
from vringd.scsi.task cimport fail_field, reply

cdef enum Profile:
    PROFILE_NONE = 0x0000
    PROFILE_CDROM = 0x0008
    PROFILE_DVDROM = 0x0010

cdef enum Feature:
    FEATURE_PROFILES = 0x0000
    FEATURE_CORE = 0x0001
    FEATURE_MORPHING = 0x0002
    FEATURE_REMOVABLE = 0x0003
    FEATURE_RANDOM_READ = 0x0010
    FEATURE_CD_READ = 0x001e
    FEATURE_DVD_READ = 0x001f
    FEATURE_POWER = 0x0100
    FEATURE_TIMEOUT = 0x0105

cdef enum:
    CD_BLOCKS = 80 * 60 * 75    # more does not fit on a CD: then it is a DVD
    LEAD_OUT = 0xaa
    PREGAP = 150                # frames; minute 0, second 2 is block 0


cdef int profile_of(UnitState *unit) noexcept nogil:
    if vr_load_relaxed_u32(&unit.medium) != MEDIUM_READY:
        return PROFILE_NONE
    if vr_load_relaxed_u64(&unit.blocks) > CD_BLOCKS:
        return PROFILE_DVDROM
    return PROFILE_CDROM


# ---- GET CONFIGURATION --------------------------------------------------------------------------

cdef struct FeatureList:
    uint8_t *data
    uint32_t size
    int kind                    # RT: 0 all, 1 current ones, 2 one
    int first                   # starting feature number


cdef uint8_t *add_feature(FeatureList *list, int code, int version, bint persistent, bint current,
                          uint32_t length) noexcept nogil:
    """A descriptor if it was asked for: where its length bytes of zeros are, or NULL."""
    cdef uint8_t *at = list.data + list.size
    if (code < list.first or list.kind == 2 and code != list.first
            or list.kind == 1 and not current):
        return NULL
    memset(at, 0, 4 + length)
    put16(at, <uint32_t> code)
    at[2] = <uint8_t> (version << 2 | (2 if persistent else 0) | (1 if current else 0))
    at[3] = <uint8_t> length
    list.size += 4 + length
    return at + 4


cdef void get_configuration_command(ScsiTask *task) noexcept nogil:
    """GET CONFIGURATION."""
    cdef int profile = profile_of(task.unit)
    cdef uint8_t data[160]              # 8 + 12 + 12 + 8 + 8 + 12 + 8 + 8 + 4 + 8
    cdef FeatureList list
    cdef uint8_t *at
    list.data, list.size = data, 8
    list.kind, list.first = task.cdb[1] & 3, <int> get16(task.cdb + 2)
    if list.kind == 3:
        fail_field(task, 1, 1)
        return
    at = add_feature(&list, FEATURE_PROFILES, 0, True, True, 8)
    if at != NULL:
        put16(at, PROFILE_DVDROM)
        at[2] = 1 if profile == PROFILE_DVDROM else 0
        put16(at + 4, PROFILE_CDROM)
        at[6] = 1 if profile == PROFILE_CDROM else 0
    at = add_feature(&list, FEATURE_CORE, 2, True, True, 8)
    if at != NULL:
        put32(at, 1)                    # SCSI family
        at[4] = 1                       # DBE
    at = add_feature(&list, FEATURE_MORPHING, 1, True, True, 4)
    if at != NULL:
        at[0] = 0x02                    # OCEvent
    at = add_feature(&list, FEATURE_REMOVABLE, 0, True, True, 4)
    if at != NULL:
        at[0] = 0x29                    # tray, eject, lock
    at = add_feature(&list, FEATURE_RANDOM_READ, 0, False, profile != PROFILE_NONE, 8)
    if at != NULL:
        put32(at, <uint32_t> 1 << task.unit.block_shift)
        put16(at + 4, 1)
    add_feature(&list, FEATURE_CD_READ, 2, False, profile == PROFILE_CDROM, 4)
    add_feature(&list, FEATURE_DVD_READ, 1, False, profile == PROFILE_DVDROM, 4)
    add_feature(&list, FEATURE_POWER, 0, True, True, 0)
    add_feature(&list, FEATURE_TIMEOUT, 0, True, True, 4)
    put32(data, list.size - 4)
    put16(data + 4, 0)
    put16(data + 6, <uint32_t> profile)
    reply(task, data, list.size, get16(task.cdb + 7))


# ---- GET EVENT STATUS NOTIFICATION --------------------------------------------------------------

cdef int take_event(UnitState *unit) noexcept nogil:
    """The media event code of the most pressing event, which is cleared. Under the lock."""
    if unit.media_events & MEDIA_EJECT_REQUEST:
        unit.media_events &= ~<uint32_t> MEDIA_EJECT_REQUEST
        return 1
    if unit.media_events & MEDIA_REMOVED:
        unit.media_events &= ~<uint32_t> MEDIA_REMOVED
        return 3
    if unit.media_events & MEDIA_NEW:
        unit.media_events &= ~<uint32_t> MEDIA_NEW
        return 2
    return 0


cdef void get_event_status_command(ScsiTask *task) noexcept nogil:
    """GET EVENT STATUS NOTIFICATION: polled, the media class (4) only."""
    cdef UnitState *unit = task.unit
    cdef uint8_t data[8]
    cdef uint32_t size = 4
    if not task.cdb[1] & 0x01:          # asynchronous notification
        fail_field(task, 1, 0)
        return
    memset(data, 0, 8)
    data[3] = 0x10
    if task.cdb[4] & 0x10:
        data[2] = 4
        pthread_mutex_lock(&unit.lock)
        data[4] = <uint8_t> take_event(unit)
        if unit.medium == MEDIUM_EJECTED:
            data[5] = 0x01              # tray open
        elif unit.medium == MEDIUM_READY:
            data[5] = 0x02              # media present
        pthread_mutex_unlock(&unit.lock)
        size = 8
    else:
        data[2] = 0x80                  # NEA: none of the classes asked for
    put16(data, size - 2)
    reply(task, data, size, get16(task.cdb + 7))


# ---- the disc -----------------------------------------------------------------------------------

cdef void put_address(uint8_t *at, uint64_t block, bint msf) noexcept nogil:
    cdef uint32_t frames = <uint32_t> min(block, <uint64_t> 0xffffff00) + PREGAP
    if not msf:
        put32(at, <uint32_t> min(block, <uint64_t> 0xffffffff))
        return
    at[0] = 0
    at[1] = <uint8_t> min(frames // (60 * 75), <uint32_t> 255)
    at[2] = <uint8_t> (frames // 75 % 60)
    at[3] = <uint8_t> (frames % 75)


cdef uint8_t *add_track(uint8_t *at, int track, uint64_t block, bint msf) noexcept nogil:
    at[0], at[1], at[2], at[3] = 0, 0x14, <uint8_t> track, 0    # a data track
    put_address(at + 4, block, msf)
    return at + 8


cdef uint8_t *add_point(uint8_t *at, int point, int minute, int second, int frame) noexcept nogil:
    """An entry of the raw TOC."""
    memset(at, 0, 11)
    at[0], at[1], at[3] = 1, 0x14, <uint8_t> point
    at[8], at[9], at[10] = <uint8_t> minute, <uint8_t> second, <uint8_t> frame
    return at + 11


cdef void read_toc_command(ScsiTask *task) noexcept nogil:
    """READ TOC/PMA/ATIP: formats 0 (TOC), 1 (sessions) and 2 (raw TOC)."""
    cdef uint64_t blocks = vr_load_relaxed_u64(&task.unit.blocks)
    cdef uint8_t data[64]               # 4 + 4 * 11 at most
    cdef uint8_t end[4]
    cdef uint8_t *at = data + 4
    cdef bint msf = task.cdb[1] & 0x02
    cdef int kind = task.cdb[2] & 0x0f, track = task.cdb[6]
    if kind == 0:
        kind = task.cdb[9] >> 6         # where ATAPI had it
    data[2] = data[3] = 1               # first and last track, or session
    if kind == 0:
        if track > 1 and track != LEAD_OUT:
            fail_field(task, 6, -1)
            return
        if track <= 1:
            at = add_track(at, 1, 0, msf)
        at = add_track(at, LEAD_OUT, blocks, msf)
    elif kind == 1:
        at = add_track(at, 1, 0, msf)
    elif kind == 2:
        put_address(end, blocks, True)
        at = add_point(at, 0xa0, 1, 0, 0)
        at = add_point(at, 0xa1, 1, 0, 0)
        at = add_point(at, 0xa2, end[1], end[2], end[3])
        at = add_point(at, 1, 0, 2, 0)
    else:
        fail_field(task, 2, 3)
        return
    put16(data, <uint32_t> (at - data) - 2)
    reply(task, data, <uint64_t> (at - data), get16(task.cdb + 7))


cdef void read_disc_information_command(ScsiTask *task) noexcept nogil:
    """READ DISC INFORMATION: the standard one (type 0)."""
    cdef uint8_t data[34]
    if task.cdb[1] & 0x07:
        fail_field(task, 1, 2)
        return
    memset(data, 0, 34)
    put16(data, 32)
    data[2] = 0x0e                      # last session complete, disc finalized
    data[3] = data[4] = data[5] = data[6] = 1
    data[7] = 0x20                      # unrestricted use
    memset(data + 16, 0xff, 8)          # lead-in and last lead-out: nothing can be added
    reply(task, data, 34, get16(task.cdb + 7))


cdef void mechanism_status_command(ScsiTask *task) noexcept nogil:
    """MECHANISM STATUS: a drive without a changer."""
    cdef uint8_t data[8]
    memset(data, 0, 8)
    if vr_load_relaxed_u32(&task.unit.medium) == MEDIUM_EJECTED:
        data[1] = 0x10                  # door open
    reply(task, data, 8, get16(task.cdb + 8))
