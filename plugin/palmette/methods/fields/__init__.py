"""Multi-field documents."""
