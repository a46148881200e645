"""Base models: where they are found (`loading`), which modules are the task head (`heads`) and the projections.

`projections` finds the places of a family's weights; `quiet` keeps the libraries' messages off the screen meanwhile.
"""
