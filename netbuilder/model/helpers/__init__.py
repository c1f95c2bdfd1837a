"""Layer helpers, one family a file; ``netbuilder.model.brew`` hands them their arguments."""
