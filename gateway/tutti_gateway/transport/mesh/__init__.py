"""The mesh: one TCP connection from each gateway to each other one."""
