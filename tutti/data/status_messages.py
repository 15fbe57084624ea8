"""Messages between the reads process (`reads.common.gateway_link`) and its gateway (`node.status.status_socket`)."""

TOKEN_BYTES = 8  # length of the token in a request, which the answer repeats
PACKED = b"z"  # flag after the token in an answer whose remaining bytes are compressed with zlib
READ_INDEX = b"readidx:"  # prefix of a request with a token; the answer is the token, then CONFIRMED or UNCONFIRMED
CONFIRMED, UNCONFIRMED = b"\1", b"\0"
DAMAGED = b"damaged:"  # prefix of a message with the position of a corrupt frame (u64, little-endian)
LANE_DAMAGED = b"lanebad:"  # prefix of a message with the first 8 bytes of the incarnation of a corrupt lane
# prefix of a message with a number (u64, little-endian) and a reason: so many calls were rejected for it since the last message
REFUSED = b"refused:"
WORD_BYTES_MAX = 64
