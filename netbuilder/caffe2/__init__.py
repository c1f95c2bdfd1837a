"""The compatibility layer: Caffe2's modules and names, implemented by netbuilder.

To port a script, replace ``caffe2`` by ``netbuilder.caffe2`` in its imports. An unchanged script runs with ``python -m
netbuilder.caffe2 SCRIPT``, or if ``install_alias()`` is called before it imports ``caffe2``.
"""

from netbuilder.caffe2.import_alias import install_alias
from netbuilder.caffe2.missing import find_modules, names_of

__all__ = ["install_alias"]

find_modules()
__getattr__ = names_of(__name__)
