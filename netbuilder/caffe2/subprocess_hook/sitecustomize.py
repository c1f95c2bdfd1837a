"""Python runs this at its start, in child processes of one in which caffe2 is an alias of netbuilder.caffe2.

It imports nothing until caffe2 is imported. It hides another sitecustomize later on the path, so it runs that one.
"""

import os
import sys
from importlib.machinery import PathFinder

_OLDEST = (3, 10)


class _LazyAlias:
    """A finder that makes caffe2 an alias of netbuilder.caffe2 when it is first imported.

    netbuilder itself is imported from where the parent process has it, whatever the path.
    """

    def __init__(self, root):
        self.root = root

    def find_spec(self, name, path=None, target=None):
        if name == "netbuilder":
            return PathFinder.find_spec(name, [self.root])
        if name.partition(".")[0] != "caffe2":
            return None
        from netbuilder.caffe2.import_alias import install_alias

        sys.meta_path.remove(self)
        install_alias()
        return sys.meta_path[0].find_spec(name, path, target)


def _run_next():
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _start():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if os.path.abspath(folder) != here]
    root = os.environ.get("NETBUILDER_CAFFE2")
    if root and sys.version_info >= _OLDEST:
        sys.meta_path.insert(0, _LazyAlias(root))
    _run_next()


if __name__ == "sitecustomize":
    _start()
