"""Faults put into the real code on purpose, each breaking one rule of the design: the simulator has to find every one of them."""
