"""Messages between the reads process (`reads.common.gateway_link`) and its gateway (`node.status.status_socket`)."""

TOKEN_BYTES = 8  # of a question, which its answer repeats
PACKED = b"z"  # behind that, where zlib packed what is behind this
READ_INDEX = b"readidx:"  # and a token, which the answer repeats before CONFIRMED or UNCONFIRMED
CONFIRMED, UNCONFIRMED = b"\1", b"\0"
DAMAGED = b"damaged:"  # and the position, u64, little-endian
LANE_DAMAGED = b"lanebad:"  # and the first 8 bytes of the lane's incarnation
REFUSED = (
    b"refused:"  # and how often callers were rejected for one reason since the last such word, u64, little-endian; and the reason
)
WORD_BYTES_MAX = 64
