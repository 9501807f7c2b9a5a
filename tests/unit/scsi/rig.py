"""A unit over a disk in memory, and one initiator that has been told of the power-on."""

from __future__ import annotations

from dataclasses import dataclass, field

from vringd.block.backend import BlockLimits
from vringd.scsi.settings import UnitSettings
from vringd.scsi.unit import ScsiUnit
from vringd.testing import scsi_cdb as cdb
from vringd.testing.scsi_initiator import Initiator, MemoryDisk, Result

GOOD, CHECK, BUSY, CONFLICT, ABORTED = 0x00, 0x02, 0x08, 0x18, 0x40

READ_6, READ_10, READ_12, READ_16 = 0x08, 0x28, 0xA8, 0x88
WRITE_6, WRITE_10, WRITE_12, WRITE_16 = 0x0A, 0x2A, 0xAA, 0x8A
VERIFY_10, VERIFY_12, VERIFY_16 = 0x2F, 0xAF, 0x8F
WRITE_VERIFY_10, WRITE_VERIFY_12, WRITE_VERIFY_16 = 0x2E, 0xAE, 0x8E
PREFETCH_10, PREFETCH_16 = 0x34, 0x90
SYNC_10, SYNC_16 = 0x35, 0x91
WRITE_SAME_10, WRITE_SAME_16 = 0x41, 0x93
ORWRITE = 0x8B

READS = (READ_6, READ_10, READ_12, READ_16)
WRITES = (WRITE_6, WRITE_10, WRITE_12, WRITE_16)
VERIFIES = (VERIFY_10, VERIFY_12, VERIFY_16)
WRITE_VERIFIES = (WRITE_VERIFY_10, WRITE_VERIFY_12, WRITE_VERIFY_16)

# (sense key, additional sense code)
OUT_OF_RANGE = (5, 0x2100)
INVALID_FIELD = (5, 0x2400)
INVALID_PARAMETER = (5, 0x2600)
INVALID_OPCODE = (5, 0x2000)
LIST_LENGTH = (5, 0x1A00)
PROTECTED = (7, 0x2700)
SOFTWARE_PROTECTED = (7, 0x2702)
MISCOMPARE = (0xE, 0x1D00)
NO_MEDIUM_OPEN = (2, 0x3A02)


def sense(result: Result) -> tuple[int, int]:
    """Sense key and code of a CHECK CONDITION."""
    assert result.status == CHECK, result
    return result.key, result.code


def drain(initiator: Initiator) -> list[int]:
    """Codes of all unit attentions that are pending, in the order in which they are told."""
    codes = []
    while (result := initiator.execute(cdb.request_sense(), data_in=18)).data[2] == 6:
        codes.append(int.from_bytes(result.data[12:14], "big"))
    return codes


@dataclass
class Rig:
    """Blocks are bytes of the disk's size // 512; everything is closed by `close`."""

    blocks: int = 512
    block_size: int = 512
    settings: UnitSettings = field(default_factory=UnitSettings)
    discard: bool = True

    def __post_init__(self) -> None:
        self.size = self.blocks * self.block_size
        self.disk = MemoryDisk(self.size)
        limits = BlockLimits(
            block_size=self.block_size if self.settings.type == "disk" else 512,
            physical_block_size=max(4096, self.block_size),
            discard=self.discard,
            discard_alignment=self.block_size,
        )
        self.unit = ScsiUnit(self.settings, limits, self.size)
        self.initiators: list[Initiator] = []
        self.a = self.initiator("a")

    def initiator(self, name: str, *, quiet: bool = True) -> Initiator:
        """One more nexus; quiet: it has been told of the power-on."""
        made = Initiator(self.unit, self.disk.open_channel(), name)
        self.initiators.append(made)
        if quiet:
            assert drain(made) == [0x2900]
        return made

    def run(self, block: bytes, out: bytes = b"", in_: int = 0) -> Result:
        """Execute a command by initiator a."""
        return self.a.execute(block, out, in_)

    def read(self, lba: int, blocks: int = 1) -> bytes:
        result = self.run(cdb.transfer(READ_16, lba, blocks), in_=blocks * self.block_size)
        assert result.status == GOOD, result
        return result.data

    def write(self, lba: int, data: bytes) -> None:
        blocks = len(data) // self.block_size
        assert self.run(cdb.transfer(WRITE_16, lba, blocks), data).status == GOOD

    def close(self) -> None:
        for initiator in self.initiators:
            initiator.close()
            if initiator.nexus.running() == 0:
                initiator.nexus.close()
        self.unit.close()
        assert self.disk.violations == 0
