"""One running palmette: HTTP, a page and MCP over indexes. Importing this package loads nothing."""
