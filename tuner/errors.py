"""The one exception that is meant for the person at the keyboard."""


class UserError(Exception):
    """A wrong input, or something missing that the user can mend.

    The message is one clear sentence that says what to do. The command line prints it without a traceback and
    exits with code 2. Everything else that is raised is a bug.
    """
