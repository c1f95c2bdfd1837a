"""RecurrentNetwork, its gradient, steps of recurrent cells, and whole recurrent layers for inference."""

__all__: list[str] = []
