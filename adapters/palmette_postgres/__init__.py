"""A PostgreSQL schema as the storage of an index. ``schema.py`` describes its tables, ``database.py`` transactions."""
