"""The one error that is the user's to mend."""


class BadInput(ValueError):
    """A sentence that names the offending value and says what would be right.

    The two doors, train.py and the command `attnlab`, print it without a traceback and exit
    with code 2.
    """
