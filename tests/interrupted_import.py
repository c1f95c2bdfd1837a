"""Imports of netbuilder that Ctrl-C interrupts: ``interrupted_import.py COUNT [SEED]``.

KeyboardInterrupt is raised at COUNT lines of netbuilder that run when it is imported and first used, spread evenly or
drawn by chance; then the same is done again in the same process. What fails the second time is printed, as JSON. Each
point has a fork of its own, with the other libraries imported: their own imports are not netbuilder's to mend.
"""

from __future__ import annotations

import json
import os
import random
import sys
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

import google.protobuf.text_format  # noqa: F401  (and what it imports)
import numpy as np

__all__ = ["main"]

ROOT = str(Path(__file__).resolve().parent.parent)
sys.path.insert(0, ROOT)


def use() -> None:
    """Import most of netbuilder, build a net, and run it."""
    from netbuilder import ModelHelper, Workspace, brew, load_checkpoint
    from netbuilder.data import image_folder
    from netbuilder.optimizers import build_sgd

    model = ModelHelper("net")
    brew.fc(model, "data", "scores", 3, 2)
    workspace = Workspace()
    workspace.feed("data", np.ones((2, 3), np.float32))
    workspace.run_net_once(model.param_init_net)
    workspace.create_net(model.net)
    workspace.run_net(model.net)
    assert workspace.fetch("scores").shape == (2, 2)
    assert callable(load_checkpoint)
    assert callable(image_folder)
    assert callable(build_sgd)


def interrupted(line: int) -> int:
    """Call ``use``, and raise KeyboardInterrupt in it at a line, from 1; return the number of lines until its end."""
    count = 0

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if event == "line":
            count += 1
            if count == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return local

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        ours = frame.f_code.co_filename.startswith(ROOT) and frame.f_code.co_filename != __file__
        return local if ours else None

    sys.settrace(trace)
    try:
        use()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
    return count


def _forked(line: int) -> str:
    """Return in a fork what happens the second time: the number of lines, or a traceback."""
    reader, writer = os.pipe()
    if not os.fork():
        try:
            text = str(interrupted(line))
            use()
        except BaseException:
            text = traceback.format_exc()[-3000:]
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        found = file.read()
    os.wait()
    return found


def main() -> None:
    count = int(sys.argv[1])
    total = int(_forked(sys.maxsize))
    chance = random.Random(int(sys.argv[2])) if len(sys.argv) > 2 else None
    lines = [chance.randint(1, total) if chance else (2 * k + 1) * total // (2 * count) for k in range(count)]
    problems = {line: text for line in lines if not (text := _forked(line)).isdecimal()}
    print(json.dumps({"lines": lines, "problems": problems}))


if __name__ == "__main__":
    main()
