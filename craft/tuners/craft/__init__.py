"""CRAFT as a PEFT tuner: configuration, layers, model, and export."""
