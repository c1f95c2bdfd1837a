"""The plan compiler: from the operators of a net and the specs of its inputs to steps over values."""
