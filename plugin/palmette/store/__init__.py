"""Documents, metadata and arrays at rest: the backend seam, its filter language, and the local folder."""
