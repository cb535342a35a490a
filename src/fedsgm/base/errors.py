"""What can go wrong, in one sentence each. The command line turns these into a line and an exit code."""


class FedSGMError(Exception):
    """Anything this library raises on purpose."""


class SettingError(FedSGMError, ValueError):
    """A setting, a problem or data that cannot be run; the message says what would be right."""


class ClientError(FedSGMError, RuntimeError):
    """A client's own function failed; the message names the client and the round."""


class FederationError(FedSGMError, RuntimeError):
    """A federated run that cannot go on: too few clients answer."""


class HostError(FedSGMError, RuntimeError):
    """A process of a run on several is not there, or no longer."""


class CheckpointError(FedSGMError, RuntimeError):
    """A checkpoint that cannot be used."""


class WireError(FedSGMError, ValueError):
    """Bytes that are no message, or a message that has no bytes."""


SURPRISES = (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError)
"""What code meets that reads something else than it wrote."""


def in_a_line(error: BaseException) -> str:
    """An exception of Python or of a library, where a sentence tells of it."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
