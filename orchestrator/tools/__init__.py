"""Tools that do not depend on sweeps."""
