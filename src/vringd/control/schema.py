"""Everything `vringd serve` can be told, as typed records.

Names, defaults and meanings are qemu-storage-daemon's wherever it has the option too.
Each record keeps in `origin` where it was given, for messages that compare records.
"""

from __future__ import annotations

import dataclasses

from vringd.control.fields import ListOf, Nested, Variant, option, record
from vringd.control.values import (
    INT32_MAX,
    INT64_MAX,
    UINT64_MAX,
    choice,
    cpu_list,
    identifier,
    integer,
    limited_text,
    names,
    node_name,
    only_off,
    power_of_two,
    size,
    switch,
    text,
    thread_count,
)

MAX_QUEUES = 256  # the vring index of vhost-user messages has 8 bits
MAX_QUEUE_SIZE = 1024
SECTOR = 512

_block_size = power_of_two(size(SECTOR, 2 << 20))


def _origin() -> str:
    return dataclasses.field(default="", compare=False, repr=False)


@record
class IOThreadOptions:
    """`--object iothread`: one thread that serves queues."""

    id: str = option(identifier, help="name by which exports refer to the thread")
    poll_max_ns: int = option(
        integer(0, INT64_MAX),
        default=32768,
        help="longest busy polling before sleeping, ns; 0: none",
    )
    poll_grow: int = option(
        integer(0, INT64_MAX),
        default=0,
        help="factor by which polling time grows; 0: the built-in one",
    )
    poll_shrink: int = option(
        integer(0, INT64_MAX),
        default=0,
        help="divisor by which polling time shrinks; 0: back to no polling",
    )
    aio_max_batch: int = option(
        integer(0, INT64_MAX),
        default=0,
        help="most requests per system call; 0: the built-in limit",
    )
    thread_pool_min: int = option(
        integer(0, INT64_MAX),
        default=0,
        help="workers for aio=threads that are there from the start",
    )
    thread_pool_max: int = option(
        integer(1, INT64_MAX), default=64, help="most workers for aio=threads, of each export"
    )
    cpu_affinity: tuple[int, ...] | None = option(
        cpu_list, default=None, help="CPUs the thread may run on, such as 0-3,8; default: all"
    )
    origin: str = _origin()


@record
class CacheOptions:
    """`cache.…` of a block node."""

    direct: bool = option(switch, default=False, help="bypass the page cache (O_DIRECT)")
    no_flush: bool = option(
        switch, default=False, help="ignore flushes: fast, and loses data when the host crashes"
    )


@record
class NodeOptions:
    """What every block node has."""

    node_name: str = option(node_name, help="name by which exports refer to the node")
    read_only: bool = option(switch, default=False, help="refuse all writes")
    auto_read_only: bool = option(
        switch, default=False, help="fall back to read-only when writing is not permitted"
    )
    force_share: bool = option(
        switch, default=False, help="take no lock against other users; needs read-only=on"
    )
    cache: CacheOptions = option(Nested(CacheOptions), default=CacheOptions(), help="caching")
    discard: str = option(
        choice("ignore", "unmap"),
        default="ignore",
        help="whether a guest's discard frees space or does nothing",
    )
    detect_zeroes: str = option(
        choice("off", "on", "unmap"),
        default="off",
        help="turn writes of zeroes into write-zeroes requests (unmap: and deallocate)",
    )
    origin: str = _origin()


@record
class NullOptions(NodeOptions):
    """`driver=null-co` or `null-aio`: no storage at all, for measuring."""

    driver: str = option(choice("null-co", "null-aio"), help="the two are the same here")
    size: int = option(size(SECTOR), default=1 << 30, help="size of the disk (the default is 1G)")
    latency_ns: int = option(
        integer(0, UINT64_MAX), default=0, help="how long each request takes, ns"
    )
    read_zeroes: bool = option(
        switch, default=False, help="reads return zeroes; off: the buffer is left as it was"
    )
    cpu_ns: int = option(
        integer(0, 10**9),
        default=0,
        help="CPU time each request burns on its IOThread, ns; on average, and about 1000 at least",
    )
    parallelism: int = option(
        integer(0, 1 << 20),
        default=0,
        help="requests of the whole disk in progress at once, the others wait; 0: no limit",
    )
    logical_block_size: int = option(
        _block_size, default=SECTOR, help="alignment that the disk asks for"
    )


@record
class FileOptions(NodeOptions):
    """`driver=file` (a regular file) or `host_device` (a block device)."""

    driver: str = option(choice("file", "host_device"), help="what kind of file it is")
    filename: str = option(text, help="path of the file or device")
    aio: str | None = option(
        choice("threads", "native", "io_uring"),
        default=None,
        help="how requests reach the kernel; default: io_uring where it is allowed, else threads",
    )
    aio_max_batch: int = option(
        integer(0, INT64_MAX),
        default=0,
        help="most requests per submission; 0: the IOThread's limit",
    )
    locking: str = option(
        choice("auto", "on", "off"),
        default="auto",
        help="lock the file against other programs (auto: if the system can)",
    )
    registered_buffers: bool = option(
        switch,
        default=False,
        help="register guest memory with io_uring: faster with cache.direct=on, pins the memory",
    )


@record
class RawOptions(NodeOptions):
    """`driver=raw`: hands everything on to the node `file`. `build` resolves it away."""

    driver: str = option(choice("raw"), help="raw")
    file: str | dict[str, object] = option(
        lambda value: dict(value) if isinstance(value, dict) else node_name(value),
        help="name of a node, or the options of one: file.driver=…,file.filename=…",
    )


@record
class UnixAddress:
    """`addr.type=unix`: a listening socket at a path, made with mode 0600."""

    path: str = option(text, help="path of the socket")
    abstract: bool = option(only_off, default=False, help="no abstract names: only off")
    tight: bool = option(switch, default=True, help="accepted; for abstract names only")


@record
class FdAddress:
    """`addr.type=fd`: a listening socket that the parent process handed down."""

    fd: int = option(integer(0, INT32_MAX), name="str", help="number of the file descriptor")


@record
class QueueGroup:
    """One entry of `iothread-vq-mapping`."""

    iothread: str = option(identifier, help="an IOThread")
    vqs: tuple[int, ...] = option(
        ListOf(integer(0, MAX_QUEUES - 1), least=0),
        default=(),
        help="the queues it serves; when no entry says so, they are dealt out in turn",
    )


@record
class DeviceOptions:
    """What every export has: a socket, queues, and the IOThreads that serve them."""

    id: str = option(identifier, help="name of the export")
    addr: UnixAddress | FdAddress = option(
        Variant("type", {"unix": UnixAddress, "fd": FdAddress}), help="the vhost-user socket"
    )
    queue_size: int = option(
        power_of_two(integer(2, MAX_QUEUE_SIZE)),
        default=MAX_QUEUE_SIZE,
        help="most entries a guest may give a queue",
    )
    seg_max: int | None = option(
        integer(1, MAX_QUEUE_SIZE - 2),
        default=None,
        help="most segments per request; default: 126 or what queue-size allows",
    )
    iothread: tuple[str, ...] = option(
        names, default=(), help="an IOThread, or a list that shares the queues"
    )
    iothread_vq_mapping: tuple[QueueGroup, ...] = option(
        ListOf(Nested(QueueGroup), least=0), default=(), help="which IOThread serves which queues"
    )
    iothreads: int | str | None = option(
        thread_count,
        default=None,
        help="make this many IOThreads for this export and share the queues, or one per-vq",
    )
    fixed_iothread: bool = option(
        switch, default=False, help="accepted; queues never move by themselves"
    )
    packed: bool = option(switch, default=True, help="offer packed rings")
    event_idx: bool = option(switch, default=True, help="offer VIRTIO_F_EVENT_IDX")
    in_order: bool = option(switch, default=False, help="offer VIRTIO_F_IN_ORDER")
    origin: str = _origin()


@record
class VhostUserBlkOptions(DeviceOptions):
    """`--export type=vhost-user-blk`: a disk for one virtual machine."""

    node_name: str = option(node_name, help="the block node to serve")
    writable: bool = option(switch, default=False, help="the guest may write")
    writethrough: bool = option(switch, default=False, help="flush after every write")
    num_queues: int = option(
        integer(1, MAX_QUEUES), default=1, help="request queues the guest may use"
    )
    logical_block_size: int | None = option(
        _block_size, default=None, help="default: 512, or more if the disk needs it"
    )
    physical_block_size: int | None = option(_block_size, default=None, help="default: the disk's")
    opt_io_size: int = option(size(0, 1 << 31), default=0, help="best request size; 0: not told")
    serial: str = option(limited_text(20), default="", help="serial number, at most 20 bytes")
    allow_inactive: bool = option(switch, default=False, help="accepted; nodes are always active")
    config_wce: bool = option(
        switch, default=True, help="the guest may switch between writeback and writethrough"
    )


@record
class ScsiDeviceOptions:
    """`devices.N` of a vhost-user-scsi export: a disk or a CD-ROM drive."""

    node_name: str | None = option(
        node_name, default=None, help="the block node to show; a removable device may have none"
    )
    target: int | None = option(
        integer(0, 255), default=None, help="SCSI target; default: the device's place in the list"
    )
    lun: int = option(integer(0, 16383), default=0, help="logical unit number in the target")
    writable: bool = option(switch, default=False, help="the guest may write")
    writethrough: bool = option(
        switch, default=False, help="the write cache begins switched off (the guest may change it)"
    )
    share_rw: bool = option(
        switch,
        default=False,
        help="other devices may show the node too, also writable: for clustered guests",
    )
    cdrom: bool = option(switch, default=False, help="a CD-ROM drive: removable, read-only")
    removable: bool = option(switch, default=False, help="a disk with a removable medium")
    vendor: str = option(limited_text(8), default="vringd", help="vendor, at most 8 bytes")
    product: str = option(
        limited_text(16), default="", help="product, at most 16 bytes; default: DISK or CD-ROM"
    )
    ver: str = option(limited_text(4), default="", help="revision; default: vringd's version")
    serial: str = option(limited_text(63), default="", help="serial number, at most 63 bytes")
    device_id: str = option(
        limited_text(63), default="", help="identification (VPD 83h); default: the serial number"
    )
    wwn: int = option(integer(0, UINT64_MAX), default=0, help="NAA identifier (VPD 83h); 0: none")
    rotation_rate: int = option(
        integer(0, 0xFFFE), default=0, help="rpm; 1: does not rotate, 0: not told"
    )
    logical_block_size: int | None = option(
        _block_size, default=None, help="default: 512, or more if the disk needs it"
    )
    physical_block_size: int | None = option(_block_size, default=None, help="default: the disk's")
    pr_file: str | None = option(
        text, default=None, help="file that keeps persistent reservations when vringd ends"
    )

    @property
    def without_address(self) -> ScsiDeviceOptions:
        """What devices that show one node must agree in."""
        return dataclasses.replace(self, target=None, lun=0)


@record
class VhostUserScsiOptions(DeviceOptions):
    """`--export type=vhost-user-scsi`: SCSI disks and CD-ROM drives for one virtual machine."""

    devices: tuple[ScsiDeviceOptions, ...] = option(
        ListOf(Nested(ScsiDeviceOptions)), help="the disks and drives"
    )
    initiator: str = option(
        limited_text(200),
        default="",
        help="name of the guest as a SCSI initiator, for persistent reservations; default: made"
        " of the export's id",
    )
    num_queues: int = option(
        integer(1, MAX_QUEUES - 2), default=1, help="command queues the guest may use"
    )
    cmd_per_lun: int = option(
        integer(1, MAX_QUEUE_SIZE),
        default=128,
        help="commands that a guest sends to a device at once",
    )

    @property
    def initiator_name(self) -> str:
        """The name of the guest's initiator port."""
        return self.initiator or f"iqn.2026-12.vringd:{self.id}"


BlockdevOptions = NullOptions | FileOptions
ExportOptions = VhostUserBlkOptions | VhostUserScsiOptions
LOG_LEVELS = ("error", "warning", "info", "debug")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ServeOptions:
    """A whole daemon. `build.build` makes it and vouches that it fits together."""

    iothreads: tuple[IOThreadOptions, ...] = ()
    blockdevs: tuple[BlockdevOptions, ...] = ()
    exports: tuple[ExportOptions, ...] = ()

    def blockdev(self, name: str) -> BlockdevOptions:
        """The node of that name; KeyError if there is none."""
        for node in self.blockdevs:
            if node.node_name == name:
                return node
        raise KeyError(name)

    @property
    def written_nodes(self) -> set[str]:
        """Names of the nodes that some guest may write to."""
        names = set()
        for export in self.exports:
            shown = export.devices if isinstance(export, VhostUserScsiOptions) else (export,)
            names |= {one.node_name for one in shown if one.writable and one.node_name is not None}
        return names
