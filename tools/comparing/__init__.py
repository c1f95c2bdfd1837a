"""For netbuilder-compare: the two runs that it compares."""
