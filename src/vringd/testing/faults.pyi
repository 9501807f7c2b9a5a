from collections.abc import Iterable

from vringd.core.channel import Channel

OPERATIONS: tuple[str, ...]

class FaultRules:
    def set(
        self,
        operations: Iterable[str] = ...,
        *,
        error: int = 0,
        every: int = 0,
        delay_ns: int = 0,
    ) -> None: ...
    def clear(self) -> None: ...
    @property
    def seen(self) -> int: ...

class FaultChannel(Channel):
    def __init__(self, inner: Channel, rules: FaultRules) -> None: ...
