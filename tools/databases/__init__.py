"""Parts of netbuilder-make-db: sources of images; writing, checking and describing databases."""
