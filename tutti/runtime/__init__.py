"""Services of the operating system for Tutti's processes: files, descriptors, memory, DNS, HTTP and log output."""
