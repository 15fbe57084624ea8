"""What travels and what is stored: frames, batches, messages of the client port, and the state that a log describes.

Pure functions and values. Nothing here does I/O, and nothing here imports another room of the gateway but `tutti.errors`.
"""
