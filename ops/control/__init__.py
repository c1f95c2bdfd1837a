"""Operators that hold nets, and operators that count, check, print and time."""
