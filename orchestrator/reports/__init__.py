"""What commands answer, as data for programs: `--json` prints a report, and docs/reports.schema.json describes all of them.

    plan, state, front, comparison, findings, adapters  -->  X_report(...)  -->  Report  -->  Report.to_json()

A report is made of what the terminal shows and has the same values. `orchestrator.reports.schema` writes the schema.
"""
