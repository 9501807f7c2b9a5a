"""What can go wrong, by who can put it right.

    VringdError              one sentence for a person, never a trace
    ├── OptionError          what was typed is wrong: the user changes an option
    └── ResourceError        the system refused something: the user changes the system

The command line prints `vringd: error: MESSAGE` and exits with status 1 for each of them.
"""

from __future__ import annotations


class VringdError(Exception):
    """Base of all errors that end the program with a message instead of a trace."""


class OptionError(VringdError):
    """An option is malformed, unknown, or contradicts another one."""


class ResourceError(VringdError):
    """A file, socket, thread or other resource cannot be had; `__cause__` says why."""


def describe(error: OSError) -> str:
    """The system's own words, in lower case so that they can end a sentence."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]
