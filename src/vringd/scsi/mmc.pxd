# What a CD-ROM has beside READ: MMC-6, as far as installers ask.

from vringd.scsi.state cimport ScsiTask


cdef void get_configuration_command(ScsiTask *task) noexcept nogil
cdef void get_event_status_command(ScsiTask *task) noexcept nogil
cdef void read_toc_command(ScsiTask *task) noexcept nogil
cdef void read_disc_information_command(ScsiTask *task) noexcept nogil
cdef void mechanism_status_command(ScsiTask *task) noexcept nogil
