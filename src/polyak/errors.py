"""The one exception for what a user can mend."""


class PolyakError(Exception):
    """Something that the user can put right; the message is one line that says how.

    The command line prints the message without a trace and exits with code 2. Every other exception
    is a fault of Polyak's own and keeps its trace.
    """
