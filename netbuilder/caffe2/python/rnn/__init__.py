"""Helpers of tests of recurrent cells."""
