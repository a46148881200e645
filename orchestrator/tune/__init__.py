"""Trials on Ray. The only code that imports Ray."""
