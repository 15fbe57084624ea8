/* Load generator: keeps a bounded number of records in flight on each of N open connections, and measures each receipt.
 *
 *     generator < description > result
 *
 * The caller opens the connections, and this process inherits their descriptors. The description on stdin is a `struct plan`,
 * a `struct opened` for each connection, and the bytes of one message. The result on stdout is a `struct result` and the time of
 * each receipt (u64, ns), in the order in which receipts arrived. All integers have the byte order of the machine.
 * benchmarks/load/generator.py writes the description and reads the result.
 *
 * The generator understands two kinds of server. A gateway answers with ZMTP frames. Each row of a receipts message must name the
 * oldest record in flight on its connection. A bare server answers each message with a fixed number of bytes.
 *
 * Any unexpected answer, the end of a connection, or silence ends the process with exit code 1 and a line on stderr.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum {
    CONNECTIONS_MAX = 65536,
    IN_FLIGHT_MAX = 65536,
    RECEIVE_MIN = 16384,   /* first size of a receive buffer, bytes */
    FRAME_MAX = 8 << 20,   /* largest frame that a gateway may send: the receipts of all records in flight fit */
    MESSAGE_MAX = 64 << 20,
    EVENTS = 512,
    MORE = 1, LONG = 2, COMMAND = 4,        /* flags of a ZMTP frame */
    RECEIPTS_HEAD = 8, RECEIPT_ROW = 32,
    PING_HEAD = 7, PING_CONTEXT_MAX = 16,   /* "\4PING", time to live u16, then the context */
    TEXT_MAX = 200,                         /* bytes of an unexpected answer in the error */
};

#define COUNT_MAX 100000000u
#define TIMER UINT32_MAX

struct plan {
    uint64_t count;        /* number of records over all connections */
    uint64_t interval_ns;  /* time between the due times of two records; 0: a receipt sends the next record */
    uint32_t connections;
    uint32_t in_flight;    /* maximum number of records in flight on each connection */
    uint32_t message_bytes;
    uint32_t answer_bytes; /* size of the answer of a bare server; 0 for a gateway */
    uint32_t producer_at, sequence_at, epoch_at; /* offsets in the message of a gateway */
    uint32_t silence_ms;   /* time without a receipt after which the run fails */
};

struct opened {
    uint64_t producer, sequence; /* the sequence of the first record */
    uint32_t epoch;
    int32_t descriptor;
};

struct result {
    uint64_t elapsed_ns, cpu_ns;
};

struct connection {
    struct opened is;
    uint32_t number;
    uint64_t allowed;     /* records that are due, in a paced run */
    uint64_t begun;       /* records whose sending has begun */
    uint64_t received;    /* records that have their receipts */
    int64_t offset;       /* offset in the last receipt */
    uint64_t *started_ns; /* ring: the send time or the due time of each record in flight */
    uint8_t *message;     /* the message that is being sent */
    uint32_t unsent;      /* bytes of it that the socket has not taken */
    uint8_t *buffer;      /* received bytes that are not handled yet */
    uint32_t held, room;
    uint8_t pong[2 + 5 + PING_CONTEXT_MAX];
    uint32_t pong_bytes;  /* a PONG that waits until no message is half sent */
    int waits_to_send;    /* epoll watches for free space in the socket buffer */
};

static struct plan plan;
static struct connection *connections;
static uint8_t *template;
static uint64_t *times_ns;
static uint64_t begin_ns, begun, done;
static int watched;

static void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("load generator: ", stderr);
    vfprintf(stderr, format, arguments);
    fprintf(stderr, " (%llu of %llu receipts so far)\n", (unsigned long long)done, (unsigned long long)plan.count);
    va_end(arguments);
    exit(1);
}

static void *allocate(size_t count, size_t size)
{
    void *memory = calloc(count, size);
    if (memory == NULL)
        fail("no memory for %zu times %zu bytes", count, size);
    return memory;
}

static uint64_t clock_ns(clockid_t clock)
{
    struct timespec now;
    if (clock_gettime(clock, &now))
        fail("clock_gettime: %s", strerror(errno));
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void read_all(void *into, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t got = read(STDIN_FILENO, (uint8_t *)into + at, size - at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            fail("the description ended after %zu of %zu bytes", at, size);
        at += (size_t)got;
    }
}

static void write_all(const void *from, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t put = write(STDOUT_FILENO, (const uint8_t *)from + at, size - at);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            fail("the result cannot be written: %s", strerror(errno));
        at += (size_t)put;
    }
}

static void watch(int operation, int descriptor, uint32_t events, uint32_t number)
{
    struct epoll_event event = {.events = events, .data.u32 = number};
    if (epoll_ctl(watched, operation, descriptor, &event))
        fail("epoll_ctl: %s", strerror(errno));
}

/* Send bytes without waiting. Return how many the socket took. */
static uint32_t send_some(struct connection *to, const uint8_t *bytes, uint32_t size)
{
    for (;;) {
        ssize_t sent = send(to->is.descriptor, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent >= 0)
            return (uint32_t)sent;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            return 0;
        if (errno != EINTR)
            fail("connection %u: send: %s", to->number, strerror(errno));
    }
}

static int may_begin(const struct connection *of)
{
    if (of->begun - of->received == plan.in_flight || begun == plan.count)
        return 0;
    return plan.interval_ns == 0 || of->begun < of->allowed;
}

static void begin_message(struct connection *of)
{
    if (plan.answer_bytes == 0) {
        uint64_t sequence = of->is.sequence + of->begun;
        memcpy(of->message + plan.sequence_at, &sequence, sizeof sequence);
    }
    /* Record n of a paced run belongs to connection n modulo N. */
    uint64_t place = of->number + of->begun * plan.connections;
    of->started_ns[of->begun % plan.in_flight] = plan.interval_ns ? begin_ns + place * plan.interval_ns : clock_ns(CLOCK_MONOTONIC);
    of->unsent = plan.message_bytes;
    of->begun++;
    begun++;
}

/* Send whatever may be sent now. */
static void send_on(struct connection *to)
{
    int full = 0;
    while (!full) {
        if (to->unsent == 0 && to->pong_bytes) {
            uint32_t sent = send_some(to, to->pong, to->pong_bytes);
            memmove(to->pong, to->pong + sent, to->pong_bytes - sent);
            to->pong_bytes -= sent;
            full = to->pong_bytes != 0;
            continue;
        }
        if (to->unsent == 0) {
            if (!may_begin(to))
                break;
            begin_message(to);
        }
        to->unsent -= send_some(to, to->message + (plan.message_bytes - to->unsent), to->unsent);
        full = to->unsent != 0;
    }
    if (full != to->waits_to_send) {
        to->waits_to_send = full;
        watch(EPOLL_CTL_MOD, to->is.descriptor, full ? EPOLLIN | EPOLLOUT : EPOLLIN, to->number);
    }
}

static void take_receipt(struct connection *of, uint64_t now_ns)
{
    if (of->received == of->begun)
        fail("connection %u: a receipt came, but no record is under way", of->number);
    uint64_t started_ns = of->started_ns[of->received % plan.in_flight];
    times_ns[done++] = now_ns > started_ns ? now_ns - started_ns : 0;
    of->received++;
}

static void take_receipts(struct connection *of, const uint8_t *message, uint64_t size, uint64_t now_ns)
{
    uint32_t rows = 0;
    if (size >= RECEIPTS_HEAD)
        memcpy(&rows, message + 4, sizeof rows);
    if (size != RECEIPTS_HEAD + (uint64_t)rows * RECEIPT_ROW || rows == 0)
        fail("connection %u: a receipts message of %u rows has %llu bytes", of->number, rows, (unsigned long long)size);
    for (uint32_t row = 0; row < rows; row++) {
        const uint8_t *at = message + RECEIPTS_HEAD + row * RECEIPT_ROW;
        uint64_t producer, sequence;
        int64_t offset;
        uint32_t epoch, count;
        memcpy(&producer, at, 8);
        memcpy(&sequence, at + 8, 8);
        memcpy(&offset, at + 16, 8);
        memcpy(&epoch, at + 24, 4);
        memcpy(&count, at + 28, 4);
        uint64_t expected = of->is.sequence + of->received;
        if (producer != of->is.producer || epoch != of->is.epoch || sequence != expected || count != 1 || offset <= of->offset)
            fail("connection %u: a receipt has producer %llu, epoch %u, sequence %llu, count %u and offset %lld, but producer %llu,"
                 " epoch %u, sequence %llu, count 1 and an offset above %lld were expected", of->number,
                 (unsigned long long)producer, epoch, (unsigned long long)sequence, count, (long long)offset,
                 (unsigned long long)of->is.producer, of->is.epoch, (unsigned long long)expected, (long long)of->offset);
        of->offset = offset;
        take_receipt(of, now_ns);
    }
}

static void fail_of_message(const struct connection *of, const uint8_t *message, uint64_t size)
{
    char text[TEXT_MAX + 1];
    size_t length = size < TEXT_MAX ? (size_t)size : TEXT_MAX;
    for (size_t at = 0; at < length; at++)
        text[at] = (char)(message[at] >= ' ' && message[at] < 127 ? message[at] : '.');
    text[length] = 0;
    fail("connection %u: an unexpected answer of %llu bytes: %s", of->number, (unsigned long long)size, text);
}

static void take_command(struct connection *of, const uint8_t *command, uint64_t size)
{
    if (size < PING_HEAD || memcmp(command, "\4PING", 5) || of->pong_bytes)
        return; /* other commands need no answer, and one PONG answers two PINGs */
    uint32_t context = (uint32_t)(size - PING_HEAD < PING_CONTEXT_MAX ? size - PING_HEAD : PING_CONTEXT_MAX);
    of->pong[0] = COMMAND;
    of->pong[1] = (uint8_t)(5 + context);
    memcpy(of->pong + 2, "\4PONG", 5);
    memcpy(of->pong + 7, command + PING_HEAD, context);
    of->pong_bytes = 7 + context;
}

static void take_message(struct connection *of, const uint8_t *message, uint64_t size, uint64_t now_ns)
{
    static const char welcome[] = "\xa4type\xa7Welcome"; /* msgpack: the tag of a Welcome, which reports changes of the group */
    if (size && message[0] == 'R')
        take_receipts(of, message, size, now_ns);
    else if (!(size && message[0] == 'C' && memmem(message, size < 32 ? size : 32, welcome, sizeof welcome - 1)))
        fail_of_message(of, message, size);
}

/* Handle the whole frames in the buffer. Return how many bytes they have. */
static uint32_t take_frames(struct connection *of, uint64_t now_ns)
{
    uint32_t at = 0;
    while (of->held - at >= 2) {
        const uint8_t *frame = of->buffer + at;
        uint8_t flags = frame[0];
        uint32_t head = flags & LONG ? 9 : 2;
        if (flags & ~(LONG | COMMAND))
            fail("connection %u: a frame has flags %u, but an answer has one part", of->number, flags);
        if (of->held - at < head)
            break;
        uint64_t size = frame[1];
        if (flags & LONG) {
            size = 0;
            for (int byte = 1; byte < 9; byte++)
                size = size << 8 | frame[byte];
        }
        if (size > FRAME_MAX)
            fail("connection %u: a frame has %llu bytes, above the limit of %d", of->number, (unsigned long long)size, FRAME_MAX);
        if (of->held - at - head < size) {
            uint32_t needed = head + (uint32_t)size;
            if (needed > of->room) {
                /* The buffer begins with this frame after the caller has moved the rest to the front. */
                uint8_t *larger = realloc(of->buffer, needed);
                if (larger == NULL)
                    fail("no memory for a frame of %u bytes", needed);
                of->buffer = larger;
                of->room = needed;
            }
            break;
        }
        if (flags & COMMAND)
            take_command(of, frame + head, size);
        else
            take_message(of, frame + head, size, now_ns);
        at += head + (uint32_t)size;
    }
    return at;
}

static void receive(struct connection *from)
{
    ssize_t got = recv(from->is.descriptor, from->buffer + from->held, from->room - from->held, MSG_DONTWAIT);
    if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK))
        return; /* epoll reports the connection again */
    if (got < 0)
        fail("connection %u: recv: %s", from->number, strerror(errno));
    if (got == 0)
        fail("connection %u: the server closed it", from->number);
    from->held += (uint32_t)got;
    uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
    uint32_t taken = 0;
    if (plan.answer_bytes)
        for (; from->held - taken >= plan.answer_bytes; taken += plan.answer_bytes)
            take_receipt(from, now_ns);
    else
        taken = take_frames(from, now_ns);
    memmove(from->buffer, from->buffer + taken, from->held - taken);
    from->held -= taken;
}

/* Allow the records that have become due. */
static void take_timer(int timer)
{
    static uint64_t due;
    uint64_t expired;
    if (read(timer, &expired, sizeof expired) != sizeof expired)
        return; /* interrupted, or not due: epoll reports the timer again */
    for (; expired && due < plan.count; expired--, due++) {
        struct connection *to = &connections[due % plan.connections];
        to->allowed++;
        send_on(to);
    }
    if (due == plan.count)
        watch(EPOLL_CTL_DEL, timer, 0, TIMER);
}

static int start_timer(void)
{
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    uint64_t seconds = plan.interval_ns / 1000000000u, rest = plan.interval_ns % 1000000000u;
    struct itimerspec times = {
        .it_interval = {.tv_sec = (time_t)seconds, .tv_nsec = (long)rest},
        .it_value = {.tv_sec = (time_t)(begin_ns / 1000000000u), .tv_nsec = (long)(begin_ns % 1000000000u)},
    };
    if (timer < 0 || timerfd_settime(timer, TFD_TIMER_ABSTIME, &times, NULL))
        fail("timerfd: %s", strerror(errno));
    watch(EPOLL_CTL_ADD, timer, EPOLLIN, TIMER);
    return timer;
}

static void read_plan(void)
{
    read_all(&plan, sizeof plan);
    if (plan.count == 0 || plan.count > COUNT_MAX || plan.connections == 0 || plan.connections > CONNECTIONS_MAX)
        fail("a run has 1 to %u records and 1 to %d connections", COUNT_MAX, CONNECTIONS_MAX);
    if (plan.in_flight == 0 || plan.in_flight > IN_FLIGHT_MAX || plan.message_bytes == 0 || plan.message_bytes > MESSAGE_MAX)
        fail("a connection has 1 to %d messages under way, of 1 to %d bytes", IN_FLIGHT_MAX, MESSAGE_MAX);
    if (plan.answer_bytes > RECEIVE_MIN || plan.silence_ms == 0 || plan.silence_ms > 3600000)
        fail("an answer has at most %d bytes, and a run fails after 1 to 3,600,000 ms of silence", RECEIVE_MIN);
    uint64_t end = plan.message_bytes;
    if (plan.answer_bytes == 0 && (plan.producer_at + 8ull > end || plan.sequence_at + 8ull > end || plan.epoch_at + 4ull > end))
        fail("a field lies outside of the message of %u bytes", plan.message_bytes);
    connections = allocate(plan.connections, sizeof *connections);
    times_ns = allocate(plan.count, sizeof *times_ns);
    for (uint32_t number = 0; number < plan.connections; number++) {
        struct connection *one = &connections[number];
        read_all(&one->is, sizeof one->is);
        one->number = number;
        one->offset = -1;
        one->started_ns = allocate(plan.in_flight, sizeof *one->started_ns);
        one->room = RECEIVE_MIN;
        one->buffer = allocate(one->room, 1);
    }
    template = allocate(plan.message_bytes, 1);
    read_all(template, plan.message_bytes);
    for (uint32_t number = 0; number < plan.connections; number++) {
        struct connection *one = &connections[number];
        one->message = allocate(plan.message_bytes, 1);
        memcpy(one->message, template, plan.message_bytes);
        if (plan.answer_bytes == 0) {
            memcpy(one->message + plan.producer_at, &one->is.producer, sizeof one->is.producer);
            memcpy(one->message + plan.epoch_at, &one->is.epoch, sizeof one->is.epoch);
        }
    }
}

static void handle(const struct epoll_event *event, int timer)
{
    if (event->data.u32 == TIMER) {
        take_timer(timer);
        return;
    }
    struct connection *one = &connections[event->data.u32];
    if (event->events & (EPOLLIN | EPOLLERR | EPOLLHUP))
        receive(one);
    send_on(one);
}

int main(void)
{
    read_plan();
    watched = epoll_create1(EPOLL_CLOEXEC);
    if (watched < 0)
        fail("epoll_create1: %s", strerror(errno));
    for (uint32_t number = 0; number < plan.connections; number++)
        watch(EPOLL_CTL_ADD, connections[number].is.descriptor, EPOLLIN, number);
    uint64_t cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    begin_ns = clock_ns(CLOCK_MONOTONIC);
    int timer = plan.interval_ns ? start_timer() : -1;
    if (timer < 0)
        for (uint32_t number = 0; number < plan.connections; number++)
            send_on(&connections[number]);
    uint64_t heard_ns = begin_ns, heard = 0;
    while (done < plan.count) {
        struct epoll_event events[EVENTS];
        int ready = epoll_wait(watched, events, EVENTS, (int)plan.silence_ms);
        if (ready < 0 && errno != EINTR)
            fail("epoll_wait: %s", strerror(errno));
        for (int number = 0; number < ready; number++)
            handle(&events[number], timer);
        uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
        if (done != heard) {
            heard = done;
            heard_ns = now_ns;
        } else if (now_ns - heard_ns >= plan.silence_ms * 1000000ull) {
            fail("no receipt came for %u ms", plan.silence_ms);
        }
    }
    struct result result = {clock_ns(CLOCK_MONOTONIC) - begin_ns, clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns};
    write_all(&result, sizeof result);
    write_all(times_ns, plan.count * sizeof *times_ns);
    return 0;
}
