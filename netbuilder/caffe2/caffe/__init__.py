"""``caffe`` for scripts that translate nets of Caffe where Caffe is not installed: only its messages."""

from netbuilder.caffe2.missing import names_of

__all__: list[str] = []

__getattr__ = names_of(__name__)
