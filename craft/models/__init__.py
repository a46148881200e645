"""Base models: where they are found and how they are loaded (`loading`), and which modules are the task head (`heads`).

`files` fetches and identifies them; `gguf` is for a model in one GGUF file.
`layouts` and `projections` say where a model keeps its projections; `quiet` silences the libraries meanwhile.
"""
