"""What all operators are made of: the base class, the registry, contexts, element types and arithmetic on rows."""
