"""A process that builds plans with the double of cuDNN: what ``plan_processes.command`` starts in tests.

``python cudnn_double_process.py [FAULT]``: with ``ends`` it ends before its last plan, with ``refuses`` it builds none.
"""

import json
import os
import pickle
import sys

if __name__ == "__main__":
    sys.path[:] = json.loads(sys.stdin.buffer.readline())

from cudnn_double import CudnnDouble
from netbuilder.engines.cudnn import library, plan_processes

if __name__ == "__main__":
    double, fault = CudnnDouble(), "".join(sys.argv[1:])
    library.found_library = lambda: (double, "")
    properties, share = pickle.load(sys.stdin.buffer)
    assert properties == "GPU 0" and os.environ["CUDA_VISIBLE_DEVICES"] == ""
    if fault == "refuses":
        double.create_device_properties = None
    if fault == "ends":
        plan_processes.work((properties, share[:-1]))
        print("killed", file=sys.stderr, flush=True)
        os._exit(9)
    plan_processes.work((properties, share))
