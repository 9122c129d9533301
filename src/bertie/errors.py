"""What a user can mend. The command line prints these in a line or two; everything else is a bug and keeps its traceback."""

MAX_INT32 = 2**31 - 1  # more of anything than a machine holds


class UserError(Exception):
    """Something in the data or on the machine stops the work: what, where, what to do. Exit code 1."""

    exit_code = 1


class MachineError(UserError):
    """It is the machine, not the data: a full disk, a worker that was lost. The same command may go on where it was."""


class DivergedError(UserError):
    """A training whose loss stays no number."""


class UsageError(UserError):
    """The command, a flag or a configuration key is wrong: nothing was started. Exit code 2."""

    exit_code = 2


def require_range(
    where: str, config: object, *names: str, low: float, high: float = MAX_INT32, above: bool = False
) -> None:
    """Errors: UsageError naming the first of a configuration's numbers that is nan or not in low … high.

    where: the configuration's dotted key. above: `low` itself is refused too.
    """
    for name in names:
        value = getattr(config, name)
        if not low <= value <= high or (above and value == low):
            least = "more than" if above else "at least"
            most = "" if high == MAX_INT32 and not value > MAX_INT32 else f", at most {high:,}"
            raise UsageError(f"{f'{where}.{name}'.lstrip('.')} is {value}: give {least} {low:g}{most}")
