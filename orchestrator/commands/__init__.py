"""The commands of `craft-sweeps`, one function each. A command reads its options and calls the rooms below."""
