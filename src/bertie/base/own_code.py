"""Tasks and objectives outside of bertie, in code of the user's own. A name such as `my_package:MyTask` stands for a class.

bertie imports what the user names: in a command, in a recipe, or in a call. What a folder names is imported only in
`code_allowed`. A module that the program has imported already needs no permission.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, get_args, get_type_hints

from bertie.base.errors import UsageError, did_you_mean

_NAME = re.compile(r"\w+(\.\w+)*:\w+")
_allowed = ContextVar[tuple[bool, bool]]("code_allowed", default=(False, False))


@contextmanager
def code_allowed(allowed: bool = True, here: bool = False) -> Iterator[None]:
    """Also import in the block what folders name, if `allowed`. here: search modules in the working directory first."""
    before = _allowed.get()
    token = _allowed.set((allowed or before[0], here or before[1]))
    try:
        yield
    finally:
        _allowed.reset(token)


def is_name(value: object) -> bool:
    """Return whether a value is the name of a class, module:Class."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def name_of(owner: type) -> str:
    """Return the name of the class of a task or an objective, which have `facts`; "" for bertie's own and for other classes."""
    return _name(owner) if hasattr(owner, "facts") and not owner.__module__.startswith("bertie.") else ""


def find(name: str, protocol: type) -> Any:
    """Return the class with a name, and import its module.

    Raises:
        UsageError: There is no such module or class, or the class does not fulfill the protocol.
    """
    module_name, _, class_name = name.partition(":")
    if (module := _imported(module_name)) is None:
        if _allowed.get()[1] and "" not in sys.path:
            sys.path.insert(0, "")
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            problem = f"{name} needs the module {error.name}, which Python does not find"
            raise UsageError(f"{problem}: install it, or start in the folder that holds it") from error
    if not isinstance(owner := vars(module).get(class_name), type):
        near = did_you_mean(class_name, [other for other, value in vars(module).items() if isinstance(value, type)])
        lost = ": the class of a notebook is lost with it, so move it to a file" * (module_name == "__main__")
        raise UsageError(f"the module {module_name} has no class {class_name}{lost or near}")
    require(owner, protocol)
    return owner


@functools.cache
def require(owner: Any, protocol: Any) -> None:
    """Check that a class fulfills the protocol of tasks or of objectives. Raises UsageError."""
    name, settings = _name(owner), getattr(owner, "__dataclass_params__", None)
    if settings is None or not settings.frozen:
        raise UsageError(f"{name} is no frozen dataclass: put @dataclass(frozen=True) above it")
    if protocol in owner.__mro__ and not protocol.__abstractmethods__:  # what the class lacks would be there, and empty
        raise UsageError(f"{name} inherits {protocol.__name__}: inherit {protocol.__name__}Defaults instead")
    members = {*dir(owner), *owner.__dataclass_fields__} - getattr(owner, "__abstractmethods__", frozenset())
    needed = {member for member in (*dir(protocol), *protocol.__annotations__) if not member.startswith("_")}
    if missing := sorted(needed - members):
        raise UsageError(f"{name} lacks {', '.join(missing)}: see {protocol.__name__} in {protocol.__module__}")
    if get_args(get_type_hints(owner).get("kind")) != (owner.kind,) or not re.fullmatch(r"\w+", owner.kind):
        raise UsageError(f'{name}: kind must be a field with the name of its head: kind: Literal["mine"] = "mine"')


def refusal(name: str, what: str) -> str:
    """Return why a class that a folder names may not be used, or "". what: the folder, and the part that names it."""
    if _allowed.get()[0] or _imported(name.partition(":")[0]) is not None:
        return ""
    remedy = "if you trust it, let bertie import it with --allow-code (load(…, allow_code=True))"
    return f"{what} is {name}, code that is not part of bertie: {remedy}"


def _name(owner: type) -> str:
    return f"{_name_of_main() if owner.__module__ == '__main__' else owner.__module__}:{owner.__name__}"


def _imported(module: str) -> ModuleType | None:
    """Return a module that the program has imported, or the script that Python runs."""
    return sys.modules["__main__"] if module == _name_of_main() else sys.modules.get(module)


def _name_of_main() -> str:
    """Return the name by which other programs import the script that Python runs; "__main__" in a notebook."""
    main = sys.modules["__main__"]
    spec, path = getattr(main, "__spec__", None), Path(getattr(main, "__file__", ""))
    return spec.name if spec else path.stem if path.suffix == ".py" else "__main__"
