"""*order*: one position for every frame, first in first out for each producer (protocol/order). See NOTES.md."""
