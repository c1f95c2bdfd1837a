"""Parameters: what is known of them, and how they are made and shared."""

from netbuilder.caffe2.missing import names_of

__all__: list[str] = []

__getattr__ = names_of(__name__)
