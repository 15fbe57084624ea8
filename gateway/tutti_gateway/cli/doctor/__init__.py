"""`tutti doctor`: checks this machine, and reports each problem with its remedy."""
