"""`--daemonize`: go to the background once everything is served."""

from __future__ import annotations

import os
from collections.abc import Callable


def detach() -> Callable[[], None]:
    """Forks. Call it before any thread exists.

    In the child, returns the function to call when the daemon is ready; it closes the
    terminal. The parent never returns: it exits with status 0 once the child is ready, and
    with the child's own status when that ends before.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child:
        os.close(writer)
        if os.read(reader, 1):
            os._exit(0)
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)
    os.close(reader)
    os.setsid()

    def ready() -> None:
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(null)
        os.write(writer, b"1")
        os.close(writer)

    return ready
