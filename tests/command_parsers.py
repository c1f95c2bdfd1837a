"""The parsers of commands."""

import contextlib
from unittest import mock

from netbuilder.tools.parser import Parser


def parser_of(command):
    """Return the parser that a command's ``main`` makes; nothing else of it runs."""
    found = []

    class Stop(BaseException):
        pass

    def stop(parser, *given):
        found.append(parser)
        raise Stop

    with mock.patch.object(Parser, "parse_known_args", stop), contextlib.suppress(Stop):
        command.main([])
    return found[0]
