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
    """Test: why it does not pass. Lines are `SUITE.TEST: reason`; # begins a comment."""
    lines = [line for line in BASELINE.read_text().splitlines() if line and line[0] != "#"]
    return dict(line.split(": ", 1) for line in lines)


def read_results(output: str) -> dict[str, str]:
    """What became of each test: passed, FAILED or SKIPPED, of what CUnit prints in verbose mode. A
    test that leaves a part of itself out counts as skipped."""
    results: dict[str, str] = {}
    suite = test = ""
    for line in output.splitlines():
        if match := re.match(r"Suite: (\S+)", line):
            suite = match[1]
        elif match := re.match(r"  Test: (\S+) \.\.\.", line):
            test = f"{suite}.{match[1]}"
        found = re.search(r"\[SKIPPED\]|FAILED$|passed$", line)
        if test and found and (found[0] == "FAILED" or test not in results):
            results[test] = found[0].strip("[]")
    return results


@pytest.fixture
def guest(folder: Path) -> Iterator[Guest]:
    images = [folder / f"{name}.img" for name in ("thin", "removable", "protected")]
    for image in images:
        image.touch()
        os.truncate(image, 128 * MIB)
    with ExitStack() as stack:
        scsi = ServedScsi(
            *(folder, images),
            num_queues=2,
            iothreads=2,
            devices=[
                {"serial": "SER1", "wwn": "0x5000c50012345678"},
                {"removable": "on"},
                {"writable": "off"},
            ],
        )
        stack.enter_context(Vringd(folder, [scsi]))
        device = VhostUserScsi("scsi", scsi.socket, num_queues=2)
        booted = guest_image(programs=SCSI_PROGRAMS, modules=SCSI_MODULES)
        guest = stack.enter_context(Guest([device], cpus=2, image=booted))
        guest.wait_for("test -e /sys/bus/scsi/devices/0:0:2:0/scsi_generic")
        yield guest


def run_suites(guest: Guest, target: int, *suites: str) -> dict[str, str]:
    """Run suites on the disk of a target."""
    node = guest.output(f"ls /sys/bus/scsi/devices/0:0:{target}:0/scsi_generic")
    results = {}
    for suite in suites:
        command = f"iscsi-test-cu -d -v --test={suite} /dev/{node} 2>&1"
        results |= read_results(guest.run(command, timeout=500).output)
    return results


def test_every_test_that_applies_passes(guest: Guest) -> None:
    results = run_suites(guest, 0, "ALL")
    assert len(results) > 200
    for target, suites in (
        (1, ("ALL.StartStopUnit", "ALL.PreventAllow", "ALL.NoMedia")),
        (2, ("ALL.ReadOnly",)),
    ):
        for test, result in run_suites(guest, target, *suites).items():
            if result == "passed" or results[test] == "SKIPPED":
                results[test] = result
    baseline = read_baseline()
    rest = {test: result for test, result in results.items() if result != "passed"}
    assert {test: result for test, result in rest.items() if test not in baseline} == {}
    gone = sorted(set(baseline) - set(rest))
    assert gone == [], f"these pass, or are not there: take them out of {BASELINE.name}"
