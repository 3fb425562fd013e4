"""An index in a folder: segments of arrays, an SQLite database, one writer."""
