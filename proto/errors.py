"""The exceptions of netbuilder; each message names the thing, the rule, the value and the remedy."""

__all__ = [
    "ArgumentError",
    "BlobError",
    "DeviceError",
    "DistributedError",
    "GradientError",
    "NetError",
    "OperatorError",
    "ParseError",
    "ShapeError",
    "StoreTimeoutError",
    "UsageError",
    "bytes_text",
    "counted",
    "unsaid_cause",
]


_FIRST, _LAST = 1400, 500  # characters of a message that are always shown


def _shortened(message: str) -> str:
    left_out = len(message) - _FIRST - _LAST
    if left_out <= 100:
        return message
    return f"{message[:_FIRST]} ... ({left_out:,} characters left out) ... {message[-_LAST:]}"


class NetError(ValueError, RuntimeError):
    """A net, an operator or a call that builds one breaks a rule.

    It is a RuntimeError, too: Caffe2's scripts expect one where a net cannot be created or run, or a blob fetched.
    Of a long message, such as one that shows the bytes of a file, the middle is left out.

    >>> NetError("a path, not " + "x" * 9000 + " of type bytes").args[0].replace("x", "")
    'a path, not  ... (7,126 characters left out) ...  of type bytes'
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(_shortened(each) if isinstance(each, str) else each for each in args))


class ArgumentError(NetError):
    """An operator's argument is unknown, of the wrong type, or out of range."""


class ShapeError(NetError):
    """Shapes or types of an operator's inputs do not fit each other or its arguments."""


class GradientError(NetError):
    """A backward pass cannot be built."""


class BlobError(NetError, LookupError):
    """A blob that a call names does not exist, or may not be read."""


class UsageError(NetError, AssertionError):
    """A call does not fit those before it: a blob declared twice, nothing entered that could be current.

    It is an AssertionError, too: that is what Caffe2 raises there, and what its scripts catch.
    """


class ParseError(NetError):
    """Bytes or a file do not hold the message that was asked for."""


class DeviceError(RuntimeError):
    """A device, or a library that drives it, is missing; the message says what to install."""


class DistributedError(RuntimeError):
    """The processes of a run disagree, one of them is missing or has failed, or what connects them does not answer."""


class StoreTimeoutError(DistributedError, TimeoutError):
    """A key did not appear in a store in time; the message names the key and the store."""


class OperatorError(RuntimeError):
    """An operator failed while a net ran; the cause is chained, the message says which and where."""


def bytes_text(nbytes: float) -> str:
    """Return a size in binary units.

    >>> bytes_text(100), bytes_text(1536), bytes_text(2.75 * 2**30)
    ('100 B', '1.5 KiB', '2.75 GiB')
    """
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    for unit, size, digits in (("KiB", 2**10, 1), ("MiB", 2**20, 1), ("GiB", 2**30, 2)):
        if nbytes < 1024 * size or unit == "GiB":
            return f"{nbytes / size:,.{digits}f} {unit}"
    raise AssertionError("unreachable")


def unsaid_cause(error: BaseException) -> BaseException | None:
    """Return the cause of an error that its text does not repeat, to raise it from: ``raise error from ...``.

    Whoever gave bad input learns nothing from the frames in which each error got its text from another.

    >>> inner, outer = ShapeError("x must be a row"), NetError("operator 1: x must be a row")
    >>> outer.__cause__, inner.__cause__ = inner, KeyError("x")
    >>> unsaid_cause(outer)
    KeyError('x')
    """
    cause, seen = error.__cause__, {id(error)}  # an error that is raised from itself is its own cause
    while isinstance(cause, (NetError, DeviceError)) and str(cause) in str(error):
        if id(cause) in seen:
            return None
        seen.add(id(cause))
        cause = cause.__cause__
    return cause


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun, for messages; ``plural`` is the noun with an s, unless given.

    >>> counted(1, "device"), counted(2, "device"), counted(0, "index", "indices")
    ('1 device', '2 devices', '0 indices')
    """
    return f"{count} {noun if count == 1 else plural or noun + 's'}"
