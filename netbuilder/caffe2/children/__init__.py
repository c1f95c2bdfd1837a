"""A folder for PYTHONPATH: what Python runs in it at its start lets caffe2 stand for netbuilder.caffe2."""
