"""Base models: where they are found, how they are loaded, which of their modules are heads and projections."""
