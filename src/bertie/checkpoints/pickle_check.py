"""What a pickle would build, found without building it: how many objects, and how deeply they nest.

torch's weights_only reader runs no code of a file, but it builds all that the file says. A few bytes can name objects of any
size: bytearray(8 << 30), or tuples that hold the same tuple twice, which take forever to hash or to print.
"""

from __future__ import annotations

import pickletools
from typing import IO

from bertie.errors import UserError

MAX_OBJECTS = 2_000_000
"""Steps of a pickle, and objects in a tuple, each counted as often as it is named. One tensor takes 20 to 30 steps."""
MAX_DEPTH = 100
BUILDERS = frozenset({"TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "REDUCE", "FROZENSET", "BINPERSID", "NEWOBJ"})
"""Steps whose result holds what they take from the stack. Lists and dicts are filled later, and nothing walks them."""
REFUSED = ("builtins bytearray", "__builtin__ bytearray")
"""The function among those that weights_only allows that makes much of a number, and its name in Python 2, which torch maps."""


def require_small(stream: IO[bytes]) -> None:
    """Check a pickle, and leave the stream after it.

    Raises:
        UserError: It would build more than tensors need.
        ValueError: It is damaged.
    """
    stack: list[tuple[int, int] | None] = []  # objects and depth of each value; None is a mark
    memo: dict[int, tuple[int, int]] = {}
    marks = 0
    for count, (step, argument, _) in enumerate(pickletools.genops(stream)):
        if count > MAX_OBJECTS:
            raise UserError(f"it has more than {MAX_OBJECTS:,} steps")
        if step.name in ("GLOBAL", "INST") and argument in REFUSED:
            raise UserError(f"it holds more than tensors ({argument})")
        if step.name in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(memo.get(int(str(argument)), (1, 0)))
            continue
        if step.name in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            top = stack[-1] if stack else None
            memo[len(memo) if argument is None else int(str(argument))] = top or (1, 0)
            continue
        marks += (step.name == "MARK") - ("mark" in [kind.name for kind in step.stack_before])
        if marks > MAX_DEPTH:
            raise UserError(f"it nests more than {MAX_DEPTH} deep")
        taken = _take(stack, step)
        if step.name in BUILDERS:
            made = sum(part[0] for part in taken) + 1, max((part[1] for part in taken), default=0) + 1
            if made[0] > MAX_OBJECTS or made[1] > MAX_DEPTH:
                raise UserError(f"it nests more than {MAX_DEPTH} deep, or names more than {MAX_OBJECTS:,} objects")
        else:
            made = taken[0] if taken else (1, 0)
        stack += [None if kind.name == "mark" else made for kind in step.stack_after]


def _take(stack: list[tuple[int, int] | None], step: pickletools.OpcodeInfo) -> list[tuple[int, int]]:
    """Remove from the stack what a step takes, and return it in order, without marks."""
    taken: list[tuple[int, int]] = []
    kinds = [kind.name for kind in step.stack_before]
    if "mark" in kinds:
        while stack and (top := stack.pop()) is not None:
            taken.append(top)
        kinds = kinds[: kinds.index("mark")]
    for _ in kinds:
        taken.append((stack.pop() if stack else None) or (1, 0))
    return taken[::-1]
