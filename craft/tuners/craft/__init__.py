"""CRAFT as a PEFT tuner.

`config` configures an adapter; `model` puts it on a base model, with one `layer` around every adapted module. `stack` picks the
weights that are decomposed together and holds their factors and the trained J, `equation` is the arithmetic.
`fingerprint` guards a saved adapter's factors, and `lora` writes the adapter as LoRA.
"""
