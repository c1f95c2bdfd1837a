"""Command-line programs, each a thin ``main()`` over the library."""

if __name__ != "netbuilder.tools":
    raise ImportError("import this package as netbuilder.tools")
