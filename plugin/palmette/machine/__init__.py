"""The process and its surroundings: cores, threads, devices, files, servers, terminals, and telemetry."""
