"""What the process meets: cores, threads, devices, files, servers, terminals, and telemetry."""
