"""netbuilder: neural nets as protobuf graphs, differentiated, replicated over devices, planned and run."""

import os as _os

# In a checkout ops/, proto/ and tools/ lie beside this folder; an installed copy holds them inside.
_root = _os.path.dirname(_os.path.dirname(_os.path.abspath(__file__)))
if _os.path.isfile(_os.path.join(_root, "setup.py")) and _os.path.isdir(_os.path.join(_root, "ops")):
    __path__.append(_root)
