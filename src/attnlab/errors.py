"""The one error that is the user's to mend."""


class BadInput(ValueError):
    """A sentence that names the offending value and says what would be right.

    The two doors, train.py and the command `attnlab`, print it without a traceback and exit
    with code 2.
    """


def first_line(error: BaseException) -> str:
    """What an error says, without the pages that some libraries add."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
