from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vringd.control.errors import OptionError
from vringd.control.mapping import (
    SHARED_IOTHREAD,
    QueueMapping,
    map_queues,
    plan_iothreads,
)
from vringd.control.schema import (
    IOThreadOptions,
    QueueGroup,
    UnixAddress,
    VhostUserBlkOptions,
)

DEFINED = [f"t{number}" for number in range(8)]


def export(id: str = "e0", **options: Any) -> VhostUserBlkOptions:
    address = UnixAddress(path=f"/run/{id}.sock")
    return VhostUserBlkOptions(
        id=id, node_name="n0", addr=address, origin=f"--export id={id}", **options
    )


def groups(*entries: tuple[str, tuple[int, ...]]) -> tuple[QueueGroup, ...]:
    return tuple(QueueGroup(iothread=name, vqs=queues) for name, queues in entries)


@pytest.mark.parametrize(
    ("options", "queues"),
    [
        ({"num_queues": 3}, (SHARED_IOTHREAD,) * 3),
        ({"num_queues": 3, "iothread": ("t0",)}, ("t0", "t0", "t0")),
        ({"num_queues": 5, "iothread": ("t0", "t1")}, ("t0", "t1", "t0", "t1", "t0")),
        ({"num_queues": 1, "iothread": ("t0", "t1")}, ("t0",)),
        (
            {"num_queues": 4, "iothread_vq_mapping": groups(("t1", ()), ("t0", ()))},
            ("t1", "t0", "t1", "t0"),
        ),
        (
            {"num_queues": 4, "iothread_vq_mapping": groups(("t0", (3, 0)), ("t1", (1, 2)))},
            ("t0", "t1", "t1", "t0"),
        ),
        ({"num_queues": 1, "iothread_vq_mapping": groups(("t0", ()), ("t1", ()))}, ("t0",)),
        ({"num_queues": 2, "iothread_vq_mapping": ()}, (SHARED_IOTHREAD,) * 2),
    ],
)
def test_queues_go_where_they_are_told(options: dict[str, Any], queues: tuple[str, ...]) -> None:
    mapping = map_queues(export(**options), DEFINED)
    assert mapping.queues == queues
    assert set(mapping.implied) <= {SHARED_IOTHREAD}


def test_a_number_of_iothreads_makes_them() -> None:
    assert map_queues(export(num_queues=3, iothreads=2), []) == QueueMapping(
        queues=("e0-t0", "e0-t1", "e0-t0"), implied=("e0-t0", "e0-t1")
    )


def test_an_iothread_per_queue() -> None:
    names = ("e0-t0", "e0-t1", "e0-t2")
    assert map_queues(export(num_queues=3, iothreads="per-vq"), []) == QueueMapping(names, names)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"iothread": ("t9",)},
            "iothread 't9' does not exist; define it with --object iothread,id=t9",
        ),
        (
            {"iothread_vq_mapping": groups(("t9", ()))},
            "iothread 't9' does not exist; define it with --object iothread,id=t9",
        ),
        ({"iothread": ("t0", "t0")}, "iothread names iothread 't0' twice; once is enough"),
        (
            {"iothread_vq_mapping": groups(("t0", (0,)), ("t0", (1,)))},
            "iothread-vq-mapping names iothread 't0' twice; once is enough",
        ),
        (
            {"iothread": ("t0",), "iothread_vq_mapping": groups(("t0", ()))},
            "iothread and iothread-vq-mapping exclude each other; use one of the two",
        ),
        (
            {"iothread": ("t0",), "iothreads": 2},
            "iothread and iothreads exclude each other; use one of the two",
        ),
        (
            {"iothread_vq_mapping": groups(("t0", ())), "iothreads": "per-vq"},
            "iothread-vq-mapping and iothreads exclude each other; use one of the two",
        ),
        (
            {"iothreads": 3},
            "iothreads=3 is more than num-queues=2; a queue is served by one IOThread,"
            " so raise num-queues or lower iothreads",
        ),
        (
            {"iothread_vq_mapping": groups(("t0", (0, 1)), ("t1", ()))},
            "iothread-vq-mapping: iothread 't1' has no vqs, others have;"
            " give vqs to all of them or to none",
        ),
        (
            {"iothread_vq_mapping": groups(("t0", (0, 2)), ("t1", (1,)))},
            "iothread-vq-mapping: queue 2 of iothread 't0' does not exist;"
            " with num-queues=2 the last one is 1",
        ),
        (
            {"iothread_vq_mapping": groups(("t0", (0, 1)), ("t1", (1,)))},
            "iothread-vq-mapping: queue 1 is given to iothread 't0' and to 't1';"
            " name each queue once",
        ),
        (
            {"iothread_vq_mapping": groups(("t0", (0, 0)))},
            "iothread-vq-mapping: queue 0 is given to iothread 't0' and to 't0';"
            " name each queue once",
        ),
        (
            {"iothread_vq_mapping": groups(("t0", (1,)))},
            "iothread-vq-mapping: queue 0 has no iothread; add it to the vqs of one",
        ),
    ],
)
def test_impossible_mappings_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError) as caught:
        map_queues(export(num_queues=2, **options), DEFINED)
    assert str(caught.value) == f"--export id=e0: {problem}"


@given(num_queues=st.integers(1, 256), threads=st.permutations(DEFINED), count=st.integers(1, 8))
def test_without_vqs_entry_i_takes_every_nth_queue(
    num_queues: int, threads: list[str], count: int
) -> None:
    chosen = threads[:count]
    entries = groups(*((name, ()) for name in chosen))
    mapping = map_queues(export(num_queues=num_queues, iothread_vq_mapping=entries), DEFINED)
    for position, name in enumerate(chosen):
        owned = [queue for queue, owner in enumerate(mapping.queues) if owner == name]
        assert owned == list(range(position, num_queues, count))
    assert mapping == map_queues(export(num_queues=num_queues, iothread=tuple(chosen)), DEFINED)


@given(owners=st.lists(st.sampled_from(DEFINED), min_size=1, max_size=256), data=st.data())
def test_explicit_vqs_are_followed_and_every_queue_appears_once(
    owners: list[str], data: st.DataObject
) -> None:
    entries = [
        (name, tuple(data.draw(st.permutations([q for q, o in enumerate(owners) if o == name]))))
        for name in data.draw(st.permutations(sorted(set(owners))))
    ]
    mapping = map_queues(
        export(num_queues=len(owners), iothread_vq_mapping=groups(*entries)), DEFINED
    )
    assert mapping == QueueMapping(tuple(owners))


@given(
    num_queues=st.integers(1, 6),
    entries=st.lists(
        st.tuples(st.sampled_from(DEFINED[:3]), st.lists(st.integers(0, 7), max_size=4)), max_size=3
    ),
)
def test_a_mapping_is_whole_or_refused(
    num_queues: int, entries: list[tuple[str, list[int]]]
) -> None:
    spelled = groups(*((name, tuple(queues)) for name, queues in entries))
    listed = sorted(queue for _, queues in entries for queue in queues)
    names = [name for name, _ in entries]
    valid = len(set(names)) == len(names) and (
        not listed or (all(queues for _, queues in entries) and listed == list(range(num_queues)))
    )
    wanted = export(num_queues=num_queues, iothread_vq_mapping=spelled)
    if not valid:
        with pytest.raises(OptionError):
            map_queues(wanted, DEFINED)
        return
    mapping = map_queues(wanted, DEFINED)
    assert len(mapping.queues) == num_queues
    assert set(mapping.queues) <= (set(names) or {SHARED_IOTHREAD})


@given(num_queues=st.integers(1, 256), data=st.data())
def test_implied_threads_are_all_used_and_evenly(num_queues: int, data: st.DataObject) -> None:
    wanted = data.draw(st.one_of(st.integers(1, num_queues), st.just("per-vq")))
    mapping = map_queues(export(num_queues=num_queues, iothreads=wanted), [])
    assert len(mapping.queues) == num_queues
    assert len(set(mapping.implied)) == (num_queues if wanted == "per-vq" else wanted)
    load = [mapping.queues.count(name) for name in mapping.implied]
    assert sum(load) == num_queues
    assert max(load) - min(load) <= 1


def test_exports_without_a_mapping_share_one_iothread() -> None:
    defined = IOThreadOptions(id="t0")
    plan = plan_iothreads([defined], [export("e0"), export("e1"), export("e2", iothread=("t0",))])
    assert [thread.id for thread in plan.iothreads] == ["t0", SHARED_IOTHREAD]
    assert plan.iothreads[0] is defined
    assert plan.queues == {"e0": (SHARED_IOTHREAD,), "e1": (SHARED_IOTHREAD,), "e2": ("t0",)}


def test_no_iothread_is_made_that_nobody_needs() -> None:
    plan = plan_iothreads([], [export(num_queues=2, iothreads=1)])
    assert [thread.id for thread in plan.iothreads] == ["e0-t0"]


def test_the_name_of_an_implied_iothread_must_be_free() -> None:
    taken = IOThreadOptions(id="e0-t1", origin="--object iothread,id=e0-t1")
    with pytest.raises(OptionError) as caught:
        plan_iothreads([taken], [export(num_queues=2, iothreads=2)])
    assert str(caught.value) == (
        "--export id=e0: iothreads=2 makes an IOThread 'e0-t1', but --object iothread,id=e0-t1"
        " has that name already; rename one of them"
    )
