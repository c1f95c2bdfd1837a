"""Caffe2's modules and names over netbuilder.

A script ports by writing ``netbuilder.caffe2`` for ``caffe2``; ``python -m netbuilder.caffe2 SCRIPT`` runs it
unchanged, and so does a script that calls ``install_alias()`` before it imports ``caffe2``.
"""

from netbuilder.caffe2.import_alias import install_alias, stand_in
from netbuilder.caffe2.missing import find_modules, names_of

__all__ = ["install_alias", "stand_in"]

find_modules()
__getattr__ = names_of(__name__)
