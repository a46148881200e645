"""What people ask of a sweep that exists: another file, a pause, trials that stop or run again."""
