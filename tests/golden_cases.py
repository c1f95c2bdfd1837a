"""Tests of golden cases: a test of one case becomes a test of an operator with all its cases."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from golden_data import Case

__all__ = ["failures", "of_each_operator"]


def failures(check: Callable[..., None], calls: Mapping[str, tuple[Any, ...]]) -> dict[str, str]:
    """Call ``check`` with each tuple of arguments; return the errors, by the name of the call.

    A test that asserts that there are none runs many small checks as one test, and still names each that failed.
    """
    found = {}
    for name, arguments in calls.items():
        try:
            check(*arguments)
        except Exception as error:  # of any kind: it is in the result
            found[name] = f"{type(error).__name__}: {error}"
    return found


def of_each_operator(cases: Iterable[Case]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a test of one case a test of an operator, with all of these cases that it has; it names those that fail."""

    def over_cases(test: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, list[Case]] = {}
        for case in cases:
            groups.setdefault(case.op, []).append(case)

        @functools.wraps(test)
        def of_all(group: list[Case], **more: Any) -> None:
            check = functools.partial(test, **more)
            assert failures(check, {str(case): (case,) for case in group}) == {}

        signature = inspect.signature(test)
        first = inspect.Parameter("group", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        of_all.__signature__ = signature.replace(parameters=[first, *list(signature.parameters.values())[1:]])  # type: ignore[attr-defined]
        return pytest.mark.parametrize("group", groups.values(), ids=groups)(of_all)

    return over_cases
