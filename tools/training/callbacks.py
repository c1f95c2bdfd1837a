"""Callbacks of a training run: what is done at its events besides training."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from netbuilder.proto import NetError
from netbuilder.proto.suggestions import did_you_mean

if TYPE_CHECKING:
    from netbuilder.runtime.profile.memory import Memory
    from netbuilder.tools.training.run import EpochResults, Run
    from netbuilder.tools.training.settings import Options
    from netbuilder.tools.training.trained_model import Evaluation

__all__ = ["Callback", "Callbacks", "callbacks_of"]

C = TypeVar("C", bound="Callback")


class Callback:
    """What a run calls at its events; a subclass overrides those that it needs.

    Of several processes that train together each has callbacks of its own, and calls them at the same steps.

    Attributes:
        name: of its state in checkpoints; "": its module and class.
    """

    name = ""

    def __enter__(self: C) -> C:
        """A run trains in the context of its callbacks."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Training has ended, also by an error or a signal."""

    def before_training(self, run: Run) -> None:
        """The run begins, or continues after a checkpoint from which it was resumed."""

    def after_plan(self, run: Run, memory: Memory) -> None:
        """The memory of a step is planned; the first one follows."""

    def before_epoch(self, run: Run) -> None:
        """An epoch begins, or the rest of one."""

    def before_batch(self, run: Run, batch: Mapping[str, Any]) -> None:
        """A batch, or micro-batch, has been fed: this process's samples, by the names of the net's inputs."""

    def runs_batch(self, run: Run) -> Callable[[], object] | None:
        """Return what runs the net for this batch instead of ``RunNet``; None: nothing."""
        return None

    def after_step(self, run: Run) -> None:
        """A step of training has ended: ``run.steps_done`` counts it."""

    def after_results(self, run: Run, step: int, results: Mapping[str, float]) -> None:
        """Loss and training accuracy of a step are known, over all processes: mostly during the next step."""

    def after_evaluated_batch(self, run: Run) -> None:
        """A batch of held-out samples has been evaluated."""

    def stops(self, run: Run) -> bool:
        """Return whether this process wants to stop after this step; all processes then do.

        A run that is stopped can be resumed; see ``ends``.
        """
        return False

    def after_epoch(self, run: Run, results: EpochResults) -> None:
        """An epoch and its evaluation have ended."""

    def ends(self, run: Run) -> bool:
        """Return whether training is complete after the epochs so far; equal on all processes."""
        return False

    def after_average(self, run: Run, found: Evaluation) -> None:
        """The average of --swa is complete, and has been evaluated: it is the result of the run."""

    def after_training(self, run: Run) -> None:
        """No step follows: all epochs are done, training is complete, or ``run.stopped``."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint: text, numbers, None, and lists and dicts of these.

        It must be equal on all processes, of which rank 0 stores it.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that ``state_dict`` returned; not called if the checkpoint has none."""


_EVENTS = [name for name, of in vars(Callback).items() if callable(of) and not name.startswith("__")]


class Callbacks:
    """The callbacks of a run, in the order in which they are called.

    Args:
        callbacks: each at most once.

    Raises:
        NetError: two have the same name.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self._all = {each.name or f"{type(each).__module__}:{type(each).__qualname__}": each for each in callbacks}
        if len(self._all) < len(callbacks):
            raise NetError(
                f"callbacks: two have the same name, under which their states are stored, of {list(self._all)}; give "
                "each class or object a `name` of its own"
            )
        self._of = {
            event: [
                getattr(each, event) for each in callbacks if getattr(type(each), event) is not getattr(Callback, event)
            ]
            for event in _EVENTS
        }

    def __iter__(self) -> Iterator[Callback]:
        return iter(self._all.values())

    def call(self, event: str, *given: Any) -> None:
        """Call those that do something at an event."""
        for each in self._of[event]:
            each(*given)

    def found(self, question: str, *given: Any) -> Any:
        """Return the first answer that is not None or False; None: there is none."""
        for each in self._of[question]:
            if answer := each(*given):
                return answer
        return None

    def get(self, kind: type[C]) -> C | None:
        """Return the callback of a class; None: there is none."""
        return next((each for each in self if isinstance(each, kind)), None)

    def state_dict(self) -> dict[str, Any]:
        """Return the states, by name; callbacks without one are left out."""
        return {name: state for name, each in self._all.items() if (state := each.state_dict())}

    def load_state_dict(self, states: Mapping[str, Any], source: str) -> None:
        """Let the callbacks continue from their states in a checkpoint.

        Raises:
            NetError: one cannot; the message names ``source``.
        """
        for name, each in self._all.items():
            if name in states:
                try:
                    each.load_state_dict(states[name])
                except (LookupError, TypeError, ValueError) as error:
                    raise NetError(
                        f"{source!r}: the callback {name} cannot continue from its state {states[name]!r}: "
                        f"{type(error).__name__}: {error}"
                    ) from error


def callbacks_of(options: Options) -> list[Callback]:
    """Return what the functions that ``--callback`` names make of the options of a run.

    Raises:
        NetError: a module or function does not exist, or does not return a callback.
    """
    return [_made(text, options) for text in options.callback]


def _made(text: str, options: Options) -> Callback:
    made = _function(text)(options)
    if not isinstance(made, Callback):
        raise NetError(
            f"--callback: {text} must return a netbuilder.tools.training.callbacks.Callback, got {type(made).__name__}"
        )
    return made


def _function(text: str) -> Callable[[Options], Any]:
    """Return the function or class with a name such as ``module:function``; modules of this folder are found, too."""
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise NetError(f"--callback must be MODULE:FUNCTION, such as my_callbacks:Sparsity; got {text!r}")
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise NetError(f"--callback: the module {module!r} of {text!r} cannot be imported: {error}") from error
    if not callable(function := getattr(found, name, None)):
        known = [each for each, value in vars(found).items() if callable(value) and not each.startswith("_")]
        raise NetError(f"--callback: {module!r} has no function {name!r}{did_you_mean(name, known)}")
    made: Callable[[Options], Any] = function
    return made
