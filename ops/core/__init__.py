"""What all operators share: the base class, the registry, contexts, element types and arithmetic on rows."""
