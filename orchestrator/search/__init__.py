"""Which configuration comes next, which trial goes on, and when a sweep ends. The only code that imports Optuna; no Ray."""
