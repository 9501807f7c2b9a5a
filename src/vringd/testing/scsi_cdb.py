"""Command descriptor blocks, for tests: one function each, fields by the standard's names."""

from __future__ import annotations

import struct

TEST_UNIT_READY = bytes(6)


def _ten(opcode: int, lba: int, blocks: int, flags: int = 0, group: int = 0) -> bytes:
    return struct.pack(">BBIBHB", opcode, flags, lba, group, blocks, 0)


def _twelve(opcode: int, lba: int, blocks: int, flags: int = 0, group: int = 0) -> bytes:
    return struct.pack(">BBIIBB", opcode, flags, lba, blocks, group, 0)


def _sixteen(opcode: int, lba: int, blocks: int, flags: int = 0, group: int = 0) -> bytes:
    return struct.pack(">BBQIBB", opcode, flags, lba, blocks, group, 0)


def transfer(opcode: int, lba: int, blocks: int, *, flags: int = 0, group: int = 0) -> bytes:
    """READ, WRITE, VERIFY, WRITE AND VERIFY, PRE-FETCH, SYNCHRONIZE CACHE, WRITE SAME, ORWRITE of
    any length: the opcode says which. flags: byte 1."""
    if opcode >> 5 == 0:
        return struct.pack(">BBHBB", opcode, lba >> 16, lba & 0xFFFF, blocks & 0xFF, 0)
    if opcode >> 5 in (1, 2):
        return _ten(opcode, lba, blocks, flags, group)
    if opcode >> 5 == 5:
        return _twelve(opcode, lba, blocks, flags, group)
    return _sixteen(opcode, lba, blocks, flags, group)


def inquiry(allocation: int = 255, *, page: int | None = None) -> bytes:
    return struct.pack(">BBBHB", 0x12, page is not None, page or 0, allocation, 0)


def request_sense(allocation: int = 252, *, descriptors: bool = False) -> bytes:
    return bytes([0x03, descriptors, 0, 0, allocation, 0])


def report_luns(allocation: int = 4096, *, select: int = 0) -> bytes:
    return struct.pack(">BBB3xIBB", 0xA0, 0, select, allocation, 0, 0)


def read_capacity_10() -> bytes:
    return bytes([0x25]) + bytes(9)


def read_capacity_16(allocation: int = 32) -> bytes:
    return struct.pack(">BB8xIBB", 0x9E, 0x10, allocation, 0, 0)


def get_lba_status(lba: int, allocation: int = 1024) -> bytes:
    return struct.pack(">BBQIBB", 0x9E, 0x12, lba, allocation, 0, 0)


def mode_sense_6(page: int, *, subpage: int = 0, control: int = 0, dbd: bool = False) -> bytes:
    return bytes([0x1A, dbd << 3, control << 6 | page, subpage, 255, 0])


def mode_sense_10(page: int, *, control: int = 0, dbd: bool = False, llbaa: bool = False) -> bytes:
    flags = dbd << 3 | llbaa << 4
    return struct.pack(">BBBB3xHB", 0x5A, flags, control << 6 | page, 0, 4096, 0)


def mode_select_6(size: int, *, pf: bool = True, sp: bool = False) -> bytes:
    return bytes([0x15, pf << 4 | sp, 0, 0, size, 0])


def mode_select_10(size: int) -> bytes:
    return struct.pack(">BB5xHB", 0x55, 0x10, size, 0)


def start_stop(
    *, start: bool, loej: bool = False, power: int = 0, no_flush: bool = False, immed: bool = False
) -> bytes:
    return bytes([0x1B, immed, 0, 0, power << 4 | no_flush << 2 | loej << 1 | start, 0])


def prevent_removal(prevent: int) -> bytes:
    return bytes([0x1E, 0, 0, 0, prevent, 0])


def compare_and_write(lba: int, blocks: int, *, flags: int = 0) -> bytes:
    return struct.pack(">BBQ3xBBB", 0x89, flags, lba, blocks, 0, 0)


def unmap(size: int, *, anchor: bool = False) -> bytes:
    return struct.pack(">BB4xBHB", 0x42, anchor, 0, size, 0)


def unmap_list(*ranges: tuple[int, int]) -> bytes:
    """The parameter list of UNMAP: (LBA, blocks) each."""
    body = b"".join(struct.pack(">QI4x", lba, blocks) for lba, blocks in ranges)
    return struct.pack(">HH4x", len(body) + 6, len(body)) + body


def report_opcodes(
    options: int = 0,
    opcode: int = 0,
    action: int = 0,
    *,
    rctd: bool = False,
    allocation: int = 8192,
) -> bytes:
    return struct.pack(
        ">BBBBHIBB", 0xA3, 0x0C, rctd << 7 | options, opcode, action, allocation, 0, 0
    )


def report_tmfs(*, repd: bool = False) -> bytes:
    return struct.pack(">BBB3xIBB", 0xA3, 0x0D, repd << 7, 64, 0, 0)


def persistent_in(action: int, allocation: int = 8192) -> bytes:
    return struct.pack(">BB5xHB", 0x5E, action, allocation, 0)


def persistent_out(action: int, kind: int = 0, *, scope: int = 0, size: int = 24) -> bytes:
    return struct.pack(">BBB2xIB", 0x5F, action, scope << 4 | kind, size, 0)


def persistent_list(key: int = 0, action_key: int = 0, *, flags: int = 0) -> bytes:
    """The parameter list of PERSISTENT RESERVE OUT. flags: APTPL 1, ALL_TG_PT 4, SPEC_I_PT 8."""
    return struct.pack(">QQ4xB3x", key, action_key, flags)


def move_list(
    key: int, action_key: int, name: str, *, port: int = 1, unreg: bool = False, aptpl: bool = False
) -> bytes:
    """The parameter list of REGISTER AND MOVE, with an iSCSI TransportID."""
    text = name.encode() + b"\0"
    text += bytes(max(-len(text) % 4, 20 - len(text)))
    identity = struct.pack(">BBH", 0x05, 0, len(text)) + text
    flags = unreg << 1 | aptpl
    return struct.pack(">QQBBHI", key, action_key, 0, flags, port, len(identity)) + identity


def get_configuration(first: int = 0, *, kind: int = 0) -> bytes:
    return struct.pack(">BBH3xHB", 0x46, kind, first, 4096, 0)


def get_event_status(classes: int = 0x10) -> bytes:
    return struct.pack(">BB2xB2xHB", 0x4A, 1, classes, 64, 0)


def read_toc(*, kind: int = 0, track: int = 0, msf: bool = False) -> bytes:
    return struct.pack(">BBB3xBHB", 0x43, msf << 1, kind, track, 4096, 0)
