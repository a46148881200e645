"""Mistakes that no single key shows, one subject a module. `orchestrator.sweepfile.load` asks them in turn."""
