"""Discovery of files: directory scan, ledger of known files, fingerprints."""
