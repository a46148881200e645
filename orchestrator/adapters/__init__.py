"""Adapters of a sweep that has run: written whole, as LoRA, merged or cut, with their cards, and registered."""
