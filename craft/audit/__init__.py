"""Audits an adapter that exists: how much smaller could it be, and what would that cost? (`craft.audit.audit.audit_adapter`)

folder      any PEFT folder --> its model
changes     what it changes in each module --> singular values --> a smaller LoRA
verdict     answers of two models to the same rows --> their difference --> the smallest size to keep
"""
