"""libiscsi's SCSI test suite, run by a Linux guest against a disk and a CD-ROM of vringd.

What does not pass, or is skipped, is in a baseline with its reason; a test that passes and stands
there is an error too, so that the baseline can only shrink.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from vringd.testing.guest import Guest
from vringd.testing.guest_devices import VhostUserScsi
from vringd.testing.guest_image import (
    SCSI_MODULES,
    SCSI_PROGRAMS,
    guest_image,
    image_missing_reason,
)
from vringd.testing.served_disk import ServedScsi, Vringd

MIB = 1 << 20
BASELINE = Path(__file__).with_name("scsi_conformance.txt")

MISSING = image_missing_reason(SCSI_PROGRAMS)
pytestmark = [
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
    pytest.mark.timeout(900),
]


def read_baseline() -> dict[str, str]:
    """Test: why it does not pass. Lines are `FAMILY.TEST: reason`; # begins a comment."""
    lines = [line for line in BASELINE.read_text().splitlines() if line and line[0] != "#"]
    return dict(line.split(": ", 1) for line in lines)


def read_results(output: str) -> dict[str, str]:
    """What became of each test: passed, failed or skipped."""
    results: dict[str, str] = {}
    family = test = None
    for line in output.splitlines():
        if match := re.match(r"Suite: (\S+)", line):
            family = match[1]
        elif match := re.match(r"\s+Test: (\S+?) ?\.\.\.", line):
            test = f"{family}.{match[1]}"
            results[test] = "running"
        if test is not None and results[test] == "running":
            if "SKIPPED" in line:
                results[test] = "skipped"
            elif re.search(r"\bpassed\b", line):
                results[test] = "passed"
            elif re.search(r"\bFAILED\b", line):
                results[test] = "failed"
    return results


@pytest.fixture
def guest(folder: Path) -> Iterator[Guest]:
    with ExitStack() as stack:
        image = folder / "disk.img"
        image.touch()
        os.truncate(image, 128 * MIB)
        scsi = ServedScsi(folder, [image], num_queues=2, iothreads=2)
        stack.enter_context(Vringd(folder, [scsi]))
        device = VhostUserScsi("scsi", scsi.socket, num_queues=2)
        booted = guest_image(programs=SCSI_PROGRAMS, modules=SCSI_MODULES)
        guest = stack.enter_context(Guest([device], cpus=2, image=booted))
        guest.wait_for("test -b /dev/sda")
        yield guest


def test_every_test_that_applies_passes(guest: Guest) -> None:
    output = guest.run("iscsi-test-cu -d -n -V --test=ALL.* /dev/sda 2>&1", timeout=800).output
    results = read_results(output)
    assert len(results) > 200, output[-2000:]
    baseline = read_baseline()
    wrong = {
        test: result
        for test, result in results.items()
        if result != "passed" and test not in baseline
    }
    assert not wrong, output[-8000:]
    better = [test for test in baseline if results.get(test) == "passed"]
    assert not better, f"these pass now, take them out of {BASELINE.name}: {better}"
    unknown = [test for test in baseline if test not in results]
    assert not unknown, f"{BASELINE.name} names tests that were not run: {unknown}"
