"""The value of a field that was not given, if None is a value of its own."""

from enum import Enum
from typing import Final


class Unset(Enum):
    """The type of UNSET."""

    UNSET = "unset"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
