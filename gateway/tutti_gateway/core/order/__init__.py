"""*order*: the coordinator gives every frame one position, and keeps the order of each producer (protocol/order). See NOTES.md."""
