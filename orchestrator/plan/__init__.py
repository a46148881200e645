"""What a sweep will run, and what each configuration costs, before it costs anything."""
