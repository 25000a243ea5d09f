"""The AMQP 1.0 types without a Python counterpart, as small subclasses, so that a decoded value keeps its type."""

from __future__ import annotations

from typing import Any


class Symbol(str):
    """An AMQP symbol: ASCII, from a fixed vocabulary."""

    __slots__ = ()


class Char(str):
    __slots__ = ()


class UByte(int):
    __slots__ = ()


class UShort(int):
    __slots__ = ()


class UInt(int):
    __slots__ = ()


class ULong(int):
    __slots__ = ()


class Byte(int):
    __slots__ = ()


class Short(int):
    __slots__ = ()


class Long(int):
    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970, UTC."""

    __slots__ = ()


class Float(float):
    __slots__ = ()


class Decimal(bytes):
    """An IEEE 754 decimal of 4, 8 or 16 bytes, kept as those bytes."""

    __slots__ = ()


class Described:
    """A value with a descriptor, such as `com.microsoft:timespan`."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: Any, value: Any) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Described) and self.descriptor == other.descriptor and self.value == other.value

    def __hash__(self) -> int:
        return hash((self.descriptor, self.value))

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


class Array(list[Any]):
    """An array: values of one type, with their common format code and descriptor."""

    __slots__ = ("code", "descriptor")

    def __init__(self, code: int, items: Any = (), descriptor: Any = None) -> None:
        super().__init__(items)
        self.code = code
        self.descriptor = descriptor
