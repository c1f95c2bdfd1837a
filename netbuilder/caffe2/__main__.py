"""``python -m netbuilder.caffe2 SCRIPT ARGS``: run a Caffe2 script unchanged."""

import sys

from netbuilder.caffe2.run_script import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
