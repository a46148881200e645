"""The folder of a sweep on disk: its files, its lock, its checkpoints, and what may change between two sessions."""
