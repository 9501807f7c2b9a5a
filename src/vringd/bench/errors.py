"""What can end a benchmark."""

from __future__ import annotations


class BenchError(Exception):
    """One sentence for a person."""


class JobOptionError(BenchError):
    """An option of a job is unknown or has a value that makes no sense."""


class ServerError(BenchError):
    """The server refused, died, stopped answering, or broke a rule of virtio."""


class VerifyError(BenchError):
    """A block does not hold what was written to it."""
