"""Which IOThread serves which queue: QEMU's rules, as pure functions.

An export says it in one of three ways, or not at all:

- `iothread=t0`, or a list of IOThreads that the queues are dealt to in turn;
- `iothread-vq-mapping`: each IOThread exists and appears once; either every entry has
  `vqs` or none; with `vqs` each queue is named exactly once; without, entry i of n takes
  the queues i, i+n, i+2n, …;
- `iothreads=N|per-vq`: IOThreads made for this export, the queues dealt to them in turn;
- nothing: the one IOThread that all such exports share.

The queues of a virtio-scsi device are its command queues: control and event queue have their
place in the main loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence

from vringd.control.errors import OptionError
from vringd.control.schema import (
    ExportOptions,
    IOThreadOptions,
    QueueGroup,
    VhostUserScsiOptions,
)

# No user can take this name: identifiers start with a letter.
SHARED_IOTHREAD = "#shared"
MAX_SCSI_IOTHREADS = 64  # the lanes of a nexus (scsi/state.pxd)


@dataclasses.dataclass(frozen=True, slots=True)
class QueueMapping:
    """`queues[i]` is the IOThread of queue i; `implied` are those that nobody defined."""

    queues: tuple[str, ...]
    implied: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class IOThreadPlan:
    """All IOThreads of a daemon, and for each export id the IOThread of each queue."""

    iothreads: tuple[IOThreadOptions, ...]
    queues: dict[str, tuple[str, ...]]


def plan_iothreads(
    iothreads: Sequence[IOThreadOptions], exports: Iterable[ExportOptions]
) -> IOThreadPlan:
    """The IOThreads to make, defined ones first, and every export's mapping.

    Raises OptionError where an export asks for something impossible.
    """
    threads = {thread.id: thread for thread in iothreads}
    defined = frozenset(threads)
    queues: dict[str, tuple[str, ...]] = {}
    for export in exports:
        mapping = map_queues(export, defined)
        queues[export.id] = mapping.queues
        count = len(set(mapping.queues))
        if isinstance(export, VhostUserScsiOptions) and count > MAX_SCSI_IOTHREADS:
            raise OptionError(
                f"{export.origin}: {count} IOThreads for one vhost-user-scsi export; it may have"
                f" {MAX_SCSI_IOTHREADS} at most"
            )
        for name in mapping.implied:
            if name != SHARED_IOTHREAD and name in threads:
                raise OptionError(
                    f"{export.origin}: iothreads={export.iothreads} makes an IOThread {name!r},"
                    f" but {threads[name].origin or 'another export'} has that name already;"
                    " rename one of them"
                )
            threads.setdefault(name, IOThreadOptions(id=name, origin=export.origin))
    return IOThreadPlan(tuple(threads.values()), queues)


def map_queues(export: ExportOptions, defined: Collection[str]) -> QueueMapping:
    """Maps the queues 0 … num_queues-1 of one export. Raises OptionError."""
    given = {
        "iothread": export.iothread,
        "iothread-vq-mapping": export.iothread_vq_mapping,
        "iothreads": export.iothreads,
    }
    used = [name for name, value in given.items() if value]
    if len(used) > 1:
        raise OptionError(
            f"{export.origin}: {used[0]} and {used[1]} exclude each other; use one of the two"
        )
    if export.iothread:
        _check_threads(export, export.iothread, defined, "iothread")
        return QueueMapping(_deal(export.iothread, export.num_queues))
    if export.iothread_vq_mapping:
        threads = [group.iothread for group in export.iothread_vq_mapping]
        _check_threads(export, threads, defined, "iothread-vq-mapping")
        return QueueMapping(_map_groups(export, export.iothread_vq_mapping))
    if export.iothreads:
        implied = _implied_names(export)
        return QueueMapping(_deal(implied, export.num_queues), implied)
    return QueueMapping((SHARED_IOTHREAD,) * export.num_queues, (SHARED_IOTHREAD,))


def _deal(threads: Sequence[str], num_queues: int) -> tuple[str, ...]:
    return tuple(threads[queue % len(threads)] for queue in range(num_queues))


def _implied_names(export: ExportOptions) -> tuple[str, ...]:
    count = export.num_queues if export.iothreads == "per-vq" else int(export.iothreads or 0)
    if count > export.num_queues:
        raise OptionError(
            f"{export.origin}: iothreads={count} is more than num-queues={export.num_queues};"
            " a queue is served by one IOThread, so raise num-queues or lower iothreads"
        )
    return tuple(f"{export.id}-t{number}" for number in range(count))


def _check_threads(
    export: ExportOptions, threads: Sequence[str], defined: Collection[str], key: str
) -> None:
    seen: set[str] = set()
    for name in threads:
        if name not in defined:
            raise OptionError(
                f"{export.origin}: iothread '{name}' does not exist;"
                f" define it with --object iothread,id={name}"
            )
        if name in seen:
            raise OptionError(
                f"{export.origin}: {key} names iothread '{name}' twice; once is enough"
            )
        seen.add(name)


def _map_groups(export: ExportOptions, groups: Sequence[QueueGroup]) -> tuple[str, ...]:
    # An empty `vqs`, which only JSON can express, counts as none: QEMU's list is then null.
    explicit = [bool(group.vqs) for group in groups]
    if not any(explicit):
        return _deal([group.iothread for group in groups], export.num_queues)
    where = f"{export.origin}: iothread-vq-mapping"
    if not all(explicit):
        without = groups[explicit.index(False)].iothread
        raise OptionError(
            f"{where}: iothread '{without}' has no vqs, others have;"
            " give vqs to all of them or to none"
        )
    owner: dict[int, str] = {}
    for group in groups:
        for queue in group.vqs:
            if queue >= export.num_queues:
                raise OptionError(
                    f"{where}: queue {queue} of iothread '{group.iothread}' does not exist;"
                    f" with num-queues={export.num_queues} the last one is {export.num_queues - 1}"
                )
            if queue in owner:
                raise OptionError(
                    f"{where}: queue {queue} is given to iothread '{owner[queue]}' and to"
                    f" '{group.iothread}'; name each queue once"
                )
            owner[queue] = group.iothread
    for queue in range(export.num_queues):
        if queue not in owner:
            raise OptionError(f"{where}: queue {queue} has no iothread; add it to the vqs of one")
    return tuple(owner[queue] for queue in range(export.num_queues))
