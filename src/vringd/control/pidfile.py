"""The file that tells the daemon's process id.

As in QEMU the file is locked while its daemon lives, so a file left behind by a crash is
recognised by its missing lock and replaced. The lock is taken before any socket exists,
the file appears under its name only when the sockets do.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from types import TracebackType
from typing import Self

from vringd.control.errors import ResourceError, describe


class PidFile:
    """A context manager: reserves the name on entry, removes the file at exit.

    Entry raises ResourceError when a living daemon holds the file or it cannot be made.
    Do not fork within it: the lock belongs to the process.
    """

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self._draft = f"{self.path}.{os.getpid()}"
        self._fd = -1
        self._published = False

    def __enter__(self) -> Self:
        self._check_unlocked()
        try:
            # A draft of this name can only be a leftover of a dead process: the id is ours.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._draft)
            self._fd = os.open(
                self._draft, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600
            )
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._fd, b"%d\n" % os.getpid())
        except OSError as error:
            self._remove()
            raise self._error(describe(error)) from error
        return self

    def publish(self) -> None:
        """Gives the file its name. Raises ResourceError if another daemon was faster."""
        self._check_unlocked()
        try:
            os.rename(self._draft, self.path)
        except OSError as error:
            raise self._error(describe(error)) from error
        self._published = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink(self.path if self._published else self._draft)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _check_unlocked(self) -> None:
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._error(describe(error)) from error
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(fd, 32).decode(errors="replace").strip() or "unknown"
            raise self._error(
                f"in use by the process {owner}; end that one or name another file"
            ) from None
        finally:
            os.close(fd)

    def _error(self, problem: str) -> ResourceError:
        return ResourceError(f"--pidfile {self.path}: {problem}")
