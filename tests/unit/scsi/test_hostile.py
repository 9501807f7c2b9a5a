"""Any bytes as CDB and data: the answer is a valid one, and nothing beyond the disk or the
buffers is touched."""

from __future__ import annotations

import struct

from hypothesis import given, settings
from hypothesis import strategies as st

from vringd.scsi.settings import UnitSettings
from vringd.testing.scsi_initiator import Result

from .rig import CONFLICT, GOOD, Rig

BLOCKS = 64
KNOWN = bytes.fromhex(
    "00 03 08 0a 12 15 16 17 1a 1b 1d 1e 25 28 2a 2e 2f 34 35 37 41 42 43 46 4a 51 55 56 57 5a 5e"
    "5f 88 89 8a 8b 8e 8f 90 91 93 9e a0 a3 a8 aa ae af b7 bd"
)


def check(result: Result, data_in: int, data_out: bytes) -> None:
    assert result.guards_intact
    assert result.status in (GOOD, 0x02, CONFLICT, 0x40)
    assert result.transferred <= max(data_in, len(data_out))
    assert len(result.data) <= data_in
    assert result.transferred + result.residual == (data_in or len(data_out)) or (
        data_in and result.residual == 0
    )
    if result.status == 0x02:
        assert result.sense[0] in (0x70, 0xF0, 0x72)
        if result.sense[0] != 0x72:
            assert len(result.sense) == 18
            assert result.sense[7] == 10
        else:
            assert len(result.sense) == 8 + result.sense[7]
        assert result.key != 0
        assert result.code != 0
    else:
        assert result.sense == b""


def fields(opcode: int, small: list[int]) -> bytes:
    """A CDB whose LBA and length are likely to be within the disk."""
    flags, lba, count, rest = small
    if opcode >> 5 == 0:
        return struct.pack(">BBHBB", opcode, 0, lba, count, 0)
    if opcode >> 5 in (1, 2):
        return struct.pack(">BBIBHB", opcode, flags, lba, rest, count, 0)
    if opcode >> 5 == 5:
        return struct.pack(">BBIIBB", opcode, flags, lba, count, rest, 0)
    if opcode == 0x89:
        return struct.pack(">BBQ3xBBB", opcode, flags, lba, count & 0xFF, 0, 0)
    return struct.pack(">BBQIBB", opcode, flags, lba, count, rest, 0)


SMALL = st.tuples(
    st.integers(0, 31), st.integers(0, BLOCKS + 2), st.integers(0, BLOCKS + 2), st.just(0)
).map(list)
CDBS = st.one_of(
    st.binary(min_size=1, max_size=40),
    st.tuples(st.sampled_from(KNOWN), st.binary(max_size=31)).map(lambda x: bytes([x[0]]) + x[1]),
    st.tuples(st.sampled_from(KNOWN), SMALL).map(lambda x: fields(x[0], x[1])),
)
LISTS = st.one_of(
    st.binary(max_size=600),
    st.integers(0, BLOCKS * 2).map(lambda blocks: bytes(blocks * 512)),
    st.lists(st.tuples(st.integers(0, BLOCKS), st.integers(0, BLOCKS)), max_size=8).map(
        lambda x: (
            struct.pack(">HH4x", 16 * len(x) + 6, 16 * len(x))
            + b"".join(struct.pack(">QI4x", *one) for one in x)
        )
    ),
)
COMMANDS = st.tuples(
    CDBS, LISTS, st.sampled_from([0, 1, 8, 36, 255, 512, 4096, 40000]), st.lists(
        st.integers(1, 600), max_size=4
    ), st.integers(0, 1),
)  # fmt: skip


@settings(max_examples=400)
@given(
    st.sampled_from(["disk", "cdrom", "removable", "thick", "read-only"]),
    st.lists(COMMANDS, min_size=1, max_size=12),
)
def test_any_commands_have_valid_answers(
    kind: str, commands: list[tuple[bytes, bytes, int, list[int], int]]
) -> None:
    rig = Rig(
        BLOCKS,
        2048 if kind == "cdrom" else 512,
        UnitSettings(
            type="cdrom" if kind == "cdrom" else "disk",
            removable=kind == "removable",
            writable=kind != "read-only",
        ),
        discard=kind != "thick",
    )
    who = [rig.a, rig.initiator("b")]
    for block, data_out, data_in, split, initiator in commands:
        result = who[initiator].execute(block, data_out, data_in, split=split)
        check(result, data_in, data_out)
        if kind in ("read-only", "cdrom"):
            assert rig.disk.operations[1] == rig.disk.operations[4] == 0
    rig.close()


@settings(max_examples=200)
@given(st.binary(max_size=64), st.booleans())
def test_any_mode_parameters_are_taken_or_refused(body: bytes, ten: bool) -> None:
    rig = Rig(BLOCKS)
    header = struct.pack(">6xH", 0) if ten else bytes(4)
    data = header + body
    block = (
        struct.pack(">BB5xHB", 0x55, 0x10, len(data), 0)
        if ten
        else bytes([0x15, 0x10, 0, 0, len(data), 0])
    )
    check(rig.run(block, data), 0, data)
    rig.close()


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1), st.integers(0, 9), st.integers(0, 15), st.integers(0, 3),
            st.integers(0, 3), st.sampled_from([0, 0, 0, 1, 4, 8]),
        ),
        max_size=20,
    )
)  # fmt: skip
def test_any_persistent_reservations_keep_their_invariants(
    steps: list[tuple[int, int, int, int, int, int]],
) -> None:
    rig = Rig(BLOCKS)
    who = [rig.a, rig.initiator("b")]
    last = 0
    for initiator, action, kind, key, other, flags in steps:
        data = struct.pack(">QQ4xB3x", key, other, flags)
        block = struct.pack(">BBB2xIB", 0x5F, action, kind, 24, 0)
        check(who[initiator].execute(block, data), 0, data)
        keys = rig.a.execute(bytes([0x5E, 0, 0, 0, 0, 0, 0, 4, 0, 0]), data_in=1024)
        if keys.status != GOOD:
            continue  # a unit attention
        generation, length = struct.unpack_from(">II", keys.data)
        assert length in (0, 8, 16)
        assert generation >= last
        last = generation
        held = rig.a.execute(bytes([0x5E, 1, 0, 0, 0, 0, 0, 4, 0, 0]), data_in=1024)
        if held.status == GOOD and len(held.data) > 8:
            assert length > 0  # no reservation without a registration
            assert held.data[21] in (1, 3, 5, 6, 7, 8)
    rig.close()
