"""`vringd demo`, as whoever tries vringd for the first time runs it."""

from __future__ import annotations

import re

import pytest

from vringd.testing.served_disk import run_vringd

STEPS = {
    "vringd serves the disk": r"4 queues on IOThreads t0 and t1",
    "a Linux guest boots under QEMU": r"/dev/vda: 4 queues, serial vringd-demo",
    "fio writes at random and verifies": r"4 jobs on 4 vCPUs, IOPS: \S+ w, \S+ r",
    "mkfs.ext4, mount, copy, umount, fsck": r"[1-9]\d* files read back the same",
    "blkdiscard frees space on the host": r"\d+ MiB -> \d+ MiB",
    "the disk grows while the guest runs": r"the guest sees 320 MiB",
    "the guest powers off": r"",
}


@pytest.mark.timeout(600)
def test_every_step_succeeds_and_every_queue_has_worked() -> None:
    ended = run_vringd("demo", timeout=550)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stderr == ""
    for step, result in STEPS.items():
        line = rf"^{re.escape(step)} \.+ +\d+\.\d s *{result}$"
        assert re.search(line, ended.stdout, re.MULTILINE), f"{step}:\n{ended.stdout}"
    header, *rows = (re.split(" {2,}", line.strip()) for line in ended.stdout.splitlines()[-5:])
    columns = [dict(zip(header, row, strict=True)) for row in rows]
    assert [(row["queue"], row["IOThread"]) for row in columns] == [
        *(("0", "t0"), ("1", "t1"), ("2", "t0"), ("3", "t1")),
    ]
    for row in columns:
        assert int(row["requests"]) > 0, ended.stdout
        assert float(row["read"].split()[0]) > 0, ended.stdout
        assert float(row["written"].split()[0]) > 0, ended.stdout
        assert row["errors"] == "0", ended.stdout
