"""A running service over indexes: HTTP, a web page and MCP. Importing this package loads nothing."""
