"""Recording of a gateway's run, and its replay in a fresh stack."""
