"""Layer helpers, one family per file; ``netbuilder.model.brew`` registers them and passes their arguments."""
