"""Run by Python at its start, in the children of a process in which caffe2 stands for netbuilder.caffe2.

It hides another sitecustomize behind it on the path, so it runs that one, too.
"""

import importlib.machinery
import importlib.util
import os
import sys


def _stand_in(root):
    sys.path.insert(0, root)  # for this import alone: the parent's copy of netbuilder, whatever the path says
    try:
        from netbuilder.caffe2.standin import stand_in
    finally:
        sys.path.remove(root)
    stand_in()


def _run_next():
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _start():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    root = os.environ.get("NETBUILDER_CAFFE2")
    if root and sys.version_info >= (3, 10):
        _stand_in(root)
    _run_next()


if __name__ == "sitecustomize":
    _start()
