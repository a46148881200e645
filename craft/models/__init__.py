"""Base models: where they are and what they are (`files`), how they load (`loading`), which modules are the head (`heads`).

`gguf` is for a model in one GGUF file.
`layouts` and `projections` say where a model keeps its projections; `quiet` silences the libraries meanwhile.
"""
