"""Runtime services of Tutti's processes: files, descriptors, memory, DNS, HTTP and logging."""
