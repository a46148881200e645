"""What happens to trials, written down and shown. No Ray."""
