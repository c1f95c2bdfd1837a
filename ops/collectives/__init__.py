"""Operators that exchange values between devices."""
