"""Messages between the reads process (`reads.common.gateway_link`) and its gateway (`node.status.status_socket`)."""

TOKEN_BYTES = 8  # length of a request's token, which the answer repeats
PACKED = b"z"  # flag after the token: the rest of the answer is compressed with zlib
READ_INDEX = b"readidx:"  # followed by a token, which the answer repeats before CONFIRMED or UNCONFIRMED
CONFIRMED, UNCONFIRMED = b"\1", b"\0"
DAMAGED = b"damaged:"  # followed by the position of a corrupt frame, u64, little-endian
LANE_DAMAGED = b"lanebad:"  # followed by the first 8 bytes of the lane's incarnation
REFUSED = b"refused:"  # followed by the number of calls rejected since the last such message (u64, little-endian) and by the reason
WORD_BYTES_MAX = 64
