"""The one error that is the user's to mend, and the end that was asked for."""

import signal


class BadInput(ValueError):
    """A sentence that names the offending value and says what would be right.

    The two doors, train.py and the command `attnlab`, print it without a traceback and exit
    with code 2.
    """


class Terminated(SystemExit):
    """SIGTERM, as an exception that lets locks go and half-written files be removed."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


def first_line(error: BaseException) -> str:
    """What an error says, without the pages that some libraries add."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
