/* Stands between a gateway and the C library and does to it what a bad disk or a clock that is set would do.
 *
 * What it does is told by a small file, named in TUTTI_SHIM, that is mapped: whoever writes to it changes the behaviour at once.
 * It knows files by their calls: a gateway writes its log with pwrite and its kin, and nothing else.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    _Atomic int64_t clock_ns;      /* added to the time of day */
    _Atomic int32_t sync_errno;    /* fsync and fdatasync fail so */
    _Atomic int32_t write_errno;   /* and writes */
    _Atomic int32_t read_errno;    /* and reads by descriptor; mapped pages stay as they are */
    _Atomic int32_t sync_delay_us; /* a slow disk */
    _Atomic int64_t hits;          /* how often something was made to fail */
    _Atomic int32_t loop_delay_us; /* a slow disk for syncs of the thread "loop", which has the sockets */
};

static struct control nothing;
static struct control *control = &nothing;
static int own_clock;

#define NEXT(name) \
    static __typeof__(name) *next; \
    if (!next) next = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("TUTTI_SHIM");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED) return;
    control = map;
    /* gRPC sleeps until a time of day that it hands to the kernel, which knows nothing of this clock: the reads process keeps the
     * machine's. */
    char line[4096];
    fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? 0 : read(fd, line, sizeof line - 1);
    if (fd >= 0) close(fd);
    own_clock = size > 0 && !memmem(line, (size_t)size, "tutti_gateway.reads", 11);
}

static int fails(_Atomic int32_t *reason) {
    int32_t number = atomic_load(reason);
    if (!number) return 0;
    atomic_fetch_add(&control->hits, 1);
    errno = number;
    return 1;
}

static void wait_for_disk(void) {
    int32_t us = atomic_load(&control->sync_delay_us), of_loop = atomic_load(&control->loop_delay_us);
    char name[16] = "";
    if (of_loop > us && !prctl(PR_GET_NAME, name) && !strcmp(name, "loop")) us = of_loop;
    if (us > 0) {
        struct timespec left = {us / 1000000, (us % 1000000) * 1000L};
        nanosleep(&left, NULL);
    }
}

int fsync(int fd) { NEXT(fsync); wait_for_disk(); return fails(&control->sync_errno) ? -1 : next(fd); }
int fdatasync(int fd) { NEXT(fdatasync); wait_for_disk(); return fails(&control->sync_errno) ? -1 : next(fd); }

#define WRITES(result, name, arguments, given) \
    result name arguments { NEXT(name); return fails(&control->write_errno) ? -1 : next given; }
#define READS(result, name, arguments, given) \
    result name arguments { NEXT(name); return fails(&control->read_errno) ? -1 : next given; }

WRITES(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), (fd, data, size, at))
WRITES(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), (fd, data, size, at))
WRITES(ssize_t, pwritev, (int fd, const struct iovec *parts, int count, off_t at), (fd, parts, count, at))
WRITES(ssize_t, pwritev64, (int fd, const struct iovec *parts, int count, off64_t at), (fd, parts, count, at))
WRITES(ssize_t, pwritev2, (int fd, const struct iovec *parts, int count, off_t at, int flags), (fd, parts, count, at, flags))
WRITES(ssize_t, pwritev64v2, (int fd, const struct iovec *parts, int count, off64_t at, int flags), (fd, parts, count, at, flags))
READS(ssize_t, pread, (int fd, void *data, size_t size, off_t at), (fd, data, size, at))
READS(ssize_t, pread64, (int fd, void *data, size_t size, off64_t at), (fd, data, size, at))

static int64_t set_by(void) { return own_clock ? atomic_load(&control->clock_ns) : 0; }

int clock_gettime(clockid_t clock, struct timespec *now) {
    NEXT(clock_gettime);
    int done = next(clock, now);
    int64_t by = set_by();
    if (!done && by && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t ns = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + by;
        now->tv_sec = ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
