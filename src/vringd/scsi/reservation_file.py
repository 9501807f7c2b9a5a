"""Reads the file that keeps persistent reservations; `reservation_store.pyx` writes it.

Lines of words: the format, the reservation's type (0: none), and the registrations in the order
in which they were made, each with its key, whether it holds the reservation, the target port and
the initiator port's name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_FORMAT = "vringd-reservations 1"
_TYPES = (0, 1, 3, 5, 6, 7, 8)


@dataclass(frozen=True)
class KeptRegistration:
    """A registration of an I_T nexus: its key, and whether it holds the reservation."""

    key: int
    holder: bool
    port: int
    initiator: str


@dataclass(frozen=True)
class KeptReservations:
    """type: of the reservation (SPC-5 table 68), 0 if there is none."""

    type: int = 0
    registrations: list[KeptRegistration] = field(default_factory=list)


def _registration(key: str, holder: str, port: str, initiator: str) -> KeptRegistration:
    number = int(key, 16)
    if holder not in ("0", "1") or not 0 < number < 1 << 64 or not 0 <= int(port) < 1 << 16:
        raise ValueError
    return KeptRegistration(number, holder == "1", int(port), initiator)


def load_reservations(path: str) -> KeptReservations:
    """What the file says; nothing if it does not exist.

    Raises OSError, or ValueError if it is not such a file: reservations that protect data must not
    be forgotten silently.
    """
    try:
        with open(path, encoding="ascii") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return KeptReservations()
    except UnicodeDecodeError:
        raise ValueError(f"{path} does not hold persistent reservations") from None
    if not lines or lines[0] != _FORMAT:
        raise ValueError(f"{path} does not hold persistent reservations")
    kind = 0
    registrations: list[KeptRegistration] = []
    for number, line in enumerate(lines[1:], start=2):
        try:
            match line.split():
                case ["reservation", text] if int(text) in _TYPES:
                    kind = int(text)
                case ["registration", key, holder, port, initiator]:
                    registrations.append(_registration(key, holder, port, initiator))
                case _:
                    raise ValueError
        except ValueError:
            raise ValueError(f"{path} line {number} is damaged: {line[:80]!r}") from None
    if kind and not registrations:
        raise ValueError(f"{path} has a reservation without a registration")
    return KeptReservations(kind, registrations)
