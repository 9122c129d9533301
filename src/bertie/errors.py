"""What a user can mend. The command line prints these in a line or two; everything else is a bug and keeps its traceback."""


class UserError(Exception):
    """Something in the data or on the machine stops the work: what, where, what to do. Exit code 1."""

    exit_code = 1


class UsageError(UserError):
    """The command, a flag or a configuration key is wrong: nothing was started. Exit code 2."""

    exit_code = 2
