"""Plain tools that know nothing of sweeps."""
