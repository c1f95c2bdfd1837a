"""A folder for PYTHONPATH: Python runs sitecustomize.py at its start, which makes caffe2 an alias."""
