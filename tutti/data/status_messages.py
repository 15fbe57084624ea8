"""Messages between the reads process (`reads.common.gateway_link`) and its gateway (`node.status.status_socket`)."""

TOKEN_BYTES = 8  # length of a request's token, which the answer repeats
PACKED = b"z"  # flag after the token in an answer: the rest of the answer is compressed with zlib
READ_INDEX = b"readidx:"  # a token follows; the answer repeats the token before CONFIRMED or UNCONFIRMED
CONFIRMED, UNCONFIRMED = b"\1", b"\0"
DAMAGED = b"damaged:"  # the position of a corrupt frame follows (u64, little-endian)
LANE_DAMAGED = b"lanebad:"  # the first 8 bytes of the incarnation of a corrupt lane follow
REFUSED = b"refused:"  # the number of calls rejected since the last such message (u64, little-endian) and the reason follow
WORD_BYTES_MAX = 64
