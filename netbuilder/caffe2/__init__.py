"""Caffe2's modules and names over netbuilder.

A script ports by writing ``netbuilder.caffe2`` for ``caffe2``; ``python -m netbuilder.caffe2 SCRIPT`` runs it
unchanged, and so does a script that calls ``stand_in()`` before it imports ``caffe2``.
"""

from netbuilder.caffe2.absent import names_of, refuse_missing_modules
from netbuilder.caffe2.standin import stand_in

__all__ = ["stand_in"]

refuse_missing_modules()
__getattr__ = names_of(__name__)
