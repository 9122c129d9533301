"""What a pickle would build, found without building it: how much, and by which functions.

torch's weights_only reader runs no code of a file, but it builds all that the file says. A few bytes can name objects of any
size: tuples and lists that hold the same list twice, a set of a tensor that repeats one number, text that doubles with each
step. So a pickle is followed step by step, and only what files of weights hold passes.
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO

from bertie.errors import UserError

REMEDY = "and bertie runs no code of a file: load it where you trust it, and save its state_dict as safetensors"
MAX_STEPS = 2_000_000  # one tensor takes 20 to 30
MAX_OBJECTS = 2_000_000
"""Objects in one value, each counted as often as it is named."""
MAX_MOVED = 20_000_000
"""Objects of all values together that go into another value: what is copied, hashed or put into a message."""
MAX_DEPTH = 100
REBUILDERS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter")
OF_TENSORS = frozenset(f"torch._utils.{name}" for name in REBUILDERS)
"""Functions whose arguments hold one tensor, or its memory."""
OF_NOTHING = frozenset({"collections.OrderedDict"})
OF_VALUES = frozenset(
    {"torch.Size", "torch.device", "__builtin__.set", "collections.Counter"}
)  # as protocol 2 names set
CALLED = OF_TENSORS | OF_NOTHING | OF_VALUES
"""The functions that files of weights call, by what they take. Others that weights_only allows make much of little."""
NAMED = ("torch", "torch.cuda", "torch.storage")
"""Modules of classes and dtypes that such files name."""
VALUES = frozenset(
    {
        "NONE",
        "NEWTRUE",
        "NEWFALSE",
        "BININT",
        "BININT1",
        "BININT2",
        "BINFLOAT",
        "LONG1",
        "BINUNICODE",
        "SHORT_BINSTRING",
    }
    | {"EMPTY_LIST", "EMPTY_DICT", "EMPTY_SET", "EMPTY_TUPLE"}
)
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
FILLED = {"APPEND": 1, "SETITEM": 2, "BUILD": 1, "APPENDS": None, "SETITEMS": None}
"""How many values a step puts into the one below. None: all above the mark."""


@dataclass(slots=True)
class _Value:
    """What a step leaves on the stack."""

    objects: int = 1
    depth: int = 0
    called: str = ""
    """The name of a function, or "" for a value."""
    parts: int = -1
    """Length of a tuple, or -1."""
    tensors: int = 0
    """Tensors, or their memory, that it is or holds."""
    made_by: str = ""
    """The function whose result it is."""
    used: bool = False
    """Whether it is in another value."""


def require_small(stream: IO[bytes]) -> None:
    """Check a pickle, and leave the stream after it.

    Raises:
        UserError: It would build more than tensors and plain values, or more of them than a model has.
        ValueError: It is damaged.
    """
    pickle = _Pickle()
    for count, (step, argument, _) in enumerate(pickletools.genops(stream)):
        if count > MAX_STEPS:
            raise UserError(f"it has more than {MAX_STEPS:,} steps")
        pickle.follow(step.name, argument)


class _Pickle:
    """The stack and the memory of the reader, with a `_Value` for each value."""

    def __init__(self) -> None:
        self.stack: list[_Value] = []
        self.marks: list[list[_Value]] = []  # the stacks below each mark
        self.memo: dict[int, _Value] = {}
        self.moved = 0

    def follow(self, step: str, argument: object) -> None:
        """Do what a step does."""
        if step in VALUES:
            self.stack.append(_Value(parts=0 if step == "EMPTY_TUPLE" else -1))
        elif step in ("BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[_number(argument)] if _number(argument) in self.memo else _Value())
        elif step in ("BINPUT", "LONG_BINPUT"):
            self.memo[_number(argument)] = self._top()
        elif step == "MARK":
            self.marks.append(self.stack)
            self.stack = []
        elif step == "TUPLE" or step in TUPLES:
            parts = self._take(TUPLES.get(step))
            self._push(parts, _Value(parts=len(parts)))
        elif step in FILLED:
            self._fill(self._take(FILLED[step]), step)
        elif step == "GLOBAL":
            self.stack.append(_Value(called=_allowed(str(argument).replace(" ", "."))))
        elif step == "BINPERSID":
            self._push(self._take(1), _Value(tensors=1))
        elif step == "REDUCE":
            self._call(*self._take(2))
        elif step not in ("PROTO", "STOP"):
            raise UserError(f"it holds more than tensors ({step}), {REMEDY}")

    def _top(self) -> _Value:
        if not self.stack:
            raise ValueError("a step lacks its value")
        return self.stack[-1]

    def _take(self, count: int | None) -> list[_Value]:
        """Remove values from the stack, and return them in order. None: all above the mark, which goes, too."""
        if count is None:
            if not self.marks:
                raise ValueError("a step lacks its mark")
            taken, self.stack = self.stack, self.marks.pop()
            return taken
        if len(self.stack) < count:
            raise ValueError("a step lacks its values")
        taken = self.stack[-count:]
        del self.stack[-count:]
        return taken

    def _push(self, parts: Iterable[_Value], value: _Value) -> None:
        """Add a value that is made of parts."""
        self.stack.append(value)
        self._fill(parts)

    def _fill(self, parts: Iterable[_Value], step: str = "") -> None:
        """Put parts into the value on top of the stack."""
        whole = self._top()
        if step == "BUILD" and (whole.made_by not in OF_NOTHING or any(part.tensors for part in parts)):
            raise UserError(f"it holds more than tensors (the state of an object), {REMEDY}")
        for part in parts:
            part.used = True
            whole.objects += part.objects
            whole.depth = max(whole.depth, part.depth + 1)
            whole.tensors += part.tensors
            self.moved += part.objects
        if whole.used:  # its size was counted when it was used
            raise UserError("it fills a value that is already part of another one")
        if whole.objects > MAX_OBJECTS or whole.depth > MAX_DEPTH or self.moved > MAX_MOVED:
            raise UserError(f"it nests more than {MAX_DEPTH} deep, or names more than {MAX_OBJECTS:,} objects")

    def _call(self, function: _Value, arguments: _Value) -> None:
        """Check a call, and add its result."""
        name = function.called
        suits = arguments.parts >= 0 and arguments.tensors == (name in OF_TENSORS)
        if name not in CALLED or not suits or (name in OF_NOTHING and arguments.parts):
            raise UserError(f"it holds more than tensors ({name or 'a call'}), {REMEDY}")
        self._push([arguments], _Value(made_by=name))


def _allowed(name: str) -> str:
    """Return the name of a function or class. Raises UserError if no file of weights names it."""
    if name not in CALLED and name.rpartition(".")[0] not in NAMED:
        raise UserError(f"it holds more than tensors ({name}), {REMEDY}")
    return name


def _number(argument: object) -> int:
    return int(str(argument))
