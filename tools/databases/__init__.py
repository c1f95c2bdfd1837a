"""The parts of netbuilder-make-db: sources of images, writing, checking, and what a database holds."""
