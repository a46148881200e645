"""A sweep file for data of one's own: `orchestrator.suggest.suggest.suggest`."""
