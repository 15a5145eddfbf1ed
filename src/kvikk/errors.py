"""The errors a user can meet: one clear line each, sorted by what the caller can do about them.

Anything else that escapes is a defect of kvikk and shows its traceback.
"""


class KvikkError(Exception):
    """Base of all errors that are told to the user in one line. Never carries secrets."""


class ModelError(KvikkError):
    """The model cannot be found, read or run: another file, name or option is needed."""


class RequestError(KvikkError):
    """The request is malformed or can never be served as it stands; the caller must change it.

    ``parameter`` names the field at fault, where there is one.
    """

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class UnknownModelError(RequestError):
    """The request names a model or an adapter that is not here; ``parameter`` says where."""


class BusyError(KvikkError):
    """No room at the moment: the same request may be sent again after ``retry_after_s`` seconds."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s
